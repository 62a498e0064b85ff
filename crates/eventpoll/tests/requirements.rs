//! The requirements EP-R1 to EP-R8, with real threads. The models (`loom_*`) check their claims
//! about memory orderings and about every interleaving; EP-R4 is measured by the lab as well.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Closing, PATIENCE, until};
use watertight_eventpoll::{
    Error, EventCounter, EventPoll, Events, Flag, Interest, Options, Poll, Source, Watches,
};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const LT: Interest = Interest::level(Events::IN);
const ET: Interest = Interest::edge(Events::IN);

/// Producers signal, waiters take, until all that was given was taken.
fn no_lost_wakeup(mode: Interest, producers: u64, waiters: usize) {
    const SIGNALS: u64 = 20_000;
    let polls = [EventPoll::new(), EventPoll::new()];
    let sources: Vec<EventCounter> = (0..producers).map(|_| EventCounter::new()).collect();
    for poll in &polls {
        for (token, source) in (0..).zip(&sources) {
            poll.add(source, mode, token).unwrap();
        }
    }
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _closing = Closing(&polls);
        for waiter in 0..waiters {
            let (poll, sources, taken) = (&polls[waiter % polls.len()], &sources, &taken);
            scope.spawn(move || {
                let mut events = Vec::new();
                while poll.wait(&mut events, 3, None).is_ok() {
                    for event in &events {
                        let source = &sources[usize::try_from(event.token).unwrap()];
                        // ORDERING: SeqCst, a test's count.
                        taken.fetch_add(source.take(), Ordering::SeqCst);
                        if mode == LT.one_shot() {
                            let _ = poll.modify(source, mode, event.token);
                        }
                    }
                }
            });
        }
        for source in &sources {
            scope.spawn(move || {
                for signal in 0..SIGNALS {
                    source.add(1);
                    if signal % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        until("all is taken", || taken.load(Ordering::SeqCst) == producers * SIGNALS);
    });
}

#[test]
fn ep_r1_no_lost_wakeup_level() {
    no_lost_wakeup(LT, 4, 4);
}

#[test]
fn ep_r1_no_lost_wakeup_edge() {
    no_lost_wakeup(ET, 4, 4);
}

#[test]
fn ep_r1_no_lost_wakeup_one_shot() {
    no_lost_wakeup(LT.one_shot(), 4, 4);
}

#[test]
fn ep_r1_no_lost_wakeup_exclusive() {
    no_lost_wakeup(LT.exclusive(), 4, 4);
    no_lost_wakeup(ET.exclusive(), 2, 2);
}

/// One event at a time, each answered before the next: every wake-up counts.
#[test]
fn ep_r1_no_lost_wakeup_one_by_one() {
    for mode in [LT, ET] {
        let (ping, pong) = (EventPoll::new(), EventPoll::new());
        let (there, back) = (Flag::new(), Flag::new());
        ping.add(&there, mode, 0).unwrap();
        pong.add(&back, mode, 0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    assert_eq!(ping.wait(&mut Vec::new(), 1, Some(PATIENCE)), Ok(1));
                    assert!(there.take());
                    back.set();
                }
            });
            for _ in 0..20_000 {
                there.set();
                assert_eq!(pong.wait(&mut Vec::new(), 1, Some(PATIENCE)), Ok(1));
                assert!(back.take());
            }
        });
    }
}

#[test]
fn ep_r2_a_source_is_queued_once() {
    for mode in [LT, ET] {
        let (poll, source, is_over) = (EventPoll::new(), EventCounter::new(), AtomicBool::new(false));
        poll.add(&source, mode, 0).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    // ORDERING: SeqCst, a test's flag.
                    while !is_over.load(Ordering::SeqCst) {
                        source.add(1);
                    }
                });
            }
            for _ in 0..20_000 {
                assert!(poll.wait(&mut Vec::new(), 8, AT_ONCE).unwrap() <= 1);
                source.take();
            }
            is_over.store(true, Ordering::SeqCst);
        });
        source.add(1);
        source.add(1);
        assert_eq!(poll.wait(&mut Vec::new(), 8, AT_ONCE), Ok(1));
    }
}

