//! A thread's callbacks, between it and the thread that invokes them, under loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-rcu --release --test loom_callback_list`
#![cfg(loom)]

use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Plain;

use loom::cell::UnsafeCell;
use sync::atomic::{AtomicBool, Ordering};
use sync::mutant::assert_caught;
use sync::thread;
use watertight_rcu::callback_list::Producer;
use watertight_rcu::callbacks::WorkerState;
use watertight_rcu::work::Work;

/// Works that assert that they run in order.
fn work(number: usize, ran: &Arc<Plain>) -> Work {
    let ran = Arc::clone(ran);
    // ORDERING: SeqCst, plain counting that the model does not see.
    Work::call(move || assert_eq!(ran.fetch_add(1, std::sync::atomic::Ordering::SeqCst), number))
}

/// A worker finds every callback that was queued, and runs those of a thread in its order.
#[test]
fn who_runs_finds_what_was_put_in() {
    loom::model(|| {
        let ran = Arc::new(Plain::new(0));
        let mut producer = Producer::default();
        let queue = Arc::clone(producer.list());
        let caller = {
            let ran = Arc::clone(&ran);
            thread::spawn(move || {
                // Through segments of one, two, and one that is used again if it is free by then.
                for number in 0..4 {
                    let _ = producer.push(work(number, &ran));
                }
                let _ = producer.push(Work::drop_box(Box::new(7)));
            })
        };
        queue.run(queue.queued(), 2, |_| ());
        queue.free();
        caller.join().expect("the caller ends");
        queue.run(queue.queued(), 2, |_| ());
        assert!(queue.has_run(5));
        assert_eq!(ran.load(std::sync::atomic::Ordering::SeqCst), 4);
    });
}

/// Written by a callback, read by a thread that waits for it.
struct Written(UnsafeCell<bool>);

// SAFETY: the model checks that no thread writes while another one reads.
unsafe impl Sync for Written {}
// SAFETY: as above.
unsafe impl Send for Written {}

/// A callback is counted after it ran.
#[test]
fn what_is_counted_has_run() {
    loom::model(|| {
        let written = Arc::new(Written(UnsafeCell::new(false)));
        let mut producer = Producer::default();
        let queue = Arc::clone(producer.list());
        let writes = Arc::clone(&written);
        producer.push(Work::call(move || {
            writes.0.with_mut(|written| {
                // SAFETY: the model checks that no other thread is there.
                unsafe { *written = true };
            });
        }));
        let runner = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.run(1, 1, |_| ()))
        };
        if queue.has_run(1) {
            // SAFETY: the model checks that no other thread is there.
            written.0.with(|written| assert!(unsafe { *written }));
        }
        runner.join().expect("the runner ends");
    });
}

/// No worker comes to rest beside a callback: the caller sees that the worker is absent and wakes
/// it, or the worker sees the call.
#[test]
fn a_caller_tells_or_is_seen() {
    calls_beside_a_worker_that_rests(true);
}

/// No worker comes to rest beside a callback, without membarrier(2) either, where callers have full
/// fences.
#[test]
fn a_caller_tells_or_is_seen_without_membarrier() {
    calls_beside_a_worker_that_rests(false);
}

fn calls_beside_a_worker_that_rests(is_asymmetric: bool) {
    loom::model(move || {
        let worker = Arc::new(WorkerState::default());
        worker.set_running();
        let task_queued = Arc::new(AtomicBool::new(false));
        let mut producer = Producer::default();
        let queue = Arc::clone(producer.list());
        let caller = {
            let (worker, task_queued) = (Arc::clone(&worker), Arc::clone(&task_queued));
            thread::spawn(move || {
                producer.push(Work::call(|| ()));
                // ORDERING: Relaxed, read after the join.
                task_queued.store(worker.is_absent(is_asymmetric), Ordering::Relaxed);
            })
        };
        worker.set_absent(is_asymmetric);
        let is_seen = !queue.has_run(queue.queued());
        caller.join().expect("the caller ends");
        assert!(is_seen || task_queued.load(Ordering::Relaxed), "nobody runs a callback");
    });
}

#[test]
fn each_mutant_is_caught() {
    assert_caught("who_runs_finds_what_was_put_in", &["rcu-put-before-work"], "panicked");
    assert_caught("what_is_counted_has_run", &["rcu-counted-before-run"], "panicked");
    assert_caught(
        "a_caller_tells_or_is_seen",
        &["rcu-no-light-fence-on-call", "rcu-no-heavy-fence-before-rest"],
        "nobody runs a callback",
    );
    assert_caught(
        "a_caller_tells_or_is_seen_without_membarrier",
        &["rcu-no-fence-on-call"],
        "nobody runs a callback",
    );
}
