//! Repacks what was chosen, and remembers what that left.

use std::collections::BTreeSet;
use std::sync::Arc;

use store::Result;
use sync::mutant::is_on;

use super::repacked::Repacked;
use crate::engine::{Engine as _, SlateEngine};
use crate::log::CommitLog;
use crate::repacking::Relocation;
use crate::rows::{self, Object, Usage};
use crate::tree::Tree;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Repacker {
    tree: Arc<Tree>,
    log: Arc<CommitLog>,
    engine: Arc<SlateEngine>,
    /// What was repacked, and is still in use.
    pub(super) repacked: Repacked,
}

impl Repacker {
    pub(super) fn new(tree: Arc<Tree>, log: Arc<CommitLog>, engine: Arc<SlateEngine>) -> Self {
        Self { tree, log, engine, repacked: Repacked::default() }
    }

    /// Moves what is in use of these.
    pub(super) async fn repack(&mut self, chosen: BTreeSet<Object>) -> Result<()> {
        let ways = self.repacked.ways(chosen);
        let mut relocation = Relocation::default();
        for object in &ways.by_place {
            match self.tree.live_extents(*object).await {
                Ok(found) => self.tree.add_live(&mut relocation, found).await?,
                Err(error) if self.log.failure().is_some() => return Err(error),
                Err(error) => tracing::warn!(%error, "an object that is mostly dead stays"),
            }
        }
        self.tree.relocate(relocation).await?;
        for object in ways.by_place {
            self.repacked.mark_repacked(object);
        }
        self.repack_by_search(ways.by_search).await
    }

    /// Moves what is in use of these, wherever it is.
    async fn repack_by_search(&mut self, objects: BTreeSet<Object>) -> Result<()> {
        if objects.is_empty() || is_on("repacking-leaves-copies") {
            return Ok(());
        }
        let mut before = Vec::new();
        for object in &objects {
            before.push((*object, self.usage(*object).await?));
        }
        let found = self.tree.referrers(&objects).await?;
        let are_all = found.are_all;
        self.repacked.pause_after_search(found.rows);
        self.tree.relocate_found(found).await?;
        for (object, before) in before {
            let left = self.usage(object).await?;
            if are_all || left.live >= before.live {
                self.repacked.mark_unmovable(object, left);
            }
        }
        Ok(())
    }

    async fn usage(&self, object: Object) -> Result<Usage> {
        let row = self.engine.get(&rows::live_key(object)).await?;
        row.map_or(Ok(Usage::default()), |row| Usage::from_bytes(&row))
    }
}
