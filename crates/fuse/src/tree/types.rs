//! What callers see of the tree: errors, how to detach, what was attached.

use std::path::PathBuf;
use std::time::Instant;

use mounts::{MountId, SuperblockRef, Umount};

use super::wire::NodeTag;

/// Why the tree was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The path leads nowhere, or its volume failed.
    #[error("{path}: {error}")]
    Path {
        /// As far as it was walked.
        path: String,
        /// The volume's words.
        error: volume::Error,
    },
    /// A part of the path is not a directory.
    #[error("{0} is not a directory")]
    NotDirectory(String),
    /// Paths here begin at the mountpoint, and have no `..`.
    #[error("{0} is not a path inside the mountpoint")]
    BadPath(String),
    /// The mountpoint itself can only be unmounted.
    #[error("this is the mountpoint itself")]
    IsRoot,
    /// Nothing is attached there.
    #[error("nothing is attached at {0}")]
    NotAttached(String),
    /// The error of the tree.
    #[error(transparent)]
    Tree(#[from] mounts::Error),
    /// All numbers for mounts have been used.
    #[error("this mount process has attached as many volumes as it can in its life")]
    NoTags,
    /// The state that the program before has left does not fit together.
    #[error("the state of what is attached makes no sense: {0}")]
    BadState(&'static str),
    /// A node's number is too large for anything but the root volume.
    #[error("the directory's number is too large to be shown in a second place")]
    NodeTooLarge,
}

/// How to detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detach {
    /// Only if nothing is open there, and nothing attached.
    Sync,
    /// At once, with all that is attached below; the last close ends the volume.
    Lazy,
    /// At once, whatever is open; unwritten data is given up. Callers that wait for the volumes get
    /// errors.
    Force,
}

impl Detach {
    pub(super) fn flags(self) -> Umount {
        match self {
            Self::Sync => Umount::empty(),
            Self::Lazy => Umount::DETACH,
            Self::Force => Umount::DETACH | Umount::FORCE,
        }
    }
}

/// A volume that was attached.
#[derive(Debug, Clone)]
pub struct Attached {
    pub(super) mount: MountId,
    pub(super) volume: NodeTag,
    pub(super) superblock: SuperblockRef,
}

impl Attached {
    /// The volume's number among those of this session, the same for each place of it.
    #[must_use]
    pub fn volume(&self) -> u64 {
        self.volume.number()
    }

    /// Whether a path leads to it: from where it was attached, or another place that shows it.
    #[must_use]
    pub fn is_seen(&self) -> bool {
        self.superblock.mounts() > 0
    }

    /// Waits until nothing is open of its volume, or `until`; says whether nothing is. The kernel
    /// reports a close a little after close(2).
    #[must_use]
    pub fn wait_closed(&self, until: Instant) -> bool {
        self.superblock.wait_inactive(until)
    }
}

/// Something that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentInfo {
    /// Its mount.
    pub mount: MountId,
    /// Its volume's number, the same for each place of it; 0: of the root volume.
    pub volume: u64,
    /// Where, from the mountpoint on. None: a store cannot say.
    pub path: Option<PathBuf>,
}
