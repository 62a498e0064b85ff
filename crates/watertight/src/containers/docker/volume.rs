//! One volume: what a call does in its turn. All of this blocks, on threads of its own.
//!
//! Only the call that has the turn changes the record: it writes the new one to the disk, and then
//! shows it to others, who look at `state` for a moment and never wait for a call.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sync::Mutex;
use tokio::runtime::Handle;

use super::dirs::StateDirs;
use super::options::VolumeOptions;
use super::uses::{VolumeRecord, is_podman};
use crate::containers::mounts::{self, Mounted};
use crate::containers::names::VolumeName;
use crate::containers::program::{self, Launch};
use crate::containers::records::Records;
use crate::containers::turns::Turns;
use crate::control::api::now_ms;

/// How soon a volume without uses that is still mounted is unmounted again; twice that the next
/// time.
pub(super) const RETRY: Duration = Duration::from_secs(5);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(60);
/// A container that mounted so long ago has started, or never will: an engine mounts its volumes one
/// after another before, and waits for 120 s for each.
const SETTLED_MS: u64 = 600_000;
/// How long making a volume on object storage may take; then its process is ended.
const FORMAT_MAX: Duration = Duration::from_secs(600);
/// In effect without a deadline.
pub(super) const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// What all volumes have.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) records: Records<VolumeRecord>,
    pub(super) dirs: StateDirs,
    pub(super) boot_id: String,
    pub(super) runtime: Handle,
}

/// One volume.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) name: VolumeName,
    pub(super) turns: Turns,
    state: Mutex<VolumeState>,
    shared: Arc<Shared>,
}

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct VolumeState {
    /// None: there is no such volume.
    pub(super) record: Option<VolumeRecord>,
    /// What is wrong with its record.
    pub(super) damaged: Option<String>,
    /// Why it was last not mounted or not unmounted.
    pub(super) failure: Option<String>,
    /// Whether no caller has got the failure as its answer.
    is_unreported: bool,
    /// Whether an unmount without a caller is to come.
    is_release_due: bool,
    /// Whether a task keeps it mounted for Podman.
    is_kept: bool,
}

/// Whether the caller of a mount still waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// It waits; nothing is counted yet.
    Waits,
    /// Its use is counted.
    Counted,
    /// It is gone: nothing is to be counted.
    Gone,
}

/// How a volume was found that an id may have mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// The id has not.
    Unused,
    /// It is mounted.
    Mounted,
    /// It is not, and cannot be now.
    Unmounted,
}

