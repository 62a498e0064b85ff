//! Domains as they are, under random schedules.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-rcu --test schedules`
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sync::model::check;
use sync::mutant::assert_caught;
use sync::{Condvar, Mutex, thread};
use watertight_rcu::pool::{Pool, time};
use watertight_rcu::{Domain, DomainOptions, RcuCell};

// ORDERING: SeqCst here and below: oracles, which the schedules do not see.
const SC: Ordering = Ordering::SeqCst;

fn small(callbacks_max: usize) -> Domain {
    Domain::with_options(DomainOptions { callbacks_max, ..DomainOptions::default() })
}

/// A value that knows whether it was dropped while a thread reads it.
struct Watched(Arc<AtomicUsize>);

impl Drop for Watched {
    fn drop(&mut self) {
        assert_eq!(self.0.load(SC), 0, "dropped under a reader");
    }
}

/// A section lasts as long as its outermost guard.
#[test]
fn a_section_lasts_as_long_as_its_outermost_guard() {
    check(|| {
        let domain = Domain::new();
        let readers = Arc::new(AtomicUsize::new(0));
        let cell = Arc::new(RcuCell::new(&domain, Watched(Arc::clone(&readers))));
        let reader = {
            let (domain, cell) = (domain.clone(), Arc::clone(&cell));
            thread::spawn(move || {
                let outer = domain.read();
                let seen = Arc::clone(&cell.load(&outer).0);
                seen.fetch_add(1, SC);
                thread::yield_now();
                drop(domain.read());
                thread::yield_now();
                seen.fetch_sub(1, SC);
                drop(outer);
            })
        };
        drop(cell.replace(Watched(Arc::new(AtomicUsize::new(0)))).wait());
        reader.join().expect("the reader ends");
    });
}

/// A replaced value lasts as long as its readers, beside another thread's grace period, which may
/// have begun before the value was replaced.
#[test]
fn a_replaced_value_waits_for_who_reads_it() {
    check(|| {
        let domain = Domain::new();
        let readers = Arc::new(AtomicUsize::new(0));
        let cell = Arc::new(RcuCell::new(&domain, Watched(Arc::clone(&readers))));
        let reader = {
            let (domain, cell) = (domain.clone(), Arc::clone(&cell));
            thread::spawn(move || {
                let guard = domain.read();
                let seen = Arc::clone(&cell.load(&guard).0);
                seen.fetch_add(1, SC);
                thread::yield_now();
                seen.fetch_sub(1, SC);
            })
        };
        let other = {
            let domain = domain.clone();
            thread::spawn(move || domain.synchronize_expedited())
        };
        drop(cell.replace(Watched(Arc::new(AtomicUsize::new(0)))).wait());
        reader.join().expect("the reader ends");
        other.join().expect("the other ends");
    });
}

/// A barrier waits for callbacks that run.
#[test]
fn a_barrier_waits_for_callbacks_that_run() {
    check(|| {
        let domain = Domain::new();
        let ran = Arc::new(AtomicBool::new(false));
        let sets = Arc::clone(&ran);
        domain.call(move || {
            thread::yield_now();
            sets.store(true, SC);
        });
        domain.barrier();
        assert!(ran.load(SC), "the barrier did not wait");
    });
}

