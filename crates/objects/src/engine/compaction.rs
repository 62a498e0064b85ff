//! Compaction of the engine's tables, when there are many: at other times nothing polls for it.

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::Db;
use slatedb::admin::AdminBuilder;
use slatedb::config::{CompactionWorkerOptions, CompactorOptions};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::sums::Sums;
use crate::codec::Codec;
use crate::engine_blocks::Blocks;

/// Tables that have not been merged from which on they are.
pub(super) const TABLES: usize = 8;
/// How many the engine has at most: beyond, it writes none.
pub(super) const TABLES_MAX: usize = 64;
/// From this many on, an opening merges them before it returns.
pub(super) const TABLES_URGENT: usize = TABLES_MAX / 2;
/// What a merge leaves unmerged, at most.
const TABLES_LEFT: usize = 3;
/// How often tables are counted, in memory.
const COUNTED_EACH: Duration = Duration::from_secs(60);
/// How often the parts of a merge look for each other's work in the bucket.
const STEP: Duration = Duration::from_millis(250);
/// How long a merge may take before it is left for later.
const LIMIT: Duration = Duration::from_secs(600);

/// Merges the tables of one engine.
pub(super) struct Compaction {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    pub(super) codec: Codec,
    pub(super) clock: Arc<Clock>,
    /// Held while tables are merged.
    pub(super) turn: Arc<Mutex<()>>,
}

impl Compaction {
    /// Merges whenever there are many tables, until `stop`.
    pub(super) async fn keep(self, db: Db, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(COUNTED_EACH);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            if db.manifest().l0().len() >= TABLES {
                self.run(&db, &stop).await;
            }
        }
    }

    /// Merges tables until few are left.
    pub(super) async fn run(&self, db: &Db, stop: &CancellationToken) {
        let Some(_turn) = stop.run_until_cancelled(self.turn.lock()).await else { return };
        let admin = AdminBuilder::new(self.path.clone(), Arc::clone(&self.store))
            .with_system_clock(Arc::clone(&self.clock) as _)
            .with_merge_operator(Arc::new(Sums))
            .with_block_transformer(Arc::new(Blocks::new(self.codec.clone())))
            .build();
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
            while db.manifest().l0().len() > TABLES_LEFT {
                tokio::select! {
                    () = end.cancelled() => return,
                    () = tokio::time::sleep(2 * STEP) => {}
                }
                if db.refresh_manifest().await.is_err() {
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
