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

use store::{Creator, Error, ErrorKind, Name, NewNode, ObjectId, RenameFlags, Result, SetXattr};
use tokio::runtime::Runtime;

use super::family::Member;
use super::faults::Random;
use super::model::{By, Content, Seen};
use super::volume::{Taker, Volume};
use crate::bucket::Bucket;
use crate::garbage::tests::{LARGE, assert_counted};
use crate::journal::Identity;
use crate::mount::Mounted;
use crate::tree::Tree;

pub(super) const ROOT: ObjectId = ObjectId::ROOT;
pub(super) const CREATOR: Creator = Creator { uid: 0, gid: 0, umask: 0 };
pub(super) const FILE: NewNode<'_> = NewNode::Special { kind: store::FileType::Regular, rdev: 0 };
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The size of most files, and of some: those go to segments.
const SIZES: [usize; 3] = [1, 5000, 300_000];
pub(super) const JOURNAL: Identity = Identity { volume: [0; 16], id: [0; 16] };
/// A file beside those, which shares data with them.
const SHARED: &str = "shared";
/// A host that only has to end does so in this time, by its own clock.
const END: Duration = Duration::from_secs(600);
/// So long one goes on that does nothing more: it collects garbage meanwhile.
const IDLE: Duration = Duration::from_secs(10);
/// Contents of one holder: fewer than there are.
const VERSIONS: u32 = 48;
/// Processes that take one volume: fewer than there are.
const TAKERS: u32 = 64;
/// Steps of one holder: fewer than [`VERSIONS`].
const STEPS: usize = 40;

/// What a step says of a volume that does not show what its holder did.
const NOT_THERE: &str = "what the holder itself wrote is not there";

pub(super) fn name(name: &str) -> Name<'_> {
    Name::new(name.as_ref()).expect("a good name")
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
    has_begun: bool,
    /// Its life does nothing more, and its tasks go on until it crashes.
    is_idle: Arc<AtomicBool>,
    /// It is the one with the disk.
    pub(super) is_local: bool,
    /// Which volume it takes, of those of a family.
    pub(super) member: usize,
}

impl Host {
    /// A host that takes the volume, when it runs.
    pub(super) fn new((volume, member): (&Volume, Option<Member>), random: Random, is_local: bool) -> Self {
        let (taker, is_cut) = (volume.begin(is_local), Arc::<AtomicBool>::default());
        let number = member.as_ref().map_or(0, |member| member.number);
        let is_idle = Arc::<AtomicBool>::default();
        let life = Life { volume: volume.clone(), member, taker, random, is_idle: Arc::clone(&is_idle) };
        let life = life.live(Arc::clone(&is_cut));
        Self { is_local, is_idle, member: number, ..Self::with(life, is_cut) }
    }

