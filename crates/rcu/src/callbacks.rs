//! Callbacks (`call_rcu`), their bound, and their barrier.
//!
//! A thread queues its callbacks in a list of its own ([`crate::callback_list`]), without a lock
//! and without a cache line that others write. A domain that has callbacks has one worker thread
//! (module `workers`), shared with no other domain: readers or callbacks of one that take long hold
//! up no other.
//!
//! # A pass
//! The worker counts how many callbacks each list holds, lets a grace period pass, invokes that
//! many of each list in order, and counts them *after* they ran. A barrier waits for the counts, so
//! that it waits for callbacks that are running, too. One grace period that begins after the count
//! serves all callbacks that were seen.
//!
//! A pass begins at a tick. It begins earlier if a thread waits for callbacks, or if there are more
//! than `QHIMARK`. For its first pass a worker comes at the tick: until then it is only a ticket of
//! the pool.
//!
//! # The bound
//! `qlen` counts callbacks from their call until their memory is given back, so that it bounds
//! both. A caller adds what it has queued a block at a time, at its first call and when it ends;
//! each living thread may so have one callback less than a block beyond the bound.
//!
//! A caller that finds the bound reached waits. Some must not:
//! - a caller in a read section (of this domain: it would wait for itself; of another domain: a
//!   callback here may wait for that one's grace period). It checks again at each call, and waits
//!   at the first call outside of sections;
//! - a callback, of any domain: two domains' workers could wait for each other;
//! - a thread that is ending, whose sections cannot be found any more.
//!
//! # State
//! | field | holds | protected by |
//! |---|---|---|
//! | `lists` | the list of each thread | `state` |
//! | `removed` | how many callbacks ran in lists that are gone | `state` |
//! | `tick`, `ticket` | when the worker that has not come yet is to begin | `state` |
//! | `has_worker` | whether there is a worker, or one is to come | `state` |
//! | `is_urgent` | whether the worker must not wait for the tick | `state` |
//! | `waiters` | how many threads wait for callbacks | `state` |
//! | `spawn_failure` | whether no thread could be had at the last try: it is logged once | `state` |
//! | `worker` | what the worker does, which says what it has to be woken for | atomic, C1 |
//! | `qlen` | callbacks whose memory is not given back, less those that callers have not added; so it may be negative | atomic, C2 |
//!
//! # Orderings
//! * C1 caller: queue a callback, light fence, load `worker`. Worker: store `worker`, heavy fence,
//!   scan the lists. Either the caller sees that there is no worker, and gets one, or the worker
//!   sees the callback.
//! * C2 `qlen` is a count. A thread that sleeps because of it reads it under `state`; one that
//!   takes it below the lower bound takes that lock before it wakes the sleepers.
//!
//! # Lock order
//! `state`, then what module `workers` says. Callbacks run under the lock of their list's consumer,
//! which only the thread that invokes them takes.

mod worker;

use std::sync::Arc;
use std::time::Duration;

use sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use sync::mutant::is_on;
use sync::{CachePadded, Condvar, Mutex};

use crate::barrier::{heavy, light};
use crate::callback_list::{CallbackList, Producer};
use crate::ticket::{SpawnFailure, Ticket};

/// Callbacks that are invoked between two updates of the count.
const COUNTED_AT_ONCE: u64 = 64;

/// Callbacks of a thread that are added to `qlen` together, where the bound is large enough.
const BLOCK: u64 = 64;

/// A queue whose own threads run what it is given, later.
pub trait WorkQueue: Send + Sync + 'static {
    /// Takes `work`. Must not wait for long: it is called by the domain's worker.
    fn push(&self, work: Box<dyn FnOnce() + Send>);
}

/// The state of a domain's worker. Every caller reads it.
#[derive(Debug)]
pub struct WorkerState(CachePadded<AtomicU8>);

/// There is none: a caller has to get one.
const ABSENT: u8 = 0;
/// It waits for its tick, and is to be woken for `QHIMARK` callbacks.
const WAITING_FOR_TICK: u8 = 1;
/// It runs, and scans the lists again before it parks.
const RUNNING: u8 = 2;

/// Without a worker.
impl Default for WorkerState {
    fn default() -> Self {
        Self(CachePadded::new(AtomicU8::new(ABSENT)))
    }
}

impl WorkerState {
    /// There is no worker from here on. A scan of the lists that follows misses no callback but
    /// those whose callers find that there is none ([`is_absent`](Self::is_absent)).
    pub fn set_absent(&self, is_asymmetric: bool) {
        // ORDERING: Relaxed, C1 with the fence.
        self.0.store(ABSENT, Ordering::Relaxed);
        if !is_on("rcu-no-heavy-fence-before-rest") {
            heavy(is_asymmetric);
        }
    }

    /// Whether there is no worker: asked by a caller that has just queued a callback.
    #[inline]
    pub fn is_absent(&self, is_asymmetric: bool) -> bool {
        if is_asymmetric {
            if !is_on("rcu-no-light-fence-on-call") {
                light();
            }
        } else if !is_on("rcu-no-fence-on-call") {
            // ORDERING: SeqCst, C1.
            fence(Ordering::SeqCst);
        }
        // ORDERING: Relaxed, C1 with the fence.
        self.0.load(Ordering::Relaxed) == ABSENT
    }

