//! Waiters for room in line, under many schedules: a call that is not used goes to the next waiter,
//! and one waiter always has an alarm.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-writeback --release --test schedules_line`
#![cfg(shuttle)]

#[path = "common/event.rs"]
mod event;

use std::sync::Arc;

use sync::atomic::AtomicU64;
use sync::{Mutex, model, mutant, thread};
use watertight_writeback::{Budget, InLine, Permit, Queued, Waiter};

use event::Event;

const LINE: u64 = 1;
const OTHER_LINE: u64 = 2;

/// The state that all share: a cache, whether a debt is paid, and the alarms of waiters.
struct SwitchState {
    budget: Arc<Budget>,
    is_paid: Mutex<bool>,
    timers: Mutex<Vec<Arc<Event>>>,
}

impl SwitchState {
    fn new(pages: u64, is_paid: bool) -> Arc<Self> {
        Arc::new(Self { budget: Budget::new(pages), is_paid: Mutex::new(is_paid), timers: Mutex::default() })
    }

    /// Time has paid the debt: only waiters with an alarm are woken.
    fn pay(&self) {
        *self.is_paid.lock() = true;
        self.timers.lock().drain(..).for_each(|event| event.set());
    }
}

/// A writer that waits for pages until it gives up.
#[derive(Default)]
struct Writer {
    pages: u64,
    /// The pages that its owner has.
    held: u64,
    event: Arc<Event>,
    /// It has gone to another line, where there is no room for it.
    is_elsewhere: Arc<Mutex<bool>>,
    gives_up: Mutex<bool>,
}

impl Writer {
    fn of(pages: u64, held: u64) -> Arc<Self> {
        Arc::new(Self { pages, held, ..Self::default() })
    }

    fn queue<'a>(&self, world: &'a Arc<SwitchState>) -> Queued<'a> {
        let (asks, event, is_elsewhere) =
            (Arc::clone(world), Arc::clone(&self.event), Arc::clone(&self.is_elsewhere));
        let may_go = move |_, at| !*is_elsewhere.lock() && (at == InLine::First || *asks.is_paid.lock());
        world.budget.queue(
            LINE,
            Waiter {
                pages: self.pages,
                held: Arc::new(AtomicU64::new(self.held)),
                may_go: Box::new(may_go),
                wake: Box::new(move || event.set()),
            },
        )
    }

    /// Looks for its pages; returns whether the debt was in the way.
    fn look(&self, world: &SwitchState, queued: &Queued<'_>, owes: &mut bool) -> Option<Permit> {
        let is_elsewhere = *self.is_elsewhere.lock();
        queued.look(if is_elsewhere { OTHER_LINE } else { LINE }, || {
            *owes = !*world.is_paid.lock();
            if *owes || is_elsewhere { None } else { world.budget.try_take(self.pages, self.held) }
        })
    }

    /// Waits like the volume's `Inode::reserve`.
    fn wait(&self, world: &Arc<SwitchState>, queued: &Queued<'_>, has_errand: bool) -> Option<Permit> {
        loop {
            let mut owes = false;
            if let Some(permit) = self.look(world, queued, &mut owes) {
                return Some(permit);
            }
            if *self.gives_up.lock() {
                return None;
            }
            if has_errand {
                queued.set_busy();
                thread::yield_now();
                if let Some(permit) = self.look(world, queued, &mut owes) {
                    return Some(permit);
                }
            }
            if owes && queued.is_first() {
                world.timers.lock().push(Arc::clone(&self.event));
                // The debt may have been paid meanwhile.
                if *world.is_paid.lock() {
                    continue;
                }
            }
            self.event.wait();
        }
    }

    /// Waits in a thread of its own, and gives back what it finds.
    fn start(self: &Arc<Self>, world: &Arc<SwitchState>, has_errand: bool) -> thread::JoinHandle<()> {
        let (world, writer) = (Arc::clone(world), Arc::clone(self));
        thread::spawn(move || {
            let queued = writer.queue(&world);
            drop(writer.wait(&world, &queued, has_errand));
        })
    }

    fn go_elsewhere(&self, world: &SwitchState) {
        *self.is_elsewhere.lock() = true;
        world.budget.wake_all();
    }

    fn give_up(&self) {
        *self.gives_up.lock() = true;
        self.event.set();
    }
}

