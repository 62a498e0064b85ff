//! A store that fails on purpose does so as its rules say.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod suite;

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use suite::{ROOT, content, create, kind, list, n, write};
use watertight_store::{ErrorKind, FaultOp, FaultStore, MemStore, Store};

/// Long enough for any machine; never waited for when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

fn store(rules: &str) -> Arc<FaultStore> {
    FaultStore::new(MemStore::new(64 << 20), rules).unwrap()
}

#[test]
fn fails_the_nth_call_only() {
    let store = store("write:nth=3:fail=ENOSPC");
    let made = create(&*store, ROOT, "f");
    for (i, expected) in [None, None, Some(ErrorKind::NoSpace), None].into_iter().enumerate() {
        let result = made.file.write_at(&[IoSlice::new(b"x")], i as u64);
        assert_eq!(result.err().map(|e| e.kind()), expected, "write {i}");
    }
    assert_eq!(content(&*store, made.entry.id), b"xx\0x");
    assert_eq!(store.calls(FaultOp::Write), 4);
    assert_eq!(store.calls(FaultOp::FileSync), 0);
}

#[test]
fn fails_from_a_call_on_until_the_rules_change() {
    let store = store("lookup:from=2:fail=EIO");
    create(&*store, ROOT, "f");
    assert!(store.lookup(ROOT, n("f")).is_ok());
    for _ in 0..3 {
        assert_eq!(kind(store.lookup(ROOT, n("f"))), ErrorKind::Io);
    }
    store.set_rules("").unwrap();
    assert!(store.lookup(ROOT, n("f")).is_ok());
    assert!(store.set_rules("nonsense").is_err());
    assert_eq!(store.calls(FaultOp::Lookup), 5);
}

#[test]
fn a_torn_write_leaves_its_first_half() {
    let store = store("write:nth=2:torn");
    let made = create(&*store, ROOT, "f");
    write(&*made.file, b"0000000000", 0);
    let torn = made.file.write_at(&[IoSlice::new(b"abc"), IoSlice::new(b"defgh")], 1);
    assert_eq!(torn.unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(content(&*store, made.entry.id), b"0abcd00000");
    store.set_rules("write:torn:fail=EDQUOT").unwrap();
    assert_eq!(made.file.write_at(&[IoSlice::new(b"zz")], 9).unwrap_err().kind(), ErrorKind::Quota);
    assert_eq!(content(&*store, made.entry.id), b"0abcd0000z");
}

#[test]
fn a_failed_call_does_nothing() {
    let store = store("*:fail=EIO");
    assert_eq!(kind(store.create(ROOT, n("f"), 0o600, suite::me())), ErrorKind::Io);
    assert_eq!(kind(store.open_dir(ROOT)), ErrorKind::Io);
    store.set_rules("list:fail=EIO").unwrap();
    let dir = store.open_dir(ROOT).unwrap();
    assert_eq!(kind(dir.list(0, &mut |_| true)), ErrorKind::Io);
    store.set_rules("").unwrap();
    assert!(list(&*store, ROOT).is_empty());
}

#[test]
fn delays_take_their_time() {
    let store = store("*:delay=10ms;attr:delay=15ms");
    let start = Instant::now();
    store.attr(ROOT).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(25));
}

#[test]
fn what_hangs_goes_on_when_released() {
    let store = store("sync:hang");
    let made = create(&*store, ROOT, "f");
    let hung = {
        let store = Arc::clone(&store);
        std::thread::spawn(move || (store.sync(), made.file.sync(true)))
    };
    assert!(store.wait_hanging(1, PATIENCE));
    assert_eq!(store.hanging(), 1);
    write(&*create(&*store, ROOT, "g").file, b"others go on", 0);
    store.release();
    let (store_sync, file_sync) = hung.join().unwrap();
    assert!(store_sync.is_ok() && file_sync.is_ok());
    assert_eq!(store.hanging(), 0);
    store.sync().unwrap();
}

#[test]
fn what_hangs_ends_when_the_store_is_closed() {
    let store = store("read:hang;attr:delay=3600s");
    let made = create(&*store, ROOT, "f");
    let reader = std::thread::spawn(move || made.file.read_at(&mut [0], 0));
    let slow = {
        let store = Arc::clone(&store);
        std::thread::spawn(move || store.attr(ROOT))
    };
    assert!(store.wait_hanging(1, PATIENCE));
    store.close();
    assert_eq!(kind(reader.join().unwrap()), ErrorKind::Io);
    assert_eq!(kind(slow.join().unwrap()), ErrorKind::Io);
}
