//! Volumes that are attached to directories of this process's mountpoint.
//!
//! Each has an id, a record and a control socket of its own, so that verbs (`status`, `wait`,
//! `sync`) find it as any other volume; the control server's one thread serves all sockets.
//!
//! # The end of an attached volume, in this order
//! Its data is on the store, the store is free; the record says how it ended; clients that wait at
//! the control socket get their answer; the socket goes. The call that detached it returns after
//! that.
//!
//! # Several mountpoints
//! A second mountpoint shows a clone of the namespace (module `clones`). A `Mountpoint` is one
//! mountpoint: paths in requests begin there.
//!
//! # Lock order
//! `Attached::registration`, then `Attachments::list`, then `Attached::path`. The list of clones
//! and `Attached::listener` are leaves.

mod again;
mod attached;
mod clones;
mod force;
pub(crate) mod handover;
mod list;
mod types;

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use fuse::{Detach, SessionView, TreeError, TreeHandle};
use volume::events::Life;
use volume::{DrainReport, Tenants, Volume};

use crate::cli::opts::{self, MountOptions};
use crate::control::api::{
    AttachReply, AttachRequest, DetachReply, DetachRequest, Ended, MoveReply, MoveRequest, Status, UmountKind,
};
use crate::control::server::{ListenerGuard, Server};
use crate::control::volume_id::VolumeId;
use crate::daemon::change_gate::ChangeGate;
use crate::daemon::store;
use crate::daemon::volume_info::{VolumeInfo, recorded_journal};
use crate::host::checks;
use crate::host::holders::{self, Holders};
use crate::host::mountinfo::MountTable;
use crate::registry::nested::check_alone;
use crate::registry::{self, Record, RuntimeDir};
use crate::term::problem::Problem;
use crate::term::shown::{Name, Show as _, exact};

use force::unless_given_up;
pub use types::{Attached, Attachments};
use types::{CLOSING, Mountpoint};

/// The part of all descriptors that is left to volumes that are attached already.
const DESCRIPTORS_LEFT: u64 = 16;
/// Files and cgroups that are named in an answer about many volumes, after which it ends.
const LINES_MAX: usize = 10_000;

impl Attachments {
    /// None so far.
    pub(crate) fn new(
        tree: TreeHandle,
        session: SessionView,
        root: VolumeInfo,
        runtime_dir: RuntimeDir,
        tenants: Arc<Tenants>,
        changes: Arc<ChangeGate>,
    ) -> Arc<Self> {
        let (clones, server, list, failed, drains) = Default::default();
        Arc::new(Self {
            tree,
            clones,
            session,
            root,
            runtime_dir,
            tenants,
            server,
            list,
            failed,
            changes,
            drains,
        })
    }

