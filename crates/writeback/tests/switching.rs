//! Switching on the real engine: real threads, grace periods and callbacks. The tests show which
//! inodes move when, and name the requirements that they cover.
#![cfg(not(any(loom, shuttle)))]

extern crate watertight_writeback as writeback;

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use cgroups::CgroupId;
use common::variants::{Base, DelayPoint, PersbFifo, Race, RmBarrier};
use common::{A, B, CHILD, File, Rig};
use sync::Mutex;
use throttle::CgroupPath;
use writeback::{
    BATCH, Balance, Domain, Drain, DrainStrategy, IN_FLIGHT_MAX, Inode as _, LeftToWorkers, OwnSwitches,
    PerSuperblock, SharedState, Switcher,
};

/// 4 KiB written by `by`, and written back.
fn write(rig: &Rig, file: &Arc<File>, by: CgroupId, bytes: u64) {
    rig.bdi.note_write(file, by, bytes);
    // As fast as the first estimate.
    let took = Duration::from_micros(bytes / 4096 * 1_000_000 / 25_600);
    rig.bdi.end_round(file, bytes, took);
}

fn owner_after(rig: &Rig, file: &Arc<File>) -> Option<CgroupId> {
    rig.switcher.flush();
    rig.bdi.owner_of(file)
}

#[test]
fn of_short_synchronous_writes_the_ninth_foreign_one_moves_the_inode() {
    let rig = Rig::new(PerSuperblock);
    let file = rig.file(A);
    for number in 1..=8 {
        write(&rig, &file, B, 4096);
        assert_eq!(owner_after(&rig, &file), Some(A), "write {number}");
    }
    write(&rig, &file, B, 4096);
    assert_eq!(owner_after(&rig, &file), Some(B));
    // Its history begins anew.
    write(&rig, &file, A, 4096);
    assert_eq!(owner_after(&rig, &file), Some(B));
}

#[test]
fn two_long_foreign_rounds_move_the_inode() {
    let rig = Rig::new(PerSuperblock);
    let file = rig.file(A);
    write(&rig, &file, B, 100 << 20);
    assert_eq!(owner_after(&rig, &file), Some(A));
    write(&rig, &file, B, 100 << 20);
    assert_eq!(owner_after(&rig, &file), Some(B));
}

#[test]
fn bytes_of_a_removed_cgroup_do_not_count() {
    let rig = Rig::new(PerSuperblock);
    let file = rig.file(A);
    rig.switcher.remove_cgroup(B);
    for _ in 0..20 {
        write(&rig, &file, B, 4096);
    }
    assert_eq!(owner_after(&rig, &file), Some(A));
}

#[test]
fn a_dying_owner_whose_cgroup_lives_on_gets_its_inode_back_at_once() {
    let rig = Rig::new(PerSuperblock);
    let file = rig.file(CHILD);
    rig.bdi.mark_dirty(Arc::clone(&file), CHILD);
    rig.bdi.account(&file, 4096, 0);
    rig.switcher.remove_cgroup(CHILD);
    rig.switcher.flush();
    rig.switcher.cgroups().add(CHILD, A);
    assert_eq!(rig.bdi.status().wbs.iter().filter(|wb| wb.owner == CHILD && wb.is_dying).count(), 1);
    write(&rig, &file, CHILD, 4096);
    rig.switcher.flush();
    let wbs = rig.bdi.status().wbs;
    let owns: Vec<_> = wbs.iter().filter(|wb| wb.owned > 0).map(|wb| (wb.owner, wb.is_dying)).collect();
    assert_eq!(owns, [(CHILD, false)]);
}