/// Two waiters, each in a thread of its own; a third thread makes the first give up.
fn two_of_whom_one_gives_up(world: &Arc<SwitchState>, has_errand: bool) -> Vec<thread::JoinHandle<()>> {
    let [leaves, stays] = [Writer::of(1, 0), Writer::of(1, 0)];
    let mut threads = vec![leaves.start(world, has_errand), stays.start(world, has_errand)];
    threads.push(thread::spawn(move || leaves.give_up()));
    threads
}

fn all_end(world: &SwitchState, threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no assertion failed"));
    assert_eq!(world.budget.used(), 0);
    assert_eq!(world.budget.waiting(), 0);
}

/// Both wait for a page that another permit holds: the one that does not give up gets it in the
/// end.
fn whoever_leaves_has_the_next_called(has_errand: bool) {
    let world = SwitchState::new(1, true);
    let page = world.budget.try_take(1, 0).expect("the only page");
    let threads = two_of_whom_one_gives_up(&world, has_errand);
    drop(page);
    all_end(&world, threads);
}

/// Both wait for what time brings, and only the first has an alarm.
fn somebody_looks_at_the_clock() {
    let world = SwitchState::new(1, false);
    let threads = two_of_whom_one_gives_up(&world, false);
    world.pay();
    all_end(&world, threads);
}

/// Both wait for a page, without an alarm; with the page comes a debt, which time pays.
fn the_first_hears_of_room_that_comes_with_a_debt(has_errand: bool) {
    let world = SwitchState::new(1, true);
    let page = world.budget.try_take(1, 0).expect("the only page");
    let threads = two_of_whom_one_gives_up(&world, has_errand);
    *world.is_paid.lock() = false;
    drop(page);
    world.pay();
    all_end(&world, threads);
}

/// Four waiters that only their own share stops, and one that holds nothing.
fn who_has_its_share_is_not_in_the_way_of_one_who_has_nothing() {
    let world = SwitchState::new(20, true);
    let mut pages = world.budget.try_take(20, 0).expect("all of them");
    let heavy: Vec<_> = (0..4).map(|_| Writer::of(1, 80)).collect();
    let threads: Vec<_> = heavy.iter().map(|heavy| heavy.start(&world, false)).collect();
    let light = Writer::of(1, 0).start(&world, false);
    drop(pages.split(1));
    light.join().expect("it has its page");
    heavy.iter().for_each(|heavy| heavy.give_up());
    drop(pages);
    all_end(&world, threads);
}

/// One waiter wants a page, and is busy for a moment; one behind it wants two, and is called
/// meanwhile: there is one page.
fn what_is_too_little_for_one_goes_to_one_before_it() {
    let world = SwitchState::new(2, true);
    let mut pages = world.budget.try_take(2, 0).expect("all of them");
    let small = Writer::of(1, 0);
    let queued = small.queue(&world);
    let large = Writer::of(2, 0).start(&world, false);
    let look = || small.look(&world, &queued, &mut false);
    assert!(look().is_none());
    queued.set_busy();
    assert!(look().is_none());
    drop(pages.split(1));
    small.event.wait();
    while look().is_none() {
        small.event.wait();
    }
    drop(queued);
    drop(pages);
    all_end(&world, vec![large]);
}

/// The first waiter is stopped by its own share; one that may have been called for the page is busy
/// until the last one has had it.
fn who_is_busy_for_long_has_others_called() {
    let world = SwitchState::new(20, true);
    let mut pages = world.budget.try_take(20, 0).expect("all of them");
    let (heavy, light, busy) = (Writer::of(1, 80), Writer::of(1, 0), Writer::of(1, 0));
    let waits = heavy.start(&world, false);
    let (ends, works) = (Arc::<Event>::default(), Arc::clone(&world));
    let is_busy = {
        let ends = Arc::clone(&ends);
        thread::spawn(move || {
            let queued = busy.queue(&works);
            if busy.look(&works, &queued, &mut false).is_none() {
                queued.set_busy();
                ends.wait();
            }
        })
    };
    let light = light.start(&world, false);
    drop(pages.split(1));
    light.join().expect("it has its page");
    ends.set();
    heavy.give_up();
    drop(pages);
    all_end(&world, vec![waits, is_busy]);
}

