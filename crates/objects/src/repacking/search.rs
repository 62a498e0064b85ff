//! The search for all that refers to some objects, by the rows of all extents: a copy by reference is
//! in another place than the data was written to.
//!
//! It reads all extents of the volume, so that it is done seldom, and for many objects at a time. What
//! several extents share stays one: it is moved once, and all of them refer to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use store::Result;

use super::{Piece, Referrer, Relocation};
use crate::rows::{self, Extent, ExtentRow, Object, Stored};
use crate::tree::Tree;

/// Rows that are read at a time.
const BATCH: usize = 1024;
/// Extents that one search finds: those behind them are found by the next.
const FOUND_MAX: usize = 16 << 10;

/// A part of an object's data, and which extent has it.
type Part = (Range<u32>, u64, Extent);

/// What a search found: by objects, and by where in them the data begins.
#[derive(Debug, Default)]
pub(crate) struct Referrers {
    found: BTreeMap<Object, BTreeMap<u32, (Stored, Vec<Part>)>>,
    extents: usize,
    /// Rows that it read.
    pub(crate) rows: u64,
    /// Whether those are all rows.
    pub(crate) are_all: bool,
}

impl Referrers {
    fn add(&mut self, ino: u64, extent: Extent, objects: &BTreeSet<Object>) -> Result<()> {
        let Some((stored, part)) =
            extent.stored_part()?.filter(|(stored, _)| objects.contains(&stored.object))
        else {
            return Ok(());
        };
        let stored = stored.clone();
        let of = self.found.entry(stored.object).or_default();
        of.entry(stored.at).or_insert_with(|| (stored, Vec::new())).1.push((part, ino, extent));
        self.extents += 1;
        Ok(())
    }
}

/// Parts that overlap or touch, with what they are of together.
fn together(mut parts: Vec<Part>) -> Vec<(Range<u32>, Vec<Part>)> {
    parts.sort_by_key(|(part, ino, extent)| (part.start, *ino, extent.start));
    let mut joined: Vec<(Range<u32>, Vec<Part>)> = Vec::new();
    for part in parts {
        match joined.last_mut().filter(|(range, _)| part.0.start <= range.end) {
            Some((range, of)) => {
                range.end = range.end.max(part.0.end);
                of.push(part);
            }
            None => joined.push((part.0.clone(), vec![part])),
        }
    }
    joined
}

impl Tree {
    /// Looks through all extents for those that refer to one of these objects.
    ///
    /// # Errors
    /// The engine's; `Io`: a row is damaged.
    pub(crate) async fn referrers(&self, objects: &BTreeSet<Object>) -> Result<Referrers> {
        let mut referrers = Referrers::default();
        let mut keys = rows::all_keys(b'E');
        while referrers.extents < FOUND_MAX {
            let found = self.engine.scan(keys.clone(), BATCH).await?;
            let is_last = found.len() < BATCH;
            for (key, row) in found {
                let (ino, end) = (rows::ino_of(&key)?, rows::extent_end(&key)?);
                let row: ExtentRow = rows::from_bytes(&row, "an extent")?;
                let start = end.checked_sub(row.len).ok_or_else(|| rows::corrupted("an extent"))?;
                referrers.add(ino, Extent { start, row }, objects)?;
                referrers.rows += 1;
                keys.start = [&key[..], &[0]].concat();
            }
            if is_last {
                referrers.are_all = true;
                break;
            }
        }
        Ok(referrers)
    }

    /// Moves what a search found.
    ///
    /// # Errors
    /// The bucket's. An object that cannot be read stays, which is logged.
    pub(crate) async fn relocate_found(self: &Arc<Self>, found: Referrers) -> Result<()> {
        let mut relocation = Relocation::default();
        for (object, parts) in found.found {
            let pieces = match self.pieces_of(object, parts).await {
                Ok(pieces) => pieces,
                Err(error) => {
                    tracing::warn!(%error, "an object that is mostly dead stays");
                    continue;
                }
            };
            for piece in pieces {
                if !relocation.has_room(piece.data.len()) {
                    self.relocate(std::mem::take(&mut relocation)).await?;
                }
                relocation.bytes += piece.data.len();
                relocation.pieces.push(piece);
            }
        }
        self.relocate(relocation).await
    }

    /// What is moved of an object.
    async fn pieces_of(
        &self,
        object: Object,
        parts: BTreeMap<u32, (Stored, Vec<Part>)>,
    ) -> Result<Vec<Piece>> {
        let Some(whole) = self.segments.whole(object).await? else { return Ok(Vec::new()) };
        let mut pieces = Vec::new();
        for (stored, parts) in parts.into_values() {
            for (range, parts) in together(parts) {
                let data: Bytes = self.segments.read_from(&whole, &stored, range.clone())?;
                let referrer = |(part, ino, extent): Part| {
                    let skip = (part.start - range.start) as usize;
                    Referrer { ino, extent, skip }
                };
                let referrers = parts.into_iter().map(referrer).collect();
                pieces.push(Piece { referrers, data: BytesMut::from(&data[..]) });
            }
        }
        Ok(pieces)
    }
}
