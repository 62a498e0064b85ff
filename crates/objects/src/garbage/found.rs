//! What was found to be garbage, and what became of it.

use crate::object_names::object_name;
use crate::rows::Object;

/// Something that may be garbage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Garbage {
    /// An object whose data is dead; an object of the log may have none.
    Data(Object),
    /// A table of the engine's, by its name in the bucket.
    Table(String),
}

impl Garbage {
    /// The object's name in the bucket.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Data(object) => object_name(*object),
            Self::Table(name) => name.clone(),
        }
    }
}

/// How a removal ended.
#[derive(Debug)]
#[must_use]
pub(super) enum Removal {
    /// These objects are gone.
    Removed(Vec<String>),
    /// Nothing was removed: these are the marks of readers elsewhere.
    LeftForReaders(Vec<String>),
}

/// What a removal does about the engine's tables while some of them are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DuringMerge {
    /// It leaves them to the next pass, and removes the rest.
    Leave,
    /// It waits for the merge.
    Wait,
}

/// When something was found to be garbage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) passes: u32,
    /// The object of the log that says so.
    pub(super) number: u64,
    /// What began before may use it.
    pub(super) work: u64,
}
