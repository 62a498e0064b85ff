//! The callers of a domain's callbacks, and its worker.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use sync::MutexGuard;
use sync::mutant::is_on;

use super::{COUNTED_AT_ONCE, State, WAITING_FOR_TICK};
use crate::inner::Inner;
use crate::local;
use crate::work::Work;
use crate::workers;

/// A pass begins before its tick if a list holds so many: their data is still in the
/// processor's cache, and enough of them share the grace period. Analogous to Linux's `qhimark`.
/// Low in models.
const QHIMARK: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 4096 };

/// Models have no clock: they wait for no tick.
const IS_MODEL: bool = cfg!(any(loom, shuttle));

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
    fn is_run_here(&self) -> bool {
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

    /// The clock was moved: the worker reads it.
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
            // C1: only the check that follows misses nothing.
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
        // After the count: the grace period serves all that were seen.
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
        tracing::error!(%error, "cannot start a callback worker: callbacks run when a caller waits for them, or once a worker starts");
    }
}
