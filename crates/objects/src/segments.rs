//! Bulk data: segments are written once, and read in parts.
//!
//! A segment is encoded extents, one behind the other, then a footer that says of which inode and
//! offset each was, for a volume whose metadata is damaged.

mod uploads;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use object_store::PutPayload;
use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use crate::blocks::blocks_of;
use crate::bucket::Bucket;
use crate::codec::{ChunkTable, Codec};
use crate::disk_cache::DiskCache;
use crate::log::CommitLog;
use crate::log::object::OBJECT_BYTES_MAX;
use crate::object_names::object_name;
use crate::reading::Reader;
use crate::rows::{self, Extent, Object, Stored};
use crate::turns::Turns;
use uploads::Uploads;

/// The longest extent.
pub(crate) const EXTENT_BYTES_MAX: usize = 8 << 20;
/// The end of every segment.
const MAGIC: &[u8; 4] = b"WTsg";
/// Blocks that one call has in memory at a time, unless one extent has more.
const LOADED_BLOCKS: usize = 16;

/// What a footer says of an extent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FooterRow {
    pub(crate) ino: u64,
    pub(crate) start: u64,
    pub(crate) at: u32,
    pub(crate) len: u32,
}

/// The data of a volume.
#[derive(Debug)]
pub(crate) struct Segments {
    bucket: Bucket,
    codec: Codec,
    log: Arc<CommitLog>,
    epoch: u64,
    next: AtomicU64,
    reader: Arc<Reader>,
    uploads: Arc<Uploads>,
}

impl FooterRow {
    fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.len))
    }
}

impl Segments {
    pub(crate) fn new(
        bucket: Bucket,
        codec: Codec,
        log: Arc<CommitLog>,
        epoch: u64,
        disk: Option<DiskCache>,
    ) -> Self {
        let epoch = if is_on("segments-epoch-not-raised") { 1 } else { epoch };
        let reader = Arc::new(Reader::new(bucket.clone(), disk));
        log.keep_in(reader.blocks());
        let uploads = Uploads::new(bucket.clone(), Arc::clone(&log), Arc::clone(&reader));
        Self { bucket, codec, log, epoch, next: AtomicU64::new(0), reader, uploads }
    }

    /// Whose segments may be on their way.
    pub(crate) fn turns(&self) -> &Arc<Turns> {
        &self.log.turns
    }

    /// The next segment: its epoch, and its number.
    pub(crate) fn next(&self) -> (u64, u64) {
        // ORDERING: Relaxed, as below: what was written before the caller looked has smaller numbers.
        (self.epoch, self.next.load(Ordering::Relaxed))
    }

    /// Whether an fsync may wait for a journal.
    pub(crate) fn has_journal(&self) -> bool {
        self.log.journal().is_some()
    }

    /// Whether a change waits for the journal before its caller is answered.
    pub(crate) fn accepts_on_host(&self) -> bool {
        self.log.accepts_on_host()
    }

    /// Puts data into the log's open object: it is durable with the rows that are written next.
    pub(crate) async fn put_small(&self, data: &[Bytes]) -> Result<Stored> {
        let (encoded, table) = self.codec.encode_pieces(data);
        let (number, at) = self.log.put(&encoded).await?;
        Ok(Stored { object: Object::Log(number), at, len: len_of(data), table: table.to_bytes() })
    }

    /// Writes extents of one inode to a segment of their own, and returns when it is durable, or
    /// when the journal has what is `awaited`: where each begins in the file, and where it is.
    pub(crate) async fn put_bulk(
        &self,
        ino: u64,
        extents: Vec<(u64, Vec<Bytes>)>,
        awaited: impl Future<Output = ()> + Send,
    ) -> Result<Vec<(u64, Stored)>> {
        let starts: Vec<u64> = extents.iter().map(|(start, _)| *start).collect();
        let extents = extents.into_iter().map(|(start, data)| (ino, start, data)).collect();
        Ok(starts.into_iter().zip(self.put_awaited(extents, awaited).await?).collect())
    }

    /// Writes extents, each of an inode and where it begins there, to a segment of their own, and
    /// returns when it is durable: where each is.
    pub(crate) async fn put_segment(&self, extents: Vec<(u64, u64, Vec<Bytes>)>) -> Result<Vec<Stored>> {
        self.put_awaited(extents, std::future::pending()).await
    }

