//! Foreign inodes: which cgroups write an inode, and whether its owner should change. Arithmetic
//! only.
//!
//! A round is the data that is written back at once. Its bytes are counted for the owner, for the
//! winner of the last round, and for a candidate among all others, found by majority vote (Boyer
//! and Moore): a byte of the candidate counts up, a byte of another cgroup counts down, and a
//! cgroup that writes when there is no candidate becomes the next. Three numbers find any majority,
//! however many cgroups write.
//!
//! The last winner's bytes are counted apart and take no part in that vote. A cgroup that won the
//! last round and goes on writing keeps its count however many others come and go, and loses the
//! round only to a candidate, or an owner, that wrote more. Where both wrote as much, the last
//! winner stays, so that two cgroups that write alike do not take turns at the inode.
//!
//! A round's weight is the time that its winner's bytes take at the device: long rounds count for
//! more than short ones. Time is in units of 1/8192 s. The history has 16 slots of an eighth of a
//! second, the newest lowest; a slot is one if that time was foreign. With more than half of them
//! foreign, the owner should change.

use cgroups::CgroupId;

/// A second, in units of time.
const SECOND: u64 = 1 << 13;
/// One slot of the history.
const SLOT: u64 = 2 * SECOND / 16;
/// A round counts if it takes at least this part of the average.
const CUT: u64 = 8;
/// More foreign slots than this: switch.
const SLOTS_FOREIGN_MAX: u32 = 8;
/// Slots that one round may fill: one alone must not decide.
const SLOTS_OF_ROUND_MAX: u64 = 5;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// An inode's history of its rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Foreign {
    winner: Option<CgroupId>,
    average: u16,
    history: u16,
}

/// The bytes of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    owner: CgroupId,
    owner_bytes: u64,
    last_winner: Option<CgroupId>,
    last_bytes: u64,
    candidate: Option<CgroupId>,
    candidate_bytes: u64,
}

impl Round {
    /// Counts `bytes` that `by` dirtied; not for cgroups that were removed.
    pub fn count(&mut self, by: CgroupId, bytes: u64) {
        if by == self.owner {
            self.owner_bytes += bytes;
        } else if Some(by) == self.last_winner {
            self.last_bytes += bytes;
        } else if self.candidate == Some(by) || self.candidate_bytes == 0 {
            self.candidate = Some(by);
            self.candidate_bytes += bytes;
        } else {
            self.candidate_bytes = self.candidate_bytes.saturating_sub(bytes);
        }
    }

    /// The cgroup that wrote most, and how much.
    fn winner(&self) -> (CgroupId, u64) {
        let others = self.last_bytes.max(self.candidate_bytes);
        match (self.last_winner, self.candidate) {
            _ if self.owner_bytes >= others => (self.owner, self.owner_bytes),
            (Some(last), _) if self.last_bytes >= self.candidate_bytes => (last, self.last_bytes),
            (_, Some(candidate)) => (candidate, self.candidate_bytes),
            _ => (self.owner, self.owner_bytes),
        }
    }
}

impl Foreign {
    /// Begins a round of an inode that `owner` owns.
    #[must_use]
    pub fn begin(&self, owner: CgroupId) -> Round {
        let last_winner = self.winner.filter(|winner| *winner != owner);
        Round { owner, owner_bytes: 0, last_winner, last_bytes: 0, candidate: None, candidate_bytes: 0 }
    }

    /// Ends a round, at a device that writes `bandwidth` pages a second; returns the cgroup that
    /// the inode should go to.
    pub fn end(&mut self, round: &Round, bandwidth: u64) -> Option<CgroupId> {
        let (winner, bytes) = round.winner();
        if bytes == 0 {
            return None;
        }
        let time = bytes.div_ceil(PAGE).saturating_mul(SECOND).div_ceil(bandwidth.max(1));
        let mut average = u64::from(self.average);
        average = if average == 0 { time } else { average + time / 8 - average / 8 };
        let mut switch = None;
        if time >= average / CUT {
            let slots = time.div_ceil(SLOT).min(SLOTS_OF_ROUND_MAX);
            self.history <<= slots;
            if winner != round.owner {
                self.history |= (1 << slots) - 1;
            }
            if self.history.count_ones() > SLOTS_FOREIGN_MAX {
                switch = Some(winner).filter(|winner| *winner != round.owner);
            }
        }
        self.winner = Some(winner);
        self.average = u16::try_from(average).unwrap_or(u16::MAX);
        switch
    }

    /// The slots, the newest lowest.
    #[must_use]
    pub fn history(&self) -> u16 {
        self.history
    }
}

#[cfg(test)]
#[path = "foreign_tests.rs"]
mod tests;
