//! Requests and signals under many schedules, each claim with mutants that the same test catches.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use std::cell::Cell;

use rustix::fd::OwnedFd;
use sync::atomic::AtomicBool;
use sync::{model, mutant, thread};
use zerocopy::FromBytes as _;

use super::*;
use crate::dev::Dev;
use crate::reply::Reply;
use crate::tree::wire::Tag;

const UNIQUE: u64 = 2;

/// A slot whose answers go into a pipe.
fn slot() -> (Arc<Slot>, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    (Arc::new(Slot::new(Line::Dev(Arc::new(Dev::new(writer))))), reader)
}

/// The answers sent so far, by request.
fn answers(reader: &OwnedFd) -> Vec<(u64, i32)> {
    let mut found = Vec::new();
    let mut header = [0; size_of::<crate::abi::OutHeader>()];
    while let Ok(len) = rustix::io::read(reader, &mut header) {
        assert_eq!(len, header.len());
        let header = crate::abi::OutHeader::read_from_bytes(&header).unwrap();
        found.push((header.unique, header.error));
    }
    found
}

/// A request is served while its caller is killed; then another one is.
fn serve_two(early: Early) {
    let (slot, reader) = slot();
    let interrupts = Interrupts::default();
    interrupts.add(&slot);
    interrupts.begin(&slot, UNIQUE, 0, early);
    let watcher = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.end(UNIQUE))
    };
    let touched = Cell::new(false);
    let mut cancel = slot.cancel();
    let sent = Reply::new(&slot, &touched, UNIQUE).done();
    if touched.replace(false) {
        cancel = slot.renew();
    }
    interrupts.begin(&slot, UNIQUE + 2, 0, early);
    watcher.join().unwrap();
    let is_cancelled = cancel.is_cancelled();
    let _second = Reply::new(&slot, &touched, UNIQUE + 2).done();
    let expected = if sent.is_delivered { 0 } else { -libc::EINTR };
    let found = answers(&reader);
    assert!(found == [(UNIQUE, expected), (UNIQUE + 2, 0)], "not answered once: {found:?}");
    assert!(!is_cancelled, "ended the next request");
}

/// A request is answered once, whether its thread or the watcher is faster, and who ends it does
/// not end the next one.
#[test]
fn a_request_is_answered_once_and_ends_alone() {
    for early in [Early::Always, Early::Killed] {
        model::check(move || serve_two(early));
    }
}

/// The same for a request that only its own thread may answer: who cancels it does not cancel the
/// next one.
#[test]
fn a_request_that_must_end_itself_ends_alone() {
    model::check(|| serve_two(Early::No));
}

#[test]
fn two_answers_are_caught() {
    let test = "interrupt::schedules::a_request_is_answered_once_and_ends_alone";
    mutant::assert_caught(test, &["slot-claim-looks-first", "slot-end-looks-only"], "not answered once");
    mutant::assert_caught(test, &["slot-cancel-early"], "ended the next request");
    let test = "interrupt::schedules::a_request_that_must_end_itself_ends_alone";
    let both = ["slot-end-looks-only", "slot-cancel-early"];
    mutant::assert_caught(test, &both, "ended the next request");
}

/// An INTERRUPT beside the beginning of its request is heard.
#[test]
fn an_interrupt_beside_its_request_is_heard() {
    model::check(|| {
        let (slot, _reader) = slot();
        let interrupts = Arc::new(Interrupts::default());
        interrupts.add(&slot);
        let kernel = {
            let interrupts = Arc::clone(&interrupts);
            thread::spawn(move || interrupts.interrupt(UNIQUE))
        };
        interrupts.begin(&slot, UNIQUE, 0, Early::Always);
        kernel.join().unwrap();
        let watched: Vec<_> = interrupts.watched.lock().requests.iter().map(|(unique, _)| *unique).collect();
        assert!(watched.contains(&UNIQUE), "the interrupt was lost");
    });
}

#[test]
fn a_lost_interrupt_is_caught() {
    let test = "interrupt::schedules::an_interrupt_beside_its_request_is_heard";
    mutant::assert_caught(test, &["begin-looks-first", "interrupt-looks-once"], "the interrupt was lost");
}

