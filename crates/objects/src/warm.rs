//! Brings files to the disk cache, without reading them to anybody.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use store::Result;

use crate::rows::Kind;
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
        let pin = self.pin(ino);
        let (size, kind) = {
            let state = pin.lock().await?;
            (state.row.size, state.row.kind)
        };
        let end = if kind == Kind::Regular { offset.saturating_add(len).min(size) } else { 0 };
        let mut from = offset;
        while from < end {
            // What was found stays until it has come.
            let _under_way = self.work.begin();
            let extents = self.extents(ino, (from, end), EXTENTS).await?;
            let fetches = self.runs_of(&extents, from..end)?.into_iter();
            let fetches = fetches.map(|(object, run)| self.segments.reader().warm(object, run));
            stream::iter(fetches).buffer_unordered(RUNS).try_collect::<()>().await?;
            from = match extents.last() {
                Some(last) if extents.len() == EXTENTS => last.end(),
                _ => end,
            };
        }
        Ok(())
    }
}
