//! Compression of a chunk.

use std::cell::RefCell;
use std::io;

use serde::{Deserialize, Serialize};
use zstd::bulk::{Compressor, Decompressor};

use crate::chunk_table::CHUNK;

/// zstd's level: as fast as a store is.
const LEVEL: i32 = 1;

/// How the extents of a volume are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// By zstd, level 1.
    #[default]
    Zstd,
    /// By LZ4.
    Lz4,
}

/// The bytes that `plain` bytes may have at most when they are compressed; with more they are
/// stored as they are. A sixteenth must be gained, for what each read of them then costs.
pub(crate) const fn limit(plain: usize) -> usize {
    plain - plain.div_ceil(16)
}

impl Compression {
    /// The byte that stands for it in a table.
    pub(crate) const fn to_byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zstd => 1,
            Self::Lz4 => 2,
        }
    }

    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            2 => Some(Self::Lz4),
            _ => None,
        }
    }

    /// Bytes that [`append`](Self::append) needs at most beside those of the plain chunk.
    pub(crate) fn slack(self) -> usize {
        match self {
            Self::None | Self::Zstd => 0,
            Self::Lz4 => lz4_flex::block::get_maximum_output_size(CHUNK as usize) - CHUNK as usize,
        }
    }

    /// Appends `plain` to `out`, compressed, if that gains enough; whether it did.
    #[must_use]
    pub(crate) fn append(self, plain: &[u8], out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let limit = limit(plain.len());
        // The LZ4 encoder asks for room for the worst case, zstd's gives up at the end of it.
        let room = match self {
            Self::None => return false,
            Self::Zstd => limit,
            Self::Lz4 => lz4_flex::block::get_maximum_output_size(plain.len()),
        };
        out.resize(start + room, 0);
        let body = &mut out[start..];
        let len = match self {
            Self::None => None,
            Self::Zstd => zstd_compress(plain, body).ok(),
            Self::Lz4 => lz4_flex::block::compress_into(plain, body).ok(),
        };
        let gained = len.filter(|len| (1..=limit).contains(len));
        out.truncate(start + gained.unwrap_or(0));
        gained.is_some()
    }

    /// Restores into `out`, which has the plain length; whether `body` has that many bytes in it,
    /// neither fewer nor more.
    #[must_use]
    pub(crate) fn restore(self, body: &[u8], out: &mut [u8]) -> bool {
        let len = match self {
            Self::None if body.len() == out.len() => {
                out.copy_from_slice(body);
                Some(body.len())
            }
            Self::None => None,
            Self::Zstd => zstd_decompress(body, out).ok(),
            Self::Lz4 => lz4_flex::block::decompress_into(body, out).ok(),
        };
        len == Some(out.len())
    }
}

/// Which chunks of an extent are worth an attempt: to find out that random bytes do not shrink takes
/// longer than to send them to a server nearby.
///
/// Behind a chunk that gained nothing, one whose sample looks random is stored as it is, but for each
/// [`TRIED`]th, which is tried whatever it looks like: bytes that occur equally often may repeat each
/// other.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Chunks without gain in a row.
    in_vain: u32,
}

/// See [`Attempts`].
const TRIED: u32 = 8;
/// Of each so many bytes of a chunk, the first [`SAMPLED`] are in its sample.
const STRIDE: usize = 256;
const SAMPLED: usize = 16;

impl Attempts {
    pub(crate) fn is_worth(&self, plain: &[u8]) -> bool {
        self.in_vain.is_multiple_of(TRIED) || !looks_random(plain)
    }

    pub(crate) const fn ended(&mut self, has_gained: bool) {
        self.in_vain = if has_gained { 0 } else { self.in_vain.wrapping_add(1) };
    }
}

