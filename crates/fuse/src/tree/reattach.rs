//! Volumes that are in the session already: one more place for them, whether they have any or not.
//!
//! A volume that was detached while something of it was open is in no place and goes on. Attached
//! again it is the same volume: its open files, its cache and its errors are seen through the new
//! place. The lock of its superblock ([`mounts::SuperblockRef`]) decides whether it still goes on:
//! either a mount of it is made before the last hold is dropped, or it has ended and cannot be
//! attached any more.
//!
//! A place that was found is kept as an [`Attached`]: later operations on it act on that mount,
//! whatever else has been attached under the same path meanwhile.

use std::path::Path;
use std::sync::Arc;

use mounts::VfsPath;

use super::mount_tree::MountTree;
use super::namespace_view::NamespaceView;
use super::types::{Attached, Detach, TreeError};
use super::wire::NodeTag;

impl MountTree {
    /// Attaches a volume of this session to one more directory; every process that looks there sees
    /// it when the call returns.
    ///
    /// `AlreadyThere` where it is what the path leads to, `Ended` where it has ended, is ending, or
    /// was given up.
    pub(crate) fn attach_again(
        &self,
        at: (&NamespaceView, &Path),
        attached: &Attached,
    ) -> Result<Attached, TreeError> {
        let resolved = self.walk(at)?;
        let target = resolved.target()?;
        let ended = || TreeError::Tree(mounts::Error::Ended);
        let known = self.state.lock().snapshot.mount_node(attached.volume).map(Arc::clone);
        let served = known.filter(|files| !files.served.is_ending()).ok_or_else(ended)?;
        let (served, superblock) = (Arc::clone(&served.served), attached.superblock.clone());
        let tag = self.new_tag()?;
        let (tags, volume) = ((attached.volume, tag), (&served, &superblock));
        let mount = self.mount_volume(at, (resolved, target), tags, volume).inspect_err(|_| {
            served.remove_mount(tag);
            served.remove_mount(attached.volume);
        })?;
        served.remove_mount(attached.volume);
        let reattach = Attached { mount, volume: attached.volume, superblock };
        if served.is_ending() {
            // It was given up beside this call, which found it in one place at most: no path is to
            // lead there.
            drop(self.detach_attached(&reattach, Detach::Lazy, |_| {}));
            return Err(ended());
        }
        Ok(reattach)
    }

    /// The volume that is attached uppermost at a path. Keeps nothing of the path.
    pub(crate) fn found_at(&self, at: (&NamespaceView, &Path)) -> Result<Attached, TreeError> {
        let place = self.attached_at(at)?;
        let found = self.mount_node(place.mount);
        let none = || TreeError::NotAttached(at.1.display().to_string());
        let mount_node = found.ok_or_else(none)?;
        Ok(Attached {
            mount: place.mount,
            volume: mount_node.served.tag,
            superblock: mount_node.superblock.clone(),
        })
    }

    /// Detaches a volume that was found or attached, wherever it was moved to; no store is asked
    /// for the way there. `NotAttached` where it has left.
    pub(crate) fn detach_attached(
        &self,
        attached: &Attached,
        how: Detach,
        mut on_abort: impl FnMut(NodeTag),
    ) -> Result<(), TreeError> {
        let gone = || TreeError::NotAttached("its place any more".to_owned());
        let mount_node = self.mount_node(attached.mount).ok_or_else(gone)?;
        let place = VfsPath { mount: attached.mount, inode: mounts::Inode(mount_node.root.0) };
        match self.umount(&mount_node.namespace, place, how.flags(), &mut on_abort) {
            Err(TreeError::Tree(mounts::Error::NotHere)) => Err(gone()),
            result => result,
        }
    }
}
