//! A mounted volume, as its control socket and its supervisor see it.
//!
//! # Access
//! | field | protected by |
//! |---|---|
//! | `facts`, `volume`, `session`, `attachments` | immutable |
//! | `ended` | tokio's watch channel; written once, by the supervisor |
//! | `gone` | atomic, only grows (P1) |
//!
//! P1: `gone` is stored before the kernel learns that its file system may go, and loaded after the
//! mount table was read: a row that another mount with the old number has put there is not taken
//! for this one.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use fuse::{SessionView, Transport};
use store::UnderWay;
use sync::atomic::{AtomicU32, Ordering};
use tokio::sync::watch;
use volume::events::Events;
use volume::{DrainReport, LifeState, Volume, WbStatus};

use crate::attach::Attachments;
use crate::control::api::{
    AttachReply, AttachRequest, CGROUPS_NAMED_MAX, Cgroup, CgroupLimits, CloneReply, CloneRequest,
    DetachReply, DetachRequest, Ended, FILES_NAMED_MAX, FileError, How, LeaveReply, LeaveRequest,
    LimitRequest, Limits, MoveReply, MoveRequest, Requests, Stalled, State, Status, Synced, UmountReply,
    UmountRequest, Unwritten, now_ms,
};
use crate::control::server::Service;
use crate::holders::Holders;
use crate::kernel_side::{Ask, ask};
use crate::mountinfo::{self, Device, Mount, MountTable};
use crate::process;
use crate::shown::{Name, Words};
use crate::supervisor::Event;
use crate::unmount::{self, Outcome};
use crate::volume_id::VolumeId;

/// The most volumes in one answer.
const VOLUMES_AT_ONCE: usize = 512;

/// The part that does not change while a volume is mounted.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The volume's id.
    pub id: VolumeId,
    /// The store.
    pub source: String,
    /// The kernel's mount.
    pub mount: Mount,
    /// Its number that is never used again, where the kernel has such.
    pub unique_id: Option<u64>,
    /// Why the mount is plain `fuse`, if it is.
    pub type_reason: Option<String>,
    /// `write-through` or `kernel-writeback`.
    pub mode: &'static str,
    /// Whether it was mounted read-only.
    pub read_only: bool,
    /// Milliseconds since the epoch.
    pub started_ms: u64,
    /// How long an unmount goes on without any progress.
    pub drain_timeout: Duration,
}

/// A mounted volume.
#[derive(Debug)]
pub struct Live {
    facts: Facts,
    volume: Arc<Volume>,
    session: SessionView,
    attachments: Arc<Attachments>,
    events: Sender<Event>,
    ended: watch::Sender<Option<Ended>>,
    gone: Arc<Gone>,
}

/// Whether the kernel's file system is gone, so that its device number may be another's.
#[derive(Debug, Default)]
pub struct Gone(AtomicU32);

/// How much of the kernel's side is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Nothing: the device number is ours.
    No,
    /// The connection has ended: its mount may still be there, or its number be another's.
    Aborted,
    /// The file system is gone.
    Gone,
}

impl Gone {
    /// The kernel has let go of the file system, or is about to; or has aborted the connection.
    pub fn set(&self, over: Over) {
        // ORDERING: Release, P1 with the Acquire in `get`: the next step (the answer to DESTROY)
        // lets the number go to another mount. A thread that sees that mount in the table has to
        // see this store too.
        self.0.fetch_max(over as u32, Ordering::Release);
    }

    fn get(&self) -> Over {
        // ORDERING: Acquire, P1, see `set`.
        match self.0.load(Ordering::Acquire) {
            0 => Over::No,
            1 => Over::Aborted,
            _ => Over::Gone,
        }
    }
}

impl Facts {
    /// The mount's device number.
    #[must_use]
    pub const fn device(&self) -> Device {
        Device::of(&self.mount)
    }

    /// Which of `suid` and `dev` at least one of the file system's mounts allows now.
    #[must_use]
    pub fn privileges(&self) -> Vec<crate::shown::Name> {
        let table = MountTable::read();
        mountinfo::privileges(table.of_device(self.device()).filter(|mount| mountinfo::is_ours(mount)))
    }

    /// The mount to ask the kernel about: the own one, or another of the file system's where that
    /// was unmounted, a whole one if there is one.
    #[must_use]
    pub fn mount_now(&self) -> Option<Mount> {
        if self.mount.is_present() {
            return Some(self.mount.clone());
        }
        let table = MountTable::read();
        let all = || table.of_device(self.device()).filter(|mount| mountinfo::is_ours(mount));
        all().find(|mount| mount.root == Path::new("/")).or_else(|| all().next()).cloned()
    }
}

