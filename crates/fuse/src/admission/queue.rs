//! The queue in which requests wait while their volume has its part of the reading threads.
//!
//! Purpose: a request keeps the thread that read it until it is answered, and the threads are
//! shared by all volumes of a mountpoint. A store that takes long, and is not known to be stalled
//! (yet, or ever), must not get all of them. So while many threads are at work
//! ([`ThreadPool::is_crowded`]) a volume may take another thread only within these bounds:
//!
//! | which | how much of the capacity (`SessionOptions::threads_max`) |
//! |---|---|
//! | the first for each volume, that of the mountpoint included | one each |
//! | further ones | half of the capacity for all volumes together; a volume may have no more of it than is left, alone a quarter of the capacity |
//!
//! A request beyond that waits in the *queue*: a copy of its message, and a [`RequestSlot`] of its
//! own. The slot's word holds it like a request under way that may be abandoned, whatever it is,
//! since nothing of it has happened. So it ends at once when its caller is killed, when its volume
//! is given up and when its volume is found stalled; its word says which of them answers it. Of a
//! stalled volume, as many requests stay as its quota has room for. Threads whose requests were
//! failed (`InFlight::evict_excess`) do not count: the thread that has relieved the mountpoint
//! brings another one for a request that waits. Each thread that is through with a request takes
//! one that has waited, that of the volume with the fewest threads at work first, before it reads
//! on, and serves it as if it came just now: with the tree and the volume as they are then.
//!
//! A RELEASE does not wait there: the volume closes the file by itself (its module
//! `deferred_close`), and the request is answered at once. So it does not fill the number of requests
//! without a waiting process either, which the kernel bounds for the whole mountpoint. FORGET has
//! no answer, and does not wait either.
//!
//! Bounded: [`QUEUED_PER_THREAD`] requests for each thread of the capacity, and their messages by
//! the largest WRITE for each. A request that finds the queue full keeps its thread. Over io_uring
//! a request keeps its entry until it is answered, so that there is no queue.
//!
//! # Lock order
//! As in [`in_flight`](crate::in_flight).
//!
//! # Orderings
//! P5: no request waits while none of its volume is at work. A thread that lets a request wait
//! raises `AdmissionQueue::len`, then scans the slots; a thread that is through with a request
//! clears `RequestSlot::volume` ([`RequestSlot::clear_volume`]), then reads `len`
//! (`InFlight::pop_queued`). All of it is SeqCst: either the first thread sees that none is at
//! work, or the second sees that a request waits, and finds it under the lock.
//!
//! P6: a thread that lets a request wait checks under `AdmissionQueue::state` whether the volume is
//! given up; a thread that gives it up marks it, then empties the queue. One of the two sees the
//! other.
//!
//! [`ThreadPool::is_crowded`]: crate::transport::dev_fuse::pool::ThreadPool::is_crowded

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use sync::Mutex;
use sync::atomic::{AtomicUsize, Ordering};

use crate::in_flight::slot::{RequestClass, RequestSlot};
use crate::tree::wire::NodeTag;

/// How many requests may wait for each thread of the capacity.
pub(super) const QUEUED_PER_THREAD: usize = 16;
/// Further requests may take the capacity divided by this.
const FURTHER_ONE_OF: usize = 2;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    /// A slot of its own: the answer goes where the request was read.
    pub(crate) slot: Arc<RequestSlot>,
    pub(crate) message: Box<[u8]>,
    pub(crate) unique: u64,
    pub(crate) class: RequestClass,
    /// Since when it waits.
    pub(crate) since: Instant,
}

impl QueuedRequest {
    pub(crate) fn is_answered(&self) -> bool {
        self.slot.in_hand() == 0
    }
}

/// The requests of one session that wait.
#[derive(Debug, Default)]
pub(crate) struct AdmissionQueue {
    pub(super) len: AtomicUsize,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// By volume, the oldest first; no queue is empty.
    pub(super) queues: HashMap<NodeTag, VecDeque<QueuedRequest>>,
    /// The bytes of all messages.
    pub(super) bytes: usize,
    pub(super) has_ended: bool,
}

impl State {
    pub(super) fn pop(&mut self, volume: NodeTag) -> Option<QueuedRequest> {
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
    pub(crate) fn len(&self) -> usize {
        // ORDERING: SeqCst, P5: after the store to a slot's `volume`.
        self.len.load(Ordering::SeqCst)
    }

    /// The slot of request `unique`, if it waits.
    pub(crate) fn find(&self, unique: u64) -> Option<Arc<RequestSlot>> {
        if self.len() == 0 {
            return None;
        }
        let state = self.state.lock();
        state.queues.values().flatten().find(|one| one.slot.holds(unique)).map(|one| Arc::clone(&one.slot))
    }

    /// The slots of all requests that wait.
    pub(crate) fn slots(&self) -> Vec<Arc<RequestSlot>> {
        if self.len() == 0 {
            return Vec::new();
        }
        self.state.lock().queues.values().flatten().map(|one| Arc::clone(&one.slot)).collect()
    }

    /// Forgets the requests that were answered.
    pub(crate) fn sweep(&self) {
        if self.len() > 0 {
            drop(self.take(QueuedRequest::is_answered));
        }
    }

    pub(super) fn take(&self, is_to_go: impl FnMut(&QueuedRequest) -> bool) -> Vec<QueuedRequest> {
        let mut state = self.state.lock();
        let gone = state.take(is_to_go);
        // ORDERING: SeqCst, P5: it was raised for each of them, under the lock.
        self.len.fetch_sub(gone.len(), Ordering::SeqCst);
        gone
    }
}

/// For which volumes the reading threads are at work: a tag for each thread, sorted.
pub(super) struct ActiveThreads(Vec<NodeTag>);

impl ActiveThreads {
    pub(super) fn of(slots: &[Arc<RequestSlot>]) -> Self {
        let mut tags: Vec<NodeTag> = slots.iter().filter_map(|slot| slot.reader_volume()).collect();
        tags.sort_unstable();
        Self(tags)
    }

    /// How many threads are at work for this volume.
    pub(super) fn own(&self, volume: NodeTag) -> usize {
        self.0.partition_point(|tag| *tag <= volume) - self.0.partition_point(|tag| *tag < volume)
    }

    /// Whether a volume may have another thread.
    pub(super) fn may_take_thread(&self, volume: NodeTag, capacity: usize) -> bool {
        let own = self.own(volume);
        if own == 0 {
            return true;
        }
        let volumes = self.0.chunk_by(|one, next| one == next).count();
        let further = self.0.len() - volumes;
        own - 1 + further < capacity / FURTHER_ONE_OF
    }
}
