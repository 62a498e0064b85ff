//! Figures of a domain, for people and metrics.

use std::time::Duration;

use sync::StatCounter;
use sync::atomic::{AtomicU64, Ordering};

/// A domain's counters.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) waiters: StatCounter,
    pub(crate) stalls: StatCounter,
    pub(crate) slowed: StatCounter,
    longest_wait_us: AtomicU64,
}

impl Counters {
    pub(crate) fn note_reader(&self, waited: Duration) {
        let us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed, a figure for people.
        self.longest_wait_us.fetch_max(us, Ordering::Relaxed);
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        // ORDERING: Relaxed, a figure for people.
        Duration::from_micros(self.longest_wait_us.load(Ordering::Relaxed))
    }
}

/// Figures of a domain since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Grace periods that ended.
    pub grace_periods: u64,
    /// Calls that waited for one.
    pub waiters: u64,
    /// Callbacks queued.
    pub callbacks_queued: u64,
    /// Callbacks that have run.
    pub callbacks_run: u64,
    /// Calls that had to wait because too many callbacks were queued.
    pub callers_slowed: u64,
    /// Warnings about readers that stayed for over a second.
    pub stalls: u64,
    /// The longest time that a grace period waited for readers.
    pub longest_reader: Duration,
    /// Threads that have read here and live.
    pub readers: usize,
}
