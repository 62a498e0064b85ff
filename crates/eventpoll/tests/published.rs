//! Bugs of Linux' eventpoll that were published, each as a scenario here, with real threads. Those
//! that are races run under shuttle too (`schedules`).
//! `docs/design/eventpoll.md` says how they are avoided.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::until;
use watertight_eventpoll::{
    Error, EventCounter, EventPoll, Events, Flag, Interest, Options, Poll, Source, Watches,
};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const LT: Interest = Interest::level(Events::IN);
const ROUNDS: usize = 300;

/// Counts its drops.
struct Value(Arc<AtomicUsize>);

impl Poll for Value {
    fn poll(&self) -> Events {
        Events::IN
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // ORDERING: SeqCst here and below, a test's count.
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs both at once, many times, each time with an eventpoll and a source that it watches;
/// afterwards nothing is left of either.
fn race(one: impl Fn(Arc<EventPoll>) + Sync, other: impl Fn(Source<Value>, Arc<EventPoll>)) {
    let dropped = Arc::new(AtomicUsize::new(0));
    for round in 1..=ROUNDS {
        let watches = Arc::new(Watches::new(4));
        let poll = Arc::new(EventPoll::with_options(Options { watches: Arc::clone(&watches) }));
        let source = Source::new(Value(Arc::clone(&dropped)));
        poll.add(&source, LT, 0).unwrap();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            let mine = Arc::clone(&poll);
            scope.spawn(|| {
                barrier.wait();
                one(mine);
            });
            barrier.wait();
            other(source, poll);
        });
        until("nothing is watched", || watches.used() == 0);
        until("its value is dropped", || dropped.load(Ordering::SeqCst) == round);
    }
}

/// A chain that closes itself: the add fails, nothing recurses.
#[test]
fn cve_2011_1082_eventpolls_that_watch_each_other() {
    let polls: Vec<EventPoll> = (0..5).map(|_| EventPoll::new()).collect();
    polls.windows(2).for_each(|pair| pair[0].add(&pair[1], LT, 0).unwrap());
    for (at, poll) in polls.iter().enumerate().skip(1) {
        assert_eq!(poll.add(&polls[0], LT, 0), Err(Error::Loop), "from {at}");
    }
    let flag = Flag::new();
    polls[4].add(&flag, LT, 0).unwrap();
    flag.set();
    assert_eq!(polls[0].wait(&mut Vec::new(), 1, AT_ONCE), Ok(1));
}

/// Eventpolls in layers, each of which watches all of the layer below: chains multiply.
#[test]
fn cve_2011_1083_layers_do_not_multiply_what_a_signal_does() {
    let source = EventCounter::new();
    let layers: Vec<Vec<EventPoll>> = (0..5).map(|_| (0..10).map(|_| EventPoll::new()).collect()).collect();
    layers[0].iter().for_each(|poll| poll.add(&source, LT, 0).unwrap());
    let mut refused = Vec::new();
    for pair in layers.windows(2) {
        for outer in &pair[1] {
            refused.extend(pair[0].iter().filter_map(|inner| outer.add(inner, LT, 0).err()));
        }
    }
    // 10 · 10 chains of two may be, 10 · 10 · 10 of three not.
    assert!(refused.contains(&Error::TooManyPaths { length: 3, max: 100 }), "{refused:?}");
    let links: usize = layers[1..].iter().flatten().map(EventPoll::len).sum();
    assert_eq!(links + refused.len(), 4 * 100);
    source.add(1);
}

/// An add that fails leaves nothing behind that the next one, or the end, meets.
#[test]
fn cve_2012_3375_what_was_refused_leaves_nothing() {
    let watches = Arc::new(Watches::new(3));
    let poll = || EventPoll::with_options(Options { watches: Arc::clone(&watches) });
    let (outer, inner) = (poll(), poll());
    outer.add(&inner, LT, 0).unwrap();
    for _ in 0..ROUNDS {
        assert_eq!(inner.add(&outer, LT, 0), Err(Error::Loop));
        assert_eq!(outer.add(&outer, LT, 0), Err(Error::Itself));
        assert_eq!(outer.add(&inner, LT, 0), Err(Error::Exists));
    }
    assert_eq!(watches.used(), 1);
    let flag = Flag::new();
    inner.add(&flag, LT, 0).unwrap();
    flag.set();
    assert_eq!(outer.wait(&mut Vec::new(), 1, AT_ONCE), Ok(1));
    // Of the two that were refused no link was kept either.
    outer.delete(&inner).unwrap();
    inner.add(&outer, LT, 0).unwrap();
    drop((outer, inner));
    until("nothing is watched", || watches.used() == 0);
}

