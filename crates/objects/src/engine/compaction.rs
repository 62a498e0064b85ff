//! Compaction of the engine's tables, when there are many: at other times nothing polls for it.
//!
//! # How many tables there are
//! The engine writes no table beside [`TABLES_MAX`] that are not merged, and a writer waits then. So:
//! - A holder merges them in the background from [`TABLES`] on.
//! - An opening that finds [`TABLES_URGENT`] merges them as soon as it is the engine's writer, before it
//!   replays the log ([`Opening`]): until few are left it writes no table, however often it is killed.
//! - A close that would have no room for its own table merges first. Where that fails, its rows stay in
//!   the log.
//!
//! # A merge that was interrupted
//! It is recorded as running, with the last time that its worker was alive, and the engine begins no other
//! before that is 30 s ago. The clocks of two hosts are not compared, and an opening does not wait for a
//! process that is gone: a merge is only begun by the engine's writer, so that all that is found running
//! is a predecessor's, and the clock of the new one ([`Compaction::clock`]) begins behind those 30 s. If
//! a predecessor lives and does not know, its result is refused: the merge has another worker by then.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::Db;
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::compactor::CompactionStatus;
use slatedb::config::{CompactionWorkerOptions, CompactorOptions};
use slatedb::wal::{WalError, WriterInit, WriterInitResult, WriterManifest};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::sums::Sums;
use crate::codec::Codec;
use crate::engine_blocks::Blocks;
use crate::log::LogInit;

/// Tables that have not been merged from which on they are.
const TABLES: usize = 8;
/// How many the engine has at most: beyond, it writes none.
pub(crate) const TABLES_MAX: usize = 64;
/// From this many on, an opening merges tables before it goes on.
const TABLES_URGENT: usize = TABLES_MAX / 2;
/// What is left for later when something waits for a merge: a merge takes up to eight.
const TABLES_CALM: usize = TABLES_URGENT - 8;
/// What a merge in the background leaves unmerged, at most.
const TABLES_LEFT: usize = 3;
/// From this many on, a close merges first: its own table, and up to four that wait, need room.
const TABLES_NEARLY_MAX: usize = TABLES_MAX - 8;
/// How often tables are counted, in memory.
const COUNTED_EACH: Duration = Duration::from_secs(60);
/// How often the parts of a merge look for each other's work in the bucket.
const STEP: Duration = Duration::from_millis(250);
/// How long a merge may take before it is left for later.
const LIMIT: Duration = Duration::from_secs(600);
/// A merge whose worker was last alive so long ago is taken from it.
const WORKER_SILENT: Duration = Duration::from_secs(30);

/// Merges the tables of one engine.
pub(super) struct Compaction {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    pub(super) codec: Codec,
    /// The engine's.
    pub(super) clock: Arc<Clock>,
    /// Held while tables are merged.
    pub(super) turn: Arc<Mutex<()>>,
}

