//! The conformance suite, on every store.

mod suite;

use std::sync::Arc;

use watertight_store::{DirStore, FaultStore, MemStore, Store};

#[test]
fn dir_store() {
    let top = tempfile::tempdir().unwrap();
    let next = std::cell::Cell::new(0);
    suite::run(|| {
        next.set(next.get() + 1);
        let path = top.path().join(next.get().to_string());
        std::fs::create_dir(&path).unwrap();
        DirStore::open(&path).unwrap() as Arc<dyn Store>
    });
}

#[test]
fn mem_store() {
    suite::run(|| MemStore::new(1 << 30) as Arc<dyn Store>);
}

#[test]
fn fault_store_without_rules() {
    suite::run(|| FaultStore::new(MemStore::new(1 << 30), "").unwrap() as Arc<dyn Store>);
}
