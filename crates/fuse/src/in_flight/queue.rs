//! The queue in which requests wait while their volume has its part of the reading threads.
//!
//! Purpose: a request keeps the thread that read it until it is answered, and the threads are
//! shared by all volumes of a mountpoint. A store that takes long, and is not known to be stalled
//! (yet, or ever), must not get all of them. So while many threads are at work
//! ([`ThreadPool::is_crowded`]) a volume may take another thread only as long as it [has a
//! turn](AtWork::has_turn):
//!
//! | which | how many of the places (`SessionOptions::threads_max`) |
//! |---|---|
//! | the first for each volume, that of the mountpoint included | one each |
//! | further ones | half of the places for all volumes together; a volume may have no more of them than are left, alone a quarter of the places |
//!
//! A request beyond that waits in the *queue*: a copy of its message, and a [`RequestSlot`] of its
//! own. The slot's word holds it like a request under way that may be abandoned, whatever it is,
//! since nothing of it has happened. So it ends at once when its caller is killed, when its volume
//! is given up and when its volume is found stalled; its word says which of them answers it. Of a
//! stalled volume, as many requests stay as its quota has room for. Threads whose requests were
//! [failed](InFlight::evict_excess) do not count: the thread that has relieved the mountpoint
//! brings another one for a request that waits. Each thread that is through with a request takes
//! one that has waited, that of the volume with the fewest threads at work first, before it reads
//! on, and serves it as if it came just now: with the tree and the volume as they are then.
//!
//! A RELEASE or FORGET does not wait there: the volume closes the file by itself (module `later` of
//! the volume), and the request is answered at once. So it does not fill the number of requests
//! without a waiting process either, which the kernel bounds for the whole mountpoint. A request
//! that waits for a lock has no thread.
//!
//! Bounded: [`QUEUED_PER_THREAD`] requests for each place, and their messages by the largest
//! WRITE for each place. A request that finds the queue full keeps its thread. Over io_uring a
//! request keeps its entry until it is answered, so that there is no queue.
//!
//! # Lock order
//! `AdmissionQueue::state`, then `InFlight::slots`. `RequestSlot::cancel` is taken with neither.
//!
//! # Orderings
//! P5: no request waits while none of its volume is at work. A thread that lets a request wait
//! raises `AdmissionQueue::len`, then looks at the slots; a thread that is through with a request
//! clears `RequestSlot::volume` ([`RequestSlot::clear_volume`]), then looks at `len`
//! ([`InFlight::pop_queued`]). All of it is SeqCst: either the first thread sees that none is at
//! work, or the second sees that a request waits, and finds it under the lock.
//!
//! P6: a thread that lets a request wait looks under `AdmissionQueue::state` whether the volume is
//! given up; a thread that gives it up marks it, then empties the queue. One of the two sees the
//! other.
//!
//! [`ThreadPool::is_crowded`]: crate::reader::Pool::is_crowded

#[cfg(all(test, shuttle))]
mod schedules;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::mutant::is_on;

use super::stall_quota::RequestClass;
use super::{AbortPolicy, InFlight, RequestSlot};
use crate::capacity::AT_LEAST;
use crate::init::MAX_WRITE;
use crate::reply_channel::ReplyChannel;
use crate::tree::wire::NodeTag;

/// How many requests may wait for each place there is.
const QUEUED_PER_THREAD: usize = 16;
/// One of this many places may be taken by further requests.
const FURTHER_ONE_OF: usize = 2;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    /// A slot of its own: the answer goes where the request was read.
    pub(crate) slot: Arc<RequestSlot>,
    pub(crate) message: Box<[u8]>,
    unique: u64,
    class: RequestClass,
}

impl QueuedRequest {
    fn is_answered(&self) -> bool {
        self.slot.in_hand() == 0
    }
}

/// The requests of one session that wait.
#[derive(Debug, Default)]
pub(super) struct AdmissionQueue {
    len: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By volume, the oldest first; no queue is empty.
    queues: HashMap<NodeTag, VecDeque<QueuedRequest>>,
    /// The bytes of all messages.
    bytes: usize,
    has_ended: bool,
}

impl State {
    fn pop(&mut self, volume: NodeTag) -> Option<QueuedRequest> {
        let queue = self.queues.get_mut(&volume)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&volume);
        }
        self.bytes -= first.as_ref().map_or(0, |queued| queued.message.len());
        first
    }

    /// Takes out the requests that `is_to_go`, of all volumes.
    fn take(&mut self, mut is_to_go: impl FnMut(&QueuedRequest) -> bool) -> Vec<QueuedRequest> {
        let mut gone = Vec::new();
        for queue in self.queues.values_mut() {
            let (go, stay) = queue.drain(..).partition(|queued| is_to_go(queued));
            *queue = stay;
            gone.extend::<VecDeque<_>>(go);
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.bytes -= gone.iter().map(|queued| queued.message.len()).sum::<usize>();
        gone
    }
}

