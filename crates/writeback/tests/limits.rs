//! Syncs beside limits: SY-R1 to SY-R10, by a clock that is set. Interleavings of threads are
//! tested in `schedules_sync`.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test ends with the first thing that is wrong")]

extern crate watertight_writeback as writeback;

#[allow(dead_code, reason = "each of the two tests uses a part of it")]
mod model;

use std::sync::Arc;
use std::time::Duration;

use cgroups::CgroupId;
use model::{File, Model, at};
use sync::Mutex;
use throttle::{CgroupPath, Completion, Direction, Grant, Request};
use writeback::{SyncCaller, SyncPolicy};

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);
/// The bytes that the store writes in a second.
const STORE: u64 = 256 * MIB;

/// A store on which `/slow` may write 1 MiB a second, and has `bytes` to be written.
fn slow(bytes: u64) -> (Model, CgroupId, Arc<File>) {
    let model = Model::new(STORE);
    let slow = model.cgroup(1, CgroupId::ROOT, "slow");
    model.cgroup(2, CgroupId::ROOT, "other");
    model.limit("/slow", "wbps=1M");
    let file = model.file(slow, bytes);
    (model, slow, file)
}

fn request() -> Request {
    Request { direction: Direction::Write, bytes: 0, operations: 1, epoch: u64::MAX, inode: 0 }
}

/// The owner's fsync of a new page; returns how long it took.
fn own_fsync(model: &Model, owner: CgroupId, path: &str) -> Duration {
    let file = model.file(owner, 4096);
    let (begun, own) = (model.now(), at(path));
    let syncing = model.bdi.begin_fsync(&own, SyncPolicy::Boost, &file);
    assert!(model.finish(&syncing, &mut Some));
    model.now() - begun
}

fn is_near(time: Duration, seconds: f64) -> bool {
    (time.as_secs_f64() / seconds - 1.0).abs() < 0.02
}

#[test]
fn sy_r1_vanilla_takes_dirty_divided_by_the_limit() {
    let (model, ..) = slow(64 * MIB);
    let took = model.sync("/other", SyncPolicy::Vanilla);
    assert!(is_near(took, 64.0), "{took:?}");
}

#[test]
fn a_boosted_sync_takes_what_the_store_takes() {
    let (model, ..) = slow(64 * MIB);
    let took = model.sync("/other", SyncPolicy::Boost);
    assert!(is_near(took, 0.25), "{took:?}");
}

#[test]
fn sy_r2_a_cgroups_own_sync_stays_throttled() {
    for policy in [SyncPolicy::Boost, SyncPolicy::Isolated] {
        let (model, ..) = slow(8 * MIB);
        let took = model.sync("/slow", policy);
        assert!(is_near(took, 8.0), "{policy:?} {took:?}");
    }
}

#[test]
fn sy_r3_throttling_resumes_when_the_last_waiter_leaves() {
    let (model, ..) = slow(8 * MIB);
    let group = Arc::clone(&model.bdi.throttle().chain(&at("/slow")).groups()[0]);
    let (first, second) = (at("/other"), at("/another"));
    let outer = model.bdi.begin_sync(&first, SyncPolicy::Boost);
    let inner = model.bdi.begin_sync(&second, SyncPolicy::Boost);
    assert_eq!(group.boosts(), 2);
    drop(outer);
    assert_eq!(group.boosts(), 1, "one still waits");
    assert!(model.finish(&inner, &mut |_| panic!("it is boosted")));
    drop(inner);
    assert_eq!(group.boosts(), 0);
    let file = model.file(CgroupId(1), MIB);
    assert_eq!(model.flush(&file), Completion::Throttled);
}

#[test]
fn sy_r4_a_boost_touches_only_the_device_waited_on() {
    let (model, slow, _) = slow(8 * MIB);
    let other = Model::on(&model.store.clock, &model.switcher, STORE);
    other.limit("/slow", "wbps=1M");
    let elsewhere = other.file(slow, 8 * MIB);
    let waiter = at("/other");
    let _boosted = model.bdi.begin_sync(&waiter, SyncPolicy::Boost);
    assert_eq!(other.flush(&elsewhere), Completion::Throttled);
    assert!(elsewhere.dirty_bytes() > 7 * MIB);
}

