//! Quotas: how many bytes and inodes the volume, and trees of it, may have.
//!
//! A quota is of a directory, and counts what is below it, unless that has a quota of its own: each
//! inode counts for the nearest one, whose **project** it is in. Its row says which one that is; what
//! is made in a directory is in the directory's project, and nothing is renamed or linked from one
//! project to another (EXDEV). All inodes count for the volume.
//!
//! Bytes are the sizes of files, as they are listed: holes count, and copies by reference.
//!
//! # Before acceptance
//! The usage in the engine says what rows say. What was accepted and has no rows yet was **promised**:
//! a file's **charge** is the size that it has here, or that its user was promised before the data
//! comes ([`crate::charges`]), and charges are what limits are held to. So nothing that was
//! accepted exceeds a limit when it is uploaded. Promises are taken note of while inodes do not
//! count, too, so that the first quota begins with true sums.
//!
//! # In the engine
//! | row | is |
//! |---|---|
//! | `Q` directory | [`QuotaRow`]; of directory 0, the volume's: there if any inode counts |
//! | `U` directory | [`Totals`] of the project's inodes, merged; of 0, of all inodes that count |
//!
//! An inode's row and the change of its usage are one batch. An inode counts from the first time on
//! that its row is written after the volume got its first quota; all others are counted then, one by
//! one, as those of a tree are that gets a quota or loses it. What was interrupted goes on at the next
//! opening.
//!
//! Lock order: `changes`, then an inode's state, then `by_dir`, a leaf.

use std::collections::{BTreeMap, HashMap};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::sync::Mutex as AsyncMutex;

use crate::engine::{Batch, Engine, QuotaUsage};
use crate::rows::{self, Totals};

/// The number that stands for the volume.
pub(crate) const VOLUME: u64 = 0;
/// The most quotas of a volume.
pub const QUOTAS_MAX: usize = 10_000;
/// Rows of usage that are read at a time.
const LOADED_TOGETHER: usize = 32;

/// What may not be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaLimits {
    /// The most bytes; none: any.
    pub bytes: Option<u64>,
    /// The most files, directories and links; none: any.
    pub inodes: Option<u64>,
}

/// What has been done of a quota's beginning or end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Progress {
    /// Inodes that were there before come to it.
    Counting,
    /// All are counted.
    Counted,
    /// It was deleted, and its inodes go to the quota above.
    Leaving,
}

/// A quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuotaRow {
    pub(crate) limits: QuotaLimits,
    pub(crate) progress: Progress,
}

/// A quota, and what is used of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota {
    pub(crate) row: QuotaRow,
    pub(crate) used: Totals,
    promised: Totals,
}

impl Quota {
    /// What rows say, and what was promised.
    pub(crate) fn charged(&self) -> Totals {
        self.used.plus(self.promised)
    }

    fn has_room_for(&self, more: Totals) -> bool {
        let all = self.charged().plus(more);
        let fits = |more: i64, all: i64, most: Option<u64>| {
            more <= 0 || most.is_none_or(|most| u64::try_from(all).unwrap_or(0) <= most)
        };
        fits(more.bytes, all.bytes, self.row.limits.bytes)
            && fits(more.inodes, all.inodes, self.row.limits.inodes)
    }
}

/// So many bytes more or less.
pub(crate) fn bytes(from: u64, to: u64) -> Totals {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    Totals { bytes: signed(to).saturating_sub(signed(from)), inodes: 0 }
}

/// One inode, with no bytes.
pub(crate) const INODE: Totals = Totals { bytes: 0, inodes: 1 };

/// The quotas of a volume, by the numbers of their directories.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    by_dir: Mutex<HashMap<u64, Quota>>,
    /// Held while quotas come and go, one at a time.
    pub(crate) changes: AsyncMutex<()>,
}

impl Quotas {
    /// Reads them.
    pub(crate) async fn load(engine: &dyn Engine) -> Result<Self> {
        let found = engine.scan(rows::all_keys(b'Q'), QUOTAS_MAX).await?;
        let quotas = found.into_iter().map(|(key, row)| async move {
            let dir = rows::ino_of(&key)?;
            let used = engine.get(&rows::usage_key(dir)).await?;
            let used =
                used.map_or(Ok(Totals::default()), |used| rows::from_bytes(&used, "a quota's usage"))?;
            let row = rows::from_bytes(&row, "a quota")?;
            Ok::<_, Error>((dir, Quota { row, used, promised: Totals::default() }))
        });
        let quotas = stream::iter(quotas).buffered(LOADED_TOGETHER).try_collect().await?;
        Ok(Self { by_dir: Mutex::new(quotas), changes: AsyncMutex::default() })
    }

    /// Whether inodes count.
    pub(crate) fn are_on(&self) -> bool {
        !self.by_dir.lock().is_empty()
    }

