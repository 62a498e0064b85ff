//! Holders: polls, validation, release, loss.

use store::ErrorKind;
use tokio::time::sleep;

use crate::lease::double::{Fault, run};
use crate::lease::world::{SECOND, World, assert_words, keep};
use crate::lease::{Ended, State};

#[test]
fn a_holder_that_was_stopped_finds_the_volume_lost() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let mut watch = held.watch();
        let other = world.beta.start();
        let taken = world.take(&other.takeover(), &other).await.unwrap();
        // Only now it runs on.
        let kept = keep(&held);
        watch.wait_for(Option::is_some).await.unwrap();
        kept.await.unwrap();
        let Some(Ended::Lost(lost)) = watch.borrow().clone() else { panic!("it was not lost") };
        assert_eq!((lost.info.epoch, lost.info.nonce), (2, taken.nonce()));
        let words = ["host beta", "process 1", "since 2027-01-15 08:00 UTC", "took it over", "epoch 2"];
        assert_words(&held.validate().await.unwrap_err(), ErrorKind::Stale, &words);
        assert_words(&held.release().await.unwrap_err(), ErrorKind::Stale, &words);
        taken.validate().await.unwrap();
        world.store.take_counts();
        held.validate().await.unwrap_err();
        assert_eq!(world.store.take_counts(), (0, 0), "a lost volume asks no more");
    });
}

#[test]
fn a_release_whose_answer_was_lost_is_known_after_the_next_holder_came() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        // The answer does not come, and the caller goes away.
        world.store.fail_puts(&[Fault::Hang]);
        tokio::time::timeout(SECOND, held.release()).await.unwrap_err();
        let other = world.beta.start();
        let taken = world.take(&other.request(), &other).await.unwrap();
        held.release().await.expect("the next holder found the volume free");
        assert_eq!(*held.watch().borrow(), Some(Ended::Released));
        taken.validate().await.unwrap();
    });
}

#[test]
fn a_second_release_finds_the_first() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let kept = keep(&held);
        held.release().await.unwrap();
        kept.await.unwrap();
        world.store.take_counts();
        held.release().await.unwrap();
        assert_eq!(world.store.take_counts(), (0, 0));
        assert_words(&held.validate().await.unwrap_err(), ErrorKind::Stale, &["released"]);
        let info = world.store.current();
        assert_eq!((info.state, info.epoch, info.holder), (State::Free, 1, None));
    });
}

#[test]
fn a_release_that_was_dropped_is_repeated() {
    run(async {
        let world = World::new().await;
        for is_polled in [false, true] {
            let (_, held) = world.held().await;
            world.store.fail_puts(&[Fault::Hang]);
            tokio::time::timeout(SECOND, held.release()).await.unwrap_err();
            if is_polled {
                assert_words(&held.validate().await.unwrap_err(), ErrorKind::Stale, &["released"]);
            }
            held.release().await.unwrap();
        }
    });
}

#[test]
fn an_idle_volume_sends_no_put_and_twelve_gets_a_minute() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let _kept = keep(&held);
        world.store.take_counts();
        sleep(3600 * SECOND).await;
        let (gets, puts) = world.store.take_counts();
        assert_eq!(puts, 0);
        assert!((710..=720).contains(&gets), "{gets} GETs an hour");
        // A caller that validates does the task's work.
        for _ in 0..3600 {
            held.validate().await.unwrap();
            sleep(SECOND).await;
        }
        let (gets, _) = world.store.take_counts();
        assert!((3600..=3601).contains(&gets), "{gets} GETs for 3600 validations");
    });
}

#[test]
fn a_suspended_host_knows_that_its_lease_is_old() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let age = 60 * SECOND;
        assert!(!held.needs_validation(age));
        world.alpha.suspend(61 * SECOND);
        assert!(held.needs_validation(age), "the time of the suspension was not counted");
        // The time before the request counts: the answer may have waited with the host.
        let before = held.last_validated() + 61 * SECOND;
        world.store.fail_gets(&[Fault::Slow(3 * SECOND)]);
        held.validate().await.unwrap();
        assert_eq!(held.last_validated(), before);
        assert!(!held.needs_validation(age));
        world.store.set_down(true);
        held.validate().await.unwrap_err();
        assert_eq!(held.last_validated(), before, "no answer validates nothing");
    });
}

#[test]
fn a_holder_goes_on_after_an_outage() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let kept = keep(&held);
        world.store.take_counts();
        world.store.set_down(true);
        sleep(600 * SECOND).await;
        let (gets, _) = world.store.take_counts();
        assert!(gets <= 600, "{gets} GETs in ten minutes");
        world.store.set_down(false);
        sleep(6 * SECOND).await;
        assert!(!held.needs_validation(6 * SECOND) && !kept.is_finished());
    });
}

#[test]
fn a_poll_that_hangs_does_not_cost_the_volume() {
    run(async {
        let world = World::new().await;
        for hangs in [(2, 0), (0, 1)] {
            let (_, held) = world.held().await;
            let kept = keep(&held);
            let other = world.beta.start();
            let request = other.takeover();
            let hang = async {
                sleep(SECOND / 2).await;
                // The holder's first poll, after four looks of the taker, and a fifth at the same time.
                let looks = [Fault::None; 4];
                world.store.fail_gets(&[&looks[..], &[Fault::Hang; 2][..hangs.0]].concat());
                world.store.fail_puts(&[Fault::Hang; 2][..hangs.1]);
            };
            let (taken, ()) = tokio::join!(world.take(&request, &other), hang);
            assert_words(&taken.unwrap_err(), ErrorKind::Busy, &["alive"]);
            held.release().await.unwrap();
            kept.await.unwrap();
        }
    });
}