/// A task that may be moved to another cgroup.
struct Task(Mutex<CgroupPath>);

impl SyncCaller for Task {
    fn cgroup(&self) -> CgroupPath {
        self.0.lock().clone()
    }
}

#[test]
fn sy_r5_a_waiter_that_changes_cgroup_leaves_no_boost_behind() {
    let (model, ..) = slow(MIB);
    let group = Arc::clone(&model.bdi.throttle().chain(&at("/slow")).groups()[0]);
    let task = Task(Mutex::new(at("/other")));
    let syncing = model.bdi.begin_sync(&task, SyncPolicy::Boost);
    assert_eq!(group.boosts(), 1);
    *task.0.lock() = at("/slow/within");
    assert!(model.finish(&syncing, &mut |_| panic!("it is boosted to its end")));
    drop(syncing);
    assert_eq!(group.boosts(), 0);
}

#[test]
fn sy_r6_a_boost_releases_what_is_queued_at_once() {
    let (model, slow, file) = slow(8 * MIB);
    let own = at("/slow");
    let queued = model.bdi.begin_fsync(&own, SyncPolicy::Boost, &file);
    let waiter = at("/other");
    let mut boost = None;
    let begun = model.now();
    // The owner's own fsync comes to its limit; then another cgroup syncs.
    assert!(model.finish(&queued, &mut |until| {
        assert!(boost.is_none(), "it sleeps until {until:?} though it is boosted");
        boost = Some(model.bdi.begin_sync(&waiter, SyncPolicy::Boost));
        Some(model.now())
    }));
    assert!(boost.is_some(), "it came to its limit");
    assert!(model.now() - begun < SECOND / 10);
    assert_eq!(model.written(slow, Duration::ZERO, model.now()), 8 * MIB);
}

#[test]
fn sy_r7_a_looping_sync_does_not_raise_the_average_over_the_limit() {
    let (model, slow, file) = slow(0);
    // The bytes that the cgroup may have dirty; what it owes counts as dirty still.
    let room = 4 * MIB;
    let begun = model.now();
    while model.now() < begun + 60 * SECOND {
        let chain = model.bdi.chain_of(&file).unwrap();
        let used = file.dirty_bytes() + model.bdi.throttle().owed(&chain);
        model.write(&file, slow, room.saturating_sub(used).min(64 << 10));
        model.sync("/other", SyncPolicy::Boost);
        model.store.clock.advance(Duration::from_millis(10));
    }
    let written = model.written(slow, begun, model.now());
    assert!((60 * MIB..65 * MIB).contains(&written), "{written}: a minute's bytes and the room");
    // Afterwards its own write-back writes nothing until the debt is paid.
    let after = model.now();
    model.write(&file, slow, MIB);
    model.flush_for(&[Arc::clone(&file)], 3 * SECOND);
    assert_eq!(model.written(slow, after, model.now()), 0);
}

/// An fsync pays its own bytes and as much of the debt; background work pays the rest.
#[test]
fn a_debt_makes_the_owners_own_fsync_twice_as_long_at_most() {
    for limits in [&["/p/slow"][..], &["/p"], &["/p", "/p/slow"]] {
        let (model, path) = (Model::new(STORE), "/p/slow");
        let parent = model.cgroup(1, CgroupId::ROOT, "p");
        let slow = model.cgroup(2, parent, "slow");
        limits.iter().for_each(|path| model.limit(path, "wbps=256K"));
        // Without a pause, so that none begins with unused time.
        let mean = || {
            let times: Vec<_> = (0..200).map(|_| own_fsync(&model, slow, path)).collect();
            times[100..].iter().sum::<Duration>() / 100
        };
        let before = mean();
        assert!(is_near(before, 1.0 / 64.0), "{limits:?} {before:?}");
        let _boosted = model.file(slow, 12 * MIB);
        model.sync("/other", SyncPolicy::Boost);
        let after = mean();
        assert!(after <= before * 2, "{limits:?} {after:?}, {before:?} before");
        // The background waits.
        let file = model.file(slow, MIB);
        model.flush_for(&[Arc::clone(&file)], SECOND);
        assert_eq!(file.dirty_bytes(), MIB, "{limits:?}");
    }
}

