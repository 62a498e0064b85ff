//! Detects that one caller is alone on a mount.
//!
//! # State
//! [`SingleClient::last`]: the last caller, and when it called. [`SingleClient::several_until`]:
//! until when there are several. Both in milliseconds of one clock that is exact to some
//! milliseconds. Only speed depends on them: all operations are Relaxed, and a value that is seen
//! late is as good.
//!
//! They are written once in some milliseconds only, so that threads on several CPUs do not take the
//! cache line from each other at each request: while there is a crowd no thread writes until half
//! of its time is over.

use sync::atomic::{AtomicU64, Ordering};

/// Two callers within this time are several.
const TOGETHER_MS: u32 = 16;
/// For how long they are several.
const SEVERAL_MS: u64 = 100;

/// The maker of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// A thread with this number.
    Thread(u32),
    /// The kernel on its own: it counts for the thread that called just before.
    Kernel,
    /// A thread in another pid namespace; there may be many.
    Unknown,
}

/// The callers of late.
#[derive(Debug, Default)]
pub(super) struct SingleClient {
    /// Caller in the upper half, when in the lower.
    last: AtomicU64,
    several_until: AtomicU64,
}

impl SingleClient {
    /// A request of `caller` came at `now_ms`; says whether it is the only caller.
    pub(super) fn observe(&self, caller: Client, now_ms: u64) -> bool {
        // ORDERING: Relaxed here and below, hints; see the module's head.
        let several_until = self.several_until.load(Ordering::Relaxed);
        if now_ms + SEVERAL_MS / 2 < several_until {
            return false;
        }
        let now = stamp(now_ms);
        let last = self.last.load(Ordering::Relaxed);
        let caller = match caller {
            Client::Thread(caller) => caller,
            Client::Kernel => {
                return now_ms >= several_until && last != 0 && now.wrapping_sub(stamp(last)) <= TOGETHER_MS;
            }
            Client::Unknown => {
                self.several_until.store(now_ms + SEVERAL_MS, Ordering::Relaxed);
                return false;
            }
        };
        let present = u64::from(caller) << 32 | u64::from(now);
        if last == present {
            return now_ms >= several_until;
        }
        self.last.store(present, Ordering::Relaxed);
        let (before, then) = ((last >> 32), stamp(last));
        if before != u64::from(caller) && before != 0 && now.wrapping_sub(then) <= TOGETHER_MS {
            self.several_until.store(now_ms + SEVERAL_MS, Ordering::Relaxed);
            return false;
        }
        now_ms >= several_until
    }
}

/// The lower half.
fn stamp(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use Client::{Kernel, Thread, Unknown};

    #[test]
    fn one_caller_is_alone_as_long_as_nobody_else_calls() {
        let single_client = SingleClient::default();
        assert!((0..1000).all(|n| single_client.observe(Thread(7), 5_000_000_000 + n / 10)));
    }

    #[test]
    fn two_callers_are_a_crowd_until_one_has_gone() {
        let single_client = SingleClient::default();
        assert!(single_client.observe(Thread(7), 1000));
        for n in 0..500 {
            assert!(!single_client.observe(Thread(8), 1001 + n));
            assert!(!single_client.observe(Thread(7), 1001 + n));
        }
        // The crowd's time was renewed when half of it was over, at the latest.
        assert!(!single_client.observe(Thread(7), 1500 + SEVERAL_MS / 2 - 1));
        assert!(single_client.observe(Thread(7), 1500 + SEVERAL_MS + 1));
    }

    #[test]
    fn one_after_the_other_are_each_alone() {
        let single_client = SingleClient::default();
        assert!(single_client.observe(Thread(7), 1000));
        assert!(single_client.observe(Thread(8), 1000 + u64::from(TOGETHER_MS) + 1));
    }

    #[test]
    fn what_the_kernel_does_counts_for_who_called_before() {
        let single_client = SingleClient::default();
        assert!(!single_client.observe(Kernel, 5));
        assert!(single_client.observe(Thread(7), 1000));
        assert!(single_client.observe(Kernel, 1001));
        assert!(single_client.observe(Thread(7), 1001));
        assert!(!single_client.observe(Thread(8), 1002));
        assert!(!single_client.observe(Kernel, 1003));
        assert!(!single_client.observe(Kernel, 2000));
    }

    #[test]
    fn the_clock_may_pass_the_end_of_its_lower_half() {
        let single_client = SingleClient::default();
        let end = u64::from(u32::MAX);
        assert!(single_client.observe(Thread(7), end - 1));
        assert!(!single_client.observe(Thread(8), end + 2));
    }

    #[test]
    fn who_cannot_be_told_apart_is_a_crowd() {
        let single_client = SingleClient::default();
        assert!(single_client.observe(Thread(7), 1000));
        assert!(!single_client.observe(Unknown, 1001));
        assert!(!single_client.observe(Thread(7), 1002));
        assert!(single_client.observe(Thread(7), 1002 + SEVERAL_MS));
    }
}
