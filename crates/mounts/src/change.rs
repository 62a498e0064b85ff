//! The elementary changes of the tree, and the tables that they replaced, which readers may still
//! see.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mount::{Mount, VfsPath};
use crate::protocol::Locked;
use crate::table::RetiredTables;
use crate::tree::{Node, Ns, PropagationState, Tree};

/// A change under way. The lock of the tree is held.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Boxed: a map of one has room for eleven, and a request for so much memory makes the
    /// allocator tidy up.
    old: BTreeMap<u64, Box<(Arc<Ns>, RetiredTables)>>,
}

impl Change {
    /// The old tables that readers of `ns` may still see.
    pub(crate) fn retired(&mut self, ns: &Arc<Ns>) -> &mut RetiredTables {
        &mut self
            .old
            .entry(ns.core.id)
            .or_insert_with(|| Box::new((Arc::clone(ns), RetiredTables::default())))
            .1
    }

    /// After all locks are free: the readers' domains drop the replaced tables after grace periods.
    pub(crate) fn retire(self) {
        for (ns, old) in self.old.into_values().map(|left| *left) {
            old.defer_drop(&ns.core.domain);
        }
    }
}

/// The locks of several namespaces, taken in the order of their numbers.
pub(crate) struct LockedNamespaces<'a>(Vec<(u64, Locked<'a>)>);

impl<'a> LockedNamespaces<'a> {
    pub(crate) fn lock(namespaces: &'a BTreeMap<u64, Arc<Ns>>) -> Self {
        Self(namespaces.iter().map(|(&id, ns)| (id, ns.core.lock.lock())).collect())
    }

    pub(crate) fn of(&self, ns: &Ns) -> &Locked<'a> {
        let at = self.0.binary_search_by_key(&ns.core.id, |(id, _)| *id).expect("all that change are locked");
        &self.0[at].1
    }
}

impl Tree {
    /// Makes a mount the root of a namespace; the former one is not touched.
    pub(crate) fn set_root(
        &mut self,
        ns: &Arc<Ns>,
        mount: &Arc<Mount>,
        propagation: PropagationState,
        change: &mut Change,
    ) {
        let _locked = ns.core.lock.lock();
        change.retired(ns).roots.push(ns.root.replace(Some(Arc::clone(mount))));
        self.add(ns, mount, None, propagation, change);
    }

    /// Adds a mount that is new. The namespace's lock is held.
    pub(crate) fn add(
        &mut self,
        ns: &Arc<Ns>,
        mount: &Arc<Mount>,
        parent: Option<VfsPath>,
        propagation: PropagationState,
        change: &mut Change,
    ) {
        let count = self.counts.entry(ns.core.id).or_default();
        *count += 1;
        let count = *count;
        ns.by_id.insert((mount.id.0, 0), mount, count, change.retired(ns));
        let node = Node {
            mount: Arc::clone(mount),
            ns: Arc::clone(ns),
            parent: None,
            children: sync::IdSet::default(),
            propagation: PropagationState::default(),
            expiry: None,
        };
        self.nodes.insert(mount.id, node);
        self.join_groups(mount.id, propagation);
        if let Some(parent) = parent {
            self.hash(ns, mount, parent, change);
        }
    }

    /// Puts a mount of the tree on its mountpoint. The namespace's lock is held.
    pub(crate) fn hash(&mut self, ns: &Arc<Ns>, mount: &Arc<Mount>, on: VfsPath, change: &mut Change) {
        let count = self.counts.get(&ns.core.id).copied().unwrap_or(0);
        ns.by_mountpoint.insert((on.mount.0, on.inode.0), mount, count, change.retired(ns));
        if let Some(node) = self.nodes.get_mut(&mount.id) {
            node.parent = Some(on);
        }
        if let Some(node) = self.nodes.get_mut(&on.mount) {
            node.children.insert(mount.id);
        }
    }

    /// Takes a mount of the tree off its mountpoint. The namespace's lock is held.
    pub(crate) fn unhash(&mut self, ns: &Ns, mount: &Arc<Mount>, old: &mut RetiredTables) {
        let Some(on) = self.nodes.get_mut(&mount.id).and_then(|node| node.parent.take()) else { return };
        ns.by_mountpoint.remove((on.mount.0, on.inode.0), old);
        old.parents.push(mount.parent.replace(None));
        if let Some(node) = self.nodes.get_mut(&on.mount) {
            node.children.remove(&mount.id);
        }
    }
}
