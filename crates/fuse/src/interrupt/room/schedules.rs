//! Requests that wait, under many schedules, each claim with mutants that the same test catches.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use std::cell::Cell;

use rustix::fd::OwnedFd;
use sync::{model, mutant, thread};
use zerocopy::FromBytes as _;

use super::*;
use crate::dev::Dev;
use crate::reply::Reply;

/// The request that has a thread, and the one that comes after it.
const FIRST: u64 = 2;
const NEXT: u64 = 4;
const PLACES: usize = 2;

/// Two reading threads of a mountpoint; the first is at work for a volume.
struct World {
    interrupts: Arc<Interrupts>,
    first: Arc<Slot>,
    second: Arc<Slot>,
    whom: For,
    is_given_up: Arc<AtomicBool>,
    reader: OwnedFd,
}

impl World {
    fn new() -> Self {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let dev = Arc::new(Dev::new(writer));
        let interrupts = Arc::new(Interrupts::default());
        let [first, second] = [(); 2].map(|()| Arc::new(Slot::new(Line::Dev(Arc::clone(&dev)))));
        interrupts.add(&first);
        interrupts.add(&second);
        let volume = Tag::ROOT.next().unwrap();
        let whom = For { volume, is_spared: false, says_nothing: false, is_lent: false };
        let is_given_up = Arc::default();
        assert!(interrupts.takes_turn(&first, whom, PLACES));
        interrupts.begin_for(&first, (FIRST, 0, Early::Always), &is_given_up);
        Self { interrupts, first, second, whom, is_given_up, reader }
    }

    /// The first thread answers, and looks for what has waited.
    fn first_leaves(&self) -> thread::JoinHandle<()> {
        let (interrupts, first) = (Arc::clone(&self.interrupts), Arc::clone(&self.first));
        let is_given_up = Arc::clone(&self.is_given_up);
        thread::spawn(move || {
            answer(&first, FIRST);
            serve_waiting(&interrupts, &is_given_up);
        })
    }

    /// The second thread reads the next request: it waits, or is served.
    fn next_comes(&self) {
        let (interrupts, is_given_up) = (&self.interrupts, &*self.is_given_up);
        if !interrupts.wait(&self.second, (NEXT, 0), (self.whom, is_given_up), b"next", PLACES) {
            self.second.is_for(self.whom);
            interrupts.begin_for(&self.second, (NEXT, 0, Early::No), is_given_up);
            answer(&self.second, NEXT);
            serve_waiting(interrupts, is_given_up);
        }
    }

    /// The volume is given up.
    fn ends(&self) -> thread::JoinHandle<()> {
        let (interrupts, is_given_up) = (Arc::clone(&self.interrupts), Arc::clone(&self.is_given_up));
        let volume = self.whom.volume;
        thread::spawn(move || {
            is_given_up.store(true, Ordering::SeqCst);
            interrupts.give_up(volume);
        })
    }

    /// How often each of the two was answered.
    fn answered(&self) -> [usize; 2] {
        let mut found = Vec::new();
        let mut header = [0; size_of::<crate::abi::OutHeader>()];
        while let Ok(len) = rustix::io::read(&self.reader, &mut header) {
            assert_eq!(len, header.len());
            found.push(crate::abi::OutHeader::read_from_bytes(&header).unwrap().unique);
        }
        [FIRST, NEXT].map(|unique| found.iter().filter(|one| **one == unique).count())
    }
}

fn answer(slot: &Slot, unique: u64) {
    let _sent = Reply::new(slot, &Cell::new(false), unique).done();
}

fn serve_waiting(interrupts: &Interrupts, is_given_up: &AtomicBool) {
    while let Some(waiting) = interrupts.next_waiting(PLACES) {
        assert_eq!(&*waiting.message, b"next");
        if interrupts.begin_again(&waiting.slot, (NEXT, Early::No), is_given_up) {
            answer(&waiting.slot, NEXT);
        }
        interrupts.remove(&waiting.slot);
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
        assert!(world.answered() == [1, 1] && world.interrupts.in_hand() == 0, "left waiting");
    });
}

#[test]
fn one_that_is_left_waiting_is_caught() {
    let test = "interrupt::room::schedules::nobody_waits_while_none_of_the_volume_is_at_work";
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
        assert!(world.answered() == [1, 1] && world.interrupts.room.len() == 0, "left waiting");
    });
}

#[test]
fn one_that_waits_for_ever_is_caught() {
    let test = "interrupt::room::schedules::who_waits_for_a_volume_that_is_given_up_is_answered";
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
            let interrupts = Arc::clone(&world.interrupts);
            thread::spawn(move || {
                if let Some(slot) = interrupts.room.find(NEXT) {
                    slot.end(NEXT);
                    interrupts.room.sweep();
                }
            })
        };
        world.interrupts.shed(world.whom.volume);
        for thread in [leaver, giver, killer] {
            thread.join().unwrap();
        }
        assert!(world.answered() == [1, 1] && world.interrupts.in_hand() == 0, "not answered once");
    });
}

#[test]
fn two_answers_are_caught() {
    let test = "interrupt::room::schedules::who_waits_is_answered_once";
    mutant::assert_caught(test, &["room-begins-anyway"], "not answered once");
}

/// An INTERRUPT for a request that waits is heard, while that comes into the room and leaves it.
#[test]
fn an_interrupt_of_one_that_waits_is_heard() {
    model::check(|| {
        let world = World::new();
        let kernel = {
            let interrupts = Arc::clone(&world.interrupts);
            thread::spawn(move || interrupts.interrupt(NEXT))
        };
        let whose = (world.whom, &*world.is_given_up);
        assert!(world.interrupts.wait(&world.second, (NEXT, 0), whose, b"next", PLACES));
        answer(&world.first, FIRST);
        let waiting = world.interrupts.next_waiting(PLACES).unwrap();
        assert!(world.interrupts.begin_again(&waiting.slot, (NEXT, Early::No), &world.is_given_up));
        kernel.join().unwrap();
        let watched = world.interrupts.watched.lock();
        assert!(watched.requests.iter().any(|(unique, _)| *unique == NEXT), "the interrupt was lost");
    });
}

#[test]
fn an_interrupt_that_is_lost_is_caught() {
    let test = "interrupt::room::schedules::an_interrupt_of_one_that_waits_is_heard";
    mutant::assert_caught(test, &["interrupt-looks-once"], "the interrupt was lost");
}
