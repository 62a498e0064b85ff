//! Deferred calls, their bound, and their barrier.
//!
//! A thread puts its callbacks into a queue of its own ([`crate::queue`]), without a lock and without a line that
//! others write. A domain with work to do has one worker thread, of its own while it has work (module `workers`):
//! one whose readers or callbacks take long must hold up no other domain's.
//!
//! # A pass
//! The worker looks how much each queue holds, lets a grace period pass, runs that much of each queue in order and
//! counts it *after* it ran: a barrier waits for the counts, so that it waits for callbacks that are running, too.
//! One grace period that begins after the look serves all that were seen.
//!
//! A pass begins at a tick, or earlier: if somebody waits for callbacks, or many are waiting. A worker that is needed for its first pass comes
//! at the tick: until then it is only a ticket at those who rest.
//!
//! # The bound
//! `backlog` counts callbacks from their call until their memory is given back, so that it bounds both. A caller adds
//! what it has put in a block at a time, at its first call and when it ends, so that each living thread may have one less than a block besides.
//! Who finds the backlog full waits. Who must not wait, because it is in a section (of this domain: it would wait for itself; of another one: a callback here
//! may wait for that one's grace period), looks again at each call, and waits at the first one outside. Callbacks of any domain do not wait: two domains' workers could
//! wait for each other. Neither does a thread that is ending, whose sections nobody can find.
//!
//! # State
//! | field | holds | protected by |
//! |---|---|---|
//! | `queues` | every thread's queue | `state` |
//! | `removed` | how many works ran in queues that are gone | `state` |
//! | `tick`, `ticket` | when a worker is to begin that has not come yet | `state` |
//! | `has_worker`, `is_urgent`, `waiters` | whether there is a worker; it must not wait for the tick; who waits for callbacks | `state` |
//! | `lack` | whether there was no thread when one was last asked for: it is logged once | `state` |
//! | `alert` | what the worker has to be told of | atomic, C1 |
//! | `backlog` | callbacks whose memory is not given back, less what callers have not added; so it may be negative | atomic, C2 |
//!
//! # Orderings
//! * C1 caller: put a work in, light fence, load `alert`. Worker: store `alert`, heavy fence, look at the queues. Either
//!   the caller sees that there is no worker, and gets one, or the worker sees the work.
//! * C2 `backlog` is a count. Who sleeps because of it looks under `state`; who takes it below the lower bound takes the lock before it wakes.
//!
//! # Lock order
//! `state`, then what module `workers` says. Callbacks run under the lock of their queue's running end, which only who runs them takes.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use sync::mutant::is_on;
use sync::{Condvar, Mutex, MutexGuard};

use crate::barrier::{heavy, light};
use crate::domain::Inner;
use crate::local;
use crate::queue::{Queue, Sender};
use crate::work::Work;
use crate::workers;

/// A pass begins before its tick if so many wait: what they hold is still in the processor's cache, and grace periods
/// are shared by enough of them.
/// Models have no such crowds.
const CROWD: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 4096 };

/// Callbacks run between two counts of them.
const COUNTED_AT_ONCE: u64 = 64;

/// Works of a thread that are added to the backlog together, where the bound is large enough.
const BLOCK: u64 = 64;

/// There is no clock in a model: no tick is waited for.
const IS_MODEL: bool = cfg!(any(loom, shuttle));

/// Something that runs what it is given, later and elsewhere.
pub trait WorkQueue: Send + Sync + 'static {
    /// Takes `work`. Must not wait for long: it is called by the domain's worker.
    fn push(&self, work: Box<dyn FnOnce() + Send>);
}

/// What a worker has to be told of. On a line of its own: every caller reads it.
#[derive(Debug)]
#[repr(align(128))]
pub struct Alert(AtomicU8);

/// Of every callback: there is none.
const OF_ANY: u8 = 0;
/// Of a crowd: it waits for its tick.
const OF_A_CROWD: u8 = 1;
/// Of nothing: it is at work, and looks again.
const OF_NOTHING: u8 = 2;

