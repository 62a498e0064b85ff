//! A figure that many threads add to. Unlike that of `sync`, no model checker sees it: this crate is
//! decided by simulations on tokio's paused time.

use std::sync::atomic::{AtomicU64, Ordering};

/// A statistic.
#[derive(Debug, Default)]
pub(crate) struct StatCounter(AtomicU64);

impl StatCounter {
    pub(crate) fn add(&self, n: u64) {
        // ORDERING: Relaxed, statistics only; nothing is published through it.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        // ORDERING: Relaxed, as in `add`.
        self.0.load(Ordering::Relaxed)
    }
}