/// Over a minute that begins with another cgroup's sync a cgroup gets what its limit allows,
/// whether it only writes, only calls fsync, or both.
#[test]
fn what_was_boosted_is_paid_within_the_minute() {
    for (writes, fsyncs) in [(true, false), (false, true), (true, true)] {
        let (model, slow, boosted) = slow(12 * MIB);
        let (begun, file) = (model.now(), model.file(slow, 0));
        model.sync("/other", SyncPolicy::Boost);
        assert_eq!(boosted.dirty_bytes(), 0);
        while model.now() < begun + 60 * SECOND {
            if writes && file.dirty_bytes() == 0 {
                model.write(&file, slow, MIB);
            }
            if fsyncs {
                own_fsync(&model, slow, "/slow");
            }
            let _as_far_as_it_may = model.flush(&file);
            if !fsyncs {
                model.store.clock.advance(Duration::from_millis(1));
            }
        }
        let written = model.written(slow, begun, begun + 60 * SECOND);
        let minute = 60 * MIB;
        assert!((minute * 95 / 100..minute * 105 / 100).contains(&written), "{writes} {fsyncs} {written}");
    }
}

/// Two cgroups that work together: one dirties as much as it may and calls fsync, in cgroups that
/// come and go below its limit; the other syncs for it.
#[test]
fn nobody_gains_by_having_others_sync() {
    for (comes_and_goes, fsyncs) in [(false, true), (true, false), (true, true)] {
        let (model, slow, _) = slow(0);
        let room = 4 * MIB;
        let begun = model.now();
        let (mut number, mut owner) = (100, slow);
        while model.now() < begun + 60 * SECOND {
            if comes_and_goes {
                if owner != slow {
                    model.switcher.remove_cgroup(owner);
                }
                number += 1;
                owner = model.cgroup(number, slow, &format!("c{number}"));
            }
            let file = model.file(owner, 0);
            // As a write(2): in pages, until it would have to wait.
            while model.bdi.owes_until(&file, 64 << 10, room).is_none() && file.dirty_bytes() < room {
                model.write(&file, owner, 64 << 10);
            }
            model.sync("/other", SyncPolicy::Boost);
            if fsyncs {
                for _ in 0..4 {
                    own_fsync(&model, owner, "/slow");
                }
            }
            model.store.clock.advance(Duration::from_millis(10));
        }
        let all = model.written_by_all();
        assert!(all <= 60 * MIB * 105 / 100 + room, "{comes_and_goes} {fsyncs}: {all}");
    }
}

/// Waiters behind a place that is given up move up, except by the time that can no longer be used.
#[test]
fn places_behind_one_that_is_given_up_move_up() {
    let (model, _, file) = slow(0);
    let throttle = model.bdi.throttle();
    let chain = model.bdi.chain_of(&file).unwrap();
    let place = |bytes| throttle.reserve(&chain, Request { bytes, ..request() });
    let waits = |reservation: &throttle::Reservation<'_>| match reservation.grant() {
        Grant::NotBefore(time) => (time - model.now()).as_millis(),
        _ => 0,
    };
    let (first, second, third) = (place(8 * MIB), place(8 * MIB), place(MIB));
    assert_eq!([&first, &second, &third].map(waits), [0, 7988, 15_988]);
    // Killed before its turn.
    drop(second);
    assert_eq!([&first, &third].map(waits), [0, 7988]);
    // The first is killed in the midst of its own: the rest of its time is the third's.
    model.store.clock.advance(SECOND);
    drop(first);
    assert_eq!(waits(&third), 0);
    let fourth = place(MIB);
    assert_eq!(waits(&fourth), 988, "the time that went by is nobody's");
    third.commit(MIB / 2, 1);
    assert_eq!(waits(&fourth), 488, "nor does it wait for what was asked for in vain");
    drop(fourth);
    assert_eq!(waits(&place(1)), 488);
}