#[test]
fn ep_r3_what_is_ready_is_never_missed_while_others_scan() {
    let (poll, sources) = (EventPoll::new(), [(); 3].map(|()| EventCounter::new()));
    for source in &sources {
        poll.add(source, LT, 0).unwrap();
        source.add(1);
    }
    std::thread::scope(|scope| {
        for room in 1..=4 {
            let poll = &poll;
            scope.spawn(move || {
                for wait in 0..50_000 {
                    let count = poll.wait(&mut Vec::new(), room, AT_ONCE).unwrap();
                    assert!(count >= 1, "wait {wait} with room for {room}");
                }
            });
        }
    });
}

/// With one kind of signal in between: what the signaller itself looks for is there.
#[test]
fn ep_r3_a_signal_that_has_returned_is_seen() {
    let poll = EventPoll::new();
    let (mine, theirs) = (EventCounter::new(), EventCounter::new());
    poll.add(&mine, LT, 0).unwrap();
    poll.add(&theirs, LT, 1).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // ORDERING: SeqCst, a test's flag.
            while !is_over.load(Ordering::SeqCst) {
                theirs.add(1);
                let _ = poll.wait(&mut Vec::new(), 1, AT_ONCE);
                theirs.take();
            }
        });
        for round in 0..100_000 {
            mine.add(1);
            let mut events = Vec::new();
            poll.wait(&mut events, 2, AT_ONCE).unwrap();
            assert!(events.iter().any(|event| event.token == 0), "round {round}: {events:?}");
            mine.take();
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn ep_r5_sources_come_and_go_under_signals_and_waits() {
    let polls = [EventPoll::new(), EventPoll::new(), EventPoll::new()];
    polls[0].add(&polls[1], LT, 100).unwrap();
    polls[0].add(&polls[2], ET, 100).unwrap();
    let steady = EventCounter::new();
    polls.iter().for_each(|poll| poll.add(&steady, ET, 200).unwrap());
    let (seen, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    // ORDERING: SeqCst here and below, a test's flag and count.
    let goes_on = || !is_over.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let _closing = Closing(&polls);
        for poll in &polls {
            let seen = &seen;
            scope.spawn(move || {
                let mut events = Vec::new();
                while poll.wait(&mut events, 2, None).is_ok() {
                    seen.fetch_add(events.len() as u64, Ordering::SeqCst);
                }
            });
        }
        scope.spawn(|| {
            while goes_on() {
                steady.add(1);
            }
        });
        let mut changers = Vec::new();
        for poll in &polls[1..] {
            let goes_on = &goes_on;
            changers.push(scope.spawn(move || {
                while goes_on() {
                    // A source that is deleted, one that is dropped, one that goes with its
                    // eventpoll, each under signals.
                    let sources = [(); 3].map(|()| EventCounter::new());
                    let gone = EventPoll::new();
                    std::thread::scope(|scope| {
                        scope.spawn(|| sources.iter().for_each(|source| source.add(1)));
                        for source in &sources {
                            poll.add(source, LT, 1).unwrap();
                            gone.add(source, ET, 1).unwrap();
                        }
                        poll.modify(&sources[0], ET, 2).unwrap();
                        poll.delete(&sources[0]).unwrap();
                        assert_eq!(poll.delete(&sources[0]), Err(Error::NotFound));
                        drop(gone);
                    });
                }
            }));
        }
        changers.push(scope.spawn(|| {
            while goes_on() {
                let inner = EventPoll::new();
                inner.add(&steady, LT, 3).unwrap();
                polls[0].add(&inner, ET, 3).unwrap();
                drop(inner);
            }
        }));
        let begun = std::time::Instant::now();
        until("it went on for a while", || begun.elapsed() > Duration::from_millis(500));
        is_over.store(true, Ordering::SeqCst);
        // Not closed under the threads that change it.
        until("they have ended", || changers.iter().all(std::thread::ScopedJoinHandle::is_finished));
        assert!(seen.load(Ordering::SeqCst) > 0);
        assert!(polls.iter().all(|poll| !poll.is_empty()));
    });
}

