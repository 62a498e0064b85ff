//! Several volumes inside one mountpoint.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::hanging::LONG;
use common::hook::{Gate, OpenAtEnd};
use common::{Mounted, Setup, eventually, text};
use rustix::io::Errno;
use store::{At as When, HookStore};
use volume::{DrainReport, Volume, VolumeState};
use watertight_fuse::{Detach, SessionOptions, TreeError};

/// A volume of its own, to be attached.
struct Other {
    dir: tempfile::TempDir,
    volume: Arc<Volume>,
}

impl Other {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = open(dir.path());
        Self { dir, volume }
    }

    /// A volume whose store hangs in the operation `hanging` while the gate is shut.
    fn hanging_in(hanging: &'static str, gate: &Arc<Gate>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = HookStore::new(store::open(&format!("dir:{}", dir.path().display())).unwrap());
        let hung = Arc::clone(gate);
        store.hook(move |at, op| {
            if at == When::Before && op == hanging {
                hung.pass();
            }
            Ok(())
        });
        Self { volume: Volume::new(store, resting()).unwrap(), dir }
    }

    fn stored(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn attach(&self, mounted: &Mounted, path: &str) -> Receiver<DrainReport> {
        let (told, ends) = channel();
        let on_end = Box::new(move |report: &DrainReport| told.send(report.clone()).unwrap());
        mounted.tree.attach(Path::new(path), &self.volume, false, on_end).unwrap();
        ends
    }
}

fn open(dir: &Path) -> Arc<Volume> {
    let store = store::open(&format!("dir:{}", dir.display())).unwrap();
    Volume::new(store, resting()).unwrap()
}

/// Data is written only when a caller asks for it.
fn resting() -> volume::Options {
    volume::Options { dirty_after: Duration::from_secs(3600), ..volume::Options::default() }
}

fn detach(mounted: &Mounted, path: &str) -> Result<(), TreeError> {
    // The kernel reports a close a little later.
    assert!(mounted.tree.wait_closed(Path::new(path), Instant::now() + LONG)?);
    mounted.tree.detach(Path::new(path), Detach::Sync)
}

fn is_busy(result: &Result<(), TreeError>) -> bool {
    matches!(result, Err(TreeError::Tree(mounts::Error::Busy(_))))
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn what_is_attached_is_seen_at_once_and_what_was_detached_is_gone() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (mnt, other) = (mounted.path(), Other::new());
    fs::create_dir_all(mnt.join("a/b")).unwrap();
    fs::write(mnt.join("a/b/covered"), "below").unwrap();
    fs::write(other.stored("theirs"), "of the other store").unwrap();
    // The kernel remembers both: the name that is there, and the one that is not.
    assert!(mnt.join("a/b/covered").exists() && !mnt.join("a/b/theirs").exists());

    let ends = other.attach(&mounted, "a/b");
    assert_eq!(text(&mnt.join("a/b/theirs")), "of the other store");
    assert!(!mnt.join("a/b/covered").exists());
    let names: Vec<_> = fs::read_dir(mnt.join("a")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["b"]);
    fs::write(mnt.join("a/b/new"), "written through the tree").unwrap();
    assert!(!other.stored("new").exists() || fs::read(other.stored("new")).unwrap().is_empty());
    assert_eq!(mounted.tree.attachments()[0].path.as_deref(), Some(Path::new("a/b")));

    detach(&mounted, "a/b").unwrap();
    // On return: on the store, the store free, the path gone.
    assert!(ends.try_recv().unwrap().is_complete());
    assert_eq!(text(&other.stored("new")), "written through the tree");
    drop(open(other.dir.path()));
    assert!(!mnt.join("a/b/new").exists() && mnt.join("a/b/covered").exists());
    assert!(mounted.tree.attachments().is_empty());
    assert_eq!(detach(&mounted, "a/b"), Err(TreeError::NotAttached("a/b".to_owned())));
    mounted.unmount();
}

