//! The watchdog's protocol under many schedules, with mutants that the same tests catch.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`
//!
//! A thread in the idle class stops wherever it stands, until the watchdog gives it the normal one:
//! a guard that sleeps, or has ended, is a deadlock.

use sync::{model, mutant, thread};

use super::policy::Tid;
use super::*;

fn serve(watchdog: &Arc<Watchdog>, requests: u64) -> Tid {
    let mut handle = watchdog.register();
    handle.pace = Pace { served: PACE, since_ms: 0 };
    for n in 0..requests {
        // Taken again, gone on with, left, taken.
        handle.before_wait(0, n != 2);
    }
    let tid = Arc::clone(&handle.sched.tid);
    drop(handle);
    tid
}

/// Threads come, take the class and go; the watchdog ends after them, or before.
fn check(ends_early: bool) {
    model::check(move || {
        let watchdog = Arc::new(Watchdog::new(Cpus::new(), true));
        let servers: Vec<_> = (0..2)
            .map(|_| {
                let watchdog = Arc::clone(&watchdog);
                thread::spawn(move || serve(&watchdog, 4))
            })
            .collect();
        if ends_early {
            watchdog.end();
        }
        for server in servers {
            assert!(!server.join().unwrap().is_idle(), "left in the idle class");
        }
        watchdog.wait();
    });
}

/// A serving thread that stops in the idle class, wherever it stands, gets its own class back.
#[test]
fn nobody_starves() {
    check(false);
}

/// It does so also where the watchdog ends meanwhile.
#[test]
fn nobody_starves_after_the_end() {
    check(true);
}

/// A serving thread that has not seen a ban, and takes the idle class all the same, gets its
/// own class back.
#[test]
fn nobody_starves_in_a_ban() {
    model::check(|| {
        let watchdog = Arc::new(Watchdog::new(Cpus::new(), true));
        // ORDERING: Relaxed, there are no other threads yet.
        watchdog.has_thread.store(true, Ordering::Relaxed);
        let this = Arc::clone(&watchdog);
        let watcher = thread::spawn(move || {
            let mut detector = StarvationDetector::default();
            detector.ban.begin();
            this.run_loop(detector);
        });
        assert!(!serve(&watchdog, 2).is_idle());
        watchdog.end();
        watcher.join().unwrap();
    });
}

#[test]
fn a_guard_that_sleeps_unseen_in_a_ban_is_caught() {
    mutant::assert_caught(
        "transport::uring::idle_sched::schedules::nobody_starves_in_a_ban",
        &["stay-ban-unseen"],
        "deadlock",
    );
}

#[test]
fn threads_that_nobody_sees_are_caught() {
    let mutants = ["stay-takes-unseen", "stay-leaves-unseen", "stay-rings-late", "stay-clears-taking"];
    mutant::assert_caught("transport::uring::idle_sched::schedules::nobody_starves", &mutants, "deadlock");
}

#[test]
fn a_guard_that_ends_too_early_is_caught() {
    mutant::assert_caught(
        "transport::uring::idle_sched::schedules::nobody_starves_after_the_end",
        &["stay-ends-at-once"],
        "deadlock",
    );
}
