//! A volume that this process holds: opened, kept, closed.

pub(crate) mod snapshots;

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use slatedb::wal::WalError;
use store::{Error, ErrorKind, Following, NumberedState, RequestStats, Result};
use sync::mutant::is_on;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bucket::{Bucket, Patience};
use crate::codec::Codec;
use crate::disk_cache::{self, CacheDir, DiskCache};
use crate::engine::{FollowEngine, LastManifest, ReadEngine, SlateEngine};
use crate::engine_store::{EngineStore, Found};
use crate::follow::{Follower, Source};
use crate::format::{self, Format};
use crate::garbage::{Collector, Timing};
use crate::journal::setup::MountJournal;
use crate::lease::{Ended, Held};
use crate::log::{CommitLog, Read, Replay};
use crate::newest_manifest::{newest_manifest, older_metadata};
use crate::object_names::engine_path;
use crate::pending::given_up;
use crate::quotas::{QuotaLimits, Quotas};
use crate::readers::Mark;
use crate::segments::Segments;
use crate::tree::Tree;

/// After this time at the latest, what was changed is on its way to the bucket.
const COMMIT_AFTER: Duration = Duration::from_secs(5);

/// How long a request of the garbage collection is repeated.
const COLLECTION: Duration = Duration::from_secs(60);

/// What opening a volume needs to know.
#[derive(Debug, Clone)]
pub(crate) struct MountOptions {
    /// The volume's own identity: its data is bound to that of its family.
    pub(crate) uuid: [u8; 16],
    pub(crate) codec: Codec,
    /// Objects of the log that may be on their way.
    pub(crate) window: u64,
    pub(crate) size_max: Option<u64>,
    /// Names this holder in the log.
    pub(crate) nonce: [u8; 16],
    /// The lease, if there is one.
    pub(crate) held: Option<Arc<Held>>,
    /// The newest manifest, from which the engine is opened; `None`: it is read again.
    pub(crate) found: Option<Found>,
    /// Tables of it that were fetched before the engine asks for them.
    pub(crate) tables: Vec<Found>,
    /// What [`read_log`] has read; `None`: it is read when the volume is opened.
    pub(crate) earlier: Option<Earlier>,
    pub(crate) garbage: Timing,
    /// Where data is kept on this host.
    pub(crate) disk_cache: Option<Arc<dyn CacheDir>>,
    /// The journal, if there is one.
    pub(crate) journal: Option<Arc<MountJournal>>,
    /// How often one that only reads looks for what is new; none: never.
    pub(crate) follow: Option<Duration>,
    /// Rows may be wrong: nothing is done by itself that rests on them.
    pub(crate) is_repair: bool,
    /// What the program before this one in its process had in use.
    pub(crate) handed: Option<NumberedState>,
}

/// The newest manifest, and what was read of the log behind its tables.
pub(crate) type Earlier = (LastManifest, Replay);

impl MountOptions {
    /// Of a volume that nobody holds.
    pub(crate) fn new(format: &Format, codec: Codec) -> Self {
        Self {
            uuid: format.uuid.to_bytes(),
            codec,
            window: format.log_window.into(),
            size_max: format.size_max,
            nonce: [0; 16],
            held: None,
            found: None,
            tables: Vec::new(),
            earlier: None,
            garbage: Timing::default(),
            disk_cache: None,
            journal: None,
            follow: None,
            is_repair: false,
            handed: None,
        }
    }

    /// The cache of this volume in this bucket: a copy of it in another goes its own way.
    fn open_disk_cache(&self, bucket: &Bucket) -> Result<Option<DiskCache>> {
        let dir = self.disk_cache.as_ref();
        dir.map(|dir| dir.open(disk_cache::identity(self.uuid, bucket.url()))).transpose()
    }

    /// For tests: of a volume without compression and key, and without a lease.
    pub(crate) fn plain(window: u64, nonce: [u8; 16]) -> Self {
        let codec = Codec::new([0; 16], crate::Compression::None, None);
        Self {
            uuid: [0; 16],
            codec,
            window,
            size_max: None,
            nonce,
            held: None,
            found: None,
            tables: Vec::new(),
            earlier: None,
            garbage: Timing::default(),
            disk_cache: None,
            journal: None,
            follow: None,
            is_repair: false,
            handed: None,
        }
    }
}

