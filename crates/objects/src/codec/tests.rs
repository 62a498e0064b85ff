//! What is written is read, and nothing else is.

mod hostile;
#[cfg(shuttle)]
mod schedules;
mod speed;

use proptest::prelude::*;

use super::*;

const UUID: [u8; 16] = *b"a volume's uuid!";
const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Zstd, Compression::Lz4];

/// A codec of each combination.
fn codecs() -> Vec<Codec> {
    let key = DataKey::random();
    let keys = [None, Some(&key)];
    let of_key = |key| COMPRESSIONS.map(|compression| Codec::new(UUID, compression, key));
    keys.into_iter().flat_map(of_key).collect()
}

/// Data of which a part shrinks and a part does not: each chunk, or less of it, is of one kind.
fn data(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) | 1;
    let mut next = move || {
        state = state.wrapping_mul(0x9E37_79B9).rotate_left(7) ^ 0x55;
        state.to_le_bytes()[0]
    };
    let run = 40_000;
    (0..len)
        .map(|at| if (at / run + usize::from(seed)) % 2 == 0 { next() } else { b"text "[at % 5] })
        .collect()
}

/// Reads a part of a stored extent as its reader does.
fn read(codec: &Codec, table: &ChunkTable, len: u32, stored: &[u8], part: Range<u32>) -> Result<Vec<u8>> {
    let (range, first) = codec.stored_range(table, len, part.clone())?;
    let fetched = stored.get(range.start as usize..range.end as usize);
    let fetched = fetched.ok_or_else(|| corrupt("the object is too short"))?;
    let mut out = vec![0xAA; part.len()];
    let read = codec.decode(table, len, first, fetched, part, &mut out);
    if read.is_err() {
        assert!(out.iter().all(|byte| *byte == 0), "other bytes after an error");
    }
    read.map(|()| out)
}

/// Reads an extent as a whole: all stored bytes are one answer of the bucket.
fn read_all(codec: &Codec, table: &ChunkTable, len: u32, stored: &[u8]) -> Result<Vec<u8>> {
    let (range, first) = codec.stored_range(table, len, 0..len)?;
    assert_eq!((range.start, first), (0, 0));
    let mut out = vec![0xAA; len as usize];
    let read = codec.decode(table, len, first, stored, 0..len, &mut out);
    assert!(read.is_ok() || out.iter().all(|byte| *byte == 0), "other bytes after an error");
    read.map(|()| out)
}

fn sizes() -> impl Strategy<Value = usize> {
    let chunk = CHUNK as usize;
    prop_oneof![1..200_usize, chunk - 2..chunk + 3, 1..4 * chunk, 3 * chunk..=3 * chunk]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each part of an extent is read alone, from the bytes that were asked for.
    #[test]
    fn a_part_is_what_was_written(len in sizes(), seed: u8, parts in prop::collection::vec((any::<u32>(), any::<u32>()), 4)) {
        let plain = data(len, seed);
        let len = len_of(&plain);
        for codec in codecs() {
            let (stored, table) = codec.encode(&plain);
            let table = ChunkTable::from_bytes(&table.to_bytes()).unwrap();
            prop_assert_eq!(&read_all(&codec, &table, len, &stored).unwrap(), &plain);
            for (from, to) in &parts {
                let (from, to) = (from % (len + 1), to % (len + 1));
                let part = from.min(to)..from.max(to);
                let expected = &plain[part.start as usize..part.end as usize];
                prop_assert_eq!(read(&codec, &table, len, &stored, part).unwrap(), expected);
            }
        }
    }

    /// A blob comes back in its context and in no other.
    #[test]
    fn a_blob_is_what_was_sealed(plain: Vec<u8>, context: Vec<u8>, other: Vec<u8>) {
        for codec in codecs() {
            let stored = codec.seal(&context, &plain);
            prop_assert_eq!(stored.len(), plain.len() + codec.overhead());
            prop_assert_eq!(&codec.open(&context, &stored).unwrap(), &plain);
            if context != other {
                prop_assert!(codec.open(&other, &stored).is_err());
            }
        }
    }
}

#[test]
fn the_longest_extent_comes_back_and_its_table_is_small() {
    let plain = data(EXTENT_MAX as usize, 3);
    for codec in codecs() {
        let (stored, table) = codec.encode(&plain);
        assert!(table.to_bytes().len() <= 257);
        assert_eq!(read_all(&codec, &table, EXTENT_MAX, &stored).unwrap(), plain);
    }
}

