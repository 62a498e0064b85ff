//! Binds, moves, propagation, clones and expiry.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::collections::HashMap;

use common::{Fs, namespace};
use watertight_mounts::{Base, Busy, Error, FinalSymlink, Namespace, Propagation, Ties, Umount};

const ROOT: Base<'static> = Base::Root;
const SYNC: Umount = Umount::empty();

fn has(ns: &Namespace, path: &str) -> bool {
    ns.resolve(ROOT, path, FinalSymlink::Follow).is_ok()
}

fn attach(ns: &Namespace, path: &str, paths: &[&str]) -> std::sync::Arc<Fs> {
    let (fs, sb) = Fs::new(paths).mountable();
    ns.attach(ROOT, path, &sb).unwrap();
    fs
}

#[test]
fn a_bind_shows_a_part_and_keeps_the_superblock() {
    let (ns, _) = namespace(&["v/", "one/", "all/"]);
    let fs = attach(&ns, "v", &["d/e/f", "g"]);
    let inner = attach(&ns, "v/d/e", &["x"]);
    ns.bind((ROOT, "v/d"), (ROOT, "one"), false).unwrap();
    ns.bind((ROOT, "v/d"), (ROOT, "all"), true).unwrap();
    assert!(has(&ns, "one/e/f") && !has(&ns, "one/e/x") && has(&ns, "all/e/x"));
    assert!(!has(&ns, "one/g"));
    let root = ns.resolve(ROOT, "/", FinalSymlink::Follow).unwrap();
    assert_eq!(ns.resolve(ROOT, "one/..", FinalSymlink::Follow).unwrap(), root, "`..` leaves the bind");
    ns.umount(ROOT, "v", Umount::DETACH).unwrap();
    assert_eq!((fs.shutdowns(), inner.shutdowns()), (0, 0));
    assert_eq!(ns.umount(ROOT, "all", SYNC), Err(Error::Busy(Busy { children: 1, ..Busy::default() })));
    ns.umount(ROOT, "all", Umount::DETACH).unwrap();
    assert_eq!((fs.shutdowns(), inner.shutdowns()), (0, 1));
    ns.umount(ROOT, "one", SYNC).unwrap();
    assert_eq!(fs.shutdowns(), 1);
}

#[test]
fn a_superblock_that_was_shut_down_is_not_mounted_again() {
    let (ns, _) = namespace(&["v/"]);
    let (_, sb) = Fs::new(&[]).mountable();
    ns.attach(ROOT, "v", &sb).unwrap();
    ns.umount(ROOT, "v", SYNC).unwrap();
    assert_eq!(ns.attach(ROOT, "v", &sb), Err(Error::Ended));
}

#[test]
fn a_move_takes_everything_along_and_not_into_itself() {
    let (ns, _) = namespace(&["v/", "w/d/"]);
    attach(&ns, "v", &["d/f"]);
    attach(&ns, "v/d", &["x"]);
    let pin = ns.pin(ROOT, "v/d", FinalSymlink::Follow, "a shell").unwrap();
    ns.move_mount((ROOT, "v"), (ROOT, "w/d")).unwrap();
    assert!(has(&ns, "w/d/d/x") && !has(&ns, "v/d"));
    assert!(pin.is_mounted());
    assert_eq!(
        ns.resolve(&pin, "../..", FinalSymlink::Follow).unwrap().0,
        ns.resolve(ROOT, "w", FinalSymlink::Follow).unwrap().0
    );
    assert_eq!(ns.move_mount((ROOT, "w/d"), (ROOT, "w/d/d")), Err(Error::IntoItself));
    assert_eq!(ns.move_mount((ROOT, "w"), (ROOT, "v")), Err(Error::NotMountRoot));
    assert!(matches!(ns.move_mount((ROOT, "/"), (ROOT, "v")), Err(Error::NotAllowed { .. })));
    ns.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    assert!(matches!(ns.move_mount((ROOT, "w/d"), (ROOT, "v")), Err(Error::NotAllowed { .. })));
}

