//! What was repacked, and what that left.
//!
//! An object is repacked where its data was written to. What is left of it then is what a copy by
//! reference refers to, or rows that came with the next object of the log: that is found by a search
//! of all extents. As it reads all of their rows, the next one waits for as many passes as that was
//! worth. What is left then is of files without a name, or damaged: an object is tried again when less
//! of it is alive.

use std::collections::{BTreeMap, BTreeSet};

use crate::rows::{Object, Usage};

/// Objects of which it is remembered that they were repacked.
const REMEMBERED_MAX: usize = 64 << 10;
/// Rows that a search reads for each pass that the next one waits: those of half a terabyte that was
/// written in sequence.
const ROWS_A_PASS: u64 = 64 << 10;

/// What repacking left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// What was found where the data was written to is moved, and the rest was not searched for.
    Elsewhere,
    /// Nothing could be found that can be moved; so many bytes were alive then.
    Unmovable(i64),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Repacked {
    left: BTreeMap<Object, Left>,
    /// Passes until there may be another search.
    pause: u64,
}

/// How the objects of a choice are repacked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ways {
    /// Where their data was written to.
    pub(super) by_place: BTreeSet<Object>,
    /// By a search of all extents.
    pub(super) by_search: BTreeSet<Object>,
}

impl Repacked {
    /// A pass begins.
    pub(super) fn begin_pass(&mut self) {
        self.pause = self.pause.saturating_sub(1);
    }

    /// Whether repacking may move something of an object.
    pub(super) fn is_movable(&self, object: Object, usage: Usage) -> bool {
        match self.left.get(&object) {
            None => true,
            Some(Left::Elsewhere) => self.pause == 0,
            Some(Left::Unmovable(live)) => self.pause == 0 && usage.live < *live,
        }
    }

    /// Whether something is to be searched for when the pause is over.
    pub(super) fn waits(&self) -> bool {
        self.pause > 0 && self.left.values().any(|left| *left == Left::Elsewhere)
    }

    /// How these are repacked.
    pub(super) fn ways(&self, chosen: BTreeSet<Object>) -> Ways {
        let (by_search, by_place) = chosen.into_iter().partition(|object| self.left.contains_key(object));
        Ways { by_place, by_search }
    }

    /// An object was repacked where its data was written to.
    pub(super) fn mark_repacked(&mut self, object: Object) {
        if self.left.len() >= REMEMBERED_MAX {
            self.left.clear();
        }
        self.left.insert(object, Left::Elsewhere);
    }

    /// Nothing of an object can be moved, as long as so much of it is alive.
    pub(super) fn mark_unmovable(&mut self, object: Object, usage: Usage) {
        self.left.insert(object, Left::Unmovable(usage.live));
    }

    /// It is gone, or nothing of it is alive.
    pub(super) fn forget(&mut self, object: Object) {
        self.left.remove(&object);
    }

    /// A search read so many rows.
    pub(super) fn pause_after_search(&mut self, rows: u64) {
        self.pause = rows / ROWS_A_PASS;
    }

    /// A collection of everything does not wait.
    pub(super) fn search_at_once(&mut self) {
        self.pause = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_searched_for_and_tried_again_when_there_is_less() {
        let (mut repacked, object, other) =
            (Repacked::default(), Object::Segment(1, 1), Object::Segment(1, 2));
        let usage = |live| Usage { live, written: 100 };
        let all = || BTreeSet::from([object, other]);
        assert_eq!(repacked.ways(all()), Ways { by_place: all(), by_search: BTreeSet::new() });
        repacked.mark_repacked(object);
        assert!(repacked.is_movable(object, usage(9)), "by a search");
        let ways = Ways { by_place: BTreeSet::from([other]), by_search: BTreeSet::from([object]) };
        assert_eq!(repacked.ways(all()), ways);
        repacked.mark_unmovable(object, usage(9));
        assert!(!repacked.is_movable(object, usage(9)));
        assert!(repacked.is_movable(object, usage(8)), "less is alive");
        repacked.pause_after_search(2 * ROWS_A_PASS);
        for _ in 0..2 {
            assert!(!repacked.is_movable(object, usage(8)) && repacked.is_movable(other, usage(9)));
            assert!(!repacked.waits(), "nothing is to be searched for");
            repacked.begin_pass();
        }
        assert!(repacked.is_movable(object, usage(8)));
        repacked.forget(object);
        assert!(repacked.is_movable(object, usage(9)));
        repacked.mark_repacked(other);
        repacked.pause_after_search(ROWS_A_PASS);
        assert!(repacked.waits() && !repacked.is_movable(other, usage(9)));
        repacked.begin_pass();
        assert!(!repacked.waits() && repacked.is_movable(other, usage(9)));
    }
}