#[test]
#[should_panic(expected = "too long")]
fn a_longer_extent_is_not_written() {
    let _ = codecs()[0].encode(&vec![0; EXTENT_MAX as usize + 1]);
}

#[test]
fn without_compression_a_chunk_has_a_constant_overhead() {
    let key = DataKey::random();
    for (key, overhead) in [(None, 4), (Some(&key), 44)] {
        let codec = Codec::new(UUID, Compression::None, key);
        let plain = data(3 * CHUNK as usize + 1, 0);
        let (stored, table) = codec.encode(&plain);
        assert_eq!((stored.len(), table), (plain.len() + 4 * overhead, ChunkTable::uniform()));
        let step = CHUNK + u32::try_from(overhead).unwrap();
        let range = codec.stored_range(&ChunkTable::uniform(), len_of(&plain), CHUNK + 1..2 * CHUNK + 1);
        assert_eq!(range.unwrap(), (step..3 * step, 1));
    }
}

#[test]
fn compression_and_encryption_do_what_they_are_for() {
    let plain = b"a line of a text. ".repeat(10_000);
    for codec in codecs() {
        let (stored, table) = codec.encode(&plain);
        let is_compressed = codec.0.compression != Compression::None;
        assert_eq!(stored.len() < plain.len() / 10, is_compressed);
        assert_eq!(table == ChunkTable::uniform(), !is_compressed);
        let is_seen = stored.windows(8).any(|window| window == b"line of ");
        assert_eq!(is_seen, !codec.is_encrypted());
        let twice = codec.encode(&plain).0 == stored;
        assert_eq!(twice, !codec.is_encrypted(), "a nonce is used once");
    }
}

#[test]
fn a_volume_reads_what_it_wrote_before_its_compression_was_changed() {
    let plain = data(100_000, 1);
    let all = codecs();
    for of_key in all.chunks(3) {
        for (writer, reader) in of_key.iter().flat_map(|one| of_key.iter().map(move |other| (one, other))) {
            let (stored, table) = writer.encode(&plain);
            assert_eq!(read_all(reader, &table, 100_000, &stored).unwrap(), plain);
        }
    }
}

#[test]
fn another_volume_s_data_and_another_key_s_are_errors() {
    let plain = data(1000, 0);
    for compression in COMPRESSIONS {
        let key = DataKey::random();
        for key in [None, Some(&key)] {
            let codec = Codec::new(UUID, compression, key);
            let (stored, table) = codec.encode(&plain);
            let blob = codec.seal(b"", &plain);
            let others = [
                Codec::new(*b"another's uuid!!", compression, key),
                Codec::new(UUID, compression, Some(&DataKey::random())),
            ];
            for other in others {
                assert!(read_all(&other, &table, 1000, &stored).is_err());
                assert!(other.open(b"", &blob).is_err());
            }
        }
    }
}

#[test]
fn an_error_names_the_chunk() {
    let plain = data(3 * CHUNK as usize, 0);
    for codec in codecs() {
        let (stored, table) = codec.encode(&plain);
        let mut stored = stored.to_vec();
        let (second, _) = codec.stored_range(&table, len_of(&plain), CHUNK..2 * CHUNK).unwrap();
        stored[second.start as usize + 30] ^= 1;
        let error = read_all(&codec, &table, len_of(&plain), &stored).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.detail(), Some("chunk 1 of 3 is corrupted: its checksum differs"));
        let last = read(&codec, &table, len_of(&plain), &stored, 2 * CHUNK..3 * CHUNK).unwrap();
        assert_eq!(last, plain[2 * CHUNK as usize..], "the others are read");
    }
}

#[test]
fn a_caller_s_mistakes_are_errors() {
    let codec = &codecs()[0];
    let plain = data(100, 0);
    let (stored, table) = codec.encode(&plain);
    assert!(codec.stored_range(&table, 100, 0..101).is_err());
    assert!(codec.stored_range(&table, u32::MAX, 0..1).is_err());
    let backwards = Range { start: 2, end: 1 };
    assert!(codec.stored_range(&table, 100, backwards).is_err());
    assert!(codec.decode(&table, 100, 1, &stored, 0..100, &mut [0; 100]).is_err());
    assert!(codec.decode(&table, 100, 0, &stored, 0..100, &mut [0; 99]).is_err());
    assert_eq!(codec.stored_range(&table, 100, 5..5).unwrap(), (0..0, 0));
    assert_eq!(codec.decode(&table, 100, 0, &[], 5..5, &mut []), Ok(()));
    assert_eq!(codec.encode(&[]), (Bytes::new(), ChunkTable::uniform()));
}
