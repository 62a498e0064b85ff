//! Servers that die and are followed, without a kernel; the keeper is the other end of a pair of sockets.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use recovery::link::{self, HELD_MAX};
use recovery::{Held as HeldByKeeper, HoldId, Link, Memory, Recovery};
use rustix::net::{RecvFlags, recv};
use store::{DirStore, MemStore};
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64};

use super::*;
use crate::{Caller, Cancel, Ctx, WriteFlags};

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn with<R>(call: impl FnOnce(&Ctx<'_>) -> R) -> R {
    let caller = Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..Caller::default()
    };
    call(&Ctx { caller, cancel: &Cancel::default(), before_wait: &|| {} })
}

fn options(journal: Journal, link: Link) -> Options {
    let recovery = Some(Arc::new(Recovery { journal, link, held: Vec::new() }));
    Options { flushers: 0, recovery, ..Options::default() }
}

fn volume_over(store: Arc<dyn Store>, link: Link) -> Arc<Volume> {
    Volume::new(store, options(Journal::create().expect("a journal"), link)).expect("a volume")
}

/// The volume of the server that follows one that has died; nothing of that one ends.
fn followed(volume: Arc<Volume>, store: Arc<dyn Store>) -> Arc<Volume> {
    let journal = &volume.recovery().expect("it is noted").journal;
    let file = journal.file().expect("a file").try_clone_to_owned().expect("a copy");
    let journal = Journal::recover(file, recovery::LastEnd::Killed).expect("it is whole");
    // Its end would end the store.
    let _never_dropped = std::mem::ManuallyDrop::new(volume);
    Volume::recover(store, options(journal, Link::to_nobody()), &[]).expect("a volume")
}

fn create(volume: &Volume, name: &str) -> (NodeId, HandleId) {
    let made = with(|ctx| volume.create(ctx, NodeId::ROOT, OsStr::new(name), 0o644, READ_WRITE));
    made.map(|(entry, handle)| (entry.id, handle)).expect("a new file")
}

fn unlink(volume: &Volume, name: &str) {
    with(|ctx| volume.unlink(ctx, NodeId::ROOT, OsStr::new(name))).expect("it is there");
}

fn close(volume: &Volume, (id, handle): (NodeId, HandleId)) {
    volume.release(handle);
    volume.forget(id, 1);
}

/// A server over a directory whose keeper holds so many objects already; the keeper's end.
fn over_directory(path: &Path, held: usize) -> (Arc<Volume>, OwnedFd) {
    let (keeper, server) = link::pair().expect("a pair");
    let store = DirStore::open(path).expect("a store");
    let held: Vec<_> = (0..held as u64).map(|id| HeldByKeeper { id: HoldId(id), node: u64::MAX }).collect();
    (volume_over(store, Link::new(server, &held)), keeper)
}

#[test]
fn a_file_has_the_same_times_after_its_server_died() {
    let store = MemStore::new(1 << 20);
    let volume = volume_over(Arc::clone(&store) as _, Link::to_nobody());
    let (id, handle) = create(&volume, "file");
    for (n, data) in [&b"first"[..], b"second"].into_iter().enumerate() {
        let written = with(|ctx| volume.write(ctx, handle, n as u64, data, WriteFlags::empty()));
        assert_eq!(written, Ok(data.len()));
    }
    let before = volume.attr(id).expect("it is there");
    assert_eq!(before.size, 7);
    let inode = volume.inode(id).expect("it is known");
    assert!(inode.state().overlay.is_none() && inode.state().shown_ctime().is_none());
    drop(inode);
    let next = followed(volume, store);
    assert_eq!(next.attr(id), Ok(before));
    close(&next, (id, handle));
}

#[test]
fn a_file_that_the_keeper_does_not_take_is_counted_and_the_mount_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let (volume, _keeper) = over_directory(dir.path(), HELD_MAX - 1);
    let files: Vec<_> = ["one", "two", "three"].map(|name| create(&volume, name)).into();
    ["one", "two", "three"].iter().for_each(|name| unlink(&volume, name));
    assert_eq!(volume.not_held(), 2, "the keeper has taken one");
    // Found full again, it counts once.
    volume.keep_data(&volume.inode(files[1].0).expect("it is known"));
    assert_eq!(volume.not_held(), 2);
    assert!(volume.recovery().is_some_and(|recovery| recovery.journal.is_complete()));
    close(&volume, files[0]);
    volume.keep_data(&volume.inode(files[1].0).expect("it is known"));
    assert_eq!(volume.not_held(), 1, "there is room again");
    close(&volume, files[1]);
    close(&volume, files[2]);
    assert_eq!(volume.not_held(), 0);
}

