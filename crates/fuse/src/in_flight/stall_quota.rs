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
//! threads go on waiting ([`InFlight::evict_excess`]); later ones are refused
//! ([`InFlight::admit`]). The module [`queue`](super::queue) limits what a volume may hold before
//! that. Requests for a volume that is given up are all answered EIO ([`InFlight::abort`]).
//!
//! No process waits for the answer to a RELEASE, nor could it be refused: the file is closed. But
//! the kernel bounds how many it has under way for the whole mountpoint (`max_background`),
//! together with reading ahead. So those in hand when the stall is noticed are answered, while
//! their threads go on, uncounted. Later ones do not call the store: the volume closes these files
//! by itself (module `later` of the volume). FORGET has no answer; its thread is uncounted, too.
//!
//! The thread counts: a request whose caller was killed has its place until the store's call has
//! returned. A place is given back before the answer is written ([`RequestSlot::claim`]): the
//! client's next request may be read before the writer goes on.
//!
//! Over io_uring a request whose data stays in the entry cannot be answered early, nor can one
//! whose late success would matter (see [`AbortPolicy`](super::AbortPolicy)) before its volume is
//! given up: such requests hold their threads.
//!
//! # Orderings
//! P3: a thread that gives a volume up marks it, then looks at the slots; a thread that begins a
//! request puts it into its slot's word, then looks at the mark ([`InFlight::begin_abortable`]).
//! All of it is SeqCst: one of them sees the other.
//!
//! P4: a thread clears `RequestSlot::volume` before it writes the answer; another thread counts for
//! a request that was read after that. The kernel is between the two: what it hands to a reader
//! comes after what was written to it.

use std::sync::Arc;

use rustix::io::Errno;
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::mutant::is_on;

use super::{ABANDONABLE, AbortPolicy, FLAGS, InFlight, RequestSlot, UNIQUE_SHIFT};
use crate::capacity::AT_LEAST;
use crate::tree::wire::NodeTag;

/// One of this many places may be taken by first requests for stores that do not answer.
const FIRSTS_ONE_OF: usize = 2;
/// And by further ones.
const FURTHER_ONE_OF: usize = 4;

/// In [`RequestSlot::volume`], below the tag: the request is not counted, and not answered early
/// for its volume's stall.
const QUOTA_EXEMPT: u64 = 1;
/// In [`RequestSlot::volume`]: the request cannot be answered by another thread.
const IN_PLACE: u64 = 2;
/// In [`RequestSlot::volume`]: the request waits for a store that does not answer, and is counted
/// among those that do.
const STALLED: u64 = 4;
/// In [`RequestSlot::volume`]: the answer carries no information, and may be given before the
/// request is served.
const EMPTY_REPLY: u64 = 8;
/// In [`RequestSlot::volume`]: there is a request, also where it is for the mountpoint's own
/// volume.
const ACTIVE: u64 = 16;
/// In [`RequestSlot::volume`]: the request was failed, and another thread reads in place of this
/// one.
const EVICTED: u64 = 32;
const TAG_SHIFT: u32 = 6;

/// How many requests for volumes whose stores do not answer may wait.
#[derive(Debug)]
pub(super) struct StallQuota {
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

/// Which volume the next request is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestClass {
    pub(crate) volume: NodeTag,
    /// See [`InFlight::evict_excess`].
    pub(crate) quota_exempt: bool,
    /// Its answer carries no information.
    pub(crate) empty_reply: bool,
    pub(crate) in_place: bool,
}

impl RequestClass {
    fn word(self) -> u64 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.quota_exempt, QUOTA_EXEMPT)
            | flag(self.empty_reply, EMPTY_REPLY)
            | flag(self.in_place, IN_PLACE);
        (self.volume.number() << TAG_SHIFT) | flags | ACTIVE
    }
}

