//! What loom cannot show, under shuttle: it never lets the trying of a lock fail, and knows no threads in the
//! background, so that only here what was unlinked is freed as it is in the product.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-eventpoll --test schedules`
#![cfg(shuttle)]

use std::sync::Arc;

use sync::model::check;
use sync::{mutant, thread};
use watertight_eventpoll::{EventPoll, Events, Flag, Interest, Journal, Read};

/// Whatever slot is locked when it is wanted.
#[test]
fn a_reader_that_is_overtaken_finds_the_end() {
    check(|| {
        let journal = Journal::new(2);
        let stops = {
            let journal = Arc::clone(&journal);
            thread::spawn(move || journal.push(1))
        };
        journal.push(2);
        // Wherever the other one stopped.
        assert!(journal.end(3));
        stops.join().expect("it ends");
        let (mut reader, mut told) = (journal.reader(0), 0);
        loop {
            match reader.read() {
                Read::Entry { .. } => told += 1,
                Read::Lost(n) => told += n,
                Read::Nothing => panic!("stuck at a number that nobody fills"),
                Read::End => break,
            }
        }
        assert!(told > 0 && told <= reader.seen());
    });
}

/// EP-R5: whoever signals is stopped anywhere in the callback, and the item is deleted, or its eventpoll dropped.
#[test]
fn what_is_unlinked_is_not_freed_under_the_callback() {
    check(|| {
        for is_deleted in [true, false] {
            let (poll, flag) = (EventPoll::new(), Arc::new(Flag::new()));
            poll.add(&*flag, Interest::level(Events::IN), 0).expect("a new source");
            let signals = {
                let flag = Arc::clone(&flag);
                thread::spawn(move || flag.set())
            };
            if is_deleted {
                poll.delete(&*flag).expect("it is watched");
            }
            drop(poll);
            // The item objects if it goes too early.
            signals.join().expect("it ends");
            assert!(flag.is_set());
        }
    });
}

#[test]
fn each_mutant_is_caught() {
    for (test, name, objection) in [
        (
            "a_reader_that_is_overtaken_finds_the_end",
            "journal-not-void",
            "stuck at a number that nobody fills",
        ),
        ("what_is_unlinked_is_not_freed_under_the_callback", "rcu-free-at-once", "freed under the callback"),
    ] {
        mutant::assert_caught(test, &[name], objection);
    }
}
