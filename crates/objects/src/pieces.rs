//! Data of one file that was written and has no extent yet.

use std::collections::BTreeMap;

use bytes::Bytes;

/// A part of a file.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) data: Bytes,
    /// The round that takes it to the bucket; the current one takes no pieces yet.
    round: u64,
}

/// What a round takes.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) round: u64,
    pub(crate) pieces: Vec<(u64, Bytes)>,
    /// Bytes that were written in it, also those written over since.
    pub(crate) bytes: u64,
    /// Whose room they take.
    pub(crate) tenant: u64,
}

/// All pieces of a file; none overlaps another.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    by_start: BTreeMap<u64, Piece>,
    /// The round of what is written now.
    current: u64,
    /// Bytes that were written in the current round, also those written over since.
    bytes: u64,
    /// Whose room these take.
    tenant: u64,
    /// How often something was written or cut in the current round.
    changes: usize,
}

impl Pieces {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Bytes that no round has taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes that no round has taken: it takes no more than twice as many pieces.
    pub(crate) fn writes(&self) -> usize {
        self.changes
    }

    /// Whether what no round has taken is of another tenant.
    pub(crate) fn are_of_another(&self, tenant: u64) -> bool {
        self.bytes > 0 && self.tenant != tenant
    }

    /// Adds data of the tenant whose data no round has taken, if there is some.
    pub(crate) fn write(&mut self, start: u64, data: Bytes, tenant: u64) {
        debug_assert!(!self.are_of_another(tenant), "a round has data of one tenant");
        self.cut(start, start + data.len() as u64);
        self.bytes += data.len() as u64;
        self.tenant = tenant;
        self.by_start.insert(start, Piece { data, round: self.current });
    }

    /// Takes `start..end` out.
    pub(crate) fn cut(&mut self, start: u64, end: u64) {
        self.changes += 1;
        let before = self.by_start.range(..start).next_back().map(|(at, piece)| (*at, piece.data.len()));
        let first = before.filter(|(at, len)| at + *len as u64 > start).map_or(start, |(at, _)| at);
        let touched: Vec<u64> = self.by_start.range(first..end).map(|(at, _)| *at).collect();
        for at in touched {
            let Some(piece) = self.by_start.remove(&at) else { continue };
            let piece_end = at + piece.data.len() as u64;
            let part = |from: u64, to: u64| Piece {
                data: piece.data.slice(index(from - at)..index(to - at)),
                round: piece.round,
            };
            if at < start {
                self.by_start.insert(at, part(at, start));
            }
            if piece_end > end {
                self.by_start.insert(end, part(end, piece_end));
            }
        }
    }

    /// Whether any begins before `size`.
    pub(crate) fn have_before(&self, size: u64) -> bool {
        self.by_start.range(..size).next().is_some()
    }

    /// Drops what lies behind `size` and no round has taken.
    pub(crate) fn cut_current(&mut self, size: u64) {
        let current = self.current;
        let behind: Vec<u64> = self.by_start.range(size..).map(|(at, _)| *at).collect();
        for at in behind {
            if self.by_start.get(&at).is_some_and(|piece| piece.round == current) {
                self.by_start.remove(&at);
            }
        }
        if let Some((at, piece)) = self.by_start.range_mut(..size).next_back()
            && piece.round == current
        {
            piece.data.truncate(usize::try_from(size - at).unwrap_or(usize::MAX));
        }
    }

    /// Ends the current round; `None`: nothing was written in it.
    pub(crate) fn take(&mut self) -> Option<Taken> {
        let round = self.current;
        let of_round = self.by_start.iter().filter(|(_, piece)| piece.round == round);
        let pieces: Vec<_> = of_round.map(|(at, piece)| (*at, piece.data.clone())).collect();
        let bytes = std::mem::take(&mut self.bytes);
        self.changes = 0;
        if pieces.is_empty() && bytes == 0 {
            return None;
        }
        self.current += 1;
        Some(Taken { round, pieces, bytes, tenant: self.tenant })
    }

    /// The round that was taken last, as the number of rounds so far.
    pub(crate) fn rounds(&self) -> u64 {
        self.current
    }

    /// Drops what the round took: it has extents now.
    pub(crate) fn end(&mut self, round: u64) {
        self.by_start.retain(|_, piece| piece.round != round);
    }

    /// Copies what lies in `start..` into `out`; returns the parts that are not here.
    pub(crate) fn read(&self, start: u64, out: &mut [u8]) -> Vec<(u64, u64)> {
        let end = start + out.len() as u64;
        let before = self.by_start.range(..start).next_back().map(|(at, _)| *at).unwrap_or(start);
        let (mut missing, mut at) = (Vec::new(), start);
        for (piece_start, piece) in self.by_start.range(before..end) {
            let piece_end = piece_start + piece.data.len() as u64;
            if piece_end <= at {
                continue;
            }
            if *piece_start > at {
                missing.push((at, *piece_start));
            }
            let (from, to) = (at.max(*piece_start), piece_end.min(end));
            out[index(from - start)..index(to - start)]
                .copy_from_slice(&piece.data[index(from - piece_start)..index(to - piece_start)]);
            at = to;
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }
}

/// An offset inside memory.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("inside a buffer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_read_as_an_array_would(
            steps in prop::collection::vec((0u64..64, 1u64..24, any::<u8>(), 0u8..4), 1..60)
        ) {
            let (mut pieces, mut model) = (Pieces::default(), [None; 100]);
            let mut taken = Vec::new();
            for (start, len, byte, step) in steps {
                let range = index(start)..index(start + len);
                match step {
                    0 => {
                        pieces.cut(start, start + len);
                        model[range].fill(None);
                    }
                    1 => if let Some(round) = pieces.take() {
                        taken.push(round.round);
                    },
                    _ => {
                        pieces.write(start, Bytes::from(vec![byte; index(len)]), 0);
                        model[range].fill(Some((byte, pieces.rounds())));
                    }
                }
                let mut out = [0; 100];
                let missing = pieces.read(0, &mut out);
                for (at, there) in model.iter().enumerate() {
                    let is_missing = missing.iter().any(|(s, e)| (*s..*e).contains(&(at as u64)));
                    prop_assert_eq!(is_missing, there.is_none());
                    if let Some((byte, _)) = there {
                        prop_assert_eq!(out[at], *byte);
                    }
                }
            }
            for round in taken {
                pieces.end(round);
                model.iter_mut().for_each(|there| if there.is_some_and(|(_, r)| r == round) { *there = None });
            }
            let missing = pieces.read(0, &mut [0; 100]);
            let held: u64 = 100 - missing.iter().map(|(s, e)| e - s).sum::<u64>();
            prop_assert_eq!(held, model.iter().flatten().count() as u64);
        }
    }
}