/// The debts that a place was to pay are owed again, by their owners: else the waiters behind it
/// would wait for that.
#[test]
fn a_place_that_is_given_up_beside_a_debt_leaves_both_as_they_were() {
    let (model, ..) = slow(12 * MIB);
    model.sync("/other", SyncPolicy::Boost);
    let throttle = model.bdi.throttle();
    let chain = throttle.chain(&at("/slow"));
    let owed = throttle.owed(&chain);
    let piece = Request { bytes: 8192, ..request() };
    let waits = |reservation: &throttle::Reservation<'_>| match reservation.grant() {
        Grant::NotBefore(time) => (time - model.now()).as_millis(),
        _ => 0,
    };
    let killed: Vec<_> = (0..1000).map(|_| throttle.reserve(&chain, piece)).collect();
    let behind = throttle.reserve(&chain, piece);
    assert!(waits(&behind) > 15_000, "twice 7.8 s");
    drop(killed);
    assert_eq!(waits(&behind), 0);
    drop(behind);
    let left = throttle.owed(&chain);
    assert!(owed.abs_diff(left) < 4096, "{owed}, then {left}");
    // A request that is half done pays half.
    throttle.reserve(&chain, Request { bytes: MIB, ..request() }).commit(MIB / 2, 1);
    assert_eq!(waits(&throttle.reserve(&chain, piece)), 988);
    let left = throttle.owed(&chain) as i64 - owed as i64;
    assert!((left - MIB as i64 / 2).abs() < 8192, "{left}");
}

/// A limit that was taken away and set again counts anew: reservations from before mean nothing to
/// it.
#[test]
fn a_place_at_a_limit_that_was_set_anew_gives_nothing_back() {
    let (model, _, file) = slow(0);
    model.limit("/slow", "wbps=1M wiops=1000");
    let throttle = model.bdi.throttle();
    let place = |bytes| throttle.reserve(&model.bdi.chain_of(&file).unwrap(), Request { bytes, ..request() });
    let before = place(8 * MIB);
    model.limit("/slow", "wbps=max wiops=1000");
    model.limit("/slow", "wbps=1M wiops=1000");
    let (first, second) = (place(8 * MIB), place(MIB));
    let turn = second.grant();
    assert!(matches!(turn, Grant::NotBefore(_)));
    drop(before);
    assert_eq!(second.grant(), turn);
    drop((first, second));
}

#[test]
fn sy_r7_a_boost_covers_only_what_was_dirty_when_the_sync_began() {
    let (model, slow, file) = slow(MIB);
    let waiter = at("/other");
    let syncing = model.bdi.begin_sync(&waiter, SyncPolicy::Boost);
    model.write(&file, slow, 8 * MIB);
    assert!(model.finish(&syncing, &mut |_| panic!("it is boosted")));
    assert_eq!(file.dirty_bytes(), 8 * MIB);
    // While the token is there, neither a flusher nor the owner's own later fsync goes on.
    assert_eq!(model.flush(&file), Completion::Throttled);
    let own = at("/slow");
    let later = model.bdi.begin_fsync(&own, SyncPolicy::Boost, &file);
    assert!(!model.finish(&later, &mut |_| None), "it has to wait");
}

