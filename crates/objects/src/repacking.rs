//! Repacking: what is in use of objects that are mostly dead is written to new segments, so that
//! the objects can be removed.
//!
//! An object says itself where its data was written to: the footer of a segment, the rows of an
//! object of the log. What there still refers to the object is read, written once more, and takes
//! the new place if it is what it was: the inode is locked for that alone, never across a request.
//! What was changed meanwhile stays as it was changed.
//!
//! Not all that refers to an object does so where its data was written to: a copy by reference does
//! not, and the rows of an object of the log may have come in the next one. Where that keeps an object,
//! a [search](search) of all extents finds it.
//!
//! # Why nothing is lost
//! - The new segment is there before a row names it, as with any round.
//! - An extent is replaced only by the same bytes, with the inode locked, if its row is the one
//!   that was read.
//! - The old object stays until nobody can have found it ([`crate::garbage`]). Here it is read
//!   whole, and not needed any more after that.
//! - An inode without a name is left alone: it may be on its way out, and no row of it may come
//!   back.

mod search;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use store::{ErrorKind, Result};
use sync::mutant::is_on;

use crate::engine::Batch;
use crate::extents::ExtentChange;
use crate::rows::{Extent, ExtentRow, Object, Stored, corrupted};
use crate::segments::EXTENT_BYTES_MAX;
use crate::tree::Tree;

/// Extents that are looked up at a time.
const EXTENTS: usize = 128;
/// Whose turns its segments take: no cgroup has this number.
const REPACKING: u64 = u64::MAX;

/// An extent that is to refer to a new place.
#[derive(Debug)]
struct Referrer {
    ino: u64,
    extent: Extent,
    /// Bytes of the piece before those that it refers to.
    skip: usize,
}

/// Data that is moved as one extent, and all that is to refer to it, in the files' order.
#[derive(Debug)]
struct Piece {
    referrers: Vec<Referrer>,
    data: BytesMut,
}

impl Piece {
    /// Where the piece is in a file, as the segment says it: in that of the first that refers to
    /// its first byte.
    fn place(&self) -> Option<(u64, u64)> {
        let first = self.referrers.iter().find(|referrer| referrer.skip == 0)?;
        Some((first.ino, first.extent.start))
    }

    /// Whether an extent of this inode goes on where the piece ends.
    fn is_continued_at(&self, ino: u64, start: u64) -> bool {
        let last = self.referrers.last();
        last.is_some_and(|last| last.ino == ino && last.extent.end() == start)
    }
}

/// What is to be moved: a segment of it at most.
#[derive(Debug, Default)]
pub(crate) struct Relocation {
    pieces: Vec<Piece>,
    bytes: usize,
}

impl Relocation {
    /// Whether this goes into its segment, too.
    const fn has_room(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= EXTENT_BYTES_MAX
    }

    fn add(&mut self, ino: u64, extent: Extent, data: &Bytes) {
        self.bytes += data.len();
        let last = self.pieces.last_mut().filter(|last| {
            last.is_continued_at(ino, extent.start) && last.data.len() + data.len() <= EXTENT_BYTES_MAX
        });
        match last {
            Some(last) => {
                last.referrers.push(Referrer { ino, extent, skip: last.data.len() });
                last.data.extend_from_slice(data);
            }
            None => {
                let referrers = vec![Referrer { ino, extent, skip: 0 }];
                self.pieces.push(Piece { referrers, data: BytesMut::from(&data[..]) });
            }
        }
    }
}

