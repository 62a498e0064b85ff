//! What the requests for one attached volume may hold while its store does not answer.
//!
//! Purpose: the threads and the entries that bring requests are shared by all volumes of a mountpoint. Of a volume whose store does not
//! answer, requests wait in an eighth of the places (`SessionOptions::threads_max`, 256 at least) at most, and those of all such volumes together in a quarter.
//! Those in hand beyond that when the stall is noticed are answered EIO, while their threads go on waiting ([`Interrupts::shed`]); later ones are refused
//! ([`Interrupts::is_full`]). Requests for a volume that is given up are all answered EIO ([`Interrupts::give_up`]).
//!
//! Over io_uring a request whose data is lent cannot be answered early, nor can one whose late success would matter
//! (see `dispatch::is_abandonable`) before its volume is given up: such requests hold their threads.
//!
//! # Orderings
//! P3: whoever gives a volume up marks it, then looks at the slots; a request is put into its slot's word, then looks at the mark
//! ([`Interrupts::begin_for`]). All of it is SeqCst: one of them sees the other.

use std::sync::Arc;

use rustix::io::Errno;
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::mutant::is_on;

use super::{ABANDONABLE, FLAGS, Interrupts, Slot};
use crate::places::AT_LEAST;
use crate::tree::wire::Tag;

/// One of so many places may be taken by requests that wait for stores that do not answer.
const ONE_OF: usize = 4;

/// In [`Slot::volume`], below the tag: the request is not counted, and not answered early for its volume's stall.
const SPARED: u64 = 1;
/// In [`Slot::volume`]: the request cannot be answered by another thread.
const LENT: u64 = 2;
const TAG_SHIFT: u32 = 2;

/// How many requests for each volume may wait.
#[derive(Debug)]
pub(super) struct Share(AtomicUsize);

impl Default for Share {
    fn default() -> Self {
        Self(AtomicUsize::new(share(0, 0)))
    }
}

/// How many of so many places the requests for each of `stalled` volumes may take.
fn share(stalled: usize, places: usize) -> usize {
    places.max(AT_LEAST) / ONE_OF / stalled.max(2)
}

/// Which volume the next request is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct For {
    pub(crate) volume: Tag,
    /// See [`Interrupts::shed`].
    pub(crate) is_spared: bool,
    pub(crate) is_lent: bool,
}

impl Slot {
    /// To be said before the request begins.
    pub(crate) fn is_for(&self, whom: For) {
        let flags = if whom.is_spared { SPARED } else { 0 } | if whom.is_lent { LENT } else { 0 };
        // ORDERING: Relaxed, published by the store to `word` in `begin`, which readers load first.
        self.volume.store((whom.volume.number() << TAG_SHIFT) | flags, Ordering::Relaxed);
    }

    /// The request in hand, if it is for this volume, and what `volume` says of it.
    fn unique_for(&self, volume: Tag) -> Option<(u64, u64)> {
        // ORDERING: SeqCst, P3: after the mark. The tag is that of this request, or of a later one, whose number differs.
        let unique = self.unique_of(self.word.load(Ordering::SeqCst))?;
        // ORDERING: Relaxed, as in `is_for`.
        let whom = self.volume.load(Ordering::Relaxed);
        (whom >> TAG_SHIFT == volume.number()).then_some((unique, whom))
    }

    /// Answers request `unique` EIO; says whether that could be done. `at_all_costs`: also where its late success matters.
    fn fail(&self, unique: u64, at_all_costs: bool) -> bool {
        let cancel = self.cancel.lock();
        // ORDERING: Acquire, as in `end`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let may = at_all_costs || word & ABANDONABLE != 0;
            if word & !FLAGS != unique << 1 || !may {
                return false;
            }
            // ORDERING: as in `end`.
            match self.word.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire) {
                Err(now) => word = now,
                Ok(_) => {
                    cancel.cancel();
                    self.line.answer_for_another(unique, Errno::IO);
                    return true;
                }
            }
        }
    }

    /// The volume that the request is for is given up.
    fn give_up(&self, unique: u64, whom: u64) {
        if whom & LENT == 0 {
            self.fail(unique, true);
        } else {
            self.end(unique);
        }
    }
}

impl Interrupts {
    /// [`begin`](Interrupts::begin) for a request to an attached volume, which may be given up.
    pub(crate) fn begin_for(
        &self,
        slot: &Arc<Slot>,
        (unique, pid, abandonable): (u64, u32, bool),
        is_given_up: &AtomicBool,
    ) {
        let looked_first = is_on("share-looks-first").then(|| is_given_up.load(Ordering::SeqCst));
        self.begin(slot, unique, pid, abandonable);
        // ORDERING: SeqCst, P3: after the store to the word.
        if looked_first.unwrap_or_else(|| is_given_up.load(Ordering::SeqCst)) {
            // ORDERING: Relaxed, this thread's own.
            slot.give_up(unique, slot.volume.load(Ordering::Relaxed));
        }
    }

    /// So many volumes have stores that do not answer, and the mountpoint has so many places for requests.
    pub(crate) fn share_among(&self, stalled: usize, places: usize) {
        // ORDERING: Relaxed here and below, a bound that need not be exact at any moment.
        self.share.0.store(share(stalled, places), Ordering::Relaxed);
    }

    /// Whether so many requests for a volume wait that the next is to be refused.
    pub(crate) fn is_full(&self, volume: Tag) -> bool {
        self.counted(volume).len() >= self.share.0.load(Ordering::Relaxed)
    }

    /// Of the requests for a volume that does not answer, those beyond its share fail, if they can; says how many there were. Each
    /// is counted once.
    pub(crate) fn shed(&self, volume: Tag) -> usize {
        let beyond = self.counted(volume).into_iter().skip(self.share.0.load(Ordering::Relaxed));
        let shed = beyond.map(|(slot, unique, whom)| {
            if whom & LENT != 0 || !slot.fail(unique, false) {
                // ORDERING: Relaxed, as in `is_for`. Another request for the same volume that began meanwhile goes on uncounted.
                let _another =
                    slot.volume.compare_exchange(whom, whom | SPARED, Ordering::Relaxed, Ordering::Relaxed);
            }
        });
        let shed = shed.count();
        if shed > 0 {
            tracing::warn!(shed, "requests for an attached volume fail: its store does not answer");
        }
        shed
    }

    /// A volume is given up, and marked so: who waits for it gets an error.
    pub(crate) fn give_up(&self, volume: Tag) {
        for (slot, unique, whom) in self.in_hand_for(volume) {
            slot.give_up(unique, whom);
        }
    }

    fn counted(&self, volume: Tag) -> Vec<(Arc<Slot>, u64, u64)> {
        let mut waiting = self.in_hand_for(volume);
        waiting.retain(|(_, _, whom)| whom & SPARED == 0);
        waiting
    }

    fn in_hand_for(&self, volume: Tag) -> Vec<(Arc<Slot>, u64, u64)> {
        let slots = self.slots.lock();
        let found = slots.iter().filter_map(|slot| {
            let (unique, whom) = slot.unique_for(volume)?;
            Some((Arc::clone(slot), unique, whom))
        });
        found.collect()
    }
}
