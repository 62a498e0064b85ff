//! The engine: rows by key, in order. A narrow trait, so that nothing else knows which engine it
//! is.

mod cache;
mod clock;
mod compaction;
mod family;
mod follow;
mod inventory;
mod layers;
mod reader;
mod slate;
mod snapshots;
mod sums;
mod tables;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use store::Result;

use crate::log::object::ROW_OVERHEAD;
use crate::rows::{self, ExtentRow, Object, Totals, Usage};

pub(crate) use clock::Clock;
#[cfg(test)]
pub(crate) use compaction::TABLES_MAX;
pub(crate) use family::with_parents;
pub(crate) use follow::{FollowEngine, Tables, TablesOf, View};
pub(crate) use inventory::{Inventory, missing_tables};
pub(crate) use reader::ReadEngine;
pub(crate) use slate::{LastManifest, SlateEngine, last_manifest, totals_in_tables};
pub(crate) use snapshots::{Snapshot, Then, snapshots};
pub(crate) use tables::Records;

/// The largest batch, as the log writes it: an object of the log has room for one.
pub(crate) const BATCH_BYTES_MAX: usize = 32 << 20;

/// Changes that are made together or not at all.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) changes: Vec<(Vec<u8>, Option<Bytes>)>,
    pub(crate) totals: Totals,
    /// How much more, or less, of objects is in use.
    pub(crate) usage: BTreeMap<Object, Usage>,
    /// How much more, or less, is used of quotas.
    pub(crate) quota_usage: BTreeMap<u64, QuotaUsage>,
}

/// A change of what the inodes of a quota's project use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QuotaUsage {
    pub(crate) change: Totals,
    /// How much of it had been promised.
    pub(crate) promised: Totals,
}

/// What one change of an object's usage takes in the log.
const USAGE_BYTES: usize = ROW_OVERHEAD + rows::LIVE_KEY_BYTES_MAX + 20;
/// What one change of a quota's usage takes there.
const QUOTA_USAGE_BYTES: usize = ROW_OVERHEAD + 9 + 20;

impl Batch {
    pub(crate) fn put(&mut self, key: Vec<u8>, value: Bytes) {
        self.changes.push((key, Some(value)));
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.changes.push((key, None));
    }

    /// An extent is added.
    pub(crate) fn refer(&mut self, row: &ExtentRow) {
        self.count(row, i64::saturating_add);
    }

    /// An extent is taken away.
    pub(crate) fn unrefer(&mut self, row: &ExtentRow) {
        self.count(row, i64::saturating_sub);
    }

    fn count(&mut self, row: &ExtentRow, sum: impl FnOnce(i64, i64) -> i64) {
        if let Some((stored, _)) = &row.data {
            let usage = self.usage.entry(stored.object).or_default();
            usage.live = sum(usage.live, i64::try_from(row.len).unwrap_or(i64::MAX));
        }
    }

    /// So many bytes of data are in an object, whatever refers to them.
    pub(crate) fn wrote(&mut self, object: Object, bytes: i64) {
        let usage = self.usage.entry(object).or_default();
        usage.written = usage.written.saturating_add(bytes);
    }

    /// Its length in the log.
    pub(crate) fn bytes(&self) -> usize {
        let value = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        let changes = self.changes.iter().map(|(key, change)| ROW_OVERHEAD + key.len() + value(change));
        changes.sum::<usize>() + self.usage.len() * USAGE_BYTES + self.quota_usage.len() * QUOTA_USAGE_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.totals == Totals::default()
            && self.usage.is_empty()
            && self.quota_usage.is_empty()
    }
}

/// Rows by key.
#[async_trait]
pub(crate) trait Engine: Send + Sync + fmt::Debug + 'static {
    /// The value of a key.
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Up to `max` rows of a range, in the keys' order.
    async fn scan(&self, range: Range<Vec<u8>>, max: usize) -> Result<Vec<(Bytes, Bytes)>>;

    /// Makes changes. Calls that begin later see them; they are not durable yet.
    async fn write(&self, batch: Batch) -> Result<()>;

    /// Makes all changes durable whose [`write`](Self::write) has ended.
    async fn commit(&self) -> Result<()>;

    /// Makes all changes durable whose [`write`](Self::write) has ended, on this host's disk if
    /// there is a journal that takes them.
    async fn commit_to_host(&self) -> Result<()> {
        self.commit().await
    }

    /// Has all changes outlive this process whose [`write`](Self::write) has ended: in the journal's
    /// files if it takes them, and durable where it does not.
    async fn accept_on_host(&self) -> Result<()> {
        self.commit().await
    }

    /// Puts everything into tables, so that the next opening has nothing to replay, and ends.
    async fn close(&self) -> Result<()>;

    /// What shows a volume that others write, as it becomes; none: this one changes by its own
    /// writes alone.
    fn followed(&self) -> Option<&FollowEngine> {
        None
    }

    /// The volume's totals.
    async fn totals(&self) -> Result<Totals> {
        let row = self.get(rows::TOTALS).await?;
        row.map_or(Ok(Totals::default()), |row| rows::from_bytes(&row, "the totals"))
    }
}
