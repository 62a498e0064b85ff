//! The slot in which a serving thread keeps the entry whose request it has in hand.
//!
//! Purpose: a request is answered by its thread, by the watcher of interrupts in the thread's
//! place, or later by the thread that grants a lock. The `in_flight` module decides which; in a
//! [`ReplySlot`] that thread finds the entry.
//!
//! # Access
//! - The thread puts an entry in before it serves, and takes out after it what is left.
//! - [`ReplySlot::answer`] is called by the thread itself, from its handler, having claimed the
//!   request.
//! - [`ReplySlot::answer_for_owner`] is called by another thread that has claimed the request; it
//!   finds the entry here, since the thread cannot go on before the claim's lock
//!   (`RequestSlot::cancel`) is free.
//! - An in-place entry (see `entry::Payload`) is not here but with its thread, and no other thread
//!   answers it.
//!
//! # Lock order
//! `RequestSlot::cancel`, then `ReplySlot::state`; `Ring::returned` is taken after
//! `ReplySlot::state` was released.

use std::sync::Arc;

use rustix::io::Errno;
use sync::Mutex;

use super::entry::{Entry, InPlaceReply, SMALL};
use super::ring::Ring;
use crate::device::ReplyBytes;

#[derive(Debug)]
enum SlotState {
    Nothing,
    /// An entry, and whether its answer is in it.
    Entry(Entry, bool),
    /// The handler uses the data in the entry, at this address.
    InPlace {
        data: usize,
        answer: Option<InPlaceReply>,
    },
}

#[derive(Debug)]
struct State {
    /// The request in hand; 0 for none.
    unique: u64,
    held: SlotState,
}

/// The state of the entry after its request was served.
#[derive(Debug)]
pub(super) enum ServedEntry {
    /// The entry, with its answer.
    Answered(Entry),
    /// The entry; no thread has answered.
    Unanswered(Entry),
    /// Another thread has the entry.
    Gone,
}

/// A thread's place for its entry.
#[derive(Debug)]
pub(crate) struct ReplySlot {
    ring: Arc<Ring>,
    state: Mutex<State>,
}

impl ReplySlot {
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        Self { ring, state: Mutex::new(State { unique: 0, held: SlotState::Nothing }) }
    }

    /// Puts in the entry whose request is about to be served.
    pub(super) fn put_entry(&self, unique: u64, entry: Entry) {
        *self.state.lock() = State { unique, held: SlotState::Entry(entry, false) };
    }

    /// Notes that a request is about to be served whose entry, with data at this address, is used
    /// in place.
    pub(super) fn begin_in_place(&self, unique: u64, data: usize) {
        *self.state.lock() = State { unique, held: SlotState::InPlace { data, answer: None } };
    }

    fn take(&self) -> SlotState {
        let mut state = self.state.lock();
        state.unique = 0;
        std::mem::replace(&mut state.held, SlotState::Nothing)
    }

    /// Takes out what is left of an entry that was put in.
    pub(super) fn take_served(&self) -> ServedEntry {
        match self.take() {
            SlotState::Entry(entry, true) => ServedEntry::Answered(entry),
            SlotState::Entry(entry, false) => ServedEntry::Unanswered(entry),
            SlotState::Nothing | SlotState::InPlace { .. } => ServedEntry::Gone,
        }
    }

    /// Takes out the answer for an in-place entry.
    pub(super) fn in_place_reply(&self) -> Option<InPlaceReply> {
        match self.take() {
            SlotState::InPlace { answer, .. } => answer,
            SlotState::Nothing | SlotState::Entry(..) => None,
        }
    }

    /// Leaves the answer to the request in hand.
    pub(crate) fn answer(&self, unique: u64, answer: ReplyBytes<'_>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        debug_assert_eq!(state.unique, unique, "another request's answer");
        match &mut state.held {
            SlotState::Entry(entry, is_answered) => {
                *is_answered = true;
                entry.answer(unique, answer)
            }
            SlotState::InPlace { data, answer: place } => {
                *place = Some(in_place_reply(*data, answer));
                Ok(())
            }
            SlotState::Nothing => Err(Errno::NOENT),
        }
    }

    /// Answers the request in hand in place of this slot's thread, which loses its entry.
    pub(crate) fn answer_for_owner(&self, unique: u64, errno: Errno) {
        let Some(mut entry) = self.take_entry(unique) else { return };
        entry.conclude(unique, -errno.raw_os_error(), 0);
        self.ring.return_entry(entry);
    }

    fn take_entry(&self, unique: u64) -> Option<Entry> {
        let mut state = self.state.lock();
        if state.unique != unique {
            return None;
        }
        match std::mem::replace(&mut state.held, SlotState::Nothing) {
            SlotState::Entry(entry, _) => Some(entry),
            other => {
                state.held = other;
                None
            }
        }
    }
}

