//! All volumes, and the calls about them with their deadlines.
//!
//! The table's lock is a leaf, held for a look-up. A volume is in the table from the call that
//! makes it to the one that removes it; both change the table in the volume's turn, so a call that
//! waited for its turn at a volume that was removed meanwhile finds no record in it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use sync::Mutex;

use super::dirs::StateDirs;
use super::podman::{self, Unmounting};
use super::protocol;
use super::uses::{VolumeRecord, is_podman};
use super::volume::{Claim, LONG, Shared, Volume, no_such};
use crate::containers::mounts::Mounted;
use crate::containers::names::VolumeName;
use crate::containers::records::{Records, VOLUMES_MAX};
use crate::containers::turns::Late;
use crate::term::shown::exact;
use crate::term::units;

/// Docker waits for 120 s for these.
const MOUNT: Duration = Duration::from_secs(110);
/// And for 60 s for these.
const UNMOUNT: Duration = Duration::from_secs(50);
/// How long a description may take; then it is without what the mount process would say.
const DESCRIBE: Duration = Duration::from_secs(5);

/// All volumes.
#[derive(Debug)]
pub(super) struct Volumes {
    table: Mutex<BTreeMap<VolumeName, Arc<Volume>>>,
    shared: Arc<Shared>,
}

impl Volumes {
    /// Reads the records. What is mounted without a use will be unmounted. To be called in a
    /// runtime.
    pub(super) fn load(dirs: StateDirs, records: Records<VolumeRecord>, boot_id: String) -> Arc<Self> {
        let runtime = tokio::runtime::Handle::current();
        let shared = Arc::new(Shared { records, dirs, boot_id, runtime });
        let mut table = BTreeMap::new();
        // By the directory's names alone: looking at a mount may wait for its server.
        let mountpoints = fs::read_dir(&shared.dirs.mounts).into_iter().flatten().flatten();
        let mountpoints: BTreeSet<_> = mountpoints.map(|entry| entry.file_name()).collect();
        for (name, record) in shared.records.read_all() {
            if let Err(why) = &record {
                tracing::error!(volume = name.as_str(), "its record is damaged: {why}");
            }
            let volume = Volume::loaded(name.clone(), record, Arc::clone(&shared));
            let is = |what: fn(&VolumeRecord) -> bool| {
                volume.with_state(|state| state.record.as_ref().is_some_and(what))
            };
            if is(|record| !record.is_used()) && mountpoints.contains(OsStr::new(name.as_str())) {
                volume.release_later();
            } else if is(VolumeRecord::is_used_by_podman) {
                podman::keep_mounted(&volume);
            } else if is(VolumeRecord::is_used) {
                volume.release_abandoned_later();
            }
            table.insert(name, volume);
        }
        Arc::new(Self { table: Mutex::new(table), shared })
    }

    fn find(&self, name: &VolumeName) -> Result<Arc<Volume>, String> {
        self.table.lock().get(name).cloned().ok_or_else(|| no_such(name))
    }

    fn find_or_add(&self, name: &VolumeName) -> Result<Arc<Volume>, String> {
        let mut table = self.table.lock();
        if let Some(volume) = table.get(name) {
            return Ok(Arc::clone(volume));
        }
        if table.len() >= VOLUMES_MAX {
            return Err(format!("there are {VOLUMES_MAX} volumes already; remove some"));
        }
        let volume = Volume::new(name.clone(), Arc::clone(&self.shared));
        table.insert(name.clone(), Arc::clone(&volume));
        Ok(volume)
    }

    /// Whether this is still the volume of its name. A call asks in its turn.
    fn has(&self, volume: &Arc<Volume>) -> bool {
        self.table.lock().get(&volume.name).is_some_and(|there| Arc::ptr_eq(there, volume))
    }

    /// Takes a volume out of the table that is none. A call does so in its turn.
    fn forget(&self, volume: &Volume) {
        if volume.with_state(|state| state.record.is_none() && state.damaged.is_none()) {
            self.table.lock().remove(&volume.name);
        }
    }

    pub(super) async fn create(
        self: &Arc<Self>,
        name: VolumeName,
        options: BTreeMap<String, String>,
    ) -> Result<(), String> {
        loop {
            let volume = self.find_or_add(&name)?;
            let (all, made, options) = (Arc::clone(self), Arc::clone(&volume), options.clone());
            let work = move || {
                if !all.has(&made) {
                    return None;
                }
                let created = made.create(options);
                all.forget(&made);
                Some(created)
            };
            match volume.turns.call("creating it", MOUNT, work).await {
                Ok(Some(created)) => return created,
                // Removed while this call waited.
                Ok(None) => {}
                Err(late) => return Err(late_error(&name, late)),
            }
        }
    }

