//! An extent on its way into its stored form, without a copy of what is stored as it is.

use bytes::{Bytes, BytesMut};

use super::CHUNK;

/// The chunks of an extent that lies in several pieces of memory. Only a chunk that lies in more than
/// one is copied.
#[derive(Debug)]
pub(super) struct Chunks<'a> {
    pieces: std::slice::Iter<'a, Bytes>,
    /// What is left of the piece that was reached.
    piece: Bytes,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(pieces: &'a [Bytes]) -> Self {
        Self { pieces: pieces.iter(), piece: Bytes::new() }
    }

    /// The rest of a piece, which is not empty.
    fn reach(&mut self) -> Option<&mut Bytes> {
        while self.piece.is_empty() {
            self.piece = self.pieces.next()?.clone();
        }
        Some(&mut self.piece)
    }
}

impl Iterator for Chunks<'_> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let chunk = CHUNK as usize;
        let piece = self.reach()?;
        if piece.len() >= chunk {
            return Some(piece.split_to(chunk));
        }
        let first = std::mem::take(piece);
        let Some(_more) = self.reach() else { return Some(first) };
        let mut gathered = BytesMut::with_capacity(chunk);
        gathered.extend_from_slice(&first);
        while gathered.len() < chunk
            && let Some(piece) = self.reach()
        {
            gathered.extend_from_slice(&piece.split_to(piece.len().min(chunk - gathered.len())));
        }
        Some(gathered.freeze())
    }
}

/// A stored form as it grows: bytes of its own, with bytes of others between them.
#[derive(Debug)]
pub(super) struct Encoded {
    /// Its own bytes, one behind the other.
    pub(super) own: Vec<u8>,
    /// Bytes of others, and before how many of its own these are.
    inserted: Vec<(usize, Bytes)>,
}

impl Encoded {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { own: Vec::with_capacity(bytes), inserted: Vec::new() }
    }

    /// Appends bytes that lie elsewhere.
    pub(super) fn insert(&mut self, bytes: Bytes) {
        self.inserted.push((self.own.len(), bytes));
    }

    /// All of it, in order.
    pub(super) fn parts(mut self) -> Vec<Bytes> {
        self.own.shrink_to_fit();
        let mut own = Bytes::from(self.own);
        let (mut parts, mut taken) = (Vec::with_capacity(2 * self.inserted.len() + 1), 0);
        for (at, bytes) in self.inserted {
            parts.push(own.split_to(at - taken));
            parts.push(bytes);
            taken = at;
        }
        parts.push(own);
        parts.retain(|part| !part.is_empty());
        parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn chunks_are_those_of_all_pieces_together(
            lens in prop::collection::vec(prop_oneof![0..200_usize, 60_000..140_000_usize], 0..6)
        ) {
            let pieces: Vec<Bytes> =
                lens.iter().zip(1_u8..).map(|(len, byte)| Bytes::from(vec![byte; *len])).collect();
            let whole = pieces.concat();
            let chunks: Vec<Bytes> = Chunks::new(&pieces).collect();
            prop_assert_eq!(chunks.len(), whole.len().div_ceil(CHUNK as usize));
            prop_assert!(chunks.iter().zip(whole.chunks(CHUNK as usize)).all(|(one, expected)| one == expected));
        }
    }

    #[test]
    fn a_chunk_of_one_piece_is_not_copied() {
        let piece = Bytes::from(vec![7; 3 * CHUNK as usize]);
        let chunks: Vec<Bytes> = Chunks::new(std::slice::from_ref(&piece)).collect();
        assert!(
            chunks.iter().zip(0..).all(|(one, at)| one.as_ptr() == piece[at * CHUNK as usize..].as_ptr())
        );
        let mut encoded = Encoded::with_capacity(8);
        encoded.insert(chunks[0].clone());
        encoded.own.extend_from_slice(b"sum");
        encoded.insert(chunks[1].clone());
        let parts = encoded.parts();
        assert_eq!(parts.concat(), [&chunks[0][..], b"sum", &chunks[1][..]].concat());
        assert!(parts[0].as_ptr() == piece.as_ptr() && parts.len() == 3);
    }
}
