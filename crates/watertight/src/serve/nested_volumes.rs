//! The volumes that the file attaches inside mountpoints: thousands of them cost this process an
//! entry each.
//!
//! A thread of its own makes each call to a mount process, a bounded number of them for each
//! mountpoint: a store that hangs holds up its own volume. A volume inside another attached one of
//! the file waits for that; volumes that leave the file are detached from the inside out.
//!
//! | state | action |
//! |---|---|
//! | `Waits` | for its mountpoint, or for the volume that it is inside of |
//! | `Due` | it is attached, or tried again, then |
//! | `Attached` | none, until the file no longer has it |
//! | `Leaves` | it is detached then |
//! | `Busy` | a call is under way |
//!
//! A reload makes calls for volumes whose entries have changed, and for volumes that are no longer
//! at their places by the registry: it reads a file for each, and asks no process.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use super::config::VolumeConfig;
use super::event::{AttachedRecord, CallResult, PAUSE, PAUSE_MAX, ServeEvent};
use super::limits::VolumeLimits;
use crate::control::api::{self, AttachRequest, DetachRequest, Missing, UmountKind};
use crate::control::volume_id::VolumeId;
use crate::registry::RuntimeDir;
use crate::registry::target;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::term::units;

/// Calls under way for each mountpoint.
const CALLS_MAX: usize = 8;
/// How long a call may take before another try is made; the mount process goes on with it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Volumes that are checked before the next event is.
const AT_ONCE: usize = 64;
/// The stack of a thread that makes a call.
const STACK: usize = 512 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttachState {
    Waits,
    Due(Instant),
    Busy,
    Attached,
    Leaves(Instant),
}

#[derive(Debug)]
struct NestedVolume {
    config: VolumeConfig,
    state: AttachState,
    /// Its id when it was attached.
    id: Option<VolumeId>,
    /// The file has it no longer.
    is_going: bool,
    /// It was tried since the last reload.
    was_tried: bool,
    pause: Duration,
    limits: Arc<VolumeLimits>,
    /// Whether the file ever had limits for it.
    has_limits: bool,
}

/// All of them, by path.
#[derive(Debug)]
pub(super) struct NestedVolumes {
    volumes: BTreeMap<PathBuf, NestedVolume>,
    due: BTreeSet<(Instant, PathBuf)>,
    /// Mountpoints that are there.
    mounted: BTreeSet<PathBuf>,
    calls: BTreeMap<PathBuf, usize>,
    sender: Sender<ServeEvent>,
}

impl NestedVolumes {
    pub(super) fn new(sender: Sender<ServeEvent>) -> Self {
        let (volumes, due, mounted, calls) = Default::default();
        Self { volumes, due, mounted, calls, sender }
    }

    /// How many there should be, and how many of them are attached.
    pub(super) fn counts(&self) -> (usize, usize) {
        let wanted = self.volumes.values().filter(|volume| !volume.is_going);
        let is_there = |volume: &&NestedVolume| volume.state == AttachState::Attached;
        (wanted.clone().count(), wanted.filter(is_there).count())
    }

    /// How many attached volumes a user has detached by hand, which no event reports: looks for
    /// each.
    pub(super) fn detached_by_hand(&self) -> usize {
        let registries = RuntimeDir::readable();
        let is_running = |dir: &RuntimeDir, id: &VolumeId| {
            dir.read_record(id).is_some_and(|record| record.ended.is_none())
        };
        // A volume that was moved is not at its old place.
        let is_there = |path: &Path, id: &VolumeId| {
            registries.iter().any(|dir| dir.is_at(path, id) || is_running(dir, id))
        };
        let is_gone = |path: &Path, volume: &NestedVolume| {
            !volume.is_going
                && volume.state == AttachState::Attached
                && volume.id.as_ref().is_some_and(|id| !is_there(path, id))
        };
        self.volumes.iter().filter(|(path, volume)| is_gone(path, volume)).count()
    }

