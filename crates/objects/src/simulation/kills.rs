//! What the simulation has killed: counted, so that a campaign can say how often.

use std::collections::BTreeSet;
use std::ops::AddAssign;

use super::host::Host;

/// Processes that were killed while they took, held or deleted a volume.
#[derive(Debug, Clone, Default)]
pub(super) struct Kills {
    /// Of these a host's disk has all that they wrote to it.
    pub(super) processes: u64,
    /// With these their host lost power.
    pub(super) hosts: u64,
    /// Volumes of which a process was killed on the host with the disk: whether that loses power is
    /// decided when the next begins there.
    undecided: BTreeSet<usize>,
}

impl Kills {
    pub(super) fn add(&mut self, host: &Host) {
        if !host.is_at_work() {
        } else if host.is_local {
            self.undecided.insert(host.member);
        } else {
            self.processes += 1;
        }
    }

    /// The next process begins on the host with the disk.
    pub(super) fn decide(&mut self, member: usize, has_lost_power: bool) {
        let kills = u64::from(self.undecided.remove(&member));
        if has_lost_power {
            self.hosts += kills;
        } else {
            self.processes += kills;
        }
    }

    /// No other process begins.
    pub(super) fn decide_all(mut self) -> Self {
        self.processes += self.undecided.len() as u64;
        self.undecided.clear();
        self
    }
}

impl AddAssign for Kills {
    fn add_assign(&mut self, other: Self) {
        let other = other.decide_all();
        self.processes += other.processes;
        self.hosts += other.hosts;
    }
}
