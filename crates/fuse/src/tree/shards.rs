//! A map that is copied for each change, of which most is shared with the copy.
//!
//! What requests see is replaced as a whole. A copy of all that thousands of volumes have would make attaching one of them the slower the
//! more there are: this one copies as many pointers as there are shards, and the entries of one shard.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use mounts::MountId;
use volume::NodeId;

use super::wire::Tag;

/// Models know one volume or two.
const SHARDS: usize = if cfg!(shuttle) { 1 } else { 128 };

/// A key that says in which shard it is. Its numbers are counted up by us.
pub(crate) trait Spread: Copy + Eq + Hash {
    fn number(self) -> u64;
}

impl Spread for Tag {
    fn number(self) -> u64 {
        Tag::number(self)
    }
}

impl Spread for MountId {
    fn number(self) -> u64 {
        self.0
    }
}

impl Spread for (Tag, NodeId) {
    fn number(self) -> u64 {
        self.0.number().wrapping_add(self.1.0)
    }
}

/// A map of few pointers.
#[derive(Debug, Clone)]
pub(crate) struct Shards<K, V>(Box<[Arc<HashMap<K, V>>]>);

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        let empty = Arc::default();
        Self((0..SHARDS).map(|_| Arc::clone(&empty)).collect())
    }
}

impl<K: Spread, V: Clone> Shards<K, V> {
    fn index(key: K) -> usize {
        usize::try_from(key.number() % SHARDS as u64).unwrap_or(0)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.0[Self::index(key)].get(&key)
    }

    /// To change it: what others share of its shard is copied first.
    pub(crate) fn shard_mut(&mut self, key: K) -> &mut HashMap<K, V> {
        Arc::make_mut(&mut self.0[Self::index(key)])
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.shard_mut(key).insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        self.get(key)?;
        self.shard_mut(key).remove(&key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().flat_map(|shard| shard.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut map = Shards::default();
        for n in 0..1000 {
            map.insert(MountId(n), n);
        }
        let before = map.clone();
        assert_eq!(map.remove(MountId(7)), Some(7));
        assert_eq!(map.remove(MountId(7)), None);
        *map.shard_mut(MountId(8)).entry(MountId(8)).or_default() += 1;
        assert_eq!((map.get(MountId(7)), map.get(MountId(8)), map.values().count()), (None, Some(&9), 999));
        assert_eq!((before.get(MountId(7)), before.get(MountId(8))), (Some(&7), Some(&8)));
        // Only what was changed is no longer shared.
        let changed = before.0.iter().zip(&map.0).filter(|(old, new)| !Arc::ptr_eq(old, new)).count();
        assert!(changed <= 2, "{changed}");
    }
}
