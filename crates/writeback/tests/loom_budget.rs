//! The budget's protocol between waiters and givers, under loom.
//!
//! `take` does the steps of the volume's `Inode::reserve`. The volume's test `schedules` checks,
//! with the mutant `volume-reserve-once`, that the volume tries a second time after it has queued.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-writeback --release --test loom_budget`
#![cfg(loom)]

#[path = "common/event.rs"]
mod event;

use std::sync::Arc;

use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{mutant, thread};
use watertight_writeback::{Budget, Waiter};

use event::Event;

/// Takes one page of a budget of one, waiting as writers do.
fn take(budget: &Arc<Budget>) {
    if budget.try_take(1, 0).is_some() {
        return;
    }
    let event = Arc::new(Event::default());
    let woken = Arc::clone(&event);
    let wake = Box::new(move || woken.set());
    let waiter = Waiter { pages: 1, held: Arc::new(AtomicU64::new(0)), may_go: Box::new(|_, _| true), wake };
    let queued = budget.queue(1, waiter);
    while queued.look(1, || budget.try_take(1, 0)).is_none() {
        event.wait();
    }
}

/// A writer that waits for room is never forgotten.
#[test]
fn a_waiter_is_never_forgotten() {
    loom::model(move || {
        let budget = Budget::new(1);
        let held = budget.try_take(1, 0).expect("the first page");
        let waiter = {
            let budget = Arc::clone(&budget);
            thread::spawn(move || take(&budget))
        };
        drop(held);
        waiter.join().expect("the waiter gets its page");
        assert_eq!(budget.used(), 0);
    });
}

/// A writer that waits for a lock on its data is woken when it is released.
#[test]
fn a_waiter_hears_of_a_lock_that_was_given_free() {
    loom::model(|| {
        let budget = Budget::new(1);
        let _full = budget.try_take(1, 0).expect("the only page");
        // As weak as a lock may be.
        let is_taken = Arc::new(AtomicBool::new(true));
        let held = Arc::new(AtomicU64::new(0));
        let waiter = {
            let (budget, is_taken, held) = (Arc::clone(&budget), Arc::clone(&is_taken), Arc::clone(&held));
            thread::spawn(move || {
                let event = Arc::new(Event::default());
                let woken = Arc::clone(&event);
                let queued = budget.queue(
                    1,
                    Waiter {
                        pages: 1,
                        held,
                        may_go: Box::new(|_, _| true),
                        wake: Box::new(move || woken.set()),
                    },
                );
                while queued.look(1, || (!is_taken.load(Ordering::Acquire)).then_some(())).is_none() {
                    event.wait();
                }
            })
        };
        is_taken.store(false, Ordering::Release);
        budget.wake_owner(&held);
        waiter.join().expect("the waiter sees the lock free");
    });
}

#[test]
fn each_mutant_is_caught() {
    let mutants = ["budget-no-waiter-fence", "budget-no-owner-fence"];
    mutant::assert_caught("a_waiter_hears_of_a_lock_that_was_given_free", &mutants, "deadlock");
    let mutants = ["budget-no-waiter-fence", "budget-no-giver-fence"];
    mutant::assert_caught("a_waiter_is_never_forgotten", &mutants, "deadlock");
}

/// The limit holds, whichever writers come at once.
#[test]
fn the_limit_holds_whoever_comes_at_once() {
    loom::model(|| {
        let budget = Budget::new(2);
        let most = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (budget, most) = (Arc::clone(&budget), Arc::clone(&most));
                thread::spawn(move || {
                    if let Some(_permit) = budget.try_take(2, 0) {
                        // ORDERING: SeqCst here and below: the test's own count of permits; it must
                        // not be the weak part.
                        assert_eq!(most.fetch_add(1, Ordering::SeqCst), 0, "two hold two of two pages");
                        most.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no assertion failed");
        }
        assert_eq!(budget.used(), 0);
    });
}
