//! The simulated volume, what its hosts know of it, and what each process that took it did.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use store::{ErrorKind, Result};

use super::faults::{FaultyObjects, World};
use super::host::JOURNAL;
use super::model::{By, Model, Seen};
use super::snapshots::Snapshots;
use crate::bucket::{Bucket, Patience};
use crate::clone_volume;
use crate::disk_cache::CacheDir;
use crate::disk_cache::memory_dir::MemoryDir;
use crate::engine::with_parents;
use crate::format;
use crate::garbage::Timing;
use crate::journal::disk::Disk;
use crate::journal::memory_disk::MemoryDisk;
use crate::journal::setup::MountJournal;
use crate::journal::targets::Targets;
use crate::lease::Lease;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;

/// Bounds of journals: room for a few segments, or for a few commits in a file or two each. All are
/// full now and then.
pub(super) const JOURNAL_BYTES: [u64; 4] = [8 << 10, 64 << 10, 512 << 10, 2 << 20];

/// How hosts of one volume open it.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub(super) world: Arc<World>,
    /// Objects of the log that may be on their way.
    pub(super) window: u64,
    /// The one host with a disk has a journal on it.
    pub(super) has_journal: bool,
    pub(super) disk: Arc<MemoryDisk>,
    /// The disk cache on it, if there is one.
    pub(super) cache: Option<MemoryDir>,
    /// Parts of files are written again.
    pub(super) is_rewritten: bool,
    /// The bound of the journal.
    pub(super) journal_bytes: u64,
    /// What waits for it.
    pub(super) targets: Targets,
    /// How many had begun each time that its host lost power.
    power_lost: Arc<Mutex<Vec<u8>>>,
    /// Who began to take the volume, in this order.
    takers: Arc<Mutex<Vec<Arc<Taker>>>>,
    /// Those that holders make; none: they make none.
    pub(super) snapshots: Option<Snapshots>,
    /// Where it is in the bucket.
    pub(super) root: String,
    /// It has the object `format`, as clones and what they are made of have.
    is_formatted: bool,
}

/// A process that takes the volume.
#[derive(Debug, Default)]
pub(super) struct Taker {
    pub(super) number: u8,
    /// It is on the host with the disk.
    is_local: bool,
    /// And its fsyncs wait for the journal there.
    has_journal: bool,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The epoch that it takes, or has.
    epoch: u64,
    /// What it found, once it holds the volume.
    found: Option<Seen>,
    model: Model,
}

impl Taker {
    /// The epoch of one that held the volume, and what it found.
    pub(super) fn found(&self) -> Option<(u64, Seen)> {
        let progress = self.progress.lock();
        progress.found.clone().map(|found| (progress.epoch, found))
    }

    /// The next holder has found this.
    #[track_caller]
    pub(super) fn assert_left(&self, seen: &Seen, by: By) {
        self.progress.lock().model.assert_left(seen, by);
    }

    /// The epoch that it takes, or has.
    pub(super) fn epoch(&self) -> u64 {
        self.progress.lock().epoch
    }

    /// It holds the volume, and found this.
    pub(super) fn holds(&self, found: Seen, version: u32) {
        let mut progress = self.progress.lock();
        progress.model = Model::new(&found, version);
        progress.found = Some(found);
    }

    /// Who acknowledges a file's sync.
    pub(super) fn by(&self) -> By {
        if self.has_journal { By::Host } else { By::Bucket }
    }

    pub(super) fn model<T>(&self, change: impl FnOnce(&mut Model) -> T) -> T {
        change(&mut self.progress.lock().model)
    }
}

impl Volume {
    pub(super) fn new(world: Arc<World>, window: u64, snapshots: Option<Snapshots>) -> Self {
        let journal_bytes = JOURNAL_BYTES[JOURNAL_BYTES.len() - 1];
        let targets = Targets { fsync: true, accept: false };
        let (disk, power_lost, takers) = Default::default();
        let (root, is_formatted) = ("v".to_owned(), false);
        Self {
            world,
            window,
            has_journal: false,
            cache: None,
            is_rewritten: false,
            disk,
            journal_bytes,
            targets,
            power_lost,
            takers,
            snapshots,
            root,
            is_formatted,
        }
    }

    /// Another volume of its kind in the same bucket, which nobody has taken yet.
    pub(super) fn another(&self, root: String) -> Self {
        let (disk, power_lost, takers) = Default::default();
        let snapshots = self.snapshots.as_ref().map(|_| Snapshots::default());
        let cache = self.cache.as_ref().map(|_| MemoryDir::default());
        Self { root, disk, cache, power_lost, takers, snapshots, ..self.clone() }
    }

    /// Makes its `format`.
    pub(super) async fn format(&mut self) {
        let bucket = self.bucket(u8::MAX, &Arc::default());
        format::create(&bucket, format::Options::default()).await.expect("nothing is there");
        self.is_formatted = true;
    }

    /// A process's way to the bucket.
    pub(super) fn bucket(&self, number: u8, is_cut: &Arc<AtomicBool>) -> Bucket {
        let objects = FaultyObjects::new(&self.world, Arc::clone(is_cut));
        let bucket = Bucket::new(Arc::new(objects), self.root.as_str().into());
        bucket.seeded(number.into()).with_patience(Patience::UntilStopped)
    }

