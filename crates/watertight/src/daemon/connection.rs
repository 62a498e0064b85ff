//! What is left of the kernel's connection.
//!
//! P1: The state is stored before the kernel learns that its file system may go, and loaded after the
//! mount table was read: a row that another mount with the old number has put there is not taken
//! for this one.

use sync::atomic::{AtomicU32, Ordering};

/// A [`ConnectionState`] that only grows: once the file system is gone, its device number may be
/// another's.
#[derive(Debug, Default)]
pub struct AtomicConnectionState(AtomicU32);

/// What is left of the kernel's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// Nothing: the device number is ours.
    Connected,
    /// The connection has ended: its mount may still be there, or its number be another's.
    Aborted,
    /// The file system is gone.
    Unmounted,
}

impl AtomicConnectionState {
    /// The kernel has let go of the file system, or is about to; or has aborted the connection.
    pub fn advance(&self, to: ConnectionState) {
        // ORDERING: Release, P1 with the Acquire in `get`: the next step (the answer to DESTROY)
        // lets the number go to another mount. A thread that sees that mount in the table has to
        // see this store too.
        self.0.fetch_max(to as u32, Ordering::Release);
    }

    pub(super) fn get(&self) -> ConnectionState {
        // ORDERING: Acquire, P1, see `advance`.
        match self.0.load(Ordering::Acquire) {
            0 => ConnectionState::Connected,
            1 => ConnectionState::Aborted,
            _ => ConnectionState::Unmounted,
        }
    }
}
