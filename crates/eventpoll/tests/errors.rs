//! Every error of the table, and calls that are no error.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use watertight_eventpoll::{
    Error, EventCounter, EventPoll, Events, Interest, Options, Poll, Source, Watches, wait_for,
};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const LT: Interest = Interest::level(Events::IN);

#[test]
fn closed_is_closed() {
    let (poll, source) = (EventPoll::new(), EventCounter::new());
    poll.add(&source, LT, 0).unwrap();
    poll.close();
    poll.close();
    assert_eq!(poll.add(&EventCounter::new(), LT, 0), Err(Error::Closed));
    assert_eq!(poll.modify(&source, LT, 0), Err(Error::Closed));
    assert_eq!(poll.delete(&source), Err(Error::Closed));
    assert_eq!(poll.wait(&mut Vec::new(), 1, AT_ONCE), Err(Error::Closed));
    assert_eq!(poll.wait(&mut Vec::new(), 1, None), Err(Error::Closed));
    assert_eq!(wait_for(&poll, Events::IN, None), Err(Error::Closed));
    assert_eq!(EventPoll::new().add(&poll, LT, 0), Err(Error::Closed));
    source.add(1);
}

#[test]
fn a_source_is_watched_once() {
    let (poll, source) = (EventPoll::new(), EventCounter::new());
    assert_eq!(poll.delete(&source), Err(Error::NotFound));
    assert_eq!(poll.modify(&source, LT, 0), Err(Error::NotFound));
    poll.add(&source, LT, 0).unwrap();
    assert_eq!(poll.add(&source, LT, 0), Err(Error::Exists));
    assert_eq!(poll.len(), 1);
    poll.delete(&source).unwrap();
    assert!(poll.is_empty());
    poll.add(&source, LT, 0).unwrap();
}

#[test]
fn what_is_exclusive_stays_as_it_is() {
    let (poll, other, source) = (EventPoll::new(), EventPoll::new(), EventCounter::new());
    assert_eq!(poll.add(&other, LT.exclusive(), 0), Err(Error::Exclusive));
    poll.add(&source, LT.exclusive(), 0).unwrap();
    assert_eq!(poll.modify(&source, LT, 0), Err(Error::Exclusive));
    other.add(&source, LT, 0).unwrap();
    assert_eq!(other.modify(&source, LT.exclusive(), 0), Err(Error::Exclusive));
}

/// As epoll_ctl(2) has it; the test below asks the kernel the same.
#[test]
fn what_does_not_go_with_exclusive() {
    let refused = |interest| EventPoll::new().add(&EventCounter::new(), interest, 0) == Err(Error::Exclusive);
    assert!(refused(LT.exclusive().one_shot()));
    assert!(refused(LT.one_shot().exclusive()));
    assert!(refused(Interest::edge(Events::IN).one_shot().exclusive()));
    assert!(refused(Interest::level(Events::PRI).exclusive()));
    assert!(refused(Interest::level(Events::IN | Events::RDHUP).exclusive()));
    assert!(!refused(Interest::level(Events::IN | Events::OUT | Events::ERR | Events::HUP).exclusive()));
    assert!(!refused(Interest::edge(Events::OUT).exclusive()));
    assert!(!refused(LT.one_shot()) && !refused(Interest::level(Events::RDHUP)));
}

#[test]
fn the_kernel_refuses_the_same_with_exclusive() {
    use rustix::event::{EventfdFlags, epoll, eventfd};
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let refused = |flags: epoll::EventFlags| {
        let source = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let added =
            epoll::add(&poll, &source, epoll::EventData::new_u64(0), flags | epoll::EventFlags::EXCLUSIVE);
        assert!(matches!(added, Ok(()) | Err(rustix::io::Errno::INVAL)), "{added:?}");
        added.is_err()
    };
    let flags =
        [epoll::EventFlags::IN, epoll::EventFlags::OUT, epoll::EventFlags::ERR, epoll::EventFlags::HUP];
    assert!(!flags.into_iter().any(refused) && !refused(epoll::EventFlags::IN | epoll::EventFlags::ET));
    assert!(refused(epoll::EventFlags::IN | epoll::EventFlags::ONESHOT));
    assert!(refused(epoll::EventFlags::PRI) && refused(epoll::EventFlags::IN | epoll::EventFlags::RDHUP));
}

/// Of each length of chain as many as are allowed, and not one more; a refused addition leaves
/// nothing behind.
#[test]
fn a_signal_reaches_so_many_eventpolls_and_no_more() {
    let source = EventCounter::new();
    let direct: Vec<EventPoll> = (0..1_000).map(|_| EventPoll::new()).collect();
    direct.iter().for_each(|poll| poll.add(&source, LT, 0).unwrap());
    let too_many = Error::TooManyPaths { length: 1, max: 1_000 };
    assert_eq!(EventPoll::new().add(&source, LT, 0), Err(too_many));

    // 500 chains of two: the last one is refused whichever of its links comes last.
    let outer = EventPoll::new();
    direct[..500].iter().for_each(|inner| outer.add(inner, LT, 0).unwrap());
    let too_many = Error::TooManyPaths { length: 2, max: 500 };
    assert_eq!(outer.add(&direct[500], LT, 0), Err(too_many));
    assert_eq!(outer.len(), 500);
    direct[0].delete(&source).unwrap();
    outer.add(&direct[500], LT, 0).unwrap();
    assert_eq!(direct[0].add(&source, LT, 0), Err(too_many));
    assert!(direct[0].is_empty());
    outer.delete(&direct[500]).unwrap();
    direct[0].add(&source, LT, 0).unwrap();
}

