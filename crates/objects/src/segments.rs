//! Bulk data: segments are written once, and read in parts.
//!
//! A segment is encoded extents, one behind the other, then a footer that says of which inode and
//! offset each was, for a volume whose metadata is damaged.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use lru::LruCache;
use object_store::PutPayload;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use crate::bucket::{Bucket, Condition};
use crate::codec::{ChunkTable, Codec};
use crate::log::CommitLog;
use crate::log::object::OBJECT_BYTES_MAX;
use crate::rows::{self, Object, Stored};

/// The longest extent.
pub(crate) const EXTENT_BYTES_MAX: usize = 8 << 20;
/// How much is read at a time, in plain bytes: what is asked for begins in it.
const WINDOW: u32 = 1 << 20;
/// The end of every segment.
const MAGIC: &[u8; 4] = b"WTsg";
/// Windows that are kept for the next read.
const WINDOWS: usize = 32;

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
    windows: Mutex<LruCache<(Object, u32, u32), Bytes>>,
}

impl FooterRow {
    fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.len))
    }
}

fn name(epoch: u64, number: u64) -> String {
    format!("seg/{:02x}/{epoch:016x}/{number:016x}", number & 0xff)
}

/// The segment with this name.
pub(crate) fn segment_of(name: &str) -> Option<Object> {
    let mut parts = name.strip_prefix("seg/")?.split('/').skip(1);
    let (epoch, number) = (parts.next()?, parts.next()?);
    let object = Object::Segment(u64::from_str_radix(epoch, 16).ok()?, u64::from_str_radix(number, 16).ok()?);
    // No other name of the same numbers.
    (object_name(object) == name).then_some(object)
}

impl Segments {
    pub(crate) fn new(bucket: Bucket, codec: Codec, log: Arc<CommitLog>, epoch: u64) -> Self {
        let epoch = if is_on("segments-epoch-not-raised") { 1 } else { epoch };
        let windows = Mutex::new(LruCache::new(std::num::NonZeroUsize::new(WINDOWS).expect("some")));
        Self { bucket, codec, log, epoch, next: AtomicU64::new(0), windows }
    }

    /// Puts data into the log's open object: it is durable with the rows that are written next.
    pub(crate) async fn put_small(&self, data: &[u8]) -> Result<Stored> {
        let (encoded, table) = self.codec.encode(data);
        let (number, at) = self.log.put(&encoded).await?;
        Ok(Stored { object: Object::Log(number), at, len: len_of(data), table: table.to_bytes() })
    }

    /// Writes extents of one inode to a segment of their own, and returns when it is durable: where
    /// each begins in the file, and where it is.
    pub(crate) async fn put_bulk(&self, ino: u64, extents: Vec<(u64, Bytes)>) -> Result<Vec<(u64, Stored)>> {
        let starts: Vec<u64> = extents.iter().map(|(start, _)| *start).collect();
        let extents = extents.into_iter().map(|(start, data)| (ino, start, data)).collect();
        Ok(starts.into_iter().zip(self.put_segment(extents).await?).collect())
    }