/// One wants two pages; one that wants one, and may have been called for it, goes to another line.
fn who_goes_to_another_line_leaves_its_call_behind() {
    let world = SwitchState::new(2, true);
    let mut pages = world.budget.try_take(2, 0).expect("all of them");
    let (stays, goes) = (Writer::of(2, 0), Writer::of(1, 0));
    let (stayed, gone) = (stays.start(&world, false), goes.start(&world, false));
    let moves = {
        let (world, goes) = (Arc::clone(&world), Arc::clone(&goes));
        thread::spawn(move || goes.go_elsewhere(&world))
    };
    drop(pages.split(1));
    drop(pages);
    stayed.join().expect("it has its pages");
    goes.give_up();
    all_end(&world, vec![gone, moves]);
}

/// A call for room that is not used goes to the next in line.
#[test]
fn a_call_that_is_not_used_goes_to_the_next() {
    model::check(|| whoever_leaves_has_the_next_called(false));
}

#[test]
fn nor_does_one_who_is_busy_keep_it() {
    model::check(|| whoever_leaves_has_the_next_called(true));
}

/// A waiter that was called and is busy for long does not keep the call: others are called.
#[test]
fn nor_does_one_who_is_busy_for_long() {
    model::check(who_is_busy_for_long_has_others_called);
}

/// The next in line reads the clock when the first has gone.
#[test]
fn the_next_looks_at_the_clock_when_the_first_has_gone() {
    model::check(somebody_looks_at_the_clock);
}

/// The first in line reads the clock when room comes together with a debt, which time pays.
#[test]
fn the_first_looks_at_the_clock_when_room_comes_with_a_debt() {
    model::check(|| the_first_hears_of_room_that_comes_with_a_debt(false));
}

#[test]
fn nor_is_the_first_passed_over_for_one_behind_it() {
    model::check(|| the_first_hears_of_room_that_comes_with_a_debt(true));
}

/// Room that is too little for one behind goes to one before it that it is enough for, though that
/// was busy when the room came.
#[test]
fn nor_for_one_behind_it_that_wants_more() {
    model::check(what_is_too_little_for_one_goes_to_one_before_it);
}

/// A waiter that has used up its share is not in the way of one that holds nothing.
#[test]
fn a_share_that_is_used_up_is_in_nobody_elses_way() {
    model::check(who_has_its_share_is_not_in_the_way_of_one_who_has_nothing);
}

/// A waiter that was called and goes to another line leaves its call to those in the first.
#[test]
fn a_call_stays_in_its_line() {
    model::check(who_goes_to_another_line_leaves_its_call_behind);
}

#[test]
fn each_mutant_is_caught() {
    mutant::assert_caught("a_call_that_is_not_used_goes_to_the_next", &["budget-keeps-a-call"], "deadlock");
    mutant::assert_caught("nor_does_one_who_is_busy_for_long", &["budget-keeps-a-call"], "deadlock");
    let test = "the_next_looks_at_the_clock_when_the_first_has_gone";
    mutant::assert_caught(test, &["budget-nobody-follows"], "deadlock");
    let test = "the_first_looks_at_the_clock_when_room_comes_with_a_debt";
    mutant::assert_caught(test, &["budget-first-like-others"], "deadlock");
    let test = "nor_for_one_behind_it_that_wants_more";
    mutant::assert_caught(test, &["budget-calls-those-behind-only"], "deadlock");
    let test = "a_share_that_is_used_up_is_in_nobody_elses_way";
    mutant::assert_caught(test, &["budget-one-share-ends-the-line"], "deadlock");
    mutant::assert_caught("a_call_stays_in_its_line", &["budget-takes-a-call-along"], "deadlock");
}