impl Alert {
    /// There is no worker.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU8::new(OF_ANY))
    }

    /// Who looks at the queues after this misses no callback whose caller does not find that it must tell.
    pub fn of_any(&self, is_asymmetric: bool) {
        // ORDERING: Relaxed, C1 with the fence.
        self.0.store(OF_ANY, Ordering::Relaxed);
        if !is_on("rcu-no-heavy-fence-before-rest") {
            heavy(is_asymmetric);
        }
    }

    /// Whether who has just put a callback in must tell.
    #[inline]
    pub fn is_of_any(&self, is_asymmetric: bool) -> bool {
        if is_asymmetric {
            if !is_on("rcu-no-light-fence-on-call") {
                light();
            }
        } else if !is_on("rcu-no-fence-on-call") {
            // ORDERING: SeqCst, C1.
            fence(Ordering::SeqCst);
        }
        // ORDERING: Relaxed, C1 with the fence.
        self.0.load(Ordering::Relaxed) == OF_ANY
    }

    /// Who calls is at work, and looks at the queues again before it rests.
    pub fn of_nothing(&self) {
        self.set(OF_NOTHING);
    }

    fn is_of_a_crowd(&self) -> bool {
        // ORDERING: Relaxed. Who misses it looks again a block later, and the tick comes.
        self.0.load(Ordering::Relaxed) == OF_A_CROWD
    }

    fn set(&self, level: u8) {
        // ORDERING: Relaxed. Who still sees `OF_ANY` takes the lock for nothing.
        self.0.store(level, Ordering::Relaxed);
    }
}

impl Default for Alert {
    fn default() -> Self {
        Self::new()
    }
}

/// A domain's callbacks.
#[derive(Debug)]
pub(crate) struct Callbacks {
    alert: Alert,
    backlog: AtomicU64,
    bounds: Bounds,
    state: Mutex<State>,
    /// For the worker: do not wait for the tick.
    work: Condvar,
    /// For callers and barriers: callbacks have run.
    ran: Condvar,
}

/// How much may wait.
#[derive(Debug)]
struct Bounds {
    /// Who finds so many waits.
    max: i64,
    /// Who waits goes on below: a quarter is free, for one callback's sake nobody is woken.
    low: i64,
    /// Works of a thread that are added together.
    block: u64,
}

#[derive(Debug, Default)]
struct State {
    queues: Vec<Arc<Queue>>,
    removed: u64,
    has_worker: bool,
    tick: Option<Duration>,
    ticket: Option<workers::Ticket>,
    is_urgent: bool,
    waiters: usize,
    lack: workers::Lack,
}

sync::thread_local! {
    /// The domain whose callbacks this thread runs: it must not wait for them.
    static RUNS: Cell<usize> = const { Cell::new(NO_DOMAIN) };
}

/// No domain has this address.
const NO_DOMAIN: usize = 0;

/// The address of the domain whose callbacks this thread runs.
fn running() -> usize {
    RUNS.try_with(Cell::get).unwrap_or(NO_DOMAIN)
}

/// While it lives the thread runs a domain's callbacks.
struct Running {
    /// Those of which one is under way.
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
            alert: Alert::new(),
            backlog: AtomicU64::new(0),
            bounds: Bounds { max, low: max - max / 4, block },
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            ran: Condvar::new(),
        }
    }

    /// How many were ever queued, and how many have run.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        let sum = |count: fn(&Queue) -> u64| {
            state.queues.iter().fold(state.removed, |sum, queue| sum + count(queue))
        };
        // In this order, so that no more have run than were queued.
        let ran = sum(Queue::ran);
        (sum(Queue::put), ran)
    }

    /// A queue for a thread.
    pub(crate) fn join(&self) -> Sender {
        let sender = Sender::new();
        self.state.lock().queues.push(Arc::clone(sender.queue()));
        sender
    }

    /// A thread's queue has got its last work.
    pub(crate) fn part(&self, sender: Sender) {
        self.add(sender.untold.works);
        drop(sender);
        let over = self.state.lock().forget_what_is_over();
        self.free(&over);
    }

    fn backlog(&self) -> i64 {
        // ORDERING: Relaxed, C2.
        self.backlog.load(Ordering::Relaxed).cast_signed()
    }

    /// Adds works; gives the backlog then.
    fn add(&self, works: u64) -> i64 {
        // ORDERING: Relaxed, C2.
        (self.backlog.fetch_add(works, Ordering::Relaxed).wrapping_add(works)).cast_signed()
    }

    /// Takes works away whose memory was given back, and wakes who waits for that.
    fn take(&self, works: u64) {
        // ORDERING: Relaxed, C2.
        let before = self.backlog.fetch_sub(works, Ordering::Relaxed).cast_signed();
        let makes_room = before >= self.bounds.low && before - works.cast_signed() < self.bounds.low;
        if makes_room {
            self.wake_waiters();
        }
    }

    /// Gives back the memory of what has run.
    fn free(&self, queues: &[Arc<Queue>]) {
        self.take(queues.iter().map(|queue| queue.free()).sum());
    }

    #[cold]
    fn wake_waiters(&self) {
        if !is_on("rcu-ran-untold") && self.state.lock().waiters > 0 {
            self.ran.notify_all();
        }
    }
}

