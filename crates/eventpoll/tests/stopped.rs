//! EP-R4: a producer that is stopped anywhere holds up no thread and hides nothing.
//!
//! The producer goes through its signal one instruction at a time, by the processor's own single
//! step, and is kept at one of them until the others have done what must not depend on it; then
//! again with the next instruction, until each had its turn. The models check orders of memory that
//! the machine does not show (`loom_eventpoll`); the lab measures how long a real-time consumer
//! waits.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod steps;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[path = "steps/elsewhere.rs"]
mod steps;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{Closing, until};
use futures_core::Stream as _;
use rustix::event::{PollFd as Polled, PollFlags, Timespec, poll};
use steps::at_each_step;
use watertight_eventpoll::{EventCounter, EventPoll, EventStream, Events, Interest, PollFd};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const LT: Interest = Interest::level(Events::IN);
const ET: Interest = Interest::edge(Events::IN);

fn tokens(poll: &EventPoll) -> Vec<u64> {
    let mut events = Vec::new();
    poll.wait(&mut events, 4, AT_ONCE).unwrap();
    events.iter().map(|event| event.token).collect()
}

#[test]
fn ep_r4_who_asks_sees_every_signal_that_has_returned() {
    for mode in [LT, ET] {
        let (poll, same, other) = (EventPoll::new(), EventCounter::new(), EventCounter::new());
        poll.add(&same, mode, 0).unwrap();
        poll.add(&other, mode, 1).unwrap();
        let take = || {
            tokens(&poll);
            same.take();
        };
        at_each_step(
            take,
            || same.add(1),
            |step| {
                same.add(1);
                assert!(tokens(&poll).contains(&0), "step {step}: of the same source");
                other.add(1);
                assert!(tokens(&poll).contains(&1), "step {step}: of another source");
                other.take();
            },
        );
    }
}

#[test]
fn ep_r4_who_sleeps_is_woken() {
    let (poll, same, other) = (EventPoll::new(), EventCounter::new(), EventCounter::new());
    poll.add(&same, ET, 0).unwrap();
    poll.add(&other, ET, 1).unwrap();
    let taken = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut events = Vec::new();
            while poll.wait(&mut events, 4, None).is_ok() {
                for event in &events {
                    let of = usize::from(event.token == 1);
                    taken[of].fetch_add([&same, &other][of].take(), Ordering::SeqCst);
                }
            }
        });
        let _closing = Closing(std::slice::from_ref(&poll));
        // It is asleep then, or on the way to it.
        let all_is_taken = || until("it takes", || same.get() == 0);
        at_each_step(
            all_is_taken,
            || same.add(1),
            |step| {
                let what = format!("step {step}: it is woken");
                let all = taken[1].load(Ordering::SeqCst) + 1;
                other.add(1);
                until(&what, || taken[1].load(Ordering::SeqCst) == all);
                let some = taken[0].load(Ordering::SeqCst);
                same.add(1);
                until(&what, || taken[0].load(Ordering::SeqCst) > some);
            },
        );
    });
}

#[test]
fn ep_r4_a_descriptor_is_readable_after_every_signal() {
    let (events, same) = (Arc::new(EventPoll::new()), EventCounter::new());
    events.add(&same, ET, 0).unwrap();
    let fd = PollFd::new(Arc::clone(&events)).unwrap();
    let is_readable =
        || poll(&mut [Polled::new(&fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1;
    let take = || {
        same.take();
        fd.take(&mut Vec::new(), 4).unwrap();
    };
    at_each_step(
        take,
        || same.add(1),
        |step| {
            same.add(1);
            assert!(is_readable(), "step {step}");
        },
    );
}

#[test]
fn ep_r4_a_task_is_woken_by_every_signal() {
    struct Task(AtomicBool);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (events, same) = (Arc::new(EventPoll::new()), EventCounter::new());
    events.add(&same, ET, 0).unwrap();
    let stream = Mutex::new(EventStream::new(Arc::clone(&events)).unwrap());
    let task = Arc::new(Task(AtomicBool::new(false)));
    let waker: Waker = Arc::clone(&task).into();
    let take = || {
        same.take();
        task.0.store(false, Ordering::SeqCst);
        let mut stream = stream.lock().unwrap();
        while Pin::new(&mut *stream).poll_next(&mut Context::from_waker(&waker)).is_ready() {
            same.take();
        }
    };
    at_each_step(
        take,
        || same.add(1),
        |step| {
            same.add(1);
            assert!(task.0.load(Ordering::SeqCst), "step {step}");
        },
    );
}
