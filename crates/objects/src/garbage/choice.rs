//! Which objects are repacked: the emptiest, until little of what is in the bucket is dead.

use std::collections::{BTreeSet, BinaryHeap};

use crate::rows::{Object, Usage};

/// Objects that are chosen at a time: more than a volume writes between two passes in which each
/// fsync is an object of the log, for some ten of them a second.
const CHOSEN_MAX: usize = 4096;
/// What is dead in objects that are in use, at most, in parts of what is alive: one of five.
const DEAD_PART: u64 = 5;
/// Of an object that is repacked, so many of a thousand bytes are alive at most.
const ALIVE_PERMILLE_MAX: u64 = 900;
/// Dead bytes of the log's objects for which no table is written before its time.
const DEAD_WITHOUT_TABLES: u64 = 1 << 20;
/// Bytes that are moved at a time, beside as many as are dead.
const MOVED_BYTES: u64 = 256 << 20;

/// What was seen of all objects that are in use.
#[derive(Debug, Default)]
pub(super) struct Choice {
    live: u64,
    dead: u64,
    /// Dead bytes of the log's objects whose rows are not in tables yet.
    dead_without_tables: u64,
    /// The emptiest: how many of a thousand bytes are alive, how many bytes, and which it is.
    emptiest: BinaryHeap<(u64, u64, Object)>,
}

impl Choice {
    /// An object of the log that stays because its rows are not in tables.
    pub(super) fn see_without_tables(&mut self, object: Object, usage: Usage) {
        let before = self.dead;
        self.see(object, usage, false);
        self.dead_without_tables += self.dead - before;
    }

    pub(super) fn see(&mut self, object: Object, usage: Usage, is_movable: bool) {
        let number = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        let (live, written) = (number(usage.live), number(usage.written));
        self.live += live;
        self.dead += written.saturating_sub(live);
        if live == 0 || written <= live || !is_movable {
            return;
        }
        let permille = live.saturating_mul(1000) / written;
        if permille > ALIVE_PERMILLE_MAX {
            return;
        }
        self.emptiest.push((permille, live, object));
        if self.emptiest.len() > CHOSEN_MAX {
            self.emptiest.pop();
        }
    }

    /// The most dead bytes that are left in objects which stay.
    fn goal(&self, left_alone: u64) -> u64 {
        left_alone.max(self.live / DEAD_PART)
    }

    /// Whether tables are worth writing, so that objects of the log can go that are dead, or be
    /// repacked.
    pub(super) fn wants_tables(&self, left_alone: u64) -> bool {
        self.dead > self.goal(left_alone) && self.dead_without_tables > DEAD_WITHOUT_TABLES
    }

    /// Those that are to be repacked, if more than `left_alone` bytes are dead.
    pub(super) fn chosen(self, left_alone: u64) -> BTreeSet<Object> {
        let (mut dead, mut moved, goal) = (self.dead, 0, self.goal(left_alone));
        let mut chosen = BTreeSet::new();
        for (permille, live, object) in self.emptiest.into_sorted_vec() {
            if dead <= goal || moved > MOVED_BYTES + self.dead {
                break;
            }
            dead = dead.saturating_sub(live * 1000 / permille.max(1) - live);
            moved += live;
            chosen.insert(object);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(usages: &[(i64, i64)]) -> Choice {
        let mut choice = Choice::default();
        for (number, (live, written)) in (0..).zip(usages) {
            let usage = Usage { live: *live, written: *written };
            choice.see(Object::Segment(1, number), usage, number != 5);
        }
        choice
    }

    #[test]
    fn the_emptiest_are_chosen_until_little_is_dead() {
        let segments = |numbers: &[u64]| numbers.iter().map(|n| Object::Segment(1, *n)).collect();
        let nothing: BTreeSet<Object> = BTreeSet::new();
        assert_eq!(seen(&[(1000, 1000), (0, 900)]).chosen(900), nothing, "what is all dead goes by itself");
        assert_eq!(seen(&[(1000, 1000), (100, 300)]).chosen(0), nothing, "one of five is dead");
        assert_eq!(seen(&[(500, 1000), (100, 1000), (990, 1000)]).chosen(0), segments(&[0, 1]));
        assert_eq!(seen(&[(9000, 10_000), (100, 1000), (800, 1000)]).chosen(0), segments(&[1]));
        assert_eq!(seen(&[(500, 1000), (100, 1000)]).chosen(1400), nothing);
        let unmovable: &[_] = &[(9, 9), (9, 9), (9, 9), (9, 9), (9, 9), (100, 1000)];
        assert_eq!(seen(unmovable).chosen(0), nothing);
        assert_eq!(seen(&[(5, 0), (-5, 10)]).chosen(0), nothing, "counts of an early build");
    }
}