    /// Volumes that should be attached and are not.
    pub(super) fn missing(&self) -> impl Iterator<Item = Missing> {
        let missing =
            self.volumes.values().filter(|volume| !volume.is_going && volume.state != AttachState::Attached);
        missing.map(|volume| {
            let is_there = self.mounted.contains(&volume.config.mountpoint);
            let why =
                if is_there { "is not attached; the log says why" } else { "its mountpoint is not mounted" };
            volume.config.missing(why)
        })
    }

    /// Whether each volume whose mountpoint is there was tried.
    pub(super) fn is_settled(&self) -> bool {
        self.volumes
            .values()
            .all(|volume| volume.was_tried || !self.mounted.contains(&volume.config.mountpoint))
    }

    /// Makes the volumes match the file. When a mountpoint leaves, all volumes inside it do.
    pub(super) fn apply(
        &mut self,
        mut wanted: BTreeMap<PathBuf, VolumeConfig>,
        mountpoints: &BTreeSet<PathBuf>,
    ) {
        let registries = RuntimeDir::readable();
        let is_at = |path: &Path, id: &VolumeId| registries.iter().any(|dir| dir.is_at(path, id));
        self.mounted.retain(|mountpoint| mountpoints.contains(mountpoint));
        self.volumes.retain(|_, volume| mountpoints.contains(&volume.config.mountpoint));
        for (path, volume) in &mut self.volumes {
            let shown = path.shown();
            match wanted.remove(path) {
                Some(config) => {
                    let is_there = volume.state == AttachState::Attached;
                    let stays = is_there && volume.id.as_ref().is_some_and(|id| is_at(path, id));
                    let limits_change = config.limits != volume.config.limits;
                    volume.has_limits |= !config.limits.is_empty();
                    if is_there && !config.mounts_like(&volume.config) {
                        tracing::warn!(
                            volume = %shown.exact(),
                            "{shown} has changed in the file, and cannot be changed while it is attached: it goes on with {}; \
                             `watertight detach {shown}` and another reload attach it with {}",
                            volume.config.describe(),
                            config.describe(),
                        );
                        volume.config.limits = config.limits;
                    } else {
                        volume.config = config;
                    }
                    if stays {
                        if limits_change {
                            volume.limits.tell(&volume.config);
                        }
                    } else if volume.state != AttachState::Busy {
                        volume.state = AttachState::Waits;
                    }
                    (volume.is_going, volume.was_tried, volume.pause) = (false, stays, PAUSE);
                }
                None if !volume.is_going => {
                    tracing::info!(volume = %shown.exact(), "{shown} is no longer in the file: detaching");
                    volume.is_going = true;
                    volume.pause = PAUSE;
                    if volume.state != AttachState::Busy {
                        volume.state = AttachState::Leaves(Instant::now());
                    }
                }
                None => {}
            }
        }
        for (path, config) in wanted {
            let new = NestedVolume {
                has_limits: !config.limits.is_empty(),
                config,
                state: AttachState::Waits,
                id: None,
                is_going: false,
                was_tried: false,
                pause: PAUSE,
                limits: Arc::default(),
            };
            self.volumes.insert(path, new);
        }
        self.due.clear();
        let now = Instant::now();
        let paths: Vec<PathBuf> = self.volumes.keys().cloned().collect();
        paths.iter().for_each(|path| self.queue(path, now));
        if !self.mounted.is_empty() && !self.volumes.is_empty() {
            let all = units::count(self.volumes.len() as u64, "volume", "volumes");
            tracing::info!(
                "reload: of {all} inside mountpoints, {} are to be attached or detached",
                self.due.len()
            );
        }
    }

    /// A mountpoint is there.
    pub(super) fn on_mounted(&mut self, mountpoint: &Path) {
        self.mounted.insert(mountpoint.to_owned());
        self.queue_below(mountpoint);
    }

