use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;

use super::*;

#[test]
fn a_superblock_that_never_switched_is_not_looked_at() {
    let drain = Drain::with_shards(64);
    assert_eq!(drain.drain(), Drained { scanned: 0, waited: false });
    assert!(drain.pin().is_none());
    assert_eq!(drain.in_flight(), 0);
}

#[test]
fn only_shards_that_were_pinned_are_looked_at() {
    let drain = Drain::with_shards(64);
    for shard in [3, 3, 63, 64 + 63] {
        drop(drain.pin_at(shard).expect("mounted"));
    }
    assert_eq!(drain.drain(), Drained { scanned: 2, waited: false });
    assert_eq!(drain.drain(), Drained { scanned: 2, waited: false });
}

#[test]
fn wb_r4_after_the_close_the_number_only_falls() {
    let drain = Drain::with_shards(4);
    let pins: Vec<SbPin> = (0..8).map(|shard| drain.pin_at(shard).expect("mounted")).collect();
    drain.close();
    assert!(!drain.is_active());
    for (left, pin) in (0..8).rev().zip(pins) {
        assert!(drain.pin_at(usize::try_from(left).unwrap()).is_none());
        drop(pin);
        assert_eq!(drain.in_flight(), left);
    }
}

#[test]
fn the_drain_waits_for_pins_that_end_on_other_threads() {
    for _ in 0..200 {
        let drain = Arc::new(Drain::with_shards(4));
        let pins: Vec<SbPin> = (0..6).map(|shard| drain.pin_at(shard).expect("mounted")).collect();
        let done = Arc::new(AtomicU64::new(0));
        let (go, going) = channel::<()>();
        let other = {
            let done = Arc::clone(&done);
            std::thread::spawn(move || {
                going.recv().expect("the test begins");
                for pin in pins {
                    // ORDERING: Relaxed; the test checks that the drain's end orders it.
                    done.fetch_add(1, Ordering::Relaxed);
                    drop(pin);
                }
            })
        };
        drain.close();
        go.send(()).unwrap();
        drain.drain();
        assert_eq!(done.load(Ordering::Relaxed), 6);
        other.join().unwrap();
    }
}

/// WB-R1 of the drain alone: no pinned thread is seen after the drain has returned.
#[test]
fn wb_r1_nobody_is_inside_after_the_drain() {
    for _ in 0..300 {
        let drain = Arc::new(Drain::with_shards(2));
        let is_gone = Arc::new(AtomicBool::new(false));
        let switchers: Vec<_> = (0..3)
            .map(|number| {
                let (drain, is_gone) = (Arc::clone(&drain), Arc::clone(&is_gone));
                std::thread::spawn(move || {
                    while let Some(_pin) = drain.pin_at(number) {
                        assert!(
                            !is_gone.load(Ordering::Relaxed),
                            "a switcher holds a superblock that is gone"
                        );
                    }
                })
            })
            .collect();
        std::thread::yield_now();
        drain.drain();
        is_gone.store(true, Ordering::Relaxed);
        for switcher in switchers {
            switcher.join().unwrap();
        }
        assert_eq!(drain.in_flight(), 0);
    }
}
