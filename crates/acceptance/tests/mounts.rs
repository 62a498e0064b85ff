//! MN-R1 as the real thing: a store, a loop device and a file system on it are free and intact on
//! every return.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use watertight_acceptance::command::Cmd;
use watertight_acceptance::scratch::Scratch;
use watertight_acceptance::subject::need_root;
use watertight_acceptance::{Setup, Subject, Verb, is_long, note, skip};

/// One of these tests at a time: a process that looks for a free loop device opens one that another
/// has just given back, and then it is given back late, and may show the next one some of what was
/// on it.
static LOOP_DEVICES: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    LOOP_DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command that has to succeed, and gives what it said.
fn run(program: &str, arguments: &[&Path]) -> String {
    Cmd::new(program).args(arguments).ok().out().trim().to_owned()
}

/// Reads a file, by a program: what is open here is open for a moment in each program that another
/// test starts just then.
fn read(path: &Path) -> String {
    Cmd::new("cat").arg(path).ok().out()
}

/// Writes a file, in the same way.
fn write(path: &Path, content: &str) {
    Cmd::new("sh").args(["-c", "printf %s \"$1\" > \"$2\"", "sh", content]).arg(path).ok();
}

fn has(test: &str, programs: &[&str]) -> bool {
    let is_there = |name: &&&str| {
        ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(name).exists())
    };
    let missing = programs.iter().find(|name| !is_there(name));
    if let Some(missing) = missing {
        skip(test, &format!("{missing} is not installed"));
    }
    missing.is_none()
}

/// A mounted volume that others are attached to.
struct Rig {
    subject: Subject,
    store: PathBuf,
    at: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Option<Self> {
        if !need_root(name) {
            return None;
        }
        let subject = Subject::start(name)?;
        let (store, at) = (subject.outside("other"), subject.at("x"));
        fs::create_dir(&at).expect("mkdir");
        Some(Self { subject, store, at })
    }

    fn verb(&self, arguments: &[&Path]) {
        self.subject.program().args(arguments).ok();
    }

    /// Again for a while when it is busy: a process that looked at a loop device closes it when it
    /// likes.
    fn detach_when_free(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.subject.program().arg("detach").arg(&self.at).run();
            if output.status.success() {
                return;
            }
            assert!(output.err().contains("loop device over") && Instant::now() < until, "{}", output.err());
            thread::yield_now();
        }
    }

    fn attach(&self) {
        let fast = Path::new("dirty_after=1h");
        self.verb(&[Path::new("attach"), Path::new("-o"), fast, &self.store, &self.at]);
    }
}

/// {format a store; attach; write; detach lazily}: the store is free and intact on every return.
#[test]
fn mn_r1_reuse_of_a_store_right_after_each_return() {
    let _alone = alone();
    let Some(mut rig) = Rig::new("mn_r1_reuse_of_a_store_right_after_each_return") else { return };
    let rounds = if is_long() { 1000 } else { 100 };
    for round in 0..rounds {
        // The store is taken away and made anew: no process may have it.
        fs::remove_dir_all(&rig.store).expect("remove");
        fs::create_dir(&rig.store).expect("mkdir");
        rig.attach();
        let content = format!("round {round}").repeat(1000);
        write(&rig.at.join("file"), &content);
        let how = if round % 2 == 0 { "--lazy" } else { "--" };
        rig.verb(&[Path::new("detach"), Path::new(how), &rig.at]);
        assert_eq!(read(&rig.store.join("file")), content, "round {round}");
        assert!(!rig.at.join("file").exists(), "round {round}: a path leads there");
    }
    note(rig.subject.name(), &format!("{rounds} rounds"));
    rig.subject.finish();
}

/// An image on a volume, a loop device over it, and a file system on that, mounted.
struct Image {
    path: PathBuf,
    device: PathBuf,
    inner: PathBuf,
}

impl Image {
    fn new(path: PathBuf, inner: &Path) -> Self {
        run("truncate", &[Path::new("--size=4M"), &path]);
        let device = run("losetup", &[Path::new("--find"), Path::new("--show"), &path]);
        Self { path, device: device.into(), inner: inner.to_owned() }
    }

    /// mkfs, which is refused where the device is used; mount; touch.
    fn format(&self, content: &str) {
        run("mkfs.ext4", &[Path::new("-q"), &self.device]);
        run("mount", &[&self.device, &self.inner]);
        write(&self.inner.join("touched"), content);
    }

    fn umount_lazily(&self) {
        run("umount", &[Path::new("-l"), &self.inner]);
    }

    /// The last user of the volume closes it. Where another process looks at the device just now,
    /// the kernel leaves the end to its close: a moment later than this.
    fn let_go(self) {
        run("losetup", &[Path::new("-d"), &self.device]);
    }
}

/// What a store has is a clean file system with this content: it is checked, mounted, and read.
fn is_intact(stored: &Path, inner: &Path, content: &str) {
    run("e2fsck", &[Path::new("-fn"), stored]);
    run("mount", &[Path::new("-o"), Path::new("loop,ro"), stored, inner]);
    let touched = read(&inner.join("touched"));
    run("umount", &[inner]);
    assert_eq!(touched, content, "{}", stored.display());
}

const TOOLS: [&str; 5] = ["mkfs.ext4", "losetup", "e2fsck", "mount", "umount"];

