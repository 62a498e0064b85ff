//! An object of the log, as it is written.
//!
//! ```text
//!  header   64 bytes: magic, version, kind, epoch, nonce, number, next, lengths, crc
//!  data     encoded extents
//!  rows     sealed: sequence number, kind, key, value of each
//! ```

use std::ops::Range;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use slatedb::{RowEntry, ValueDeletable};
use store::{Error, ErrorKind, Result};

use crate::object_names::log_name;

/// Bytes before the data.
pub(crate) const HEADER: usize = 64;
const MAGIC: u32 = u32::from_be_bytes(*b"WTlg");
const VERSION: u16 = 1;
/// The largest object: as much as is read at a time.
pub(crate) const OBJECT_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a row beside its key and its value.
pub(crate) const ROW_OVERHEAD: usize = 25;

/// What an object of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogKind {
    /// Rows and data.
    Commit,
    /// From here on the log is a new holder's; its first object is `next`.
    Fence,
}

/// Who wrote an object of the log, and where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: LogKind,
    pub(crate) epoch: u64,
    pub(crate) nonce: [u8; 16],
    pub(crate) number: u64,
    /// A fence's: the number that the log goes on with. A commit's: see [`Header::durable`].
    pub(crate) next: u64,
    data_len: u32,
    rows_len: u32,
}

impl Header {
    pub(crate) fn new(kind: LogKind, epoch: u64, nonce: [u8; 16], number: u64, next: u64) -> Self {
        Self { kind, epoch, nonce, number, next, data_len: 0, rows_len: 0 }
    }

    /// The bytes of the header of an object whose data and sealed rows are so long.
    pub(crate) fn write(mut self, data_len: usize, rows_len: usize) -> Bytes {
        self.data_len = u32::try_from(data_len).expect("bounded by the log");
        self.rows_len = u32::try_from(rows_len).expect("bounded by the log");
        let mut out = BytesMut::with_capacity(HEADER);
        out.put_u32(MAGIC);
        out.put_u16(VERSION);
        out.put_u16(match self.kind {
            LogKind::Commit => 0,
            LogKind::Fence => 1,
        });
        out.put_u64(self.epoch);
        out.put_slice(&self.nonce);
        out.put_u64(self.number);
        out.put_u64(self.next);
        out.put_u32(self.data_len);
        out.put_u32(self.rows_len);
        out.put_u32(crc(&out));
        out.resize(HEADER, 0);
        out.freeze()
    }

    /// The header of an object that should be number `number`.
    pub(crate) fn read(object: &[u8], number: u64) -> Result<Self> {
        let mut from = object.get(..HEADER).ok_or_else(|| damaged(number, "it is too short"))?;
        let sum = crc(&from[..56]);
        if from.get_u32() != MAGIC {
            return Err(damaged(number, "it is no object of a log"));
        }
        let version = from.get_u16();
        let kind = from.get_u16();
        let epoch = from.get_u64();
        let mut nonce = [0; 16];
        from.copy_to_slice(&mut nonce);
        let (written, next) = (from.get_u64(), from.get_u64());
        let (data_len, rows_len) = (from.get_u32(), from.get_u32());
        if from.get_u32() != sum {
            return Err(damaged(number, "its header's checksum is wrong"));
        }
        if version != VERSION {
            return Err(damaged(number, "a newer version of the program wrote it"));
        }
        if written != number {
            return Err(damaged(number, "it is another object's content"));
        }
        let kind = match kind {
            0 => LogKind::Commit,
            1 if next > number => LogKind::Fence,
            _ => return Err(damaged(number, "its kind is unknown")),
        };
        Ok(Self { kind, epoch, nonce, number, next, data_len, rows_len })
    }

    /// The last number that was durable when the object was sealed; `None`: it is a fence.
    pub(crate) fn durable(&self) -> Option<u64> {
        (self.kind == LogKind::Commit).then_some(self.next)
    }

    /// Where the rows are.
    pub(crate) fn rows(&self) -> Range<usize> {
        let start = HEADER + self.data_len as usize;
        start..start + self.rows_len as usize
    }

    /// What the rows are sealed with.
    pub(crate) fn context(&self) -> [u8; 16] {
        context(self.epoch, self.number)
    }
}

/// What the rows of an object are sealed with: rows of another object do not open in its place.
pub(crate) fn context(epoch: u64, number: u64) -> [u8; 16] {
    (u128::from(epoch) << 64 | u128::from(number)).to_be_bytes()
}

fn crc(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(sum).unwrap_or(u32::MAX)
}

pub(crate) fn damaged(number: u64, why: &'static str) -> Error {
    Error::with(ErrorKind::Io, "read log", format!("{}: {why}", log_name(number)))
}

/// Appends rows that have one sequence number.
pub(crate) fn put_rows(out: &mut BytesMut, rows: &[RowEntry]) {
    for row in rows {
        let (kind, value) = match &row.value {
            ValueDeletable::Value(value) => (0, &value[..]),
            ValueDeletable::Merge(value) => (1, &value[..]),
            ValueDeletable::Tombstone => (2, &[][..]),
        };
        out.put_u64(row.seq);
        out.put_i64(row.create_ts.unwrap_or_default());
        out.put_u8(kind);
        out.put_u32(u32::try_from(row.key.len()).expect("a key is short"));
        out.put_u32(u32::try_from(value.len()).expect("a value is bounded"));
        out.put_slice(&row.key);
        out.put_slice(value);
    }
}

/// The rows that [`put_rows`] wrote to object `number`.
pub(crate) fn read_rows(mut from: Bytes, number: u64) -> Result<Vec<RowEntry>> {
    let short = || damaged(number, "its rows end too early");
    let mut rows = Vec::new();
    while from.has_remaining() {
        if from.remaining() < ROW_OVERHEAD {
            return Err(short());
        }
        let (seq, stamp, kind) = (from.get_u64(), from.get_i64(), from.get_u8());
        let (key_len, value_len) = (from.get_u32() as usize, from.get_u32() as usize);
        if from.remaining() < key_len.saturating_add(value_len) {
            return Err(short());
        }
        let key = from.split_to(key_len);
        let value = from.split_to(value_len);
        let value = match kind {
            0 => ValueDeletable::Value(value),
            1 => ValueDeletable::Merge(value),
            2 => ValueDeletable::Tombstone,
            _ => return Err(damaged(number, "a row's kind is unknown")),
        };
        rows.push(RowEntry { key, value, seq, create_ts: Some(stamp), expire_ts: None });
    }
    Ok(rows)
}
