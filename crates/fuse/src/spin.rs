//! Spinning before a reader sleeps: adaptive, bounded, one thread at a time, off unless asked for.
//!
//! An idle wake-up may cost more than the request that it is for, and a reader that looks for a
//! moment before it sleeps avoids it. Whether that pays depends on the host: where a client on
//! another CPU has to be woken as well, the spinning reader takes from the client what it saves. So
//! it counts: a reader whose looks mostly end in sleep, or that is preempted meanwhile (another
//! thread wants the CPU), stops for a number of requests that doubles each time.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sync::atomic::{AtomicBool, Ordering};

use crate::dev::Dev;

/// Looks after which one is judged.
const WINDOW: u32 = 32;
/// Requests without a look after the first window that did not pay, and at most.
const PAUSE: (u32, u32) = (64, 65_536);

/// One gate for all readers of a session.
#[derive(Debug)]
pub(crate) struct SpinGate {
    limit: Duration,
    taken: AtomicBool,
}

/// One reader's record of its looks.
#[derive(Debug)]
pub(crate) struct History {
    looks: u32,
    hits: u32,
    preempted: i64,
    skip: u32,
    pause: u32,
}

impl Default for History {
    fn default() -> Self {
        Self { looks: 0, hits: 0, preempted: 0, skip: 0, pause: PAUSE.0 }
    }
}

impl SpinGate {
    /// Looks last `limit` at most; zero: none are made.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, taken: AtomicBool::new(false) }
    }

    /// Looks for a request before the caller sleeps in its read.
    pub(crate) fn look(&self, dev: &Dev, history: &mut History) {
        if self.limit.is_zero() || history.skips() {
            return;
        }
        // ORDERING: Relaxed both here and below; the flag guards no data, it only keeps a second
        // thread from spinning.
        if self.taken.swap(true, Ordering::Relaxed) {
            return;
        }
        let hit = self.spin(dev);
        self.taken.store(false, Ordering::Relaxed);
        history.record(hit, preemptions);
    }

    fn spin(&self, dev: &Dev) -> bool {
        let end = Instant::now() + self.limit;
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        while Instant::now() < end {
            let mut fds = [PollFd::from_borrowed_fd(dev.fd(), PollFlags::IN)];
            // An error is the read's to report.
            if poll(&mut fds, Some(&at_once)) != Ok(0) {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}

impl History {
    fn skips(&mut self) -> bool {
        let skips = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        skips
    }

    /// Counts a look; judges a full window.
    fn record(&mut self, hit: bool, preemptions: impl Fn() -> i64) {
        self.looks += 1;
        self.hits += u32::from(hit);
        if self.looks < WINDOW {
            return;
        }
        let preempted = preemptions();
        let pays = self.hits * 2 >= WINDOW && preempted - self.preempted <= 1;
        if pays {
            self.pause = PAUSE.0;
        } else {
            self.skip = self.pause;
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
        (self.looks, self.hits, self.preempted) = (0, 0, preempted);
    }
}

/// How often this thread had to give its CPU to another thread.
fn preemptions() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes a whole rusage to the address, which is valid for one; any bytes of
    // it are a value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(history: &mut History, hit: bool, preempted: i64) {
        for _ in 0..WINDOW {
            history.record(hit, || preempted);
        }
    }

    #[test]
    fn a_look_that_pays_goes_on() {
        let mut history = History::default();
        window(&mut history, true, 0);
        assert!(!history.skips());
    }

    #[test]
    fn a_look_that_does_not_pay_pauses_longer_each_time() {
        let mut history = History::default();
        let mut last = 0;
        for _ in 0..20 {
            window(&mut history, false, 0);
            let pause = (0..).take_while(|_| history.skips()).count();
            assert!(pause > last || pause == 65_536, "{pause} after {last}");
            last = pause;
        }
        assert_eq!(last, 65_536);
        window(&mut history, true, 0);
        window(&mut history, false, 0);
        assert_eq!((0..).take_while(|_| history.skips()).count(), 64, "one good window and it begins anew");
    }

    #[test]
    fn a_busy_host_ends_it_whatever_it_hits() {
        let mut history = History::default();
        window(&mut history, true, 5);
        assert!(history.skips());
    }
}