impl AdmissionQueue {
    /// How many requests wait.
    pub(super) fn len(&self) -> usize {
        // ORDERING: SeqCst, P5: after the store to a slot's `volume`.
        self.len.load(Ordering::SeqCst)
    }

    /// The slot of request `unique`, if it waits.
    pub(super) fn find(&self, unique: u64) -> Option<Arc<RequestSlot>> {
        if self.len() == 0 {
            return None;
        }
        let state = self.state.lock();
        state.queues.values().flatten().find(|one| one.slot.holds(unique)).map(|one| Arc::clone(&one.slot))
    }

    /// The slots of all requests that wait.
    pub(super) fn slots(&self) -> Vec<Arc<RequestSlot>> {
        if self.len() == 0 {
            return Vec::new();
        }
        self.state.lock().queues.values().flatten().map(|one| Arc::clone(&one.slot)).collect()
    }

    /// Forgets the requests that were answered.
    pub(super) fn sweep(&self) {
        if self.len() > 0 {
            drop(self.take(QueuedRequest::is_answered));
        }
    }

    fn take(&self, is_to_go: impl FnMut(&QueuedRequest) -> bool) -> Vec<QueuedRequest> {
        let mut state = self.state.lock();
        let gone = state.take(is_to_go);
        // ORDERING: SeqCst, P5: it was raised for each of them, under the lock.
        self.len.fetch_sub(gone.len(), Ordering::SeqCst);
        gone
    }
}

/// For which volumes the reading threads are at work: a tag for each thread, sorted.
struct ActiveThreads(Vec<NodeTag>);

impl ActiveThreads {
    fn of(slots: &[Arc<RequestSlot>]) -> Self {
        let mut tags: Vec<NodeTag> = slots.iter().filter_map(|slot| slot.reader_volume()).collect();
        tags.sort_unstable();
        Self(tags)
    }

    /// How many threads are at work for this volume.
    fn own(&self, volume: NodeTag) -> usize {
        self.0.partition_point(|tag| *tag <= volume) - self.0.partition_point(|tag| *tag < volume)
    }

    /// Whether a volume may have another thread.
    fn may_take_thread(&self, volume: NodeTag, capacity: usize) -> bool {
        let own = self.own(volume);
        if own == 0 {
            return true;
        }
        let volumes = self.0.chunk_by(|one, next| one == next).count();
        let further = self.0.len() - volumes;
        own - 1 + further < capacity / FURTHER_ONE_OF
    }
}

impl RequestSlot {
    /// Whether its thread reads from the device.
    pub(crate) fn is_reader(&self) -> bool {
        matches!(self.channel, ReplyChannel::Dev(_))
    }

    /// The volume for which a thread that reads from the device is at work.
    fn reader_volume(&self) -> Option<NodeTag> {
        if self.is_reader() { self.active_volume() } else { None }
    }

    /// A request that has waited begins; says whether it does, or was answered meanwhile.
    fn begin_queued(&self, unique: u64, early: AbortPolicy) -> bool {
        let [waits, now] = [AbortPolicy::Always, early].map(|early| early.word(unique));
        if is_on("room-begins-anyway") {
            self.word.store(now, Ordering::SeqCst);
            return true;
        }
        // ORDERING: SeqCst, as the store in `RequestSlot::begin`: it is published in the same way.
        let begun = self.word.compare_exchange(waits, now, Ordering::SeqCst, Ordering::SeqCst);
        begun.is_ok()
    }
}

impl InFlight {
    /// Takes a place for a request of a volume that may have another thread; says whether it may.
    pub(crate) fn try_admit(&self, slot: &RequestSlot, class: RequestClass, capacity: usize) -> bool {
        // The lock makes looking and taking one step.
        let slots = self.slots.lock();
        let may_take_thread = !slots.iter().any(|other| other.reader_volume() == Some(class.volume))
            || ActiveThreads::of(&slots).may_take_thread(class.volume, capacity);
        if may_take_thread {
            slot.assign_volume(class);
        }
        may_take_thread
    }

