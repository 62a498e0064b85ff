//! The objects in use, by id and by inode number.
//!
//! A store lies on one device, so that the inode number alone names an object of the host as long
//! as a descriptor keeps the number from being used again.
//!
//! # Ids
//! An object's id is its inode number, so that it is found by its id again at any time (see
//! [`recall`](super::recall)). Two kinds of objects get an id that is counted up: those whose
//! number is [`COUNTED_FROM`] or more, as some file systems have, and those whose number belongs to
//! an earlier object that is still referenced, because a process of the host removed that one while
//! its descriptor was evicted.
//!
//! An object stays in the table while it has *references* (given to the store's user) or *pins*
//! (open data, or changes that are not durable yet): a look-up that finds it again meets the same
//! node.
//!
//! Lock order: a shard's lock is a leaf; nothing blocks under it, and other locks are only tried.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::{IdMap, Mutex};

use super::node::DirNode;
use crate::{Error, ErrorKind, FileType, ObjectId, Result};

const SHARDS: usize = 64;

/// Ids from here on are counted up; smaller ones are inode numbers. It is half of the ids that a
/// front end can tell apart which serves several volumes.
pub(crate) const COUNTED_FROM: u64 = 1 << 39;

#[derive(Debug)]
struct Known {
    node: Arc<DirNode>,
    refs: u64,
    pins: u64,
}

#[derive(Debug, Default)]
struct Shard {
    /// By inode number.
    objects: IdMap<u64, Known>,
    /// Id to inode number.
    ids: IdMap<u64, u64>,
    /// Ids of objects that are gone from the table, with the references that were not given back:
    /// no other object may get them.
    spent: IdMap<u64, u64>,
    /// Objects whose descriptors may be evicted, those longest unused in front; some may be gone.
    queue: VecDeque<ObjectId>,
}

impl Shard {
    fn by_id(&mut self, id: ObjectId) -> Option<&mut Known> {
        let ino = self.ids.get(&id.0)?;
        self.objects.get_mut(ino)
    }

    /// This very object, and not another that has its id.
    fn same(&mut self, node: &DirNode) -> Option<&mut Known> {
        self.by_id(node.id).filter(|known| std::ptr::eq(&raw const *known.node, node))
    }

    /// Removes the object of this number, because another object has it by now.
    fn remove_stale(&mut self, ino: u64) -> Option<Known> {
        let gone = self.objects.remove(&ino)?;
        self.ids.remove(&gone.node.id.0);
        if gone.refs > 0 {
            self.spent.insert(gone.node.id.0, gone.refs);
        }
        Some(gone)
    }
}

/// The outcome of [`Table::insert`].
#[derive(Debug)]
pub(crate) enum Inserted {
    /// The object was not known.
    New(Arc<DirNode>),
    /// It was; the descriptor was not needed.
    Known(Arc<DirNode>, Arc<OwnedFd>),
}

/// An object, and its references.
pub(crate) type Referenced = (Arc<DirNode>, u64);

/// The table. The root is not in its shards: it is always known.
#[derive(Debug)]
pub(crate) struct Table {
    root: Arc<DirNode>,
    shards: Box<[Mutex<Shard>]>,
    /// The next counted id's high part; ids carry their shard in the low bits, as inode numbers do,
    /// so that one shard holds an object under both of its numbers.
    next: AtomicU64,
    /// The shard whose queue is checked next.
    hand: AtomicUsize,
}

impl Table {
    pub(crate) fn new(root: DirNode) -> Self {
        Self {
            root: Arc::new(root),
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            next: AtomicU64::new(COUNTED_FROM / SHARDS as u64),
            hand: AtomicUsize::new(0),
        }
    }

    pub(crate) fn root(&self) -> &Arc<DirNode> {
        &self.root
    }

    #[allow(clippy::cast_possible_truncation, reason = "below SHARDS")]
    fn shard_of_ino(ino: u64) -> usize {
        (ino % SHARDS as u64) as usize
    }

    #[allow(clippy::cast_possible_truncation, reason = "below SHARDS")]
    fn shard(&self, id: ObjectId) -> &Mutex<Shard> {
        &self.shards[(id.0 % SHARDS as u64) as usize]
    }

    /// The object with this id.
    pub(crate) fn get(&self, id: ObjectId, op: &'static str) -> Result<Arc<DirNode>> {
        if id == ObjectId::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        let mut shard = self.shard(id).lock();
        match shard.by_id(id) {
            Some(known) if known.refs > 0 => Ok(Arc::clone(&known.node)),
            _ => Err(Error::new(ErrorKind::Stale, op)),
        }
    }

    /// The object with this inode number, if it is known.
    pub(crate) fn find(&self, ino: u64) -> Option<Arc<DirNode>> {
        if ino == self.root.ino {
            return Some(Arc::clone(&self.root));
        }
        let shard = self.shards[Self::shard_of_ino(ino)].lock();
        shard.objects.get(&ino).map(|k| Arc::clone(&k.node))
    }

