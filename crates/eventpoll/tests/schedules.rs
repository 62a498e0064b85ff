//! Under shuttle, the cases that loom cannot show: loom never lets the trying of a lock fail, and
//! knows no threads in the background, so that only here unlinked memory is freed as in the
//! product.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-eventpoll --test schedules`
#![cfg(shuttle)]

use std::sync::Arc;
use std::time::Duration;

use sync::model::check;
use sync::{Mutex, mutant, thread};
use watertight_eventpoll::{
    Error, EventPoll, Events, Flag, Interest, Journal, Options, Poll, Read, Source, Watches,
};

const LT: Interest = Interest::level(Events::IN);
const ET: Interest = Interest::edge(Events::IN);

/// A reader of a journal that is overtaken comes to the end, wherever a writer was stopped, and
/// whatever slot is locked when it is wanted.
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

/// EP-R5: an item that is unlinked is not freed under its callback, with the product's own `rcu`:
/// whoever signals is stopped anywhere in the callback, and the item is deleted, or its eventpoll
/// dropped.
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

/// EP-R5: a source that is dropped waits for no scan, though the lock that it is dropped under is
/// one that a scan takes; what it leaves is done.
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

/// EP-R5: an eventpoll that is dropped waits for no scan either, while another eventpoll asks it.
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

/// EP-R7: two sources that two eventpolls watch exclusively, and a thread asleep in each of these:
/// both sources are signalled, by two threads at once, and both sleepers are woken, however the
/// signals meet.
#[test]
fn two_exclusive_signals_wake_two_sleepers() {
    check(|| {
        let [first, other] = [(); 2].map(|()| Arc::new(EventPoll::new()));
        let [one, two] = [(); 2].map(|()| Flag::new());
        for poll in [&first, &other] {
            poll.add(&one, ET.exclusive(), 0).expect("a new source");
            poll.add(&two, ET.exclusive(), 1).expect("a new source");
        }
        let waits = [&first, &other].map(|poll| {
            let poll = Arc::clone(poll);
            thread::spawn(move || poll.wait(&mut Vec::new(), 1, None))
        });
        let are_asleep = first.asleep() + other.asleep() == 2;
        let signals = thread::spawn(move || {
            one.set();
            one
        });
        two.set();
        let _one = signals.join().expect("it ends");
        assert!(!are_asleep || first.asleep() + other.asleep() == 0, "one thread was woken for two events");
        first.close();
        other.close();
        for waits in waits {
            assert!(matches!(waits.join().expect("it ends"), Ok(1) | Err(Error::Closed)));
        }
    });
}

/// A source that two eventpolls watch, both watched by an outer one, which is as many chains as
/// models allow; a third eventpoll comes to the source, and to the outer one, at the same time: one
/// of both is refused.
#[test]
fn chains_are_counted_whichever_link_comes_last() {
    check(|| {
        let [outer, one, two, three] = [(); 4].map(|()| Arc::new(EventPoll::new()));
        let source = Arc::new(Flag::new());
        for inner in [&one, &two] {
            inner.add(&*source, LT, 0).expect("a new source");
            outer.add(&**inner, LT, 0).expect("a new source");
        }
        let links = {
            let (outer, three) = (Arc::clone(&outer), Arc::clone(&three));
            thread::spawn(move || outer.add(&*three, LT, 0))
        };
        let watched = three.add(&*source, LT, 0);
        let linked = links.join().expect("it ends");
        let refused = Err(Error::TooManyPaths { length: 2, max: 2 });
        assert!(
            [watched, linked] == [Ok(()), refused] || [watched, linked] == [refused, Ok(())],
            "a chain too many, or too few: {watched:?}, {linked:?}"
        );
    });
}

/// CVE-2025-38349 and CVE-2026-46242: an eventpoll is dropped, or deleted from another, while a
/// thread has the lock of it.
#[test]
fn what_goes_beside_its_lock_goes_once() {
    check(|| {
        for is_deleted in [true, false] {
            let watches = Arc::new(Watches::new(4));
            let poll = || Arc::new(EventPoll::with_options(Options { watches: Arc::clone(&watches) }));
            let (outer, inner, flag) = (poll(), poll(), Flag::new());
            inner.add(&flag, LT, 0).expect("a new source");
            outer.add(&*inner, LT, 0).expect("a new source");
            let asks = {
                let inner = Arc::clone(&inner);
                thread::spawn(move || _ = inner.wait(&mut Vec::new(), 1, Some(Duration::ZERO)))
            };
            let closes = {
                let inner = Arc::clone(&inner);
                thread::spawn(move || inner.close())
            };
            if is_deleted {
                assert!(matches!(outer.delete(&*inner), Ok(()) | Err(Error::NotFound)));
            }
            drop(inner);
            asks.join().expect("it ends");
            closes.join().expect("it ends");
            assert!(outer.is_empty(), "what has gone is watched");
            assert_eq!(watches.used(), 0, "nobody did what was left");
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
        ("a_source_is_dropped_under_a_lock_that_a_scan_takes", "eventpoll-drop-waits", "deadlock"),
        (
            "a_source_is_dropped_under_a_lock_that_a_scan_takes",
            "eventpoll-errand-unseen",
            "nobody did what was left",
        ),
        ("an_eventpoll_is_dropped_under_a_lock_that_a_scan_takes", "eventpoll-drop-waits", "deadlock"),
        (
            "chains_are_counted_whichever_link_comes_last",
            "eventpoll-chains-uncounted",
            "a chain too many, or too few",
        ),
        (
            "two_exclusive_signals_wake_two_sleepers",
            "eventpoll-exclusive-shares-a-sleeper",
            "one thread was woken for two events",
        ),
        (
            "two_exclusive_signals_wake_two_sleepers",
            "eventpoll-exclusive-counts-a-sleeper-twice",
            "one thread was woken for two events",
        ),
        ("what_is_unlinked_is_not_freed_under_the_callback", "rcu-free-at-once", "freed under the callback"),
    ] {
        mutant::assert_caught(test, &[name], objection);
    }
}