#[test]
fn a_tree_that_is_moved_onto_a_shared_mount_becomes_shared_and_is_copied() {
    let (host, _) = namespace(&["v/", "own/"]);
    attach(&host, "own", &["stage/"]);
    attach(&host, "own/stage", &["d/"]);
    let inner = attach(&host, "own/stage/d", &["x"]);
    host.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let peer = host.try_clone().unwrap();
    assert!(!has(&peer, "v/d"));
    host.move_mount((ROOT, "own/stage"), (ROOT, "v")).unwrap();
    assert!(has(&host, "v/d/x") && has(&peer, "v/d/x"));
    assert!(!has(&host, "own/stage/d") && has(&peer, "own/stage/d/x"), "the clone has its own copy there");
    peer.umount(ROOT, "v/d", SYNC).unwrap();
    assert!(!has(&host, "v/d/x"), "they are peers");
    assert_eq!(inner.shutdowns(), 0);
    peer.umount(ROOT, "own/stage/d", SYNC).unwrap();
    assert_eq!(inner.shutdowns(), 1);
}

#[test]
fn a_container_pivots_and_drops_the_old_root() {
    let (host, host_root) = namespace(&["new/", "v0/", "v1/"]);
    let volumes = ["v0", "v1"].map(|path| attach(&host, path, &["f"]));
    let container = host.try_clone().unwrap();
    let fs = attach(&container, "new", &["old/", "data/"]);
    container.bind((ROOT, "v0"), (ROOT, "new/data"), false).unwrap();
    container.pivot_root((ROOT, "new"), (ROOT, "new/old")).unwrap();
    assert!(has(&container, "data/f") && has(&container, "old/v1/f") && !has(&container, "new"));
    container.umount(ROOT, "old", Umount::DETACH).unwrap();
    assert!(!has(&container, "old/v1"));
    assert!(has(&host, "v0/f") && has(&host, "v1/f"), "the host keeps its own");
    host.end();
    assert_eq!(host_root.shutdowns(), 1);
    assert_eq!(volumes.each_ref().map(|fs| fs.shutdowns()), [0, 1], "the container has one of them");
    container.end();
    assert_eq!((fs.shutdowns(), volumes[0].shutdowns()), (1, 1));
}

#[test]
fn peers_pass_on_slaves_receive_and_private_ones_do_neither() {
    let (host, _) = namespace(&["v/"]);
    host.set_propagation(ROOT, "/", Propagation::Shared, true).unwrap();
    let peer = host.try_clone().unwrap();
    let slave = host.try_clone().unwrap();
    slave.set_propagation(ROOT, "/", Propagation::Slave, true).unwrap();
    let private = host.try_clone().unwrap();
    private.set_propagation(ROOT, "/", Propagation::Private, true).unwrap();
    let all = |path: &str| [&host, &peer, &slave, &private].map(|ns| has(ns, path));

    let fs = attach(&peer, "v", &["f", "d/"]);
    assert_eq!(all("v/f"), [true, true, true, false]);
    assert_eq!(host.mounts()[1].shared, peer.mounts()[1].shared);
    assert_eq!(slave.mounts()[1].master, peer.mounts()[1].shared);
    attach(&slave, "v/d", &["x"]);
    assert_eq!(all("v/d/x"), [false, false, true, false]);
    host.umount(ROOT, "v", SYNC).unwrap();
    assert_eq!(all("v/f"), [false, false, true, false], "a copy with others on it stays");
    assert_eq!(fs.shutdowns(), 0);
    slave.umount(ROOT, "v", Umount::DETACH).unwrap();
    assert_eq!(fs.shutdowns(), 1);
}

#[test]
fn a_slave_that_is_shared_passes_on_what_it_receives() {
    let (host, _) = namespace(&["v/"]);
    host.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let middle = host.try_clone().unwrap();
    middle.set_propagation(ROOT, "/", Propagation::Slave, false).unwrap();
    middle.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let below = middle.try_clone().unwrap();
    let end = middle.try_clone().unwrap();
    end.set_propagation(ROOT, "/", Propagation::Slave, false).unwrap();
    let all = |path: &str| [&host, &middle, &below, &end].map(|ns| has(ns, path));
    attach(&host, "v", &["f"]);
    assert_eq!(all("v/f"), [true; 4]);
    middle.umount(ROOT, "v", SYNC).unwrap();
    assert_eq!(all("v/f"), [true, false, false, false]);
    host.umount(ROOT, "v", SYNC).unwrap();
    attach(&end, "v", &["f"]);
    assert_eq!(all("v/f"), [false, false, false, true]);
}

