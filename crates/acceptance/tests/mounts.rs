//! MN-R1 as the real thing: a store, a loop device and a file system on it are free and intact on every return.

use std::fs;
use std::path::{Path, PathBuf};

use watertight_acceptance::command::Cmd;
use watertight_acceptance::scratch::Scratch;
use watertight_acceptance::subject::need_root;
use watertight_acceptance::{Setup, Subject, Verb, is_long, note, skip};

/// Runs a command that has to succeed, and gives what it said.
fn run(program: &str, arguments: &[&Path]) -> String {
    Cmd::new(program).args(arguments).ok().out().trim().to_owned()
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
struct World {
    subject: Subject,
    store: PathBuf,
    at: PathBuf,
}

impl World {
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

    fn attach(&self) {
        let fast = Path::new("dirty_after=1h");
        self.verb(&[Path::new("attach"), Path::new("-o"), fast, &self.store, &self.at]);
    }
}

/// {format a store; attach; write; detach lazily}: the store is free and intact on every return.
#[test]
fn mn_r1_reuse_of_a_store_right_after_each_return() {
    let Some(mut world) = World::new("mn_r1_reuse_of_a_store_right_after_each_return") else { return };
    let rounds = if is_long() { 1000 } else { 100 };
    for round in 0..rounds {
        // The store is taken away and made anew: nobody may have it.
        fs::remove_dir_all(&world.store).expect("remove");
        fs::create_dir(&world.store).expect("mkdir");
        world.attach();
        let content = format!("round {round}").repeat(1000);
        fs::write(world.at.join("file"), &content).expect("write");
        let how = if round % 2 == 0 { "--lazy" } else { "--" };
        world.verb(&[Path::new("detach"), Path::new(how), &world.at]);
        assert_eq!(fs::read_to_string(world.store.join("file")).expect("read"), content, "round {round}");
        assert!(!world.at.join("file").exists(), "round {round}: a path leads there");
    }
    note(world.subject.name(), &format!("{rounds} rounds"));
    world.subject.finish();
}

/// {mkfs of an image on a volume; loop device; mount; touch; umount -l; the volume's own path; reuse}: after each
/// return the device is free for the next mkfs, and the image is as it was written.
#[test]
fn mn_r1_a_loop_device_over_an_image_on_a_volume() {
    let name = "mn_r1_a_loop_device_over_an_image_on_a_volume";
    if !has(name, &["mkfs.ext4", "losetup", "e2fsck", "mount", "umount"]) {
        return;
    }
    let Some(mut world) = World::new(name) else { return };
    let inner = world.subject.outside("inner");
    let rounds = if is_long() { 100 } else { 20 };
    for round in 0..rounds {
        world.attach();
        let image = world.at.join("image");
        fs::File::create(&image).and_then(|file| file.set_len(4 << 20)).expect("image");
        let device = PathBuf::from(run("losetup", &[Path::new("--find"), Path::new("--show"), &image]));
        for again in 0..2 {
            run("mkfs.ext4", &[Path::new("-qF"), &device]);
            run("mount", &[&device, &inner]);
            fs::write(inner.join("touched"), format!("{round} {again}")).expect("touch");
            run("umount", &[Path::new("-l"), &inner]);
        }
        // The kernel's loop device holds the image: no plain detach, and its name is told.
        let refused = world.subject.program().arg("detach").arg(&world.at).run();
        assert_eq!(refused.status.code(), Some(1), "round {round}");
        assert!(refused.err().contains("loop device over"), "round {round}: {}", refused.err());
        run("losetup", &[Path::new("-d"), &device]);
        world.verb(&[Path::new("detach"), &world.at]);
        let stored = world.store.join("image");
        run("e2fsck", &[Path::new("-fn"), &stored]);
        assert!(!image.exists(), "round {round}");
    }
    note(world.subject.name(), &format!("{rounds} rounds"));
    world.subject.finish();
}

/// {mkfs; loop device; mount; a store on it, mounted; write; unmount}: the moment the unmount has returned, the store's own file system is
/// unmounted, by umount(2), which refuses where anything is open; its device is formatted anew, which is refused where anything uses it; and
/// the device is given back.
#[test]
fn the_file_system_and_the_device_of_a_store_are_free_on_return() {
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
        fs::write(subject.at("file"), &content).expect("write");
        subject.unmount(verb);
        assert_eq!(fs::read_to_string(store.join("file")).expect("read"), content, "round {round}, {verb:?}");
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
