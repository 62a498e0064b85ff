//! Open files and directories.
//!
//! Lock order: a shard is a leaf.

use std::sync::Arc;

use recovery::Slot;
use store::Dir;
use sync::atomic::{AtomicU64, Ordering};
use sync::{IdMap, Mutex, RwLock};
use writeback::{Cgroup, Cursor};

use crate::inode::Inode;

use crate::{Error, HandleId, NodeId, OpenFlags, Result};

const SHARDS: usize = 16;

/// An open file.
#[derive(Debug)]
pub(crate) struct FileHandle {
    pub(crate) inode: Arc<Inode>,
    pub(crate) flags: OpenFlags,
    /// A user that is not root can have mapped the file through it, to write.
    pub(crate) is_foreign_mapper: bool,
    /// The thread that opened it; 0 if it is not known here.
    pub(crate) opener_pid: u32,
    /// The cgroup for which writes without a caller count, if the file was opened for writing. If
    /// it was removed, its nearest ancestor that lives counts.
    pub(crate) opener: Arc<Cgroup>,
    /// Which write-back errors this opening has reported.
    pub(crate) seen: Mutex<Cursor>,
    /// Where it is noted for the server that follows.
    pub(crate) noted: Option<Slot>,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct DirHandle {
    pub(crate) id: NodeId,
    pub(crate) dir: Arc<dyn Dir>,
    /// As [`FileHandle::opener_pid`].
    pub(crate) opener_pid: u32,
    /// As [`FileHandle::noted`].
    pub(crate) noted: Option<Slot>,
}

/// Open things of one kind by number.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    next: AtomicU64,
    shards: [RwLock<IdMap<u64, Arc<T>>>; SHARDS],
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), shards: Default::default() }
    }
}

impl<T> Handles<T> {
    fn shard(&self, id: u64) -> &RwLock<IdMap<u64, Arc<T>>> {
        #[allow(clippy::cast_possible_truncation, reason = "only the low bits choose the shard")]
        &self.shards[id as usize % SHARDS]
    }

    /// Adds one, made by `make` of its number.
    pub(crate) fn add(&self, make: impl FnOnce(HandleId) -> T) -> HandleId {
        // ORDERING: Relaxed, the number only has to be new; the shard's lock publishes the handle.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let handle = Arc::new(make(HandleId(id)));
        self.shard(id).write().insert(id, handle);
        HandleId(id)
    }

    pub(crate) fn get(&self, id: HandleId) -> Result<Arc<T>> {
        self.shard(id.0).read().get(&id.0).map(Arc::clone).ok_or(Error::NoHandle(id))
    }

    pub(crate) fn remove(&self, id: HandleId) -> Option<Arc<T>> {
        self.shard(id.0).write().remove(&id.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// All of them, with their numbers.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<T>)> {
        let of = |shard: &RwLock<IdMap<u64, Arc<T>>>| {
            shard.read().iter().map(|(id, handle)| (*id, Arc::clone(handle))).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// The number that the next one gets.
    pub(crate) fn next_number(&self) -> u64 {
        // ORDERING: Relaxed, as in `add`.
        self.next.load(Ordering::Relaxed)
    }

    /// The next one gets this number.
    pub(crate) fn resume_at(&self, next: u64) {
        // ORDERING: Relaxed, as in `add`.
        self.next.fetch_max(next, Ordering::Relaxed);
    }

    /// Adds one under the number that it had.
    pub(crate) fn restore(&self, id: HandleId, handle: T) -> Result<()> {
        // Numbers that follow are new.
        self.resume_at(id.0.saturating_add(1));
        match self.shard(id.0).write().insert(id.0, Arc::new(handle)) {
            None => Ok(()),
            Some(_) => Err(Error::Invalid("the state has a handle twice")),
        }
    }

    /// Calls `look` for each, in no order, as long as it says `true`.
    pub(crate) fn each(&self, mut look: impl FnMut(&T) -> bool) -> bool {
        self.shards.iter().all(|shard| shard.read().values().all(|one| look(one)))
    }

    /// Takes all of them out, for the caller to close.
    pub(crate) fn take(&self) -> TakenHandles<T> {
        TakenHandles { _all: self.shards.iter().map(|shard| std::mem::take(&mut *shard.write())).collect() }
    }
}

/// The handles that were open; closed when this is dropped.
pub(crate) struct TakenHandles<T> {
    _all: Vec<IdMap<u64, Arc<T>>>,
}
