//! Who waits for an eventpoll from outside of it: told that there is something, once until it
//! looks.
//!
//! It listens to the eventpoll as an outer one would. Telling may cost a system call, so `word`
//! keeps those who signal from telling again what was told.
//!
//! # State
//! `word`: the lowest bit says that it was *told* since the last look; above it, how many looks
//! have begun.
//!
//! # The protocol
//! Teller: make work, look at `word`; if it is not told, tell, and *then* note in `word` that it
//! is, unless a look has begun meanwhile. Looker: take back what was told (read the descriptor),
//! begin a look (`word`: one more, not told), look for work.
//!
//! That the note comes last is what keeps a teller that is preempted from holding up the looker:
//! until it has really told, everybody else who comes by does. The price is a system call too many
//! now and then. That it is not made when a look has begun is what keeps a late note from hiding
//! what comes after that look.
//!
//! # Orderings
//! * P8 teller: make work, full barrier, load `word`. Looker: change `word`, full barrier, look for
//!   work. Either the looker sees the work, or the teller sees that the look has begun, and tells.

use std::sync::Arc;

use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;

use crate::barrier::{after_rmw, full};
use crate::queue::Listener;
use crate::{AsSource, EventPoll, Events, Result};

const TOLD: u64 = 1;

/// Tells one who waits that it should look. Any number of times, by any number of threads at once.
pub(crate) trait Teller: Send + Sync {
    fn tell(&self);
}

/// One who is told that an eventpoll may be ready.
pub(crate) struct Told<T> {
    word: AtomicU64,
    pub(crate) teller: T,
}

impl<T: Teller> Told<T> {
    /// Tells, unless that was done since the last look. The caller has made work, with a full
    /// barrier behind it.
    pub(crate) fn tell(&self) {
        // ORDERING: Acquire, P8 with the caller's barrier; whom `teller` tells since that look.
        let seen = self.word.load(Ordering::Acquire);
        if seen & TOLD != 0 {
            return;
        }
        if is_on("eventpoll-noted-before-told") && !self.note(seen) {
            return;
        }
        self.teller.tell();
        if is_on("eventpoll-noted-after-a-look") {
            self.word.fetch_or(TOLD, Ordering::AcqRel);
        }
        // Failing is no matter: somebody else has told, or a look has begun that sees the work.
        self.note(seen);
    }

    fn note(&self, seen: u64) -> bool {
        // ORDERING: AcqRel: who finds it told finds it so.
        self.word.compare_exchange(seen, seen | TOLD, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Begins a look: what comes from here on is told.
    pub(crate) fn begin_look(&self) {
        // ORDERING: Relaxed, the exchange decides.
        let mut word = self.word.load(Ordering::Relaxed);
        // ORDERING: AcqRel: whom `teller` tells from here on is seen by who sees this; P8 with the
        // barrier.
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

impl<T: Teller> Listener for Told<T> {
    fn fire(&self, _events: Events) -> bool {
        self.tell();
        true
    }

    fn source_closed(&self, _source: u64) {
        // P8: that it is closed is to be seen as work is.
        full();
        self.tell();
    }
}

/// A listener of an eventpoll, until it is dropped.
pub(crate) struct Listening<T: Teller + 'static> {
    pub(crate) poll: Arc<EventPoll>,
    pub(crate) told: Arc<Told<T>>,
}

impl<T: Teller + 'static> Listening<T> {
    pub(crate) fn new(poll: Arc<EventPoll>, teller: T) -> Result<Self> {
        let told = Arc::new(Told { word: AtomicU64::new(0), teller });
        drop(poll.watched().queue().0.attach(Arc::clone(&told) as _, false)?);
        Ok(Self { poll, told })
    }
}

impl<T: Teller + 'static> Drop for Listening<T> {
    fn drop(&mut self) {
        let listener = Arc::clone(&self.told) as Arc<dyn Listener>;
        drop(self.poll.watched().queue().0.detach(&listener));
    }
}