#[test]
fn volumes_are_apart() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (mnt, other) = (mounted.path(), Other::new());
    fs::create_dir(mnt.join("x")).unwrap();
    fs::write(mnt.join("file"), "root").unwrap();
    let _ends = other.attach(&mounted, "x");
    fs::write(mnt.join("x/file"), "other").unwrap();
    let xdev = Some(Errno::XDEV);
    assert_eq!(errno(fs::rename(mnt.join("file"), mnt.join("x/moved"))), xdev);
    assert_eq!(errno(fs::rename(mnt.join("x/file"), mnt.join("moved"))), xdev);
    assert_eq!(errno(fs::hard_link(mnt.join("file"), mnt.join("x/link"))), xdev);
    assert_eq!(errno(fs::hard_link(mnt.join("x/file"), mnt.join("link"))), xdev);
    // The mountpoint's directory keeps its name.
    let busy = Some(Errno::BUSY);
    assert_eq!(errno(fs::remove_dir(mnt.join("x"))), busy);
    assert_eq!(errno(fs::rename(mnt.join("x"), mnt.join("y"))), busy);
    fs::create_dir(mnt.join("z")).unwrap();
    assert_eq!(errno(fs::rename(mnt.join("z"), mnt.join("x"))), busy);
    // One device number, but no two files with one inode number: the stores are made alike.
    let ino = |path: &str| fs::metadata(mnt.join(path)).unwrap().ino();
    assert_ne!(ino("x/file"), fs::metadata(other.stored("file")).unwrap().ino());
    assert_eq!(ino("file"), fs::metadata(mounted.store_path().join("file")).unwrap().ino());
    let listed = rustix_ino(&mnt.join("x"), "file");
    assert_eq!(listed, ino("x/file"));
    // Handles of both volumes have the same numbers; locks and data do not mix.
    let (mine, theirs) = (File::open(mnt.join("file")).unwrap(), File::open(mnt.join("x/file")).unwrap());
    mine.lock().unwrap();
    theirs.try_lock().unwrap();
    let mut both = [[0; 5]; 2];
    assert_eq!((mine.read_at(&mut both[0], 0).unwrap(), theirs.read_at(&mut both[1], 0).unwrap()), (4, 5));
    assert_eq!((&both[0][..4], &both[1]), (&b"root"[..], b"other"));
    // copy_file_range between them is a copy.
    std::io::copy(&mut File::open(mnt.join("file")).unwrap(), &mut File::create(mnt.join("x/copy")).unwrap())
        .unwrap();
    assert_eq!(text(&mnt.join("x/copy")), "root");
    drop((mine, theirs));
    detach(&mounted, "x").unwrap();
    assert_eq!(text(&other.stored("copy")), "root");
    mounted.unmount();
}

fn rustix_ino(dir: &Path, name: &str) -> u64 {
    use std::os::unix::fs::DirEntryExt as _;
    let entry = fs::read_dir(dir).unwrap().map(Result::unwrap).find(|entry| entry.file_name() == name);
    entry.unwrap().ino()
}

#[test]
fn an_open_file_refuses_a_detach_and_outlives_a_lazy_one() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (mnt, other) = (mounted.path(), Other::new());
    fs::create_dir(mnt.join("x")).unwrap();
    let ends = other.attach(&mounted, "x");
    let mut file = File::options().create(true).append(true).read(true).open(mnt.join("x/log")).unwrap();
    file.write_all(b"one ").unwrap();
    let refused = mounted.tree.detach(Path::new("x"), Detach::Sync);
    assert!(is_busy(&refused), "{refused:?}");
    assert!(mnt.join("x/log").exists(), "nothing was changed");

    mounted.tree.detach(Path::new("x"), Detach::Lazy).unwrap();
    assert!(!mnt.join("x/log").exists(), "gone for everybody at once");
    assert!(ends.try_recv().is_err() && other.volume.status().state != VolumeState::Released);
    file.write_all(b"two").unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 7);
    let mut read = String::new();
    File::open("/dev/null").unwrap().read_to_string(&mut read).unwrap();
    assert_eq!(
        errno(File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))),
        Some(Errno::STALE)
    );
    // Another volume takes the place meanwhile: the file is still its own volume's.
    let third = Other::new();
    let third_ends = third.attach(&mounted, "x");
    fs::write(mnt.join("x/log"), "another's").unwrap();
    file.write_all(b" three").unwrap();
    drop(file);
    assert!(ends.recv_timeout(Duration::from_secs(60)).unwrap().is_complete());
    assert_eq!(text(&other.stored("log")), "one two three");
    drop(open(other.dir.path()));
    detach(&mounted, "x").unwrap();
    assert!(third_ends.try_recv().unwrap().is_complete());
    mounted.unmount();
}

