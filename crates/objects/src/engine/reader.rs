//! The engine as a reader has it: the newest tables and, over them, what the log had when it was
//! opened. It writes nothing, and holds nothing.
//!
//! What it shows is a state that some holder committed: the tables of one manifest, and the log's
//! objects behind them up to the first that is missing. Its mark ([`crate::readers`]) keeps holders
//! from removing what it refers to.

use std::fmt;
use std::ops::{Range, RangeBounds as _};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::config::{DbReaderOptions, ScanOptions};
use slatedb::wal::{WalError, WalFileRange, WalIterator, WalReader, WalRows};
use slatedb::{DbReader, DbReaderMode};
use store::{Error, ErrorKind, Result};

use super::cache::TableCache;
use super::slate::{first_rows, plain};
use super::sums::Sums;
use super::{Batch, Engine, Snapshot};
use crate::codec::Codec;
use crate::engine_blocks::Blocks;
use crate::log::{Replay, Rows};
use crate::object_names::engine_path;

/// The reader follows nobody: what it shows does not change under its user. The engine's first look
/// comes so long after the year -262,143: with less, it would come at once.
const POLL: Duration = Duration::from_secs(400_000 * 365 * 24 * 3600);

/// See the [module](self).
pub(crate) struct ReadEngine(DbReader);

impl fmt::Debug for ReadEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadEngine").finish_non_exhaustive()
    }
}

impl ReadEngine {
    /// Opens the newest tables with what `log` has read.
    pub(crate) async fn open(
        bucket: (Arc<dyn ObjectStore>, &Path),
        codec: Codec,
        log: Replay,
    ) -> Result<Self> {
        let last = log.next() - 1;
        let log = LogReader { last, rows: log.into_rows().0.into() };
        Self::open_at(DbReaderMode::FollowLatest, bucket, codec, log).await
    }

    /// Opens a snapshot.
    pub(crate) async fn open_snapshot(
        bucket: (Arc<dyn ObjectStore>, &Path),
        codec: Codec,
        snapshot: &Snapshot,
    ) -> Result<Self> {
        // All its rows are in tables.
        let (mode, log) = (DbReaderMode::Checkpoint(snapshot.checkpoint.id), LogReader::default());
        Self::open_at(mode, bucket, codec, log).await
    }

    async fn open_at(
        mode: DbReaderMode,
        (store, root): (Arc<dyn ObjectStore>, &Path),
        codec: Codec,
        log: LogReader,
    ) -> Result<Self> {
        let options = DbReaderOptions { manifest_poll_interval: POLL, ..DbReaderOptions::default() };
        let reader = DbReader::builder(engine_path(root), store)
            .with_reader_mode(mode)
            .with_options(options)
            .with_db_cache(Arc::new(TableCache::default()), 0)
            .with_merge_operator(Arc::new(Sums))
            .with_block_transformer(Arc::new(Blocks::new(codec)))
            .with_wal_reader(Arc::new(log))
            .build()
            .await;
        reader.map(Self).map_err(|error| plain(&error))
    }

    /// Opens the newest tables alone; `cache` may be that of others of the volume.
    pub(super) async fn open_tables(
        (store, root): (Arc<dyn ObjectStore>, &Path),
        codec: Codec,
        cache: Arc<TableCache>,
    ) -> Result<Self> {
        let options = DbReaderOptions {
            manifest_poll_interval: POLL,
            skip_wal_replay: true,
            ..DbReaderOptions::default()
        };
        let reader = DbReader::builder(engine_path(root), store)
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(options)
            .with_db_cache(cache, 0)
            .with_merge_operator(Arc::new(Sums))
            .with_block_transformer(Arc::new(Blocks::new(codec)))
            .build()
            .await;
        reader.map(Self).map_err(|error| plain(&error))
    }

    /// The last object of the log whose rows are all in the tables, and the sequence number of the
    /// last row that is: tables may have rows of the next objects, too.
    pub(super) fn reach(&self) -> (u64, u64) {
        let manifest = self.0.manifest();
        (manifest.replay_after_wal_id(), manifest.last_l0_seq())
    }
}

#[async_trait]
impl Engine for ReadEngine {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.0.get(key).await.map_err(|error| plain(&error))
    }

    async fn scan(&self, range: Range<Vec<u8>>, max: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let options = ScanOptions { cache_blocks: true, ..ScanOptions::default() };
        let rows = self.0.scan_with_options(range, &options).await.map_err(|error| plain(&error))?;
        first_rows(rows, max).await.map_err(|error| plain(&error))
    }

    async fn write(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() { Ok(()) } else { Err(Error::new(ErrorKind::ReadOnly, "write")) }
    }

    async fn commit(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await.map_err(|error| plain(&error))
    }
}

/// The part of the log that was read.
#[derive(Default)]
struct LogReader {
    /// The number of the last object.
    last: u64,
    rows: Vec<WalRows>,
}

#[async_trait]
impl WalReader for LogReader {
    async fn iterator(
        &self,
        WalFileRange(first, end): WalFileRange,
    ) -> Result<Box<dyn WalIterator>, WalError> {
        let is_asked = |number: u64| (first, end).contains(&number);
        let rows = self.rows.iter().filter(|rows| is_asked(rows.last_consumed_wal_file_id)).cloned();
        Ok(Box::new(Rows(rows.collect())))
    }

    async fn last_wal_file_id(&self, replay_after: u64) -> Result<u64, WalError> {
        // The tables may be newer.
        Ok(self.last.max(replay_after))
    }
}
