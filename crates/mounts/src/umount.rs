//! Unmounting, and the end of a namespace.
//!
//! 1. Under the lock of the tree: finds the mounts that go, with the copies that propagation takes
//!    along. Under their namespaces' locks: a synchronous unmount refuses if any of them is pinned;
//!    then all leave the tables, the sequence is odd meanwhile, and each is counted.
//! 2. All locks are given back. Replaced tables are left to the readers' domains.
//! 3. The mounts are ended ([`crate::teardown`]): by the caller, before the call returns.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rcu::Cookie;
use sync::mutant::is_on;

use crate::change::{Change, LockedNamespaces};
use crate::error::{Busy, Error, Result};
use crate::mount::{MountId, VfsPath};
use crate::namespace::Namespace;
use crate::superblock::SuperblockRef;
use crate::teardown::{UmountReason, UmountedMount};
use crate::tree::{Node, Ns, Tree};
use crate::walk::{Base, FinalSymlink};

bitflags::bitflags! {
    /// How to unmount; the bits are those of umount2(2). None: synchronously.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Umount: u32 {
        /// Make the superblock return errors to callers that wait for it
        /// ([`Superblock::force`](crate::Superblock::force)).
        const FORCE = 1;
        /// Leave the namespace now, with all mounts below; the last user's drop shuts down.
        const DETACH = 2;
        /// Only if the mount was not used since the last such call.
        const EXPIRE = 4;
        /// A symbolic link at the path's end is not followed.
        const NOFOLLOW = 8;
    }
}

/// Mounts that leave their namespaces together.
struct UmountSet {
    /// Children before parents.
    victims: Vec<MountId>,
    is_sync: bool,
}

impl Namespace {
    /// Takes the mount that a path leads to out of the namespace, and its copies where propagation
    /// requires it.
    ///
    /// On return of a synchronous unmount no thread has a reference, and the superblock is shut
    /// down if that was its last mount. A lazy unmount has done so too, unless the mount is pinned;
    /// then the drop of the last pin does it.
    ///
    /// # Errors
    /// [`Error::Flags`], [`Error::NotPermitted`], [`Error::NotMountRoot`], [`Error::NotHere`],
    /// [`Error::NotAllowed`] for the namespace's root, [`Error::Busy`], [`Error::Expiring`], and
    /// those of the walk.
    pub fn umount<'a>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        flags: Umount,
    ) -> Result<()> {
        self.umount_with(start, path, flags, |_| {})
    }

    /// Like [`umount`](Self::umount); calls `left` with the mounts that go, in any namespace, once
    /// no walk finds them and before they are ended: no lock is held.
    ///
    /// # Errors
    /// As [`umount`](Self::umount); `left` is not called then.
    pub fn umount_with<'a>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        flags: Umount,
        left: impl FnOnce(&[MountId]),
    ) -> Result<()> {
        let is_contradictory =
            flags.contains(Umount::EXPIRE) && flags.intersects(Umount::FORCE | Umount::DETACH);
        if is_contradictory || flags.bits() & !Umount::all().bits() != 0 {
            return Err(Error::Flags { bits: flags.bits() });
        }
        self.check_rights()?;
        let last = if flags.contains(Umount::NOFOLLOW) { FinalSymlink::Keep } else { FinalSymlink::Follow };
        let (place, _) = self.ns.resolve(start.into(), path.as_ref(), last)?;
        if flags.contains(Umount::FORCE)
            && let Some(superblock) = self.superblock(place.mount)
        {
            superblock.superblock().force();
        }
        let mut change = Change::default();
        let gone = {
            let mut tree = self.ns.propagation_domain.tree.lock();
            tree.umount(&self.ns, place, flags, &mut change)
        };
        change.retire();
        let why = if flags.contains(Umount::DETACH) { UmountReason::Lazy } else { UmountReason::Sync };
        let gone = gone?;
        left(&ids(&gone));
        self.ns.finish(gone, why);
        Ok(())
    }
}

fn ids(gone: &[UmountedMount]) -> Vec<MountId> {
    gone.iter().map(|umounted| umounted.mount.id).collect()
}

impl Ns {
    fn finish(&self, gone: Vec<UmountedMount>, why: UmountReason) {
        self.core.counters.unmounts.add(gone.len() as u64);
        self.teardown.finish(gone, why);
    }

    /// Takes all mounts down, lazily.
    pub(crate) fn end(self: &Arc<Self>, left: impl FnOnce(&[MountId])) {
        let mut change = Change::default();
        let gone = {
            let mut tree = self.propagation_domain.tree.lock();
            let Some(root) = self.root_id() else { return };
            change.retired(self).roots.push(self.root.replace(None));
            let leaving = UmountSet { victims: tree.subtree(root), is_sync: false };
            tree.umount_tree(&leaving, &mut change)
        };
        change.retire();
        if let Ok(gone) = gone {
            left(&ids(&gone));
            self.finish(gone, UmountReason::End);
        }
    }

    pub(crate) fn root_id(&self) -> Option<MountId> {
        self.root.load(&self.core.domain.read()).as_ref().map(|root| root.id)
    }
}

impl Tree {
    fn umount(
        &mut self,
        ns: &Arc<Ns>,
        place: VfsPath,
        flags: Umount,
        change: &mut Change,
    ) -> Result<Vec<UmountedMount>> {
        let node = self.nodes.get(&place.mount).filter(|node| Arc::ptr_eq(&node.ns, ns));
        let node = node.ok_or(Error::NotHere)?;
        if node.mount.root != place.inode {
            return Err(Error::NotMountRoot);
        }
        if node.parent.is_none() {
            return Err(Error::NotAllowed { why: "it is the namespace's root" });
        }
        let is_sync = !flags.contains(Umount::DETACH);
        if is_sync {
            check_unused(node)?;
        }
        if flags.contains(Umount::EXPIRE) {
            self.expire(place.mount)?;
        }
        let tops = if is_sync { vec![place.mount] } else { self.subtree(place.mount) };
        let leaving = UmountSet { victims: self.propagate_umount(tops), is_sync };
        self.umount_tree(&leaving, change)
    }

