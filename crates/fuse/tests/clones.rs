//! Namespaces that are cloned for a second mountpoint.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::hanging::LONG;
use common::{Mounted, Setup, eventually, text};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use volume::{DrainReport, Volume};
use watertight_fuse::{Detach, Propagation, TreeHandle};

/// A mountpoint and a second one, which shows a clone.
struct Both {
    mounted: Mounted,
    second: tempfile::TempDir,
    clone: TreeHandle,
}

/// Lets one test run at a time: a program that a test starts has the open files of the other tests
/// for a moment, and keeps their mounts busy.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Both {
    /// With directories `a/b` and `x`, and a volume attached to `x`, whose end is reported.
    fn new(propagation: Propagation) -> Option<(Self, Other)> {
        if !rustix::process::geteuid().is_root() {
            common::skipped("only root may show a clone");
            return None;
        }
        let mounted = Setup::default().mount()?;
        fs::create_dir_all(mounted.path().join("a/b")).unwrap();
        fs::create_dir(mounted.path().join("x")).unwrap();
        let other = Other::attach(&mounted.tree, "x");
        let second = tempfile::tempdir().unwrap();
        let clone = mounted.tree.clone_namespace(propagation).unwrap();
        show(&mounted, &clone, second.path());
        Some((Self { mounted, second, clone }, other))
    }

    fn first(&self, path: &str) -> PathBuf {
        self.mounted.path().join(path)
    }

    fn second(&self, path: &str) -> PathBuf {
        self.second.path().join(path)
    }

    fn unmount_second(&self) {
        common::umount(self.second.path());
        self.clone.release();
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        // Gone already, unless the test failed.
        let _ = rustix::mount::unmount(self.second.path(), UnmountFlags::DETACH);
    }
}

fn show(mounted: &Mounted, clone: &TreeHandle, at: &Path) {
    watertight_fuse::mount::show(&mounted.path(), clone.clone_name().unwrap(), at).unwrap();
}

/// A volume that was attached.
struct Other {
    dir: tempfile::TempDir,
    ends: Receiver<DrainReport>,
}

impl Other {
    fn attach(tree: &TreeHandle, path: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = store::open(&format!("dir:{}", dir.path().display())).unwrap();
        let rests = volume::Options { dirty_after: Duration::from_secs(3600), ..volume::Options::default() };
        let volume: Arc<Volume> = Volume::new(store, rests).unwrap();
        let (told, ends) = channel();
        let on_end = Box::new(move |report: &DrainReport| told.send(report.clone()).unwrap());
        tree.attach(Path::new(path), &volume, false, on_end).unwrap();
        Self { dir, ends }
    }

    fn has_ended(&self) -> bool {
        self.ends.try_recv().is_ok_and(|report| report.is_complete())
    }
}

/// Nothing is open there: the kernel reports a close a little later.
fn closed(tree: &TreeHandle, path: &str) {
    assert!(tree.wait_closed(Path::new(path), Instant::now() + LONG).unwrap());
}

fn detach(tree: &TreeHandle, path: &str) {
    closed(tree, path);
    tree.detach(Path::new(path), Detach::Sync).unwrap();
}

fn paths(tree: &TreeHandle) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = tree.attachments().into_iter().map(|one| one.path.unwrap()).collect();
    paths.sort();
    paths
}

#[test]
fn mapping_client() {
    common::mapping::client();
}

