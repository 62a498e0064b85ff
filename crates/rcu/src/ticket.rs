//! What a domain keeps of a thread that it asked for.

use std::io;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use crate::pool::Ticket;

/// Whether no thread could be had at the last try: that is logged once.
#[derive(Debug, Default)]
pub(crate) struct SpawnFailure(bool);

impl SpawnFailure {
    /// Records the outcome of a try. Returns the error if it was not logged yet: the caller logs it
    /// without the domain's lock.
    pub(crate) fn note(&mut self, asked: io::Result<()>) -> Option<io::Error> {
        let was_logged = std::mem::replace(&mut self.0, asked.is_err());
        asked.err().filter(|_| !was_logged)
    }
}

/// Nothing is for later.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
pub(crate) enum Ticket {}
