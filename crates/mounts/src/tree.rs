//! The trees of all namespaces that propagate to each other, under one lock.
//!
//! Namespaces that were cloned from one another are a *propagation domain*: a change in one may
//! change the others. Different ones have no lock in common. Nothing that can wait is done under
//! the lock.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rcu::{Domain, DomainOptions, RcuCell};
use sync::{IdMap, IdSet, Mutex};

use crate::mount::{Counters, Mount, MountId, NsCore, VfsPath};
use crate::protocol::MountLock;
use crate::table::MountTable;
use crate::teardown::Teardown;

/// Mounts that a namespace may have, unless its options say otherwise.
const MOUNTS_MAX: usize = 100_000;

/// How a namespace behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Mounts that it may have.
    pub mounts_max: usize,
    /// Its readers' domain.
    pub domain: DomainOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self { mounts_max: MOUNTS_MAX, domain: DomainOptions::default() }
    }
}

/// The part that all handles share.
#[derive(Debug)]
pub(crate) struct Ns {
    pub(crate) core: Arc<NsCore>,
    /// The mount on (mount, inode).
    pub(crate) by_mountpoint: MountTable,
    /// By (number, 0).
    pub(crate) by_id: MountTable,
    /// None: ended.
    pub(crate) root: RcuCell<Option<Arc<Mount>>>,
    pub(crate) propagation_domain: Arc<PropagationDomain>,
    pub(crate) teardown: Arc<dyn Teardown>,
    pub(crate) options: Options,
}

impl Ns {
    pub(crate) fn new(
        propagation_domain: Arc<PropagationDomain>,
        options: Options,
        teardown: Arc<dyn Teardown>,
    ) -> Arc<Self> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let domain = propagation_domain.rcu_domain(|| teardown.domain(&options.domain));
        Arc::new(Self {
            by_mountpoint: MountTable::new(&domain),
            by_id: MountTable::new(&domain),
            root: RcuCell::new(&domain, None),
            // ORDERING: Relaxed, only a number of its own for each.
            core: Arc::new(NsCore {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                domain,
                lock: MountLock::default(),
                counters: Counters::default(),
            }),
            propagation_domain,
            teardown,
            options,
        })
    }

    /// An empty one of the same propagation domain.
    pub(crate) fn beside(&self) -> Arc<Self> {
        let domain = Arc::clone(&self.propagation_domain);
        Self::new(domain, self.options.clone(), Arc::clone(&self.teardown))
    }
}

impl Drop for Ns {
    fn drop(&mut self) {
        self.propagation_domain.keep_spare(&self.core.domain);
    }
}

/// Mounts that propagate to each other.
pub(crate) type GroupId = u64;

/// Domains of ended namespaces that a propagation domain keeps for those to come.
const SPARE_MAX: usize = 8;

/// Namespaces that propagate to each other.
#[derive(Debug, Default)]
pub(crate) struct PropagationDomain {
    pub(crate) tree: Mutex<Tree>,
    /// Domains without readers: their namespaces are gone. They know the threads that were readers,
    /// which would have to register with a new one. A leaf of the lock order.
    spare: Mutex<Vec<Domain>>,
}

impl PropagationDomain {
    /// The readers of a namespace that is made.
    pub(crate) fn rcu_domain(&self, make: impl FnOnce() -> Domain) -> Domain {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(make)
    }

    /// A namespace is gone, with every user that could begin a section for long.
    pub(crate) fn keep_spare(&self, domain: &Domain) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(domain.clone());
        }
    }
}

/// All mounts of a propagation domain.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: IdMap<MountId, Node>,
    pub(crate) groups: HashMap<GroupId, Group>,
    pub(crate) last_group: GroupId,
    /// Mounts of each namespace.
    pub(crate) counts: HashMap<u64, usize>,
}

/// The part of a mount that only changes need.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) mount: Arc<Mount>,
    pub(crate) ns: Arc<Ns>,
    /// None: the root of its namespace.
    pub(crate) parent: Option<VfsPath>,
    pub(crate) children: IdSet<MountId>,
    pub(crate) propagation: PropagationState,
    /// How often its superblock had been held at its last expiry call.
    pub(crate) expiry: Option<u64>,
}

/// How a mount propagates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PropagationState {
    /// Its peers.
    pub(crate) group: Option<GroupId>,
    /// The group whose changes it receives.
    pub(crate) master: Option<GroupId>,
    /// It is not copied by a bind.
    pub(crate) is_unbindable: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) members: BTreeSet<MountId>,
    pub(crate) slaves: BTreeSet<MountId>,
}

impl Tree {
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
                Some(parent) => id = parent.mount,
                None => return false,
            }
        }
    }

    /// The mount on a mountpoint. As readers see it: only the holder of the lock changes it.
    pub(crate) fn child(&self, on: VfsPath) -> Option<MountId> {
        let node = self.nodes.get(&on.mount)?;
        let guard = node.ns.core.domain.read();
        node.ns.by_mountpoint.find((on.mount.0, on.inode.0), &guard).map(|mount| mount.id)
    }
}
