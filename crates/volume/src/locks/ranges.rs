//! The byte ranges that one owner has locked in one file.

use crate::LockKind;

/// To the end of the file, however long it grows.
pub(super) const END: u64 = u64::MAX;

/// One locked range, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: LockKind,
    pub(super) pid: u32,
}

impl Range {
    /// Whether `next`, which lies behind, can be one with this.
    fn continues_in(&self, next: &Self) -> bool {
        self.kind == next.kind && self.end != END && self.end + 1 == next.start
    }
}

/// Ranges in order, none touching another of its kind, none overlapping.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<Range>);

impl Ranges {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first range that overlaps `[start, end]`, of `kind` if it is given.
    pub(super) fn overlapping(&self, start: u64, end: u64, kind: Option<LockKind>) -> Option<&Range> {
        self.between(start, end).iter().find(|r| kind.is_none_or(|k| k == r.kind))
    }

    /// All that overlap `[start, end]`.
    fn between(&self, start: u64, end: u64) -> &[Range] {
        let from = self.0.partition_point(|r| r.end < start);
        let to = self.0.partition_point(|r| r.start <= end);
        &self.0[from..to.max(from)]
    }

    /// How many ranges there would be after [`put`](Self::put) with these arguments.
    pub(super) fn len_after(&self, start: u64, end: u64, new: Option<LockKind>) -> usize {
        let from = self.0.partition_point(|r| r.end < start);
        let touched = self.between(start, end);
        let before = touched.first().filter(|r| r.start < start);
        let behind = touched.last().filter(|r| r.end > end);
        let parts = usize::from(before.is_some()) + usize::from(behind.is_some());
        let outside = self.0.len() - touched.len();
        let Some(kind) = new else { return outside + parts };
        // What the new range becomes one with: the rest of a range it cuts, else a neighbour.
        let left = before.or_else(|| from.checked_sub(1).map(|i| &self.0[i]).filter(|r| r.end + 1 == start));
        let next = self.0.get(from + touched.len());
        let right = behind.or_else(|| next.filter(|r| end != END && end + 1 == r.start));
        let merged = [left, right].into_iter().flatten().filter(|r| r.kind == kind).count();
        outside + parts + 1 - merged
    }

    /// Locks `[start, end]` so, or unlocks it; what the owner had there goes. Says whether anything that
    /// others could wait for became less.
    pub(super) fn put(&mut self, start: u64, end: u64, new: Option<(LockKind, u32)>) -> bool {
        let from = self.0.partition_point(|r| r.end < start);
        let to = self.0.partition_point(|r| r.start <= end).max(from);
        let touched = &self.0[from..to];
        let before = touched.first().filter(|r| r.start < start).map(|r| Range { end: start - 1, ..*r });
        let behind = touched.last().filter(|r| r.end > end).map(|r| Range { start: end + 1, ..*r });
        let is_less = match new {
            None => !touched.is_empty(),
            Some((LockKind::Write, _)) => false,
            Some((LockKind::Read, _)) => touched.iter().any(|r| r.kind == LockKind::Write),
        };
        let middle = new.map(|(kind, pid)| Range { start, end, kind, pid });
        self.0.splice(from..to, [before, middle, behind].into_iter().flatten());
        self.merge(from.saturating_sub(1), from + 3);
        is_less
    }