/// The end of a volume waits for requests in hand, and writes its dirty data meanwhile.
#[test]
fn what_is_dirty_is_written_while_a_request_is_in_hand() {
    let Some(mounted) = Setup::default().mount() else { return };
    fs::create_dir(mounted.path().join("x")).unwrap();
    for how in [Detach::Sync, Detach::Lazy] {
        let gate = Arc::new(Gate::default());
        let _open = OpenAtEnd(Arc::clone(&gate));
        let other = Other::hanging_in("statfs", &gate);
        let ends = other.attach(&mounted, "x");
        let root = mounted.path().join("x");
        fs::write(root.join("file"), "not on the store yet").unwrap();
        assert!(mounted.tree.wait_closed(Path::new("x"), Instant::now() + LONG).unwrap());
        gate.shut();
        std::thread::scope(|scope| {
            let request = scope.spawn(|| rustix::fs::statfs(&root));
            eventually("the request is in hand", || gate.waiting() == 1);
            let detaching = scope.spawn(|| mounted.tree.detach(Path::new("x"), how));
            eventually("it is written", || text(&other.stored("file")) == "not on the store yet");
            // Both at once: the request has not come back, and the end waits for it.
            assert_eq!((gate.waiting(), detaching.is_finished()), (1, false), "{how:?}");
            assert!(ends.try_recv().is_err(), "{how:?}: the store is used");
            gate.open();
            request.join().unwrap().unwrap();
            detaching.join().unwrap().unwrap();
        });
        assert!(ends.try_recv().unwrap().is_complete(), "{how:?}");
    }
    mounted.unmount();
}

#[test]
fn who_was_inside_a_detached_volume_never_sees_another_one() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (mnt, other, third) = (mounted.path(), Other::new(), Other::new());
    fs::create_dir(mnt.join("x")).unwrap();
    for one in [&other, &third] {
        fs::create_dir_all(one.stored("deep/er")).unwrap();
        fs::write(one.stored("name"), "").unwrap();
        fs::write(one.stored("deep/er/name"), "").unwrap();
    }
    let _ends = other.attach(&mounted, "x");
    // Processes in the volume's root and below: they print the inode that they are in, and on
    // request what else they see, or why not.
    let script = "stat -c %i .; read _; for what in . name deep deep/name; do \
                  ls $what; cat < $what; mkdir $what/new; done; stat -c %i .; echo end";
    let mut inside: Vec<_> = ["x", "x/deep/er"]
        .iter()
        .map(|dir| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &format!("exec 2>&1; {script}")]).env("LC_ALL", "C").current_dir(mnt.join(dir));
            let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut says = BufReader::new(shell.stdout.take().unwrap()).lines().map(Result::unwrap);
            let inode = says.next().unwrap();
            assert_eq!(inode, fs::metadata(mnt.join(dir)).unwrap().ino().to_string());
            (shell, says, inode)
        })
        .collect();
    detach(&mounted, "x").unwrap();
    let _third = third.attach(&mounted, "x");
    for (shell, says, inode) in &mut inside {
        shell.stdin.take().unwrap().write_all(b"look\n").unwrap();
        let seen: Vec<String> = says.collect();
        shell.wait().unwrap();
        let (end, seen) = seen.split_last().unwrap();
        let (own, errors) = seen.split_last().unwrap();
        assert_eq!((end.as_str(), errors.len()), ("end", 12), "{seen:?}");
        let is_gone = |line: &str| {
            ["Stale file handle", "No such file or directory"].iter().any(|why| line.contains(why))
        };
        assert!(errors.iter().all(|line| is_gone(line)), "{errors:?}");
        // The kernel itself remembers the directory that they are in.
        assert!(is_gone(own) || own == inode, "{own}");
    }
    assert!(mnt.join("x/name").exists());
    detach(&mounted, "x").unwrap();
    mounted.unmount();
}

