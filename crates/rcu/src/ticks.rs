//! The tick of normal grace periods: one grace period serves all threads that came until it began.
//!
//! # State
//! | field | holds | written by |
//! |---|---|---|
//! | `has_sleepers` | whether a thread may sleep here | the holder of `lock`; T1 |
//!
//! # Orderings
//! * T1 a sleeper: store `has_sleepers`, full fence, load `GracePeriods::started`. A grace period:
//!   store `started`, heavy fence, load `has_sleepers` when it has ended. Either the grace period
//!   wakes the sleeper, or the sleeper finds that it has begun, and waits for its end instead of
//!   the tick.

use std::time::Duration;

use sync::atomic::{AtomicBool, Ordering, fence};
use sync::mutant::is_on;
use sync::{Condvar, Mutex};

use crate::gp::GracePeriods;
use crate::seq::Cookie;

/// The tick of a domain's grace periods.
#[derive(Debug)]
pub struct GpTick {
    /// When the first one was, by the clock of the grace periods.
    begun: Duration,
    every: Duration,
    lock: Mutex<()>,
    has_sleepers: AtomicBool,
    ticked: Condvar,
}

impl GpTick {
    /// A tick each `every`, from `begun` on.
    #[must_use]
    pub fn new(begun: Duration, every: Duration) -> Self {
        let (lock, has_sleepers, ticked) = (Mutex::new(()), AtomicBool::new(false), Condvar::new());
        Self { begun, every, lock, has_sleepers, ticked }
    }

    /// When the next tick after `now` comes.
    pub(crate) fn next(&self, now: Duration) -> Duration {
        let every = self.every.as_nanos().max(1);
        let since = now.saturating_sub(self.begun).as_nanos() % every;
        now + Duration::from_nanos(u64::try_from(every - since).unwrap_or(u64::MAX))
    }

    /// Returns at the next tick; earlier if the grace period of the cookie has begun or ended by
    /// then.
    pub fn wait(&self, gp: &GracePeriods, cookie: Cookie) {
        let tick = self.next(gp.now());
        let mut lock = self.lock.lock();
        loop {
            // ORDERING: Relaxed and SeqCst, T1.
            self.has_sleepers.store(true, Ordering::Relaxed);
            if !is_on("rcu-no-sleeper-fence") {
                fence(Ordering::SeqCst);
            }
            if gp.has_begun(cookie) || gp.now() >= tick {
                return;
            }
            self.ticked.wait_until(&mut lock, gp.instant(tick));
        }
    }

    /// Has sleepers check again: a grace period has ended, which may be theirs.
    pub fn on_grace_period(&self) {
        // ORDERING: Relaxed, T1 with the grace period's heavy fence.
        if self.has_sleepers.load(Ordering::Relaxed) && !is_on("rcu-sleeper-untold") {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        let lock = self.lock.lock();
        // ORDERING: Relaxed, under the lock. A thread that is woken and sleeps again sets it again.
        self.has_sleepers.store(false, Ordering::Relaxed);
        drop(lock);
        self.ticked.notify_all();
    }

    /// The clock was moved: sleepers read it again.
    pub(crate) fn clock_moved(&self) {
        drop(self.lock.lock());
        self.ticked.notify_all();
    }
}
