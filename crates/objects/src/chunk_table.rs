//! How long the chunks of an extent are in their stored form.
//!
//! Only compression needs it: else all chunks have the same overhead, and the table is empty. Its
//! serialised form, in the row of the extent, is the byte of the compression and two bytes for each
//! chunk: 257 bytes for 8 MiB. It comes from the bucket: [`ChunkTable::from_bytes`] bounds it, and
//! [`ChunkTable::chunk`] compares it with the extent's length.

use store::{Error, ErrorKind, Result};

use crate::compression::{Compression, limit};

/// Plain bytes of a chunk; the last one of an extent is shorter.
pub const CHUNK: u32 = 64 << 10;
/// Plain bytes that an extent has at most.
pub const EXTENT_MAX: u32 = 8 << 20;

/// Chunks that an extent has at most.
const CHUNKS_MAX: usize = (EXTENT_MAX / CHUNK) as usize;

/// The lengths of an extent's chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkTable {
    /// `None`: all chunks are stored as they are, and `bodies` is empty.
    compression: Compression,
    /// The length of each chunk that is compressed, without the overhead; 0: stored as it is.
    bodies: Vec<u16>,
}

/// One chunk, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// How it is compressed.
    pub(crate) compression: Compression,
    /// Bytes of it, plain.
    pub(crate) plain: usize,
    /// Bytes of it when it is compressed, without the overhead.
    pub(crate) body: usize,
}

impl ChunkTable {
    /// The table of an extent whose chunks are stored as they are.
    #[must_use]
    pub const fn uniform() -> Self {
        Self { compression: Compression::None, bodies: Vec::new() }
    }

    /// The table of an extent whose chunks have these bodies.
    pub(crate) fn new(compression: Compression, bodies: Vec<u16>) -> Self {
        if bodies.iter().all(|body| *body == 0) { Self::uniform() } else { Self { compression, bodies } }
    }

    /// Its serialised form: empty, if all chunks are stored as they are.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + 2 * self.bodies.len());
        if !self.bodies.is_empty() {
            bytes.push(self.compression.to_byte());
            bytes.extend(self.bodies.iter().flat_map(|body| body.to_le_bytes()));
        }
        bytes
    }

    /// The table of this form, which may be anybody's.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: it is not the form of a table.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Some((first, rest)) = bytes.split_first() else {
            return Ok(Self::uniform());
        };
        let (bodies, odd) = rest.as_chunks::<2>();
        let compression = Compression::from_byte(*first).filter(|found| *found != Compression::None);
        match compression {
            Some(compression) if odd.is_empty() && (1..=CHUNKS_MAX).contains(&bodies.len()) => {
                Ok(Self::new(compression, bodies.iter().map(|body| u16::from_le_bytes(*body)).collect()))
            }
            _ => Err(corrupt("the table of an extent's chunks is corrupted")),
        }
    }

    /// Chunk `index` of an extent of `len` bytes, which has it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: the table cannot be that extent's.
    pub(crate) fn chunk(&self, len: u32, index: u32) -> Result<Chunk> {
        let plain = (len - index * CHUNK).min(CHUNK) as usize;
        if self.bodies.is_empty() {
            return Ok(Chunk { compression: Compression::None, plain, body: plain });
        }
        let wrong = || corrupt(format!("the table of an extent's chunks does not fit its {len} bytes"));
        if self.bodies.len() != len.div_ceil(CHUNK) as usize {
            return Err(wrong());
        }
        match self.bodies.get(index as usize).map(|body| usize::from(*body)) {
            Some(0) => Ok(Chunk { compression: Compression::None, plain, body: plain }),
            Some(body) if body <= limit(plain) => Ok(Chunk { compression: self.compression, plain, body }),
            _ => Err(wrong()),
        }
    }
}

/// An error of data in the bucket that is not what was written.
pub(crate) fn corrupt(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::with(ErrorKind::Io, "read", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_comes_back_from_its_bytes() {
        let tables = [
            ChunkTable::uniform(),
            ChunkTable::new(Compression::Zstd, vec![1]),
            ChunkTable::new(Compression::Lz4, vec![0, 61_440, 7]),
            ChunkTable::new(Compression::Lz4, vec![5; CHUNKS_MAX]),
        ];
        for table in tables {
            assert_eq!(ChunkTable::from_bytes(&table.to_bytes()), Ok(table));
        }
        assert!(ChunkTable::uniform().to_bytes().is_empty());
        assert_eq!(ChunkTable::new(Compression::Zstd, vec![0, 0]), ChunkTable::uniform());
    }

    #[test]
    fn bytes_of_no_table_are_refused() {
        let long = [[1].as_slice(), &[1; 2 * CHUNKS_MAX + 2]].concat();
        for bytes in
            [[0].as_slice(), &[1], &[2, 1], &[1, 1, 0, 1], &[0, 1, 0], &[3, 1, 0], &[255, 1, 0], &long]
        {
            assert_eq!(ChunkTable::from_bytes(bytes).unwrap_err().kind(), ErrorKind::Io, "{bytes:?}");
        }
    }

    #[test]
    fn a_table_of_another_extent_is_refused() {
        let table = ChunkTable::new(Compression::Zstd, vec![61_440, 94]);
        assert!(table.chunk(CHUNK + 101, 0).is_ok() && table.chunk(CHUNK + 101, 1).is_ok());
        assert!(table.chunk(CHUNK + 100, 1).is_err(), "the last one would have gained too little");
        assert!(table.chunk(CHUNK, 0).is_err(), "one chunk too many");
        assert!(table.chunk(2 * CHUNK + 1, 0).is_err(), "one too few");
        let table = ChunkTable::new(Compression::Zstd, vec![61_441]);
        assert!(table.chunk(CHUNK, 0).is_err());
    }
}
