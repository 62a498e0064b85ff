//! Notifies the kernel that what it remembers is no longer so.
//!
//! Purpose: the kinds of notification ([`Invalidation`]), how they are sent, and [`Notifier`], with
//! which a program sends them. Notifications of a volume's own requests and of a program go the
//! same way: a list and a thread for each volume (module `invalidations`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use rustix::io::Errno;
use volume::NodeId;
use zerocopy::IntoBytes as _;

use crate::abi::{NotifyCode, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut};
use crate::dev::Dev;
use crate::invalidations::InvalidationQueue;

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
    #[error("there is no thread to tell the kernel with")]
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

/// Notifies the kernel that what it remembers of the mountpoint's own volume is no longer so; in
/// the order of the calls.
#[derive(Debug, Clone)]
pub struct Notifier {
    invalidations: Arc<InvalidationQueue>,
    dev: Arc<Dev>,
}

impl Notifier {
    pub(crate) fn new(invalidations: Arc<InvalidationQueue>, dev: Arc<Dev>) -> Self {
        Self { invalidations, dev }
    }

    /// `name` in `parent` may no longer be what it was. A process that has it open goes on; new
    /// path look-ups ask again.
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended: nothing was queued. When
    /// there is no thread: it is sent with the next one.
    pub fn entry(&self, parent: NodeId, name: &OsStr) -> Result<(), NotifyError> {
        self.invalidate(Invalidation::Entry { parent, name: name.to_owned() })
    }

    /// Attributes of `id` may have changed, and its data from `offset` on (`len` bytes, 0 for all
    /// that follows; a negative offset: attributes only).
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended: nothing was queued. When
    /// there is no thread: it is sent with the next one.
    pub fn inode(&self, id: NodeId, offset: i64, len: i64) -> Result<(), NotifyError> {
        self.invalidate(Invalidation::Inode { id, offset, len })
    }

    /// `name` in `parent`, which is `child`, was removed; processes inside it see what rmdir(2)
    /// leaves.
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended: nothing was queued. When
    /// there is no thread: it is sent with the next one.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &OsStr) -> Result<(), NotifyError> {
        self.invalidate(Invalidation::Delete { parent, child, name: name.to_owned() })
    }

    /// Waits until everything queued so far was sent, the notifications of the volume's own
    /// requests included. What was queued when the connection ended is not sent. Not to be called
    /// by a request's handler.
    pub fn wait(&self) {
        self.invalidations.wait();
    }

    fn invalidate(&self, invalidation: Invalidation) -> Result<(), NotifyError> {
        self.invalidations.invalidate(&self.dev, [invalidation])
    }
}

/// Sends a notification. The kernel may wait for the holder of a lock that it needs.
pub(crate) fn send(dev: &Dev, invalidation: &Invalidation) {
    let sent = match invalidation {
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
        Err(error) => tracing::warn!(note = ?invalidation, %error, "the kernel did not take a notification"),
    }
}

/// The name with a NUL.
fn ended(name: &OsStr) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}