    /// A mountpoint is gone, with all that was inside.
    pub(super) fn on_unmounted(&mut self, mountpoint: &Path) {
        self.mounted.remove(mountpoint);
        self.volumes.retain(|_, volume| !(volume.is_going && volume.config.mountpoint == mountpoint));
        for volume in self.volumes.values_mut().filter(|volume| volume.config.mountpoint == mountpoint) {
            if volume.state != AttachState::Busy {
                volume.state = AttachState::Waits;
            }
        }
    }

    fn queue_below(&mut self, dir: &Path) {
        let now = Instant::now();
        let below = self.volumes.range::<Path, _>(from(dir)).take_while(|(path, _)| path.starts_with(dir));
        let below: Vec<PathBuf> = below.map(|(path, _)| path.clone()).collect();
        below.iter().for_each(|path| self.queue(path, now));
    }

    /// Has it checked, then.
    fn queue(&mut self, path: &Path, at: Instant) {
        let Some(volume) = self.volumes.get_mut(path) else { return };
        match volume.state {
            AttachState::Waits if self.mounted.contains(&volume.config.mountpoint) => {
                volume.state = AttachState::Due(at)
            }
            AttachState::Waits | AttachState::Busy | AttachState::Attached => return,
            AttachState::Due(_) => volume.state = AttachState::Due(at),
            AttachState::Leaves(_) => volume.state = AttachState::Leaves(at),
        }
        self.due.insert((at, path.to_owned()));
    }

