//! Ready-made sources.

use std::sync::Arc;

use sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::source::Watched;
use crate::{AsSource, Events, Poll, Source};

/// Ready as long as it is set: "has work".
#[derive(Debug)]
pub struct Flag(Source<FlagState>);

#[derive(Debug, Default)]
struct FlagState(AtomicBool);

impl Poll for FlagState {
    fn poll(&self) -> Events {
        // ORDERING: Acquire: a thread that finds the flag set sees the work. After a full barrier,
        // `ready` P3.
        if self.0.load(Ordering::Acquire) { Events::IN } else { Events::empty() }
    }
}

impl Default for Flag {
    fn default() -> Self {
        Self::new()
    }
}

impl Flag {
    /// A flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self(Source::new(FlagState::default()))
    }

    /// Sets it, and signals. A thread that takes it sees the changes made before.
    #[inline]
    pub fn set(&self) {
        // ORDERING: AcqRel; with the barrier in `signal_after_rmw` `ready` P3.
        self.0.0.swap(true, Ordering::AcqRel);
        self.0.signal_after_rmw(Events::IN);
    }

    /// Unsets it, and returns whether it was set.
    #[inline]
    pub fn take(&self) -> bool {
        // ORDERING: AcqRel: changes made before it was set are visible.
        self.0.0.swap(false, Ordering::AcqRel)
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        // ORDERING: Acquire, as above.
        self.0.0.load(Ordering::Acquire)
    }
}

impl AsSource for Flag {
    fn watched(&self) -> Arc<dyn Watched> {
        self.0.watched()
    }
}

/// Ready as long as it is not 0, as an eventfd(2).
#[derive(Debug)]
pub struct EventCounter(Source<Count>);

#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Poll for Count {
    fn poll(&self) -> Events {
        // ORDERING: Acquire, as in `Flag`.
        if self.0.load(Ordering::Acquire) == 0 { Events::empty() } else { Events::IN }
    }
}

impl Default for EventCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl EventCounter {
    /// A counter that is 0.
    #[must_use]
    pub fn new() -> Self {
        Self(Source::new(Count::default()))
    }

    /// Adds `n`, and signals. Wraps around.
    #[inline]
    pub fn add(&self, n: u64) {
        // ORDERING: AcqRel, as in `Flag`.
        self.0.0.fetch_add(n, Ordering::AcqRel);
        self.0.signal_after_rmw(Events::IN);
    }

    /// Sets it to 0, and returns the old value.
    #[inline]
    pub fn take(&self) -> u64 {
        // ORDERING: AcqRel, as in `Flag`.
        self.0.0.swap(0, Ordering::AcqRel)
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        // ORDERING: Acquire, as in `Flag`.
        self.0.0.load(Ordering::Acquire)
    }
}

impl AsSource for EventCounter {
    fn watched(&self) -> Arc<dyn Watched> {
        self.0.watched()
    }
}
