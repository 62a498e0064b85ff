//! Snapshots of a volume's store.

use serde::{Deserialize, Serialize};

use crate::term::shown::Name;

/// The body of `POST /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase")]
pub enum SnapshotsRequest {
    /// Make one of everything that was written so far.
    Create {
        /// What it is called.
        name: String,
    },
    /// Delete one.
    Delete {
        /// What it is called.
        name: String,
    },
    /// Change nothing.
    List,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What it is called.
    pub name: Name,
    /// When it was made, in UTC by RFC 3339.
    pub created: Name,
    /// Bytes of the files that it shows.
    pub bytes: u64,
    /// Its files, directories and links.
    pub files: u64,
}

impl From<store::Snapshot> for Snapshot {
    fn from(snapshot: store::Snapshot) -> Self {
        let store::Snapshot { name, created, bytes, files } = snapshot;
        Self { name: name.into(), created: created.into(), bytes, files }
    }
}

/// The answer to `POST /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotsReply {
    /// The one that was made; or all, the oldest first; none of one that was deleted.
    pub snapshots: Vec<Snapshot>,
}
