//! The operations of every library under test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One library, ready to be used from any thread.
pub(crate) trait Subject: Send + Sync {
    /// `pairs` read sections, inside another section if `nested`; returns the sum of the values,
    /// which is 1 in each. Uses the copy of the loop that lies at `placement`.
    fn read(&self, pairs: u64, nested: bool, placement: usize) -> u64;

    /// Sections of about [`SECTION`] on the calling thread, until `goes_on`, called after each,
    /// returns `false`.
    fn read_while(&self, goes_on: &dyn Fn() -> bool);

    /// One grace period; an error if there is no such call.
    fn grace(&self) -> Result<(), &'static str>;

    /// One grace period that is asked for and polled until it has passed; an error if there is
    /// no such call.
    fn poll(&self) -> Result<(), &'static str>;

    /// Retires `values` boxed [`Counted`]s, and returns when all are dropped.
    fn callbacks(&self, values: u64);
}

/// About how long a reader stays, in turns of an empty loop.
pub(crate) const SECTION: u32 = 100;

/// Stays in a section for a while.
pub(crate) fn stay() {
    (0..SECTION).for_each(|_| std::hint::spin_loop());
}

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Counts its drops.
#[derive(Debug)]
pub(crate) struct Counted(#[allow(dead_code, reason = "so that it takes memory")] pub(crate) u64);

impl Drop for Counted {
    fn drop(&mut self) {
        // ORDERING: Relaxed, a count that is polled.
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many were dropped in this process.
pub(crate) fn dropped() -> u64 {
    // ORDERING: Relaxed, a count that is polled.
    DROPPED.load(Ordering::Relaxed)
}

/// Calls `push` until `values` have been dropped since `before`.
pub(crate) fn until_dropped(before: u64, values: u64, push: impl Fn()) {
    while dropped() - before < values {
        push();
        std::thread::sleep(Duration::from_micros(20));
    }
}
