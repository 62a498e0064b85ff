//! Snapshots: checkpoints of the engine, each of which its manifest names.
//!
//! A checkpoint is made by one conditional write of a manifest, which the last writer alone can do.
//! So a snapshot is there or is not, whatever crashes: one that was acknowledged is found by every
//! later holder, and a holder that was taken over makes none. It is a state that was in tables as a
//! whole: the log is not needed to read it.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::Checkpoint;
use slatedb::admin::AdminBuilder;
use slatedb::config::{CheckpointOptions, CheckpointScope};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use super::slate::{SlateEngine, newest_manifest, plain};
use crate::engine_store::EngineStore;
use crate::rows::Totals;
use crate::utc::in_utc;

/// A snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) name: String,
    /// The number of the manifest that was written with it: a later snapshot has a greater one.
    pub(crate) number: u64,
    /// By the clock of the host that made it, in seconds since 1970.
    pub(crate) created: u64,
    /// What is known of its volume at that time.
    pub(crate) then: Then,
    pub(super) checkpoint: Checkpoint,
}

/// A volume when a snapshot of it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Then {
    pub(crate) totals: Totals,
    /// The epoch of its holder: that of its newest segments.
    pub(crate) epoch: u64,
    /// No object of the log with a greater number has anything of the snapshot.
    pub(crate) log: u64,
}

impl From<Snapshot> for store::Snapshot {
    fn from(snapshot: Snapshot) -> Self {
        let Snapshot { name, then: Then { totals, .. }, .. } = snapshot;
        let bytes = totals.bytes.try_into().unwrap_or(0);
        Self { name, created: in_utc(snapshot.created), bytes, files: totals.files() }
    }
}

/// What a checkpoint is called: what is known of the volume, and the snapshot's name.
fn label(name: &str, Then { totals, epoch, log }: Then) -> String {
    format!("{} {} {epoch} {log} {name}", totals.bytes, totals.inodes)
}

fn read_label(label: &str) -> Option<(Then, &str)> {
    let mut parts = label.splitn(5, ' ');
    let totals = Totals { bytes: parts.next()?.parse().ok()?, inodes: parts.next()?.parse().ok()? };
    let (epoch, log) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((Then { totals, epoch, log }, parts.next()?))
}

impl Snapshot {
    /// `None`: the checkpoint is none of this program's.
    pub(super) fn of(checkpoint: &Checkpoint) -> Option<Self> {
        let (then, name) = read_label(checkpoint.name.as_deref()?)?;
        Some(Self {
            name: name.to_owned(),
            number: checkpoint.manifest_id,
            created: checkpoint.create_time.timestamp().try_into().unwrap_or(0),
            then,
            checkpoint: checkpoint.clone(),
        })
    }

    /// Those of a manifest, the oldest first. One whose making was repeated, for its answer was
    /// lost, is there twice, and is one.
    /// Those up to `begun_with` are of the volume that this one was cloned from.
    pub(super) fn all(checkpoints: &[Checkpoint], begun_with: u64) -> Vec<Self> {
        let mut all: Vec<_> = checkpoints.iter().filter_map(Self::of).collect();
        all.retain(|snapshot| snapshot.number > begun_with);
        all.sort_by_key(|snapshot| snapshot.number);
        let mut seen = std::collections::HashSet::new();
        all.retain(|snapshot| seen.insert(snapshot.checkpoint.id));
        all
    }
}

/// The snapshots that the newest manifest names, the oldest first.
pub(crate) async fn snapshots(
    (store, root): (Arc<dyn ObjectStore>, &Path),
    begun_with: u64,
) -> Result<Vec<Snapshot>> {
    let manifest = newest_manifest(store, root).await?;
    Ok(manifest.map(|manifest| Snapshot::all(manifest.checkpoints(), begun_with)).unwrap_or_default())
}

impl SlateEngine {
    /// Makes a snapshot of everything whose writing has ended, and returns its number.
    pub(crate) async fn make_snapshot(&self, name: &str, then: Then) -> Result<u64> {
        let options = CheckpointOptions { name: Some(label(name, then)), ..CheckpointOptions::default() };
        let made = self.db.create_checkpoint(CheckpointScope::All, &options).await;
        made.map(|made| made.manifest_id).map_err(|error| self.failed(&error))
    }

    /// Deletes a snapshot, if the newest manifest is still the one that was `seen`: no other process has
    /// taken the volume since.
    ///
    /// # Errors
    /// The bucket's; also where another manifest was written, which then may have been this call's own.
    pub(crate) async fn delete_snapshot(&self, snapshot: &Snapshot, seen: u64) -> Result<()> {
        let mut store = Arc::clone(&self.store);
        if !is_on("snapshot-deleted-after-a-takeover") {
            store = EngineStore::writing_only(store, &self.path, seen + 1);
        }
        let admin =
            AdminBuilder::new(self.path.clone(), store).with_system_clock(Arc::clone(&self.clock) as _);
        let deleted = admin.build().delete_checkpoint(snapshot.checkpoint.id).await;
        deleted.map_err(|error| plain(&error))
    }

    /// The snapshots, the oldest first, if this process is the engine's writer.
    pub(crate) async fn own_snapshots(&self) -> Result<Vec<Snapshot>> {
        self.newest_snapshots().await.map(|(_, snapshots)| snapshots)
    }

    /// The same, with the number of the newest manifest, which names them.
    pub(crate) async fn newest_snapshots(&self) -> Result<(u64, Vec<Snapshot>)> {
        let manifest = self.admin().read_manifest(None).await.map_err(|error| plain(&error))?;
        match manifest.filter(|manifest| manifest.writer_epoch() == self.log.epoch()) {
            Some(manifest) => Ok((manifest.id(), Snapshot::all(manifest.checkpoints(), self.begun_with))),
            None => Err(Error::with(ErrorKind::Io, "snapshot", "another host has taken the volume over")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_what_it_was_made_of() {
        let then = Then { totals: Totals { bytes: 5, inodes: 7 }, epoch: 3, log: 9 };
        for name in ["a", "a b", "-1 2 3"] {
            assert_eq!(read_label(&label(name, then)), Some((then, name)));
        }
        for other in ["", "a", "1 2 3 4", "1 x 3 4 a", "1 2 -3 4 a"] {
            assert_eq!(read_label(other), None, "{other}");
        }
    }
}
