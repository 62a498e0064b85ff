//! Brings files to the disk cache, without reading them to anybody.

use std::ops::Range;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use store::Result;

use crate::rows::{Kind, Object};
use crate::tree::Tree;

/// Runs of blocks that are fetched for one file at a time, of 8 MiB and some bytes at most.
const RUNS: usize = 4;
/// Extents that are looked at at a time.
const EXTENTS: usize = 256;

impl Tree {
    /// Brings what a regular file has in the bucket of a part to the disk cache.
    ///
    /// # Errors
    /// `Unsupported`: there is no disk cache, or it was switched off. The bucket's.
    pub(crate) async fn warm(self: &Arc<Self>, ino: u64, offset: u64, len: u64) -> Result<()> {
        let (mut from, end) = (offset, self.end_of_part(ino, offset, len).await?);
        while from < end {
            // What was found stays until it has come.
            let _under_way = self.work.begin();
            let (runs, next) = self.some_runs(ino, from..end).await?;
            let fetches = runs.into_iter().map(|(object, run)| self.segments.reader().warm(object, run));
            stream::iter(fetches).buffer_unordered(RUNS).try_collect::<()>().await?;
            from = next;
        }
        Ok(())
    }

    /// Whether the disk cache has all that is in the bucket of a part of a regular file.
    ///
    /// # Errors
    /// As [`warm`](Self::warm).
    pub(crate) async fn is_warm(self: &Arc<Self>, ino: u64, offset: u64, len: u64) -> Result<bool> {
        let disk = self.segments.reader().settled_disk_cache().await?;
        let (mut from, end) = (offset, self.end_of_part(ino, offset, len).await?);
        while from < end {
            let (runs, next) = self.some_runs(ino, from..end).await?;
            let is_there = |(object, run): (Object, Range<u32>)| {
                run.into_iter().all(|number| disk.has((object, number)))
            };
            if !runs.into_iter().all(is_there) {
                return Ok(false);
            }
            from = next;
        }
        Ok(true)
    }

    /// Where a part of a file ends; 0: it is no regular file.
    async fn end_of_part(self: &Arc<Self>, ino: u64, offset: u64, len: u64) -> Result<u64> {
        let pin = self.pin(ino);
        let state = pin.lock().await?;
        let end = offset.saturating_add(len).min(state.row.size);
        Ok(if state.row.kind == Kind::Regular { end } else { 0 })
    }

    /// Blocks with the beginning of a part of a file, and where the rest begins.
    async fn some_runs(&self, ino: u64, part: Range<u64>) -> Result<(Vec<(Object, Range<u32>)>, u64)> {
        let end = part.end;
        let extents = self.extents(ino, (part.start, end), EXTENTS).await?;
        let next = match extents.last() {
            Some(last) if extents.len() == EXTENTS => last.end(),
            _ => end,
        };
        Ok((self.runs_of(&extents, part)?, next))
    }
}