#[test]
fn the_inodes_of_a_removed_cgroup_go_to_the_nearest_ancestor_that_lives_in_batches() {
    let rig = Rig::new(PerSuperblock);
    let files: Vec<_> = (0..2 * BATCH + 1).map(|_| rig.file(CHILD)).collect();
    for file in &files {
        rig.bdi.account(file, 4096, 8192);
    }
    rig.switcher.remove_cgroup(CHILD);
    rig.switcher.flush();
    assert!(files.iter().all(|file| rig.bdi.owner_of(file) == Some(A)));
    rig.check_sums(&files);
    rig.switcher.remove_cgroup(A);
    rig.switcher.flush();
    assert!(files.iter().all(|file| rig.bdi.owner_of(file) == Some(CgroupId::ROOT)));
    rig.check_sums(&files);
    let wbs = rig.bdi.status().wbs;
    assert_eq!(wbs.len(), 1, "wbs of removed cgroups are given back: {wbs:?}");
    assert_eq!(wbs[0].switched, files.len() as u64);
}

#[test]
fn a_dirty_inode_of_a_removed_cgroup_moves_when_it_has_been_written() {
    let switcher = Arc::new(Switcher::default());
    switcher.cgroups().add(A, CgroupId::ROOT);
    let rig = Rig::with_flushers(&switcher, 1);
    let (dirty, clean) = (rig.file(A), rig.file(A));
    rig.bdi.mark_dirty(Arc::clone(&dirty), A);
    rig.bdi.account(&dirty, 4096, 0);
    switcher.remove_cgroup(A);
    switcher.flush();
    assert_eq!(rig.bdi.owner_of(&clean), Some(CgroupId::ROOT));
    assert_eq!(rig.bdi.owner_of(&dirty), Some(A), "its data is still the removed cgroup's");
    rig.clock.advance(Duration::from_secs(6));
    rig.bdi.start_background();
    while rig.bdi.owner_of(&dirty) == Some(A) {
        thread::yield_now();
        switcher.flush();
    }
    assert_eq!(rig.bdi.owner_of(&dirty), Some(CgroupId::ROOT));
    rig.bdi.stop(std::time::Instant::now() + Duration::from_secs(600));
}

#[test]
fn what_was_synced_leaves_a_removed_cgroup_with_that_sync_and_no_flusher() {
    let rig = Rig::new(PerSuperblock);
    // Written before the removal, and after it: both are still listed for a flusher that never
    // comes.
    let files = [rig.file(CHILD), rig.file(CHILD)];
    let sync = |file: &Arc<File>| {
        rig.bdi.account(file, 0, 0);
        rig.bdi.end_round(file, 4096, Duration::from_micros(100));
    };
    for file in &files {
        rig.bdi.mark_dirty(Arc::clone(file), CHILD);
        rig.bdi.account(file, 4096, 0);
    }
    sync(&files[0]);
    rig.switcher.remove_cgroup(CHILD);
    assert_eq!([0, 1].map(|at| owner_after(&rig, &files[at])), [Some(A), Some(CHILD)]);
    sync(&files[1]);
    assert_eq!(owner_after(&rig, &files[1]), Some(A));
    let wbs = rig.bdi.status().wbs;
    assert!(!wbs.iter().any(|wb| wb.owner == CHILD), "the wb was not given back: {wbs:?}");
}

#[test]
fn a_removed_owners_own_bytes_do_not_count() {
    let rig = Rig::new(PerSuperblock);
    let file = rig.file(CHILD);
    rig.bdi.mark_dirty(Arc::clone(&file), CHILD);
    rig.bdi.account(&file, 4096, 0);
    rig.switcher.remove_cgroup(CHILD);
    // In each round the removed owner wrote more; only the remaining writers count.
    for number in 1..=9 {
        assert_eq!(owner_after(&rig, &file), Some(CHILD), "before round {number}");
        rig.bdi.note_write(&file, CHILD, 8192);
        write(&rig, &file, B, 4096);
    }
    assert_eq!(owner_after(&rig, &file), Some(B));
}

#[test]
fn a_page_that_was_begun_counts_for_the_bandwidth() {
    let rig = Rig::new(PerSuperblock);
    let file = rig.file(A);
    let round = |by| {
        rig.bdi.note_write(&file, by, 100);
        rig.bdi.end_round(&file, 100, Duration::from_micros(10));
    };
    // If begun pages were dropped, a device that writes 100 000 of them a second would seem to
    // write next to none, and a round of one page would seem long: the fifth foreign round would
    // win.
    (0..200).for_each(|_| round(A));
    for number in 1..=8 {
        round(B);
        assert_eq!(owner_after(&rig, &file), Some(A), "round {number}");
    }
    round(B);
    assert_eq!(owner_after(&rig, &file), Some(B));
}

