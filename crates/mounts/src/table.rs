//! Hash tables of mounts that are read in read sections.
//!
//! Buckets are replaced, never changed: a reader sees one as a whole, before or after. Only a
//! thread that holds the lock of the tree writes. Replaced buckets are collected in
//! [`RetiredTables`] and left to the domain once for a whole change, after all locks are free.

use std::sync::Arc;

use rcu::{Domain, Guard, RcuCell, Retired};

use crate::mount::{Mount, Parent};

/// Buckets of an empty table.
const FIRST: usize = 16;
/// The factor by which a table grows when it has more entries than buckets. A change copies the
/// other entries of its bucket, and so touches their mounts: buckets should be short.
const GROWTH: usize = 4;

/// Two numbers that name an entry.
pub(crate) type Key = (u64, u64);

type FoundInode = (Key, Arc<Mount>);
type Buckets = Box<[RcuCell<Bucket>]>;

/// Most have one entry or none: that one is found without another pointer.
#[derive(Debug, Clone)]
pub(crate) enum Bucket {
    Empty,
    One(FoundInode),
    Many(Vec<FoundInode>),
}

impl Bucket {
    fn entries(&self) -> &[FoundInode] {
        match self {
            Self::Empty => &[],
            Self::One(entry) => std::slice::from_ref(entry),
            Self::Many(entries) => entries,
        }
    }

    fn with(&self, entry: FoundInode) -> Self {
        match self {
            Self::Empty => Self::One(entry),
            _ => Self::Many(self.entries().iter().cloned().chain([entry]).collect()),
        }
    }

    fn without(&self, key: Key) -> Self {
        let mut left: Vec<FoundInode> = match self {
            Self::Empty => Vec::new(),
            Self::One((known, _)) if *known == key => Vec::new(),
            _ => self.entries().iter().filter(|(known, _)| *known != key).cloned().collect(),
        };
        match left.len() {
            0 => Self::Empty,
            1 => left.pop().map_or(Self::Empty, Self::One),
            _ => Self::Many(left),
        }
    }
}

/// The old values that readers may still see after a change.
#[derive(Debug, Default)]
pub(crate) struct RetiredTables {
    pub(crate) buckets: Vec<Retired<Bucket>>,
    pub(crate) parents: Vec<Retired<Option<Parent>>>,
    pub(crate) tables: Vec<Retired<Buckets>>,
    pub(crate) roots: Vec<Retired<Option<Arc<Mount>>>>,
}

impl RetiredTables {
    /// Leaves everything to `domain`. May wait while too many callbacks are queued: not under
    /// locks.
    pub(crate) fn defer_drop(self, domain: &Domain) {
        let is_empty = self.buckets.is_empty()
            && self.parents.is_empty()
            && self.tables.is_empty()
            && self.roots.is_empty();
        if !is_empty {
            domain.defer_drop(self);
        }
    }
}

/// A hash table.
#[derive(Debug)]
pub(crate) struct MountTable {
    domain: Domain,
    buckets: RcuCell<Buckets>,
}

impl MountTable {
    pub(crate) fn new(domain: &Domain) -> Self {
        Self { domain: domain.clone(), buckets: RcuCell::new(domain, empty(domain, FIRST)) }
    }

    /// The current mount; a reader that does not hold the tree's lock re-checks the sequence.
    #[inline]
    pub(crate) fn find<'g>(&self, key: Key, guard: &'g Guard<'_>) -> Option<&'g Arc<Mount>> {
        let buckets = self.buckets.load(guard);
        let bucket = buckets[index(key, buckets.len())].load(guard);
        bucket.entries().iter().find(|(known, _)| *known == key).map(|(_, mount)| mount)
    }

    /// Adds an entry to `len` others. The caller holds the tree's lock.
    pub(crate) fn insert(&self, key: Key, mount: &Arc<Mount>, len: usize, old: &mut RetiredTables) {
        let guard = self.domain.read();
        let buckets = self.buckets.load(&guard);
        if len > buckets.len() {
            self.grow(buckets, &guard, old);
        }
        let buckets = self.buckets.load(&guard);
        let cell = &buckets[index(key, buckets.len())];
        old.buckets.push(cell.replace(cell.load(&guard).with((key, Arc::clone(mount)))));
    }

    /// Takes an entry out. The caller holds the tree's lock.
    pub(crate) fn remove(&self, key: Key, old: &mut RetiredTables) {
        let guard = self.domain.read();
        let buckets = self.buckets.load(&guard);
        let cell = &buckets[index(key, buckets.len())];
        old.buckets.push(cell.replace(cell.load(&guard).without(key)));
    }

    fn grow(&self, buckets: &Buckets, guard: &Guard<'_>, old: &mut RetiredTables) {
        let mut grown = vec![Bucket::Empty; buckets.len() * GROWTH];
        for cell in buckets {
            for (key, mount) in cell.load(guard).entries() {
                let at = index(*key, grown.len());
                grown[at] = grown[at].with((*key, Arc::clone(mount)));
            }
        }
        let cells = grown.into_iter().map(|bucket| RcuCell::new(&self.domain, bucket)).collect();
        old.tables.push(self.buckets.replace(cells));
    }
}

fn empty(domain: &Domain, len: usize) -> Buckets {
    (0..len).map(|_| RcuCell::new(domain, Bucket::Empty)).collect()
}

/// `len` is a power of two.
fn index(key: Key, len: usize) -> usize {
    let mixed = (key.0.rotate_left(32) ^ key.1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    usize::try_from(mixed >> 32).unwrap_or(0) & (len - 1)
}
