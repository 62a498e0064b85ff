//! Programs that use a mount while it is upgraded, and check all that they see.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::fs::{FlockOperation, flock};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::rig::eventually;

const OPEN_FILES: usize = 1000;
const LISTED: usize = 2000;
const PAGE: usize = 4096;
const PAGES: usize = 64;

/// The programs.
pub(crate) struct Load {
    dir: PathBuf,
    is_over: Arc<AtomicBool>,
    /// Rounds that each thread has made.
    rounds: Vec<Arc<AtomicU64>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    held: Mutex<Option<Held>>,
    /// A directory of which some names were read.
    listing: Mutex<Option<(Vec<String>, fs::ReadDir)>>,
    inside: Mutex<Child>,
    running: Mutex<Child>,
}

/// Files that are open all the time.
struct Held {
    open: Vec<File>,
    /// With a flock on it.
    locked: File,
    /// With a POSIX lock on it.
    posix: File,
    unlinked: File,
}

/// A mapping that two threads use; unmapped with the process.
struct Mapping(*mut u8);

// SAFETY: it is memory of the process, and read and written by volatile accesses only.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: &File) -> Self {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address; nothing else has it.
        let at = unsafe { mmap(std::ptr::null_mut(), PAGES * PAGE, prot, MapFlags::SHARED, file, 0) };
        Self(at.unwrap().cast())
    }

    fn get(&self, page: usize) -> u8 {
        assert!(page < PAGES);
        // SAFETY: inside of the mapping.
        unsafe { self.0.add(page * PAGE).read_volatile() }
    }

    fn set(&self, page: usize, value: u8) {
        assert!(page < PAGES);
        // SAFETY: inside of the mapping.
        unsafe { self.0.add(page * PAGE).write_volatile(value) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is this object's, which nobody uses any more.
        unsafe { rustix::mm::munmap(self.0.cast(), PAGES * PAGE) }.unwrap();
    }
}