    /// Those that held the volume, by their epochs.
    pub(super) fn holders(&self) -> Vec<Arc<Taker>> {
        let mut holders: Vec<_> =
            self.takers.lock().iter().filter(|taker| taker.found().is_some()).cloned().collect();
        holders.sort_by_key(|taker| taker.found().map(|(epoch, _)| epoch));
        holders
    }

    /// Whether the process that began last, if there is one, has held the volume.
    pub(super) fn is_held_by_the_last(&self) -> bool {
        self.takers.lock().last().is_none_or(|last| last.found().is_some())
    }

    /// A bucket that also finds the objects of the volumes that this one was cloned from. Where the
    /// making of the clone was interrupted, this ends it.
    pub(super) async fn with_family(&self, bucket: Bucket) -> Result<Bucket> {
        if !self.is_formatted {
            return Ok(bucket);
        }
        let format = format::read(&bucket).await?;
        if !format.parents.is_empty() && !Lease::is_there(&bucket).await? {
            clone_volume::finish(&bucket, &format).await?;
        }
        with_parents(&bucket, &format.parents).await
    }

    pub(super) fn begin(&self, is_local: bool) -> Arc<Taker> {
        let mut takers = self.takers.lock();
        let number = u8::try_from(takers.len()).expect("few");
        let has_journal = is_local && self.has_journal;
        let taker = Arc::new(Taker { number, is_local, has_journal, ..Taker::default() });
        takers.push(Arc::clone(&taker));
        taker
    }

    /// The greatest epoch that another process than `taker` takes.
    pub(super) fn taken_by_others(&self, taker: &Taker) -> u64 {
        let takers = self.takers.lock();
        let others = takers.iter().filter(|other| other.number != taker.number);
        others.map(|other| other.progress.lock().epoch).max().unwrap_or(0)
    }

    /// Whether a holder of a later epoch has found what the volume holds.
    pub(super) fn is_taken_over(&self, taker: &Taker) -> bool {
        let epoch = taker.progress.lock().epoch;
        self.holders().last().and_then(|last| last.found()).is_some_and(|(last, _)| last > epoch)
    }

    /// The host with the disk loses power.
    pub(super) fn lose_power(&self, mut below: impl FnMut(usize) -> usize) {
        self.disk.lose_power(&mut below);
        if let Some(cache) = &self.cache {
            cache.lose_power(below);
        }
        self.power_lost.lock().push(u8::try_from(self.takers.lock().len()).expect("few"));
    }

    /// Whether that was between these two.
    fn has_lost_power(&self, earlier: u8, later: u8) -> bool {
        self.power_lost.lock().iter().any(|begun| (earlier + 1..=later).contains(begun))
    }

    /// Whose word counts when `next`, of the epoch `later`, finds what a holder of the epoch
    /// `earlier` left: a process elsewhere gives that one's journal up.
    pub(super) fn acknowledged_by(
        &self,
        (earlier, before): (u64, &Taker),
        (later, next): (u64, &Taker),
    ) -> By {
        let takers = self.takers.lock();
        let is_between = |epoch| earlier < epoch && epoch < later;
        let is_given_up = |taker: &Arc<Taker>| !taker.has_journal && is_between(taker.progress.lock().epoch);
        if !next.has_journal || takers.iter().any(is_given_up) {
            By::Bucket
        } else if self.has_lost_power(before.number, next.number) {
            By::Host
        } else {
            By::Files
        }
    }

    /// Whether a process elsewhere has given up a journal.
    fn is_journal_given_up(&self) -> bool {
        let takers = self.takers.lock();
        let epochs = |has_journal| {
            let of = takers.iter().filter(move |taker| taker.has_journal == has_journal);
            of.map(|taker| taker.progress.lock().epoch)
        };
        epochs(false).max() > epochs(true).filter(|epoch| *epoch > 0).min()
    }

    /// Opens the volume; `None`: another process has taken it meanwhile.
    pub(super) async fn open(&self, taker: &Taker, bucket: Bucket) -> Option<Arc<Mounted>> {
        let garbage = Timing { every: Duration::from_secs(1), passes: 1, left_alone: 0 };
        let journal = taker.has_journal.then(|| {
            let disk = Arc::clone(&self.disk) as Arc<dyn Disk>;
            Arc::new(MountJournal::new(disk, JOURNAL, self.journal_bytes, self.targets))
        });
        let cache = self.cache.as_ref().filter(|_| taker.is_local);
        let disk_cache = cache.map(|dir| Arc::new(dir.clone()) as Arc<dyn CacheDir>);
        let plain = MountOptions::plain(self.window, [taker.number; 16]);
        let options = MountOptions { garbage, journal, disk_cache, ..plain };
        let last = newest_manifest(&bucket).await;
        let last = last.unwrap_or_else(|error| panic!("the newest manifest cannot be read: {error}"));
        let epoch = last.map_or(0, |last| last.epoch) + 1;
        taker.progress.lock().epoch = epoch;
        let mut opened = Mounted::open(bucket.clone(), last, options.clone()).await;
        if let Err(error) = &opened
            && error.kind() == ErrorKind::Stale
        {
            assert!(self.is_journal_given_up(), "nobody gave the journal up, and it is lost: {error}");
            opened = Mounted::open(bucket, last, options).await;
        }
        match opened {
            Ok(mounted) => {
                assert_eq!(mounted.epoch(), epoch, "it has another epoch than it took");
                Some(mounted)
            }
            Err(error) => {
                let others = self.taken_by_others(taker);
                assert!(others >= epoch, "nobody takes the volume over, and it does not open: {error}");
                None
            }
        }
    }
}
