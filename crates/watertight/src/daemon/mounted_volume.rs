//! A mounted volume, as its control socket and its supervisor see it.
//!
//! # Access
//! | field | protected by |
//! |---|---|
//! | `info`, `volume`, `attachments`, `upgrader` | immutable |
//! | `ended` | tokio's watch channel; written once, by the supervisor |
//! | `connection` | atomic, only grows (module `connection`) |
//! | `limiting` | held while limits are set and given to the keeper, which has the last ones so |

use std::sync::Arc;
use std::sync::mpsc::Sender;

use sync::Mutex;
use tokio::sync::watch;
use volume::events::Events;
use volume::{DrainReport, Volume};

use super::attachments::Attachments;
use super::connection::{AtomicConnectionState, ConnectionState};
use super::event::SupervisorEvent;
use super::figures::{self, emit_end, ended_with, limit, limits, micros, state_of, with_mount};
use super::recovery::serve;
use super::snapshots::snapshots;
use super::upgrade::prepare;
use super::upgrade::upgrader::{Handed, Upgrader};
use super::volume_info::VolumeInfo;
use crate::control::api::{
    AttachReply, AttachRequest, CloneReply, CloneRequest, DetachReply, DetachRequest, Ended, LeaveReply,
    LeaveRequest, LimitRequest, Limits, MoveReply, MoveRequest, RecoveryState, RecoveryStatus, Requests,
    SnapshotsReply, SnapshotsRequest, State, Stats, Status, Synced, UmountKind, UmountReply, UmountRequest,
    UnderWay, UpgradeReply, UpgradeRequest, WarmReply, WarmRequest,
};
use crate::control::service::Service;
use crate::control::volume_id::VolumeId;
use crate::host::holders::Holders;
use crate::host::mount_agent::{AgentRequest, call};
use crate::host::mountinfo::{Device, Mount, MountTable};
use crate::host::process;
use crate::host::unmount::{self, Outcome};
use crate::term::shown::Name;

/// The most volumes in one answer.
const VOLUMES_AT_ONCE: usize = 512;

/// A mounted volume.
#[derive(Debug)]
pub struct MountedVolume {
    /// What does not change.
    pub info: VolumeInfo,
    /// The volume.
    pub volume: Arc<Volume>,
    /// The volumes that are attached to its mountpoint.
    pub attachments: Arc<Attachments>,
    /// The means to hand it over to another program.
    pub upgrader: Upgrader,
    events: Sender<SupervisorEvent>,
    ended: watch::Sender<Option<Ended>>,
    connection: Arc<AtomicConnectionState>,
    limiting: Mutex<()>,
}

impl MountedVolume {
    /// A volume that is served at a mount.
    #[must_use]
    pub fn new(
        info: VolumeInfo,
        volume: Arc<Volume>,
        attachments: Arc<Attachments>,
        events: Sender<SupervisorEvent>,
        connection: Arc<AtomicConnectionState>,
        upgrader: Upgrader,
    ) -> Self {
        let (ended, limiting) = (watch::Sender::new(None), Mutex::new(()));
        Self { info, volume, attachments, upgrader, events, ended, connection, limiting }
    }

    /// Reports to all waiting clients how the volume ended.
    pub fn end(&self, ended: Ended) {
        emit_end(&self.volume, &ended);
        self.ended.send_replace(Some(ended));
    }