/// A volume that is open.
#[derive(Debug)]
pub(crate) struct Mounted {
    tree: Arc<Tree>,
    log: Arc<CommitLog>,
    bucket: Bucket,
    /// Of one that is written to.
    engine: Option<Arc<SlateEngine>>,
    held: Option<Arc<Held>>,
    journal: Option<Arc<MountJournal>>,
    background: CancellationToken,
    is_closed: Mutex<bool>,
    /// Follows the volume's writer, until the mark is kept.
    follower: Mutex<Option<Follower>>,
    /// What such a reader shows.
    followed: Option<Arc<FollowEngine>>,
    /// Keeps the mark of one that only reads, and removes it in the end.
    marking: Mutex<Option<JoinHandle<()>>>,
}

impl Mounted {
    /// Opens the volume, whose newest manifest was `last` when it was taken.
    pub(crate) async fn open(
        bucket: Bucket,
        last: Option<LastManifest>,
        options: MountOptions,
    ) -> Result<Arc<Self>> {
        let background = CancellationToken::new();
        let ends_if_it_fails = background.clone().drop_guard();
        if let Some(held) = &options.held {
            // Claims of other hosts are answered while this goes on, which may take minutes.
            tokio::spawn(background.clone().run_until_cancelled_owned(Arc::clone(held).keep()));
        }
        let disk_cache = options.open_disk_cache(&bucket)?;
        let journal = options.journal.clone();
        let is_late = is_on("journal-uploaded-after-the-fence");
        if let Some(journal) = journal.as_ref().filter(|_| !is_late) {
            journal.upload_left((&bucket, &options.codec), last).await?;
        }
        let found = last;
        let read = match (options.earlier, last) {
            (None, Some(last)) => Some(read_log(&bucket, last, (&options.codec, options.window)).await?),
            (earlier, _) => earlier,
        };
        let (last, earlier) = read.unzip();
        if let Some(disk_cache) = &disk_cache {
            disk_cache.empty_if_later_than(last.map_or(0, |last| last.epoch));
        }
        let log = CommitLog::new(bucket.clone(), options.codec.clone(), options.window);
        let (store, root) = bucket.raw();
        let store = EngineStore::new(
            store,
            &engine_path(&root),
            options.found.filter(|_| last == found),
            options.tables,
        );
        let (epoch, codec) = (last.map(|last| last.epoch), options.codec.clone());
        let log_and_earlier = (Arc::clone(&log), earlier);
        let engine =
            SlateEngine::open((Arc::clone(&store), &root), codec, epoch, log_and_earlier, options.nonce)
                .await?;
        let epoch = log.epoch();
        if let Some(journal) = journal.as_ref().filter(|_| is_late) {
            journal.upload_left((&bucket, &options.codec), found).await?;
        }
        let segments = Segments::new(bucket.bulk(), options.codec, Arc::clone(&log), epoch, disk_cache);
        let engine = Arc::new(engine);
        // A repair mends their rows, too.
        let quotas = if options.is_repair { Quotas::default() } else { Quotas::load(&*engine).await? };
        let tree = Tree::open(Arc::clone(&engine) as _, segments, epoch, options.size_max, quotas).await?;
        if let Some(handed) = &options.handed {
            tree.take_over(handed).await?;
        }
        if !options.is_repair || is_on("fsck-removes-before-the-check") {
            tree.set_up().await?;
        }
        store.end();
        if let Some(journal) = &journal {
            journal.begin(&log, options.nonce);
        }
        let mounted = Arc::new(Self {
            tree,
            log,
            bucket,
            engine: Some(engine),
            held: options.held,
            journal,
            background: background.clone(),
            is_closed: Mutex::new(false),
            follower: Mutex::default(),
            followed: None,
            marking: Mutex::default(),
        });
        let (tree, log) = (Arc::clone(&mounted.tree), Arc::clone(&mounted.log));
        tokio::spawn(background.clone().run_until_cancelled_owned(commit_by_time(tree, log)));
        if !options.is_repair && !mounted.tree.quotas.are_counted() {
            let finish = Arc::clone(&mounted.tree).finish_quotas();
            tokio::spawn(background.clone().run_until_cancelled_owned(finish));
        }
        if let Some(collector) = mounted.collector(options.garbage).filter(|_| !options.is_repair) {
            tokio::spawn(background.clone().run_until_cancelled_owned(collector.keep()));
        }
        if let Some(held) = &mounted.held {
            let lost = lost(Arc::clone(&mounted), Arc::clone(held));
            tokio::spawn(background.run_until_cancelled_owned(lost));
        }
        ends_if_it_fails.disarm();
        Ok(mounted)
    }

