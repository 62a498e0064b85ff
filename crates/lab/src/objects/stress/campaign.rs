//! What the threads of a campaign share: when it is over, and why it failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::experiment::Stop;

/// How often a thread that waits looks whether it is over.
const LOOK_EACH: Duration = Duration::from_millis(200);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Campaign {
    begun: Instant,
    stop: Stop,
    has_failed: AtomicBool,
    failures: Mutex<Vec<String>>,
}

impl Campaign {
    pub(super) fn new(stop: Stop) -> Self {
        Self { begun: Instant::now(), stop, has_failed: AtomicBool::new(false), failures: Mutex::default() }
    }

    /// Since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Waits until so long after the beginning, or until it ends.
    pub(super) fn wait_until(&self, at: Duration) {
        while self.elapsed() < at && !self.is_given_up() {
            std::thread::sleep(LOOK_EACH);
        }
    }

    /// Whether it ends at once: it was stopped, or a promise was broken.
    pub(super) fn is_given_up(&self) -> bool {
        // ORDERING: Relaxed; it is looked at again and again, and publishes nothing.
        self.stop.is_set() || self.has_failed.load(Ordering::Relaxed)
    }

    /// A promise was broken.
    pub(super) fn fail(&self, what: String) {
        self.say(&format!("BROKEN: {what}"));
        self.failures.lock().push(what);
        // ORDERING: Relaxed, as above.
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// What was broken so far.
    pub(super) fn failures(&self) -> Vec<String> {
        self.failures.lock().clone()
    }

    /// A line for the log of the campaign.
    pub(super) fn say(&self, line: &str) {
        eprintln!("lab: {:>6.0} s: {line}", self.elapsed().as_secs_f64());
    }
}
