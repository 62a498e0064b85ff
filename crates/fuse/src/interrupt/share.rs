//! Bounds the threads that requests for a volume hold while its store does not answer.
//!
//! Purpose: the threads and the entries that bring requests are shared by all volumes of a
//! mountpoint. Of the places (`SessionOptions::threads_max`, 256 at least) the requests for volumes
//! whose stores do not answer take at most:
//!
//! | which | how many |
//! |---|---|
//! | the first for each such volume | one each, of all together half of the places |
//! | further ones | of all together a quarter, each volume its equal part, an eighth at most |
//!
//! So the request of a client that uses such a volume alone waits, however many others are stalled
//! beside it. Requests in hand beyond that when the stall is noticed are answered EIO, while their
//! threads go on waiting ([`Interrupts::shed`]); later ones are refused ([`Interrupts::admit`]).
//! The module [`room`](super::room) limits what a volume may hold before that. Requests for a
//! volume that is given up are all answered EIO ([`Interrupts::give_up`]).
//!
//! No process waits for the answer to a RELEASE, nor could it be refused: the file is closed. But
//! the kernel bounds how many it has under way for the whole mountpoint (`max_background`),
//! together with reading ahead. So those in hand when the stall is noticed are answered, while
//! their threads go on, uncounted. Later ones do not call the store: the volume closes these files
//! by itself (module `later` of the volume). FORGET has no answer; its thread is uncounted, too.
//!
//! The thread counts: a request whose caller was killed has its place until the store's call has
//! returned. A place is given back before the answer is written ([`Slot::claim`]): the client's
//! next request may be read before the writer goes on.
//!
//! Over io_uring a request whose data is lent cannot be answered early, nor can one whose late
//! success would matter (see [`Early`](super::Early)) before its volume is given up: such requests
//! hold their threads.
//!
//! # Orderings
//! P3: a thread that gives a volume up marks it, then looks at the slots; a thread that begins a
//! request puts it into its slot's word, then looks at the mark ([`Interrupts::begin_for`]). All of
//! it is SeqCst: one of them sees the other.
//!
//! P4: a thread clears `Slot::volume` before it writes the answer; another thread counts for a
//! request that was read after that. The kernel is between the two: what it hands to a reader comes
//! after what was written to it.

use std::sync::Arc;

use rustix::io::Errno;
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::mutant::is_on;

use super::{ABANDONABLE, Early, FLAGS, Interrupts, Slot, UNIQUE_SHIFT};
use crate::places::AT_LEAST;
use crate::tree::wire::Tag;

/// One of this many places may be taken by first requests for stores that do not answer.
const FIRSTS_ONE_OF: usize = 2;
/// And by further ones.
const FURTHER_ONE_OF: usize = 4;

/// In [`Slot::volume`], below the tag: the request is not counted, and not answered early for its
/// volume's stall.
const SPARED: u64 = 1;
/// In [`Slot::volume`]: the request cannot be answered by another thread.
const LENT: u64 = 2;
/// In [`Slot::volume`]: the request waits for a store that does not answer, and is counted among
/// those that do.
const STALLED: u64 = 4;
/// In [`Slot::volume`]: the answer carries no information, and may be given before the request is
/// served.
const SAYS_NOTHING: u64 = 8;
/// In [`Slot::volume`]: there is a request, also where it is for the mountpoint's own volume.
const AT_WORK: u64 = 16;
/// In [`Slot::volume`]: the request was failed, and another thread reads in place of this one.
const SHED: u64 = 32;
const TAG_SHIFT: u32 = 6;

/// How many requests for volumes whose stores do not answer may wait.
#[derive(Debug)]
pub(super) struct Share {
    /// How many first requests may wait, of all such volumes.
    firsts: AtomicUsize,
    /// How many may wait beyond the first, for each of them.
    further: AtomicUsize,
}

impl Default for Share {
    fn default() -> Self {
        Self { firsts: AtomicUsize::new(firsts(0)), further: AtomicUsize::new(further(0, 0)) }
    }
}

fn firsts(places: usize) -> usize {
    places.max(AT_LEAST) / FIRSTS_ONE_OF
}