#[test]
fn a_clone_shows_the_same_files_and_all_that_was_attached() {
    let _alone = alone();
    let Some((both, other)) = Both::new(Propagation::Private) else { return };
    fs::write(both.first("a/file"), "one").unwrap();
    fs::write(both.second("x/theirs"), "through the clone").unwrap();
    assert_eq!(text(&both.second("a/file")), "one");
    assert_eq!(text(&both.first("x/theirs")), "through the clone");
    // One page cache for all: data mapped and changed in one place is read in the other.
    fs::write(both.first("a/mapped"), [b'.'; 8192]).unwrap();
    let there = File::open(both.second("a/mapped")).unwrap();
    let mut read = [0];
    there.read_exact_at(&mut read, 4096).unwrap();
    common::mapping::change(&both.first("a/mapped"), false);
    there.read_exact_at(&mut read, 4096).unwrap();
    assert_eq!(&read, b"m");
    drop(there);
    // Names are right at once, in both directions.
    for round in 0..100 {
        let (here, there) = if round % 2 == 0 { ("first", "second") } else { ("second", "first") };
        let at =
            |place: &str, path: &str| if place == "first" { both.first(path) } else { both.second(path) };
        let name = format!("a/b/{round}");
        assert!(!at(there, &name).exists());
        fs::write(at(here, &name), "").unwrap();
        assert!(at(there, &name).exists());
        fs::remove_file(at(there, &name)).unwrap();
        assert!(!at(here, &name).exists());
    }
    assert_eq!(paths(&both.clone), [PathBuf::from("x")]);
    both.unmount_second();
    assert!(both.first("x/theirs").exists() && !other.has_ended());
    eventually("the clone has ended", || both.clone.has_ended());
    detach(&both.mounted.tree, "x");
    assert!(other.has_ended());
    assert_eq!(text(&other.dir.path().join("theirs")), "through the clone");
}

#[test]
fn what_is_attached_or_detached_in_one_is_so_in_the_other_on_return() {
    let _alone = alone();
    let Some((both, other)) = Both::new(Propagation::Shared) else { return };
    let (first, second) = (&both.mounted.tree, &both.clone);
    for (here, there) in [(first, second), (second, first)] {
        // The kernel has learned in both places which names are there, and which are not.
        for dir in ["a", "a/b"] {
            assert!(
                !both.first(&format!("{dir}/new")).exists() && !both.second(&format!("{dir}/new")).exists()
            );
        }
        let third = Other::attach(here, "a/b");
        fs::write(third.dir.path().join("new"), "theirs").unwrap();
        assert_eq!(text(&both.first("a/b/new")), "theirs");
        assert_eq!(text(&both.second("a/b/new")), "theirs");
        assert_eq!(paths(here), paths(there));
        detach(there, "a/b");
        // On return: gone in both, on the store, and the store free.
        assert!(!both.first("a/b/new").exists() && !both.second("a/b/new").exists());
        assert!(third.has_ended());
    }
    // An open directory in one refuses a detach in the other.
    let open = File::open(both.second("x")).unwrap();
    assert!(first.detach(Path::new("x"), Detach::Sync).is_err());
    assert!(both.first("x").exists());
    drop(open);
    detach(first, "x");
    assert!(other.has_ended());
    both.unmount_second();
}

#[test]
fn a_slave_follows_and_a_private_clone_does_not() {
    let _alone = alone();
    let Some((both, _other)) = Both::new(Propagation::Slave) else { return };
    let third = Other::attach(&both.mounted.tree, "a");
    fs::write(both.first("a/file"), "x").unwrap();
    assert!(both.second("a/file").exists());
    let inner = Other::attach(&both.clone, "x");
    fs::write(both.second("x/mine"), "x").unwrap();
    assert!(!both.first("x/mine").exists());
    detach(&both.mounted.tree, "a");
    assert!(third.has_ended() && !both.second("a/file").exists());
    assert!(!inner.has_ended());
    both.unmount_second();
    // A volume attached only in the clone ends with it.
    eventually("it has ended", || inner.has_ended());
    assert_eq!(text(&inner.dir.path().join("mine")), "x");

    let Some((both, other)) = Both::new(Propagation::Private) else { return };
    let third = Other::attach(&both.mounted.tree, "a");
    fs::write(both.first("a/file"), "x").unwrap();
    assert!(!both.second("a/file").exists() && both.second("a/b").exists());
    detach(&both.clone, "x");
    assert!(!other.has_ended() && both.first("x").exists());
    detach(&both.mounted.tree, "a");
    assert!(third.has_ended());
    both.unmount_second();
}