impl Live {
    /// A volume that is served at a mount.
    #[must_use]
    pub fn new(
        facts: Facts,
        volume: Arc<Volume>,
        attachments: Arc<Attachments>,
        events: Sender<Event>,
        gone: Arc<Gone>,
    ) -> Self {
        let session = attachments.session().clone();
        Self { facts, volume, session, attachments, events, ended: watch::Sender::new(None), gone }
    }

    /// The part that does not change.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The volume.
    #[must_use]
    pub const fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The volumes that are attached to its mountpoint.
    #[must_use]
    pub const fn attachments(&self) -> &Arc<Attachments> {
        &self.attachments
    }

    /// Reports to all waiting clients how the volume ended.
    pub fn end(&self, ended: Ended) {
        // The volume has emitted that event itself, unless it was given up.
        let given_up = || ended.error.as_ref().map_or("not everything was written", Words::as_str).to_owned();
        self.volume.events().end((ended.state != State::Released).then(given_up));
        self.ended.send_replace(Some(ended));
    }

    /// The mounts of this namespace through which paths lead to the volume.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let ours = &self.facts.mount;
        let table = MountTable::read();
        let of_device = table.of_device(Device::of(ours));
        let mounts =
            of_device.filter(|m| m.fstype == ours.fstype && m.source == ours.source).cloned().collect();
        // Looked at last: while nothing had ended the table's rows were ours.
        match self.gone.get() {
            Over::No => mounts,
            Over::Aborted => mounts.into_iter().filter(|mount| self.is_the_first(mount)).collect(),
            Over::Gone => Vec::new(),
        }
    }

    /// Whether sync(2) and syncfs(2) were seen to come here.
    #[must_use]
    pub fn passes_syncfs(&self) -> bool {
        self.session.has_seen_syncfs()
    }

    /// Whether nothing can be changed, which `mount -o remount` may have changed.
    fn is_read_only(&self) -> bool {
        self.mounts().first().map_or(self.facts.read_only, |mount| mount.is_read_only)
    }

    /// The mount to ask the kernel about.
    #[must_use]
    pub fn mount_now(&self) -> Mount {
        self.facts.mount_now().unwrap_or_else(|| self.facts.mount.clone())
    }

    /// Whether this is the mount that was made at the start, by the number that is never used
    /// again.
    fn is_the_first(&self, mount: &Mount) -> bool {
        let id = unmount::unique_id(&mount.mountpoint);
        mount.id == self.facts.mount.id && id == self.facts.unique_id
    }

    fn state(&self, volume: &volume::Status) -> State {
        state_of(&self.volume, volume, || !self.mounts().is_empty())
    }

    fn umount_unless_held(&self) -> Result<UmountReply, String> {
        self.volume.sync_all().map_err(|error| error.to_string())?;
        Ok(match ask(Ask::Umount, &self.mount_now()).map_err(|problem| problem.to_string())? {
            Outcome::Gone => UmountReply { ended: Some(self.wait_ended()), holders: Holders::default() },
            Outcome::Held(holders) => UmountReply { ended: None, holders },
        })
    }

    fn requests(&self) -> Requests {
        let stats = self.session.stats();
        Requests {
            by_kind: stats.requests.iter().map(|(op, n)| (op.name().to_ascii_lowercase(), *n)).collect(),
            errors: stats.errors,
            panics: stats.panics,
            unknown: stats.unknown,
            under_way: self.session.under_way() as u64,
        }
    }

    /// Blocks until the supervisor has set how the volume ended. Only from the control server's
    /// blocking threads.
    fn wait_ended(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        let wait = async move { ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone()) };
        // The sender lives in `self`, so that the wait ends with a value.
        tokio::runtime::Handle::current()
            .block_on(wait)
            .unwrap_or_else(|| ended_with(&DrainReport::default()))
    }
}

impl Service for Live {
    fn status(&self) -> Status {
        let volume = self.volume.status();
        let facts = &self.facts;
        let (transport, transport_reason) = transport(&self.session);
        let (drains, drain_time) = self.attachments().drains();
        let of_volume = Status::of_volume(&self.volume, &volume);
        Status {
            id: facts.id.clone(),
            source: facts.source.clone().into(),
            mountpoint: Name::of(&facts.mount.mountpoint),
            clones: self.attachments.clones(),
            device: Device::of(&facts.mount),
            state: self.state(&volume),
            mount_type: mountinfo::kind(&facts.mount).into(),
            mount_type_reason: facts.type_reason.clone().map(Words::from),
            syncfs: Some(self.session.has_seen_syncfs()),
            syncfs_callers: Some(self.session.knows_who_syncs()),
            transport: transport.into(),
            transport_reason: transport_reason.map(Words::from),
            mode: facts.mode.into(),
            read_only: self.is_read_only(),
            privileges: facts.privileges(),
            started_ms: facts.started_ms,
            requests: self.requests(),
            process: process::figures(self.session.threads() as u64),
            drains: of_volume.drains + drains,
            drain_us: of_volume.drain_us + micros(drain_time),
            ..of_volume
        }
    }