#[test]
fn sy_r8_different_means_neither_the_same_nor_a_descendant_of_the_throttled_one() {
    for (waiter, is_boosted) in
        [("/slow", false), ("/slow/child", false), ("/slower", true), ("/", true), ("/other", true)]
    {
        let (model, ..) = slow(2 * MIB);
        let took = model.sync(waiter, SyncPolicy::Boost);
        assert_eq!(took < SECOND, is_boosted, "{waiter} {took:?}");
    }
    // A limit within a limit: the waiter is under the outer one only.
    let (model, slow, _) = slow(0);
    model.cgroup(3, slow, "inner");
    model.limit("/slow/inner", "wbps=64K");
    let _file = model.file(CgroupId(3), 2 * MIB);
    let took = model.sync("/slow/sibling", SyncPolicy::Boost);
    assert!(is_near(took, 2.0), "at the outer limit: {took:?}");
}

#[test]
fn sy_r9_isolation_follows_ownership() {
    let (model, _, file) = slow(2 * MIB);
    assert_eq!(model.sync("/other", SyncPolicy::Isolated), Duration::ZERO);
    assert_eq!(file.dirty_bytes(), 2 * MIB);
    assert!(model.bdi.switch_to(&file, CgroupId(2)));
    model.switcher.flush();
    assert_eq!(model.sync("/slow", SyncPolicy::Isolated), Duration::ZERO, "not its own any more");
    assert!(model.sync("/other", SyncPolicy::Isolated) > Duration::ZERO);
    assert_eq!(file.dirty_bytes(), 0);
}

#[test]
fn isolation_covers_those_below() {
    let (model, slow, _) = slow(0);
    model.cgroup(3, slow, "child");
    let file = model.file(CgroupId(3), MIB);
    model.sync("/other", SyncPolicy::Isolated);
    assert_eq!(file.dirty_bytes(), MIB);
    model.sync("/slow", SyncPolicy::Isolated);
    assert_eq!(file.dirty_bytes(), 0);
}

#[test]
fn sy_r10_a_sync_ends_though_files_are_dirtied_again() {
    let (model, slow, file) = slow(4 * MIB);
    let own = at("/slow");
    let syncing = model.bdi.begin_sync(&own, SyncPolicy::Vanilla);
    let begun = model.now();
    // Sixteen times as fast as it is written.
    assert!(model.finish(&syncing, &mut |until| {
        model.write(&file, slow, 128 << 10);
        Some(until)
    }));
    assert!(is_near(model.now() - begun, 4.0));
    assert!(file.dirty_bytes() > 32 * MIB);
}

#[test]
fn an_fsync_writes_the_whole_file_whoever_dirtied_it_and_boosts_nothing_else() {
    let (model, slow, file) = slow(8 * MIB);
    let neighbour = model.file(slow, 8 * MIB);
    let waiter = at("/other");
    let syncing = model.bdi.begin_fsync(&waiter, SyncPolicy::Isolated, &file);
    assert_eq!(model.flush(&neighbour), Completion::Throttled);
    assert!(model.finish(&syncing, &mut |_| panic!("it is boosted")));
    assert_eq!(file.dirty_bytes(), 0);
    assert!(neighbour.dirty_bytes() > 7 * MIB);
}

#[test]
fn a_limit_is_set_before_there_is_a_cgroup_and_changed_while_it_writes() {
    let model = Model::new(STORE);
    model.limit("/late", "wbps=1M");
    let late = model.cgroup(7, CgroupId::ROOT, "late");
    let file = model.file(late, 64 * MIB);
    let files = [Arc::clone(&file)];
    model.flush_for(&files, 4 * SECOND);
    assert!(64 * MIB - file.dirty_bytes() < 5 * MIB);
    model.limit("/late", "wbps=8M");
    let before = file.dirty_bytes();
    model.flush_for(&files, 2 * SECOND);
    assert!((15 * MIB..18 * MIB).contains(&(before - file.dirty_bytes())));
    model.limit("/late", "wbps=max");
    assert_eq!(model.flush(&file), Completion::Done);
}

