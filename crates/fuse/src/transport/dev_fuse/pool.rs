//! Decides which threads read requests, and when another thread is needed for that.
//!
//! Purpose: the policy of the reading threads, and nothing of what they do with a request. Any
//! request may take long (its store may hang), so that one thread at least is always about to read:
//! the thread that takes a request away from the last one reading wakes or makes another before it
//! goes on. Threads beyond [`IDLE_MAX`] rest; those that rest for [`IDLE_TIMEOUT`] end.
//!
//! Where io_uring brings the requests, the kernel sends by `/dev/fuse` only messages that no
//! process waits for: FORGET, and INTERRUPT. Each of them would wake a reader at the expense of the
//! client, and that is most of the cost of a small operation. So one thread waits then, and after a
//! FORGET it pauses for [`PAUSE`] before it reads again: messages that come meanwhile wake no
//! thread, and FORGETs come many at a time. ([`ThreadPool::is_relaxed`])
//!
//! # State
//! `ThreadPool::idle` counts threads that read or are on their way there. `PoolState` is under its
//! mutex.
//!
//! # Lock order
//! `ThreadPool::state` is a leaf but for that of [`Parker`], which is taken under it.
//!
//! # Orderings
//! P1: a thread that finds enough others reading decides again under `ThreadPool::state` before it
//! rests; a thread that takes the last reader away looks for a resting one under
//! `ThreadPool::state` after it has lowered `idle`. So one of the two sees the other.
//!
//! P2: a thread that raises the bound of threads reads `idle` afterwards; the thread that takes
//! the last reader away lowers `idle`, then reads the bound. All of it is SeqCst: one of them
//! brings another reader.
//!
//! P3: a thread that goes to read raises `idle`, then reads `is_paused`; `pause` sets that, then
//! reads `idle`. All of it is SeqCst: the thread parks, or is among those that get a request. A
//! thread that brings another one reads `is_paused` and raises `idle` under the lock, under which
//! `pause` does both. A request that another thread reads in its place is not missed: the other one
//! parks as well.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Condvar, Mutex};

use crate::threads::{Parker, ThreadSet, unlist, wait_ended};

/// Threads that read at the same time at most, when there is nothing to do.
const IDLE_MAX: usize = 4;

/// Threads that read at the same time at most while io_uring brings the requests.
const IDLE_MAX_RELAXED: usize = 1;

/// How often a pause that waits asks whether it is still wanted.
const PAUSE_LOOK: Duration = Duration::from_millis(20);

/// Threads at the beginning.
const THREADS_AT_FIRST: usize = 2;

/// The pool is crowded if more threads than the capacity divided by this are at work.
const CROWDED_ONE_OF: usize = 4;

/// Why reading ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// The file system was unmounted.
    Unmounted,
    /// The connection was cut.
    Aborted,
    /// The device failed.
    Failed(Errno),
}

/// Makes the threads of the pool.
pub(crate) trait Spawn {
    /// Starts the reading thread of this number.
    fn spawn(&self, number: usize) -> io::Result<JoinHandle<()>>;
    /// No thread is left that could read: nor INTERRUPTs.
    fn on_exhausted(&self);
}

/// The reading threads of one session.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    pub(super) idle: AtomicUsize,
    /// Set once, by [`ThreadPool::relax`].
    is_relaxed: AtomicBool,
    /// So many threads are at work that no volume is to take more than its part of them.
    is_crowded: AtomicBool,
    pub(super) threads_max: usize,
    /// No thread is to read: set by [`ThreadPool::pause`], cleared by [`ThreadPool::resume`].
    is_paused: AtomicBool,
    /// Threads beyond them: as many as hang now and are not counted, up to as many again.
    threads_more: AtomicUsize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    threads: ThreadSet,
    parked: Vec<Arc<Parker<()>>>,
    ended: Option<ReadEnd>,
}

