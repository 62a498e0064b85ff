//! Changes of the tree: attaching, detaching, moving.
//!
//! At the end of each, the thread that asked for the change notifies the kernel. A directory whose
//! lock another thread keeps, because *its* volume's store hangs, holds up the changes in that
//! directory only.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mounts::{MountId, NewMount, SuperblockRef, Umount, VfsPath};
use sync::atomic::Ordering;
use volume::{NodeId, Volume};

use super::attached_volume::{AttachedVolume, OnEnd};
use super::mount_node::{Attachment, Dentry, MountNode, NodePin};
use super::mount_tree::MountTree;
use super::namespace_view::NamespaceView;
use super::registry::{cover, first, uncover};
use super::resolve::ResolvedPath;
use super::types::{Attached, Detach, TreeError};
use super::wire::NodeTag;

impl MountTree {
    /// Attaches a volume to a directory; a process that looks there sees it when the call returns.
    pub(crate) fn attach(
        self: &Arc<Self>,
        at: (&NamespaceView, &Path),
        volume: &Arc<Volume>,
        is_read_only: bool,
        on_end: OnEnd,
    ) -> Result<Attached, TreeError> {
        let (resolved, namespace) = (self.walk(at)?, &at.0.namespace);
        let target = resolved.target()?;
        let (tag, mount_tag) = (self.new_tag()?, self.new_tag()?);
        let served = self.attached_volume(volume, tag, is_read_only, on_end);
        let superblock = SuperblockRef::new(Arc::clone(&served) as Arc<_>);
        // Before a path can cross into it.
        let files = MountNode::of_files(tag, (Arc::clone(&served), superblock.clone()), namespace);
        self.change(|state, snapshot| state.add_node(snapshot, Arc::new(files)));
        let volume = (&served, &superblock);
        let mount = self.mount_volume(at, (resolved, target), (tag, mount_tag), volume);
        let mount = mount.inspect_err(|_| self.forget_volume(tag))?;
        served.remove_mount(tag);
        Ok(Attached { mount, volume: tag, superblock })
    }

    /// A volume that is about to be attached, and that this tree forgets when it has ended.
    pub(super) fn attached_volume(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        tag: NodeTag,
        is_read_only: bool,
        on_end: OnEnd,
    ) -> Arc<AttachedVolume> {
        // A sync of the mountpoint while this volume is stalled has to report whether the caller's
        // cgroup has data in it.
        volume.note_owners();
        let tree = Arc::downgrade(self);
        let ended: OnEnd = Box::new(move |report| {
            on_end(report);
            if let Some(tree) = tree.upgrade() {
                tree.forget_volume(tag);
            }
        });
        let served = Arc::new(AttachedVolume::new(Arc::clone(volume), tag, is_read_only, Some(ended)));
        served.forget_changed(&self.dev);
        served
    }

    /// Mounts a volume, which the tag `files` names, on a directory, by a mount with the tag
    /// `mount_tag`.
    pub(super) fn mount_volume(
        &self,
        (view, path): (&NamespaceView, &Path),
        (resolved, (place, name)): (ResolvedPath, (VfsPath, Arc<Dentry>)),
        (files, mount_tag): (NodeTag, NodeTag),
        (served, superblock): (&Arc<AttachedVolume>, &SuperblockRef),
    ) -> Result<MountId, TreeError> {
        let made = {
            // No other thread takes the directory's name away meanwhile.
            let below = Arc::clone(&resolved.node.served);
            let _names = below.names.write();
            self.check_still_there(&resolved, path)?;
            served.add_mount(mount_tag);
            if self.has_clones() {
                // A path may lead to it in a clone before that is registered.
                served.add_mount(files);
            }
            let made = view.namespace.attach_all(place, "", superblock)?;
            let (mount, volume) = ((first(&made), NodeId::ROOT), (Arc::clone(served), superblock.clone()));
            let mount_node = MountNode::of_mount(mount_tag, mount, volume, &view.namespace);
            self.register((mount_node, NodePin::root_of(served)), (resolved.on, resolved.node), &name);
            made
        };
        Ok(self.show_new(&name, &made))
    }

    /// The kernel and requests learn of new mounts; returns the one that was asked for.
    fn show_new(&self, name: &Dentry, made: &[NewMount]) -> MountId {
        self.invalidate_name(name, None);
        self.drop_if_unmounted(first(made));
        self.register_copies(made);
        first(made)
    }

    /// Takes away what is attached at a path. On return no path leads there, for any process; and
    /// its volume has ended, if this was its last place and nothing of it is open. `on_abort` is
    /// called with each volume that is given up, before its end is waited for, and maybe twice.
    pub(crate) fn detach(
        &self,
        at: (&NamespaceView, &Path),
        how: Detach,
        mut on_abort: impl FnMut(NodeTag),
    ) -> Result<(), TreeError> {
        let place = self.attached_at(at)?;
        self.umount(&at.0.namespace, place, how.flags(), &mut on_abort)
    }

