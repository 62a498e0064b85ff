//! The host's CPUs, for which the kernel has one queue each.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which CPUs the host can have.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// How many CPUs the host can have, which is how many queues the kernel wants.
pub(super) fn possible() -> io::Result<u16> {
    let text = std::fs::read_to_string(POSSIBLE)?;
    count(text.trim()).ok_or_else(|| io::Error::other(format!("{POSSIBLE} says {:?}", text.trim())))
}

/// How many numbers there are in a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let mut sum = 0_u16;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        sum = sum.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(sum)
}

/// Which CPUs this process may use.
#[derive(Debug, Clone)]
pub(super) struct Cpus(Option<CpuSet>);

impl Cpus {
    /// The CPUs of the calling thread.
    pub(super) fn new() -> Self {
        Self(sched_getaffinity(None).ok())
    }

    /// Has the calling thread run on this CPU only, or on any. Where that may not be (the CPU is
    /// offline, or outside the process' set) it runs where it did.
    pub(super) fn keep_to(&self, cpu: Option<u16>) {
        let Some(all) = &self.0 else { return };
        let set = match cpu.map(usize::from) {
            Some(cpu) if cpu < CpuSet::MAX_CPU && all.is_set(cpu) => {
                let mut one = CpuSet::new();
                one.set(cpu);
                one
            }
            _ => *all,
        };
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::debug!(cpu, %error, "a thread cannot be kept on its CPU");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-1"), Some(2));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for wrong in ["", "a", "3-1", "0-", "0-70000", "0,"] {
            assert_eq!(count(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn this_host_has_a_cpu() {
        assert!(possible().unwrap() >= 1);
    }
}
