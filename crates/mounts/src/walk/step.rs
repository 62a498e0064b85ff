//! The steps of a walk between mounts, over any tree that is changed under a [`MountLock`].
//!
//! A walk begins with a number of the sequence. Whatever a look at the tree finds, the number is
//! looked at again before anything is concluded: a mount, because it may be gone; *none*, because
//! there may have been one all the time, on another mount that took this one's place; a parent,
//! because a mount that left the tree has none, or another. What follows a step is as if no change
//! had begun since the walk did.

use sync::mutant::is_on;

use crate::protocol::MountLock;
use crate::superblock::Inode;

/// A tree of mounts, as it is at the moment.
pub trait View {
    /// A mount that was found.
    type Mount: Copy;
    /// What is mounted on this place.
    fn child(&self, mount: Self::Mount, at: Inode) -> Option<Self::Mount>;
    /// The place that the mount is on.
    fn parent(&self, mount: Self::Mount) -> Option<(Self::Mount, Inode)>;
    /// Its root.
    fn root(&self, mount: Self::Mount) -> Inode;
}

/// A place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At<M> {
    /// The mount.
    pub mount: M,
    /// The inode there.
    pub inode: Inode,
}

/// Mounts changed since the walk began: it starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed;

/// What is seen at a place: the root of the last mount that is on it, or the place itself.
#[inline]
pub fn cross_down<V: View>(
    view: &V,
    lock: &MountLock,
    seq: u64,
    mut at: At<V::Mount>,
) -> Result<At<V::Mount>, Changed> {
    loop {
        match view.child(at.mount, at.inode) {
            Some(mount) => {
                check(lock, seq)?;
                at = At { mount, inode: view.root(mount) };
            }
            None => {
                if !is_on("mounts-no-recheck-after-miss") {
                    check(lock, seq)?;
                }
                return Ok(at);
            }
        }
    }
}

/// From the root of a mount to the place that it is on, and so on. What comes back is the root of a
/// mount only if that one is on nothing.
#[inline]
pub fn cross_up<V: View>(
    view: &V,
    lock: &MountLock,
    seq: u64,
    mut at: At<V::Mount>,
) -> Result<At<V::Mount>, Changed> {
    while at.inode == view.root(at.mount) {
        let parent = view.parent(at.mount);
        if !is_on("mounts-no-recheck-after-up") {
            check(lock, seq)?;
        }
        match parent {
            Some((mount, inode)) => at = At { mount, inode },
            None => break,
        }
    }
    Ok(at)
}

/// A name was not found, or something else ends the walk here: only now is that true.
#[inline]
pub fn check(lock: &MountLock, seq: u64) -> Result<(), Changed> {
    if lock.is_unchanged(seq) { Ok(()) } else { Err(Changed) }
}
