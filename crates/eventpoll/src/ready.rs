//! Which items may be ready: what those who signal share with those who wait.
//!
//! # State
//! Each item has a *slot*, a number, and with it a bit in a [`Leaf`]. `root` has one bit for each of 64 groups of
//! leaves. Slots are dealt out over the leaves one by one: the first 64 have a leaf of their own, so that sources which
//! are signalled at the same time do not meet in one cache line.
//!
//! | word | who sets bits | who clears bits |
//! |---|---|---|
//! | `Leaf::bits` | who signals | the scan, when it takes the item out to ask its source |
//! | `Bits::root` | who signals | the scan, when nothing is left in the group |
//! | `Taken` | the scan: bits that it has put into its list | the scan; only under the scan's lock |
//!
//! A bit that is set means: somebody should ask this source. A bit too many costs one question. So no step needs to
//! undo another, and setting bits twice is setting them once: *whoever signals does all steps itself and relies on
//! nobody else's being finished*. That is why a thread that is preempted between its steps holds up nobody: not the
//! scan, which never waits for it, and not another thread that signals the same source and finds the bit set.
//!
//! # Invariants
//! 1. `taken ⊆ bits` of each leaf; an item in the scan's list has its bit in `taken`, and there once.
//! 2. A leaf with `taken` not empty has its group's bit set in `root`.
//! 3. After `queue` has returned: the group's bit is set, or a scan has taken the item out since, and asks its source
//!    afterwards.
//!
//! # Orderings
//! * P3 signal: change the source, full barrier, load (or set) the bit. Scan: clear the bit, full barrier, ask the
//!   source. Either the scan sees the change, or the bit is set after it was cleared.
//! * P4 signal: set the bit, full barrier, load (or set) `root`. Scan: clear in `root`, full barrier, load the bits.
//!   Either the scan sees the bit, or `root` is set after it was cleared.
//! * P5 one who finds the bit set by another that has not come to `root` yet: load the bit, barrier between loads, load
//!   `root`. It sees at least what the one who set the bit would have seen; so it does that one's second step.
//!
//! # Why not a list
//! * Two steps (exchange the tail, then link the predecessor): who stops between them hides all that come after.
//! * A stack of items, linked before they are published by one exchange, needs a mark that the item is queued, set
//!   before: who stops between the mark and the exchange hides every further signal *of the same source*. And a
//!   removed item that is still listed must be kept, or taken out of the middle.
//! * What a list has and this has not: the order of arrival of different sources within one batch.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;

use crate::barrier::{after_rmw, between_loads};

const GROUPS: usize = 64;
const BITS: usize = 64;

/// Items that were taken and not yet delivered, by slot, the next one first.
pub type Pending = VecDeque<usize>;

/// A way of knowing which items may be ready. The lab has others.
///
/// Everything but `hold`, `queue` and `is_empty` is called under the scan's lock.
pub trait ReadyList: Debug + Default + Send + Sync + 'static {
    /// What an item has of it.
    type Place: Debug + Send + Sync;
    /// What the scan alone uses.
    type Taken: Debug + Default + Send;
    /// What is held while an item is queued.
    type Hold<'a>;

    /// A place for the item in `slot`.
    fn place(&self, taken: &mut Self::Taken, slot: usize) -> Self::Place;

    /// Begins a callback.
    fn hold(&self) -> Self::Hold<'_>;

    /// Queues an item, unless it is queued. There was a full barrier since its source changed (P3), and there is
    /// one between this and what the caller loads next.
    fn queue(&self, hold: &mut Self::Hold<'_>, place: &Self::Place);

    /// Whether nothing is queued or taken. May say no when there is nothing, but not for ever.
    fn is_empty(&self) -> bool;

    /// Begins a scan: what was queued goes to the end of `pending`.
    fn start(&self, taken: &mut Self::Taken, pending: &mut Pending);

    /// The item leaves the list: from here on it is queued again. A full barrier follows (P3).
    fn unqueue(&self, taken: &mut Self::Taken, place: &Self::Place);

    /// An item that was unqueued in this scan stays after all. No if somebody has queued it meanwhile.
    fn requeue(&self, taken: &mut Self::Taken, place: &Self::Place) -> bool;

    /// The item is no more. Says whether its slot will still come by in a scan, by whose end it must be kept.
    fn remove(&self, taken: &mut Self::Taken, place: &Self::Place) -> bool;

    /// Ends a scan: what was queued meanwhile goes to the end of `pending`. If the scan found nothing, somebody is about
    /// to sleep.
    fn end(&self, taken: &mut Self::Taken, pending: &mut Pending, found: bool);
}

/// Bits of up to 64 items.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Leaf {
    bits: AtomicU64,
}

/// The default.
#[derive(Debug, Default)]
pub struct Bits {
    root: AtomicU64,
}

/// An item's bit.
#[derive(Debug)]
pub struct Bit {
    leaf: Arc<Leaf>,
    bit: u64,
    group: u64,
    index: usize,
}

