//! The consumers that sleep, and how producers wake them.
//!
//! # State
//! `word`, from the top: how often a consumer came or left (35 bits, wraps around); how many sleep
//! or are about to (20); how many of these were woken and have not left yet (8, not counted above
//! 255). `number` changes with each wake-up.
//!
//! # The protocol
//! A consumer reads `number`, comes (`word`; Linux's `prepare_to_wait`), checks once more whether
//! there is nothing to do, sleeps on `number`, and leaves. A producer makes work and reads
//! `word`. If more sleep than were woken, it changes `number`, wakes one, and *then* notes in
//! `word` that one was woken.
//!
//! The note comes last so that a producer that is preempted does not hold up the sleepers: until it
//! has really woken one, each other producer that comes by does. The price is a system call too
//! many now and then. The note is made as well if no thread was in the system call: a consumer that
//! is counted is then on its way into it, and does not stay, because it has read the number before
//! it was counted, and so before the number changed. If a consumer read it afterwards, it might
//! read the new number and find the work done already: the producer may have been stopped long
//! before it reads the sleepers. The note is made only if no consumer came or left since the
//! read. It never counts a consumer that has left already, so that there are never fewer on their
//! way than noted. If there are more, that only costs a wake-up.
//!
//! # Exclusive entries
//! A signal that is meant for one of several eventpolls goes on to the next one unless it has
//! *itself* taken a thread out of its sleep here. The kernel of Linux takes a waiter off `ep->wq`
//! as it wakes it, so that a second signal does not find it; futex(2) does the same here, and its
//! result is the only one that no two producers share. Counting sleepers is not enough: two signals
//! that rely on the one thread strand one event, beside another eventpoll whose thread sleeps.
//!
//! # Orderings
//! * P1 consumer: change `word`, full barrier, look for work. Producer: make work, full barrier,
//!   load `word`. Either the consumer sees the work, or the producer sees the consumer.
//! * P2 consumer: load `number` with acquire, come, look for work, sleep. Producer: make work,
//!   change `number` with release. A consumer that has seen the new number sees the work; one that
//!   has not does not fall asleep on the old one.

use std::time::Duration;

use sync::Futex;
use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;

use crate::barrier::after_rmw;

const WOKEN: u64 = 1;
const WOKEN_MASK: u64 = (1 << 8) - 1;
const ASLEEP: u64 = 1 << 8;
const ASLEEP_MASK: u64 = ((1 << 20) - 1) << 8;
const CHANGE: u64 = 1 << 28;

/// The sleepers of an eventpoll.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    word: AtomicU64,
    number: Futex,
}

/// A consumer that is counted as asleep.
#[derive(Debug)]
#[must_use = "a consumer that came must leave"]
pub(crate) struct Sleeper<'w> {
    waiters: &'w Waiters,
    number: u32,
}

impl Waiters {
    /// Counts the caller as asleep. It looks for work once more before it sleeps.
    pub(crate) fn prepare_to_wait(&self) -> Sleeper<'_> {
        let number = self.number.get();
        // ORDERING: AcqRel and the barrier, P1.
        let before = self.word.fetch_add(CHANGE + ASLEEP, Ordering::AcqRel);
        assert_ne!(before & ASLEEP_MASK, ASLEEP_MASK, "a million threads wait");
        if !is_on("eventpoll-no-sleeper-fence") {
            after_rmw();
        }
        let is_late = is_on("eventpoll-number-after-coming");
        Sleeper { waiters: self, number: if is_late { self.number.get() } else { number } }
    }

    /// Wakes one sleeper, if there is one that was not woken. Returns whether *this* call took a
    /// thread out of its sleep: no two calls return `true` for one sleeper, and none does for a
    /// thread that only is on its way into or out of the system call. The caller has made work,
    /// with a full barrier behind it (P1).
    #[inline]
    pub(crate) fn wake_one(&self) -> bool {
        // ORDERING: Acquire, P1 with the caller's barrier.
        let word = self.word.load(Ordering::Acquire);
        if is_any_left(word) {
            return self.wake(word);
        }
        word & ASLEEP_MASK != 0 && is_on("eventpoll-exclusive-shares-a-sleeper")
    }

    /// Whether a consumer sleeps that was not woken. As for [`wake_one`](Self::wake_one), a full
    /// barrier lies before.
    #[inline]
    pub(crate) fn is_any_left(&self) -> bool {
        // ORDERING: Acquire, P1 with the caller's barrier.
        is_any_left(self.word.load(Ordering::Acquire))
    }

    #[cold]
    fn wake(&self, seen: u64) -> bool {
        if is_on("eventpoll-note-before-wake") {
            // ORDERING: as below; the order of steps is what is wrong.
            let _ = self.word.compare_exchange(seen, seen + WOKEN, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.number.bump();
        // Also if no thread was in the system call: a consumer that is counted is then on its way
        // into it, and finds that the number has changed. So there is one system call for each time
        // that a consumer goes to sleep.
        let is_woken = self.number.wake(1) > 0;
        if seen & WOKEN_MASK != WOKEN_MASK && !is_on("eventpoll-note-before-wake") {
            // ORDERING: AcqRel, so that a consumer that leaves sees the work. Failing is no matter:
            // it only keeps others waking.
            let _ = self.word.compare_exchange(seen, seen + WOKEN, Ordering::AcqRel, Ordering::Relaxed);
        }
        // Not "a sleeper was counted": two signallers that come before either has made its note
        // count the same sleeper.
        is_woken || is_on("eventpoll-exclusive-counts-a-sleeper-twice")
    }

    /// The consumers that sleep and were not woken; for tests.
    #[cfg(any(loom, shuttle))]
    pub(crate) fn asleep(&self) -> usize {
        self.number.asleep()
    }

    /// Wakes all sleepers; the caller as for [`wake_one`](Self::wake_one).
    pub(crate) fn wake_all(&self) {
        self.number.bump();
        self.number.wake(u32::MAX);
    }
}

/// Whether more consumers sleep than were woken.
#[inline]
fn is_any_left(word: u64) -> bool {
    word & WOKEN_MASK < (word & ASLEEP_MASK) / ASLEEP
}

impl Sleeper<'_> {
    /// Sleeps until woken, `timeout` at most.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        self.waiters.number.wait(self.number, timeout);
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed, the exchange decides.
        let mut word = self.waiters.word.load(Ordering::Relaxed);
        loop {
            let one_less = word - ASLEEP - if word & WOKEN_MASK > 0 { WOKEN } else { 0 };
            let left = one_less.wrapping_add(CHANGE);
            // ORDERING: AcqRel: the work of the producer that woke this consumer is visible.
            match self.waiters.word.compare_exchange_weak(word, left, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}