#[test]
fn a_cgroup_made_again_under_its_number_has_a_wb_of_its_own() {
    let rig = Rig::new(PerSuperblock);
    let old = rig.file(CHILD);
    rig.bdi.mark_dirty(Arc::clone(&old), CHILD);
    rig.bdi.account(&old, 4096, 0);
    rig.switcher.remove_cgroup(CHILD);
    rig.switcher.cgroups().add(CHILD, B);
    let new = rig.file(CHILD);
    let mut wbs = rig.bdi.status().wbs;
    wbs.retain(|wb| wb.owner == CHILD);
    wbs.sort_by_key(|wb| wb.is_dying);
    assert_eq!(wbs.iter().map(|wb| (wb.is_dying, wb.owned)).collect::<Vec<_>>(), [(false, 1), (true, 1)]);
    // The end of the new one concerns its parent, not the old one.
    rig.switcher.remove_cgroup(CHILD);
    assert_eq!(owner_after(&rig, &new), Some(B));
}

#[test]
fn limits_follow_the_paths_of_cgroups() {
    let rig = Rig::new(PerSuperblock);
    let file = rig.file(CHILD);
    let path = |text: &str| text.parse::<CgroupPath>().expect("a path");
    // One page is there, and that is all that the limit allows.
    rig.bdi.account(&file, 4096, 0);
    rig.bdi.set_dirty_max(&path("/1"), Some(4096));
    assert_eq!(rig.bdi.balance(&file, 1), Balance::Blocked, "the limit of the cgroup above holds");
    rig.switcher.rename_cgroup(A, "other".as_ref());
    assert_eq!(rig.bdi.balance(&file, 1), Balance::Freerun);
    rig.bdi.set_dirty_max(&path("/other/3"), Some(4096));
    assert_eq!(rig.bdi.balance(&file, 1), Balance::Blocked);
    // A neighbour's data does not count for it.
    let neighbour = rig.file(B);
    rig.bdi.account(&neighbour, 1 << 20, 0);
    assert_eq!(rig.bdi.balance(&neighbour, 1), Balance::Freerun);
    // Under the limit again, it may go on.
    rig.bdi.account(&file, 0, 0);
    assert_eq!(rig.bdi.balance(&file, 1), Balance::Freerun);
}

#[test]
fn an_inode_that_goes_leaves_its_wb() {
    let rig = Rig::new(PerSuperblock);
    let file = rig.file(A);
    rig.bdi.account(&file, 4096, 0);
    drop(file);
    let status = rig.bdi.status();
    let wb = status.wbs.iter().find(|wb| wb.owner == A).expect("the wb stays");
    assert_eq!((wb.owned, wb.dirty), (0, 0));
}

#[test]
fn a_removed_cgroups_wb_goes_with_its_last_inode_however_that_goes() {
    let rig = Rig::new(PerSuperblock);
    // Unlinked when it was dirty: it is never written back, and so never moved.
    let file = rig.file(CHILD);
    rig.bdi.mark_dirty(Arc::clone(&file), CHILD);
    rig.bdi.account(&file, 4096, 0);
    rig.switcher.remove_cgroup(CHILD);
    rig.switcher.flush();
    rig.bdi.account(&file, 0, 0);
    assert!(rig.bdi.del_dirty(&file));
    assert_eq!(rig.bdi.owner_of(&file), Some(CHILD));
    drop(file);
    let wbs = rig.bdi.status().wbs;
    assert!(!wbs.iter().any(|wb| wb.owner == CHILD), "the wb was not given back: {wbs:?}");
}

