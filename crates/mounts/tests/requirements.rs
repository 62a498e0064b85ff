//! The requirements MN-R1 to MN-R5 and MN-R10 of the specification. The lab has MN-R6,
//! `loom_mounts` and [`walks`](./walks.rs) have MN-R7 to R9.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use sync::Mutex;

use common::{Fs, Medium, namespace};
use watertight_mounts::teardown::{Teardown, UmountReason, UmountedMount};
use watertight_mounts::{Base, Busy, Error, FinalSymlink, Holder, Namespace, Options, Propagation, Umount};

const ROOT: Base<'static> = Base::Root;

/// Runs `work` beside threads that walk a path again and again.
fn beside_walkers(ns: &Namespace, path: &str, work: impl FnOnce()) {
    let (is_over, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                begun.fetch_add(1, Ordering::Relaxed);
                while !is_over.load(Ordering::Relaxed) {
                    let _ = ns.resolve(ROOT, path, FinalSymlink::Follow);
                }
            });
        }
        while begun.load(Ordering::Relaxed) < 3 {
            thread::yield_now();
        }
        work();
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn mn_r1_the_store_is_free_and_intact_after_each_lazy_unmount() {
    let (ns, _) = namespace(&["v/"]);
    let medium = Arc::new(Medium::default());
    beside_walkers(&ns, "v/f", || {
        for round in 0..100 {
            // Taking the medium fails if the last round's superblock has it still.
            let (fs, sb) = Fs::new(&["f"]).on(&medium).mountable();
            ns.attach(ROOT, "v", &sb).unwrap();
            fs.write(round);
            ns.umount(ROOT, "v", Umount::DETACH).unwrap();
            assert_eq!(fs.ended_by(), Some(thread::current().id()));
        }
    });
    assert_eq!(*medium.content.lock(), (0..100).collect::<Vec<_>>());
}

