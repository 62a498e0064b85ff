use zerocopy::FromBytes as _;

use super::*;
use crate::tree::wire::NodeTag;

/// Answers as they come out of a device, by request.
fn answers(reader: &rustix::fd::OwnedFd, n: usize) -> Vec<(u64, i32)> {
    let mut found = Vec::new();
    for _ in 0..n {
        let mut header = [0; size_of::<crate::abi::OutHeader>()];
        assert_eq!(rustix::io::read(reader, &mut header).unwrap(), header.len());
        let header = crate::abi::OutHeader::read_from_bytes(&header).unwrap();
        found.push((header.unique, header.error));
    }
    found
}

/// Ends the other side, also when an assertion fails.
struct SetAtEnd<'a>(&'a AtomicU32);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        // ORDERING: SeqCst throughout this file: flags between a test's threads; nothing else rests
        // on them.
        self.0.store(1, Ordering::SeqCst);
    }
}

/// A thread serves requests while another ends each of them, as the watcher does for killed
/// callers: each is answered once, by one of the two, and a used `Cancel` never serves a second
/// request.
#[test]
fn each_request_is_answered_once_whoever_is_faster() {
    const ROUNDS: u64 = 20_000;
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let slot = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::new(crate::dev::Dev::new(writer)))));
    let in_flight = InFlight::default();
    in_flight.add(&slot);
    let current = AtomicU64::new(0);
    let is_over = AtomicU32::new(0);
    let (found, spurious) = std::thread::scope(|scope| {
        let found = scope.spawn(|| answers(&reader, usize::try_from(ROUNDS).unwrap()));
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| {
            while is_over.load(Ordering::SeqCst) == 0 {
                let unique = current.load(Ordering::SeqCst);
                if unique != 0 {
                    slot.end(unique);
                }
                std::hint::spin_loop();
            }
        });
        let mut cancel = slot.cancel();
        let mut spurious = 0;
        for n in 1..=ROUNDS {
            let unique = n * 2;
            // Every other request may be answered by the other side.
            in_flight.begin(
                &slot,
                unique,
                0,
                if n % 2 == 0 { AbortPolicy::Always } else { AbortPolicy::Never },
            );
            // A `Cancel` that was used for another request would end this one's waits; this one is
            // not known yet.
            spurious += u64::from(cancel.is_cancelled());
            current.store(unique, Ordering::SeqCst);
            if n % 3 == 0 {
                std::thread::yield_now();
            }
            let is_used = match slot.claim() {
                Claim::Mine { cancel_used } => {
                    slot.channel().answer(unique, Ok([&[], &[]])).unwrap();
                    cancel_used
                }
                Claim::Gone => true,
            };
            if is_used {
                // The other side is through with it when there is a new one.
                let old = std::mem::replace(&mut cancel, slot.reset_cancel());
                assert!(old.is_cancelled());
            }
        }
        (found.join().unwrap(), spurious)
    });
    assert_eq!(spurious, 0);
    let uniques: Vec<_> = found.iter().map(|(unique, _)| *unique).collect();
    assert_eq!(uniques, (1..=ROUNDS).map(|n| n * 2).collect::<Vec<_>>());
    let early = found.iter().filter(|(_, error)| *error == -libc::EINTR).count();
    let own = found.iter().filter(|(_, error)| *error == 0).count();
    assert_eq!(early + own, found.len());
    assert!(early > 0 && own > 0, "{early} answered by the other side, {own} by the thread");
    assert!(found.iter().all(|(unique, error)| *error == 0 || unique % 4 == 0), "not to be abandoned");
}

#[test]
fn an_interrupt_that_comes_before_its_request_is_kept() {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let slot = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::new(crate::dev::Dev::new(writer)))));
    let in_flight = InFlight::default();
    in_flight.add(&slot);
    in_flight.interrupt(8);
    assert!(in_flight.watched.lock().requests.is_empty());
    in_flight.begin(&slot, 6, 0, AbortPolicy::Always);
    assert!(in_flight.watched.lock().requests.is_empty(), "another request's");
    in_flight.begin(&slot, 8, 0, AbortPolicy::Always);
    assert_eq!(in_flight.watched.lock().requests.len(), 1);
}

/// Slots of a mountpoint, and the tags of its volumes.
fn slots(in_flight: &InFlight, n: usize) -> Vec<Arc<RequestSlot>> {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let dev = Arc::new(crate::dev::Dev::new(writer));
    let slots: Vec<_> =
        (0..n).map(|_| Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(&dev))))).collect();
    slots.iter().for_each(|slot| in_flight.add(slot));
    slots
}

fn volumes(n: usize) -> Vec<RequestClass> {
    let tags = std::iter::successors(NodeTag::ROOT.next(), |tag| tag.next());
    tags.take(n)
        .map(|volume| RequestClass { volume, quota_exempt: false, empty_reply: false, in_place: false })
        .collect()
}

