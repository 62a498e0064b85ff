//! One host of the simulation: a runtime with a clock of its own, and the life of one holder on it.
//!
//! A host does something only while the simulation runs it: one that is not run is a process that
//! was stopped, and its clock with it. One that is dropped has crashed, each of its tasks at the
//! await where it was.

use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use store::{Creator, ErrorKind, Name, NewNode, ObjectId, RenameFlags, Result, SetXattr};
use tokio::runtime::Runtime;

use super::faults::{FaultyObjects, Random, World};
use super::model::{By, Content, Model, Seen};
use super::snapshots::Snapshots;
use crate::bucket::{Bucket, Patience};
use crate::garbage::Timing;
use crate::garbage::tests::assert_counted;
use crate::journal::Identity;
use crate::journal::disk::Disk;
use crate::journal::memory_disk::MemoryDisk;
use crate::journal::setup::MountJournal;
use crate::journal::targets::Targets;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::tree::Tree;

pub(super) const ROOT: ObjectId = ObjectId::ROOT;
pub(super) const CREATOR: Creator = Creator { uid: 0, gid: 0, umask: 0 };
pub(super) const FILE: NewNode<'_> = NewNode::Special { kind: store::FileType::Regular, rdev: 0 };
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The size of most files, and of some: those go to segments.
const SIZES: [usize; 3] = [1, 5000, 300_000];
pub(super) const JOURNAL: Identity = Identity { volume: [0; 16], id: [0; 16] };
/// Bounds of journals: room for a few segments, or for a few commits in a file or two each. All are
/// full now and then.
pub(super) const JOURNAL_BYTES: [u64; 4] = [8 << 10, 64 << 10, 512 << 10, 2 << 20];
/// Contents of one holder: fewer than there are.
const VERSIONS: u32 = 48;
/// Steps of one holder: fewer than [`VERSIONS`].
const STEPS: usize = 40;

/// What a step says of a volume that does not show what its holder did.
const NOT_THERE: &str = "what the holder itself wrote is not there";

pub(super) fn name(name: &str) -> Name<'_> {
    Name::new(name.as_ref()).expect("a good name")
}

/// How hosts of one volume open it.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub(super) world: Arc<World>,
    /// Objects of the log that may be on their way.
    pub(super) window: u64,
    /// The disk of the one host that has a journal.
    pub(super) disk: Arc<MemoryDisk>,
    /// The bound of that journal.
    pub(super) journal_bytes: u64,
    /// What waits for it.
    pub(super) targets: Targets,
    /// How many had begun each time that its host lost power.
    power_lost: Arc<Mutex<Vec<u8>>>,
    /// Who began to take the volume, in this order.
    takers: Arc<Mutex<Vec<Arc<Taker>>>>,
    /// Those that holders make; none: they make none.
    snapshots: Option<Snapshots>,
}

/// A process that takes the volume.
#[derive(Debug, Default)]
pub(super) struct Taker {
    number: u8,
    /// It is on the host with the journal, and its fsyncs wait for that.
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

    /// Who acknowledges a file's sync.
    fn by(&self) -> By {
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
        Self { world, window, disk, journal_bytes, targets, power_lost, takers, snapshots }
    }

    /// A process's way to the bucket.
    pub(super) fn bucket(&self, number: u8, is_cut: &Arc<AtomicBool>) -> Bucket {
        let objects = FaultyObjects::new(&self.world, Arc::clone(is_cut));
        let bucket = Bucket::new(Arc::new(objects), "v".into());
        bucket.seeded(number.into()).with_patience(Patience::UntilStopped)
    }

    /// Those that held the volume, by their epochs.
    pub(super) fn holders(&self) -> Vec<Arc<Taker>> {
        let mut holders: Vec<_> =
            self.takers.lock().iter().filter(|taker| taker.found().is_some()).cloned().collect();
        holders.sort_by_key(|taker| taker.found().map(|(epoch, _)| epoch));
        holders
    }

    /// Whether the process that began last has held the volume.
    pub(super) fn is_held_by_the_last(&self) -> bool {
        self.takers.lock().last().is_some_and(|last| last.found().is_some())
    }

    fn begin(&self, has_journal: bool) -> Arc<Taker> {
        let mut takers = self.takers.lock();
        let number = u8::try_from(takers.len()).expect("few");
        let taker = Arc::new(Taker { number, has_journal, ..Taker::default() });
        takers.push(Arc::clone(&taker));
        taker
    }

    /// The greatest epoch that another process than `taker` takes.
    fn taken_by_others(&self, taker: &Taker) -> u64 {
        let takers = self.takers.lock();
        let others = takers.iter().filter(|other| other.number != taker.number);
        others.map(|other| other.progress.lock().epoch).max().unwrap_or(0)
    }