#[test]
fn a_directory_in_two_places_is_one() {
    let Some(mounted) = Setup::default().mount() else { return };
    let mnt = mounted.path();
    fs::create_dir_all(mnt.join("sub/dir")).unwrap();
    fs::create_dir(mnt.join("second")).unwrap();
    fs::write(mnt.join("sub/dir/file"), "one").unwrap();
    mounted.tree.bind(Path::new("sub/dir"), Path::new("second")).unwrap();
    assert_eq!(text(&mnt.join("second/file")), "one");
    // One page cache: data written in one place is read in the other, mapped or cached.
    let there = File::open(mnt.join("second/file")).unwrap();
    fs::write(mnt.join("sub/dir/file"), "two!").unwrap();
    let mut read = [0; 4];
    there.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"two!");
    assert_eq!(fs::metadata(mnt.join("second/file")).unwrap().len(), 4);
    // A bind may go while files are open: they are the volume's.
    assert_eq!(errno(fs::rename(mnt.join("second/file"), mnt.join("file"))), Some(Errno::XDEV));
    mounted.tree.detach(Path::new("second"), Detach::Sync).unwrap();
    there.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(fs::read_dir(mnt.join("second")).unwrap().count(), 0);
    drop(there);
    mounted.unmount();
}

#[test]
fn names_of_a_directory_that_is_seen_twice_are_the_same_in_both_places() {
    let Some(mounted) = Setup::default().mount() else { return };
    let mnt = mounted.path();
    fs::create_dir_all(mnt.join("dir/below")).unwrap();
    fs::create_dir(mnt.join("second")).unwrap();
    fs::write(mnt.join("dir/old"), "").unwrap();
    // The kernel learns before there are two places: a name that is there, one that is not, and the
    // listing.
    assert!(mnt.join("dir/old").exists() && !mnt.join("dir/new").exists() && !mnt.join("dir/later").exists());
    assert_eq!(names(&mnt.join("dir")), ["below", "old"]);
    mounted.tree.bind(Path::new("dir"), Path::new("second")).unwrap();
    fs::write(mnt.join("second/new"), "").unwrap();
    fs::remove_file(mnt.join("second/old")).unwrap();
    // The kernel is notified, beside the answer, of what it learned before.
    mounted.notifier.wait();
    assert!(mnt.join("dir/new").exists() && !mnt.join("dir/old").exists());
    assert_eq!(names(&mnt.join("dir")), ["below", "new"]);
    assert_eq!(fs::metadata(mnt.join("dir")).unwrap().nlink(), 3);
    // What the kernel learns from now on it never keeps: it is right at once, both ways.
    for (here, there) in [("dir", "second"), ("second", "dir")] {
        let (here, there) = (mnt.join(here), mnt.join(there));
        for round in 0..50 {
            let name = format!("{round}");
            assert!(!there.join(&name).exists());
            match round % 3 {
                0 => fs::write(here.join(&name), "").unwrap(),
                1 => fs::create_dir(here.join(&name)).unwrap(),
                _ => std::os::unix::fs::symlink("target", here.join(&name)).unwrap(),
            }
            assert!(fs::symlink_metadata(there.join(&name)).is_ok());
            assert_eq!(names(&here), names(&there));
            fs::rename(here.join(&name), here.join("below/moved")).unwrap();
            assert!(fs::symlink_metadata(there.join(&name)).is_err());
            let moved = there.join("below/moved");
            let kind = fs::symlink_metadata(&moved).unwrap().file_type();
            if kind.is_dir() {
                fs::remove_dir(&moved).unwrap()
            } else {
                fs::remove_file(&moved).unwrap()
            }
            assert!(fs::symlink_metadata(here.join("below/moved")).is_err());
        }
        assert_eq!(fs::metadata(&here).unwrap().mtime_nsec(), fs::metadata(&there).unwrap().mtime_nsec());
    }
    mounted.tree.detach(Path::new("second"), Detach::Sync).unwrap();
    mounted.unmount();
}

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn what_is_moved_is_at_the_new_place_only() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (mnt, other) = (mounted.path(), Other::new());
    fs::create_dir_all(mnt.join("from")).unwrap();
    fs::create_dir_all(mnt.join("to/here")).unwrap();
    let ends = other.attach(&mounted, "from");
    fs::write(mnt.join("from/file"), "x").unwrap();
    let open = File::open(mnt.join("from/file")).unwrap();
    assert!(!mnt.join("to/here/file").exists());
    mounted.tree.move_to(Path::new("from"), Path::new("to/here")).unwrap();
    assert!(mnt.join("to/here/file").exists() && !mnt.join("from/file").exists());
    assert_eq!(open.metadata().unwrap().len(), 1);
    // As text: for a path, `to/here/` is the same.
    let shown = mounted.tree.attachments()[0].path.clone().unwrap().into_os_string();
    assert_eq!(shown, "to/here");
    fs::rename(mnt.join("from"), mnt.join("free")).unwrap();
    assert_eq!(errno(fs::remove_dir(mnt.join("to/here"))), Some(Errno::BUSY));
    drop(open);
    detach(&mounted, "to/here").unwrap();
    assert!(ends.try_recv().unwrap().is_complete());
    mounted.unmount();
}

