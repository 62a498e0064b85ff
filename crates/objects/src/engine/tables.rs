//! The engine's tables that are garbage: those that neither the newest manifest nor a merge names,
//! nor the manifest of a snapshot.
//!
//! Manifests stay, small as they are: of a writer that was stopped, the engine knows by them that
//! it is not the last.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use object_store::path::Path;
use slatedb::PathResolver;
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::config::{FlushOptions, FlushType};
use store::Result;
use sync::mutant::is_on;

use super::slate::{SlateEngine, plain, tables_of};
use super::snapshots::Snapshot;
use crate::bucket::Bucket;

/// What the engine's state in the bucket is.
pub(crate) struct Records {
    /// The epoch of its writer.
    pub(crate) epoch: u64,
    /// The last object of the log whose rows are in tables.
    pub(crate) replay_after: u64,
    /// The number of the newest manifest: while it is the same, there is no other garbage.
    pub(crate) newest: u64,
    /// The oldest first.
    pub(crate) snapshots: Vec<Snapshot>,
    /// The tables that are in use, by their names.
    tables: HashSet<String>,
}

impl Records {
    /// Whether the object `name` is in use.
    pub(crate) fn has(&self, name: &str) -> bool {
        name.strip_prefix("meta/compacted/").is_some_and(|table| self.tables.contains(table))
    }
}

impl SlateEngine {
    pub(super) fn admin(&self) -> Admin {
        AdminBuilder::new(self.path.clone(), Arc::clone(&self.store))
            .with_system_clock(Arc::clone(&self.clock) as _)
            .build()
    }

    /// What the newest records say.
    pub(crate) async fn records(&self) -> Result<Records> {
        let state = self.admin().read_compactor_state_view().await.map_err(|error| plain(&error))?;
        let manifest = state.manifest();
        let names = PathResolver::new(self.path.clone(), manifest);
        let name = |path: Path| path.filename().unwrap_or_default().to_owned();
        let mut tables: HashSet<_> =
            manifest.all_sst_views().map(|view| name(names.sst_path(&view.sst.id))).collect();
        // A merge that was interrupted goes on with what it has made.
        for merge in state.compactions().into_iter().flat_map(|merges| merges.recent_compactions()) {
            let parts = merge.subcompactions().iter().flat_map(|part| part.output_ssts());
            let made = merge.output_ssts();
            tables.extend(made.iter().chain(parts).map(|table| name(names.sst_path(&table.id))));
        }
        let kept: BTreeSet<_> = manifest
            .checkpoints()
            .iter()
            .map(|kept| kept.manifest_id)
            .filter(|number| *number > self.begun_with)
            .collect();
        for tables_of in self.kept_tables(&kept).await? {
            tables.extend(tables_of.iter().cloned());
        }
        Ok(Records {
            snapshots: Snapshot::all(manifest.checkpoints(), self.begun_with),
            epoch: manifest.writer_epoch(),
            replay_after: manifest.replay_after_wal_id(),
            newest: manifest.id(),
            tables,
        })
    }

    /// The tables of the manifests with these numbers, which snapshots keep.
    async fn kept_tables(&self, kept: &BTreeSet<u64>) -> Result<Vec<Arc<Vec<String>>>> {
        if is_on("garbage-table-of-a-snapshot") {
            return Ok(Vec::new());
        }
        self.kept.lock().retain(|number, _| kept.contains(number));
        let mut tables = Vec::new();
        for &number in kept {
            let known = self.kept.lock().get(&number).cloned();
            let tables_of = match known {
                Some(tables_of) => tables_of,
                None => Arc::new(tables_of(Arc::clone(&self.store), &self.root, number).await?),
            };
            self.kept.lock().insert(number, Arc::clone(&tables_of));
            tables.push(tables_of);
        }
        Ok(tables)
    }

    /// The names of tables that `records` have no use for. Some may be on their way into the next
    /// manifest: see [`SlateEngine::settled_records`].
    pub(crate) async fn unused(&self, bucket: &Bucket, records: &Records) -> Result<Vec<String>> {
        let tables = bucket.list("meta/compacted", None).await?;
        let tables = tables.into_iter().filter(|name| !records.tables.contains(name));
        Ok(tables.map(|name| format!("meta/compacted/{name}")).collect())
    }

    /// Writes the rows that are in memory to a table.
    pub(crate) async fn write_tables(&self) -> Result<()> {
        self.flush(FlushOptions { flush_type: FlushType::MemTable }).await
    }

    /// The newest records, when every table that was begun before this call is in them, or never
    /// will be. `None`: tables are being merged.
    pub(crate) async fn settled_records(&self) -> Result<Option<Records>> {
        // First, for it may wait for a merge.
        self.write_tables().await?;
        let Ok(_no_merge) = self.turn.try_lock() else { return Ok(None) };
        self.records().await.map(Some)
    }

    /// As [`settled_records`](Self::settled_records), but waits for a merge that is under way.
    pub(crate) async fn records_after_merge(&self) -> Result<Records> {
        self.write_tables().await?;
        let _no_merge = self.turn.lock().await;
        self.records().await
    }

    /// Tables are being merged until this is dropped.
    #[cfg(test)]
    pub(crate) async fn merging(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }
}
