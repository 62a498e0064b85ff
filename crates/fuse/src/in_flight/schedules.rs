//! Requests and signals under many schedules, each claim with mutants that the same test catches.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use std::cell::Cell;

use rustix::fd::OwnedFd;
use sync::atomic::AtomicBool;
use sync::{model, mutant, thread};
use zerocopy::FromBytes as _;

use super::*;
use crate::device::Dev;
use crate::reply::Reply;
use crate::transport::reply_channel::ReplyChannel;
use crate::tree::wire::NodeTag;

const UNIQUE: u64 = 2;

/// A slot whose answers go into a pipe.
fn slot() -> (Arc<RequestSlot>, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    (Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::new(Dev::new(writer))))), reader)
}

/// The answers sent so far, by request.
fn answers(reader: &OwnedFd) -> Vec<(u64, i32)> {
    let mut found = Vec::new();
    let mut header = [0; size_of::<crate::protocol::abi::OutHeader>()];
    while let Ok(len) = rustix::io::read(reader, &mut header) {
        assert_eq!(len, header.len());
        let header = crate::protocol::abi::OutHeader::read_from_bytes(&header).unwrap();
        found.push((header.unique, header.error));
    }
    found
}

/// A request is served while its caller is killed; then another one is.
fn serve_two(early: AbortPolicy) {
    let (slot, reader) = slot();
    let in_flight = InFlight::default();
    in_flight.add(&slot);
    in_flight.begin(&slot, RequestKey::of(UNIQUE, early));
    let watcher = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.end(UNIQUE))
    };
    let cancel_used = Cell::new(false);
    let mut cancel = slot.cancel();
    let sent = Reply::new(&slot, &cancel_used, UNIQUE).done();
    if cancel_used.replace(false) {
        cancel = slot.reset_cancel();
    }
    in_flight.begin(&slot, RequestKey::of(UNIQUE + 2, early));
    watcher.join().unwrap();
    let is_cancelled = cancel.is_cancelled();
    let _second = Reply::new(&slot, &cancel_used, UNIQUE + 2).done();
    let expected = if sent.is_delivered { 0 } else { -libc::EINTR };
    let found = answers(&reader);
    assert!(found == [(UNIQUE, expected), (UNIQUE + 2, 0)], "not answered once: {found:?}");
    assert!(!is_cancelled, "ended the next request");
}

/// A request is answered once, whether its thread or the watcher is faster, and the one that ends
/// it does not end the next request.
#[test]
fn a_request_is_answered_once_and_ends_alone() {
    for early in [AbortPolicy::Always, AbortPolicy::OnKill] {
        model::check(move || serve_two(early));
    }
}

/// A thread that cancels a request which only its own thread may answer does not cancel the next
/// one.
#[test]
fn a_request_that_must_end_itself_ends_alone() {
    model::check(|| serve_two(AbortPolicy::Never));
}

#[test]
fn two_answers_are_caught() {
    let test = "in_flight::schedules::a_request_is_answered_once_and_ends_alone";
    mutant::assert_caught(test, &["slot-claim-looks-first", "slot-end-looks-only"], "not answered once");
    mutant::assert_caught(test, &["slot-cancel-early"], "ended the next request");
    let test = "in_flight::schedules::a_request_that_must_end_itself_ends_alone";
    let both = ["slot-end-looks-only", "slot-cancel-early"];
    mutant::assert_caught(test, &both, "ended the next request");
}

/// An INTERRUPT beside the beginning of its request takes effect.
#[test]
fn an_interrupt_beside_its_request_is_heard() {
    model::check(|| {
        let (slot, _reader) = slot();
        let in_flight = Arc::new(InFlight::default());
        in_flight.add(&slot);
        let kernel = {
            let in_flight = Arc::clone(&in_flight);
            thread::spawn(move || in_flight.interrupt(UNIQUE))
        };
        in_flight.begin(&slot, RequestKey::of(UNIQUE, AbortPolicy::Always));
        kernel.join().unwrap();
        let watched: Vec<_> = in_flight.watched.lock().requests.iter().map(|(unique, _)| *unique).collect();
        assert!(watched.contains(&UNIQUE), "the interrupt was lost");
    });
}

#[test]
fn a_lost_interrupt_is_caught() {
    let test = "in_flight::schedules::an_interrupt_beside_its_request_is_heard";
    mutant::assert_caught(test, &["begin-looks-first", "interrupt-looks-once"], "the interrupt was lost");
}

