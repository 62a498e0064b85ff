//! Shards of a counter that many threads change: how many there are, and the one that a thread uses.

#[cfg(not(any(loom, shuttle)))]
pub use real::{count, of_this_thread};

#[cfg(not(any(loom, shuttle)))]
mod real {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A power of two: the remainder is a mask.
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from).next_power_of_two());

    /// As many shards as threads can run at a time, `max` at most.
    #[must_use]
    pub fn count(max: usize) -> usize {
        max.min(*PROCESSORS)
    }

    /// The calling thread's number, of which the caller takes the remainder.
    #[inline]
    #[must_use]
    pub fn of_this_thread() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            // ORDERING: Relaxed, only a number.
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        MINE.with(|mine| *mine)
    }
}

/// Models name the shard: the shard of a thread must not depend on earlier schedules.
#[cfg(any(loom, shuttle))]
#[must_use]
pub fn count(_max: usize) -> usize {
    1
}

/// The shard of every thread of a model.
#[cfg(any(loom, shuttle))]
#[must_use]
pub fn of_this_thread() -> usize {
    0
}