/// Devices that share a switcher; switchers of both kinds at each, and unmounts beside them.
fn stress(strategy: impl DrainStrategy) {
    let seconds = std::env::var("STRESS_SECONDS").ok().and_then(|value| value.parse().ok());
    let until = std::time::Instant::now() + Duration::from_secs(seconds.unwrap_or(1));
    let base = Rig::new(strategy);
    let next = Mutex::new(100);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while std::time::Instant::now() < until {
                    one_life(&base.switcher, {
                        let mut next = next.lock();
                        *next += 1;
                        *next
                    });
                }
            });
        }
    });
    base.switcher.flush();
    assert_eq!(base.switcher.stats().in_flight, 0);
}

/// Mounts, switches in all ways, unmounts while that goes on.
fn one_life(switcher: &Arc<Switcher>, number: u64) {
    let rig = Rig::on(switcher);
    let ours = switcher.cgroups().add(CgroupId(number), A).id();
    let (wake_fitting, told) = channel();
    let user = {
        let (bdi, switcher) = (Arc::clone(&rig.bdi), Arc::clone(switcher));
        let files: Vec<_> = (0..20).map(|_| rig.file(ours)).collect();
        thread::spawn(move || {
            for (n, file) in files.iter().enumerate() {
                bdi.account(file, 4096 * n as u64, 4096);
                bdi.switch_to(file, if n % 3 == 0 { B } else { CgroupId::ROOT });
                if n == 10 {
                    switcher.remove_cgroup(ours);
                    wake_fitting.send(()).expect("the test waits");
                }
            }
        })
    };
    told.recv().expect("the user comes so far");
    rig.unmount(|| user.join().expect("no assertion failed"));
    switcher.flush();
    assert_eq!(rig.bdi.touched_late(), 0);
    let status = rig.bdi.status();
    assert_eq!((status.switches_in_flight, status.panics, switcher.stats().panics), (0, 0, 0));
}

#[test]
fn wb_r1_stress_persb() {
    stress(PerSuperblock);
}

#[test]
fn wb_r1_stress_persb_fifo() {
    stress(PersbFifo);
}

#[test]
fn wb_r1_stress_race() {
    stress(Race::default());
}

#[test]
fn wb_r1_stress_rmbarrier_with_direct_queueing() {
    stress(RmBarrier::default());
}

/// Unmounts while a switcher stands between prepare and queue; returns how many inodes were busy.
fn unmount_in_between(make: impl FnOnce(DelayPoint) -> Box<dyn DrainStrategy>) -> usize {
    let (reach, reached) = channel();
    let (go_on, going_on) = channel::<()>();
    let (reach, going_on) = (Mutex::new(reach), Mutex::new(going_on));
    let delay_point = DelayPoint::new(move || {
        reach.lock().send(()).expect("the test waits");
        // An error: the test has gone on.
        let _end = going_on.lock().recv();
    });
    let switcher = Arc::new(Switcher::new(Domain::default(), make(delay_point)));
    switcher.cgroups().add(B, CgroupId::ROOT);
    let rig = Rig::on(&switcher);
    let file = rig.file(CgroupId::ROOT);
    let switch = {
        let bdi = Arc::clone(&rig.bdi);
        thread::spawn(move || assert!(bdi.switch_to(&file, B)))
    };
    reached.recv().expect("the switcher comes so far");
    let is_drained = Arc::new(AtomicBool::new(false));
    let drain = {
        let (bdi, is_drained) = (Arc::clone(&rig.bdi), Arc::clone(&is_drained));
        thread::spawn(move || {
            bdi.drain();
            is_drained.store(true, Ordering::SeqCst);
            bdi.evict()
        })
    };
    // A wrong strategy returns soon; a right one must not until the switcher goes on.
    let patience = std::time::Instant::now() + Duration::from_millis(200);
    while !is_drained.load(Ordering::SeqCst) && std::time::Instant::now() < patience {
        thread::sleep(Duration::from_millis(1));
    }
    if is_drained.load(Ordering::SeqCst) {
        let busy = drain.join().expect("no assertion failed");
        drop(go_on);
        switch.join().expect("no assertion failed");
        switcher.flush();
        return busy;
    }
    drop(go_on);
    switch.join().expect("no assertion failed");
    let busy = drain.join().expect("no assertion failed");
    switcher.flush();
    assert_eq!(rig.bdi.touched_late(), 0);
    busy
}

