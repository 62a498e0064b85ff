//! Walks across mounts, in sections and with references.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Fs, namespace};
use watertight_mounts::{Base, Error, FinalSymlink, Inode, Kind, Namespace, Rights, Umount, VfsPath};

fn resolve(ns: &Namespace, path: &str) -> VfsPath {
    ns.resolve(Base::Root, path, FinalSymlink::Follow).unwrap().0
}

fn fails(ns: &Namespace, path: &str) -> Error {
    ns.resolve(Base::Root, path, FinalSymlink::Follow).unwrap_err()
}

/// One tree with names from memory, and with names that a walk has to wait for.
fn both(check: impl Fn(&Namespace)) {
    for is_cached in [true, false] {
        let as_told = |fs: Fs| if is_cached { fs } else { fs.uncached() };
        let root = as_told(Fs::new(&["a/b/", "f", "up -> ..", "abs -> /a/b", "loop -> loop", "to -> a"]));
        let (_, root) = root.mountable();
        let ns = Namespace::new(&root, Default::default()).unwrap();
        let (_, inner) = as_told(Fs::new(&["d/e/f", "out -> ../f", "d/x -> /a/b/d"])).mountable();
        ns.attach(Base::Root, "a/b", &inner).unwrap();
        let (_, top) = as_told(Fs::new(&["g"])).mountable();
        ns.attach(Base::Root, "/a/b/d/e", &top).unwrap();
        check(&ns);
        assert_eq!(ns.stats().ref_walks > 0, !is_cached, "{is_cached}: {:?}", ns.stats());
    }
}

#[test]
fn names_links_and_parents_lead_across_mounts() {
    both(|ns| {
        let inner = resolve(ns, "a/b");
        assert_eq!(inner.inode, Inode::ROOT);
        assert_ne!(inner.mount, resolve(ns, "a").mount);
        assert_eq!(resolve(ns, "/to/b"), inner);
        assert_eq!(resolve(ns, "abs"), inner);
        assert_eq!(resolve(ns, "a/b/d/../../b/d/e/../.."), inner);
        assert_eq!(resolve(ns, "a/b/d/x"), resolve(ns, "a/b/d"));
        assert_eq!(resolve(ns, "a/b/.."), resolve(ns, "a"));
        assert_eq!(resolve(ns, "../../a/./b/"), inner);
        assert_eq!(resolve(ns, "up"), resolve(ns, "/"));
        assert_eq!(ns.resolve(Base::Root, "a/b/d/e/g", FinalSymlink::Follow).unwrap().1, Kind::Other);
        let step = ns.resolve(resolve(ns, "a"), "b", FinalSymlink::Follow).unwrap().0;
        assert_eq!(step, inner, "one step from a place crosses");
        assert_eq!(ns.resolve(inner, "..", FinalSymlink::Follow).unwrap().0, resolve(ns, "a"));
    });
}

#[test]
fn errors_are_those_of_the_table() {
    both(|ns| {
        let name = |name: &str| name.to_owned();
        assert_eq!(fails(ns, "a/b/d/e/f"), Error::NoEntry { name: name("f") }, "it is covered");
        assert_eq!(fails(ns, "f/x"), Error::NotDirectory { name: name("f") });
        assert_eq!(fails(ns, "f/"), Error::NotDirectory { name: name("f") });
        assert_eq!(fails(ns, "loop"), Error::TooManyLinks { max: 40 });
        assert!(ns.resolve(Base::Root, "loop", FinalSymlink::Keep).is_ok());
        let (_, other) = Fs::new(&[]).mountable();
        assert_eq!(ns.attach(Base::Root, "none", &other), Err(Error::NoEntry { name: name("none") }));
        assert_eq!(ns.attach(Base::Root, "f", &other), Err(Error::NotDirectory { name: name("f") }));
        assert_eq!(ns.umount(Base::Root, "a", Umount::empty()), Err(Error::NotMountRoot));
        let both = Umount::EXPIRE | Umount::DETACH;
        assert_eq!(ns.umount(Base::Root, "a/b", both), Err(Error::Flags { bits: 6 }));
        let unknown = Umount::from_bits_retain(64);
        assert_eq!(ns.umount(Base::Root, "a/b", unknown), Err(Error::Flags { bits: 64 }));
        let tenant = ns.handle(Rights::Walk);
        assert_eq!(tenant.umount(Base::Root, "a/b", Umount::DETACH), Err(Error::NotPermitted));
        assert_eq!(
            tenant.handle(Rights::Change).attach(Base::Root, "a", &other),
            Err(Error::NotPermitted),
            "a handle never gives more rights than it has"
        );
        assert!(tenant.resolve(Base::Root, "a/b", FinalSymlink::Follow).is_ok());
    });
}

#[test]
fn a_stack_of_mounts_shows_its_top() {
    let (ns, _) = namespace(&["a/"]);
    let (_, one) = Fs::new(&["x"]).mountable();
    let (_, two) = Fs::new(&["y"]).mountable();
    ns.attach(Base::Root, "a", &one).unwrap();
    assert_eq!(ns.attach(Base::Root, "a", &one), Err(Error::AlreadyThere));
    ns.attach(Base::Root, "a", &two).unwrap();
    assert!(ns.resolve(Base::Root, "a/y", FinalSymlink::Follow).is_ok());
    assert_eq!(ns.resolve(Base::Root, "a/..", FinalSymlink::Follow).unwrap().0, resolve(&ns, "/"));
    ns.umount(Base::Root, "a", Umount::empty()).unwrap();
    assert!(ns.resolve(Base::Root, "a/x", FinalSymlink::Follow).is_ok());
}