fn in_place_reply(data: usize, answer: ReplyBytes<'_>) -> InPlaceReply {
    match answer {
        Err(errno) => InPlaceReply::Error(errno),
        Ok([first, second]) => {
            let mut small = [0; SMALL];
            if second.is_empty() && first.as_ptr().addr() == data {
                InPlaceReply::Data(first.len())
            } else if second.is_empty()
                && let Some(place) = small.get_mut(..first.len())
            {
                place.copy_from_slice(first);
                InPlaceReply::Small(small, first.len())
            } else {
                debug_assert!(false, "an answer of {} bytes from elsewhere", first.len() + second.len());
                InPlaceReply::Error(Errno::IO)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Dev;

    fn reply_slot() -> Arc<ReplySlot> {
        let dev = Dev::new(std::fs::File::open("/dev/null").unwrap().into());
        Arc::new(ReplySlot::new(Arc::new(Ring::new(Arc::new(dev), 1, 1).unwrap())))
    }

    fn kept(reply_slot: &ReplySlot) -> usize {
        let mut entries = Vec::new();
        reply_slot.ring.take_returned(&mut entries);
        entries.len()
    }

    fn entry() -> Entry {
        Entry::new(0).unwrap()
    }

    #[test]
    fn the_owners_answer_stays_with_its_entry() {
        let reply_slot = reply_slot();
        reply_slot.put_entry(2, entry());
        reply_slot.answer(2, Ok([b"yes", &[]])).unwrap();
        let ServedEntry::Answered(mut entry) = reply_slot.take_served() else { panic!("no answer") };
        assert_eq!(&entry.buffer.data()[..3], b"yes");
        reply_slot.put_entry(4, entry);
        assert!(matches!(reply_slot.take_served(), ServedEntry::Unanswered(_)));
        assert!(matches!(reply_slot.take_served(), ServedEntry::Gone));
        assert_eq!(kept(&reply_slot), 0);
    }

    #[test]
    fn another_answers_the_right_request_only_and_takes_the_entry() {
        let reply_slot = reply_slot();
        reply_slot.put_entry(2, entry());
        reply_slot.answer_for_owner(6, Errno::INTR);
        assert_eq!(kept(&reply_slot), 0);
        reply_slot.answer_for_owner(2, Errno::INTR);
        assert_eq!(kept(&reply_slot), 1);
        assert_eq!(reply_slot.answer(2, Err(Errno::IO)), Err(Errno::NOENT));
        assert!(matches!(reply_slot.take_served(), ServedEntry::Gone));
    }

    #[test]
    fn answers_to_lent_entries_are_noted() {
        let reply_slot = reply_slot();
        let data = [1_u8, 2, 3];
        let at = data.as_ptr().addr();
        for (answer, expected) in [
            (Ok([&data[..], &[]]), Some(InPlaceReply::Data(3))),
            (
                Ok([&[4, 5][..], &[]]),
                Some(InPlaceReply::Small([4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 2)),
            ),
            (Err(Errno::NOSPC), Some(InPlaceReply::Error(Errno::NOSPC))),
        ] {
            reply_slot.begin_in_place(2, at);
            reply_slot.answer(2, answer).unwrap();
            // Another thread has nothing to take.
            reply_slot.answer_for_owner(2, Errno::INTR);
            assert_eq!(reply_slot.in_place_reply(), expected);
        }
        reply_slot.begin_in_place(2, at);
        assert_eq!(reply_slot.in_place_reply(), None);
        assert_eq!(kept(&reply_slot), 0);
    }
}