#[test]
fn wb_r1_base_has_busy_inodes_after_unmount() {
    let busy = unmount_in_between(|delay_point| Box::new(Base { delay_point }));
    assert_eq!(busy, 1, "the race of base was not seen");
}

#[test]
fn wb_r1_race_waits_for_who_stands_in_between() {
    assert_eq!(unmount_in_between(|delay_point| Box::new(Race { delay_point })), 0);
    let rmbarrier = |delay_point| Box::new(RmBarrier { delay_point, is_deferred: false }) as _;
    assert_eq!(unmount_in_between(rmbarrier), 0);
}

/// `persb` with a switcher that pauses between prepare and queue.
#[derive(Debug)]
struct Slow(DelayPoint);

impl DrainStrategy for Slow {
    fn pin(&self, superblock: &Drain) -> Result<Option<writeback::SbPin>, writeback::Unmounting> {
        PerSuperblock.pin(superblock)
    }

    fn delay_point(&self) {
        self.0.call();
    }

    fn drain(&self, superblock: &Drain, own: &dyn OwnSwitches, others: &dyn SharedState) {
        PerSuperblock.drain(superblock, own, others);
    }
}

#[test]
fn wb_r1_persb_waits_for_who_stands_in_between() {
    assert_eq!(unmount_in_between(|delay_point| Box::new(Slow(delay_point))), 0);
}

#[test]
fn wb_r3_a_drain_asks_nothing_of_the_rest() {
    /// Panics at every question.
    struct Nothing;

    impl SharedState for Nothing {
        fn domain(&self) -> &Domain {
            panic!("a drain looked at the read sections")
        }

        fn in_flight(&self) -> usize {
            panic!("a drain looked at the others' switches")
        }

        fn flush(&self) {
            panic!("a drain flushed the queue")
        }
    }

    impl OwnSwitches for Nothing {
        fn are_waiting(&self) -> bool {
            panic!("a drain without a pin looked for switches")
        }

        fn make(&self) {
            panic!("a drain without a pin made switches")
        }
    }

    let drain = Drain::new();
    drop(drain.pin());
    PerSuperblock.drain(&drain, &Nothing, &Nothing);
    assert!(!drain.is_active());
    // The others do ask: the check sees it.
    let asks = |variant: &dyn DrainStrategy| {
        let drain = Drain::new();
        let drained = std::panic::AssertUnwindSafe(|| variant.drain(&drain, &LeftToWorkers, &Nothing));
        std::panic::catch_unwind(drained).is_err()
    };
    assert!(asks(&Base::default()) && asks(&Race::default()));
}

#[test]
fn wb_r3_an_idle_superblock_is_drained_beside_a_reader_and_a_full_queue() {
    let busy = Rig::new(PerSuperblock);
    let idle = Rig::on(&busy.switcher);
    // As long as this is open, no grace period ends, and no switch.
    let section = busy.switcher.domain().read();
    let files: Vec<_> = (0..100).map(|_| busy.file(A)).collect();
    assert!(files.iter().all(|file| busy.bdi.switch_to(file, B)));
    let periods = busy.switcher.domain().stats().grace_periods;
    idle.unmount(|| ());
    assert_eq!(busy.switcher.domain().stats().grace_periods, periods);
    assert_eq!(busy.bdi.status().switches_in_flight, 100);
    drop(section);
    busy.switcher.flush();
    busy.check_after();
}

