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
}

#[derive(Debug, Default)]
struct State {
    /// All that has no extents, what rounds have taken included.
    bytes: u64,
    /// What rounds have taken.
    taken: u64,
    files: HashMap<u64, Pin>,
    failed: Option<Error>,
}

impl Pending {
    /// Takes room for `bytes`, once there is some; says whether so much of it is in no round that
    /// each file's should begin one. What is on its way makes room by itself: rounds for its sake
    /// would be many and small.
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
                    return Ok(state.bytes - state.taken > BYTES_MAX / 2);
                }
            }
            changed.await;
        }
    }

    /// Gives room back that was taken for data that was not written.
    pub(crate) fn give(&self, bytes: u64) {
        self.state.lock().bytes -= bytes;
        self.changed.notify_waiters();
    }

    /// A round has taken `bytes`.
    pub(crate) fn round_begins(&self, bytes: u64) {
        self.state.lock().taken += bytes;
    }

    /// A round has given its `bytes` their extents.
    pub(crate) fn round_ends(&self, bytes: u64) {
        {
            let mut state = self.state.lock();
            state.bytes -= bytes;
            state.taken -= bytes;
        }
        self.changed.notify_waiters();
    }

    /// A file has data without extents.
    pub(crate) fn add(&self, pin: &Pin) {
        let is_new = !self.state.lock().files.contains_key(&pin.ino);
        if is_new {
            let pin = pin.clone();
            let _was_added_meanwhile = self.state.lock().files.insert(pin.ino, pin);
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