    pub(super) fn umount(
        &self,
        namespace: &mounts::Namespace,
        place: VfsPath,
        flags: Umount,
        on_abort: &mut impl FnMut(NodeTag),
    ) -> Result<(), TreeError> {
        let is_forced = flags.contains(Umount::FORCE);
        // A volume that keeps another place is not given up. (As umount2(2), the namespace gives up
        // every mount that it has to force.)
        let keeps_a_place =
            namespace.superblock(place.mount).is_some_and(|superblock| superblock.mounts() > 1);
        let flags = if keeps_a_place { flags.difference(Umount::FORCE) } else { flags };
        let mut given_up = Vec::new();
        namespace.umount_with(place, "", flags, |mounts| {
            let gone = self.unregister(mounts);
            if is_forced {
                given_up = gone.iter().map(|one| one.mount_node.superblock.clone()).collect();
                let for_good = |one: &&Attachment| leaves_for_good(&one.mount_node.superblock, &gone);
                gone.iter().filter(for_good).for_each(|one| one.mount_node.superblock.superblock().force());
            }
            // Callers that wait for these volumes get their errors first: the ends of the volumes
            // may be waited for here, and the kernel handles the notification under locks of
            // directories that those callers may have.
            // ORDERING: SeqCst, as where it is set.
            let is_aborted = |one: &&Attachment| one.mount_node.served.is_aborted.load(Ordering::SeqCst);
            gone.iter().filter(is_aborted).for_each(|one| on_abort(one.mount_node.served.tag));
            gone.iter().for_each(|one| self.invalidate_mount(one));
        })?;
        // Open files keep no volume that is given up.
        given_up.retain(|superblock| superblock.mounts() == 0);
        given_up.iter().for_each(|superblock| superblock.superblock().shutdown());
        Ok(())
    }

    /// Gives up a volume that is attached in one place at most, also one that is being detached:
    /// callers that wait for it get an error, and its end does not wait for its store. Waits for
    /// nothing. Says whether it is given up.
    pub(crate) fn abort(&self, attached: &Attached, on_abort: impl FnOnce(NodeTag)) -> bool {
        if attached.superblock.mounts() > 1 {
            return false;
        }
        attached.superblock.superblock().force();
        on_abort(attached.volume);
        true
    }

    /// Whether the volume is still where it was attached, or moved to.
    pub(crate) fn is_attached(&self, attached: &Attached) -> bool {
        self.is_mounted(attached.mount)
    }

    /// Moves what is attached at a path to another directory, with all that is attached below.
    pub(crate) fn move_to(&self, view: &NamespaceView, from: &Path, to: &Path) -> Result<(), TreeError> {
        let place = self.attached_at((view, from))?;
        let resolved = self.walk((view, to))?;
        let (target, new_name) = resolved.target()?;
        let old_name = {
            let below = Arc::clone(&resolved.node.served);
            let _names = below.names.write();
            self.check_still_there(&resolved, to)?;
            view.namespace.move_mount((place, ""), (target, ""))?;
            self.change(|state, _| {
                // It may have left meanwhile.
                let Some(moved) = state.attachments.get_mut(&place.mount) else { return Err(resolved) };
                let ResolvedPath { on, node, .. } = resolved;
                uncover(&mut state.covered, moved);
                cover(&mut state.covered, (node.served.tag, node.node));
                // Old values are dropped without the lock.
                let old = (std::mem::replace(&mut moved.on, on), std::mem::replace(&mut moved.covered, node));
                Ok((std::mem::replace(&mut moved.name, Arc::clone(&new_name)), old))
            })
        };
        let old_name = old_name.map(|(name, _)| name).ok();
        for name in old_name.iter().chain([&new_name]) {
            self.invalidate_name(name, None);
        }
        Ok(())
    }

    /// Shows a directory in a second place.
    pub(crate) fn bind(&self, view: &NamespaceView, from: &Path, to: &Path) -> Result<(), TreeError> {
        let source = self.walk((view, from))?;
        let resolved = self.walk((view, to))?;
        let (target, name) = resolved.target()?;
        let place = source.place().ok_or(TreeError::IsRoot)?;
        let tag = self.new_tag()?;
        let served = Arc::clone(&source.on.served);
        let superblock = source.on.superblock.clone();
        let made = {
            let below = Arc::clone(&resolved.node.served);
            let _names = below.names.write();
            self.check_still_there(&resolved, to)?;
            served.add_mount(tag);
            let bound = view.namespace.bind_all((place, ""), (target, ""), false);
            let made = bound.inspect_err(|_| served.remove_mount(tag))?;
            let mount = (first(&made), source.node.node);
            let mount_node = MountNode::of_mount(tag, mount, (served, superblock), &view.namespace);
            self.register((mount_node, source.node), (resolved.on, resolved.node), &name);
            made
        };
        self.show_new(&name, &made);
        Ok(())
    }

    /// Waits until nothing is open of what is attached at a path, or `until`; says whether nothing
    /// is.
    pub(crate) fn wait_closed(&self, at: (&NamespaceView, &Path), until: Instant) -> Result<bool, TreeError> {
        let place = self.attached_at(at)?;
        let superblock = at.0.namespace.superblock(place.mount);
        Ok(superblock.is_none_or(|superblock| superblock.wait_inactive(until)))
    }
}

/// Whether all mounts of a superblock are among those that have left.
fn leaves_for_good(superblock: &SuperblockRef, gone: &[Attachment]) -> bool {
    let leaving = gone.iter().filter(|one| one.mount_node.superblock.is_same(superblock)).count();
    superblock.mounts() <= leaving
}
