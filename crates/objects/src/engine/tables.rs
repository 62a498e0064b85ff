//! The engine's own objects that are garbage: tables and merges' outputs that nothing refers to, and
//! records of states that are long gone.

use std::collections::HashSet;
use std::sync::Arc;

use object_store::path::Path;
use slatedb::PathResolver;
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::config::{FlushOptions, FlushType};
use store::Result;

use super::slate::{SlateEngine, plain};
use crate::bucket::Bucket;

/// The newest manifests, and records of merges, that stay: beyond what any process still reads.
const RECORDS_KEPT: usize = 100;

/// What the engine's state in the bucket is.
pub(crate) struct Records {
    /// The epoch of its writer.
    pub(crate) epoch: u64,
    /// The last object of the log whose rows are in tables.
    pub(crate) replay_after: u64,
    /// The number of the newest manifest: while it is the same, there is no other garbage.
    pub(crate) newest: u64,
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
    fn admin(&self) -> Admin {
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
            tables.extend(merge.output_ssts().iter().map(|table| name(names.sst_path(&table.id))));
        }
        Ok(Records {
            epoch: manifest.writer_epoch(),
            replay_after: manifest.replay_after_wal_id(),
            newest: manifest.id(),
            tables,
        })
    }

    /// The names of objects that `records` have no use for. Some may be on their way into the next
    /// manifest: see [`SlateEngine::settle`].
    pub(crate) async fn unused(&self, bucket: &Bucket, records: &Records) -> Result<Vec<String>> {
        let tables = bucket.list("meta/compacted", None).await?;
        let tables = tables.into_iter().filter(|name| !records.tables.contains(name));
        let mut unused: Vec<_> = tables.map(|name| format!("meta/compacted/{name}")).collect();
        for kind in ["meta/manifest", "meta/compactions"] {
            let names = bucket.list(kind, None).await?;
            let old = names.len().saturating_sub(RECORDS_KEPT);
            unused.extend(names[..old].iter().map(|name| format!("{kind}/{name}")));
        }
        Ok(unused)
    }

    /// Waits until every table that was begun is in a manifest, or never will be, and keeps merges
    /// from beginning while the guard lives.
    pub(crate) async fn settle(&self) -> Result<tokio::sync::OwnedMutexGuard<()>> {
        let no_merge = Arc::clone(&self.turn).lock_owned().await;
        let tables = FlushOptions { flush_type: FlushType::MemTable };
        self.flush(tables).await?;
        Ok(no_merge)
    }
}