#[test]
fn ep_r5_a_close_ends_every_wait() {
    for _ in 0..200 {
        let (outer, inner, source) = (EventPoll::new(), EventPoll::new(), EventCounter::new());
        inner.add(&source, LT, 0).unwrap();
        outer.add(&inner, LT, 0).unwrap();
        std::thread::scope(|scope| {
            let waiters = [&inner, &inner, &outer]
                .map(|poll| scope.spawn(move || while poll.wait(&mut Vec::new(), 1, None).is_ok() {}));
            let signals = scope.spawn(|| (0..50).for_each(|_| source.add(1)));
            inner.close();
            outer.close();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            signals.join().unwrap();
        });
        assert!(outer.is_empty() && inner.is_empty());
    }
}

/// A source may be dropped under a lock that its neighbour's `poll` takes, and an eventpoll too.
#[test]
fn ep_r5_what_is_dropped_waits_for_no_scan() {
    struct Locked(Arc<Mutex<()>>);
    impl Poll for Locked {
        fn poll(&self) -> Events {
            drop(self.0.lock().unwrap());
            Events::IN
        }
    }
    let (lock, outer) = (Arc::new(Mutex::new(())), EventPoll::new());
    let steady = Source::new(Locked(Arc::clone(&lock)));
    outer.add(&steady, LT, 0).unwrap();
    let watches = Arc::new(Watches::default());
    std::thread::scope(|scope| {
        let _closing = Closing(std::slice::from_ref(&outer));
        for _ in 0..2 {
            scope.spawn(|| while outer.wait(&mut Vec::new(), 4, None).is_ok() {});
        }
        for _ in 0..3_000 {
            let inner = EventPoll::with_options(Options { watches: Arc::clone(&watches) });
            let source = Source::new(Locked(Arc::clone(&lock)));
            inner.add(&steady, LT, 0).unwrap();
            inner.add(&source, LT, 0).unwrap();
            outer.add(&source, LT, 0).unwrap();
            outer.add(&inner, LT, 0).unwrap();
            let held = lock.lock().unwrap();
            drop(source);
            drop(inner);
            drop(held);
        }
        // By the thread that had the lock then.
        until("all is forgotten", || watches.used() == 0);
        assert_eq!(outer.len(), 1);
    });
}

#[test]
fn ep_r6_two_that_would_watch_each_other() {
    for _ in 0..2_000 {
        let (a, b) = (EventPoll::new(), EventPoll::new());
        let results = std::thread::scope(|scope| {
            let other = scope.spawn(|| b.add(&a, LT, 0));
            [a.add(&b, LT, 0), other.join().unwrap()]
        });
        assert!(results.contains(&Ok(())) && results.contains(&Err(Error::Loop)), "{results:?}");
    }
}

/// Notes the calling thread's number, from which on it sleeps in nothing but a wait.
fn note_thread(thread: &AtomicU64) {
    let number = rustix::thread::gettid().as_raw_nonzero().get();
    // ORDERING: SeqCst here and below, a test's numbers.
    thread.store(u64::from(number.unsigned_abs()), Ordering::SeqCst);
}