/// The leaves, by number, with what of each is in the scan's list.
#[derive(Debug, Default)]
pub struct Taken(Vec<(Arc<Leaf>, u64)>);

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
    type Taken = Taken;
    type Hold<'a> = ();

    fn place(&self, taken: &mut Taken, slot: usize) -> Bit {
        let (index, bit) = leaf_of(slot);
        while taken.0.len() <= index {
            taken.0.push((Arc::default(), 0));
        }
        Bit { leaf: Arc::clone(&taken.0[index].0), bit: 1 << bit, group: 1 << (index % GROUPS), index }
    }

    #[inline]
    fn hold(&self) {}

    #[inline]
    fn queue(&self, (): &mut (), place: &Bit) {
        // ORDERING: Acquire, P3 with the caller's barrier, and P5.
        if place.leaf.bits.load(Ordering::Acquire) & place.bit == 0 {
            // ORDERING: AcqRel, P3 and P4 with the barrier.
            place.leaf.bits.fetch_or(place.bit, Ordering::AcqRel);
            if !is_on("eventpoll-no-queue-fence") {
                after_rmw();
            }
        } else if is_on("eventpoll-link-in-two-steps") {
            // As a list would: whoever set the bit is trusted to do the rest.
            return;
        } else if !is_on("eventpoll-no-load-fence") {
            between_loads();
        }
        // ORDERING: Acquire, P4 and P5.
        if self.root.load(Ordering::Acquire) & place.group == 0 {
            // ORDERING: AcqRel, P4, and for who looks whether somebody sleeps (`waiters`, P1).
            self.root.fetch_or(place.group, Ordering::AcqRel);
            if !is_on("eventpoll-no-waker-fence") {
                after_rmw();
            }
        } else {
            // Another's bit: what it would see of the sleepers we see as well.
            between_loads();
        }
    }

    fn is_empty(&self) -> bool {
        // ORDERING: Acquire, `waiters` P1 with the caller's barrier.
        self.root.load(Ordering::Acquire) == 0
    }

    fn start(&self, taken: &mut Taken, pending: &mut Pending) {
        // ORDERING: Acquire: the bits that were set before are seen.
        for group in ones(self.root.load(Ordering::Acquire)) {
            if taken.collect(group, pending) {
                continue;
            }
            // Nothing in the list and nothing new.
            // ORDERING: AcqRel, P4 with the barrier.
            self.root.fetch_and(!(1 << group), Ordering::AcqRel);
            if !is_on("eventpoll-no-root-fence") {
                after_rmw();
            }
            if taken.collect(group, pending) {
                // ORDERING: AcqRel: invariant 2; for who looks whether there is something.
                self.root.fetch_or(1 << group, Ordering::AcqRel);
            }
        }
    }

    fn unqueue(&self, taken: &mut Taken, place: &Bit) {
        taken.0[place.index].1 &= !place.bit;
        // ORDERING: AcqRel, P3 with the barrier.
        place.leaf.bits.fetch_and(!place.bit, Ordering::AcqRel);
        if !is_on("eventpoll-no-unqueue-fence") {
            after_rmw();
        }
    }

    fn requeue(&self, taken: &mut Taken, place: &Bit) -> bool {
        // Whoever has set it meanwhile may have been stopped before it said so: the item stays by what is done here.
        // ORDERING: AcqRel, as in `queue`. The group's bit is still set, it is only cleared by `start`.
        let was_queued = place.leaf.bits.fetch_or(place.bit, Ordering::AcqRel) & place.bit != 0;
        taken.0[place.index].1 |= place.bit;
        // As if whoever queued it meanwhile saw to the rest.
        !(was_queued && is_on("eventpoll-requeue-trusts"))
    }

    fn remove(&self, taken: &mut Taken, place: &Bit) -> bool {
        let is_pending = taken.0[place.index].1 & place.bit != 0;
        if !is_pending {
            self.unqueue(taken, place);
        }
        is_pending
    }

    fn end(&self, taken: &mut Taken, pending: &mut Pending, found: bool) {
        if !found {
            return self.start(taken, pending);
        }
        // ORDERING: Acquire, as in `start`.
        for group in ones(self.root.load(Ordering::Acquire)) {
            taken.collect(group, pending);
        }
    }
}

impl Taken {
    /// Puts what is new in a group into `pending`; says whether anything of the group is there.
    fn collect(&mut self, group: usize, pending: &mut Pending) -> bool {
        let mut is_any = false;
        for index in (group..self.0.len()).step_by(GROUPS) {
            let (leaf, taken) = &mut self.0[index];
            // ORDERING: Acquire, P4.
            let new = leaf.bits.load(Ordering::Acquire) & !*taken;
            pending.extend(ones(new).map(|bit| slot_of(index, bit)));
            *taken |= new;
            is_any |= *taken != 0;
        }
        is_any
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
        assert_eq!(leaf_of(63), (63, 0));
        assert_eq!(leaf_of(64), (0, 1));
        assert_eq!(leaf_of(4096), (64, 0));
    }

    #[test]
    fn bits_are_found_from_the_lowest() {
        assert_eq!(ones(0b1001_0100).collect::<Vec<_>>(), [2, 4, 7]);
        assert_eq!(ones(1 << 63).collect::<Vec<_>>(), [63]);
        assert_eq!(ones(0).count(), 0);
    }
}
