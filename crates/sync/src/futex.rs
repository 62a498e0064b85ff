//! A number that threads sleep on until it changes: futex(2).
//!
//! Neither side takes a lock in user space, so that a thread which is preempted in the middle of
//! waking holds up no other thread. Models have no system calls; there a lock and a condition
//! variable stand in.

#[cfg(not(any(loom, shuttle)))]
pub use real::Futex;

#[cfg(any(loom, shuttle))]
pub use model::Futex;

#[cfg(not(any(loom, shuttle)))]
mod real {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use rustix::thread::futex;

    /// A number to sleep on.
    #[derive(Debug, Default)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// The present number. A thread that sees a [`bump`](Self::bump) here also sees what was
        /// done before it.
        #[must_use]
        pub fn get(&self) -> u32 {
            // ORDERING: Acquire, pairs with the release in `bump`.
            self.0.load(Ordering::Acquire)
        }

        /// Changes the number: a thread that is about to sleep on the old one does not.
        pub fn bump(&self) {
            // ORDERING: Release, pairs with the acquire in `get`.
            self.0.fetch_add(1, Ordering::Release);
        }

        /// Sleeps until woken, unless the number is no longer `expected`; `timeout` at most. May
        /// return early.
        pub fn wait(&self, expected: u32, timeout: Option<Duration>) {
            let timeout = timeout.map(|timeout| rustix::time::Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            });
            // Woken, too late, interrupted or timed out: the caller checks again in any case.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, expected, timeout.as_ref());
        }

        /// Wakes up to `count` sleepers, and returns how many.
        pub fn wake(&self, count: u32) -> usize {
            // The kernel takes it for a signed number.
            let count = count.min(i32::MAX.unsigned_abs());
            futex::wake(&self.0, futex::Flags::PRIVATE, count).unwrap_or(0)
        }
    }
}

#[cfg(any(loom, shuttle))]
mod model {
    use std::time::Duration;

    use crate::atomic::{AtomicU32, Ordering};
    use crate::{Condvar, Mutex};

    /// A number to sleep on.
    #[derive(Debug, Default)]
    pub struct Futex {
        number: AtomicU32,
        /// The number of threads that sleep and were not woken.
        asleep: Mutex<usize>,
        woken: Condvar,
    }

    impl Futex {
        /// The present number.
        #[must_use]
        pub fn get(&self) -> u32 {
            // ORDERING: as the real one.
            self.number.load(Ordering::Acquire)
        }

        /// Changes the number.
        pub fn bump(&self) {
            // ORDERING: as the real one.
            self.number.fetch_add(1, Ordering::Release);
        }

        /// Sleeps until woken, unless the number is no longer `expected`. Models have no time: it
        /// never runs out.
        pub fn wait(&self, expected: u32, _timeout: Option<Duration>) {
            let mut asleep = self.asleep.lock();
            // ORDERING: Relaxed: the kernel compares under its own lock, which is this one.
            if self.number.load(Ordering::Relaxed) == expected {
                *asleep += 1;
                self.woken.wait(&mut asleep);
            }
        }

        /// The number of threads that sleep and were not woken; for tests.
        #[must_use]
        pub fn asleep(&self) -> usize {
            *self.asleep.lock()
        }

        /// Wakes up to `count` sleepers, and returns how many.
        pub fn wake(&self, count: u32) -> usize {
            let mut asleep = self.asleep.lock();
            let count = (*asleep).min(usize::try_from(count).unwrap_or(usize::MAX));
            *asleep -= count;
            (0..count).for_each(|_| self.woken.notify_one());
            count
        }
    }
}
