//! The clock that the engine stamps rows with.
//!
//! The engine demands that no row is older than those before it; hosts' clocks differ. This clock is
//! the host's, but never behind what earlier holders stamped.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use slatedb_common::clock::{SystemClock, SystemClockTicker};
use std::sync::atomic::{AtomicI64, Ordering};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Clock {
    /// In milliseconds since 1970.
    floor: AtomicI64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { floor: AtomicI64::new(0) }
    }
}

impl Clock {
    /// As [`raise`](Self::raise), of a time that is never negative.
    pub(crate) fn raise_to(&self, millis: u64) {
        self.raise(i64::try_from(millis).unwrap_or(i64::MAX));
    }

    /// From now on the time is `millis` or later.
    pub(crate) fn raise(&self, millis: i64) {
        // ORDERING: Relaxed, a bound that only grows; nothing else is published with it.
        self.floor.fetch_max(millis, Ordering::Relaxed);
    }
}

impl SystemClock for Clock {
    fn now(&self) -> DateTime<Utc> {
        let host = DateTime::<Utc>::from(SystemTime::now()).timestamp_millis();
        // ORDERING: as above.
        let now = self.floor.fetch_max(host, Ordering::Relaxed).max(host);
        DateTime::from_timestamp_millis(now).unwrap_or(DateTime::UNIX_EPOCH)
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}