    fn volumes(&self, after: Option<&VolumeId>) -> Vec<Status> {
        self.attachments.statuses(after, VOLUMES_AT_ONCE)
    }

    fn sync(&self, by: Option<u32>) -> Result<Synced, String> {
        let left_out = if let Some(pid) = by {
            self.attachments.sync_for(pid)?
        } else {
            let synced = self.volume.sync_all().map_err(|error| error.to_string());
            synced.and(self.attachments.sync_all())?;
            Vec::new()
        };
        Ok(Synced { id: self.facts.id.clone(), left_out: left_out.into_iter().map(Name::from).collect() })
    }

    fn limits(&self) -> Limits {
        Limits { limits: self.volume.limits().into_iter().map(cgroup_limits).collect() }
    }

    fn limit(&self, request: LimitRequest) -> Result<Limits, String> {
        limit(&self.volume, &request)?;
        Ok(self.limits())
    }

    fn attach(&self, request: AttachRequest) -> Result<AttachReply, String> {
        self.attachments.attach(&request)
    }

    fn detach(&self, request: DetachRequest) -> Result<DetachReply, String> {
        self.attachments.detach(&request)
    }

    fn move_to(&self, request: MoveRequest) -> Result<MoveReply, String> {
        self.attachments.move_to(&request)
    }

    fn clone_to(&self, request: CloneRequest) -> Result<CloneReply, String> {
        self.attachments.clone_to(&request)
    }

    fn leave(&self, request: LeaveRequest) -> Result<LeaveReply, String> {
        if request.how != How::Force {
            self.volume.sync_all().map_err(|error| error.to_string())?;
        }
        self.attachments.leave(&request)
    }

    fn umount(&self, request: UmountRequest) -> Result<UmountReply, String> {
        match request.how {
            How::Plain => self.umount_unless_held(),
            How::Lazy => {
                let reply = self.umount_unless_held()?;
                if reply.ended.is_none() {
                    ask(Ask::Detach, &self.mount_now()).map_err(|problem| problem.to_string())?;
                    // Notices that no path is left.
                    self.state(&self.volume.status());
                }
                Ok(reply)
            }
            How::Force => {
                self.events
                    .send(Event::GiveUp("by force".to_owned()))
                    .map_err(|_| "the volume has ended already".to_owned())?;
                Ok(UmountReply { ended: Some(self.wait_ended()), holders: Holders::default() })
            }
        }
    }

    fn events(&self) -> Arc<Events> {
        Arc::clone(self.volume.events())
    }

    fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }
}

impl Status {
    /// The figures of the volume itself; the rest is that of no mount.
    #[must_use]
    pub fn of_volume(of: &Volume, volume: &volume::Status) -> Self {
        Self {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            dirty_bytes: volume.dirty_bytes,
            to_write_bytes: volume.dirty_bytes - volume.writeback_bytes,
            writeback_bytes: volume.writeback_bytes,
            dirty_files: volume.dirty_files,
            cached_bytes: volume.cached_bytes,
            cache_bytes_max: volume.cache_bytes_max,
            written_bytes: volume.bytes_written_back,
            nodes: volume.nodes,
            open_files: volume.open_files,
            openers: volume.openers.clone(),
            writeback_errors: volume.writeback_errors,
            writer_waits: volume.writer_waits,
            stalls: volume.stalls,
            stalled: volume.stalled.as_ref().map(stalled),
            failing_files: volume.failing.len() as u64,
            failing_bytes: volume.failing.iter().map(|file| file.bytes).sum(),
            errors: volume.failing.iter().take(FILES_NAMED_MAX).map(file_error).collect(),
            cgroup_tree: of.tenants().tree().map_or_else(|| "off".into(), |tree| tree.to_string().into()),
            switches_in_flight: volume.switching.switches_in_flight,
            switched_inodes: volume.switching.switched,
            drains: volume.switching.drains,
            drain_us: micros(volume.switching.drain_time),
            cgroups: cgroups(&volume.switching.wbs),
            limits: of.limits().into_iter().take(CGROUPS_NAMED_MAX).map(cgroup_limits).collect(),
            ..Self::default()
        }
    }
}

/// Sets limits of a cgroup in one volume.
///
/// # Errors
/// The words that cannot be parsed.
pub fn limit(volume: &Volume, request: &LimitRequest) -> Result<(), String> {
    let cgroup = request.cgroup.parse().map_err(|error: volume::LimitError| error.to_string())?;
    let change = request.limits.parse().map_err(|error: volume::LimitError| error.to_string())?;
    volume.limit(&cgroup, &change);
    Ok(())
}

