//! The part of each inode that belongs to write-back.
//!
//! # State
//! | field | is | protected by |
//! |---|---|---|
//! | `wb` | `i_wb`: the index of the owning wb, or [`NONE`] before the first dirtying | written under the lists' lock of both wbs and `state`; read under any of these, or in a read section that found `switching` unset |
//! | `switching` | `I_WB_SWITCH`: on its way to another wb | set under `state`; cleared by the worker of the switch |
//! | `state` | on which list the inode is, the history of its writers | its own lock, `i_lock` |
//! | `pages` | nothing: orders page accounting against a transfer | its own lock, a leaf |
//! | `dirty`, `writeback` | the inode's bytes as its wb counts them | callers of `Bdi::account`, one at a time; read by the transfer under `pages` |
//!
//! # Lock order
//! A wb's lists (two: lower address first), then `state`, then `pages`.
//!
//! # Orderings
//! * P1 page accounting: in a read section, load `switching` with acquire; if unset, charge the wb
//!   that `wb` names, without a lock. Worker: after `switching` was set, wait for a grace period,
//!   then move the counts. An accounting that found it unset is over before they move; one that
//!   finds it set takes `pages`.
//! * P2 worker: store `wb`, clear `switching` with release. Accounting that finds it unset again
//!   finds the new wb.

use std::fmt;
use std::sync::atomic::AtomicU64 as StdAtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sync::mutant::is_on;
use sync::{Mutex, MutexGuard};

use crate::switch::foreign::{Foreign, Round};

/// No wb.
pub(crate) const NONE: u32 = u32::MAX;

/// Where an inode stands on a list that is ordered by time; the second number keeps the order of
/// equal times.
pub(crate) type Key = (Duration, u64);

/// Something with dirty data.
pub trait Inode: Send + Sync + fmt::Debug + Sized + 'static {
    /// Writes the data that was dirty when the call began; returns what is left.
    ///
    /// Only one flusher calls it at a time for one inode; others (`fsync`) may write it meanwhile.
    fn write_back(self: &Arc<Self>) -> Outcome;

    /// Another cgroup is about to become its owner. Called before that begins, and with no lock
    /// held; it may come to nothing.
    fn on_owner_change(&self) {}

    /// The part of the inode that is write-back's.
    fn inode_wb(&self) -> &InodeWb<Self>;
}

/// The state after a write-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing: the inode is clean, and will be listed again when it becomes dirty.
    Clean,
    /// It was dirtied again meanwhile.
    Dirty,
    /// A limit is in the way; go on as soon as it allows.
    Throttled,
    /// It could not be written; try again later.
    Failed,
}

/// The backing device, as its inodes see it.
pub(crate) trait Device<I: Inode>: Send + Sync {
    /// Takes off an inode that goes.
    fn detach(&self, inode_wb: &InodeWb<I>);
}

/// The part of each inode that belongs to write-back. See the module.
pub struct InodeWb<I: Inode> {
    pub(crate) number: u64,
    device: OnceLock<Weak<dyn Device<I>>>,
    pub(crate) wb: AtomicU32,
    pub(crate) switching: AtomicBool,
    state: Mutex<InodeWbState>,
    pub(crate) pages: Mutex<()>,
    pub(crate) dirty: AtomicU64,
    pub(crate) writeback: AtomicU64,
}

/// The fields that `i_lock` protects.
#[derive(Debug, Default)]
pub(crate) struct InodeWbState {
    pub(crate) on_list: OnList,
    /// Dirtied while it was on `io`, at that time.
    pub(crate) redirtied: Option<Duration>,
    /// Taken off for good (`I_FREEING`).
    pub(crate) freeing: bool,
    /// The index of the wb that it is on its way to, if it is.
    pub(crate) switch_target: u32,
    pub(crate) foreign: Foreign,
    pub(crate) round: Option<Round>,
}

/// On which of its wb's lists an inode is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum OnList {
    #[default]
    Off,
    Attached,
    Dirty(Key),
    Io,
    Retry(Key),
}

impl<I: Inode> Default for InodeWb<I> {
    fn default() -> Self {
        static NEXT: StdAtomicU64 = StdAtomicU64::new(1);
        Self {
            // ORDERING: Relaxed, only a number of its own for each.
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            device: OnceLock::new(),
            wb: AtomicU32::new(NONE),
            switching: AtomicBool::new(false),
            state: Mutex::default(),
            pages: Mutex::default(),
            dirty: AtomicU64::new(0),
            writeback: AtomicU64::new(0),
        }
    }
}

impl<I: Inode> InodeWb<I> {
    pub(crate) fn state(&self) -> MutexGuard<'_, InodeWbState> {
        self.state.lock()
    }

    /// The index of the owning wb, for a caller that holds one of the locks or checks again under
    /// one.
    pub(crate) fn index(&self) -> u32 {
        let order = if is_on("account-look-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        // ORDERING: Acquire, P2 for a thread without a lock: it also sees the wb that made the
        // index valid.
        self.wb.load(order)
    }

    /// Whether the inode is on its way to another wb.
    pub fn is_switching(&self) -> bool {
        let order = if is_on("account-look-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        // ORDERING: Acquire, P2.
        self.switching.load(order)
    }

    /// The wb that it is on its way to.
    pub(crate) fn switch_target(&self) -> Option<u32> {
        let state = self.state();
        self.is_switching().then_some(state.switch_target)
    }

    /// Dirty bytes, and those under writeback, as the owner's wb counts them.
    pub fn bytes(&self) -> (u64, u64) {
        // ORDERING: Relaxed, figures.
        (self.dirty.load(Ordering::Relaxed), self.writeback.load(Ordering::Relaxed))
    }

    pub(crate) fn attach_to(&self, device: Weak<dyn Device<I>>) {
        let _again = self.device.set(device);
    }
}

impl<I: Inode> Drop for InodeWb<I> {
    fn drop(&mut self) {
        // No other thread has the inode: a switch would hold it, and so would the lists of dirty
        // ones.
        if let Some(device) = self.device.get().and_then(Weak::upgrade) {
            device.detach(self);
        }
    }
}

impl<I: Inode> fmt::Debug for InodeWb<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeWb")
            .field("number", &self.number)
            .field("wb", &self.wb)
            .field("switching", &self.switching)
            .finish_non_exhaustive()
    }
}