#[test]
fn mn_r2_the_end_of_a_namespace_frees_all_its_mounts_first() {
    let names: Vec<String> = (0..50).map(|n| format!("v{n}/sub/")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (ns, root) = namespace(&names);
    let mut all = vec![root];
    for name in &names {
        let (fs, sb) = Fs::new(&["f"]).mountable();
        ns.attach(ROOT, name, &sb).unwrap();
        all.push(fs);
    }
    let pin = ns.pin(ROOT, "v7/sub/f", FinalSymlink::Follow, "somebody else").unwrap();
    let pinned = all.remove(8);
    ns.end();
    assert!(all.iter().all(|fs| fs.shutdowns() == 1));
    assert_eq!(pinned.shutdowns(), 0, "somebody has it");
    assert!(!pin.is_mounted());
    drop(pin);
    assert_eq!(pinned.shutdowns(), 1);
}

#[test]
fn mn_r3_a_synchronous_unmount_under_walks_is_never_busy_and_ends_it_itself() {
    for is_cached in [true, false] {
        let (ns, _) = namespace(&["v/"]);
        beside_walkers(&ns, "v/d/f", || {
            for _ in 0..500 {
                let fs = Fs::new(&["d/f"]);
                let (fs, sb) = if is_cached { fs } else { fs.uncached() }.mountable();
                ns.attach(ROOT, "v", &sb).unwrap();
                ns.umount(ROOT, "v", Umount::empty()).unwrap();
                assert_eq!((fs.shutdowns(), fs.ended_by()), (1, Some(thread::current().id())));
                assert_eq!(fs.used_after_end.load(Ordering::SeqCst), 0);
            }
        });
    }
}

#[test]
fn mn_r3_who_is_in_the_way_is_named() {
    let (ns, _) = namespace(&["v/"]);
    let (fs, sb) = Fs::new(&["d/f"]).mountable();
    ns.attach(ROOT, "v", &sb).unwrap();
    let pins = ["pid 7", "pid 8"].map(|who| ns.pin(ROOT, "v/d", FinalSymlink::Follow, who).unwrap());
    let Err(Error::Busy(Busy { mut holders, children: 0, active_refs: 0, is_copy: false })) =
        ns.umount(ROOT, "v", Umount::empty())
    else {
        panic!("it is busy");
    };
    holders.sort_by(|a, b| a.name().cmp(b.name()));
    assert_eq!(holders, [Holder::from("pid 7"), Holder::from("pid 8")]);
    drop(pins);
    ns.umount(ROOT, "v", Umount::empty()).unwrap();
    assert_eq!(fs.shutdowns(), 1);
}

#[test]
fn mn_r3_pins_beside_synchronous_unmounts_are_before_or_after() {
    let (ns, _) = namespace(&["v/f"]);
    let (is_over, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let pin = ns.pin(ROOT, "v/f", FinalSymlink::Follow, "a walker").unwrap();
                    assert!(pin.superblock().mounts() > 0);
                }
            });
        }
        for _ in 0..300 {
            let (fs, sb) = Fs::new(&["f"]).mountable();
            ns.attach(ROOT, "v", &sb).unwrap();
            loop {
                match ns.umount(ROOT, "v", Umount::empty()) {
                    Ok(()) => break,
                    Err(Error::Busy(busy)) => {
                        // The walkers may have gone on before the names are read.
                        assert!(busy.holders.iter().all(|holder| holder.name() == "a walker"));
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!((fs.shutdowns(), fs.ended_by()), (1, Some(thread::current().id())));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn mn_r4_a_superblock_that_hangs_holds_up_its_own_unmount_only() {
    let (ns, _) = namespace(&["hung/", "other/", "third/"]);
    let (hung, sb) = Fs::new(&[]).hanging().mountable();
    ns.attach(ROOT, "hung", &sb).unwrap();
    thread::scope(|scope| {
        let unmount = scope.spawn(|| ns.umount(ROOT, "hung", Umount::DETACH));
        hung.is_hanging.pass();
        for flags in [Umount::empty(), Umount::DETACH] {
            let (fs, sb) = Fs::new(&["f"]).mountable();
            ns.attach(ROOT, "other", &sb).unwrap();
            ns.resolve(ROOT, "other/f", FinalSymlink::Follow).unwrap();
            ns.umount(ROOT, "other", flags).unwrap();
            assert_eq!(fs.shutdowns(), 1);
        }
        let (fs, sb) = Fs::new(&["f"]).mountable();
        ns.attach(ROOT, "third", &sb).unwrap();
        let pin = ns.pin(ROOT, "third", FinalSymlink::Follow, "test").unwrap();
        ns.umount(ROOT, "third", Umount::DETACH).unwrap();
        drop(pin);
        assert_eq!(fs.shutdowns(), 1);
        assert_eq!(hung.shutdowns(), 0);
        hung.hangs.as_ref().unwrap().open();
        unmount.join().unwrap().unwrap();
    });
    assert_eq!(hung.shutdowns(), 1);
}

/// Waits for nothing, and notes whether each mount's stamp is of a grace period that has not
/// passed.
#[derive(Debug, Default)]
struct Stamps(Mutex<Vec<bool>>);

impl Teardown for Stamps {
    fn finish(&self, gone: Vec<UmountedMount>, _: UmountReason) {
        for gone in gone {
            self.0.lock().push(gone.domain().poll_state(gone.stamp()));
            if let Some(last) = gone.complete(false, || ()) {
                last.clean_up();
            }
        }
    }
}

#[test]
fn mn_r5_whatever_leaves_a_namespace_is_stamped_after_it_left() {
    let options = || {
        let domain = rcu::DomainOptions { first_number: u64::MAX - 3, ..Default::default() };
        Options { domain, ..Options::default() }
    };
    let stamps = Arc::new(Stamps::default());
    let (_, root) = Fs::new(&["a/", "b/", "c/"]).mountable();
    let ns = Namespace::with_teardown(&root, options(), Arc::clone(&stamps) as _).unwrap();
    ns.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let other = ns.try_clone().unwrap();
    let attach = |path: &str| {
        let (_, sb) = Fs::new(&["d/"]).mountable();
        ns.attach(ROOT, path, &sb).unwrap();
    };
    ["a", "b", "b/d", "c"].into_iter().for_each(attach);
    for passed in 0..4 {
        // While this section is open no grace period ends: a stamp that has passed was taken too
        // early.
        let sections = [ns.domain().read(), other.domain().read()];
        match passed {
            0 => ns.umount(ROOT, "a", Umount::empty()).unwrap(),
            1 => ns.umount(ROOT, "b", Umount::DETACH).unwrap(),
            _ => {}
        }
        drop(sections);
        ns.domain().synchronize_expedited();
        other.domain().synchronize_expedited();
    }
    let seen = std::mem::take(&mut *stamps.0.lock());
    assert_eq!(seen, [false; 6], "each mount and its copy");
    let domain = ns.domain().clone();
    let section = domain.read();
    ns.end();
    drop(section);
    assert_eq!(*stamps.0.lock(), [false; 2], "what was left");
}

#[test]
fn mn_r5_numbers_of_grace_periods_go_around_beside_unmounts() {
    let domain = rcu::DomainOptions { first_number: u64::MAX - 41, ..Default::default() };
    let (_, root) = Fs::new(&["v/"]).mountable();
    let ns = Namespace::new(&root, Options { domain, ..Options::default() }).unwrap();
    for _ in 0..100 {
        let (fs, sb) = Fs::new(&["f"]).mountable();
        ns.attach(ROOT, "v", &sb).unwrap();
        let pin = ns.pin(ROOT, "v/f", FinalSymlink::Follow, "test").unwrap();
        ns.umount(ROOT, "v", Umount::DETACH).unwrap();
        assert_eq!(fs.shutdowns(), 0);
        drop(pin);
        assert_eq!(fs.shutdowns(), 1);
    }
    assert_eq!(ns.stats().waits, 100, "each had a user");
    assert!(ns.domain().stats().grace_periods >= 100);
}

#[test]
fn mn_r10_one_unmount_takes_thousands_of_copies_down() {
    const PEERS: usize = 2000;
    let names: Vec<String> = (0..PEERS).map(|n| format!("p/{n}/")).chain(["m/".to_owned()]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (ns, _) = namespace(&names);
    let (_, volume) = Fs::new(&["sub/"]).mountable();
    ns.attach(ROOT, "m", &volume).unwrap();
    ns.set_propagation(ROOT, "m", Propagation::Shared, false).unwrap();
    for n in 0..PEERS {
        ns.bind((ROOT, "m"), (ROOT, format!("p/{n}")), false).unwrap();
    }
    let (fs, sb) = Fs::new(&["f"]).mountable();
    ns.attach(ROOT, "m/sub", &sb).unwrap();
    assert_eq!(sb.mounts(), PEERS + 1);
    let pin = ns.pin(ROOT, "p/1234/sub/f", FinalSymlink::Follow, "pid 9").unwrap();
    let busy = ns.umount(ROOT, "m/sub", Umount::empty());
    let holders = vec![Holder::from("pid 9")];
    assert_eq!(busy, Err(Error::Busy(Busy { holders, is_copy: true, ..Busy::default() })));
    assert_eq!(sb.mounts(), PEERS + 1, "all or none");
    drop(pin);
    let pin = ns.pin(ROOT, "m/sub/f", FinalSymlink::Follow, "pid 9").unwrap();
    drop(pin);
    ns.umount(ROOT, "m/sub", Umount::empty()).unwrap();
    assert_eq!((sb.mounts(), fs.shutdowns(), fs.ended_by()), (0, 1, Some(thread::current().id())));
    assert!(ns.resolve(ROOT, "p/77/sub/f", FinalSymlink::Follow).is_err());

    let (fs, sb) = Fs::new(&["f"]).mountable();
    ns.attach(ROOT, "p/5/sub", &sb).unwrap();
    let pin = ns.pin(ROOT, "p/6/sub/f", FinalSymlink::Follow, "pid 9").unwrap();
    ns.umount(ROOT, "p/7/sub", Umount::DETACH).unwrap();
    assert_eq!((sb.mounts(), fs.shutdowns()), (1, 0));
    drop(pin);
    assert_eq!((sb.mounts(), fs.shutdowns()), (0, 1));
}

#[test]
fn mn_r4_one_hung_superblock_does_not_delay_others_that_end_with_it() {
    let (ns, _) = namespace(&["a/", "b/", "c/"]);
    let (hung, hung_sb) = Fs::new(&[]).hanging().mountable();
    let (slow, slow_sb) = Fs::new(&[]).hanging().mountable();
    let (quick, quick_sb) = Fs::new(&[]).mountable();
    ns.attach(ROOT, "a", &hung_sb).unwrap();
    ns.attach(ROOT, "b", &slow_sb).unwrap();
    ns.attach(ROOT, "c", &quick_sb).unwrap();
    thread::scope(|scope| {
        let ending = scope.spawn(|| ns.end());
        // All are being ended while none has finished.
        hung.is_hanging.pass();
        slow.is_hanging.pass();
        assert_eq!(quick.shutdowns(), 1);
        slow.hangs.as_ref().unwrap().open();
        while slow.shutdowns() == 0 {
            thread::yield_now();
        }
        assert!(!ending.is_finished(), "the end waits for its own");
        hung.hangs.as_ref().unwrap().open();
    });
    assert_eq!(hung.shutdowns(), 1);
}

#[test]
fn an_end_beside_attaches_ends_what_was_attached_and_refuses_the_rest() {
    for _ in 0..200 {
        let (ns, _) = namespace(&["v/"]);
        let handle = ns.handle(watertight_mounts::Rights::Change);
        let (fs, sb) = Fs::new(&["d/"]).mountable();
        let (inner, inner_sb) = Fs::new(&["f"]).mountable();
        thread::scope(|scope| {
            scope.spawn(|| ns.end());
            let attached = handle.attach(ROOT, "v", &sb);
            let attached_inner = handle.attach(ROOT, "v/d", &inner_sb);
            assert!(matches!(attached, Ok(_) | Err(Error::NotHere)), "{attached:?}");
            assert!(attached_inner.is_err() || attached.is_ok(), "{attached_inner:?}");
            // Every attached mount has left, or does so before the end is over.
            (attached.is_ok(), attached_inner.is_ok())
        });
        for (one, fs) in [(&sb, &fs), (&inner_sb, &inner)] {
            assert_eq!(one.mounts(), 0);
            assert!(fs.shutdowns() <= 1);
        }
        assert_eq!(handle.attach(ROOT, "v", &Fs::new(&[]).mountable().1), Err(Error::NotHere));
        assert!(handle.mounts().is_empty());
    }
}

#[test]
fn an_unmount_beside_a_move_of_its_parent_is_of_that_mount() {
    let (ns, _) = namespace(&["a/", "b/"]);
    let (_, sb) = Fs::new(&["d/"]).mountable();
    ns.attach(ROOT, "a", &sb).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                ns.move_mount((ROOT, "a"), (ROOT, "b")).unwrap();
                ns.move_mount((ROOT, "b"), (ROOT, "a")).unwrap();
            }
        });
        for round in 0..500 {
            let (fs, inner) = Fs::new(&["f"]).mountable();
            // The parent is at one of both places.
            let mut paths = ["a/d", "b/d"].iter().cycle();
            while ns.attach(ROOT, paths.next().unwrap(), &inner).is_err() {}
            let flags = if round % 2 == 0 { Umount::empty() } else { Umount::DETACH };
            while ns.umount(ROOT, paths.next().unwrap(), flags).is_err() {}
            assert_eq!((inner.mounts(), fs.shutdowns()), (0, 1), "round {round}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(ns.stats().mounts, 2);
}

/// Namespaces get the domains of others that ended; a reader in one namespace holds up no other
/// namespace's unmount.
#[test]
fn readers_of_a_namespace_hold_up_its_own_unmounts_only() {
    let (ns, _) = namespace(&["v/"]);
    for _ in 0..20 {
        let clones: Vec<Namespace> = (0..3).map(|_| ns.try_clone().unwrap()).collect();
        for (n, clone) in clones.iter().enumerate() {
            let (fs, sb) = Fs::new(&["f"]).mountable();
            clone.attach(ROOT, "v", &sb).unwrap();
            let pin = clone.pin(ROOT, "v/f", FinalSymlink::Follow, "somebody").unwrap();
            // A grace period of the same domain would be refused here: it would wait for this
            // thread.
            let others = clones.iter().enumerate().filter(|(other, _)| *other != n);
            let sections: Vec<_> = others.map(|(_, other)| other.domain().read()).collect();
            let section = ns.domain().read();
            clone.umount(ROOT, "v", Umount::DETACH).unwrap();
            assert_eq!((fs.shutdowns(), clone.stats().waits), (0, 1));
            drop((section, sections));
            drop(pin);
            assert_eq!(fs.shutdowns(), 1);
        }
    }
}
