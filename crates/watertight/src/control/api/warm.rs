//! Files that are brought to the disk cache.

use serde::{Deserialize, Serialize};

use crate::term::shown::Words;

/// `POST /v1/warm`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmRequest {
    /// What to bring to the disk cache.
    pub pieces: Vec<WarmPiece>,
    /// Only say how much of it is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmPiece {
    /// The file's number in the store.
    pub file: u64,
    /// Where the part begins.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmReply {
    /// Bytes of the files that are in the disk cache now, or were before. With `check`: of those pieces
    /// that are there as a whole.
    pub bytes: u64,
    /// Pieces that could not be fetched.
    pub failed: Vec<WarmFailure>,
}

/// A piece that could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmFailure {
    /// The file's number in the store.
    pub file: u64,
    /// Why not.
    pub error: Words,
}
