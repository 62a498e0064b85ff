//! Attached volumes whose stores do not answer, beside others of the same mountpoint.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use common::hanging::{Hanging, LONG, Release, all_stalled, look};
use common::{Mounted, Setup, eventually, text};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use store::FaultOp;
use watertight_fuse::mount::Wanted;
use watertight_fuse::{Detach, SessionOptions, TreeError};

const EIO: Result<Vec<u8>, Option<i32>> = Err(Some(libc::EIO));
/// Places for requests, in these tests.
const PLACES: usize = 256;

fn mount() -> Option<Mounted> {
    let session = SessionOptions { threads_max: PLACES, ..SessionOptions::default() };
    Setup { session, ..Setup::default() }.mount()
}

#[test]
fn of_many_stalled_volumes_each_has_its_first_request_waiting() {
    let Some(mounted) = mount() else { return };
    let volumes: Vec<_> = (0..100).map(|n| Hanging::new(&mounted, &n.to_string(), "open:hang")).collect();
    let _release = Release(volumes.iter().map(|one| Arc::clone(&one.store)).collect());
    let other = Hanging::new(&mounted, "other", "read:delay=0ms");
    // Half of them before the stalls are noticed, half of them when most are stalled.
    let mut clients: Vec<_> = volumes[..50].iter().map(Hanging::read).collect();
    volumes[..50].iter().for_each(|one| one.is_hanging(1));
    all_stalled(&mounted, &volumes[..50]);
    clients.extend(volumes[50..].iter().map(Hanging::read));
    volumes[50..].iter().for_each(|one| one.is_hanging(1));
    all_stalled(&mounted, &volumes);
    // There is room for no more, and the others go on.
    assert_eq!(volumes[0].read().join().unwrap(), EIO);
    assert_eq!(volumes[99].read().join().unwrap(), EIO);
    assert_eq!(other.read().join().unwrap().as_deref(), Ok(&b"x"[..]));
    fs::write(mounted.path().join("own"), "own").unwrap();
    assert!(clients.iter().all(|client| !client.is_finished()), "the first requests wait");
    for one in &volumes {
        one.store.release();
    }
    for client in clients {
        assert_eq!(client.join().unwrap().as_deref(), Ok(&b"x"[..]), "none of them has failed");
    }
    mounted.unmount();
}

/// The next request may be read before the thread that answered the last one goes on.
#[test]
fn who_asks_a_stalled_volume_one_thing_at_a_time_is_never_refused() {
    let Some(mounted) = mount() else { return };
    let volumes: Vec<_> = (0..100).map(|n| Hanging::new(&mounted, &n.to_string(), "open:hang")).collect();
    let release = Release(volumes.iter().map(|one| Arc::clone(&one.store)).collect());
    let mut clients: Vec<_> = volumes.iter().map(Hanging::read).collect();
    volumes.iter().for_each(|one| one.is_hanging(1));
    all_stalled(&mounted, &volumes);
    // No thread checks from now on: the volume is taken for stalled, and there is no room beyond
    // the first request of each.
    volumes[0].store.release();
    assert_eq!(clients.remove(0).join().unwrap().as_deref(), Ok(&b"x"[..]));
    assert!(volumes[0].volume.is_known_to_stall());
    for n in 0..500 {
        let made = volumes[0].root.join(n.to_string());
        fs::create_dir(made).unwrap_or_else(|error| panic!("request {n}: {error}"));
    }
    drop(release);
    clients.into_iter().for_each(|client| assert!(client.join().unwrap().is_ok()));
    mounted.unmount();
}

/// A request that hangs holds the lock of the directory, which the kernel takes to forget the
/// volume that was attached.
#[test]
fn a_volume_is_given_up_though_a_request_has_its_directory() {
    let Some(mounted) = mount() else { return };
    let it = Hanging::new(&mounted, "x", "make:hang;create:hang");
    let _release = Release(vec![Arc::clone(&it.store)]);
    let new = it.root.join("new");
    let client = std::thread::spawn(move || fs::create_dir(new).map_err(|error| error.raw_os_error()));
    it.is_hanging(1);
    let tree = mounted.tree.clone();
    let attached = it.attached.clone();
    let force = std::thread::spawn(move || tree.detach_by_force(&attached));
    // The answer is what the detach itself needs.
    assert_eq!(client.join().unwrap(), Err(Some(libc::EIO)));
    eventually("no path leads there", || !mounted.tree.is_attached(&it.attached));
    eventually("nor for clients", || fs::metadata(it.root.join("file")).is_err());
    it.store.release();
    force.join().unwrap().unwrap();
    mounted.unmount();
}

