//! Files that are closed while the store does not answer, under many schedules, with mutants that
//! the same test catches.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-volume --lib deferred_close`

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use store::{At, HookStore, MemStore, ObjectId};
use sync::atomic::{AtomicUsize, Ordering};
use sync::{model, mutant, thread};

use crate::{Caller, Cancel, Ctx, HandleId, NodeId, OpenFlags, Options, Volume};

fn create(volume: &Volume, name: &str) -> (NodeId, HandleId) {
    let (caller, cancel) = (Caller::default(), Cancel::default());
    let ctx = Ctx { caller, cancel: &cancel, before_wait: &|| {} };
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (entry, handle) = volume.create(&ctx, ObjectId::ROOT, OsStr::new(name), 0o600, flags).unwrap();
    (entry.id, handle)
}

fn release(volume: &Volume, (id, handle): (NodeId, HandleId)) {
    volume.release(handle);
    volume.forget(id, 1);
}

/// What is let go of while the store does not answer is seen to, and before the store is free.
#[test]
fn all_that_was_let_go_of_is_seen_to_before_the_store_is_free() {
    model::check(|| {
        let store = HookStore::new(MemStore::new(1 << 20));
        let options = Options { flushers: 1, dirty_after: Duration::from_secs(3600), ..Options::default() };
        let volume = Volume::new(Arc::clone(&store) as _, options).unwrap();
        let (forgotten, at_close) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, copied) = (Arc::clone(&forgotten), Arc::clone(&at_close));
        store.hook(move |at, op| {
            match (at, op) {
                (At::After, "forget") => drop(counted.fetch_add(1, Ordering::SeqCst)),
                (At::Before, "close") => copied.store(counted.load(Ordering::SeqCst), Ordering::SeqCst),
                _ => {}
            }
            Ok(())
        });
        let (one, two) = (create(&volume, "one"), create(&volume, "two"));
        volume.core.stall.set_reported();
        let other = {
            let volume = Arc::clone(&volume);
            thread::spawn(move || release(&volume, one))
        };
        release(&volume, two);
        other.join().unwrap();
        assert!(volume.shutdown().is_complete());
        let at_close = at_close.load(Ordering::SeqCst);
        assert!(at_close == 2, "the store was free before all was seen to: {at_close} of 2");
    });
}

#[test]
fn what_is_left_for_ever_is_caught() {
    let test = "deferred_close::schedules::all_that_was_let_go_of_is_seen_to_before_the_store_is_free";
    let mutants = ["later-ends-late", "later-looks-first", "later-not-waited-for"];
    mutant::assert_caught(test, &mutants, "the store was free before all was seen to");
}
