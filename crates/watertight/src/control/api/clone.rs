//! Namespaces that are shown at a second mountpoint.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::state::UmountKind;
use crate::host::holders::Holders;
use crate::term::shown::Name;

/// The relation between changes in a clone and in the namespace that it was made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Propagation {
    /// Changes in one appear in the other.
    #[default]
    Shared,
    /// Changes in the first appear in the clone.
    Slave,
    /// Each has its own.
    Private,
}

impl fmt::Display for Propagation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shared => "shared",
            Self::Slave => "slave",
            Self::Private => "private",
        })
    }
}

/// A second mountpoint of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneStatus {
    /// Where.
    pub mountpoint: Name,
    /// How it was made.
    pub propagation: Propagation,
}

/// The body of `POST /v1/clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneRequest {
    /// An empty directory, absolute.
    pub mountpoint: String,
    /// How changes in one affect the other.
    #[serde(default)]
    pub propagation: Propagation,
}

/// The answer to `POST /v1/clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneReply {
    /// Where it is.
    pub mountpoint: Name,
}

/// The body of `POST /v1/leave`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveRequest {
    /// One of several mountpoints.
    pub mountpoint: String,
    /// How.
    pub how: UmountKind,
}

/// The answer to `POST /v1/leave`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveReply {
    /// Whether it is held: for `plain` it is still mounted, otherwise the path is gone.
    pub is_held: bool,
    /// The holders.
    pub holders: Holders,
}
