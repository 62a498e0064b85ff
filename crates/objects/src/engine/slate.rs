//! The engine is SlateDB, with the commit log as its write-ahead log.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path;
use parking_lot::Mutex;
use slatedb::admin::AdminBuilder;
use slatedb::config::{CloseOptions, DbReaderOptions, FlushOptions, FlushType, ScanOptions, Settings};
use slatedb::{Db, DbIterator, DbReader, DbReaderMode, PathResolver, VersionedManifest, WriteBatch};
use store::{Error, ErrorKind, Result};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::cache::TableCache;
use super::clock::Clock;
use super::compaction::{Compaction, Opening, TABLES_MAX};
use super::sums::Sums;
use super::{BATCH_BYTES_MAX, Batch, Engine};
use crate::codec::Codec;
use crate::engine_blocks::Blocks;
use crate::engine_store::EngineStore;
use crate::limited::TOO_SHORT;
use crate::log::journaled::{Journaled, Level};
use crate::log::{CommitLog, LogInit, Replay};
use crate::object_names::engine_path;
use crate::parents::Parents;
use crate::rows::{self, Totals, Usage};

/// Rows in memory before they become a table.
const TABLE_BYTES: usize = 32 << 20;
/// Commits that are on their way at a time; those who come meanwhile share the next.
const COMMITS: usize = 4;

/// SlateDB.
pub(crate) struct SlateEngine {
    pub(super) db: Db,
    pub(super) log: Arc<CommitLog>,
    engine_store: Arc<EngineStore>,
    /// The same, as the engine's parts take it.
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) root: Path,
    pub(super) path: Path,
    pub(crate) clock: Arc<Clock>,
    /// Held while tables are merged, and while it is read which of them are in use.
    pub(super) turn: Arc<AsyncMutex<()>>,
    /// Held while a snapshot is made: what it needs is not known before it is there.
    pub(crate) making: AsyncMutex<()>,
    /// The manifest that the volume began with: snapshots of earlier ones are its parent's.
    pub(super) begun_with: u64,
    /// The tables of manifests that snapshots keep.
    pub(super) kept: Mutex<BTreeMap<u64, Arc<Vec<String>>>>,
    compaction: Arc<Compaction>,
    /// Ends the merging of tables.
    stop: CancellationToken,
    merging: Mutex<Option<JoinHandle<()>>>,
    /// Whether there was room for the last tables, once the merging has ended.
    has_room: OnceCell<bool>,
}

impl fmt::Debug for SlateEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlateEngine").field("log", &self.log).finish_non_exhaustive()
    }
}

/// What is right where one of the engine's objects is damaged.
const PUT_BACK: &str = "put the object back as it was, and everything is there";

/// The names of the tables of the manifest with this number.
pub(crate) async fn tables_of(store: Arc<dyn ObjectStore>, root: &Path, number: u64) -> Result<Vec<String>> {
    let path = engine_path(root);
    let admin = AdminBuilder::new(path.clone(), store).with_system_clock(Arc::new(Clock::default())).build();
    let Some(manifest) = admin.read_manifest(Some(number)).await.map_err(|error| plain(&error))? else {
        let detail =
            format!("manifest {number} below {path}, which a snapshot needs, is missing; {PUT_BACK}");
        return Err(Error::with(ErrorKind::Io, "metadata", detail));
    };
    let names = PathResolver::new(path, &manifest);
    let views = manifest.all_sst_views().map(|view| names.sst_path(&view.sst.id));
    Ok(views.map(|path| path.filename().unwrap_or_default().to_owned()).collect())
}

/// What the newest manifest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastManifest {
    /// The epoch of the last writer.
    pub(crate) epoch: u64,
    /// The last object of the log whose rows are in tables.
    pub(crate) replay_after: u64,
}

impl LastManifest {
    /// That of a clone, whose log begins behind its parent's.
    pub(crate) fn behind(self, parents: &Parents) -> Self {
        Self { replay_after: self.replay_after.max(parents.log()), ..self }
    }
}

/// The newest manifest, read; `None`: there is none.
pub(super) async fn newest_manifest(
    store: Arc<dyn ObjectStore>,
    root: &Path,
) -> Result<Option<VersionedManifest>> {
    let admin =
        AdminBuilder::new(engine_path(root), store).with_system_clock(Arc::new(Clock::default())).build();
    admin.read_manifest(None).await.map_err(|error| match error.kind() {
        // The engine does not say which of its files it read.
        slatedb::ErrorKind::Internal | slatedb::ErrorKind::Data => {
            tracing::debug!(%error, "the newest manifest cannot be read");
            let detail = format!("the newest object below meta/manifest/ is damaged; {PUT_BACK}");
            Error::with(ErrorKind::Io, "metadata", detail)
        }
        _ => plain(&error),
    })
}

