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
    /// The signals of thread `tid`. Of a thread outside of this process' view (0, or one that is
    /// gone) nothing is known: no signal.
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

    /// Whether the thread is being killed: all that waits for it is to end.
    pub(super) fn has_kill(self) -> bool {
        (self.own | self.shared) & (1 << (Signal::KILL.as_raw() - 1)) != 0
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(status(alarm, none, none).own, 1 << (libc::SIGALRM - 1));
        assert_eq!(Pending::parse("nonsense"), Pending::default());
    }
}
