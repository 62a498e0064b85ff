//! Files whose data is only counted, on a store that takes its time by a clock that is set: the
//! product's own write-back engine, with nothing else beneath it. A sleeper advances the clock.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use cgroups::CgroupId;
use sync::{Clock, Condvar, ManualClock, Mutex};
use throttle::{CgroupPath, ChunkSource, Completion, Limits, OnLimit};
use writeback::{Bdi, BdiOptions, Budget, Inode, InodeWb, Outcome, Switcher, SyncPolicy, Syncing};

/// A file.
#[derive(Debug)]
pub(crate) struct File {
    inode_wb: InodeWb<Self>,
    store: Arc<Store>,
    /// Bytes that are dirty since an epoch, the oldest first.
    dirty: Mutex<VecDeque<(u64, u64)>>,
}

/// The store that files are written to.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) clock: Arc<ManualClock>,
    bytes_per_second: u64,
    /// The time that each call takes in addition.
    call: Duration,
    /// The bytes written, each with its time and owner.
    written: Mutex<Vec<(Duration, CgroupId, u64)>>,
}

/// A device with its cgroups.
pub(crate) struct Model {
    pub(crate) store: Arc<Store>,
    pub(crate) switcher: Arc<Switcher>,
    pub(crate) bdi: Arc<Bdi<File>>,
    pub(crate) budget: Arc<Budget>,
}

impl Inode for File {
    fn write_back(self: &Arc<Self>) -> Outcome {
        Outcome::Dirty
    }

    fn inode_wb(&self) -> &InodeWb<Self> {
        &self.inode_wb
    }
}

impl File {
    /// Bytes to be written.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.lock().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// A thread that writes a file back.
struct Writer<'a> {
    file: &'a File,
    owner: CgroupId,
    woken: Arc<Woken>,
    /// Called for each sleep, with its end; returns when it is woken, or `None` to give up.
    sleeps: &'a mut dyn FnMut(Duration) -> Option<Duration>,
}

/// Records that the sleeper was woken.
#[derive(Debug, Default)]
struct Woken {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Woken {
    fn wake(&self) {
        *self.is_woken.lock() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut is_woken = self.is_woken.lock();
        while !std::mem::take(&mut *is_woken) {
            self.changed.wait(&mut is_woken);
        }
    }
}

impl ChunkSource for Writer<'_> {
    type Error = Infallible;

    fn left(&self, epoch: u64) -> u64 {
        self.file.dirty.lock().iter().filter(|(since, _)| *since <= epoch).map(|(_, bytes)| bytes).sum()
    }

    fn write(&mut self, epoch: u64, bytes: u64) -> Result<u64, Infallible> {
        let mut dirty = self.file.dirty.lock();
        let Some((_, there)) = dirty.front_mut().filter(|(since, _)| *since <= epoch) else { return Ok(0) };
        let written = bytes.min(*there).min(1 << 20);
        *there -= written;
        if *there == 0 {
            dirty.pop_front();
        }
        drop(dirty);
        let store = &self.file.store;
        let transfer = Duration::from_nanos(written * 1_000_000_000 / store.bytes_per_second);
        store.clock.advance(store.call + transfer);
        store.written.lock().push((store.clock.now(), self.owner, written));
        Ok(written)
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let woken = Arc::clone(&self.woken);
        Arc::new(move || woken.wake())
    }

    fn sleep(&mut self, until: Duration) -> bool {
        let Some(woken) = (self.sleeps)(until) else { return false };
        let clock = &self.file.store.clock;
        clock.advance(woken.saturating_sub(clock.now()));
        true
    }
}