    /// When there is something to do.
    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.is_busy() {
            return None;
        }
        self.due.iter().find(|(_, path)| self.can_call(path)).map(|(at, _)| *at)
    }

    /// Whether no call can be made at all, before one has ended.
    fn is_busy(&self) -> bool {
        self.mounted.iter().all(|mountpoint| self.calls_of(mountpoint) >= CALLS_MAX)
    }

    /// A volume that does not exist any more can be forgotten.
    fn can_call(&self, path: &Path) -> bool {
        self.volumes.get(path).is_none_or(|volume| self.calls_of(&volume.config.mountpoint) < CALLS_MAX)
    }

    fn calls_of(&self, mountpoint: &Path) -> usize {
        self.calls.get(mountpoint).copied().unwrap_or(0)
    }

    /// Begins calls that are due.
    pub(super) fn start_due_calls(&mut self) {
        if self.is_busy() {
            return;
        }
        let now = Instant::now();
        let due = self.due.iter().take_while(|(at, _)| *at <= now).filter(|(_, path)| self.can_call(path));
        let due: Vec<_> = due.take(AT_ONCE).cloned().collect();
        for (at, path) in due {
            let Some(volume) = self.volumes.get(&path) else {
                self.due.remove(&(at, path));
                continue;
            };
            if self.calls_of(&volume.config.mountpoint) >= CALLS_MAX {
                continue;
            }
            let (state, is_free) = (volume.state, self.is_free(&path, volume.is_going));
            self.due.remove(&(at, path.clone()));
            match state {
                AttachState::Due(until) if until == at && !is_free => self.set(&path, AttachState::Waits),
                AttachState::Due(until) | AttachState::Leaves(until) if until == at && is_free => {
                    self.call(&path)
                }
                // Another check was planned since; or the volume inside it asks for one when that
                // has left.
                _ => {}
            }
        }
    }

    /// Whether the volume that it is inside of is there; for one that leaves, whether none is left
    /// inside.
    fn is_free(&self, path: &Path, is_going: bool) -> bool {
        if is_going {
            let mut below = self.volumes.range::<Path, _>(from(path)).skip(1);
            return below.next().is_none_or(|(other, _)| !other.starts_with(path));
        }
        let around = path.ancestors().skip(1).find_map(|dir| self.volumes.get(dir));
        around.is_none_or(|around| around.state == AttachState::Attached)
    }

    fn set(&mut self, path: &Path, state: AttachState) {
        if let Some(volume) = self.volumes.get_mut(path) {
            volume.state = state;
        }
    }

    fn call(&mut self, path: &Path) {
        let Some(volume) = self.volumes.get_mut(path) else { return };
        volume.state = AttachState::Busy;
        let (config, is_going) = (volume.config.clone(), volume.is_going);
        *self.calls.entry(config.mountpoint.clone()).or_default() += 1;
        let (sender, at) = (self.sender.clone(), path.to_owned());
        let body = move || {
            let done = if is_going {
                CallResult::Detached(detach(&at, &config))
            } else {
                CallResult::Attached(attach(&at, &config))
            };
            let _serving_has_ended = sender.send(ServeEvent::CallEnded(at, done));
        };
        let made = thread::Builder::new().name("attach".to_owned()).stack_size(STACK).spawn(body);
        if let Err(error) = made {
            let failed = Problem::failure(format!("cannot start a thread: {error}"));
            self.on_call_ended(
                path,
                if is_going { CallResult::Detached(Err(failed)) } else { CallResult::Attached(Err(failed)) },
            );
        }
    }

    /// A call has ended.
    pub(super) fn on_call_ended(&mut self, path: &Path, done: CallResult) {
        let Some(volume) = self.volumes.get_mut(path) else { return };
        let mountpoint = volume.config.mountpoint.clone();
        if let Some(calls) = self.calls.get_mut(&mountpoint) {
            *calls -= 1;
        }
        volume.was_tried = true;
        let later = Instant::now() + volume.pause;
        let (shown, is_mounted) = (path.shown(), self.mounted.contains(&mountpoint));
        match done {
            CallResult::Attached(Ok(AttachedRecord { id, limits })) => {
                volume.pause = PAUSE;
                volume.id = id;
                tracing::debug!(volume = %shown.exact(), "{shown} is attached");
                if let Some(limits) = &limits {
                    volume.limits.started_with(limits);
                }
                // The file may have changed meanwhile.
                if volume.has_limits && limits.as_ref() != Some(&volume.config.limits) {
                    volume.limits.tell(&volume.config);
                }
                volume.state = if is_mounted { AttachState::Attached } else { AttachState::Waits };
                if volume.is_going {
                    volume.state = AttachState::Leaves(later);
                    self.queue(path, Instant::now());
                }
                self.queue_below(path);
            }
            CallResult::Detached(Ok(())) if volume.is_going => {
                tracing::info!(volume = %shown.exact(), "{shown}: detached, everything is on {}", volume.config.source.shown());
                self.volumes.remove(path);
                for around in path.ancestors().skip(1).map(Path::to_owned).collect::<Vec<_>>() {
                    if self.volumes.get(&around).is_some_and(|around| around.is_going) {
                        self.queue(&around, Instant::now());
                    }
                }
            }
            // It is in the file again.
            CallResult::Detached(_) if !volume.is_going => {
                volume.state = AttachState::Waits;
                self.queue(path, Instant::now());
            }
            CallResult::Attached(Err(problem)) | CallResult::Detached(Err(problem)) => {
                tracing::error!(volume = %shown.exact(), "{shown}: {problem}");
                volume.pause = (volume.pause * 2).min(PAUSE_MAX);
                volume.state = if volume.is_going { AttachState::Leaves(later) } else { AttachState::Waits };
                self.queue(path, later);
            }
            CallResult::Detached(Ok(())) => {}
        }
    }
}

const fn from(path: &Path) -> (Bound<&Path>, Bound<&Path>) {
    (Bound::Included(path), Bound::Unbounded)
}

