//! Callbacks (`call_rcu`), their bound, and their barrier.
//!
//! A thread queues its callbacks in a list of its own ([`crate::callback_list`]), without a lock
//! and without a cache line that others write. A domain that has callbacks has one worker thread
//! (module `workers`), shared with no other domain: readers or callbacks of one that take long hold
//! up no other.
//!
//! # A pass
//! The worker looks how many callbacks each list holds, lets a grace period pass, invokes that many
//! of each list in order, and counts them *after* they ran. A barrier waits for the counts, so that
//! it waits for callbacks that are running, too. One grace period that begins after the look serves
//! all callbacks that were seen.
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
//!   callback here may wait for that one's grace period). It looks again at each call, and waits at
//!   the first call outside of sections;
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
//!   look at the lists. Either the caller sees that there is no worker, and gets one, or the worker
//!   sees the callback.
//! * C2 `qlen` is a count. A thread that sleeps because of it looks at it under `state`; one that
//!   takes it below the lower bound takes that lock before it wakes the sleepers.
//!
//! # Lock order
//! `state`, then what module `workers` says. Callbacks run under the lock of their list's consumer,
//! which only the thread that invokes them takes.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use sync::mutant::is_on;
use sync::{Condvar, Mutex, MutexGuard};

use crate::barrier::{heavy, light};
use crate::callback_list::{CallbackList, Producer};
use crate::domain::Inner;
use crate::local;
use crate::work::Work;
use crate::workers;

/// A pass begins before its tick if a list holds so many: their data is still in the
/// processor's cache, and enough of them share the grace period. Analogous to Linux's `qhimark`.
/// Low in models.
const QHIMARK: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 4096 };

/// Callbacks that are invoked between two updates of the count.
const COUNTED_AT_ONCE: u64 = 64;

/// Callbacks of a thread that are added to `qlen` together, where the bound is large enough.
const BLOCK: u64 = 64;

/// Models have no clock: they wait for no tick.
const IS_MODEL: bool = cfg!(any(loom, shuttle));

/// A queue whose own threads run what it is given, later.
pub trait WorkQueue: Send + Sync + 'static {
    /// Takes `work`. Must not wait for long: it is called by the domain's worker.
    fn push(&self, work: Box<dyn FnOnce() + Send>);
}

/// The state of a domain's worker. In a cache line of its own: every caller reads it.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerState(AtomicU8);

/// There is none: a caller has to get one.
const ABSENT: u8 = 0;
/// It waits for its tick, and is to be woken for `QHIMARK` callbacks.
const WAITING_FOR_TICK: u8 = 1;
/// It runs, and looks at the lists again before it parks.
const RUNNING: u8 = 2;

impl WorkerState {
    /// Without a worker.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU8::new(ABSENT))
    }

    /// There is no worker from here on. A look at the lists that follows misses no callback but
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

    /// The worker runs, and looks at the lists again before it parks.
    pub fn set_running(&self) {
        self.set(RUNNING);
    }

    fn is_waiting_for_tick(&self) -> bool {
        // ORDERING: Relaxed. A caller that misses it looks again a block later, and the tick comes.
        self.0.load(Ordering::Relaxed) == WAITING_FOR_TICK
    }

    fn set(&self, level: u8) {
        // ORDERING: Relaxed. A caller that still sees `ABSENT` takes the lock for nothing.
        self.0.store(level, Ordering::Relaxed);
    }
}

