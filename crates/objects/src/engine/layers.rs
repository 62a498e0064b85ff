//! Rows that the log brought, over tables that do not have them: an ordered map of which older
//! states stay as they are.
//!
//! A map is a few layers, none of which ever changes; the newer of two wins. A new layer is merged
//! with those before it that are not much larger, so that there are few.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;

/// What the log says of a key: its value, or that it was deleted; and the row's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogRow {
    pub(super) seq: u64,
    pub(super) value: Option<Bytes>,
}

type Layer = BTreeMap<Bytes, LogRow>;

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Layers {
    /// The oldest first.
    layers: Vec<Arc<Layer>>,
    bytes: usize,
}

fn bytes_of(key: &Bytes, row: &LogRow) -> usize {
    key.len() + row.value.as_ref().map_or(0, Bytes::len) + size_of::<(Bytes, LogRow)>()
}

fn sum(layer: &Layer) -> usize {
    layer.iter().map(|(key, row)| bytes_of(key, row)).sum()
}

impl Layers {
    /// The memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// With newer rows over them.
    pub(super) fn with(&self, mut newest: Layer) -> Self {
        let (mut layers, mut bytes) = (self.layers.clone(), self.bytes);
        while let Some(below) = layers.pop_if(|below| below.len() <= 2 * newest.len()) {
            bytes -= sum(&below);
            for (key, row) in below.iter() {
                if !newest.contains_key(key) {
                    newest.insert(key.clone(), row.clone());
                }
            }
        }
        if !newest.is_empty() {
            bytes += sum(&newest);
            layers.push(Arc::new(newest));
        }
        Self { layers, bytes }
    }

    /// Those rows alone that come behind `seq`.
    pub(super) fn behind(&self, seq: u64) -> Self {
        let mut left = Layer::new();
        for layer in &self.layers {
            let newer = layer.iter().filter(|(_, row)| row.seq > seq);
            left.extend(newer.map(|(key, row)| (key.clone(), row.clone())));
        }
        Self::default().with(left)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&LogRow> {
        self.layers.iter().rev().find_map(|layer| layer.get(key))
    }

    /// The rows from `start` up to `end`, which it does not contain, in order.
    pub(super) fn range<'a>(&'a self, start: &[u8], end: &[u8]) -> Merged<'a> {
        let bounds = || (std::ops::Bound::Included(start), std::ops::Bound::Excluded(end));
        let is_empty = start >= end;
        let layers = self.layers.iter().rev().filter(|_| !is_empty);
        Merged(layers.map(|layer| layer.range::<[u8], _>(bounds()).peekable()).collect())
    }
}

/// Rows of several layers in order, the newest layer first.
pub(super) struct Merged<'a>(Vec<Peekable<Range<'a, Bytes, LogRow>>>);

impl<'a> Iterator for Merged<'a> {
    type Item = (&'a Bytes, &'a LogRow);

    fn next(&mut self) -> Option<Self::Item> {
        let least = self.0.iter_mut().filter_map(|layer| layer.peek().map(|(key, _)| *key)).min()?;
        let mut found = None;
        for layer in &mut self.0 {
            if let Some(row) = layer.next_if(|(key, _)| *key == least) {
                found.get_or_insert(row);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(rows: &[(u8, u64, Option<u8>)]) -> Layer {
        let row = |seq, value: Option<u8>| LogRow { seq, value: value.map(|v| Bytes::from(vec![v])) };
        rows.iter().map(|&(key, seq, value)| (Bytes::from(vec![key]), row(seq, value))).collect()
    }

    fn shown(layers: &Layers) -> Vec<(u8, u64, Option<u8>)> {
        let plain = |(key, row): (&Bytes, &LogRow)| (key[0], row.seq, row.value.as_ref().map(|v| v[0]));
        layers.range(&[0], &[255]).map(plain).collect()
    }

    #[test]
    fn newer_rows_win_and_older_states_stay() {
        let first =
            Layers::default().with(layer(&(1..20).map(|key| (key, 1, Some(key))).collect::<Vec<_>>()));
        let second = first.with(layer(&[(3, 2, None), (4, 2, Some(99))]));
        assert_eq!(second.layers.len(), 2, "a small layer is not worth copying the large one");
        assert_eq!(shown(&first).len(), 19);
        assert_eq!(shown(&first)[2], (3, 1, Some(3)));
        assert_eq!(shown(&second)[2..4], [(3, 2, None), (4, 2, Some(99))]);
        assert_eq!(second.get(&[3]).unwrap().value, None);
        assert_eq!(second.get(&[5]).unwrap().seq, 1);
        assert_eq!(second.get(&[50]), None);
        assert_eq!(shown(&second.behind(1)), [(3, 2, None), (4, 2, Some(99))]);
        assert_eq!(second.range(&[4], &[4]).count(), 0);
    }

    #[test]
    fn layers_stay_few() {
        let mut layers = Layers::default();
        for seq in 0..1000_u64 {
            let key = u8::try_from(seq % 250).unwrap();
            layers = layers.with(layer(&[(key, seq, Some(key))]));
            assert!(layers.layers.len() <= 10, "{}", layers.layers.len());
        }
        assert_eq!(shown(&layers).len(), 250);
        assert!(shown(&layers).iter().all(|(key, seq, _)| *seq >= 750 && seq % 250 == u64::from(*key)));
        assert_eq!(layers.bytes(), layers.layers.iter().map(|layer| sum(layer)).sum::<usize>());
    }
}
