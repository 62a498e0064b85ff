//! The protocols between producers, consumers and threads that change the interest set, under loom:
//! the crate's own code, with few sources and few switches between threads that could go on.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-eventpoll --release --test loom_eventpoll`
#![cfg(loom)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::time::Duration;

use futures_core::Stream as _;
use sync::atomic::{AtomicU64, Ordering};
use sync::{mutant, thread};
use watertight_eventpoll::{
    Error, EventCounter, EventPoll, EventStream, Events, Flag, Interest, Journal, Poll, PollFd, Read, Source,
};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const LT: Interest = Interest::level(Events::IN);
const ET: Interest = Interest::edge(Events::IN);

/// Every interleaving with at most this many switches away from a thread that could go on.
fn model(switches: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(test);
}

fn watching<S: watertight_eventpoll::AsSource>(source: S, mode: Interest) -> (Arc<EventPoll>, Arc<S>) {
    let poll = EventPoll::new();
    poll.add(&source, mode, 0).expect("a new source");
    (Arc::new(poll), Arc::new(source))
}

fn count(poll: &EventPoll) -> usize {
    poll.wait(&mut Vec::new(), 4, AT_ONCE).expect("it is open")
}

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::spawn(work)
}

/// EP-R1: a waiter is woken by a signal, wherever the one meets the other.
#[test]
fn who_waits_is_woken() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let signals = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        assert_eq!(poll.wait(&mut Vec::new(), 1, None), Ok(1));
        signals.join().expect("it ends");
    });
}

/// EP-R1: a producer whose signal was served before it came to wake does not use up the wake-up of
/// the next signal.
#[test]
fn who_waits_is_woken_again() {
    model(3, || {
        let (poll, counter) = watching(EventCounter::new(), LT);
        let signals = {
            let counter = Arc::clone(&counter);
            spawn(move || (0..2).for_each(|_| counter.add(1)))
        };
        let mut taken = 0;
        while taken < 2 {
            assert_eq!(poll.wait(&mut Vec::new(), 1, None), Ok(1));
            taken += counter.take();
        }
        signals.join().expect("it ends");
    });
}

/// EP-R4: a signal that has returned is seen by the next consumer, wherever another producer was
/// stopped, of the same source too.
#[test]
fn a_signal_that_has_returned_is_seen() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let other = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        flag.set();
        assert_eq!(count(&poll), 1, "held up by one who was stopped");
        other.join().expect("it ends");
    });
}

/// Two sources of edge kind, of which the first was signalled; a scan that is about to take it, on
/// a thread of its own.
fn beside_a_scan() -> (Arc<EventPoll>, Arc<Flag>, Flag, thread::JoinHandle<usize>) {
    let (poll, flag) = watching(Flag::new(), ET);
    let first = Flag::new();
    poll.add(&first, ET, 1).expect("a new source");
    first.set();
    let scans = {
        let poll = Arc::clone(&poll);
        spawn(move || count(&poll))
    };
    (poll, flag, first, scans)
}

/// EP-R4 and EP-R3: a signal that has returned is seen while one thread scans, and another takes
/// the news of a second source.
#[test]
fn a_signal_that_has_returned_is_seen_beside_a_scan() {
    model(3, || {
        let (poll, flag, _first, scans) = beside_a_scan();
        flag.set();
        let mine = count(&poll);
        let theirs = scans.join().expect("it ends");
        assert_eq!(mine + theirs, 2, "missed beside a scan");
    });
}

/// EP-R4: a signal that has returned is seen while one thread scans and a producer of the same
/// source is stopped half-way.
#[test]
fn a_signal_that_has_returned_is_seen_beside_a_scan_and_one_who_stopped() {
    model(3, || {
        let (poll, flag, _first, scans) = beside_a_scan();
        let stops = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        flag.set();
        let mine = count(&poll);
        let theirs = scans.join().expect("it ends");
        assert!(mine + theirs >= 2, "held up by one who was stopped");
        stops.join().expect("it ends");
    });
}

/// EP-R3: a ready source is there for a consumer, while a scan takes it.
#[test]
fn what_a_scan_takes_is_not_missed() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        flag.set();
        let scans = {
            let poll = Arc::clone(&poll);
            spawn(move || count(&poll))
        };
        let counts = [count(&poll), scans.join().expect("it ends")];
        assert_eq!(counts, [1, 1], "a false negative");
    });
}

/// EP-R3: no consumer falls asleep beside a ready source, while a scan holds its item.
#[test]
fn what_a_scan_has_taken_lets_nobody_sleep() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        flag.set();
        let wait = || {
            let poll = Arc::clone(&poll);
            spawn(move || poll.wait(&mut Vec::new(), 1, None))
        };
        let waits = [wait(), wait()];
        assert_eq!(poll.asleep(), 0, "asleep beside what is ready");
        assert_eq!(waits.map(|waits| waits.join().expect("it ends")), [Ok(1), Ok(1)]);
    });
}

