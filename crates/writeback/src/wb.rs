//! The dirty inodes of one owner on one backing device.
//!
//! An inode is on the lists of its wb exactly while it says it is dirty: whoever makes it dirty (and is
//! told so by the inode's own state, under the inode's own lock) pushes it with [`Bdi::mark_dirty`] before
//! releasing that lock, so that who finds the inode dirty finds it listed; the flusher that found it clean
//! takes it off.
//!
//! | list | holds |
//! |---|---|
//! | `dirty` | inodes by the time they were first dirtied |
//! | `io` | inodes that a flusher writes now |
//! | `more_io` | inodes whose write-back failed, to be tried again at a later time |
//!
//! Lock order: `Wb::lists` may be taken under an inode's lock; none of an inode is taken under it.
//!
//! [`Bdi::mark_dirty`]: crate::Bdi::mark_dirty

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sync::atomic::{AtomicUsize, Ordering};
use sync::{Mutex, MutexGuard};

/// Something with dirty data.
pub trait Inode: Send + Sync + fmt::Debug + 'static {
    /// Writes what was dirty when the call began, and says what is left.
    ///
    /// Only one flusher calls it at a time for one inode; others (`fsync`) may write it meanwhile.
    fn write_back(&self) -> Outcome;
}

/// What a write-back left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing: the inode is clean, and will be pushed again when it becomes dirty.
    Clean,
    /// It was dirtied again meanwhile.
    Dirty,
    /// It could not be written; try again later.
    Failed,
}

/// Who owns the data of a wb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// The root of all owners.
    pub const ROOT: Self = Self(0);
}

/// The dirty inodes of one owner on one backing device.
#[derive(Debug)]
pub struct Wb<I: ?Sized> {
    owner: Owner,
    lists: Mutex<Lists<I>>,
    /// The length of `dirty`, to be read without the lock.
    dirty_inodes: AtomicUsize,
}

/// An inode on a list, with the time (of the bdi's clock) that decides when it is its turn.
#[derive(Debug)]
pub(crate) struct Listed<I: ?Sized> {
    pub(crate) inode: Arc<I>,
    pub(crate) since: Duration,
    pub(crate) failures: u32,
}

#[derive(Debug)]
struct Lists<I: ?Sized> {
    dirty: VecDeque<Listed<I>>,
    io: Vec<Arc<I>>,
    more_io: Vec<(Duration, Listed<I>)>,
}

impl<I: Inode + ?Sized> Wb<I> {
    pub(crate) fn new(owner: Owner) -> Self {
        let lists = Lists { dirty: VecDeque::new(), io: Vec::new(), more_io: Vec::new() };
        Self { owner, lists: Mutex::new(lists), dirty_inodes: AtomicUsize::new(0) }
    }

    /// Who owns this data.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Lists an inode that has just become dirty, and says whether it is the only one on the list.
    pub(crate) fn push(&self, inode: Arc<I>, since: Duration) -> bool {
        let mut lists = self.lists.lock();
        lists.dirty.push_back(Listed { inode, since, failures: 0 });
        self.note_length(&lists);
        lists.dirty.len() == 1
    }

    /// Takes an inode off the list of dirty ones; says whether it was there. The newest are looked at first: what
    /// is removed soon after it was written is the usual case.
    pub(crate) fn unlist(&self, inode: &I) -> bool {
        let mut lists = self.lists.lock();
        let found =
            lists.dirty.iter().rposition(|listed| std::ptr::addr_eq(Arc::as_ptr(&listed.inode), inode));
        let removed = found.and_then(|at| lists.dirty.remove(at));
        self.note_length(&lists);
        removed.is_some()
    }

    /// Takes the next inode whose turn it is: one that failed and whose pause is over, or one that is
    /// dirty since before `before` (none, if that is `None`).
    pub(crate) fn take(&self, before: Option<Duration>, now: Duration) -> Option<Listed<I>> {
        let mut lists = self.lists.lock();
        let listed = if let Some(due) = lists.more_io.iter().position(|(at, _)| *at <= now) {
            lists.more_io.swap_remove(due).1
        } else if before.is_some_and(|before| lists.dirty.front().is_some_and(|first| first.since <= before))
        {
            lists.dirty.pop_front()?
        } else {
            return None;
        };
        lists.io.push(Arc::clone(&listed.inode));
        self.note_length(&lists);
        Some(listed)
    }

    /// Puts an inode back, or off the lists, after its write-back.
    pub(crate) fn done(&self, listed: Listed<I>, outcome: Outcome, now: Duration, pause: Duration) {
        let mut lists = self.lists.lock();
        // One of them: the inode may have been listed, and taken, again meanwhile.
        if let Some(at) = lists.io.iter().position(|inode| Arc::ptr_eq(inode, &listed.inode)) {
            lists.io.swap_remove(at);
        }
        match outcome {
            Outcome::Clean => {}
            Outcome::Dirty => lists.dirty.push_back(Listed { since: now, failures: 0, ..listed }),
            Outcome::Failed => {
                let failures = listed.failures + 1;
                lists.more_io.push((now + pause, Listed { failures, ..listed }));
            }
        }
        self.note_length(&lists);
    }

    fn note_length(&self, lists: &MutexGuard<'_, Lists<I>>) {
        // ORDERING: Relaxed, see `dirty_inodes`.
        self.dirty_inodes.store(lists.dirty.len(), Ordering::Relaxed);
    }

    /// Inodes that wait for their first write-back.
    pub(crate) fn dirty_inodes(&self) -> usize {
        // ORDERING: Relaxed, a figure for a threshold; written under the lists' lock.
        self.dirty_inodes.load(Ordering::Relaxed)
    }

    /// When the next inode is due, given how long data may rest.
    pub(crate) fn next_due(&self, rest: Duration) -> Option<Duration> {
        let lists = self.lists.lock();
        let dirty = lists.dirty.front().map(|first| first.since + rest);
        let retry = lists.more_io.iter().map(|(at, _)| *at).min();
        dirty.into_iter().chain(retry).min()
    }

    /// Forgets every inode.
    pub(crate) fn clear(&self) {
        let gone = {
            let mut lists = self.lists.lock();
            let none = Lists { dirty: VecDeque::new(), io: Vec::new(), more_io: Vec::new() };
            let gone = std::mem::replace(&mut *lists, none);
            self.note_length(&lists);
            gone
        };
        drop(gone);
    }

    /// Every inode that is dirty or being written at this moment.
    pub fn snapshot(&self) -> Vec<Arc<I>> {
        let lists = self.lists.lock();
        let dirty = lists.dirty.iter().map(|listed| &listed.inode);
        let retry = lists.more_io.iter().map(|(_, listed)| &listed.inode);
        lists.io.iter().chain(dirty).chain(retry).map(Arc::clone).collect()
    }
}
