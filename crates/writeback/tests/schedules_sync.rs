//! Syncs and limits under shuttle: the product's own engine, under random schedules and under
//! schedules with few switches.
//!
//! | requirement | test | mutants |
//! |---|---|---|
//! | SY-R5 | [`sy_r5_a_waiter_that_changes_cgroup`] | `boost-by-current-cgroup` |
//! | SY-R6 | [`sy_r6_who_is_queued_hears_of_a_boost`] | `boost-no-kick` |
//! | places that are given up | [`who_waits_hears_that_a_place_before_it_was_given_up`] | `moving-up-without-kick`, `kick-before-moving-up` |
//! | SY-R7 | [`sy_r7_a_boost_beside_new_data`] | `boost-unbounded` |
//! | SY-R9, SY-R10 | [`sy_r10_an_isolated_sync_beside_a_switch`] | `isolation-forgets-switched` |
//! | SY-R9, SY-R10 | [`sy_r10_an_isolated_sync_beside_a_switch_among_its_own`] | `isolation-looks-once` |
//! | SY-R10 | [`sy_r10_concurrent_syncs_beside_a_writer`] | |
//! | the boost's bound | [`a_boost_follows_what_changes_its_owner`] | `boost-not-extended` |
//! | dirty limits | [`a_switch_wakes_who_waits_at_a_dirty_limit`] | `switch-tells-nobody` |
//! | dirty limits | [`room_that_is_given_up_wakes_who_waits_for_it`] | `dirty-reserved-silent` |
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-writeback --test schedules_sync`
#![cfg(shuttle)]

extern crate watertight_writeback as writeback;

#[allow(dead_code, reason = "each of the two tests uses a part of it")]
mod model;

use std::sync::Arc;

use cgroups::CgroupId;
use model::{File, Model, at};
use sync::model::check;
use sync::{Condvar, Mutex, mutant, thread};
use throttle::{CgroupPath, Direction, Request};
use writeback::{Balance, SyncCaller, SyncPolicy, Waiter};

const SLOW: CgroupId = CgroupId(1);
const OTHER: CgroupId = CgroupId(2);

/// A file of `/slow`, which has used up its limit: without a boost it goes on only when the clock
/// does.
fn held() -> (Arc<Model>, Arc<File>) {
    let model = Model::new(1 << 30);
    model.cgroup(SLOW.0, CgroupId::ROOT, "slow");
    model.cgroup(OTHER.0, CgroupId::ROOT, "other");
    model.limit("/slow", "wbps=1M");
    let chain = model.bdi.throttle().chain(&at("/slow"));
    model.bdi.throttle().reserve(&chain, a_second()).commit(1 << 20, 1);
    let file = model.file(SLOW, 8192);
    (Arc::new(model), file)
}

/// The bytes that `/slow` may write in a second.
fn a_second() -> Request {
    Request { direction: Direction::Write, bytes: 1 << 20, operations: 1, epoch: u64::MAX, inode: 0 }
}

fn boosts(model: &Model) -> usize {
    model.bdi.throttle().chain(&at("/slow")).groups()[0].boosts()
}

/// SY-R6: a boost wakes a thread that waits for a limit.
#[test]
fn sy_r6_who_is_queued_hears_of_a_boost() {
    check(|| {
        let (model, file) = held();
        let own = at("/slow");
        let queued = {
            let (model, file) = (Arc::clone(&model), Arc::clone(&file));
            let syncing = model.bdi.begin_fsync(&own, SyncPolicy::Boost, &file).epoch();
            thread::spawn(move || model.write_until_kicked(&file, syncing))
        };
        let waiter = at("/other");
        let boost = model.bdi.begin_sync(&waiter, SyncPolicy::Boost);
        // It ends though only it writes, and the clock stands still: else this is a deadlock.
        queued.join().expect("no assertion failed");
        assert_eq!(file.dirty_bytes(), 0);
        drop(boost);
        assert_eq!(boosts(&model), 0);
    });
}

/// A thread that waits for a limit is woken when a place before it in the queue is given up.
#[test]
fn who_waits_hears_that_a_place_before_it_was_given_up() {
    check(|| {
        let model = Model::new(1 << 30);
        model.cgroup(SLOW.0, CgroupId::ROOT, "slow");
        model.limit("/slow", "wbps=1M");
        let (file, model) = (model.file(SLOW, 8192), Arc::new(model));
        let chain = model.bdi.throttle().chain(&at("/slow"));
        let first = model.bdi.throttle().reserve(&chain, a_second());
        let behind = {
            let (model, file) = (Arc::clone(&model), Arc::clone(&file));
            thread::spawn(move || model.write_until_kicked(&file, u64::MAX))
        };
        // Killed: it does nothing, and only it was in the way.
        drop(first);
        behind.join().expect("no assertion failed");
        assert_eq!(file.dirty_bytes(), 0);
    });
}

struct Task(Mutex<CgroupPath>);

impl SyncCaller for Task {
    fn cgroup(&self) -> CgroupPath {
        self.0.lock().clone()
    }
}

/// SY-R5: a boost is taken back from the cgroup that got it, though the waiter changes its cgroup.
#[test]
fn sy_r5_a_waiter_that_changes_cgroup() {
    check(|| {
        let (model, _file) = held();
        let task = Arc::new(Task(Mutex::new(at("/other"))));
        let moves = {
            let task = Arc::clone(&task);
            thread::spawn(move || *task.0.lock() = at("/slow"))
        };
        drop(model.bdi.begin_sync(&*task, SyncPolicy::Boost));
        moves.join().expect("no assertion failed");
        assert_eq!(boosts(&model), 0, "a boost was left behind");
    });
}

/// SY-R7: a boost covers what was dirty when its sync began, and nothing that came later.
#[test]
fn sy_r7_a_boost_beside_new_data() {
    check(|| {
        let (model, file) = held();
        let own = at("/slow");
        let waiter = at("/other");
        let boost = model.bdi.begin_sync(&waiter, SyncPolicy::Boost);
        let writes = {
            let (model, file) = (Arc::clone(&model), Arc::clone(&file));
            thread::spawn(move || {
                model.write(&file, SLOW, 4096);
            })
        };
        assert!(model.finish(&boost, &mut |_| panic!("it is boosted")));
        writes.join().expect("no assertion failed");
        // It began after the token, as its data did: the token is still there, but not for this.
        let later = model.bdi.begin_fsync(&own, SyncPolicy::Boost, &file);
        assert!(!model.finish(&later, &mut |_| None), "a boost without bounds");
        drop((later, boost));
    });
}

/// SY-R9, SY-R10: an isolated sync finds an inode that is on its way to its cgroup.
#[test]
fn sy_r10_an_isolated_sync_beside_a_switch() {
    check(|| {
        let (model, file) = held();
        // On its way, or there: its move goes on beside this thread.
        assert!(model.bdi.switch_to(&file, OTHER));
        let caller = at("/other");
        let syncing = model.bdi.begin_sync(&caller, SyncPolicy::Isolated);
        assert_eq!(syncing.inodes().len(), 1, "a sync missed an inode that is switching");
        drop(syncing);
        model.switcher.flush();
        assert_eq!(model.bdi.begin_sync(&caller, SyncPolicy::Isolated).inodes().len(), 1);
        assert_eq!(model.bdi.begin_sync(&at("/slow"), SyncPolicy::Isolated).inodes().len(), 0);
        drop(file);
        model.bdi.drain();
        model.bdi.evict();
    });
}

/// SY-R9, SY-R10: an isolated sync finds an inode that moves from one to another of the wbs it
/// looks at.
#[test]
fn sy_r10_an_isolated_sync_beside_a_switch_among_its_own() {
    check(|| {
        let model = Arc::new(Model::new(1 << 30));
        model.cgroup(SLOW.0, CgroupId::ROOT, "slow");
        model.cgroup(OTHER.0, SLOW, "within");
        // So that the target wb is checked first.
        let first = model.file(SLOW, 0);
        let file = model.file(OTHER, 4096);
        let moves = {
            let (model, file) = (Arc::clone(&model), Arc::clone(&file));
            thread::spawn(move || {
                assert!(model.bdi.switch_to(&file, SLOW));
                model.switcher.flush();
            })
        };
        let caller = at("/slow");
        let syncing = model.bdi.begin_sync(&caller, SyncPolicy::Isolated);
        assert_eq!(syncing.inodes().len(), 1, "a sync missed an inode that is switching");
        drop(syncing);
        moves.join().expect("no assertion failed");
        drop((first, file));
        model.bdi.drain();
        model.bdi.evict();
    });
}

#[test]
fn sy_r10_concurrent_syncs_beside_a_writer() {
    check(|| {
        let (model, file) = held();
        let mut threads: Vec<thread::JoinHandle<()>> = Vec::new();
        for waiter in ["/other", "/", "/third"] {
            let model = Arc::clone(&model);
            threads.push(thread::spawn(move || {
                let waiter = at(waiter);
                let syncing = model.bdi.begin_sync(&waiter, SyncPolicy::Boost);
                assert!(model.finish(&syncing, &mut |_| panic!("it is boosted")));
            }));
        }
        for _ in 0..4 {
            model.write(&file, SLOW, 4096);
        }
        for thread in threads {
            thread.join().expect("no assertion failed");
        }
        assert_eq!(boosts(&model), 0);
        model.sync("/other", SyncPolicy::Boost);
        assert_eq!(file.dirty_bytes(), 0);
    });
}

/// A boost covers what was dirty when its sync began, also what changes its owner meanwhile.
#[test]
fn a_boost_follows_what_changes_its_owner() {
    check(|| {
        let (model, spent) = held();
        // No data of the limited cgroup is dirty when the sync begins: it has no token.
        model.sync("/other", SyncPolicy::Boost);
        let file = model.file(OTHER, 8192);
        let waiter = at("/other");
        let syncing = model.bdi.begin_sync(&waiter, SyncPolicy::Boost);
        let moves = {
            let (model, file) = (Arc::clone(&model), Arc::clone(&file));
            thread::spawn(move || {
                assert!(model.bdi.switch_to(&file, SLOW));
                model.switcher.flush();
            })
        };
        assert!(model.finish(&syncing, &mut |_| panic!("the boost was lost")));
        drop(syncing);
        moves.join().expect("no assertion failed");
        assert_eq!(boosts(&model), 0);
        drop((spent, file));
        model.bdi.drain();
        model.bdi.evict();
    });
}

/// Waits as a writer does until its owner may have a page more. If no thread wakes it, it waits for
/// ever: a deadlock.
fn wait_for_room(model: &Arc<Model>, file: &Arc<File>) {
    let woken = Arc::new((Mutex::new(false), Condvar::new()));
    let wakes = Arc::clone(&woken);
    let wake = move || {
        *wakes.0.lock() = true;
        wakes.1.notify_all();
    };
    let may_go = {
        let (model, file) = (Arc::clone(model), Arc::clone(file));
        move |promised, _| model.bdi.has_room(&file, 1, promised)
    };
    let (may_go, wake) = (Box::new(may_go), Box::new(wake));
    let queued = model.budget.queue(1, Waiter { pages: 1, held: Arc::default(), may_go, wake });
    let find = || (model.bdi.balance(file, 1) != Balance::Blocked).then_some(());
    while queued.look(1, find).is_none() {
        let mut is_woken = woken.0.lock();
        while !std::mem::take(&mut *is_woken) {
            woken.1.wait(&mut is_woken);
        }
    }
}

/// Room that a writer gives up wakes another one that waits at a dirty limit.
#[test]
fn room_that_is_given_up_wakes_who_waits_for_it() {
    check(|| {
        let model = Arc::new(Model::new(1 << 30));
        model.cgroup(SLOW.0, CgroupId::ROOT, "slow");
        model.bdi.set_dirty_max(&at("/slow"), Some(8192));
        let file = model.file(SLOW, 0);
        // The room of a writer whose data is written before it gives that room up.
        let (said, reserved) = model.bdi.reserve(&file, 2);
        assert!(said != Balance::Blocked && model.bdi.is_at_dirty_limit(&file, 1));
        let waits = {
            let (model, file) = (Arc::clone(&model), Arc::clone(&file));
            thread::spawn(move || wait_for_room(&model, &file))
        };
        drop(reserved);
        waits.join().expect("no assertion failed");
        drop(file);
        model.bdi.drain();
        model.bdi.evict();
    });
}

/// A switch that makes room wakes a writer that waits at a dirty limit.
#[test]
fn a_switch_wakes_who_waits_at_a_dirty_limit() {
    check(|| {
        let model = Arc::new(Model::new(1 << 30));
        model.cgroup(SLOW.0, CgroupId::ROOT, "slow");
        model.cgroup(OTHER.0, CgroupId::ROOT, "other");
        model.bdi.set_dirty_max(&at("/slow"), Some(8192));
        let (full, file) = (model.file(SLOW, 0), model.file(SLOW, 0));
        model.bdi.account(&full, 8192, 0);
        assert_eq!(model.bdi.balance(&file, 1), Balance::Blocked);
        let waits = {
            let (model, file) = (Arc::clone(&model), Arc::clone(&file));
            thread::spawn(move || wait_for_room(&model, &file))
        };
        assert!(model.bdi.switch_to(&full, OTHER));
        model.switcher.flush();
        waits.join().expect("no assertion failed");
        drop((full, file));
        model.bdi.drain();
        model.bdi.evict();
    });
}

#[test]
fn each_mutant_is_caught() {
    let test = "a_boost_follows_what_changes_its_owner";
    mutant::assert_caught(test, &["boost-not-extended"], "the boost was lost");
    mutant::assert_caught("a_switch_wakes_who_waits_at_a_dirty_limit", &["switch-tells-nobody"], "deadlock");
    let test = "room_that_is_given_up_wakes_who_waits_for_it";
    mutant::assert_caught(test, &["dirty-reserved-silent"], "deadlock");
    let test = "who_waits_hears_that_a_place_before_it_was_given_up";
    mutant::assert_caught(test, &["moving-up-without-kick"], "deadlock");
    mutant::assert_caught(test, &["kick-before-moving-up"], "deadlock");
    mutant::assert_caught("sy_r6_who_is_queued_hears_of_a_boost", &["boost-no-kick"], "deadlock");
    let test = "sy_r5_a_waiter_that_changes_cgroup";
    mutant::assert_caught(test, &["boost-by-current-cgroup"], "a boost was left behind");
    mutant::assert_caught("sy_r7_a_boost_beside_new_data", &["boost-unbounded"], "a boost without bounds");
    let test = "sy_r10_an_isolated_sync_beside_a_switch";
    mutant::assert_caught(test, &["isolation-forgets-switched"], "a sync missed an inode");
    let test = "sy_r10_an_isolated_sync_beside_a_switch_among_its_own";
    mutant::assert_caught(test, &["isolation-looks-once"], "a sync missed an inode");
}
