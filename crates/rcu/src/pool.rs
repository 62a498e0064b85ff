//! Parked threads, and tasks that they are to do, now or later.
//!
//! A task for later wakes no thread, if one is parked that will check in time: parked threads keep
//! the time for all tasks. Each task has a thread of its own when its time comes, however long the
//! others take.
//!
//! # State (under the lock, which is a leaf)
//! | field | holds |
//! |---|---|
//! | `parked` | threads that wait here, or were started for it. At least one of them checks the tasks when the first is due |
//! | `tasks` | the tasks, by when they are due. Where there are some, a thread is parked, or none could be had |
//!
//! A thread that takes a task, or ends, and leaves tasks behind makes sure that another one checks
//! at these (`Pool::park`): the task that it took may take for ever.
//!
//! Models have no clock: module `time` says what they have instead.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use sync::mutant::is_on;
use sync::{Condvar, Mutex, MutexGuard};

/// How many threads may be parked.
const IDLE_THREADS_MAX: usize = 8;
/// For how long they are parked.
const IDLE_TIME: Duration = Duration::from_millis(250);

/// A task that was handed over: when it is due, and a number that no other has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(Option<Instant>, u64);

/// Threads, and tasks for them.
#[derive(Debug)]
pub struct Pool<T> {
    state: Mutex<State<T>>,
    task_queued: Condvar,
    /// Does a task. Does not panic.
    run: fn(T),
}

type Locked<'a, T> = MutexGuard<'a, State<T>>;

#[derive(Debug)]
struct State<T> {
    parked: usize,
    tasks: BTreeMap<Ticket, T>,
    /// How many tasks there were so far.
    tickets: u64,
    /// Threads that are parked have been so for long.
    #[cfg(shuttle)]
    is_late: bool,
}

impl<T> State<T> {
    fn first(&self) -> Option<Ticket> {
        self.tasks.first_key_value().map(|(&ticket, _)| ticket)
    }
}

impl<T: Send + 'static> Pool<T> {
    /// A pool without threads.
    pub fn new(run: fn(T)) -> Self {
        let state = State {
            parked: 0,
            tasks: BTreeMap::new(),
            tickets: 0,
            #[cfg(shuttle)]
            is_late: false,
        };
        Self { state: Mutex::new(state), task_queued: Condvar::new(), run }
    }

    /// Has a thread do the task: at that time if one is given, or once [`expedite`](Self::expedite)
    /// is called. Wakes a parked thread only if that would check too late.
    ///
    /// # Errors
    /// Where no thread can be had.
    pub fn hand_over(&'static self, task: T, at: Option<Instant>) -> io::Result<Ticket> {
        let mut state = self.state.lock();
        self.get_thread(&mut state)?;
        state.tickets += 1;
        let ticket = Ticket(at, state.tickets);
        state.tasks.insert(ticket, task);
        let is_first = state.first() == Some(ticket) && !is_on("rcu-pool-first-untold");
        drop(state);
        if is_first || at.is_none() {
            self.task_queued.notify_one();
        }
        Ok(ticket)
    }

    /// Makes a task due now. `false`: it was taken back, because no thread can be had.
    pub fn expedite(&'static self, ticket: Ticket) -> bool {
        let mut state = self.state.lock();
        // Otherwise a thread has it.
        let Some(task) = state.tasks.remove(&ticket) else { return true };
        if self.get_thread(&mut state).is_err() {
            drop(state);
            return false;
        }
        state.tasks.insert(Ticket(None, ticket.1), task);
        drop(state);
        if !is_on("rcu-pool-hurry-untold") {
            self.task_queued.notify_one();
        }
        true
    }

    /// Makes sure that a thread is parked. Those that work do not count: they may do so for ever.
    fn get_thread(&'static self, state: &mut State<T>) -> io::Result<()> {
        if state.parked == 0 {
            // A new thread would inherit what the caller's has for itself.
            sync::thread::will_make_threads();
            let thread = sync::thread::Builder::new().name("rcu-worker".into());
            thread.spawn(|| self.live()).map(drop)?;
            state.parked = 1;
        }
        Ok(())
    }

    /// A thread's body.
    fn live(&'static self) {
        // By the thread that started this one.
        let mut is_counted = true;
        while let Some(task) = self.park(is_counted) {
            (self.run)(task);
            is_counted = false;
        }
    }

    /// Waits for a task that is due; `None`: the thread ends.
    fn park(&'static self, is_counted: bool) -> Option<T> {
        let mut state = self.state.lock();
        state.parked += usize::from(!is_counted);
        let (mut state, task) = self.take(state);
        state.parked -= 1;
        if state.tasks.is_empty() {
            return task;
        }
        let others = if is_on("rcu-pool-no-successor") { Ok(()) } else { self.get_thread(&mut state) };
        drop(state);
        if !is_on("rcu-pool-successor-untold") {
            self.task_queued.notify_one();
        }
        if let Err(error) = others {
            log(&error);
        }
        task
    }

    /// The first task once it is due; `None`: the caller is not needed any more.
    fn take<'a>(&'a self, mut state: Locked<'a, T>) -> (Locked<'a, T>, Option<T>) {
        let mut until = None;
        loop {
            let first = state.first();
            if let Some(Ticket(None, _)) = first {
                break;
            }
            let now = time::now();
            let due = first.and_then(|Ticket(at, _)| at);
            if due.is_some_and(|due| time::has_come(due, now)) {
                break;
            }
            let until = *until.get_or_insert(now + IDLE_TIME);
            let is_needed = due.is_some() && state.parked == 1;
            if !is_needed && (state.parked > IDLE_THREADS_MAX || time::is_late(&state, until, now)) {
                return (state, None);
            }
            let wake = due.map_or(until, |due| if is_needed { due } else { due.min(until) });
            state = time::wait(self, state, wake);
        }
        let task = state.tasks.pop_first().map(|(_, task)| task);
        (state, task)
    }
}

