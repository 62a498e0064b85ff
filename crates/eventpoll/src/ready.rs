//! The ready bitmap: which items may be ready. Producers (threads that signal) and consumers
//! (threads that wait) share it.
//!
//! It stands where Linux's `struct eventpoll` has `rdllist` and `ovflist`, and their lock.
//!
//! # State
//! Each item has a *slot*, a number, and with it two bits in a [`ReadyWord`]: *ready* and
//! *scanning*. `summary` has one bit for each of 63 groups of words, *there is news*, and one more:
//! *the list is not empty*. Slots are dealt out over the groups one by one. The first 63 have a
//! word of their own, so that sources which are signalled at the same time do not meet in one cache
//! line.
//!
//! | bit | set by | cleared by |
//! |---|---|---|
//! | ready | a producer; the scan, for an item that stays | the scan, when it takes the item out to poll its source |
//! | scanning | the scan, when it puts the item into its list | the scan, together with *ready* |
//! | group | a producer whose item is not in the list | the scan, before it looks for what is new there |
//! | `SCAN_NONEMPTY` | the scan, as it clears groups | the scan, when its list is empty |
//!
//! An item of the scan's list is in no group. So a consumer reads one word as long as there is no
//! news, and a producer whose item is listed writes nothing.
//!
//! A bit that a producer sets means: a scan should look here. A bit too many costs one check. No
//! step needs to undo another, and setting a bit twice is setting it once. *Each producer makes all
//! steps itself and does not rely on another producer to finish*; it relies on the scan's steps
//! alone, for items that the scan has. A thread that is preempted between its steps therefore holds
//! up no other: neither the scan, which never waits for it, nor another producer of the same source
//! that finds the bit set.
//!
//! # Invariants
//! 1. An item is in the scan's list, once, exactly if its bit *scanning* is set; except for the
//!    moment in which its source is polled.
//! 2. While the scan's list is not empty, `SCAN_NONEMPTY` is set. The exchange that clears the
//!    groups sets it: there is no moment at which a queued item shows in neither.
//! 3. After `queue` has returned, the group's bit is set, or a scan has the item or had it since,
//!    and polls its source afterwards.
//!
//! # Orderings
//! * P3 producer: change the source, full barrier, load (or set) the item's bits. Scan: clear both,
//!   full barrier, poll the source. Either the scan sees the change, or the bit is set after it was
//!   cleared.
//! * P4 producer: set the bit, full barrier, load (or set) `summary`. Scan: clear in `summary`,
//!   full barrier, load the bits. Either the scan sees the bit, or `summary` is set after it was
//!   cleared.
//! * P5 a producer that finds the bit set by another one, which has not come to `summary` yet: load
//!   the bit, barrier between loads, load `summary`. It sees at least what the other producer would
//!   have seen, and makes that one's second step. If the scan has the item there is no second step.
//!
//! # Why not a list
//! * With two steps (exchange the tail, then link the predecessor) a thread that stops between them
//!   hides all items that come after.
//! * A stack of items, linked before one exchange publishes them, needs a mark that the item is
//!   queued, which is set before. A thread that stops between the mark and the exchange hides every
//!   further signal *of the same source*. And an item that is removed while it is listed must be
//!   kept, or taken out of the middle.
//! * A list keeps the order of arrival of different sources within one batch; this does not.

#![cfg_attr(loom, allow(clippy::modulo_one, reason = "one group is what models have"))]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;

use crate::barrier::{after_rmw, between_loads};

#[cfg(not(loom))]
const GROUPS: usize = 63;
#[cfg(not(loom))]
const BITS: usize = 32;
// In models two items share a group, but not their word.
#[cfg(loom)]
const GROUPS: usize = 1;
#[cfg(loom)]
const BITS: usize = 1;
/// In `summary`, beside the groups: the scan's list is not empty.
const SCAN_NONEMPTY: u64 = 1 << GROUPS;

/// The scan's list: items that are not yet delivered, by slot, the next one first.
pub type Pending = VecDeque<usize>;

