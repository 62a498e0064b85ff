//! An unmount returns only when the store holds the data.
//!
//! The store is slow, so that a verb that returned early would be seen: right after its return (of
//! Ctrl-C and SIGTERM: after the program's end) the store's own directory is compared with what was
//! written.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use watertight_acceptance::rng::Rng;
use watertight_acceptance::subject::need_root;
use watertight_acceptance::sys::Mapping;
use watertight_acceptance::{Setup, Subject, Verb, is_long, note};

/// How long each write to the store takes.
const DELAY: Duration = Duration::from_millis(20);

/// What the volume must hold: file names and contents.
#[derive(Default)]
struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    /// Changes files on the volume at `root`: new ones, parts of old ones, appended, mapped,
    /// removed, renamed; nothing is synced.
    fn change(&mut self, root: &Path, rng: &mut Rng) {
        for _ in 0..6 {
            let name = format!("file-{}", rng.below(12));
            let path = root.join(&name);
            match rng.below(6) {
                0 if self.0.len() > 4 => {
                    if self.0.remove(&name).is_some() {
                        fs::remove_file(&path).expect("unlink");
                    }
                }
                1 if self.0.contains_key(&name) => {
                    let to = format!("file-{}", rng.below(12));
                    fs::rename(&path, root.join(&to)).expect("rename");
                    let data = self.0.remove(&name).expect("just looked");
                    self.0.insert(to, data);
                }
                2 if self.0.get(&name).is_some_and(|data| !data.is_empty()) => self.map(&name, &path, rng),
                _ => self.write(&name, &path, rng),
            }
        }
        // Whatever chance did: something is new in each round.
        self.write("always", &root.join("always"), rng);
    }

    fn write(&mut self, name: &str, path: &Path, rng: &mut Rng) {
        let data = self.0.entry(name.to_owned()).or_default();
        let at = rng.index(data.len() + 1);
        let len = 1 + rng.index(120_000);
        let new = rng.bytes(len);
        if data.len() < at + len {
            data.resize(at + len, 0);
        }
        data[at..at + len].copy_from_slice(&new);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).expect("open");
        file.write_all_at(&new, at as u64).expect("write");
    }

    fn map(&mut self, name: &str, path: &Path, rng: &mut Rng) {
        let data = self.0.get_mut(name).expect("looked up before");
        let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
        let map = Mapping::new(&file, data.len()).expect("mmap");
        let at = rng.index(data.len());
        let new = rng.bytes((data.len() - at).min(5000));
        map.write(at, &new);
        data[at..at + new.len()].copy_from_slice(&new);
    }

    /// What is different in the directory `dir`.
    fn differences(&self, dir: &Path) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, data) in &self.0 {
            match fs::read(dir.join(name)) {
                Ok(is) if is == *data => {}
                Ok(is) => wrong.push(format!("{name}: {} bytes, other than those written", is.len())),
                Err(e) => wrong.push(format!("{name}: {e}")),
            }
        }
        for entry in fs::read_dir(dir).expect("readdir") {
            let name = entry.expect("readdir").file_name().to_string_lossy().into_owned();
            if !self.0.contains_key(&name) {
                wrong.push(format!("{name}: should not be there"));
            }
        }
        wrong
    }
}

fn truthful(name: &str, verb: Verb) {
    let rounds: u32 = if is_long() { 1000 } else { 100 };
    let setup = Setup::default().fault(format!("write:delay={}ms", DELAY.as_millis()));
    let Some(mut subject) = Subject::with(name, setup) else { return };
    if matches!(verb, Verb::Raw | Verb::Umount8) && !subject.kernel_waits() {
        watertight_acceptance::skip(name, "the mount is not of the type for which the kernel waits");
        return;
    }
    let mut rng = Rng::new(100);
    let mut files = Files::default();
    let (mut waited, mut took) = (0, Duration::ZERO);
    for round in 0..rounds {
        if round > 0 {
            subject.mount();
        }
        files.change(subject.path(), &mut rng);
        // Anti-vacuity: the check fails where it should, just before. Nobody else can look into a
        // bucket's volume then.
        waited += u32::from(!subject.is_in_bucket() && !files.differences(subject.store()).is_empty());
        took += subject.unmount(verb);
        let wrong = files.differences(subject.store());
        assert!(wrong.is_empty(), "round {round}, {verb:?} returned, but:\n{}", wrong.join("\n"));
        subject.finish();
    }
    note(name, &format!("{rounds} rounds, {:.0} ms each", took.as_secs_f64() * 1000.0 / f64::from(rounds)));
    if !subject.is_host() && !subject.is_in_bucket() {
        assert!(
            waited * 10 >= rounds * 9,
            "in {waited} of {rounds} rounds only was there anything to wait for"
        );
        assert!(took >= DELAY * waited, "{took:?} in all: less than one write to the store a round");
    }
}

#[test]
fn watertight_umount_is_truthful() {
    truthful("umount-program", Verb::Program);
}

#[test]
fn umount8_is_truthful() {
    if need_root("umount-8") {
        truthful("umount-8", Verb::Umount8);
    }
}

#[test]
fn raw_umount2_is_truthful() {
    if need_root("umount-raw") {
        truthful("umount-raw", Verb::Raw);
    }
}

#[test]
fn ctrl_c_is_truthful() {
    truthful("umount-int", Verb::Interrupt);
}

#[test]
fn sigterm_is_truthful() {
    truthful("umount-term", Verb::Terminate);
}

/// The moment an unmount has returned, its store can be mounted again, renamed and removed.
#[test]
fn everything_is_free_at_once() {
    let name = "free-at-once";
    let Some(mut subject) = Subject::with(name, Setup::default().fault("write:delay=5ms")) else { return };
    let mut verbs = vec![Verb::Program, Verb::Interrupt, Verb::Terminate];
    if watertight_acceptance::sys::is_root() && subject.kernel_waits() {
        verbs.extend([Verb::Raw, Verb::Umount8]);
    }
    let mut rng = Rng::new(4);
    let mut files = Files::default();
    let rounds = if is_long() { 200 } else { 20 };
    for round in 0..rounds {
        files.change(subject.path(), &mut rng);
        let verb = verbs[round % verbs.len()];
        subject.unmount(verb);
        if subject.is_in_bucket() {
            assert_eq!(files.differences(subject.store()), Vec::<String>::new(), "round {round}, {verb:?}");
        } else if !subject.is_host() {
            let moved = subject.store().with_extension("moved");
            fs::rename(subject.store(), &moved).expect("rename the store");
            assert_eq!(files.differences(&moved), Vec::<String>::new(), "round {round}, {verb:?}");
            fs::rename(&moved, subject.store()).expect("rename the store back");
            let mountpoint = subject.path();
            fs::remove_dir(mountpoint).expect("remove the mountpoint");
            fs::create_dir(mountpoint).expect("make the mountpoint");
        }
        // While the last program may still be on its way out.
        let started = Instant::now();
        subject.mount();
        if started.elapsed() > Duration::from_secs(5) {
            note(name, &format!("round {round}: the mount took {:?}", started.elapsed()));
        }
        assert_eq!(files.differences(subject.path()), Vec::<String>::new(), "round {round}, {verb:?}");
    }
    subject.close();
    if !subject.is_host() && !subject.is_in_bucket() {
        let store = subject.store().to_owned();
        fs::remove_dir_all(&store).expect("remove the store");
    }
}
