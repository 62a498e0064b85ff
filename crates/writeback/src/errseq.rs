//! Write-back errors, reported once through each open file.
//!
//! The semantics are those of the kernel's `errseq_t`. An error is remembered with a sequence
//! number; each open file has a cursor and reports an error that is newer than its cursor, once. A
//! file that is opened after an error that no file has reported yet reports it too, so that none is
//! lost.

use sync::Mutex;
use sync::mutant::is_on;

/// The last write-back error of one file, of kind `E`.
#[derive(Debug)]
pub struct ErrSeq<E> {
    // protected by: this lock, a leaf.
    state: Mutex<State<E>>,
}

#[derive(Debug)]
struct State<E> {
    last: Option<E>,
    sequence: u64,
    seen: bool,
}

/// The position of one open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor(u64);

impl<E> Default for ErrSeq<E> {
    fn default() -> Self {
        Self { state: Mutex::new(State { last: None, sequence: 0, seen: true }) }
    }
}

impl Cursor {
    /// The number of the last error before it, for [`of_number`](Self::of_number).
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The cursor with this number.
    #[must_use]
    pub fn of_number(number: u64) -> Self {
        Self(number)
    }
}

impl<E: Copy> ErrSeq<E> {
    /// The last error, its number, and whether an open file has reported it; none if there was
    /// none.
    #[must_use]
    pub fn parts(&self) -> Option<(E, u64, bool)> {
        let state = self.state.lock();
        state.last.map(|last| (last, state.sequence, state.seen))
    }

    /// The errors of a file whose [`parts`](Self::parts) these are.
    #[must_use]
    pub fn of_parts(parts: Option<(E, u64, bool)>) -> Self {
        let none = State { last: None, sequence: 0, seen: true };
        let state = parts.map_or(none, |(last, sequence, seen)| State { last: Some(last), sequence, seen });
        Self { state: Mutex::new(state) }
    }

    /// Records an error.
    pub fn set(&self, error: E) {
        let mut state = self.state.lock();
        // An error that no file has reported needs no new number: no cursor could tell the two
        // apart.
        if state.seen {
            state.sequence += 1;
        }
        state.last = Some(error);
        state.seen = false;
    }

    /// A cursor for a file that is opened now: behind an error that no file has reported, else up
    /// to date.
    #[must_use]
    pub fn sample(&self) -> Cursor {
        let state = self.state.lock();
        Cursor(if state.seen { state.sequence } else { state.sequence - 1 })
    }

    /// The error that is newer than `cursor`, if any; the cursor moves past it.
    pub fn check_and_advance(&self, cursor: &mut Cursor) -> Option<E> {
        let mut state = self.state.lock();
        if cursor.0 == state.sequence {
            return None;
        }
        if !is_on("errseq-not-advanced") {
            cursor.0 = state.sequence;
        }
        state.seen = !is_on("errseq-not-seen");
        state.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_open_file_hears_of_an_error_once() {
        let errors = ErrSeq::default();
        let (mut a, mut b) = (errors.sample(), errors.sample());
        assert_eq!(errors.check_and_advance(&mut a), None);
        errors.set("eio");
        assert_eq!(errors.check_and_advance(&mut a), Some("eio"));
        assert_eq!(errors.check_and_advance(&mut a), None);
        assert_eq!(errors.check_and_advance(&mut b), Some("eio"));
        assert_eq!(errors.check_and_advance(&mut b), None);
    }

    #[test]
    fn a_later_open_hears_only_of_an_error_that_nobody_saw() {
        let errors = ErrSeq::default();
        errors.set("eio");
        let mut late = errors.sample();
        assert_eq!(errors.check_and_advance(&mut late), Some("eio"));
        let mut later = errors.sample();
        assert_eq!(errors.check_and_advance(&mut later), None);
    }

    #[test]
    fn a_second_error_after_the_first_was_seen_is_a_new_one() {
        let errors = ErrSeq::default();
        let (mut a, mut b) = (errors.sample(), errors.sample());
        errors.set("eio");
        assert_eq!(errors.check_and_advance(&mut a), Some("eio"));
        errors.set("enospc");
        assert_eq!(errors.check_and_advance(&mut a), Some("enospc"));
        assert_eq!(errors.check_and_advance(&mut b), Some("enospc"));
        assert_eq!(errors.check_and_advance(&mut b), None);
    }
}
