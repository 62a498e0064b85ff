//! Waiting for an eventpoll from outside of it, by async code or a descriptor: the waiter is
//! notified once until it checks.
//!
//! It has an entry in the eventpoll's wait queue, as an outer eventpoll would. Notifying may cost a
//! system call; `word` keeps producers from notifying again a waiter that was notified.
//!
//! # State
//! `word`: the lowest bit says that the waiter was *notified* since its last check; above it, how
//! many checks have begun.
//!
//! # The protocol
//! A producer makes work and reads `word`. If the waiter is not notified, it notifies, and
//! *then* notes that in `word`, unless a check has begun meanwhile. The waiter takes back the
//! notification (reads the descriptor), begins a check (`rearm`: one more, not notified), and looks
//! for work.
//!
//! The note comes last so that a producer that is preempted does not hold up the waiter: until it
//! has really notified, each other producer that comes by does. The price is a system call too many
//! now and then. The note is not made once a check has begun, so that a late note does not hide
//! work that comes after that check.
//!
//! # Orderings
//! * P8 producer: make work, full barrier, load `word`. Waiter: change `word`, full barrier, look
//!   for work. Either the waiter sees the work, or the producer sees that the check has begun, and
//!   notifies.

use std::sync::Arc;

use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;

use crate::barrier::{after_rmw, full};
use crate::queue::WaitEntry;
use crate::{AsSource, EventPoll, Events, Result};

const TOLD: u64 = 1;

/// Wakes an outside waiter. Called any number of times, by any number of threads at once.
pub(crate) trait Notify: Send + Sync {
    fn tell(&self);
}

/// An outside waiter's entry in the wait queue of an eventpoll.
pub(crate) struct NotifyOnce<T> {
    word: AtomicU64,
    pub(crate) notify: T,
}

impl<T: Notify> NotifyOnce<T> {
    /// Notifies, unless that was done since the last check. The caller has made work, with a full
    /// barrier behind it.
    pub(crate) fn tell(&self) {
        // ORDERING: Acquire, P8 with the caller's barrier; and the target of `notify` as of that
        // check.
        let seen = self.word.load(Ordering::Acquire);
        if seen & TOLD != 0 {
            return;
        }
        if is_on("eventpoll-noted-before-told") && !self.note(seen) {
            return;
        }
        self.notify.tell();
        if is_on("eventpoll-noted-after-a-look") {
            self.word.fetch_or(TOLD, Ordering::AcqRel);
        }
        // Failing is no matter: another producer has notified, or a check has begun that sees the
        // work.
        self.note(seen);
    }

    fn note(&self, seen: u64) -> bool {
        // ORDERING: AcqRel: a producer that finds the note set also sees the notification.
        self.word.compare_exchange(seen, seen | TOLD, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Begins a check: work that comes from here on is notified.
    pub(crate) fn rearm(&self) {
        // ORDERING: Relaxed, the exchange decides.
        let mut word = self.word.load(Ordering::Relaxed);
        // ORDERING: AcqRel: a producer that sees this check sees the target that `notify` has from
        // here on; P8 with the barrier.
        while let Err(now) = self.word.compare_exchange(
            word,
            (word | TOLD).wrapping_add(1),
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            word = now;
        }
        if !is_on("eventpoll-no-look-fence") {
            after_rmw();
        }
    }
}

impl<T: Notify> WaitEntry for NotifyOnce<T> {
    fn callback(&self, _events: Events) -> bool {
        self.tell();
        true
    }

    fn source_closed(&self, _source: u64) {
        // P8: the closing must be seen like work.
        full();
        self.tell();
    }
}

/// A listener of an eventpoll, until it is dropped.
pub(crate) struct Listening<T: Notify + 'static> {
    pub(crate) poll: Arc<EventPoll>,
    pub(crate) told: Arc<NotifyOnce<T>>,
}

impl<T: Notify + 'static> Listening<T> {
    pub(crate) fn new(poll: Arc<EventPoll>, notify: T) -> Result<Self> {
        let told = Arc::new(NotifyOnce { word: AtomicU64::new(0), notify });
        drop(poll.watched().queue().0.attach(Arc::clone(&told) as _, false)?);
        Ok(Self { poll, told })
    }
}

impl<T: Notify + 'static> Drop for Listening<T> {
    fn drop(&mut self) {
        let listener = Arc::clone(&self.told) as Arc<dyn WaitEntry>;
        drop(self.poll.watched().queue().0.detach(&listener));
    }
}