/// A thread that fills the queues of callbacks goes on when there is room, and the queues are
/// bounded.
#[test]
fn who_fills_the_queues_up_goes_on() {
    check(|| {
        let domain = small(2);
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let domain = domain.clone();
                thread::spawn(move || {
                    for _ in 0..3 {
                        domain.call(thread::yield_now);
                        let stats = domain.stats();
                        // Each of the two has one more before it checks.
                        assert!(stats.callbacks_queued - stats.callbacks_run <= 3, "{stats:?}");
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().expect("a caller ends");
        }
        domain.barrier();
        assert_eq!(domain.stats().callbacks_run, 6);
    });
}

/// A callback runs though no thread waits for it.
#[test]
fn a_callback_runs_though_nobody_waits_for_it() {
    check(|| {
        let domain = small(100);
        let ran = Arc::new((Mutex::new(0), Condvar::new()));
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (domain, ran) = (domain.clone(), Arc::clone(&ran));
                // Each ends at once: its callbacks outlive it.
                thread::spawn(move || {
                    for _ in 0..2 {
                        let ran = Arc::clone(&ran);
                        domain.call(move || {
                            *ran.0.lock() += 1;
                            ran.1.notify_all();
                        });
                        thread::yield_now();
                    }
                })
            })
            .collect();
        let mut count = ran.0.lock();
        while *count < 4 {
            ran.1.wait(&mut count);
        }
        drop(count);
        for caller in callers {
            caller.join().expect("a caller ends");
        }
    });
}

#[test]
fn a_grace_period_comes_to_who_polls() {
    check(|| {
        let domain = Domain::new();
        let reader = {
            let domain = domain.clone();
            thread::spawn(move || drop(domain.read()))
        };
        let cookie = domain.start_poll();
        while !domain.poll_state(cookie) {
            thread::yield_now();
        }
        reader.join().expect("the reader ends");
    });
}

/// A callback beside the end of a pass runs: one caller finds the worker busy, another one has it
/// run everything and rest meanwhile.
#[test]
fn a_callback_beside_the_end_of_a_pass_runs() {
    check(|| {
        let domain = small(100);
        let ran = Arc::new((Mutex::new(0), Condvar::new()));
        let call = {
            let (domain, ran) = (domain.clone(), Arc::clone(&ran));
            move || {
                let ran = Arc::clone(&ran);
                domain.call(move || {
                    *ran.0.lock() += 1;
                    ran.1.notify_all();
                });
            }
        };
        let three = call.clone();
        let caller = thread::spawn(move || (0..3).for_each(|_| three()));
        call();
        let mut count = ran.0.lock();
        while *count < 4 {
            ran.1.wait(&mut count);
        }
        drop(count);
        caller.join().expect("the caller ends");
    });
}

/// Callbacks of two domains do not wait for each other, though each fills the other one's queues
/// up.
#[test]
fn callbacks_do_not_wait_for_another_domain() {
    check(|| {
        let domains = [small(1), small(1)];
        let callers: Vec<_> = [0, 1]
            .map(|number| {
                let (own, other) = (domains[number].clone(), domains[1 - number].clone());
                thread::spawn(move || {
                    own.call(move || (0..3).for_each(|_| other.call(thread::yield_now)));
                })
            })
            .into();
        for caller in callers {
            caller.join().expect("a caller ends");
        }
        // Twice: the first ones queue the others.
        for domain in domains.iter().chain(&domains) {
            domain.barrier();
        }
        for domain in &domains {
            assert_eq!(domain.stats().callbacks_run, 4);
        }
    });
}

/// A thread in a section of one domain that calls in another does not wait for room: the callback
/// there waits for this section.
#[test]
fn who_is_in_a_section_of_another_domain_does_not_wait_for_room() {
    check(|| {
        let (read, called) = (small(1), small(1));
        let caller = {
            let (read, called) = (read.clone(), called.clone());
            thread::spawn(move || {
                let guard = read.read();
                let waited_for = read.clone();
                called.call(move || waited_for.synchronize_expedited());
                called.call(thread::yield_now);
                drop(guard);
            })
        };
        caller.join().expect("the caller ends");
        called.barrier();
        assert_eq!(called.stats().callbacks_run, 2);
    });
}

/// Tasks that end only when all have begun.
type Task = Box<dyn FnOnce() + Send>;