/// EP-R3: a ready source of level kind is there for every consumer.
#[test]
fn what_stays_ready_is_never_missed() {
    model(4, || {
        let (poll, flag) = watching(Flag::new(), LT);
        flag.set();
        assert_eq!(count(&poll), 1);
        flag.take();
        let scans = {
            let poll = Arc::clone(&poll);
            spawn(move || count(&poll))
        };
        flag.set();
        assert_eq!(count(&poll), 1, "a false negative");
        scans.join().expect("it ends");
    });
}

/// EP-R4: after a signal no waiter sleeps, though another producer is stopped on its way to wake.
#[test]
fn after_a_signal_nobody_sleeps() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let waits = {
            let poll = Arc::clone(&poll);
            spawn(move || poll.wait(&mut Vec::new(), 1, None))
        };
        let other = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        flag.set();
        assert_eq!(poll.asleep(), 0, "asleep until another is finished");
        assert_eq!(waits.join().expect("it ends"), Ok(1));
        other.join().expect("it ends");
    });
}

/// EP-R3, EP-R4: a source of level kind that is ready for two takes is there for both, wherever a
/// producer of it was stopped.
#[test]
fn what_is_left_of_a_source_is_not_hidden_by_one_who_stopped() {
    model(3, || {
        let (poll, source) = (Arc::new(EventPoll::new()), Arc::new(Source::new(Takes::default())));
        poll.add(&*source, LT, 0).expect("a new source");
        let add = |source: &Source<Takes>| {
            // ORDERING: SeqCst, not what is tested.
            source.0.fetch_add(1, Ordering::SeqCst);
            source.signal(Events::IN);
        };
        // Reported, so that it is still in the list, and not ready any more.
        add(&source);
        assert_eq!(count(&poll), 1);
        source.0.fetch_sub(1, Ordering::SeqCst);
        let stops = {
            let source = Arc::clone(&source);
            spawn(move || add(&source))
        };
        // Becomes ready while it is on its way out of the list.
        count(&poll);
        add(&source);
        assert_eq!(count(&poll), 1, "hidden by one who was stopped");
        // One takes, there is more.
        source.0.fetch_sub(1, Ordering::SeqCst);
        stops.join().expect("it ends");
        assert_eq!(count(&poll), 1);
    });
}

/// Ready as often as it was signalled.
#[derive(Default)]
struct Takes(AtomicU64);

impl Poll for Takes {
    fn poll(&self) -> Events {
        // ORDERING: SeqCst, as above.
        if self.0.load(Ordering::SeqCst) == 0 { Events::empty() } else { Events::IN }
    }
}

/// EP-R1: a signal of edge kind is reported, though a scan is under way that finds nothing.
#[test]
fn no_signal_is_lost_beside_a_scan() {
    model(4, || {
        let (poll, counter) = watching(EventCounter::new(), ET);
        // Queued, and not ready any more.
        counter.add(1);
        counter.take();
        let signals = {
            let counter = Arc::clone(&counter);
            spawn(move || counter.add(1))
        };
        let mut told = count(&poll);
        signals.join().expect("it ends");
        told += count(&poll);
        assert!(told >= 1, "lost beside a scan");
    });
}

/// `modify` beside a signal: one of the two sees the other, and a ready source is reported.
#[test]
fn modify_or_the_signal_sees_the_other() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), Interest::level(Events::OUT));
        let signals = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        poll.modify(&*flag, LT, 0).expect("it is watched");
        signals.join().expect("it ends");
        assert_eq!(count(&poll), 1, "neither saw the other");
    });
}

/// `add` beside a signal: one of the two sees the other, and a ready source is reported.
#[test]
fn add_or_the_signal_sees_the_other() {
    model(3, || {
        let (poll, flag) = (EventPoll::new(), Arc::new(Flag::new()));
        let signals = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        poll.add(&*flag, LT, 0).expect("a new source");
        signals.join().expect("it ends");
        assert_eq!(count(&poll), 1, "neither saw the other");
    });
}

/// EP-R5: an item that is deleted stays for as long as its callback runs, and is not reported
/// afterwards.
#[test]
fn what_is_deleted_stays_while_it_is_called() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let signals = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        poll.delete(&*flag).expect("it is watched");
        assert_eq!(count(&poll), 0);
        signals.join().expect("it ends");
        assert_eq!(count(&poll), 0);
    });
}

