//! The errors of a strategy, seen from outside (MN-R6).
//!
//! | count | of |
//! |---|---|
//! | `finalised_inside` | unmounts of a mount with a user, which was shut down while a walk that had begun before the unmount was still in its section |
//! | `late` | lazy unmounts of a mount without users, whose superblock was not shut down on return |
//! | `foreign` | of these, those that another thread than the caller's shut down |
//! | `not_the_last` | synchronous unmounts that returned, beside a walk with a reference that goes on, and had not shut down: the walk does |
//! | `held_up` | unmounts that did not return while another superblock's shutdown hung |
//!
//! A fast strategy and a clean run prove nothing: the first is a play with three parts in which the
//! order is forced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use mounts::{Base, FinalSymlink, Umount};

use super::names::Names;
use super::strategy::Engine;
use super::subject::{Ours, Subject};
use crate::report::{Metric, Recorder};

const fn count(name: &'static str) -> Metric {
    Metric::new(name, "of 1")
}

pub(super) const INSIDE: Metric = count("finalised_inside");
const LATE: Metric = count("late");
const FOREIGN: Metric = count("foreign");
const NOT_THE_LAST: Metric = count("not_the_last");
const HELD_UP: Metric = count("held_up");

/// How long an unmount that is held up is given before it counts as such.
const PATIENCE: Duration = Duration::from_millis(50);

const ROOT: Base<'static> = Base::Root;

pub(super) fn record(scenario: &str, variant: &str, recorder: &mut Recorder) -> Result<(), String> {
    let figure = |is_so: bool| f64::from(u8::from(is_so));
    recorder.value(scenario, variant, INSIDE, figure(is_finalised_inside(variant)));
    let (is_late, is_foreign) = is_late_or_foreign(variant);
    recorder.value(scenario, variant, LATE, figure(is_late));
    recorder.value(scenario, variant, FOREIGN, figure(is_foreign));
    recorder.value(scenario, variant, NOT_THE_LAST, figure(is_not_the_last(variant)));
    recorder.value(scenario, variant, HELD_UP, figure(is_held_up(variant)));
    Ok(())
}

/// A walk is in its section; another thread has a pin; a lazy unmount begins; the pin is dropped.
/// The thread that ends the mount must not do so before the walk has left.
fn is_finalised_inside(variant: &str) -> bool {
    let ours = Ours::new(variant, Engine::Expedited);
    let ns = &ours.ns;
    let (is_inside, was_inside) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (_names, volume) = Names::ending({
        let (is_inside, was_inside) = (Arc::clone(&is_inside), Arc::clone(&was_inside));
        // ORDERING: SeqCst here and below, an oracle should be simple.
        move || was_inside.store(is_inside.load(Ordering::SeqCst), Ordering::SeqCst)
    });
    ns.attach(ROOT, "m0", &volume).expect("nothing is there");
    let pin = || ns.pin(ROOT, "m0/d/f", FinalSymlink::Follow, "a part of the play").expect("it is mounted");
    let pin = ours.legitimizing(pin);
    let waits = || ns.domain().stats().waiters;
    let (enter, has_entered) = channel();
    std::thread::scope(|scope| {
        let (is_inside, ours) = (&is_inside, &ours);
        let (leave, may_leave) = channel::<()>();
        scope.spawn(move || {
            let walk = || {
                let section = ours.ns.domain().read();
                is_inside.store(true, Ordering::SeqCst);
                let _ = ours.ns.resolve(ROOT, "m0/d/f", FinalSymlink::Follow);
                let _ = enter.send(());
                let _ = may_leave.recv();
                is_inside.store(false, Ordering::SeqCst);
                drop(section);
            };
            ours.counted(walk);
        });
        let _ = has_entered.recv();
        let before = waits();
        let unmount = scope.spawn(|| ns.umount(ROOT, "m0", Umount::DETACH));
        // It has left the tables, and has reached its strategy's wait, if there is one.
        let is_gone = || {
            ns.resolve(ROOT, "m0/d/f", FinalSymlink::Follow)
                .map_or(true, |(place, _)| ns.superblock(place.mount).is_none())
        };
        while !(unmount.is_finished() || is_gone() && (waits() > before || ours.is_waiting_for_walkers())) {
            std::thread::yield_now();
        }
        drop(pin);
        drop(leave);
        let _ = unmount.join();
    });
    ours.settle();
    was_inside.load(Ordering::SeqCst)
}

