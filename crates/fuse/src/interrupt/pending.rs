//! The signals that wait for a thread, as `/proc/TID/status` tells.

use std::fs;

use rustix::process::Signal;

/// The sets of signals of one thread; bit 0 is signal 1.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    /// Sent to the thread.
    own: u64,
    /// Sent to its process: any thread takes it that does not block it.
    shared: u64,
    blocked: u64,
}

impl Pending {
    /// Of thread `tid`. Of a thread outside of this process' view (0, or one that is gone) nothing is known: no signal.
    pub(super) fn of(tid: u32) -> Self {
        if tid == 0 {
            return Self::default();
        }
        fs::read_to_string(format!("/proc/{tid}/status"))
            .map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    fn parse(status: &str) -> Self {
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
        };
        Self { own: set("SigPnd:"), shared: set("ShdPnd:"), blocked: set("SigBlk:") }
    }

    /// Whether the thread is being killed: what waits for it in any way is to end.
    pub(super) fn has_kill(self) -> bool {
        (self.own | self.shared) & (1 << (Signal::KILL.as_raw() - 1)) != 0
    }

    /// The process' signals that the thread would take, if no other does.
    fn for_any(self) -> u64 {
        self.shared & !self.blocked
    }
}

/// Whether a signal waits for thread `tid` that nobody else will take: what waits interruptibly for it is to end.
pub(super) fn has_signal(tid: u32) -> bool {
    let pending = Pending::of(tid);
    if pending.own & !pending.blocked != 0 || pending.has_kill() {
        return true;
    }
    pending.for_any() != 0 && pending.for_any() & taken_by_others(tid) != pending.for_any()
}

/// The signals that other threads of the process of `tid` do not block.
fn taken_by_others(tid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{tid}/task")).into_iter().flatten();
    let others =
        tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).filter(|other| *other != tid);
    others.fold(0, |taken, other| taken | !Pending::of(other).blocked)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_status_file_says_what_waits() {
        let status = |own: &str, shared: &str, blocked: &str| {
            Pending::parse(&format!(
                "Name:\tx\nSigQ:\t0/1\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n"
            ))
        };
        let (none, kill, alarm) = ("0000000000000000", "0000000000000100", "0000000000002000");
        assert_eq!(status(none, none, none), Pending::default());
        assert!(status(kill, none, none).has_kill());
        assert!(status(none, kill, none).has_kill());
        assert!(!status(none, alarm, none).has_kill());
        assert_eq!(status(none, alarm, none).for_any(), 1 << (libc::SIGALRM - 1));
        assert_eq!(status(none, alarm, alarm).for_any(), 0, "blocked");
        assert_eq!(status(alarm, none, none).own, 1 << (libc::SIGALRM - 1));
        assert_eq!(Pending::parse("nonsense"), Pending::default());
    }

    #[test]
    fn nothing_waits_here_and_others_could_take_it() {
        let own = rustix::thread::gettid().as_raw_pid().unsigned_abs();
        assert!(!has_signal(0));
        assert!(!has_signal(own));
        // Another thread, which blocks no signal if this one does not, and is there as long as it is looked at.
        let alarm = 1 << (libc::SIGALRM - 1);
        assert_eq!(Pending::of(own).blocked & alarm, 0, "tests run with no signal blocked");
        let (is_there, wait) = channel::<()>();
        let (leave, left) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                is_there.send(()).unwrap();
                let _told_by_the_drop = left.recv();
            });
            wait.recv().unwrap();
            assert_ne!(taken_by_others(own) & alarm, 0);
            drop(leave);
        });
    }
}