    /// Opens the volume for reading, as its last commits left it. Nothing is written but its mark.
    /// With [`MountOptions::follow`] it is followed as soon as its mark is kept.
    ///
    /// # Errors
    /// The bucket's; `Io`: an object is damaged or missing, with its name.
    pub(crate) async fn open_read_only(
        bucket: Bucket,
        last: LastManifest,
        options: MountOptions,
    ) -> Result<Arc<Self>> {
        let disk_cache = options.open_disk_cache(&bucket)?;
        if let Some(disk_cache) = &disk_cache {
            disk_cache.empty_if_later_than(last.epoch);
        }
        let MountOptions { codec, window, size_max, follow, garbage, .. } = options;
        // Nothing is written to the log, and no segment made.
        let log = CommitLog::new(bucket.clone(), codec.clone(), window);
        let segments = Segments::new(bucket.bulk(), codec.clone(), Arc::clone(&log), 0, disk_cache);
        if let Some(every) = follow {
            let source = Source::new(&bucket, &codec, window);
            let begun = Instant::now();
            let (view, replay) = source.open().await?;
            let engine = Arc::new(FollowEngine::new(view, every, begun));
            // What others write, they hold to quotas.
            let quotas = Quotas::default();
            let tree = Tree::open(Arc::clone(&engine) as _, segments, 0, size_max, quotas).await?;
            let shown = (Arc::clone(&engine), Arc::clone(&tree));
            let follower = Follower::new(source, replay, shown, garbage.every);
            let mounted = Self::reading(tree, log, bucket, Some(engine));
            *mounted.follower.lock() = Some(follower);
            return Ok(mounted);
        }
        let mut replay = Replay::new(bucket.clone(), codec.clone(), window, last.replay_after);
        let Read::Whole = replay.read_to_end(u64::MAX).await? else {
            return Err(older_metadata(&bucket, "the log is of a writer that cannot be"));
        };
        let (store, root) = bucket.raw();
        let engine = ReadEngine::open((store, &root), codec, replay).await?;
        let quotas = Quotas::load(&engine).await?;
        let tree = Tree::open(Arc::new(engine), segments, 0, size_max, quotas).await?;
        Ok(Self::reading(tree, log, bucket, None))
    }