/// EP-R5: a producer is stopped until the item is gone; the next item in its place is signalled all
/// the same.
#[test]
fn a_late_signal_does_no_harm_to_who_comes_next() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let signals = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        poll.delete(&*flag).expect("it is watched");
        signals.join().expect("it ends");
        assert_eq!(count(&poll), 0);
        let next = Flag::new();
        poll.add(&next, LT, 1).expect("a new source");
        next.set();
        assert_eq!(count(&poll), 1, "its place is marked for good");
    });
}

/// EP-R5: `close` ends a wait, though a signal comes at the same time.
#[test]
fn a_close_ends_a_wait_beside_a_signal() {
    model(2, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let waits = {
            let poll = Arc::clone(&poll);
            spawn(move || poll.wait(&mut Vec::new(), 1, None))
        };
        let signals = spawn(move || flag.set());
        poll.close();
        let result = waits.join().expect("it ends");
        assert!(matches!(result, Ok(1) | Err(Error::Closed)), "{result:?}");
        signals.join().expect("it ends");
    });
}

#[test]
fn an_interrupt_ends_a_wait_that_has_begun() {
    model(3, || {
        let poll = Arc::new(EventPoll::new());
        let waits = {
            let poll = Arc::clone(&poll);
            spawn(move || poll.wait(&mut Vec::new(), 1, None))
        };
        // An interrupt before the wait begins does not count: then the close ends the wait.
        poll.interrupt();
        poll.close();
        let result = waits.join().expect("it ends");
        assert!(matches!(result, Err(Error::Interrupted | Error::Closed)), "{result:?}");
    });
}

/// EP-R4, P8: after a signal the descriptor is readable, though another producer is stopped on its
/// way to notify.
#[test]
fn after_a_signal_the_descriptor_is_readable() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let fd = PollFd::new(poll).expect("it is open");
        assert_eq!(fd.take(&mut Vec::new(), 1), Ok(0));
        let stops = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        flag.set();
        assert!(fd.is_readable(), "unreadable until another is finished");
        stops.join().expect("it ends");
    });
}

/// P8: a consumer that checks by a descriptor finds the signal, or is notified of it.
#[test]
fn a_look_or_the_signal_sees_the_other() {
    model(3, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let fd = PollFd::new(poll).expect("it is open");
        let signals = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        let taken = fd.take(&mut Vec::new(), 1);
        signals.join().expect("it ends");
        assert!(taken == Ok(1) || fd.is_readable(), "neither saw the other");
    });
}

/// P8: a producer that has notified is stopped before it notes that, until checks have begun and
/// found the work; the next signal notifies all the same.
#[test]
fn a_late_note_hides_nothing() {
    model(3, || {
        let (poll, counter) = watching(EventCounter::new(), ET);
        let fd = PollFd::new(poll).expect("it is open");
        let stops = {
            let counter = Arc::clone(&counter);
            spawn(move || counter.add(1))
        };
        // Found by the first check and reported by it again; then there is nothing.
        fd.take(&mut Vec::new(), 1).expect("it is open");
        fd.take(&mut Vec::new(), 1).expect("it is open");
        counter.add(1);
        assert!(fd.is_readable(), "hidden by a late note");
        stops.join().expect("it ends");
    });
}

/// EP-R4, P8: after a signal the task that waits is woken, though another producer is stopped on
/// its way to notify.
#[test]
fn after_a_signal_the_task_is_woken() {
    model(2, || {
        let (poll, flag) = watching(Flag::new(), LT);
        let mut stream = EventStream::new(poll).expect("it is open");
        let task = Arc::new(Task(AtomicU64::new(0)));
        let waker = Arc::clone(&task).into();
        let next = Pin::new(&mut stream).poll_next(&mut Context::from_waker(&waker));
        assert_eq!(next, std::task::Poll::Pending);
        let stops = {
            let flag = Arc::clone(&flag);
            spawn(move || flag.set())
        };
        flag.set();
        // ORDERING: SeqCst, not what is tested.
        assert!(task.0.load(Ordering::SeqCst) > 0, "not woken until another is finished");
        stops.join().expect("it ends");
    });
}

/// How often it was woken.
struct Task(AtomicU64);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        // ORDERING: SeqCst, as above.
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// EP-R7: a consumer is woken, though another exclusive eventpoll is signalled first and no thread
/// waits for that one; of two sleepers at least one is woken.
#[test]
fn of_those_that_are_exclusive_one_is_woken() {
    model(2, || {
        let (first, flag) = watching(Flag::new(), ET.exclusive());
        let other = Arc::new(EventPoll::new());
        other.add(&*flag, ET.exclusive(), 0).expect("a new source");
        let waits = {
            let other = Arc::clone(&other);
            spawn(move || other.wait(&mut Vec::new(), 1, None))
        };
        flag.set();
        assert_eq!(waits.join().expect("it ends"), Ok(1));
        drop(first);
    });
}

