//! How data is written to an object, so that a part of it can be read alone.
//!
//! # An extent
//! Chunks of 64 KiB ([`CHUNK`]), the last one shorter, one behind the other. Each is
//!
//! ```text
//! body                        compressed, if that gains a sixteenth, else plain
//! nonce | body | tag          with a key: encrypted (XChaCha20-Poly1305)
//! … | crc                     CRC-32C, little endian, of all before it
//! ```
//!
//! # What a chunk is bound to
//! The volume, the chunk's index, the length of its extent, and how it is compressed. The checksum
//! and the tag cover these too, without storing them: chunks that changed places, or an extent that
//! was cut, are errors. Not the file, nor the object: files share extents, and data moves between
//! objects. So whoever writes to the bucket can put a chunk in the place of one with the same index
//! of another extent of the same length, and nothing here finds that.
//!
//! The checksum finds accidents, with or without a key, and without one only them: whoever writes
//! to the bucket can calculate it.
//!
//! # A blob
//! Metadata: one piece, never compressed, otherwise like a chunk. It is bound to the volume and to
//! the `context` that its writer names, as the object that it is in.

mod encoded;
mod stored_pieces;

pub use crate::chunk_table::{CHUNK, ChunkTable, EXTENT_MAX};
pub use crate::compression::Compression;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use crate::chunk_table::{Chunk, corrupt};
use crate::compression::Attempts;
use crate::crypto::{self, Cipher, DataKey, NONCE_LEN};
use encoded::{Chunks, Encoded};
use stored_pieces::StoredPieces;

/// A chunk that is not longer is copied, also where that is not needed: it costs less than one more
/// piece of memory on the way to the socket.
const COPIED_MAX: usize = 16 << 10;
/// Bytes of a checksum.
const CRC_LEN: usize = 4;

/// Writes and reads the data of one volume.
#[derive(Debug, Clone)]
pub struct Codec(Arc<Inner>);

struct Inner {
    uuid: [u8; 16],
    compression: Compression,
    cipher: Option<Cipher>,
}

impl Codec {
    /// The codec of the volume `uuid`. What it writes is compressed by `compression`; it reads what
    /// was written by any. With a `key`, all of it is encrypted.
    #[must_use]
    pub fn new(uuid: [u8; 16], compression: Compression, key: Option<&DataKey>) -> Self {
        let cipher = key.map(|key| Cipher::new(&key.0));
        Self(Arc::new(Inner { uuid, compression, cipher }))
    }

