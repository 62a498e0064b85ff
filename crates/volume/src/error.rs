//! The crate's error.

use store::ErrorKind;

use crate::{HandleId, NodeId};

/// The result of a volume operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a volume refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store's error.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Earlier write-back of this file failed; reported once to each open file.
    #[error("write-back failed earlier: {0}")]
    Writeback(ErrorKind),
    /// The node is not known (any more): ESTALE.
    #[error("no node {}", .0.0)]
    NoNode(NodeId),
    /// The handle is not open, or not for this: EBADF.
    #[error("handle {} is not open for this", .0.0)]
    NoHandle(HandleId),
    /// The request was cancelled while it waited: EINTR.
    #[error("interrupted while waiting")]
    Interrupted,
    /// The file would be larger than a file can be: EFBIG.
    #[error("file would be too large")]
    FileTooBig,
    /// An argument makes no sense: EINVAL.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The volume is released or was forced away: EIO.
    #[error("volume is released")]
    Released,
}