impl Model {
    /// A device without limits that writes so much a second.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1));
        let switcher = Arc::new(Switcher::default());
        Self::on(&clock, &switcher, bytes_per_second)
    }

    /// A device where each call takes so long, however little it writes.
    pub(crate) fn with_calls(bytes_per_second: u64, call: Duration) -> Self {
        let mut model = Self::new(bytes_per_second);
        Arc::get_mut(&mut model.store).expect("nobody else has it yet").call = call;
        model
    }

    /// Another device, for the same cgroups, by the same clock.
    pub(crate) fn on(clock: &Arc<ManualClock>, switcher: &Arc<Switcher>, bytes_per_second: u64) -> Self {
        let options = BdiOptions {
            flushers: 0,
            dirty_after: Duration::from_secs(5),
            background_pages: 1 << 20,
            background_inodes: 1 << 20,
            write_behind_bytes: None,
            retry_pause: Duration::from_secs(1),
            clock: Arc::clone(clock) as Arc<dyn Clock>,
        };
        let store = Arc::new(Store {
            clock: Arc::clone(clock),
            bytes_per_second,
            call: Duration::ZERO,
            written: Mutex::default(),
        });
        let budget = Budget::new(1 << 30);
        let bdi = Bdi::start("model", options, Arc::clone(&budget), switcher);
        Self { store, switcher: Arc::clone(switcher), bdi, budget }
    }

    pub(crate) fn now(&self) -> Duration {
        self.store.clock.now()
    }

    /// A cgroup.
    pub(crate) fn cgroup(&self, number: u64, parent: CgroupId, name: &str) -> CgroupId {
        self.switcher.cgroups().add_named(CgroupId(number), parent, OsStr::new(name)).id()
    }

    /// Limits a cgroup, as `io.max` is written.
    pub(crate) fn limit(&self, path: &str, limits: &str) {
        let limits: Limits = limits.parse().expect("the caller writes what is right");
        self.bdi.throttle().set(&at(path), limits);
    }

    /// A file that `owner` dirties.
    pub(crate) fn file(&self, owner: CgroupId, bytes: u64) -> Arc<File> {
        let file = Arc::new(File {
            inode_wb: InodeWb::default(),
            store: Arc::clone(&self.store),
            dirty: Mutex::default(),
        });
        self.bdi.attach(&file, owner);
        self.write(&file, owner, bytes);
        file
    }

    /// Dirties more of a file.
    pub(crate) fn write(&self, file: &Arc<File>, owner: CgroupId, bytes: u64) {
        if bytes > 0 {
            // Listed before any thread finds it clean again.
            let mut dirty = file.dirty.lock();
            dirty.push_back((self.bdi.throttle().epoch(), bytes));
            self.bdi.mark_dirty(Arc::clone(file), owner);
        }
    }

    /// Writes the data that a sync waits for. `sleeps` gets the end of each sleep, and returns when
    /// it is woken, or ends the sync. Returns whether the sync came to its end.
    pub(crate) fn finish(
        &self,
        syncing: &Syncing<'_, File>,
        sleeps: &mut dyn FnMut(Duration) -> Option<Duration>,
    ) -> bool {
        syncing.inodes().iter().all(|file| {
            let throttled_write = syncing.throttled_write(file);
            let owner = self.bdi.owner_of(file).unwrap_or(CgroupId::ROOT);
            let Ok(passed) = throttled_write.run(&mut Writer { file, owner, woken: Arc::default(), sleeps });
            self.unlist_if_clean(file);
            passed == Completion::Done
        })
    }

    fn unlist_if_clean(&self, file: &Arc<File>) {
        let dirty = file.dirty.lock();
        if dirty.is_empty() {
            self.bdi.del_dirty(file);
        }
    }

    /// A whole sync by a caller in cgroup `caller`; returns how long it took.
    pub(crate) fn sync(&self, caller: &str, policy: SyncPolicy) -> Duration {
        let begun = self.now();
        let caller = at(caller);
        let syncing = self.bdi.begin_sync(&caller, policy);
        assert!(self.finish(&syncing, &mut Some), "nobody gave it up");
        self.now() - begun
    }

    /// Writes the data that is dirty since `epoch` or before. A sleep ends only when a boost wakes
    /// it.
    pub(crate) fn write_until_kicked(&self, file: &Arc<File>, epoch: u64) {
        let throttled_write = self.bdi.throttled_write(file, epoch, OnLimit::Wait);
        let owner = self.bdi.owner_of(file).unwrap_or(CgroupId::ROOT);
        let woken = Arc::new(Woken::default());
        let (sleeper, now) = (Arc::clone(&woken), self.now());
        let sleeps = &mut |_| {
            sleeper.wait();
            Some(now)
        };
        let Ok(passed) = throttled_write.run(&mut Writer { file, owner, woken, sleeps });
        assert_eq!(passed, Completion::Done);
    }

    /// A flusher's part for a file: writes as much as its owner's limits allow now.
    pub(crate) fn flush(&self, file: &Arc<File>) -> Completion {
        let throttled_write = self.bdi.throttled_write(file, u64::MAX, OnLimit::Skip);
        let owner = self.bdi.owner_of(file).unwrap_or(CgroupId::ROOT);
        let Ok(passed) =
            throttled_write.run(&mut Writer { file, owner, woken: Arc::default(), sleeps: &mut |_| None });
        self.unlist_if_clean(file);
        passed
    }

    /// Flushes these files and nothing else for some time.
    pub(crate) fn flush_for(&self, files: &[Arc<File>], time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            let held = files.iter().all(|file| self.flush(file) != Completion::Aborted);
            assert!(held, "a flusher never sleeps");
            self.store.clock.advance(Duration::from_millis(1));
        }
    }

    /// Bytes that were written so far.
    pub(crate) fn written_by_all(&self) -> u64 {
        self.store.written.lock().iter().map(|(.., bytes)| bytes).sum()
    }

    /// Bytes of a cgroup that were written in a time.
    pub(crate) fn written(&self, owner: CgroupId, from: Duration, to: Duration) -> u64 {
        let written = self.store.written.lock();
        let of = |(at, whose, _): &&(Duration, CgroupId, u64)| *whose == owner && *at > from && *at <= to;
        written.iter().filter(of).map(|(_, _, bytes)| bytes).sum()
    }
}

/// A path, as text.
pub(crate) fn at(path: &str) -> CgroupPath {
    path.parse().expect("the caller writes what is right")
}