    /// The volumes.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        self.all().iter().map(|one| Arc::clone(&one.volume)).collect()
    }

    /// Where this volume is, if it is one of them.
    #[must_use]
    pub fn place_of(&self, volume: &Arc<Volume>) -> Option<String> {
        let all = self.all();
        let one = all.iter().find(|one| Arc::ptr_eq(&one.volume, volume))?;
        Some(exact(one.path()))
    }

    /// Bytes that the attached volumes have written so far.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.all().iter().map(|one| one.volume.status().bytes_written_back).sum()
    }

    /// Those that ended badly so far: where, and how.
    #[must_use]
    pub fn failed(&self) -> Vec<(String, Ended)> {
        self.failed.lock().clone()
    }

    /// Ends all of them, and returns when they have ended, except those that were given up and
    /// whose stores do not answer. The end of these is recorded, too.
    pub fn end(&self) {
        self.tree.end();
        let mut left = self.all();
        left.retain(|one| one.volume.is_aborted());
        Self::tell_given_up(&left);
    }

    /// Makes all data of all of them durable, of stalled ones, too.
    ///
    /// # Errors
    /// The first failure, after the others were tried.
    pub fn sync_all(&self) -> Result<(), String> {
        let all = self.all();
        all.iter().map(|one| one.sync_data(None)).fold(Ok(()), Result::and)
    }

    /// Makes durable the data that belongs to a process in them and in the mountpoint's volume,
    /// except attached volumes that are stalled, which are named.
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    pub fn sync_for(&self, pid: u32) -> Result<Vec<String>, String> {
        self.tree.sync_for(pid).map_err(|error| error.to_string())
    }

    fn all(&self) -> Vec<Arc<Attached>> {
        self.list.lock().all()
    }

    /// The figures of volumes whose ids come after `after`, in their order: `max` at most, fewer
    /// where these are long.
    #[must_use]
    pub fn statuses(&self, after: Option<&VolumeId>, max: usize) -> Vec<Status> {
        let page = self.list.lock().after(after, max);
        let process = crate::host::process::figures(self.session.threads() as u64);
        let privileges = self.root.privileges();
        let mut lines = 0;
        let mut statuses = Vec::new();
        for one in page {
            // Many volumes' histograms would be more than a caller reads.
            let operations = BTreeMap::new();
            let status = Status { operations, ..one.status_beside(process, privileges.clone()) };
            lines += status.errors.len() + status.cgroups.len();
            statuses.push(status);
            if lines > LINES_MAX {
                break;
            }
        }
        statuses
    }

    /// Where the volume of this number is attached.
    #[must_use]
    pub fn mountpoint_of(&self, number: u64) -> Option<Name> {
        let one = self.list.lock().of_number(number)?;
        Some(Name::of(one.known_path()))
    }

    /// The first mountpoint.
    fn first(&self) -> Mountpoint {
        Mountpoint { tree: self.tree.clone(), path: self.root.mount.mountpoint.clone() }
    }

    /// All mountpoints.
    fn mountpoints(&self) -> Vec<Mountpoint> {
        std::iter::once(self.first()).chain(self.clones.mountpoints()).collect()
    }

    /// The mountpoint that a request means.
    fn mountpoint(&self, named: Option<&str>) -> Mountpoint {
        let meant = |mountpoint: &Mountpoint| named.is_some_and(|path| mountpoint.path == Path::new(path));
        self.mountpoints().into_iter().find(meant).unwrap_or_else(|| self.first())
    }

    /// The volume of a place that was found; none for a directory that is shown in a second place.
    fn of(&self, found: &fuse::Attached) -> Option<Arc<Attached>> {
        self.list.lock().of_number(found.volume())
    }

    /// Serves `POST /v1/attach`.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn attach(self: &Arc<Self>, request: &AttachRequest) -> Result<AttachReply, String> {
        let AttachRequest { path, source, volume, from, .. } = request;
        let mountpoint = self.mountpoint(request.mountpoint.as_deref());
        let shown = exact(mountpoint.join(Path::new(path)));
        let _step = tracing::info_span!("attach", volume = shown, path, source, from).entered();
        let path = inside(path)?;
        self.no_mounts_at(&path)?;
        match (source, volume, from) {
            (Some(source), None, None) => {
                let id = self.attach_source(source, &request.options, (&mountpoint, &path));
                Ok(AttachReply { id: Some(id.map_err(|p| p.to_string())?), mountpoint: shown.into() })
            }
            (None, Some(id), None) => {
                let known = self.list.lock().of_id(id);
                let one =
                    known.ok_or_else(|| format!("this mount process has no volume {id}, or it has ended"))?;
                let joined = again::attach(&one, &request.options, (&mountpoint, &path));
                if !joined.map_err(|p| p.to_string())? {
                    return Err(again::is_ending(&one));
                }
                Ok(AttachReply { id: Some(id.clone()), mountpoint: shown.into() })
            }
            (None, None, Some(from)) => {
                mountpoint.tree.bind(&inside(from)?, &path).map_err(|error| error.to_string())?;
                Ok(AttachReply { id: None, mountpoint: shown.into() })
            }
            _ => Err("give one of `source`, `volume` and `from`".to_owned()),
        }
    }

    fn attach_store(
        self: &Arc<Self>,
        source: &str,
        options: &[String],
        (mountpoint, path): (&Mountpoint, &Path),
    ) -> Result<VolumeId, Problem> {
        let source = checks::source(source)?;
        opts::fit(options, &source.spec)?;
        let given = options;
        let options = MountOptions::parse(given)?;
        if let Some(directory) = &source.directory {
            self.mountpoints()
                .iter()
                .try_for_each(|mountpoint| checks::apart(directory, &mountpoint.path))?;
            check_alone(directory)?;
        }
        has_descriptors()?;
        let shown = mountpoint.join(path);
        let store = store::open_store(&source, &options, &shown)?;
        let name = exact(&shown);
        let read_only = store::is_read_only(&options, (&source, &name), &*store)?;
        let volume = store::start_volume(&name, &options, store, Arc::clone(&self.tenants), None)?;
        options.limits.iter().for_each(|(cgroup, change)| volume.limit(cgroup, change));
        let attached = self.register(source.spec, &shown, (&volume, &options, given), read_only);
        let attached = attached.inspect_err(|_| drop(volume.shutdown()))?;
        let ends = Arc::clone(&attached);
        let on_end = Box::new(move |report: &DrainReport| ends.finish(report));
        match mountpoint.tree.attach(path, &volume, read_only, on_end) {
            Ok(place) => {
                attached.set_place(place);
                self.list.lock().number(&attached);
                volume.events().life(Life::Attached, Some(shown));
                Ok(attached.id.clone())
            }
            Err(error) => {
                attached.withdraw();
                volume.shutdown();
                Err(Problem::failure(error.to_string()))
            }
        }
    }

    /// Makes a volume known, before it is attached: it is found as soon as it is seen.
    fn register(
        self: &Arc<Self>,
        source: String,
        shown: &Path,
        volume: (&Arc<Volume>, &MountOptions, &[String]),
        read_only: bool,
    ) -> Result<Arc<Attached>, Problem> {
        let id = registry::new_id()?;
        let mut record = Record::new(id, source, shown, self.root.device());
        record.attached_to = Some(self.root.id.clone());
        (record.journal, record.read_only) = (recorded_journal(&volume.1.objects), read_only);
        let (registration, listener) = self.runtime_dir.register(record.clone())?;
        let attached = Arc::new(Attached::new(self, record, Some(registration), volume, read_only));
        self.list.lock().add(&attached);
        match self.listen(&attached, listener) {
            Ok(listener) => attached.set_listener(listener),
            Err(error) => {
                attached.withdraw();
                return Err(Problem::failure(format!("the control socket cannot be served: {error}")));
            }
        }
        Ok(attached)
    }

    /// Serves an attached volume's socket.
    fn listen(&self, attached: &Arc<Attached>, listener: UnixListener) -> std::io::Result<ListenerGuard> {
        let owner = rustix::process::geteuid().as_raw();
        self.server()?.add_listener(listener, owner, Arc::clone(attached) as Arc<_>)
    }

    /// The server of all attached volumes' sockets, started with the first.
    fn server(&self) -> std::io::Result<&Server> {
        if let Some(server) = self.server.get() {
            return Ok(server);
        }
        let server = Server::idle()?;
        Ok(self.server.get_or_init(|| server))
    }

    /// The log's name for the volume that was last seen at a path; the path, if there was none.
    /// Asks no store.
    fn called_at(&self, mountpoint: &Mountpoint, path: &Path) -> String {
        let shown = mountpoint.join(path);
        let known = self.list.lock().known_at(&shown);
        known.map_or_else(|| exact(&shown), |one| one.volume.name().to_owned())
    }

    /// Serves `POST /v1/detach`.
    ///
    /// # Errors
    /// Why not, in words; then nothing was changed.
    pub fn detach(self: &Arc<Self>, request: &DetachRequest) -> Result<DetachReply, String> {
        let (mountpoint, path) = (self.mountpoint(request.mountpoint.as_deref()), inside(&request.path)?);
        let volume = self.called_at(&mountpoint, &path);
        let _step = tracing::info_span!("detach", volume, path = request.path, how = ?request.how).entered();
        let meant = request.volume.as_ref();
        let (attached, found) = match request.how {
            UmountKind::Force => {
                let there = self.at_for_force(&mountpoint, &path)?;
                // A volume that no path leads to is given up where it is.
                let held = meant.and_then(|id| self.list.lock().of_id(id)).filter(|one| !one.is_seen());
                held.map_or(there, |one| (Some(one), None))
            }
            UmountKind::Plain | UmountKind::Lazy => match mountpoint.tree.found_at(&path) {
                Ok(found) => (self.of(&found), Some(found)),
                Err(error) => {
                    return Err(
                        meant.map_or_else(|| error.to_string(), |id| self.not_there(&mountpoint, &path, id))
                    );
                }
            },
        };
        if let Some(id) = meant.filter(|id| attached.as_ref().is_none_or(|one| one.id != **id)) {
            return Err(self.not_there(&mountpoint, &path, id));
        }
        let holders = match (request.how, &attached, found) {
            (UmountKind::Force, _, found) => {
                self.detach_by_force(&mountpoint, &path, (attached.as_ref(), found))?;
                attached.iter().for_each(|one| one.wait_told());
                None
            }
            (_, _, None) => return Err(TreeError::NotAttached(request.path.clone()).to_string()),
            (how, None, Some(found)) => self.detach_gently(&mountpoint, (&path, &found), how, None)?,
            (how, Some(one), Some(found)) => {
                let (all, known) = (Arc::clone(self), Arc::clone(one));
                let detach = move || all.detach_gently(&mountpoint, (&path, &found), how, Some(&known));
                match unless_given_up(one, detach)? {
                    // The answer of its store does not matter any more.
                    None | Some(Err(_)) if one.volume.is_aborted() => {
                        one.wait_given_up();
                        None
                    }
                    result => result.transpose()?.flatten(),
                }
            }
        };
        let ended = attached.as_ref().and_then(|one| one.how_it_ended());
        let (id, source) = attached.map(|one| (one.id.clone(), one.source.clone())).unzip();
        let is_held = holders.is_some();
        Ok(DetachReply {
            id,
            source: source.map(Name::from),
            ended,
            is_held,
            holders: holders.unwrap_or_default(),
        })
    }

    fn detach_gently(
        &self,
        mountpoint: &Mountpoint,
        (path, found): (&Path, &fuse::Attached),
        how: UmountKind,
        attached: Option<&Attached>,
    ) -> Result<Option<Holders>, String> {
        if how == UmountKind::Plain {
            return self.detach_unless_held(mountpoint, (path, found), attached);
        }
        let before = attached.map(Attached::path);
        mountpoint.tree.detach_attached(found, Detach::Lazy).map_err(|error| error.to_string())?;
        let is_held = attached.is_some_and(|one| one.how_it_ended().is_none() && !one.is_seen());
        let Some(path) = before.filter(|_| is_held) else { return Ok(None) };
        let openers = attached.and_then(|one| one.volume.openers()).unwrap_or_default();
        let quickly = holders::of_openers(&openers, &self.root.mount, &path);
        Ok(Some(quickly.unwrap_or_else(|| self.holders_at(&path))))
    }

    fn detach_unless_held(
        &self,
        mountpoint: &Mountpoint,
        (path, found): (&Path, &fuse::Attached),
        attached: Option<&Attached>,
    ) -> Result<Option<Holders>, String> {
        let shown = mountpoint.join(path);
        if let Some(holders) = mounts_at(&shown) {
            return Ok(Some(holders));
        }
        if let Some(attached) = attached {
            attached.sync_data(None).map_err(|error| {
                format!(
                    "{} stays attached, its data could not be written: {error}; nothing is lost as long as it is \
                     attached",
                    shown.shown()
                )
            })?;
        }
        let until = Instant::now() + CLOSING;
        loop {
            match mountpoint.tree.detach_attached(found, Detach::Sync) {
                Ok(()) => return Ok(None),
                Err(TreeError::Tree(mounts::Error::Busy(busy))) if busy.active_refs > 0 => {
                    // The kernel reports a close a little later: files that no process has open any
                    // more are waited for.
                    let holders = self.holders_at(&shown);
                    let is_over = Instant::now() >= until;
                    if !holders.found.is_empty() || is_over {
                        return Ok(Some(holders));
                    }
                    let _asked_again = found.wait_closed(until);
                }
                Err(TreeError::Tree(mounts::Error::Busy(busy))) => {
                    return Err(format!("{} is busy (EBUSY): {busy}", shown.shown()));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Serves `POST /v1/move`.
    ///
    /// # Errors
    /// Why not, in words; then nothing was changed.
    pub fn move_to(&self, request: &MoveRequest) -> Result<MoveReply, String> {
        let mountpoint = self.mountpoint(request.mountpoint.as_deref());
        let (from, to) = (inside(&request.from)?, inside(&request.to)?);
        let volume = self.called_at(&mountpoint, &from);
        let _step = tracing::info_span!("move", volume, from = request.from, to = request.to).entered();
        self.no_mounts_at(&from)?;
        self.no_mounts_at(&to)?;
        mountpoint.tree.move_to(&from, &to).map_err(|error| error.to_string())?;
        // Volumes that are attached below have moved, too.
        let moved = self.list.lock().known_below(&mountpoint.join(&from));
        moved.iter().for_each(|one| drop(one.path()));
        Ok(MoveReply { mountpoint: Name::of(mountpoint.join(&to)) })
    }

    /// Refuses where the kernel has mounts at a path or below it: the kernel's invalidation would
    /// take them along, in each mountpoint.
    fn no_mounts_at(&self, path: &Path) -> Result<(), String> {
        for mountpoint in self.mountpoints() {
            let path = mountpoint.join(path);
            if let Some(holders) = mounts_at(&path) {
                return Err(format!("{} is busy (EBUSY): {}", path.shown(), holders.lines().join(", ")));
            }
        }
        Ok(())
    }

    fn holders_at(&self, shown: &Path) -> Holders {
        holders::of_served(&self.root.mount).unwrap_or_default().below(shown)
    }
}

/// The kernel's mounts at a path or below it, which taking it away would take along.
fn mounts_at(path: &Path) -> Option<Holders> {
    let table = MountTable::read();
    let found: Vec<_> =
        table.iter().filter(|m| m.mountpoint.starts_with(path)).map(holders::Holder::mount).collect();
    (!found.is_empty()).then_some(Holders { found, ..Holders::default() })
}

/// Refuses another volume where the process has hardly a descriptor left: existing volumes need
/// some, too.
fn has_descriptors() -> Result<(), Problem> {
    let used = crate::host::process::figures(0);
    if used.open_fds + used.max_fds / DESCRIPTORS_LEFT < used.max_fds {
        return Ok(());
    }
    Err(Problem::failure(format!(
        "{} of the mount process's {} descriptors are in use: no more volumes can be attached here; raise the \
         limit (LimitNOFILE= of its unit, `ulimit -Hn`), or use another mountpoint",
        used.open_fds, used.max_fds
    )))
}

/// A path in the mountpoint, from a request.
fn inside(path: &str) -> Result<PathBuf, String> {
    let path: PathBuf = Path::new(path).components().collect();
    let is_plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if is_plain && !path.as_os_str().is_empty() {
        return Ok(path);
    }
    Err(format!("`{}` is not a path below the mountpoint: give a relative one without `..`", path.shown()))
}
