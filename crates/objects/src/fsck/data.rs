//! Extents against the objects that they refer to: present, long enough, and, where that is asked
//! for, read and compared with their checksums.

use std::ops::Range;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use store::Result;

use super::cursor::{Cursor, Row};
use super::damage::{Damage, Findings, damage_of};
use super::listing::Listing;
use super::steps::Steps;
use crate::bucket::Bucket;
use crate::chunk_table::ChunkTable;
use crate::codec::Codec;
use crate::engine::Engine;
use crate::rows::{self, Extent, ExtentRow, Object, Stored};
use crate::segments::{Part, Segments};

/// Extents that are read at a time: each has 8 MiB at most.
const READS: usize = 8;

/// What extents are compared with.
pub(super) struct Data<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) codec: &'a Codec,
    /// What reads data; `None`: it is not read.
    pub(super) segments: Option<&'a Segments>,
    pub(super) listing: &'a mut Listing,
    pub(super) steps: &'a Steps,
}

/// An extent whose data is there, as far as a listing tells.
#[derive(Debug)]
struct There {
    ino: u64,
    stored: Stored,
    part: Range<u32>,
}

impl Data<'_> {
    /// Checks the extents of a volume, or those of a snapshot that are not the `current` ones;
    /// returns how many bytes were read.
    ///
    /// # Errors
    /// The engine's; the bucket does not answer.
    pub(super) async fn check(
        &mut self,
        engine: &dyn Engine,
        snapshot: Option<(&str, &dyn Engine)>,
        found: &mut Findings,
    ) -> Result<u64> {
        let name = snapshot.map(|(name, _)| name.to_owned());
        let (mut extents, mut reads, mut read) = (Cursor::new(engine, b'E'), FuturesUnordered::new(), 0);
        let mut current = snapshot.map(|(_, current)| Cursor::new(current, b'E'));
        let (mut last, mut count) = (None, 0);
        while let Some(row) = extents.next().await? {
            count += 1;
            self.steps.tell("extents", count);
            if let Some(current) = &mut current
                && is_in(current, &row).await?
            {
                continue;
            }
            let there = match self.there(&row) {
                Ok(Some(there)) => there,
                Ok(None) => continue,
                Err((object, why)) => {
                    // One finding for all that a file has in an object, one behind the other.
                    if last.replace((row.ino, object)) != Some((row.ino, object)) {
                        found.add(Damage::Data { ino: row.ino, object, why, snapshot: name.clone() });
                    }
                    continue;
                }
            };
            let Some(segments) = self.segments else { continue };
            if reads.len() >= READS
                && let Some(ended) = reads.next().await
            {
                read += self.ended(ended, name.as_deref(), &mut last, found).await?;
            }
            reads.push(read_one(segments, there));
        }
        while let Some(ended) = reads.next().await {
            read += self.ended(ended, name.as_deref(), &mut last, found).await?;
        }
        Ok(read)
    }

    /// What an extent refers to, if a listing shows it to be there.
    fn there(&mut self, row: &Row) -> Result<Option<There>, (Object, String)> {
        // What cannot be read is found with the rows.
        let Ok(extent) = rows::from_bytes::<ExtentRow>(&row.value, "an extent") else { return Ok(None) };
        let extent = Extent { start: 0, row: extent };
        let Ok(Some((stored, part))) = extent.stored_part() else {
            return Ok(None);
        };
        let object = stored.object;
        let table = ChunkTable::from_bytes(&stored.table);
        let range = table.and_then(|table| self.codec.stored_range(&table, stored.len, part.clone()));
        let words = |error: &store::Error| error.detail().unwrap_or("the extent is corrupted").to_owned();
        let (range, _) = range.map_err(|error| (object, words(&error)))?;
        let end = u64::from(stored.at) + u64::from(range.end);
        self.listing.need(object, end).map_err(|why| (object, why))?;
        Ok(Some(There { ino: row.ino, stored: stored.clone(), part }))
    }

    /// Records the result of a read; returns its bytes.
    async fn ended(
        &self,
        (there, result): (There, Result<()>),
        snapshot: Option<&str>,
        last: &mut Option<(u64, Object)>,
        found: &mut Findings,
    ) -> Result<u64> {
        let Err(error) = result else { return Ok(u64::from(there.part.end - there.part.start)) };
        let (ino, object) = (there.ino, there.stored.object);
        let why = damage_of(self.bucket, error).await?;
        if last.replace((ino, object)) != Some((ino, object)) {
            found.add(Damage::Data { ino, object, why, snapshot: snapshot.map(str::to_owned) });
        }
        Ok(0)
    }
}

async fn read_one(segments: &Segments, there: There) -> (There, Result<()>) {
    let mut data = vec![0; (there.part.end - there.part.start) as usize];
    let part = Part { stored: &there.stored, part: there.part.clone(), out: &mut data, is_passed: false };
    let read = segments.read_all(&mut [part]).await;
    (there, read)
}

/// Whether a volume has this row of a snapshot still.
async fn is_in(current: &mut Cursor<'_>, row: &Row) -> Result<bool> {
    while let Some(key) = current.key().await?
        && key < row.key
    {
        current.next().await?;
    }
    match current.key().await? {
        Some(key) if key == row.key => {
            Ok(current.next().await?.is_some_and(|current| current.value == row.value))
        }
        _ => Ok(false),
    }
}
