//! The extents of one file that a change touches: what is there is loaded, cut and put, and the
//! difference becomes rows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use store::Result;

use crate::engine::{Batch, Engine};
use crate::extent_cache::{FileExtents, Known};
use crate::rows::{self, Extent, ExtentRow, Object, Stored, extent_end, extent_key};
use crate::tree::Tree;

/// Rows that are read at first: the engine may have to walk over many that were deleted.
const FIRST_BATCH: usize = 4;
/// Rows that are read at a time.
const BATCH: usize = 128;
/// Extents that one batch changes, so that it fits into an object of the log.
pub(crate) const CHANGED_MAX: usize = if cfg!(test) { 64 } else { 16 << 10 };

/// The extents of the file `ino` that lie in `start..end`, whole, in order, `max` at most.
async fn overlapping(
    engine: &dyn Engine,
    ino: u64,
    (start, end): (u64, u64),
    max: usize,
) -> Result<Vec<Extent>> {
    let mut found = Vec::new();
    let mut from = start.saturating_add(1);
    let mut batch = FIRST_BATCH;
    let behind = rows::keys_of(b'E', ino).end;
    while start < end && found.len() < max {
        let wanted = batch.min(max - found.len());
        let rows = engine.scan(extent_key(ino, from)..behind.clone(), wanted).await?;
        let is_last = rows.len() < wanted;
        batch = BATCH;
        for (key, row) in rows {
            let extent_end = extent_end(&key)?;
            let row: ExtentRow = rows::from_bytes(&row, "an extent")?;
            let start = extent_end.checked_sub(row.len).ok_or_else(|| rows::corrupted("an extent"))?;
            if start >= end || row.len == 0 {
                return Ok(found);
            }
            from = extent_end.saturating_add(1);
            found.push(Extent { start, row });
        }
        if is_last {
            break;
        }
    }
    Ok(found)
}

/// A part of a file's extents that is changed.
#[derive(Debug, Default)]
pub(crate) struct ExtentChange {
    /// As they are to be, by their end.
    now: BTreeMap<u64, Extent>,
    /// As they were loaded, by their end.
    before: BTreeMap<u64, Extent>,
    /// How much more the file holds.
    pub(crate) allocated: i64,
    /// Data that the change comes with: the object, and how many bytes were written to it.
    wrote: Vec<(Object, i64)>,
}

impl ExtentChange {
    /// Loads what lies in `start..end`, which is to be changed, or its beginning, if there is too
    /// much for one batch; returns up to where.
    pub(crate) async fn load_some(&mut self, tree: &Tree, ino: u64, (start, end): (u64, u64)) -> Result<u64> {
        let loaded = tree.extents(ino, (start, end), CHANGED_MAX).await?;
        let last = loaded.last().filter(|_| loaded.len() == CHANGED_MAX);
        let until = last.map_or(end, |last| last.end().min(end));
        for extent in loaded {
            let end = extent.end();
            // One that was cut before is not what there still is.
            if let Entry::Vacant(vacant) = self.before.entry(end) {
                vacant.insert(extent.clone());
                self.now.insert(end, extent);
            }
        }
        Ok(until)
    }

    /// Whether it is to be written before more is added.
    pub(crate) fn is_large(&self) -> bool {
        self.before.len() >= CHANGED_MAX
    }

    /// Takes `start..end` out of the extents, which have been loaded.
    pub(crate) fn cut(&mut self, start: u64, end: u64) {
        let first = start.saturating_add(1);
        let touched: Vec<u64> =
            self.now.range(first..).take_while(|(_, e)| e.start < end).map(|(key, _)| *key).collect();
        for key in touched {
            let Some(extent) = self.now.remove(&key) else { continue };
            self.allocated -= signed(extent.row.len);
            if extent.start < start {
                self.add(extent.part(extent.start, start));
            }
            if extent.end() > end {
                self.add(extent.part(end, extent.end()));
            }
        }
    }

    /// New data was written for it.
    pub(crate) fn wrote(&mut self, stored: &Stored) {
        self.wrote.push((stored.object, i64::from(stored.len)));
    }