/// A structure that knows which items may be ready. The lab has others.
///
/// All methods but `hold`, `queue` and `is_empty` are called under the scan's lock.
pub trait ReadyList: Debug + Default + Send + Sync + 'static {
    /// The part of an item that belongs to it.
    type Link: Debug + Send + Sync + 'static;
    /// The part that the scan alone uses.
    type ScanState: Debug + Default + Send;
    /// Held while an item is queued.
    type Guard<'a>;

    /// The link of the item in `slot`.
    fn new_link(&self, taken: &mut Self::ScanState, slot: usize) -> Self::Link;

    /// Begins a callback.
    fn hold(&self) -> Self::Guard<'_>;

    /// Queues an item, unless it is queued. There was a full barrier since its source changed (P3),
    /// and there is one between this and the caller's next load.
    fn queue(&self, hold: &mut Self::Guard<'_>, place: &Self::Link);

    /// Whether nothing is queued, and the scan's list is empty. May return `false` when there is
    /// nothing, but not for ever.
    fn is_empty(&self) -> bool;

    /// Whether `is_empty` never returns `true` while something is ready, even while a scan moves
    /// it. Otherwise a caller that does not want to wait has to check under the scan's lock.
    const IS_EXACT: bool;

    /// The bit of an item in the default list: its signals have a fast path.
    fn bit(_place: &Self::Link) -> Option<&Bit> {
        None
    }

    /// Begins a scan: queued items go to the end of `pending`.
    fn start(&self, taken: &mut Self::ScanState, pending: &mut Pending);

    /// The item leaves the list: from here on it is queued again. A full barrier follows (P3).
    fn unqueue(&self, taken: &mut Self::ScanState, place: &Self::Link);

    /// An item that was unqueued in this scan stays after all. `false` if a producer has queued it
    /// meanwhile.
    fn requeue(&self, taken: &mut Self::ScanState, place: &Self::Link) -> bool;

    /// The item is no more. Returns whether its slot will still come by in a scan; the caller keeps
    /// it until then.
    fn remove(&self, taken: &mut Self::ScanState, place: &Self::Link) -> bool;

    /// A slot came by that has no item: its producer was stopped until the item was gone.
    fn pass(&self, taken: &mut Self::ScanState, slot: usize);

    /// Ends a scan: items that were queued meanwhile go to the end of `pending`. With `stays`, more
    /// will follow there.
    fn end(&self, taken: &mut Self::ScanState, pending: &mut Pending, stays: bool);
}

/// The bits of up to 32 items: *ready* in the lower half, *scanning* in the upper half.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReadyWord {
    bits: AtomicU64,
}

/// The default.
#[derive(Debug, Default)]
pub struct ReadyBitmap {
    summary: AtomicU64,
}

/// An item's bit.
#[derive(Debug, Clone)]
pub struct Bit {
    word: Arc<ReadyWord>,
    ready: u64,
    group: u64,
}

/// The words, by number.
#[derive(Debug, Default)]
pub struct ReadyWords(Vec<Arc<ReadyWord>>);

/// The word of a slot and its bit there: slots are dealt out over the groups first.
fn word_of(slot: usize) -> (usize, usize) {
    let (group, turn) = (slot % GROUPS, slot / GROUPS);
    (turn / BITS * GROUPS + group, turn % BITS)
}

fn slot_of(word: usize, bit: usize) -> usize {
    let (group, turn) = (word % GROUPS, word / GROUPS * BITS + bit);
    turn * GROUPS + group
}

impl ReadyList for ReadyBitmap {
    type Link = Bit;
    type ScanState = ReadyWords;
    type Guard<'a> = ();
    const IS_EXACT: bool = true;

    fn new_link(&self, words: &mut ReadyWords, slot: usize) -> Bit {
        let (index, bit) = word_of(slot);
        while words.0.len() <= index {
            words.0.push(Arc::default());
        }
        Bit { word: Arc::clone(&words.0[index]), ready: 1 << bit, group: 1 << (index % GROUPS) }
    }

    #[inline]
    fn hold(&self) {}

    #[inline]
    fn queue(&self, (): &mut (), place: &Bit) {
        let word = match self.check_queued(place) {
            Ok(()) => return,
            Err(word) => word,
        };
        if word & place.ready == 0 {
            // ORDERING: AcqRel, P3 and P4 with the barrier.
            place.word.bits.fetch_or(place.ready, Ordering::AcqRel);
            if !is_on("eventpoll-no-queue-fence") {
                after_rmw();
            }
            // ORDERING: Acquire, P4.
            if self.summary.load(Ordering::Acquire) & place.group != 0 {
                // Another producer's bit: what that one would see of the sleepers, this one sees as
                // well.
                return between_loads();
            }
        }
        // ORDERING: AcqRel, P4, and for the read of the sleepers that follows (`waiters`, P1).
        self.summary.fetch_or(place.group, Ordering::AcqRel);
        if !is_on("eventpoll-no-waker-fence") {
            after_rmw();
        }
    }

    fn bit(place: &Bit) -> Option<&Bit> {
        Some(place)
    }

    fn is_empty(&self) -> bool {
        // ORDERING: Acquire, `waiters` P1 with the caller's barrier.
        self.summary.load(Ordering::Acquire) == 0
    }

    fn start(&self, words: &mut ReadyWords, pending: &mut Pending) {
        // ORDERING: Relaxed, the exchange decides.
        if self.summary.load(Ordering::Relaxed) & !SCAN_NONEMPTY == 0 {
            return;
        }
        // From here on the list shows as not empty: there is no moment at which a queued item is in
        // neither.
        let listed = if is_on("eventpoll-list-late") { 0 } else { SCAN_NONEMPTY };
        // ORDERING: AcqRel, P4 with the barrier.
        let news = self.summary.swap(listed, Ordering::AcqRel) & !SCAN_NONEMPTY;
        if !is_on("eventpoll-no-root-fence") {
            after_rmw();
        }
        ones(news).for_each(|group| words.collect(group, pending));
        if is_on("eventpoll-list-late") {
            self.summary.fetch_or(SCAN_NONEMPTY, Ordering::AcqRel);
        }
    }