/// The plain detach has taken the path away, and waits for the store; the same is then given up.
#[test]
fn a_volume_is_given_up_while_its_detach_waits_for_the_store() {
    for rules in ["write:hang", "make:hang"] {
        let Some(mounted) = mount() else { return };
        let it = Hanging::new(&mounted, "x", rules);
        let _release = Release(vec![Arc::clone(&it.store)]);
        let new = it.root.join("new");
        let client = std::thread::spawn(move || fs::create_dir(new).map_err(|error| error.raw_os_error()));
        if rules == "make:hang" {
            it.is_hanging(1);
        } else {
            assert_eq!(client.join().unwrap(), Ok(()));
            fs::write(it.root.join("file"), "new").unwrap();
            let until = std::time::Instant::now() + LONG;
            assert!(mounted.tree.wait_closed(Path::new("x"), until).unwrap());
        }
        let tree = mounted.tree.clone();
        let detach = std::thread::spawn(move || tree.detach(Path::new("x"), Detach::Lazy));
        eventually("the path is gone", || !it.attached.is_seen() || !mounted.tree.is_attached(&it.attached));
        if rules == "write:hang" {
            it.is_hanging(1);
        }
        // Both calls at once: the second finds nothing there, and neither waits for the other.
        assert!(mounted.tree.abort(&it.attached), "{rules}");
        let again = mounted.tree.detach_by_force(&it.attached);
        assert!(matches!(again, Err(TreeError::NotAttached(_))), "{rules}: {again:?}");
        let lost = it.volume.abort_report();
        assert_eq!(lost.unwritten.len(), usize::from(rules == "write:hang"), "{lost:?}");
        it.store.release();
        detach.join().unwrap().unwrap();
        assert!(it.volume.report().is_some());
        mounted.unmount();
    }
}

/// Each of two threads does one of both, in any order.
#[test]
fn giving_up_and_detaching_at_the_same_time_end_both() {
    let Some(mounted) = mount() else { return };
    for round in 0..20 {
        let it = Hanging::new(&mounted, &format!("x{round}"), "make:hang");
        let _release = Release(vec![Arc::clone(&it.store)]);
        let new = it.root.join("new");
        let client = std::thread::spawn(move || fs::create_dir(new).map_err(|error| error.raw_os_error()));
        it.is_hanging(1);
        let path = PathBuf::from(format!("x{round}"));
        let (lazy, forced) = (mounted.tree.clone(), mounted.tree.clone());
        let attached = it.attached.clone();
        let detach = std::thread::spawn(move || drop(lazy.detach(&path, Detach::Lazy)));
        let abort = std::thread::spawn(move || {
            forced.abort(&attached);
            drop(forced.detach_by_force(&attached));
        });
        // Without the store's help: it hangs until the very end.
        assert_eq!(client.join().unwrap(), Err(Some(libc::EIO)), "round {round}");
        eventually("no path leads there", || !mounted.tree.is_attached(&it.attached));
        eventually("nor for clients", || fs::metadata(it.root.join("file")).is_err());
        it.store.release();
        detach.join().unwrap();
        abort.join().unwrap();
    }
    mounted.unmount();
}

/// Clients that have more files of a volume open than the mountpoint has threads, and directories.
const CLIENTS: usize = 300;
const FILES_OF_EACH: usize = 2;
const FILES: u64 = (CLIENTS * FILES_OF_EACH) as u64;

