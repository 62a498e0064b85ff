//! The inode table: one inode for each object that the front end knows or that has unwritten data.
//!
//! Lock order: a shard, then an inode's state. The store is called with neither held.

use std::sync::Arc;

use sync::{IdMap, RwLock};

use crate::NodeId;
use crate::inode::Inode;

const SHARDS: usize = 16;

/// Inodes by id.
#[derive(Debug, Default)]
pub(crate) struct Table {
    shards: [RwLock<IdMap<NodeId, Arc<Inode>>>; SHARDS],
}

impl Table {
    fn shard(&self, id: NodeId) -> &RwLock<IdMap<NodeId, Arc<Inode>>> {
        #[allow(clippy::cast_possible_truncation, reason = "only the low bits choose the shard")]
        &self.shards[id.0 as usize % SHARDS]
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<Arc<Inode>> {
        self.shard(id).read().get(&id).map(Arc::clone)
    }

    /// The inode for `id` with one more look-up, made if it is not there; says whether it was
    /// there.
    pub(crate) fn look_up(&self, id: NodeId, make: impl FnOnce() -> Inode) -> (Arc<Inode>, bool) {
        let shard = self.shard(id);
        if let Some(inode) = shard.read().get(&id) {
            inode.add_lookup();
            return (Arc::clone(inode), true);
        }
        let mut known = true;
        let mut shard = shard.write();
        let inode = shard.entry(id).or_insert_with(|| {
            known = false;
            Arc::new(make())
        });
        inode.add_lookup();
        (Arc::clone(inode), known)
    }

    /// Removes `id` if it is not needed any more; says whether it did.
    pub(crate) fn remove_unused(&self, id: NodeId) -> bool {
        let removed = {
            let mut shard = self.shard(id).write();
            if shard.get(&id).is_some_and(|inode| inode.is_unused()) { shard.remove(&id) } else { None }
        };
        if let Some(inode) = &removed {
            inode.note_forgotten();
        }
        removed.is_some()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.read().values().map(Arc::clone).collect::<Vec<_>>())
            .collect()
    }

    /// Adds an inode; says whether there was none with its id.
    pub(crate) fn restore(&self, inode: Inode) -> bool {
        self.shard(inode.id).write().insert(inode.id, Arc::new(inode)).is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.write()).into_values()).collect()
    }
}