#[test]
fn the_time_in_a_drain_is_that_of_the_switches_it_waited_for() {
    const HELD: Duration = Duration::from_millis(20);
    let rig = Rig::new(PerSuperblock);
    let section = rig.switcher.domain().read();
    let file = rig.file(A);
    assert!(rig.bdi.switch_to(&file, B));
    let drain = {
        let bdi = Arc::clone(&rig.bdi);
        thread::spawn(move || bdi.drain())
    };
    // The drain has begun when the superblock takes no switch, though not too many are in flight.
    let is_open = || {
        let refused = rig.switcher.stats().refused;
        rig.bdi.switch_to(&rig.file(A), B) || rig.switcher.stats().refused > refused
    };
    while is_open() {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(HELD);
    drop(section);
    let took = drain.join().expect("no assertion failed");
    let status = rig.bdi.status();
    assert_eq!((status.drains, status.drain_time), (1, took));
    assert!(took >= HELD, "{took:?}");
    rig.switcher.flush();
    rig.check_after();
}

#[test]
fn wb_r5_the_cap_holds_and_the_count_returns_to_zero() {
    let rig = Rig::new(PerSuperblock);
    let others: Vec<_> = (0..IN_FLIGHT_MAX + 100).map(|_| Rig::on(&rig.switcher)).collect();
    let files: Vec<_> = others.iter().map(|other| other.file(A)).collect();
    let dying: Vec<_> = (0..BATCH).map(|_| rig.file(CHILD)).collect();
    let section = rig.switcher.domain().read();
    let begun = others.iter().zip(&files).filter(|(other, file)| other.bdi.switch_to(file, B)).count();
    assert_eq!(begun, IN_FLIGHT_MAX);
    assert_eq!((rig.switcher.stats().in_flight, rig.switcher.stats().refused), (IN_FLIGHT_MAX, 100));
    // Inodes of a removed cgroup are not refused.
    rig.switcher.remove_cgroup(CHILD);
    while rig.bdi.status().switches_in_flight < BATCH as u64 {
        thread::yield_now();
    }
    assert!(rig.switcher.stats().most_in_flight > IN_FLIGHT_MAX);
    drop(section);
    rig.switcher.flush();
    rig.check_after();
    let moved = others.iter().zip(&files).filter(|(other, file)| other.bdi.owner_of(file) == Some(B));
    assert_eq!(moved.count(), IN_FLIGHT_MAX);
    assert!(dying.iter().all(|file| rig.bdi.owner_of(file) == Some(A)));
}

#[test]
fn a_superblock_that_asks_for_all_switches_leaves_as_many_for_the_others() {
    let greedy = Rig::new(PerSuperblock);
    let rigs = [&greedy, &Rig::on(&greedy.switcher), &Rig::on(&greedy.switcher)];
    let section = greedy.switcher.domain().read();
    let begun = rigs.map(|rig| {
        let files: Vec<_> = (0..IN_FLIGHT_MAX).map(|_| rig.file(A)).collect();
        files.iter().filter(|file| rig.bdi.switch_to(file, B)).count()
    });
    // Half of what is left, each time.
    assert_eq!(begun, [IN_FLIGHT_MAX / 2, IN_FLIGHT_MAX / 4, IN_FLIGHT_MAX / 8]);
    drop(section);
    greedy.switcher.flush();
    rigs.iter().for_each(|rig| rig.check_after());
}

/// Inodes of neighbours; at the end of each, a worker stands until it may go on.
struct Blocked {
    rigs: Vec<Rig>,
    go_on: Vec<std::sync::mpsc::Sender<()>>,
}

impl Blocked {
    /// Blocks every thread that switches.
    fn new(switcher: &Arc<Switcher>) -> Self {
        /// `THREADS_MAX`, and some that wait behind them.
        const NEIGHBOURS: usize = 12;
        const THREADS: usize = 4;
        let (stop, stopped) = channel();
        let mut blocked = Self { rigs: Vec::new(), go_on: Vec::new() };
        for _ in 0..NEIGHBOURS {
            let (rig, stop) = (Rig::on(switcher), stop.clone());
            let (go_on, going_on) = channel::<()>();
            let file = rig.file(A);
            file.at_end(move || {
                stop.send(()).expect("the test waits");
                // An error: the test has gone on.
                let _end = going_on.recv();
            });
            assert!(rig.bdi.switch_to(&file, B));
            blocked.rigs.push(rig);
            blocked.go_on.push(go_on);
        }
        (0..THREADS).for_each(|_| stopped.recv().expect("a worker comes so far"));
        blocked
    }

    fn go_on(self) {
        drop(self.go_on);
        self.rigs[0].switcher.flush();
        self.rigs.iter().for_each(Rig::check_after);
    }
}

#[test]
fn wb_r1_a_drain_makes_its_switches_itself_when_all_workers_are_held_up() {
    let rig = Rig::new(PerSuperblock);
    let files: Vec<_> = (0..3).map(|_| rig.file(A)).collect();
    let blocked = Blocked::new(&rig.switcher);
    assert!(files.iter().all(|file| rig.bdi.switch_to(file, B)));
    rig.bdi.drain();
    assert!(files.iter().all(|file| rig.bdi.owner_of(file) == Some(B)));
    rig.unmount(|| drop(files));
    blocked.go_on();
    rig.check_after();
}

#[test]
fn wb_r1_a_drain_hears_of_a_switch_that_is_queued_while_it_sleeps() {
    let (reach, reached) = channel();
    let (go_on, going_on) = channel::<()>();
    let (reach, going_on) = (Mutex::new(reach), Mutex::new(going_on));
    let is_held = Arc::new(AtomicBool::new(false));
    let delay_point = {
        let is_held = Arc::clone(&is_held);
        DelayPoint::new(move || {
            if is_held.load(Ordering::SeqCst) {
                reach.lock().send(()).expect("the test waits");
                let _end = going_on.lock().recv();
            }
        })
    };
    let rig = Rig::new(Slow(delay_point));
    let blocked = Blocked::new(&rig.switcher);
    let file = rig.file(A);
    is_held.store(true, Ordering::SeqCst);
    let switch = {
        let (bdi, file) = (Arc::clone(&rig.bdi), Arc::clone(&file));
        thread::spawn(move || assert!(bdi.switch_to(&file, B)))
    };
    reached.recv().expect("the switcher comes so far");
    let drain = {
        let bdi = Arc::clone(&rig.bdi);
        thread::spawn(move || bdi.drain())
    };
    // The drain has begun when the superblock takes no switch.
    is_held.store(false, Ordering::SeqCst);
    while rig.bdi.switch_to(&rig.file(B), A) {
        thread::yield_now();
    }
    drop(go_on);
    switch.join().expect("no assertion failed");
    drain.join().expect("no assertion failed");
    assert_eq!(rig.bdi.owner_of(&file), Some(B));
    rig.unmount(|| drop(file));
    blocked.go_on();
    rig.check_after();
}

#[test]
fn one_grace_period_serves_the_switches_of_many_superblocks() {
    let rig = Rig::new(PerSuperblock);
    let others: Vec<_> = (0..64).map(|_| Rig::on(&rig.switcher)).collect();
    let files: Vec<_> = others.iter().map(|other| other.file(A)).collect();
    let section = rig.switcher.domain().read();
    // A grace period that has begun does not count.
    let before = rig.switcher.domain().stats().grace_periods;
    assert!(others.iter().zip(&files).all(|(other, file)| other.bdi.switch_to(file, B)));
    drop(section);
    rig.switcher.flush();
    let periods = rig.switcher.domain().stats().grace_periods - before;
    assert!(periods <= 3, "{periods} grace periods for 64 superblocks");
}

#[test]
fn wb_r8_sums_stay_beside_accounting() {
    let rig = Rig::new(PerSuperblock);
    let files: Vec<_> = (0..8).map(|_| rig.file(A)).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = files
            .chunks(4)
            .map(|files| {
                let (bdi, is_over) = (&rig.bdi, &is_over);
                scope.spawn(move || {
                    let mut n = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        n += 1;
                        files.iter().for_each(|file| bdi.account(file, n % 7 * 4096, n % 5 * 4096));
                    }
                })
            })
            .collect();
        for round in 0..100 {
            let to = [B, A, CgroupId::ROOT][round % 3];
            files.iter().for_each(|file| {
                rig.bdi.switch_to(file, to);
            });
            rig.switcher.flush();
        }
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("no assertion failed"));
    });
    rig.check_sums(&files);
}