#[test]
fn another_cgroups_limit_releases_nobody() {
    for policy in [SyncPolicy::Vanilla, SyncPolicy::Boost] {
        let (model, ..) = slow(8 * MIB);
        let own = at("/slow");
        let syncing = model.bdi.begin_sync(&own, policy);
        let begun = model.now();
        let mut changes = 0;
        assert!(model.finish(&syncing, &mut |until| {
            changes += 1;
            model.limit("/other", &format!("wbps={}", 1 + changes % 2));
            Some(until)
        }));
        assert!(changes > 0 && is_near(model.now() - begun, 8.0), "{:?}", model.now() - begun);
    }
}

#[test]
fn a_limit_that_is_set_while_a_sync_waits_holds_for_its_next_piece_and_a_boosted_one_passes_it() {
    for (waiter, seconds) in [("/slow/within", 16.0), ("/other", 4.0)] {
        let (model, slow, _) = slow(0);
        model.cgroup(3, slow, "within");
        model.limit("/", "wbps=2M");
        let _file = model.file(CgroupId(3), 8 * MIB);
        let waiter = at(waiter);
        let syncing = model.bdi.begin_sync(&waiter, SyncPolicy::Boost);
        let begun = model.now();
        let mut is_set = false;
        assert!(model.finish(&syncing, &mut |until| {
            if !std::mem::replace(&mut is_set, true) {
                // A limit that did not exist when the sync began.
                model.limit("/slow/within", "wbps=512K");
            }
            Some(until)
        }));
        assert!(is_near(model.now() - begun, seconds), "{waiter:?} {:?}", model.now() - begun);
    }
}

#[test]
fn what_is_boosted_or_owed_goes_in_whole_requests() {
    // 8 KiB at a time would be 1024 calls, of a second.
    let call = Duration::from_millis(1);
    let model = Model::with_calls(STORE, call);
    let slow = model.cgroup(1, CgroupId::ROOT, "slow");
    model.limit("/slow", "wbps=1M");
    let _file = model.file(slow, 8 * MIB);
    let took = model.sync("/other", SyncPolicy::Boost);
    assert!(took < Duration::from_millis(50), "{took:?}: eight calls, and 8 MiB at 256 MiB a second");
}

#[test]
fn who_waits_takes_no_more_room_than_it_has_to_write() {
    let model = Model::new(STORE);
    let slow = model.cgroup(1, CgroupId::ROOT, "slow");
    model.limit("/slow", "wbps=64M");
    // A piece is 512 KiB; each of these has a page.
    let files: Vec<_> = (0..64).map(|_| model.file(slow, 4096)).collect();
    let chain = model.bdi.chain_of(&files[0]).unwrap();
    let first = Request { bytes: 64 * MIB, ..request() };
    let _a_seconds_place = model.bdi.throttle().reserve(&chain, first);
    let own = at("/slow");
    let mut last = Duration::ZERO;
    let syncs: Vec<_> =
        files.iter().map(|file| model.bdi.begin_fsync(&own, SyncPolicy::Boost, file)).collect();
    // All of them wait at once: each begins to, and is given up only when all others have.
    fn cond_synchronize<'a>(model: &Model, syncs: &[writeback::Syncing<'a, File>], last: &mut Duration) {
        let Some((first, rest)) = syncs.split_first() else { return };
        model.finish(first, &mut |until| {
            *last = until.max(*last);
            cond_synchronize(model, rest, last);
            None
        });
    }
    cond_synchronize(&model, &syncs, &mut last);
    let queue = last - model.now();
    assert!(queue < SECOND + Duration::from_millis(10), "{queue:?}: a second, and 64 pages");
}