/// A wait entry in a source's queue when the source goes.
#[test]
fn cve_2019_2215_a_source_goes_while_it_is_watched() {
    let ask = |poll: Arc<EventPoll>| assert!(poll.wait(&mut Vec::new(), 1, AT_ONCE).is_ok());
    race(ask, |source, poll| {
        drop(source);
        ask(poll);
    });
}

/// One thread lets go of an eventpoll while another, which has done so already, gives its lock
/// back.
#[test]
fn cve_2025_38349_the_last_reference_goes_beside_its_lock() {
    let ask_and_drop = |poll: Arc<EventPoll>| assert!(poll.wait(&mut Vec::new(), 1, AT_ONCE).is_ok());
    race(ask_and_drop, |source, poll| {
        drop(poll);
        drop(source);
    });
}

/// Chains are counted in both directions, wherever the new link is.
#[test]
fn cve_2025_38614_chains_are_counted_upwards_and_downwards() {
    for above in 1..=5 {
        for below in 1..=5 {
            let [upper, lower] = [above, below].map(|length| -> Vec<EventPoll> {
                let chain: Vec<EventPoll> = (0..length).map(|_| EventPoll::new()).collect();
                chain.windows(2).for_each(|pair| pair[0].add(&pair[1], LT, 0).unwrap());
                chain
            });
            let result = upper[above - 1].add(&lower[0], LT, 0);
            let expected = if above + below > 5 { Err(Error::TooDeep { max: 5 }) } else { Ok(()) };
            assert_eq!(result, expected, "{above} above, {below} below");
        }
    }
}

/// One counts the chains above an eventpoll while one of those above goes.
#[test]
fn cve_2026_43074_one_above_goes_while_chains_are_counted() {
    for _ in 0..ROUNDS {
        let watches = Arc::new(Watches::new(4));
        let poll = || EventPoll::with_options(Options { watches: Arc::clone(&watches) });
        let (top, middle, inner, source) = (poll(), poll(), poll(), EventCounter::new());
        inner.add(&source, LT, 0).unwrap();
        top.add(&middle, LT, 0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(top));
            middle.add(&inner, LT, 0).unwrap();
        });
        source.add(1);
        assert_eq!(middle.wait(&mut Vec::new(), 1, AT_ONCE), Ok(1));
        drop((middle, inner));
        until("nothing is watched", || watches.used() == 0);
    }
}

/// An eventpoll is deleted from another, and closed, at the same time: it is taken out once, and
/// wholly.
#[test]
fn cve_2026_46242_what_is_deleted_is_closed_at_once() {
    for _ in 0..ROUNDS {
        let watches = Arc::new(Watches::new(4));
        let poll = || EventPoll::with_options(Options { watches: Arc::clone(&watches) });
        let (outer, inner, source) = (poll(), poll(), Flag::new());
        outer.add(&inner, LT, 0).unwrap();
        inner.add(&source, LT, 0).unwrap();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                inner.close();
            });
            barrier.wait();
            assert!(matches!(outer.delete(&inner), Ok(()) | Err(Error::NotFound)));
        });
        until("nothing is watched", || watches.used() == 0);
        assert_eq!(outer.delete(&inner), Err(Error::NotFound));
        // The link is gone as well: this closes no circle any more.
        let fresh = poll();
        fresh.add(&outer, LT, 0).unwrap();
        source.set();
        assert_eq!(fresh.wait(&mut Vec::new(), 1, AT_ONCE), Ok(0));
        drop(fresh);
        until("nothing is watched", || watches.used() == 0);
    }
}
