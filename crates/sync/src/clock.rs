//! Time, real or set by a test.

use std::fmt;
use std::time::{Duration, Instant};

use crate::{Condvar, Mutex};

/// A monotonic clock.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Time since the clock's start.
    fn now(&self) -> Duration;
}

/// The host's monotonic clock.
#[derive(Debug)]
pub struct RealClock(Instant);

impl Default for RealClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that moves only when a test moves it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Mutex<Duration>,
    moved: Condvar,
}

impl ManualClock {
    /// Moves the clock forward and wakes the threads in [`ManualClock::wait_until`].
    pub fn advance(&self, by: Duration) {
        *self.now.lock() += by;
        self.moved.notify_all();
    }

    /// Waits until the clock shows `time`.
    pub fn wait_until(&self, time: Duration) {
        let mut now = self.now.lock();
        while *now < time {
            self.moved.wait(&mut now);
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock()
    }
}