#[test]
fn a_boost_follows_what_it_is_for_to_another_owner() {
    for policy in [SyncPolicy::Boost, SyncPolicy::Isolated] {
        let (model, slow, spent) = slow(MIB);
        // Used up.
        model.bdi.charge(&spent, 8 * MIB);
        model.cgroup(4, CgroupId::ROOT, "free");
        let (file, waiter) = (model.file(CgroupId(4), 8 * MIB), at("/free"));
        let syncing = model.bdi.begin_sync(&waiter, policy);
        assert!(model.bdi.switch_to(&file, slow));
        model.switcher.flush();
        model.write(&file, slow, MIB);
        assert!(model.finish(&syncing, &mut |_| panic!("{policy:?}: it is boosted wherever it is")));
        assert_eq!(file.dirty_bytes(), MIB, "but not what was dirtied since");
        let chain = model.bdi.chain_of(&file).unwrap();
        assert!(model.bdi.throttle().owed(&chain) > 15 * MIB, "its owner owes it");
        assert_eq!(model.flush(&file), Completion::Throttled);
        drop(syncing);
        assert_eq!(model.bdi.throttle().chain(&at("/slow")).groups()[0].boosts(), 0);
    }
}

#[test]
fn a_childs_debt_is_paid_by_half_of_its_parents_limit_while_a_sibling_uses_the_rest() {
    let model = Model::new(STORE);
    let parent = model.cgroup(1, CgroupId::ROOT, "p");
    let (boosted, sibling) = (model.cgroup(2, parent, "a"), model.cgroup(3, parent, "b"));
    model.limit("/p", "wbps=1M");
    let _file = model.file(boosted, 10 * MIB);
    model.sync("/other", SyncPolicy::Boost);
    let begun = model.now();
    let busy = [model.file(sibling, 64 * MIB), model.file(boosted, 64 * MIB)];
    let within = |from: u64, to: u64, owner| {
        let at = |second: u64| begun + SECOND * u32::try_from(second).unwrap();
        model.written(owner, at(from), at(to))
    };
    model.flush_for(&busy[..1], 10 * SECOND);
    let got = within(0, 10, sibling);
    assert!((5 * MIB * 98 / 100..5 * MIB * 102 / 100).contains(&got), "{got}: half, at once");
    // Both want more; the debt is paid after twenty seconds.
    model.flush_for(&busy, 30 * SECOND);
    assert_eq!(within(0, 19, boosted), 0);
    let all = 10 * MIB + within(0, 40, boosted) + within(0, 40, sibling);
    assert!((39 * MIB..41 * MIB).contains(&all), "{all}: what the limit lets go in forty seconds");
    // Without other writers the debt takes all of it.
    let model = Model::new(STORE);
    let parent = model.cgroup(1, CgroupId::ROOT, "p");
    let boosted = model.cgroup(2, parent, "a");
    model.limit("/p", "wbps=1M");
    let file = model.file(boosted, 10 * MIB);
    model.sync("/other", SyncPolicy::Boost);
    model.write(&file, boosted, MIB);
    model.flush_for(&[Arc::clone(&file)], 9 * SECOND);
    assert_eq!(file.dirty_bytes(), MIB);
    model.flush_for(&[Arc::clone(&file)], 2 * SECOND);
    assert_eq!(file.dirty_bytes(), 0);
}

#[test]
fn what_a_removed_cgroup_owes_is_owed_by_who_comes_after_it() {
    let model = Model::new(STORE);
    let parent = model.cgroup(1, CgroupId::ROOT, "p");
    let (inner, sibling) = (model.cgroup(2, parent, "a"), model.cgroup(3, parent, "b"));
    let leaf = model.cgroup(4, inner, "leaf");
    model.limit("/p", "wbps=1M");
    let file = model.file(leaf, 10 * MIB);
    model.sync("/other", SyncPolicy::Boost);
    let owed = |path: &str| model.bdi.throttle().owed(&model.bdi.throttle().chain(&at(path))) / MIB;
    assert_eq!((owed("/p/a/leaf"), owed("/p/a"), owed("/p/b")), (9, 0, 0));
    drop(file);
    model.switcher.remove_cgroup(leaf);
    assert_eq!((owed("/p/a"), owed("/p/b")), (9, 0));
    model.switcher.remove_cgroup(inner);
    assert_eq!(owed("/p/b"), 9, "nobody is left who owes it: else it would be a way round the limit");
    let _ = sibling;
}
