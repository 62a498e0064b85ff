//! Mounts that came to be with another one: in a clone, or by propagation.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;

use mounts::{MountId, NewMount, SuperblockRef};
use volume::NodeId;

use super::attached_volume::AttachedVolume;
use super::mount_node::{Attachment, Dentry, MountNode, NodePin};
use super::mount_tree::{MountTree, State};
use super::types::TreeError;
use super::wire;

impl MountTree {
    /// Registers a mount that came to be with another one: in a clone, or by propagation. None:
    /// there is nothing to register (any more).
    pub(super) fn register_copy(&self, made: NewMount) -> Result<Option<Arc<Dentry>>, TreeError> {
        let found = {
            let state = self.state.lock();
            let by_mount = &state.by_mount;
            // A clone that is just being made registers its mounts when it knows the mount below.
            let Some(on) = by_mount.get(&made.on.mount).filter(|_| !by_mount.contains_key(&made.mount))
            else {
                return Ok(None);
            };
            let node = store::ObjectId(made.on.inode.0);
            let known = on
                .namespace
                .superblock(made.mount)
                .zip(on.namespace.root_of(made.mount))
                .and_then(|(superblock, root)| Some((self.volume_of(&state, &superblock)?, root)));
            let Some((volume, root)) = known else { return Ok(None) };
            let name = named(&state.attachments, on, node);
            (Arc::clone(on), node, volume, store::ObjectId(root.0), name)
        };
        let (on, node, volume, root, name) = found;
        let failed = |error| TreeError::Path { path: String::new(), error };
        let name = match name {
            Some(Named::As(name)) => name,
            Some(Named::In { served, dir, name }) => {
                let wire = wire::join(on.tag, dir).ok_or(TreeError::NodeTooLarge)?;
                let dir = NodePin::beside(&served, dir).map_err(failed)?;
                Arc::new(Dentry { dir, wire, name })
            }
            None => return Ok(None),
        };
        let covered = NodePin::beside(&on.served, node).map_err(failed)?;
        let shown = NodePin::beside(&volume.0, root).map_err(failed)?;
        let tag = self.new_tag()?;
        let namespace = Arc::clone(&on.namespace);
        let mount_node = MountNode::of_mount(tag, (made.mount, root), volume, &namespace);
        Ok(self.register((mount_node, shown), (on, covered), &name).then_some(name))
    }

    /// The volume of a superblock that is attached.
    fn volume_of(
        &self,
        state: &State,
        superblock: &SuperblockRef,
    ) -> Option<(Arc<AttachedVolume>, SuperblockRef)> {
        let first = &self.first.root;
        let found = if first.superblock.is_same(superblock) { first } else { state.volume_of(superblock)? };
        Some((Arc::clone(&found.served), found.superblock.clone()))
    }

    /// Registers mounts that came by propagation with another one, and notifies the kernel of them.
    pub(super) fn register_copies(&self, made: &[NewMount]) {
        for &copy in made.get(1..).unwrap_or_default() {
            match self.register_copy(copy) {
                Ok(Some(name)) => {
                    self.invalidate_name(&name, None);
                    self.drop_if_unmounted(copy.mount);
                }
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "an attached volume is not visible in a clone"),
            }
        }
    }
}

/// The name of a covered directory.
enum Named {
    /// That of the mount whose root it is.
    As(Arc<Dentry>),
    /// A name in a directory of its volume.
    In { served: Arc<AttachedVolume>, dir: NodeId, name: OsString },
}

/// The name of a directory that something is mounted on, in any namespace.
fn named(attachments: &HashMap<MountId, Attachment>, on: &Arc<MountNode>, node: NodeId) -> Option<Named> {
    if node == on.root {
        return attachments.get(&on.mount?).map(|below| Named::As(Arc::clone(&below.name)));
    }
    let same = |at: &&Attachment| {
        at.covered.node == node && at.covered.served.tag == on.served.tag && at.on.root != node
    };
    let at = attachments.values().find(same)?;
    let (dir, name) = (at.name.dir.node, at.name.name.clone());
    Some(Named::In { served: Arc::clone(&at.name.dir.served), dir, name })
}
