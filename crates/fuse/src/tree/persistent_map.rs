//! A map of which each copy stays as it was: a copy is one pointer, and a change of it makes new
//! nodes on the way to the entry.
//!
//! The snapshot that requests see is replaced as a whole, so that they take no lock. If a copy held
//! all entries of thousands of volumes, attaching one of them would be the slower the more there
//! are. This is a tree of small nodes by the digits of a tag, the last digit first: tags are
//! counted up, so that it is even, and a change touches [`FAN_OUT`] pointers in each of a few
//! nodes. Nodes are small for another reason, too: the allocator tidies up for each large piece of
//! memory, and that takes the longer the more there is.

use std::sync::Arc;

use super::wire::NodeTag;

/// Nodes below a node, and entries of one that has none.
const FAN_OUT: usize = 8;
const BITS: u32 = FAN_OUT.trailing_zeros();

/// By tag.
#[derive(Debug, Clone)]
pub(crate) struct PersistentMap<V>(Arc<Node<V>>);

#[derive(Debug, Clone)]
enum Node<V> {
    Leaf(Vec<(NodeTag, V)>),
    Fork([Arc<Node<V>>; FAN_OUT]),
}

impl<V> Default for PersistentMap<V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<V> Default for Node<V> {
    fn default() -> Self {
        Self::Leaf(Vec::new())
    }
}

impl<V: Clone> PersistentMap<V> {
    #[inline]
    pub(crate) fn get(&self, tag: NodeTag) -> Option<&V> {
        let (mut node, mut level) = (&*self.0, 0);
        loop {
            match node {
                Node::Leaf(entries) => {
                    return entries.iter().find(|(known, _)| *known == tag).map(|(_, v)| v);
                }
                Node::Fork(below) => node = &below[digit(tag, level)],
            }
            level += 1;
        }
    }

    pub(crate) fn insert(&mut self, tag: NodeTag, value: V) {
        insert(&mut self.0, 0, (tag, value));
    }

    pub(crate) fn remove(&mut self, tag: NodeTag) -> Option<V> {
        // Nothing is copied if the tag is not there.
        self.get(tag)?;
        remove(&mut self.0, 0, tag)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        let (mut nodes, mut here) = (vec![&*self.0], [].iter());
        std::iter::from_fn(move || {
            loop {
                if let Some((_, value)) = here.next() {
                    return Some(value);
                }
                match nodes.pop()? {
                    Node::Leaf(entries) => here = entries.iter(),
                    Node::Fork(below) => nodes.extend(below.iter().map(|node| &**node)),
                }
            }
        })
    }
}

/// Which way a tag is at a level.
fn digit(tag: NodeTag, level: u32) -> usize {
    usize::try_from(tag.number() >> (level * BITS)).unwrap_or(0) % FAN_OUT
}

fn insert<V: Clone>(node: &mut Arc<Node<V>>, level: u32, entry: (NodeTag, V)) {
    let node = Arc::make_mut(node);
    match node {
        Node::Fork(below) => insert(&mut below[digit(entry.0, level)], level + 1, entry),
        Node::Leaf(entries) => {
            if let Some(known) = entries.iter_mut().find(|known| known.0 == entry.0) {
                *known = entry;
            } else if entries.len() < FAN_OUT {
                entries.push(entry);
            } else {
                // Tags differ in some digit.
                let full = std::mem::take(entries);
                let mut below = std::array::from_fn(|_| Arc::default());
                for entry in full.into_iter().chain([entry]) {
                    insert(&mut below[digit(entry.0, level)], level + 1, entry);
                }
                *node = Node::Fork(below);
            }
        }
    }
}

/// Takes out the entry. A fork with nothing left below goes, too.
fn remove<V: Clone>(node: &mut Arc<Node<V>>, level: u32, tag: NodeTag) -> Option<V> {
    let node = Arc::make_mut(node);
    match node {
        Node::Leaf(entries) => {
            let at = entries.iter().position(|(known, _)| *known == tag)?;
            Some(entries.swap_remove(at).1)
        }
        Node::Fork(below) => {
            let removed = remove(&mut below[digit(tag, level)], level + 1, tag);
            if below.iter().all(|node| matches!(&**node, Node::Leaf(entries) if entries.is_empty())) {
                *node = Node::default();
            }
            removed
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn tags() -> impl Iterator<Item = NodeTag> {
        std::iter::successors(Some(NodeTag::ROOT), |tag| tag.next())
    }

    fn sorted(map: &PersistentMap<u64>) -> Vec<u64> {
        let mut all: Vec<u64> = map.values().copied().collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn it_has_what_a_map_has_and_each_copy_stays_as_it_was() {
        let mut map = PersistentMap::default();
        let mut model = BTreeMap::new();
        let mut copies = Vec::new();
        // New ones come while older ones go, in no order: tags are counted up, so that they lie
        // apart after a while.
        let mut chosen = 1_u64;
        for (n, tag) in (0..6000).zip(tags()) {
            map.insert(tag, n);
            model.insert(tag, n);
            chosen = chosen.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let at = usize::try_from(chosen >> 33).unwrap() % model.len();
            let old = *model.keys().nth(at).unwrap();
            if chosen & (1 << 32) == 0 {
                assert_eq!(map.remove(old), model.remove(&old));
                assert_eq!((map.remove(old), map.get(old)), (None, None));
            } else {
                map.insert(old, n + 10_000);
                model.insert(old, n + 10_000);
            }
            if n % 500 == 0 {
                copies.push((map.clone(), model.clone()));
            }
        }
        copies.push((map.clone(), model.clone()));
        for (map, model) in &copies {
            assert!(model.iter().all(|(tag, value)| map.get(*tag) == Some(value)));
            let mut values: Vec<u64> = model.values().copied().collect();
            values.sort_unstable();
            assert_eq!(sorted(map), values);
        }
        // An empty map keeps nothing.
        assert!(model.iter().all(|(tag, value)| map.remove(*tag) == Some(*value)));
        assert!(matches!(&*map.0, Node::Leaf(entries) if entries.is_empty()));
    }

    /// The nodes of a map that another has not.
    fn own_nodes(node: &Arc<Node<Arc<u64>>>, other: Option<&Arc<Node<Arc<u64>>>>) -> usize {
        if other.is_some_and(|other| Arc::ptr_eq(node, other)) {
            return 0;
        }
        let below = |of: &Node<_>| if let Node::Fork(below) = of { below.to_vec() } else { Vec::new() };
        let others = other.map_or(Vec::new(), |other| below(other));
        let own = below(node);
        1 + own.iter().enumerate().map(|(n, node)| own_nodes(node, others.get(n))).sum::<usize>()
    }

    #[test]
    fn a_change_makes_a_few_nodes_anew() {
        let mut map = PersistentMap::default();
        let all: Vec<NodeTag> = tags().take(10_001).collect();
        for (n, tag) in (0..10_000).zip(&all) {
            map.insert(*tag, Arc::new(n));
        }
        let before = map.clone();
        map.insert(all[10_000], Arc::new(1));
        let added = map.clone();
        map.remove(all[77]);
        assert_eq!((own_nodes(&added.0, Some(&before.0)), own_nodes(&map.0, Some(&added.0))), (5, 5));
        let shared = before.values().filter(|value| Arc::strong_count(value) > 1).count();
        assert!(shared <= 4 * FAN_OUT, "{shared} entries were copied");
    }
}
