//! A lock, and tasks that threads which must not wait for it leave there.
//!
//! A source and an eventpoll may be dropped under any lock, also under one that a scan wants next
//! ([`Poll::poll`](crate::Poll::poll)). So the dropping thread leaves a task, and runs it if the
//! lock is free. Otherwise the thread that has the lock runs it when it gives the lock back.
//!
//! # State
//! | field | used by |
//! |---|---|
//! | `inside` | the holder of its lock, which a thread that leaves a task only tries |
//! | `deferred` | `tasks` under its lock, which is held for a moment and with nothing taken under it; `is_any` says whether there are some |
//!
//! # Orderings
//! * P10 a thread that leaves a task: set `is_any`, full barrier, try the lock. The holder: give
//!   the lock back, full barrier, load `is_any`, and try the lock again if it is set. Either the
//!   one finds the lock free, or the other finds the task.

use std::mem;

use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};
use sync::mutant::is_on;

use crate::barrier::{after_rmw, full};

/// A value under a lock, and tasks that concern it.
#[derive(Debug)]
pub(crate) struct DeferredMutex<T, E> {
    inside: Mutex<T>,
    deferred: Deferred<E>,
}

/// Not in the lock's cache line: a thread that gives the lock back reads this, when another
/// processor may have that line already.
#[derive(Debug)]
#[repr(align(128))]
struct Deferred<E> {
    tasks: Mutex<Vec<E>>,
    is_any: AtomicBool,
}

impl<T, E> DeferredMutex<T, E> {
    pub(crate) fn new(inside: T) -> Self {
        let deferred = Deferred { tasks: Mutex::new(Vec::new()), is_any: AtomicBool::new(false) };
        Self { inside: Mutex::new(inside), deferred }
    }

    /// Works under the lock, after all tasks left until then; `run` runs a task. Returns the
    /// result of the work and the results of the tasks; the caller handles those without the
    /// lock. A full barrier follows the lock.
    pub(crate) fn with<W, D>(
        &self,
        run: impl Fn(&mut T, E) -> D,
        work: impl FnOnce(&mut T) -> W,
    ) -> (W, Vec<D>) {
        let mut done = Vec::new();
        let mut inside = self.inside.lock();
        self.run_all(&mut inside, &run, &mut done);
        let result = work(&mut inside);
        drop(inside);
        // P10: a lock is given back by a read-modify-write, or there is one behind it.
        if !is_on("eventpoll-no-unlock-fence") {
            after_rmw();
        }
        if !is_on("eventpoll-errand-unseen") {
            self.run_deferred(&run, &mut done);
        }
        (result, done)
    }

    /// Leaves a task, and runs it unless another thread has the lock. Never waits for that
    /// thread.
    pub(crate) fn defer<D>(&self, task: E, run: impl Fn(&mut T, E) -> D) -> Vec<D> {
        let mut left = self.deferred.tasks.lock();
        left.push(task);
        // ORDERING: Relaxed here and below, P10 with the barriers; the list has its lock.
        self.deferred.is_any.store(true, Ordering::Relaxed);
        drop(left);
        full();
        if is_on("eventpoll-drop-waits") {
            drop(self.inside.lock());
        }
        let mut done = Vec::new();
        self.run_deferred(&run, &mut done);
        done
    }

    fn run_deferred<D>(&self, run: &impl Fn(&mut T, E) -> D, done: &mut Vec<D>) {
        while self.deferred.is_any.load(Ordering::Relaxed)
            && let Some(mut inside) = self.inside.try_lock()
        {
            self.run_all(&mut inside, run, done);
            drop(inside);
            // P10, as in `with`.
            after_rmw();
        }
    }

    fn run_all<D>(&self, inside: &mut T, run: &impl Fn(&mut T, E) -> D, done: &mut Vec<D>) {
        while self.deferred.is_any.load(Ordering::Relaxed) {
            let mut left = self.deferred.tasks.lock();
            self.deferred.is_any.store(false, Ordering::Relaxed);
            let tasks = mem::take(&mut *left);
            drop(left);
            done.extend(tasks.into_iter().map(|task| run(inside, task)));
        }
    }
}