    fn reading(
        tree: Arc<Tree>,
        log: Arc<CommitLog>,
        bucket: Bucket,
        followed: Option<Arc<FollowEngine>>,
    ) -> Arc<Self> {
        let (background, is_closed) = (CancellationToken::new(), Mutex::new(false));
        let (engine, held, journal) = (None, None, None);
        let (follower, marking) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            tree,
            log,
            bucket,
            engine,
            held,
            journal,
            background,
            is_closed,
            follower,
            followed,
            marking,
        })
    }

    /// Keeps the mark of a reader, if it has one, and removes it with [`close`](Self::close). A reader
    /// with `follow` begins to follow the log here.
    pub(crate) fn keep(&self, mark: Option<Mark>) {
        let end = self.background.clone();
        let kept = match (self.follower.lock().take(), mark) {
            (Some(follower), mark) => tokio::spawn(follower.keep(mark, end)),
            (None, Some(mark)) => tokio::spawn(mark.keep_until(end)),
            (None, None) => return,
        };
        *self.marking.lock() = Some(kept);
    }

    /// What follows for one that only reads, for tests that do so step by step.
    #[cfg(test)]
    pub(crate) fn take_follower(&self) -> Option<Follower> {
        self.follower.lock().take()
    }

    /// What removes its garbage; none: it is only read.
    pub(crate) fn collector(&self, timing: Timing) -> Option<Collector> {
        let engine = Arc::clone(self.engine.as_ref()?);
        let parts = (Arc::clone(&self.tree), Arc::clone(&self.log), engine);
        // What cannot be removed now stays until the next pass.
        let bucket = self.bucket.bulk().with_patience(Patience::For(COLLECTION));
        Some(Collector::new(parts, bucket, timing))
    }

    /// Sets the limits of a directory or, by its root, of the volume.
    ///
    /// # Errors
    /// Those of [`Tree::set_quota`], and the bucket's.
    pub(crate) async fn set_quota(&self, dir: u64, limits: QuotaLimits) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "quota"));
        }
        // Before any row says something of quotas. A volume of tests has no such object.
        if !self.tree.quotas.are_on() && self.held.is_some() {
            format::raise(&self.bucket, format::WITH_QUOTAS).await?;
        }
        self.tree.set_quota(dir, limits).await
    }

    /// What the next program of this process needs.
    ///
    /// # Errors
    /// Those of [`Tree::hand_over`].
    pub(crate) fn hand_over(&self) -> Result<NumberedState> {
        let holder = self.held.as_ref().map(|held| held.nonce().to_string());
        Ok(NumberedState { holder, ..self.tree.hand_over()? })
    }

    /// What another process needs to go on if this one dies, but for what is in use, and the journal's
    /// lock; none: what was accepted would not all be there.
    pub(crate) fn recoverable(&self) -> Option<(NumberedState, Arc<OwnedFd>)> {
        let journal = self.journal.as_ref().filter(|journal| journal.targets.accept)?;
        let holder = self.held.as_ref()?.nonce().to_string();
        let state = NumberedState { holder: Some(holder), ..NumberedState::default() };
        Some((state, journal.disk.lock()?))
    }

    /// Whether nothing can be changed.
    pub(crate) const fn is_read_only(&self) -> bool {
        self.engine.is_none()
    }

    /// The epoch of its holder.
    #[cfg(test)]
    pub(crate) fn epoch(&self) -> u64 {
        self.log.epoch()
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> &SlateEngine {
        self.engine.as_ref().expect("it is written to")
    }

    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// What its requests did, and are doing, and what waits in its journal.
    pub(crate) fn requests(&self) -> RequestStats {
        let disk_cache = self.tree.segments.reader().disk_cache().map(DiskCache::stats);
        let journal = self.log.journal_stats();
        let unsaved_bytes = self.tree.pending.bytes() + self.log.unsaved_bytes();
        let following =
            self.followed.as_ref().map(|engine| Following { every: engine.every(), age: engine.age() });
        RequestStats { unsaved_bytes, disk_cache, journal, following, ..self.bucket.stats().into() }
    }

    /// Ends every call that waits, with an error.
    pub(crate) fn abort(&self) {
        self.fail(given_up());
        self.bucket.stop();
        if let Some(held) = &self.held {
            held.give_up();
        }
    }

    fn fail(&self, error: Error) {
        self.background.cancel();
        self.log.fail(WalError::Unavailable(Arc::new(error.clone())));
        self.tree.pending.fail(error);
    }

    /// Writes the tables, and ends the engine. The log has all of it: where nothing of this host depends
    /// on the lease, it is released beside the last request. A holder that comes before that has ended
    /// reads the log.
    async fn close_engine(&self) -> Result<()> {
        let has_disk_cache = self.tree.segments.reader().disk_cache().is_some();
        let here = self.journal.is_some() || has_disk_cache;
        let (Some(engine), Some(held), false) = (&self.engine, &self.held, here) else {
            return self.tree.engine.close().await;
        };
        // Merges write manifests, too, and are the holder's.
        engine.end_merging().await;
        let mut close = pin!(self.tree.engine.close());
        tokio::select! {
            biased;
            () = engine.sends_manifest() => {}
            closed = &mut close => return closed,
        }
        // A release that fails is tried again.
        match tokio::join!(close, held.release()) {
            (Err(error), Ok(())) => {
                tracing::debug!(%error, "the tables are not written: the next holder reads the log");
                Ok(())
            }
            (closed, _) => closed,
        }
    }

    /// Brings everything to the bucket, so that the next holder has nothing to replay. What could
    /// not be is said by the sync before.
    pub(crate) async fn close(&self) {
        if std::mem::replace(&mut *self.is_closed.lock(), true) {
            return;
        }
        self.background.cancel();
        let marking = self.marking.lock().take();
        if let Some(marking) = marking {
            let _it_ended = marking.await;
        }
        if is_on("lease-released-before-the-log")
            && let Some(held) = &self.held
        {
            let _released = held.release().await;
        }
        let closed = match self.tree.sync_all().await {
            Ok(()) => self.close_engine().await,
            Err(error) => Err(error),
        };
        // Before the lease: its next holder may use the directory.
        if let Some(disk_cache) = self.tree.segments.reader().disk_cache() {
            disk_cache.close();
        }
        if let Err(error) = closed {
            tracing::warn!(%error, "the volume's end is not in its bucket");
            self.abort();
            // Its tasks end; that nothing more reaches the bucket is known.
            let _given_up = self.tree.engine.close().await;
            let _the_next_mount_finds_it = self.log.end_journal().await;
        } else {
            let is_empty = self.log.end_journal().await;
            if let Some(held) = &self.held
                && let Err(error) =
                    if is_empty { held.release().await } else { held.release_but_journal().await }
            {
                tracing::warn!(%error, "the volume's lease is not released");
            }
        }
        if let Some(journal) = &self.journal {
            journal.disk.unlock();
        }
        self.bucket.stop();
        // Here: tasks that end with the process may have handles.
        self.bucket.log_requests();
        if let Some(held) = &self.held {
            // Also where the bucket does not know of the release.
            held.give_up();
        }
        self.tree.pending.clear();
    }
}