#[test]
fn a_read_only_volume_refuses_changes() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (mnt, other) = (mounted.path(), Other::new());
    fs::create_dir(mnt.join("x")).unwrap();
    fs::write(other.stored("file"), "kept").unwrap();
    mounted.tree.attach(Path::new("x"), &other.volume, true, Box::new(|_| {})).unwrap();
    let rofs = |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    rofs(fs::write(mnt.join("x/new"), "").unwrap_err());
    rofs(File::options().append(true).open(mnt.join("x/file")).unwrap_err());
    rofs(fs::remove_file(mnt.join("x/file")).unwrap_err());
    rofs(fs::create_dir(mnt.join("x/dir")).unwrap_err());
    assert_eq!(text(&mnt.join("x/file")), "kept");
    mounted.unmount();
}

#[test]
fn the_end_of_the_mountpoint_is_the_end_of_all() {
    let Some(mounted) = Setup::default().mount() else { return };
    if !mounted.is_block() {
        common::skipped("umount(2) of a plain fuse mount does not wait");
        return;
    }
    let (mnt, other, third) = (mounted.path(), Other::new(), Other::new());
    fs::create_dir(mnt.join("x")).unwrap();
    let ends = other.attach(&mounted, "x");
    fs::create_dir(mnt.join("x/y")).unwrap();
    let third_ends = third.attach(&mounted, "x/y");
    assert!(is_busy(&mounted.tree.detach(Path::new("x"), Detach::Sync)), "something is attached there");
    fs::write(mnt.join("x/file"), "x").unwrap();
    fs::write(mnt.join("x/y/file"), "y").unwrap();
    mounted.unmount();
    assert!(ends.try_recv().unwrap().is_complete() && third_ends.try_recv().unwrap().is_complete());
    assert_eq!((text(&other.stored("file")), text(&third.stored("file"))), ("x".to_owned(), "y".to_owned()));
}

#[test]
fn reuse_of_a_store_right_after_each_return() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (mnt, dir) = (mounted.path(), tempfile::tempdir().unwrap());
    fs::create_dir(mnt.join("x")).unwrap();
    let rounds = 100;
    for round in 0..rounds {
        let other = Other { dir: tempfile::tempdir().unwrap(), volume: open(dir.path()) };
        let ends = other.attach(&mounted, "x");
        fs::write(mnt.join("x/round"), round.to_string()).unwrap();
        // Every second one lazily: with nothing open that is the same.
        assert!(mounted.tree.wait_closed(Path::new("x"), Instant::now() + LONG).unwrap());
        let how = if round % 2 == 0 { Detach::Sync } else { Detach::Lazy };
        mounted.tree.detach(Path::new("x"), how).unwrap();
        assert!(ends.try_recv().unwrap().is_complete());
        assert_eq!(text(&dir.path().join("round")), round.to_string());
    }
    mounted.unmount();
}

/// More requests than there are entries of queues, or threads: each hangs in the store.
const HUNG: usize = 300;