/// The newest manifest, and the tables that it names, each with its length; `None`: there is none.
pub(crate) async fn last_manifest(
    store: Arc<dyn ObjectStore>,
    root: &Path,
) -> Result<Option<(LastManifest, Vec<(Path, u64)>)>> {
    let manifest = newest_manifest(store, root).await?;
    Ok(manifest.map(|manifest| {
        let names = PathResolver::new(engine_path(root), &manifest);
        // All that the engine reads of one: only a footer is behind it.
        let tables = manifest.all_sst_views();
        let tables = tables.map(|view| (names.sst_path(&view.sst.id), view.sst.estimate_size())).collect();
        let last =
            LastManifest { epoch: manifest.writer_epoch(), replay_after: manifest.replay_after_wal_id() };
        (last, tables)
    }))
}

/// What the volume held when its tables were last written, which an unmount does: read without
/// taking the volume.
pub(crate) async fn totals_in_tables(
    (store, root): (Arc<dyn ObjectStore>, &Path),
    codec: Codec,
) -> Result<Totals> {
    let options = DbReaderOptions { skip_wal_replay: true, ..DbReaderOptions::default() };
    let read = async {
        let reader = DbReader::builder(engine_path(root), store)
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(options)
            .with_merge_operator(Arc::new(Sums))
            .with_block_transformer(Arc::new(Blocks::new(codec)))
            .build()
            .await?;
        let row = reader.get(rows::TOTALS).await?;
        reader.close().await?;
        Ok(row)
    };
    let row = read.await.map_err(|error: slatedb::Error| plain(&error))?;
    row.map_or(Ok(Totals::default()), |row| rows::from_bytes(&row, "the totals"))
}

impl SlateEngine {
    /// Opens the engine for writing, if `epoch` is still the last writer's.
    pub(crate) async fn open(
        (engine_store, root): (Arc<EngineStore>, &Path),
        codec: Codec,
        epoch: Option<u64>,
        (log, earlier): (Arc<CommitLog>, Option<Replay>),
        nonce: [u8; 16],
    ) -> Result<Self> {
        let settings = Settings {
            flush_interval: None,
            // Nobody else writes, and merges of this process are read when they end. Who has taken the
            // volume over, the lease says.
            manifest_poll_interval: Duration::from_secs(3600),
            manifest_update_timeout: Duration::from_secs(60),
            l0_sst_size_bytes: TABLE_BYTES,
            max_unflushed_bytes: 4 * TABLE_BYTES,
            l0_max_ssts: TABLES_MAX,
            l0_max_ssts_per_key: TABLES_MAX,
            compactor_options: None,
            garbage_collector_options: None,
            ..Settings::default()
        };
        let clock = Arc::new(Clock::default());
        let store: Arc<dyn ObjectStore> = Arc::clone(&engine_store) as _;
        let (root, path) = (root.clone(), engine_path(root));
        let turn = Arc::new(AsyncMutex::new(()));
        let compaction = Arc::new(Compaction {
            store: Arc::clone(&store),
            path: path.clone(),
            codec: codec.clone(),
            clock: Arc::clone(&clock),
            turn: Arc::clone(&turn),
        });
        let log_init =
            LogInit { log: Arc::clone(&log), nonce, clock: Arc::clone(&clock), earlier: Mutex::new(earlier) };
        let builder = Db::builder(path.clone(), Arc::clone(&store))
            .with_settings(settings)
            .with_system_clock(Arc::clone(&clock) as _)
            .with_db_cache(Arc::new(TableCache::default()), 0)
            .with_merge_operator(Arc::new(Sums))
            .with_block_transformer(Arc::new(Blocks::new(codec)))
            .with_wal_writer(Box::new(Opening { log: log_init, merging: Arc::clone(&compaction) }));
        // Of two processes that saw this epoch, or both none, one opens the engine.
        let db =
            builder.with_expected_epoch(epoch.unwrap_or(0)).build().await.map_err(|error| plain(&error))?;
        let stop = CancellationToken::new();
        let merging = tokio::spawn(Arc::clone(&compaction).keep(db.clone(), stop.clone()));
        let (making, kept, begun_with) = (AsyncMutex::new(()), Mutex::default(), log.parents().manifest());
        Ok(Self {
            db,
            log,
            engine_store,
            store,
            root,
            path,
            clock,
            turn,
            making,
            begun_with,
            kept,
            compaction,
            stop,
            merging: Mutex::new(Some(merging)),
            has_room: OnceCell::new(),
        })
    }

    /// Ends the merging of tables. Whether there is room for the last ones, which nothing else makes from
    /// here on: where there is none, their rows stay in the log.
    pub(crate) async fn end_merging(&self) -> bool {
        let ended = async {
            self.stop.cancel();
            let merging = self.merging.lock().take();
            if let Some(merging) = merging {
                let _it_ended = merging.await;
            }
            let has_room = self.compaction.make_room_to_close(&self.db).await;
            if !has_room {
                tracing::warn!("tables of metadata are not merged: the next holder reads the log");
            }
            has_room
        };
        *self.has_room.get_or_init(|| ended).await
    }

    /// Waits until a manifest is on its way that was not when this was called.
    pub(crate) async fn sends_manifest(&self) {
        self.engine_store.sends_manifest().await;
    }