#[test]
fn without_a_keeper_nothing_counts_as_not_held() {
    let dir = tempfile::tempdir().expect("a directory");
    let (volume, keeper) = over_directory(dir.path(), 0);
    drop(keeper);
    let file = create(&volume, "file");
    unlink(&volume, "file");
    assert_eq!(volume.not_held(), 0);
    close(&volume, file);
}

#[test]
fn what_cannot_be_handed_to_the_keeper_is_counted() {
    // Its files have no descriptors.
    let volume = volume_over(MemStore::new(1 << 20), Link::to_nobody());
    let file = create(&volume, "file");
    unlink(&volume, "file");
    assert_eq!(volume.not_held(), 1);
    assert!(volume.recovery().is_some_and(|recovery| recovery.journal.is_complete()));
    close(&volume, file);
    assert_eq!(volume.not_held(), 0);
}

/// Words, with whether the keeper had a message when the last one was stored.
#[derive(Debug)]
struct Watched {
    words: Mutex<HashMap<usize, u64>>,
    keeper: OwnedFd,
    had_message: AtomicBool,
}

impl Watched {
    fn note(&self) {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let has = recv(&self.keeper, &mut [0; 16], flags).is_ok();
        // ORDERING: SeqCst, of one thread.
        self.had_message.store(has, Ordering::SeqCst);
    }
}

impl Memory for Watched {
    fn load(&self, at: usize) -> u64 {
        self.words.lock().get(&at).copied().unwrap_or(0)
    }

    fn store(&self, at: usize, value: u64) {
        self.note();
        self.words.lock().insert(at, value);
    }

    fn raise(&self, at: usize, value: u64) {
        self.note();
        let mut words = self.words.lock();
        let word = words.entry(at).or_default();
        *word = (*word).max(value);
    }
}

#[test]
fn the_keeper_has_a_file_without_a_name_before_its_opening_is_noted() {
    let dir = tempfile::tempdir().expect("a directory");
    let (keeper, server) = link::pair().expect("a pair");
    let words = Arc::new(Watched { words: Mutex::default(), keeper, had_message: AtomicBool::new(false) });
    let journal = Journal::create_in(Arc::clone(&words) as _);
    let store = DirStore::open(dir.path()).expect("a store");
    let volume = Volume::new(store, options(journal, Link::new(server, &[]))).expect("a volume");
    let made = with(|ctx| volume.tmpfile(ctx, NodeId::ROOT, 0o600, READ_WRITE));
    let Ok((entry, handle)) = made else {
        return testing::skipped("the host's file system makes no files without names");
    };
    assert_eq!(volume.recovery().map(|recovery| recovery.journal.opens().len()), Some(1));
    // ORDERING: SeqCst, of one thread.
    assert!(words.had_message.load(Ordering::SeqCst), "the opening was noted first");
    close(&volume, (entry.id, handle));
}

#[test]
fn an_open_directory_that_is_gone_is_open_until_it_is_closed() {
    let store = MemStore::new(1 << 20);
    let volume = volume_over(Arc::clone(&store) as _, Link::to_nobody());
    let dir =
        |ctx: &Ctx<'_>| volume.make(ctx, NodeId::ROOT, OsStr::new("dir"), store::NewNode::Directory, 0o755);
    let id = with(dir).expect("a directory").id;
    let handle = with(|ctx| volume.open_dir(ctx, id)).expect("it opens");
    with(|ctx| volume.rmdir(ctx, NodeId::ROOT, OsStr::new("dir"))).expect("it is empty");
    // The next server's store does not find it.
    let hooked = store::HookStore::new(store);
    hooked.hook(|_, op| match op {
        "open_dir" => Err(store::Error::new(ErrorKind::Stale, op)),
        _ => Ok(()),
    });
    let next = followed(volume, hooked);
    let opens = || next.recovery().map_or(0, |recovery| recovery.journal.opens().len());
    assert_eq!(opens(), 1);
    let listed = next.list(handle, 0, &mut |_| true);
    assert!(matches!(listed, Err(Error::Store(error)) if error.kind() == ErrorKind::Stale));
    next.release_dir(handle);
    assert_eq!(opens(), 0, "its slot is free");
}

#[test]
fn what_is_inherited_is_made_durable_once() {
    let store = MemStore::new(1 << 20);
    let volume = volume_over(Arc::clone(&store) as _, Link::to_nobody());
    let file = create(&volume, "file");
    let hooked = store::HookStore::new(store);
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&syncs);
    hooked.hook(move |at, op| {
        if matches!(at, store::At::Before) && op == "sync_everything" {
            // ORDERING: Relaxed, of one thread.
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    });
    let next = followed(volume, hooked);
    for _ in 0..2 {
        with(|ctx| next.fsync(ctx, file.1, false)).expect("durable");
    }
    // ORDERING: Relaxed, of one thread.
    assert_eq!(syncs.load(Ordering::Relaxed), 1);
    close(&next, file);
}
