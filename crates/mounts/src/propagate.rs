//! Propagation of changes between peers and to slaves, analogous to Linux's fs/pnode.c.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mount::{MountId, VfsPath};
use crate::namespace::Namespace;
use crate::superblock::Inode;
use crate::tree::{GroupId, PropagationState, Tree};
use crate::walk::{Base, FinalSymlink};

/// How a mount propagates changes on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// To its copies, and theirs to it.
    Shared,
    /// It receives the changes of its former peers, and passes nothing on.
    Slave,
    /// Neither.
    Private,
    /// Neither, and a bind does not copy it.
    Unbindable,
}

/// How a mount is tied to others, as [`MountInfo`](crate::MountInfo) tells it: groups by numbers that
/// mean something among themselves only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ties {
    /// The group of its peers.
    pub shared: Option<u64>,
    /// The group whose changes it receives.
    pub master: Option<u64>,
    /// A bind does not copy it.
    pub is_unbindable: bool,
}

/// A mountpoint that gets a copy, and how the mounts there propagate.
#[derive(Debug)]
pub(crate) struct AttachTarget {
    pub(crate) on: VfsPath,
    pub(crate) states: Vec<PropagationState>,
}

impl Namespace {
    /// Sets how the mount that a path leads to propagates; with `is_recursive` all below it, too.
    ///
    /// # Errors
    /// [`Error::NotMountRoot`], [`Error::NotHere`], [`Error::NotPermitted`], and those of the walk.
    pub fn set_propagation<'a>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        propagation: Propagation,
        is_recursive: bool,
    ) -> Result<()> {
        self.check_rights()?;
        let (place, _) = self.ns.resolve(start.into(), path.as_ref(), FinalSymlink::Follow)?;
        let mut tree = self.ns.propagation_domain.tree.lock();
        let node = tree.nodes.get(&place.mount).filter(|node| Arc::ptr_eq(&node.ns, &self.ns));
        if node.ok_or(Error::NotHere)?.mount.root != place.inode {
            return Err(Error::NotMountRoot);
        }
        let ids = if is_recursive { tree.subtree(place.mount) } else { vec![place.mount] };
        for id in ids {
            tree.set_propagation(id, propagation);
        }
        Ok(())
    }

    /// Ties mounts, of this namespace and of those that were made of it, to each other as they were
    /// tied when they were written down. What another thread attaches before is not passed on.
    ///
    /// # Errors
    /// [`Error::NotHere`] if one of them is not there; [`Error::NotPermitted`].
    pub fn tie(&self, mounts: &[(MountId, Ties)]) -> Result<()> {
        self.check_rights()?;
        let mut tree = self.ns.propagation_domain.tree.lock();
        if mounts.iter().any(|(mount, _)| !tree.nodes.contains_key(mount)) {
            return Err(Error::NotHere);
        }
        let mut groups = HashMap::new();
        for (mount, ties) in mounts {
            let mut group = |was: u64| *groups.entry(was).or_insert_with(|| tree.new_group());
            let (shared, master) = (ties.shared.map(&mut group), ties.master.map(&mut group));
            let state = PropagationState { group: shared, master, is_unbindable: ties.is_unbindable };
            tree.set_propagation_state(*mount, state);
        }
        Ok(())
    }
}

impl Tree {
    fn set_propagation(&mut self, id: MountId, propagation: Propagation) {
        let Some(PropagationState { group, master, .. }) = self.nodes.get(&id).map(|node| node.propagation)
        else {
            return;
        };
        // A remaining peer has others to receive from, or keeps its master.
        let peers = group.filter(|&group| self.members(group).len() > 1);
        let propagation = match propagation {
            Propagation::Shared => PropagationState {
                group: group.or_else(|| Some(self.new_group())),
                master,
                is_unbindable: false,
            },
            Propagation::Slave => {
                PropagationState { group: None, master: peers.or(master), is_unbindable: false }
            }
            Propagation::Private => PropagationState::default(),
            Propagation::Unbindable => {
                PropagationState { is_unbindable: true, ..PropagationState::default() }
            }
        };
        self.set_propagation_state(id, propagation);
    }

    pub(crate) fn set_propagation_state(&mut self, id: MountId, propagation: PropagationState) {
        if let Some(was) = self.nodes.get(&id).map(|node| node.propagation) {
            self.leave_groups(id, was);
            self.join_groups(id, propagation);
        }
    }

    pub(crate) fn new_group(&mut self) -> GroupId {
        self.last_group += 1;
        self.last_group
    }

    /// Whether any mount propagates at all.
    pub(crate) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    pub(crate) fn members(&self, group: GroupId) -> Vec<MountId> {
        self.groups.get(&group).map_or(Vec::new(), |group| group.members.iter().copied().collect())
    }

    pub(crate) fn slaves(&self, group: GroupId) -> Vec<MountId> {
        self.groups.get(&group).map_or(Vec::new(), |group| group.slaves.iter().copied().collect())
    }

    /// A mount of the tree that is in no group joins these.
    pub(crate) fn join_groups(&mut self, id: MountId, propagation: PropagationState) {
        if let Some(group) = propagation.group {
            self.groups.entry(group).or_default().members.insert(id);
        }
        if let Some(master) = propagation.master {
            self.groups.entry(master).or_default().slaves.insert(id);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.propagation = propagation;
        }
    }