    /// The mounts of this namespace through which paths lead to the volume.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let ours = &self.info.mount;
        let table = MountTable::read();
        let of_device = table.of_device(Device::of(ours));
        let mounts =
            of_device.filter(|m| m.fstype == ours.fstype && m.source == ours.source).cloned().collect();
        // Looked at last: while nothing had ended the table's rows were ours.
        match self.connection.get() {
            ConnectionState::Connected => mounts,
            ConnectionState::Aborted => mounts.into_iter().filter(|mount| self.is_the_first(mount)).collect(),
            ConnectionState::Unmounted => Vec::new(),
        }
    }

    /// Whether nothing can be changed, which `mount -o remount` may have changed.
    fn is_read_only(&self) -> bool {
        self.mounts().first().map_or(self.info.read_only, |mount| mount.is_read_only)
    }

    /// What is handed over to another program.
    pub(crate) fn handed(&self) -> Handed<'_> {
        let Self { info, volume, attachments, upgrader, .. } = self;
        Handed { info, volume, attachments, session: &attachments.session, upgrader }
    }

    /// The mount to ask the kernel about.
    #[must_use]
    pub fn mount_now(&self) -> Mount {
        self.info.mount_now().unwrap_or_else(|| self.info.mount.clone())
    }

    /// Whether this is the mount that was made at the start, by the number that is never used
    /// again.
    fn is_the_first(&self, mount: &Mount) -> bool {
        let id = unmount::unique_id(&mount.mountpoint);
        mount.id == self.info.mount.id && id == self.info.unique_id
    }

    fn state(&self, volume: &volume::Status) -> State {
        state_of(&self.volume, volume, || !self.mounts().is_empty())
    }

    fn refuse_if_kept(&self, what: &str) -> Result<(), String> {
        match self.volume.recovery() {
            Some(_) => Err(format!("{what}: it was mounted with recover=on, which has one volume only yet")),
            None => Ok(()),
        }
    }

    fn recovery(&self) -> RecoveryStatus {
        let Some(recovery) = self.volume.recovery() else { return RecoveryStatus::default() };
        let state = match (recovery.journal.is_complete(), recovery.link.is_kept()) {
            (true, true) => RecoveryState::On,
            (false, _) => RecoveryState::Incomplete,
            (true, false) => RecoveryState::NoKeeper,
        };
        RecoveryStatus { state, deaths: recovery.journal.deaths(), not_held: self.volume.not_held() }
    }

    fn umount_unless_held(&self) -> Result<UmountReply, String> {
        let change = self.upgrader.changes.pass();
        self.volume.sync_all().map_err(|error| error.to_string())?;
        let outcome = call(AgentRequest::Umount, &self.mount_now()).map_err(|problem| problem.to_string())?;
        // The end comes from the supervisor, and an upgrade that it was asked for first waits for the change.
        drop(change);
        Ok(match outcome {
            Outcome::Gone => UmountReply { ended: Some(self.wait_ended()), holders: Holders::default() },
            Outcome::Held(holders) => UmountReply { ended: None, holders },
        })
    }

    fn requests(&self) -> Requests {
        let session = &self.attachments.session;
        let stats = session.stats();
        Requests {
            by_kind: stats.requests.iter().map(|(op, n)| (op.name().to_ascii_lowercase(), *n)).collect(),
            errors: stats.errors,
            panics: stats.panics,
            unknown: stats.unknown,
            under_way: session.under_way() as u64,
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

impl Service for MountedVolume {
    fn status(&self) -> Status {
        let volume = self.volume.status();
        let info = &self.info;
        let session = &self.attachments.session;
        let (drains, drain_time) = *self.attachments.drains.lock();
        let of_volume = with_mount(Status::of_volume(&self.volume, &volume), info, session);
        Status {
            id: info.id.clone(),
            source: info.source.clone().into(),
            mountpoint: Name::of(&info.mount.mountpoint),
            clones: self.attachments.clones(),
            state: self.state(&volume),
            read_only: self.is_read_only(),
            privileges: info.privileges(),
            started_ms: info.started_ms,
            requests: self.requests(),
            process: process::figures(session.threads() as u64),
            upgrades: self.upgrader.past(),
            recovery: self.recovery(),
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
        Ok(Synced { id: self.info.id.clone(), left_out: left_out.into_iter().map(Name::from).collect() })
    }

    fn warm(&self, request: WarmRequest) -> Result<WarmReply, String> {
        figures::warm(&self.volume, &request)
    }

    fn stats(&self) -> Stats {
        figures::stats(&self.volume, self.info.id.clone(), Name::of(&self.info.mount.mountpoint))
    }

    fn under_way(&self) -> UnderWay {
        let own = Name::of(&self.info.mount.mountpoint);
        figures::under_way(self.info.id.clone(), &self.attachments.session, |number| match number {
            0 => Some(own.clone()),
            number => self.attachments.mountpoint_of(number),
        })
    }

    fn limits(&self) -> Limits {
        limits(&self.volume)
    }

    fn limit(&self, request: LimitRequest) -> Result<Limits, String> {
        let _change = self.upgrader.changes.pass();
        let _one = self.limiting.lock();
        let limits = limit(&self.volume, &request)?;
        // The server that follows has it from the keeper.
        match serve::give(self.handed(), 0) {
            Err(why) if self.recovery().state == RecoveryState::On => {
                Err(format!("it is set, but not for a server that follows if this one dies: {why}"))
            }
            _ => Ok(limits),
        }
    }

    fn upgrade(&self, request: UpgradeRequest) -> Result<UpgradeReply, String> {
        prepare::request(self.handed(), &request, &self.events)
    }

    fn attach(&self, request: AttachRequest) -> Result<AttachReply, String> {
        self.refuse_if_kept("a volume cannot be attached inside it")?;
        let _change = self.upgrader.changes.pass();
        self.attachments.attach(&request)
    }

    fn detach(&self, request: DetachRequest) -> Result<DetachReply, String> {
        let _change = self.upgrader.changes.pass();
        self.attachments.detach(&request)
    }

    fn move_to(&self, request: MoveRequest) -> Result<MoveReply, String> {
        let _change = self.upgrader.changes.pass();
        self.attachments.move_to(&request)
    }

    fn clone_to(&self, request: CloneRequest) -> Result<CloneReply, String> {
        self.refuse_if_kept("it cannot be cloned")?;
        let _change = self.upgrader.changes.pass();
        self.attachments.clone_to(&request)
    }

    fn leave(&self, request: LeaveRequest) -> Result<LeaveReply, String> {
        let _change = self.upgrader.changes.pass();
        if request.how != UmountKind::Force {
            self.volume.sync_all().map_err(|error| error.to_string())?;
        }
        self.attachments.leave(&request)
    }

    fn snapshots(&self, request: SnapshotsRequest) -> Result<SnapshotsReply, String> {
        let _change = self.upgrader.changes.pass();
        snapshots(&self.volume, request)
    }

    fn umount(&self, request: UmountRequest) -> Result<UmountReply, String> {
        match request.how {
            UmountKind::Plain => self.umount_unless_held(),
            UmountKind::Lazy => {
                let reply = self.umount_unless_held()?;
                if reply.ended.is_none() {
                    call(AgentRequest::Detach, &self.mount_now()).map_err(|problem| problem.to_string())?;
                    // Notices that no path is left.
                    self.state(&self.volume.status());
                }
                Ok(reply)
            }
            UmountKind::Force => {
                self.events
                    .send(SupervisorEvent::GiveUp("by force".to_owned()))
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
