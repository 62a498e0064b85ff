//! What loom cannot show, under shuttle: it never lets the trying of a lock fail, and knows no threads in the
//! background, so that only here what was unlinked is freed as it is in the product.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-eventpoll --test schedules`
#![cfg(shuttle)]

use std::sync::Arc;
use std::time::Duration;

use sync::model::check;
use sync::{Mutex, mutant, thread};
use watertight_eventpoll::{
    EventPoll, Events, Flag, Interest, Journal, Options, Poll, Read, Source, Watches,
};

const LT: Interest = Interest::level(Events::IN);

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
            poll.add(&*flag, LT, 0).expect("a new source");
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

/// Asked under a lock of its own.
struct Locked(Arc<Mutex<()>>);

impl Poll for Locked {
    fn poll(&self) -> Events {
        drop(self.0.lock());
        Events::IN
    }
}

/// An eventpoll that watches two sources with one lock, and what counts them.
fn two_with_a_lock() -> (EventPoll, [Source<Locked>; 2], Arc<Mutex<()>>, Arc<Watches>) {
    let (lock, watches) = (Arc::new(Mutex::new(())), Arc::new(Watches::new(2)));
    let poll = EventPoll::with_options(Options { watches: Arc::clone(&watches) });
    let sources = [(); 2].map(|()| Source::new(Locked(Arc::clone(&lock))));
    sources.iter().for_each(|source| poll.add(source, LT, 0).expect("a new source"));
    (poll, sources, lock, watches)
}

/// EP-R5: a source is dropped under a lock that whoever waits takes when it asks.
#[test]
fn a_source_is_dropped_under_a_lock_that_a_scan_takes() {
    check(|| {
        let (poll, [one, _other], lock, watches) = two_with_a_lock();
        let poll = Arc::new(poll);
        let waits = {
            let poll = Arc::clone(&poll);
            thread::spawn(move || poll.wait(&mut Vec::new(), 2, Some(Duration::ZERO)).is_ok())
        };
        let held = lock.lock();
        drop(one);
        drop(held);
        assert!(waits.join().expect("it ends"));
        assert_eq!(watches.used(), 1, "nobody did what was left");
    });
}

/// EP-R5: the same with an eventpoll, while another asks it.
#[test]
fn an_eventpoll_is_dropped_under_a_lock_that_a_scan_takes() {
    check(|| {
        let (inner, _sources, lock, watches) = two_with_a_lock();
        let outer = Arc::new(EventPoll::new());
        outer.add(&inner, LT, 0).expect("a new source");
        let waits = {
            let outer = Arc::clone(&outer);
            thread::spawn(move || outer.wait(&mut Vec::new(), 1, Some(Duration::ZERO)).is_ok())
        };
        let held = lock.lock();
        drop(inner);
        drop(held);
        assert!(waits.join().expect("it ends"));
        assert_eq!(watches.used(), 0, "nobody did what was left");
        assert!(outer.is_empty());
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
        ("a_source_is_dropped_under_a_lock_that_a_scan_takes", "eventpoll-drop-waits", "deadlock"),
        (
            "a_source_is_dropped_under_a_lock_that_a_scan_takes",
            "eventpoll-errand-unseen",
            "nobody did what was left",
        ),
        ("an_eventpoll_is_dropped_under_a_lock_that_a_scan_takes", "eventpoll-drop-waits", "deadlock"),
        ("what_is_unlinked_is_not_freed_under_the_callback", "rcu-free-at-once", "freed under the callback"),
    ] {
        mutant::assert_caught(test, &[name], objection);
    }
}
