//! Reading threads under many schedules, with mutants that the same test catches.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use std::time::Instant;

use store::MemStore;
use sync::atomic::{AtomicUsize, Ordering};
use sync::{Condvar, Mutex, model, mutant, thread};
use volume::{Options, Volume};

use super::pool::ThreadPool;
use super::*;

/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(3600);

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

/// A pause leaves no thread that reads.
///
/// One thread reads, another one is through with its request and is about to read or to park. Each
/// of those that read gets a message, and both park.
#[test]
fn a_pause_reaches_every_reader() {
    model::check(|| {
        let options = Options { flushers: 1, ..Options::default() };
        let volume = Volume::new(MemStore::new(1 << 20), options).unwrap();
        let (_kernel, device) = rustix::pipe::pipe().unwrap();
        let mut pool = ThreadPool::new(2);
        pool.idle = AtomicUsize::new(1);
        pool.add_thread();
        pool.add_thread();
        let shared = Connection::without_kernel(Arc::clone(&volume), Arc::new(Dev::new(device)), pool);
        let shared = Arc::new(shared);
        let messages = Arc::new((Mutex::new(0_usize), Condvar::default()));
        let threads = [true, false].map(|reads| {
            let (shared, messages) = (Arc::clone(&shared), Arc::clone(&messages));
            thread::spawn(move || {
                let parker = Arc::default();
                let mut goes_on = reads || shared.pool.after_request(&parker);
                while goes_on {
                    let (waiting, came) = &*messages;
                    let mut waiting = waiting.lock();
                    while *waiting == 0 {
                        came.wait(&mut waiting);
                    }
                    *waiting -= 1;
                    drop(waiting);
                    shared.pool.on_request_taken(&shared);
                    goes_on = shared.pool.after_request(&parker);
                }
            })
        });
        let is_still = shared.pool.pause(
            Instant::now() + LONG,
            |readers| {
                *messages.0.lock() += readers;
                messages.1.notify_all();
            },
            || true,
        );
        assert!(is_still, "a thread still reads");
        shared.pool.end(ReadEnd::Unmounted);
        for thread in threads {
            thread.join().unwrap();
        }
        volume.shutdown();
    });
}

#[test]
fn a_pause_that_a_reader_does_not_see_is_caught() {
    let test = "transport::dev_fuse::schedules::a_pause_reaches_every_reader";
    mutant::assert_caught_by_any(test, &["pause-unseen"], &["deadlock", "a thread still reads"]);
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
