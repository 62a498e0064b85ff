//! One backing device, and the superblock on it.
//!
//! What threads do with it is in `ops`: they list inodes, write them, move them to other wbs, wait
//! at dirty limits, and sync.
//!
//! Lock order: `Bdi::switching`, then `Wbs::writer`, then a wb's lists; `Bdi::flushers`, then
//! `Wb::slot` or the lock of the eventpoll of wbs. Inodes are written with none held.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Clock, Condvar, Mutex, RwLock, StatCounter};

use throttle::Throttle;

use crate::device::flushers::Flushers;
use crate::device::inode::Inode;
use crate::device::wb::{Wb, WbStatus};
use crate::device::wbs::Wbs;
use crate::dirty::budget::Budget;
use crate::dirty::limits::DirtyLimits;
use crate::switch::drain::{Drain, SbPin};
use crate::switch::pending::Pending;
use crate::switch::switcher::{InFlight, Switcher};

/// How a backing device is flushed.
#[derive(Debug, Clone)]
pub struct BdiOptions {
    /// Flusher threads, at most; with none, only syncs write inodes.
    pub flushers: usize,
    /// Dirty data rests this long before it is written without need.
    pub dirty_after: Duration,
    /// Write without rest above this many cached pages.
    pub background_pages: u64,
    /// Write without rest above this many dirty inodes: each of them holds descriptors and memory.
    pub background_inodes: usize,
    /// Write a cgroup's data without rest above this many bytes of it; `None`: its bytes alone are no
    /// reason to. Analogous to `wb_over_bg_thresh`'s `wb_bg_thresh`.
    pub write_behind_bytes: Option<u64>,
    /// Pause after the first failed write-back of an inode; doubles up to 32 times with each
    /// further one.
    pub retry_pause: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// One backing device.
#[derive(Debug)]
pub struct Bdi<I: Inode> {
    /// Itself, for the flushers that it makes.
    pub(crate) this: Weak<Self>,
    /// The name that its flushers get.
    pub(crate) name: String,
    /// The span in which it was started: its threads log in it.
    pub(crate) span: tracing::Span,
    pub(crate) options: BdiOptions,
    pub(crate) budget: Arc<Budget>,
    pub(crate) switcher: Arc<Switcher>,
    pub(crate) wbs: Wbs<I>,
    /// Of the one superblock that is on this device.
    pub(crate) superblock: Drain,
    /// Switches of its inodes that wait for their grace period.
    pub(crate) pending: Pending<Isw<I>>,
    /// Its switches in flight, for the share that it may have.
    pub(crate) in_flight: Arc<AtomicUsize>,
    /// The superblock was unmounted: no thread may touch it.
    is_gone: AtomicBool,
    touched_late: StatCounter,
    pub(crate) switched: StatCounter,
    drains: StatCounter,
    drain_nanos: StatCounter,
    /// `wb_switch_rwsem`: shared by threads that move an inode, exclusive for a thread that must
    /// find every dirty one.
    pub(crate) switching: RwLock<()>,
    pub(crate) flushers: Mutex<Flushers<I>>,
    /// The next timer is sooner than it was, or there is none any more.
    pub(crate) timers_changed: Condvar,
    /// A flusher has ended.
    pub(crate) ended: Condvar,
    pub(crate) written: StatCounter,
    pub(crate) panics: StatCounter,
    pub(crate) sequence: std::sync::atomic::AtomicU64,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) dirty_limits: DirtyLimits,
    /// Inodes that are dirty or being written, those on their way to another wb included.
    pub(crate) unwritten: AtomicUsize,
}

/// A device's figures.
#[derive(Debug, Clone)]
pub struct BdiStatus {
    /// Each of its wbs.
    pub wbs: Vec<WbStatus>,
    /// Switches in flight for its superblock, inode by inode.
    pub switches_in_flight: u64,
    /// Inodes that were switched since the start, whether their wbs are still there or not.
    pub switched: u64,
    /// Panics of inodes, in a write-back or in a switch; each was that inode's trouble alone.
    pub panics: u64,
    /// Drains so far.
    pub drains: u64,
    /// Time spent inside of them.
    pub drain_time: Duration,
}

/// `isw`: inodes on their way to one wb.
#[derive(Debug)]
pub(crate) struct Isw<I: Inode> {
    pub(crate) items: Vec<Item<I>>,
    pub(crate) target: SwitchTarget<I>,
    pub(crate) _in_flight: InFlight,
}

/// One inode on its way. Dropped in this order: the reference, then the pin.
#[derive(Debug)]
pub(crate) struct Item<I> {
    pub(crate) inode: Option<Arc<I>>,
    pub(crate) pin: Option<SbPin>,
}

impl<I> Drop for Item<I> {
    fn drop(&mut self) {
        if is_on("switch-unpin-before-put") {
            drop(self.pin.take());
        }
        drop(self.inode.take());
    }
}

/// Keeps a wb while a switch to it is under way. Dropped with no lock held.
#[derive(Debug)]
pub(crate) struct SwitchTarget<I: Inode> {
    pub(crate) wb: Arc<Wb<I>>,
    pub(crate) bdi: Arc<Bdi<I>>,
}

