//! Bounds the threads that requests for a volume hold while its store does not answer.
//!
//! Purpose: the threads and the entries that bring requests are shared by all volumes of a
//! mountpoint. Of the capacity (`SessionOptions::threads_max` requests, 256 at least) the requests
//! for volumes whose stores do not answer take at most:
//!
//! | which | how many |
//! |---|---|
//! | the first for each such volume | one each, of all together half of the capacity |
//! | further ones | of all together a quarter, each volume its equal part, an eighth at most |
//!
//! So the request of a client that uses such a volume alone waits, however many others are stalled
//! beside it. Requests in hand beyond that when the stall is noticed are answered EIO, while their
//! threads go on waiting (`InFlight::evict_excess`); later ones are refused
//! (`InFlight::admit_stalled`). The module [`queue`](super::queue) limits what a volume may hold
//! before that. Requests for a volume that is given up are all answered EIO (`InFlight::abort`).
//!
//! No process waits for the answer to a RELEASE, nor could it be refused: the file is closed. But
//! the kernel bounds how many it has under way for the whole mountpoint (`max_background`),
//! together with reading ahead. So those in hand when the stall is noticed are answered, while
//! their threads go on, uncounted. Later ones do not call the store: the volume closes these files
//! by itself (its module `deferred_close`). FORGET has no answer; its thread is uncounted, too.
//!
//! The thread counts: a request whose caller was killed counts until the store's call has returned.
//! It ceases to count before the answer is written (`RequestSlot::claim`): the client's next
//! request may be read before the writer goes on.
//!
//! Over io_uring a request whose data stays in the entry cannot be answered early, nor can one
//! whose late success would matter (see [`AbortPolicy`](crate::in_flight::AbortPolicy)) before its
//! volume is given up: such requests hold their threads.
//!
//! # Orderings
//! P3: a thread that gives a volume up marks it, then scans the slots; a thread that begins a
//! request puts it into its slot's word, then reads the mark (`InFlight::begin_abortable`).
//! All of it is SeqCst: one of them sees the other.
//!
//! P4: a thread clears `RequestSlot::volume` before it writes the answer; another thread counts for
//! a request that was read after that. The kernel is between the two: what it hands to a reader
//! comes after what was written to it.

use sync::atomic::{AtomicUsize, Ordering};
use sync::mutant::is_on;

use super::capacity::AT_LEAST;
use crate::in_flight::slot::{ActiveRequest, STALLED, TAG_SHIFT};
use crate::tree::wire::NodeTag;

/// First requests for stores that do not answer may take the capacity divided by this.
const FIRSTS_ONE_OF: usize = 2;
/// And by further ones.
const FURTHER_ONE_OF: usize = 4;

/// How many requests for volumes whose stores do not answer may wait.
#[derive(Debug)]
pub(crate) struct StallQuota {
    /// How many first requests may wait, of all such volumes.
    firsts: AtomicUsize,
    /// How many may wait beyond the first, for each of them.
    further: AtomicUsize,
}

impl Default for StallQuota {
    fn default() -> Self {
        Self { firsts: AtomicUsize::new(firsts(0)), further: AtomicUsize::new(further(0, 0)) }
    }
}

fn firsts(capacity: usize) -> usize {
    capacity.max(AT_LEAST) / FIRSTS_ONE_OF
}

fn further(stalled: usize, capacity: usize) -> usize {
    capacity.max(AT_LEAST) / FURTHER_ONE_OF / stalled.max(2)
}

impl StallQuota {
    /// There are `stalled` volumes whose stores do not answer, and the mountpoint has room for
    /// `capacity` requests.
    pub(crate) fn set(&self, stalled: usize, capacity: usize) {
        // ORDERING: Relaxed here and below, bounds that need not be exact at any moment.
        self.firsts.store(firsts(capacity), Ordering::Relaxed);
        self.further.store(further(stalled, capacity), Ordering::Relaxed);
    }

    /// How many requests for a volume may wait for its store, of whose requests `active` are known.
    pub(super) fn quota_of(&self, volume: NodeTag, active: &[ActiveRequest]) -> usize {
        let further = self.further.load(Ordering::Relaxed);
        if is_on("share-counts-first") {
            return further;
        }
        let others = active.iter().filter(|one| one.is_counted() && one.word & STALLED != 0);
        let mut others: Vec<u64> =
            others.map(|one| one.word >> TAG_SHIFT).filter(|tag| *tag != volume.number()).collect();
        others.sort_unstable();
        others.dedup();
        if others.len() < self.firsts.load(Ordering::Relaxed) { 1 + further } else { 0 }
    }
}
