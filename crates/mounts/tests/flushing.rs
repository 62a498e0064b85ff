//! An unmount's work while it has to wait for readers.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use common::Fs;
use watertight_mounts::{Base, FinalSymlink, Namespace, Options, SuperblockRef, Umount};

const ROOT: Base<'static> = Base::Root;

/// A namespace whose tick is an hour: only a grace period that was asked for without waiting for a
/// tick begins soon.
fn namespace() -> Namespace {
    let (_, root) = Fs::new(&["v/", "w/", "x/"]).mountable();
    let domain = rcu::DomainOptions { tick: Duration::from_secs(3600), ..Default::default() };
    Namespace::new(&root, Options { domain, ..Options::default() }).unwrap()
}

/// `v` goes by `unmount`, which flushes beside a grace period that cannot have passed before, and
/// has passed after.
fn flushes_beside(ns: &Namespace, (fs, sb): &(Arc<Fs>, SuperblockRef), unmount: impl FnOnce() + Send) {
    let (in_lookup, in_flush) = (fs.in_lookup.as_ref().unwrap(), fs.in_flush.as_ref().unwrap());
    let stats = || ns.domain().stats();
    thread::scope(|scope| {
        // A walk with a reference: the unmount is not alone.
        let walk = scope.spawn(|| ns.resolve(ROOT, "v/d", FinalSymlink::Follow));
        in_lookup.is_reached.pass();
        let section = ns.domain().read();
        let before = stats();
        let unmount = scope.spawn(|| -> ThreadId {
            unmount();
            thread::current().id()
        });
        // It flushes although a reader is inside: so it does not wait for the grace period first.
        in_flush.is_reached.pass();
        assert_eq!((fs.flushes(), fs.shutdowns(), sb.mounts() > 0), (1, 0, true));
        drop(section);
        // And the grace period passes although it flushes: it was begun before.
        while stats().grace_periods == before.grace_periods {
            thread::yield_now();
        }
        assert_eq!(stats().waiters, before.waiters, "nobody waits for it");
        in_lookup.may_leave.open();
        let _whatever = walk.join().unwrap();
        assert_eq!((fs.shutdowns(), unmount.is_finished()), (0, false));
        in_flush.may_leave.open();
        let unmounted_by = unmount.join().unwrap();
        assert_eq!(fs.ended_by(), Some(unmounted_by), "by the one who asked, before the return");
        assert_eq!(stats().waiters, before.waiters, "nothing was left to be waited for");
    });
    assert_eq!(
        (fs.flushes(), fs.shutdowns(), fs.used_after_end.load(std::sync::atomic::Ordering::SeqCst)),
        (1, 1, 0)
    );
}

fn stopping() -> (Arc<Fs>, SuperblockRef) {
    Fs::new(&["d/f"]).stopping_in_lookup().stopping_in_flush().mountable()
}

#[test]
fn an_unmount_of_either_kind_flushes_beside_its_grace_period() {
    for flags in [Umount::empty(), Umount::DETACH] {
        let (ns, v) = (namespace(), stopping());
        ns.attach(ROOT, "v", &v.1).unwrap();
        flushes_beside(&ns, &v, || ns.umount(ROOT, "v", flags).unwrap());
    }
}

#[test]
fn so_does_one_that_takes_all_places_of_a_superblock_and_others_along() {
    let (ns, v) = (namespace(), stopping());
    let (outer, outer_sb) = Fs::new(&["a/", "b/"]).mountable();
    // Walks go to `v`, which is on the same places as far as a walk from there is concerned.
    ns.attach(ROOT, "w", &outer_sb).unwrap();
    ns.attach(ROOT, "w/a", &v.1).unwrap();
    ns.bind((ROOT, "w/a"), (ROOT, "w/b"), false).unwrap();
    ns.bind((ROOT, "w/a"), (ROOT, "v"), false).unwrap();
    let handle = ns.handle(watertight_mounts::Rights::Change);
    flushes_beside(&ns, &v, || handle.shut().unwrap());
    assert_eq!((outer.shutdowns(), outer.flushes()), (1, 0));
}

#[test]
fn what_stays_is_not_flushed() {
    let ns = namespace();
    let attach = |path: &str| {
        let (fs, sb) = Fs::new(&["d/f"]).stopping_in_flush().mountable();
        ns.attach(ROOT, path, &sb).unwrap();
        (fs, sb)
    };
    // Pinned, and detached lazily: the last pin's drop has to end it.
    let (pinned, _) = attach("v");
    let pin = ns.pin(ROOT, "v/d", FinalSymlink::Follow, "somebody").unwrap();
    ns.umount(ROOT, "v", Umount::DETACH).unwrap();
    // Open, or seen elsewhere.
    for is_open in [true, false] {
        let (fs, sb) = Fs::new(&["d/f"]).stopping_in_lookup().stopping_in_flush().mountable();
        ns.attach(ROOT, "w", &sb).unwrap();
        let hold = is_open.then(|| sb.get_active().unwrap());
        if !is_open {
            ns.bind((ROOT, "w"), (ROOT, "x"), false).unwrap();
        }
        let stop = fs.in_lookup.as_ref().unwrap();
        thread::scope(|scope| {
            let walk = scope.spawn(|| ns.resolve(ROOT, "w/d", FinalSymlink::Follow));
            stop.is_reached.pass();
            ns.umount(ROOT, "w", Umount::DETACH).unwrap();
            stop.may_leave.open();
            let _whatever = walk.join().unwrap();
        });
        assert_eq!((fs.flushes(), fs.shutdowns()), (0, 0));
        drop(hold);
        assert_eq!(fs.shutdowns(), usize::from(is_open));
    }
    assert_eq!((pinned.flushes(), pinned.shutdowns()), (0, 0));
    drop(pin);
    assert_eq!((pinned.flushes(), pinned.shutdowns()), (0, 1));
}
