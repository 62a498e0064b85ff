//! A serving thread, as the watchdog sees it.

use std::time::Duration;

use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;

use super::policy::{self, Policy, Tid};

/// How often the watchdog checks.
pub(super) const TICK: Duration = Duration::from_millis(2);

/// In [`IdleSched::seq`]: the class is about to be taken.
pub(super) const ENTERING: u64 = 1 << 63;

/// A serving thread, as the watchdog sees it.
#[derive(Debug)]
pub(super) struct IdleSched {
    pub(super) tid: Tid,
    pub(super) seq: AtomicU64,
}

impl IdleSched {
    /// Gives the class up, if the thread has it. Called by the thread itself.
    pub(super) fn leave(&self) {
        if !self.is_idle() {
            return;
        }
        // ORDERING: SeqCst, P2. If the watchdog was faster it has set the class before.
        if is_on("stay-leaves-unseen") {
            self.seq.store(0, Ordering::SeqCst);
            policy::point(&self.tid);
        }
        policy::set(&self.tid, Policy::Normal);
        self.seq.store(0, Ordering::SeqCst);
    }

    pub(super) fn is_idle(&self) -> bool {
        // ORDERING: Relaxed, the thread's own value, which the watchdog only ever sets to 0, after
        // it has set the class.
        self.seq.load(Ordering::Relaxed) != 0
    }
}
