//! The kernel's behaviour, scenario by scenario. The numbers are those of the specification, which
//! are those of the kernel's own test.
//!
//! `e0 > e1 > s0` is an eventpoll that watches an eventpoll that watches a source; no thread takes
//! anything from a source. "ew" waits, "p" polls and then takes without waiting.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Closing, PATIENCE, until};
use watertight_eventpoll::{EventCounter, EventPoll, Events, Interest, wait_for};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const LT: Interest = Interest::level(Events::IN);
const ET: Interest = Interest::edge(Events::IN);

/// The eventpolls and their sources. Dropped in this order.
struct Setting {
    /// `e0`, and then those that it watches.
    polls: Vec<EventPoll>,
    sources: Vec<EventCounter>,
}

impl Setting {
    /// `e0 > s0`, `e0 > s1`, ...
    fn flat(modes: &[Interest]) -> Self {
        let e0 = EventPoll::new();
        let sources: Vec<EventCounter> = modes.iter().map(|_| EventCounter::new()).collect();
        for (source, mode) in sources.iter().zip(modes) {
            e0.add(source, *mode, 0).unwrap();
        }
        Self { polls: vec![e0], sources }
    }

    /// `e0 > e1 > s0`
    fn nested(outer: Interest, inner: Interest) -> Self {
        let (e0, e1, s0) = (EventPoll::new(), EventPoll::new(), EventCounter::new());
        e1.add(&s0, inner, 0).unwrap();
        e0.add(&e1, outer, 0).unwrap();
        Self { polls: vec![e0, e1], sources: vec![s0] }
    }

    /// `e0 > e1 > s0` and `e0 > e2 > s2`, the inner ones level-triggered.
    fn twins(outer: Interest) -> Self {
        let (e0, e1, e2) = (EventPoll::new(), EventPoll::new(), EventPoll::new());
        let (s0, s2) = (EventCounter::new(), EventCounter::new());
        e1.add(&s0, LT, 0).unwrap();
        e2.add(&s2, LT, 0).unwrap();
        e0.add(&e1, outer, 0).unwrap();
        e0.add(&e2, outer, 0).unwrap();
        Self { polls: vec![e0, e1, e2], sources: vec![s0, s2] }
    }

    fn signal(&self) {
        self.sources.iter().for_each(|source| source.add(1));
    }

    /// All sources are signalled, then `e0` is asked twice: how many each wait reports.
    fn waits(self, expected: [usize; 2]) {
        self.signal();
        let room = self.sources.len();
        for expected in expected {
            assert_eq!(self.polls[0].wait(&mut Vec::new(), room, AT_ONCE).unwrap(), expected);
        }
    }

    /// Waits with a poll before each.
    fn polls_and_waits(self, expected: [(usize, usize); 2]) {
        self.signal();
        let room = self.sources.len();
        for (is_ready, count) in expected {
            let ready = wait_for(&self.polls[0], Events::IN, AT_ONCE).unwrap();
            assert_eq!(usize::from(!ready.is_empty()), is_ready);
            assert_eq!(self.polls[0].wait(&mut Vec::new(), room, AT_ONCE).unwrap(), count);
        }
    }

