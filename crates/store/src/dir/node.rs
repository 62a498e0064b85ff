//! One object of a directory store that is in use.
//!
//! # Access
//! * `id`, `ino`, `kind`: immutable.
//! * `generation`: set once, by the thread that enters the object first or finds it again
//!   meanwhile.
//! * `path`: protected by its lock; without a descriptor while that is evicted (see
//!   [`paths`](super::paths)).
//! * `data`: protected by its lock, which is held while the data is being opened, so that all
//!   openings share one descriptor.
//! * `sync`: changes that are not durable yet; see [`durable`](super::durable).
//! * references and pins: in the table's slot, protected by the shard's lock.
//!
//! Lock order: `syncing`, then `sync`; `data`, then the table's shards; `path`, then the table's
//! shards. `data` and `path` of one object are never held together, nor with `sync` or `syncing`;
//! the second object's `path` is only tried. More in [`durable`](super::durable) and
//! [`paths`](super::paths).

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use sync::Mutex;

use super::durable::SyncState;
use super::file::DirFile;
use super::paths::{PathFd, Paths};
use crate::{FileType, ObjectId};

/// An object of the host's directory.
#[derive(Debug)]
pub(crate) struct DirNode {
    pub(crate) id: ObjectId,
    pub(crate) ino: u64,
    pub(crate) kind: FileType,
    /// See [`recall`](super::recall).
    pub(crate) generation: OnceLock<u32>,
    /// `O_PATH` descriptor of the object itself.
    pub(crate) path: Mutex<PathFd>,
    /// The shared opening of a regular file's data.
    pub(crate) data: Mutex<Weak<DirFile>>,
    pub(crate) sync: Mutex<SyncState>,
    /// Held while the object is being synced, so that the callers that wait find it done.
    pub(crate) syncing: Mutex<()>,
    /// Counts the descriptor.
    pub(crate) paths: Arc<Paths>,
}

impl DirNode {
    pub(crate) fn new(id: ObjectId, ino: u64, kind: FileType, path: Arc<OwnedFd>, paths: Arc<Paths>) -> Self {
        paths.count_opened();
        Self {
            id,
            ino,
            kind,
            generation: if id == ObjectId::ROOT { OnceLock::from(0) } else { OnceLock::new() },
            path: Mutex::new(PathFd::new(path)),
            data: Mutex::new(Weak::new()),
            sync: Mutex::new(SyncState::default()),
            syncing: Mutex::new(()),
            paths,
        }
    }

    /// An object of the program before this one.
    pub(crate) fn resumed(
        id: ObjectId,
        ino: u64,
        kind: FileType,
        generation: OnceLock<u32>,
        path: PathFd,
        paths: Arc<Paths>,
    ) -> Self {
        paths.count_opened();
        if path.fd.is_none() {
            paths.count_evicted();
        }
        let (path, data) = (Mutex::new(path), Mutex::new(Weak::new()));
        let (sync, syncing) = Default::default();
        Self { id, ino, kind, generation, path, data, sync, syncing, paths }
    }

    /// Whether its data or entries can be opened for syncing.
    pub(crate) fn can_be_opened(&self) -> bool {
        matches!(self.kind, FileType::Regular | FileType::Directory)
    }
}

impl Drop for DirNode {
    fn drop(&mut self) {
        let is_open = self.path.lock().fd.is_some();
        self.paths.count_ended(is_open);
    }
}