impl Drop for Callbacks {
    /// The domain has no readers any more, and no worker: what is left, because no thread could be had, runs here.
    fn drop(&mut self) {
        for queue in std::mem::take(&mut self.state.lock().queues) {
            queue.run(queue.put(), COUNTED_AT_ONCE, |_| ());
        }
    }
}

impl Inner {
    /// Queues a callback. Who fills the domain's queues up waits until there is room again, if it may.
    #[inline]
    pub(crate) fn call(&self, work: Work) {
        let must_look = local::with_sender(self, |sender| {
            let freed = sender.push(work);
            if freed > 0 {
                self.callbacks.take(freed);
            }
            sender.untold.works += 1;
            sender.untold.works >= sender.untold.at
        });
        if self.callbacks.alert.is_of_any(self.gate.is_asymmetric()) {
            self.get_worker();
        }
        if must_look {
            self.look_at_backlog();
        }
    }

    #[cold]
    fn get_worker(&self) {
        let lacking = self.wake_worker(&mut self.callbacks.state.lock());
        log_lack(lacking);
    }

    /// Adds what this thread has put in, and waits if it is too much.
    #[cold]
    fn look_at_backlog(&self) {
        let callbacks = &self.callbacks;
        let (backlog, waiting) = local::with_sender(self, |sender| {
            let backlog = callbacks.add(std::mem::take(&mut sender.untold.works));
            sender.untold.at = callbacks.bounds.block;
            (backlog, sender.queue().waiting())
        });
        if waiting >= CROWD && callbacks.alert.is_of_a_crowd() {
            let mut state = (!is_on("rcu-crowd-unlocked")).then(|| callbacks.state.lock());
            // Under the lock: a worker that rests meanwhile wants to be told of the next call.
            if state.is_none() || callbacks.alert.is_of_a_crowd() {
                state.iter_mut().for_each(|state| state.is_urgent = true);
                callbacks.alert.of_nothing();
                callbacks.work.notify_one();
                state.iter_mut().for_each(|state| self.hurry(state));
            }
        }
        if backlog < callbacks.bounds.max {
            return;
        }
        if !self.may_wait() {
            local::with_sender(self, |sender| sender.untold.at = 1);
            return;
        }
        self.counters.slowed.add(1);
        let mut state = callbacks.state.lock();
        while callbacks.backlog() >= callbacks.bounds.low {
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
        let mut awaited: Vec<_> = state.queues.iter().map(|queue| (Arc::clone(queue), queue.put())).collect();
        loop {
            awaited.retain(|(queue, put)| !queue.has_run(*put));
            if awaited.is_empty() {
                return;
            }
            state = self.wait_for_callbacks(state);
        }
    }

    /// Waits until more callbacks have run; does the worker's work if there is none.
    fn wait_for_callbacks<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let callbacks = &self.callbacks;
        state.is_urgent = true;
        let lacking = self.wake_worker(&mut state);
        if state.has_worker {
            state.waiters += 1;
            callbacks.ran.wait(&mut state);
            state.waiters -= 1;
            return state;
        }
        drop(state);
        log_lack(lacking);
        self.pass(true);
        callbacks.state.lock()
    }

    /// Sees to it that there is a worker; what it gives is for [`log_lack`], without the lock.
    fn wake_worker(&self, state: &mut State) -> Option<io::Error> {
        let callbacks = &self.callbacks;
        if state.has_worker {
            callbacks.work.notify_one();
            if state.is_urgent {
                self.hurry(state);
            }
            return None;
        }
        // Whoever calls or waits next tries again.
        let asked = self.ask_for_worker(state);
        state.has_worker = asked.is_ok();
        state.lack.note(asked)
    }

    /// A worker that was to come at the tick comes now.
    fn hurry(&self, state: &mut State) {
        #[cfg(not(any(loom, shuttle)))]
        if let Some(ticket) = state.ticket.take()
            && !workers::hurry(ticket)
        {
            // Nobody comes: whoever calls or waits next tries again.
            state.has_worker = false;
            self.callbacks.alert.of_any(self.gate.is_asymmetric());
        }
        #[cfg(any(loom, shuttle))]
        let _ = (self, state);
    }

