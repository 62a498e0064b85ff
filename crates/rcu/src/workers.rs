//! Threads that invoke callbacks, and threads that run grace periods for pollers.
//!
//! A domain has one thread for each of the two while there is something to do, and shares neither
//! with another domain. A thread that has nothing more to do parks for a while and serves the next
//! domain that needs one. So there are never many more threads than domains need at a time.
//!
//! Foreign code that these threads call (a log subscriber, a clock) may panic. The thread then
//! begins the same task again, so that a domain never waits for a thread that is gone. Panics of
//! callbacks are caught one by one (module `callback_list`).
//!
//! A task may be for later: a domain's callbacks wait for its tick, and need no thread until then.
//! A caller in a domain without a worker therefore starts and wakes no thread, if one is parked
//! that checks in time (module `pool`).
//!
//! In models each task has a thread of its own, at once; the pool has models of its own.
//!
//! # Lock order
//! A domain's state, then the pool's, which is a leaf.

use std::io;
#[cfg(not(any(loom, shuttle)))]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
#[cfg(not(any(loom, shuttle)))]
use std::sync::LazyLock;
#[cfg(not(any(loom, shuttle)))]
use std::time::Instant;

use crate::inner::Inner;
#[cfg(not(any(loom, shuttle)))]
use crate::pool::Pool;
#[cfg(not(any(loom, shuttle)))]
use crate::ticket::Ticket;

#[cfg(not(any(loom, shuttle)))]
static POOL: LazyLock<Pool<Task>> = LazyLock::new(|| Pool::new(Task::run));

/// A thread's task for a domain.
#[derive(Debug)]
struct Task {
    domain: Arc<Inner>,
    serve: fn(&Inner),
}

impl Task {
    fn new(domain: &Inner, serve: fn(&Inner)) -> Self {
        Self { domain: domain.this.upgrade().expect("the caller has a handle"), serve }
    }

    fn run(self) {
        // Models end their threads by panics.
        #[cfg(any(loom, shuttle))]
        (self.serve)(&self.domain);
        // A panic leaves the state as it is between two steps: nothing is taken from it before it
        // was served.
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
    let task = Task::new(domain, serve);
    #[cfg(any(loom, shuttle))]
    return sync::thread::Builder::new().name("rcu-worker".into()).spawn(|| task.run()).map(drop);
    #[cfg(not(any(loom, shuttle)))]
    POOL.hand_over(task, None).map(drop)
}

/// As [`serve`], at that time, or once [`expedite`] was called with the ticket.
///
/// # Errors
/// Where no thread can be had.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn serve_at(domain: &Inner, at: Instant, serve: fn(&Inner)) -> io::Result<Ticket> {
    POOL.hand_over(Task::new(domain, serve), Some(at))
}

/// Has a task that is for later begin now. `false`: it was taken back, because no thread can be
/// had.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn expedite(ticket: Ticket) -> bool {
    POOL.expedite(ticket)
}
