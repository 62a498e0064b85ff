//! A volume or a mount that node numbers name, and what keeps nodes and names known.

use std::ffi::OsString;
use std::sync::Arc;

use mounts::{MountId, Namespace, SuperblockRef};
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use volume::NodeId;

use super::attached_volume::AttachedVolume;
use super::wire::NodeTag;

/// A volume or a mount that node numbers name.
#[derive(Debug)]
pub(crate) struct MountNode {
    pub(crate) tag: NodeTag,
    pub(crate) served: Arc<AttachedVolume>,
    pub(crate) superblock: SuperblockRef,
    /// The mount whose directories these are; none for a volume's files.
    pub(crate) mount: Option<MountId>,
    /// The namespace that the mount is in.
    pub(crate) namespace: Arc<Namespace>,
    /// The root of the mount.
    pub(crate) root: NodeId,
    /// No path leads there any more: only open files and directories are served.
    pub(super) is_gone: AtomicBool,
    /// Directories that are open through this mount.
    pub(crate) dirs: AtomicUsize,
}

impl MountNode {
    pub(super) fn of_files(
        tag: NodeTag,
        volume: (Arc<AttachedVolume>, SuperblockRef),
        namespace: &Arc<Namespace>,
    ) -> Self {
        let ((served, superblock), namespace) = (volume, Arc::clone(namespace));
        let (is_gone, dirs) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { tag, served, superblock, mount: None, namespace, root: NodeId::ROOT, is_gone, dirs }
    }

    pub(super) fn of_mount(
        tag: NodeTag,
        (mount, root): (MountId, NodeId),
        volume: (Arc<AttachedVolume>, SuperblockRef),
        namespace: &Arc<Namespace>,
    ) -> Self {
        Self { mount: Some(mount), root, ..Self::of_files(tag, volume, namespace) }
    }

    pub(crate) fn is_gone(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `MountTree::drop_unmounted`: the rest of the
        // request runs as after the detach.
        self.is_gone.load(Ordering::Acquire)
    }
}

/// A node, with a look-up of ours on it: its number stays.
#[derive(Debug)]
pub(super) struct NodePin {
    pub(super) served: Arc<AttachedVolume>,
    pub(super) node: NodeId,
}

impl NodePin {
    /// A volume's root, which is known without a look-up.
    pub(super) fn root_of(served: &Arc<AttachedVolume>) -> Self {
        Self { served: Arc::clone(served), node: NodeId::ROOT }
    }

    /// A reference to a node on which another holder has a look-up.
    pub(super) fn beside(served: &Arc<AttachedVolume>, node: NodeId) -> Result<Self, volume::Error> {
        let _asked = served.enter().ok_or(volume::Error::Released)?;
        if node != NodeId::ROOT {
            served.volume.look_up_again(node)?;
        }
        Ok(Self { served: Arc::clone(served), node })
    }
}

impl Drop for NodePin {
    fn drop(&mut self) {
        // The root is known without a look-up.
        if self.node != NodeId::ROOT
            && let Some(_asked) = self.served.enter()
        {
            self.served.volume.forget(self.node, 1);
        }
    }
}

/// A name in a directory, as the kernel knows it.
#[derive(Debug)]
pub(super) struct Dentry {
    /// Kept so that the kernel's number for it stays the same.
    pub(super) dir: NodePin,
    pub(super) wire: u64,
    pub(super) name: OsString,
}

/// Where a mount is.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) mount_node: Arc<MountNode>,
    /// The mount that it is on.
    pub(super) on: Arc<MountNode>,
    pub(super) covered: NodePin,
    pub(super) name: Arc<Dentry>,
    /// The directory that the mount shows. This look-up keeps it known to its volume: the kernel
    /// may give all of its own look-ups back, and look the mount up by name afterwards.
    pub(super) _root: NodePin,
}
