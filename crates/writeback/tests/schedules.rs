//! Switching under shuttle: the product's own engine, under random schedules and under schedules
//! with few switches.
//!
//! | requirement | test | mutants |
//! |---|---|---|
//! | WB-R1, WB-R2 | [`wb_r1_an_unmount_beside_switches`] | `switch-unpin-before-put` |
//! | WB-R2 | [`wb_r2_who_comes_second_gives_the_pin_back`] | `switch-failed-kept` |
//! | WB-R1 (`base` is caught without help) | [`wb_r1_base_is_caught`] | it is one |
//! | WB-R6 | [`wb_r6_rmbarrier_is_right_with_direct_queueing`], [`wb_r6_rmbarrier_is_caught_with_deferred_queueing`] | it is one |
//! | WB-R1 (`race` asks whether any switch is in flight) | [`wb_r1_race_is_right`] | `switch-counted-late` |
//! | WB-R8 | [`wb_r8_switching_keeps_the_sums`] | `switch-no-grace` |
//! | WB-R8 in a drain | [`a_drain_waits_for_the_grace_period_of_what_it_moves`] | `switch-drain-no-grace` |
//! | a sync misses no inode that moves | [`a_sync_finds_what_moves`] | `sync-beside-switch` |
//! | a removed cgroup's inodes are found at its parent | [`inodes_of_a_removed_cgroup_are_its_parents`] | |
//! | an inode is listed with its wb, not with one that had its index before | [`an_index_that_is_given_again_misleads_nobody`] | `wb-index-reused` |
//! | an inode that goes after the unmount finds its wb, whose cgroup was removed | [`a_wb_stays_until_its_evicted_inodes_go`] | `wb-evicted-unattached` |
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-writeback --test schedules`
#![cfg(shuttle)]

extern crate watertight_writeback as writeback;

mod common;

use std::sync::Arc;

use cgroups::CgroupId;
use common::variants::{Base, PersbFifo, Race, RmBarrier};
use common::{A, B, CHILD, File, Rig};
use sync::model::{check, check_wrong};
use sync::{mutant, thread};
use writeback::{Bdi, DrainStrategy, Inode, PerSuperblock};

fn switcher(bdi: &Arc<Bdi<File>>, file: Arc<File>, to: CgroupId) -> thread::JoinHandle<()> {
    let bdi = Arc::clone(bdi);
    thread::spawn(move || {
        bdi.switch_to(&file, to);
    })
}

/// Both sources of switches, on two inodes, one of which two cgroups want.
fn unmount_beside_switches(strategy: impl DrainStrategy) {
    let rig = Rig::new(strategy);
    let (foreign, dying) = (rig.file(A), rig.file(CHILD));
    let threads =
        [switcher(&rig.bdi, Arc::clone(&foreign), B), switcher(&rig.bdi, foreign, CgroupId::ROOT), {
            let rig = rig.switcher.clone();
            thread::spawn(move || {
                rig.remove_cgroup(CHILD);
                drop(dying);
            })
        }];
    rig.unmount(|| threads.into_iter().for_each(|thread| thread.join().expect("no assertion failed")));
    rig.switcher.flush();
    rig.switcher.domain().barrier();
    rig.switcher.flush();
    // Workers outlive the panic of an inode that outlives its superblock; the schedule decides
    // which of these comes first.
    let late = (rig.bdi.status().panics, rig.switcher.stats().panics, rig.bdi.touched_late());
    assert_eq!(late, (0, 0, 0), "busy inodes after unmount: one outlived it, or was touched");
    rig.check_after();
}

/// WB-R1, WB-R2: an unmount beside switches of both kinds leaves no busy inode and no pin.
#[test]
fn wb_r1_an_unmount_beside_switches() {
    check(|| unmount_beside_switches(PerSuperblock));
}

/// WB-R8: an inode that a drain moves, or a worker does, waits for its grace period as well: bytes
/// are counted meanwhile.
#[test]
fn a_drain_waits_for_the_grace_period_of_what_it_moves() {
    check(|| {
        let rig = Rig::new(PerSuperblock);
        let file = rig.file(A);
        let accounts = {
            let (bdi, file) = (Arc::clone(&rig.bdi), Arc::clone(&file));
            thread::spawn(move || bdi.account(&file, 4096, 0))
        };
        rig.bdi.switch_to(&file, B);
        rig.bdi.drain();
        assert!(!file.inode_wb().is_switching(), "a switch is under way after the drain");
        accounts.join().expect("no assertion failed");
        rig.check_sums(&[Arc::clone(&file)]);
        drop(file);
        rig.unmount(|| ());
        rig.switcher.flush();
        rig.check_after();
    });
}

/// WB-R2: of two threads that switch one inode, the second gives its pin back.
#[test]
fn wb_r2_who_comes_second_gives_the_pin_back() {
    check(|| {
        let rig = Rig::new(PerSuperblock);
        let file = rig.file(A);
        let other = switcher(&rig.bdi, Arc::clone(&file), B);
        rig.bdi.switch_to(&file, B);
        other.join().expect("no assertion failed");
        rig.switcher.flush();
        rig.check_after();
    });
}

#[test]
fn wb_r1_persb_fifo_is_right() {
    check(|| unmount_beside_switches(PersbFifo));
}

/// WB-R1: `race`, the lab's way that asks whether any switch is in flight, leaves no busy inode
/// either. `base`, and `rmbarrier` with deferred queueing, do.
#[test]
fn wb_r1_race_is_right() {
    check(|| unmount_beside_switches(Race::default()));
}

/// WB-R1: `base`, a way of the lab that is wrong, leaves busy inodes.
#[test]
#[should_panic(expected = "busy inodes after unmount")]
fn wb_r1_base_is_caught() {
    check_wrong(|| unmount_beside_switches(Base::default()));
}

#[test]
fn wb_r6_rmbarrier_is_right_with_direct_queueing() {
    check(|| unmount_beside_switches(RmBarrier::default()));
}

/// WB-R6: so does `rmbarrier`, where switches are queued later.
#[test]
#[should_panic(expected = "busy inodes after unmount")]
fn wb_r6_rmbarrier_is_caught_with_deferred_queueing() {
    check_wrong(|| unmount_beside_switches(RmBarrier { is_deferred: true, ..RmBarrier::default() }));
}

/// Pages are dirtied and written while their inodes move, two of them to the same wb.
fn sums() {
    let rig = Rig::new(PerSuperblock);
    let files = [rig.file(A), rig.file(A)];
    let mut threads = Vec::new();
    for file in &files {
        threads.push(switcher(&rig.bdi, Arc::clone(file), B));
        let (bdi, file) = (Arc::clone(&rig.bdi), Arc::clone(file));
        threads.push(thread::spawn(move || {
            for (dirty, writeback) in [(4096, 0), (0, 4096), (8192, 0)] {
                bdi.account(&file, dirty, writeback);
            }
        }));
    }
    for thread in threads {
        thread.join().expect("no assertion failed");
    }
    rig.switcher.flush();
    rig.check_sums(&files);
    assert!(files.iter().all(|file| rig.bdi.owner_of(file) == Some(B) && !file.inode_wb().is_switching()));
}

/// WB-R8: the sums of all owners are those of their inodes' pages, which are dirtied and written
/// while the inodes move.
#[test]
fn wb_r8_switching_keeps_the_sums() {
    check(sums);
}

/// A sync finds a dirty inode that moves, once.
#[test]
fn a_sync_finds_what_moves() {
    check(|| {
        let rig = Rig::new(PerSuperblock);
        let file = rig.file(A);
        rig.bdi.mark_dirty(Arc::clone(&file), A);
        let moves = switcher(&rig.bdi, Arc::clone(&file), B);
        assert_eq!(rig.bdi.snapshot().len(), 1, "a sync missed a dirty inode");
        moves.join().expect("no assertion failed");
        assert_eq!(rig.bdi.snapshot().len(), 1, "a dirty inode is on two lists, or on none");
        drop(file);
        rig.unmount(|| ());
    });
}

#[test]
fn inodes_of_a_removed_cgroup_are_its_parents() {
    check(|| {
        let rig = Rig::new(PerSuperblock);
        let files = [rig.file(CHILD), rig.file(CHILD)];
        let removal = {
            let switcher = Arc::clone(&rig.switcher);
            thread::spawn(move || switcher.remove_cgroup(CHILD))
        };
        let late = rig.file(CHILD);
        removal.join().expect("no assertion failed");
        // A switch to a wb that dies meanwhile queues another clean-up.
        for _ in 0..3 {
            rig.switcher.flush();
        }
        for file in files.iter().chain([&late]) {
            assert!(
                matches!(rig.bdi.owner_of(file), Some(A | CgroupId::ROOT)),
                "{:?}",
                rig.bdi.owner_of(file)
            );
        }
        let wbs = rig.bdi.status().wbs;
        assert!(!wbs.iter().any(|wb| wb.owner == CHILD), "the wb was not given back: {wbs:?}");
    });
}

/// An inode is listed with its wb, not with one that had its index before.
#[test]
fn an_index_that_is_given_again_misleads_nobody() {
    check(|| {
        let rig = Rig::new(PerSuperblock);
        let file = rig.file(CHILD);
        let writer = {
            let (bdi, file) = (Arc::clone(&rig.bdi), Arc::clone(&file));
            thread::spawn(move || bdi.mark_dirty(file, B))
        };
        // To the parent; the child's index becomes that of `B`, which gets the inode.
        rig.bdi.switch_to(&file, A);
        rig.switcher.flush();
        rig.switcher.remove_cgroup(CHILD);
        rig.switcher.flush();
        rig.bdi.switch_to(&file, B);
        rig.switcher.flush();
        writer.join().expect("no assertion failed");
        assert_eq!(rig.bdi.snapshot().len(), 1, "a dirty inode is listed where nobody looks");
        drop(file);
        rig.unmount(|| ());
    });
}

/// An inode that goes after the unmount finds its wb, whose cgroup was removed: else it would look
/// for it for ever.
#[test]
fn a_wb_stays_until_its_evicted_inodes_go() {
    check(|| {
        let rig = Rig::new(PerSuperblock);
        let (clean, dirty) = (rig.file(CHILD), rig.file(CHILD));
        rig.bdi.mark_dirty(Arc::clone(&dirty), CHILD);
        rig.bdi.drain();
        let removal = {
            let switcher = Arc::clone(&rig.switcher);
            thread::spawn(move || switcher.remove_cgroup(CHILD))
        };
        assert_eq!(rig.bdi.evict(), 0, "busy inodes after unmount");
        removal.join().expect("no assertion failed");
        let has_wb = || {
            rig.switcher.flush();
            rig.bdi.status().wbs.iter().any(|wb| wb.owner == CHILD)
        };
        for file in [clean, dirty] {
            assert!(has_wb(), "an inode's wb is gone");
            // Too late: it is not listed any more.
            rig.bdi.mark_dirty(file, CHILD);
        }
        assert!(!has_wb(), "the wb was not given back");
        assert_eq!(rig.bdi.snapshot().len(), 0, "an inode that was taken off for good is dirty");
    });
}

#[test]
fn each_mutant_is_caught() {
    let test = "wb_r1_an_unmount_beside_switches";
    mutant::assert_caught(test, &["switch-unpin-before-put"], "outlived its superblock");
    let test = "wb_r2_who_comes_second_gives_the_pin_back";
    mutant::assert_caught(test, &["switch-failed-kept"], "a pin is left");
    mutant::assert_caught("wb_r8_switching_keeps_the_sums", &["switch-no-grace"], "the bytes of");
    let test = "a_drain_waits_for_the_grace_period_of_what_it_moves";
    mutant::assert_caught(test, &["switch-drain-no-grace"], "the bytes of");
    mutant::assert_caught("wb_r1_race_is_right", &["switch-counted-late"], "busy inodes after unmount");
    mutant::assert_caught("a_sync_finds_what_moves", &["sync-beside-switch"], "a sync missed");
    let test = "an_index_that_is_given_again_misleads_nobody";
    mutant::assert_caught(test, &["wb-index-reused"], "listed where nobody looks");
    let test = "a_wb_stays_until_its_evicted_inodes_go";
    mutant::assert_caught(test, &["wb-evicted-unattached"], "an inode's wb is gone");
}
