//! Snapshots of the simulated volume: each is made by a holder, and read by this one and later
//! ones, until one of them deletes it.
//!
//! - One that was acknowledged is there for every later holder, whatever crashed.
//! - It shows what its maker saw when it was made, whatever was changed, deleted and collected
//!   since.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use store::{Error, ErrorKind, Result};

use super::family::Member;
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
    /// How many have begun to delete it, and were not told that a clone needs it.
    deleters: usize,
    /// Whether anybody ever has.
    was_deleted: bool,
}

impl Snapshots {
    fn acknowledged(&self) -> Vec<String> {
        let all = self.0.lock();
        all.iter().filter(|(_, known)| known.is_acknowledged).map(|(name, _)| name.clone()).collect()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.0.lock().get_mut(name) {
            change(known);
        }
    }

    /// Whether it may be gone: somebody has begun to delete it, and no clone needs it.
    fn is_deleted(&self, name: &str, member: Option<&Member>) -> bool {
        let is_needed = member.is_some_and(|member| member.need(name));
        !is_needed && self.0.lock().get(name).is_none_or(|known| known.deleters > 0)
    }

    /// Whether somebody ever began to delete it.
    pub(super) fn was_deleted(&self, name: &str) -> bool {
        self.0.lock().get(name).is_none_or(|known| known.was_deleted)
    }

    /// One that was acknowledged, and what it shows.
    pub(super) fn any_acknowledged(&self, random: &mut Random) -> Option<(String, Seen)> {
        let names = self.acknowledged();
        let name = names.get(random.below(names.len().max(1)))?.clone();
        let shows = self.0.lock().get(&name)?.shows.clone();
        Some((name, shows))
    }

    /// Makes one, which shows what the volume shows `now`.
    pub(super) async fn make(&self, mounted: &Mounted, name: String, now: Seen) -> Result<()> {
        let known = Known { shows: now, is_acknowledged: false, deleters: 0, was_deleted: false };
        self.0.lock().insert(name.clone(), known);
        mounted.create_snapshot(&name).await?;
        self.change(&name, |known| known.is_acknowledged = true);
        Ok(())
    }

    /// Deletes one, if there is one.
    pub(super) async fn delete_any(
        &self,
        mounted: &Mounted,
        member: Option<&Member>,
        random: &mut Random,
    ) -> Result<()> {
        let there = mounted.snapshots().await?;
        if there.is_empty() {
            return Ok(());
        }
        self.delete(mounted, member, &there[random.below(there.len())].name).await
    }

    /// Deletes one, unless a clone needs it.
    pub(super) async fn delete(&self, mounted: &Mounted, member: Option<&Member>, name: &str) -> Result<()> {
        let may_need = async || match member {
            Some(member) => member.may_need(name).await,
            None => false,
        };
        let was_needed = may_need().await;
        self.change(name, |known| (known.deleters, known.was_deleted) = (known.deleters + 1, true));
        match mounted.delete_snapshot(name).await {
            // Another holder was quicker.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == ErrorKind::Busy => {
                assert!(
                    was_needed || may_need().await,
                    "a snapshot stays for a clone that is not there: {error}"
                );
                self.change(name, |known| known.deleters -= 1);
                Ok(())
            }
            deleted => deleted,
        }
    }

    /// Looks at all, and reads one.
    pub(super) async fn check(
        &self,
        bucket: &Bucket,
        member: Option<&Member>,
        random: &mut Random,
    ) -> Result<()> {
        let acknowledged = self.acknowledged();
        let mut there = list(bucket).await?;
        for name in acknowledged {
            let is_there = there.iter().any(|snapshot| snapshot.name == name);
            assert!(
                is_there || self.is_deleted(&name, member),
                "a snapshot is not there that nobody deletes: {name}"
            );
        }
        if !there.is_empty() {
            let snapshot = there.swap_remove(random.below(there.len()));
            let shows = self.0.lock().get(&snapshot.name).map(|known| known.shows.clone());
            let shows = shows.expect("somebody has begun to make it");
            match read(bucket, &snapshot.name).await {
                Ok(seen) => assert_eq!(seen, shows, "a snapshot shows something else: {}", snapshot.name),
                Err(error) => assert!(
                    self.is_deleted(&snapshot.name, member),
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
