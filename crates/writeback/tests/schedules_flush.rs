//! Flushers under shuttle: the product's own crew, under random schedules and under such with few switches.
//!
//! | claim | test | mutants |
//! |---|---|---|
//! | what becomes dirty is written, whatever flushers do at that moment | [`everything_is_written`] | `bdi-unset-after-look`, `bdi-leave-unchecked` |
//! | a wb that was barred is served when there is room | [`a_wb_with_one_that_hangs_gets_another_flusher_when_one_is_free`] | `bdi-barred-for-good` |
//! | inodes that hang in one wb leave a flusher for the others | [`a_hung_wb_holds_up_no_other`] | `bdi-last-one-goes` |
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-writeback --test schedules_flush`
#![cfg(shuttle)]

extern crate watertight_writeback as writeback;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::model::check;
use sync::{Condvar, ManualClock, Mutex, mutant, thread};
use writeback::{Bdi, BdiOptions, Budget, Inode, Link, Outcome, Owner, Switcher};

const A: Owner = Owner(1);
const B: Owner = Owner(2);

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
    link: Link<Self>,
    store: Arc<Store>,
    hangs: bool,
}

impl Inode for File {
    fn write_back(self: &Arc<Self>) -> Outcome {
        if self.hangs {
            self.store.until(|state| state.is_open);
        }
        self.store.change(|state| state.written += 1);
        Outcome::Clean
    }

    fn link(&self) -> &Link<Self> {
        &self.link
    }
}

struct Rig {
    bdi: Arc<Bdi<File>>,
    store: Arc<Store>,
}

impl Rig {
    /// Data does not rest.
    fn new(flushers: usize) -> Self {
        let switcher: Arc<Switcher<File>> = Arc::default();
        switcher.cgroups().add(A, Owner::ROOT);
        switcher.cgroups().add(B, Owner::ROOT);
        let options = BdiOptions {
            flushers,
            dirty_after: Duration::ZERO,
            background_pages: 100,
            background_inodes: 100,
            retry_pause: Duration::from_secs(1),
            clock: Arc::new(ManualClock::default()),
        };
        let bdi = Bdi::start("test", options, Budget::new(1000), &switcher);
        Self { bdi, store: Arc::default() }
    }

    fn dirty(&self, owner: Owner, hangs: bool) {
        let file = File { link: Link::default(), store: Arc::clone(&self.store), hangs };
        self.bdi.mark_dirty(Arc::new(file), owner);
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
    // Nobody else does anything.
    rig.store.until(|state| state.written == 3);
    writers.into_iter().for_each(|writer| writer.join().expect("no assertion failed"));
    rig.end();
}

#[test]
fn one_flusher_writes_everything() {
    check(|| everything_is_written(1));
}

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

#[test]
fn a_hung_wb_leaves_one_of_three_flushers() {
    check(|| a_hung_wb_holds_up_no_other(3));
}

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

#[test]
fn each_mutant_is_caught() {
    mutant::assert_caught(
        "two_flushers_write_everything",
        &["bdi-unset-after-look", "bdi-leave-unchecked"],
        "deadlock",
    );
    let test = "a_wb_with_one_that_hangs_gets_another_flusher_when_one_is_free";
    mutant::assert_caught(test, &["bdi-barred-for-good"], "deadlock");
    mutant::assert_caught("a_hung_wb_leaves_one_of_three_flushers", &["bdi-last-one-goes"], "deadlock");
}
