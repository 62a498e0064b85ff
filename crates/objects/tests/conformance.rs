//! The conformance suite of stores, on a volume in a bucket.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

#[path = "../../store/tests/suite/mod.rs"]
mod suite;

extern crate store as watertight_store;

use std::sync::Arc;

use object_store::memory::InMemory;

#[test]
fn a_volume_in_memory() {
    suite::run(|| watertight_objects::open_unheld(Arc::new(InMemory::new()), "volume").unwrap());
}

/// A server's threads have little more.
#[test]
fn a_volume_ends_on_a_thread_with_a_small_stack() {
    let store = watertight_objects::open_unheld(Arc::new(InMemory::new()), "volume").unwrap();
    let ending = std::thread::Builder::new().stack_size(128 << 10).spawn(move || store.close());
    ending.unwrap().join().unwrap();
}