/// No second thread can be had: the tasks wait for this one. A subscriber of the log may panic,
/// which must not end this thread.
fn log(error: &io::Error) {
    let _told = catch_unwind(AssertUnwindSafe(
        || tracing::error!(%error, "cannot start a second thread for callbacks"),
    ));
}

#[cfg(not(shuttle))]
mod time {
    use super::{Instant, Locked, Pool, State};

    pub(super) fn now() -> Instant {
        Instant::now()
    }

    pub(super) fn has_come(at: Instant, now: Instant) -> bool {
        at <= now
    }

    pub(super) fn is_late<T>(_: &State<T>, until: Instant, now: Instant) -> bool {
        until <= now
    }

    pub(super) fn wait<'a, T>(pool: &'a Pool<T>, mut state: Locked<'a, T>, until: Instant) -> Locked<'a, T> {
        pool.task_queued.wait_until(&mut state, until);
        state
    }
}

/// Time in a model: always the same moment. A task that is due then is done soon; a parked thread
/// may have been parked for long.
#[cfg(shuttle)]
#[doc(hidden)]
pub mod time {
    use std::sync::LazyLock;

    use super::{Instant, Locked, Pool, State};

    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);

    /// The one moment that there is.
    #[must_use]
    pub fn now() -> Instant {
        *NOW
    }

    /// All threads that are parked, or will be, have been so for long.
    pub fn end<T>(pool: &Pool<T>) {
        pool.state.lock().is_late = true;
        pool.task_queued.notify_all();
    }

    pub(super) fn has_come(at: Instant, now: Instant) -> bool {
        at <= now && sync::model::maybe()
    }

    pub(super) fn is_late<T>(state: &State<T>, _: Instant, _: Instant) -> bool {
        state.is_late || sync::model::maybe()
    }

    /// Waits for the next due task. Without a due time a thread may wait for ever unless it is
    /// woken.
    pub(super) fn wait<'a, T>(pool: &'a Pool<T>, mut state: Locked<'a, T>, until: Instant) -> Locked<'a, T> {
        if until > now() {
            pool.task_queued.wait(&mut state);
            return state;
        }
        drop(state);
        sync::thread::yield_now();
        pool.state.lock()
    }
}