/// A request that begins while its attached volume is given up is answered, though the store never
/// answers.
#[test]
fn a_request_beside_the_end_of_its_volume_is_answered() {
    model::check(|| {
        let (slot, reader) = slot();
        let in_flight = Arc::new(InFlight::default());
        in_flight.add(&slot);
        let volume = NodeTag::ROOT.next().unwrap();
        let is_aborted = Arc::new(AtomicBool::new(false));
        let giver = {
            let (in_flight, is_aborted) = (Arc::clone(&in_flight), Arc::clone(&is_aborted));
            thread::spawn(move || {
                is_aborted.store(true, Ordering::SeqCst);
                in_flight.abort(volume);
            })
        };
        slot.assign_volume(RequestClass { volume, quota_exempt: false, empty_reply: false, in_place: false });
        in_flight.begin_abortable(&slot, RequestKey::of(UNIQUE, AbortPolicy::Never), &is_aborted);
        giver.join().unwrap();
        let found = answers(&reader);
        assert!(found == [(UNIQUE, -libc::EIO)], "who waits was not told: {found:?}");
    });
}

#[test]
fn a_request_that_nobody_tells_is_caught() {
    let test = "in_flight::schedules::a_request_beside_the_end_of_its_volume_is_answered";
    mutant::assert_caught(test, &["share-looks-first"], "who waits was not told");
}

/// Volumes whose stores do not answer, so many that they share nothing beyond the first request of
/// each.
fn many_stalled() -> (Arc<InFlight>, [RequestClass; 2]) {
    let in_flight = Arc::new(InFlight::default());
    in_flight.stall_quota.set(usize::MAX, 0);
    let first = NodeTag::ROOT.next().unwrap();
    let volumes = [first, first.next().unwrap()];
    (
        in_flight,
        volumes.map(|volume| RequestClass {
            volume,
            quota_exempt: false,
            empty_reply: false,
            in_place: false,
        }),
    )
}

/// Of each stalled volume one request waits: two clients ask one such volume, a third one another.
#[test]
fn of_each_stalled_volume_one_request_waits() {
    model::check(|| {
        let (in_flight, [one, other]) = many_stalled();
        let slots: Vec<_> = (0..3).map(|_| slot()).collect();
        slots.iter().for_each(|(slot, _)| in_flight.add(slot));
        let ask = |n: usize, class: RequestClass| {
            let (in_flight, slot) = (Arc::clone(&in_flight), Arc::clone(&slots[n].0));
            thread::spawn(move || usize::from(in_flight.admit_stalled(&slot, class)))
        };
        let threads = [ask(0, one), ask(1, one), ask(2, other)];
        let [a, b, c] = threads.map(|thread| thread.join().unwrap());
        assert_eq!((a + b, c), (1, 1), "not one request of each waits");
    });
}

#[test]
fn a_share_in_which_the_first_has_no_place_is_caught() {
    let test = "in_flight::schedules::of_each_stalled_volume_one_request_waits";
    mutant::assert_caught(test, &["share-counts-first"], "not one request of each waits");
}

/// A client that asks a stalled volume one thing at a time is never refused: its place is given
/// back before the answer, which another thread reads.
#[test]
fn who_asks_one_at_a_time_is_never_refused() {
    model::check(|| {
        let (in_flight, [volume, _]) = many_stalled();
        let ((first, reader), (second, _reader)) = (slot(), slot());
        in_flight.add(&first);
        in_flight.add(&second);
        assert!(in_flight.admit_stalled(&first, volume));
        in_flight.begin(&first, RequestKey::of(UNIQUE, AbortPolicy::Always));
        let server = thread::spawn(move || {
            let cancel_used = Cell::new(false);
            let _sent = Reply::new(&first, &cancel_used, UNIQUE).done();
        });
        while answers(&reader).is_empty() {
            thread::yield_now();
        }
        assert!(in_flight.admit_stalled(&second, volume), "refused beside its own answer");
        server.join().unwrap();
    });
}

#[test]
fn a_place_that_is_given_back_late_is_caught() {
    let test = "in_flight::schedules::who_asks_one_at_a_time_is_never_refused";
    mutant::assert_caught(test, &["slot-freed-late"], "refused beside its own answer");
}