#[test]
fn requests_that_hang_in_one_volume_do_not_keep_those_of_another_from_being_served() {
    let session = SessionOptions { threads_max: 256, ..SessionOptions::default() };
    let Some(mounted) = (Setup { session, ..Setup::default() }).mount() else { return };
    let mnt = mounted.path();
    let (dir, other) = (tempfile::tempdir().unwrap(), Other::new());
    for name in ["hung", "other"] {
        fs::create_dir(mnt.join(name)).unwrap();
    }
    (0..HUNG).for_each(|n| fs::write(dir.path().join(n.to_string()), "x").unwrap());
    let inner = store::open(&format!("dir:{}", dir.path().display())).unwrap();
    let hanging = store::FaultStore::new(inner, "open:hang").unwrap();
    let options = volume::Options { stall_after: Duration::from_millis(50), ..volume::Options::default() };
    let volume = Volume::new(Arc::clone(&hanging) as Arc<dyn store::Store>, options).unwrap();
    mounted.tree.attach(Path::new("hung"), &volume, false, Box::new(|_| {})).unwrap();
    let _ends = other.attach(&mounted, "other");
    fs::write(mnt.join("other/file"), "of the other").unwrap();

    let readers: Vec<_> = (0..HUNG)
        .map(|n| {
            let path = mnt.join("hung").join(n.to_string());
            std::thread::spawn(move || fs::read(path).map_err(|error| error.raw_os_error()))
        })
        .collect();
    assert!(hanging.wait_hanging(64, Duration::from_secs(60)));
    // As the daemon does about once a second.
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (tree, looked, over) = (mounted.tree.clone(), Arc::clone(&volume), Arc::clone(&is_over));
    let looks = std::thread::spawn(move || {
        // ORDERING: SeqCst, the test's own flag.
        while !over.load(std::sync::atomic::Ordering::SeqCst) {
            let _seen = looked.status();
            tree.apply_stall_quota();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    // From each processor, whose entries may be those that hang: new names, so that the kernel has
    // to ask.
    for n in 0..64 {
        fs::write(mnt.join(format!("other/new-{n}")), "new").unwrap();
        assert_eq!(text(&mnt.join(format!("other/new-{n}"))), "new");
    }
    File::open(mnt.join("other/file")).unwrap().sync_all().unwrap();
    // None of these requests may have needed the threads that hang.
    let until = Instant::now() + Duration::from_secs(60);
    while !readers.iter().any(std::thread::JoinHandle::is_finished) {
        assert!(Instant::now() < until, "no request beyond the share has failed");
        std::thread::sleep(Duration::from_millis(10));
    }
    is_over.store(true, std::sync::atomic::Ordering::SeqCst);
    looks.join().unwrap();
    // The requests that still wait are answered when the store does; the others have failed.
    hanging.release();
    let answers: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    let served = answers.iter().filter(|answer| answer.as_deref() == Ok(b"x")).count();
    assert!((1..HUNG).contains(&served), "{served} of {HUNG} were served");
    let failed = Err(Some(Errno::IO.raw_os_error()));
    assert!(answers.iter().all(|answer| answer.as_deref() == Ok(b"x") || *answer == failed), "{answers:?}");
    detach(&mounted, "hung").unwrap();
    detach(&mounted, "other").unwrap();
    mounted.unmount();
}

#[test]
fn who_waits_for_a_volume_that_is_given_up_gets_an_error_at_once() {
    let Some(mounted) = Setup::default().mount() else { return };
    let mnt = mounted.path();
    fs::create_dir(mnt.join("hung")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    let inner = store::open(&format!("dir:{}", dir.path().display())).unwrap();
    let hanging = store::FaultStore::new(inner, "open:hang").unwrap();
    let volume =
        Volume::new(Arc::clone(&hanging) as Arc<dyn store::Store>, volume::Options::default()).unwrap();
    mounted.tree.attach(Path::new("hung"), &volume, false, Box::new(|_| {})).unwrap();
    let path = mnt.join("hung/file");
    let reader = std::thread::spawn(move || fs::read(path));
    assert!(hanging.wait_hanging(1, Duration::from_secs(60)));
    let tree = mounted.tree.clone();
    // Its end waits for the store; no other thread does.
    let end = std::thread::spawn(move || tree.detach(Path::new("hung"), Detach::Force));
    assert_eq!(errno(reader.join().unwrap()), Some(Errno::IO));
    hanging.release();
    end.join().unwrap().unwrap();
    mounted.unmount();
}
