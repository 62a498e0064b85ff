//! A thread whose waiting can be observed.

use std::sync::mpsc::channel;
use std::thread::{JoinHandle, Result};
use std::time::{Duration, Instant};

/// How long a thread may take until it waits; one that has not by then never does.
const LONG: Duration = Duration::from_secs(60);

/// A thread, and its number.
pub(crate) struct Waiter<T> {
    thread: JoinHandle<T>,
    tid: i32,
}

impl<T: Send + 'static> Waiter<T> {
    pub(crate) fn start(body: impl FnOnce() -> T + Send + 'static) -> Self {
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            let own = std::fs::read_link("/proc/thread-self").expect("a thread has a directory");
            let tid = own.file_name().and_then(|name| name.to_str()?.parse().ok());
            tell.send(tid.expect("its number")).expect("somebody asks");
            body()
        });
        let tid = told.recv().expect("it says its number");
        Self { thread, tid }
    }

    /// Waits until `begun` says `true` and the thread sleeps in the kernel.
    ///
    /// It might sleep for a lock: then the test does not have the order of events that it is for,
    /// but does not fail for that.
    pub(crate) fn is_asleep_once(&self, begun: impl Fn() -> bool) {
        let start = Instant::now();
        while !(begun() && self.sleeps()) {
            assert!(!self.thread.is_finished(), "it has not waited");
            assert!(start.elapsed() < LONG, "it never waits");
            std::thread::yield_now();
        }
    }

    fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.tid));
        // After the name, which may have anything in it.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
    }

    pub(crate) fn join(self) -> Result<T> {
        self.thread.join()
    }
}
