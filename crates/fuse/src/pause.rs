//! A session that goes on in the next program of its process.
//!
//! Purpose: [`SessionView::pause`] lets the requests that threads have in hand come to their ends
//! and has no thread read others: these wait in the kernel, and their callers with them. Then the
//! connection's descriptor and what was agreed in INIT, which the kernel does not say again, are all
//! that the next program needs ([`Session::take_over`](crate::Session::take_over)): no request is
//! known to this process only.
//!
//! A thread that waits in read(2) is woken by a request, which it answers before it parks. Another
//! process makes as many as there are such threads: one of this process would keep it from ending
//! when it is killed. A request that is left over waits, as others do.
//!
//! Locks (POSIX, OFD, flock) and their waiters are the kernel's own (module `protocol::init`): they
//! stay where they are.
//!
//! Not handed over: connections over io_uring, whose entries belong to this program's memory;
//! mountpoints whose syncs this process reports to the kernel by a device of its own (kernels before
//! 6.18).

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use handover::Kept;

use crate::connection::{Connection, Transport};
use crate::handover::SessionHandover;
use crate::session::SessionView;

/// How long notifications to the kernel may take that wait already.
const TOLD_AFTER: Duration = Duration::from_millis(100);

/// Why requests cannot be held back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PauseError {
    /// Of this kind of connection, never.
    #[error("{0}")]
    Unsupported(&'static str),
    /// Requests did not come to their ends in time.
    #[error("{requests} requests did not come to an end in time")]
    Busy {
        /// How many.
        requests: usize,
    },
    /// The connection has ended, or is about to.
    #[error("it is being unmounted")]
    Ended,
}

/// No request is read until this is dropped.
#[derive(Debug)]
pub struct Paused(Arc<Connection>);

impl SessionView {
    /// What was agreed on the connection, for a server that finds it under the number `device`.
    #[must_use]
    pub fn recoverable(&self, device: RawFd) -> SessionHandover {
        let Connection { negotiated, mode, transport, .. } = &**self.connection();
        let reason = match &*transport.lock() {
            Transport::Readers { reason } => reason.clone(),
            Transport::Uring => String::new(),
        };
        // What is attached does not outlive its server.
        SessionHandover::new(device, negotiated, *mode, reason, None)
    }

    /// The connection.
    #[must_use]
    pub fn device(&self) -> BorrowedFd<'_> {
        self.connection().master.fd()
    }

    /// Whether requests can be held back here at all.
    ///
    /// # Errors
    /// [`PauseError::Unsupported`], in words for a person.
    pub fn can_pause(&self) -> Result<(), PauseError> {
        let connection = self.connection();
        if *connection.transport.lock() == Transport::Uring {
            return Err(PauseError::Unsupported(
                "requests come over io_uring, which cannot be handed over; mount with -o uring=off",
            ));
        }
        if connection.page.is_some() {
            return Err(PauseError::Unsupported(
                "on this kernel its syncs are reported by a device of the process, which cannot be handed over",
            ));
        }
        Ok(())
    }

    /// Lets requests under way come to their ends, and reads no others; until `until`, and as long as
    /// `go_on` agrees, which is asked often. `wake` gets the number of threads that wait in read(2),
    /// and has another process make so many requests.
    ///
    /// # Errors
    /// See [`PauseError`]; requests are read again then.
    pub fn pause(
        &self,
        until: Instant,
        wake: impl FnOnce(usize),
        go_on: impl FnMut() -> bool,
    ) -> Result<Paused, PauseError> {
        self.can_pause()?;
        let connection = self.connection();
        // Dropped on each way out but the last: that is the end of the pause.
        let paused = Paused(Arc::clone(connection));
        let is_still = connection.pool.pause(until, wake, go_on);
        if connection.has_ended() {
            return Err(PauseError::Ended);
        }
        if !is_still {
            return Err(PauseError::Busy { requests: connection.in_flight.in_hand().max(1) });
        }
        let attached = connection.tree.volumes();
        // Sent in a moment, unless the kernel waits for a lock whose holder waits for a request.
        let until = until.min(Instant::now() + TOLD_AFTER);
        let mut all = std::iter::once(connection.tree.root()).chain(&attached);
        if !all.all(|one| one.invalidations.wait_until(until)) {
            return Err(PauseError::Busy { requests: 1 });
        }
        Ok(paused)
    }
}

impl Paused {
    /// Writes the session down.
    ///
    /// # Errors
    /// When the process has no descriptor left, and when what is attached is changing just now.
    pub fn hand_over(&self, kept: &mut Kept) -> std::io::Result<SessionHandover> {
        let Connection { negotiated, mode, master, transport, tree, .. } = &*self.0;
        let tree = tree.hand_over().map_err(std::io::Error::other)?;
        let reason = match &*transport.lock() {
            Transport::Readers { reason } => reason.clone(),
            Transport::Uring => String::new(),
        };
        Ok(SessionHandover::new(kept.copy(master.fd())?, negotiated, *mode, reason, tree))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.pool.resume(&self.0);
    }
}