/// Reads the log behind the tables. A holder that is taken over, and does not know, may write
/// tables meanwhile and remove the log's objects that they replace: then what is behind these is
/// read.
pub(crate) async fn read_log(
    bucket: &Bucket,
    mut last: LastManifest,
    codec_and_window: (&Codec, u64),
) -> Result<Earlier> {
    loop {
        let error = match read_behind(bucket, last, codec_and_window).await {
            Ok(replay) => return Ok((last, replay)),
            Err(error) => error,
        };
        match newest_manifest(bucket).await? {
            Some(newer) if newer.epoch == last.epoch && newer.replay_after > last.replay_after => {
                last = newer
            }
            _ => return Err(error),
        }
    }
}

/// Reads the log behind the tables, before anything is written to the bucket.
async fn read_behind(bucket: &Bucket, last: LastManifest, (codec, window): (&Codec, u64)) -> Result<Replay> {
    let mut replay = Replay::new(bucket.clone(), codec.clone(), window, last.replay_after);
    if let Read::Newer { number } = replay.read_to_end(last.epoch.saturating_add(1)).await? {
        // Another host may just have opened it.
        if newest_manifest(bucket).await? == Some(last) {
            let why = format!("the newest manifest is older than {}", crate::object_names::log_name(number));
            return Err(older_metadata(bucket, &why));
        }
        return Err(Error::with(ErrorKind::Busy, "open", "another host takes the volume over"));
    }
    Ok(replay)
}

/// Commits what was changed, after a while.
async fn commit_by_time(tree: Arc<Tree>, log: Arc<CommitLog>) {
    loop {
        // An idle volume does not wake a thread.
        tokio::select! {
            () = tree.pending.some() => {}
            () = log.wait_until_open() => {}
        }
        tokio::time::sleep(COMMIT_AFTER).await;
        if let Err(error) = tree.sync_all().await {
            tracing::debug!(%error, "nothing is committed any more");
            return;
        }
    }
}

/// Fails the volume when another process has taken it over.
async fn lost(mounted: Arc<Mounted>, held: Arc<Held>) {
    let mut ended = held.watch();
    let Ok(ended) = ended.wait_for(Option::is_some).await.map(|ended| ended.clone()) else { return };
    if let Some(Ended::Lost(lost)) = ended {
        let by = lost.info.describe(lost.found);
        tracing::error!(by, "the volume was taken over: what was not synced is lost");
        mounted.fail(Error::with(ErrorKind::Io, "commit", format!("the volume was taken over: {by}")));
    }
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
