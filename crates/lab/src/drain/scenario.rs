//! The scenarios.

use std::thread;
use std::time::{Duration, Instant};

use super::churn;
use super::load::{self, Unmounted};
use super::subject::Subject;
use crate::table::Table;

/// Neighbours, where the scenario does not vary their number.
const NEIGHBOURS: usize = 4;

/// One scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    Control,
    ControlBusy,
    Churning,
    Idle,
    Concurrent,
    /// As `Idle`, with the grace periods of the product's own domains.
    IdleShort,
    Neighbours(usize),
    /// The target's inodes are on their way when it is unmounted, beside so many superblocks with
    /// switches of their own; with the grace periods of the product's own domains.
    ChurningBeside(usize),
    /// A writer beside another cgroup's end with a thousand inodes; or beside as many inodes that
    /// only come and go.
    Removal(bool),
    /// A removal on a real mount, with a real cgroup.
    RemovalMounted(bool),
}

/// All of them.
pub(super) const ALL: Table<Scenario, 20> = Table([
    ("control", Scenario::Control),
    ("control-busy", Scenario::ControlBusy),
    ("churning", Scenario::Churning),
    ("idle", Scenario::Idle),
    ("concurrent-8", Scenario::Concurrent),
    ("idle-tick-4", Scenario::IdleShort),
    ("neighbours-0", Scenario::Neighbours(0)),
    ("neighbours-1", Scenario::Neighbours(1)),
    ("neighbours-4", Scenario::Neighbours(4)),
    ("neighbours-16", Scenario::Neighbours(16)),
    ("neighbours-64", Scenario::Neighbours(64)),
    ("neighbours-256", Scenario::Neighbours(256)),
    ("churning-beside-0", Scenario::ChurningBeside(0)),
    ("churning-beside-16", Scenario::ChurningBeside(16)),
    ("churning-beside-256", Scenario::ChurningBeside(256)),
    ("churning-beside-1024", Scenario::ChurningBeside(1024)),
    ("removal-control", Scenario::Removal(false)),
    ("removal", Scenario::Removal(true)),
    ("removal-mounted-control", Scenario::RemovalMounted(false)),
    ("removal-mounted", Scenario::RemovalMounted(true)),
]);

impl Scenario {
    pub(crate) fn name(self) -> &'static str {
        ALL.name(self)
    }

    /// Whether grace periods begin as often as in the product.
    pub(crate) fn is_short(self) -> bool {
        matches!(self, Self::IdleShort | Self::ChurningBeside(_))
    }

    /// Unmounts for about `slice`.
    pub(crate) fn slice(self, subject: &mut Subject, slice: Duration) -> Vec<Unmounted> {
        let measure = |subject: &Subject| self.unmounts(subject, slice);
        let unmounts = match self {
            Self::ChurningBeside(neighbours) => churn::beside(subject, neighbours, measure),
            _ => self.beside_lives(subject, measure),
        };
        subject.unmounts += unmounts.len() as u64;
        subject.busy += unmounts.iter().map(|unmounted| unmounted.busy as u64).sum::<u64>();
        unmounts
    }

    fn beside_lives(
        self,
        subject: &Subject,
        measure: impl FnOnce(&Subject) -> Vec<Unmounted>,
    ) -> Vec<Unmounted> {
        let (neighbours, switches) = match self {
            Self::ChurningBeside(_) | Self::Control | Self::Removal(_) | Self::RemovalMounted(_) => {
                (0, false)
            }
            Self::ControlBusy => (NEIGHBOURS, false),
            Self::Churning | Self::Idle | Self::IdleShort | Self::Concurrent => (NEIGHBOURS, true),
            Self::Neighbours(neighbours) => (neighbours, true),
        };
        load::beside(subject, neighbours, switches, measure)
    }

    fn unmounts(self, subject: &Subject, slice: Duration) -> Vec<Unmounted> {
        let until = Instant::now() + slice;
        let mut unmounts = Vec::new();
        while unmounts.is_empty() || Instant::now() < until {
            match self {
                Self::Churning => unmounts.push(load::churning(subject)),
                Self::ChurningBeside(_) => unmounts.push(churn::unmount_in_flight(subject)),
                Self::Concurrent => unmounts.extend(eight_at_once(subject)),
                _ => unmounts.push(load::idle(subject)),
            }
        }
        unmounts
    }
}

fn eight_at_once(subject: &Subject) -> Vec<Unmounted> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| load::idle(subject))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an unmount does not panic")).collect()
    })
}