fn meeting(of: usize) -> (impl Fn() -> Task, impl Fn()) {
    let met = Arc::new((Mutex::new(0), Condvar::new()));
    let all = Arc::clone(&met);
    let wait = move |met: &(Mutex<usize>, Condvar)| {
        let mut count = met.0.lock();
        while *count < of {
            met.1.wait(&mut count);
        }
    };
    let task = move || {
        let met = Arc::clone(&met);
        Box::new(move || {
            *met.0.lock() += 1;
            met.1.notify_all();
            wait(&met);
        }) as Task
    };
    (task, move || wait(&all))
}

fn pool() -> &'static Pool<Task> {
    Box::leak(Box::new(Pool::new(|task: Task| task())))
}

/// Three others rest, or have ended, or are about to.
fn pool_with_others() -> &'static Pool<Task> {
    let pool = pool();
    let (task, have_met) = meeting(3);
    for _ in 0..3 {
        pool.hand_over(task(), None).expect("a thread");
    }
    have_met();
    pool
}

/// Each task of a pool has a thread when its time comes, however long others take: some are for
/// now, some for soon, and a thread that takes one leaves another for the rest.
#[test]
fn each_task_of_a_pool_has_a_thread_when_its_time_comes() {
    check(|| {
        let pool = pool_with_others();
        let (task, have_met) = meeting(4);
        let (soon, now) = (task(), task());
        let other = thread::spawn(move || {
            pool.hand_over(soon, Some(time::now())).expect("a thread");
            pool.hand_over(now, None).expect("a thread");
        });
        for _ in 0..2 {
            pool.hand_over(task(), Some(time::now())).expect("a thread");
        }
        have_met();
        other.join().expect("the other ends");
        time::end(pool);
    });
}

/// A task of a pool that is expedited runs at once: its own time never comes.
#[test]
fn who_is_told_to_hurry_comes() {
    check(|| {
        let pool = pool_with_others();
        let (task, have_met) = meeting(3);
        let later = time::now() + Duration::from_secs(3600);
        let (first, second) = (task(), task());
        let other = thread::spawn(move || {
            let ticket = pool.hand_over(first, Some(later)).expect("a thread");
            assert!(pool.expedite(ticket), "a thread");
        });
        let ticket = pool.hand_over(second, Some(later)).expect("a thread");
        pool.hand_over(task(), Some(time::now())).expect("a thread");
        assert!(pool.expedite(ticket), "a thread");
        have_met();
        other.join().expect("the other ends");
        time::end(pool);
    });
}

#[test]
fn each_mutant_is_caught() {
    assert_caught(
        "each_task_of_a_pool_has_a_thread_when_its_time_comes",
        &["rcu-pool-first-untold", "rcu-pool-no-successor", "rcu-pool-successor-untold"],
        "deadlock",
    );
    assert_caught("who_is_told_to_hurry_comes", &["rcu-pool-hurry-untold"], "deadlock");
    assert_caught(
        "a_section_lasts_as_long_as_its_outermost_guard",
        &["rcu-nested-end"],
        "dropped under a reader",
    );
    assert_caught(
        "a_replaced_value_waits_for_who_reads_it",
        &["rcu-cookie-before-unpublish"],
        "dropped under a reader",
    );
    assert_caught("a_barrier_waits_for_callbacks_that_run", &["rcu-counted-before-run"], "did not wait");
    assert_caught("a_barrier_waits_for_callbacks_that_run", &["rcu-ran-untold"], "deadlock");
    assert_caught("who_fills_the_queues_up_goes_on", &["rcu-ran-untold"], "deadlock");
    assert_caught("callbacks_do_not_wait_for_another_domain", &["rcu-callback-waits"], "deadlock");
    assert_caught(
        "who_is_in_a_section_of_another_domain_does_not_wait_for_room",
        &["rcu-waits-in-section-of-another"],
        "deadlock",
    );
    assert_caught("a_callback_runs_though_nobody_waits_for_it", &["rcu-rest-unchecked"], "deadlock");
    assert_caught("a_callback_beside_the_end_of_a_pass_runs", &["rcu-crowd-unlocked"], "deadlock");
}