    /// Refuses unless the mount was not used since the last call.
    fn expire(&mut self, mount: MountId) -> Result<()> {
        let node = self.nodes.get_mut(&mount).ok_or(Error::NotHere)?;
        let superblock = &node.mount.superblock;
        let active_refs = superblock.active_refs();
        if active_refs > 0 {
            return Err(Error::Busy(Busy { active_refs, ..Busy::default() }));
        }
        let uses = Some(superblock.activations());
        let was_marked = node.mount.refs.expire();
        if was_marked && std::mem::replace(&mut node.expiry, uses) == uses {
            return Ok(());
        }
        node.expiry = uses;
        Err(Error::Expiring)
    }

    /// All victims leave. A synchronous unmount is refused if one of them is pinned.
    fn umount_tree(&mut self, leaving: &UmountSet, change: &mut Change) -> Result<Vec<UmountedMount>> {
        let mut namespaces = BTreeMap::new();
        for node in leaving.victims.iter().filter_map(|id| self.nodes.get(id)) {
            namespaces.entry(node.ns.core.id).or_insert_with(|| Arc::clone(&node.ns));
        }
        let stamp_all = || -> BTreeMap<u64, Cookie> {
            namespaces.iter().map(|(&id, ns)| (id, ns.core.domain.get_state())).collect()
        };
        let too_early = is_on("mounts-stamp-before-unhash").then(stamp_all);
        let locked = LockedNamespaces::lock(&namespaces);
        if leaving.is_sync {
            self.close_all_pins(&leaving.victims, &locked)?;
        }
        let mut gone = Vec::with_capacity(leaving.victims.len());
        // Parents first: then nothing has to be taken out of their lists.
        for &id in leaving.victims.iter().rev() {
            gone.extend(self.unhash_victim(id, change));
        }
        gone.reverse();
        let departed: Vec<_> = gone
            .iter()
            .map(|node| {
                let may_be_alone = node.ns.teardown.may_be_alone();
                node.mount.refs.mark_umounted(locked.of(&node.ns), leaving.is_sync, may_be_alone)
            })
            .collect();
        drop(locked);
        // One stamp for each namespace, after all have left.
        let stamps = too_early.unwrap_or_else(stamp_all);
        let umounted = |(node, users): (Node, _)| UmountedMount {
            stamp: stamps[&node.ns.core.id],
            mount: node.mount,
            users,
        };
        Ok(gone.into_iter().zip(departed).map(umounted).collect())
    }

    /// Refuses new pins of all victims, or of none.
    fn close_all_pins(&self, victims: &[MountId], locked: &LockedNamespaces<'_>) -> Result<()> {
        let nodes = || victims.iter().filter_map(|id| self.nodes.get(id));
        for (n, node) in nodes().enumerate() {
            if !node.mount.refs.close_pins(locked.of(&node.ns)) {
                nodes().take(n).for_each(|node| node.mount.refs.open_pins(locked.of(&node.ns)));
                let holders = node.mount.refs.pinned_by();
                return Err(Error::Busy(Busy { holders, is_copy: n > 0, ..Busy::default() }));
            }
        }
        let closed = self.close_superblocks(victims);
        if closed.is_err() {
            nodes().for_each(|node| node.mount.refs.open_pins(locked.of(&node.ns)));
        }
        closed
    }

    /// Refuses new active references to superblocks that lose their last mount; of all, or of none.
    fn close_superblocks(&self, victims: &[MountId]) -> Result<()> {
        let mut leaving: Vec<(&SuperblockRef, usize)> = Vec::new();
        for node in victims.iter().filter_map(|id| self.nodes.get(id)) {
            let superblock = &node.mount.superblock;
            match leaving.iter_mut().find(|(known, _)| known.is_same(superblock)) {
                Some((_, mounts)) => *mounts += 1,
                None => leaving.push((superblock, 1)),
            }
        }
        for (n, (superblock, mounts)) in leaving.iter().enumerate() {
            if let Err(active_refs) = superblock.close(*mounts) {
                leaving[..n].iter().for_each(|(superblock, _)| superblock.reopen());
                return Err(Error::Busy(Busy { active_refs, ..Busy::default() }));
            }
        }
        Ok(())
    }

    /// Takes a mount out of the tables and the tree.
    fn unhash_victim(&mut self, id: MountId, change: &mut Change) -> Option<Node> {
        let node = self.nodes.remove(&id)?;
        let (ns, mount) = (&node.ns, &node.mount);
        let old = change.retired(ns);
        if let Some(on) = node.parent {
            ns.by_mountpoint.remove((on.mount.0, on.inode.0), old);
            old.parents.push(mount.parent.replace(None));
            // Unless the parent went before.
            if let Some(parent) = self.nodes.get_mut(&on.mount) {
                parent.children.remove(&id);
            }
        }
        ns.by_id.remove((id.0, 0), old);
        self.leave_groups(id, node.propagation);
        if let Some(count) = self.counts.get_mut(&ns.core.id) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&ns.core.id);
            }
        }
        Some(node)
    }
}

fn check_unused(node: &Node) -> Result<()> {
    let children = node.children.len();
    let holders = node.mount.refs.pinned_by();
    if children > 0 || !holders.is_empty() {
        return Err(Error::Busy(Busy { holders, children, ..Busy::default() }));
    }
    Ok(())
}