    fn unqueue(&self, _words: &mut ReadyWords, place: &Bit) {
        // ORDERING: AcqRel, P3 with the barrier.
        place.word.bits.fetch_and(!(place.ready | place.scanning()), Ordering::AcqRel);
        if !is_on("eventpoll-no-unqueue-fence") {
            after_rmw();
        }
    }

    fn requeue(&self, _words: &mut ReadyWords, place: &Bit) -> bool {
        // A producer that has queued it meanwhile may have been stopped before its second step: the
        // item stays because of this step, not because of that producer's.
        // ORDERING: AcqRel, as in `queue`.
        let before = place.word.bits.fetch_or(place.ready | place.scanning(), Ordering::AcqRel);
        // As if the producer that queued it meanwhile made all its steps.
        !(before & place.ready != 0 && is_on("eventpoll-requeue-trusts"))
    }

    fn remove(&self, words: &mut ReadyWords, place: &Bit) -> bool {
        // ORDERING: Relaxed, written under the lock that the caller holds.
        let is_pending = place.word.bits.load(Ordering::Relaxed) & place.scanning() != 0;
        if !is_pending {
            self.unqueue(words, place);
        }
        is_pending
    }

    fn pass(&self, words: &mut ReadyWords, slot: usize) {
        if is_on("eventpoll-pass-marked") {
            return;
        }
        let (index, bit) = word_of(slot);
        // ORDERING: AcqRel; the next item of this place has its bits cleared before any thread sees
        // it.
        words.0[index].bits.fetch_and(!(1 << bit | 1 << bit << BITS), Ordering::AcqRel);
    }

    fn end(&self, words: &mut ReadyWords, pending: &mut Pending, stays: bool) {
        self.start(words, pending);
        // ORDERING: Relaxed: the bit is written under the lock that the caller holds.
        if pending.is_empty() && !stays && self.summary.load(Ordering::Relaxed) & SCAN_NONEMPTY != 0 {
            // ORDERING: AcqRel; a producer that queues anything sets a bit of its own.
            self.summary.fetch_and(!SCAN_NONEMPTY, Ordering::AcqRel);
        }
    }
}

impl ReadyBitmap {
    /// Whether a signalled item is queued already, with all the steps that this takes; otherwise
    /// the contents of its word. As for `queue`, there was a full barrier before, and the caller's
    /// next loads come after the loads here.
    #[inline]
    pub(crate) fn check_queued(&self, place: &Bit) -> Result<(), u64> {
        // ORDERING: Acquire, P3 with the caller's barrier, and P5.
        let word = place.word.bits.load(Ordering::Acquire);
        if word & place.scanning() == 0 {
            if word & place.ready == 0 {
                return Err(word);
            }
            if is_on("eventpoll-link-in-two-steps") {
                // As a list would: the thread that set the bit is trusted to do the rest.
                return Ok(());
            }
            if !is_on("eventpoll-no-load-fence") {
                between_loads();
            }
            // ORDERING: Acquire, P5.
            if self.summary.load(Ordering::Acquire) & place.group == 0 {
                return Err(word);
            }
        }
        // In the scan's list, or in a group that another producer has set: what that one would see
        // of the sleepers, this one sees as well.
        between_loads();
        Ok(())
    }
}

impl Bit {
    /// In the upper half.
    fn scanning(&self) -> u64 {
        self.ready << BITS
    }
}

impl ReadyWords {
    /// Puts the new items of a group into `pending`.
    fn collect(&self, group: usize, pending: &mut Pending) {
        for index in (group..self.0.len()).step_by(GROUPS) {
            let word = &self.0[index];
            // ORDERING: Acquire, P4.
            let bits = word.bits.load(Ordering::Acquire);
            let new = bits & !(bits >> BITS) & ((1 << BITS) - 1);
            if new != 0 {
                // ORDERING: AcqRel: a producer that finds the item listed sees what the producer
                // did that queued it.
                word.bits.fetch_or(new << BITS, Ordering::AcqRel);
                pending.extend(ones(new).map(|bit| slot_of(index, bit)));
            }
        }
    }
}

/// The numbers of the bits that are set, the lowest first.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let lowest = word.trailing_zeros() as usize;
            word &= word - 1;
            lowest
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{ones, slot_of, word_of};

    #[test]
    fn slots_are_dealt_out_over_leaves() {
        for slot in 0..20_000 {
            let (word, bit) = word_of(slot);
            assert_eq!(slot_of(word, bit), slot);
        }
        assert_eq!(word_of(62), (62, 0));
        assert_eq!(word_of(63), (0, 1));
        assert_eq!(word_of(63 * 32), (63, 0));
    }

    #[test]
    fn bits_are_found_from_the_lowest() {
        assert_eq!(ones(0b1001_0100).collect::<Vec<_>>(), [2, 4, 7]);
        assert_eq!(ones(1 << 63).collect::<Vec<_>>(), [63]);
        assert_eq!(ones(0).count(), 0);
    }
}
