use super::*;
use crate::in_flight::Claim;
use crate::in_flight::tests::answers;

/// Slots of a mountpoint, and the tags of its volumes.
fn slots(in_flight: &InFlight, n: usize) -> Vec<Arc<RequestSlot>> {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let dev = Arc::new(crate::device::Dev::new(writer));
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

/// The capacity is 256.
#[test]
fn of_each_stalled_volume_the_first_request_waits_and_they_share_a_quarter() {
    for (stalled, further) in [(1, 32), (2, 32), (10, 6), (64, 1), (100, 0), (128, 0)] {
        let in_flight = InFlight::default();
        in_flight.stall_quota.set(stalled, 0);
        let slots = slots(&in_flight, stalled * 40);
        let mut free = slots.iter();
        for class in volumes(stalled) {
            let queued = (0..40).filter(|_| in_flight.admit_stalled(free.next().unwrap(), class)).count();
            assert_eq!(queued, 1 + further, "{stalled} stalled");
        }
    }
}

#[test]
fn first_requests_take_half_of_the_places_at_most() {
    let in_flight = InFlight::default();
    in_flight.stall_quota.set(1000, 0);
    let slots = slots(&in_flight, 1000);
    let volumes = volumes(1000);
    let asked: Vec<bool> =
        slots.iter().zip(&volumes).map(|(slot, class)| in_flight.admit_stalled(slot, *class)).collect();
    assert_eq!(asked.iter().filter(|is_admitted| **is_admitted).count(), 128);
    // The next request has the place of the first that is through.
    let last = (slots.last().unwrap(), *volumes.last().unwrap());
    assert!(!in_flight.admit_stalled(last.0, last.1));
    let _mine = slots[0].claim();
    assert!(in_flight.admit_stalled(last.0, last.1));
}

#[test]
fn a_request_whose_caller_was_killed_has_its_place_until_its_thread_is_through() {
    let in_flight = InFlight::default();
    in_flight.stall_quota.set(1000, 0);
    let (slots, class) = (slots(&in_flight, 2), volumes(1)[0]);
    assert!(in_flight.admit_stalled(&slots[0], class));
    in_flight.begin(&slots[0], RequestKey::of(2, AbortPolicy::Always));
    slots[0].end(2);
    assert_eq!(slots[0].in_hand(), 0, "answered");
    assert!(!in_flight.admit_stalled(&slots[1], class));
    assert_eq!(slots[0].claim(), Claim::Gone);
    assert!(in_flight.admit_stalled(&slots[1], class));
}

/// Beside a request that must not be answered before it is served, and those whose data stays in
/// the entry.
#[test]
fn requests_whose_answers_say_nothing_are_answered_when_the_stall_is_noticed() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let dev = Arc::new(crate::device::Dev::new(writer));
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
        in_flight.begin(slot, RequestKey::of(n * 2, AbortPolicy::Never));
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
    let dev = Arc::new(crate::device::Dev::new(writer));
    let in_flight = InFlight::default();
    in_flight.stall_quota.set(1000, 0);
    let slots: Vec<_> =
        (0..3).map(|_| Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(&dev))))).collect();
    let class = volumes(1)[0];
    for (slot, n) in slots.iter().zip(1..) {
        in_flight.add(slot);
        slot.assign_volume(class);
        in_flight.begin(slot, RequestKey::of(n * 2, AbortPolicy::Always));
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