/// How requests come, and why not over io_uring.
#[must_use]
pub fn transport(session: &SessionView) -> (String, Option<String>) {
    match session.transport() {
        Transport::Uring => ("io_uring".to_owned(), None),
        Transport::Readers { reason } => ("dev-fuse".to_owned(), Some(reason)),
    }
}

/// How a volume ended, from its own report.
#[must_use]
pub fn ended_with(report: &DrainReport) -> Ended {
    Ended {
        state: if report.is_complete() { State::Released } else { State::Failed },
        ended_ms: now_ms(),
        unwritten: unwritten(&report.unwritten),
        error: report.sync_error.as_ref().map(|error| error.to_string().into()),
        switch_drain_us: micros(report.switch_drain),
        switched_inodes: report.switched,
    }
}

/// A call that the store has not answered in time.
#[must_use]
pub fn stalled(call: &UnderWay) -> Stalled {
    let for_ms = u64::try_from(call.since.elapsed().as_millis()).unwrap_or(u64::MAX);
    Stalled { call: call.call.into(), for_ms }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Those with most inodes; one without any may still have other figures.
fn cgroups(wbs: &[WbStatus]) -> Vec<Cgroup> {
    let mut wbs: Vec<&WbStatus> = wbs.iter().collect();
    wbs.sort_by_key(|wb| (std::cmp::Reverse(wb.owned), &wb.path));
    let shown = wbs.into_iter().take(CGROUPS_NAMED_MAX).map(|wb| Cgroup {
        path: Name::of(&wb.path),
        removed: wb.is_dying,
        owned_inodes: wb.owned as u64,
        dirty_bytes: wb.dirty,
        to_write_bytes: wb.dirty,
        writeback_bytes: wb.writeback,
        switches_in_flight: wb.switches_in_flight as u64,
        switched_inodes: wb.switched,
    });
    shown.collect()
}

/// The data that was not written, for people and programs.
#[must_use]
pub fn unwritten(files: &[volume::Unwritten]) -> Unwritten {
    Unwritten {
        bytes: files.iter().map(|file| file.bytes).sum(),
        files: files.len() as u64,
        named: files.iter().take(FILES_NAMED_MAX).map(file_error).collect(),
    }
}

/// The state of `volume`, whose figures are `figures`. Informs the volume whether it has a path.
pub(crate) fn state_of(volume: &Volume, figures: &volume::Status, has_a_path: impl Fn() -> bool) -> State {
    match figures.state {
        LifeState::Active | LifeState::Detached | LifeState::Draining if figures.stalled.is_some() => {
            State::Stalled
        }
        LifeState::Active | LifeState::Detached if has_a_path() => {
            volume.set_attached();
            State::Active
        }
        LifeState::Active | LifeState::Detached => {
            volume.set_detached();
            State::Detached
        }
        LifeState::Draining => State::Draining,
        LifeState::Released => State::Released,
        LifeState::Failed => State::Failed,
    }
}

pub(crate) fn cgroup_limits(of: volume::CgroupLimits) -> CgroupLimits {
    let number = |limit: Option<std::num::NonZeroU64>| limit.map(std::num::NonZeroU64::get);
    CgroupLimits {
        cgroup: of.cgroup.to_string().into(),
        rbps: number(of.limits.rbps),
        wbps: number(of.limits.wbps),
        riops: number(of.limits.riops),
        wiops: number(of.limits.wiops),
        dirty_bytes_max: of.dirty_bytes_max,
        sync_isolation: of.sync_isolation,
        owed_bytes: of.owed_bytes,
    }
}

fn file_error(file: &volume::Unwritten) -> FileError {
    let path = file.path.as_ref().map(Name::of);
    FileError {
        file: path.unwrap_or_else(|| format!("inode {}", file.node).into()),
        bytes: file.bytes,
        error: file.error.map_or_else(Words::default, |kind| kind.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_cgroups_those_with_most_inodes_are_told_of() {
        let wb = |number: usize| WbStatus {
            owner: volume::CgroupId::ROOT,
            path: format!("/{number}").into(),
            is_dying: false,
            owned: number,
            dirty: 0,
            writeback: 0,
            switches_in_flight: 0,
            switched: 0,
        };
        let all: Vec<WbStatus> = (0..CGROUPS_NAMED_MAX + 7).map(wb).collect();
        let shown = cgroups(&all);
        assert_eq!(shown.len(), 1000);
        assert_eq!(shown[0].path, format!("/{}", CGROUPS_NAMED_MAX + 6));
        assert_eq!(shown[999].path, "/7");
    }
}