    /// Two threads wait, each in its way and for its eventpoll, with room for `room`; the number of
    /// those that get an event must be in `expected`.
    fn two(self, waiters: [(Way, usize); 2], room: usize, expected: std::ops::RangeInclusive<usize>) {
        let told = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (way, of) in waiters {
                let (poll, told) = (&self.polls[of], &told);
                scope.spawn(move || {
                    if way.is_told(poll, room) {
                        // ORDERING: SeqCst, a test's count.
                        told.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let _closing = Closing(&self.polls);
            self.signal();
            until("somebody is told", || told.load(Ordering::SeqCst) >= *expected.start());
            if *expected.end() == *expected.start() {
                // Nothing is left for the other.
                let is_level = *expected.end() == 2;
                let left = self.polls[0].wait(&mut Vec::new(), 4, AT_ONCE).unwrap();
                assert!(is_level || left == 0, "{left} events are left");
            }
        });
        let told = told.into_inner();
        assert!(expected.contains(&told), "{told} were told");
    }
}

#[derive(Clone, Copy)]
enum Way {
    Wait,
    Poll,
}

use Way::{Poll, Wait};

impl Way {
    /// Whether it gets something before the eventpoll is closed.
    fn is_told(self, poll: &EventPoll, room: usize) -> bool {
        let events = &mut Vec::new();
        match self {
            Wait => poll.wait(events, room, None).is_ok_and(|count| count > 0),
            Poll => loop {
                if wait_for(poll, Events::IN, None).is_err() {
                    return false;
                }
                if poll.wait(events, room, AT_ONCE).is_ok_and(|count| count > 0) {
                    return true;
                }
            },
        }
    }
}

macro_rules! scenarios {
    ($($name:ident: $body:expr;)*) => { $(#[test] fn $name() { $body; })* };
}

// One thread.
scenarios! {
    scenario_01_level: Setting::flat(&[LT]).waits([1, 1]);
    scenario_02_edge: Setting::flat(&[ET]).waits([1, 0]);
    scenario_03_two_level: Setting::flat(&[LT, LT]).waits([2, 2]);
    scenario_04_two_edge: Setting::flat(&[ET, ET]).waits([2, 0]);
    scenario_05_level_polled: Setting::flat(&[LT]).polls_and_waits([(1, 1), (1, 1)]);
    scenario_06_edge_polled: Setting::flat(&[ET]).polls_and_waits([(1, 1), (0, 0)]);
    scenario_07_two_level_polled: Setting::flat(&[LT, LT]).polls_and_waits([(1, 2), (1, 2)]);
    scenario_08_two_edge_polled: Setting::flat(&[ET, ET]).polls_and_waits([(1, 2), (0, 0)]);
    scenario_17_level_of_level: Setting::nested(LT, LT).waits([1, 1]);
    scenario_18_level_of_edge: Setting::nested(LT, ET).waits([1, 1]);
    scenario_19_edge_of_level: Setting::nested(ET, LT).waits([1, 0]);
    scenario_20_edge_of_edge: Setting::nested(ET, ET).waits([1, 0]);
    scenario_21_level_of_level_polled: Setting::nested(LT, LT).polls_and_waits([(1, 1), (1, 1)]);
    scenario_22_level_of_edge_polled: Setting::nested(LT, ET).polls_and_waits([(1, 1), (1, 1)]);
    scenario_23_edge_of_level_polled: Setting::nested(ET, LT).polls_and_waits([(1, 1), (0, 0)]);
    scenario_24_edge_of_edge_polled: Setting::nested(ET, ET).polls_and_waits([(1, 1), (0, 0)]);
    scenario_49_level_over_two: Setting::twins(LT).waits([2, 2]);
    scenario_50_edge_over_two: Setting::twins(ET).waits([2, 0]);
    scenario_51_level_over_two_polled: Setting::twins(LT).polls_and_waits([(1, 2), (1, 2)]);
    scenario_52_edge_over_two_polled: Setting::twins(ET).polls_and_waits([(1, 2), (0, 0)]);
}

// Two threads, one eventpoll.
scenarios! {
    scenario_09_level_wakes_both: Setting::flat(&[LT]).two([(Wait, 0), (Wait, 0)], 1, 2..=2);
    scenario_10_edge_wakes_one: Setting::flat(&[ET]).two([(Wait, 0), (Wait, 0)], 1, 1..=1);
    scenario_11_two_level_wake_both: Setting::flat(&[LT, LT]).two([(Wait, 0), (Wait, 0)], 2, 2..=2);
    scenario_12_two_edge_one_each: Setting::flat(&[ET, ET]).two([(Wait, 0), (Wait, 0)], 1, 2..=2);
    scenario_13_level_wait_and_poll: Setting::flat(&[LT]).two([(Wait, 0), (Poll, 0)], 1, 2..=2);
    scenario_14_edge_wait_and_poll: Setting::flat(&[ET]).two([(Wait, 0), (Poll, 0)], 1, 1..=1);
    scenario_15_two_level_wait_and_poll: Setting::flat(&[LT, LT]).two([(Wait, 0), (Poll, 0)], 2, 2..=2);
    scenario_16_two_edge_wait_and_poll: Setting::flat(&[ET, ET]).two([(Wait, 0), (Poll, 0)], 1, 2..=2);
    scenario_25_level_of_level: Setting::nested(LT, LT).two([(Wait, 0), (Wait, 0)], 1, 2..=2);
    scenario_26_level_of_edge: Setting::nested(LT, ET).two([(Wait, 0), (Wait, 0)], 1, 2..=2);
    scenario_27_edge_of_level: Setting::nested(ET, LT).two([(Wait, 0), (Wait, 0)], 1, 1..=1);
    scenario_28_edge_of_edge: Setting::nested(ET, ET).two([(Wait, 0), (Wait, 0)], 1, 1..=1);
    scenario_29_level_of_level_polled: Setting::nested(LT, LT).two([(Wait, 0), (Poll, 0)], 1, 2..=2);
    scenario_30_level_of_edge_polled: Setting::nested(LT, ET).two([(Wait, 0), (Poll, 0)], 1, 2..=2);
    scenario_31_edge_of_level_polled: Setting::nested(ET, LT).two([(Wait, 0), (Poll, 0)], 1, 1..=1);
    scenario_32_edge_of_edge_polled: Setting::nested(ET, ET).two([(Wait, 0), (Poll, 0)], 1, 1..=1);
}

// Two threads, one on the inner eventpoll and one on the outer.
scenarios! {
    scenario_33_level_of_level_split: Setting::nested(LT, LT).two([(Wait, 1), (Wait, 0)], 1, 2..=2);
    scenario_34_level_of_edge_split: Setting::nested(LT, ET).two([(Wait, 1), (Wait, 0)], 1, 1..=2);
    scenario_35_edge_of_level_split: Setting::nested(ET, LT).two([(Wait, 1), (Wait, 0)], 1, 2..=2);
    scenario_36_edge_of_edge_split: Setting::nested(ET, ET).two([(Wait, 1), (Wait, 0)], 1, 1..=2);
    scenario_37_level_of_level_split: Setting::nested(LT, LT).two([(Poll, 1), (Wait, 0)], 1, 2..=2);
    scenario_38_level_of_edge_split: Setting::nested(LT, ET).two([(Poll, 1), (Wait, 0)], 1, 1..=2);
    scenario_39_edge_of_level_split: Setting::nested(ET, LT).two([(Poll, 1), (Wait, 0)], 1, 2..=2);
    scenario_40_edge_of_edge_split: Setting::nested(ET, ET).two([(Poll, 1), (Wait, 0)], 1, 1..=2);
    scenario_41_level_of_level_split: Setting::nested(LT, LT).two([(Wait, 1), (Poll, 0)], 1, 2..=2);
    scenario_42_level_of_edge_split: Setting::nested(LT, ET).two([(Wait, 1), (Poll, 0)], 1, 1..=2);
    scenario_43_edge_of_level_split: Setting::nested(ET, LT).two([(Wait, 1), (Poll, 0)], 1, 2..=2);
    scenario_44_edge_of_edge_split: Setting::nested(ET, ET).two([(Wait, 1), (Poll, 0)], 1, 1..=2);
    scenario_45_level_of_level_split: Setting::nested(LT, LT).two([(Poll, 1), (Poll, 0)], 1, 2..=2);
    scenario_46_level_of_edge_split: Setting::nested(LT, ET).two([(Poll, 1), (Poll, 0)], 1, 1..=2);
    scenario_47_edge_of_level_split: Setting::nested(ET, LT).two([(Poll, 1), (Poll, 0)], 1, 2..=2);
    scenario_48_edge_of_edge_split: Setting::nested(ET, ET).two([(Poll, 1), (Poll, 0)], 1, 1..=2);
    scenario_53_level_over_two: Setting::twins(LT).two([(Wait, 0), (Wait, 0)], 1, 2..=2);
    scenario_54_edge_over_two: Setting::twins(ET).two([(Wait, 0), (Wait, 0)], 1, 2..=2);
    scenario_55_level_over_two_polled: Setting::twins(LT).two([(Wait, 0), (Poll, 0)], 1, 2..=2);
    scenario_56_edge_over_two_polled: Setting::twins(ET).two([(Wait, 0), (Poll, 0)], 1, 2..=2);
    scenario_57_level_over_two_both_poll: Setting::twins(LT).two([(Poll, 0), (Poll, 0)], 1, 2..=2);
    scenario_58_edge_over_two_both_poll: Setting::twins(ET).two([(Poll, 0), (Poll, 0)], 1, 2..=2);
}

#[test]
fn scenario_59_modify_arms_again() {
    const ROUNDS: usize = 100_000;
    let (poll, source) = (EventPoll::new(), EventCounter::new());
    source.add(1);
    poll.add(&source, ET, 0).unwrap();
    let turn = AtomicUsize::new(0);
    let comes = |wanted: usize| {
        // Woken, not yielding: on a busy machine each yield is a whole turn of all others.
        // ORDERING: SeqCst here and below, a test's turns.
        while turn.load(Ordering::SeqCst) != wanted {
            std::thread::park();
        }
    };
    let one = std::thread::current();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            for round in 0..ROUNDS {
                comes(2 * round + 1);
                poll.modify(&source, ET, 0).unwrap();
                turn.store(2 * round + 2, Ordering::SeqCst);
                one.unpark();
            }
        });
        for round in 0..ROUNDS {
            assert_eq!(poll.wait(&mut Vec::new(), 1, Some(PATIENCE)).unwrap(), 1, "round {round}");
            turn.store(2 * round + 1, Ordering::SeqCst);
            other.thread().unpark();
            comes(2 * round + 2);
        }
    });
}

