//! The slot in which a serving thread keeps the entry whose request it has in hand.
//!
//! Purpose: a request is answered by its thread, by the watcher of interrupts in the thread's
//! place, or later by the thread that grants a lock. The `interrupt` module decides which; in a
//! [`Seat`] that thread finds the entry.
//!
//! # Access
//! - The thread puts an entry in before it serves, and takes out after it what is left.
//! - [`Seat::answer`] is called by the thread itself, from its handler, having claimed the request.
//! - [`Seat::answer_for_owner`] is called by another thread that has claimed the request; it finds
//!   the entry here, since the thread cannot go on before the claim's lock (`Slot::cancel`) is
//!   free.
//! - A lent entry (see `entry::Place`) is not here but with its thread, and no other thread answers
//!   it.
//!
//! # Lock order
//! `Slot::cancel`, then `Seat::state`; `Ring::inbox` is taken after `Seat::state` was released.

use std::sync::Arc;

use rustix::io::Errno;
use sync::Mutex;

use super::Ring;
use super::entry::Entry;
use crate::line::Answer;

/// Largest answer to a lent entry's request that is not the data itself: WRITE's.
const SMALL: usize = 16;

#[derive(Debug)]
enum Held {
    Nothing,
    /// An entry, and whether its answer is in it.
    Entry(Entry, bool),
    /// The entry is lent to the handler; its data is at this address.
    Lent {
        data: usize,
        answer: Option<LentAnswer>,
    },
}

/// The answer to a lent entry's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LentAnswer {
    Error(Errno),
    /// This many bytes, which are in the entry.
    Data(usize),
    Small([u8; SMALL], usize),
}

#[derive(Debug)]
struct State {
    /// The request in hand; 0 for none.
    unique: u64,
    held: Held,
}

/// The state of the entry after its request was served.
#[derive(Debug)]
pub(super) enum Left {
    /// The entry, with its answer.
    Answered(Entry),
    /// The entry; no thread has answered.
    Unanswered(Entry),
    /// Another thread has the entry.
    Gone,
}

/// A thread's place for its entry.
#[derive(Debug)]
pub(crate) struct Seat {
    ring: Arc<Ring>,
    state: Mutex<State>,
}

impl Seat {
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        Self { ring, state: Mutex::new(State { unique: 0, held: Held::Nothing }) }
    }

    /// Puts in the entry whose request is about to be served.
    pub(super) fn put(&self, unique: u64, entry: Entry) {
        *self.state.lock() = State { unique, held: Held::Entry(entry, false) };
    }

    /// Notes that a request is about to be served whose entry, with data at this address, is lent.
    pub(super) fn lend(&self, unique: u64, data: usize) {
        *self.state.lock() = State { unique, held: Held::Lent { data, answer: None } };
    }

    fn take(&self) -> Held {
        let mut state = self.state.lock();
        state.unique = 0;
        std::mem::replace(&mut state.held, Held::Nothing)
    }

    /// Takes out what is left of an entry that was put in.
    pub(super) fn left(&self) -> Left {
        match self.take() {
            Held::Entry(entry, true) => Left::Answered(entry),
            Held::Entry(entry, false) => Left::Unanswered(entry),
            Held::Nothing | Held::Lent { .. } => Left::Gone,
        }
    }

    /// Takes out the answer for an entry that was lent.
    pub(super) fn lent_answer(&self) -> Option<LentAnswer> {
        match self.take() {
            Held::Lent { answer, .. } => answer,
            Held::Nothing | Held::Entry(..) => None,
        }
    }

    /// Leaves the answer to the request in hand.
    pub(crate) fn answer(&self, unique: u64, answer: Answer<'_>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        debug_assert_eq!(state.unique, unique, "another request's answer");
        match &mut state.held {
            Held::Entry(entry, is_answered) => {
                *is_answered = true;
                entry.answer(unique, answer)
            }
            Held::Lent { data, answer: place } => {
                *place = Some(lent_answer(*data, answer));
                Ok(())
            }
            Held::Nothing => Err(Errno::NOENT),
        }
    }

    /// Answers the request in hand in place of this seat's thread, which loses its entry.
    pub(crate) fn answer_for_owner(&self, unique: u64, errno: Errno) {
        let Some(mut entry) = self.take_entry(unique) else { return };
        entry.conclude(unique, -errno.raw_os_error(), 0);
        self.ring.keep(entry);
    }

    fn take_entry(&self, unique: u64) -> Option<Entry> {
        let mut state = self.state.lock();
        if state.unique != unique {
            return None;
        }
        match std::mem::replace(&mut state.held, Held::Nothing) {
            Held::Entry(entry, _) => Some(entry),
            other => {
                state.held = other;
                None
            }
        }
    }
}