/// Attaches it, unless it is there.
fn attach(path: &Path, config: &VolumeConfig) -> Result<AttachedRecord> {
    let none = || Problem::failure("its mountpoint is gone");
    let is_it = |volume: &target::RegisteredVolume| {
        volume.is_attached() && Path::new(&volume.record().mountpoint) == path
    };
    // The record is no evidence of the present state: the volume may have been detached, and be
    // held.
    let mut there = target::running(path.as_os_str()).into_iter().filter(is_it);
    if let Some(there) = there.find(has_a_path) {
        let spec = crate::host::checks::source(&config.source)?.spec;
        if there.record().source == spec {
            return Ok(AttachedRecord { id: Some(there.record().id.clone()), limits: None });
        }
        return Err(Problem::failure(format!("{} is attached there", there.record().source)));
    }
    let (volume, mount) = target::mounted_around(path).ok_or_else(none)?;
    if let Some(there) = elsewhere(config, &volume) {
        let (shown, there) = (path.shown(), there.shown());
        tracing::warn!(volume = %shown.exact(), "{shown} stays attached at {there}, where it was moved to");
        return Ok(AttachedRecord { id: None, limits: None });
    }
    let client = volume.found.client.ok_or_else(none)?;
    let request = AttachRequest {
        path: path_inside(path, &mount.mountpoint)?,
        source: Some(config.source.clone()),
        volume: None,
        from: None,
        options: vec![config.mount_options()],
        mountpoint: mount.mountpoint.to_str().map(str::to_owned),
    };
    let reply = client.attach(&request, Some(PATIENCE));
    let reply = reply.map_err(|error| Problem::failure(error.to_string()))?;
    Ok(AttachedRecord { id: reply.id, limits: Some(config.limits.clone()) })
}

/// Detaches it with all data written, unless it is detached already; at its present place, if it
/// was moved, or a directory above it renamed.
fn detach(path: &Path, config: &VolumeConfig) -> Result<()> {
    let Some((volume, mount)) = target::mounted_around(path) else { return Ok(()) };
    let is_it = |volume: &target::RegisteredVolume| {
        volume.is_attached() && Path::new(&volume.record().mountpoint) == path
    };
    let at_path = || target::running(path.as_os_str()).into_iter().find(is_it).map(|_| path.to_owned());
    let Some(at) = elsewhere(config, &volume).or_else(at_path) else { return Ok(()) };
    let Some(client) = volume.found.client else { return Ok(()) };
    let request = DetachRequest {
        path: path_inside(&at, &mount.mountpoint)?,
        how: UmountKind::Plain,
        volume: None,
        mountpoint: mount.mountpoint.to_str().map(str::to_owned),
    };
    let reply =
        client.detach(&request, Some(PATIENCE)).map_err(|error| Problem::failure(error.to_string()))?;
    if reply.is_held {
        let who = reply.holders.lines().join(", ");
        return Err(Problem::failure(format!("stays attached as long as it is held (EBUSY): {who}")));
    }
    Ok(())
}

/// The place where its store is attached inside the mountpoint of `around` now, by its process.
/// Stores in memory, of which there may be many of one name, are known by their paths only.
fn elsewhere(config: &VolumeConfig, around: &target::RegisteredVolume) -> Option<PathBuf> {
    let spec = crate::host::checks::source(&config.source).ok()?.spec;
    let store = crate::host::checks::identity_of(&spec)?;
    let root = Some(&around.record().id);
    let is_it = |volume: &target::RegisteredVolume| {
        volume.record().source == spec && volume.record().attached_to.as_ref() == root
    };
    let there = target::running(store.as_ref()).into_iter().find(is_it)?;
    let status = there.found.client?.within(PATIENCE).status().ok()?;
    // A volume that was detached and is held is nowhere.
    (status.state != api::State::Detached).then(|| status.mountpoint.into())
}

/// Whether its process reports a path to it. A volume that does not answer is at its old place.
fn has_a_path(volume: &target::RegisteredVolume) -> bool {
    let is_nowhere = |status: api::Status| status.state == api::State::Detached;
    !volume.status().is_ok_and(|status| status.is_some_and(is_nowhere))
}

fn path_inside(path: &Path, mountpoint: &Path) -> Result<String> {
    let inside = path.strip_prefix(mountpoint).ok().and_then(Path::to_str);
    inside
        .map(str::to_owned)
        .ok_or_else(|| Problem::failure("its path is not UTF-8, or not inside its mountpoint"))
}
