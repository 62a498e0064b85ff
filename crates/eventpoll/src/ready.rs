//! Which items may be ready: what those who signal share with those who wait.
//!
//! # State
//! Each item has a *slot*, a number, and with it two bits in a [`Leaf`]: *queued* and *taken*.
//! `root` has one bit for each of 63 groups of leaves, *there is news*, and one more: *the list is
//! not empty*. Slots are dealt out over the groups one by one: the first 63 have a leaf of their
//! own, so that sources which are signalled at the same time do not meet in one cache line.
//!
//! | bit | who sets it | who clears it |
//! |---|---|---|
//! | queued | who signals; the scan, of an item that stays | the scan, when it takes the item out to ask its source |
//! | taken | the scan, when it puts the item into its list | the scan, together with `queued` |
//! | group | who signals an item that is not taken | the scan, before it looks for what is new there |
//! | `LISTED` | the scan, as it clears groups | the scan, when its list is empty |
//!
//! What is in the scan's list is in no group: who waits looks at one word as long as nobody has
//! news, and who signals what is listed anyway writes nothing.
//!
//! A bit of those who signal means: somebody should look here. A bit too many costs one look. So no
//! step needs to undo another, and setting bits twice is setting them once: *whoever signals does
//! all steps itself and relies on nobody else's being finished*, but the scan's, which has the
//! item. That is why a thread that is preempted between its steps holds up nobody: not the scan,
//! which never waits for it, and not another thread that signals the same source and finds the bit
//! set.
//!
//! # Invariants
//! 1. An item is in the scan's list, once, exactly if its bit `taken` is set; but for the moment in
//!    which it is asked.
//! 2. While the scan's list is not empty, `LISTED` is set. It is set by the exchange that clears
//!    the groups: there is no moment at which what was queued shows in neither.
//! 3. After `queue` has returned: the group's bit is set, or a scan has the item or had it since,
//!    and asks its source afterwards.
//!
//! # Orderings
//! * P3 signal: change the source, full barrier, load (or set) the item's bits. Scan: clear both,
//!   full barrier, ask the source. Either the scan sees the change, or the bit is set after it was
//!   cleared.
//! * P4 signal: set the bit, full barrier, load (or set) `root`. Scan: clear in `root`, full
//!   barrier, load the bits. Either the scan sees the bit, or `root` is set after it was cleared.
//! * P5 one who finds the bit set by another that has not come to `root` yet: load the bit, barrier
//!   between loads, load `root`. It sees at least what the one who set the bit would have seen; so
//!   it does that one's second step. If the item is taken there is no second step.
//!
//! # Why not a list
//! * Two steps (exchange the tail, then link the predecessor): who stops between them hides all
//!   that come after.
//! * A stack of items, linked before they are published by one exchange, needs a mark that the item
//!   is queued, set before: who stops between the mark and the exchange hides every further signal
//!   *of the same source*. And a removed item that is still listed must be kept, or taken out of
//!   the middle.
//! * What a list has and this has not: the order of arrival of different sources within one batch.

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
// In models two items have a group in common, and not their leaf.
#[cfg(loom)]
const GROUPS: usize = 1;
#[cfg(loom)]
const BITS: usize = 1;
/// In `root`, beside the groups: the scan's list is not empty.
const LISTED: u64 = 1 << GROUPS;

/// Items that were taken and not yet delivered, by slot, the next one first.
pub type Pending = VecDeque<usize>;

/// A way of knowing which items may be ready. The lab has others.
///
/// Everything but `hold`, `queue` and `is_empty` is called under the scan's lock.
pub trait ReadyList: Debug + Default + Send + Sync + 'static {
    /// What an item has of it.
    type Place: Debug + Send + Sync + 'static;
    /// What the scan alone uses.
    type Taken: Debug + Default + Send;
    /// What is held while an item is queued.
    type Hold<'a>;

    /// A place for the item in `slot`.
    fn place(&self, taken: &mut Self::Taken, slot: usize) -> Self::Place;

    /// Begins a callback.
    fn hold(&self) -> Self::Hold<'_>;

    /// Queues an item, unless it is queued. There was a full barrier since its source changed (P3),
    /// and there is one between this and what the caller loads next.
    fn queue(&self, hold: &mut Self::Hold<'_>, place: &Self::Place);

    /// Whether nothing is queued or taken. May say no when there is nothing, but not for ever.
    fn is_empty(&self) -> bool;

    /// Whether `is_empty` never says yes while something is ready, also while a scan moves it.
    /// Otherwise who does not want to wait has to look under the scan's lock.
    const IS_EXACT: bool;

    /// The bit of an item in the default list: its signals have a fast path.
    fn bit(_place: &Self::Place) -> Option<&Bit> {
        None
    }

    /// Begins a scan: what was queued goes to the end of `pending`.
    fn start(&self, taken: &mut Self::Taken, pending: &mut Pending);

    /// The item leaves the list: from here on it is queued again. A full barrier follows (P3).
    fn unqueue(&self, taken: &mut Self::Taken, place: &Self::Place);

    /// An item that was unqueued in this scan stays after all. No if somebody has queued it
    /// meanwhile.
    fn requeue(&self, taken: &mut Self::Taken, place: &Self::Place) -> bool;

    /// The item is no more. Says whether its slot will still come by in a scan, by whose end it
    /// must be kept.
    fn remove(&self, taken: &mut Self::Taken, place: &Self::Place) -> bool;

    /// A slot came by that has no item: who signalled was stopped until the item was gone.
    fn pass(&self, taken: &mut Self::Taken, slot: usize);

    /// Ends a scan: what was queued meanwhile goes to the end of `pending`. With `stays`, more will
    /// follow there.
    fn end(&self, taken: &mut Self::Taken, pending: &mut Pending, stays: bool);
}

