//! When flushers write: by age, and above the two background thresholds. The clock is the test's.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sync::{Clock, ManualClock, Mutex};
use watertight_writeback::{Bdi, BdiOptions, Budget, Inode, Link, Outcome, Owner, Permit};

const LONG: Duration = Duration::from_secs(30);

/// Dirty until it is written, which it tells with the time.
#[derive(Debug)]
struct File {
    link: Link<Self>,
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

    fn link(&self) -> &Link<Self> {
        &self.link
    }
}

struct Rig {
    clock: Arc<ManualClock>,
    budget: Arc<Budget>,
    bdi: Arc<Bdi<File>>,
    tell: Sender<(usize, u64)>,
    written: Receiver<(usize, u64)>,
}

impl Rig {
    /// Data rests for 5 s; 1 000 pages in all; thresholds at 100 pages and 8 inodes.
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let budget = Budget::new(1000);
        let options = BdiOptions {
            flushers: 1,
            dirty_after: Duration::from_secs(5),
            background_pages: 100,
            background_inodes: 8,
            retry_pause: Duration::from_millis(1),
            clock: Arc::clone(&clock) as _,
        };
        let bdi = Bdi::start("test", options, Arc::clone(&budget), &Arc::default());
        let (tell, written) = channel();
        Self { clock, budget, bdi, tell, written }
    }

    fn dirty(&self, name: usize, pages: u64) {
        let permit = self.budget.try_take(pages, 0).expect("room");
        let (clock, written) = (Arc::clone(&self.clock), self.tell.clone());
        let file = File { link: Link::default(), name, clock, pages: Mutex::new(Some(permit)), written };
        let file = Arc::new(file);
        self.bdi.mark_dirty(Arc::clone(&file), Owner::ROOT);
        self.bdi.check_background(&file);
    }

    /// Moves the clock and has the flushers look at it.
    fn after(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        self.bdi.kick();
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