/// A thread's request for an attached volume.
struct ActiveRequest {
    slot: Arc<RequestSlot>,
    /// None: it was answered, and its thread is still at work.
    unique: Option<u64>,
    /// The value of `RequestSlot::volume`.
    word: u64,
}

impl ActiveRequest {
    fn is_for(&self, volume: NodeTag) -> bool {
        self.word >> TAG_SHIFT == volume.number()
    }

    fn is_counted(&self) -> bool {
        self.word & QUOTA_EXEMPT == 0
    }

    /// Sets the flag for the request, unless its thread is through with it.
    fn mark(&self, flag: u64) -> bool {
        let marked = self.word | flag;
        // ORDERING: Relaxed, as in `assign_volume`. Another request for the same volume that began
        // meanwhile is marked in its place.
        self.slot.volume.compare_exchange(self.word, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl RequestSlot {
    /// To be called before the request begins.
    pub(crate) fn assign_volume(&self, class: RequestClass) {
        // ORDERING: Relaxed, published by the store to `word` in `begin`, which readers load first.
        self.volume.store(class.word(), Ordering::Relaxed);
    }

    /// Its thread is through with the request.
    pub(crate) fn clear_volume(&self) {
        // ORDERING: P4: before the answer is written. SeqCst, P5 of the module `queue`: before the
        // look whether a request waits.
        self.volume.store(0, Ordering::SeqCst);
    }

    /// The volume for whose request the thread is at work, and holds a place.
    pub(super) fn active_volume(&self) -> Option<NodeTag> {
        // ORDERING: SeqCst, P5 of the module `queue`: after `len` says that a request waits.
        let word = self.volume.load(Ordering::SeqCst);
        (word & (ACTIVE | EVICTED) == ACTIVE).then(|| NodeTag::from_number(word >> TAG_SHIFT))
    }

    /// Which request the slot's thread is at, if it is one for an attached volume.
    fn active(self: &Arc<Self>) -> Option<ActiveRequest> {
        // ORDERING: SeqCst, P3: after the mark. The tag is that of this request, or of a later one,
        // whose number differs.
        let unique = self.unique_of(self.word.load(Ordering::SeqCst));
        // ORDERING: Relaxed, as in `assign_volume`.
        let word = self.volume.load(Ordering::Relaxed);
        (word >> TAG_SHIFT != NodeTag::ROOT.number()).then(|| ActiveRequest {
            slot: Arc::clone(self),
            unique,
            word,
        })
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
                    self.channel.answer_for_another(unique, Errno::IO);
                    return true;
                }
            }
        }
    }

    /// The volume that the request is for is given up.
    fn abort(&self, unique: u64, word: u64) {
        if word & IN_PLACE == 0 {
            self.fail(unique, true);
        } else {
            self.end(unique);
        }
    }
}

impl InFlight {
    /// [`begin`](InFlight::begin) for a request to an attached volume, which may be given up.
    pub(crate) fn begin_abortable(
        &self,
        slot: &Arc<RequestSlot>,
        (unique, pid, early): (u64, u32, AbortPolicy),
        is_aborted: &AtomicBool,
    ) {
        let looked_first = is_on("share-looks-first").then(|| is_aborted.load(Ordering::SeqCst));
        self.begin(slot, unique, pid, early);
        // ORDERING: SeqCst, P3: after the store to the word.
        if looked_first.unwrap_or_else(|| is_aborted.load(Ordering::SeqCst)) {
            // ORDERING: Relaxed, this thread's own.
            slot.abort(unique, slot.volume.load(Ordering::Relaxed));
        }
    }

    /// There are `stalled` volumes whose stores do not answer, and the mountpoint has `capacity`
    /// places for requests.
    pub(crate) fn set_stall_quota(&self, stalled: usize, capacity: usize) {
        // ORDERING: Relaxed here and below, bounds that need not be exact at any moment.
        self.stall_quota.firsts.store(firsts(capacity), Ordering::Relaxed);
        self.stall_quota.further.store(further(stalled, capacity), Ordering::Relaxed);
    }