    /// Makes one of neighbours of a kind, looking at the ranges `from..=to`.
    fn merge(&mut self, from: usize, to: usize) {
        let mut at = from;
        let mut pairs = to - from;
        while pairs > 0 && at + 1 < self.0.len() {
            pairs -= 1;
            if self.0[at].continues_in(&self.0[at + 1]) {
                self.0[at].end = self.0[at + 1].end;
                self.0.remove(at + 1);
            } else {
                at += 1;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn as_slice(&self) -> &[Range] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Read, Write};

    #[test]
    fn says_beforehand_how_many_there_will_be() {
        for (start, end) in
            [(0, 5), (3, 6), (10, 14), (5, 24), (4, 9), (12, 12), (15, 19), (25, END), (0, END)]
        {
            for new in [None, Some(Read), Some(Write)] {
                let mut ranges = Ranges::default();
                ranges.put(0, 3, Some((Write, 1)));
                ranges.put(10, 14, Some((Read, 1)));
                ranges.put(20, 24, Some((Write, 1)));
                let expected = ranges.len_after(start, end, new);
                ranges.put(start, end, new.map(|kind| (kind, 1)));
                assert_eq!(ranges.len(), expected, "{start}..={end} {new:?}");
            }
        }
    }

    fn shown(ranges: &Ranges) -> Vec<(u64, u64, LockKind)> {
        ranges.as_slice().iter().map(|r| (r.start, r.end, r.kind)).collect()
    }

    #[test]
    fn neighbours_of_a_kind_become_one() {
        let mut ranges = Ranges::default();
        for (start, end) in [(0, 9), (20, 29), (10, 19)] {
            assert!(!ranges.put(start, end, Some((Read, 1))));
        }
        assert_eq!(shown(&ranges), [(0, 29, Read)]);
        ranges.put(5, 40, Some((Read, 1)));
        assert_eq!(shown(&ranges), [(0, 40, Read)]);
        ranges.put(41, END, Some((Write, 1)));
        assert_eq!(shown(&ranges), [(0, 40, Read), (41, END, Write)]);
        assert!(ranges.put(41, END, Some((Read, 1))), "a downgrade lets others in");
        assert_eq!(shown(&ranges), [(0, END, Read)]);
    }

    #[test]
    fn a_hole_splits_and_another_kind_splits() {
        let mut ranges = Ranges::default();
        ranges.put(0, 99, Some((Write, 1)));
        assert_eq!(ranges.len_after(40, 59, None), 2);
        assert!(ranges.put(40, 59, None));
        assert_eq!(shown(&ranges), [(0, 39, Write), (60, 99, Write)]);
        assert_eq!(ranges.len_after(10, 19, Some(Read)), 4);
        assert!(ranges.put(10, 19, Some((Read, 1))));
        assert_eq!(shown(&ranges), [(0, 9, Write), (10, 19, Read), (20, 39, Write), (60, 99, Write)]);
        assert!(!ranges.put(0, 99, Some((Write, 1))), "an upgrade frees nothing");
        assert_eq!(shown(&ranges), [(0, 99, Write)]);
        assert!(!ranges.put(200, END, None), "nothing was there");
        assert!(ranges.put(0, END, None));
        assert!(ranges.is_empty());
    }

    #[test]
    fn the_largest_offsets_do_not_wrap() {
        let mut ranges = Ranges::default();
        ranges.put(END, END, Some((Write, 1)));
        ranges.put(0, 0, Some((Write, 1)));
        assert_eq!(shown(&ranges), [(0, 0, Write), (END, END, Write)]);
        ranges.put(1, END - 1, Some((Write, 1)));
        assert_eq!(shown(&ranges), [(0, END, Write)]);
        ranges.put(0, END - 1, None);
        assert_eq!(shown(&ranges), [(END, END, Write)]);
    }

    #[test]
    fn finds_what_overlaps() {
        let mut ranges = Ranges::default();
        ranges.put(10, 19, Some((Read, 1)));
        ranges.put(30, 39, Some((Write, 1)));
        let start = |start, end, kind| ranges.overlapping(start, end, kind).map(|r| r.start);
        assert_eq!(start(0, 9, None), None);
        assert_eq!(start(0, 10, None), Some(10));
        assert_eq!(start(19, 30, None), Some(10));
        assert_eq!(start(19, 30, Some(Write)), Some(30));
        assert_eq!(start(20, 29, None), None);
        assert_eq!(start(39, END, None), Some(30));
        assert_eq!(start(40, END, None), None);
    }
}
