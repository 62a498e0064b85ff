use sync::atomic::{AtomicU32, AtomicU64};
use zerocopy::FromBytes as _;

use super::*;
use crate::transport::reply_channel::ReplyChannel;

/// Answers as they come out of a device, by request.
pub(crate) fn answers(reader: &rustix::fd::OwnedFd, n: usize) -> Vec<(u64, i32)> {
    let mut found = Vec::new();
    for _ in 0..n {
        let mut header = [0; size_of::<crate::protocol::abi::OutHeader>()];
        assert_eq!(rustix::io::read(reader, &mut header).unwrap(), header.len());
        let header = crate::protocol::abi::OutHeader::read_from_bytes(&header).unwrap();
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
    let slot = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::new(crate::device::Dev::new(writer)))));
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
                RequestKey::of(unique, if n % 2 == 0 { AbortPolicy::Always } else { AbortPolicy::Never }),
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
    let slot = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::new(crate::device::Dev::new(writer)))));
    let in_flight = InFlight::default();
    in_flight.add(&slot);
    in_flight.interrupt(8);
    assert!(in_flight.watched.lock().requests.is_empty());
    in_flight.begin(&slot, RequestKey::of(6, AbortPolicy::Always));
    assert!(in_flight.watched.lock().requests.is_empty(), "another request's");
    in_flight.begin(&slot, RequestKey::of(8, AbortPolicy::Always));
    assert_eq!(in_flight.watched.lock().requests.len(), 1);
}
