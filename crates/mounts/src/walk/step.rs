//! The steps of a walk between mounts, over any tree that is changed under a [`MountLock`].
//!
//! A walk begins with a number of the sequence. After each read of the tree, it checks the number
//! again before it draws a conclusion: from a mount, because it may be gone; from *none*, because
//! there may have been one all the time, on another mount that took this one's place; from a
//! parent, because a mount that left the tree has none, or another. The result of a step is as if
//! no change had begun since the walk did.

use sync::mutant::is_on;

use crate::protocol::MountLock;
use crate::superblock::Inode;

/// A tree of mounts, as it is at the moment.
pub trait MountLookup {
    /// A mount that was found.
    type Mount: Copy;
    /// The mount on this mountpoint.
    fn child(&self, mount: Self::Mount, at: Inode) -> Option<Self::Mount>;
    /// Its mountpoint.
    fn parent(&self, mount: Self::Mount) -> Option<(Self::Mount, Inode)>;
    /// Its root.
    fn root(&self, mount: Self::Mount) -> Inode;
}

/// The position of an rcu-walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RcuCursor<M> {
    /// The mount.
    pub mount: M,
    /// The inode there.
    pub inode: Inode,
}

/// Mounts changed since the walk began: it starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed;

/// What is seen at an inode: the root of the last mount that is on it, or the inode itself.
/// Analogous to Linux's `__follow_mount_rcu`.
#[inline]
pub fn cross_down<V: MountLookup>(
    view: &V,
    lock: &MountLock,
    seq: u64,
    mut at: RcuCursor<V::Mount>,
) -> Result<RcuCursor<V::Mount>, Changed> {
    loop {
        match view.child(at.mount, at.inode) {
            Some(mount) => {
                check(lock, seq)?;
                at = RcuCursor { mount, inode: view.root(mount) };
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

/// From the root of a mount to its mountpoint, and so on. The result is the root of a
/// mount only if that one is on nothing.
#[inline]
pub fn cross_up<V: MountLookup>(
    view: &V,
    lock: &MountLock,
    seq: u64,
    mut at: RcuCursor<V::Mount>,
) -> Result<RcuCursor<V::Mount>, Changed> {
    while at.inode == view.root(at.mount) {
        let parent = view.parent(at.mount);
        if !is_on("mounts-no-recheck-after-up") {
            check(lock, seq)?;
        }
        match parent {
            Some((mount, inode)) => at = RcuCursor { mount, inode },
            None => break,
        }
    }
    Ok(at)
}

/// To be called before an error or a result ends the walk: only if this returns `Ok` is it true.
#[inline]
pub fn check(lock: &MountLock, seq: u64) -> Result<(), Changed> {
    if lock.is_unchanged(seq) { Ok(()) } else { Err(Changed) }
}