impl Tree {
    /// The extents that refer to an object where its data was written to, in the files' order, each
    /// with its inode and what it holds.
    ///
    /// # Errors
    /// The bucket's; `Io`: the object is damaged.
    pub(crate) async fn live_extents(self: &Arc<Self>, object: Object) -> Result<Vec<(u64, Extent, Bytes)>> {
        let Some(whole) = self.segments.whole(object).await? else { return Ok(Vec::new()) };
        let mut found: BTreeMap<(u64, u64), (Extent, Bytes)> = BTreeMap::new();
        for (ino, range) in self.segments.places(object, &whole)? {
            let mut at = range.start;
            while at < range.end {
                let extents = self.extents(ino, (at, range.end), EXTENTS).await?;
                let is_last = extents.len() < EXTENTS;
                at = extents.last().map_or(range.end, Extent::end);
                for extent in extents {
                    let stored = extent.stored_part()?.filter(|(stored, _)| stored.object == object);
                    let Some((stored, part)) = stored else { continue };
                    let data = self.segments.read_from(&whole, stored, part)?;
                    found.insert((ino, extent.start), (extent, data));
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(found.into_iter().map(|((ino, _), (extent, data))| (ino, extent, data)).collect())
    }

    /// Adds what [`live_extents`](Self::live_extents) found; a relocation that is full is carried
    /// out.
    pub(crate) async fn add_live(
        self: &Arc<Self>,
        relocation: &mut Relocation,
        found: Vec<(u64, Extent, Bytes)>,
    ) -> Result<()> {
        for (ino, extent, data) in found {
            if !relocation.has_room(data.len()) {
                self.relocate(std::mem::take(relocation)).await?;
            }
            relocation.add(ino, extent, &data);
        }
        Ok(())
    }

    /// Writes a segment, and lets what has not changed refer to it.
    pub(crate) async fn relocate(self: &Arc<Self>, relocation: Relocation) -> Result<()> {
        let (mut referrers, mut data) = (Vec::new(), Vec::new());
        for piece in relocation.pieces {
            let Some((ino, start)) = piece.place() else { continue };
            data.push((ino, start, vec![piece.data.freeze()]));
            referrers.push(piece.referrers);
        }
        if data.is_empty() {
            return Ok(());
        }
        let turn = self.segments.turns().turn(REPACKING, false).await;
        let stored = self.segments.put_segment(data).await?;
        drop(turn);
        for (mut referrers, stored) in referrers.into_iter().zip(stored) {
            // Counted once, also where nothing refers to it in the end: it is found to be garbage by
            // that.
            let mut change = ExtentChange::default();
            change.wrote(&stored);
            referrers.sort_by_key(|referrer| (referrer.ino, referrer.extent.start));
            for of_one in referrers.chunk_by(|one, next| one.ino == next.ino) {
                self.repoint(of_one, &stored, std::mem::take(&mut change)).await?;
            }
        }
        Ok(())
    }

    /// Lets the extents of one inode that have not changed refer to their parts of `stored`.
    async fn repoint(
        self: &Arc<Self>,
        referrers: &[Referrer],
        stored: &Stored,
        mut change: ExtentChange,
    ) -> Result<()> {
        let Some(ino) = referrers.first().map(|first| first.ino) else { return Ok(()) };
        let pin = self.pin(ino);
        let state = match pin.lock().await {
            Ok(state) => Some(state).filter(|state| state.row.nlink > 0),
            Err(error) if error.kind() == ErrorKind::Stale => None,
            Err(error) => return Err(error),
        };
        if state.is_none() {
            let mut batch = Batch::default();
            change.put(ino, &mut batch);
            return self.write(batch).await;
        }
        for Referrer { extent, skip, .. } in referrers {
            change.load_some(self, ino, (extent.start, extent.end())).await?;
            if change.has(extent) || is_on("repacking-of-what-changed") {
                let skip = if is_on("repacking-of-another-part") { 0 } else { *skip };
                let skip = u32::try_from(skip).map_err(|_| corrupted("an extent"))?;
                change.cut(extent.start, extent.end());
                let row = ExtentRow { len: extent.row.len, data: Some((stored.clone(), skip)) };
                change.add(Extent { start: extent.start, row });
            }
            if change.is_large() {
                self.write_repointed(ino, std::mem::take(&mut change)).await?;
            }
        }
        self.write_repointed(ino, change).await
    }

    async fn write_repointed(&self, ino: u64, mut change: ExtentChange) -> Result<()> {
        let mut batch = Batch::default();
        change.join();
        change.put(ino, &mut batch);
        self.write_known(ino, &change, batch).await
    }
}
