//! Which mounts requests find: each change of a namespace is registered here.

use std::collections::HashMap;
use std::sync::Arc;

use mounts::{MountId, NewMount};
use sync::atomic::Ordering;
use sync::mutant::is_on;
use volume::NodeId;

use super::mount_node::{Attachment, Dentry, MountNode, NodePin};
use super::mount_tree::MountTree;
use super::types::TreeError;
use super::wire::{self, NodeTag};
use crate::notify::{self, Invalidation};

impl MountTree {
    /// A mount may have left before it was known here.
    pub(super) fn drop_if_unmounted(&self, mount: MountId) {
        if !self.is_mounted(mount) {
            self.drop_unmounted(&[mount]);
        }
    }

    /// Registers a new mount that shows `root`, under this name. Returns whether it was new.
    pub(super) fn register(
        &self,
        (mount_node, root): (MountNode, NodePin),
        on: (Arc<MountNode>, NodePin),
        name: &Arc<Dentry>,
    ) -> bool {
        let mount_node = Arc::new(mount_node);
        let (Some(mount), (on, covered)) = (mount_node.mount, on) else { return false };
        let known = Arc::clone(&mount_node);
        let unused = self.change(|state, snapshot| {
            // The thread that cloned the namespace was faster.
            if state.by_mount.contains_key(&mount) {
                return Err((covered, root));
            }
            state.add_node(snapshot, Arc::clone(&mount_node));
            state.by_mount.insert(mount, Arc::clone(&mount_node));
            cover(&mut state.covered, (covered.served.tag, covered.node));
            let name = Arc::clone(name);
            state.attachments.insert(mount, Attachment { mount_node, on, covered, name, _root: root });
            Ok(())
        });
        let is_new = unused.is_ok();
        if is_new && !known.served.is_shown_through(known.tag) {
            known.served.add_mount(known.tag);
        }
        is_new
    }

    pub(super) fn new_tag(&self) -> Result<NodeTag, TreeError> {
        let mut state = self.state.lock();
        state.last_tag = state.last_tag.next().ok_or(TreeError::NoTags)?;
        Ok(state.last_tag)
    }

    pub(super) fn is_mounted(&self, mount: MountId) -> bool {
        let mount_node = self.mount_node(mount);
        mount_node.is_some_and(|mount_node| mount_node.namespace.root_of(mount).is_some())
    }

    /// Mounts have left the namespace: requests and the kernel learn of it.
    pub(super) fn drop_unmounted(&self, mounts: &[MountId]) {
        self.unregister(mounts).iter().for_each(|one| self.invalidate_mount(one));
    }

    /// Mounts have left: requests do not find them any more.
    pub(super) fn unregister(&self, mounts: &[MountId]) -> Vec<Attachment> {
        let gone: Vec<Attachment> = self.change(|state, snapshot| {
            let gone: Vec<Attachment> =
                mounts.iter().filter_map(|mount| state.attachments.remove(mount)).collect();
            for one in &gone {
                // ORDERING: SeqCst, see `closed_dir`; Release would do for requests.
                if !is_on("tree-left-unmarked") {
                    one.mount_node.is_gone.store(true, Ordering::SeqCst);
                }
                if let Some(mount) = one.mount_node.mount {
                    state.by_mount.remove(&mount);
                }
                uncover(&mut state.covered, one);
                state.drop_node(snapshot, &one.mount_node);
            }
            gone
        });
        gone.iter().for_each(|one| one.mount_node.served.remove_mount(one.mount_node.tag));
        gone
    }

    /// A volume has ended: nothing of it is known any more.
    pub(super) fn forget_volume(&self, volume: NodeTag) {
        self.change(|state, snapshot| {
            if is_on("tree-tag-used-again") {
                state.last_tag = NodeTag::ROOT;
            }
            state.drop_volume(snapshot, volume);
        });
    }

    /// Has the kernel forget what was attached.
    pub(super) fn invalidate_mount(&self, one: &Attachment) {
        self.invalidate_name(&one.name, wire::join(one.mount_node.tag, one.mount_node.root));
    }

    /// Has the kernel forget what is under this name; a mount's root that was there is removed for
    /// processes inside it.
    pub(super) fn invalidate_name(&self, name: &Dentry, gone: Option<u64>) {
        let (parent, name) = (store::ObjectId(name.wire), name.name.clone());
        match gone {
            None => notify::send(&self.dev, &Invalidation::Entry { parent, name }),
            Some(child) => {
                let child = store::ObjectId(child);
                notify::send(&self.dev, &Invalidation::Delete { parent, child, name: name.clone() });
                // Where the kernel refuses that, it still forgets the name.
                notify::send(&self.dev, &Invalidation::Entry { parent, name });
                notify::send(&self.dev, &Invalidation::Inode { id: child, offset: -1, len: 0 });
            }
        }
    }
}

/// The mount that was asked for.
pub(super) fn first(made: &[NewMount]) -> MountId {
    made.first().expect("there is always the one that was asked for").mount
}

pub(super) fn cover(covered: &mut HashMap<(NodeTag, NodeId), usize>, dir: (NodeTag, NodeId)) {
    *covered.entry(dir).or_default() += 1;
}

pub(super) fn uncover(covered: &mut HashMap<(NodeTag, NodeId), usize>, one: &Attachment) {
    let dir = (one.covered.served.tag, one.covered.node);
    if let Some(count) = covered.get_mut(&dir) {
        *count -= 1;
        if *count == 0 {
            covered.remove(&dir);
        }
    }
}
