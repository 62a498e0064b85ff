//! The obligation to answer a request.
//!
//! Purpose: a [`Reply`] is made for each request that the kernel waits for, and sends one answer:
//! the handler's, or EIO when it is dropped without one (a handler that panicked). [`Sent`] proves
//! that it was used.

use std::cell::Cell;

use rustix::io::Errno;
use sync::mutant::is_on;
use zerocopy::{Immutable, IntoBytes};

use crate::in_flight::{Claim, RequestSlot};
use crate::sync_page::SyncPage;

/// Proof that a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Sent {
    /// Whether the kernel took the answer. If not, what the answer handed out must be taken back.
    pub(crate) is_delivered: bool,
    /// Whether it was an error.
    pub(crate) is_error: bool,
}

/// A request to be answered by the thread that read it.
#[derive(Debug)]
pub(crate) struct Reply<'a> {
    slot: &'a RequestSlot,
    /// Set when the slot's `Cancel` was used.
    cancel_used: &'a Cell<bool>,
    unique: u64,
    /// Notified before the answer that something may have changed.
    page: Option<&'a SyncPage>,
    is_answered: bool,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(slot: &'a RequestSlot, cancel_used: &'a Cell<bool>, unique: u64) -> Self {
        Self { slot, cancel_used, unique, page: None, is_answered: false }
    }

    /// A reply to a request that may change something.
    pub(crate) fn noting(mut self, page: Option<&'a SyncPage>) -> Self {
        self.page = page;
        self
    }

    /// Success, without data.
    pub(crate) fn done(self) -> Sent {
        self.send(Ok([&[], &[]]))
    }

    /// Success, with a structure.
    pub(crate) fn value(self, value: &(impl IntoBytes + Immutable)) -> Sent {
        self.send(Ok([value.as_bytes(), &[]]))
    }

    /// Success, with data.
    pub(crate) fn data(self, data: &[u8]) -> Sent {
        self.send(Ok([data, &[]]))
    }

    /// Failure.
    pub(crate) fn error(self, errno: Errno) -> Sent {
        self.send(Err(errno))
    }

    /// The volume's failure, or success without data.
    pub(crate) fn unit(self, result: volume::Result<()>) -> Sent {
        match result {
            Ok(()) => self.done(),
            Err(error) => self.error(crate::protocol::errno::of(&error)),
        }
    }

    /// The volume's failure, or success with a structure.
    pub(crate) fn result<T: IntoBytes + Immutable>(self, result: volume::Result<T>) -> Sent {
        match result {
            Ok(value) => self.value(&value),
            Err(error) => self.error(crate::protocol::errno::of(&error)),
        }
    }

    fn send(mut self, answer: Result<[&[u8]; 2], Errno>) -> Sent {
        self.send_once(answer)
    }

    fn send_once(&mut self, answer: Result<[&[u8]; 2], Errno>) -> Sent {
        self.is_answered = true;
        if let Some(page) = self.page {
            page.note_change();
        }
        let is_error = answer.is_err();
        match self.slot.claim() {
            Claim::Mine { cancel_used: false } => {}
            Claim::Mine { cancel_used: true } => self.cancel_used.set(true),
            Claim::Gone => {
                self.cancel_used.set(true);
                return Sent { is_delivered: false, is_error };
            }
        }
        let sent = self.slot.channel().answer(self.unique, answer);
        if is_on("slot-freed-late") {
            self.slot.clear_volume();
        }
        Sent { is_delivered: was_taken(self.unique, sent), is_error }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            debug_assert!(std::thread::panicking(), "request {} was not answered", self.unique);
            let _sent = self.send_once(Err(Errno::IO));
        }
    }
}

fn was_taken(unique: u64, sent: Result<(), Errno>) -> bool {
    match sent {
        Ok(()) => true,
        // No caller waits for the request any more, or the connection has ended.
        Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => false,
        Err(error) => {
            tracing::error!(unique, %error, "the kernel refused a reply");
            false
        }
    }
}
