//! When flushers write: by age, and above the two background thresholds. The clock is the test's.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cgroups::CgroupId;
use sync::{Clock, ManualClock, Mutex, RealClock};
use watertight_writeback::{Bdi, BdiOptions, Budget, Inode, InodeWb, Outcome, Permit, Switcher};

/// A cgroup beside the root.
const OTHER: CgroupId = CgroupId(7);
const LONG: Duration = Duration::from_secs(120);

/// Dirty until it is written; reports that with the time.
#[derive(Debug)]
struct File {
    inode_wb: InodeWb<Self>,
    name: usize,
    clock: Arc<ManualClock>,
    pages: Mutex<Option<Permit>>,
    written: Sender<(usize, u64)>,
}

impl Inode for File {
    fn write_back(self: &Arc<Self>) -> Outcome {
        drop(self.pages.lock().take());
        self.written.send((self.name, self.clock.now().as_secs())).expect("the test listens");
        Outcome::Clean
    }

    fn inode_wb(&self) -> &InodeWb<Self> {
        &self.inode_wb
    }
}

struct Rig {
    clock: Arc<ManualClock>,
    budget: Arc<Budget>,
    bdi: Arc<Bdi<File>>,
    wake_fitting: Sender<(usize, u64)>,
    written: Receiver<(usize, u64)>,
}

impl Rig {
    /// Data rests for 5 s; 1 000 pages in all; thresholds at 100 pages and 8 inodes.
    fn new() -> Self {
        Self::with(None)
    }

    fn with(write_behind_bytes: Option<u64>) -> Self {
        let clock = Arc::new(ManualClock::default());
        let budget = Budget::new(1000);
        let options = BdiOptions {
            flushers: 1,
            dirty_after: Duration::from_secs(5),
            background_pages: 100,
            background_inodes: 8,
            write_behind_bytes,
            retry_pause: Duration::from_millis(1),
            clock: Arc::clone(&clock) as _,
        };
        let switcher = Arc::<Switcher>::default();
        switcher.cgroups().add(OTHER, CgroupId::ROOT);
        let bdi = Bdi::start("test", options, Arc::clone(&budget), &switcher);
        let (wake_fitting, written) = channel();
        Self { clock, budget, bdi, wake_fitting, written }
    }

    fn dirty(&self, name: usize, pages: u64) {
        self.dirty_of(CgroupId::ROOT, name, pages);
    }

    fn dirty_of(&self, owner: CgroupId, name: usize, pages: u64) {
        let permit = self.budget.try_take(pages, 0).expect("room");
        let (clock, written) = (Arc::clone(&self.clock), self.wake_fitting.clone());
        let file =
            File { inode_wb: InodeWb::default(), name, clock, pages: Mutex::new(Some(permit)), written };
        let file = Arc::new(file);
        self.bdi.mark_dirty(Arc::clone(&file), owner);
        self.bdi.account(&file, pages * 4096, 0);
        self.bdi.check_background(&file);
    }

    /// Moves the clock and wakes the flushers.
    fn after(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        self.bdi.start_background();
    }

    #[track_caller]
    fn writes(&self) -> (usize, u64) {
        self.written.recv_timeout(LONG).expect("something is written")
    }

    /// Nothing more was written until the flushers ended.
    fn ends_quietly(self) -> bool {
        assert_eq!(self.bdi.stop(std::time::Instant::now() + LONG), 0);
        self.written.try_recv().is_err()
    }
}

#[test]
fn data_is_written_when_it_is_old_enough() {
    let rig = Rig::new();
    rig.dirty(1, 1);
    rig.after(3);
    rig.dirty(2, 1);
    rig.after(2);
    assert_eq!(rig.writes(), (1, 5));
    rig.after(3);
    assert_eq!(rig.writes(), (2, 8), "in the order of time, and none before its time");
    rig.dirty(3, 1);
    rig.after(4);
    assert!(rig.ends_quietly(), "four seconds old");
}

#[test]
fn above_the_threshold_of_pages_half_is_written_whatever_its_age() {
    let rig = Rig::new();
    for name in 0..5 {
        rig.dirty(name, 20);
    }
    assert_eq!(rig.budget.used(), 100);
    rig.dirty(5, 1);
    let written: Vec<_> = (0..3).map(|_| rig.writes()).collect();
    assert_eq!(written, [(0, 0), (1, 0), (2, 0)], "the oldest first");
    assert_eq!(rig.budget.used(), 41);
    assert!(rig.ends_quietly());
}