    /// Whether a holder of a later epoch has found what the volume holds.
    fn is_taken_over(&self, taker: &Taker) -> bool {
        let epoch = taker.progress.lock().epoch;
        self.holders().last().and_then(|last| last.found()).is_some_and(|(last, _)| last > epoch)
    }

    /// The host with the journal loses power.
    pub(super) fn lose_power(&self, below: impl FnMut(usize) -> usize) {
        self.disk.lose_power(below);
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
    async fn open(&self, taker: &Taker, is_cut: &Arc<AtomicBool>) -> Option<Arc<Mounted>> {
        let bucket = self.bucket(taker.number, is_cut);
        let garbage = Timing { every: Duration::from_secs(1), passes: 1, left_alone: 0 };
        let journal = taker.has_journal.then(|| {
            let disk = Arc::clone(&self.disk) as Arc<dyn Disk>;
            Arc::new(MountJournal::new(disk, JOURNAL, self.journal_bytes, self.targets))
        });
        let options =
            MountOptions { garbage, journal, ..MountOptions::plain(self.window, [taker.number; 16]) };
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

/// What the volume shows.
pub(super) async fn observe(tree: &Arc<Tree>) -> Result<Seen> {
    let mut seen = Vec::new();
    for file in NAMES {
        let entry = match tree.lookup(ROOT, name(file)).await {
            Ok(entry) => entry,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let pin = tree.pin_used(entry.id.0, "observe")?;
        let mut data = vec![0; usize::try_from(entry.attr.size).expect("small")];
        let len = tree.read_at(&pin, &mut data, 0).await?;
        assert_eq!(len, data.len(), "{file} ends where its size says");
        tree.forget(entry.id.0, 1);
        seen.push((file.to_owned(), Content::of(&data)));
    }
    Ok(seen)
}

/// A host.
pub(super) struct Host {
    // In this order: what a life holds goes before its runtime.
    life: Pin<Box<dyn Future<Output = ()>>>,
    runtime: Runtime,
    is_cut: Arc<AtomicBool>,
    has_ended: bool,
    pub(super) has_journal: bool,
}

impl Host {
    /// A host that takes the volume, when it runs.
    pub(super) fn new(volume: &Volume, random: Random, has_journal: bool) -> Self {
        let (taker, is_cut) = (volume.begin(has_journal), Arc::<AtomicBool>::default());
        let life = Life { volume: volume.clone(), taker, random };
        let life = life.live(Arc::clone(&is_cut));
        Self { has_journal, ..Self::with(life, is_cut) }
    }

    /// A host with this life.
    pub(super) fn with(life: impl Future<Output = ()> + 'static, is_cut: Arc<AtomicBool>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        Self {
            life: Box::pin(life),
            runtime: runtime.expect("a runtime"),
            is_cut,
            has_ended: false,
            has_journal: false,
        }
    }

    /// From now on its requests come late and have no answers, or not any more.
    pub(super) fn cut(&self, is_cut: bool) {
        // ORDERING: Relaxed, the simulation is one thread.
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Runs it for so long by its own clock, or to its life's end.
    pub(super) fn run(&mut self, time: Duration) {
        let Self { life, runtime, has_ended, .. } = self;
        if !*has_ended {
            *has_ended = runtime.block_on(async { tokio::time::timeout(time, life.as_mut()).await.is_ok() });
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// The life of one holder.
struct Life {
    volume: Volume,
    taker: Arc<Taker>,
    random: Random,
}

impl Life {
    async fn live(mut self, is_cut: Arc<AtomicBool>) {
        let Some(mounted) = self.volume.open(&self.taker, &is_cut).await else { return };
        let bucket = self.volume.bucket(self.taker.number, &is_cut);
        if let Err(error) = self.hold(&mounted, &bucket).await {
            let (epoch, others) =
                (self.taker.progress.lock().epoch, self.volume.taken_by_others(&self.taker));
            assert!(others > epoch, "nobody takes the volume over, and it fails: {error}");
            let again = self.change_and_sync(mounted.tree()).await;
            // A snapshot fails from when the next holder has written its manifest. That is before the
            // log is fenced: until then this one acknowledges, and the next one finds it.
            let is_before_the_fence = error.op() == "snapshot";
            assert!(
                again.is_err() || is_before_the_fence,
                "a holder that has failed acknowledges again: {error}"
            );
        }
        if self.random.below(4) == 0 {
            // Its tasks go on until it crashes.
            std::future::pending::<()>().await;
        }
        mounted.close().await;
    }

    /// Does steps, and syncs in the end; ends early with the first error.
    async fn hold(&mut self, mounted: &Arc<Mounted>, bucket: &Bucket) -> Result<()> {
        let tree = mounted.tree();
        let found = observe(tree).await?;
        {
            let mut progress = self.taker.progress.lock();
            progress.model = Model::new(&found, u32::from(self.taker.number) * VERSIONS);
            progress.found = Some(found);
        }
        for step in 0..self.random.below(STEPS) {
            self.step(tree).await?;
            if let Some(snapshots) = &self.volume.snapshots {
                let name = || format!("{}-{step}", self.taker.number);
                match self.random.below(12) {
                    0 => snapshots.make(mounted, name(), self.taker.model(|model| model.now())).await?,
                    1 => snapshots.delete(mounted, &mut self.random).await?,
                    2 => snapshots.check(bucket).await?,
                    _ => {}
                }
            }
        }
        tree.sync_all().await?;
        assert_counted(tree).await?;
        if let Some(snapshots) = &self.volume.snapshots {
            snapshots.check(bucket).await?;
        }
        self.change_and_sync(tree).await
    }

    /// Changes something that no model knows of, and syncs all.
    async fn change_and_sync(&self, tree: &Arc<Tree>) -> Result<()> {
        let (was_taken_over, mark) =
            (self.volume.is_taken_over(&self.taker), self.taker.model(|model| model.mark()));
        tree.set_xattr(ROOT, "user.holder".as_ref(), &[self.taker.number], SetXattr::Any).await?;
        tree.sync_all().await?;
        assert!(!was_taken_over, "a holder that was taken over acknowledges what it changed since");
        self.taker.model(|model| model.acknowledged_all(&mark, By::Bucket));
        Ok(())
    }

    /// One step, on the volume and on the model.
    async fn step(&mut self, tree: &Arc<Tree>) -> Result<()> {
        let file = NAMES[self.random.below(NAMES.len())];
        let there = match tree.lookup(ROOT, name(file)).await {
            Ok(entry) => {
                let pin = tree.pin_used(entry.id.0, "step")?;
                tree.forget(entry.id.0, 1);
                Some(pin)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let taker = Arc::clone(&self.taker);
        assert_eq!(there.is_some(), taker.model(|model| model.has(file)), "{NOT_THERE}");
        match (self.random.below(14), there) {
            (0..3, None) => {
                taker.model(|model| model.begin_create(file));
                let made = tree.accept(tree.make(ROOT, name(file), FILE, 0o644, CREATOR)).await?;
                tree.forget(made.id.0, 1);
            }
            (2, Some(_)) => {
                taker.model(|model| model.begin_unlink(file));
                tree.accept(tree.remove(ROOT, name(file), false)).await?;
            }
            (3, Some(_)) => {
                let to = NAMES[self.random.below(NAMES.len())];
                taker.model(|model| model.begin_rename(file, to));
                tree.accept(tree.rename(ROOT, name(file), ROOT, name(to), RenameFlags::empty())).await?;
            }
            (4, _) => {
                let mark = taker.model(|model| model.mark());
                tree.sync_all().await?;
                taker.model(|model| model.acknowledged_all(&mark, By::Bucket));
            }
            (5, _) => tokio::time::sleep(Duration::from_millis(self.random.below(8000) as u64)).await,
            (6, Some(pin)) => {
                let mark = taker.model(|model| model.mark_file(file));
                tree.sync_file(&pin).await?;
                taker.model(|model| model.acknowledged_file(mark, taker.by()));
            }
            // Others go on beside these, so that several commits are on their way.
            (7 | 8, Some(pin)) => {
                let (mark, tree) = (taker.model(|model| model.mark_file(file)), Arc::clone(tree));
                tokio::spawn(async move {
                    if tree.sync_file(&pin).await.is_ok() {
                        taker.model(|model| model.acknowledged_file(mark, taker.by()));
                    }
                });
                // It begins, at least.
                tokio::time::sleep(Duration::from_millis(self.random.below(3) as u64)).await;
            }
            (9, _) => {
                let seen = observe(tree).await?;
                assert_eq!(seen, taker.model(|model| model.now()), "{NOT_THERE}");
            }
            // In place: rounds of a file may be on their way at a time.
            (10 | 11, Some(pin)) => {
                if let Some(content) = taker.model(|model| model.begin_overwrite(file)) {
                    tree.accept_write(&pin, &[IoSlice::new(&content.bytes())], 0).await?;
                }
            }
            (_, Some(pin)) => {
                let size = SIZES[self.random.below(SIZES.len())];
                let content = taker.model(|model| model.begin_write(file, size));
                tree.accept(tree.set_size(&pin, 0)).await?;
                tree.accept_write(&pin, &[IoSlice::new(&content.bytes())], 0).await?;
            }
            _ => {}
        }
        if tree.accepts_on_host() {
            self.taker.model(|model| model.acknowledged_all(&model.mark(), By::Files));
        }
        Ok(())
    }
}