    /// Adds a reference to the object with this inode number; if it is not known, `make` makes it
    /// of `fd`.
    pub(crate) fn insert(
        &self,
        ino: u64,
        kind: FileType,
        fd: Arc<OwnedFd>,
        make: impl FnOnce(ObjectId, Arc<OwnedFd>) -> DirNode,
    ) -> Inserted {
        if ino == self.root.ino {
            return Inserted::Known(Arc::clone(&self.root), fd);
        }
        let number = Self::shard_of_ino(ino);
        let mut shard = self.shards[number].lock();
        let mut stale = None;
        if let Some(known) = shard.objects.get_mut(&ino) {
            if known.node.kind == kind {
                known.refs += 1;
                return Inserted::Known(Arc::clone(&known.node), fd);
            }
            // Another object now has the number of one whose descriptor was evicted.
            stale = shard.remove_stale(ino);
        }
        let is_free = ino > ObjectId::ROOT.0 && ino < COUNTED_FROM && !shard.spent.contains_key(&ino);
        let is_taken = |id: u64| shard.spent.contains_key(&id) || shard.ids.contains_key(&id);
        let counted = || loop {
            // ORDERING: Relaxed. Ids need only differ; an id is published by the shard's lock.
            let id = self.next.fetch_add(1, Ordering::Relaxed) * SHARDS as u64 + number as u64;
            if !is_taken(id) {
                break id;
            }
        };
        let id = ObjectId(if is_free { ino } else { counted() });
        let node = Arc::new(make(id, fd));
        shard.ids.insert(id.0, ino);
        shard.objects.insert(ino, Known { node: Arc::clone(&node), refs: 1, pins: 0 });
        drop(shard);
        drop(stale);
        Inserted::New(node)
    }

    /// Removes an object whose number belongs to another one by now.
    pub(crate) fn remove_stale(&self, node: &DirNode) {
        let mut shard = self.shard(node.id).lock();
        let is_there = shard.objects.get(&node.ino).is_some_and(|known| known.node.id == node.id);
        let gone = if is_there { shard.remove_stale(node.ino) } else { None };
        drop(shard);
        drop(gone);
    }

    /// Notes that the descriptor of `node` may be evicted.
    pub(crate) fn queue(&self, node: &DirNode) {
        let mut shard = self.shard(node.id).lock();
        let shard = &mut *shard;
        if shard.queue.len() > 2 * shard.objects.len() + 16 {
            // Most of them are gone.
            shard.queue.retain(|id| shard.ids.contains_key(&id.0));
        }
        shard.queue.push_back(node.id);
    }

    /// Takes up to `max` objects out of the queues that have no pins and that `is_unused` agrees
    /// to.
    pub(crate) fn unused(&self, max: usize, is_unused: impl Fn(&DirNode) -> bool) -> Vec<Arc<DirNode>> {
        let mut found = Vec::with_capacity(max);
        // Twice around: the first visit to an object only clears its mark of use.
        for _ in 0..2 * SHARDS {
            // ORDERING: Relaxed. Any distribution over the shards will do.
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut shard = self.shards[at].lock();
            for _ in 0..shard.queue.len() {
                let Some(id) = shard.queue.pop_front() else { break };
                let Some(known) = shard.by_id(id) else { continue };
                if known.pins == 0 && is_unused(&known.node) {
                    found.push(Arc::clone(&known.node));
                    if found.len() == max {
                        return found;
                    }
                } else {
                    shard.queue.push_back(id);
                }
            }
        }
        found
    }

    /// Adds a reference.
    pub(crate) fn add_reference(&self, node: &DirNode) {
        if let Some(known) = self.shard(node.id).lock().same(node) {
            known.refs += 1;
        }
    }

    /// Gives `n` references back. If those were the last and the object is still pinned, returns
    /// it.
    #[must_use]
    pub(crate) fn forget(&self, id: ObjectId, n: u64) -> Option<Arc<DirNode>> {
        let mut shard = self.shard(id).lock();
        if let Some(refs) = shard.spent.get_mut(&id.0) {
            *refs = refs.saturating_sub(n);
            if *refs == 0 {
                shard.spent.remove(&id.0);
            }
            return None;
        }
        let known = shard.by_id(id)?;
        debug_assert!(known.refs >= n, "object {} forgotten {n} times of {}", id.0, known.refs);
        known.refs = known.refs.saturating_sub(n);
        Self::left_over(shard, id)
    }

    /// Keeps an object in the table.
    pub(crate) fn pin(&self, node: &DirNode) {
        if let Some(known) = self.shard(node.id).lock().same(node) {
            known.pins += 1;
        }
    }

    /// Undoes one [`pin`](Self::pin). If the object has no references but other pins, returns it.
    #[must_use]
    pub(crate) fn unpin(&self, node: &DirNode) -> Option<Arc<DirNode>> {
        let mut shard = self.shard(node.id).lock();
        let known = shard.same(node)?;
        known.pins = known.pins.saturating_sub(1);
        Self::left_over(shard, node.id)
    }