    /// Somebody has moved the clock: the worker has to look at it itself.
    pub(crate) fn clock_of_callbacks_moved(&self) {
        self.hurry(&mut self.callbacks.state.lock());
        self.callbacks.work.notify_all();
    }

    /// A worker comes at the tick, or at once if that is not waited for.
    fn ask_for_worker(&self, state: &mut State) -> io::Result<()> {
        let alert = &self.callbacks.alert;
        #[cfg(not(any(loom, shuttle)))]
        if !state.is_urgent {
            let tick = self.ticks.next(self.gate.now());
            state.ticket = Some(workers::serve_at(self, self.gate.instant(tick), Self::serve_callbacks)?);
            state.tick = Some(tick);
            alert.set(OF_A_CROWD);
            return Ok(());
        }
        let _ = &state;
        workers::serve(self, Self::serve_callbacks)?;
        alert.of_nothing();
        Ok(())
    }

    /// The worker, until there is nothing to do.
    fn serve_callbacks(&self) {
        while self.gather() {
            self.pass(false);
        }
    }

    /// Waits for work, and then for the tick. `false`: there is nothing to do, and the domain has no worker any more.
    fn gather(&self) -> bool {
        let callbacks = &self.callbacks;
        let mut state = callbacks.state.lock();
        state.ticket = None;
        let asked_for = state.tick.take();
        if state.waiting() == 0 {
            state = self.free_all(state);
        }
        if state.waiting() == 0 {
            // C1: the look that follows is the one that counts.
            callbacks.alert.of_any(self.gate.is_asymmetric());
            if state.waiting() == 0 || is_on("rcu-rest-unchecked") {
                state.has_worker = false;
                return false;
            }
        }
        callbacks.alert.set(OF_A_CROWD);
        state.is_urgent |= IS_MODEL || state.waiting() >= CROWD;
        let tick = asked_for.unwrap_or_else(|| self.ticks.next(self.gate.now()));
        while !state.is_urgent && self.gate.now() < tick {
            callbacks.work.wait_until(&mut state, self.gate.instant(tick));
        }
        callbacks.alert.of_nothing();
        state.is_urgent = false;
        true
    }

    /// Frees what the callers have not freed: they may never come again.
    fn free_all<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (over, queues) = (state.forget_what_is_over(), state.queues.clone());
        drop(state);
        self.callbacks.free(&over);
        self.callbacks.free(&queues);
        self.callbacks.state.lock()
    }

    /// Runs what is there now, and frees what its callers cannot be relied on to free.
    fn pass(&self, must_free: bool) {
        let callbacks = &self.callbacks;
        let mut state = callbacks.state.lock();
        let over = state.forget_what_is_over();
        let (idle, busy): (Vec<_>, Vec<_>) =
            state.queues.iter().cloned().partition(|queue| queue.waiting() == 0);
        drop(state);
        callbacks.free(&over);
        callbacks.free(&idle);
        let busy: Vec<_> = busy.into_iter().map(|queue| (queue.put(), queue)).collect();
        if busy.is_empty() {
            return;
        }
        // After the look: it serves all that were seen.
        self.wait_for(self.gate.get_state());
        let _running = Running::begin(self.address());
        for (put, queue) in busy {
            let is_slow = queue.run(put, COUNTED_AT_ONCE, |ran| self.count(ran == put));
            if is_slow || must_free || callbacks.state.lock().waiters > 0 {
                callbacks.take(queue.free());
            }
        }
    }

    /// Callbacks of one queue have run; these were the last ones of a pass.
    fn count(&self, are_last: bool) {
        if are_last {
            self.callbacks.wake_waiters();
        }
    }
}

/// Says why there is no worker.
fn log_lack(error: Option<io::Error>) {
    if let Some(error) = error {
        tracing::error!(%error, "no thread for callbacks: they run when somebody waits for them, or one can be had");
    }
}

impl State {
    /// Works that have not run.
    fn waiting(&self) -> u64 {
        self.queues.iter().map(|queue| queue.waiting()).sum()
    }

    /// Lets go of the queues of threads that have ended, and gives them: their memory is to be freed without the lock.
    fn forget_what_is_over(&mut self) -> Vec<Arc<Queue>> {
        let over: Vec<_> = self.queues.extract_if(.., |queue| queue.is_over()).collect();
        self.removed += over.iter().map(|queue| queue.ran()).sum::<u64>();
        over
    }
}
