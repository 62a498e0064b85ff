//! The engine as a reader has it that follows the volume's writer: tables, and over them what the
//! log brought since, in one [`View`] for each state that it showed.
//!
//! A view never changes. The reader's next one takes its place as a whole, so that a call, which
//! keeps the view that it began with ([`FollowEngine::within`]), finds one state of the volume, and
//! never a part of an object of the log.
//!
//! A file that is removed while it is in use here is read in the last view that has it.
//!
//! Lock order: `gone`, then `current`; `on_change` is a leaf.

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
use slatedb::{RowEntry, ValueDeletable};
use store::{Error, ErrorKind, OnChange, Result};
use tokio::time::Instant;

use super::cache::TableCache;
use super::layers::{Layers, LogRow};
use super::reader::ReadEngine;
use super::{Batch, Engine};
use crate::codec::Codec;
use crate::rows::{self, TOTALS, Totals};

/// How long a removed file that is in use can be read.
const GONE_KEPT: Duration = Duration::from_secs(3600);
/// Removed files that can be read at a time.
const GONE_MAX: usize = 1024;

tokio::task_local! {
    /// The view of the call that runs.
    static VIEW: Arc<View>;
}

/// Where a volume's tables are, for a reader that opens them again and again.
#[derive(Clone)]
pub(crate) struct TablesOf {
    store: Arc<dyn ObjectStore>,
    root: Path,
    codec: Codec,
    cache: Arc<TableCache>,
}

impl fmt::Debug for TablesOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TablesOf").field("root", &self.root).finish_non_exhaustive()
    }
}

impl TablesOf {
    pub(crate) fn new((store, root): (Arc<dyn ObjectStore>, Path), codec: Codec) -> Self {
        Self { store, root, codec, cache: Arc::default() }
    }

    /// Opens the newest; the log was read up to the object `since` before.
    pub(crate) async fn open(&self, since: u64) -> Result<Arc<Tables>> {
        let (store, codec) = (Arc::clone(&self.store), self.codec.clone());
        let engine = ReadEngine::open_tables((store, &self.root), codec, Arc::clone(&self.cache)).await?;
        let (replay_after, seq) = engine.reach();
        let totals = engine.totals().await?;
        Ok(Arc::new(Tables { engine, since, replay_after, seq, totals }))
    }
}

/// The tables of one manifest.
#[derive(Debug)]
pub(crate) struct Tables {
    engine: ReadEngine,
    /// The object of the log up to which it was read when they were the newest, or before.
    pub(crate) since: u64,
    /// The last object of the log whose rows they have.
    pub(crate) replay_after: u64,
    /// The last row that they have.
    seq: u64,
    totals: Totals,
}

impl Tables {
    /// Ends the reader of these tables; no view of them is in use any more.
    pub(crate) async fn close(&self) {
        if let Err(error) = self.engine.close().await {
            tracing::debug!(%error, "tables that were read are not closed");
        }
    }
}

/// One state of a volume.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) tables: Arc<Tables>,
    rows: Layers,
    /// Changes of the totals that the tables do not have, by row.
    totals: Vec<(u64, Totals)>,
    /// The epoch of the holder that made the last change; 0: the tables do not say.
    epoch: u64,
}

impl View {
    pub(crate) fn new(tables: Arc<Tables>) -> Self {
        Self { tables, rows: Layers::default(), totals: Vec::new(), epoch: 0 }
    }

    /// The epoch of the holder that made the last change; 0: the tables do not say.
    #[cfg(test)]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The same state over newer tables.
    pub(crate) fn over(&self, tables: Arc<Tables>) -> Self {
        let rows = self.rows.behind(tables.seq);
        let totals = self.totals.iter().filter(|(seq, _)| *seq > tables.seq).copied().collect();
        Self { tables, rows, totals, epoch: self.epoch }
    }

    /// The state after these rows of the log, which the holder of this epoch wrote.
    pub(crate) fn with(&self, log: &[RowEntry], epoch: u64) -> Self {
        let (mut newest, mut totals) = (BTreeMap::new(), self.totals.clone());
        for row in log.iter().filter(|row| row.seq > self.tables.seq) {
            let value = match &row.value {
                ValueDeletable::Value(value) => Some(Bytes::copy_from_slice(value)),
                ValueDeletable::Tombstone => None,
                // A reader needs no other sum.
                ValueDeletable::Merge(change) => {
                    let change = rows::from_bytes(change, "the totals").ok().filter(|_| row.key == TOTALS);
                    totals.extend(change.map(|change| (row.seq, change)));
                    continue;
                }
            };
            // Copied: a slice would keep all that was read with it.
            newest.insert(Bytes::copy_from_slice(&row.key), LogRow { seq: row.seq, value });
        }
        Self { tables: Arc::clone(&self.tables), rows: self.rows.with(newest), totals, epoch }
    }

