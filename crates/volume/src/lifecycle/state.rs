//! What is known of a volume's life: its state, and how its end went.

use std::path::PathBuf;
use std::time::Duration;

use store::ErrorKind;
use sync::{Condvar, Mutex};

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VolumeState {
    /// In use.
    #[default]
    Active,
    /// No path leads to it; open files keep it.
    Detached,
    /// Its data is being written for the last time.
    Draining,
    /// Everything is on the store and the store is free.
    Released,
    /// The store is free, but not everything could be written.
    Failed,
}

/// Data that is not on the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwritten {
    /// The node's number.
    pub node: u64,
    /// The file's path in the volume, if the store can say.
    pub path: Option<PathBuf>,
    /// Bytes.
    pub bytes: u64,
    /// Why, if an attempt failed.
    pub error: Option<ErrorKind>,
}

/// How a drain ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// The data that was not written; empty if all went well.
    pub unwritten: Vec<Unwritten>,
    /// The error of the last step, making everything durable.
    pub sync_error: Option<store::Error>,
    /// How long it took.
    pub took: Duration,
    /// Of this, the wait for inodes that were changing their owners.
    pub switch_drain: Duration,
    /// Inodes that had changed their owners since the volume's beginning.
    pub switched: u64,
}

impl DrainReport {
    /// The errors, in words.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        let bytes: u64 = self.unwritten.iter().map(|file| file.bytes).sum();
        let files = self.unwritten.len();
        let lost = (files > 0).then(|| format!("{bytes} bytes of {files} files were not written"));
        lost.into_iter().chain(self.sync_error.as_ref().map(ToString::to_string)).reduce(|a, b| a + "; " + &b)
    }

    /// Everything is on the store.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unwritten.is_empty() && self.sync_error.is_none()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    pub(crate) state: Mutex<(VolumeState, Option<DrainReport>)>,
    pub(crate) ended: Condvar,
    /// The result of the end, with the names of files, which a store that is closed does not know
    /// any more.
    pub(crate) final_report: Mutex<Option<DrainReport>>,
}
