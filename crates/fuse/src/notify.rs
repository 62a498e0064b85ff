//! Telling the kernel that what it remembers is no longer so.
//!
//! Purpose: a [`Notifier`] queues notifications; a thread of the session's sends them, since the kernel takes locks
//! for them that the caller of a request under way may hold. The queue is bounded: whoever fills it is told.
//!
//! # Lock order
//! `Inner::queue` is a leaf: the kernel is told without it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use rustix::io::Errno;
use sync::{Condvar, Mutex};
use volume::NodeId;
use zerocopy::IntoBytes as _;

use crate::abi::{NotifyCode, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut};
use crate::dev::Dev;

/// How many notifications may wait.
const QUEUE_MAX: usize = 16_384;

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
}

/// One thing that the kernel is told.
#[derive(Debug)]
pub(crate) enum Note {
    Entry {
        parent: NodeId,
        name: OsString,
    },
    /// A new path look-up asks again; whoever is inside, and mounts inside, are not touched (Linux 6.2; before that as `Entry`).
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

#[derive(Debug, Default)]
struct Queue {
    notes: VecDeque<Note>,
    is_sending: bool,
    ended: bool,
}

#[derive(Debug, Default)]
struct Inner {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Tells the kernel that what it remembers is no longer so; in the order of the calls.
#[derive(Debug, Clone, Default)]
pub struct Notifier(Arc<Inner>);

impl Notifier {
    /// `name` in `parent` may no longer be what it was. Who holds it goes on; new path look-ups ask again.
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended; nothing was queued.
    pub fn entry(&self, parent: NodeId, name: &OsStr) -> Result<(), NotifyError> {
        self.push(Note::Entry { parent, name: name.to_owned() })
    }

    /// A name was made, removed or moved in a directory, which the kernel knows by another number, too: by this one.
    pub(crate) fn changed_elsewhere(&self, parent: NodeId, name: &OsStr) -> Result<(), NotifyError> {
        self.push(Note::Expired { parent, name: name.to_owned() })?;
        self.push(Note::Inode { id: parent, offset: 0, len: 0 })
    }

    /// Attributes of `id` may have changed, and its data from `offset` on (`len` bytes, 0 for all that
    /// follows; a negative offset: attributes only).
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended; nothing was queued.
    pub fn inode(&self, id: NodeId, offset: i64, len: i64) -> Result<(), NotifyError> {
        self.push(Note::Inode { id, offset, len })
    }

    /// `name` in `parent`, which is `child`, was removed; those inside it see what rmdir(2) leaves.
    ///
    /// # Errors
    /// When too many notifications wait, or the connection has ended; nothing was queued.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &OsStr) -> Result<(), NotifyError> {
        self.push(Note::Delete { parent, child, name: name.to_owned() })
    }

    /// Waits until everything queued so far was sent, or the connection has ended. Not to be called by a
    /// request's handler.
    pub fn wait(&self) {
        let mut queue = self.0.queue.lock();
        while !queue.ended && (queue.is_sending || !queue.notes.is_empty()) {
            self.0.changed.wait(&mut queue);
        }
    }

    fn push(&self, note: Note) -> Result<(), NotifyError> {
        let mut queue = self.0.queue.lock();
        if queue.ended {
            return Err(NotifyError::Ended);
        }
        if queue.notes.len() >= QUEUE_MAX {
            return Err(NotifyError::Full);
        }
        queue.notes.push_back(note);
        drop(queue);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Body of the sending thread, until [`end`](Self::end).
    pub(crate) fn run(&self, dev: &Dev) {
        let mut queue = self.0.queue.lock();
        while !queue.ended {
            let Some(note) = queue.notes.pop_front() else {
                queue.is_sending = false;
                self.0.changed.notify_all();
                self.0.changed.wait(&mut queue);
                continue;
            };
            queue.is_sending = true;
            drop(queue);
            send(dev, &note);
            queue = self.0.queue.lock();
        }
    }

    /// Ends the sending thread; what waits is dropped.
    pub(crate) fn end(&self) {
        let mut queue = self.0.queue.lock();
        queue.ended = true;
        queue.notes.clear();
        drop(queue);
        self.0.changed.notify_all();
    }
}

/// Tells the kernel, which may wait for whoever has a lock that it needs.
pub(crate) fn send(dev: &Dev, note: &Note) {
    let sent = match note {
        Note::Entry { parent, name } | Note::Expired { parent, name } => {
            let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
            let flags = if matches!(note, Note::Expired { .. }) { EXPIRE_ONLY } else { 0 };
            let out = NotifyInvalEntryOut { parent: parent.0, namelen, flags };
            dev.notify(NotifyCode::InvalEntry, [out.as_bytes(), &ended(name)])
        }
        Note::Inode { id, offset, len } => {
            let out = NotifyInvalInodeOut { ino: id.0, off: *offset, len: *len };
            dev.notify(NotifyCode::InvalInode, [out.as_bytes(), &[]])
        }
        Note::Delete { parent, child, name } => {
            let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
            let out = NotifyDeleteOut { parent: parent.0, child: child.0, namelen, padding: 0 };
            dev.notify(NotifyCode::Delete, [out.as_bytes(), &ended(name)])
        }
    };
    match sent {
        // Not found: the kernel does not remember it.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
        Err(error) => tracing::warn!(?note, %error, "the kernel did not take a notification"),
    }
}

/// The name with a NUL.
fn ended(name: &OsStr) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}
