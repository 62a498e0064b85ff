//! How far open directories were listed.
//!
//! | word | |
//! |---|---|
//! | 0 | which place is the newest: 0 none, 1 the first, 2 the second; 4 more: the other one counts, too |
//! | 1 to 34 | the first: what continues it, the name's length, its bytes |
//! | 35 to 68 | the second |
//!
//! The other one is the place before the newest. The answer that has the entries up to the newest may
//! not have reached the kernel: the request is sent again then, and goes on from the place before. It
//! may be sent again more than once.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use sync::mutant::is_on;

use super::{Journal, NAME_BYTES_MAX, PLACE, PLACES_AT, Slot};

/// Words of one place.
const ONE: usize = 2 + NAME_BYTES_MAX.div_ceil(8);
/// The other place counts, too.
const HAS_BEFORE: u64 = 4;

const _: () = assert!(2 * ONE < PLACE);

/// A place in the listing of a directory: behind the entry of this name, whose continuation is `next`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What the kernel continues it with.
    pub next: u64,
    /// The entry's name.
    pub name: OsString,
}

impl Journal {
    /// A request that continues a listing at `from` is about to be answered up to this entry. An opening
    /// is listed by one thread at a time. A name that is too long is none.
    pub fn set_place(&self, opening: Slot, from: u64, next: u64, name: &OsStr) {
        let bytes = name.as_bytes();
        if bytes.len() > NAME_BYTES_MAX || is_on("recovery-place-not-kept") {
            return;
        }
        let at = PLACES_AT + opening.0 as usize * PLACE;
        // The place where this answer begins stays; what is overwritten does not count meanwhile.
        let begins_at = |number: u64| self.get(at + place_at(number)) == from;
        let word = self.get(at);
        let (newest, other) = (word & !HAS_BEFORE, 3 - (word & !HAS_BEFORE).clamp(1, 2));
        let kept = if newest != 0 && (begins_at(newest) || is_on("recovery-place-pushed-out")) {
            newest
        } else if word & HAS_BEFORE != 0 && begins_at(other) {
            other
        } else {
            0
        };
        if !is_on("recovery-place-overwritten-while-it-counts") {
            self.set(at, kept);
        }
        let into = if kept == 1 { 2 } else { 1 };
        let place = at + place_at(into);
        self.set(place, next);
        self.set(place + 1, bytes.len() as u64);
        self.set_bytes(place + 2, bytes);
        self.set(at, into | if kept == 0 { 0 } else { HAS_BEFORE });
    }

    /// How far an open directory was listed: the newest place, then the one before.
    #[must_use]
    pub fn places(&self, opening: Slot) -> Vec<Place> {
        let at = PLACES_AT + opening.0 as usize * PLACE;
        let word = self.get(at);
        let newest = word & !HAS_BEFORE;
        let (first, second) = (at + place_at(1), at + place_at(2));
        let (newest, before) = match newest {
            1 => (first, second),
            2 => (second, first),
            _ => return Vec::new(),
        };
        let before = Some(before).filter(|_| word & HAS_BEFORE != 0);
        std::iter::once(newest).chain(before).map(|place| self.place(place)).collect()
    }

    /// A new opening has none.
    pub(super) fn clear_places(&self, slot: Slot) {
        if is_on("recovery-place-of-another-opening") {
            return;
        }
        self.set(PLACES_AT + slot.0 as usize * PLACE, 0);
    }

    fn place(&self, at: usize) -> Place {
        let len = usize::try_from(self.get(at + 1)).unwrap_or(0).min(NAME_BYTES_MAX);
        Place { next: self.get(at), name: OsString::from_vec(self.bytes(at + 2, len)) }
    }
}

/// Where a place is in its slot.
const fn place_at(number: u64) -> usize {
    if number == 1 { 1 } else { 1 + ONE }
}

#[cfg(all(test, shuttle))]
mod schedules;