    pub(super) async fn flush(&self, what: FlushOptions) -> Result<()> {
        self.db.flush_with_options(what).await.map_err(|error| self.failed(&error))
    }

    /// Has the journal, or else the bucket, take all that was written by now.
    async fn commit_to_journal(&self, level: Level) -> Result<()> {
        match self.log.commit_to_journal(level).await? {
            Journaled::Yes => Ok(()),
            Journaled::No => self.commit().await,
        }
    }

    /// A failure, by its cause in the log if there is one.
    pub(super) fn failed(&self, error: &slatedb::Error) -> Error {
        self.log.failure().unwrap_or_else(|| {
            let plain = plain(error);
            if is_damage(error) {
                tracing::error!(error = %plain, "the volume's metadata cannot be read");
            }
            plain
        })
    }
}

#[async_trait]
impl Engine for SlateEngine {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.db.get(key).await.map_err(|error| self.failed(&error))
    }

    async fn scan(&self, range: Range<Vec<u8>>, max: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let read_ahead = if max > 64 { 1 << 20 } else { 1 };
        let options =
            ScanOptions { read_ahead_bytes: read_ahead, cache_blocks: true, ..ScanOptions::default() };
        let failed = |error: slatedb::Error| self.failed(&error);
        let rows = self.db.scan_with_options(range, &options).await.map_err(failed)?;
        first_rows(rows, max).await.map_err(failed)
    }

    async fn write(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        // Known changes are made in batches that fit; nothing is written that could not be read back.
        if batch.bytes() > BATCH_BYTES_MAX {
            let detail = format!("a change of {} bytes is more than a commit takes", batch.bytes());
            return Err(Error::with(ErrorKind::TooBig, "metadata", detail));
        }
        let mut writes = WriteBatch::new();
        for (key, value) in batch.changes {
            match value {
                Some(value) => writes.put_bytes(Bytes::from(key), value),
                None => writes.delete(key),
            }
        }
        if batch.totals != Totals::default() {
            writes.merge(rows::TOTALS, rows::to_bytes(&batch.totals));
        }
        for (object, change) in batch.usage.iter().filter(|(_, change)| **change != Usage::default()) {
            writes.merge(rows::live_key(*object), rows::to_bytes(change));
        }
        for (dir, usage) in batch.quota_usage.iter().filter(|(_, usage)| usage.change != Totals::default()) {
            writes.merge(rows::usage_key(*dir), rows::to_bytes(&usage.change));
        }
        self.db.write(writes).await.map(drop).map_err(|error| self.failed(&error))
    }

    async fn commit(&self) -> Result<()> {
        // Those who wait here share the next commit: the first of them seals what all have written,
        // and the others find nothing to send.
        // Those whose commit has just ended come again within a moment: they share the next.
        if let Some(pause) = self.log.pause_before_commit() {
            tokio::time::sleep(pause).await;
        }
        self.log.wait_for_turn(COMMITS).await;
        self.flush(FlushOptions { flush_type: FlushType::Wal }).await
    }

    async fn commit_to_host(&self) -> Result<()> {
        self.commit_to_journal(Level::Synced).await
    }

    async fn accept_on_host(&self) -> Result<()> {
        self.commit_to_journal(Level::Written).await
    }

    async fn close(&self) -> Result<()> {
        let has_room = self.end_merging().await;
        let write = async || if has_room { self.write_tables().await } else { self.commit().await };
        let mut written = write().await;
        if written.is_ok() && self.log.has_open() {
            // Written since by a task that has not ended: nobody waits for it, and it is not lost.
            written = write().await;
        }
        if written.is_ok() {
            self.engine_store.close();
        }
        // Also where that failed: its tasks end.
        let options = CloseOptions { flush_type: None };
        let closed = self.db.close_with_options(options).await;
        if let Err(error) = closed {
            tracing::debug!(%error, "the engine's tasks have ended");
        }
        written
    }
}

impl Drop for SlateEngine {
    /// An engine whose volume could not be opened is not closed: nothing merges its tables.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The first rows of a scan, `max` at most.
pub(super) async fn first_rows(
    mut rows: DbIterator,
    max: usize,
) -> Result<Vec<(Bytes, Bytes)>, slatedb::Error> {
    let mut found = Vec::new();
    while found.len() < max {
        let Some(row) = rows.next().await? else { break };
        found.push((row.key, row.value));
    }
    Ok(found)
}

/// Whether an object is missing, corrupted or cut off.
fn is_damage(error: &slatedb::Error) -> bool {
    error.kind() == slatedb::ErrorKind::Data || error.to_string().contains(TOO_SHORT)
}

/// An engine's failure in plain words.
pub(super) fn plain(error: &slatedb::Error) -> Error {
    let detail = match error.kind() {
        slatedb::ErrorKind::Closed(slatedb::CloseReason::Fenced) => {
            return Error::with(ErrorKind::Io, "metadata", "another host has taken the volume over");
        }
        _ if is_damage(error) => format!("the volume's metadata is damaged: {error}; {PUT_BACK}"),
        _ => error.to_string(),
    };
    Error::with(ErrorKind::Io, "metadata", detail)
}