impl Load {
    pub(crate) fn start(mnt: &Path) -> Self {
        let dir = mnt.join("load");
        for name in ["load", "load/listed", "load/open", "load/nested", "load/cwd"] {
            fs::create_dir(mnt.join(name)).unwrap();
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (mut rounds, mut threads) = (Vec::new(), Vec::new());
        let mut run = |round: Box<dyn FnMut(u64) + Send>| {
            let (is_over, count) = (Arc::clone(&is_over), Arc::new(AtomicU64::new(0)));
            rounds.push(Arc::clone(&count));
            threads.push(thread::spawn(move || {
                let mut round = round;
                while !is_over.load(Ordering::SeqCst) {
                    round(count.load(Ordering::SeqCst));
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }));
        };
        run(writes_and_syncs(&dir));
        run(maps(&dir));
        run(makes_and_removes(&dir));
        run(waits_for_a_lock(&dir));
        for n in 0..LISTED {
            File::create(dir.join("listed").join(listed(n))).unwrap();
        }
        let open = (0..OPEN_FILES).map(|n| opened(&dir, n)).collect();
        let locked = File::create(dir.join("locked")).unwrap();
        flock(&locked, FlockOperation::LockExclusive).unwrap();
        let posix = File::create(dir.join("posix")).unwrap();
        rustix::fs::fcntl_lock(&posix, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut unlinked =
            OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("u")).unwrap();
        unlinked.write_all(b"unlinked").unwrap();
        fs::remove_file(dir.join("u")).unwrap();
        let nested = dir.join("nested");
        rustix::mount::mount("tmpfs", &nested, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(nested.join("file"), "nested").unwrap();
        let mut shell = Command::new("/bin/sh");
        // It answers each line with its directory's content, by a relative path.
        shell.args(["-c", "while read line; do echo $(ls; cat file); done"]).current_dir(dir.join("cwd"));
        fs::write(dir.join("cwd/file"), "cwd").unwrap();
        let inside = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        crate::rig::copy_program("/bin/cat", &dir.join("program"));
        let mut program = Command::new(dir.join("program"));
        let running = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (inside, running) = (Mutex::new(inside), Mutex::new(running));
        let (threads, listing) = (Mutex::new(threads), Mutex::default());
        let held = Mutex::new(Some(Held { open, locked, posix, unlinked }));
        Self { dir, is_over, rounds, threads, held, listing, inside, running }
    }

    /// Every thread makes a round; a directory is read by half.
    pub(crate) fn step(&self) {
        for count in &self.rounds {
            let before = count.load(Ordering::SeqCst);
            let all = self.threads.lock().unwrap();
            eventually("each program goes on", || {
                assert!(all.iter().all(|thread| !thread.is_finished()), "a program has failed");
                count.load(Ordering::SeqCst) > before
            });
        }
        let mut entries = fs::read_dir(self.dir.join("listed")).unwrap();
        let first = entries.by_ref().take(LISTED / 2).map(name_of).collect();
        *self.listing.lock().unwrap() = Some((first, entries));
    }

    /// All that is open, held and running goes on.
    pub(crate) fn check(&self) {
        if let Some((mut seen, rest)) = self.listing.lock().unwrap().take() {
            seen.extend(rest.map(name_of));
            let names: BTreeSet<&String> = seen.iter().collect();
            let missing: Vec<String> = (0..LISTED).map(listed).filter(|name| !names.contains(name)).collect();
            assert!(
                missing.is_empty() && seen.len() == LISTED,
                "each name once: {} names, {} of them different; {} are missing: {:?} to {:?}, of which now {} are found; listed again there are {}",
                seen.len(),
                names.len(),
                missing.len(),
                missing.first(),
                missing.last(),
                missing.iter().filter(|name| self.dir.join("listed").join(name).exists()).count(),
                fs::read_dir(self.dir.join("listed")).unwrap().count(),
            );
        }
        let held = self.held.lock().unwrap();
        let Held { open, locked, posix, unlinked } = held.as_ref().unwrap();
        for (n, file) in open.iter().enumerate().step_by(37) {
            let mut text = [0; 16];
            file.read_exact_at(&mut text, 0).unwrap();
            assert_eq!(text, content(n), "file {n}");
        }
        let other = File::open(self.dir.join("locked")).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err(), "the flock is held");
        locked.write_all_at(b"locked", 0).unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&posix.metadata().unwrap());
        let is_posix = |line: &str| line.contains("POSIX") && line.contains(&format!(":{inode} "));
        // The kernel's list may miss one while others come and go.
        eventually("the POSIX lock is held", || {
            fs::read_to_string("/proc/locks").unwrap().lines().any(is_posix)
        });
        let mut text = [0; 8];
        unlinked.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"unlinked");
        assert_eq!(fs::read(self.dir.join("nested/file")).unwrap(), b"nested");
        assert_eq!(says(&self.inside, "x\n", 9), "file cwd\n");
        assert_eq!(says(&self.running, "running\n", 8), "running\n");
        self.step();
    }