    /// A mount leaves its groups. Slaves of a group without members become slaves of that group's
    /// master.
    pub(crate) fn leave_groups(&mut self, id: MountId, propagation: PropagationState) {
        if let Some(master) = propagation.master {
            if let Some(group) = self.groups.get_mut(&master) {
                group.slaves.remove(&id);
            }
            self.forget_if_empty(master);
        }
        let Some(own) = propagation.group else { return };
        let Some(group) = self.groups.get_mut(&own) else { return };
        group.members.remove(&id);
        if group.members.is_empty() {
            let slaves = std::mem::take(&mut group.slaves);
            self.groups.remove(&own);
            for slave in slaves {
                if let Some(node) = self.nodes.get_mut(&slave) {
                    node.propagation.master = propagation.master;
                }
                if let Some(master) = propagation.master {
                    self.groups.entry(master).or_default().slaves.insert(slave);
                }
            }
        }
    }

    fn forget_if_empty(&mut self, group: GroupId) {
        if self.groups.get(&group).is_some_and(|g| g.members.is_empty() && g.slaves.is_empty()) {
            self.groups.remove(&group);
        }
    }

    /// The mounts that receive changes on `parent`, `parent` not included.
    pub(crate) fn propagation_targets(&self, parent: MountId, at: Inode) -> Vec<MountId> {
        let mut found = Vec::new();
        let Some(first) = self.nodes.get(&parent).and_then(|node| node.propagation.group) else {
            return found;
        };
        let (mut groups, mut next) = (vec![first], 0);
        while let Some(&group) = groups.get(next) {
            found.extend(self.members(group).into_iter().filter(|&id| id != parent && self.shows(id, at)));
            for slave in self.slaves(group) {
                match self.nodes.get(&slave).and_then(|node| node.propagation.group) {
                    Some(own) if groups.contains(&own) => {}
                    Some(own) => groups.push(own),
                    None if self.shows(slave, at) => found.push(slave),
                    None => {}
                }
            }
            next += 1;
        }
        found
    }

    /// The mountpoints that receive a mount on `on`; the mount becomes shared if `on` is.
    pub(crate) fn attach_targets<'t>(
        &mut self,
        states: impl Iterator<Item = &'t mut PropagationState>,
        on: VfsPath,
    ) -> Vec<AttachTarget> {
        let mut targets = Vec::new();
        let Some(group) = self.nodes.get(&on.mount).and_then(|node| node.propagation.group) else {
            return targets;
        };
        let mut shared = Vec::new();
        for propagation in states {
            propagation.group = propagation.group.or_else(|| Some(self.new_group()));
            shared.push(*propagation);
        }
        // Groups whose mounts receive it, and how the copies on them propagate.
        let mut groups = vec![(group, shared)];
        let mut next = 0;
        while let Some((group, states)) = groups.get(next).cloned() {
            for id in self.members(group) {
                if id != on.mount && self.shows(id, on.inode) {
                    targets.push(AttachTarget { on: VfsPath { mount: id, ..on }, states: states.clone() });
                }
            }
            for slave in self.slaves(group) {
                let enslaved = |peer: &PropagationState| PropagationState {
                    master: peer.group,
                    ..PropagationState::default()
                };
                match self.nodes.get(&slave).and_then(|node| node.propagation.group) {
                    Some(own) if groups.iter().any(|(known, _)| *known == own) => {}
                    Some(own) => {
                        let mut below: Vec<PropagationState> = states.iter().map(enslaved).collect();
                        below.iter_mut().for_each(|propagation| propagation.group = Some(self.new_group()));
                        groups.push((own, below));
                    }
                    None if self.shows(slave, on.inode) => {
                        let on = VfsPath { mount: slave, ..on };
                        targets.push(AttachTarget { on, states: states.iter().map(enslaved).collect() });
                    }
                    None => {}
                }
            }
            next += 1;
        }
        targets
    }

    /// Adds to `victims` the mounts on the same inodes of mounts that receive the change, unless a
    /// mount on them stays.
    pub(crate) fn propagate_umount(&self, victims: Vec<MountId>) -> Vec<MountId> {
        if !self.has_groups() {
            return victims;
        }
        let mut going: HashSet<MountId> = victims.iter().copied().collect();
        let mut order = victims.clone();
        // Children first: a copy whose children all go can go, too.
        for id in victims {
            let Some(on) = self.nodes.get(&id).and_then(|node| node.parent) else { continue };
            for receiver in self.propagation_targets(on.mount, on.inode) {
                let Some(copy) = self.child(VfsPath { mount: receiver, ..on }) else { continue };
                let stays = |child: &MountId| !going.contains(child);
                let is_free = self.nodes.get(&copy).is_some_and(|node| !node.children.iter().any(stays));
                if is_free && going.insert(copy) {
                    order.push(copy);
                }
            }
        }
        order
    }

    /// Whether the inode is in the part of the superblock that this mount shows.
    pub(crate) fn shows(&self, id: MountId, at: Inode) -> bool {
        self.nodes.get(&id).is_some_and(|node| {
            let superblock = node.mount.superblock.superblock();
            let root = node.mount.root;
            root == superblock.root() || root == at || superblock.is_below(at, root)
        })
    }
}
