//! Syncs beside limits: SY-R1 to SY-R10, by a clock that is set. What threads may do to each other is in `schedules_sync`.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test ends with the first thing that is wrong")]

extern crate watertight_writeback as writeback;

#[allow(dead_code, reason = "the lab uses the rest")]
#[path = "../../lab/src/sync/model.rs"]
mod model;

use std::sync::Arc;
use std::time::Duration;

use model::{File, Model, at};
use sync::Mutex;
use writeback::{Caller, CgroupPath, Owner, Passed, Policy};

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);
/// What the store writes in a second.
const STORE: u64 = 256 * MIB;

/// A store on which `/slow` may write 1 MiB a second, and has `bytes` to be written.
fn slow(bytes: u64) -> (Model, Owner, Arc<File>) {
    let model = Model::new(STORE);
    let slow = model.cgroup(1, Owner::ROOT, "slow");
    model.cgroup(2, Owner::ROOT, "other");
    model.limit("/slow", "wbps=1M");
    let file = model.file(slow, bytes);
    (model, slow, file)
}

fn is_near(time: Duration, seconds: f64) -> bool {
    (time.as_secs_f64() / seconds - 1.0).abs() < 0.02
}

#[test]
fn sy_r1_vanilla_takes_dirty_divided_by_the_limit() {
    let (model, ..) = slow(64 * MIB);
    let took = model.sync("/other", Policy::Vanilla);
    assert!(is_near(took, 64.0), "{took:?}");
}

#[test]
fn a_boosted_sync_takes_what_the_store_takes() {
    let (model, ..) = slow(64 * MIB);
    let took = model.sync("/other", Policy::Boost);
    assert!(is_near(took, 0.25), "{took:?}");
}

