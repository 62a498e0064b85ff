//! Bytes of a bucket that somebody else wrote.

use super::*;

/// Every bit of a stored extent and of a blob is covered by a check.
#[test]
pub(super) fn each_bit_that_flips_is_found() {
    let small = data(40, 1);
    let text = b"text ".repeat(60);
    for codec in codecs() {
        for plain in [&small, &text] {
            let (stored, table) = codec.encode(plain);
            for bit in 0..8 * stored.len() {
                let mut stored = stored.to_vec();
                stored[bit / 8] ^= 1 << (bit % 8);
                let read = read_all(&codec, &table, len_of(plain), &stored);
                assert!(read.is_err(), "bit {bit} flipped, and {codec:?} did not object");
            }
            let blob = codec.seal(b"context", plain);
            for bit in 0..8 * blob.len() {
                let mut blob = blob.to_vec();
                blob[bit / 8] ^= 1 << (bit % 8);
                assert!(codec.open(b"context", &blob).is_err(), "bit {bit} of a blob flipped");
            }
        }
    }
}

/// Every bit of a table is one that a read misses.
#[test]
fn each_bit_of_a_table_that_flips_is_found() {
    let plain = data(3 * CHUNK as usize, 0);
    for codec in codecs().iter().filter(|codec| codec.0.compression != Compression::None) {
        let (stored, table) = codec.encode(&plain);
        let bytes = table.to_bytes();
        assert!(!bytes.is_empty());
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let table = ChunkTable::from_bytes(&bytes);
            let read = table.and_then(|table| read_all(codec, &table, len_of(&plain), &stored));
            assert!(read.is_err(), "bit {bit} of the table flipped");
        }
    }
}

/// A chunk is read in its place alone: chunks that changed places, an extent that was cut, and one
/// that was extended are errors; with a key also when each chunk was given the checksum of its new
/// place.
#[test]
pub(super) fn a_chunk_is_read_in_its_place_alone() {
    let chunk = CHUNK as usize;
    let plain = [vec![1; chunk], vec![2; chunk], vec![3; chunk]].concat();
    for codec in codecs() {
        let (stored, table) = codec.encode(&plain);
        let step = stored.len() / 3;
        let pieces: Vec<_> = stored.chunks(step).collect();
        let (shorter, _) = codec.encode(&plain[..2 * chunk]);
        for (what, stored, chunks) in [
            ("chunks that changed places", [pieces[1], pieces[0], pieces[2]].concat(), 3),
            ("an extent that was cut", [pieces[0], pieces[1]].concat(), 2),
            ("an extent that was extended", [&shorter[..], pieces[2]].concat(), 3),
        ] {
            let (len, table) = (CHUNK * chunks, table_of(&table, chunks));
            assert!(read_all(&codec, &table, len, &stored).is_err(), "read: {what}");
            let mut forged = stored;
            (0..chunks).for_each(|index| recalculate(&codec, &table, len, index, &mut forged));
            let is_read = read_all(&codec, &table, len, &forged).is_ok();
            assert!(!is_read || !codec.is_encrypted(), "read: {what}, with checksums calculated anew");
        }
    }
}

/// The table of the first chunks of an extent.
fn table_of(table: &ChunkTable, chunks: u32) -> ChunkTable {
    let bytes = table.to_bytes();
    let cut = if bytes.is_empty() { &bytes } else { &bytes[..1 + 2 * chunks as usize] };
    ChunkTable::from_bytes(cut).unwrap()
}

/// Gives a chunk the checksum of its place, as anybody can.
fn recalculate(codec: &Codec, table: &ChunkTable, len: u32, index: u32, stored: &mut [u8]) {
    let begin = index * CHUNK;
    let (range, _) = codec.stored_range(table, len, begin..(begin + CHUNK).min(len)).unwrap();
    let bound_to = codec.bind_chunk(len, index, table.chunk(len, index).unwrap().compression);
    let piece = &mut stored[range.start as usize..range.end as usize];
    let (sealed, crc) = piece.split_last_chunk_mut::<CRC_LEN>().unwrap();
    *crc = crc_of(&bound_to, sealed).to_le_bytes();
}

#[test]
fn bytes_that_are_missing_or_too_many_are_errors() {
    let plain = data(CHUNK as usize + 100, 0);
    let len = len_of(&plain);
    for codec in codecs() {
        let (stored, table) = codec.encode(&plain);
        let mut longer = stored.to_vec();
        longer.push(0);
        for wrong in [&longer[..], &stored[..stored.len() - 1], &stored[1..], &[]] {
            assert!(read_all(&codec, &table, len, wrong).is_err());
        }
        assert!(read_all(&codec, &table, len - 1, &stored).is_err(), "a row with another length");
        assert!(read_all(&codec, &table, len + 1, &stored).is_err());
        let blob = codec.seal(b"context", &plain[..100]);
        for cut in 0..blob.len() {
            assert!(codec.open(b"context", &blob[..cut]).is_err());
        }
    }
}

