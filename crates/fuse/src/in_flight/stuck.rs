//! Requests that take long, and whose callers' signals the kernel does not report.
//!
//! The kernel sends no INTERRUPT for O_DIRECT reads and writes (their caller waits in a way that no
//! signal ends), and none can be read while every thread is stuck. So while requests are waiting,
//! the watcher also checks the callers of all that have been in hand for a whole [`PERIOD`].
//!
//! # Orderings
//! P2: a request that may wait sets `wanted`, then reads `is_on`; the watcher clears `is_on`,
//! then reads `wanted`. Both sides are SeqCst: one of them sees the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicBool, Ordering};

use super::signals::Pending;
use super::slot::RequestSlot;

/// How often, and how long a request must have been in hand.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// Whether to check.
#[derive(Debug, Default)]
pub(super) struct StuckScan {
    wanted: AtomicBool,
    is_on: AtomicBool,
}

/// The watcher's last check.
#[derive(Debug, Default)]
pub(super) struct ScanState {
    due: Option<Instant>,
    in_hand: HashMap<usize, u64>,
}

impl StuckScan {
    /// A request may wait now: says whether the watcher has to be woken.
    pub(super) fn want(&self) -> bool {
        // ORDERING: SeqCst, P2.
        self.wanted.store(true, Ordering::SeqCst);
        // ORDERING: SeqCst, P2: after the store.
        !self.is_on.load(Ordering::SeqCst)
    }

    /// When the watcher has to check next, if at all.
    pub(super) fn due(&self, round: &mut ScanState, now: Instant) -> Option<Instant> {
        if round.due.is_none() && self.take_wish() {
            round.due = Some(now + PERIOD);
        }
        round.due
    }

    fn take_wish(&self) -> bool {
        // ORDERING: SeqCst, P2: before the read of `wanted`.
        self.is_on.store(false, Ordering::SeqCst);
        // ORDERING: SeqCst, P2.
        let is_wanted = self.wanted.swap(false, Ordering::SeqCst);
        if is_wanted {
            // ORDERING: SeqCst, P2: a request that sets `wanted` from now on is seen at the next
            // round.
            self.is_on.store(true, Ordering::SeqCst);
        }
        is_wanted
    }

    /// Ends the waits of killed callers, and decides whether to check again.
    pub(super) fn look(&self, round: &mut ScanState, slots: &[Arc<RequestSlot>], now: Instant) {
        let before = std::mem::take(&mut round.in_hand);
        let mut has_long = false;
        for slot in slots {
            let (key, word) = (Arc::as_ptr(slot) as usize, slot.in_hand());
            let Some(unique) = slot.unique_of(word) else { continue };
            round.in_hand.insert(key, word);
            if before.get(&key) == Some(&word) {
                has_long = true;
                if Pending::of(slot.pid()).has_kill() {
                    slot.end(unique);
                }
            }
        }
        let is_wanted = self.take_wish();
        // A request that came during the last round is long at the next.
        let goes_on = is_wanted || has_long || !round.in_hand.is_empty();
        if goes_on {
            // ORDERING: SeqCst, P2.
            self.is_on.store(true, Ordering::SeqCst);
        }
        round.due = goes_on.then(|| now + PERIOD);
    }
}
