//! One variant: an engine, and its figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cgroups::CgroupId;
use rcu::{Domain, DomainOptions};
use sync::RealClock;
use writeback::{Bdi, BdiOptions, Budget, DrainStrategy, Inode, InodeWb, Outcome, PerSuperblock, Switcher};

use super::variants::{Base, PersbFifo, Race, RmBarrier};

/// A file of one page that matters.
#[derive(Debug, Default)]
pub(crate) struct File {
    inode_wb: InodeWb<Self>,
}

impl Inode for File {
    fn write_back(self: &Arc<Self>) -> Outcome {
        // Devices here have no flushers: every writer writes through.
        Outcome::Clean
    }

    fn inode_wb(&self) -> &InodeWb<Self> {
        &self.inode_wb
    }
}

/// One variant.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// Grace periods begin at most so often.
    pub(crate) tick: Duration,
    pub(crate) switcher: Arc<Switcher>,
    next_cgroup: AtomicU64,
    pub(crate) unmounts: u64,
    /// Inodes that a switcher still had after a drain.
    pub(crate) busy: u64,
}

impl Subject {
    /// `tick`: grace periods begin at most so often.
    pub(crate) fn new(name: &'static str, tick: Duration) -> Self {
        let strategy: Box<dyn DrainStrategy> = match name {
            "base" => Box::new(Base::default()),
            "race" => Box::new(Race::default()),
            "rmbarrier" => Box::new(RmBarrier::default()),
            "persb-fifo" => Box::new(PersbFifo),
            _ => Box::new(PerSuperblock),
        };
        let domain = Domain::with_options(DomainOptions { tick, ..DomainOptions::default() });
        let switcher = Arc::new(Switcher::new(domain, strategy));
        Self { name, tick, switcher, next_cgroup: AtomicU64::new(1), unmounts: 0, busy: 0 }
    }

    /// A superblock on a device of its own.
    pub(crate) fn mount(&self) -> Arc<Bdi<File>> {
        let options = BdiOptions {
            flushers: 0,
            dirty_after: Duration::from_secs(5),
            background_pages: 1 << 20,
            background_inodes: 1 << 20,
            write_behind_bytes: None,
            retry_pause: Duration::from_secs(1),
            clock: Arc::new(RealClock::default()),
        };
        Bdi::start("lab", options, Budget::new(1 << 20), &self.switcher)
    }

    /// A new cgroup below the root.
    pub(crate) fn cgroup(&self) -> CgroupId {
        // ORDERING: Relaxed, only a number.
        let number = CgroupId(self.next_cgroup.fetch_add(1, Ordering::Relaxed));
        self.switcher.cgroups().add(number, CgroupId::ROOT).id()
    }
}