impl Volume {
    pub(super) fn new(name: VolumeName, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { name, turns: Turns::default(), state: Mutex::default(), shared })
    }

    /// A volume as its record has it.
    pub(super) fn loaded(
        name: VolumeName,
        record: Result<VolumeRecord, String>,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let volume = Self::new(name, shared);
        {
            let mut state = volume.state.lock();
            match record {
                Ok(mut record) => {
                    record.in_boot(&volume.shared.boot_id);
                    state.record = Some(record);
                }
                Err(why) => state.damaged = Some(why),
            }
        }
        volume
    }

    /// Calls `at` with what is known.
    pub(super) fn with_state<T>(&self, at: impl FnOnce(&VolumeState) -> T) -> T {
        at(&self.state.lock())
    }

    pub(super) fn path(&self) -> PathBuf {
        self.shared.dirs.mounts.join(self.name.as_str())
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    fn log(&self) -> PathBuf {
        self.shared.dirs.logs.join(format!("{}.log", self.name))
    }

    /// Its record.
    ///
    /// # Errors
    /// There is no such volume, or its record is damaged.
    pub(super) fn record(&self) -> Result<VolumeRecord, String> {
        let state = self.state.lock();
        if let Some(why) = &state.damaged {
            return Err(format!(
                "the record of volume {} in {} is damaged: {why}; correct or remove the file, and restart the plugin",
                self.name,
                self.shared.records.file(&self.name)
            ));
        }
        state.record.clone().ok_or_else(|| no_such(&self.name))
    }

    fn save(&self, record: VolumeRecord) -> Result<(), String> {
        self.shared.records.write(&self.name, &record)?;
        self.state.lock().record = Some(record);
        Ok(())
    }

    pub(super) fn create(&self, given: BTreeMap<String, String>) -> Result<(), String> {
        if self.with_state(|state| state.record.is_some() || state.damaged.is_some()) {
            return match self.record()? {
                record if record.options == given => Ok(()),
                _ => Err(format!("there is a volume {} already, with other options", self.name)),
            };
        }
        let options = VolumeOptions::parse(&given)?;
        if options.is_url {
            make(&options)?;
        } else {
            options.check_directory()?;
        }
        self.save(VolumeRecord::new(&self.name, given, now_ms(), &self.shared.boot_id))
    }

    /// Mounts it for `id`.
    pub(super) fn mount(self: &Arc<Self>, id: &str, claim: &Mutex<Claim>) -> Result<PathBuf, String> {
        let mut record = self.record()?;
        super::uses::check_id(id)?;
        let (options, path) = (VolumeOptions::parse(&record.options)?, self.path());
        if record.is_used_by(id) && !is_in_use(&path) {
            // The engine crashed, and knows nothing of the earlier use.
            record.remove_all_of(id);
        }
        let mounted = mounts::mount(&Launch::default(), &options.spec(), &options.mount, &path, &self.log());
        if let Err(why) = mounted {
            let why = format!("volume {} cannot be mounted: {why}", self.name);
            self.fail(&why, false);
            return Err(why);
        }
        self.state.lock().failure = None;
        let counted = self.count(record, id, claim);
        if counted.is_err() && !self.is_used() {
            self.release_later();
        }
        counted.map(|()| path)
    }

    /// Counts a use, unless its caller is gone. A use that could not be counted is none: what was
    /// counted for `id` before stays.
    fn count(
        self: &Arc<Self>,
        mut record: VolumeRecord,
        id: &str,
        claim: &Mutex<Claim>,
    ) -> Result<(), String> {
        let gone = || Err(format!("nobody waits any more for volume {} to be mounted", self.name));
        if *claim.lock() == Claim::Gone {
            return gone();
        }
        record.add(id, now_ms())?;
        self.save(record)?;
        {
            let mut claim = claim.lock();
            if *claim == Claim::Waits {
                *claim = Claim::Counted;
                return Ok(());
            }
        }
        // The caller left meanwhile, and found nothing counted.
        self.take_back(id);
        gone()
    }

    /// Unmounts it for `id`; the last unmounts it.
    pub(super) fn unmount(self: &Arc<Self>, id: &str) -> Result<(), String> {
        let mut record = self.record()?;
        let was_used = record.remove_one(id);
        if was_used && is_podman(id) && !record.is_used() {
            return self.unmount_for_podman(record);
        }
        // Before anything is unmounted: a plugin that is killed meanwhile goes on where it is started
        // again.
        if was_used {
            self.save(record.clone())?;
        }
        if record.is_used() && !self.forget_abandoned(&mut record)? {
            return Ok(());
        }
        // How an unmount ended whose caller did not wait for its end.
        let untold = {
            let mut state = self.state.lock();
            let failure = state.failure.clone().filter(|_| state.is_unreported);
            state.is_unreported = false;
            failure
        };
        self.unmount_unused()?;
        untold.map_or(Ok(()), Err)
    }

    /// Forgets uses that no call will end, as the engine or this plugin was away when their containers
    /// ended: those counted so long ago that their containers would hold the mount by now, where the
    /// kernel shows nothing that holds it. Returns whether it did.
    fn forget_abandoned(&self, record: &mut VolumeRecord) -> Result<bool, String> {
        if !is_settled(record) || is_in_use(&self.path()) {
            return Ok(false);
        }
        tracing::warn!(volume = self.name.as_str(), uses = record.uses(), "nothing holds what was counted");
        record.remove_all();
        self.save(record.clone())?;
        Ok(true)
    }

    /// Unmounts it if it was abandoned; the plugin's start asks.
    fn release_abandoned(self: &Arc<Self>) -> Result<(), String> {
        let mut record = self.record()?;
        if record.is_used() && self.forget_abandoned(&mut record)? {
            self.unmount_unused()?;
        }
        Ok(())
    }

    /// Unmounts it where its last containers ended while no plugin was there.
    pub(super) fn release_abandoned_later(self: &Arc<Self>) {
        let volume = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            if !volume.with_state(|state| state.record.as_ref().is_some_and(is_settled)) {
                tokio::time::sleep(Duration::from_millis(SETTLED_MS)).await;
            }
            let released = Arc::clone(&volume);
            // It has said what went wrong, and tries again by itself.
            let _reported =
                volume.turns.call("unmounting it", LONG, move || released.release_abandoned()).await;
        });
    }

    /// The use is over when all data is on the store, and stays otherwise: module `podman` says why.
    /// `unused`: the record without it.
    fn unmount_for_podman(self: &Arc<Self>, unused: VolumeRecord) -> Result<(), String> {
        let Err(why) = self.unmount_reporting() else { return self.save(unused) };
        self.fail(&why, false);
        if self.is_gone() {
            return self.save(unused);
        }
        mounts::write(&self.path()).map_err(|_| why)?;
        self.save(unused)?;
        self.release_later();
        Ok(())
    }

    /// Mounts it for `id`, whose caller had no answer to its unmount and believes it mounted.
    pub(super) fn mount_again(self: &Arc<Self>, id: &str) -> Result<(), String> {
        // It was removed meanwhile.
        let Ok(record) = self.record() else { return Ok(()) };
        if record.is_used_by(id) && matches!(Mounted::at(&self.path()), Ok(Mounted::Running(..))) {
            return Ok(());
        }
        self.mount(id, &Mutex::new(Claim::Waits)).map(drop)
    }

    /// Returns whether there was no task yet that keeps it mounted.
    pub(super) fn begin_keeping(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_kept, true)
    }

    /// Mounts it where `id` has it mounted and no process serves it.
    pub(super) fn mount_if_used(self: &Arc<Self>, id: &str) -> Kept {
        let mut state = self.state.lock();
        if !state.record.as_ref().is_some_and(|record| record.is_used_by(id)) {
            state.is_kept = false;
            return Kept::Unused;
        }
        drop(state);
        let was_dead = match Mounted::at(&self.path()) {
            Ok(Mounted::Running(..)) => return Kept::Mounted,
            found => matches!(found, Ok(Mounted::Dead)),
        };
        if self.mount(id, &Mutex::new(Claim::Waits)).is_err() {
            return Kept::Unmounted;
        }
        if was_dead {
            let why = format!(
                "the mount process of volume {} died, and it is mounted again; what was fsynced is there, later writes may be lost",
                self.name
            );
            self.fail(&why, false);
        }
        Kept::Mounted
    }

    fn unmount_unused(self: &Arc<Self>) -> Result<(), String> {
        self.unmount_reporting().inspect_err(|why| {
            let is_gone = self.is_gone();
            self.fail(why, is_gone);
            if !is_gone {
                self.release_later();
            }
        })
    }

    /// Unmounts it; an earlier failure that was reported is over with that.
    fn unmount_reporting(&self) -> Result<(), String> {
        mounts::remove(&self.path())
            .map_err(|why| format!("volume {} is not unmounted as it should be: {why}", self.name))?;
        let mut state = self.state.lock();
        state.failure = state.failure.take().filter(|_| state.is_unreported);
        Ok(())
    }

    fn is_gone(&self) -> bool {
        matches!(Mounted::at(&self.path()), Ok(Mounted::No))
    }

    /// The caller of the last call has got its result.
    pub(super) fn mark_reported(&self) {
        self.state.lock().is_unreported = false;
    }

    /// Notes a failure; one that is final, and that no call waited for, is the next caller's
    /// answer.
    fn fail(&self, why: &str, is_final: bool) {
        let mut state = self.state.lock();
        if state.failure.as_deref() != Some(why) {
            tracing::error!(volume = self.name.as_str(), "{why}");
        }
        state.failure = Some(why.to_owned());
        state.is_unreported = is_final;
    }

    fn is_used(&self) -> bool {
        self.with_state(|state| state.record.as_ref().is_some_and(VolumeRecord::is_used))
    }

    /// A mount whose caller is gone is not a use.
    pub(super) fn take_back(self: &Arc<Self>, id: &str) {
        let Ok(mut record) = self.record() else { return };
        if record.remove_one(id) {
            let is_used = record.is_used();
            if let Err(why) = self.save(record) {
                tracing::error!(volume = self.name.as_str(), "{why}");
            } else if !is_used {
                self.release_later();
            }
        }
    }

    /// Schedules an unmount, for the case that the volume has no uses by then.
    pub(super) fn release_later(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state.lock().is_release_due, true) {
            return;
        }
        let volume = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            let mut pause = RETRY;
            loop {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
                let released = Arc::clone(&volume);
                let is_done = volume.turns.call("unmounting", LONG, move || released.release()).await;
                if is_done == Ok(true) {
                    return;
                }
            }
        });
    }

    /// Returns whether that is done or not wanted any more.
    fn release(self: &Arc<Self>) -> bool {
        let is_wanted = !self.is_used() && self.record().is_ok();
        // It is due, so that a failure makes no further one due.
        let is_done = !is_wanted || self.unmount_unused().is_ok();
        if is_done {
            self.state.lock().is_release_due = false;
        }
        is_done
    }

    /// Unmounts it, and removes its record.
    pub(super) fn remove(self: &Arc<Self>) -> Result<(), String> {
        let mut record = self.record()?;
        if record.is_used() {
            let path = self.path();
            if is_in_use(&path) {
                return Err(format!("volume {} is in use: it is mounted {} times", self.name, record.uses()));
            }
            // The engine crashed, and no container of it has the volume.
            record.remove_all();
            self.save(record)?;
        }
        self.unmount_unused()?;
        self.shared.records.remove(&self.name)?;
        for log in [self.log(), self.log().with_extension("log.old")] {
            let _there_was_none = std::fs::remove_file(log);
        }
        self.state.lock().record = None;
        Ok(())
    }
}

/// Whether the containers of all that is counted hold the mount, if they still are. What Podman has
/// counted it knows itself.
fn is_settled(record: &VolumeRecord) -> bool {
    record.is_older(SETTLED_MS, now_ms()) && !record.is_used_by_podman()
}

/// Whether the mount at `path` is in use by anyone.
fn is_in_use(path: &std::path::Path) -> bool {
    match Mounted::at(path) {
        Ok(Mounted::Running(mount, _)) => mounts::is_held(&mount),
        Ok(Mounted::No | Mounted::Dead) => false,
        Ok(Mounted::Leaving(_)) | Err(_) => true,
    }
}

/// Makes the volume, unless there is one.
fn make(options: &VolumeOptions) -> Result<(), String> {
    let call = |verb: &str, more: &[String]| {
        let mut arguments = vec![verb.to_owned()];
        arguments.extend_from_slice(more);
        arguments.extend(["--".to_owned(), options.source.clone()]);
        program::run(&arguments, Some(FORMAT_MAX))
    };
    if call("info", &options.info).is_ok() {
        return Ok(());
    }
    // Why there is none, it says as well.
    call("format", &options.format)
}

pub(super) fn no_such(name: &VolumeName) -> String {
    format!("there is no volume {name}")
}
