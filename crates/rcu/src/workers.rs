//! Threads that run callbacks, and grace periods for those who poll.
//!
//! A domain has a thread for each of the two while there is something to do, and no other domain waits for it. A thread
//! that has nothing more to do rests for a while, and serves whichever domain needs one next: so there are never many more
//! threads than domains need at a time.
//!
//! What is called on them for others (a log's subscriber, a clock) may panic: the thread then goes on with the same task, so that a domain
//! never waits for a server that is gone. Callbacks are caught one by one (module `queue`).
//!
//! A task may be for later: a domain's callbacks wait for its tick, and need no thread until then. So who calls in a domain that has no worker
//! starts no thread, and wakes none, if one rests that will look in time (module `pool`).
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

use crate::domain::Inner;
#[cfg(not(any(loom, shuttle)))]
use crate::pool::Pool;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use crate::pool::Ticket;

#[cfg(not(any(loom, shuttle)))]
static POOL: LazyLock<Pool<Task>> = LazyLock::new(|| Pool::new(Task::run));

/// What a thread does for a domain.
#[derive(Debug)]
struct Task {
    domain: Arc<Inner>,
    serve: fn(&Inner),
}

impl Task {
    fn new(domain: &Inner, serve: fn(&Inner)) -> Self {
        Self { domain: domain.this.upgrade().expect("who calls has a handle"), serve }
    }

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
    let task = Task::new(domain, serve);
    #[cfg(any(loom, shuttle))]
    return sync::thread::Builder::new().name("rcu-worker".into()).spawn(|| task.run()).map(drop);
    #[cfg(not(any(loom, shuttle)))]
    POOL.hand_over(task, None).map(drop)
}

/// The same at that time, or once [`hurry`] was called with the ticket.
///
/// # Errors
/// Where no thread can be had.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn serve_at(domain: &Inner, at: Instant, serve: fn(&Inner)) -> io::Result<Ticket> {
    POOL.hand_over(Task::new(domain, serve), Some(at))
}

/// What is for later is for now. `false`: it was taken back, because no thread can be had.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn hurry(ticket: Ticket) -> bool {
    POOL.hurry(ticket)
}

/// Whether there was no thread when one was last asked for: that is told once.
#[derive(Debug, Default)]
pub(crate) struct Lack(bool);

impl Lack {
    /// Notes what came of asking. Gives why there is none, if nobody has heard of it: for the log, which is written without the domain's lock.
    pub(crate) fn note(&mut self, asked: io::Result<()>) -> Option<io::Error> {
        let was_told = std::mem::replace(&mut self.0, asked.is_err());
        asked.err().filter(|_| !was_told)
    }
}

/// Nothing is for later.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
pub(crate) enum Ticket {}
