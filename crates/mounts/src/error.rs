//! The crate's errors.

use std::fmt;

/// The crate's results.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a walk or a change of the tree was refused. The kernel's error is in brackets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name of the path does not exist (ENOENT).
    #[error("there is no `{name}`")]
    NoEntry {
        /// The name.
        name: String,
    },
    /// A name of the path is not a directory, where one is needed (ENOTDIR).
    #[error("`{name}` is not a directory")]
    NotDirectory {
        /// The name.
        name: String,
    },
    /// The path goes through too many symbolic links (ELOOP).
    #[error("the path goes through more than {max} symbolic links")]
    TooManyLinks {
        /// The most links that are followed.
        max: usize,
    },
    /// A mount would be moved into itself (ELOOP).
    #[error("a mount cannot be moved into itself")]
    IntoItself,
    /// A mount is used, or has others on it (EBUSY).
    #[error("the mount is busy: {0}")]
    Busy(Busy),
    /// The same root of the same superblock is mounted there already (EBUSY).
    #[error("the same is mounted here already")]
    AlreadyThere,
    /// The path is not the root of a mount (EINVAL).
    #[error("this is not the root of a mount")]
    NotMountRoot,
    /// The mount is not in this namespace, or not any more (EINVAL).
    #[error("the mount is not in this namespace")]
    NotHere,
    /// A mount's propagation, or its being the namespace's root, does not allow this (EINVAL).
    #[error("not possible: {why}")]
    NotAllowed {
        /// The reason.
        why: &'static str,
    },
    /// Flags that are unknown, or contradict each other (EINVAL).
    #[error("these flags do not go together, or are unknown: {bits:#x}")]
    Flags {
        /// All flags.
        bits: u32,
    },
    /// The first of the two calls that end a mount that is not used (EAGAIN).
    #[error("the mount is marked as expiring; the next call ends it, unless it is used before")]
    Expiring,
    /// The handle allows walks only (EPERM).
    #[error("changing mounts is not permitted")]
    NotPermitted,
    /// A namespace has as many mounts as it may have (ENOSPC).
    #[error("the namespace cannot have more than {max} mounts")]
    TooManyMounts {
        /// The most mounts that it may have.
        max: usize,
    },
    /// The superblock was shut down (ENODEV).
    #[error("the superblock was shut down")]
    Ended,
    /// The superblock's own failure (EIO).
    #[error("{what}")]
    Failed {
        /// Its words.
        what: String,
    },
}

/// The users that keep a mount busy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Busy {
    /// The holders of pins on it.
    pub holders: Vec<Holder>,
    /// Mounts on it.
    pub children: usize,
    /// [`ActiveRef`](crate::ActiveRef)s on a superblock that would lose its last mount.
    pub active_refs: usize,
    /// Whether the holders are those of a copy that propagation would have taken along.
    pub is_copy: bool,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.children > 0 {
            return write!(f, "{} mount(s) on it", self.children);
        }
        if self.is_copy {
            write!(f, "a copy of it, ")?;
        }
        if self.active_refs > 0 {
            return write!(f, "{} open file(s)", self.active_refs);
        }
        write!(f, "used by ")?;
        for (n, holder) in self.holders.iter().enumerate() {
            write!(f, "{}{}", if n > 0 { ", " } else { "" }, holder.0)?;
        }
        Ok(())
    }
}

/// The holder of a pin, in words for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder(std::sync::Arc<str>);

impl Holder {
    /// A holder with this name.
    pub fn new(name: impl Into<std::sync::Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Holder {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
