//! An attached volume: its record, its control socket, its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sync::Mutex;
use tokio::sync::watch;
use volume::events::Events;
use volume::{DrainReport, Volume, VolumeState};

use super::types::{Attached, Attachments, Mountpoint};
use crate::cli::opts::MountOptions;
use crate::control::api::{
    DetachRequest, Ended, LimitRequest, Limits, Process, Requests, SnapshotsReply, SnapshotsRequest, State,
    Stats, Status, Synced, UmountReply, UmountRequest, UnderWay, WarmReply, WarmRequest, now_ms,
};
use crate::control::{server::ListenerGuard, service::Service};
use crate::daemon::figures;
use crate::daemon::snapshots::snapshots;
use crate::registry::{Record, Registration};
use crate::term::shown::{Name, exact};

impl Attached {
    pub(super) fn new(
        all: &Arc<Attachments>,
        record: Record,
        registration: Option<Registration>,
        (volume, options, given_options): (&Arc<Volume>, &MountOptions, &[String]),
        read_only: bool,
    ) -> Self {
        Self {
            all: Arc::downgrade(all),
            id: record.id,
            source: record.source.as_str().to_owned(),
            path: Mutex::new(record.mountpoint.into()),
            place: Mutex::default(),
            options: options.clone(),
            given_options: given_options.to_vec(),
            volume: Arc::clone(volume),
            read_only,
            started_ms: now_ms(),
            ended: watch::Sender::new(None),
            registration: Mutex::new(registration),
            listener: Mutex::default(),
        }
    }

    /// It is attached now, maybe again.
    pub(super) fn set_place(&self, place: fuse::Attached) {
        *self.place.lock() = Some(place);
    }

    /// Where it was attached last, once it was.
    pub(super) fn place(&self) -> Option<fuse::Attached> {
        self.place.lock().clone()
    }

    /// Its control socket is served.
    pub(super) fn set_listener(&self, listener: ListenerGuard) {
        *self.listener.lock() = Some(listener);
    }

    /// Where it was seen last.
    pub(super) fn known_path(&self) -> PathBuf {
        self.path.lock().clone()
    }

    /// Its number in the tree, once it is attached.
    pub(super) fn number(&self) -> Option<u64> {
        self.place.lock().as_ref().map(fuse::Attached::volume)
    }

    /// Whether a path leads to it.
    pub(super) fn is_seen(&self) -> bool {
        self.place.lock().as_ref().is_some_and(fuse::Attached::is_seen)
    }

    /// Gives it up, if it is in one place at most. Waits for nothing.
    pub(super) fn give_up(&self, tree: &fuse::TreeHandle) {
        match self.place() {
            Some(place) => drop(tree.abort(&place)),
            None => self.volume.abort(),
        }
    }

    /// Takes it away by force from where it was attached, if it is there; returns whether it was.
    pub(super) fn detach_by_force(&self, tree: &fuse::TreeHandle) -> bool {
        self.place().is_some_and(|place| tree.detach_by_force(&place).is_ok())
    }

    pub(super) fn how_it_ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    /// Whether its end is complete: that of a volume that was given up may still be under way.
    pub(super) fn has_returned(&self) -> bool {
        self.volume.report().is_some()
    }

    /// If the volume has ended, waits until that was reported: the thread that served the last
    /// close may be just about to. Only from the control server's blocking threads.
    pub(super) fn wait_told(&self) {
        if self.volume.report().is_some() {
            self.wait_given_up();
        }
    }

    /// Waits until the end of a volume that was given up was reported. Only from the control
    /// server's blocking threads.
    pub(super) fn wait_given_up(&self) {
        let mut ended = self.ended.subscribe();
        let told = async move { ended.wait_for(Option::is_some).await.map(drop) };
        // The sender lives in `self`.
        drop(tokio::runtime::Handle::current().block_on(told));
    }

    /// Waits until it has ended, and that was reported, but not longer than this; returns whether
    /// it has. Only from the control server's blocking threads.
    pub(super) fn wait_ended_until(&self, until: Instant) -> bool {
        let mut ended = self.ended.subscribe();
        let told = async move { ended.wait_for(Option::is_some).await.map(drop) };
        let within = tokio::time::timeout_at(until.into(), told);
        tokio::runtime::Handle::current().block_on(within).is_ok()
    }

    /// Where it is; where it was last, if it is nowhere. Directories above it may have been
    /// renamed.
    pub(super) fn path(&self) -> PathBuf {
        let known = self.known_path();
        let Some((all, place)) = self.all.upgrade().zip(self.place()) else { return known };
        let at = |mountpoint: Mountpoint| mountpoint.tree.place_of(&place).map(|path| mountpoint.join(&path));
        let places: Vec<PathBuf> = all.mountpoints().into_iter().filter_map(at).collect();
        if places.contains(&known) {
            return known;
        }
        let Some(now) = places.into_iter().next() else { return known };
        self.set_path(&all, &now);
        now
    }

    pub(super) fn sync_data(&self, by: Option<u32>) -> Result<(), String> {
        if matches!(self.volume.status().state, VolumeState::Released | VolumeState::Failed) {
            return Ok(());
        }
        let synced = by.map_or_else(|| self.volume.sync_all(), |pid| self.volume.sync_for(pid));
        synced.map_err(|error| error.to_string())
    }