    async fn put_awaited(
        &self,
        extents: Vec<(u64, u64, Vec<Bytes>)>,
        awaited: impl Future<Output = ()> + Send,
    ) -> Result<Vec<Stored>> {
        // ORDERING: Relaxed, a number that is given once; nothing else is published with it.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let object = Object::Segment(self.epoch, number);
        let (codec, has_journal) = (self.codec.clone(), self.has_journal());
        let encoding = async move {
            let (parts, stored) = encode(&codec, object, extents);
            // A journal lets a round end, and give its room back, while its segment is on its way: that
            // must not keep the memory of whole writes for the parts of them that were not written over.
            let parts = if has_journal { vec![parts.concat().into()] } else { parts };
            (parts, stored)
        };
        let (parts, stored) = self.bucket.bulk_threads().run(encoding).await;
        if is_on("rows-before-bulk-data") {
            let (bucket, parts) = (self.bucket.clone(), PutPayload::from_iter(parts));
            tokio::spawn(async move { bucket.create(&object_name(object), parts).await });
            return Ok(stored);
        }
        self.uploads.put(object, parts, awaited).await?;
        Ok(stored)
    }

    /// A whole object; `None`: it is gone.
    pub(crate) async fn whole(&self, object: Object) -> Result<Option<Bytes>> {
        let got = self.bucket.get_at_most(&object_name(object), OBJECT_BYTES_MAX).await?;
        Ok(got.map(|(bytes, _)| bytes))
    }

    /// Where the data of a whole object was written to: inodes, and from where to where in them.
    ///
    /// # Errors
    /// `Io`: the object is damaged, with its name.
    pub(crate) fn places(&self, object: Object, whole: &Bytes) -> Result<Vec<(u64, Range<u64>)>> {
        let places = match object {
            Object::Log(number) => self.log.places(number, whole),
            Object::Segment(..) => self
                .footer(whole)
                .map(|footer| footer.into_iter().map(|row| (row.ino, row.start..row.end())).collect()),
        };
        places.map_err(|error| self.corrupted(object, &error))
    }

    fn footer(&self, whole: &Bytes) -> Result<Vec<FooterRow>> {
        let parts = whole.split_last_chunk::<4>().filter(|(_, magic)| *magic == MAGIC);
        let parts = parts.and_then(|(rest, _)| rest.split_last_chunk::<4>());
        let footer = parts.and_then(|(rest, len)| {
            let from = rest.len().checked_sub(u32::from_be_bytes(*len) as usize)?;
            rest.get(from..)
        });
        let footer = footer.ok_or_else(|| rows::corrupted("the end of a segment"))?;
        rows::from_bytes(&self.codec.open(b"footer", footer)?, "the end of a segment")
    }

    /// Reads a part of an extent out of its whole object.
    pub(crate) fn read_from(&self, whole: &Bytes, stored: &Stored, part: Range<u32>) -> Result<Bytes> {
        let place = self.place(stored, part.clone())?;
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = index(place.bytes.start)..index(place.bytes.end);
        let encoded = whole.get(bytes).map(|encoded| whole.slice_ref(encoded));
        let encoded = encoded.ok_or_else(|| rows::corrupted("an extent"))?;
        let mut plain = vec![0; part.len()];
        self.decode(&mut Part { stored, part, out: &mut plain, is_passed: false }, &place, &[encoded])?;
        Ok(plain.into())
    }

    /// What reads its objects.
    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Reads a part of an extent.
    #[cfg(test)]
    pub(crate) async fn read(&self, stored: &Stored, part: Range<u32>, out: &mut [u8]) -> Result<()> {
        self.read_all(&mut [Part { stored, part, out, is_passed: false }]).await
    }