#[test]
fn slaves_of_a_group_that_is_gone_receive_from_its_master() {
    let (host, _) = namespace(&["v/"]);
    host.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let middle = host.try_clone().unwrap();
    middle.set_propagation(ROOT, "/", Propagation::Slave, false).unwrap();
    middle.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let end = middle.try_clone().unwrap();
    end.set_propagation(ROOT, "/", Propagation::Slave, false).unwrap();
    middle.end();
    attach(&host, "v", &["f"]);
    assert!(has(&end, "v/f"));
    host.end();
    assert_eq!(end.mounts()[0].master, None);
    assert!(has(&end, "v/f"));
}

#[test]
fn unbindable_mounts_are_left_out() {
    let (ns, _) = namespace(&["v/", "w/"]);
    attach(&ns, "v", &["d/"]);
    attach(&ns, "v/d", &["x"]);
    ns.set_propagation(ROOT, "v/d", Propagation::Unbindable, false).unwrap();
    assert!(matches!(ns.bind((ROOT, "v/d"), (ROOT, "w"), false), Err(Error::NotAllowed { .. })));
    ns.bind((ROOT, "v"), (ROOT, "w"), true).unwrap();
    assert!(has(&ns, "w/d") && !has(&ns, "w/d/x"));
    assert!(has(&ns.try_clone().unwrap(), "v/d/x"), "a clone has everything");
}

#[test]
fn what_a_receiver_has_there_already_goes_on_top() {
    let (host, _) = namespace(&["v/"]);
    host.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let slave = host.try_clone().unwrap();
    slave.set_propagation(ROOT, "/", Propagation::Slave, false).unwrap();
    attach(&slave, "v", &["own"]);
    let late = attach(&host, "v", &["late"]);
    assert!(has(&slave, "v/own") && has(&host, "v/late"));
    slave.umount(ROOT, "v", SYNC).unwrap();
    assert!(has(&slave, "v/late"));
    host.umount(ROOT, "v", SYNC).unwrap();
    assert_eq!(late.shutdowns(), 1);
}

#[test]
fn a_mount_that_nobody_uses_expires_at_the_second_call() {
    let (ns, _) = namespace(&["v/"]);
    let fs = attach(&ns, "v", &["f"]);
    let pin = ns.pin(ROOT, "v/f", FinalSymlink::Follow, "pid 1").unwrap();
    assert!(matches!(ns.umount(ROOT, "v", Umount::EXPIRE), Err(Error::Busy(_))));
    drop(pin);
    assert_eq!(ns.umount(ROOT, "v", Umount::EXPIRE), Err(Error::Expiring));
    drop(ns.pin(ROOT, "v/f", FinalSymlink::Follow, "pid 1").unwrap());
    assert_eq!(ns.umount(ROOT, "v", Umount::EXPIRE), Err(Error::Expiring), "it was used");
    ns.umount(ROOT, "v", Umount::EXPIRE).unwrap();
    assert_eq!(fs.shutdowns(), 1);
}

#[test]
fn a_clone_counts_its_own_mounts() {
    let (ns, _) = namespace(&["v/"]);
    attach(&ns, "v", &[]);
    let other = ns.try_clone().unwrap();
    assert_eq!((ns.stats().mounts, other.stats().mounts), (2, 2));
    other.umount(ROOT, "v", SYNC).unwrap();
    assert_eq!((ns.stats().mounts, other.stats().mounts), (2, 1));
    let pin = ns.pin(ROOT, "v", FinalSymlink::Follow, "test").unwrap();
    assert_eq!(other.resolve(&pin, ".", FinalSymlink::Follow), Err(Error::NotHere), "another namespace's");
}

