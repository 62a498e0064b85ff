//! One object of a directory store that somebody knows.
//!
//! # Who touches what
//! * `id`, `ino`, `kind`: immutable.
//! * `path`: protected by its lock; `None` while the descriptor is put away (see
//!   [`handle`](super::handle)).
//! * `data`: protected by its lock, which is held while the data is being opened, so that all
//!   openings share one descriptor.
//! * `sync`: what is not durable yet; see [`durable`](super::durable).
//! * references and pins: in the table's slot, protected by the shard's lock.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use sync::Mutex;

use super::durable::SyncState;
use super::file::DirFile;
use crate::{FileType, ObjectId};

/// An object of the host's directory.
#[derive(Debug)]
pub(crate) struct DirNode {
    pub(crate) id: ObjectId,
    pub(crate) ino: u64,
    pub(crate) kind: FileType,
    /// `O_PATH` descriptor of the object itself.
    pub(crate) path: Mutex<Option<Arc<OwnedFd>>>,
    /// The shared opening of a regular file's data.
    pub(crate) data: Mutex<Weak<DirFile>>,
    pub(crate) sync: Mutex<SyncState>,
    /// Held while a directory is being synced, so that those who wait find it done.
    pub(crate) syncing: Mutex<()>,
}

impl DirNode {
    pub(crate) fn new(id: ObjectId, ino: u64, kind: FileType, path: OwnedFd) -> Self {
        Self {
            id,
            ino,
            kind,
            path: Mutex::new(Some(Arc::new(path))),
            data: Mutex::new(Weak::new()),
            sync: Mutex::new(SyncState::default()),
            syncing: Mutex::new(()),
        }
    }

    /// Whether its data or entries can be opened for syncing.
    pub(crate) fn can_be_opened(&self) -> bool {
        matches!(self.kind, FileType::Regular | FileType::Directory)
    }
}