fn is_asleep(thread: &AtomicU64) -> bool {
    let thread = thread.load(Ordering::SeqCst);
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

/// Eventpolls that all watch one source exclusively; those in `waiting` have a sleeping thread. The
/// source is signalled, and then the threads without an event are interrupted. Returns the
/// eventpolls whose threads had one.
fn told_exclusively(mode: Interest, polls: usize, waiting: std::ops::Range<usize>) -> Vec<usize> {
    let (polls, source): (Vec<EventPoll>, _) = ((0..polls).map(|_| EventPoll::new()).collect(), Flag::new());
    polls.iter().for_each(|poll| poll.add(&source, mode.exclusive(), 0).unwrap());
    let threads: &[AtomicU64] = &std::array::from_fn::<_, 8, _>(|_| AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _closing = Closing(&polls);
        let waits: Vec<_> = waiting
            .map(|at| {
                let poll = &polls[at];
                let wait = scope.spawn(move || {
                    note_thread(&threads[at]);
                    poll.wait(&mut Vec::new(), 1, None)
                });
                (at, wait)
            })
            .collect();
        // From its number on there is nothing that a waiter could sleep on but this.
        until("all are asleep", || waits.iter().all(|(at, _)| is_asleep(&threads[*at])));
        source.set();
        until("one is woken", || waits.iter().any(|(_, wait)| wait.is_finished()));
        // A thread that was woken has an event, even if it was not on a processor yet.
        until("all have ended", || {
            polls.iter().for_each(EventPoll::interrupt);
            waits.iter().all(|(_, wait)| wait.is_finished())
        });
        waits.into_iter().filter_map(|(at, wait)| wait.join().unwrap().is_ok().then_some(at)).collect()
    })
}

/// As many eventpolls as sources, all of which they watch exclusively, and a thread asleep in each:
/// each source is signalled, without a pause, and no thread sleeps on beside an event.
#[test]
fn ep_r7_exclusive_wakes_one_for_each_signal() {
    for mode in [LT, ET] {
        for _ in 0..20 {
            let (polls, sources) = ([EventPoll::new(), EventPoll::new()], [Flag::new(), Flag::new()]);
            for poll in &polls {
                (0..)
                    .zip(&sources)
                    .for_each(|(token, source)| poll.add(source, mode.exclusive(), token).unwrap());
            }
            let threads = [AtomicU64::new(0), AtomicU64::new(0)];
            std::thread::scope(|scope| {
                let _closing = Closing(&polls);
                let waits: Vec<_> = polls
                    .iter()
                    .zip(&threads)
                    .map(|(poll, thread)| {
                        scope.spawn(move || {
                            note_thread(thread);
                            poll.wait(&mut Vec::new(), 1, None)
                        })
                    })
                    .collect();
                until("both are asleep", || threads.iter().all(is_asleep));
                sources.iter().for_each(Flag::set);
                until("both are woken", || waits.iter().all(std::thread::ScopedJoinHandle::is_finished));
            });
        }
    }
}

#[test]
fn ep_r7_exclusive_wakes_one_of_many_who_sleep() {
    for mode in [LT, ET] {
        for _ in 0..20 {
            assert_eq!(told_exclusively(mode, 8, 0..8).len(), 1);
        }
    }
}

/// Also where no thread waits for the eventpolls that are signalled first.
#[test]
fn ep_r7_exclusive_wakes_the_only_one_who_sleeps() {
    for mode in [LT, ET] {
        for who in 0..8 {
            assert_eq!(told_exclusively(mode, 8, who..who + 1), [who]);
        }
    }
}

#[test]
fn ep_r8_a_source_may_be_signalled_under_the_lock_that_its_poll_takes() {
    #[derive(Default)]
    struct Inbox(Mutex<VecDeque<u32>>);
    impl Poll for Inbox {
        fn poll(&self) -> Events {
            if self.0.lock().unwrap().is_empty() { Events::empty() } else { Events::IN }
        }
    }
    for mode in [LT, ET] {
        let (outer, inner, inbox) = (EventPoll::new(), EventPoll::new(), Source::new(Inbox::default()));
        inner.add(&inbox, mode, 0).unwrap();
        outer.add(&inner, mode, 0).unwrap();
        std::thread::scope(|scope| {
            for poll in [&inner, &outer] {
                scope.spawn(|| while poll.wait(&mut Vec::new(), 1, None).is_ok() {});
            }
            let _closing = (Closing(std::slice::from_ref(&inner)), Closing(std::slice::from_ref(&outer)));
            for number in 0..20_000 {
                let mut queue = inbox.0.lock().unwrap();
                queue.push_back(number);
                inbox.signal(Events::IN);
                queue.pop_front();
            }
        });
    }
}