/// All of them have closed their files and directories, the store does not answer, and a neighbour
/// still reads data that it has not read before.
fn with_closed_files(wanted: Wanted, then: impl FnOnce(Mounted, Hanging)) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let session = SessionOptions { threads_max: PLACES, ..SessionOptions::default() };
    let Some(mounted) = (Setup { session, wanted, ..Setup::default() }).mount() else {
        return;
    };
    let it = Hanging::new(&mounted, "x", "file.close:hang;dir.close:hang");
    let other = Hanging::new(&mounted, "other", "read:delay=0ms");
    let _release = Release(vec![Arc::clone(&it.store)]);
    for n in 0..CLIENTS * FILES_OF_EACH {
        fs::write(it.dir.path().join(n.to_string()), "x").unwrap();
    }
    let open = |n: usize| fs::File::open(it.root.join(n.to_string())).unwrap();
    let files: Vec<_> = (0..CLIENTS * FILES_OF_EACH).map(open).collect();
    let dirs: Vec<_> = (0..CLIENTS).map(|_| fs::File::open(&it.root).unwrap()).collect();
    // All is open before the first is closed: until a thread checks, the closes hold up the
    // requests after them.
    let mut files = files.into_iter();
    let close = |dir| {
        let open: Vec<_> = files.by_ref().take(FILES_OF_EACH).collect();
        std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop((open, dir))).unwrap()
    };
    let clients: Vec<JoinHandle<()>> = dirs.into_iter().map(close).collect();
    it.is_hanging(1);
    all_stalled(&mounted, std::slice::from_ref(&it));
    let read = |n: usize, dir: PathBuf, root: PathBuf| {
        let name = format!("new-{n}");
        // Enough data for the kernel to read ahead.
        fs::write(dir.join(&name), [b'y'; 256 << 10]).unwrap();
        assert_eq!(fs::read(root.join(name)).unwrap(), [b'y'; 256 << 10]);
        assert!(fs::read_dir(root).unwrap().count() > n);
    };
    let (dir, root) = (other.dir.path().to_owned(), other.root.clone());
    let neighbour = std::thread::spawn(move || (0..50).for_each(|n| read(n, dir.clone(), root.clone())));
    eventually("a neighbour reads", || {
        look(&mounted, std::slice::from_ref(&it));
        neighbour.is_finished()
    });
    neighbour.join().unwrap();
    eventually("who closes files does not wait", || {
        look(&mounted, std::slice::from_ref(&it));
        clients.iter().all(JoinHandle::is_finished)
    });
    // One thread more, of the volume's own.
    assert!(it.store.hanging() <= PLACES + 1, "{} calls hang", it.store.hanging());
    assert!(it.store.calls(FaultOp::FileClose) < FILES, "all of them hang");
    then(mounted, it);
}

#[test]
fn files_that_are_closed_while_the_store_does_not_answer_hold_up_nobody_and_are_closed_before_the_volume_ends()
 {
    for wanted in [Wanted::Auto, Wanted::Fuse] {
        with_closed_files(wanted, |mounted, it| {
            let tree = mounted.tree.clone();
            let detach = std::thread::spawn(move || tree.detach(Path::new("x"), Detach::Lazy));
            eventually("the path is gone", || !mounted.tree.is_attached(&it.attached));
            assert!(it.volume.report().is_none(), "the store is not free");
            it.store.release();
            detach.join().unwrap().unwrap();
            eventually("it has ended", || it.volume.report().is_some());
            assert!(it.volume.report().unwrap().is_complete());
            assert_eq!(it.store.calls(FaultOp::FileClose), FILES, "all are closed");
            mounted.unmount();
        });
    }
}

#[test]
fn after_the_stall_what_was_closed_meanwhile_is_closed_by_itself() {
    with_closed_files(Wanted::Auto, |mounted, it| {
        it.store.release();
        eventually("all are closed", || it.store.calls(FaultOp::FileClose) == FILES);
        eventually("it answers", || it.volume.status().stalled.is_none());
        fs::write(it.root.join("new"), "new").unwrap();
        assert_eq!(text(&it.root.join("0")), "x");
        // Some closes may still be on their way.
        eventually("nothing is open", || mounted.tree.detach(Path::new("x"), Detach::Sync).is_ok());
        assert!(it.volume.report().unwrap().is_complete());
        mounted.unmount();
    });
}

#[test]
fn a_volume_is_given_up_while_files_of_it_wait_to_be_closed() {
    with_closed_files(Wanted::Auto, |mounted, it| {
        let (tree, attached) = (mounted.tree.clone(), it.attached.clone());
        let force = std::thread::spawn(move || tree.detach_by_force(&attached));
        eventually("no path leads there", || !mounted.tree.is_attached(&it.attached));
        eventually("nor for clients", || fs::metadata(it.root.join("file")).is_err());
        unmount(mounted);
        assert!(it.store.hanging() > 0, "its store has answered");
        it.store.release();
        force.join().unwrap().unwrap();
        eventually("it has ended, too", || it.volume.report().is_some());
        eventually("all are closed", || it.store.calls(FaultOp::FileClose) == FILES);
    });
}

