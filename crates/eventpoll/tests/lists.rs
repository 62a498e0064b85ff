//! Which events are reported, in which order, and which are not.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use watertight_eventpoll::{Event, EventCounter, EventPoll, Events, Flag, Interest, Poll, Source};

const LT: Interest = Interest::level(Events::IN);
const ET: Interest = Interest::edge(Events::IN);

fn tokens(poll: &EventPoll, max: usize) -> Vec<u64> {
    let mut events = Vec::new();
    poll.wait(&mut events, max, Some(Duration::ZERO)).expect("it is open");
    events.into_iter().map(|event| event.token).collect()
}

/// An eventpoll that watches so many sources; the token is the number.
fn watched(count: u64, mode: Interest) -> (EventPoll, Vec<EventCounter>) {
    let poll = EventPoll::new();
    let sources: Vec<EventCounter> = (0..count).map(|_| EventCounter::new()).collect();
    for (token, source) in (0..).zip(&sources) {
        poll.add(source, mode, token).expect("a new source");
    }
    (poll, sources)
}

#[test]
fn what_was_left_over_comes_before_what_is_new_and_what_is_ready_again_last() {
    let (poll, sources) = watched(5, LT);
    sources[2..].iter().for_each(|source| source.add(1));
    assert_eq!(tokens(&poll, 1), [2]);
    // Left over: 3 and 4. Ready again: 2. New: 0 and 1, which come behind.
    sources[..2].iter().for_each(|source| source.add(1));
    assert_eq!(tokens(&poll, 3), [3, 4, 2]);
    assert_eq!(tokens(&poll, 8), [0, 1, 3, 4, 2]);
}

#[test]
fn what_comes_during_a_scan_is_placed_before_what_is_ready_again() {
    /// Ready; the first time that it is asked, another source is signalled.
    struct Prompter(Arc<Flag>, AtomicUsize);
    impl Poll for Prompter {
        fn poll(&self) -> Events {
            // ORDERING: Relaxed, one thread.
            if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
                self.0.set();
            }
            Events::IN
        }
    }
    let late = Arc::new(Flag::new());
    let (poll, [left, left_too]) = (EventPoll::new(), [Flag::new(), Flag::new()]);
    poll.add(&*late, LT, 7).unwrap();
    let prompter = Source::new(Prompter(Arc::clone(&late), AtomicUsize::new(1)));
    poll.add(&prompter, LT, 0).unwrap();
    for (token, flag) in [(1, &left), (2, &left_too)] {
        poll.add(flag, LT, token).unwrap();
        flag.set();
    }
    prompter.1.store(0, Ordering::Relaxed);
    assert_eq!(tokens(&poll, 1), [0]);
    assert_eq!(tokens(&poll, 4), [1, 2, 7, 0]);
}

#[test]
fn nobody_is_served_twice_before_all_are_served_once() {
    let (poll, sources) = watched(200, LT);
    sources.iter().for_each(|source| source.add(1));
    for _ in 0..3 {
        let mut seen: Vec<u64> = (0..50).flat_map(|_| tokens(&poll, 4)).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
    }
}

#[test]
fn thousands_of_sources_are_found() {
    let (poll, sources) = watched(10_000, ET);
    for at in (0..10_000).step_by(37) {
        sources[at].add(1);
    }
    let mut seen = tokens(&poll, usize::MAX);
    seen.sort_unstable();
    assert_eq!(seen, (0..10_000).step_by(37).collect::<Vec<_>>());
    assert!(tokens(&poll, 1).is_empty());
}

#[test]
fn a_one_shot_is_reported_once_until_it_is_armed_again() {
    let (poll, sources) = watched(1, LT.one_shot());
    sources[0].add(1);
    assert_eq!(tokens(&poll, 1), [0]);
    sources[0].add(1);
    assert!(tokens(&poll, 1).is_empty());
    poll.modify(&sources[0], ET.one_shot(), 5).unwrap();
    assert_eq!(tokens(&poll, 1), [5]);
    assert!(tokens(&poll, 1).is_empty());
}

#[test]
fn only_what_was_asked_for_is_reported_and_errors_always() {
    struct Fixed(AtomicUsize);
    impl Poll for Fixed {
        fn poll(&self) -> Events {
            // ORDERING: Relaxed, one thread.
            Events::from_bits_truncate(u32::try_from(self.0.load(Ordering::Relaxed)).unwrap())
        }
    }
    let source = Source::new(Fixed(AtomicUsize::new(0)));
    let ready = |events: Events| {
        source.0.store(usize::try_from(events.bits()).unwrap(), Ordering::Relaxed);
        source.signal(events);
    };
    let poll = EventPoll::new();
    poll.add(&source, Interest::edge(Events::OUT), 0).unwrap();
    let reported = || {
        let mut events = Vec::new();
        poll.wait(&mut events, 4, Some(Duration::ZERO)).unwrap();
        events
    };
    ready(Events::IN);
    assert_eq!(reported(), []);
    ready(Events::IN | Events::OUT);
    assert_eq!(reported(), [Event { token: 0, events: Events::OUT }]);
    ready(Events::ERR);
    assert_eq!(reported(), [Event { token: 0, events: Events::ERR }]);
    // Signalled, and not ready any more when it is asked.
    ready(Events::OUT);
    source.0.store(0, Ordering::Relaxed);
    assert_eq!(reported(), []);
}

#[test]
fn what_is_deleted_is_not_reported_though_it_is_listed() {
    let (poll, mut sources) = watched(4, LT);
    sources.iter().for_each(|source| source.add(1));
    assert_eq!(tokens(&poll, 1), [0]);
    // In the list: by delete, and by a source that goes. Their places are used again.
    poll.delete(&sources[1]).unwrap();
    drop(sources.remove(2));
    let new = EventCounter::new();
    new.add(1);
    poll.add(&new, LT, 9).unwrap();
    let mut seen = tokens(&poll, 8);
    seen.sort_unstable();
    assert_eq!(seen, [0, 3, 9]);
    let others: Vec<EventCounter> = (0..3).map(|_| EventCounter::new()).collect();
    others.iter().for_each(|other| poll.add(other, LT, 20).unwrap());
    assert_eq!(tokens(&poll, 8).len(), 3);
    others[1].add(1);
    assert_eq!(tokens(&poll, 8).len(), 4);
    assert_eq!(poll.len(), 6);
}

#[test]
fn a_value_is_dropped_when_nobody_can_see_it() {
    struct Counted(Arc<AtomicUsize>);
    impl Poll for Counted {
        fn poll(&self) -> Events {
            Events::IN
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            // ORDERING: SeqCst, a test's count.
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    for is_poll_first in [true, false] {
        let polls = [EventPoll::new(), EventPoll::new()];
        let source = Source::new(Counted(Arc::clone(&dropped)));
        polls.iter().for_each(|poll| poll.add(&source, LT, 0).unwrap());
        assert_eq!(tokens(&polls[0], 1), [0]);
        if is_poll_first {
            drop(polls);
            drop(source);
        } else {
            drop(source);
            assert!(polls[0].is_empty() && tokens(&polls[0], 1).is_empty());
        }
    }
    common::until("both are dropped", || dropped.load(Ordering::SeqCst) == 2);
}
