//! The locks of one file: who holds what, and who would be in the way of a wish.

use std::collections::{BTreeMap, BTreeSet};

use super::ranges::{END, Ranges};
use crate::{Lock, LockFamily, LockKind};

/// The locks of one family on one file.
#[derive(Debug, Default)]
pub(super) struct Holders {
    by_owner: BTreeMap<u64, Ranges>,
    /// Numbers of the wishes that wait, each under one owner that is in its way.
    waiting: BTreeMap<u64, BTreeSet<u64>>,
}

impl Holders {
    pub(super) fn is_empty(&self) -> bool {
        self.by_owner.is_empty() && self.waiting.is_empty()
    }

    /// Ranges held by `owner`.
    pub(super) fn len_of(&self, owner: u64) -> usize {
        self.by_owner.get(&owner).map_or(0, Ranges::len)
    }

    /// Ranges that `owner` would hold after [`put`](Self::put).
    pub(super) fn len_after(&self, owner: u64, start: u64, end: u64, new: Option<LockKind>) -> usize {
        match self.by_owner.get(&owner) {
            Some(ranges) => ranges.len_after(start, end, new),
            None => usize::from(new.is_some()),
        }
    }

    /// The owners whose locks are in the way of `wish`.
    pub(super) fn in_the_way(&self, wish: &Lock) -> impl Iterator<Item = u64> {
        // A reader is only in the way of a writer.
        let kind = (wish.kind == LockKind::Read).then_some(LockKind::Write);
        let (owner, start, end) = (wish.owner, wish.start, wish.end);
        self.by_owner
            .iter()
            .filter(move |(o, ranges)| **o != owner && ranges.overlapping(start, end, kind).is_some())
            .map(|(&o, _)| o)
    }

    /// Of the locks in the way of `wish`, the one that begins first.
    pub(super) fn first_in_the_way(&self, wish: &Lock) -> Option<Lock> {
        let kind = (wish.kind == LockKind::Read).then_some(LockKind::Write);
        self.by_owner
            .iter()
            .filter(|(owner, _)| **owner != wish.owner)
            .filter_map(|(&owner, ranges)| Some((owner, ranges.overlapping(wish.start, wish.end, kind)?)))
            .min_by_key(|(_, range)| range.start)
            .map(|(owner, range)| Lock {
                family: wish.family,
                kind: range.kind,
                start: range.start,
                end: range.end,
                owner,
                pid: range.pid,
            })
    }

    /// Whether `owner` holds exactly this already.
    pub(super) fn has(&self, wish: &Lock) -> bool {
        self.by_owner.get(&wish.owner).is_some_and(|ranges| {
            ranges
                .overlapping(wish.start, wish.end, None)
                .is_some_and(|r| r.kind == wish.kind && r.start <= wish.start && r.end >= wish.end)
        })
    }

    /// Lets a wish wait for `owner`, who is in its way.
    pub(super) fn park(&mut self, number: u64, owner: u64) {
        self.waiting.entry(owner).or_default().insert(number);
    }

    /// Ends that.
    pub(super) fn unpark(&mut self, number: u64, owner: u64) {
        if let Some(numbers) = self.waiting.get_mut(&owner) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.waiting.remove(&owner);
            }
        }
    }

    /// Takes out all that wait for `owner`.
    pub(super) fn take_waiting(&mut self, owner: u64) -> BTreeSet<u64> {
        self.waiting.remove(&owner).unwrap_or_default()
    }

    /// All that wait.
    pub(super) fn all_waiting(&self) -> impl Iterator<Item = u64> {
        self.waiting.values().flatten().copied()
    }

    /// Owners with locks.
    pub(super) fn owners(&self) -> usize {
        self.by_owner.len()
    }

    /// Locks or unlocks a range for `owner`; says whether somebody may have waited for that.
    pub(super) fn put(&mut self, owner: u64, start: u64, end: u64, new: Option<(LockKind, u32)>) -> bool {
        let ranges = self.by_owner.entry(owner).or_default();
        let is_less = ranges.put(start, end, new);
        if ranges.is_empty() {
            self.by_owner.remove(&owner);
        }
        is_less
    }
}

/// The locks of one file.
#[derive(Debug, Default)]
pub(super) struct FileLocks {
    posix: Holders,
    flock: Holders,
}

impl FileLocks {
    pub(super) fn is_empty(&self) -> bool {
        self.posix.is_empty() && self.flock.is_empty()
    }

    pub(super) fn of(&self, family: LockFamily) -> &Holders {
        match family {
            LockFamily::Posix => &self.posix,
            LockFamily::Flock => &self.flock,
        }
    }

    pub(super) fn of_mut(&mut self, family: LockFamily) -> &mut Holders {
        match family {
            LockFamily::Posix => &mut self.posix,
            LockFamily::Flock => &mut self.flock,
        }
    }

    /// Ranges held by anybody.
    pub(super) fn len(&self) -> usize {
        [&self.posix, &self.flock].into_iter().flat_map(|h| h.by_owner.values()).map(Ranges::len).sum()
    }
}

/// `lock` with the range that its family and the end of offsets give it.
pub(super) fn whole(lock: &Lock) -> Lock {
    match lock.family {
        LockFamily::Flock => Lock { start: 0, end: END, ..*lock },
        LockFamily::Posix if i64::try_from(lock.end).is_ok_and(|end| end < i64::MAX) => *lock,
        LockFamily::Posix => Lock { end: END, ..*lock },
    }
}