#[test]
fn there_must_be_room() {
    assert_eq!(EventPoll::new().wait(&mut Vec::new(), 0, None), Err(Error::NoRoom));
}

#[test]
fn no_circles() {
    let polls: Vec<EventPoll> = (0..3).map(|_| EventPoll::new()).collect();
    assert_eq!(polls[0].add(&polls[0], LT, 0), Err(Error::Itself));
    polls[0].add(&polls[1], LT, 0).unwrap();
    polls[1].add(&polls[2], LT, 0).unwrap();
    assert_eq!(polls[1].add(&polls[0], LT, 0), Err(Error::Loop));
    assert_eq!(polls[2].add(&polls[0], LT, 0), Err(Error::Loop));
    // Not a circle: two ways to the same one.
    polls[0].add(&polls[2], LT, 0).unwrap();
    // And when the link is gone there is none either.
    polls[0].delete(&polls[1]).unwrap();
    polls[1].add(&polls[0], LT, 0).unwrap();
}

#[test]
fn no_chain_of_more_than_five() {
    let polls: Vec<EventPoll> = (0..7).map(|_| EventPoll::new()).collect();
    let link = |outer: usize, inner: usize| polls[outer].add(&polls[inner], LT, 0);
    // Two chains, of three and of two.
    for (outer, inner) in [(0, 1), (1, 2), (3, 4)] {
        link(outer, inner).unwrap();
    }
    link(2, 3).unwrap();
    assert_eq!(link(4, 5), Err(Error::TooDeep { max: 5 }));
    assert_eq!(link(5, 0), Err(Error::TooDeep { max: 5 }));
    link(3, 5).unwrap();
    // The far end of the longest chain is ready when its source is.
    let source = EventCounter::new();
    polls[4].add(&source, LT, 9).unwrap();
    assert_eq!(polls[0].wait(&mut Vec::new(), 1, AT_ONCE), Ok(0));
    source.add(1);
    assert_eq!(polls[0].wait(&mut Vec::new(), 1, None), Ok(1));
    // An eventpoll that is dropped makes place.
    let mut polls = polls;
    drop(polls.remove(0));
    let link = |outer: usize, inner: usize| polls[outer - 1].add(&polls[inner - 1], LT, 0);
    link(4, 6).unwrap();
}

#[test]
fn watches_are_limited_together() {
    let watches = Arc::new(Watches::new(2));
    let options = Options { watches: Arc::clone(&watches) };
    let (one, other) = (EventPoll::with_options(options.clone()), EventPoll::with_options(options));
    let (a, b, c) = (EventCounter::new(), EventCounter::new(), EventCounter::new());
    one.add(&a, LT, 0).unwrap();
    other.add(&a, LT, 0).unwrap();
    assert_eq!(other.add(&b, LT, 0), Err(Error::WatchLimit { max: 2 }));
    one.delete(&a).unwrap();
    other.add(&b, LT, 0).unwrap();
    drop(a);
    assert_eq!(watches.used(), 1);
    other.add(&c, LT, 0).unwrap();
    drop(other);
    assert_eq!(watches.used(), 0);
}

#[test]
fn what_cannot_be_polled_is_refused() {
    struct Plain;
    impl Poll for Plain {
        fn poll(&self) -> Events {
            Events::IN
        }
        fn is_pollable(&self) -> bool {
            false
        }
    }
    let source = Source::new(Plain);
    assert_eq!(EventPoll::new().add(&source, LT, 0), Err(Error::NotPollable));
    assert_eq!(wait_for(&source, Events::IN, None), Err(Error::NotPollable));
}

#[test]
fn an_interrupt_ends_a_wait_only_if_nothing_is_ready() {
    let (poll, source) = (EventPoll::new(), EventCounter::new());
    poll.add(&source, LT, 0).unwrap();
    // An interrupt that is over does not count.
    poll.interrupt();
    assert_eq!(poll.wait(&mut Vec::new(), 1, AT_ONCE), Ok(0));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| poll.wait(&mut Vec::new(), 1, None));
        while !waits.is_finished() {
            poll.interrupt();
            std::thread::yield_now();
        }
        assert_eq!(waits.join().unwrap(), Err(Error::Interrupted));
    });
    source.add(1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| poll.wait(&mut Vec::new(), 1, None));
        poll.interrupt();
        assert_eq!(waits.join().unwrap(), Ok(1));
    });
}