#[test]
fn who_holds_little_is_left_alone_beside_who_fills_the_cache() {
    let rig = Rig::new();
    rig.dirty_of(OTHER, 10, 2);
    for name in 0..5 {
        rig.dirty(name, 20);
    }
    let written: Vec<_> = (0..3).map(|_| rig.writes()).collect();
    assert_eq!(written, [(0, 0), (1, 0), (2, 0)], "the other one's is the oldest, and little");
    assert_eq!(rig.budget.used(), 42);
    rig.dirty(5, 70);
    rig.dirty_of(OTHER, 11, 2);
    let written: Vec<_> = (0..3).map(|_| rig.writes()).collect();
    assert_eq!(written, [(3, 0), (4, 0), (5, 0)]);
    let rest = rig.bdi.begin_room_wait();
    assert_eq!([rig.writes(), rig.writes()], [(10, 0), (11, 0)], "somebody waits for room: all is written");
    drop(rest);
    rig.dirty_of(OTHER, 12, 1);
    assert!(rig.ends_quietly());
}

#[test]
fn who_holds_much_is_written_whoever_came_last() {
    let rig = Rig::new();
    rig.dirty(1, 51);
    rig.dirty_of(OTHER, 2, 51);
    let mut written: Vec<_> = (0..2).map(|_| rig.writes().0).collect();
    written.sort_unstable();
    assert_eq!(written, [1, 2], "more than a quarter of the threshold each, and half of it with one of them");
    assert!(rig.ends_quietly());
}

#[test]
fn data_of_a_cgroup_above_what_may_rest_is_written_whatever_its_age() {
    let rig = Rig::with(Some(20 * 4096));
    rig.dirty(1, 15);
    rig.dirty_of(OTHER, 10, 20);
    rig.dirty(2, 5);
    rig.dirty(3, 1);
    assert_eq!(rig.writes(), (1, 0), "21 pages are the root's: the oldest first");
    rig.dirty_of(OTHER, 11, 1);
    assert_eq!(rig.writes(), (10, 0));
    assert_eq!(rig.budget.used(), 7, "what is left may rest");
    assert!(rig.ends_quietly());
}

#[test]
fn above_the_threshold_of_inodes_half_is_written_whatever_its_age() {
    let rig = Rig::new();
    for name in 0..9 {
        rig.dirty(name, 1);
    }
    let written: Vec<_> = (0..5).map(|_| rig.writes()).collect();
    assert_eq!(written, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)], "the oldest first");
    assert_eq!(rig.bdi.dirty_inodes(), 4);
    assert!(rig.ends_quietly());
}