    /// The memory that the rows take.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.bytes() + self.totals.len() * size_of::<(u64, Totals)>()
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals.iter().fold(self.tables.totals, |sum, (_, change)| sum.plus(*change))
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.rows.get(key) {
            Some(row) => Ok(row.value.clone()),
            None => self.tables.engine.get(key).await,
        }
    }

    async fn scan(&self, range: Range<Vec<u8>>, max: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let Range { mut start, end } = range;
        let mut found: Vec<(Bytes, Bytes)> = Vec::new();
        loop {
            // As many of the tables' rows as are needed if none of them was deleted or replaced.
            let wanted = max.saturating_sub(found.len());
            let tables = self.tables.engine.scan(start.clone()..end.clone(), wanted).await?;
            let is_last = tables.len() < wanted;
            // What lies behind the last of them is looked at with the next.
            let until = match tables.last() {
                Some((key, _)) if !is_last => [key, &[0][..]].concat(),
                _ => end.clone(),
            };
            let mut tables = tables.into_iter().peekable();
            for (key, row) in self.rows.range(&start, &until) {
                while found.len() < max
                    && let Some(before) = tables.next_if(|(table, _)| table < key)
                {
                    found.push(before);
                }
                if found.len() >= max {
                    break;
                }
                let _replaced = tables.next_if(|(table, _)| table == key);
                found.extend(row.value.clone().map(|value| (key.clone(), value)));
            }
            found.extend(tables.take(max - found.len()));
            if is_last || found.len() >= max {
                return Ok(found);
            }
            start = until;
        }
    }
}

/// See the [module](self).
pub(crate) struct FollowEngine {
    current: Mutex<Arc<View>>,
    /// Of inodes that are gone and in use here: the last view that has them, and since when.
    gone: Mutex<BTreeMap<u64, (Arc<View>, Instant)>>,
    on_change: Mutex<Option<OnChange>>,
    every: Duration,
    /// When the newest view was all that there was.
    newest_at: Mutex<Instant>,
}

impl fmt::Debug for FollowEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowEngine").field("every", &self.every).finish_non_exhaustive()
    }
}

impl FollowEngine {
    /// Begins with this view, which was all that there was at `newest_at`; the log is looked at `every` so
    /// often.
    pub(crate) fn new(view: View, every: Duration, newest_at: Instant) -> Self {
        let current = Mutex::new(Arc::new(view));
        let newest_at = Mutex::new(newest_at);
        Self { current, gone: Mutex::default(), on_change: Mutex::default(), every, newest_at }
    }

    /// How old a state may be before the log is looked at.
    pub(crate) fn every(&self) -> Duration {
        self.every
    }

    /// Notes that the newest view was all that there was at this time.
    pub(crate) fn note_newest_at(&self, at: Instant) {
        *self.newest_at.lock() = at;
    }

    /// How old the newest view may be.
    pub(crate) fn age(&self) -> Duration {
        self.newest_at.lock().elapsed()
    }

    /// The newest view.
    pub(crate) fn current(&self) -> Arc<View> {
        Arc::clone(&self.current.lock())
    }

    /// Shows this view to calls that begin from now on.
    pub(crate) fn show(&self, view: View) {
        *self.current.lock() = Arc::new(view);
    }

    /// Runs a call that reads an inode: all that it finds is of one view.
    pub(crate) async fn within<F: Future>(&self, ino: u64, call: F) -> F::Output {
        let gone = self.gone.lock().get(&ino).map(|(view, _)| Arc::clone(view));
        self.within_view(gone.unwrap_or_else(|| self.current()), call).await
    }

    /// Runs a call with this view.
    pub(crate) async fn within_view<F: Future>(&self, view: Arc<View>, call: F) -> F::Output {
        VIEW.scope(view, call).await
    }

    fn view(&self) -> Arc<View> {
        VIEW.try_with(Arc::clone).unwrap_or_else(|_| self.current())
    }

    /// This inode is in use, and the next view does not have it.
    pub(crate) fn keep_gone(&self, ino: u64) {
        let mut gone = self.gone.lock();
        if gone.len() < GONE_MAX {
            gone.entry(ino).or_insert_with(|| (self.current(), Instant::now()));
        }
    }

    /// Lets those go that are not in use any more, or for too long.
    pub(crate) fn drop_gone(&self, is_used: impl Fn(u64) -> bool) {
        let mut gone = self.gone.lock();
        let kept = std::mem::take(&mut *gone).into_iter();
        *gone = kept.filter(|(ino, (_, since))| is_used(*ino) && since.elapsed() < GONE_KEPT).collect();
    }

    /// From now on `tell` is called with what has changed.
    pub(crate) fn on_change(&self, tell: OnChange) {
        *self.on_change.lock() = Some(tell);
    }

    /// Tells that an inode has changed; says whether that was taken.
    pub(crate) fn tell(&self, ino: u64) -> bool {
        let tell = self.on_change.lock().clone();
        tell.is_none_or(|tell| tell(store::ObjectId(ino)))
    }
}

#[async_trait]
impl Engine for FollowEngine {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.view().get(key).await
    }

    async fn scan(&self, range: Range<Vec<u8>>, max: usize) -> Result<Vec<(Bytes, Bytes)>> {
        self.view().scan(range, max).await
    }

    async fn write(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() { Ok(()) } else { Err(Error::new(ErrorKind::ReadOnly, "write")) }
    }

    async fn commit(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.current().tables.engine.close().await
    }

    fn followed(&self) -> Option<&Self> {
        Some(self)
    }

    async fn totals(&self) -> Result<Totals> {
        Ok(self.view().totals())
    }
}
