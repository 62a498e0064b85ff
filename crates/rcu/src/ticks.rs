//! Those who wait for a tick, at which one grace period serves all who came.
//!
//! # State
//! | field | holds | who writes it |
//! |---|---|---|
//! | `has_sleepers` | whether any may sleep | who holds `lock`; T1 |
//!
//! # Orderings
//! * T1 a sleeper: store `has_sleepers`, full fence, load `Gate::started`. A grace period: store `started`, heavy fence, load `has_sleepers` when it
//!   has ended. Either it wakes the sleeper, or the sleeper finds that it has begun, and waits for its end instead of the tick.

use std::time::Duration;

use sync::atomic::{AtomicBool, Ordering, fence};
use sync::mutant::is_on;
use sync::{Condvar, Mutex};

use crate::gate::Gate;
use crate::seq::Cookie;

/// A gate's ticks.
#[derive(Debug)]
pub struct Ticks {
    /// They are counted from here, by the gate's clock.
    begun: Duration,
    every: Duration,
    lock: Mutex<()>,
    has_sleepers: AtomicBool,
    ticked: Condvar,
}

impl Ticks {
    /// One `every` so long, from `begun` on.
    #[must_use]
    pub fn new(begun: Duration, every: Duration) -> Self {
        let (lock, has_sleepers, ticked) = (Mutex::new(()), AtomicBool::new(false), Condvar::new());
        Self { begun, every, lock, has_sleepers, ticked }
    }

    /// When the next one after `now` comes.
    pub(crate) fn next(&self, now: Duration) -> Duration {
        let every = self.every.as_nanos().max(1);
        let since = now.saturating_sub(self.begun).as_nanos() % every;
        now + Duration::from_nanos(u64::try_from(every - since).unwrap_or(u64::MAX))
    }

    /// Returns at the next one; before that if the grace period is over, or about to be without anybody asking.
    pub fn wait(&self, gate: &Gate, cookie: Cookie) {
        let tick = self.next(gate.now());
        let mut lock = self.lock.lock();
        loop {
            // ORDERING: Relaxed and SeqCst, T1.
            self.has_sleepers.store(true, Ordering::Relaxed);
            if !is_on("rcu-no-sleeper-fence") {
                fence(Ordering::SeqCst);
            }
            if gate.has_begun(cookie) || gate.now() >= tick {
                return;
            }
            self.ticked.wait_until(&mut lock, gate.instant(tick));
        }
    }

    /// A grace period has ended: who waits may have to wait no longer.
    pub fn tell_of_grace_period(&self) {
        // ORDERING: Relaxed, T1 with the grace period's heavy fence.
        if self.has_sleepers.load(Ordering::Relaxed) && !is_on("rcu-sleeper-untold") {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        let lock = self.lock.lock();
        // ORDERING: Relaxed, under the lock. Who is woken and sleeps again sets it again.
        self.has_sleepers.store(false, Ordering::Relaxed);
        drop(lock);
        self.ticked.notify_all();
    }

    /// Somebody has moved the gate's clock.
    pub(crate) fn clock_moved(&self) {
        drop(self.lock.lock());
        self.ticked.notify_all();
    }
}
