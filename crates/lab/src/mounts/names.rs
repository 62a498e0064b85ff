//! A superblock of names that follow a rule, so that it costs nothing to make.
//!
//! The root has directories `m0`, `m1` ... and `d`; `d` has a file `f`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use mounts::{Error, FoundInode, Inode, Kind, Result, Superblock, SuperblockRef};
use sync::Mutex;

const D: Inode = Inode(2);
const F: Inode = Inode(3);
const FIRST: u64 = 1000;

/// One such superblock.
#[derive(Debug, Default)]
pub(crate) struct Names {
    shutdowns: AtomicUsize,
    ended_by: Mutex<Option<ThreadId>>,
    /// Called by the shutdown.
    at_end: Option<Work>,
    /// Called by look-ups, which are not from memory then.
    at_lookup: Option<Work>,
}

/// A play's callback when a superblock is asked, or ends.
pub(crate) struct Work(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Work")
    }
}

impl Names {
    /// One to be mounted.
    pub(crate) fn mountable() -> (Arc<Self>, SuperblockRef) {
        let names = Arc::new(Self::default());
        (Arc::clone(&names), SuperblockRef::new(names))
    }

    /// A superblock whose shutdown calls `work`.
    pub(crate) fn ending(work: impl Fn() + Send + Sync + 'static) -> (Arc<Self>, SuperblockRef) {
        let names = Arc::new(Self { at_end: Some(Work(Box::new(work))), ..Self::default() });
        (Arc::clone(&names), SuperblockRef::new(names))
    }

    /// A superblock whose look-ups call `work`.
    pub(crate) fn waiting(work: impl Fn() + Send + Sync + 'static) -> (Arc<Self>, SuperblockRef) {
        let names = Arc::new(Self { at_lookup: Some(Work(Box::new(work))), ..Self::default() });
        (Arc::clone(&names), SuperblockRef::new(names))
    }

    /// Whether it was shut down.
    pub(crate) fn is_ended(&self) -> bool {
        // ORDERING: Acquire, with the release in `shutdown`.
        self.shutdowns.load(Ordering::Acquire) > 0
    }

    /// Which thread did it.
    pub(crate) fn ended_by(&self) -> Option<ThreadId> {
        *self.ended_by.lock()
    }
}

fn find(dir: Inode, name: &OsStr) -> Result<FoundInode> {
    let entry = |inode, kind| Ok(FoundInode { inode, kind });
    match (dir, name.as_bytes()) {
        (Inode::ROOT, b"d") => entry(D, Kind::Directory),
        (D, b"f") => entry(F, Kind::Other),
        (Inode::ROOT, [b'm', digits @ ..]) => {
            let number = digits.iter().fold(0, |n: u64, digit| n * 10 + u64::from(digit.wrapping_sub(b'0')));
            entry(Inode(FIRST + number), Kind::Directory)
        }
        _ => Err(Error::NoEntry { name: name.to_string_lossy().into_owned() }),
    }
}

impl Superblock for Names {
    fn lookup(&self, dir: Inode, name: &OsStr) -> Result<FoundInode> {
        if let Some(Work(work)) = &self.at_lookup {
            work();
        }
        find(dir, name)
    }

    fn lookup_rcu(&self, dir: Inode, name: &OsStr) -> Option<Result<FoundInode>> {
        self.at_lookup.is_none().then(|| find(dir, name))
    }

    fn parent(&self, _: Inode) -> Result<Inode> {
        Ok(Inode::ROOT)
    }

    fn parent_rcu(&self, _: Inode) -> Option<Inode> {
        Some(Inode::ROOT)
    }

    fn may_wait(&self) -> bool {
        self.at_end.is_some()
    }

    fn shutdown(&self) {
        if let Some(Work(work)) = &self.at_end {
            work();
        }
        *self.ended_by.lock() = Some(std::thread::current().id());
        // ORDERING: Release, for `is_ended`.
        self.shutdowns.fetch_add(1, Ordering::Release);
    }
}