#[test]
fn an_inode_that_panics_keeps_no_other_from_moving() {
    let rig = Rig::new(PerSuperblock);
    let mut files: Vec<_> = (0..3).map(|_| rig.file(CHILD)).collect();
    files[0].at_end(|| panic!("as it is meant to"));
    let section = rig.switcher.domain().read();
    rig.switcher.remove_cgroup(CHILD);
    while rig.bdi.status().switches_in_flight < 3 {
        thread::yield_now();
    }
    // The worker has its last reference.
    drop(files.remove(0));
    drop(section);
    rig.switcher.flush();
    assert!(files.iter().all(|file| rig.bdi.owner_of(file) == Some(A) && !file.inode_wb().is_switching()));
    assert_eq!(rig.bdi.status().panics, 1);
    rig.check_after();
    let left: Vec<_> = rig.bdi.status().wbs.iter().map(|wb| (wb.owner, wb.owned)).collect();
    assert!(!left.iter().any(|(owner, _)| *owner == CHILD), "{left:?}");
}

/// The worker stops between two inodes, again and again in the middle of its moves, until another
/// thread has written an inode of a third cgroup, and one of the target cgroup.
#[test]
fn wb_r9_writers_go_on_between_any_two_moves() {
    const INODES: usize = 3000;
    const STOPS: usize = 20;
    let rig = Rig::new(PerSuperblock);
    let dying: Vec<_> = (0..INODES).map(|_| rig.file(CHILD)).collect();
    let victims = [(rig.file(B), B), (rig.file(A), A)];
    let (stop, stopped) = channel();
    for file in dying.iter().step_by(INODES / STOPS) {
        let stop = stop.clone();
        file.at_end(move || {
            let (go_on, going_on) = channel();
            stop.send(go_on).expect("the test waits");
            going_on.recv().expect("the test lets it go on");
        });
    }
    drop(stop);
    let section = rig.switcher.domain().read();
    rig.switcher.remove_cgroup(CHILD);
    while rig.bdi.status().switches_in_flight < INODES as u64 {
        thread::yield_now();
    }
    // From here on the worker has the last references.
    drop(dying);
    drop(section);
    let mut in_the_middle = 0;
    for go_on in stopped {
        for (victim, owner) in &victims {
            rig.bdi.mark_dirty(Arc::clone(victim), *owner);
            rig.bdi.account(victim, 4096, 0);
            write(&rig, victim, *owner, 4096);
            rig.bdi.account(victim, 0, 0);
            assert!(rig.bdi.del_dirty(victim));
        }
        // This worker stands here; another one may have gone on.
        let left = rig.bdi.status().switches_in_flight;
        in_the_middle += usize::from(left > 1 && left < INODES as u64);
        go_on.send(()).expect("the worker waits");
    }
    assert!(in_the_middle >= STOPS - 2, "{in_the_middle}");
    rig.switcher.flush();
    rig.check_after();
}

#[test]
fn wb_r9_thousands_of_inodes_at_a_removal_hold_up_nobody() {
    const INODES: usize = 5000;
    let rig = Rig::new(PerSuperblock);
    let dying: Vec<_> = (0..INODES).map(|_| rig.file(CHILD)).collect();
    let victim = rig.file(B);
    // The switches wait for this; the victim must not wait for them.
    let section = rig.switcher.domain().read();
    rig.switcher.remove_cgroup(CHILD);
    while rig.bdi.status().switches_in_flight < INODES as u64 {
        thread::yield_now();
    }
    for n in 0..1000 {
        rig.bdi.mark_dirty(Arc::clone(&victim), B);
        rig.bdi.account(&victim, n * 4096, 0);
        rig.bdi.del_dirty(&victim);
    }
    assert_eq!(rig.bdi.status().switches_in_flight, INODES as u64, "the victim's writes were before the end");
    drop(section);
    rig.switcher.flush();
    assert!(dying.iter().all(|file| rig.bdi.owner_of(file) == Some(A)));
    rig.check_after();
}