#[test]
fn scenario_60_ten_threads_ten_sources() {
    const THREADS: usize = 10;
    const ROUNDS: usize = 300;
    let poll = EventPoll::new();
    let sources: Vec<EventCounter> = (0..THREADS).map(|_| EventCounter::new()).collect();
    for (token, source) in sources.iter().enumerate() {
        poll.add(source, ET, token as u64).unwrap();
    }
    let (ready, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut events = Vec::new();
                for round in 0..ROUNDS {
                    // ORDERING: SeqCst here and below, a test's counts.
                    ready.fetch_add(1, Ordering::SeqCst);
                    let count = poll.wait(&mut events, 1, Some(PATIENCE)).unwrap();
                    assert_eq!(count, 1, "a wake-up was lost in round {round}");
                    let token = usize::try_from(events[0].token).unwrap();
                    assert_eq!(sources[token].take(), 1, "two threads were told of one source");
                    read.fetch_add(1, Ordering::SeqCst);
                    until("all have read", || read.load(Ordering::SeqCst) >= (round + 1) * THREADS);
                }
            });
        }
        for round in 0..ROUNDS {
            until("all are ready", || ready.load(Ordering::SeqCst) >= (round + 1) * THREADS);
            if round % 4 == 0 {
                // Most are asleep then; the result does not depend on it.
                std::thread::sleep(Duration::from_millis(1));
            }
            sources.iter().for_each(|source| source.add(1));
        }
    });
}

