//! Notifies the kernel that what it remembers is no longer so.
//!
//! Purpose: the kinds of notification ([`Invalidation`]), how they are sent, and [`Notifier`], with
//! which a program sends them. Notifications of a volume's own requests and of a program go the
//! same way: a list and a thread for each volume (module `invalidations`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use rustix::io::Errno;
use volume::NodeId;
use zerocopy::IntoBytes as _;

use crate::device::Dev;
use crate::protocol::abi::{
    NotifyCode, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPruneOut,
};

/// How many notifications may wait.
pub(crate) const QUEUE_MAX: usize = 16_384;

/// `FUSE_EXPIRE_ONLY`.
const EXPIRE_ONLY: u32 = 1;

/// Why a notification was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotifyError {
    /// Too many wait already.
    #[error("{QUEUE_MAX} notifications to the kernel are waiting already")]
    Full,
    /// The connection has ended, and the kernel has forgotten everything.
    #[error("the connection has ended")]
    Ended,
    /// The host gives no thread to send notifications.
    #[error("cannot start the thread that notifies the kernel")]
    NoThread,
}

/// A notification to the kernel.
#[derive(Debug)]
pub(crate) enum Invalidation {
    Entry {
        parent: NodeId,
        name: OsString,
    },
    /// A new path look-up asks again; processes inside, and mounts inside, are not touched (Linux
    /// 6.2; before that as `Entry`).
    Expired {
        parent: NodeId,
        name: OsString,
    },
    Inode {
        id: NodeId,
        offset: i64,
        len: i64,
    },
    Delete {
        parent: NodeId,
        child: NodeId,
        name: OsString,
    },
    /// Nothing becomes invalid: names of these that nobody uses are forgotten, and with them what they are
    /// the last names of.
    Prune {
        ids: Vec<u64>,
    },
}

impl Invalidation {
    /// A name was made, removed or moved in a directory: the kernel's copy of it, and of the
    /// directory's attributes and listing, is not valid any more.
    pub(crate) fn name_changed(parent: NodeId, name: &OsStr) -> [Self; 2] {
        [Self::Expired { parent, name: name.to_owned() }, Self::Inode { id: parent, offset: 0, len: 0 }]
    }

    /// Attributes were changed: the kernel's copy of them is not valid any more.
    pub(crate) const fn attributes_changed(id: NodeId) -> [Self; 1] {
        [Self::Inode { id, offset: -1, len: 0 }]
    }
}

/// Sends a notification. The kernel may wait for the holder of a lock that it needs.
pub(crate) fn send(dev: &Dev, invalidation: &Invalidation) {
    let sent = match invalidation {
        Invalidation::Prune { ids } => {
            let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            let out = NotifyPruneOut { count, padding: 0, spare: 0 };
            dev.notify(NotifyCode::Prune, [out.as_bytes(), ids.as_bytes()])
        }
        Invalidation::Entry { parent, name } | Invalidation::Expired { parent, name } => {
            let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
            let flags = if matches!(invalidation, Invalidation::Expired { .. }) { EXPIRE_ONLY } else { 0 };
            let out = NotifyInvalEntryOut { parent: parent.0, namelen, flags };
            dev.notify(NotifyCode::InvalEntry, [out.as_bytes(), &ended(name)])
        }
        Invalidation::Inode { id, offset, len } => {
            let out = NotifyInvalInodeOut { ino: id.0, off: *offset, len: *len };
            dev.notify(NotifyCode::InvalInode, [out.as_bytes(), &[]])
        }
        Invalidation::Delete { parent, child, name } => {
            let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
            let out = NotifyDeleteOut { parent: parent.0, child: child.0, namelen, padding: 0 };
            dev.notify(NotifyCode::Delete, [out.as_bytes(), &ended(name)])
        }
    };
    match sent {
        // Not found: the kernel does not remember it.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
        Err(error) => tracing::warn!(note = ?invalidation, %error, "the kernel refused a notification"),
    }
}

/// The name with a NUL.
fn ended(name: &OsStr) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}