fn lent_answer(data: usize, answer: Answer<'_>) -> LentAnswer {
    match answer {
        Err(errno) => LentAnswer::Error(errno),
        Ok([first, second]) => {
            let mut small = [0; SMALL];
            if second.is_empty() && first.as_ptr().addr() == data {
                LentAnswer::Data(first.len())
            } else if second.is_empty()
                && let Some(place) = small.get_mut(..first.len())
            {
                place.copy_from_slice(first);
                LentAnswer::Small(small, first.len())
            } else {
                debug_assert!(false, "an answer of {} bytes from elsewhere", first.len() + second.len());
                LentAnswer::Error(Errno::IO)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dev::Dev;

    fn seat() -> Arc<Seat> {
        let dev = Dev::new(std::fs::File::open("/dev/null").unwrap().into());
        Arc::new(Seat::new(Arc::new(Ring::new(Arc::new(dev), 1, 1).unwrap())))
    }

    fn kept(seat: &Seat) -> usize {
        let mut entries = Vec::new();
        seat.ring.take_inbox(&mut entries);
        entries.len()
    }

    fn entry() -> Entry {
        Entry::new(0).unwrap()
    }

    #[test]
    fn the_owners_answer_stays_with_its_entry() {
        let seat = seat();
        seat.put(2, entry());
        seat.answer(2, Ok([b"yes", &[]])).unwrap();
        let Left::Answered(mut entry) = seat.left() else { panic!("no answer") };
        assert_eq!(&entry.buffer.data()[..3], b"yes");
        seat.put(4, entry);
        assert!(matches!(seat.left(), Left::Unanswered(_)));
        assert!(matches!(seat.left(), Left::Gone));
        assert_eq!(kept(&seat), 0);
    }

    #[test]
    fn another_answers_the_right_request_only_and_takes_the_entry() {
        let seat = seat();
        seat.put(2, entry());
        seat.answer_for_owner(6, Errno::INTR);
        assert_eq!(kept(&seat), 0);
        seat.answer_for_owner(2, Errno::INTR);
        assert_eq!(kept(&seat), 1);
        assert_eq!(seat.answer(2, Err(Errno::IO)), Err(Errno::NOENT));
        assert!(matches!(seat.left(), Left::Gone));
    }

    #[test]
    fn answers_to_lent_entries_are_noted() {
        let seat = seat();
        let data = [1_u8, 2, 3];
        let at = data.as_ptr().addr();
        for (answer, expected) in [
            (Ok([&data[..], &[]]), Some(LentAnswer::Data(3))),
            (
                Ok([&[4, 5][..], &[]]),
                Some(LentAnswer::Small([4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 2)),
            ),
            (Err(Errno::NOSPC), Some(LentAnswer::Error(Errno::NOSPC))),
        ] {
            seat.lend(2, at);
            seat.answer(2, answer).unwrap();
            // Another thread has nothing to take.
            seat.answer_for_owner(2, Errno::INTR);
            assert_eq!(seat.lent_answer(), expected);
        }
        seat.lend(2, at);
        assert_eq!(seat.lent_answer(), None);
        assert_eq!(kept(&seat), 0);
    }
}