    /// Whether there is a key.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.0.cipher.is_some()
    }

    /// Bytes that a chunk or a blob has in addition to its body.
    #[must_use]
    pub fn overhead(&self) -> usize {
        CRC_LEN + if self.is_encrypted() { crypto::OVERHEAD } else { 0 }
    }

    /// An extent in its stored form.
    ///
    /// # Panics
    /// When `data` has more than [`EXTENT_MAX`] bytes.
    #[must_use]
    pub fn encode(&self, data: &[u8]) -> (Bytes, ChunkTable) {
        let (parts, table) = self.encode_pieces(&[Bytes::copy_from_slice(data)]);
        (parts.concat().into(), table)
    }

    /// An extent in its stored form, one part behind the other, of an extent that is in several pieces.
    /// What is stored as it is, is not copied where a chunk lies in one piece.
    ///
    /// # Panics
    /// When the pieces have more than [`EXTENT_MAX`] bytes.
    pub(crate) fn encode_pieces(&self, pieces: &[Bytes]) -> (Vec<Bytes>, ChunkTable) {
        let len: usize = pieces.iter().map(Bytes::len).sum();
        assert!(len <= EXTENT_MAX as usize, "an extent of {len} bytes is too long");
        let number = len.div_ceil(CHUNK as usize);
        let len = u32::try_from(len).expect("a few MiB");
        let mut nonces = vec![[0; NONCE_LEN]; if self.is_encrypted() { number } else { 0 }];
        crypto::random(nonces.as_flattened_mut());
        let capacity = len as usize + number * self.overhead() + self.0.compression.slack();
        let mut out = Encoded::with_capacity(capacity);
        let (mut bodies, mut attempts) = (Vec::with_capacity(number), Attempts::default());
        for (index, plain) in (0_u32..).zip(Chunks::new(pieces)) {
            let start = out.own.len();
            out.own.extend_from_slice(nonces.get(index as usize).map_or(&[][..], |nonce| nonce.as_slice()));
            let before = out.own.len();
            let is_shorter = attempts.is_worth(&plain) && self.0.compression.append(&plain, &mut out.own);
            attempts.ended(is_shorter);
            let body = if is_shorter { out.own.len() - before } else { 0 };
            bodies.push(u16::try_from(body).expect("a compressed chunk is below the limit"));
            let used = if is_shorter { self.0.compression } else { Compression::None };
            let bound_to = self.bind_chunk(len, index, used);
            if !is_shorter && !self.is_encrypted() && plain.len() > COPIED_MAX {
                let crc = crc_of(&bound_to, &plain);
                out.insert(plain);
                out.own.extend_from_slice(&crc.to_le_bytes());
                continue;
            }
            if !is_shorter {
                out.own.extend_from_slice(&plain);
            }
            self.finish(&bound_to, &mut out.own, start);
        }
        (out.parts(), ChunkTable::new(self.0.compression, bodies))
    }

    /// Which bytes of the stored form of an extent of `len` bytes must be fetched to read its
    /// `part`, and the chunk that they begin with.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: there is no such part, or the table cannot be that extent's.
    pub fn stored_range(&self, table: &ChunkTable, len: u32, part: Range<u32>) -> Result<(Range<u32>, u32)> {
        if len > EXTENT_MAX || part.start > part.end || part.end > len {
            return Err(corrupt(format!(
                "bytes {} to {} are not in an extent of {len} bytes",
                part.start, part.end
            )));
        }
        if part.is_empty() {
            return Ok((0..0, 0));
        }
        let first = part.start / CHUNK;
        let mut range = 0..0;
        for index in 0..part.end.div_ceil(CHUNK) {
            // 128 chunks, each bounded: this fits 24 bits.
            range.end += self.stored_len(&table.chunk(len, index)?);
            if index + 1 == first {
                range.start = range.end;
            }
        }
        Ok((range, first))
    }

    /// Reads the `part` of an extent of `len` bytes into `out`, which is as long. `stored` and
    /// `first_chunk` are what [`stored_range`](Self::stored_range) said.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: these are not the bytes that were written; it says which chunk is not.
    /// `out` is all zeros then.
    pub fn decode(
        &self,
        table: &ChunkTable,
        len: u32,
        first_chunk: u32,
        stored: &[u8],
        part: Range<u32>,
        out: &mut [u8],
    ) -> Result<()> {
        self.decode_pieces(table, len, first_chunk, &[stored], part, out)
    }

    /// The same of stored bytes that lie in several pieces of memory, in order.
    ///
    /// # Errors
    /// As those of [`decode`](Self::decode).
    pub fn decode_pieces(
        &self,
        table: &ChunkTable,
        len: u32,
        first_chunk: u32,
        stored: &[impl AsRef<[u8]>],
        part: Range<u32>,
        out: &mut [u8],
    ) -> Result<()> {
        let mut stored = StoredPieces::new(stored);
        let read = self.read_part(table, len, first_chunk, &mut stored, part, out);
        if read.is_err() {
            out.fill(0);
        }
        read
    }

    fn read_part(
        &self,
        table: &ChunkTable,
        len: u32,
        first_chunk: u32,
        stored: &mut StoredPieces<'_, impl AsRef<[u8]>>,
        part: Range<u32>,
        out: &mut [u8],
    ) -> Result<()> {
        let (range, first) = self.stored_range(table, len, part.clone())?;
        if first != first_chunk || out.len() != part.len() {
            return Err(Error::with(
                ErrorKind::Invalid,
                "read",
                "not the part of the extent that was fetched",
            ));
        }
        let (found, wanted) = (stored.len(), range.len());
        if found != wanted {
            return Err(corrupt(format!("{found} bytes are there instead of {wanted}")));
        }
        if part.is_empty() {
            return Ok(());
        }
        let mut scratch = Scratch::default();
        let mut out = out;
        for index in first..part.end.div_ceil(CHUNK) {
            let chunk = table.chunk(len, index)?;
            let begin = index * CHUNK;
            let wanted = part.start.max(begin) - begin..(part.end - begin).min(CHUNK);
            let piece = stored.take(self.stored_len(&chunk) as usize);
            let target = out.split_off_mut(..wanted.len());
            let (Some(piece), Some(target)) = (piece, target) else {
                return Err(corrupt("the stored bytes end within a chunk"));
            };
            let wanted = wanted.start as usize..wanted.end as usize;
            let bound_to = self.bind_chunk(len, index, chunk.compression);
            self.read_chunk(&bound_to, &chunk, piece, wanted, target, &mut scratch).map_err(|why| {
                corrupt(format!("chunk {index} of {} is corrupted: {why}", len.div_ceil(CHUNK)))
            })?;
        }
        Ok(())
    }

    /// Reads the bytes `wanted` of a chunk into `out`.
    fn read_chunk(
        &self,
        bound_to: &[u8],
        chunk: &Chunk,
        piece: &[u8],
        wanted: Range<usize>,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Corruption> {
        let sealed = check_crc(bound_to, piece)?;
        let is_whole = wanted.len() == chunk.plain;
        let is_plain = chunk.compression == Compression::None;
        let body = match &self.0.cipher {
            None => sealed,
            Some(cipher) if is_plain && is_whole => {
                return cipher.open(bound_to, sealed, out).map_err(|crypto::Forged| Corruption::Forged);
            }
            Some(cipher) => {
                scratch.body.resize(chunk.body, 0);
                let opened = cipher.open(bound_to, sealed, &mut scratch.body);
                opened.map_err(|crypto::Forged| Corruption::Forged)?;
                &scratch.body
            }
        };
        if is_plain {
            out.copy_from_slice(body.get(wanted).ok_or(Corruption::Length)?);
        } else if is_whole {
            if !chunk.compression.restore(body, out) {
                return Err(Corruption::Length);
            }
        } else {
            scratch.plain.resize(chunk.plain, 0);
            if !chunk.compression.restore(body, &mut scratch.plain) {
                return Err(Corruption::Length);
            }
            out.copy_from_slice(&scratch.plain[wanted]);
        }
        Ok(())
    }

    /// A blob in its stored form.
    #[must_use]
    pub fn seal(&self, context: &[u8], plain: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(plain.len() + self.overhead());
        if self.is_encrypted() {
            let mut nonce = [0; NONCE_LEN];
            crypto::random(&mut nonce);
            out.extend_from_slice(&nonce);
        }
        out.extend_from_slice(plain);
        self.finish(&self.bind_blob(context), &mut out, 0);
        out.into()
    }

    /// The blob that was sealed with this `context`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: these are not the bytes that were written.
    pub fn open(&self, context: &[u8], stored: &[u8]) -> Result<Bytes> {
        let bound_to = self.bind_blob(context);
        self.open_blob(&bound_to, stored).map_err(|why| corrupt(format!("corrupted: {why}")))
    }

    fn open_blob(&self, bound_to: &[u8], stored: &[u8]) -> Result<Bytes, Corruption> {
        let sealed = check_crc(bound_to, stored)?;
        let Some(cipher) = &self.0.cipher else {
            return Ok(Bytes::copy_from_slice(sealed));
        };
        let mut plain = vec![0; sealed.len().checked_sub(crypto::OVERHEAD).ok_or(Corruption::Forged)?];
        cipher.open(bound_to, sealed, &mut plain).map_err(|crypto::Forged| Corruption::Forged)?;
        Ok(plain.into())
    }

    fn stored_len(&self, chunk: &Chunk) -> u32 {
        u32::try_from(chunk.body + self.overhead()).expect("a chunk is 64 KiB")
    }

    /// Ends a piece that begins at `start` with its nonce, if there is a key, and its body: tag and
    /// checksum.
    fn finish(&self, bound_to: &[u8], out: &mut Vec<u8>, start: usize) {
        if let Some(cipher) = &self.0.cipher {
            cipher.seal(bound_to, out, start);
        }
        let crc = crc_of(bound_to, &out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// What a chunk is bound to.
    fn bind_chunk(&self, len: u32, index: u32, compression: Compression) -> [u8; 26] {
        let index = if is_on("objects-chunk-index-unbound") { 0 } else { index };
        let len = if is_on("objects-extent-length-unbound") { 0 } else { len };
        let mut bound_to = [0; 26];
        bound_to[0] = b'c';
        bound_to[1..17].copy_from_slice(&self.0.uuid);
        bound_to[17..21].copy_from_slice(&index.to_le_bytes());
        bound_to[21..25].copy_from_slice(&len.to_le_bytes());
        bound_to[25] = compression.to_byte();
        bound_to
    }

    /// What a blob is bound to. The length of the context ends it: what follows is the blob's.
    fn bind_blob(&self, context: &[u8]) -> Vec<u8> {
        let len = len_of(context).to_le_bytes();
        [b"b".as_slice(), &self.0.uuid, &len, context].concat()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uuid, compression, cipher } = self;
        let uuid = u128::from_be_bytes(*uuid);
        write!(f, "{uuid:032x}, {compression:?}, {}", if cipher.is_some() { "encrypted" } else { "plain" })
    }
}

/// Space for a chunk of which a part is wanted, or that is compressed and encrypted.
#[derive(Default)]
struct Scratch {
    body: Vec<u8>,
    plain: Vec<u8>,
}

/// What is wrong with a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Corruption {
    #[error("its checksum differs")]
    Checksum,
    #[error("it was not written here with this volume's key")]
    Forged,
    #[error("it does not have the length that its table says")]
    Length,
}

/// The piece without its checksum, which is right.
fn check_crc<'a>(bound_to: &[u8], piece: &'a [u8]) -> Result<&'a [u8], Corruption> {
    let (sealed, crc) = piece.split_last_chunk::<CRC_LEN>().ok_or(Corruption::Checksum)?;
    if crc_of(bound_to, sealed) != u32::from_le_bytes(*crc) && !is_on("objects-crc-unchecked") {
        return Err(Corruption::Checksum);
    }
    Ok(sealed)
}

/// CRC-32C of what a piece is bound to, and of the piece.
fn crc_of(bound_to: &[u8], sealed: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bound_to);
    digest.update(sealed);
    u32::try_from(digest.finalize()).expect("a checksum of 32 bits")
}

fn len_of(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("below 4 GiB")
}

#[cfg(test)]
mod tests;
