//! What is used of quotas, against what inodes say that they use.

use std::collections::BTreeMap;

use store::Result;

use super::damage::{Damage, Findings};
use super::record::signed;
use crate::engine::Engine;
use crate::quotas::{INODE, QUOTAS_MAX, QuotaRow, counting};
use crate::rows::{self, InodeRow, Kind, Totals};

/// What inodes use of each quota that there is.
pub(super) struct Used(BTreeMap<u64, Totals>);

impl Used {
    /// Of the volume's quotas, before any inode is counted.
    ///
    /// # Errors
    /// The engine's.
    pub(super) async fn of_none(engine: &dyn Engine, found: &mut Findings) -> Result<Self> {
        let mut quotas = BTreeMap::new();
        for (key, row) in engine.scan(rows::all_keys(b'Q'), QUOTAS_MAX).await? {
            match (rows::ino_of(&key), rows::from_bytes::<QuotaRow>(&row, "a quota")) {
                (Ok(dir), Ok(_)) => drop(quotas.insert(dir, Totals::default())),
                _ => found.add(Damage::Row { key: key.to_vec() }),
            }
        }
        Ok(Self(quotas))
    }

    /// Counts an inode for its project, and for the volume.
    pub(super) fn count(&mut self, inode: &InodeRow, project: Option<u64>) {
        let Some(project) = project else { return };
        let size = if inode.kind == Kind::Regular { inode.size } else { 0 };
        let more = INODE.plus(Totals { bytes: signed(size), inodes: 0 });
        for dir in counting(project) {
            self.0.entry(dir).and_modify(|used| *used = used.plus(more));
        }
    }

    /// Compares the sums.
    ///
    /// # Errors
    /// The engine's.
    pub(super) async fn check(&self, engine: &dyn Engine, found: &mut Findings) -> Result<()> {
        for (dir, right) in &self.0 {
            let row = engine.get(&rows::usage_key(*dir)).await?;
            let is = match &row {
                Some(row) => rows::from_bytes(row, "a quota's usage").ok(),
                None => Some(Totals::default()),
            };
            if is != Some(*right) {
                found.add(Damage::Quota { dir: *dir, is, right: *right });
            }
        }
        Ok(())
    }
}
