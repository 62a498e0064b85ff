//! Flushers under shuttle: the product's own flushers, under random schedules and under schedules
//! with few switches.
//!
//! | claim | test | mutants |
//! |---|---|---|
//! | an inode that becomes dirty is written, whatever flushers do at that moment | [`everything_is_written`] | `bdi-unset-after-look`, `bdi-leave-unchecked` |
//! | a wb that was blocked is served when there is room | [`a_wb_with_one_that_hangs_gets_another_flusher_when_one_is_free`] | `bdi-barred-for-good` |
//! | inodes that hang in one wb leave a flusher for the others | [`a_hung_wb_holds_up_no_other`] | `bdi-last-one-goes` |
//! | while a writer waits for room in the cache, all resting data is written, of any owner and any time | [`who_waits_for_room_has_written_what_rests`] | `bdi-waits-told-first`, `bdi-unset-after-look` |
//! | as long as one waits, even after another has gone on | [`one_who_goes_on_is_not_the_last_who_waits`] | `bdi-waits-uncounted` |
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-writeback --test schedules_flush`
#![cfg(shuttle)]

extern crate watertight_writeback as writeback;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cgroups::CgroupId;
use sync::model::check;
use sync::{Condvar, ManualClock, Mutex, mutant, thread};
use writeback::{Bdi, BdiOptions, Budget, Inode, InodeWb, Outcome, Permit, Switcher, Waiter};

const A: CgroupId = CgroupId(1);
const B: CgroupId = CgroupId(2);
/// The number of files that the cache has room for.
const FILES: u64 = 3;

/// Counts what is written; files that hang wait until they may go on.
#[derive(Debug, Default)]
struct Store {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    written: usize,
    is_open: bool,
}

impl Store {
    fn until(&self, is_so: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        while !is_so(&state) {
            self.changed.wait(&mut state);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

#[derive(Debug)]
struct File {
    inode_wb: InodeWb<Self>,
    store: Arc<Store>,
    hangs: bool,
    /// The room that its data takes in the cache.
    room: Mutex<Option<Permit>>,
}

impl Inode for File {
    fn write_back(self: &Arc<Self>) -> Outcome {
        if self.hangs {
            self.store.until(|state| state.is_open);
        }
        let room = self.room.lock().take();
        drop(room);
        self.store.change(|state| state.written += 1);
        Outcome::Clean
    }

    fn inode_wb(&self) -> &InodeWb<Self> {
        &self.inode_wb
    }
}

struct Rig {
    bdi: Arc<Bdi<File>>,
    store: Arc<Store>,
    budget: Arc<Budget>,
}

impl Rig {
    /// Data does not rest.
    fn new(flushers: usize) -> Self {
        Self::resting(flushers, Duration::ZERO)
    }

    /// Data rests so long by a clock that stands still; the cache has room for three files.
    fn resting(flushers: usize, dirty_after: Duration) -> Self {
        let switcher: Arc<Switcher> = Arc::default();
        switcher.cgroups().add(A, CgroupId::ROOT);
        switcher.cgroups().add(B, CgroupId::ROOT);
        let options = BdiOptions {
            flushers,
            dirty_after,
            background_pages: 100,
            background_inodes: 100,
            write_behind_bytes: None,
            retry_pause: Duration::from_secs(1),
            clock: Arc::new(ManualClock::default()),
        };
        let budget = Budget::new(FILES);
        let bdi = Bdi::start("test", options, Arc::clone(&budget), &switcher);
        Self { bdi, store: Arc::default(), budget }
    }

    fn dirty(&self, owner: CgroupId, hangs: bool) {
        self.dirty_with(owner, hangs, None);
    }

    fn dirty_with(&self, owner: CgroupId, hangs: bool, room: Option<Permit>) {
        let (store, room) = (Arc::clone(&self.store), Mutex::new(room));
        self.bdi.mark_dirty(Arc::new(File { inode_wb: InodeWb::default(), store, hangs, room }), owner);
    }

    /// One more file for which there is room.
    fn dirty_page(&self, owner: CgroupId) {
        let room = self.budget.try_take(1, 0);
        assert!(room.is_some(), "the cache is larger");
        self.dirty_with(owner, false, room);
    }

    /// Takes so much of the cache, and waits for it as a writer does. If no flusher writes the
    /// resting data it waits for ever: a deadlock.
    fn wait_for_room(&self, pages: u64) {
        let woken = Arc::new((Mutex::new(false), Condvar::new()));
        let wakes = Arc::clone(&woken);
        let wake = Box::new(move || {
            *wakes.0.lock() = true;
            wakes.1.notify_all();
        });
        let waiter = Waiter { pages, held: Arc::default(), may_go: Box::new(|_, _| true), wake };
        let queued = self.budget.queue(1, waiter);
        let mut wants_all = None;
        while queued.look(1, || self.budget.try_take(pages, 0)).is_none() {
            wants_all.get_or_insert_with(|| self.bdi.begin_room_wait());
            let mut is_woken = woken.0.lock();
            while !std::mem::take(&mut *is_woken) {
                woken.1.wait(&mut is_woken);
            }
        }
    }

    fn end(&self) {
        assert_eq!(self.bdi.stop(Instant::now() + Duration::from_secs(600)), 0);
        self.bdi.evict();
    }
}

fn everything_is_written(flushers: usize) {
    let rig = Arc::new(Rig::new(flushers));
    let writers: Vec<_> = [A, A, B]
        .into_iter()
        .map(|owner| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.dirty(owner, false))
        })
        .collect();
    // No other thread does anything.
    rig.store.until(|state| state.written == 3);
    writers.into_iter().for_each(|writer| writer.join().expect("no assertion failed"));
    rig.end();
}

#[test]
fn one_flusher_writes_everything() {
    check(|| everything_is_written(1));
}

/// What becomes dirty is written, whatever flushers do at that moment.
#[test]
fn two_flushers_write_everything() {
    check(|| everything_is_written(2));
}

#[test]
fn three_flushers_write_everything() {
    check(|| everything_is_written(3));
}

fn a_hung_wb_holds_up_no_other(flushers: usize) {
    let rig = Rig::new(flushers);
    (0..4).for_each(|_| rig.dirty(A, true));
    rig.dirty(B, false);
    rig.store.until(|state| state.written == 1);
    rig.store.change(|state| state.is_open = true);
    rig.store.until(|state| state.written == 5);
    rig.end();
}

#[test]
fn a_hung_wb_leaves_one_of_two_flushers() {
    check(|| a_hung_wb_holds_up_no_other(2));
}

/// Inodes that hang in one wb leave a flusher for the others.
#[test]
fn a_hung_wb_leaves_one_of_three_flushers() {
    check(|| a_hung_wb_holds_up_no_other(3));
}

/// A wb that was barred is served when there is room.
#[test]
fn a_wb_with_one_that_hangs_gets_another_flusher_when_one_is_free() {
    check(|| {
        let rig = Rig::new(3);
        rig.dirty(A, true);
        rig.dirty(A, false);
        rig.dirty(B, false);
        rig.store.until(|state| state.written == 2);
        rig.store.change(|state| state.is_open = true);
        rig.end();
    });
}

/// Nothing is due for an hour. One writer wants the whole cache while others write.
fn who_waits_for_room_has_written_what_rests(flushers: usize) {
    let rig = Arc::new(Rig::resting(flushers, Duration::from_secs(3600)));
    rig.dirty_page(A);
    // Before the other writer, which has the whole cache for a moment, comes.
    let room = rig.budget.try_take(1, 0);
    assert!(room.is_some(), "the cache is larger");
    let other = {
        let rig = Arc::clone(&rig);
        thread::spawn(move || rig.dirty_with(B, false, room))
    };
    let waits = {
        let rig = Arc::clone(&rig);
        thread::spawn(move || rig.wait_for_room(FILES))
    };
    other.join().expect("no assertion failed");
    waits.join().expect("no assertion failed");
    rig.end();
}

/// A writer that waits for room in the cache has all resting data written, of any cgroup and of any
/// age.
#[test]
fn who_waits_for_room_has_one_flusher_write_what_rests() {
    check(|| who_waits_for_room_has_written_what_rests(1));
}

#[test]
fn who_waits_for_room_has_two_flushers_write_what_rests() {
    check(|| who_waits_for_room_has_written_what_rests(2));
}

/// Resting data is written for as long as any writer waits for room, whichever writers have gone
/// on.
#[test]
fn one_who_goes_on_is_not_the_last_who_waits() {
    check(|| {
        let rig = Arc::new(Rig::resting(2, Duration::from_secs(3600)));
        [A, A, B].into_iter().for_each(|owner| rig.dirty_page(owner));
        // The first has its page when one of the files is written.
        let waits = [1, FILES].map(|pages| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.wait_for_room(pages))
        });
        waits.into_iter().for_each(|waits| waits.join().expect("no assertion failed"));
        rig.store.until(|state| state.written == 3);
        rig.end();
    });
}

#[test]
fn each_mutant_is_caught() {
    mutant::assert_caught(
        "who_waits_for_room_has_one_flusher_write_what_rests",
        &["bdi-waits-told-first", "bdi-unset-after-look"],
        "deadlock",
    );
    mutant::assert_caught("one_who_goes_on_is_not_the_last_who_waits", &["bdi-waits-uncounted"], "deadlock");
    mutant::assert_caught(
        "two_flushers_write_everything",
        &["bdi-unset-after-look", "bdi-leave-unchecked"],
        "deadlock",
    );
    let test = "a_wb_with_one_that_hangs_gets_another_flusher_when_one_is_free";
    mutant::assert_caught(test, &["bdi-barred-for-good"], "deadlock");
    mutant::assert_caught("a_hung_wb_leaves_one_of_three_flushers", &["bdi-last-one-goes"], "deadlock");
}