/// Whether the bytes of a sample occur about equally often: their collision entropy is 7.86 bits or
/// more, so that an encoding of single bytes gains less than a sixteenth.
fn looks_random(plain: &[u8]) -> bool {
    let (mut counts, mut sampled) = ([0_u64; 256], 0_u64);
    for run in plain.chunks(STRIDE) {
        let run = &run[..SAMPLED.min(run.len())];
        run.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        sampled += run.len() as u64;
    }
    // What is expected of random bytes, and a tenth more. A short sample says too little, and a short
    // chunk is soon tried.
    let random = sampled + sampled * sampled.saturating_sub(1) / 256;
    let found: u64 = counts.iter().map(|count| count * count).sum();
    sampled >= 4 * 256 && found * 10 <= random * 11
}

// A context is some hundred kilobytes that the library fills anew for each: a thread keeps one.
thread_local! {
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn zstd_compress(plain: &[u8], out: &mut [u8]) -> io::Result<usize> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            None => kept.insert(Compressor::new(LEVEL)?),
        };
        compressor.compress_to_buffer(plain, out)
    })
}

fn zstd_decompress(body: &[u8], out: &mut [u8]) -> io::Result<usize> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new()?),
        };
        decompressor.decompress_to_buffer(body, out)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 3] = [Compression::None, Compression::Zstd, Compression::Lz4];

    #[test]
    fn what_does_not_shrink_by_a_sixteenth_is_stored_as_it_is() {
        for compression in ALL {
            for len in [1_usize, 2, 15, 16, 17, 1000, 65_536] {
                let mut noise = vec![0; len];
                crate::crypto::random(&mut noise);
                let mut out = b"before".to_vec();
                assert!(!compression.append(&noise, &mut out));
                assert_eq!(out, b"before");
            }
        }
        assert_eq!((limit(1), limit(16), limit(17), limit(65_536)), (0, 15, 15, 61_440));
    }

    #[test]
    fn what_shrinks_comes_back_and_has_no_other_length() {
        for compression in [Compression::Zstd, Compression::Lz4] {
            let plain = b"much of the same, ".repeat(100);
            let mut out = b"before".to_vec();
            assert!(compression.append(&plain, &mut out));
            let body = &out[6..];
            assert!(body.len() < plain.len() / 4);
            let mut back = vec![0; plain.len()];
            assert!(compression.restore(body, &mut back));
            assert_eq!(back, plain);
            assert!(!compression.restore(body, &mut vec![0; plain.len() - 1]));
            assert!(!compression.restore(body, &mut vec![0; plain.len() + 1]));
            assert!(!compression.restore(&body[..body.len() - 1], &mut back));
            assert!(!compression.restore(&[], &mut back));
        }
    }

    #[test]
    fn random_chunks_are_tried_now_and_then_and_others_always() {
        let mut noise = vec![0; CHUNK as usize];
        crate::crypto::random(&mut noise);
        let text = b"much of the same, ".repeat(4000);
        let mut attempts = Attempts::default();
        let tried: Vec<bool> = std::iter::from_fn(|| {
            let is_worth = attempts.is_worth(&noise);
            attempts.ended(false);
            Some(is_worth)
        })
        .take(17)
        .collect();
        let expected: Vec<bool> = (0..17).map(|at| at % 8 == 0).collect();
        assert_eq!(tried, expected);
        assert!(attempts.is_worth(&text) && attempts.is_worth(&text[..100]));
        attempts.ended(true);
        assert!(attempts.is_worth(&noise), "it follows one that gained");
        // Each byte as often as any other, and six bits of eight in it.
        let mut little: Vec<u8> = noise.iter().map(|byte| byte & 0x3f).collect();
        assert!(!looks_random(&little));
        little.truncate(1000);
        assert!(!looks_random(&little) && !looks_random(&[]));
    }

    #[test]
    fn a_byte_stands_for_each() {
        for compression in ALL {
            assert_eq!(Compression::from_byte(compression.to_byte()), Some(compression));
        }
        assert!((3..=255).all(|byte| Compression::from_byte(byte).is_none()));
        assert_eq!(serde_json::to_string(&ALL).unwrap(), r#"["none","zstd","lz4"]"#);
    }
}
