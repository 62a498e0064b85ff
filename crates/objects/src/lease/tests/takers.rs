//! Takers, and whom they find.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join;
use store::ErrorKind;
use tokio::time::{Instant, sleep};

use crate::lease::double::{Fault, run};
use crate::lease::world::{SECOND, World, assert_words, keep};
use crate::lease::{How, Lease, Nonce, Request, State, Took};

#[test]
fn a_free_volume_is_taken_with_two_requests() {
    run(async {
        let world = World::new().await;
        let process = world.alpha.start();
        let request = Request { engine_epoch: 7, ..process.request() };
        let held = world.take(&request, &process).await.unwrap();
        assert_eq!(world.store.take_counts(), (1, 1));
        assert_eq!(held.epoch(), 1);
        assert_eq!(held.describe(), "epoch 1, host alpha, process 1, at /mnt/data");
        held.validate().await.unwrap();
        let info = Lease::read(&world.store.bucket()).await.unwrap().unwrap();
        assert_eq!((info.epoch, info.nonce, info.engine_epoch), (1, held.nonce(), 7));
        assert_eq!(info.state, State::Held);
    });
}

#[test]
fn a_refusal_names_the_holder_and_says_what_to_do() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let other = world.beta.start();
        *world.beta.ahead.lock().unwrap() = 2 * 3600 + 60;
        let error = world.take(&other.request(), &other).await.unwrap_err();
        let words = ["host alpha", "process 1", "/mnt/data", "since 2027-01-15 08:00 UTC (2 hours ago)"];
        assert_words(&error, ErrorKind::Busy, &words);
        assert_words(&error, ErrorKind::Busy, &["-o takeover", "15 s"]);
        assert_eq!(world.store.current().claim, None, "a claim without takeover");
        // A clock that is behind the holder's: no age.
        *world.alpha.ahead.lock().unwrap() = 10 * 3600;
        held.release().await.unwrap();
        let (_, _) = world.held().await;
        let error = world.take(&other.request(), &other).await.unwrap_err();
        assert_words(&error, ErrorKind::Busy, &["since 2027-01-15 18:00 UTC", "process 2"]);
        assert!(!error.to_string().contains("ago"), "{error}");
    });
}

#[test]
fn a_process_that_ended_on_the_same_boot_is_taken_over_at_once() {
    run(async {
        let world = World::new().await;
        let (process, held) = world.held().await;
        process.kill();
        let elsewhere = world.beta.start();
        let error = world.take(&elsewhere.request(), &elsewhere).await.unwrap_err();
        assert_words(&error, ErrorKind::Busy, &["host alpha"]);
        let start = Instant::now();
        let next = world.alpha.start();
        let taken = world.take(&next.request(), &next).await.unwrap();
        assert_eq!((taken.epoch(), start.elapsed()), (2, Duration::ZERO));
        assert_eq!(world.store.current().took, Some(Took { from: held.nonce(), how: How::Dead }));
        // After a reboot nothing is known about a process of the boot before.
        next.kill();
        world.alpha.reboot();
        let last = world.alpha.start();
        assert_words(&world.take(&last.request(), &last).await.unwrap_err(), ErrorKind::Busy, &["process 2"]);
        assert_eq!(world.take(&last.takeover(), &last).await.unwrap().epoch(), 3);
    });
}

/// A daemon that had to give a volume up, by force or because the bucket did not answer, mounts it
/// again, though the lease says that the daemon holds it, and the daemon is alive.
#[test]
fn what_a_process_gave_up_it_takes_again_at_once() {
    run(async {
        let world = World::new().await;
        let (process, held) = world.held().await;
        let error = world.take(&process.request(), &process).await.unwrap_err();
        assert_words(&error, ErrorKind::Busy, &["process 1"]);
        held.give_up();
        // Another process on the host knows nothing of that, nor does another host.
        for other in [world.alpha.start(), world.beta.start()] {
            assert_words(
                &world.take(&other.request(), &other).await.unwrap_err(),
                ErrorKind::Busy,
                &["process 1"],
            );
        }
        let start = Instant::now();
        let again = world.take(&process.request(), &process).await.unwrap();
        assert_eq!((again.epoch(), start.elapsed()), (2, Duration::ZERO));
        assert_eq!(world.store.current().took, Some(Took { from: held.nonce(), how: How::Dead }));
        assert_words(&held.validate().await.unwrap_err(), ErrorKind::Stale, &["took it over"]);
        // One that is dropped is given up as well: so ends a mount that fails.
        drop(again);
        assert_eq!(world.take(&process.request(), &process).await.unwrap().epoch(), 3);
    });
}

