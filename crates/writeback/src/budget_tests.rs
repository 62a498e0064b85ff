use super::*;
use std::sync::atomic::AtomicUsize as Count;

fn held(n: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(n))
}

#[test]
fn the_limit_is_hard_and_everything_comes_back() {
    let budget = Budget::new(100);
    let mut all = Vec::new();
    while let Some(permit) = budget.try_take(1, 0) {
        all.push(permit);
    }
    assert_eq!(budget.used(), 100);
    drop(all);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_heavy_owner_stops_at_four_fifths_and_a_light_one_finds_room() {
    let budget = Budget::new(1000);
    let mut heavy = Vec::new();
    while let Some(permit) = budget.try_take(1, heavy.len() as u64) {
        heavy.push(permit);
    }
    assert_eq!(heavy.len(), 800);
    assert!(budget.try_take(10, 0).is_some());
    assert!(budget.try_take(10, 800).is_none());
}

#[test]
fn a_permit_splits_and_returns_its_rest() {
    let budget = Budget::new(10);
    let mut permit = budget.try_take(8, 0).unwrap();
    let part = permit.split(3).unwrap();
    assert!(permit.split(6).is_none());
    drop(permit);
    assert_eq!((budget.used(), part.pages()), (3, 3));
    drop(part);
    assert_eq!(budget.used(), 0);
}

#[test]
fn waiters_are_called_when_their_pages_are_there_and_not_after_they_left() {
    let budget = Budget::new(4);
    let (first, second) = (budget.try_take(2, 0).unwrap(), budget.try_take(2, 0).unwrap());
    let calls = Arc::new(Count::new(0));
    let count = Arc::clone(&calls);
    let wake = Box::new(move || {
        // ORDERING: SeqCst throughout this file: counts of a test's calls, all of one thread.
        count.fetch_add(1, Ordering::SeqCst);
    });
    let queued = budget.queue(Waiter { pages: 3, held: held(0), may_go: Box::new(|| true), wake });
    drop(first);
    assert_eq!(calls.load(Ordering::SeqCst), 0, "two free pages are not three");
    drop(second);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    drop(queued);
    drop(budget.try_take(1, 0));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn pages_wake_nobody_who_has_something_else_in_its_way() {
    let budget = Budget::new(4);
    let (calls, is_free) = (Arc::new(Count::new(0)), Arc::new(Count::new(0)));
    let (count, free) = (Arc::clone(&calls), Arc::clone(&is_free));
    let wake = Box::new(move || _ = count.fetch_add(1, Ordering::SeqCst));
    let may_go = Box::new(move || free.load(Ordering::SeqCst) > 0);
    let _queued = budget.queue(Waiter { pages: 1, held: held(0), may_go, wake });
    drop(budget.try_take(1, 0));
    assert_eq!(calls.load(Ordering::SeqCst), 0, "there is room, and not for it");
    budget.wake_all();
    assert_eq!(calls.load(Ordering::SeqCst), 1, "something has changed");
    is_free.store(1, Ordering::SeqCst);
    budget.tell();
    assert_eq!(calls.load(Ordering::SeqCst), 2, "what was in its way is gone");
}
