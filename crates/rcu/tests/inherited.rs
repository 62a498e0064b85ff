//! Threads of domains inherit nothing from the thread whose call made them. Alone in its process:
//! parked threads would be used first.
#![cfg(not(any(loom, shuttle)))]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use watertight_rcu::Domain;

/// Calls while its thread ends.
struct CallsAtTheEnd(Domain);

impl Drop for CallsAtTheEnd {
    fn drop(&mut self) {
        self.0.call(|| ());
    }
}

thread_local! {
    static LAST: RefCell<Option<CallsAtTheEnd>> = const { RefCell::new(None) };
}

#[test]
fn who_has_a_domain_make_threads_is_asked_before() {
    let domain = Domain::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let (go_on, task_queued) = channel::<()>();
    let caller = {
        let (domain, asked) = (domain.clone(), Arc::clone(&asked));
        thread::spawn(move || {
            // First, so that it is dropped after what `sync` keeps of the thread.
            LAST.with_borrow_mut(|last| *last = Some(CallsAtTheEnd(Domain::new())));
            let asks = Arc::clone(&asked);
            // ORDERING: SeqCst, a test's count.
            sync::thread::before_making_threads(move || {
                asks.fetch_add(1, Ordering::SeqCst);
            });
            let (begun, has_begun) = channel::<()>();
            domain.call(move || {
                begun.send(()).expect("the test waits");
                task_queued.recv().expect("the test tells");
            });
            assert_eq!(asked.load(Ordering::SeqCst), 1, "the worker's thread");
            // The worker is busy, and does not keep the time for others.
            has_begun.recv().expect("it begins with the tick");
            let cookie = domain.start_poll_expedited();
            assert_eq!(asked.load(Ordering::SeqCst), 2, "the polls' thread");
            while !domain.poll_state(cookie) {
                thread::yield_now();
            }
        })
    };
    caller.join().expect("it ends, and calls while it does");
    go_on.send(()).expect("the callback waits");
    domain.barrier();
}