#[test]
fn sy_r2_a_cgroups_own_sync_stays_throttled() {
    for policy in [Policy::Boost, Policy::Isolated] {
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
    let outer = model.bdi.begin_sync(&first, Policy::Boost);
    let inner = model.bdi.begin_sync(&second, Policy::Boost);
    assert_eq!(group.boosts(), 2);
    drop(outer);
    assert_eq!(group.boosts(), 1, "one still waits");
    assert!(model.finish(&inner, &mut |_| panic!("it is boosted")));
    drop(inner);
    assert_eq!(group.boosts(), 0);
    let file = model.file(Owner(1), MIB);
    assert_eq!(model.flush(&file), Passed::Held);
}

#[test]
fn sy_r4_a_boost_touches_only_the_device_waited_on() {
    let (model, slow, _) = slow(8 * MIB);
    let other = Model::on(&model.store.clock, &model.switcher, STORE);
    other.limit("/slow", "wbps=1M");
    let elsewhere = other.file(slow, 8 * MIB);
    let waiter = at("/other");
    let _boosted = model.bdi.begin_sync(&waiter, Policy::Boost);
    assert_eq!(other.flush(&elsewhere), Passed::Held);
    assert!(elsewhere.dirty_bytes() > 7 * MIB);
}

/// Somebody who may be moved to another cgroup.
struct Task(Mutex<CgroupPath>);

impl Caller for Task {
    fn cgroup(&self) -> CgroupPath {
        self.0.lock().clone()
    }
}

#[test]
fn sy_r5_a_waiter_that_changes_cgroup_leaves_no_boost_behind() {
    let (model, ..) = slow(MIB);
    let group = Arc::clone(&model.bdi.throttle().chain(&at("/slow")).groups()[0]);
    let task = Task(Mutex::new(at("/other")));
    let syncing = model.bdi.begin_sync(&task, Policy::Boost);
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
    let queued = model.bdi.begin_fsync(&own, Policy::Boost, &file);
    let waiter = at("/other");
    let mut boost = None;
    let begun = model.now();
    // The owner's own fsync comes to its limit; then somebody else syncs.
    assert!(model.finish(&queued, &mut |until| {
        assert!(boost.is_none(), "it sleeps until {until:?} though it is boosted");
        boost = Some(model.bdi.begin_sync(&waiter, Policy::Boost));
        Some(model.now())
    }));
    assert!(boost.is_some(), "it came to its limit");
    assert!(model.now() - begun < SECOND / 10);
    assert_eq!(model.written(slow, Duration::ZERO, model.now()), 8 * MIB);
}

#[test]
fn sy_r7_a_looping_sync_does_not_raise_the_average_over_the_limit() {
    let (model, slow, file) = slow(0);
    // What the cgroup may have dirty; what it owes counts as dirty still.
    let room = 4 * MIB;
    let begun = model.now();
    while model.now() < begun + 60 * SECOND {
        let chain = model.bdi.chain_of(&file).unwrap();
        let used = file.dirty_bytes() + model.bdi.throttle().owed(&chain);
        model.write(&file, slow, room.saturating_sub(used).min(64 << 10));
        model.sync("/other", Policy::Boost);
        model.store.clock.advance(Duration::from_millis(10));
    }
    let written = model.written(slow, begun, model.now());
    assert!((60 * MIB..65 * MIB).contains(&written), "{written}: a minute's bytes and the room");
    // And by its own means, afterwards, nothing until the debt is paid.
    let after = model.now();
    model.write(&file, slow, MIB);
    model.flush_for(&[Arc::clone(&file)], 3 * SECOND);
    assert_eq!(model.written(slow, after, model.now()), 0);
}

#[test]
fn sy_r7_a_boost_covers_only_what_was_dirty_when_the_sync_began() {
    let (model, slow, file) = slow(MIB);
    let waiter = at("/other");
    let syncing = model.bdi.begin_sync(&waiter, Policy::Boost);
    model.write(&file, slow, 8 * MIB);
    assert!(model.finish(&syncing, &mut |_| panic!("it is boosted")));
    assert_eq!(file.dirty_bytes(), 8 * MIB);
    // While the token is there: neither a flusher nor the owner's own later fsync goes on.
    assert_eq!(model.flush(&file), Passed::Held);
    let own = at("/slow");
    let later = model.bdi.begin_fsync(&own, Policy::Boost, &file);
    assert!(!model.finish(&later, &mut |_| None), "it has to wait");
}

#[test]
fn sy_r8_different_means_neither_the_same_nor_a_descendant_of_the_throttled_one() {
    for (waiter, is_boosted) in
        [("/slow", false), ("/slow/child", false), ("/slower", true), ("/", true), ("/other", true)]
    {
        let (model, ..) = slow(2 * MIB);
        let took = model.sync(waiter, Policy::Boost);
        assert_eq!(took < SECOND, is_boosted, "{waiter} {took:?}");
    }
    // A limit within a limit: the waiter is under the outer one only.
    let (model, slow, _) = slow(0);
    model.cgroup(3, slow, "inner");
    model.limit("/slow/inner", "wbps=64K");
    let _file = model.file(Owner(3), 2 * MIB);
    let took = model.sync("/slow/sibling", Policy::Boost);
    assert!(is_near(took, 2.0), "at the outer limit: {took:?}");
}

#[test]
fn sy_r9_isolation_follows_ownership() {
    let (model, _, file) = slow(2 * MIB);
    assert_eq!(model.sync("/other", Policy::Isolated), Duration::ZERO);
    assert_eq!(file.dirty_bytes(), 2 * MIB);
    assert!(model.bdi.switch_to(&file, Owner(2)));
    model.switcher.flush();
    assert_eq!(model.sync("/slow", Policy::Isolated), Duration::ZERO, "not its own any more");
    assert!(model.sync("/other", Policy::Isolated) > Duration::ZERO);
    assert_eq!(file.dirty_bytes(), 0);
}

#[test]
fn isolation_covers_those_below() {
    let (model, slow, _) = slow(0);
    model.cgroup(3, slow, "child");
    let file = model.file(Owner(3), MIB);
    model.sync("/other", Policy::Isolated);
    assert_eq!(file.dirty_bytes(), MIB);
    model.sync("/slow", Policy::Isolated);
    assert_eq!(file.dirty_bytes(), 0);
}

#[test]
fn sy_r10_a_sync_ends_though_files_are_dirtied_again() {
    let (model, slow, file) = slow(4 * MIB);
    let own = at("/slow");
    let syncing = model.bdi.begin_sync(&own, Policy::Vanilla);
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
    let syncing = model.bdi.begin_fsync(&waiter, Policy::Isolated, &file);
    assert_eq!(model.flush(&neighbour), Passed::Held);
    assert!(model.finish(&syncing, &mut |_| panic!("it is boosted")));
    assert_eq!(file.dirty_bytes(), 0);
    assert!(neighbour.dirty_bytes() > 7 * MIB);
}

#[test]
fn a_limit_is_set_before_there_is_a_cgroup_and_changed_while_it_writes() {
    let model = Model::new(STORE);
    model.limit("/late", "wbps=1M");
    let late = model.cgroup(7, Owner::ROOT, "late");
    let file = model.file(late, 64 * MIB);
    let files = [Arc::clone(&file)];
    model.flush_for(&files, 4 * SECOND);
    assert!(64 * MIB - file.dirty_bytes() < 5 * MIB);
    model.limit("/late", "wbps=8M");
    let before = file.dirty_bytes();
    model.flush_for(&files, 2 * SECOND);
    assert!((15 * MIB..18 * MIB).contains(&(before - file.dirty_bytes())));
    model.limit("/late", "wbps=max");
    assert_eq!(model.flush(&file), Passed::All);
}
