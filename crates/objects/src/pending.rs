//! Data that waits for its extents: bounded for the volume, found by a sync.

use std::collections::HashMap;

use parking_lot::Mutex;
use store::{Error, ErrorKind, Result};
use tokio::sync::Notify;

use crate::node::Pin;

/// Bytes of written data without extents, from which on writers wait.
const BYTES_MAX: u64 = 64 << 20;

/// The files with such data.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    /// Room was made, or the volume was given up.
    changed: Notify,
    /// There is such a file.
    came: Notify,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// Of these, those that a round has taken.
    in_rounds: u64,
    files: HashMap<u64, Pin>,
    failed: Option<Error>,
}

impl Pending {
    /// Takes room for `bytes`, once there is some; says whether more than half of all is taken by
    /// data that is in no round: what a round has taken gives its room back by itself, so that data
    /// that waits with it need not go in many small rounds.
    pub(crate) async fn take(&self, bytes: u64) -> Result<bool> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                // A larger write than all of it goes alone.
                if state.bytes == 0 || state.bytes + bytes <= BYTES_MAX {
                    state.bytes += bytes;
                    return Ok(state.bytes - state.in_rounds > BYTES_MAX / 2);
                }
            }
            changed.await;
        }
    }

    /// Gives room back that no round has taken.
    pub(crate) fn give(&self, bytes: u64) {
        self.state.lock().bytes -= bytes;
        self.changed.notify_waiters();
    }

    /// A round has taken data with so much room.
    pub(crate) fn begin_round(&self, bytes: u64) {
        self.state.lock().in_rounds += bytes;
    }

    /// Gives the room of a round back.
    pub(crate) fn end_round(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.bytes -= bytes;
        state.in_rounds -= bytes;
        drop(state);
        self.changed.notify_waiters();
    }

    /// A file has data without extents.
    pub(crate) fn add(&self, pin: &Pin) {
        let is_new = !self.state.lock().files.contains_key(&pin.ino);
        if is_new {
            let pin = pin.clone();
            let _was_added_meanwhile = self.state.lock().files.insert(pin.ino, pin);
            self.came.notify_waiters();
        }
    }

    /// Waits until a file has data without extents.
    pub(crate) async fn some(&self) {
        loop {
            let came = self.came.notified();
            if !self.is_empty() {
                return;
            }
            came.await;
        }
    }

    /// It has none any more.
    pub(crate) fn remove(&self, ino: u64) {
        let gone = self.state.lock().files.remove(&ino);
        drop(gone);
    }

    /// All files that have some.
    pub(crate) fn files(&self) -> Vec<Pin> {
        self.state.lock().files.values().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().files.is_empty()
    }

    /// Bytes without extents.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Gives all of it up: writers get this error.
    pub(crate) fn fail(&self, error: Error) {
        self.state.lock().failed.get_or_insert(error);
        self.changed.notify_waiters();
    }

    /// Waits until the volume is given up.
    pub(crate) async fn failed(&self) -> Error {
        loop {
            let changed = self.changed.notified();
            if let Err(error) = self.failure() {
                return error;
            }
            changed.await;
        }
    }

    /// Gives the references on all files back: a tree that is not used any more goes with them.
    pub(crate) fn clear(&self) {
        let files = std::mem::take(&mut self.state.lock().files);
        drop(files);
    }

    /// Why nothing is taken any more.
    pub(crate) fn failure(&self) -> Result<()> {
        match &self.state.lock().failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

/// A volume that was given up.
pub(crate) fn given_up() -> Error {
    Error::with(ErrorKind::Io, "write data", "the volume was given up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_rounds_have_taken_does_not_make_it_tight() {
        let (pending, half) = (Pending::default(), BYTES_MAX / 2);
        assert!(!pending.take(half).await.unwrap());
        pending.begin_round(half);
        assert!(!pending.take(half).await.unwrap(), "as much is left for others");
        // It is full, and a round that ends makes room.
        let more = pending.take(1);
        tokio::pin!(more);
        assert!(futures_util::poll!(&mut more).is_pending());
        pending.end_round(half);
        assert!(more.await.unwrap(), "more than half waits for a round");
        pending.give(half + 1);
        assert_eq!(pending.bytes(), 0);
    }
}
