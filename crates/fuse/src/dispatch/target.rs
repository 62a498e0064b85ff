//! Finds the volume that a request is for.

#[cfg(all(test, shuttle))]
mod schedules;

use std::sync::Arc;

use rcu::Guard;
use rustix::io::Errno;
use volume::NodeId;

use super::op_class::{changes, is_for_what_is_open};
use crate::protocol::decode::Op;
use crate::tree::wire;
use crate::tree::{AttachedVolume, MountNode, MountTree, SnapshotCache};

/// A node in a volume of the tree.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) served: &'a Arc<AttachedVolume>,
    /// None: a node of the root volume, seen through its first mount.
    pub(super) mount_node: Option<&'a Arc<MountNode>>,
    pub(super) node: NodeId,
}

impl<'a> Target<'a> {
    /// A node of the root volume.
    pub(super) fn root(tree: &'a MountTree, node: u64) -> Self {
        Self { served: tree.root(), mount_node: None, node: store::ObjectId(node) }
    }

    /// The node that a node number of the kernel's names, and the section that keeps its volume for
    /// the request.
    pub(super) fn find(
        tree: &'a MountTree,
        cache: &'a mut SnapshotCache,
        node: u64,
        op: &Op<'_>,
    ) -> Result<(Self, Option<Guard<'a>>), Errno> {
        if wire::is_plain(node) {
            return Ok((Self::root(tree, node), None));
        }
        let (tag, node) = wire::split(node);
        let mount_node = tree.snapshot(cache).mount_node(tag).ok_or(Errno::STALE)?;
        if mount_node.is_gone() && !is_for_what_is_open(op) {
            return Err(Errno::STALE);
        }
        if mount_node.served.is_read_only && changes(op) {
            return Err(Errno::ROFS);
        }
        let section = mount_node.served.enter().ok_or(Errno::STALE)?;
        Ok((Self { served: &mount_node.served, mount_node: Some(mount_node), node }, Some(section)))
    }
}
