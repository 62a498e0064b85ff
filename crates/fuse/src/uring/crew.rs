//! The serving threads: which are there, which rest, which are still needed.
//!
//! Purpose: [`Crew::assign`] finds a thread for an entry with a request; [`Crew::rest`] is where
//! threads without an entry wait for one, and end when none came for [`REST`].
//!
//! # State
//! `CrewState` is under its mutex; `Crew::pending` counts `CrewState::pending`.
//!
//! # Lock order
//! `Crew::state`, then `Bunk::place`.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicUsize, Ordering};
use sync::{Condvar, Mutex};

use super::entry::Entry;

/// How long a thread that is not needed is kept.
const REST: Duration = Duration::from_secs(10);

/// The serving threads of one session.
#[derive(Debug)]
pub(super) struct Crew {
    threads_max: usize,
    pending: AtomicUsize,
    state: Mutex<CrewState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CrewState {
    /// Threads that live, with their handles.
    threads: HashMap<usize, JoinHandle<()>>,
    /// Threads that have nothing left to do, or next to nothing.
    leaving: Vec<JoinHandle<()>>,
    next_number: usize,
    resting: Vec<Arc<Bunk>>,
    /// Entries for which there was no thread.
    pending: VecDeque<Entry>,
    ended: bool,
}

/// Where one thread rests.
#[derive(Debug, Default)]
pub(super) struct Bunk {
    place: Mutex<Place>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Place {
    entry: Option<Entry>,
    is_over: bool,
}

impl Bunk {
    fn put(&self, entry: Entry) {
        self.place.lock().entry = Some(entry);
        self.wake.notify_one();
    }

    fn end(&self) {
        self.place.lock().is_over = true;
        self.wake.notify_one();
    }

    /// Takes the entry that was put here before the thread began.
    pub(super) fn take(&self) -> Option<Entry> {
        self.place.lock().entry.take()
    }

    /// Waits for an entry or the end: `Err` when `until` came first.
    fn wait(&self, until: Option<Instant>) -> Result<Option<Entry>, ()> {
        let mut place = self.place.lock();
        loop {
            if let Some(entry) = place.entry.take() {
                return Ok(Some(entry));
            }
            if place.is_over {
                return Ok(None);
            }
            match until {
                None => self.wake.wait(&mut place),
                Some(until) => {
                    if self.wake.wait_until(&mut place, until) && place.entry.is_none() && !place.is_over {
                        return Err(());
                    }
                }
            }
        }
    }
}

/// The arguments of a new thread.
#[derive(Debug)]
pub(super) struct Recruit {
    pub(super) number: usize,
    /// Where the first entry is.
    pub(super) bunk: Arc<Bunk>,
}

impl Crew {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            threads_max,
            pending: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    /// Has a thread serve an entry's request: one that rests, or a new one that `spawn` makes, or
    /// the next that is free. Without any thread the entry comes back.
    pub(super) fn assign(
        &self,
        entry: Entry,
        spawn: impl FnOnce(Recruit) -> io::Result<JoinHandle<()>>,
    ) -> Result<(), Entry> {
        let mut state = self.state.lock();
        if state.ended {
            // The connection has ended; no caller waits for an answer.
            return Ok(());
        }
        if let Some(bunk) = state.resting.pop() {
            bunk.put(entry);
            return Ok(());
        }
        if state.threads.len() >= self.threads_max {
            state.pending.push_back(entry);
            // ORDERING: Relaxed, a hint: see `is_needed`.
            self.pending.store(state.pending.len(), Ordering::Relaxed);
            return Ok(());
        }
        let (number, bunk) = (state.next_number, Arc::new(Bunk::default()));
        bunk.put(entry);
        match spawn(Recruit { number, bunk: Arc::clone(&bunk) }) {
            Ok(handle) => {
                state.next_number += 1;
                state.threads.insert(number, handle);
                state.leaving.retain(|handle| !handle.is_finished());
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "no further thread to serve requests");
                bunk.take().map_or(Ok(()), Err)
            }
        }
    }

    /// Registers a thread that does something else for the session.
    pub(super) fn add(&self, handle: JoinHandle<()>) -> usize {
        let mut state = self.state.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.threads.insert(number, handle);
        number
    }