/// What up to 32 items are, in one word: the lower half says who is queued, the upper half who of
/// them was taken.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Leaf {
    word: AtomicU64,
}

/// The default.
#[derive(Debug, Default)]
pub struct Bits {
    root: AtomicU64,
}

/// An item's bit.
#[derive(Debug, Clone)]
pub struct Bit {
    leaf: Arc<Leaf>,
    queued: u64,
    group: u64,
}

/// The leaves, by number.
#[derive(Debug, Default)]
pub struct Leaves(Vec<Arc<Leaf>>);

/// The leaf of a slot and its bit there: slots are dealt out over the groups first.
fn leaf_of(slot: usize) -> (usize, usize) {
    let (group, turn) = (slot % GROUPS, slot / GROUPS);
    (turn / BITS * GROUPS + group, turn % BITS)
}

fn slot_of(leaf: usize, bit: usize) -> usize {
    let (group, turn) = (leaf % GROUPS, leaf / GROUPS * BITS + bit);
    turn * GROUPS + group
}

impl ReadyList for Bits {
    type Place = Bit;
    type Taken = Leaves;
    type Hold<'a> = ();
    const IS_EXACT: bool = true;

    fn place(&self, leaves: &mut Leaves, slot: usize) -> Bit {
        let (index, bit) = leaf_of(slot);
        while leaves.0.len() <= index {
            leaves.0.push(Arc::default());
        }
        Bit { leaf: Arc::clone(&leaves.0[index]), queued: 1 << bit, group: 1 << (index % GROUPS) }
    }

    #[inline]
    fn hold(&self) {}

    #[inline]
    fn queue(&self, (): &mut (), place: &Bit) {
        let word = match self.check_queued(place) {
            Ok(()) => return,
            Err(word) => word,
        };
        if word & place.queued == 0 {
            // ORDERING: AcqRel, P3 and P4 with the barrier.
            place.leaf.word.fetch_or(place.queued, Ordering::AcqRel);
            if !is_on("eventpoll-no-queue-fence") {
                after_rmw();
            }
            // ORDERING: Acquire, P4.
            if self.root.load(Ordering::Acquire) & place.group != 0 {
                // Another's bit: what it would see of the sleepers we see as well.
                return between_loads();
            }
        }
        // ORDERING: AcqRel, P4, and for who looks whether somebody sleeps (`waiters`, P1).
        self.root.fetch_or(place.group, Ordering::AcqRel);
        if !is_on("eventpoll-no-waker-fence") {
            after_rmw();
        }
    }

    fn bit(place: &Bit) -> Option<&Bit> {
        Some(place)
    }

    fn is_empty(&self) -> bool {
        // ORDERING: Acquire, `waiters` P1 with the caller's barrier.
        self.root.load(Ordering::Acquire) == 0
    }

    fn start(&self, leaves: &mut Leaves, pending: &mut Pending) {
        // ORDERING: Relaxed, the exchange decides.
        if self.root.load(Ordering::Relaxed) & !LISTED == 0 {
            return;
        }
        // From here on the list is not empty, for who looks: there is no moment at which what was
        // queued is in neither.
        let listed = if is_on("eventpoll-list-late") { 0 } else { LISTED };
        // ORDERING: AcqRel, P4 with the barrier.
        let news = self.root.swap(listed, Ordering::AcqRel) & !LISTED;
        if !is_on("eventpoll-no-root-fence") {
            after_rmw();
        }
        ones(news).for_each(|group| leaves.collect(group, pending));
        if is_on("eventpoll-list-late") {
            self.root.fetch_or(LISTED, Ordering::AcqRel);
        }
    }

