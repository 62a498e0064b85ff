//! Which objects are repacked: the emptiest, until little of what is in the bucket is dead.

use std::collections::{BTreeSet, BinaryHeap};

use crate::rows::{Object, Usage};

/// Objects that are chosen at a time.
const CHOSEN_MAX: usize = 256;
/// What is dead in objects that are in use, at most, in parts of what is alive: one of five.
const DEAD_PART: u64 = 5;
/// Of an object that is repacked, so many of a thousand bytes are alive at most.
const ALIVE_PERMILLE_MAX: u64 = 900;
/// Bytes that are moved at a time, beside as many as are dead.
const MOVED_BYTES: u64 = 256 << 20;

/// What was seen of all objects that are in use.
#[derive(Debug, Default)]
pub(super) struct Choice {
    live: u64,
    dead: u64,
    /// The emptiest: how many of a thousand bytes are alive, how many bytes, and which it is.
    emptiest: BinaryHeap<(u64, u64, Object)>,
}

impl Choice {
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

    /// Those that are to be repacked, if more than `left_alone` bytes are dead.
    pub(super) fn chosen(self, left_alone: u64) -> BTreeSet<Object> {
        let (mut dead, mut moved) = (self.dead, 0);
        let goal = left_alone.max(self.live / DEAD_PART);
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
