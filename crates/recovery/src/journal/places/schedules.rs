//! A server dies between any two stores of a listing: the next one finds where the kernel goes on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sync::model;

use crate::journal::{LastEnd, OpenKind};
use crate::{Journal, Memory, NodeKey, OpenRecord};

/// Answers that the listing has.
const ANSWERS: u64 = 4;
/// Stores that a server lives for at most: those of all answers are fewer.
const STORES: usize = 160;

/// A memory that takes so many stores, and no more: its server is dead.
#[derive(Debug)]
struct Mortal {
    words: Mutex<HashMap<usize, u64>>,
    left: Mutex<usize>,
}

impl Mortal {
    fn words(&self) -> MutexGuard<'_, HashMap<usize, u64>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, usize> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory for Mortal {
    fn load(&self, at: usize) -> u64 {
        self.words().get(&at).copied().unwrap_or(0)
    }

    fn store(&self, at: usize, value: u64) {
        let mut left = self.left();
        if *left > 0 {
            *left -= 1;
            self.words().insert(at, value);
        }
    }

    fn raise(&self, at: usize, value: u64) {
        let there = self.load(at);
        self.store(at, value.max(there));
    }
}

/// The entries of a directory, and what continues a listing behind each.
fn entry(n: u64) -> (u64, String) {
    (n + 2, format!("an entry whose name has some words, number {n}"))
}

/// The kernel has the entries before `answered`, and asks for those behind it. It may have those of the
/// next answer, too.
#[test]
fn a_listing_goes_on_wherever_servers_die() {
    model::check(|| {
        let stores = model::number(STORES);
        let memory = Arc::new(Mortal { words: Mutex::default(), left: Mutex::new(usize::MAX) });
        let journal = Journal::create_in(Arc::clone(&memory) as _);
        let key = NodeKey { ino: 7, kind: 0, generation: None, handle: (0, Vec::new()) };
        let _node = journal.add_node(7, 1, Some(&key)).expect("there is room");
        // One that was listed before had the slot.
        let record = OpenRecord {
            kind: OpenKind::Dir,
            handle: 3,
            node: 7,
            flags: 0,
            is_foreign_mapper: false,
            opener_pid: 1,
            request: 9,
        };
        let before = journal.add_open(&record).expect("there is room");
        journal.set_place(before, 0, 99, "another".as_ref());
        journal.remove_open(before);
        let opening = journal.add_open(&record).expect("there is room");
        *memory.left() = stores;
        let server = Arc::clone(&memory);
        let listing = sync::thread::spawn(move || {
            let mut answered = 0;
            for n in 1..=ANSWERS {
                let (from, (next, name)) = (if n == 1 { 0 } else { entry(n - 1).0 }, entry(n));
                // The request is sent again, also more than once.
                for _ in 0..=model::number(3) {
                    journal.set_place(opening, from, next, name.as_ref());
                    if *server.left() == 0 {
                        return answered;
                    }
                }
                answered = n;
            }
            answered
        });
        let answered = listing.join().expect("it ends");
        *memory.left() = usize::MAX;
        let journal = Journal::recover_in(memory, LastEnd::Killed).expect("a journal");
        let (opening, _) = journal.opens().pop().expect("it is open");
        let places = journal.places(opening);
        let is_known = |n: u64| {
            let (next, name) = entry(n);
            n == 0 || places.iter().any(|place| place.next == next && place.name == *name)
        };
        assert!(is_known(answered), "after {stores} stores the place {answered} is not known: {places:?}");
        for place in &places {
            let is_one =
                (1..=ANSWERS).map(entry).any(|(next, name)| place.next == next && place.name == *name);
            assert!(is_one, "after {stores} stores there is a place that was none: {places:?}");
        }
    });
}

#[test]
fn places_that_are_not_whole_are_caught() {
    use sync::mutant::assert_caught;
    let test = "journal::places::schedules::a_listing_goes_on_wherever_servers_die";
    assert_caught(test, &["recovery-place-not-kept"], "is not known");
    assert_caught(test, &["recovery-place-overwritten-while-it-counts"], "a place that was none");
    assert_caught(test, &["recovery-place-pushed-out"], "is not known");
    assert_caught(test, &["recovery-place-of-another-opening"], "a place that was none");
}
