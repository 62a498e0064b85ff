//! Threads that run callbacks, and grace periods for those who poll.
//!
//! A domain has a thread for each of the two while there is something to do, and no other domain waits for it. A thread
//! that has nothing more to do rests for a while, and serves whichever domain needs one next: so there are never many more
//! threads than domains need at a time.
//!
//! What is called on them for others (a log's subscriber, a clock) may panic: the thread then goes on with the same task, so that a domain
//! never waits for a server that is gone. Callbacks are caught one by one (module `queue`).
//!
//! # State (under `POOL`)
//! | field | holds |
//! |---|---|
//! | `resting` | threads that wait here |
//! | `tasks` | what one of these will do; never more than `resting` |

use std::io;
#[cfg(not(any(loom, shuttle)))]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::domain::Inner;

/// What a thread does for a domain.
struct Task {
    domain: Arc<Inner>,
    serve: fn(&Inner),
}

impl Task {
    fn run(self) {
        // Models end their threads by panics.
        #[cfg(any(loom, shuttle))]
        (self.serve)(&self.domain);
        // What a panic leaves behind is as between two steps: nothing is taken from a domain's state before it was served.
        #[cfg(not(any(loom, shuttle)))]
        while catch_unwind(AssertUnwindSafe(|| (self.serve)(&self.domain))).is_err() {
            sync::thread::yield_now();
        }
    }
}

/// Has a thread call `serve` with the domain.
///
/// # Errors
/// Where no thread can be had.
pub(crate) fn serve(domain: &Inner, serve: fn(&Inner)) -> io::Result<()> {
    let domain = domain.this.upgrade().expect("who calls has a handle");
    let task = Task { domain, serve };
    #[cfg(not(any(loom, shuttle)))]
    let Some(task) = pool::hand_over(task) else { return Ok(()) };
    // A new thread would inherit what the caller's has for itself.
    sync::thread::will_make_threads();
    let thread = sync::thread::Builder::new().name("rcu-worker".into());
    let detached = thread.spawn(move || {
        task.run();
        #[cfg(not(any(loom, shuttle)))]
        while let Some(next) = pool::rest() {
            next.run();
        }
    });
    detached.map(drop)
}

#[cfg(not(any(loom, shuttle)))]
mod pool {
    use std::collections::VecDeque;
    use std::time::{Duration, Instant};

    use sync::{Condvar, Mutex};

    use super::Task;

    /// So many may rest.
    const MANY: usize = 8;
    /// For so long.
    const IDLE: Duration = Duration::from_millis(250);

    struct Pool {
        resting: usize,
        tasks: VecDeque<Task>,
    }

    static POOL: Mutex<Pool> = Mutex::new(Pool { resting: 0, tasks: VecDeque::new() });
    static GIVEN: Condvar = Condvar::new();

    /// Gives the task to a resting thread, or back.
    pub(super) fn hand_over(task: Task) -> Option<Task> {
        let mut pool = POOL.lock();
        if pool.tasks.len() >= pool.resting {
            return Some(task);
        }
        pool.tasks.push_back(task);
        drop(pool);
        GIVEN.notify_one();
        None
    }

    /// Waits for a task; `None`: the thread ends.
    pub(super) fn rest() -> Option<Task> {
        let mut pool = POOL.lock();
        if pool.resting >= MANY {
            return None;
        }
        pool.resting += 1;
        let until = Instant::now() + IDLE;
        while pool.tasks.is_empty() && !GIVEN.wait_until(&mut pool, until) {}
        pool.resting -= 1;
        pool.tasks.pop_front()
    }
}