fn further(stalled: usize, places: usize) -> usize {
    places.max(AT_LEAST) / FURTHER_ONE_OF / stalled.max(2)
}

/// Which volume the next request is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct For {
    pub(crate) volume: Tag,
    /// See [`Interrupts::shed`].
    pub(crate) is_spared: bool,
    /// Its answer carries no information.
    pub(crate) says_nothing: bool,
    pub(crate) is_lent: bool,
}

impl For {
    fn word(self) -> u64 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags =
            flag(self.is_spared, SPARED) | flag(self.says_nothing, SAYS_NOTHING) | flag(self.is_lent, LENT);
        (self.volume.number() << TAG_SHIFT) | flags | AT_WORK
    }
}

/// A thread's request for an attached volume.
struct Taken {
    slot: Arc<Slot>,
    /// None: it was answered, and its thread is still at work.
    unique: Option<u64>,
    /// The value of `Slot::volume`.
    whom: u64,
}

impl Taken {
    fn is_for(&self, volume: Tag) -> bool {
        self.whom >> TAG_SHIFT == volume.number()
    }

    fn is_counted(&self) -> bool {
        self.whom & SPARED == 0
    }

    /// Sets the flag for the request, unless its thread is through with it.
    fn mark(&self, flag: u64) -> bool {
        let marked = self.whom | flag;
        // ORDERING: Relaxed, as in `is_for`. Another request for the same volume that began
        // meanwhile is marked in its place.
        self.slot.volume.compare_exchange(self.whom, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Slot {
    /// To be called before the request begins.
    pub(crate) fn is_for(&self, whom: For) {
        // ORDERING: Relaxed, published by the store to `word` in `begin`, which readers load first.
        self.volume.store(whom.word(), Ordering::Relaxed);
    }

    /// Its thread is through with the request.
    pub(crate) fn is_for_none(&self) {
        // ORDERING: P4: before the answer is written. SeqCst, P5 of the module `room`: before the
        // look whether a request waits.
        self.volume.store(0, Ordering::SeqCst);
    }

    /// The volume for whose request the thread is at work, and holds a place.
    pub(super) fn at_work_for(&self) -> Option<Tag> {
        // ORDERING: SeqCst, P5 of the module `room`: after `len` says that a request waits.
        let whom = self.volume.load(Ordering::SeqCst);
        (whom & (AT_WORK | SHED) == AT_WORK).then(|| Tag::from_number(whom >> TAG_SHIFT))
    }

    /// Which request the slot's thread is at, if it is one for an attached volume.
    fn taken(self: &Arc<Self>) -> Option<Taken> {
        // ORDERING: SeqCst, P3: after the mark. The tag is that of this request, or of a later one,
        // whose number differs.
        let unique = self.unique_of(self.word.load(Ordering::SeqCst));
        // ORDERING: Relaxed, as in `is_for`.
        let whom = self.volume.load(Ordering::Relaxed);
        (whom >> TAG_SHIFT != Tag::ROOT.number()).then(|| Taken { slot: Arc::clone(self), unique, whom })
    }

    /// Answers request `unique` EIO; says whether that could be done. `at_all_costs`: also where
    /// its late success matters.
    pub(super) fn fail(&self, unique: u64, at_all_costs: bool) -> bool {
        let cancel = self.cancel.lock();
        // ORDERING: Acquire, as in `end`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let may = at_all_costs || word & ABANDONABLE != 0;
            if word & !FLAGS != unique << UNIQUE_SHIFT || !may {
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
        (unique, pid, early): (u64, u32, Early),
        is_given_up: &AtomicBool,
    ) {
        let looked_first = is_on("share-looks-first").then(|| is_given_up.load(Ordering::SeqCst));
        self.begin(slot, unique, pid, early);
        // ORDERING: SeqCst, P3: after the store to the word.
        if looked_first.unwrap_or_else(|| is_given_up.load(Ordering::SeqCst)) {
            // ORDERING: Relaxed, this thread's own.
            slot.give_up(unique, slot.volume.load(Ordering::Relaxed));
        }
    }

    /// There are `stalled` volumes whose stores do not answer, and the mountpoint has `places`
    /// places for requests.
    pub(crate) fn share_among(&self, stalled: usize, places: usize) {
        // ORDERING: Relaxed here and below, bounds that need not be exact at any moment.
        self.share.firsts.store(firsts(places), Ordering::Relaxed);
        self.share.further.store(further(stalled, places), Ordering::Relaxed);
    }

    /// How many requests for a volume may wait for its store, of whose requests `taken` are known.
    fn share_of(&self, volume: Tag, taken: &[Taken]) -> usize {
        let further = self.share.further.load(Ordering::Relaxed);
        if is_on("share-counts-first") {
            return further;
        }
        let others = taken.iter().filter(|one| one.is_counted() && one.whom & STALLED != 0);
        let mut others: Vec<u64> =
            others.map(|one| one.whom >> TAG_SHIFT).filter(|tag| *tag != volume.number()).collect();
        others.sort_unstable();
        others.dedup();
        if others.len() < self.share.firsts.load(Ordering::Relaxed) { 1 + further } else { 0 }
    }

    /// Gives a request for a volume whose store does not answer its place, before it begins; or
    /// refuses it, where as many wait already as may.
    pub(crate) fn admit(&self, slot: &Arc<Slot>, whom: For) -> bool {
        // The lock makes counting and taking one step.
        let slots = self.slots.lock();
        // One that has waited has its place already.
        let others = slots.iter().filter(|other| !Arc::ptr_eq(other, slot));
        let taken: Vec<Taken> = others.filter_map(Slot::taken).collect();
        let own = taken.iter().filter(|one| one.is_for(whom.volume) && one.is_counted()).count();
        let fits = own < self.share_of(whom.volume, &taken);
        if fits {
            // ORDERING: Relaxed, under the lock; see `is_for`.
            slot.volume.store(whom.word() | STALLED, Ordering::Relaxed);
        }
        fits
    }

    /// Fails the requests beyond its share for a volume that does not answer, where they can be
    /// failed, and does not count them any more. Requests whose answers carry no information are
    /// answered.
    pub(crate) fn shed(&self, volume: Tag) {
        let taken = self.taken();
        let share = self.share_of(volume, &taken);
        let own = || taken.iter().filter(|one| one.is_for(volume) && one.is_counted());
        for one in own().take(share) {
            let _unless_it_is_over = one.mark(STALLED);
        }
        let mut shed = self.empty_room(Some(volume), share.saturating_sub(own().count()), true);
        for one in own().skip(share).filter(|one| one.mark(SPARED | SHED)) {
            shed += 1;
            if let Some(unique) = one.unique.filter(|_| one.whom & LENT == 0) {
                let _if_it_can = one.slot.fail(unique, false);
            }
        }
        for one in taken.iter().filter(|one| one.is_for(volume) && one.whom & SAYS_NOTHING != 0) {
            let _unless_it_is_over = one.mark(SHED);
            if let Some(unique) = one.unique.filter(|_| one.whom & LENT == 0) {
                let _unless_it_is_over = one.slot.fail(unique, true);
            }
        }
        if shed > 0 {
            tracing::warn!(shed, "requests for an attached volume fail: its store does not answer");
        }
    }

    /// How many threads are at requests for attached volumes that are not counted: requests that
    /// may take long, and those that were failed.
    pub(crate) fn uncounted(&self) -> usize {
        self.taken().iter().filter(|one| !one.is_counted()).count()
    }

    /// A volume is given up, and marked so: its callers get an error. Its threads are not counted
    /// any more.
    pub(crate) fn give_up(&self, volume: Tag) {
        // The waiting requests first: a request that begins meanwhile is in a slot.
        self.empty_room(Some(volume), 0, false);
        for one in self.taken().iter().filter(|one| one.is_for(volume)) {
            let _unless_it_is_over = one.mark(SPARED | SHED);
            if let Some(unique) = one.unique {
                one.slot.give_up(unique, one.whom);
            }
        }
    }

    fn taken(&self) -> Vec<Taken> {
        self.slots.lock().iter().filter_map(Slot::taken).collect()
    }
}