/// Unmounts, without the help of stores that hang.
fn unmount(mounted: Mounted) {
    let unmounting = std::thread::spawn(move || mounted.unmount());
    eventually("the mountpoint's end", || unmounting.is_finished());
    unmounting.join().unwrap();
}

/// The end of a volume that was given up waits for the request that hangs, and no caller waits for
/// that end.
#[test]
fn what_was_given_up_is_no_concern_of_later_syncs_nor_of_the_mountpoints_end() {
    let Some(mounted) = mount() else { return };
    let it = Hanging::new(&mounted, "x", "open:hang");
    let other = Hanging::new(&mounted, "other", "read:delay=0ms");
    let release = Release(vec![Arc::clone(&it.store)]);
    let client = it.read();
    it.is_hanging(1);
    let (tree, attached) = (mounted.tree.clone(), it.attached.clone());
    let force = std::thread::spawn(move || tree.detach_by_force(&attached));
    assert_eq!(client.join().unwrap(), EIO);
    eventually("no path leads there", || !mounted.tree.is_attached(&it.attached));
    eventually("nor for clients", || fs::metadata(it.root.join("file")).is_err());
    fs::write(other.root.join("file"), "new").unwrap();
    assert_eq!(mounted.tree.sync_for(std::process::id()).unwrap(), Vec::<String>::new());
    assert_eq!(text(&other.dir.path().join("file")), "new");
    if mounted.is_block() {
        rustix::fs::syncfs(fs::File::open(mounted.path()).unwrap()).unwrap();
    }
    unmount(mounted);
    assert!(it.volume.report().is_none() && it.store.hanging() == 1, "its store has answered");
    assert!(other.volume.report().unwrap().is_complete());
    drop(release);
    force.join().unwrap().unwrap();
    eventually("it has ended, too", || it.volume.report().is_some());
}

#[test]
fn the_mountpoints_end_does_not_wait_for_what_is_given_up_meanwhile() {
    let Some(mounted) = mount() else { return };
    let it = Hanging::new(&mounted, "x", "write:hang");
    let _release = Release(vec![Arc::clone(&it.store)]);
    fs::write(it.root.join("file"), "new").unwrap();
    let tree = mounted.tree.clone();
    let unmounting = std::thread::spawn(move || unmount(mounted));
    it.is_hanging(1);
    assert!(tree.abort(&it.attached));
    unmounting.join().unwrap();
    assert_eq!(it.volume.abort_report().unwritten.len(), 1);
    assert!(it.volume.report().is_none() && it.store.hanging() == 1, "its store has answered");
}

#[test]
fn the_end_of_the_mountpoint_brings_healthy_volumes_to_their_stores_beside_more_stalled_ones_than_threads() {
    let Some(mounted) = mount() else { return };
    if !mounted.is_block() {
        common::skipped("umount(2) of a plain fuse mount does not wait");
        return;
    }
    // It is not known that they stall: they do when they are written.
    let hanging: Vec<_> = (0..80).map(|n| Hanging::new(&mounted, &format!("h{n}"), "write:hang")).collect();
    let release = Release(hanging.iter().map(|one| Arc::clone(&one.store)).collect());
    let healthy: Vec<_> =
        (0..10).map(|n| Hanging::new(&mounted, &format!("i{n}"), "write:delay=0ms")).collect();
    for one in hanging.iter().chain(&healthy) {
        fs::write(one.root.join("file"), "new").unwrap();
    }
    fs::write(mounted.path().join("own"), "own").unwrap();
    let path = mounted.path();
    let unmounting = std::thread::spawn(move || common::umount(&path));
    for one in &healthy {
        eventually("a healthy one has ended", || one.volume.report().is_some());
        assert!(one.volume.report().unwrap().is_complete());
        assert_eq!(text(&one.dir.path().join("file")), "new");
    }
    eventually("the mountpoint's own is written", || {
        fs::read(mounted.store_path().join("own")).is_ok_and(|data| data == b"own")
    });
    assert!(hanging.iter().all(|one| one.volume.report().is_none()), "the stalled ones are waited for");
    drop(release);
    unmounting.join().unwrap();
    let mut mounted = mounted;
    mounted.ended();
}
