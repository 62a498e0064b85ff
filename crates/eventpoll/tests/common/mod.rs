//! Helpers of several tests.
#![allow(dead_code, reason = "not each of them uses all")]

use std::time::{Duration, Instant};

/// Longer than any machine takes for anything that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `is_so`; fails when it is not so after a very long time.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "still waiting until {what}");
        std::thread::yield_now();
    }
}

/// Closes eventpolls when a test is over, also when it fails: no thread is left waiting for ever.
pub(crate) struct Closing<'p>(pub(crate) &'p [watertight_eventpoll::EventPoll]);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(watertight_eventpoll::EventPoll::close);
    }
}
