//! Snapshots of a volume that is open: made and deleted by its holder, and opened by readers.

use std::sync::Arc;

use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use super::{MountOptions, Mounted};
use crate::bucket::Bucket;
use crate::clone_volume;
use crate::engine::{Batch, Engine as _, ReadEngine, SlateEngine, Snapshot, Then, snapshots};
use crate::log::CommitLog;
use crate::rows::{self, Born};
use crate::segments::Segments;
use crate::tree::Tree;

/// The most snapshots of a volume: its holder reads a manifest for each.
const SNAPSHOTS_MAX: usize = 1000;
/// More objects of the log than are written while a snapshot is made.
const MEANWHILE: u64 = 1 << 20;
/// The longest name.
const NAME_BYTES_MAX: usize = 100;

const OP: &str = "snapshot";

/// Whether a snapshot may have this name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "it has more than 100 bytes"
    } else if name.chars().any(|c| matches!(c, '/' | ',') || c.is_control()) {
        "it has a slash, a comma or a control character"
    } else if name.trim() != name {
        "it begins or ends with a space"
    } else {
        return Ok(());
    };
    let shown: String = name.chars().filter(|c| !c.is_control()).take(NAME_BYTES_MAX).collect();
    Err(Error::with(ErrorKind::Invalid, OP, format!("`{shown}` is no name of a snapshot: {why}")))
}

/// An error: there is no snapshot of this name.
pub(crate) fn not_there(bucket: &Bucket, name: &str, there: &[Snapshot]) -> Error {
    let url = bucket.url();
    let detail = match there.last() {
        Some(last) => {
            format!(
                "{url}: there is no snapshot `{name}`; `watertight snapshot list` lists them, the last is `{}`",
                last.name
            )
        }
        None => format!("{url}: there is no snapshot `{name}`, and no other"),
    };
    Error::with(ErrorKind::NotFound, OP, detail)
}

/// The snapshots of a volume, the oldest first, whoever holds it.
pub(crate) async fn list(bucket: &Bucket) -> Result<Vec<Snapshot>> {
    let (store, root) = bucket.raw();
    snapshots((store, &root), bucket.parents().manifest()).await
}

/// The snapshot `name` of a volume, whoever holds it.
pub(crate) async fn find(bucket: &Bucket, name: &str) -> Result<Snapshot> {
    check_name(name)?;
    let mut there = list(bucket).await?;
    match there.iter().position(|snapshot| snapshot.name == name) {
        Some(at) => Ok(there.swap_remove(at)),
        None => Err(not_there(bucket, name, &there)),
    }
}

impl Mounted {
    fn writing_engine(&self) -> Result<&SlateEngine> {
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
        let there = engine.own_snapshots().await?;
        let made = there.iter().find(|snapshot| snapshot.name == name).cloned();
        // Another process has deleted it, or another holder that took the volume over.
        let made = made.ok_or_else(|| not_there(&self.bucket, name, &there))?;
        // What was written since is not needed by it. Where this row is lost by a crash, it needs more
        // than it does.
        if self.log.last_number() > log {
            engine.delete_snapshot(&made).await?;
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
        let there = engine.own_snapshots().await?;
        let gone = there.iter().find(|snapshot| snapshot.name == name);
        let gone = gone.ok_or_else(|| not_there(&self.bucket, name, &there))?;
        // From here on no clone is made of it.
        clone_volume::let_go(&self.bucket, gone).await?;
        engine.delete_snapshot(gone).await?;
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
        let disk_cache = options.open_disk_cache()?;
        let MountOptions { codec, window, size_max, .. } = options;
        let (store, root) = bucket.raw();
        let engine = ReadEngine::open_snapshot((store, &root), codec.clone(), snapshot).await?;
        let log = CommitLog::new(bucket.clone(), codec.clone(), window);
        let segments = Segments::new(bucket.bulk(), codec, Arc::clone(&log), 0, disk_cache);
        let tree = Tree::open(Arc::new(engine), segments, 0, size_max).await?;
        Ok(Self::reading(tree, log, bucket))
    }
}