/// A lazy unmount of an unused mount: whether it was not shut down on return, and whether another
/// thread did it.
fn is_late_or_foreign(variant: &str) -> (bool, bool) {
    let ours = Ours::new(variant, Engine::Expedited);
    let (names, volume) = Names::mountable();
    ours.ns.attach(ROOT, "m0", &volume).expect("nothing is there");
    ours.ns.umount(ROOT, "m0", Umount::DETACH).expect("it is mounted");
    let is_late = !names.is_ended();
    ours.settle();
    (is_late, names.ended_by() != Some(std::thread::current().id()))
}

/// A walk has a reference, and waits for the superblock; a synchronous unmount begins, and gets its
/// time; then the walk goes on. The holder of the last reference shuts down: that must be the
/// unmount, before it returns (MN-R3).
fn is_not_the_last(variant: &str) -> bool {
    let ours = Ours::new(variant, Engine::Expedited);
    let ns = &ours.ns;
    let (enter, has_entered) = channel();
    let (leave, may_leave) = channel::<()>();
    let may_leave = sync::Mutex::new(may_leave);
    let (names, volume) = Names::waiting(move || {
        let _ = enter.send(());
        let _ = may_leave.lock().recv();
    });
    ns.attach(ROOT, "m0", &volume).expect("nothing is there");
    let is_not_the_last = std::thread::scope(|scope| {
        // It is past the making of its reference when it waits: it is not counted for that any
        // more.
        scope.spawn(|| ours.counted(|| ns.resolve(ROOT, "m0/d", FinalSymlink::Follow)));
        let _ = has_entered.recv();
        let unmount = scope.spawn(|| ns.umount(ROOT, "m0", Umount::empty()).is_ok() && !names.is_ended());
        let begun = Instant::now();
        while !unmount.is_finished() && begun.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        drop(leave);
        unmount.join().is_ok_and(|is_not_the_last| is_not_the_last)
    });
    ours.settle();
    is_not_the_last
}

/// One superblock hangs in its shutdown; another one's unmount must not wait for it.
fn is_held_up(variant: &str) -> bool {
    let ours = Ours::new(variant, Engine::Expedited);
    let ns = &ours.ns;
    let (hang, hangs) = channel::<()>();
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = sync::Mutex::new(may_go_on);
    let (_, hung) = Names::ending(move || {
        let _ = hang.send(());
        let _ = may_go_on.lock().recv();
    });
    ns.attach(ROOT, "m0", &hung).expect("nothing is there");
    let (names, volume) = Names::mountable();
    ns.attach(ROOT, "m2", &volume).expect("nothing is there");
    let is_held_up = std::thread::scope(|scope| {
        scope.spawn(|| ns.umount(ROOT, "m0", Umount::DETACH));
        let _ = hangs.recv();
        let other = scope.spawn(|| ns.umount(ROOT, "m2", Umount::DETACH));
        let begun = Instant::now();
        while !(other.is_finished() && names.is_ended()) && begun.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        let is_held_up = !(other.is_finished() && names.is_ended());
        drop(go_on);
        is_held_up
    });
    ours.settle();
    is_held_up
}

#[cfg(test)]
mod tests {
    use super::super::VARIANTS;
    use super::*;

    fn of(is_so: impl Fn(&str) -> bool) -> Vec<&'static str> {
        let ours = VARIANTS.into_iter().filter(|variant| !variant.starts_with("kernel"));
        ours.filter(|variant| is_so(variant)).collect()
    }

    #[test]
    fn mn_r6_the_inverted_poll_is_caught_and_none_of_the_correct_ones() {
        // The first waits exactly when it need not, the second only for walks that are taking a
        // reference.
        assert_eq!(of(is_finalised_inside), ["polled-mount", "percpu-legitimize"]);
    }

    #[test]
    fn deferred_puts_are_late_and_run_elsewhere() {
        assert_eq!(of(|variant| is_late_or_foreign(variant).0), ["deferred", "deferred-all"]);
        assert_eq!(
            of(|variant| is_late_or_foreign(variant).1),
            ["deferred", "deferred-all", "global-worker"]
        );
    }

    #[test]
    fn who_does_not_wait_for_a_grace_period_may_not_be_the_last() {
        // A strategy that does not get a processor in time is not caught each time.
        let is_caught = |variant: &str| (0..20).any(|_| is_not_the_last(variant));
        assert!(is_caught("polled-mount") && is_caught("percpu-legitimize"));
        let correct = [
            "default",
            "expedited",
            "polled-global-at-unlink",
            "polled-mount-corrected",
            "gp-on-demand",
            "two-list",
            "per-mount-count",
        ];
        for variant in correct {
            assert!(!is_not_the_last(variant), "{variant}");
        }
    }

    #[test]
    fn one_worker_for_all_is_held_up_by_one_that_hangs() {
        assert!(is_held_up("global-worker"));
    }
}
