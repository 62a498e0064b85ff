//! Stored bytes that lie in several pieces of memory, taken from the front.

/// The rest of such bytes.
pub(super) struct StoredPieces<'a, P> {
    pieces: &'a [P],
    /// Where the rest begins in the first piece.
    at: usize,
    /// What was taken last and lies in more than one piece.
    gathered: Vec<u8>,
}

impl<'a, P: AsRef<[u8]>> StoredPieces<'a, P> {
    pub(super) fn new(pieces: &'a [P]) -> Self {
        Self { pieces, at: 0, gathered: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.as_ref().len()).sum::<usize>() - self.at
    }

    /// The next `len` bytes, if there are so many. They are copied only where they lie in more than
    /// one piece.
    pub(super) fn take(&mut self, len: usize) -> Option<&[u8]> {
        while let Some((first, others)) = self.pieces.split_first()
            && first.as_ref().len() == self.at
        {
            (self.pieces, self.at) = (others, 0);
        }
        if let Some(first) = self.pieces.first()
            && let Some(taken) = first.as_ref()[self.at..].get(..len)
        {
            self.at += len;
            return Some(taken);
        }
        self.gathered.clear();
        while self.gathered.len() < len {
            let (first, others) = self.pieces.split_first()?;
            let rest = &first.as_ref()[self.at..];
            let part = &rest[..rest.len().min(len - self.gathered.len())];
            self.gathered.extend_from_slice(part);
            if part.len() == rest.len() {
                (self.pieces, self.at) = (others, 0);
            } else {
                self.at += part.len();
            }
        }
        Some(&self.gathered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_whatever_pieces_they_lie_in() {
        let all: Vec<u8> = (0..40).collect();
        for sizes in [&[40][..], &[1, 39], &[10, 0, 10, 20], &[3; 13], &[0, 0, 39, 1]] {
            let mut left = all.as_slice();
            let mut pieces: Vec<&[u8]> =
                sizes.iter().map(|len| left.split_off(..*len).expect("enough")).collect();
            pieces.push(left);
            for len in 1..=all.len() {
                let mut stored = StoredPieces::new(&pieces);
                for wanted in all.chunks_exact(len) {
                    assert_eq!(stored.take(len), Some(wanted), "{sizes:?}");
                }
                let rest = all.len() % len;
                assert_eq!(stored.len(), rest);
                assert_eq!(stored.take(rest + 1), None);
            }
        }
    }
}
