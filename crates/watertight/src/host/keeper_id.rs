//! Names a keeper, for as long as a record does: a number alone is given to another process later.

use serde::{Deserialize, Serialize};

/// Names a process: no other one has its number and began at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperId {
    /// Its number.
    pub pid: u32,
    /// When it began, in the kernel's ticks since the host did.
    pub began: u64,
}

impl KeeperId {
    /// The process with this number, if there is one that has not ended.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Its name, in brackets, may contain anything.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        if matches!(fields.next(), Some("Z" | "X") | None) {
            return None;
        }
        let began = fields.nth(18)?.parse().ok()?;
        Some(Self { pid, began })
    }

    /// Whether it runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_beginning() {
        let own = KeeperId::of(std::process::id()).unwrap();
        assert!(own.is_running() && own.began > 0);
        assert!(!KeeperId { began: own.began + 1, ..own }.is_running());
        assert_eq!(KeeperId::of(0), None);
    }
}
