//! The extents of files that change, in memory.
//!
//! The engine keeps what was deleted until its tables are merged, and walks over it: finding the
//! extents of a range takes the longer the more often the file was changed there. So the extents of
//! files that change are kept here, each file's whole, the least recently used given up first.
//!
//! Changes of a file's extents are made with the inode locked: [`ExtentCache::take`], the engine's
//! write, [`ExtentCache::give`] with the change applied. A change that fails, or is given up in
//! between, leaves nothing here, and the next one reads the engine.

use std::collections::BTreeMap;

use lru::LruCache;
use parking_lot::Mutex;

use crate::rows::Extent;

/// Memory for extents, of a volume.
const BYTES_MAX: usize = 32 << 20;
/// Memory for extents of one file; those of a file that has more are read from the engine.
const FILE_BYTES_MAX: usize = 4 << 20;

/// What is known of a file's extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known {
    /// All of them, by their end.
    All(FileExtents),
    /// That they are too many.
    TooMany,
}

/// The extents of one file, by their end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileExtents {
    by_end: BTreeMap<u64, Extent>,
    bytes: usize,
}

fn bytes_of(extent: &Extent) -> usize {
    let table = extent.row.data.as_ref().map_or(0, |(stored, _)| stored.table.len());
    size_of::<(u64, Extent)>() + table
}

impl FileExtents {
    /// Adds an extent, in place of one with the same end.
    pub(crate) fn insert(&mut self, extent: Extent) {
        self.bytes += bytes_of(&extent);
        if let Some(before) = self.by_end.insert(extent.end(), extent) {
            self.bytes -= bytes_of(&before);
        }
    }

    pub(crate) fn remove(&mut self, end: u64) {
        if let Some(extent) = self.by_end.remove(&end) {
            self.bytes -= bytes_of(&extent);
        }
    }

    /// Whether they take more memory than one file may have.
    pub(crate) fn are_too_many(&self) -> bool {
        self.bytes > FILE_BYTES_MAX
    }

    /// Those that lie in `start..end`, whole, in order, `max` at most.
    pub(crate) fn overlapping(&self, (start, end): (u64, u64), max: usize) -> Vec<Extent> {
        let from = start.saturating_add(1);
        let behind = self.by_end.range(from..).map(|(_, extent)| extent);
        behind.take_while(|extent| extent.start < end).take(max).cloned().collect()
    }
}

#[derive(Debug)]
struct Inner {
    files: LruCache<u64, Known>,
    bytes: usize,
}

/// The extents of files that change.
#[derive(Debug)]
pub(crate) struct ExtentCache(Mutex<Inner>);

impl Default for ExtentCache {
    fn default() -> Self {
        Self(Mutex::new(Inner { files: LruCache::unbounded(), bytes: 0 }))
    }
}

/// What the entry itself takes.
const ENTRY_BYTES: usize = 128;

fn weight(known: &Known) -> usize {
    let extents = match known {
        Known::All(extents) => extents.bytes,
        Known::TooMany => 0,
    };
    ENTRY_BYTES + extents
}

impl ExtentCache {
    /// The extents in a range of a file, if its extents are known.
    pub(crate) fn overlapping(&self, ino: u64, range: (u64, u64), max: usize) -> Option<Vec<Extent>> {
        match self.0.lock().files.get(&ino)? {
            Known::All(extents) => Some(extents.overlapping(range, max)),
            Known::TooMany => None,
        }
    }

    /// Whether it is known which extents a file has, or that they are too many.
    pub(crate) fn is_known(&self, ino: u64) -> bool {
        self.0.lock().files.contains(&ino)
    }

    /// Takes what is known of a file out.
    pub(crate) fn take(&self, ino: u64) -> Option<Known> {
        let mut inner = self.0.lock();
        let known = inner.files.pop(&ino)?;
        inner.bytes -= weight(&known);
        Some(known)
    }

    /// Keeps what is known of a file, and gives up what was not used for longest.
    pub(crate) fn give(&self, ino: u64, known: Known) {
        let known = match known {
            Known::All(extents) if extents.are_too_many() => Known::TooMany,
            known => known,
        };
        let mut inner = self.0.lock();
        inner.bytes += weight(&known);
        if let Some(before) = inner.files.put(ino, known) {
            inner.bytes -= weight(&before);
        }
        while inner.bytes > BYTES_MAX {
            let Some((_, oldest)) = inner.files.pop_lru() else { break };
            inner.bytes -= weight(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::ExtentRow;

    fn extent(start: u64, len: u64) -> Extent {
        Extent { start, row: ExtentRow { len, data: None } }
    }

    #[test]
    fn the_extents_of_a_range_are_those_that_touch_it() {
        let mut extents = FileExtents::default();
        for start in [0, 10, 30] {
            extents.insert(extent(start, 10));
        }
        assert_eq!(extents.overlapping((5, 10), 9), [extent(0, 10)]);
        assert_eq!(extents.overlapping((9, 31), 9), [extent(0, 10), extent(10, 10), extent(30, 10)]);
        assert_eq!(extents.overlapping((9, 31), 2), [extent(0, 10), extent(10, 10)]);
        assert_eq!(extents.overlapping((20, 30), 9), []);
        extents.remove(20);
        assert_eq!(extents.overlapping((9, 31), 9), [extent(0, 10), extent(30, 10)]);
    }

    #[test]
    fn memory_is_bounded_and_the_longest_unused_file_goes_first() {
        let cache = ExtentCache::default();
        let mut extents = FileExtents::default();
        let mut at = 0;
        while extents.bytes + 200 < FILE_BYTES_MAX {
            extents.insert(extent(at, 1));
            at += 2;
        }
        for ino in 0..20 {
            cache.give(ino, Known::All(extents.clone()));
            assert!(cache.overlapping(0, (0, 1), 1).is_some(), "it is used all the time");
        }
        assert!(cache.overlapping(1, (0, 1), 1).is_none());
        assert!(cache.overlapping(19, (0, 1), 1).is_some());
        assert!(cache.0.lock().bytes <= BYTES_MAX);

        for _ in 0..10 {
            extents.insert(extent(at, 1));
            at += 2;
        }
        cache.give(19, Known::All(extents));
        assert_eq!(cache.take(19), Some(Known::TooMany));
        let left: Vec<u64> = cache.0.lock().files.iter().map(|(ino, _)| *ino).collect();
        left.into_iter().for_each(|ino| drop(cache.take(ino)));
        assert_eq!(cache.0.lock().bytes, 0);
    }
}