impl<I: Inode> Drop for SwitchTarget<I> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; a thread that then gives the wb back takes a lock first.
        self.wb.incoming.fetch_sub(1, Ordering::Relaxed);
        // The clean-up of its cgroup found the wb in use; no other thread would come back.
        if !self.wb.cgroup().is_living() {
            self.bdi.wb_put(&self.wb);
        }
    }
}

impl<I: Inode> Bdi<I> {
    /// A backing device whose pages count against `budget`; its flushers start when there is
    /// something to write.
    pub fn start(
        name: &str,
        options: BdiOptions,
        budget: Arc<Budget>,
        switcher: &Arc<Switcher>,
    ) -> Arc<Self> {
        let throttle = Arc::new(Throttle::new(Arc::clone(&options.clock)));
        let wbs = Wbs::new(switcher.domain(), switcher.cgroups().root(), options.flushers > 0);
        let bdi = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            name: name.to_owned(),
            span: tracing::Span::current(),
            budget,
            switcher: Arc::clone(switcher),
            wbs,
            superblock: Drain::new(),
            pending: Pending::default(),
            in_flight: Arc::default(),
            is_gone: AtomicBool::new(false),
            touched_late: StatCounter::default(),
            switched: StatCounter::default(),
            drains: StatCounter::default(),
            drain_nanos: StatCounter::default(),
            switching: RwLock::new(()),
            flushers: Mutex::new(Flushers::new(options.flushers)),
            options,
            timers_changed: Condvar::new(),
            ended: Condvar::new(),
            written: StatCounter::default(),
            panics: StatCounter::default(),
            sequence: std::sync::atomic::AtomicU64::new(0),
            throttle,
            dirty_limits: DirtyLimits::default(),
            unwritten: AtomicUsize::new(0),
        });
        let flushers = Arc::downgrade(&bdi);
        bdi.throttle.listen_always(Arc::new(move || {
            if let Some(bdi) = flushers.upgrade() {
                bdi.signal_all();
            }
        }));
        switcher.register(Arc::downgrade(&bdi) as _);
        bdi
    }

    pub(crate) fn wb_at(&self, index: u32) -> Option<Arc<Wb<I>>> {
        self.wbs.with(&self.switcher.domain().read(), index, Arc::clone)
    }

    pub(crate) fn all_wbs(&self) -> Vec<Arc<Wb<I>>> {
        self.wbs.all(&self.switcher.domain().read())
    }

    /// The limits of cgroups on this device.
    pub fn throttle(&self) -> &Arc<Throttle> {
        &self.throttle
    }

    /// Every inode that is dirty or being written at this moment. Waits for inodes that are moving,
    /// so that none is missed.
    pub fn snapshot(&self) -> Vec<Arc<I>> {
        let _nobody_moves = (!is_on("sync-beside-switch")).then(|| self.switching.write());
        self.all_wbs().iter().flat_map(|wb| wb.snapshot()).collect()
    }

    /// The superblock's part of an unmount: when it returns, no inode is being switched, and none
    /// will be. Returns how long that took.
    pub fn drain(&self) -> Duration {
        let begun = Instant::now();
        self.switcher.state.strategy.drain(&self.superblock, self, &*self.switcher);
        let took = begun.elapsed();
        self.drains.add(1);
        self.drain_nanos.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        took
    }

    /// The end of the superblock, after its [`drain`](Self::drain) and when no caller has one of
    /// its inodes any more: takes every inode off, written or not. Inodes that hold this device
    /// would keep each other for ever. Returns how many are still on their way to another wb ("busy
    /// inodes after unmount"): anything but 0 is a defect.
    pub fn evict(&self) -> usize {
        let mut busy = 0;
        for wb in self.all_wbs() {
            let (evicted, of_this) = wb.evict();
            drop(evicted);
            busy += of_this;
        }
        // ORDERING: Relaxed: in the right strategy no thread reads it any more, in the wrong ones a
        // late check is what is counted.
        self.is_gone.store(true, Ordering::Relaxed);
        if busy > 0 {
            self.span.in_scope(|| tracing::error!(busy, "busy inodes after unmount"));
        }
        busy
    }

    /// Counts a touch of a superblock that is gone.
    pub(crate) fn note_touch(&self) {
        // ORDERING: Relaxed, see `evict`.
        if self.is_gone.load(Ordering::Relaxed) {
            self.touched_late.add(1);
        }
    }

    /// Switches that touched the superblock after its unmount. Anything but 0 is a defect.
    pub fn touched_late(&self) -> u64 {
        self.touched_late.get()
    }

    /// Its figures.
    pub fn status(&self) -> BdiStatus {
        BdiStatus {
            wbs: self.all_wbs().iter().map(|wb| wb.status()).collect(),
            switches_in_flight: self.superblock.in_flight(),
            switched: self.switched.get(),
            panics: self.panics.get(),
            drains: self.drains.get(),
            drain_time: Duration::from_nanos(self.drain_nanos.get()),
        }
    }

    /// Inodes that wait for write-back, as of a moment ago.
    pub fn dirty_inodes(&self) -> usize {
        self.wbs.dirty_inodes()
    }
}