    /// Has a request (its number, its caller) that a thread has read wait; says whether it does. If
    /// not, it is its turn, or the queue is full.
    pub(crate) fn wait(
        &self,
        slot: &RequestSlot,
        (unique, pid): (u64, u32),
        (class, is_aborted): (RequestClass, &AtomicBool),
        message: &[u8],
        capacity: usize,
    ) -> bool {
        let ReplyChannel::Dev(dev) = slot.channel() else { return false };
        let own = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(dev))));
        own.begin(unique, pid, AbortPolicy::Always);
        let queued = QueuedRequest { slot: Arc::clone(&own), message: message.into(), unique, class };
        if !self.push_queued(queued, is_aborted, capacity) {
            return false;
        }
        if self.take_early(unique) {
            self.watch_for(unique, own);
        }
        self.request_scan();
        true
    }

    fn push_queued(&self, queued: QueuedRequest, is_aborted: &AtomicBool, capacity: usize) -> bool {
        let (capacity, volume) = (capacity.max(AT_LEAST), queued.class.volume);
        let looked_early = is_on("room-end-unseen").then(|| is_aborted.load(Ordering::SeqCst));
        let mut state = self.queue.state.lock();
        let bytes = state.bytes + queued.message.len();
        // Of `len` only changes under this lock matter here.
        let is_full =
            bytes > capacity * MAX_WRITE as usize || self.queue.len() >= capacity * QUEUED_PER_THREAD;
        // ORDERING: SeqCst, P6.
        let is_over = looked_early.unwrap_or_else(|| is_aborted.load(Ordering::SeqCst));
        if is_full || is_over || state.has_ended {
            return false;
        }
        let looked_first =
            is_on("room-looks-first").then(|| ActiveThreads::of(&self.slots.lock()).own(volume) == 0);
        // ORDERING: SeqCst, P5: before the look at the slots.
        self.queue.len.fetch_add(1, Ordering::SeqCst);
        if looked_first.unwrap_or_else(|| ActiveThreads::of(&self.slots.lock()).own(volume) == 0) {
            // ORDERING: SeqCst, as above.
            self.queue.len.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        state.bytes = bytes;
        state.queues.entry(volume).or_default().push_back(queued);
        true
    }

    /// A request that has waited and is to be served now, with its place. Each thread that reads
    /// from the device calls this when it is through with a request, until there is none.
    pub(crate) fn pop_queued(&self, capacity: usize) -> Option<QueuedRequest> {
        if self.queue.len() == 0 || is_on("room-left-alone") {
            return None;
        }
        let mut state = self.queue.state.lock();
        loop {
            let mut slots = self.slots.lock();
            let at_work = ActiveThreads::of(&slots);
            let volume = *state.queues.keys().min_by_key(|volume| at_work.own(**volume))?;
            if !at_work.may_take_thread(volume, capacity) {
                return None;
            }
            let queued = state.pop(volume)?;
            // ORDERING: SeqCst, P5.
            self.queue.len.fetch_sub(1, Ordering::SeqCst);
            if queued.is_answered() {
                continue;
            }
            queued.slot.assign_volume(queued.class);
            // Before the queue's lock is released: a thread that looks for a request there, and
            // then here, finds it.
            slots.push(Arc::clone(&queued.slot));
            return Some(queued);
        }
    }

    /// Whether a request waits.
    pub(crate) fn has_queued(&self) -> bool {
        self.queue.len() > 0
    }

    /// [`begin_abortable`](InFlight::begin_abortable) for a request that has waited: says whether
    /// it is to be served, or was answered meanwhile.
    pub(crate) fn begin_queued(
        &self,
        slot: &Arc<RequestSlot>,
        (unique, early): (u64, AbortPolicy),
        is_aborted: &AtomicBool,
    ) -> bool {
        let begins = slot.begin_queued(unique, early);
        if begins {
            // ORDERING: SeqCst, P3 of the module `stall_quota`, as in `begin_abortable`.
            if is_aborted.load(Ordering::SeqCst) {
                slot.fail(unique, true);
            }
            if self.take_early(unique) {
                self.watch_for(unique, Arc::clone(slot));
            }
        }
        begins
    }

    /// Fails the requests that wait for a volume, but for the `keep` oldest, and with `spares` for
    /// those whose failure would lose something. Says how many failed.
    pub(super) fn fail_queued(&self, volume: Option<NodeTag>, keep: usize, spares: bool) -> usize {
        let mut kept = 0;
        let gone = self.queue.take(|one| {
            let is_meant = volume.is_none_or(|volume| one.class.volume == volume);
            if !is_meant || (spares && one.class.quota_exempt) {
                return false;
            }
            kept += 1;
            kept > keep
        });
        gone.iter().filter(|one| one.slot.fail(one.unique, true)).count()
    }

    /// The connection has ended, and with it the callers' wait. Data that the kernel writes of its
    /// own accord is still served.
    pub(crate) fn close_queue(&self) {
        self.queue.state.lock().has_ended = true;
        self.fail_queued(None, 0, true);
    }
}
