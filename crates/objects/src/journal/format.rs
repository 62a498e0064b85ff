//! How a file of the journal is written.
//!
//! ```text
//!  header   128 bytes: magic, version, volume, journal, salt, number, length of the file before, context, crc
//!  record   64 bytes: magic, kind, synced, length, crc of the payload, about, crc; then the payload
//!  ...      each begins at a multiple of 8
//! ```
//!
//! A record says how far the file was on the disk when it was written: one that is damaged before
//! that was not torn by a crash. The salt goes into each record's checksum, so that nobody's data
//! is taken for a record, nor another file's.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};

pub(crate) const FILE_HEADER: usize = 128;
pub(crate) const RECORD_HEADER: usize = 64;
/// Bytes of a file's header before its checksum.
const FILE_SUMMED: usize = 104;
/// Bytes of a record's header before its checksum.
const RECORD_SUMMED: usize = 56;
const FILE_MAGIC: u32 = u32::from_be_bytes(*b"WTjn");
const RECORD_MAGIC: u32 = u32::from_be_bytes(*b"WTjr");
/// The only version that this program knows.
const VERSION: u16 = 1;

/// Whose journal it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The volume's.
    pub(crate) volume: [u8; 16],
    /// The journal's own, which the lease repeats.
    pub(crate) id: [u8; 16],
}

/// What a file begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) identity: Identity,
    pub(crate) salt: [u8; 16],
    pub(crate) number: u64,
    /// The length of the file before it, when that one was ended.
    pub(crate) previous: u64,
    pub(crate) context: [u8; 32],
}

/// What a record begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: u16,
    /// The file's bytes before this were on the disk.
    pub(crate) synced: u64,
    pub(crate) len: u32,
    /// Of the payload.
    pub(crate) sum: u32,
    pub(crate) about: [u8; 32],
}

/// Why a file's header cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadFile {
    /// Its making was not finished.
    Unfinished,
    /// It is of a newer version.
    Newer(u16),
    /// It is no file of a journal, or damaged.
    Damaged,
}

/// A length with what fills it up.
pub(crate) const fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

impl FileHeader {
    pub(crate) fn write(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FILE_HEADER);
        out.put_u32(FILE_MAGIC);
        out.put_u16(VERSION);
        out.put_u16(0);
        out.put_slice(&self.identity.volume);
        out.put_slice(&self.identity.id);
        out.put_slice(&self.salt);
        out.put_u64(self.number);
        out.put_u64(self.previous);
        out.put_slice(&self.context);
        let sum = sum(&[&out[..FILE_SUMMED]]);
        out.put_u32(sum);
        out.resize(FILE_HEADER, 0);
        out.freeze()
    }

    pub(crate) fn read(file: &[u8]) -> Result<Self, BadFile> {
        let Some(mut from) = file.get(..FILE_HEADER) else { return Err(BadFile::Unfinished) };
        if from.iter().all(|byte| *byte == 0) {
            return Err(BadFile::Unfinished);
        }
        let expected = sum(&[&from[..FILE_SUMMED]]);
        let (magic, version, _) = (from.get_u32(), from.get_u16(), from.get_u16());
        if magic != FILE_MAGIC {
            return Err(BadFile::Damaged);
        }
        if version > VERSION {
            return Err(BadFile::Newer(version));
        }
        let identity = Identity { volume: take(&mut from), id: take(&mut from) };
        let salt = take(&mut from);
        let (number, previous) = (from.get_u64(), from.get_u64());
        let context = take(&mut from);
        if from.get_u32() != expected {
            return Err(BadFile::Damaged);
        }
        Ok(Self { identity, salt, number, previous, context })
    }
}

impl RecordHeader {
    /// Its bytes in the file that begins with `file`.
    pub(crate) fn write(&self, file: &FileHeader) -> Bytes {
        let mut out = BytesMut::with_capacity(RECORD_HEADER);
        out.put_u32(RECORD_MAGIC);
        out.put_u16(self.kind);
        out.put_u16(0);
        out.put_u64(self.synced);
        out.put_u32(self.len);
        out.put_u32(self.sum);
        out.put_slice(&self.about);
        let sum = sum(&[&file.salt, &file.number.to_be_bytes(), &out[..RECORD_SUMMED]]);
        out.put_u32(sum);
        out.resize(RECORD_HEADER, 0);
        out.freeze()
    }

    /// The header of the record at `at`; `None`: there is no whole record.
    pub(crate) fn read(file: &FileHeader, bytes: &[u8], at: usize) -> Option<Self> {
        let mut from = bytes.get(at..at.checked_add(RECORD_HEADER)?)?;
        if from.starts_with(&RECORD_MAGIC.to_be_bytes()) {
            let expected = sum(&[&file.salt, &file.number.to_be_bytes(), &from[..RECORD_SUMMED]]);
            let (_, kind, _) = (from.get_u32(), from.get_u16(), from.get_u16());
            let (synced, len, sum) = (from.get_u64(), from.get_u32(), from.get_u32());
            let about = take(&mut from);
            return (from.get_u32() == expected).then_some(Self { kind, synced, len, sum, about });
        }
        None
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let mut out = [0; N];
    from.copy_to_slice(&mut out);
    out
}

/// The checksum of a payload in parts.
pub(crate) fn sum_of(parts: &[Bytes]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    u32::try_from(digest.finalize()).unwrap_or(u32::MAX)
}

/// The checksum of bytes in parts.
pub(crate) fn sum(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    u32::try_from(digest.finalize()).unwrap_or(u32::MAX)
}
