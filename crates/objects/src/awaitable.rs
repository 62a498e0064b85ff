//! A number that others wait for, as small as can be: each inode that the kernel knows has two.
//!
//! `tokio::sync::watch` does the same with some 350 bytes for each, which are most of an inode's.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Awaitable {
    number: AtomicU64,
    changed: Notify,
}

impl Awaitable {
    pub(crate) fn get(&self) -> u64 {
        // ORDERING: Acquire, with the Release in `set`, `raise` and `add_one`: a caller that finds the
        // number finds what was done before. Weaker, a call that waited for a round could miss its rows.
        self.number.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, number: u64) {
        // ORDERING: Release, with the Acquire in `get`.
        self.number.store(number, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Sets it to `number`, unless it is more.
    pub(crate) fn raise(&self, number: u64) {
        // ORDERING: as `set`.
        if self.number.fetch_max(number, Ordering::Release) < number {
            self.changed.notify_waiters();
        }
    }

    /// Makes it one more.
    pub(crate) fn add_one(&self) {
        // ORDERING: as `set`.
        self.number.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Returns when it is `least` or more.
    pub(crate) async fn wait_for(&self, least: u64) {
        loop {
            // Before the number is read: a change after that wakes it.
            let changed = self.changed.notified();
            if self.get() >= least {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Poll;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn each_waits_for_its_own_number() {
        let number = Arc::new(Awaitable::default());
        let mut waits: Vec<_> = (0..3).map(|least| Box::pin(number.wait_for(least))).collect();
        let mut done = [false; 3];
        for (set, expected) in [(0, [true, false, false]), (1, [true, true, false]), (2, [true; 3])] {
            number.raise(set);
            number.raise(set.saturating_sub(1));
            for (wait, done) in waits.iter_mut().zip(&mut done) {
                *done = *done || poll!(wait) == Poll::Ready(());
            }
            assert_eq!((done, number.get()), (expected, set));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_change_is_missed() {
        for _ in 0..2000 {
            let number = Arc::new(Awaitable::default());
            let waits = tokio::spawn({
                let number = Arc::clone(&number);
                async move { number.wait_for(2).await }
            });
            let sets = tokio::spawn(async move { (1..=2).for_each(|to| number.set(to)) });
            sets.await.unwrap();
            waits.await.unwrap();
        }
    }
}
