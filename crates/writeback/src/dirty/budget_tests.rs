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
    let queued = budget.queue(0, Waiter { pages: 3, held: held(0), may_go: Box::new(|_, _| true), wake });
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
    let may_go = Box::new(move |_, _| free.load(Ordering::SeqCst) > 0);
    let _queued = budget.queue(0, Waiter { pages: 1, held: held(0), may_go, wake });
    drop(budget.try_take(1, 0));
    assert_eq!(calls.load(Ordering::SeqCst), 0, "there is room, and not for it");
    budget.wake_all();
    assert_eq!(calls.load(Ordering::SeqCst), 1, "something has changed");
    is_free.store(1, Ordering::SeqCst);
    budget.wake_fitting();
    assert_eq!(calls.load(Ordering::SeqCst), 2, "what was in its way is gone");
}

/// Each waits for a page; the second is how often it was called.
fn waiters<'b>(budget: &'b Arc<Budget>, lines: &[u64]) -> Vec<(Queued<'b>, Arc<Count>)> {
    let one = |line: &u64| {
        let calls = Arc::new(Count::new(0));
        let count = Arc::clone(&calls);
        let wake = Box::new(move || _ = count.fetch_add(1, Ordering::SeqCst));
        let queued =
            budget.queue(*line, Waiter { pages: 1, held: held(0), may_go: Box::new(|_, _| true), wake });
        assert!(queued.look(*line, || budget.try_take(1, 0)).is_none(), "there is no room yet");
        (queued, calls)
    };
    lines.iter().map(one).collect()
}

fn calls(of: &[(Queued<'_>, Arc<Count>)]) -> Vec<usize> {
    of.iter().map(|(_, calls)| calls.load(Ordering::SeqCst)).collect()
}

#[test]
fn a_page_calls_one_of_each_line_and_whoever_does_not_take_it_has_the_next_called() {
    let budget = Budget::new(4);
    let mut all: Vec<_> = (0..4).map(|_| budget.try_take(1, 0).unwrap()).collect();
    let mut waiting = waiters(&budget, &[1, 1, 1, 2, 1, 2]);
    all.pop();
    assert_eq!(calls(&waiting), [1, 0, 0, 1, 0, 0]);
    // Promised pages are not promised again.
    budget.wake_fitting();
    assert_eq!(calls(&waiting), [1, 0, 0, 1, 0, 0]);
    all.pop();
    assert_eq!(calls(&waiting), [1, 1, 0, 1, 0, 1]);
    // It ends for another reason.
    drop(waiting.remove(0));
    assert_eq!(calls(&waiting), [1, 1, 1, 0, 1]);
    // It has something else to do first.
    waiting[0].0.set_busy();
    assert_eq!(calls(&waiting), [1, 1, 1, 1, 1]);
}

#[test]
fn a_large_release_calls_as_many_as_it_is_enough_for() {
    let budget = Budget::new(100);
    let all: Vec<_> = (0..100).map(|_| budget.try_take(1, 0).unwrap()).collect();
    let waiting = waiters(&budget, &[1; 200]);
    let mut all = all.into_iter();
    let mut whole = all.next().unwrap();
    all.by_ref().take(69).for_each(|one| whole.join(one));
    drop(whole);
    let found = calls(&waiting);
    assert_eq!(found.iter().sum::<usize>(), 70);
    assert!(found[..70].iter().all(|&calls| calls == 1), "the first come first");
}
