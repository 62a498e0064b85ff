//! What waits for a journal.

/// What waits for a journal.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Targets {
    /// As [`JournalOptions::is_fsync_target`](super::setup::JournalOptions::is_fsync_target).
    pub(crate) fsync: bool,
    /// As [`JournalOptions::is_accept_target`](super::setup::JournalOptions::is_accept_target).
    pub(crate) accept: bool,
}