#[test]
fn a_hold_is_a_use_for_expiry() {
    let (ns, _) = namespace(&["v/"]);
    let (fs, sb) = Fs::new(&["f"]).mountable();
    ns.attach(ROOT, "v", &sb).unwrap();
    assert_eq!(ns.umount(ROOT, "v", Umount::EXPIRE), Err(Error::Expiring));
    let hold = sb.get_active().unwrap();
    assert!(matches!(ns.umount(ROOT, "v", Umount::EXPIRE), Err(Error::Busy(Busy { active_refs: 1, .. }))));
    drop(hold);
    assert_eq!(ns.umount(ROOT, "v", Umount::EXPIRE), Err(Error::Expiring), "it was used");
    ns.umount(ROOT, "v", Umount::EXPIRE).unwrap();
    assert_eq!(fs.shutdowns(), 1);
}

#[test]
fn a_hold_keeps_the_last_mount_and_no_other() {
    let (ns, _) = namespace(&["v/", "w/"]);
    let (fs, sb) = Fs::new(&["f"]).mountable();
    assert!(sb.get_active().is_err(), "it is not mounted");
    ns.attach(ROOT, "v", &sb).unwrap();
    ns.bind((ROOT, "v"), (ROOT, "w"), false).unwrap();
    let hold = sb.get_active().unwrap();
    ns.umount(ROOT, "v", SYNC).unwrap();
    let busy = Err(Error::Busy(Busy { active_refs: 1, ..Busy::default() }));
    assert_eq!(ns.umount(ROOT, "w", SYNC), busy.clone());
    assert!(has(&ns, "w/f") && sb.get_active().is_ok(), "nothing was changed");
    ns.umount(ROOT, "w", Umount::DETACH).unwrap();
    assert!(!has(&ns, "w/f"));
    assert_eq!((fs.shutdowns(), sb.get_active().err()), (0, Some(Error::Ended)));
    // It is not over: it can be mounted again, and the hold is that of the new mount.
    ns.attach(ROOT, "v", &sb).unwrap();
    assert!(has(&ns, "v/f") && sb.get_active().is_ok());
    assert_eq!(ns.umount(ROOT, "v", SYNC), busy);
    ns.umount(ROOT, "v", Umount::DETACH).unwrap();
    assert_eq!(fs.shutdowns(), 0);
    drop(hold);
    assert_eq!((fs.shutdowns(), fs.ended_by()), (1, Some(std::thread::current().id())));
    assert_eq!(ns.attach(ROOT, "w", &sb), Err(Error::Ended));
}

#[test]
fn a_hold_refuses_an_unmount_that_takes_all_copies_along() {
    let (ns, _) = namespace(&["v/"]);
    ns.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let other = ns.try_clone().unwrap();
    let (fs, sb) = Fs::new(&["f"]).mountable();
    ns.attach(ROOT, "v", &sb).unwrap();
    let hold = sb.get_active().unwrap();
    assert!(matches!(other.umount(ROOT, "v", SYNC), Err(Error::Busy(Busy { active_refs: 1, .. }))));
    assert!(has(&ns, "v/f") && has(&other, "v/f"));
    drop(hold);
    other.umount(ROOT, "v", SYNC).unwrap();
    assert!(!has(&ns, "v/f"));
    assert_eq!(fs.shutdowns(), 1);
}

#[test]
fn a_move_onto_a_shared_place_is_a_move_for_the_clone_too() {
    let (ns, _) = namespace(&["s/", "p/"]);
    let shared = attach(&ns, "s", &["here/"]);
    attach(&ns, "p", &["d/"]);
    ns.set_propagation(ROOT, "s", Propagation::Shared, false).unwrap();
    let (peer, slave) = (ns.try_clone().unwrap(), ns.try_clone().unwrap());
    slave.set_propagation(ROOT, "s", Propagation::Slave, false).unwrap();
    let moved = attach(&ns, "p/d", &["f", "in/"]);
    let inner = attach(&ns, "p/d/in", &["g"]);
    assert!(!has(&peer, "p/d/f"), "p is private");
    ns.move_mount((ROOT, "p/d"), (ROOT, "s/here")).unwrap();
    for (name, space) in [("own", &ns), ("peer", &peer), ("slave", &slave)] {
        assert!(has(space, "s/here/f") && has(space, "s/here/in/g"), "{name}");
        assert!(!has(space, "p/d/f"), "{name}");
    }
    // The moved mount propagates from now on.
    ns.umount(ROOT, "s/here/in", SYNC).unwrap();
    assert!(!has(&peer, "s/here/in/g") && !has(&slave, "s/here/in/g"));
    assert_eq!(inner.shutdowns(), 1);
    slave.umount(ROOT, "s/here", SYNC).unwrap();
    assert!(has(&ns, "s/here/f") && has(&peer, "s/here/f"), "a slave's change is its own");
    peer.umount(ROOT, "s/here", SYNC).unwrap();
    assert!(!has(&ns, "s/here/f"));
    assert_eq!((moved.shutdowns(), shared.shutdowns()), (1, 0));
}