/// {an image on an attached volume; loop device; mkfs, mount, touch, umount -l, twice; detach of
/// the volume's own path, lazily or not}: after each return the device is free for the next mkfs,
/// and the image is on the store as it was written.
#[test]
fn mn_r1_a_loop_device_over_an_image_on_an_attached_volume() {
    let _alone = alone();
    let name = "mn_r1_a_loop_device_over_an_image_on_an_attached_volume";
    if !has(name, &TOOLS) {
        return;
    }
    let Some(mut rig) = Rig::new(name) else { return };
    let inner = rig.subject.outside("inner");
    let rounds = if is_long() { 1000 } else { 100 };
    for round in 0..rounds {
        rig.attach();
        let image = Image::new(rig.at.join("image"), &inner);
        for again in 0..2 {
            image.format(&format!("{round} {again}"));
            image.umount_lazily();
        }
        if round % 10 == 0 {
            // The kernel's loop device holds the image: no plain detach, and its name is reported.
            let refused = rig.subject.program().arg("detach").arg(&rig.at).run();
            assert_eq!(refused.status.code(), Some(1), "round {round}");
            assert!(refused.err().contains("loop device over"), "round {round}: {}", refused.err());
        }
        image.let_go();
        if round % 2 == 0 {
            rig.verb(&[Path::new("detach"), Path::new("--lazy"), &rig.at]);
            assert!(!rig.at.join("image").exists(), "round {round}: a path leads there");
            rig.verb(&[Path::new("wait"), &rig.at]);
        } else {
            rig.detach_when_free();
        }
        is_intact(&rig.store.join("image"), &inner, &format!("{round} 1"));
    }
    note(rig.subject.name(), &format!("{rounds} rounds"));
    rig.subject.finish();
}

/// {mount a volume; mkfs of an image on it, by a loop device; mount, touch; `umount -l` of the
/// volume's own path, below all that}: the path is gone on return, what is over it goes on, and
/// once that has let go, which `wait` reports, the store is free and the image intact: it is
/// mounted again at once.
#[test]
fn mn_r1_umount_lazy_of_the_volumes_own_path_below_a_loop_device() {
    let _alone = alone();
    let name = "mn_r1_umount_lazy_of_the_volumes_own_path_below_a_loop_device";
    if !need_root(name) || !has(name, &TOOLS) {
        return;
    }
    let Some(mut subject) = Subject::with(name, Setup::default().option("dirty_after=1h")) else { return };
    let inner = subject.outside("inner");
    let rounds = if is_long() { 1000 } else { 100 };
    for round in 0..rounds {
        let image = Image::new(subject.at("image"), &inner);
        image.format(&format!("{round} first"));
        subject.unmount(Verb::Umount8Lazy);
        assert!(!image.path.exists(), "round {round}: a path leads there");
        // Below, the volume is there as long as it is used.
        let content = format!("{round} after the path had gone");
        write(&inner.join("touched"), &content);
        image.umount_lazily();
        image.let_go();
        // `wait` says it, see `let_go`.
        subject.program().args(["wait".as_ref(), subject.path()]).ok();
        is_intact(&subject.store().join("image"), &inner, &content);
        subject.mount();
        fs::remove_file(subject.at("image")).expect("remove");
    }
    note(name, &format!("{rounds} rounds"));
    subject.close();
}

/// {mkfs; loop device; mount; a store on it, mounted; write; unmount}: the moment the unmount has
/// returned, the store's own file system is unmounted, by umount(2), which refuses where anything
/// is open; its device is formatted anew, which is refused where anything uses it; and the device
/// is given back.
#[test]
fn the_file_system_and_the_device_of_a_store_are_free_on_return() {
    let _alone = alone();
    let name = "the_file_system_and_the_device_of_a_store_are_free_on_return";
    if !need_root(name) || !has(name, &["mkfs.ext4", "losetup", "e2fsck", "mount", "umount"]) {
        return;
    }
    let scratch = Scratch::new("store-device");
    let (image, under) = (scratch.path().join("image"), scratch.dir("under"));
    fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("image");
    let store = under.join("store");
    let device = || PathBuf::from(run("losetup", &[Path::new("--find"), Path::new("--show"), &image]));
    let verbs = [Verb::Program, Verb::Interrupt, Verb::Terminate, Verb::Raw, Verb::Umount8];
    let mut now = device();
    run("mkfs.ext4", &[Path::new("-qF"), &now]);
    run("mount", &[&now, &under]);
    fs::create_dir(&store).expect("mkdir");
    let setup = Setup::default().store(&store).option("dirty_after=1h");
    let Some(mut subject) = Subject::with(name, setup) else {
        run("umount", &[&under]);
        run("losetup", &[Path::new("-d"), &now]);
        return;
    };
    let verbs = if subject.kernel_waits() { &verbs[..] } else { &verbs[..3] };
    let rounds = if is_long() { 100 } else { 10 };
    for round in 0..rounds {
        let verb = verbs[round % verbs.len()];
        let content = format!("round {round}").repeat(1000);
        write(&subject.at("file"), &content);
        subject.unmount(verb);
        assert_eq!(read(&store.join("file")), content, "round {round}, {verb:?}");
        run("umount", &[&under]);
        run("e2fsck", &[Path::new("-fn"), &now]);
        // Without -F: it asks for the device alone.
        run("mkfs.ext4", &[Path::new("-q"), &now]);
        run("losetup", &[Path::new("-d"), &now]);
        now = device();
        run("mount", &[&now, &under]);
        fs::create_dir(&store).expect("mkdir");
        subject.mount();
        assert!(!subject.at("file").exists(), "round {round}, {verb:?}: of the store that was");
    }
    subject.close();
    run("umount", &[&under]);
    run("losetup", &[Path::new("-d"), &now]);
    note(name, &format!("{rounds} rounds"));
}