#[test]
fn a_holder_that_answers_keeps_the_volume() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let kept = keep(&held);
        for after in [0, 1, 4] {
            sleep(after * SECOND).await;
            world.store.take_counts();
            let start = Instant::now();
            let other = world.beta.start();
            let error = world.take(&other.takeover(), &other).await.unwrap_err();
            assert_words(
                &error,
                ErrorKind::Busy,
                &["it answered a claim by host beta", "alive", "host alpha"],
            );
            assert!(start.elapsed() <= 7 * SECOND, "{:?}", start.elapsed());
            assert_eq!(world.store.take_counts().1, 2, "a claim and its answer");
        }
        // The next refusal says so as well.
        let other = world.beta.start();
        let error = world.take(&other.request(), &other).await.unwrap_err();
        assert_words(
            &error,
            ErrorKind::Busy,
            &["it answered a claim by host beta, process 3", "-o takeover"],
        );
        held.validate().await.unwrap();
        assert!(!kept.is_finished());
    });
}

/// An answer that comes after the taker's last look is found by the request that would take the volume.
#[test]
fn a_holder_that_answers_at_the_last_moment_keeps_the_volume() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let (other, begun) = (world.beta.start(), Instant::now());
        let (request, late) = (other.takeover(), sleep(SECOND * 29 / 2).map(|()| keep(&held)));
        let (refused, kept) = join(world.take(&request, &other), late).await;
        let words = ["it answered a claim by host beta", "alive", "host alpha"];
        assert_words(&refused.unwrap_err(), ErrorKind::Busy, &words);
        assert!(begun.elapsed() >= 15 * SECOND, "{:?}", begun.elapsed());
        held.validate().await.unwrap();
        assert!(!kept.is_finished());
    });
}

/// Of two takers one wins; the other is refused, and told by whom it was beaten.
#[test]
fn of_two_takers_one_wins() {
    run(async {
        for (is_free, second_after) in [(true, 0), (false, 0), (false, 1), (false, 14)] {
            let world = World::new().await;
            if !is_free {
                let _ = world.held().await;
            }
            let (one, two) = (world.alpha.start(), world.beta.start());
            let (one_asks, two_asks) = (one.takeover(), two.takeover());
            // Both see the same lease before either writes: their first writes are slow.
            world.store.fail_puts(&[Fault::Slow(SECOND / 100); 2]);
            let late = async {
                sleep(second_after * SECOND).await;
                world.take(&two_asks, &two).await
            };
            let (first, second) = tokio::join!(world.take(&one_asks, &one), late);
            let epoch = if is_free { 1 } else { 2 };
            let (held, refused, winner) = match (first, second) {
                (Ok(held), Err(error)) => (held, error, "alpha"),
                (Err(error), Ok(held)) => (held, error, "beta"),
                both => panic!("not one of two: {:?}", (both.0.is_ok(), both.1.is_ok())),
            };
            assert_eq!(held.epoch(), epoch);
            assert_words(&refused, ErrorKind::Busy, &[&format!("host {winner}"), "faster"]);
            held.validate().await.unwrap();
        }
    });
}

#[test]
fn a_claim_that_comes_beside_a_release_gets_the_volume() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let other = world.beta.start();
        let request = other.takeover();
        let release = async {
            sleep(2 * SECOND).await;
            held.release().await
        };
        let (taken, released) = tokio::join!(world.take(&request, &other), release);
        released.unwrap();
        assert_eq!(taken.unwrap().epoch(), 2);
        assert_eq!(world.store.current().took.unwrap().how, How::Free);
    });
}

#[test]
fn a_journal_stays_until_it_is_in_the_bucket() {
    run(async {
        let world = World::new().await;
        let mark = ("/journal".to_owned(), Nonce::from_bytes([1; 16]));
        let process = world.alpha.start();
        let request = Request { journal: Some(mark.clone()), ..process.request() };
        let held = world.take(&request, &process).await.unwrap();
        process.kill();
        // Not even its own host takes the volume without it.
        let next = world.alpha.start();
        let error = world.take(&next.request(), &next).await.unwrap_err();
        assert_words(&error, ErrorKind::Busy, &["on this host with `-o journal=/journal`"]);
        let request = Request { journal: Some(mark.clone()), ..next.request() };
        let taken = world.take(&request, &next).await.unwrap();
        held.validate().await.unwrap_err();
        taken.release_but_journal().await.unwrap();
        let left = world.store.current();
        assert_eq!((left.state, left.journal.map(|mark| mark.host)), (State::Free, Some("alpha".to_owned())));
        let other = world.beta.start();
        let error = world.take(&other.request(), &other).await.unwrap_err();
        assert_words(&error, ErrorKind::Busy, &["host alpha has a journal"]);
        let taken = world.take(&request, &next).await.unwrap();
        taken.release().await.unwrap();
        assert_eq!(world.store.current().journal, None);
        world.take(&other.request(), &other).await.unwrap();
    });
}