    /// Reads parts of extents. What they need of the bucket is fetched together.
    pub(crate) async fn read_all(&self, parts: &mut [Part<'_>]) -> Result<()> {
        let mut rest: Vec<(&mut Part<'_>, Place)> = Vec::new();
        for part in parts {
            if part.out.is_empty() {
                continue;
            }
            let place = self.place(part.stored, part.part.clone())?;
            match self.own_bytes(part.stored.object, &place.bytes).await? {
                Some(bytes) => self.decode(part, &place, &[bytes])?,
                None => rest.push((part, place)),
            }
        }
        let mut rest = rest.as_mut_slice();
        while !rest.is_empty() {
            let blocks = |(_, place): &(_, Place)| blocks_of(&place.bytes).len();
            let mut sum = 0;
            let more = rest.iter().map(blocks).take_while(|len| {
                sum += *len;
                sum <= LOADED_BLOCKS
            });
            let more = more.count().max(1);
            let (group, others) = std::mem::take(&mut rest).split_at_mut(more);
            self.read_group(group).await?;
            rest = others;
        }
        Ok(())
    }

    /// Reads parts that are in the bucket. What is damaged is read once more: it may have been
    /// damaged since.
    async fn read_group(&self, group: &mut [(&mut Part<'_>, Place)]) -> Result<()> {
        let ranges = group.iter().map(|(part, place)| (part.stored.object, place.bytes.clone()));
        let loaded = self.reader.load(ranges).await?;
        for (part, place) in group {
            let (object, bytes) = (part.stored.object, place.bytes.clone());
            if self.decode(part, place, &loaded.get(object, &bytes)).is_ok() {
                if part.is_passed {
                    self.reader.pass(object, u64::from(part.stored.at)..bytes.end, &bytes);
                }
                continue;
            }
            self.reader.forget(object, &bytes);
            let again = self.reader.load(std::iter::once((object, bytes.clone()))).await?;
            if let Err(error) = self.decode(part, place, &again.get(object, &bytes)) {
                self.reader.forget(object, &bytes);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Where the data of an extent is in the bucket; none: it has none, or it is not there yet.
    pub(crate) fn place_of(&self, extent: &Extent) -> Result<Option<(Object, Range<u64>)>> {
        let Some((stored, part)) = extent.stored_part()? else { return Ok(None) };
        let place = self.place(stored, part)?;
        let is_there = match stored.object {
            Object::Log(number) => self.log.get(number, place.bytes.clone()).is_none(),
            segment @ Object::Segment(..) => !self.uploads.has(segment),
        };
        Ok(is_there.then_some((stored.object, place.bytes)))
    }

    fn place(&self, stored: &Stored, part: Range<u32>) -> Result<Place> {
        if part.end > stored.len || part.start > part.end {
            return Err(rows::corrupted("an extent"));
        }
        let corrupted = |error: Error| self.corrupted(stored.object, &error);
        let table = ChunkTable::from_bytes(&stored.table).map_err(corrupted)?;
        let (range, first_chunk) = self.codec.stored_range(&table, stored.len, part).map_err(corrupted)?;
        let at = u64::from(stored.at);
        Ok(Place { table, first_chunk, bytes: at + u64::from(range.start)..at + u64::from(range.end) })
    }

    fn decode(&self, part: &mut Part<'_>, place: &Place, encoded: &[Bytes]) -> Result<()> {
        let Part { stored, part, out, .. } = part;
        let decoded =
            self.codec.decode_pieces(&place.table, stored.len, place.first_chunk, encoded, part.clone(), out);
        decoded.map_err(|error| self.corrupted(stored.object, &error))
    }

    fn corrupted(&self, object: Object, error: &Error) -> Error {
        let why = error.detail().unwrap_or("it is corrupted");
        let detail = format!("{}/{}: {why}", self.bucket.url(), object_name(object));
        Error::with(ErrorKind::Io, "read data", detail)
    }

    /// What the log or the journal has, and the bucket may not have yet.
    async fn own_bytes(&self, object: Object, bytes: &Range<u64>) -> Result<Option<Bytes>> {
        match object {
            Object::Log(number) => Ok(self.log.get(number, bytes.clone())),
            Object::Segment(..) => self.uploads.read(object, bytes.clone()).await.transpose(),
        }
    }
}

/// The parts of a segment of these extents, each of an inode, where it begins there, and in pieces; and
/// where each is in it.
fn encode(codec: &Codec, object: Object, extents: Vec<(u64, u64, Vec<Bytes>)>) -> (Vec<Bytes>, Vec<Stored>) {
    let (mut parts, mut stored, mut footer, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (ino, start, data) in extents {
        let (encoded, table) = codec.encode_pieces(&data);
        let len = len_of(&data);
        stored.push(Stored { object, at, len, table: table.to_bytes() });
        footer.push(FooterRow { ino, start, at, len });
        at += len_of(&encoded);
        parts.extend(encoded);
    }
    let footer = codec.seal(b"footer", &rows::to_bytes(&footer));
    let mut end = BytesMut::from(&footer[..]);
    end.extend_from_slice(&len_of(&[footer]).to_be_bytes());
    end.extend_from_slice(MAGIC);
    parts.push(end.freeze());
    (parts, stored)
}

/// A part of an extent that is to be read.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) stored: &'a Stored,
    pub(crate) part: Range<u32>,
    pub(crate) out: &'a mut [u8],
    /// It is read in sequence: its reader asks for what is behind it next.
    pub(crate) is_passed: bool,
}

/// Where a part of an extent is in its object.
#[derive(Debug)]
struct Place {
    table: ChunkTable,
    first_chunk: u32,
    bytes: Range<u64>,
}

fn len_of(pieces: &[Bytes]) -> u32 {
    u32::try_from(pieces.iter().map(Bytes::len).sum::<usize>()).expect("an extent is bounded")
}