    /// Whether requests wait for a thread: one that is about to wait for its own next one should
    /// hand its entry over and [`rest`](Self::rest) instead.
    pub(super) fn is_needed(&self) -> bool {
        // ORDERING: Relaxed, a hint. Requests wait only when so many threads are in calls whose
        // callers were killed that the bound is reached; each of these comes to `rest` when its
        // call returns, and sees them under the lock.
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// Waits, without an entry, for one with a request. `None`: this thread is not needed any more.
    pub(super) fn rest(&self, bunk: &Arc<Bunk>) -> Option<Entry> {
        {
            let mut state = self.state.lock();
            if state.ended {
                return None;
            }
            if let Some(entry) = state.pending.pop_front() {
                // ORDERING: Relaxed, as in `assign`.
                self.pending.store(state.pending.len(), Ordering::Relaxed);
                return Some(entry);
            }
            state.resting.push(Arc::clone(bunk));
        }
        if let Ok(entry) = bunk.wait(Some(Instant::now() + REST)) {
            return entry;
        }
        let mut state = self.state.lock();
        let before = state.resting.len();
        state.resting.retain(|other| !Arc::ptr_eq(other, bunk));
        if state.resting.len() < before {
            return None;
        }
        drop(state);
        // Another thread took it from the list, and is putting an entry there.
        bunk.wait(None).unwrap_or(None)
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.pending.clear();
        for bunk in state.resting.drain(..) {
            bunk.end();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A thread is about to end.
    pub(super) fn left(&self, number: usize) {
        let mut state = self.state.lock();
        let handle = state.threads.remove(&number);
        state.leaving.extend(handle);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the threads to end, until `until` at the latest. Says how many are left.
    pub(super) fn wait(&self, until: Instant) -> usize {
        let mut state = self.state.lock();
        while !state.threads.is_empty() {
            if self.changed.wait_until(&mut state, until) {
                break;
            }
        }
        let stuck = state.threads.len();
        let leaving = std::mem::take(&mut state.leaving);
        drop(state);
        for handle in leaving {
            if handle.join().is_err() {
                tracing::error!("a serving thread panicked outside a request");
            }
        }
        stuck
    }

    /// How many threads there are.
    pub(super) fn threads(&self) -> usize {
        self.state.lock().threads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry::new(0).unwrap()
    }

    fn must_not_spawn(_: Recruit) -> io::Result<JoinHandle<()>> {
        panic!("a thread was made")
    }

    /// A thread that serves by counting, and rests in between.
    fn spawn(crew: &Arc<Crew>, served: &Arc<AtomicUsize>, recruit: Recruit) -> io::Result<JoinHandle<()>> {
        let (crew, served) = (Arc::clone(crew), Arc::clone(served));
        Ok(std::thread::spawn(move || {
            let mut entry = recruit.bunk.take();
            while entry.is_some() {
                // ORDERING: SeqCst here and in the tests' loads: a count of the tests, on which
                // nothing else rests.
                served.fetch_add(1, Ordering::SeqCst);
                entry = crew.rest(&recruit.bunk);
            }
            crew.left(recruit.number);
        }))
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_resting_thread_is_preferred_and_all_end() {
        let (crew, served) = (Arc::new(Crew::new(5)), Arc::default());
        for round in 1..=3 {
            if round == 1 {
                crew.assign(entry(), |recruit| spawn(&crew, &served, recruit)).unwrap();
            } else {
                crew.assign(entry(), must_not_spawn).unwrap();
            }
            until(|| served.load(Ordering::SeqCst) == round);
            until(|| crew.state.lock().resting.len() == 1);
        }
        assert_eq!(crew.threads(), 1);
        crew.end();
        assert_eq!(crew.wait(Instant::now() + Duration::from_secs(60)), 0);
        assert_eq!(crew.threads(), 0);
        // No caller waits for an answer any more.
        crew.assign(entry(), must_not_spawn).unwrap();
        assert!(crew.rest(&Arc::default()).is_none());
    }

    #[test]
    fn beyond_the_bound_requests_wait_for_a_free_thread() {
        let crew = Arc::new(Crew::new(1));
        let number = crew.add(std::thread::spawn(|| {}));
        crew.assign(entry(), must_not_spawn).unwrap();
        crew.assign(entry(), must_not_spawn).unwrap();
        assert!(crew.is_needed());
        let bunk = Arc::default();
        assert!(crew.rest(&bunk).is_some());
        assert!(crew.is_needed());
        assert!(crew.rest(&bunk).is_some());
        assert!(!crew.is_needed());
        crew.left(number);
        assert_eq!(crew.wait(Instant::now()), 0);
    }

    #[test]
    fn without_a_thread_the_entry_comes_back() {
        let crew = Crew::new(1);
        assert!(crew.assign(entry(), |_| Err(io::ErrorKind::WouldBlock.into())).is_err());
        assert_eq!(crew.threads(), 0);
    }

    #[test]
    fn a_thread_that_does_not_return_is_counted() {
        let crew = Crew::new(1);
        crew.add(std::thread::spawn(|| {}));
        assert_eq!(crew.wait(Instant::now()), 1);
    }
}
