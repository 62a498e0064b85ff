//! A domain goes on after a callback panics on its threads. Alone in its process: all tests share
//! the log.
#![cfg(not(any(loom, shuttle)))]

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use sync::ManualClock;
use watertight_rcu::{Domain, DomainOptions};

/// So many lines of the log panic.
const PANICS: usize = 4;

#[derive(Clone, Default)]
struct Log(Arc<AtomicUsize>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // ORDERING: SeqCst, a test's count.
        assert!(self.0.fetch_add(1, Ordering::SeqCst) >= PANICS, "this line is meant to panic");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn callbacks_and_polls_go_on_after_a_panic_of_the_log() {
    let log = Log::default();
    let writes = log.clone();
    let logger = tracing_subscriber::fmt().with_writer(move || writes.clone()).finish();
    tracing::subscriber::set_global_default(logger).expect("the only one");
    let clock = Arc::new(ManualClock::default());
    let options = DomainOptions { clock: Arc::clone(&clock) as _, ..DomainOptions::default() };
    let domain = Domain::with_options(options);
    let (leave, task_queued) = channel::<()>();
    let (inside, entered) = channel();
    let reader = {
        let domain = domain.clone();
        thread::spawn(move || {
            let _guard = domain.read();
            inside.send(()).expect("the test waits");
            task_queued.recv().expect("the test tells");
        })
    };
    entered.recv().expect("the reader enters");
    domain.call(|| panic!("a callback that is meant to panic"));
    domain.call(|| ());
    let cookie = domain.start_poll();
    let tick = || {
        clock.advance(Duration::from_millis(500));
        domain.clock_moved();
        thread::yield_now();
    };
    // The last one comes with the callback.
    while log.0.load(Ordering::SeqCst) < PANICS - 1 {
        tick();
    }
    leave.send(()).expect("the reader waits");
    reader.join().expect("it ends");
    while !domain.poll_state(cookie) {
        tick();
    }
    domain.barrier();
    assert_eq!(domain.stats().callbacks_run, 2);
    assert!(log.0.load(Ordering::SeqCst) >= PANICS);
}
