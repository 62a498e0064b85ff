//! Deferred calls, their bound, and their barrier.
//!
//! A domain with work to do has one worker thread, which ends when it has had none for a while. A worker of its
//! own for each domain: one whose readers or callbacks take long must hold up no other domain's.
//!
//! # State (all under `Callbacks::state`)
//! | field | holds |
//! |---|---|
//! | `waiting` | callbacks not yet taken, in order |
//! | `queued`, `run` | how many were ever queued, and have run to their end; they wrap with `u64` |
//! | `wanted` | a grace period that somebody polls for |
//! | `worker` | the worker's thread, while there is one |
//!
//! The worker takes all that waits, lets a grace period pass, runs them in order and counts each *after* it
//! ran: a barrier waits for the count, so that it waits for callbacks that are running, too. One grace period
//! that begins after the taking serves all that were taken.
//!
//! Lock order: `state` is a leaf; callbacks run with no lock held.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use sync::{Condvar, Mutex, MutexGuard};

use crate::domain::Inner;
use crate::seq::{Cookie, is_at_least};

/// A worker that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_millis(250);

/// Callbacks run between two counts of them.
const COUNTED_AT_ONCE: usize = 64;

/// Something that runs what it is given, later and elsewhere.
pub trait WorkQueue: Send + Sync + 'static {
    /// Takes `work`. Must not wait for long: it is called by the domain's worker.
    fn push(&self, work: Box<dyn FnOnce() + Send>);
}

type Work = Box<dyn FnOnce() + Send>;

/// A domain's callbacks.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    state: Mutex<State>,
    /// For the worker: there is work.
    work: Condvar,
    /// For callers and barriers: callbacks have run.
    ran: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Work>,
    queued: u64,
    run: u64,
    wanted: Option<Cookie>,
    worker: Option<Option<ThreadId>>,
    /// Somebody waits for callbacks: do not wait for a tick.
    is_urgent: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

impl Callbacks {
    /// How many were ever queued, and how many have run.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.queued, state.run)
    }
}

impl Inner {
    /// Queues a callback; waits first while there are too many, if it may.
    pub(crate) fn call(self: &Arc<Self>, work: Work, may_wait: bool) {
        let callbacks = &self.callbacks;
        let mut state = callbacks.state.lock();
        let is_full = |state: &State| {
            usize::try_from(state.queued.wrapping_sub(state.run)).unwrap_or(usize::MAX)
                >= self.options.callbacks_max
        };
        if is_full(&state) && may_wait && !state.is_worker() {
            self.counters.slowed.add(1);
            while is_full(&state) {
                state = self.wait_for_callbacks(state);
            }
        }
        state.waiting.push(work);
        state.queued = state.queued.wrapping_add(1);
        if state.waiting.len() == 1 {
            self.wake_worker(&mut state);
        }
    }

    /// Sees to it that this grace period comes.
    pub(crate) fn ask(self: &Arc<Self>, cookie: Cookie) {
        let mut state = self.callbacks.state.lock();
        // The later of the two: it serves both.
        if state.wanted.is_none_or(|wanted| is_at_least(cookie.0, wanted.0)) {
            state.wanted = Some(cookie);
        }
        self.wake_worker(&mut state);
    }

    pub(crate) fn barrier(self: &Arc<Self>) {
        let callbacks = &self.callbacks;
        let mut state = callbacks.state.lock();
        assert!(!state.is_worker(), "a barrier in a callback of the same domain would wait for itself");
        let queued = state.queued;
        // By distance: both counts go around.
        while state.run.wrapping_sub(queued) >= 1 << 63 {
            state = self.wait_for_callbacks(state);
        }
    }

    /// Waits until more callbacks have run; does the worker's work if there is none.
    fn wait_for_callbacks<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        state.is_urgent = true;
        self.wake_worker(&mut state);
        if state.worker.is_some() {
            self.callbacks.ran.wait(&mut state);
            return state;
        }
        let work = std::mem::take(&mut state.waiting);
        drop(state);
        self.wait_for(self.gate.get_state());
        self.run_all(work);
        self.callbacks.state.lock()
    }

    fn wake_worker(self: &Arc<Self>, state: &mut State) {
        if state.worker.is_some() {
            self.callbacks.work.notify_one();
            return;
        }
        let inner = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("rcu-worker".into()).spawn(move || inner.serve());
        match spawned {
            // Its number is noted by itself; until then it runs no callback.
            Ok(_detached) => state.worker = Some(None),
            // Whoever calls, polls or waits next tries again.
            Err(error) => tracing::error!(%error, "no thread for callbacks"),
        }
    }

    /// The worker.
    fn serve(&self) {
        self.callbacks.state.lock().worker = Some(Some(std::thread::current().id()));
        while let Some((work, wanted)) = self.next_work() {
            let cookie = if work.is_empty() { wanted } else { Some(self.gate.get_state()) };
            if let Some(cookie) = cookie {
                self.wait_for(cookie);
            }
            self.run_all(work);
        }
    }

    /// Waits for work, and then for the tick; `None`: the worker has ended.
    fn next_work(&self) -> Option<(Vec<Work>, Option<Cookie>)> {
        let callbacks = &self.callbacks;
        let mut state = callbacks.state.lock();
        let idle_until = Instant::now() + IDLE;
        while state.waiting.is_empty() && state.wanted.is_none() {
            if callbacks.work.wait_until(&mut state, idle_until)
                && state.waiting.is_empty()
                && state.wanted.is_none()
            {
                state.worker = None;
                return None;
            }
        }
        let tick = Instant::now() + self.until_tick();
        let is_crowded = |state: &State| state.waiting.len() >= self.options.callbacks_max / 2;
        while !state.is_urgent && !is_crowded(&state) && !callbacks.work.wait_until(&mut state, tick) {}
        state.is_urgent = false;
        Some((std::mem::take(&mut state.waiting), state.wanted.take()))
    }

    fn run_all(&self, work: Vec<Work>) {
        let mut work = work.into_iter();
        while work.len() > 0 {
            let mut run = 0;
            for one in work.by_ref().take(COUNTED_AT_ONCE) {
                if catch_unwind(AssertUnwindSafe(one)).is_err() {
                    tracing::error!("a callback panicked");
                }
                run += 1;
            }
            let mut state = self.callbacks.state.lock();
            state.run = state.run.wrapping_add(run);
            drop(state);
            self.callbacks.ran.notify_all();
        }
    }
}

impl State {
    /// Whether the caller is the worker, in a callback.
    fn is_worker(&self) -> bool {
        self.worker == Some(Some(std::thread::current().id()))
    }
}
