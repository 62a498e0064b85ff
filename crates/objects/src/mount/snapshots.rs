//! Snapshots of a volume that is open: made and deleted by its holder, and opened by readers.

use std::sync::Arc;

use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use super::{MountOptions, Mounted};
use crate::bucket::Bucket;
use crate::clone_volume;
use crate::engine::{Batch, Engine as _, ReadEngine, SlateEngine, Snapshot, Then};
use crate::find_snapshot::{check_name, list, not_there};
use crate::log::CommitLog;
use crate::quotas::Quotas;
use crate::rows::{self, Born};
use crate::segments::Segments;
use crate::tree::Tree;

/// The most snapshots of a volume: its holder reads a manifest for each.
const SNAPSHOTS_MAX: usize = 1000;
/// More objects of the log than are written while a snapshot is made.
const MEANWHILE: u64 = 1 << 20;
/// How often a deletion begins again, for tables were written beside it.
const TRIES: usize = 16;
const OP: &str = "snapshot";

impl Mounted {
    pub(crate) fn writing_engine(&self) -> Result<&SlateEngine> {
        self.engine
            .as_deref()
            .ok_or_else(|| Error::with(ErrorKind::ReadOnly, OP, "the volume is mounted read-only"))
    }

    /// Makes a snapshot of the volume as it is: of all calls that have ended.
    ///
    /// # Errors
    /// `Exists`: there is one of that name; `Invalid`: no snapshot can have it.
    pub(crate) async fn create_snapshot(&self, name: &str) -> Result<Snapshot> {
        check_name(name)?;
        let engine = self.writing_engine()?;
        let _no_other = engine.making.lock().await;
        let there = engine.own_snapshots().await?;
        if there.iter().any(|snapshot| snapshot.name == name) {
            let detail = format!("{}: there is a snapshot `{name}` already", self.bucket.url());
            return Err(Error::with(ErrorKind::Exists, OP, detail));
        }
        if there.len() >= SNAPSHOTS_MAX {
            let detail =
                format!("{}: it has {SNAPSHOTS_MAX} snapshots, which is the most", self.bucket.url());
            return Err(Error::with(ErrorKind::TooBig, OP, detail));
        }
        if !is_on("snapshot-before-its-data") {
            self.tree.sync_all().await?;
        }
        let totals = *self.tree.totals.lock();
        let log = self.log.last_number().saturating_add(MEANWHILE);
        engine.make_snapshot(name, Then { totals, epoch: self.log.epoch(), log }).await?;
        let (newest, there) = engine.newest_snapshots().await?;
        let made = there.iter().find(|snapshot| snapshot.name == name).cloned();
        // Another process has deleted it, or another holder that took the volume over.
        let made = made.ok_or_else(|| not_there(&self.bucket, name, &there))?;
        // What was written since is not needed by it. Where this row is lost by a crash, it needs more
        // than it does.
        if self.log.last_number() > log {
            engine.delete_snapshot(&made, newest).await?;
            let why = "more was written meanwhile than a snapshot bears: try again";
            return Err(Error::with(ErrorKind::Io, OP, why));
        }
        let born = Born { log: self.log.last_number(), segment: self.tree.segments.next() };
        let mut batch = Batch::default();
        batch.put(rows::born_key(made.number), rows::to_bytes(&born));
        self.tree.write(batch).await?;
        Ok(made)
    }

    /// Deletes a snapshot. What it alone needs goes with the next collections of garbage.
    ///
    /// # Errors
    /// `NotFound`: there is none of that name.
    pub(crate) async fn delete_snapshot(&self, name: &str) -> Result<()> {
        let engine = self.writing_engine()?;
        let _none_is_made = engine.making.lock().await;
        let (mut newest, mut there) = engine.newest_snapshots().await?;
        let gone = there.iter().find(|snapshot| snapshot.name == name).cloned();
        let gone = gone.ok_or_else(|| not_there(&self.bucket, name, &there))?;
        for tries in 0.. {
            // From here on no clone is made of it, until another process has taken the volume over.
            clone_volume::forbid_clones(&self.bucket, &gone).await?;
            let Err(error) = engine.delete_snapshot(&gone, newest).await else { break };
            let seen = newest;
            (newest, there) = engine.newest_snapshots().await?;
            if !there.iter().any(|snapshot| snapshot.number == gone.number) {
                break;
            }
            // Tables were written meanwhile, or else it is the bucket's error.
            if newest == seen || tries >= TRIES {
                return Err(error);
            }
        }
        // Also the rows of those that are gone after a crash.
        let mut batch = Batch::default();
        for (key, _) in engine.scan(rows::all_keys(b'S'), 2 * SNAPSHOTS_MAX).await? {
            let number = rows::born_number(&key)?;
            if number == gone.number || !there.iter().any(|snapshot| snapshot.number == number) {
                batch.delete(key.to_vec());
            }
        }
        // Something is written in any case, so that the collector looks again.
        batch.delete(rows::born_key(gone.number));
        self.tree.write(batch).await
    }

    /// The volume's snapshots, the oldest first.
    pub(crate) async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        list(&self.bucket).await
    }

    /// Opens a snapshot for reading. Nothing is written but the mark of its reader.
    ///
    /// # Errors
    /// The bucket's; `Io`: an object is damaged or missing, with its name.
    pub(crate) async fn open_snapshot(
        bucket: Bucket,
        snapshot: &Snapshot,
        options: MountOptions,
    ) -> Result<Arc<Self>> {
        // Its epoch is compared by none: a snapshot is older than the bucket's state.
        let disk_cache = options.open_disk_cache(&bucket)?;
        let MountOptions { codec, window, size_max, .. } = options;
        let (store, root) = bucket.raw();
        let engine = ReadEngine::open_snapshot((store, &root), codec.clone(), snapshot).await?;
        let log = CommitLog::new(bucket.clone(), codec.clone(), window);
        let segments = Segments::new(bucket.bulk(), codec, Arc::clone(&log), 0, disk_cache);
        let quotas = Quotas::load(&engine).await?;
        let tree = Tree::open(Arc::new(engine), segments, 0, size_max, quotas).await?;
        Ok(Self::reading(tree, log, bucket, None))
    }
}