    /// Records its new place, where look-ups find it from now on; not if it has ended.
    fn set_path(&self, all: &Attachments, path: &Path) {
        // The lock is kept, so that the record and the list agree.
        let mut registration = self.registration.lock();
        let Some(registration) = registration.as_mut() else { return };
        all.list.lock().change_path(self, || path.clone_into(&mut self.path.lock()));
        if let Err(problem) = registration.set_mountpoint(path) {
            tracing::error!(volume = self.volume.name(), %problem, "cannot record the path that the volume was moved to");
        }
    }

    /// It never came to be.
    pub(super) fn withdraw(&self) {
        self.leave();
        if let Some(registration) = self.registration.lock().take() {
            registration.withdraw();
        }
    }

    fn leave(&self) {
        *self.listener.lock() = None;
        if let Some(all) = self.all.upgrade() {
            all.list.lock().remove(self);
        }
    }

    /// The volume has ended, for any reason; reported once.
    pub(super) fn finish(&self, report: &DrainReport) {
        let Some(mut registration) = self.registration.lock().take() else { return };
        let ended = figures::ended_with(report);
        if let Some(all) = self.all.upgrade() {
            let switching = self.volume.status().switching;
            let mut drains = all.drains.lock();
            *drains = (drains.0 + switching.drains, drains.1 + switching.drain_time);
        }
        if ended.state != State::Released {
            let path = self.path.lock().clone();
            if let Some(all) = self.all.upgrade() {
                all.failed.lock().push((exact(path), ended.clone()));
            }
        }
        if let Err(problem) = registration.finish(ended.clone()) {
            tracing::error!(volume = self.volume.name(), %problem, "cannot record how the volume ended");
        }
        figures::emit_end(&self.volume, &ended);
        self.ended.send_replace(Some(ended));
        self.leave();
    }

    /// It was given up: reports what is known by now, if its end is not complete.
    pub(super) fn tell_given_up(&self) {
        self.finish(&self.volume.report().unwrap_or_else(|| self.volume.abort_report()));
    }

    fn state(&self, volume: &volume::Status) -> State {
        figures::state_of(&self.volume, volume, || self.number().is_none() || self.is_seen())
    }
}

impl Attached {
    /// Its figures, with those of the process and the privileges of its mountpoint.
    pub(super) fn status_beside(&self, process: Process, privileges: Vec<Name>) -> Status {
        let volume = self.volume.status();
        let (id, source) = (self.id.clone(), self.source.clone().into());
        let of_volume = Status { id, source, ..Status::of_volume(&self.volume, &volume) };
        let Some(all) = self.all.upgrade() else { return of_volume };
        Status {
            mountpoint: Name::of(self.path()),
            attached_to: Some(all.root.id.clone()),
            state: self.state(&volume),
            read_only: self.read_only,
            privileges,
            started_ms: self.started_ms,
            // These are the connection's, and told with its own volume.
            requests: Requests::default(),
            process,
            ..figures::with_mount(of_volume, &all.root, &all.session)
        }
    }
}

impl Service for Attached {
    fn status(&self) -> Status {
        let all = self.all.upgrade();
        let (threads, privileges) =
            all.map_or_else(Default::default, |all| (all.session.threads(), all.root.privileges()));
        self.status_beside(crate::host::process::figures(threads as u64), privileges)
    }

    fn sync(&self, by: Option<u32>) -> Result<Synced, String> {
        self.sync_data(by)?;
        Ok(Synced { id: self.id.clone(), left_out: Vec::new() })
    }

    fn warm(&self, request: WarmRequest) -> Result<WarmReply, String> {
        figures::warm(&self.volume, &request)
    }

    fn stats(&self) -> Stats {
        figures::stats(&self.volume, self.id.clone(), Name::of(self.path()))
    }

    fn under_way(&self) -> UnderWay {
        let Some(all) = self.all.upgrade() else {
            return UnderWay { id: self.id.clone(), requests: Vec::new() };
        };
        let (own, at) = (self.number(), Name::of(self.path()));
        figures::under_way(self.id.clone(), &all.session, |number| (own == Some(number)).then(|| at.clone()))
    }

    fn limits(&self) -> Limits {
        figures::limits(&self.volume)
    }

    fn limit(&self, request: LimitRequest) -> Result<Limits, String> {
        let all = self.all.upgrade();
        let _change = all.as_ref().map(|all| all.changes.pass());
        figures::limit(&self.volume, &request)
    }

    fn events(&self) -> Arc<Events> {
        Arc::clone(self.volume.events())
    }

    fn umount(&self, request: UmountRequest) -> Result<UmountReply, String> {
        let all = self.all.upgrade().ok_or("its mount process is ending")?;
        let _change = all.changes.pass();
        let shown = self.path();
        let mountpoint =
            all.mountpoints().into_iter().filter(|mountpoint| shown.starts_with(&mountpoint.path));
        let mountpoint = mountpoint
            .max_by_key(|mountpoint| mountpoint.path.as_os_str().len())
            .unwrap_or_else(|| all.first());
        let path = exact(shown.strip_prefix(&mountpoint.path).unwrap_or(&shown));
        let volume = Some(self.id.clone());
        let request =
            DetachRequest { path, how: request.how, volume, mountpoint: Some(exact(&mountpoint.path)) };
        let reply = all.detach(&request)?;
        Ok(UmountReply { ended: reply.ended, holders: reply.holders })
    }

    fn snapshots(&self, request: SnapshotsRequest) -> Result<SnapshotsReply, String> {
        let all = self.all.upgrade();
        let _change = all.as_ref().map(|all| all.changes.pass());
        snapshots(&self.volume, request)
    }

    fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }
}