/// The places are 256.
#[test]
fn of_each_stalled_volume_the_first_request_waits_and_they_share_a_quarter() {
    for (stalled, further) in [(1, 32), (2, 32), (10, 6), (64, 1), (100, 0), (128, 0)] {
        let in_flight = InFlight::default();
        in_flight.set_stall_quota(stalled, 0);
        let slots = slots(&in_flight, stalled * 40);
        let mut free = slots.iter();
        for class in volumes(stalled) {
            let queued = (0..40).filter(|_| in_flight.admit(free.next().unwrap(), class)).count();
            assert_eq!(queued, 1 + further, "{stalled} stalled");
        }
    }
}

#[test]
fn first_requests_take_half_of_the_places_at_most() {
    let in_flight = InFlight::default();
    in_flight.set_stall_quota(1000, 0);
    let slots = slots(&in_flight, 1000);
    let volumes = volumes(1000);
    let asked: Vec<bool> =
        slots.iter().zip(&volumes).map(|(slot, class)| in_flight.admit(slot, *class)).collect();
    assert_eq!(asked.iter().filter(|is_admitted| **is_admitted).count(), 128);
    // The next request has the place of the first that is through.
    let last = (slots.last().unwrap(), *volumes.last().unwrap());
    assert!(!in_flight.admit(last.0, last.1));
    let _mine = slots[0].claim();
    assert!(in_flight.admit(last.0, last.1));
}

#[test]
fn a_request_whose_caller_was_killed_has_its_place_until_its_thread_is_through() {
    let in_flight = InFlight::default();
    in_flight.set_stall_quota(1000, 0);
    let (slots, class) = (slots(&in_flight, 2), volumes(1)[0]);
    assert!(in_flight.admit(&slots[0], class));
    in_flight.begin(&slots[0], 2, 0, AbortPolicy::Always);
    slots[0].end(2);
    assert_eq!(slots[0].in_hand(), 0, "answered");
    assert!(!in_flight.admit(&slots[1], class));
    assert_eq!(slots[0].claim(), Claim::Gone);
    assert!(in_flight.admit(&slots[1], class));
}

/// Beside a request that must not be answered before it is served, and those whose data stays in
/// the entry.
#[test]
fn requests_whose_answers_say_nothing_are_answered_when_the_stall_is_noticed() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let dev = Arc::new(crate::dev::Dev::new(writer));
    let in_flight = InFlight::default();
    let stalled = RequestClass { quota_exempt: true, ..volumes(1)[0] };
    let closing = RequestClass { empty_reply: true, ..stalled };
    let of_another = RequestClass { volume: volumes(2)[1].volume, ..closing };
    let all = [stalled, closing, RequestClass { in_place: true, ..closing }, of_another, closing];
    let slots: Vec<_> =
        all.iter().map(|_| Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(&dev))))).collect();
    for ((slot, class), n) in slots.iter().zip(all).zip(1..) {
        in_flight.add(slot);
        slot.assign_volume(class);
        in_flight.begin(slot, n * 2, 0, AbortPolicy::Never);
    }
    in_flight.evict_excess(stalled.volume);
    in_flight.evict_excess(stalled.volume);
    assert_eq!(answers(&reader, 2), [(4, -libc::EIO), (10, -libc::EIO)]);
    assert_eq!((in_flight.uncounted_threads(), in_flight.in_hand()), (5, 3), "their threads are at work");
    assert_eq!(slots[1].claim(), Claim::Gone);
    assert_eq!(slots[0].claim(), Claim::Mine { cancel_used: false });
    assert_eq!(in_flight.uncounted_threads(), 3);
}

#[test]
fn what_was_in_hand_beyond_the_share_fails_and_is_not_counted_until_its_thread_is_through() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let dev = Arc::new(crate::dev::Dev::new(writer));
    let in_flight = InFlight::default();
    in_flight.set_stall_quota(1000, 0);
    let slots: Vec<_> =
        (0..3).map(|_| Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(&dev))))).collect();
    let class = volumes(1)[0];
    for (slot, n) in slots.iter().zip(1..) {
        in_flight.add(slot);
        slot.assign_volume(class);
        in_flight.begin(slot, n * 2, 0, AbortPolicy::Always);
    }
    // The caller of one was killed before the stall was noticed.
    slots[2].end(6);
    in_flight.evict_excess(class.volume);
    assert_eq!(answers(&reader, 2), [(6, -libc::EINTR), (4, -libc::EIO)]);
    assert_eq!(in_flight.uncounted_threads(), 2);
    in_flight.evict_excess(class.volume);
    assert_eq!((in_flight.uncounted_threads(), in_flight.in_hand()), (2, 1), "once only");
    for slot in &slots[1..] {
        assert_eq!(slot.claim(), Claim::Gone);
    }
    assert_eq!(in_flight.uncounted_threads(), 0);
    in_flight.abort(class.volume);
    assert_eq!(answers(&reader, 1), [(2, -libc::EIO)]);
    assert_eq!(in_flight.uncounted_threads(), 1, "its thread is at work");
}