/// Reports when it is being written, and stays so until it may go on.
#[derive(Debug)]
struct Slow {
    inode_wb: InodeWb<Self>,
    owner: CgroupId,
    begun: Sender<CgroupId>,
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl Inode for Slow {
    fn write_back(self: &Arc<Self>) -> Outcome {
        self.begun.send(self.owner).expect("the test listens");
        if self.owner == A {
            // An error: the test has ended.
            let _over = self.go_on.lock().recv();
        }
        Outcome::Clean
    }

    fn inode_wb(&self) -> &InodeWb<Self> {
        &self.inode_wb
    }
}

const A: CgroupId = CgroupId(1);
const B: CgroupId = CgroupId(2);

/// Files of `A` hang in the store, more than there are flushers: how many at the same time, while
/// those of `B` are written.
fn hanging_at_once(flushers: usize) -> usize {
    let switcher: Arc<Switcher> = Arc::default();
    switcher.cgroups().add(A, CgroupId::ROOT);
    switcher.cgroups().add(B, CgroupId::ROOT);
    let options = BdiOptions {
        flushers,
        dirty_after: Duration::ZERO,
        background_pages: 100,
        background_inodes: 100,
        write_behind_bytes: None,
        retry_pause: Duration::from_millis(1),
        clock: Arc::new(RealClock::default()),
    };
    let bdi = Bdi::start("test", options, Budget::new(1000), &switcher);
    let (begun, has_begun) = channel();
    let (go_on, going_on) = channel();
    let go_on_at = Arc::new(Mutex::new(going_on));
    let dirty = |owner| {
        let (begun, go_on) = (begun.clone(), Arc::clone(&go_on_at));
        bdi.mark_dirty(Arc::new(Slow { inode_wb: InodeWb::default(), owner, begun, go_on }), owner);
    };
    (0..2 * flushers).for_each(|_| dirty(A));
    let mut hanging = 0;
    for _ in 0..100 {
        dirty(B);
        while has_begun.recv_timeout(LONG).expect("a file of `B` is written") == A {
            hanging += 1;
        }
    }
    drop(go_on);
    assert_eq!(bdi.stop(std::time::Instant::now() + LONG), 0);
    hanging
}

#[test]
fn two_flushers_are_never_both_at_one_wb() {
    assert_eq!(hanging_at_once(2), 1);
}

#[test]
fn of_three_flushers_two_may_be_at_one_wb() {
    assert_eq!(hanging_at_once(3), 2);
}

/// No thread asks for more and nothing else becomes dirty: the timer alone makes a flusher write
/// it.
#[test]
fn data_is_written_by_its_age_alone() {
    let rest = Duration::from_millis(20);
    let (wake_fitting, written) = channel();
    let clock = Arc::new(ManualClock::default());
    let options = BdiOptions {
        flushers: 2,
        dirty_after: rest,
        background_pages: 100,
        background_inodes: 100,
        write_behind_bytes: None,
        retry_pause: Duration::from_millis(1),
        clock: Arc::new(RealClock::default()),
    };
    let bdi = Bdi::start("test", options, Budget::new(1000), &Arc::default());
    for name in 0..3 {
        let begun = std::time::Instant::now();
        let (clock, written_by) = (Arc::clone(&clock), wake_fitting.clone());
        let file =
            File { inode_wb: InodeWb::default(), name, clock, pages: Mutex::default(), written: written_by };
        bdi.mark_dirty(Arc::new(file), CgroupId::ROOT);
        assert_eq!(written.recv_timeout(LONG).expect("it is written").0, name);
        assert!(begun.elapsed() >= rest, "before its time");
    }
    assert_eq!(bdi.stop(std::time::Instant::now() + LONG), 0);
}

/// A file whose write-back fails, or not; reports each attempt, and when.
#[derive(Debug)]
struct Tried {
    inode_wb: InodeWb<Self>,
    fails: bool,
    clock: Arc<ManualClock>,
    tried: Sender<(bool, Duration)>,
}

impl Inode for Tried {
    fn write_back(self: &Arc<Self>) -> Outcome {
        self.tried.send((self.fails, self.clock.now())).expect("the test listens");
        if self.fails { Outcome::Failed } else { Outcome::Clean }
    }

    fn inode_wb(&self) -> &InodeWb<Self> {
        &self.inode_wb
    }
}

#[test]
fn what_fails_is_tried_again_after_pauses_that_grow_to_half_a_minute() {
    const MOMENT: Duration = Duration::from_millis(1);
    let clock = Arc::new(ManualClock::default());
    let options = BdiOptions {
        flushers: 1,
        dirty_after: Duration::ZERO,
        background_pages: 100,
        background_inodes: 100,
        write_behind_bytes: None,
        retry_pause: Duration::from_secs(1),
        clock: Arc::clone(&clock) as _,
    };
    let bdi = Bdi::start("test", options, Budget::new(1000), &Arc::default());
    let (wake_fitting, tried) = channel();
    let dirty = |fails| {
        let (clock, tried) = (Arc::clone(&clock), wake_fitting.clone());
        bdi.mark_dirty(Arc::new(Tried { inode_wb: InodeWb::default(), fails, clock, tried }), CgroupId::ROOT);
        bdi.start_background();
    };
    let next = || tried.recv_timeout(LONG).expect("something is tried");
    dirty(true);
    let mut at = Duration::ZERO;
    assert_eq!(next(), (true, at));
    for pause in [1, 2, 4, 8, 16, 32, 32, 32].map(Duration::from_secs) {
        // There is one flusher: when it writes another one, it is done with the first.
        dirty(false);
        assert_eq!(next(), (false, at));
        clock.advance(pause - MOMENT);
        dirty(false);
        assert_eq!(next(), (false, at + pause - MOMENT), "not before its time");
        clock.advance(MOMENT);
        bdi.start_background();
        at += pause;
        assert_eq!(next(), (true, at));
    }
    assert_eq!(bdi.stop(std::time::Instant::now() + LONG), 0);
    assert_eq!(bdi.snapshot().len(), 1, "it is there still");
}
