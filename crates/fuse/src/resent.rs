//! Requests that the kernel sends again, since a server died with them in its hands.
//!
//! With a journal, each thread notes the request that it has read, and how far that came. The server
//! that follows first has the kernel send again what was not answered (`FUSE_NOTIFY_RESEND`): these
//! requests come before all others, with a mark in their numbers, and go on from where the journal says
//! they were left. A request that servers have died of [`CRASHES_MAX`] times is answered EIO.
//!
//! # When all were read
//! Threads read one after the other until the first request comes without the mark. Each is noted
//! before the next is read, so that the journal's other orphans were answered by then, and their slots
//! are free.
//!
//! # One opening of the device
//! All threads read from the opening that the keeper holds as well: requests that were read by another
//! one would fail when that is closed, with the server.
//!
//! Lock order: `Resent::reading` is held while the device is read; nothing that is locked under it
//! waits for a request.

use std::sync::Arc;

use recovery::journal::RESENT;
use recovery::{Journal, Recovery, RequestRecord, Slot};
use rustix::io::Errno;
use sync::atomic::{AtomicBool, Ordering};
use sync::mutant::is_on;
use sync::{Mutex, MutexGuard};
use zerocopy::FromBytes as _;

use crate::device::Dev;
use crate::protocol::abi::{InHeader, NotifyCode, Opcode};

/// How many servers may die with a request in their hands.
pub(crate) const CRASHES_MAX: u64 = 3;

/// The journal of a connection, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Resent {
    recovery: Option<Arc<Recovery>>,
    /// Requests come that were sent before.
    are_coming: AtomicBool,
    reading: Mutex<()>,
}

impl Resent {
    pub(crate) fn new(recovery: Option<Arc<Recovery>>) -> Self {
        let are_coming = recovery.as_ref().is_some_and(|recovery| recovery.journal.servers() > 0);
        Self { recovery, are_coming: AtomicBool::new(are_coming), reading: Mutex::new(()) }
    }

    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.recovery.as_ref().map(|recovery| &recovery.journal)
    }

    /// Has the kernel send again what was not answered. Before anything is read.
    pub(crate) fn ask(&self, device: &Dev) -> Result<(), Errno> {
        // ORDERING: Relaxed, no other thread is there yet.
        if !self.are_coming.load(Ordering::Relaxed) {
            return Ok(());
        }
        device.notify(NotifyCode::Resend, [&[], &[]])
    }

    /// To be held while a request is read from `device` and [noted](Self::note).
    pub(crate) fn reading(&self, device: &Dev) -> Option<MutexGuard<'_, ()>> {
        if is_on("recovery-resend-twice") {
            let _asked = self.ask(device);
        }
        // ORDERING: Acquire, pairs with the Release in `note`.
        self.are_coming.load(Ordering::Acquire).then(|| self.reading.lock())
    }

    /// Notes a request that the calling thread has read; says how far it came if it was sent before.
    pub(crate) fn note(&self, slot: Option<Slot>, message: &[u8]) -> Option<RequestRecord> {
        let (Some(journal), Some(slot)) = (self.journal(), slot) else { return None };
        let Ok((header, _)) = InHeader::read_from_prefix(message) else { return None };
        if is_unanswered(header.opcode) {
            return None;
        }
        let record = journal.begin(slot, header.unique);
        // ORDERING: Relaxed, the lock of `reading` is held where it matters.
        if header.unique & RESENT == 0 && self.are_coming.load(Ordering::Relaxed) {
            journal.drop_orphans();
            // ORDERING: Release: a thread that reads without the lock finds the orphans gone.
            self.are_coming.store(false, Ordering::Release);
        }
        record
    }
}

/// Whether the kernel waits for no answer.
fn is_unanswered(opcode: u32) -> bool {
    let opcode = Opcode::from_number(opcode);
    matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply))
}
