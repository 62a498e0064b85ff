//! Threads for work that waits: switches and clean-ups.
//!
//! A thread is made when work comes and fewer than `threads_max` run, and ends when there is none
//! left: bursts of work are rare, and a grace period takes longer than making a thread. Where the
//! host gives no thread, the caller does the work.
//!
//! Lock order: `WorkQueue::state` is a leaf.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sync::{Condvar, Mutex, StatCounter, thread};

type Work = Box<dyn FnOnce() + Send>;

/// A queue with its threads. Clones are the same queue.
#[derive(Clone)]
pub(crate) struct WorkQueue(Arc<Inner>);

struct Inner {
    name: &'static str,
    threads_max: usize,
    state: Mutex<State>,
    panics: StatCounter,
    /// Something has been done.
    done: Condvar,
}

struct State {
    waiting: VecDeque<(u64, Work)>,
    /// Numbers of what waits or is being done.
    unfinished: BTreeSet<u64>,
    next: u64,
    threads: usize,
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl WorkQueue {
    pub(crate) fn new(name: &'static str, threads_max: usize) -> Self {
        let state = State { waiting: VecDeque::new(), unfinished: BTreeSet::new(), next: 0, threads: 0 };
        Self(Arc::new(Inner {
            name,
            threads_max,
            state: Mutex::new(state),
            panics: StatCounter::default(),
            done: Condvar::default(),
        }))
    }

    /// Queues `work`, to be done later on another thread.
    pub(crate) fn push(&self, work: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        let number = state.next;
        state.next += 1;
        state.unfinished.insert(number);
        state.waiting.push_back((number, Box::new(work)));
        if state.threads == self.0.threads_max {
            return;
        }
        state.threads += 1;
        drop(state);
        thread::will_make_threads();
        let this = self.clone();
        let made = thread::Builder::new().name(self.0.name.into()).spawn(move || this.serve());
        if let Err(error) = made {
            tracing::warn!(%error, "cannot start a thread for {}: the caller does the work", self.0.name);
            self.serve();
        }
    }

    fn serve(&self) {
        loop {
            let (number, work) = {
                let mut state = self.0.state.lock();
                let Some(next) = state.waiting.pop_front() else {
                    state.threads -= 1;
                    return;
                };
                next
            };
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                self.0.panics.add(1);
                tracing::error!("{} panicked", self.0.name);
            }
            self.0.state.lock().unfinished.remove(&number);
            self.0.done.notify_all();
        }
    }

    /// Runs that ended with a panic. Anything but 0 is a defect.
    pub(crate) fn panics(&self) -> u64 {
        self.0.panics.get()
    }

    /// Returns when everything that was pushed before the call has been done.
    pub(crate) fn flush(&self) {
        let mut state = self.0.state.lock();
        let until = state.next;
        while state.unfinished.first().is_some_and(|first| *first < until) {
            self.0.done.wait(&mut state);
        }
    }
}