    /// How many requests for a volume may wait for its store, of whose requests `active` are known.
    fn share_of(&self, volume: NodeTag, active: &[ActiveRequest]) -> usize {
        let further = self.stall_quota.further.load(Ordering::Relaxed);
        if is_on("share-counts-first") {
            return further;
        }
        let others = active.iter().filter(|one| one.is_counted() && one.word & STALLED != 0);
        let mut others: Vec<u64> =
            others.map(|one| one.word >> TAG_SHIFT).filter(|tag| *tag != volume.number()).collect();
        others.sort_unstable();
        others.dedup();
        if others.len() < self.stall_quota.firsts.load(Ordering::Relaxed) { 1 + further } else { 0 }
    }

    /// Gives a request for a volume whose store does not answer its place, before it begins; or
    /// refuses it, where as many wait already as may.
    pub(crate) fn admit(&self, slot: &Arc<RequestSlot>, class: RequestClass) -> bool {
        // The lock makes counting and taking one step.
        let slots = self.slots.lock();
        // One that has waited has its place already.
        let others = slots.iter().filter(|other| !Arc::ptr_eq(other, slot));
        let active: Vec<ActiveRequest> = others.filter_map(RequestSlot::active).collect();
        let own = active.iter().filter(|one| one.is_for(class.volume) && one.is_counted()).count();
        let fits = own < self.share_of(class.volume, &active);
        if fits {
            // ORDERING: Relaxed, under the lock; see `assign_volume`.
            slot.volume.store(class.word() | STALLED, Ordering::Relaxed);
        }
        fits
    }

    /// Fails the requests beyond its quota for a volume that does not answer, where they can be
    /// failed, and does not count them any more. Requests whose answers carry no information are
    /// answered.
    pub(crate) fn evict_excess(&self, volume: NodeTag) {
        let active = self.active();
        let stall_quota = self.share_of(volume, &active);
        let own = || active.iter().filter(|one| one.is_for(volume) && one.is_counted());
        for one in own().take(stall_quota) {
            let _unless_it_is_over = one.mark(STALLED);
        }
        let mut evicted = self.fail_queued(Some(volume), stall_quota.saturating_sub(own().count()), true);
        for one in own().skip(stall_quota).filter(|one| one.mark(QUOTA_EXEMPT | EVICTED)) {
            evicted += 1;
            if let Some(unique) = one.unique.filter(|_| one.word & IN_PLACE == 0) {
                let _if_it_can = one.slot.fail(unique, false);
            }
        }
        for one in active.iter().filter(|one| one.is_for(volume) && one.word & EMPTY_REPLY != 0) {
            let _unless_it_is_over = one.mark(EVICTED);
            if let Some(unique) = one.unique.filter(|_| one.word & IN_PLACE == 0) {
                let _unless_it_is_over = one.slot.fail(unique, true);
            }
        }
        if evicted > 0 {
            tracing::warn!(shed = evicted, "requests for an attached volume fail: its store does not answer");
        }
    }

    /// How many threads are at requests for attached volumes that are not counted: requests that
    /// may take long, and those that were failed.
    pub(crate) fn uncounted_threads(&self) -> usize {
        self.active().iter().filter(|one| !one.is_counted()).count()
    }

    /// A volume is given up, and marked so: its callers get an error. Its threads are not counted
    /// any more.
    pub(crate) fn abort(&self, volume: NodeTag) {
        // The waiting requests first: a request that begins meanwhile is in a slot.
        self.fail_queued(Some(volume), 0, false);
        for one in self.active().iter().filter(|one| one.is_for(volume)) {
            let _unless_it_is_over = one.mark(QUOTA_EXEMPT | EVICTED);
            if let Some(unique) = one.unique {
                one.slot.abort(unique, one.word);
            }
        }
    }

    fn active(&self) -> Vec<ActiveRequest> {
        self.slots.lock().iter().filter_map(RequestSlot::active).collect()
    }
}