    fn unqueue(&self, _leaves: &mut Leaves, place: &Bit) {
        // ORDERING: AcqRel, P3 with the barrier.
        place.leaf.word.fetch_and(!(place.queued | place.taken()), Ordering::AcqRel);
        if !is_on("eventpoll-no-unqueue-fence") {
            after_rmw();
        }
    }

    fn requeue(&self, _leaves: &mut Leaves, place: &Bit) -> bool {
        // Whoever has queued it meanwhile may have been stopped before it said so: the item stays
        // by what is done here.
        // ORDERING: AcqRel, as in `queue`.
        let before = place.leaf.word.fetch_or(place.queued | place.taken(), Ordering::AcqRel);
        // As if whoever queued it meanwhile saw to the rest.
        !(before & place.queued != 0 && is_on("eventpoll-requeue-trusts"))
    }

    fn remove(&self, leaves: &mut Leaves, place: &Bit) -> bool {
        // ORDERING: Relaxed, written under the lock that the caller holds.
        let is_pending = place.leaf.word.load(Ordering::Relaxed) & place.taken() != 0;
        if !is_pending {
            self.unqueue(leaves, place);
        }
        is_pending
    }

    fn pass(&self, leaves: &mut Leaves, slot: usize) {
        if is_on("eventpoll-pass-marked") {
            return;
        }
        let (index, bit) = leaf_of(slot);
        // ORDERING: AcqRel; the next item of this place has its bits cleared before it is seen by
        // anybody.
        leaves.0[index].word.fetch_and(!(1 << bit | 1 << bit << BITS), Ordering::AcqRel);
    }

    fn end(&self, leaves: &mut Leaves, pending: &mut Pending, stays: bool) {
        self.start(leaves, pending);
        // ORDERING: Relaxed: the bit is written under the lock that the caller holds.
        if pending.is_empty() && !stays && self.root.load(Ordering::Relaxed) & LISTED != 0 {
            // ORDERING: AcqRel; whoever queues anything sets a bit of its own.
            self.root.fetch_and(!LISTED, Ordering::AcqRel);
        }
    }
}

impl Bits {
    /// Whether an item that is signalled is queued already, by all the steps that it takes; else
    /// what its leaf holds. As for `queue`, there was a full barrier before, and what the caller
    /// loads next comes after what is loaded here.
    #[inline]
    pub(crate) fn check_queued(&self, place: &Bit) -> Result<(), u64> {
        // ORDERING: Acquire, P3 with the caller's barrier, and P5.
        let word = place.leaf.word.load(Ordering::Acquire);
        if word & place.taken() == 0 {
            if word & place.queued == 0 {
                return Err(word);
            }
            if is_on("eventpoll-link-in-two-steps") {
                // As a list would: whoever set the bit is trusted to do the rest.
                return Ok(());
            }
            if !is_on("eventpoll-no-load-fence") {
                between_loads();
            }
            // ORDERING: Acquire, P5.
            if self.root.load(Ordering::Acquire) & place.group == 0 {
                return Err(word);
            }
        }
        // In the scan's list, or in a group that somebody has set: what that one would see of the
        // sleepers we see as well.
        between_loads();
        Ok(())
    }
}

impl Bit {
    /// In the upper half.
    fn taken(&self) -> u64 {
        self.queued << BITS
    }
}

impl Leaves {
    /// Puts what is new in a group into `pending`.
    fn collect(&self, group: usize, pending: &mut Pending) {
        for index in (group..self.0.len()).step_by(GROUPS) {
            let leaf = &self.0[index];
            // ORDERING: Acquire, P4.
            let word = leaf.word.load(Ordering::Acquire);
            let new = word & !(word >> BITS) & ((1 << BITS) - 1);
            if new != 0 {
                // ORDERING: AcqRel: what the one who queued it did is seen by who finds it taken.
                leaf.word.fetch_or(new << BITS, Ordering::AcqRel);
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
    use super::{leaf_of, ones, slot_of};

    #[test]
    fn slots_are_dealt_out_over_leaves() {
        for slot in 0..20_000 {
            let (leaf, bit) = leaf_of(slot);
            assert_eq!(slot_of(leaf, bit), slot);
        }
        assert_eq!(leaf_of(62), (62, 0));
        assert_eq!(leaf_of(63), (0, 1));
        assert_eq!(leaf_of(63 * 32), (63, 0));
    }

    #[test]
    fn bits_are_found_from_the_lowest() {
        assert_eq!(ones(0b1001_0100).collect::<Vec<_>>(), [2, 4, 7]);
        assert_eq!(ones(1 << 63).collect::<Vec<_>>(), [63]);
        assert_eq!(ones(0).count(), 0);
    }
}
