//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-volume --lib schedules`

use std::sync::Arc;
use std::time::Duration;

use store::{MemStore, Store, Watch};
use sync::{model, mutant, thread};

use super::Stall;
use crate::events::Events;

/// One call, which each of two threads that check may see under way, or not: a stall at most,
/// whichever was first.
fn two_look() {
    let (store, watch) = Watch::over(MemStore::new(1 << 20) as Arc<dyn Store>);
    let stall = Arc::new(Stall::new(watch, Duration::ZERO));
    let events = Arc::new(Events::default());
    let caller = thread::spawn(move || drop(store.statfs()));
    let other = {
        let (stall, events) = (Arc::clone(&stall), Arc::clone(&events));
        thread::spawn(move || stall.look(&events))
    };
    let _one = stall.look(&events);
    let _again = stall.look(&events);
    let _other = other.join().unwrap();
    caller.join().unwrap();
    assert_eq!(stall.look(&events), None);
    assert!(stall.count() <= 1, "one call was told of twice");
    assert!(!stall.is_reported(), "it is not under way any more");
}

/// A call that the store does not answer is reported once, whichever thread checks.
#[test]
fn a_call_is_told_of_once_by_whoever_looks() {
    model::check(two_look);
}

#[test]
fn what_was_seen_before_the_others_have_told_is_caught() {
    let test = "stall::schedules::a_call_is_told_of_once_by_whoever_looks";
    mutant::assert_caught(test, &["stall-seen-before"], "one call was told of twice");
}
