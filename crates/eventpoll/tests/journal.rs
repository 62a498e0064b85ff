//! The journal with real threads: the entries that were read and those that were lost are all that
//! were written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use watertight_eventpoll::{EventPoll, Events, Interest, Journal, Read};

#[test]
fn readers_hear_everything_or_how_much_is_missing() {
    const WRITERS: u8 = 4;
    const EACH: u64 = 20_000;
    let journal = Journal::new(64);
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let journal = Arc::clone(&journal);
            thread::spawn(move || {
                let poll = EventPoll::new();
                poll.add(&*journal, Interest::edge(Events::IN), 0).unwrap();
                let (mut reader, mut last) = (journal.reader(0), [0; 4]);
                let (mut heard, mut lost, mut seq) = (0, 0, 0);
                loop {
                    match reader.read() {
                        Read::Entry { number, value } => {
                            let (writer, n): (usize, u64) = *value;
                            assert!(number > seq && n > last[writer], "in order");
                            (seq, last[writer]) = (number, n);
                            heard += 1;
                        }
                        Read::Lost(n) => lost += n,
                        Read::Nothing => {
                            poll.wait(&mut Vec::new(), 1, Some(Duration::from_secs(60))).unwrap();
                        }
                        Read::End => return (heard, lost, reader.seen()),
                    }
                }
            })
        })
        .collect();
    thread::scope(|scope| {
        for writer in 0..usize::from(WRITERS) {
            let journal = &journal;
            scope.spawn(move || (1..=EACH).for_each(|n| journal.push((writer, n))));
        }
    });
    assert!(journal.end((0, EACH + 1)));
    assert!(!journal.end((0, EACH + 2)));
    for reader in readers {
        let (heard, lost, seen) = reader.join().unwrap();
        // Only numbers that were left out may be neither read nor lost.
        let told = heard + lost;
        assert!((u64::from(WRITERS) * EACH + 1..=seen).contains(&told), "{heard} {lost} {seen}");
    }
}
