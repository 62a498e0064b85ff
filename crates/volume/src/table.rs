//! The inode table: one inode for each object that the front end knows or that has unwritten data.
//!
//! How many there are is the front end's to decide, which looks them up and forgets them. So that this
//! is bounded, the table says which it could forget where there are more than it may have: those that
//! came first, of those that nobody uses.
//!
//! Lock order: the order of arrival, then a shard, then an inode's state. The store is called with none
//! held.

use std::collections::VecDeque;
use std::sync::Arc;

use sync::atomic::{AtomicUsize, Ordering};
use sync::{IdMap, Mutex, RwLock};

use crate::NodeId;
use crate::inode::Inode;

const SHARDS: usize = 16;
/// Inodes that are named together as a surplus; after so many more others are.
const SURPLUS: usize = 512;
/// Inodes that are looked at for that.
const LOOKED_AT: usize = 4 * SURPLUS;
/// Ids that are in the order of arrival though their inodes are gone, beside as many as there are inodes.
const GONE_MAX: usize = 1024;

/// Inodes by id.
#[derive(Debug, Default)]
pub(crate) struct Table {
    shards: [RwLock<IdMap<NodeId, Arc<Inode>>>; SHARDS],
    count: AtomicUsize,
    arrivals: Mutex<Arrivals>,
}

/// The order in which inodes came.
#[derive(Debug, Default)]
struct Arrivals {
    /// One that is gone leaves later; one that came again may be there twice.
    order: VecDeque<NodeId>,
    /// Since a surplus was named.
    since: usize,
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
        let inode = Arc::clone(inode);
        if !known {
            // ORDERING: Relaxed, here and below: a figure by which nothing is read. The shard's lock orders it
            // before the removal of the same inode, so that it is never less than none.
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        drop(shard);
        if !known {
            self.arrived(id);
        }
        (inode, known)
    }

    fn arrived(&self, id: NodeId) {
        let count = self.count.load(Ordering::Relaxed);
        let mut arrivals = self.arrivals.lock();
        arrivals.order.push_back(id);
        arrivals.since += 1;
        // Two for each that comes: those that are gone cannot become more.
        for _ in 0..2 {
            if arrivals.order.len() > 2 * count + GONE_MAX
                && let Some(first) = arrivals.order.pop_front()
                && self.get(first).is_some()
            {
                arrivals.order.push_back(first);
            }
        }
    }

    /// Whether there are more than `max`.
    pub(crate) fn has_surplus(&self, max: usize) -> bool {
        self.count.load(Ordering::Relaxed) > max
    }

    /// Those that came first of the inodes that nobody uses, some of them, where there are more than
    /// `max`; they are named again after all others.
    pub(crate) fn name_surplus(&self, max: usize) -> Vec<NodeId> {
        let mut named = Vec::new();
        let mut arrivals = self.arrivals.lock();
        if !self.has_surplus(max) || arrivals.since < SURPLUS {
            return named;
        }
        arrivals.since = 0;
        for _ in 0..LOOKED_AT.min(arrivals.order.len()) {
            let Some(id) = arrivals.order.pop_front() else { break };
            let Some(inode) = self.get(id) else { continue };
            arrivals.order.push_back(id);
            if id != NodeId::ROOT && inode.is_idle() {
                named.push(id);
                if named.len() == 2 * SURPLUS {
                    break;
                }
            }
        }
        named
    }

    /// Removes `id` if it is not needed any more; says whether it did.
    pub(crate) fn remove_unused(&self, id: NodeId) -> bool {
        let removed = {
            let mut shard = self.shard(id).write();
            if shard.get(&id).is_some_and(|inode| inode.is_unused()) { shard.remove(&id) } else { None }
        };
        if let Some(inode) = &removed {
            self.count.fetch_sub(1, Ordering::Relaxed);
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
        let id = inode.id;
        let is_new = {
            let mut shard = self.shard(id).write();
            let is_new = shard.insert(id, Arc::new(inode)).is_none();
            self.count.fetch_add(usize::from(is_new), Ordering::Relaxed);
            is_new
        };
        if is_new {
            self.arrived(id);
        }
        is_new
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> Vec<Arc<Inode>> {
        *self.arrivals.lock() = Arrivals::default();
        let all: Vec<_> =
            self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.write()).into_values()).collect();
        self.count.fetch_sub(all.len(), Ordering::Relaxed);
        all
    }
}
