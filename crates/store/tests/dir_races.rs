//! A directory store while several threads and processes change it at once.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod suite;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use suite::{ROOT, create, lookup, me, mkdir, n, write};
use watertight_store::{DirStore, RenameFlags, Store, Timestamp};

#[test]
fn a_file_that_gets_its_name_during_a_sync_is_synced_by_the_next_one() {
    const ROUNDS: usize = 20_000;
    // The window is a few instructions wide: once in ten thousand rounds, where syncing costs
    // nothing.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let store = DirStore::open(dir.path()).unwrap();
    if store.tmpfile(ROOT, 0o600, me()).map(|made| store.forget(made.entry.id, 1)).is_err() {
        testing::skipped("the host's file system has no O_TMPFILE");
        return;
    }
    let barrier = Barrier::new(2);
    let mut missed = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                barrier.wait();
                store.sync().unwrap();
                barrier.wait();
            }
        });
        for _ in 0..ROUNDS {
            let made = store.tmpfile(ROOT, 0o600, me()).unwrap();
            write(&*made.file, b"x", 0);
            let before = store.counters().data_syncs;
            barrier.wait();
            store.link(made.entry.id, ROOT, n("linked")).unwrap();
            barrier.wait();
            store.sync().unwrap();
            missed += usize::from(store.counters().data_syncs == before);
            store.unlink(ROOT, n("linked")).unwrap();
            drop(made.file);
            store.forget(made.entry.id, 2);
        }
    });
    assert_eq!(missed, 0, "of {ROUNDS} files were never synced");
}

#[test]
fn a_file_that_is_moved_through_directories_does_not_keep_them_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirStore::open(dir.path()).unwrap();
    let made = create(&*store, ROOT, "f");
    let before = store.counters().open;
    for round in 0..100 {
        let name = format!("d{round}");
        let passed = mkdir(&*store, ROOT, &name);
        store.rename(ROOT, n("f"), passed.id, n("f"), RenameFlags::empty()).unwrap();
        store.rename(passed.id, n("f"), ROOT, n("f"), RenameFlags::empty()).unwrap();
        store.rmdir(ROOT, n(&name)).unwrap();
        store.forget(passed.id, 1);
    }
    let more = store.counters().open - before;
    assert!(more < 20, "{more} descriptors of removed directories are open");
    made.file.sync(false).unwrap();
    store.sync().unwrap();
    assert_eq!(store.counters().unsynced, 0);
}

#[test]
fn the_store_s_clock_is_not_ahead_of_the_host_s_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirStore::open(dir.path()).unwrap();
    for round in 0..200 {
        let before = Timestamp::now();
        let made = create(&*store, ROOT, &format!("f{round}"));
        assert!(made.entry.attr.mtime >= before, "{:?} is before {before:?}", made.entry.attr.mtime);
    }
    // By the clock that is not coarse: since Linux 6.13 a file system's times may be ahead of the
    // coarse one.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let mtime = lookup(&*store, ROOT, "f0").attr.mtime;
    let mtime = Duration::new(mtime.secs.try_into().unwrap(), mtime.nanos);
    assert!(mtime <= now, "{mtime:?} is after {now:?}");
}
