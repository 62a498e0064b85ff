//! What a check remembers of an inode.

use store::ObjectId;

use crate::rows::Kind;

pub(super) const ROOT: u64 = ObjectId::ROOT.0;

/// What is remembered of an inode in a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) ino: u64,
    /// A directory's: where it says that it is.
    pub(super) parent: u64,
    /// A directory's: where its name is, or the first of them.
    pub(super) found_in: u64,
    pub(super) nlink: u32,
    pub(super) names: u32,
    /// A directory's: the directories in it.
    pub(super) dirs: u32,
    pub(super) kind: Kind,
    /// Its row is missing or cannot be read: nothing more is said of it.
    pub(super) is_lost: bool,
    pub(super) is_orphan: bool,
    /// Its name is where it says that it is.
    pub(super) is_at_parent: bool,
}

/// As docs/design/objects.md has it.
const _: () = assert!(size_of::<Record>() == 40, "4 million of them are in memory");

impl Record {
    pub(super) const fn new(ino: u64, kind: Kind) -> Self {
        Self {
            ino,
            parent: 0,
            found_in: 0,
            nlink: 0,
            names: 0,
            dirs: 0,
            kind,
            is_lost: false,
            is_orphan: false,
            is_at_parent: false,
        }
    }
}

pub(super) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