    /// The programs end, and let go of everything.
    pub(crate) fn finish(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads.lock().unwrap().drain(..) {
            thread.join().unwrap();
        }
        for child in [&self.inside, &self.running] {
            let mut child = child.lock().unwrap();
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
        eventually("the nested mount can be taken away", || {
            rustix::mount::unmount(self.dir.join("nested"), UnmountFlags::empty()).is_ok()
        });
        drop(self.listing.lock().unwrap().take());
        self.held.lock().unwrap().take();
    }

    /// What the programs have written is in the store.
    pub(crate) fn is_in(&self, store: &Path) {
        let dir = store.join("load");
        let rounds = self.rounds[0].load(Ordering::SeqCst);
        let synced = fs::read(dir.join("synced")).unwrap();
        assert_eq!(synced.len() as u64, rounds * 8, "each write once");
        for (n, bytes) in synced.chunks(8).enumerate() {
            assert_eq!(u64::from_le_bytes(bytes.try_into().unwrap()), n as u64);
        }
        for n in 0..OPEN_FILES {
            assert_eq!(fs::read(dir.join("open").join(n.to_string())).unwrap(), content(n), "file {n}");
        }
        assert_eq!(fs::read_dir(dir.join("listed")).unwrap().count(), LISTED);
    }
}

fn name_of(entry: std::io::Result<fs::DirEntry>) -> String {
    entry.unwrap().file_name().into_string().unwrap()
}

fn listed(n: usize) -> String {
    format!("a-name-that-is-long-enough-for-several-readings-{n:05}")
}

fn content(n: usize) -> [u8; 16] {
    let mut bytes = [b'.'; 16];
    bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
    bytes
}

fn opened(dir: &Path, n: usize) -> File {
    let path = dir.join("open").join(n.to_string());
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.write_all_at(&content(n), 0).unwrap();
    file
}

/// What a child says to this, so many bytes.
fn says(child: &Mutex<Child>, line: &str, len: usize) -> String {
    let mut child = child.lock().unwrap();
    child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    let mut text = vec![0; len];
    child.stdout.as_mut().unwrap().read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Appends a number, makes it durable every now and then.
fn writes_and_syncs(dir: &Path) -> Box<dyn FnMut(u64) + Send> {
    let path = dir.join("synced");
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    Box::new(move |round| {
        file.write_all(&round.to_le_bytes()).unwrap();
        if round.is_multiple_of(8) {
            file.sync_data().unwrap();
        }
    })
}

/// Changes a mapping, and reads it by another one and by read(2).
fn maps(dir: &Path) -> Box<dyn FnMut(u64) + Send> {
    let path = dir.join("mapped");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len((PAGES * PAGE) as u64).unwrap();
    let (one, other) = (Mapping::new(&file), Mapping::new(&file));
    let mut model = [0_u8; PAGES];
    Box::new(move |round| {
        let page = usize::try_from(round).unwrap() % PAGES;
        model[page] = model[page].wrapping_add(1);
        one.set(page, model[page]);
        let mut byte = [0];
        file.read_exact_at(&mut byte, (page * PAGE) as u64).unwrap();
        assert_eq!(byte[0], model[page], "read(2) of page {page}");
        for (page, value) in model.iter().enumerate() {
            assert_eq!(other.get(page), *value, "page {page} of the mapping");
        }
        if round.is_multiple_of(16) {
            file.sync_all().unwrap();
        }
    })
}

/// Each of these changes happens once: a second time it would fail.
fn makes_and_removes(dir: &Path) -> Box<dyn FnMut(u64) + Send> {
    let dir = dir.to_owned();
    Box::new(move |round| {
        let (made, moved) = (dir.join(format!("made{round}")), dir.join(format!("moved{round}")));
        fs::create_dir(&made).unwrap();
        let file = made.join("file");
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).open(&file).unwrap().write_all(b"x").unwrap();
        fs::hard_link(&file, made.join("link")).unwrap();
        fs::rename(&made, &moved).unwrap();
        assert!(!made.exists());
        assert_eq!(fs::read(moved.join("file")).unwrap(), b"x");
        fs::remove_file(moved.join("file")).unwrap();
        fs::remove_file(moved.join("link")).unwrap();
        fs::remove_dir(&moved).unwrap();
    })
}

/// Two openings hand a lock to each other: the second waits for it.
fn waits_for_a_lock(dir: &Path) -> Box<dyn FnMut(u64) + Send> {
    let path = dir.join("passed-on");
    File::create(&path).unwrap();
    Box::new(move |_| {
        let (first, second) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        flock(&first, FlockOperation::LockExclusive).unwrap();
        let has_it = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&has_it);
        let waiting = thread::spawn(move || {
            flock(&second, FlockOperation::LockExclusive).unwrap();
            told.store(true, Ordering::SeqCst);
        });
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(!has_it.load(Ordering::SeqCst), "two have the lock");
        drop(first);
        waiting.join().unwrap();
    })
}