#[test]
fn scenario_61_an_event_at_the_moment_of_a_timeout() {
    const ROUNDS: usize = 2_000;
    let (poll, source) = (EventPoll::new(), EventCounter::new());
    poll.add(&source, ET, 0).unwrap();
    let told = AtomicUsize::new(0);
    let take = |timeout: Option<Duration>| {
        let count = poll.wait(&mut Vec::new(), 1, timeout);
        // ORDERING: SeqCst here and below, a test's count.
        told.fetch_add(count.unwrap_or(0), Ordering::SeqCst);
        count.is_ok()
    };
    std::thread::scope(|scope| {
        for timeout in [Some(Duration::from_micros(100)), None] {
            let take = &take;
            scope.spawn(move || while take(timeout) {});
        }
        let _closing = Closing(std::slice::from_ref(&poll));
        for round in 0..ROUNDS {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(90 + (round % 32) as u64) {
                std::hint::spin_loop();
            }
            source.add(1);
            until("one is told", || told.load(Ordering::SeqCst) > round);
        }
    });
    assert_eq!(told.into_inner(), ROUNDS);
}

#[test]
fn scenario_62_nothing_and_no_time() {
    let setting = Setting::flat(&[LT, ET]);
    assert_eq!(setting.polls[0].wait(&mut Vec::new(), 1, AT_ONCE), Ok(0));
}

#[test]
fn scenario_63_nothing_in_10_ms() {
    let setting = Setting::flat(&[LT, ET]);
    let begun = Instant::now();
    assert_eq!(setting.polls[0].wait(&mut Vec::new(), 1, Some(Duration::from_millis(10))), Ok(0));
    assert!(begun.elapsed() >= Duration::from_millis(10));
}

#[test]
fn scenario_64_two_who_are_blocked() {
    let setting = Setting::flat(&[LT]);
    let (poll, source) = (&setting.polls[0], &setting.sources[0]);
    std::thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| poll.wait(&mut Vec::new(), 1, Some(PATIENCE))));
        // Both may be asleep by then; the result does not depend on it.
        std::thread::sleep(Duration::from_millis(10));
        source.add(1);
        assert_eq!(waiters.map(|waiter| waiter.join().unwrap()), [Ok(1), Ok(1)]);
    });
}

#[test]
fn scenario_65_a_source_that_stays_ready_is_never_missed() {
    let setting = Setting::flat(&[LT]);
    setting.signal();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let mut events = Vec::new();
                for wait in 0..100_000 {
                    assert_eq!(setting.polls[0].wait(&mut events, 1, AT_ONCE), Ok(1), "wait {wait}");
                }
            });
        }
    });
}
