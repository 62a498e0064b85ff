//! Counters for statistics.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that no protocol depends on: it orders nothing and only ever informs a person.
///
/// A type of its own, so that a bare `Relaxed` elsewhere always belongs to a protocol.
#[derive(Debug, Default)]
pub struct StatCounter(AtomicU64);

impl StatCounter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        // ORDERING: Relaxed, statistics only; nothing is published through it.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The present value.
    #[must_use]
    pub fn get(&self) -> u64 {
        // ORDERING: Relaxed, as in `add`.
        self.0.load(Ordering::Relaxed)
    }
}
