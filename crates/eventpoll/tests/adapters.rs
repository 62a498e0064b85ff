//! Waiting from async code and with a file descriptor.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use futures_core::Stream;
use rustix::event::{PollFd as Polled, PollFlags, Timespec, poll};
use watertight_eventpoll::{EventCounter, EventPoll, EventStream, Events, Interest, PollFd};

const LT: Interest = Interest::level(Events::IN);
const ET: Interest = Interest::edge(Events::IN);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn a_stream_loses_no_event_and_ends_with_its_eventpoll() {
    for mode in [LT, ET] {
        let (events, sources) = (Arc::new(EventPoll::new()), [(); 3].map(|()| EventCounter::new()));
        for (token, source) in (0..).zip(&sources) {
            events.add(source, mode, token).unwrap();
        }
        let mut stream = EventStream::new(Arc::clone(&events)).unwrap();
        std::thread::scope(|scope| {
            for source in &sources {
                scope.spawn(|| (0..10_000).for_each(|_| source.add(1)));
            }
            let mut taken = 0;
            while taken < 30_000 {
                let next = block_on(poll_fn(|context| Pin::new(&mut stream).poll_next(context)));
                taken += sources[usize::try_from(next.expect("it is open").token).unwrap()].take();
            }
            assert_eq!(taken, 30_000);
            let closer = scope.spawn(|| events.close());
            let ends = poll_fn(|context| Pin::new(&mut stream).poll_next(context));
            assert_eq!(block_on(ends), None);
            closer.join().unwrap();
        });
    }
}

fn is_readable(fd: &PollFd, timeout: Option<Timespec>) -> bool {
    poll(&mut [Polled::new(fd, PollFlags::IN)], timeout.as_ref()).unwrap() == 1
}

#[test]
fn a_descriptor_is_readable_while_something_is_ready() {
    let (events, source, other) = (Arc::new(EventPoll::new()), EventCounter::new(), EventCounter::new());
    source.add(1);
    events.add(&source, LT, 1).unwrap();
    events.add(&other, LT, 2).unwrap();
    let fd = PollFd::new(Arc::clone(&events)).unwrap();
    let (at_once, taken) = (Some(Timespec::default()), &mut Vec::new());
    assert!(is_readable(&fd, at_once));
    other.add(1);
    // One of two, and both stay ready.
    assert_eq!(fd.take(taken, 1), Ok(1));
    assert!(is_readable(&fd, at_once));
    source.take();
    other.take();
    assert_eq!(fd.take(taken, 4), Ok(0));
    assert!(!is_readable(&fd, at_once));
    std::thread::scope(|scope| {
        scope.spawn(|| other.add(1));
        assert!(is_readable(&fd, None));
    });
    assert_eq!(fd.take(taken, 4), Ok(1));
    assert_eq!(taken[0].token, 2);
}

#[test]
fn a_descriptor_misses_nothing() {
    let (events, source) = (Arc::new(EventPoll::new()), EventCounter::new());
    events.add(&source, ET, 1).unwrap();
    let fd = PollFd::new(Arc::clone(&events)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..20_000).for_each(|_| source.add(1)));
        let mut sum = 0;
        while sum < 20_000 {
            assert!(is_readable(&fd, None));
            fd.take(&mut Vec::new(), 4).unwrap();
            sum += source.take();
        }
    });
}