/// EP-R6: of two eventpolls that would watch each other, each by a thread of its own, one is
/// refused.
#[test]
fn two_that_would_watch_each_other() {
    model(3, || {
        let polls = [Arc::new(EventPoll::new()), Arc::new(EventPoll::new())];
        let other = {
            let [a, b] = polls.clone();
            spawn(move || b.add(&*a, LT, 0))
        };
        let results = [polls[0].add(&*polls[1], LT, 0), other.join().expect("it ends")];
        assert!(results.contains(&Ok(())) && results.contains(&Err(Error::Loop)), "a circle: {results:?}");
    });
}

/// A reader of a journal that keeps up misses nothing that is written beside it.
#[test]
fn a_reader_that_keeps_up_misses_nothing() {
    model(3, || {
        let journal = Journal::new(2);
        let writes = {
            let journal = Arc::clone(&journal);
            spawn(move || journal.push(1))
        };
        let mut reader = journal.reader(0);
        let mut found = reader.read();
        writes.join().expect("it ends");
        if matches!(found, Read::Nothing) {
            found = reader.read();
        }
        assert!(matches!(found, Read::Entry { number: 1, value } if *value == 1), "missed beside a writer");
    });
}

#[test]
fn each_mutant_is_caught() {
    for (test, mutants, objection) in [
        (
            "who_waits_is_woken",
            &["eventpoll-sleep-unchecked", "eventpoll-no-sleeper-fence", "eventpoll-no-waker-fence"][..],
            "deadlock",
        ),
        ("who_waits_is_woken_again", &["eventpoll-number-after-coming"], "deadlock"),
        (
            "a_signal_that_has_returned_is_seen",
            &["eventpoll-link-in-two-steps"],
            "held up by one who was stopped",
        ),
        (
            "a_signal_that_has_returned_is_seen_beside_a_scan",
            &["eventpoll-no-queue-fence", "eventpoll-no-root-fence"],
            "missed beside a scan",
        ),
        (
            "a_signal_that_has_returned_is_seen_beside_a_scan_and_one_who_stopped",
            &["eventpoll-no-load-fence"],
            "held up by one who was stopped",
        ),
        (
            "what_is_left_of_a_source_is_not_hidden_by_one_who_stopped",
            &["eventpoll-requeue-trusts"],
            "hidden by one who was stopped",
        ),
        (
            "what_stays_ready_is_never_missed",
            &["eventpoll-unqueue-after-asking", "eventpoll-no-unqueue-fence"],
            "a false negative",
        ),
        ("what_a_scan_takes_is_not_missed", &["eventpoll-list-late"], "a false negative"),
        ("what_a_scan_has_taken_lets_nobody_sleep", &["eventpoll-list-late"], "asleep beside what is ready"),
        (
            "after_a_signal_nobody_sleeps",
            &["eventpoll-note-before-wake", "eventpoll-fast-path-lets-sleep"],
            "asleep until another is finished",
        ),
        (
            "no_signal_is_lost_beside_a_scan",
            &["eventpoll-unqueue-after-asking", "eventpoll-no-unqueue-fence"],
            "lost beside a scan",
        ),
        ("modify_or_the_signal_sees_the_other", &["eventpoll-no-unlock-fence"], "neither saw the other"),
        (
            "what_is_deleted_stays_while_it_is_called",
            &["eventpoll-free-under-callback"],
            "freed under the callback",
        ),
        (
            "after_a_signal_the_descriptor_is_readable",
            &["eventpoll-noted-before-told", "eventpoll-fast-path-untold"],
            "unreadable until another is finished",
        ),
        (
            "after_a_signal_the_task_is_woken",
            &["eventpoll-noted-before-told"],
            "not woken until another is finished",
        ),
        ("a_look_or_the_signal_sees_the_other", &["eventpoll-no-look-fence"], "neither saw the other"),
        ("a_late_note_hides_nothing", &["eventpoll-noted-after-a-look"], "hidden by a late note"),
        ("of_those_that_are_exclusive_one_is_woken", &["eventpoll-exclusive-trusts"], "deadlock"),
        (
            "a_late_signal_does_no_harm_to_who_comes_next",
            &["eventpoll-pass-marked"],
            "its place is marked for good",
        ),
        ("a_close_ends_a_wait_beside_a_signal", &["eventpoll-close-late"], "deadlock"),
        ("two_that_would_watch_each_other", &["eventpoll-link-unlocked"], "a circle"),
        ("a_reader_that_keeps_up_misses_nothing", &["journal-filled-first"], "missed beside a writer"),
    ] {
        mutant::assert_caught(test, mutants, objection);
    }
}