    /// A host with this life.
    pub(super) fn with(life: impl Future<Output = ()> + 'static, is_cut: Arc<AtomicBool>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        Self {
            life: Box::pin(life),
            runtime: runtime.expect("a runtime"),
            is_cut,
            has_ended: false,
            has_begun: false,
            is_idle: Arc::default(),
            is_local: false,
            member: 0,
        }
    }

    /// From now on its requests come late and have no answers, or not any more.
    pub(super) fn cut(&self, is_cut: bool) {
        // ORDERING: Relaxed, the simulation is one thread.
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Runs it for so long by its own clock, or to its life's end.
    pub(super) fn run(&mut self, time: Duration) {
        let Self { life, runtime, has_begun, has_ended, .. } = self;
        *has_begun = true;
        if !*has_ended {
            *has_ended = runtime.block_on(async { tokio::time::timeout(time, life.as_mut()).await.is_ok() });
        }
    }

    /// Runs it until its life has ended, or does nothing more, and a while longer.
    pub(super) fn run_to_end(&mut self) {
        let mut left = END;
        // ORDERING: Relaxed, as in `cut`.
        while !self.has_ended && !left.is_zero() && !self.is_idle.load(Ordering::Relaxed) {
            self.run(IDLE);
            left = left.saturating_sub(IDLE);
        }
        self.run(IDLE);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether a kill interrupts something.
    pub(super) fn is_at_work(&self) -> bool {
        self.has_begun && !self.has_ended
    }
}

/// The life of one holder.
struct Life {
    volume: Volume,
    member: Option<Member>,
    taker: Arc<Taker>,
    random: Random,
    is_idle: Arc<AtomicBool>,
}

impl Life {
    async fn live(mut self, is_cut: Arc<AtomicBool>) {
        let bucket = self.volume.bucket(self.taker.number, &is_cut);
        let bucket = match (self.volume.with_family(bucket).await, &self.member) {
            (Ok(bucket), _) => bucket,
            (Err(error), Some(member)) => return member.assert_refused(&error),
            (Err(error), None) => panic!("it is no clone, and does not open: {error}"),
        };
        let other_requests = bucket.clone().seeded(self.taker.number.into());
        let Some(mounted) = self.volume.open(&self.taker, bucket).await else { return };
        let bucket = other_requests;
        if let Err(error) = self.hold(&mounted, &bucket).await {
            let (epoch, others) = (self.taker.epoch(), self.volume.taken_by_others(&self.taker));
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
            // Its tasks go on until it crashes. ORDERING: Relaxed, as in `cut`.
            self.is_idle.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        mounted.close().await;
    }

    /// Does steps, and syncs in the end; ends early with the first error.
    async fn hold(&mut self, mounted: &Arc<Mounted>, bucket: &Bucket) -> Result<()> {
        let tree = mounted.tree();
        let found = observe(tree).await?;
        let number = self.member.as_ref().map_or(0, |member| member.number);
        let number = TAKERS * u32::try_from(number).expect("few");
        self.taker.holds(found, (number + u32::from(self.taker.number)) * VERSIONS);
        for step in 0..self.random.below(STEPS) {
            self.step(tree).await?;
            if self.volume.is_rewritten && self.random.below(2) == 0 {
                match self.random.below(3) {
                    0 => self.share(tree).await?,
                    _ => self.rewrite(tree).await?,
                }
            }
            if let Some(snapshots) = &self.volume.snapshots {
                let name = || format!("{}-{step}", self.taker.number);
                match self.random.below(12) {
                    0 => snapshots.make(mounted, name(), self.taker.model(|model| model.now())).await?,
                    1 => snapshots.delete_any(mounted, self.member.as_ref(), &mut self.random).await?,
                    2 => snapshots.check(bucket, self.member.as_ref(), &mut self.random).await?,
                    _ => {}
                }
            }
            if let Some(member) = &self.member
                && self.random.below(8) == 0
            {
                member.make_clone(bucket, &mut self.random).await;
            }
        }
        tree.sync_all().await?;
        assert_counted(tree).await?;
        if let Some(snapshots) = &self.volume.snapshots {
            snapshots.check(bucket, self.member.as_ref(), &mut self.random).await?;
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

    /// Writes a part of a file once more, as it is: where it is in the bucket changes, and nothing
    /// else.
    async fn rewrite(&mut self, tree: &Arc<Tree>) -> Result<()> {
        let file = NAMES[self.random.below(NAMES.len())];
        let Some(bytes) = self.taker.model(|model| model.content(file)).map(Content::bytes) else {
            return Ok(());
        };
        let entry = tree.lookup(ROOT, name(file)).await?;
        let pin = tree.pin_used(entry.id.0, "rewrite")?;
        tree.forget(entry.id.0, 1);
        let from = self.random.below(bytes.len());
        let to = from + 1 + self.random.below(bytes.len() - from);
        tree.accept_write(&pin, &[IoSlice::new(&bytes[from..to])], from as u64).await?;
        Ok(())
    }

    /// Has a part of a file refer to its data together with a file that no model knows of, and in which
    /// it is elsewhere.
    async fn share(&mut self, tree: &Arc<Tree>) -> Result<()> {
        let file = NAMES[self.random.below(NAMES.len())];
        let Some(bytes) = self.taker.model(|model| model.content(file)).map(Content::bytes) else {
            return Ok(());
        };
        let pin_of = async |file| {
            let entry = tree.lookup(ROOT, name(file)).await?;
            let pin = tree.pin_used(entry.id.0, "share")?;
            tree.forget(entry.id.0, 1);
            Ok::<_, Error>(pin)
        };
        let shared = match pin_of(SHARED).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = tree.accept(tree.make(ROOT, name(SHARED), FILE, 0o644, CREATOR)).await?;
                tree.forget(made.id.0, 1);
                pin_of(SHARED).await?
            }
            found => found?,
        };
        let (pin, from) = (pin_of(file).await?, self.random.below(bytes.len()) as u64);
        let len = 1 + self.random.below(bytes.len()) as u64;
        let to = self.random.below(2 * LARGE) as u64;
        let len = tree.accept(tree.copy_range((&pin, from), (&shared, to), len)).await?;
        tree.accept(tree.copy_range((&shared, to), (&pin, from), len)).await?;
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
