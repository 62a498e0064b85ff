//! What loom cannot show, under shuttle: it never lets the trying of a lock fail.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-eventpoll --test schedules`
#![cfg(shuttle)]

use std::sync::Arc;

use sync::model::check;
use sync::{mutant, thread};
use watertight_eventpoll::{Journal, Read};

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

#[test]
fn each_mutant_is_caught() {
    let test = "a_reader_that_is_overtaken_finds_the_end";
    mutant::assert_caught(test, &["journal-not-void"], "stuck at a number that nobody fills");
}