    /// Whether it was loaded with this extent, and has not cut it.
    pub(crate) fn has(&self, extent: &Extent) -> bool {
        self.now.get(&extent.end()) == Some(extent)
    }

    /// Makes one extent of two that follow each other in the file and in their object.
    pub(crate) fn join(&mut self) {
        let mut joined: Vec<Extent> = Vec::with_capacity(self.now.len());
        for extent in std::mem::take(&mut self.now).into_values() {
            let Some(last) = joined.last_mut().filter(|last| is_continued(last, &extent)) else {
                joined.push(extent);
                continue;
            };
            last.row.len += extent.row.len;
        }
        self.now = joined.into_iter().map(|extent| (extent.end(), extent)).collect();
    }

    /// Puts an extent where nothing is.
    pub(crate) fn add(&mut self, extent: Extent) {
        self.allocated += signed(extent.row.len);
        self.now.insert(extent.end(), extent);
    }

    /// The parts of `start..end` that no loaded extent holds.
    pub(crate) fn holes(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (mut holes, mut at) = (Vec::new(), start);
        for extent in self.now.range(start.saturating_add(1)..).map(|(_, e)| e) {
            if extent.start >= end {
                break;
            }
            if extent.start > at {
                holes.push((at, extent.start));
            }
            at = extent.end();
        }
        if at < end {
            holes.push((at, end));
        }
        holes
    }

    /// Puts the difference into a batch.
    pub(crate) fn put(&self, ino: u64, batch: &mut Batch) {
        for end in self.removed() {
            batch.delete(extent_key(ino, end));
        }
        for extent in self.added() {
            batch.put(extent_key(ino, extent.end()), rows::to_bytes(&extent.row));
            batch.refer(&extent.row);
        }
        for (end, extent) in &self.before {
            if self.now.get(end) != Some(extent) {
                batch.unrefer(&extent.row);
            }
        }
        self.wrote.iter().for_each(|(object, bytes)| batch.wrote(*object, *bytes));
        batch.totals.bytes += self.allocated;
    }

    /// Changes what is known of the file's extents.
    pub(crate) fn apply(&self, extents: &mut FileExtents) {
        self.removed().for_each(|end| extents.remove(end));
        self.added().for_each(|extent| extents.insert(extent.clone()));
    }

    fn removed(&self) -> impl Iterator<Item = u64> + '_ {
        self.before.keys().copied().filter(|end| !self.now.contains_key(end))
    }

    fn added(&self) -> impl Iterator<Item = &Extent> + '_ {
        self.now.values().filter(|extent| self.before.get(&extent.end()) != Some(extent))
    }
}

impl Tree {
    /// Reads what is not known of a file's extents, so that its changes find them. The caller has
    /// the inode locked. Where they cannot all be read nothing is kept, and a change reads its own.
    pub(crate) async fn know_extents(&self, ino: u64) {
        if self.extent_cache.is_known(ino) {
            return;
        }
        let mut known = FileExtents::default();
        let mut from = 0;
        loop {
            let Ok(found) = overlapping(&*self.engine, ino, (from, u64::MAX), BATCH).await else { return };
            let is_last = found.len() < BATCH;
            from = found.last().map_or(from, Extent::end);
            found.into_iter().for_each(|extent| known.insert(extent));
            if is_last || known.are_too_many() {
                break;
            }
        }
        self.extent_cache.give(ino, Known::All(known));
    }

    /// The extents of a file that lie in a range, `max` at most.
    pub(crate) async fn extents(&self, ino: u64, range: (u64, u64), max: usize) -> Result<Vec<Extent>> {
        match self.extent_cache.overlapping(ino, range, max) {
            Some(extents) => Ok(extents),
            None => overlapping(&*self.engine, ino, range, max).await,
        }
    }
}

/// Whether `next` is behind `extent` in the file and in their object.
fn is_continued(extent: &Extent, next: &Extent) -> bool {
    let (Some((stored, skip)), Some((next_stored, next_skip))) = (&extent.row.data, &next.row.data) else {
        return false;
    };
    extent.end() == next.start
        && stored == next_stored
        && u64::from(*skip) + extent.row.len == u64::from(*next_skip)
}

fn signed(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