    pub(crate) fn get(&self, dir: u64) -> Option<Quota> {
        self.by_dir.lock().get(&dir).copied()
    }

    /// All of them, by their directories.
    pub(crate) fn all(&self) -> BTreeMap<u64, Quota> {
        self.by_dir.lock().iter().map(|(dir, quota)| (*dir, *quota)).collect()
    }

    /// Puts a quota in its place, with what is used of it.
    pub(crate) fn put(&self, dir: u64, row: QuotaRow) {
        let new = Quota { row, used: Totals::default(), promised: Totals::default() };
        self.by_dir.lock().entry(dir).or_insert(new).row = row;
    }

    /// Whether there may be one more.
    pub(crate) fn has_room(&self) -> bool {
        self.by_dir.lock().len() < QUOTAS_MAX
    }

    /// Whether there are quotas with greater numbers.
    pub(crate) fn has_behind(&self, number: u64) -> bool {
        self.by_dir.lock().keys().any(|other| *other > number)
    }

    /// Whether all quotas are counted.
    pub(crate) fn are_counted(&self) -> bool {
        self.by_dir.lock().values().all(|quota| quota.row.progress == Progress::Counted)
    }

    pub(crate) fn remove(&self, dir: u64) {
        self.by_dir.lock().remove(&dir);
    }

    /// Promises that a project may have so much more, or less.
    ///
    /// # Errors
    /// `Quota`: the directory has no room for it; `NoSpace`: the volume has none.
    pub(crate) fn promise(&self, project: u64, more: Totals, op: &'static str) -> Result<()> {
        let mut quotas = self.by_dir.lock();
        for dir in [project, VOLUME] {
            let kind = if dir == VOLUME { ErrorKind::NoSpace } else { ErrorKind::Quota };
            if let Some(quota) = quotas.get(&dir)
                && !quota.has_room_for(more)
                && !is_on("quota-not-held")
            {
                return Err(Error::new(kind, op));
            }
        }
        add_promise(&mut quotas, project, more);
        Ok(())
    }

    /// Changes what is promised, whatever the limits say.
    pub(crate) fn promise_unchecked(&self, project: u64, more: Totals) {
        add_promise(&mut self.by_dir.lock(), project, more);
    }

    /// Changes what is promised of one quota alone.
    pub(crate) fn promise_of_quota(&self, dir: u64, more: Totals) {
        if let Some(quota) = self.by_dir.lock().get_mut(&dir) {
            quota.promised = quota.promised.plus(more);
        }
    }

    /// A batch was written.
    pub(crate) fn written(&self, usage: &BTreeMap<u64, QuotaUsage>) {
        if usage.is_empty() {
            return;
        }
        let mut quotas = self.by_dir.lock();
        for (dir, usage) in usage {
            if let Some(quota) = quotas.get_mut(dir) {
                quota.used = quota.used.plus(usage.change);
                quota.promised = quota.promised.minus(usage.promised);
            }
        }
    }
}

/// The quotas for which an inode of a project counts.
pub(crate) fn counting(project: u64) -> impl Iterator<Item = u64> {
    std::iter::once(VOLUME).chain(Some(project).filter(|project| *project != VOLUME))
}

fn add_promise(quotas: &mut HashMap<u64, Quota>, project: u64, more: Totals) {
    for dir in counting(project) {
        if let Some(quota) = quotas.get_mut(&dir) {
            quota.promised = quota.promised.plus(more);
        }
    }
}

impl Batch {
    /// The inodes of a project use so much more, or less.
    pub(crate) fn add_usage(&mut self, project: u64, change: Totals, promised: Totals) {
        for dir in counting(project) {
            self.add_usage_of(dir, change, promised);
        }
    }

    /// One quota alone counts so much more, or less.
    pub(crate) fn add_usage_of(&mut self, dir: u64, change: Totals, promised: Totals) {
        let usage = self.quota_usage.entry(dir).or_default();
        usage.change = usage.change.plus(change);
        usage.promised = usage.promised.plus(promised);
    }
}

/// An inode that was promised, until it is there or this is dropped.
#[derive(Debug)]
pub(crate) struct PromisedInode<'a> {
    quotas: &'a Quotas,
    /// The project that it counts for; none: inodes do not count.
    pub(crate) project: Option<u64>,
}

impl<'a> PromisedInode<'a> {
    pub(crate) fn new(quotas: &'a Quotas, project: Option<u64>) -> Self {
        Self { quotas, project }
    }

    /// It is written.
    pub(crate) fn keep(mut self) {
        self.project = None;
    }
}

impl Drop for PromisedInode<'_> {
    fn drop(&mut self) {
        if let Some(project) = self.project {
            self.quotas.promise_unchecked(project, Totals::default().minus(INODE));
        }
    }
}