/// A chunk that restores to another length than its row says is an error, whatever its checksum.
#[test]
fn a_chunk_of_another_length_is_an_error() {
    let text = b"text ".repeat(200);
    for compression in [Compression::Zstd, Compression::Lz4] {
        let codec = Codec::new(UUID, compression, None);
        let (stored, table) = codec.encode(&text);
        for len in [500_u32, 999, 1001, 60_000] {
            let mut forged = stored.to_vec();
            recalculate(&codec, &table, len, 0, &mut forged);
            let error = read_all(&codec, &table, len, &forged).unwrap_err();
            assert!(error.detail().unwrap().contains("does not have the length"), "{error}");
        }
        // Bytes that no encoder made.
        let mut forged = vec![0xF0; stored.len()];
        recalculate(&codec, &table, 1000, 0, &mut forged);
        assert!(read_all(&codec, &table, 1000, &forged).is_err());
    }
}

/// Random changes of an extent, of its table and of what a reader asks, for
/// `WATERTIGHT_CODEC_SECONDS` (60): never a panic, never other bytes. It prints its seed, which
/// `WATERTIGHT_CODEC_SEED` sets.
///
/// `cargo test -p watertight-objects --lib codec::tests::hostile -- --ignored --nocapture`
#[test]
#[ignore = "runs for a minute"]
fn nothing_that_changed_is_read_as_other_bytes() {
    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seconds = variable("WATERTIGHT_CODEC_SECONDS").unwrap_or(60);
    let seed = variable("WATERTIGHT_CODEC_SEED").unwrap_or_else(|| {
        let mut seed = [0; 8];
        crypto::random(&mut seed);
        u64::from_le_bytes(seed)
    });
    println!("WATERTIGHT_CODEC_SEED={seed}");
    let mut random = Random(seed | 1);
    let codecs = codecs();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    let (mut rounds, mut read_right) = (0_u64, 0_u64);
    while std::time::Instant::now() < end {
        let codec = &codecs[random.below(codecs.len())];
        let len = [1, 40, 3000, CHUNK as usize - 1, CHUNK as usize, CHUNK as usize * 3][random.below(6)];
        let plain = data(1 + random.below(len), random.byte());
        let (stored, table) = codec.encode(&plain);
        for _ in 0..50 {
            let is_read = read_changed(codec, &plain, stored.to_vec(), table.to_bytes(), &mut random);
            (rounds, read_right) = (rounds + 1, read_right + u64::from(is_read));
        }
    }
    println!("{rounds} rounds, {read_right} of them read what was written");
    assert!(0 < read_right && read_right < rounds);
}

/// Changes what was stored, and reads a part of it; whether it was read.
fn read_changed(codec: &Codec, plain: &[u8], stored: Vec<u8>, table: Vec<u8>, random: &mut Random) -> bool {
    let (mut stored, mut table, mut len) = (stored, table, len_of(plain));
    for _ in 0..random.below(3) {
        random.change(&mut stored);
    }
    if random.below(2) == 0 {
        random.change(&mut table);
    }
    if random.below(4) == 0 {
        let near = len.wrapping_add(u32::from(random.byte())).wrapping_sub(128);
        len = [random.number(), near, CHUNK, EXTENT_MAX][random.below(4)];
    }
    // Also parts that end before they begin, or behind the end of the extent.
    let (from, to) = (random.number() % len.max(1), random.number() % len.max(1));
    let part = [0..len, from..to, from..from.saturating_add(4096)][random.below(3)].clone();
    let part = part.start..part.end.min(part.start.saturating_add(EXTENT_MAX));
    let Ok(table) = ChunkTable::from_bytes(&table) else { return false };
    let Ok(out) = read(codec, &table, len, &stored, part.clone()) else { return false };
    let written = plain.get(part.start as usize..part.end as usize);
    assert!(out.is_empty() || written == Some(&out[..]), "other bytes");
    !out.is_empty()
}

/// Random numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn number(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    fn below(&mut self, end: usize) -> usize {
        self.number() as usize % end
    }

    /// One change: a bit or a byte, bytes that are gone, zeroed, moved or doubled.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        if len == 0 {
            return bytes.extend((0..1 + 2 * self.below(200)).map(|_| self.byte()));
        }
        let (from, to) = (self.below(len), self.below(len));
        let (from, to) = (from.min(to), from.max(to));
        match self.below(7) {
            0 => bytes[from] ^= 1 << self.below(8),
            1 => bytes[from] = self.byte(),
            2 => bytes.truncate(from),
            3 => drop(bytes.drain(from..to)),
            4 => bytes[from..to].fill(0),
            5 => bytes.rotate_left(from),
            _ => bytes.extend_from_within(from..to),
        }
    }
}