    /// Writes extents, each of an inode and where it begins there, to a segment of their own, and
    /// returns when it is durable: where each is.
    pub(crate) async fn put_segment(&self, extents: Vec<(u64, u64, Bytes)>) -> Result<Vec<Stored>> {
        // ORDERING: Relaxed, a number that is given once; nothing else is published with it.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let object = Object::Segment(self.epoch, number);
        let (mut parts, mut stored, mut footer, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (ino, start, data) in extents {
            let (encoded, table) = self.codec.encode(&data);
            let len = len_of(&data);
            stored.push(Stored { object, at, len, table: table.to_bytes() });
            footer.push(FooterRow { ino, start, at, len });
            at += len_of(&encoded);
            parts.push(encoded);
        }
        let footer = self.codec.seal(b"footer", &rows::to_bytes(&footer));
        let mut end = BytesMut::from(&footer[..]);
        end.extend_from_slice(&len_of(&footer).to_be_bytes());
        end.extend_from_slice(MAGIC);
        parts.push(end.freeze());
        let name = name(self.epoch, number);
        if is_on("rows-before-bulk-data") {
            let (bucket, parts) = (self.bucket.clone(), PutPayload::from_iter(parts));
            tokio::spawn(async move { bucket.create(&name, parts).await });
            return Ok(stored);
        }
        match self.bucket.create(&name, PutPayload::from_iter(parts)).await? {
            // No other holder has this epoch: an attempt whose answer was lost made it.
            Condition::Met(_) | Condition::Failed { after_unknown: true } => Ok(stored),
            Condition::Failed { after_unknown: false } => {
                Err(Error::with(ErrorKind::Io, "write data", format!("{name}: another process made it")))
            }
        }
    }

    /// A whole object; `None`: it is gone.
    pub(crate) async fn whole(&self, object: Object) -> Result<Option<Bytes>> {
        let got = self.bucket.bulk().get_at_most(&object_name(object), OBJECT_BYTES_MAX).await?;
        Ok(got.map(|(bytes, _)| bytes))
    }

    /// Where the data of a whole object was written to: inodes, and from where to where in them.
    ///
    /// # Errors
    /// `Io`: the object is damaged, with its name.
    pub(crate) fn places(&self, object: Object, whole: &Bytes) -> Result<Vec<(u64, Range<u64>)>> {
        let damaged = |error: Error| {
            let (name, why) = (object_name(object), error.detail().unwrap_or("it is damaged"));
            Error::with(ErrorKind::Io, "read data", format!("{}/{name}: {why}", self.bucket.url()))
        };
        match object {
            Object::Log(number) => self.log.places(number, whole).map_err(damaged),
            Object::Segment(..) => {
                let footer = self.footer(whole).map_err(damaged)?;
                Ok(footer.into_iter().map(|row| (row.ino, row.start..row.end())).collect())
            }
        }
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
        if part.end > stored.len || part.start > part.end {
            return Err(rows::corrupted("an extent"));
        }
        let table = ChunkTable::from_bytes(&stored.table)?;
        let (range, first) = self.codec.stored_range(&table, stored.len, part.clone())?;
        let at = stored.at as usize;
        let encoded = at.checked_add(range.start as usize).zip(at.checked_add(range.end as usize));
        let encoded = encoded.and_then(|(from, to)| whole.get(from..to));
        let encoded = encoded.ok_or_else(|| rows::corrupted("an extent"))?;
        let mut plain = vec![0; part.len()];
        self.codec.decode(&table, stored.len, first, encoded, part, &mut plain)?;
        Ok(plain.into())
    }

    /// Reads a part of an extent.
    pub(crate) async fn read(&self, stored: &Stored, part: Range<u32>, out: &mut [u8]) -> Result<()> {
        if part.end > stored.len || part.start > part.end {
            return Err(rows::corrupted("an extent"));
        }
        let mut at = part.start;
        while at < part.end {
            let window = at / WINDOW * WINDOW..(at / WINDOW * WINDOW).saturating_add(WINDOW).min(stored.len);
            let data = self.window(stored, window.clone()).await?;
            let end = part.end.min(window.end);
            let (from, to) = ((at - window.start) as usize, (end - window.start) as usize);
            out[(at - part.start) as usize..(end - part.start) as usize].copy_from_slice(&data[from..to]);
            at = end;
        }
        Ok(())
    }

    async fn window(&self, stored: &Stored, window: Range<u32>) -> Result<Bytes> {
        let key = (stored.object, stored.at, window.start);
        if let Some(data) = self.windows.lock().get(&key) {
            return Ok(data.clone());
        }
        let corrupted = |error: Error| {
            let why = error.detail().unwrap_or("it is corrupted");
            let name = object_name(stored.object);
            Error::with(ErrorKind::Io, "read data", format!("{}/{name}: {why}", self.bucket.url()))
        };
        let table = ChunkTable::from_bytes(&stored.table).map_err(corrupted)?;
        let (range, first) =
            self.codec.stored_range(&table, stored.len, window.clone()).map_err(corrupted)?;
        let range =
            u64::from(stored.at) + u64::from(range.start)..u64::from(stored.at) + u64::from(range.end);
        let encoded = self.fetch(stored.object, range).await?;
        let mut plain = vec![0; window.len()];
        let decoded = self.codec.decode(&table, stored.len, first, &encoded, window, &mut plain);
        decoded.map_err(corrupted)?;
        let plain = Bytes::from(plain);
        self.windows.lock().put(key, plain.clone());
        Ok(plain)
    }

    async fn fetch(&self, object: Object, range: Range<u64>) -> Result<Bytes> {
        if let Object::Log(number) = object
            && let Some(bytes) = self.log.get(number, range.clone())
        {
            return Ok(bytes);
        }
        let name = object_name(object);
        self.bucket.get_range(&name, range).await.map_err(|error| match error.kind() {
            // To a reader the file is there, and its data is lost.
            ErrorKind::NotFound => {
                let detail = format!("{}/{name}: the object is missing", self.bucket.url());
                Error::with(ErrorKind::Io, "read data", detail)
            }
            _ => error,
        })
    }
}

/// An object's name.
pub(crate) fn object_name(object: Object) -> String {
    match object {
        Object::Log(number) => crate::log::object::name(number),
        Object::Segment(epoch, number) => name(epoch, number),
    }
}

fn len_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("an extent is bounded")
}
