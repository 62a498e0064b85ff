//! What a store leaves to the next program of its process.

use std::os::fd::RawFd;

use recovery::NodeKey;
use serde::{Deserialize, Serialize};

use crate::dir_state::{DirState, ObjectState};
use crate::types::{Access, ObjectId};

/// A store, written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, try_from = "AnyStoreState")]
pub enum StoreState {
    /// A directory's.
    Dir(DirState),
    /// One whose objects are found by their numbers, whichever program asks.
    Numbered(NumberedState),
}

/// A state of either kind, as it is read: in one pass, since it may be large.
#[derive(Deserialize)]
struct AnyStoreState {
    lock: Option<RawFd>,
    next: Option<u64>,
    spent: Option<Vec<(u64, u64)>>,
    objects: Option<Vec<ObjectState>>,
    references: Option<Vec<(ObjectId, u64)>>,
    tmpfiles: Option<Vec<ObjectId>>,
    holder: Option<String>,
}

impl TryFrom<AnyStoreState> for StoreState {
    type Error = &'static str;

    fn try_from(any: AnyStoreState) -> Result<Self, Self::Error> {
        let AnyStoreState { lock, next, spent, objects, references, tmpfiles, holder } = any;
        match (lock, next, spent, objects, references, tmpfiles) {
            (Some(lock), Some(next), Some(spent), Some(objects), None, None) => {
                Ok(Self::Dir(DirState { lock, next, spent, objects }))
            }
            (None, None, None, None, Some(references), Some(tmpfiles)) => {
                Ok(Self::Numbered(NumberedState { references, tmpfiles, holder }))
            }
            _ => Err("the state of a store is neither a directory's nor that of numbered objects"),
        }
    }
}

/// The objects in use of a store that finds them by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedState {
    /// Objects, with the references that its user has on each.
    pub references: Vec<(ObjectId, u64)>,
    /// Files that were made without a name, and may still get their first.
    pub tmpfiles: Vec<ObjectId>,
    /// How the medium names its holder, if it does: it is the program's still if it has that.
    #[serde(default)]
    pub holder: Option<String>,
}

impl NumberedState {
    /// How another process finds an object: by its number. A file that was made without a name, and
    /// may still get its first, has the kind 1, every other object the kind 0.
    #[must_use]
    pub fn key(id: ObjectId, is_tmpfile: bool) -> NodeKey {
        NodeKey { ino: id.0, kind: u32::from(is_tmpfile), generation: None, handle: (0, Vec::new()) }
    }

    /// Adds an object that has one reference; without a key it was gone when it was written down.
    pub fn add(&mut self, id: ObjectId, key: Option<&NodeKey>) {
        self.references.push((id, 1));
        if key.is_some_and(|key| key.kind != 0) {
            self.tmpfiles.push(id);
        }
    }
}

/// An open directory, written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OpenDirState {
    /// The descriptor of its opening.
    Fd(RawFd),
    /// What was listed so far, as its store writes it; since version 5 nothing, where a place says all.
    Listed(String),
    /// The same, as a program wrote it whose state has version 2.
    ListedBytes(Vec<u8>),
}

impl StoreState {
    /// How many objects it has.
    #[must_use]
    pub fn objects(&self) -> usize {
        match self {
            Self::Dir(dir) => dir.objects(),
            Self::Numbered(numbered) => numbered.references.len(),
        }
    }

    /// How many of them have no descriptor.
    #[must_use]
    pub fn by_handle(&self) -> usize {
        match self {
            Self::Dir(dir) => dir.by_handle(),
            Self::Numbered(numbered) => numbered.references.len(),
        }
    }

    /// Objects that have their open data with them, and the access that it allows.
    #[must_use]
    pub fn open_data(&self) -> Vec<(ObjectId, Access)> {
        match self {
            Self::Dir(dir) => dir.open_data().collect(),
            Self::Numbered(_) => Vec::new(),
        }
    }
}