/// A request that begins while its attached volume is given up is answered, though the store never
/// answers.
#[test]
fn a_request_beside_the_end_of_its_volume_is_answered() {
    model::check(|| {
        let (slot, reader) = slot();
        let interrupts = Arc::new(Interrupts::default());
        interrupts.add(&slot);
        let volume = Tag::ROOT.next().unwrap();
        let is_given_up = Arc::new(AtomicBool::new(false));
        let giver = {
            let (interrupts, is_given_up) = (Arc::clone(&interrupts), Arc::clone(&is_given_up));
            thread::spawn(move || {
                is_given_up.store(true, Ordering::SeqCst);
                interrupts.give_up(volume);
            })
        };
        slot.is_for(For { volume, is_spared: false, says_nothing: false, is_lent: false });
        interrupts.begin_for(&slot, (UNIQUE, 0, Early::No), &is_given_up);
        giver.join().unwrap();
        let found = answers(&reader);
        assert!(found == [(UNIQUE, -libc::EIO)], "who waits was not told: {found:?}");
    });
}

#[test]
fn a_request_that_nobody_tells_is_caught() {
    let test = "interrupt::schedules::a_request_beside_the_end_of_its_volume_is_answered";
    mutant::assert_caught(test, &["share-looks-first"], "who waits was not told");
}

/// Volumes whose stores do not answer, so many that they share nothing beyond the first request of
/// each.
fn many_stalled() -> (Arc<Interrupts>, [For; 2]) {
    let interrupts = Arc::new(Interrupts::default());
    interrupts.share_among(usize::MAX, 0);
    let first = Tag::ROOT.next().unwrap();
    let volumes = [first, first.next().unwrap()];
    (interrupts, volumes.map(|volume| For { volume, is_spared: false, says_nothing: false, is_lent: false }))
}

/// Of each stalled volume one request waits: two clients ask one such volume, a third one another.
#[test]
fn of_each_stalled_volume_one_request_waits() {
    model::check(|| {
        let (interrupts, [one, other]) = many_stalled();
        let slots: Vec<_> = (0..3).map(|_| slot()).collect();
        slots.iter().for_each(|(slot, _)| interrupts.add(slot));
        let ask = |n: usize, whom: For| {
            let (interrupts, slot) = (Arc::clone(&interrupts), Arc::clone(&slots[n].0));
            thread::spawn(move || usize::from(interrupts.admit(&slot, whom)))
        };
        let threads = [ask(0, one), ask(1, one), ask(2, other)];
        let [a, b, c] = threads.map(|thread| thread.join().unwrap());
        assert_eq!((a + b, c), (1, 1), "not one request of each waits");
    });
}

#[test]
fn a_share_in_which_the_first_has_no_place_is_caught() {
    let test = "interrupt::schedules::of_each_stalled_volume_one_request_waits";
    mutant::assert_caught(test, &["share-counts-first"], "not one request of each waits");
}

/// A client that asks a stalled volume one thing at a time is never refused: its place is given
/// back before the answer, which another thread reads.
#[test]
fn who_asks_one_at_a_time_is_never_refused() {
    model::check(|| {
        let (interrupts, [volume, _]) = many_stalled();
        let ((first, reader), (second, _reader)) = (slot(), slot());
        interrupts.add(&first);
        interrupts.add(&second);
        assert!(interrupts.admit(&first, volume));
        interrupts.begin(&first, UNIQUE, 0, Early::Always);
        let server = thread::spawn(move || {
            let touched = Cell::new(false);
            let _sent = Reply::new(&first, &touched, UNIQUE).done();
        });
        while answers(&reader).is_empty() {
            thread::yield_now();
        }
        assert!(interrupts.admit(&second, volume), "refused beside its own answer");
        server.join().unwrap();
    });
}

#[test]
fn a_place_that_is_given_back_late_is_caught() {
    let test = "interrupt::schedules::who_asks_one_at_a_time_is_never_refused";
    mutant::assert_caught(test, &["slot-freed-late"], "refused beside its own answer");
}