    /// Removes an object without references and pins; returns one that only pins keep.
    fn left_over(mut shard: sync::MutexGuard<'_, Shard>, id: ObjectId) -> Option<Arc<DirNode>> {
        let known = shard.by_id(id)?;
        if known.refs > 0 {
            return None;
        }
        if known.pins > 0 {
            return Some(Arc::clone(&known.node));
        }
        let gone = shard.ids.remove(&id.0).and_then(|ino| shard.objects.remove(&ino));
        drop(shard);
        drop(gone);
        None
    }

    /// The next counted id, the spent ids, and the objects with their references.
    pub(crate) fn in_use(&self) -> (u64, Vec<(u64, u64)>, Vec<Referenced>) {
        let (mut spent, mut objects) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let shard = shard.lock();
            spent.extend(shard.spent.iter().map(|(id, refs)| (*id, *refs)));
            objects.extend(shard.objects.values().map(|known| (Arc::clone(&known.node), known.refs)));
        }
        // ORDERING: Relaxed, no id is given out meanwhile.
        (self.next.load(Ordering::Relaxed), spent, objects)
    }

    /// Goes on where another table has stopped.
    pub(crate) fn resume(&self, next: u64, spent: &[(u64, u64)]) {
        // ORDERING: Relaxed, no id was given out so far.
        self.next.store(next.max(COUNTED_FROM / SHARDS as u64), Ordering::Relaxed);
        for &(id, refs) in spent {
            self.shard(ObjectId(id)).lock().spent.insert(id, refs);
        }
    }

    /// Adds an object with its references; none if one with its id or its number is there.
    pub(crate) fn restore(&self, node: DirNode, refs: u64) -> Option<Arc<DirNode>> {
        let (id, ino) = (node.id, node.ino);
        // One shard holds an object under both of its numbers.
        if id == ObjectId::ROOT || id.0 % SHARDS as u64 != ino % SHARDS as u64 {
            return None;
        }
        let node = Arc::new(node);
        let mut shard = self.shard(id).lock();
        if shard.ids.contains_key(&id.0) || shard.objects.contains_key(&ino) {
            return None;
        }
        shard.ids.insert(id.0, ino);
        shard.objects.insert(ino, Known { node: Arc::clone(&node), refs, pins: 0 });
        Some(node)
    }

    /// Objects known beside the root.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().objects.len()).sum()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let old = std::mem::take(&mut *shard.lock());
            drop(old);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use recovery::NodeKey;

    use super::super::paths::Paths;
    use super::*;
    use crate::DirState;

    /// A number that is used again and again while the kernel knows the objects that had it before:
    /// no two of them have one id, also after servers have died.
    #[test]
    fn a_counted_id_is_given_out_once_whoever_dies() {
        let fd = Arc::new(OwnedFd::from(std::fs::File::open("/proc/self").expect("/proc is mounted")));
        let paths = Arc::new(Paths::new(4, 64, &fd));
        let node = |id, ino| DirNode::new(id, ino, FileType::Regular, Arc::clone(&fd), Arc::clone(&paths));
        let (ino, first) = (77, ObjectId(77));
        let mut gone = vec![first];
        for server in 0..3 {
            let mut state = DirState::of_lock(-1);
            gone.iter().for_each(|id| state.add_gone(*id));
            let table = Table::new(node(ObjectId::ROOT, 2));
            table.resume(state.next, &state.spent);
            let insert = || table.insert(ino, FileType::Regular, Arc::clone(&fd), |id, _| node(id, ino));
            let Inserted::New(made) = insert() else { panic!("server {server}: it is known") };
            assert!(!gone.contains(&made.id), "server {server}: {:?} is given out twice", made.id);
            gone.push(made.id);
        }
        // The same with objects that are there, and one of a kind that is not known.
        let mut state = DirState::of_lock(-1);
        let key =
            |kind: FileType| NodeKey { ino, kind: kind.number(), generation: None, handle: (0, Vec::new()) };
        let (last, before) = gone.split_last().expect("four");
        before.iter().for_each(|id| state.add_gone(*id));
        state.add(*last, &key(FileType::Regular), None);
        assert_eq!(state.next, last.0 / SHARDS as u64 + 1);
    }

    #[test]
    fn a_counted_id_that_is_spent_is_passed_over() {
        let fd = Arc::new(OwnedFd::from(std::fs::File::open("/proc/self").expect("/proc is mounted")));
        let paths = Arc::new(Paths::new(4, 64, &fd));
        let node = |id, ino| DirNode::new(id, ino, FileType::Regular, Arc::clone(&fd), Arc::clone(&paths));
        let table = Table::new(node(ObjectId::ROOT, 2));
        let first = COUNTED_FROM + 77 % SHARDS as u64;
        table.resume(0, &[(77, 1), (first, 1), (first + SHARDS as u64, 1)]);
        let made = table.insert(77, FileType::Regular, Arc::clone(&fd), |id, _| node(id, 77));
        let Inserted::New(made) = made else { panic!("it is known") };
        assert_eq!(made.id.0, first + 2 * SHARDS as u64);
    }
}
