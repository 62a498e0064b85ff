//! What a directory store leaves to the next program of its process.

use std::os::fd::RawFd;

use recovery::NodeKey;
use serde::{Deserialize, Serialize};

use crate::types::{Access, FileType, ObjectId};

/// Counted ids carry another number in their low part.
const COUNTED_STEP: u64 = 64;

/// A directory store, written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirState {
    /// The descriptor that has the lock.
    pub(crate) lock: RawFd,
    /// The next counted id.
    pub(crate) next: u64,
    /// Ids that no other object may get, with their references.
    pub(crate) spent: Vec<(u64, u64)>,
    pub(crate) objects: Vec<ObjectState>,
}

/// An object in use: id, inode number, kind, generation, references, how to reach it, open data.
/// Written as a list, since there may be many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectState(
    pub(crate) ObjectId,
    pub(crate) u64,
    pub(crate) FileType,
    pub(crate) Option<u32>,
    pub(crate) u64,
    pub(crate) PathState,
    pub(crate) Option<DataState>,
);

/// How to reach an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PathState {
    /// By this descriptor.
    Fd(RawFd),
    /// By a handle: its type and its bytes.
    Handle(i32, Vec<u8>),
}

/// Open data: the descriptor, whether it reads, whether it writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataState(pub(crate) RawFd, pub(crate) bool, pub(crate) bool);

impl DirState {
    /// Of a store whose lock is in this descriptor, and which has no object in use.
    #[must_use]
    pub fn of_lock(lock: RawFd) -> Self {
        Self { lock, next: 0, spent: Vec::new(), objects: Vec::new() }
    }

    /// Adds an object that a server had in use which has died. `held`: the descriptor of its opening,
    /// where it has no name any more, and whether that reads and writes.
    pub fn add(&mut self, id: ObjectId, key: &NodeKey, held: Option<(RawFd, bool, bool)>) {
        let Some(kind) = FileType::of_number(key.kind) else { return self.add_gone(id) };
        let path = match held {
            Some((fd, ..)) => PathState::Fd(fd),
            None => PathState::Handle(key.handle.0, key.handle.1.clone()),
        };
        let data = held.map(|(fd, reads, writes)| DataState(fd, reads, writes));
        self.count_on_after(id);
        self.objects.push(ObjectState(id, key.ino, kind, key.generation, 1, path, data));
    }

    /// Adds an object whose number on its file system another one has by now: no other gets its id.
    pub fn add_gone(&mut self, id: ObjectId) {
        self.count_on_after(id);
        self.spent.push((id.0, 1));
    }

    /// Ids that are counted up go on after this one, be its object there or gone.
    fn count_on_after(&mut self, id: ObjectId) {
        self.next = self.next.max(id.0 / COUNTED_STEP + 1);
    }

    /// How many objects it has.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// How many of them have no descriptor.
    #[must_use]
    pub fn by_handle(&self) -> usize {
        self.objects.iter().filter(|object| matches!(object.5, PathState::Handle(..))).count()
    }

    /// Objects that have their open data with them, and the access that it allows.
    pub fn open_data(&self) -> impl Iterator<Item = (ObjectId, Access)> {
        self.objects.iter().filter_map(|ObjectState(id, .., data)| {
            let DataState(_, _, can_write) = data.as_ref()?;
            Some((*id, if *can_write { Access::ReadWrite } else { Access::Read }))
        })
    }
}
