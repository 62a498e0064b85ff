//! Threads that run callbacks.
//!
//! A domain has a thread while it has callbacks, and no other domain waits for it. A thread that has nothing more to do
//! rests for a while, and serves whichever domain needs one next: so there are never many more threads than domains
//! with callbacks.
//!
//! # State (under `POOL`)
//! | field | holds |
//! |---|---|
//! | `resting` | threads that wait here |
//! | `domains` | domains that one of these will serve; never more than `resting` |

use std::io;
use std::sync::Arc;

use crate::domain::Inner;

/// Has a thread serve the domain.
///
/// # Errors
/// Where no thread can be had.
pub(crate) fn serve(domain: Arc<Inner>) -> io::Result<()> {
    #[cfg(not(any(loom, shuttle)))]
    let Some(domain) = pool::hand_over(domain) else { return Ok(()) };
    let thread = sync::thread::Builder::new().name("rcu-worker".into());
    let detached = thread.spawn(move || {
        domain.serve();
        drop(domain);
        #[cfg(not(any(loom, shuttle)))]
        while let Some(next) = pool::rest() {
            next.serve();
        }
    });
    detached.map(drop)
}

#[cfg(not(any(loom, shuttle)))]
mod pool {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use sync::{Condvar, Mutex};

    use crate::domain::Inner;

    /// So many may rest.
    const MANY: usize = 8;
    /// For so long.
    const IDLE: Duration = Duration::from_millis(250);

    struct Pool {
        resting: usize,
        domains: VecDeque<Arc<Inner>>,
    }

    static POOL: Mutex<Pool> = Mutex::new(Pool { resting: 0, domains: VecDeque::new() });
    static GIVEN: Condvar = Condvar::new();

    /// Gives the domain to a resting thread, or back.
    pub(super) fn hand_over(domain: Arc<Inner>) -> Option<Arc<Inner>> {
        let mut pool = POOL.lock();
        if pool.domains.len() >= pool.resting {
            return Some(domain);
        }
        pool.domains.push_back(domain);
        drop(pool);
        GIVEN.notify_one();
        None
    }

    /// Waits for a domain; `None`: the thread ends.
    pub(super) fn rest() -> Option<Arc<Inner>> {
        let mut pool = POOL.lock();
        if pool.resting >= MANY {
            return None;
        }
        pool.resting += 1;
        let until = Instant::now() + IDLE;
        while pool.domains.is_empty() && !GIVEN.wait_until(&mut pool, until) {}
        pool.resting -= 1;
        pool.domains.pop_front()
    }
}