    /// The worker runs, and scans the lists again before it parks.
    pub fn set_running(&self) {
        self.set(RUNNING);
    }

    fn is_waiting_for_tick(&self) -> bool {
        // ORDERING: Relaxed. A caller that misses it checks again a block later, and the tick
        // comes.
        self.0.load(Ordering::Relaxed) == WAITING_FOR_TICK
    }

    fn set(&self, level: u8) {
        // ORDERING: Relaxed. A caller that still sees `ABSENT` takes the lock for nothing.
        self.0.store(level, Ordering::Relaxed);
    }
}

/// A domain's callbacks.
#[derive(Debug)]
pub(crate) struct Callbacks {
    worker: WorkerState,
    qlen: AtomicU64,
    bounds: Bounds,
    state: Mutex<State>,
    /// Wakes the worker before its tick.
    work: Condvar,
    /// Wakes callers and barriers when callbacks have run.
    ran: Condvar,
}

/// How many callbacks there may be.
#[derive(Debug)]
struct Bounds {
    /// A caller that finds so many waits.
    max: i64,
    /// Callers that wait go on below this. A quarter is free then: no thread is woken for room for
    /// a single callback.
    low: i64,
    /// Callbacks of a thread that are added to `qlen` together.
    block: u64,
}

#[derive(Debug, Default)]
struct State {
    lists: Vec<Arc<CallbackList>>,
    removed: u64,
    has_worker: bool,
    tick: Option<Duration>,
    ticket: Option<Ticket>,
    is_urgent: bool,
    waiters: usize,
    spawn_failure: SpawnFailure,
}

impl Callbacks {
    pub(crate) fn new(max: usize) -> Self {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let block = if max >= 16 * BLOCK.cast_signed() { BLOCK } else { 1 };
        Self {
            worker: WorkerState::default(),
            qlen: AtomicU64::new(0),
            bounds: Bounds { max, low: max - max / 4, block },
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            ran: Condvar::new(),
        }
    }

    /// How many were ever queued, and how many have run.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        let sum = |count: fn(&CallbackList) -> u64| {
            state.lists.iter().fold(state.removed, |sum, list| sum + count(list))
        };
        // In this order, so that no more have run than were queued.
        let ran = sum(CallbackList::invoked);
        (sum(CallbackList::queued), ran)
    }

    /// A new list, of the calling thread.
    pub(crate) fn register(&self) -> Producer {
        let producer = Producer::default();
        self.state.lock().lists.push(Arc::clone(producer.list()));
        producer
    }

    /// Takes the end of a list whose thread ends: nothing is queued there any more.
    pub(crate) fn unregister(&self, producer: Producer) {
        self.add(producer.uncounted.works);
        drop(producer);
        let over = self.state.lock().remove_finished();
        self.free(&over);
    }

    fn qlen(&self) -> i64 {
        // ORDERING: Relaxed, C2.
        self.qlen.load(Ordering::Relaxed).cast_signed()
    }

    /// Adds callbacks to `qlen`, and returns the sum.
    fn add(&self, works: u64) -> i64 {
        // ORDERING: Relaxed, C2.
        (self.qlen.fetch_add(works, Ordering::Relaxed).wrapping_add(works)).cast_signed()
    }

    /// Takes callbacks whose memory was given back off `qlen`, and wakes threads that wait for
    /// room.
    fn take(&self, works: u64) {
        // ORDERING: Relaxed, C2.
        let before = self.qlen.fetch_sub(works, Ordering::Relaxed).cast_signed();
        let makes_room = before >= self.bounds.low && before - works.cast_signed() < self.bounds.low;
        if makes_room {
            self.wake_waiters();
        }
    }

    /// Gives back the memory of callbacks that have run.
    fn free(&self, lists: &[Arc<CallbackList>]) {
        self.take(lists.iter().map(|list| list.free()).sum());
    }

    #[cold]
    fn wake_waiters(&self) {
        if !is_on("rcu-ran-untold") && self.state.lock().waiters > 0 {
            self.ran.notify_all();
        }
    }
}

impl Drop for Callbacks {
    /// Runs what is left because no thread could be had: the domain has no readers any more, and no
    /// worker.
    fn drop(&mut self) {
        for list in std::mem::take(&mut self.state.lock().lists) {
            list.run(list.queued(), COUNTED_AT_ONCE, |_| ());
        }
    }
}

impl State {
    /// Callbacks that have not run.
    fn len(&self) -> u64 {
        self.lists.iter().map(|list| list.len()).sum()
    }

    /// Removes the lists that are empty and whose threads have ended. Gives them: the caller frees
    /// their memory without the lock.
    fn remove_finished(&mut self) -> Vec<Arc<CallbackList>> {
        let over: Vec<_> = self.lists.extract_if(.., |list| list.is_over()).collect();
        self.removed += over.iter().map(|list| list.invoked()).sum::<u64>();
        over
    }
}
