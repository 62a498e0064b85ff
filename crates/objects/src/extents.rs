//! The extents of one file that a change touches: what is there is loaded, cut and put, and the
//! difference becomes rows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use store::Result;

use crate::engine::{Batch, Engine};
use crate::rows::{self, Extent, ExtentRow, extent_end, extent_key};

/// Rows that are read at a time.
const BATCH: usize = 128;

/// The extents of the file `ino` that lie in `start..end`, whole, in order, `max` at most.
pub(crate) async fn overlapping(
    engine: &dyn Engine,
    ino: u64,
    (start, end): (u64, u64),
    max: usize,
) -> Result<Vec<Extent>> {
    let mut found = Vec::new();
    let mut from = start.saturating_add(1);
    let behind = rows::keys_of(b'E', ino).end;
    while start < end && found.len() < max {
        let rows = engine.scan(extent_key(ino, from)..behind.clone(), BATCH.min(max - found.len())).await?;
        let is_last = rows.len() < BATCH.min(max - found.len());
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
}

impl ExtentChange {
    /// Loads what lies in `start..end`, which is to be changed.
    pub(crate) async fn load(&mut self, engine: &dyn Engine, ino: u64, start: u64, end: u64) -> Result<()> {
        for extent in overlapping(engine, ino, (start, end), usize::MAX).await? {
            let end = extent.end();
            // One that was cut before is not what the engine still has.
            if let Entry::Vacant(vacant) = self.before.entry(end) {
                vacant.insert(extent.clone());
                self.now.insert(end, extent);
            }
        }
        Ok(())
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
    pub(crate) fn put(self, ino: u64, batch: &mut Batch) {
        for end in self.before.keys().filter(|end| !self.now.contains_key(end)) {
            batch.delete(extent_key(ino, *end));
        }
        for (end, extent) in &self.now {
            if self.before.get(end) != Some(extent) {
                batch.put(extent_key(ino, *end), rows::to_bytes(&extent.row));
            }
        }
        batch.totals.bytes += self.allocated;
    }
}

fn signed(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