#[test]
fn a_clone_ends_with_its_last_user_and_the_volume_with_the_last_mountpoint() {
    let _alone = alone();
    let Some((both, other)) = Both::new(Propagation::Private) else { return };
    if !both.mounted.is_block() {
        common::skipped("umount(2) of a plain fuse mount does not wait");
        return;
    }
    let mine = Other::attach(&both.clone, "a");
    fs::write(both.second("a/mine"), "mine").unwrap();
    fs::write(both.second("file"), "of the root volume").unwrap();
    closed(&both.clone, "a");
    // A process inside keeps the clone, but no attached volume in which nothing is open.
    let inside = File::open(both.second("x")).unwrap();
    rustix::mount::unmount(both.second.path(), UnmountFlags::DETACH).unwrap();
    both.clone.release();
    assert!(rustix::fs::statat(inside.as_fd(), ".", rustix::fs::AtFlags::empty()).is_ok());
    assert!(!mine.has_ended());
    both.clone.end_clone(false);
    assert!(mine.has_ended());
    assert!(rustix::fs::statat(inside.as_fd(), "theirs", rustix::fs::AtFlags::empty()).is_err());
    drop(inside);
    assert_eq!(text(&mine.dir.path().join("mine")), "mine");
    assert!(!other.has_ended() && both.first("file").exists());

    // The other way round: the first goes, the clone stays.
    let clone = both.mounted.tree.clone_namespace(Propagation::Shared).unwrap();
    show(&both.mounted, &clone, both.second.path());
    common::umount(&both.mounted.path());
    assert!(!both.first("file").exists());
    assert_eq!(text(&both.second("file")), "of the root volume");
    fs::write(both.second("x/late"), "late").unwrap();
    assert!(!other.has_ended());
    both.unmount_second();
    // umount(2) has waited: everything is on the stores.
    assert!(other.has_ended());
    assert_eq!(text(&other.dir.path().join("late")), "late");
    assert_eq!(text(&both.mounted.store_path().join("file")), "of the root volume");
}

#[test]
fn a_clone_that_the_program_ends_has_ended_on_return() {
    let _alone = alone();
    let Some((both, other)) = Both::new(Propagation::Private) else { return };
    let mine = Other::attach(&both.clone, "a");
    fs::write(both.second("a/mine"), "mine").unwrap();
    closed(&both.clone, "a");
    let inside = File::open(both.second("a/b")).err().and_then(|error| Errno::from_io_error(&error));
    assert_eq!(inside, Some(Errno::NOENT), "covered");
    both.clone.end_clone(false);
    assert!(mine.has_ended());
    assert_eq!(text(&mine.dir.path().join("mine")), "mine");
    // The rest of the mountpoint shows nothing, and never the files of another volume.
    assert!(fs::metadata(both.second("file")).is_err() && fs::read_dir(both.second.path()).is_err());
    assert!(both.first("x").exists() && !other.has_ended());
    both.unmount_second();
}

#[test]
fn the_name_of_a_clone_leads_nobody_else_there() {
    let _alone = alone();
    let Some((both, _other)) = Both::new(Propagation::Private) else { return };
    let name = both.clone.clone_name().unwrap().to_owned();
    assert!(!fs::read_dir(both.mounted.path()).unwrap().any(|entry| entry.unwrap().file_name() == name));
    let hidden = both.mounted.path().join(&name);
    assert!(fs::metadata(&hidden).is_ok(), "root finds it");
    fs::set_permissions(both.mounted.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let asked = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups", "stat", "-t"])
        .arg(&hidden)
        .output()
        .unwrap();
    assert!(!asked.status.success());
    let cwd = Command::new("pwd").arg("-P").current_dir(both.second.path()).output().unwrap();
    let cwd = PathBuf::from(String::from_utf8(cwd.stdout).unwrap().trim());
    assert_eq!(cwd, both.second.path(), "the directory was taken for removed");
    both.unmount_second();
}
