//! Reading threads under many schedules, with mutants that the same test catches.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use store::MemStore;
use sync::atomic::{AtomicUsize, Ordering};
use sync::{model, mutant, thread};
use volume::{Options, Volume};

use super::*;

/// A thread always reads requests, if there is one that could.
///
/// All readers get a request that lasts, while two other threads are through with theirs. There can
/// be no further thread. Each of the two gets a lasting request as well, so that both are needed,
/// one after the other: if one rests while no thread reads, nothing wakes it any more.
#[test]
fn somebody_always_reads() {
    check(false);
}

/// A thread always reads requests in a pool where one thread reads, too.
#[test]
fn somebody_always_reads_where_nobody_waits() {
    check(true);
}

fn check(is_relaxed: bool) {
    model::check(move || {
        let options = Options { flushers: 1, ..Options::default() };
        let volume = Volume::new(MemStore::new(1 << 20), options).unwrap();
        let (_kernel, device) = rustix::pipe::pipe().unwrap();
        let mut pool = ThreadPool::new(0);
        pool.threads_max = 0;
        if is_relaxed {
            pool.relax();
        }
        let readers = pool.idle_max();
        pool.idle = AtomicUsize::new(readers);
        let shared = Connection::without_kernel(Arc::clone(&volume), Arc::new(Dev::new(device)), pool);
        let shared = Arc::new(shared);
        let readers = (0..readers).map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.pool.on_request_taken(&shared))
        });
        let finishers = (0..2).map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                assert!(shared.pool.after_request(&Arc::default()), "told to end");
                shared.pool.on_request_taken(&shared);
            })
        });
        for thread in readers.chain(finishers).collect::<Vec<_>>() {
            thread.join().unwrap();
        }
        // ORDERING: Relaxed, all others have ended.
        assert_eq!(shared.pool.idle.load(Ordering::Relaxed), 0, "some are counted that do not read");
        volume.shutdown();
    });
}

#[test]
fn a_pool_without_a_reader_is_caught() {
    for test in ["somebody_always_reads", "somebody_always_reads_where_nobody_waits"] {
        let test = format!("transport::dev_fuse::schedules::{test}");
        mutant::assert_caught(&test, &["reader-rests-unchecked"], "deadlock");
        let objections = ["deadlock", "some are counted that do not read"];
        mutant::assert_caught_by_any(&test, &["reader-not-counted"], &objections);
    }
}
