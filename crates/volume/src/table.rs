//! The inode table: one inode for each object that the front end knows or that has unwritten data.
//!
//! How many there are is the front end's to decide, which looks them up and forgets them. So that this
//! is bounded, the table says which it could forget where there are more than it may have: those that
//! came first, of those that nobody uses.
//!
//! Lock order: a shard, then an inode's state. The store is called with neither held.

use std::collections::VecDeque;
use std::sync::Arc;

use sync::atomic::{AtomicUsize, Ordering};
use sync::{IdMap, RwLock};

use crate::NodeId;
use crate::inode::Inode;

const SHARDS: usize = 16;
/// A surplus is named each time that so many more have come, twice as many of them.
const SURPLUS: usize = 128;
/// Inodes that are looked at for that.
const LOOKED_AT: usize = 4 * SURPLUS;
/// Arrivals of inodes that are gone, in a shard, beside twice as many as it has inodes.
const GONE_MAX: usize = 64;

/// Inodes by id.
#[derive(Debug, Default)]
pub(crate) struct Table {
    shards: [RwLock<Shard>; SHARDS],
    count: AtomicUsize,
    /// How many came since a surplus was named.
    since: AtomicUsize,
    /// The shard of which a surplus is named next.
    next: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    inodes: IdMap<NodeId, Arc<Inode>>,
    /// In the order in which they came. That of one that is gone leaves later.
    arrivals: VecDeque<Arrival>,
    /// How many ever came.
    came: u64,
}

/// An inode came: which, and with which number, for it may go and come again.
type Arrival = (NodeId, u64);

impl Shard {
    /// Adds an inode that is not there.
    fn add(&mut self, mut inode: Inode) -> Arc<Inode> {
        self.came += 1;
        inode.arrival = self.came;
        let arrival = (inode.id, inode.arrival);
        let inode = Arc::new(inode);
        self.inodes.insert(inode.id, Arc::clone(&inode));
        self.arrivals.push_back(arrival);
        // Two for each that comes, as long as there are more of those that are gone than may be.
        for _ in 0..2 {
            if self.arrivals.len() > 2 * self.inodes.len() + GONE_MAX
                && let Some(first) = self.arrivals.pop_front()
                && self.arrived(first).is_some()
            {
                self.arrivals.push_back(first);
            }
        }
        inode
    }

    /// The inode of this arrival, if it is there still.
    fn arrived(&self, (id, number): Arrival) -> Option<&Arc<Inode>> {
        self.inodes.get(&id).filter(|inode| inode.arrival == number)
    }

    /// Inodes that nobody uses, those that came first, some of them; they come after all others then.
    fn name_surplus(&mut self) -> Vec<NodeId> {
        let mut named = Vec::new();
        for _ in 0..LOOKED_AT.min(self.arrivals.len()) {
            let Some(first) = self.arrivals.pop_front() else { break };
            let Some(inode) = self.arrived(first) else { continue };
            let is_idle = first.0 != NodeId::ROOT && inode.is_idle();
            self.arrivals.push_back(first);
            if is_idle {
                named.push(first.0);
                if named.len() == 2 * SURPLUS {
                    break;
                }
            }
        }
        named
    }
}

impl Table {
    fn shard(&self, id: NodeId) -> &RwLock<Shard> {
        #[allow(clippy::cast_possible_truncation, reason = "only the low bits choose the shard")]
        &self.shards[id.0 as usize % SHARDS]
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<Arc<Inode>> {
        self.shard(id).read().inodes.get(&id).map(Arc::clone)
    }

    /// The inode for `id` with one more look-up, made if it is not there; says whether it was
    /// there.
    pub(crate) fn look_up(&self, id: NodeId, make: impl FnOnce() -> Inode) -> (Arc<Inode>, bool) {
        let shard = self.shard(id);
        if let Some(inode) = shard.read().inodes.get(&id) {
            inode.add_lookup();
            return (Arc::clone(inode), true);
        }
        let mut shard = shard.write();
        if let Some(inode) = shard.inodes.get(&id) {
            inode.add_lookup();
            return (Arc::clone(inode), true);
        }
        let inode = shard.add(make());
        inode.add_lookup();
        self.one_came();
        (inode, false)
    }

    /// The caller has the shard's lock.
    fn one_came(&self) {
        // ORDERING: Relaxed, here and below: figures by which nothing is read. The shard's lock orders
        // the count before the removal of the same inode, so that it is never less than none.
        self.count.fetch_add(1, Ordering::Relaxed);
        self.since.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there are more than `max`.
    pub(crate) fn has_surplus(&self, max: usize) -> bool {
        self.count.load(Ordering::Relaxed) > max
    }

    /// Inodes that nobody uses, of those that came first, some of them, where there are more than `max`;
    /// they are named again after all others.
    pub(crate) fn name_surplus(&self, max: usize) -> Vec<NodeId> {
        if !self.has_surplus(max) || self.since.load(Ordering::Relaxed) < SURPLUS {
            return Vec::new();
        }
        self.since.store(0, Ordering::Relaxed);
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.shards[next % SHARDS].write().name_surplus()
    }

    /// Removes `id` if it is not needed any more; says whether it did.
    pub(crate) fn remove_unused(&self, id: NodeId) -> bool {
        let removed = {
            let mut shard = self.shard(id).write();
            let is_unused = shard.inodes.get(&id).is_some_and(|inode| inode.is_unused());
            if is_unused { shard.inodes.remove(&id) } else { None }
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
            .flat_map(|shard| shard.read().inodes.values().map(Arc::clone).collect::<Vec<_>>())
            .collect()
    }

    /// Adds an inode; says whether there was none with its id.
    pub(crate) fn restore(&self, inode: Inode) -> bool {
        let mut shard = self.shard(inode.id).write();
        let is_new = !shard.inodes.contains_key(&inode.id);
        shard.add(inode);
        if is_new {
            self.one_came();
        }
        is_new
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().inodes.len()).sum()
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> Vec<Arc<Inode>> {
        let all: Vec<_> = self
            .shards
            .iter()
            .flat_map(|shard| std::mem::take(&mut *shard.write()).inodes.into_values())
            .collect();
        self.count.fetch_sub(all.len(), Ordering::Relaxed);
        all
    }

    /// Arrivals that are remembered.
    #[cfg(test)]
    fn arrivals(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().arrivals.len()).sum()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ffi::OsStr;

    use store::{MemStore, NewNode, ObjectId, Store as _};

    use crate::{Options, Volume};

    #[test]
    fn one_that_goes_and_comes_again_and_again_is_remembered_a_few_times() {
        let store = MemStore::new(1 << 20);
        let name = store::Name::new("file".as_ref()).expect("a name");
        let creator = store::Creator { uid: 0, gid: 0, umask: 0 };
        let what = NewNode::Special { kind: store::FileType::Regular, rdev: 0 };
        let made = store.make(ObjectId::ROOT, name, what, 0o644, creator).expect("a file");
        store.forget(made.id, 1);
        let volume = Volume::new(store, Options::default()).expect("a volume");
        let table = &volume.core.table;
        for _ in 0..10_000 {
            let entry = volume.lookup(ObjectId::ROOT, OsStr::new("file")).expect("it is there");
            assert!(table.arrivals() < 10 * super::GONE_MAX, "{}", table.arrivals());
            volume.forget(entry.id, 1);
        }
    }
}
