//! The trees of all namespaces that propagate to each other, under one lock.
//!
//! Namespaces that were cloned from one another are a *family*: a change in one may change the
//! others. Different families have no lock in common. Nothing that can wait is done under the lock.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use rcu::Domain;
use sync::Mutex;

use crate::mount::{Mount, MountId};
use crate::namespace::Ns;
use crate::superblock::Inode;

/// A hasher for numbers that no client chooses.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ByNumber(u64);

impl Hasher for ByNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Mounts that propagate to each other.
pub(crate) type GroupId = u64;

/// Domains of ended namespaces that a family keeps for those to come.
const SPARE_MAX: usize = 8;

/// Namespaces that propagate to each other.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) tree: Mutex<Tree>,
    /// Domains without readers: their namespaces are gone. They know the threads that were readers,
    /// which would have to register with a new one. A leaf of the lock order.
    spare: Mutex<Vec<Domain>>,
}

impl Family {
    /// The readers of a namespace that is made.
    pub(crate) fn domain(&self, make: impl FnOnce() -> Domain) -> Domain {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(make)
    }

    /// A namespace is gone, with every user that could begin a section for long.
    pub(crate) fn keep(&self, domain: &Domain) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(domain.clone());
        }
    }
}

/// All mounts of a family.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: HashMap<MountId, Node, BuildHasherDefault<ByNumber>>,
    groups: HashMap<GroupId, Group>,
    last_group: GroupId,
    /// Mounts of each namespace.
    pub(crate) counts: HashMap<u64, usize>,
}

/// The part of a mount that only changes need.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) mount: Arc<Mount>,
    pub(crate) ns: Arc<Ns>,
    /// None: the root of its namespace.
    pub(crate) parent: Option<(MountId, Inode)>,
    pub(crate) children: HashSet<MountId, BuildHasherDefault<ByNumber>>,
    pub(crate) tie: Tie,
    /// How often its superblock had been held at its last expiry call.
    pub(crate) expiry: Option<u64>,
}

/// How a mount propagates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tie {
    /// Its peers.
    pub(crate) group: Option<GroupId>,
    /// The group whose changes it receives.
    pub(crate) master: Option<GroupId>,
    /// It is not copied by a bind.
    pub(crate) is_unbindable: bool,
}

#[derive(Debug, Default)]
struct Group {
    members: BTreeSet<MountId>,
    slaves: BTreeSet<MountId>,
}

impl Tree {
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

    /// Gives a mount of the tree that has no ties these ones.
    pub(crate) fn tie(&mut self, id: MountId, tie: Tie) {
        if let Some(group) = tie.group {
            self.groups.entry(group).or_default().members.insert(id);
        }
        if let Some(master) = tie.master {
            self.groups.entry(master).or_default().slaves.insert(id);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.tie = tie;
        }
    }

    /// Takes a mount's ties. Slaves of a group without members become slaves of that group's
    /// master.
    pub(crate) fn untie(&mut self, id: MountId, tie: Tie) {
        if let Some(master) = tie.master {
            if let Some(group) = self.groups.get_mut(&master) {
                group.slaves.remove(&id);
            }
            self.forget_if_empty(master);
        }
        let Some(own) = tie.group else { return };
        let Some(group) = self.groups.get_mut(&own) else { return };
        group.members.remove(&id);
        if group.members.is_empty() {
            let slaves = std::mem::take(&mut group.slaves);
            self.groups.remove(&own);
            for slave in slaves {
                if let Some(node) = self.nodes.get_mut(&slave) {
                    node.tie.master = tie.master;
                }
                if let Some(master) = tie.master {
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

    /// `top` and all mounts below it, parents before children.
    pub(crate) fn breadth_first(&self, top: MountId) -> Vec<MountId> {
        let mut order = vec![top];
        let mut at = 0;
        while let Some(&id) = order.get(at) {
            if let Some(node) = self.nodes.get(&id) {
                order.extend(node.children.iter().copied());
            }
            at += 1;
        }
        order
    }

    /// `top` and all mounts below it, children before parents.
    pub(crate) fn subtree(&self, top: MountId) -> Vec<MountId> {
        let mut order = self.breadth_first(top);
        order.reverse();
        order
    }

    /// Whether `id` is `top` or below it.
    pub(crate) fn is_in_subtree(&self, mut id: MountId, top: MountId) -> bool {
        loop {
            if id == top {
                return true;
            }
            match self.nodes.get(&id).and_then(|node| node.parent) {
                Some((parent, _)) => id = parent,
                None => return false,
            }
        }
    }

    /// The mount on a place. As readers see it: only the holder of the lock changes it.
    pub(crate) fn child(&self, on: MountId, at: Inode) -> Option<MountId> {
        let node = self.nodes.get(&on)?;
        let guard = node.ns.home.domain.read();
        node.ns.by_place.find((on.0, at.0), &guard).map(|mount| mount.id)
    }

    /// The mounts that receive changes on `parent`, `parent` not included.
    pub(crate) fn receivers(&self, parent: MountId, at: Inode) -> Vec<MountId> {
        let mut found = Vec::new();
        let Some(first) = self.nodes.get(&parent).and_then(|node| node.tie.group) else { return found };
        let (mut groups, mut next) = (vec![first], 0);
        while let Some(&group) = groups.get(next) {
            found.extend(self.members(group).into_iter().filter(|&id| id != parent && self.sees(id, at)));
            for slave in self.slaves(group) {
                match self.nodes.get(&slave).and_then(|node| node.tie.group) {
                    Some(own) if groups.contains(&own) => {}
                    Some(own) => groups.push(own),
                    None if self.sees(slave, at) => found.push(slave),
                    None => {}
                }
            }
            next += 1;
        }
        found
    }

    /// Whether the inode is in the part of the superblock that this mount shows.
    pub(crate) fn sees(&self, id: MountId, at: Inode) -> bool {
        self.nodes.get(&id).is_some_and(|node| {
            let superblock = node.mount.superblock.superblock();
            let root = node.mount.root;
            root == superblock.root() || root == at || superblock.is_below(at, root)
        })
    }
}