    pub(super) async fn remove(self: &Arc<Self>, name: VolumeName) -> Result<(), String> {
        let volume = self.find(&name)?;
        let (all, removed) = (Arc::clone(self), Arc::clone(&volume));
        let work = move || {
            let result = removed.remove();
            if all.has(&removed) {
                all.forget(&removed);
            }
            result
        };
        volume
            .turns
            .call("removing it", UNMOUNT, work)
            .await
            .unwrap_or_else(|late| Err(late_error(&name, late)))
    }

    /// Returns the mountpoint.
    pub(super) async fn mount(&self, name: VolumeName, id: String) -> Result<String, String> {
        let volume = self.find(&name)?;
        let mut claimed = Claimed::new(&volume, &id);
        let (claim, mounted) = (Arc::clone(&claimed.claim), Arc::clone(&volume));
        let is_podman = is_podman(&id);
        let work = move || mounted.mount(&id, &claim);
        let path = volume.turns.call("mounting it", MOUNT, work).await;
        let path = path.unwrap_or_else(|late| Err(late_error(&name, late)))?;
        if is_podman {
            podman::keep_mounted(&volume);
        }
        claimed.is_answered = true;
        Ok(exact(path))
    }

    pub(super) async fn unmount(&self, name: VolumeName, id: String) -> Result<(), String> {
        let volume = self.find(&name)?;
        let unmounting = Unmounting::new(&volume, &id);
        let unmounted = Arc::clone(&volume);
        let work = move || unmounted.unmount(&id);
        match volume.turns.call("unmounting it", UNMOUNT, work).await {
            Ok(result) => {
                if let Some(unmounting) = unmounting {
                    unmounting.mark_answered();
                }
                volume.mark_reported();
                result
            }
            Err(late) => Err(late_error(&name, late)),
        }
    }

    /// Where it is mounted; empty where it is not.
    pub(super) fn path(&self, name: &VolumeName) -> Result<String, String> {
        let volume = self.find(name)?;
        volume.record().map(|record| mountpoint(&volume, &record))
    }

    pub(super) fn list(&self) -> Vec<protocol::Volume> {
        let all: Vec<Arc<Volume>> = self.table.lock().values().cloned().collect();
        let described =
            |volume: &Arc<Volume>| volume.with_state(|state| Some(brief(volume, state.record.as_ref()?)));
        all.iter().filter_map(described).collect()
    }

    /// Waits for no other call.
    pub(super) async fn get(&self, name: &VolumeName) -> Result<protocol::Volume, String> {
        let volume = self.find(name)?;
        let record = volume.record()?;
        let mut described = brief(&volume, &record);
        let path = volume.path();
        let look = tokio::task::spawn_blocking(move || Mounted::at(&path).map(|mounted| mounted.status()));
        let status = tokio::time::timeout(DESCRIBE, look).await;
        let status = status.ok().and_then(Result::ok).and_then(Result::ok).flatten();
        let answer = &mut described.status;
        answer.insert("source", record.options.get("source").cloned().into());
        answer.insert("uses", record.uses().into());
        if let Some(doing) = volume.turns.doing() {
            answer.insert("doing", doing.into());
        }
        if let Some(failure) = volume.with_state(|state| state.failure.clone()) {
            answer.insert("error", failure.into());
        }
        if let Some(status) = status {
            answer.insert("id", status.id.to_string().into());
            answer.insert("state", status.state.to_string().into());
            answer.insert("dirty_bytes", status.dirty_bytes.into());
        }
        Ok(described)
    }
}

/// The use of a caller that waits for its mount. Where it leaves, or gets the answer that it is late, what
/// was counted is taken back.
struct Claimed {
    volume: Arc<Volume>,
    id: String,
    claim: Arc<Mutex<Claim>>,
    is_answered: bool,
}

impl Claimed {
    fn new(volume: &Arc<Volume>, id: &str) -> Self {
        let claim = Arc::new(Mutex::new(Claim::Waits));
        Self { volume: Arc::clone(volume), id: id.to_owned(), claim, is_answered: false }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let before = std::mem::replace(&mut *self.claim.lock(), Claim::Gone);
        if before != Claim::Counted {
            return;
        }
        let (volume, id) = (Arc::clone(&self.volume), std::mem::take(&mut self.id));
        volume.runtime().clone().spawn(async move {
            let taken = Arc::clone(&volume);
            let result = volume.turns.call("unmounting it", LONG, move || taken.take_back(&id)).await;
            if let Err(error) = result {
                tracing::error!(volume = volume.name.as_str(), %error, "a mount of a caller that is gone stays");
            }
        });
    }
}

fn late_error(name: &VolumeName, late: Late) -> String {
    format!("volume {name}: {late}")
}

fn mountpoint(volume: &Volume, record: &VolumeRecord) -> String {
    if record.is_used() { exact(volume.path()) } else { String::new() }
}

fn brief(volume: &Volume, record: &VolumeRecord) -> protocol::Volume {
    protocol::Volume {
        name: volume.name.as_str().to_owned(),
        mountpoint: mountpoint(volume, record),
        created_at: units::utc(record.created_ms),
        status: BTreeMap::new(),
    }
}