#[test]
fn a_namespace_has_a_bound() {
    let (_, root) = Fs::new(&["a/"]).mountable();
    let options = watertight_mounts::Options { mounts_max: 2, ..Default::default() };
    let ns = Namespace::new(&root, options).unwrap();
    let supers: Vec<_> = (0..2).map(|_| Fs::new(&[]).mountable()).collect();
    ns.attach(Base::Root, "a", &supers[0].1).unwrap();
    assert_eq!(ns.attach(Base::Root, "a", &supers[1].1), Err(Error::TooManyMounts { max: 2 }));
    assert_eq!(supers[1].1.mounts(), 0);
}

#[test]
fn a_place_that_was_detached_is_gone_and_a_pin_on_it_stays() {
    let (ns, _) = namespace(&["a/f"]);
    let (fs, sb) = Fs::new(&["d/f"]).mountable();
    ns.attach(Base::Root, "a", &sb).unwrap();
    let place = resolve(&ns, "a/d");
    let cwd = ns.pin(Base::Root, "a/d", FinalSymlink::Follow, "a shell").unwrap();
    ns.umount(Base::Root, "a", Umount::DETACH).unwrap();
    assert_eq!(ns.resolve(place, "f", FinalSymlink::Follow), Err(Error::NotHere));
    assert!(ns.resolve(&cwd, "f", FinalSymlink::Follow).is_ok(), "who is inside stays there");
    assert_eq!(
        ns.resolve(&cwd, "../..", FinalSymlink::Follow).unwrap().0.mount,
        cwd.mount(),
        "and does not get out"
    );
    assert!(ns.resolve(Base::Root, "a/f", FinalSymlink::Follow).is_ok());
    assert_eq!(fs.shutdowns(), 0);
    drop(cwd);
    assert_eq!(fs.shutdowns(), 1);
}

#[test]
fn a_synchronous_unmount_waits_for_a_visit() {
    for is_cached in [true, false] {
        let (ns, _) = namespace(&["a/"]);
        let fs = Fs::new(&["d/f"]);
        let (fs, sb) = if is_cached { fs } else { fs.uncached() }.mountable();
        ns.attach(Base::Root, "a", &sb).unwrap();
        let inode = resolve(&ns, "a/d").inode;
        std::thread::scope(|scope| {
            let visit = ns.visit(Base::Root, "a/d", FinalSymlink::Follow, |seen, at, kind| {
                assert!(seen.is_same(&sb) && at == inode && kind == Kind::Directory);
                let unmount = scope.spawn(|| ns.umount(Base::Root, "a", Umount::empty()));
                while ns.resolve(Base::Root, "a/d", FinalSymlink::Follow).is_ok() && !unmount.is_finished() {
                    std::thread::yield_now();
                }
                assert_eq!(fs.shutdowns(), 0, "ended under a visit");
                assert!(!unmount.is_finished(), "returned beside a visit, or was refused");
                unmount
            });
            visit.unwrap().join().unwrap().unwrap();
        });
        assert_eq!(fs.shutdowns(), 1);
        let again = ns.visit(Base::Root, "a/d", FinalSymlink::Follow, |_, _, _| ());
        assert!(matches!(again, Err(Error::NoEntry { .. })), "{again:?}");
    }
}

/// MN-R9 as a real run: a file that exists before and after a change is never missed, and `..`
/// never leads elsewhere.
#[test]
fn mn_r9_walks_beside_changes_find_what_was_there_all_the_time() {
    for is_cached in [true, false] {
        let as_told = |fs: Fs| if is_cached { fs } else { fs.uncached() };
        let (_, root) = as_told(Fs::new(&["a/b/f", "a/g", "stage/"])).mountable();
        let ns = Arc::new(Namespace::new(&root, Default::default()).unwrap());
        let (is_over, walks) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        walks.fetch_add(1, Ordering::Relaxed);
                        ns.resolve(Base::Root, "a/b/f", FinalSymlink::Follow).expect("there all the time");
                        let up = ns
                            .resolve(Base::Root, "a/b/..", FinalSymlink::Follow)
                            .expect("there all the time")
                            .0;
                        let found = ns.resolve(up, "g", FinalSymlink::Follow);
                        assert!(found.is_ok() || found == Err(Error::NotHere), "{found:?}");
                    }
                });
            }
            while walks.load(Ordering::Relaxed) < 10 {
                std::thread::yield_now();
            }
            // On `a` comes a tree that has the file only on the mount on its `b`, and goes again.
            for _ in 0..300 {
                let (_, outer) = as_told(Fs::new(&["b/", "g"])).mountable();
                let (_, inner) = as_told(Fs::new(&["f"])).mountable();
                ns.attach(Base::Root, "stage", &outer).unwrap();
                ns.attach(Base::Root, "stage/b", &inner).unwrap();
                ns.move_mount((Base::Root, "stage"), (Base::Root, "a")).unwrap();
                ns.umount(Base::Root, "a", Umount::DETACH).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
