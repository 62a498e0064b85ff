//! Requests that wait, under many schedules, each claim with mutants that the same test catches.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use std::cell::Cell;

use rustix::fd::OwnedFd;
use sync::{model, mutant, thread};
use zerocopy::FromBytes as _;

use super::*;
use crate::device::Dev;
use crate::reply::Reply;

/// The request that has a thread, and the one that comes after it.
const FIRST: u64 = 2;
const NEXT: u64 = 4;
const PLACES: usize = 2;
const KEY: RequestKey = RequestKey::of(NEXT, AbortPolicy::Never);

/// Two reading threads of a mountpoint; the first is at work for a volume.
struct World {
    in_flight: Arc<InFlight>,
    first: Arc<RequestSlot>,
    second: Arc<RequestSlot>,
    class: RequestClass,
    is_aborted: Arc<AtomicBool>,
    reader: OwnedFd,
}

impl World {
    fn new() -> Self {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let dev = Arc::new(Dev::new(writer));
        let in_flight = Arc::new(InFlight::default());
        let [first, second] =
            [(); 2].map(|()| Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(&dev)))));
        in_flight.add(&first);
        in_flight.add(&second);
        let volume = NodeTag::ROOT.next().unwrap();
        let class = RequestClass { volume, quota_exempt: false, empty_reply: false, in_place: false };
        let is_aborted = Arc::default();
        assert!(in_flight.try_admit(&first, class, PLACES));
        in_flight.begin_abortable(&first, RequestKey::of(FIRST, AbortPolicy::Always), &is_aborted);
        Self { in_flight, first, second, class, is_aborted, reader }
    }

    /// The first thread answers, and looks for a request that has waited.
    fn first_leaves(&self) -> thread::JoinHandle<()> {
        let (in_flight, first) = (Arc::clone(&self.in_flight), Arc::clone(&self.first));
        let is_aborted = Arc::clone(&self.is_aborted);
        thread::spawn(move || {
            answer(&first, FIRST);
            serve_queued(&in_flight, &is_aborted);
        })
    }

    /// The second thread reads the next request: it waits, or is served.
    fn next_comes(&self) {
        let (in_flight, is_aborted) = (&self.in_flight, &*self.is_aborted);
        if !in_flight.enqueue(&self.second, KEY, self.class, is_aborted, b"next", PLACES) {
            self.second.assign_volume(self.class);
            in_flight.begin_abortable(&self.second, RequestKey::of(NEXT, AbortPolicy::Never), is_aborted);
            answer(&self.second, NEXT);
            serve_queued(in_flight, is_aborted);
        }
    }

    /// The volume is given up.
    fn ends(&self) -> thread::JoinHandle<()> {
        let (in_flight, is_aborted) = (Arc::clone(&self.in_flight), Arc::clone(&self.is_aborted));
        let volume = self.class.volume;
        thread::spawn(move || {
            is_aborted.store(true, Ordering::SeqCst);
            in_flight.abort(volume);
        })
    }

    /// How often each of the two was answered.
    fn answered(&self) -> [usize; 2] {
        let mut found = Vec::new();
        let mut header = [0; size_of::<crate::protocol::abi::OutHeader>()];
        while let Ok(len) = rustix::io::read(&self.reader, &mut header) {
            assert_eq!(len, header.len());
            found.push(crate::protocol::abi::OutHeader::read_from_bytes(&header).unwrap().unique);
        }
        [FIRST, NEXT].map(|unique| found.iter().filter(|one| **one == unique).count())
    }
}

fn answer(slot: &RequestSlot, unique: u64) {
    let _sent = Reply::new(slot, &Cell::new(false), unique).done();
}

fn serve_queued(in_flight: &InFlight, is_aborted: &AtomicBool) {
    while let Some(queued) = in_flight.pop_queued(PLACES) {
        assert_eq!(&*queued.message, b"next");
        if in_flight.begin_queued(&queued.slot, RequestKey::of(NEXT, AbortPolicy::Never), is_aborted) {
            answer(&queued.slot, NEXT);
        }
        in_flight.remove(&queued.slot);
    }
}

/// No request waits for a thread while none of its volume is at work.
#[test]
fn nobody_waits_while_none_of_the_volume_is_at_work() {
    model::check(|| {
        let world = World::new();
        let leaver = world.first_leaves();
        world.next_comes();
        leaver.join().unwrap();
        assert!(world.answered() == [1, 1] && world.in_flight.in_hand() == 0, "left waiting");
    });
}

#[test]
fn one_that_is_left_waiting_is_caught() {
    let test = "admission::schedules::nobody_waits_while_none_of_the_volume_is_at_work";
    for mutant in ["room-looks-first", "room-left-alone"] {
        mutant::assert_caught(test, &[mutant], "left waiting");
    }
}

/// A request that waits for a volume which is given up is answered, though the thread that is at
/// work never leaves: its store is silent.
#[test]
fn who_waits_for_a_volume_that_is_given_up_is_answered() {
    model::check(|| {
        let world = World::new();
        let giver = world.ends();
        world.next_comes();
        giver.join().unwrap();
        assert!(world.answered() == [1, 1] && world.in_flight.queue.len() == 0, "left waiting");
    });
}

#[test]
fn one_that_waits_for_ever_is_caught() {
    let test = "admission::schedules::who_waits_for_a_volume_that_is_given_up_is_answered";
    mutant::assert_caught(test, &["room-end-unseen"], "left waiting");
}

/// A request that waits is answered once, though it is its turn while its volume is given up, found
/// stalled, and its caller is killed.
#[test]
fn who_waits_is_answered_once() {
    model::check(|| {
        let world = World::new();
        world.next_comes();
        let (leaver, giver) = (world.first_leaves(), world.ends());
        let killer = {
            let in_flight = Arc::clone(&world.in_flight);
            thread::spawn(move || {
                if let Some(slot) = in_flight.queue.find(NEXT) {
                    slot.end(NEXT);
                    in_flight.queue.sweep();
                }
            })
        };
        world.in_flight.evict_excess(world.class.volume);
        for thread in [leaver, giver, killer] {
            thread.join().unwrap();
        }
        assert!(world.answered() == [1, 1] && world.in_flight.in_hand() == 0, "not answered once");
    });
}

#[test]
fn two_answers_are_caught() {
    let test = "admission::schedules::who_waits_is_answered_once";
    mutant::assert_caught(test, &["room-begins-anyway"], "not answered once");
}

/// An INTERRUPT for a request that waits takes effect, while that enters the queue and leaves it.
#[test]
fn an_interrupt_of_one_that_waits_is_heard() {
    model::check(|| {
        let world = World::new();
        let kernel = {
            let in_flight = Arc::clone(&world.in_flight);
            thread::spawn(move || in_flight.interrupt(NEXT))
        };
        assert!(world.in_flight.enqueue(&world.second, KEY, world.class, &world.is_aborted, b"next", PLACES));
        answer(&world.first, FIRST);
        let queued = world.in_flight.pop_queued(PLACES).unwrap();
        assert!(world.in_flight.begin_queued(
            &queued.slot,
            RequestKey::of(NEXT, AbortPolicy::Never),
            &world.is_aborted
        ));
        kernel.join().unwrap();
        let watched = world.in_flight.watched.lock();
        assert!(watched.requests.iter().any(|(unique, _)| *unique == NEXT), "the interrupt was lost");
    });
}

#[test]
fn an_interrupt_that_is_lost_is_caught() {
    let test = "admission::schedules::an_interrupt_of_one_that_waits_is_heard";
    mutant::assert_caught(test, &["interrupt-looks-once"], "the interrupt was lost");
}