impl Default for WorkerState {
    fn default() -> Self {
        Self::new()
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
    ticket: Option<workers::Ticket>,
    is_urgent: bool,
    waiters: usize,
    spawn_failure: workers::SpawnFailure,
}

sync::thread_local! {
    /// The address of the domain whose callbacks this thread runs: it must not wait for them.
    static RUNS: Cell<usize> = const { Cell::new(NO_DOMAIN) };
}

/// No domain has this address.
const NO_DOMAIN: usize = 0;

/// The address of the domain whose callbacks this thread runs.
fn running() -> usize {
    RUNS.try_with(Cell::get).unwrap_or(NO_DOMAIN)
}

/// The thread runs a domain's callbacks for as long as this lives.
struct Running {
    /// The domain whose callback called, if the thread was in one.
    outer: usize,
}

impl Running {
    fn begin(address: usize) -> Self {
        Self { outer: RUNS.with(|runs| runs.replace(address)) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNS.with(|runs| runs.set(self.outer));
    }
}

impl Callbacks {
    pub(crate) fn new(max: usize) -> Self {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let block = if max >= 16 * BLOCK.cast_signed() { BLOCK } else { 1 };
        Self {
            worker: WorkerState::new(),
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
        let producer = Producer::new();
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

impl Inner {
    /// Queues a callback. A caller that reaches the bound waits until there is room again, if it
    /// may.
    #[inline]
    pub(crate) fn call(&self, work: Work) {
        let must_look = local::with_producer(self, |producer| {
            let freed = producer.push(work);
            if freed > 0 {
                self.callbacks.take(freed);
            }
            producer.uncounted.works += 1;
            producer.uncounted.works >= producer.uncounted.at
        });
        if self.callbacks.worker.is_absent(self.gp.is_asymmetric()) {
            self.get_worker();
        }
        if must_look {
            self.check_qlen();
        }
    }

    #[cold]
    fn get_worker(&self) {
        let failure = self.wake_worker(&mut self.callbacks.state.lock());
        log_spawn_failure(failure);
    }

    /// Adds what this thread has queued to `qlen`, and waits if that is too much.
    #[cold]
    fn check_qlen(&self) {
        let callbacks = &self.callbacks;
        let (qlen, waiting) = local::with_producer(self, |producer| {
            let qlen = callbacks.add(std::mem::take(&mut producer.uncounted.works));
            producer.uncounted.at = callbacks.bounds.block;
            (qlen, producer.list().len())
        });
        if waiting >= QHIMARK && callbacks.worker.is_waiting_for_tick() {
            let mut state = (!is_on("rcu-crowd-unlocked")).then(|| callbacks.state.lock());
            // Under the lock: a worker that parks meanwhile has to be woken by the next call.
            if state.is_none() || callbacks.worker.is_waiting_for_tick() {
                state.iter_mut().for_each(|state| state.is_urgent = true);
                callbacks.worker.set_running();
                callbacks.work.notify_one();
                state.iter_mut().for_each(|state| self.expedite(state));
            }
        }
        if qlen < callbacks.bounds.max {
            return;
        }
        if !self.may_wait() {
            local::with_producer(self, |producer| producer.uncounted.at = 1);
            return;
        }
        self.counters.slowed.add(1);
        let mut state = callbacks.state.lock();
        while callbacks.qlen() >= callbacks.bounds.low {
            state = self.wait_for_callbacks(state);
        }
    }

    /// Whether the caller may wait for room.
    fn may_wait(&self) -> bool {
        let is_in_callback =
            if is_on("rcu-callback-waits") { self.is_run_here() } else { running() != NO_DOMAIN };
        !is_in_callback && local::may_wait(self)
    }

    /// Whether the caller is in a callback of this domain.
    pub(crate) fn is_run_here(&self) -> bool {
        running() == self.address()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn barrier(&self) {
        assert!(!self.is_run_here(), "a barrier in a callback of the same domain would wait for itself");
        let mut state = self.callbacks.state.lock();
        let mut awaited: Vec<_> = state.lists.iter().map(|list| (Arc::clone(list), list.queued())).collect();
        loop {
            awaited.retain(|(list, queued)| !list.has_run(*queued));
            if awaited.is_empty() {
                return;
            }
            state = self.wait_for_callbacks(state);
        }
    }

    /// Waits until more callbacks have run. Does the work of the worker if there is none.
    fn wait_for_callbacks<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let callbacks = &self.callbacks;
        state.is_urgent = true;
        let failure = self.wake_worker(&mut state);
        if state.has_worker {
            state.waiters += 1;
            callbacks.ran.wait(&mut state);
            state.waiters -= 1;
            return state;
        }
        drop(state);
        log_spawn_failure(failure);
        self.pass(true);
        callbacks.state.lock()
    }

    /// Wakes the worker, or gets one. The caller passes the result to [`log_spawn_failure`],
    /// without the lock.
    fn wake_worker(&self, state: &mut State) -> Option<io::Error> {
        let callbacks = &self.callbacks;
        if state.has_worker {
            callbacks.work.notify_one();
            if state.is_urgent {
                self.expedite(state);
            }
            return None;
        }
        // The next caller or waiter tries again.
        let asked = self.ask_for_worker(state);
        state.has_worker = asked.is_ok();
        state.spawn_failure.note(asked)
    }

    /// Has a worker that was to come at the tick come now.
    fn expedite(&self, state: &mut State) {
        #[cfg(not(any(loom, shuttle)))]
        if let Some(ticket) = state.ticket.take()
            && !workers::expedite(ticket)
        {
            // None comes: the next caller or waiter tries again.
            state.has_worker = false;
            self.callbacks.worker.set_absent(self.gp.is_asymmetric());
        }
        #[cfg(any(loom, shuttle))]
        let _ = (self, state);
    }

    /// The clock was moved: the worker looks at it.
    pub(crate) fn clock_of_callbacks_moved(&self) {
        self.expedite(&mut self.callbacks.state.lock());
        self.callbacks.work.notify_all();
    }

    /// Asks the pool for a worker: at the tick, or at once if it must not wait for that.
    fn ask_for_worker(&self, state: &mut State) -> io::Result<()> {
        let worker = &self.callbacks.worker;
        #[cfg(not(any(loom, shuttle)))]
        if !state.is_urgent {
            let tick = self.ticks.next(self.gp.now());
            state.ticket = Some(workers::serve_at(self, self.gp.instant(tick), Self::serve_callbacks)?);
            state.tick = Some(tick);
            worker.set(WAITING_FOR_TICK);
            return Ok(());
        }
        let _ = &state;
        workers::serve(self, Self::serve_callbacks)?;
        worker.set_running();
        Ok(())
    }

    /// The worker's body, until there is nothing to do.
    fn serve_callbacks(&self) {
        while self.gather() {
            self.pass(false);
        }
    }

    /// Waits for callbacks, and then for the tick. `false`: there are none, and the domain has no
    /// worker from here on.
    fn gather(&self) -> bool {
        let callbacks = &self.callbacks;
        let mut state = callbacks.state.lock();
        state.ticket = None;
        let asked_for = state.tick.take();
        if state.len() == 0 {
            state = self.free_all(state);
        }
        if state.len() == 0 {
            // C1: only the look that follows misses nothing.
            callbacks.worker.set_absent(self.gp.is_asymmetric());
            if state.len() == 0 || is_on("rcu-rest-unchecked") {
                state.has_worker = false;
                return false;
            }
        }
        callbacks.worker.set(WAITING_FOR_TICK);
        state.is_urgent |= IS_MODEL || state.len() >= QHIMARK;
        let tick = asked_for.unwrap_or_else(|| self.ticks.next(self.gp.now()));
        while !state.is_urgent && self.gp.now() < tick {
            callbacks.work.wait_until(&mut state, self.gp.instant(tick));
        }
        callbacks.worker.set_running();
        state.is_urgent = false;
        true
    }

    /// Frees what the callers have not freed: they may never call again.
    fn free_all<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (over, lists) = (state.remove_finished(), state.lists.clone());
        drop(state);
        self.callbacks.free(&over);
        self.callbacks.free(&lists);
        self.callbacks.state.lock()
    }

    /// One pass over the callbacks that are queued now. Frees those whose callers cannot be relied
    /// on to free them.
    fn pass(&self, must_free: bool) {
        let callbacks = &self.callbacks;
        let mut state = callbacks.state.lock();
        let over = state.remove_finished();
        let (idle, busy): (Vec<_>, Vec<_>) = state.lists.iter().cloned().partition(|list| list.len() == 0);
        drop(state);
        callbacks.free(&over);
        callbacks.free(&idle);
        let busy: Vec<_> = busy.into_iter().map(|list| (list.queued(), list)).collect();
        if busy.is_empty() {
            return;
        }
        // After the look: the grace period serves all that were seen.
        self.wait_for(self.gp.get_state());
        let _running = Running::begin(self.address());
        for (queued, list) in busy {
            let is_slow = list.run(queued, COUNTED_AT_ONCE, |invoked| self.count(invoked == queued));
            if is_slow || must_free || callbacks.state.lock().waiters > 0 {
                callbacks.take(list.free());
            }
        }
    }

    /// Callbacks of one list have run. `are_last`: the last ones of that list in this pass.
    fn count(&self, are_last: bool) {
        if are_last {
            self.callbacks.wake_waiters();
        }
    }
}

/// Logs why there is no worker.
fn log_spawn_failure(error: Option<io::Error>) {
    if let Some(error) = error {
        tracing::error!(%error, "no thread for callbacks: they run when somebody waits for them, or one can be had");
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
