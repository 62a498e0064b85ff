//! The serving threads: which are there, which rest, which are still needed.
//!
//! Purpose: [`ThreadPool::assign`] finds a thread for an entry with a request; [`ThreadPool::park`]
//! is where threads without an entry wait for one, and end when none came for some time.
//!
//! # State
//! `PoolState` is under its mutex; `ThreadPool::pending` counts `PoolState::pending`.
//!
//! # Lock order
//! `ThreadPool::state`, then that of a [`Parker`].

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use sync::atomic::{AtomicUsize, Ordering};
use sync::{Condvar, Mutex};

use super::entry::Entry;
use crate::threads::{Parker, ThreadSet, unlist, wait_ended};

/// The serving threads of one session.
#[derive(Debug)]
pub(super) struct ThreadPool {
    threads_max: usize,
    pending: AtomicUsize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    threads: ThreadSet,
    parked: Vec<Arc<Parker<Entry>>>,
    /// Entries for which there was no thread.
    pending: VecDeque<Entry>,
    ended: bool,
}

/// The arguments of a new thread.
#[derive(Debug)]
pub(super) struct NewWorker {
    pub(super) number: usize,
    /// Where the first entry is.
    pub(super) parker: Arc<Parker<Entry>>,
}

impl ThreadPool {
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
        spawn: impl FnOnce(NewWorker) -> io::Result<JoinHandle<()>>,
    ) -> Result<(), Entry> {
        let mut state = self.state.lock();
        if state.ended {
            // The connection has ended; no caller waits for an answer.
            return Ok(());
        }
        if let Some(parker) = state.parked.pop() {
            parker.unpark(entry);
            return Ok(());
        }
        if state.threads.len() >= self.threads_max {
            state.pending.push_back(entry);
            // ORDERING: Relaxed, a hint: see `is_needed`.
            self.pending.store(state.pending.len(), Ordering::Relaxed);
            return Ok(());
        }
        let (number, parker) = (state.threads.next_number(), Arc::new(Parker::default()));
        parker.unpark(entry);
        match spawn(NewWorker { number, parker: Arc::clone(&parker) }) {
            Ok(handle) => {
                state.threads.add(handle);
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "cannot start another thread that serves requests");
                parker.take().map_or(Ok(()), Err)
            }
        }
    }

    /// Registers a thread that does something else for the session.
    pub(super) fn add(&self, handle: JoinHandle<()>) -> usize {
        self.state.lock().threads.add(handle)
    }

    /// Whether requests wait for a thread: one that is about to wait for its own next one should
    /// hand its entry over and [`park`](Self::park) instead.
    pub(super) fn is_needed(&self) -> bool {
        // ORDERING: Relaxed, a hint. Requests wait only when so many threads are in calls whose
        // callers were killed that the bound is reached; each of these comes to `park` when its
        // call returns, and sees them under the lock.
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// Waits, without an entry, for one with a request. `None`: this thread is not needed any more.
    pub(super) fn park(&self, parker: &Arc<Parker<Entry>>) -> Option<Entry> {
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
            state.parked.push(Arc::clone(parker));
        }
        parker.park(|| unlist(&mut self.state.lock().parked, parker))
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.pending.clear();
        for parker in state.parked.drain(..) {
            parker.end();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A thread is about to end.
    pub(super) fn remove_thread(&self, number: usize) {
        let mut state = self.state.lock();
        state.threads.remove(number);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the threads to end, until `until` at the latest. Says how many are left.
    pub(super) fn wait(&self, until: Instant) -> usize {
        let panicked = "a serving thread panicked outside a request";
        wait_ended(self.state.lock(), &self.changed, |state| &mut state.threads, until, panicked)
    }

    /// How many threads there are.
    pub(super) fn threads(&self) -> usize {
        self.state.lock().threads.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry() -> Entry {
        Entry::new(0).unwrap()
    }

    fn must_not_spawn(_: NewWorker) -> io::Result<JoinHandle<()>> {
        panic!("a thread was made")
    }

    /// A thread that serves by counting, and rests in between.
    fn spawn(
        pool: &Arc<ThreadPool>,
        served: &Arc<AtomicUsize>,
        new_worker: NewWorker,
    ) -> io::Result<JoinHandle<()>> {
        let (pool, served) = (Arc::clone(pool), Arc::clone(served));
        Ok(std::thread::spawn(move || {
            let mut entry = new_worker.parker.take();
            while entry.is_some() {
                // ORDERING: SeqCst here and in the tests' loads: a count of the tests, on which
                // nothing else rests.
                served.fetch_add(1, Ordering::SeqCst);
                entry = pool.park(&new_worker.parker);
            }
            pool.remove_thread(new_worker.number);
        }))
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_resting_thread_is_preferred_and_all_end() {
        let (pool, served) = (Arc::new(ThreadPool::new(5)), Arc::default());
        for round in 1..=3 {
            if round == 1 {
                pool.assign(entry(), |new_worker| spawn(&pool, &served, new_worker)).unwrap();
            } else {
                pool.assign(entry(), must_not_spawn).unwrap();
            }
            until(|| served.load(Ordering::SeqCst) == round);
            until(|| pool.state.lock().parked.len() == 1);
        }
        assert_eq!(pool.threads(), 1);
        pool.end();
        assert_eq!(pool.wait(Instant::now() + Duration::from_secs(60)), 0);
        assert_eq!(pool.threads(), 0);
        // No caller waits for an answer any more.
        pool.assign(entry(), must_not_spawn).unwrap();
        assert!(pool.park(&Arc::default()).is_none());
    }

    #[test]
    fn beyond_the_bound_requests_wait_for_a_free_thread() {
        let pool = Arc::new(ThreadPool::new(1));
        let number = pool.add(std::thread::spawn(|| {}));
        pool.assign(entry(), must_not_spawn).unwrap();
        pool.assign(entry(), must_not_spawn).unwrap();
        assert!(pool.is_needed());
        let parker = Arc::default();
        assert!(pool.park(&parker).is_some());
        assert!(pool.is_needed());
        assert!(pool.park(&parker).is_some());
        assert!(!pool.is_needed());
        pool.remove_thread(number);
        assert_eq!(pool.wait(Instant::now()), 0);
    }

    #[test]
    fn without_a_thread_the_entry_comes_back() {
        let pool = ThreadPool::new(1);
        assert!(pool.assign(entry(), |_| Err(io::ErrorKind::WouldBlock.into())).is_err());
        assert_eq!(pool.threads(), 0);
    }

    #[test]
    fn a_thread_that_does_not_return_is_counted() {
        let pool = ThreadPool::new(1);
        pool.add(std::thread::spawn(|| {}));
        assert_eq!(pool.wait(Instant::now()), 1);
    }
}
