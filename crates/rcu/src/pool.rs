//! Threads that rest, and what they are to do, now or later.
//!
//! Whoever has something for later wakes nobody, if one rests that will look in time: those who rest keep the time for all. Each task has a
//! thread of its own when its time comes, however long the others take.
//!
//! # State (under the lock, which is a leaf)
//! | field | holds |
//! |---|---|
//! | `resting` | threads that wait here, or were started for it. One of them at least looks at the tasks when the first is due |
//! | `tasks` | what they will do, by when. Where there are some somebody rests, or no thread could be had |
//!
//! Whoever takes a task, or leaves, and leaves tasks behind, sees to it that somebody else looks at these (`Pool::rest`): what it took may take for ever.
//!
//! Models have no clock: module `time` says what they have instead.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use sync::mutant::is_on;
use sync::{Condvar, Mutex, MutexGuard};

/// So many may rest.
const MANY: usize = 8;
/// For so long.
const IDLE: Duration = Duration::from_millis(250);

/// A task that is for later. By when, and none twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(Option<Instant>, u64);

/// Threads, and tasks for them.
#[derive(Debug)]
pub struct Pool<T> {
    state: Mutex<State<T>>,
    told: Condvar,
    /// Does a task; does not panic.
    run: fn(T),
}

type Locked<'a, T> = MutexGuard<'a, State<T>>;

#[derive(Debug)]
struct State<T> {
    resting: usize,
    tasks: BTreeMap<Ticket, T>,
    /// Tasks so far.
    tickets: u64,
    /// Who rests has rested for long.
    #[cfg(shuttle)]
    is_late: bool,
}

impl<T> State<T> {
    fn first(&self) -> Option<Ticket> {
        self.tasks.first_key_value().map(|(&ticket, _)| ticket)
    }
}

impl<T: Send + 'static> Pool<T> {
    /// One without threads.
    pub fn new(run: fn(T)) -> Self {
        let state = State {
            resting: 0,
            tasks: BTreeMap::new(),
            tickets: 0,
            #[cfg(shuttle)]
            is_late: false,
        };
        Self { state: Mutex::new(state), told: Condvar::new(), run }
    }

    /// Has a thread do the task, at that time if one is given, or once [`hurry`](Self::hurry) is called. One that rests is told only if it would look too late.
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
            self.told.notify_one();
        }
        Ok(ticket)
    }

    /// What is for later is for now. `false`: it was taken back, because no thread can be had.
    pub fn hurry(&'static self, ticket: Ticket) -> bool {
        let mut state = self.state.lock();
        // Else a thread has it.
        let Some(task) = state.tasks.remove(&ticket) else { return true };
        if self.get_thread(&mut state).is_err() {
            drop(state);
            return false;
        }
        state.tasks.insert(Ticket(None, ticket.1), task);
        drop(state);
        if !is_on("rcu-pool-hurry-untold") {
            self.told.notify_one();
        }
        true
    }

    /// Somebody is there to look. Those who work do not count: they may do so for ever.
    fn get_thread(&'static self, state: &mut State<T>) -> io::Result<()> {
        if state.resting == 0 {
            // A new thread would inherit what the caller's has for itself.
            sync::thread::will_make_threads();
            let thread = sync::thread::Builder::new().name("rcu-worker".into());
            thread.spawn(|| self.live()).map(drop)?;
            state.resting = 1;
        }
        Ok(())
    }

    /// A thread's life.
    fn live(&'static self) {
        // By who started it.
        let mut is_counted = true;
        while let Some(task) = self.rest(is_counted) {
            (self.run)(task);
            is_counted = false;
        }
    }

    /// Waits for a task that is due; `None`: the thread ends.
    fn rest(&'static self, is_counted: bool) -> Option<T> {
        let mut state = self.state.lock();
        state.resting += usize::from(!is_counted);
        let (mut state, task) = self.take(state);
        state.resting -= 1;
        if state.tasks.is_empty() {
            return task;
        }
        let others = if is_on("rcu-pool-no-successor") { Ok(()) } else { self.get_thread(&mut state) };
        drop(state);
        if !is_on("rcu-pool-successor-untold") {
            self.told.notify_one();
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
            let until = *until.get_or_insert(now + IDLE);
            let is_needed = due.is_some() && state.resting == 1;
            if !is_needed && (state.resting > MANY || time::is_late(&state, until, now)) {
                return (state, None);
            }
            let wake = due.map_or(until, |due| if is_needed { due } else { due.min(until) });
            state = time::wait(self, state, wake);
        }
        let task = state.tasks.pop_first().map(|(_, task)| task);
        (state, task)
    }
}

/// No second thread can be had: the tasks wait for this one, and for who cannot wait. Whoever hears of it may panic, and is not to end this thread.
fn log(error: &io::Error) {
    let _told = catch_unwind(AssertUnwindSafe(|| tracing::error!(%error, "no second thread for callbacks")));
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
        pool.told.wait_until(&mut state, until);
        state
    }
}

/// It is always the same moment. What is due then comes soon, and who rests may have rested for long; nothing else comes.
#[cfg(shuttle)]
#[doc(hidden)]
pub mod time {
    use std::sync::LazyLock;

    use super::{Instant, Locked, Pool, State};

    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);

    /// The moment.
    #[must_use]
    pub fn now() -> Instant {
        *NOW
    }

    /// Who rests has rested for long, and so has whoever will.
    pub fn end<T>(pool: &Pool<T>) {
        pool.state.lock().is_late = true;
        pool.told.notify_all();
    }

    pub(super) fn has_come(at: Instant, now: Instant) -> bool {
        at <= now && sync::model::maybe()
    }

    pub(super) fn is_late<T>(state: &State<T>, _: Instant, _: Instant) -> bool {
        state.is_late || sync::model::maybe()
    }

    /// Until what comes soon. Who rests without that may do so for ever unless it is told.
    pub(super) fn wait<'a, T>(pool: &'a Pool<T>, mut state: Locked<'a, T>, until: Instant) -> Locked<'a, T> {
        if until > now() {
            pool.told.wait(&mut state);
            return state;
        }
        drop(state);
        sync::thread::yield_now();
        pool.state.lock()
    }
}
