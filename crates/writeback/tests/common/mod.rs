//! Shared by the tests of switching: inodes that know when their superblock has gone, and devices
//! without flushers.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../../lab/src/drain/variants.rs"]
pub(crate) mod variants;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cgroups::CgroupId;
use sync::{Clock, ManualClock};
use writeback::{Bdi, BdiOptions, Budget, Domain, DrainStrategy, Inode, InodeWb, Outcome, Switcher};

pub(crate) const A: CgroupId = CgroupId(1);
pub(crate) const B: CgroupId = CgroupId(2);
/// A child of `A`.
pub(crate) const CHILD: CgroupId = CgroupId(3);

/// An inode; it panics if it exists when its superblock does not.
#[derive(Debug, Default)]
pub(crate) struct File {
    inode_wb: InodeWb<Self>,
    is_gone: Arc<AtomicBool>,
    at_end: AtEnd,
}

/// Called when an inode goes.
#[derive(Default)]
pub(crate) struct AtEnd(sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AtEnd").finish_non_exhaustive()
    }
}

impl File {
    pub(crate) fn at_end(&self, call: impl FnOnce() + Send + 'static) {
        *self.at_end.0.lock() = Some(Box::new(call));
    }
}

impl Inode for File {
    fn write_back(self: &Arc<Self>) -> Outcome {
        Outcome::Clean
    }

    fn inode_wb(&self) -> &InodeWb<Self> {
        &self.inode_wb
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let is_gone = self.is_gone.load(Ordering::Relaxed);
        assert!(!is_gone || std::thread::panicking(), "an inode outlived its superblock");
        let call = self.at_end.0.lock().take();
        if let Some(call) = call {
            call();
        }
    }
}

/// A device with a superblock.
pub(crate) struct Rig {
    pub(crate) switcher: Arc<Switcher>,
    pub(crate) bdi: Arc<Bdi<File>>,
    pub(crate) clock: Arc<ManualClock>,
    is_gone: Arc<AtomicBool>,
}

impl Rig {
    pub(crate) fn new(strategy: impl DrainStrategy) -> Self {
        let switcher = Arc::new(Switcher::new(Domain::default(), Box::new(strategy)));
        switcher.cgroups().add(A, CgroupId::ROOT);
        switcher.cgroups().add(B, CgroupId::ROOT);
        switcher.cgroups().add(CHILD, A);
        Self::on(&switcher)
    }

    pub(crate) fn on(switcher: &Arc<Switcher>) -> Self {
        Self::with_flushers(switcher, 0)
    }

    pub(crate) fn with_flushers(switcher: &Arc<Switcher>, flushers: usize) -> Self {
        let clock = Arc::new(ManualClock::default());
        let options = BdiOptions {
            flushers,
            dirty_after: Duration::from_secs(5),
            background_pages: 100,
            background_inodes: 1 << 20,
            write_behind_bytes: None,
            retry_pause: Duration::from_secs(1),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
        };
        let bdi = Bdi::start("test", options, Budget::new(1000), switcher);
        Self { switcher: Arc::clone(switcher), bdi, clock, is_gone: Arc::default() }
    }

    /// An inode that `owner` owns.
    pub(crate) fn file(&self, owner: CgroupId) -> Arc<File> {
        let file = Arc::new(File {
            inode_wb: InodeWb::default(),
            is_gone: Arc::clone(&self.is_gone),
            at_end: AtEnd::default(),
        });
        self.bdi.attach(&file, owner);
        file
    }

    /// Unmounts. `users` have inodes of their own and end between the drain and the eviction, as a
    /// flusher does that the eviction waits for.
    pub(crate) fn unmount(&self, users: impl FnOnce()) {
        self.bdi.drain();
        users();
        let busy = self.bdi.evict();
        self.is_gone.store(true, Ordering::Relaxed);
        assert_eq!(busy, 0, "busy inodes after unmount");
    }

    /// When nothing is under way: no thread came late, and all pins are back.
    pub(crate) fn check_after(&self) {
        assert_eq!(self.bdi.touched_late(), 0, "a superblock that is gone was touched");
        assert_eq!(self.bdi.status().switches_in_flight, 0, "a pin is left");
        let stats = self.switcher.stats();
        assert_eq!((stats.in_flight, stats.panics), (0, 0), "a switch is left, or a worker panicked");
    }

    /// WB-R8: each wb counts the bytes of its inodes.
    pub(crate) fn check_sums(&self, files: &[Arc<File>]) {
        for wb in self.bdi.status().wbs {
            let of = |file: &&Arc<File>| self.bdi.owner_of(file) == Some(wb.owner);
            let bytes = files.iter().filter(of).map(|file| file.inode_wb().bytes());
            let sum = bytes.fold((0, 0), |sum, bytes| (sum.0 + bytes.0, sum.1 + bytes.1));
            assert_eq!((wb.dirty, wb.writeback), sum, "the bytes of {:?}", wb.owner);
        }
    }
}