#[test]
fn an_attach_that_fails_half_way_leaves_no_trace() {
    let (fs, sb) = Fs::new(&["f"]).mountable();
    let (_, root) = Fs::new(&["v/", "w/"]).mountable();
    let options = watertight_mounts::Options { mounts_max: 2, ..watertight_mounts::Options::default() };
    let full = Namespace::new(&root, options).unwrap();
    full.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    let peer = full.try_clone().unwrap();
    peer.set_propagation(ROOT, "/", Propagation::Shared, false).unwrap();
    full.attach(ROOT, "v", &sb).unwrap();
    // No room for the peer's copy, nor for the own one: all or nothing, again and again.
    let (late_fs, late) = Fs::new(&["g"]).mountable();
    for _ in 0..3 {
        assert_eq!(full.attach(ROOT, "w", &late), Err(Error::TooManyMounts { max: 2 }));
        assert_eq!((late.mounts(), late_fs.shutdowns()), (0, 0));
        assert!(!has(&full, "w/g") && !has(&peer, "w/g"));
    }
    full.umount(ROOT, "v", SYNC).unwrap();
    assert_eq!(fs.shutdowns(), 1);
    full.attach(ROOT, "w", &late).unwrap();
    assert!(has(&peer, "w/g"));
}

/// Namespaces that were written down and made again, mount by mount, pass on what they did.
#[test]
fn namespaces_that_are_made_again_are_tied_as_they_were() {
    let (first, _) = namespace(&["v/", "w/"]);
    attach(&first, "v", &["d/"]);
    let whole = |ns: &Namespace, how| ns.set_propagation(ROOT, "/", how, true).unwrap();
    whole(&first, Propagation::Shared);
    let peer = first.try_clone().unwrap();
    let [slave, alone] = [Propagation::Slave, Propagation::Private].map(|how| {
        let clone = first.try_clone().unwrap();
        whole(&clone, how);
        clone
    });
    let (old, (new, _)) = ([first, peer, slave, alone], namespace(&["v/", "w/"]));
    let mut made = vec![new];
    made.extend((1..old.len()).map(|_| made[0].try_beside().unwrap()).collect::<Vec<_>>());
    let (mut mounts, mut ties) = (HashMap::new(), Vec::new());
    let (_, sb) = Fs::new(&["d/"]).mountable();
    for (old, new) in old.iter().zip(&made) {
        for info in old.mounts() {
            let mount = match info.on {
                None => new.root().unwrap(),
                Some(_) => {
                    let (at, _) = new.resolve(ROOT, "v", FinalSymlink::Follow).unwrap();
                    new.attach_dir_all(at, "", &sb, info.root).unwrap()[0].mount
                }
            };
            mounts.insert(info.mount, mount);
            let is_unbindable = info.is_unbindable;
            ties.push((mount, Ties { shared: info.shared, master: info.master, is_unbindable }));
        }
    }
    made[0].tie(&ties).unwrap();
    assert_eq!(mounts.len(), 8);
    for (from, receivers) in [
        [true, true, true, false],
        [true, true, true, false],
        [false, false, true, false],
        [false, false, false, true],
    ]
    .into_iter()
    .enumerate()
    {
        for path in ["w", "v/d"] {
            attach(&made[from], path, &["x"]);
            let seen = [0, 1, 2, 3].map(|ns| has(&made[ns], &format!("{path}/x")));
            assert_eq!(seen, receivers, "{path} of {from}");
            made[from].umount(ROOT, path, SYNC).unwrap();
        }
    }
    assert_eq!(made[0].tie(&[(old[0].root().unwrap(), Ties::default())]), Err(Error::NotHere));
}