impl Compaction {
    /// Merges whenever there are many tables, until `stop`.
    pub(super) async fn keep(self: Arc<Self>, db: Db, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(COUNTED_EACH);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            if db.manifest().l0().len() >= TABLES {
                self.run(TABLES_LEFT, Counted::Of(&db), &stop).await;
            }
        }
    }

    /// Before the last tables are written: makes room for them where there may be none. Whether there is.
    pub(super) async fn make_room_to_close(&self, db: &Db) -> bool {
        if db.manifest().l0().len() >= TABLES_NEARLY_MAX {
            self.run(TABLES_CALM, Counted::Of(db), &CancellationToken::new()).await;
        }
        db.manifest().l0().len() < TABLES_NEARLY_MAX
    }

    /// Before an opening goes on, which writes tables and waits for room.
    async fn make_room_to_open(&self) -> Result<()> {
        let admin = self.admin(Arc::clone(&self.clock));
        let counted = Counted::Read(&admin);
        self.run(TABLES_CALM, counted, &CancellationToken::new()).await;
        match counted.tables().await {
            Some(tables) if tables >= TABLES_MAX => {
                let why = format!("{tables} tables of metadata are not merged, and could not be: try again");
                Err(Error::with(ErrorKind::Busy, "open", why))
            }
            _ => Ok(()),
        }
    }

    fn admin(&self, clock: Arc<Clock>) -> Admin {
        AdminBuilder::new(self.path.clone(), Arc::clone(&self.store))
            .with_system_clock(clock)
            .with_merge_operator(Arc::new(Sums))
            .with_block_transformer(Arc::new(Blocks::new(self.codec.clone())))
            .build()
    }

    /// A clock that is behind no merge of before, and by which each worker of those has been silent for
    /// long.
    async fn clock(&self) -> Arc<Clock> {
        let clock = Clock::default();
        let merges = self.admin(Arc::clone(&self.clock)).read_compactions(None).await;
        for merge in merges.ok().flatten().iter().flat_map(|merges| merges.recent_compactions()) {
            clock.raise_to(merge.id().timestamp_ms());
            if let (CompactionStatus::Running, Some(worker)) = (merge.status(), merge.worker())
                && !is_on("interrupted-merge-waited-for")
            {
                let silent = u64::try_from(WORKER_SILENT.as_millis()).unwrap_or(u64::MAX);
                clock.raise_to(worker.last_heartbeat_ms.saturating_add(silent).saturating_add(1));
            }
        }
        Arc::new(clock)
    }

    /// Merges tables until no more than `most` are left.
    async fn run(&self, most: usize, counted: Counted<'_>, stop: &CancellationToken) {
        let Some(_turn) = stop.run_until_cancelled(self.turn.lock()).await else { return };
        let admin = self.admin(self.clock().await);
        let worker = CompactionWorkerOptions {
            max_concurrent_compactions: 1,
            max_subcompactions: 1,
            compactions_poll_interval: STEP,
            ..CompactionWorkerOptions::default()
        };
        let options = CompactorOptions {
            poll_interval: STEP,
            commit_compacted_interval: STEP,
            max_concurrent_compactions: 1,
            worker_heartbeat_timeout: WORKER_SILENT,
            worker: Some(worker),
            ..CompactorOptions::default()
        };
        // Whichever of the two ends, by itself or because of `stop`, ends the other.
        let end = stop.child_token();
        let compactor = async {
            let merged = admin.run_compactor_with_options(end.clone(), options).await;
            end.cancel();
            merged
        };
        let is_done = async {
            loop {
                tokio::select! {
                    () = end.cancelled() => return,
                    () = tokio::time::sleep(2 * STEP) => {}
                }
                if counted.tables().await.is_none_or(|tables| tables <= most) {
                    break;
                }
            }
            end.cancel();
        };
        // Also what takes long is ended in order: nothing of it goes on behind the next one's back.
        let too_long = async {
            tokio::select! {
                () = tokio::time::sleep(LIMIT) => {
                    end.cancel();
                    true
                }
                () = end.cancelled() => false,
            }
        };
        match tokio::join!(compactor, is_done, too_long) {
            (Ok(()), (), false) => tracing::debug!("tables of metadata were merged"),
            (Ok(()), (), true) => {
                tracing::warn!("merging tables of metadata takes long: it goes on later");
            }
            (Err(error), ..) => tracing::warn!(%error, "tables of metadata are merged later"),
        }
    }
}

/// Where the newest manifest is found.
#[derive(Clone, Copy)]
enum Counted<'a> {
    /// In an engine that is open.
    Of(&'a Db),
    /// In the bucket.
    Read(&'a Admin),
}

impl Counted<'_> {
    /// How many tables it names that are not merged; none: it cannot be read.
    async fn tables(self) -> Option<usize> {
        let manifest = match self {
            Self::Of(db) => {
                db.refresh_manifest().await.ok()?;
                db.manifest()
            }
            Self::Read(admin) => admin.read_manifest(None).await.ok()??,
        };
        Some(manifest.l0().len())
    }
}

/// The beginning of an engine: it fences the writers before it, and makes room for its tables.
pub(super) struct Opening {
    pub(super) log: LogInit,
    pub(super) merging: Arc<Compaction>,
}

#[async_trait]
impl WriterInit for Opening {
    async fn fence_and_init(&self, manifest: &mut WriterManifest) -> Result<WriterInitResult, WalError> {
        let begun = self.log.fence_and_init(manifest).await?;
        // A table has its time in its name, which is later than its rows': the engine refuses an older one.
        for table in manifest.manifest().all_sst_views().filter(|_| !is_on("tables-older-than-the-last")) {
            self.log.clock.raise_to(table.sst.id.value().timestamp_ms());
        }
        // Not before the fence: a holder that was taken over, and does not know, would remove what a
        // merge makes.
        if manifest.manifest().l0().len() >= TABLES_URGENT && !is_on("opening-merges-nothing") {
            let room = self.merging.make_room_to_open().await;
            room.map_err(|error| WalError::Unavailable(Arc::new(error)))?;
        }
        Ok(begun)
    }
}
