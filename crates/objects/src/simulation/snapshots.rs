//! Snapshots of the simulated volume: each is made by a holder, and read by this one and later
//! ones, until one of them deletes it.
//!
//! - One that was acknowledged is there for every later holder, whatever crashed.
//! - It shows what its maker saw when it was made, whatever was changed, deleted and collected
//!   since.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use store::{Error, Result};

use super::faults::Random;
use super::host::observe;
use super::model::Seen;
use crate::bucket::Bucket;
use crate::find_snapshot::{find, list};
use crate::mount::{MountOptions, Mounted};
use crate::readers::Mark;

/// What is known of the snapshots of a volume.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshots(Arc<Mutex<BTreeMap<String, Known>>>);

#[derive(Debug)]
struct Known {
    /// What it shows.
    shows: Seen,
    /// Whether its maker was told that it is there.
    is_acknowledged: bool,
    /// Whether somebody has begun to delete it.
    is_deleted: bool,
}

impl Snapshots {
    fn acknowledged(&self) -> Vec<String> {
        let all = self.0.lock();
        all.iter().filter(|(_, known)| known.is_acknowledged).map(|(name, _)| name.clone()).collect()
    }

    fn is_deleted(&self, name: &str) -> bool {
        self.0.lock().get(name).is_none_or(|known| known.is_deleted)
    }

    /// Makes one, which shows what the volume shows `now`.
    pub(super) async fn make(&self, mounted: &Mounted, name: String, now: Seen) -> Result<()> {
        let known = Known { shows: now, is_acknowledged: false, is_deleted: false };
        self.0.lock().insert(name.clone(), known);
        mounted.create_snapshot(&name).await?;
        if let Some(known) = self.0.lock().get_mut(&name) {
            known.is_acknowledged = true;
        }
        Ok(())
    }

    /// Deletes one, if there is one.
    pub(super) async fn delete(&self, mounted: &Mounted, random: &mut Random) -> Result<()> {
        let there = mounted.snapshots().await?;
        if there.is_empty() {
            return Ok(());
        }
        let name = &there[random.below(there.len())].name;
        if let Some(known) = self.0.lock().get_mut(name) {
            known.is_deleted = true;
        }
        match mounted.delete_snapshot(name).await {
            // Another holder was quicker.
            Err(error) if error.kind() == store::ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        }
    }

    /// Looks at all, and reads them.
    pub(super) async fn check(&self, bucket: &Bucket) -> Result<()> {
        let acknowledged = self.acknowledged();
        let there = list(bucket).await?;
        for name in acknowledged {
            let is_there = there.iter().any(|snapshot| snapshot.name == name);
            assert!(
                is_there || self.is_deleted(&name),
                "a snapshot is not there that nobody deletes: {name}"
            );
        }
        for snapshot in there {
            let shows = self.0.lock().get(&snapshot.name).map(|known| known.shows.clone());
            let shows = shows.expect("somebody has begun to make it");
            match read(bucket, &snapshot.name).await {
                Ok(seen) => assert_eq!(seen, shows, "a snapshot shows something else: {}", snapshot.name),
                Err(error) => assert!(
                    self.is_deleted(&snapshot.name),
                    "a snapshot cannot be read that nobody deletes: {}: {error}",
                    snapshot.name
                ),
            }
        }
        Ok(())
    }
}

/// What a snapshot shows, to one who reads it as a mount does.
async fn read(bucket: &Bucket, name: &str) -> Result<Seen, Error> {
    let snapshot = find(bucket, name).await?;
    let mark = Mark::set_of_snapshot(bucket.clone(), snapshot.number).await?;
    let options = MountOptions::plain(1, [0; 16]);
    let mounted = Mounted::open_snapshot(bucket.clone(), &snapshot, options).await;
    let seen = match &mounted {
        Ok(mounted) => observe(mounted.tree()).await,
        Err(error) => Err(error.clone()),
    };
    mark.remove().await;
    seen
}