impl ThreadPool {
    pub(crate) fn new(threads_max: usize) -> Self {
        Self {
            idle: AtomicUsize::new(0),
            is_relaxed: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
            threads_max: threads_max.max(THREADS_AT_FIRST),
            is_paused: AtomicBool::new(false),
            threads_more: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    /// Starts the first threads.
    pub(crate) fn start(&self, spawner: &impl Spawn) -> io::Result<()> {
        for _ in 0..THREADS_AT_FIRST {
            self.spawn(spawner, &mut self.state.lock())?;
        }
        Ok(())
    }

    /// From now on no process waits for what is read.
    pub(crate) fn relax(&self) {
        // ORDERING: Relaxed, how many threads read is not exact anyway.
        self.is_relaxed.store(true, Ordering::Relaxed);
    }

    /// Whether no process waits for what is read.
    pub(super) fn is_relaxed(&self) -> bool {
        // ORDERING: Relaxed, as in `relax`.
        self.is_relaxed.load(Ordering::Relaxed)
    }

    pub(super) fn idle_max(&self) -> usize {
        if self.is_relaxed() { IDLE_MAX_RELAXED } else { IDLE_MAX }
    }

    /// A request was taken: brings another reader if this was the last.
    pub(super) fn on_request_taken(&self, spawner: &impl Spawn) {
        // ORDERING: SeqCst, P1: before the read of `parked`.
        if self.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.bring_another(spawner);
        }
    }

    /// Has another thread read, if there can be one.
    pub(crate) fn bring_another(&self, spawner: &impl Spawn) {
        let mut state = self.state.lock();
        // ORDERING: SeqCst, P3: under the lock, under which `resume` looks whether one reads.
        if state.ended.is_some() || self.is_paused.load(Ordering::SeqCst) {
            return;
        }
        if let Some(parker) = state.parked.pop() {
            self.look_at_crowd(&state);
            // ORDERING: SeqCst, as in `on_request_taken`. Counted here, so that it is not brought
            // twice.
            if !is_on("reader-not-counted") {
                self.idle.fetch_add(1, Ordering::SeqCst);
            }
            drop(state);
            parker.unpark(());
        } else if state.threads.len() >= self.threads_at_most() {
            drop(state);
            spawner.on_exhausted();
        } else if let Err(error) = self.spawn(spawner, &mut state) {
            tracing::error!(%error, "cannot start another thread that reads requests");
        }
    }

    /// Whether so many threads are at work, or were a moment ago, that no volume is to take more
    /// than its part of them.
    pub(crate) fn is_crowded(&self) -> bool {
        // ORDERING: Relaxed, the code that depends on it checks again.
        self.is_crowded.load(Ordering::Relaxed)
    }

    fn look_at_crowd(&self, state: &PoolState) {
        let busy = state.threads.len().saturating_sub(state.parked.len());
        let is_crowded = busy > self.threads_max / CROWDED_ONE_OF + self.threads_at_most() - self.threads_max;
        // ORDERING: Relaxed, as in `is_crowded`; written under the lock.
        self.is_crowded.store(is_crowded, Ordering::Relaxed);
    }

    /// Threads at most, but for those whose requests were answered by others.
    pub(crate) fn capacity(&self) -> usize {
        self.threads_max
    }

    fn threads_at_most(&self) -> usize {
        // ORDERING: SeqCst, P2.
        self.threads_max + self.threads_more.load(Ordering::SeqCst)
    }

    /// `hanging` threads hang now, and count for no volume: others are to read in their place.
    pub(crate) fn set_extra_threads(&self, spawner: &impl Spawn, hanging: usize) {
        // ORDERING: SeqCst, P2.
        let before = self.threads_more.swap(hanging.min(self.threads_max), Ordering::SeqCst);
        self.look_at_crowd(&self.state.lock());
        // ORDERING: SeqCst, P2.
        if before < hanging && self.idle.load(Ordering::SeqCst) == 0 {
            self.bring_another(spawner);
        }
    }

    fn spawn(&self, spawner: &impl Spawn, state: &mut PoolState) -> io::Result<()> {
        // ORDERING: SeqCst, as in `on_request_taken`.
        self.idle.fetch_add(1, Ordering::SeqCst);
        match spawner.spawn(state.threads.next_number()) {
            Ok(handle) => {
                state.threads.add(handle);
                self.look_at_crowd(state);
                Ok(())
            }
            Err(error) => {
                // ORDERING: SeqCst, as in `on_request_taken`.
                self.idle.fetch_sub(1, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// A request was served: says whether to read on, `false` to end.
    pub(super) fn after_request(&self, parker: &Arc<Parker<()>>) -> bool {
        // ORDERING: SeqCst, P1. A value that is too large or too small by a few is harmless: it is
        // checked again under the lock before anything depends on it.
        if self.idle.load(Ordering::SeqCst) < self.idle_max() {
            // ORDERING: SeqCst, as in `on_request_taken`.
            self.idle.fetch_add(1, Ordering::SeqCst);
            // ORDERING: SeqCst, P3: after it counts as one that reads.
            if !self.is_paused.load(Ordering::SeqCst) || is_on("pause-unseen") {
                return true;
            }
            // ORDERING: SeqCst, as in `on_request_taken`.
            self.idle.fetch_sub(1, Ordering::SeqCst);
        }
        self.park(parker)
    }

    fn park(&self, parker: &Arc<Parker<()>>) -> bool {
        {
            let mut state = self.state.lock();
            if state.ended.is_some() {
                return false;
            }
            // ORDERING: SeqCst, P3, under the lock.
            let is_paused = self.is_paused.load(Ordering::SeqCst);
            // ORDERING: SeqCst, P1: after the lock.
            if self.idle.load(Ordering::SeqCst) == 0 && !is_paused && !is_on("reader-rests-unchecked") {
                self.idle.fetch_add(1, Ordering::SeqCst);
                return true;
            }
            state.parked.push(Arc::clone(parker));
            self.look_at_crowd(&state);
            if is_paused {
                self.changed.notify_all();
            }
        }
        // A thread that was taken from the list is counted as reading already.
        parker.park(|| unlist(&mut self.state.lock().parked, parker)).is_some()
            && self.state.lock().ended.is_none()
    }

    /// Reading has ended, for this reason.
    pub(crate) fn end(&self, end: ReadEnd) {
        let mut state = self.state.lock();
        state.ended.get_or_insert(end);
        for parker in state.parked.drain(..) {
            parker.unpark(());
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn remove_thread(&self, number: usize) {
        let mut state = self.state.lock();
        state.threads.remove(number);
        self.look_at_crowd(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until reading has ended, and then for the threads, `grace` at most. Says why reading
    /// ended and how many threads are left in calls that do not return.
    pub(crate) fn wait(&self, grace: Duration) -> (ReadEnd, usize) {
        let mut state = self.state.lock();
        while state.ended.is_none() && !state.threads.is_empty() {
            self.changed.wait(&mut state);
        }
        let end = state.ended.clone().unwrap_or(ReadEnd::Failed(Errno::NOMEM));
        let (until, panicked) = (Instant::now() + grace, "a reading thread panicked outside a request");
        (end, wait_ended(state, &self.changed, |state| &mut state.threads, until, panicked))
    }

    /// Has every thread park, and waits for that until `until`, and as long as `go_on` agrees: each
    /// that reads gets a request by `wake`, which gets their number. Says whether all have parked.
    pub(crate) fn pause(
        &self,
        until: Instant,
        wake: impl FnOnce(usize),
        mut go_on: impl FnMut() -> bool,
    ) -> bool {
        let readers = {
            // A thread that `bring_another` has brought counts before the lock is free.
            let _no_other_is_brought = self.state.lock();
            // ORDERING: SeqCst, P3: before the read of `idle`.
            self.is_paused.store(true, Ordering::SeqCst);
            // ORDERING: SeqCst, P3.
            self.idle.load(Ordering::SeqCst)
        };
        wake(readers);
        let mut state = self.state.lock();
        let is_still = |state: &PoolState| state.threads.len() == state.parked.len();
        while state.ended.is_none() && !is_still(&state) {
            let next = until.min(Instant::now() + PAUSE_LOOK);
            if self.changed.wait_until(&mut state, next) && (Instant::now() >= until || !go_on()) {
                break;
            }
        }
        state.ended.is_none() && is_still(&state)
    }

    /// Has threads read again.
    pub(crate) fn resume(&self, spawner: &impl Spawn) {
        // ORDERING: SeqCst, P3.
        self.is_paused.store(false, Ordering::SeqCst);
        // ORDERING: SeqCst, as in `on_request_taken`.
        if self.idle.load(Ordering::SeqCst) == 0 {
            self.bring_another(spawner);
        }
    }

    /// One thread more, which a test runs itself.
    #[cfg(all(test, shuttle))]
    pub(super) fn add_thread(&self) {
        self.state.lock().threads.add(std::thread::spawn(|| ()));
    }

    /// Whether reading has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads.len()
    }

    /// Waits for `period`, or the end; says whether reading has ended.
    pub(super) fn wait_ended(&self, period: Duration) -> bool {
        let mut state = self.state.lock();
        let until = Instant::now() + period;
        while state.ended.is_none() && !self.changed.wait_until(&mut state, until) {}
        state.ended.is_some()
    }
}
