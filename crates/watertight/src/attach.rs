//! Volumes that are attached to directories of this process's mountpoint.
//!
//! Each has an id, a record and a control socket of its own, so that whoever asks for it (`status`, `wait`, `sync`)
//! finds it as any other volume; all sockets are served by the control server's one thread.
//!
//! # The end of one, in this order
//! Its data is on the store, the store is free; the record says how it ended; who waits at the control socket
//! hears it; the socket goes. Whoever detached it returns after that.
//!
//! # Lock order
//! `Attachments::list`, `Attached::registration` and `Attached::server` are leaves; `Attached::path` is inside `list` where both are held.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use fuse::{Detach, SessionView, Tree, TreeError};
use sync::Mutex;
use tokio::sync::watch;
use volume::events::{Events, Life};
use volume::{DrainReport, LifeState, Tenants, Volume};

use crate::checks;
use crate::control::api::{
    AttachReply, AttachRequest, DetachReply, DetachRequest, Ended, How, LimitRequest, Limits, MoveReply,
    MoveRequest, Process, Requests, State, Status, Synced, UmountReply, UmountRequest, now_ms,
};
use crate::control::server::{Also, Server, Service};
use crate::holders::{self, Holders};
use crate::live::{self, Facts};
use crate::mount_cmd;
use crate::mountinfo::MountTable;
use crate::opts::MountOptions;
use crate::problem::Problem;
use crate::registry::{self, Registration, RuntimeDir};

/// How long the kernel may take to tell of a close.
const CLOSING: Duration = Duration::from_secs(2);
/// How long a volume that is given up may take to end.
const GIVE_UP: Duration = Duration::from_secs(2);
/// How long where its store hangs, once no path leads to it: nothing more will be written.
const GIVE_UP_STALLED: Duration = Duration::from_millis(30);
/// Of all descriptors, the part that is left to volumes that are attached already.
const DESCRIPTORS_LEFT: u64 = 16;
/// Files and cgroups that are named in an answer about many volumes, after which it ends.
const LINES_MAX: usize = 10_000;

/// What is attached to one mountpoint.
#[derive(Debug)]
pub struct Attachments {
    tree: Tree,
    session: SessionView,
    root: Facts,
    runtime_dir: RuntimeDir,
    /// Those of all volumes of this process.
    tenants: Arc<Tenants>,
    server: OnceLock<Server>,
    list: Mutex<List>,
    /// Those that ended with data that was not written.
    failed: Mutex<Vec<(String, Ended)>>,
    /// How often those that ended waited for inodes that were changing their owners, and how long.
    drains: Mutex<(u64, Duration)>,
}

/// The attached volumes, of which there may be thousands.
#[derive(Debug, Default)]
struct List {
    by_id: BTreeMap<String, Arc<Attached>>,
    /// The newest last: it may be on top of others.
    by_path: BTreeMap<PathBuf, Vec<Arc<Attached>>>,
}

impl List {
    fn add(&mut self, one: &Arc<Attached>) {
        self.by_id.insert(one.id.clone(), Arc::clone(one));
        self.by_path.entry(one.path.lock().clone()).or_default().push(Arc::clone(one));
    }

    fn remove(&mut self, one: &Attached) {
        self.by_id.remove(&one.id);
        let path = one.path.lock();
        if let Some(here) = self.by_path.get_mut(&*path) {
            here.retain(|other| other.id != one.id);
            if here.is_empty() {
                self.by_path.remove(&*path);
            }
        }
    }

    /// One that has not ended is somewhere else now.
    fn move_to(&mut self, one: &Arc<Attached>, path: PathBuf) {
        let is_here = self.by_id.contains_key(&one.id);
        self.remove(one);
        *one.path.lock() = path;
        if is_here {
            self.add(one);
        }
    }

    /// Those at a path, and below it.
    fn below(&self, path: &Path) -> Vec<Arc<Attached>> {
        let all = self.by_path.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        let below = all.take_while(|(at, _)| at.starts_with(path));
        below.flat_map(|(_, here)| here.iter().map(Arc::clone)).collect()
    }
}

/// An attached volume.
#[derive(Debug)]
pub struct Attached {
    all: Weak<Attachments>,
    id: String,
    source: String,
    /// In the mountpoint.
    path: Mutex<PathBuf>,
    place: OnceLock<fuse::Attached>,
    volume: Arc<Volume>,
    read_only: bool,
    started_ms: u64,
    ended: watch::Sender<Option<Ended>>,
    registration: Mutex<Option<Registration>>,
    server: Mutex<Option<Also>>,
}

impl Attachments {
    /// None so far.
    #[must_use]
    pub fn new(
        tree: Tree,
        session: SessionView,
        root: Facts,
        runtime_dir: RuntimeDir,
        tenants: Arc<Tenants>,
    ) -> Arc<Self> {
        let (server, list, failed, drains) = Default::default();
        Arc::new(Self { tree, session, root, runtime_dir, tenants, server, list, failed, drains })
    }

    /// The connection.
    #[must_use]
    pub const fn session(&self) -> &SessionView {
        &self.session
    }

    /// The volumes, and where they are.
    #[must_use]
    pub fn volumes(&self) -> Vec<(String, Arc<Volume>)> {
        let shown = |one: &Attached| self.shown(&one.path.lock()).to_string_lossy().into_owned();
        self.all().iter().map(|one| (shown(one), Arc::clone(&one.volume))).collect()
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

    /// How often those that ended waited for inodes that were changing their owners, and how long.
    #[must_use]
    pub fn drains(&self) -> (u64, Duration) {
        *self.drains.lock()
    }

    /// Gives all of them up.
    pub fn force(&self) {
        self.all().iter().for_each(|one| one.volume.force());
    }

    /// Ends all of them, and returns when they have ended.
    pub fn end(&self) {
        self.tree.end();
    }

    /// Makes all of them durable; for a process, what is its own.
    ///
    /// # Errors
    /// The first failure, after the others were tried.
    pub fn sync(&self, by: Option<u32>) -> Result<(), String> {
        let all = self.all();
        all.iter().map(|one| one.sync_data(by)).fold(Ok(()), Result::and)
    }

    fn all(&self) -> Vec<Arc<Attached>> {
        self.list.lock().by_id.values().map(Arc::clone).collect()
    }

    /// The figures of those whose ids come after `after`, in their order: `max` at most, fewer where these are long.
    #[must_use]
    pub fn statuses(&self, after: &str, max: usize) -> Vec<Status> {
        let after = (Bound::Excluded(after), Bound::Unbounded);
        let page: Vec<Arc<Attached>> = {
            let list = self.list.lock();
            list.by_id.range::<str, _>(after).take(max).map(|(_, one)| Arc::clone(one)).collect()
        };
        let process = crate::process::figures(self.session.threads() as u64);
        let mut lines = 0;
        let mut statuses = Vec::new();
        for one in page {
            let status = one.status_beside(process);
            lines += status.errors.len() + status.cgroups.len();
            statuses.push(status);
            if lines > LINES_MAX {
                break;
            }
        }
        statuses
    }

    fn shown(&self, path: &Path) -> PathBuf {
        self.root.mount.mountpoint.join(path)
    }

    fn at(&self, path: &Path) -> Option<Arc<Attached>> {
        let here = self.list.lock().by_path.get(path).cloned().unwrap_or_default();
        here.into_iter().rev().find(|one| one.is_attached())
    }

    /// Serves `POST /v1/attach`.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn attach(self: &Arc<Self>, request: &AttachRequest) -> Result<AttachReply, String> {
        let AttachRequest { path, source, from, .. } = request;
        let _step = tracing::info_span!("attach", path, source, from).entered();
        let path = inside(&request.path)?;
        self.no_mounts_at(&path)?;
        let mountpoint = self.shown(&path).to_string_lossy().into_owned();
        match (&request.source, &request.from) {
            (Some(source), None) => {
                let id = self.attach_store(source, &request.options, &path).map_err(|p| p.to_string())?;
                Ok(AttachReply { id: Some(id), mountpoint })
            }
            (None, Some(from)) => {
                self.tree.bind(&inside(from)?, &path).map_err(|error| error.to_string())?;
                Ok(AttachReply { id: None, mountpoint })
            }
            _ => Err("give `source`, or `from`, and not both".to_owned()),
        }
    }

    fn attach_store(
        self: &Arc<Self>,
        source: &str,
        options: &[String],
        path: &Path,
    ) -> Result<String, Problem> {
        let options = MountOptions::parse(options)?;
        let source = checks::source(source)?;
        if let Some(directory) = &source.directory {
            checks::apart(directory, &self.root.mount.mountpoint)?;
            checks::alone(directory)?;
        }
        has_descriptors()?;
        let store = mount_cmd::open_store(&source)?;
        let read_only = mount_cmd::is_read_only(&options, &source, &*store)?;
        let volume = mount_cmd::start_volume(&source.spec, &options, store, Arc::clone(&self.tenants))?;
        options.limits.iter().for_each(|(cgroup, change)| volume.limit(cgroup, change));
        let attached = self.register(source.spec, path, &volume, read_only);
        let attached = attached.inspect_err(|_| drop(volume.shutdown()))?;
        let ends = Arc::clone(&attached);
        let on_end = Box::new(move |report: &DrainReport| ends.has_ended(report));
        match self.tree.attach(path, &volume, read_only, on_end) {
            Ok(place) => {
                let _first = attached.place.set(place);
                volume.events().life(Life::Attached, Some(self.shown(path)));
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
        path: &Path,
        volume: &Arc<Volume>,
        read_only: bool,
    ) -> Result<Arc<Attached>, Problem> {
        let (id, shown) = (registry::new_id()?, self.shown(path));
        let mut record = registry::new_record(id.clone(), source.clone(), &shown, self.root.device());
        record.attached_to = Some(self.root.id.clone());
        let (registration, listener) = self.runtime_dir.register(record)?;
        let attached = Arc::new(Attached {
            all: Arc::downgrade(self),
            id,
            source,
            path: Mutex::new(path.to_owned()),
            place: OnceLock::new(),
            volume: Arc::clone(volume),
            read_only,
            started_ms: now_ms(),
            ended: watch::Sender::new(None),
            registration: Mutex::new(Some(registration)),
            server: Mutex::default(),
        });
        self.list.lock().add(&attached);
        let served = self.server().and_then(|server| {
            let owner = rustix::process::geteuid().as_raw();
            server.also(listener, owner, Arc::clone(&attached) as Arc<_>)
        });
        match served {
            Ok(also) => *attached.server.lock() = Some(also),
            Err(error) => {
                attached.withdraw();
                return Err(Problem::failure(format!("the control socket cannot be served: {error}")));
            }
        }
        Ok(attached)
    }

    /// The server of all attached volumes' sockets, started with the first.
    fn server(&self) -> std::io::Result<&Server> {
        if let Some(server) = self.server.get() {
            return Ok(server);
        }
        let server = Server::idle()?;
        Ok(self.server.get_or_init(|| server))
    }

    /// Serves `POST /v1/detach`.
    ///
    /// # Errors
    /// Why not, in words; then nothing was changed.
    pub fn detach(&self, request: &DetachRequest) -> Result<DetachReply, String> {
        let _step = tracing::info_span!("detach", path = request.path, how = ?request.how).entered();
        let path = inside(&request.path)?;
        let attached = self.at(&path);
        let holders = match request.how {
            How::Plain => self.detach_unless_held(&path, attached.as_deref())?,
            How::Lazy => {
                self.tree.detach(&path, Detach::Lazy).map_err(|error| error.to_string())?;
                let is_held = |one: &&Arc<Attached>| {
                    one.ended.borrow().is_none() && !one.place.get().is_some_and(fuse::Attached::is_seen)
                };
                attached.as_ref().filter(is_held).map(|one| one.holders())
            }
            How::Force => {
                self.detach_by_force(&path, attached.as_deref())?;
                None
            }
        };
        let ended = attached.as_ref().and_then(|one| one.ended.borrow().clone());
        let (id, source) = attached.map(|one| (one.id.clone(), one.source.clone())).unzip();
        let is_held = holders.is_some();
        Ok(DetachReply { id, source, ended, is_held, holders: holders.unwrap_or_default() })
    }

    fn detach_unless_held(
        &self,
        path: &Path,
        attached: Option<&Attached>,
    ) -> Result<Option<Holders>, String> {
        if let Some(holders) = self.mounts_at(path) {
            return Ok(Some(holders));
        }
        if let Some(attached) = attached {
            attached.sync_data(None).map_err(|error| {
                format!(
                    "{} stays attached, its data could not be written: {error}; nothing is lost as long as it is \
                     attached",
                    self.shown(path).display()
                )
            })?;
        }
        let until = Instant::now() + CLOSING;
        loop {
            match self.tree.detach(path, Detach::Sync) {
                Ok(()) => return Ok(None),
                Err(TreeError::Tree(mounts::Error::Busy(busy))) if busy.holds > 0 => {
                    // The kernel tells of a close a little later: what nobody has open any more is waited for.
                    let holders = self.holders_at(path);
                    let is_over = Instant::now() >= until;
                    if !holders.found.is_empty() || is_over {
                        return Ok(Some(holders));
                    }
                    let _asked_again = self.tree.wait_closed(path, until);
                }
                Err(TreeError::Tree(mounts::Error::Busy(busy))) => {
                    return Err(format!("{} is busy (EBUSY): {busy}", self.shown(path).display()));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn detach_by_force(&self, path: &Path, attached: Option<&Attached>) -> Result<(), String> {
        if let Some(attached) = attached {
            attached.volume.force();
        }
        let (tree, path, (told, done)) = (self.tree.clone(), path.to_owned(), channel());
        let detach = move || drop(told.send(tree.detach(&path, Detach::Force)));
        std::thread::Builder::new().name("give up".to_owned()).spawn(detach).map_err(|e| e.to_string())?;
        let begun = Instant::now();
        loop {
            if let Ok(result) = done.recv_timeout(GIVE_UP_STALLED) {
                return result.map_err(|error| error.to_string());
            }
            // Until then something may be written yet, or the path is still there.
            if begun.elapsed() >= GIVE_UP || attached.is_some_and(Attached::hangs_without_a_path) {
                break;
            }
        }
        // A store that hangs keeps that thread; its data is given up.
        if let Some(attached) = attached {
            let unwritten = attached.volume.unwritten();
            attached.has_ended(&DrainReport { unwritten, ..DrainReport::default() });
        }
        Ok(())
    }

    /// Serves `POST /v1/move`.
    ///
    /// # Errors
    /// Why not, in words; then nothing was changed.
    pub fn move_to(&self, request: &MoveRequest) -> Result<MoveReply, String> {
        let _step = tracing::info_span!("move", from = request.from, to = request.to).entered();
        let (from, to) = (inside(&request.from)?, inside(&request.to)?);
        self.no_mounts_at(&from)?;
        self.no_mounts_at(&to)?;
        self.tree.move_to(&from, &to).map_err(|error| error.to_string())?;
        let moving = self.list.lock().below(&from);
        for one in moving {
            let moved = one.path.lock().strip_prefix(&from).ok().map(|rest| to.join(rest));
            if let Some(path) = moved.filter(|_| one.is_attached()) {
                self.list.lock().move_to(&one, path.components().collect());
                one.moved(&self.shown(&path));
            }
        }
        Ok(MoveReply { mountpoint: self.shown(&to).to_string_lossy().into_owned() })
    }

    /// The kernel's mounts at a path or below it, which taking it away would take along.
    fn mounts_at(&self, path: &Path) -> Option<Holders> {
        let path = self.shown(path);
        let table = MountTable::read();
        let found: Vec<_> =
            table.iter().filter(|m| m.mountpoint.starts_with(&path)).map(holders::Holder::mount).collect();
        (!found.is_empty()).then_some(Holders { found, unseen: 0 })
    }

    fn no_mounts_at(&self, path: &Path) -> Result<(), String> {
        let Some(holders) = self.mounts_at(path) else { return Ok(()) };
        let path = self.shown(path);
        Err(format!("{} is busy (EBUSY): {}", path.display(), holders.lines().join(", ")))
    }

    fn holders_at(&self, path: &Path) -> Holders {
        holders::of(&self.root.mount).unwrap_or_default().below(&self.shown(path))
    }
}

/// Refuses another volume where the process has hardly a descriptor left: those that are there need some, too.
fn has_descriptors() -> Result<(), Problem> {
    let used = crate::process::figures(0);
    if used.open_fds + used.max_fds / DESCRIPTORS_LEFT < used.max_fds {
        return Ok(());
    }
    Err(Problem::failure(format!(
        "{} of the mount process's {} descriptors are in use: no more volumes can be attached here; give it more          (LimitNOFILE= of its unit, `ulimit -Hn`), or use another mountpoint",
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
    Err(format!(
        "`{}` is no path below the mountpoint: give one without `..`, relative to it",
        path.display()
    ))
}

impl Attached {
    fn is_attached(&self) -> bool {
        let all = self.all.upgrade();
        all.zip(self.place.get()).is_some_and(|(all, place)| all.tree.is_attached(place))
    }

    /// Nobody comes here any more, and the store does not answer.
    fn hangs_without_a_path(&self) -> bool {
        self.volume.stalled().is_some() && !self.is_attached()
    }

    fn sync_data(&self, by: Option<u32>) -> Result<(), String> {
        if matches!(self.volume.status().state, LifeState::Released | LifeState::Failed) {
            return Ok(());
        }
        let synced = by.map_or_else(|| self.volume.sync_all(), |pid| self.volume.sync_for(pid));
        synced.map_err(|error| error.to_string())
    }

    fn holders(&self) -> Holders {
        let path = self.path.lock().clone();
        self.all.upgrade().map(|all| all.holders_at(&path)).unwrap_or_default()
    }

    fn moved(&self, shown: &Path) {
        if let Some(registration) = self.registration.lock().as_mut()
            && let Err(problem) = registration.moved(shown)
        {
            tracing::error!(%problem, "where the volume was moved could not be written down");
        }
    }

    /// It never came to be.
    fn withdraw(&self) {
        self.leave();
        if let Some(registration) = self.registration.lock().take() {
            registration.withdraw();
        }
    }

    fn leave(&self) {
        *self.server.lock() = None;
        if let Some(all) = self.all.upgrade() {
            all.list.lock().remove(self);
        }
    }

    /// The volume has ended, whoever did it; told once.
    fn has_ended(&self, report: &DrainReport) {
        let Some(mut registration) = self.registration.lock().take() else { return };
        let ended = live::ended_with(report);
        if let Some(all) = self.all.upgrade() {
            let switching = self.volume.status().switching;
            let mut drains = all.drains.lock();
            *drains = (drains.0 + switching.drains, drains.1 + switching.drain_time);
        }
        if ended.state != State::Released {
            let path = self.path.lock().clone();
            if let Some(all) = self.all.upgrade() {
                all.failed.lock().push((all.shown(&path).to_string_lossy().into_owned(), ended.clone()));
            }
        }
        if let Err(problem) = registration.finish(ended.clone()) {
            tracing::error!(%problem, "how the volume ended could not be written down");
        }
        // The volume has said so itself, unless it was given up.
        let given_up = || ended.error.clone().unwrap_or_else(|| "not everything was written".to_owned());
        self.volume.events().end((ended.state != State::Released).then(given_up));
        self.ended.send_replace(Some(ended));
        self.leave();
    }

    fn state(&self, volume: &volume::Status) -> State {
        match volume.state {
            LifeState::Active | LifeState::Detached | LifeState::Draining if volume.stalled.is_some() => {
                State::Stalled
            }
            LifeState::Active if self.place.get().is_none_or(fuse::Attached::is_seen) => State::Active,
            LifeState::Active => {
                self.volume.set_detached();
                State::Detached
            }
            LifeState::Detached => State::Detached,
            LifeState::Draining => State::Draining,
            LifeState::Released => State::Released,
            LifeState::Failed => State::Failed,
        }
    }
}

impl Attached {
    /// Its figures, with those of the process.
    fn status_beside(&self, process: Process) -> Status {
        let volume = self.volume.status();
        let Some(all) = self.all.upgrade() else {
            return Status {
                id: self.id.clone(),
                source: self.source.clone(),
                ..Status::of_volume(&self.volume, &volume)
            };
        };
        let (transport, transport_reason) = live::transport(&all.session);
        Status {
            id: self.id.clone(),
            source: self.source.clone(),
            mountpoint: all.shown(&self.path.lock()).to_string_lossy().into_owned(),
            attached_to: Some(all.root.id.clone()),
            device: all.root.device(),
            state: self.state(&volume),
            mount_type: crate::mountinfo::kind(&all.root.mount).to_owned(),
            mount_type_reason: all.root.type_reason.clone(),
            transport,
            transport_reason,
            mode: all.root.mode.to_owned(),
            read_only: self.read_only,
            started_ms: self.started_ms,
            // These are the connection's, and told with its own volume.
            requests: Requests::default(),
            process,
            ..Status::of_volume(&self.volume, &volume)
        }
    }
}

impl Service for Attached {
    fn status(&self) -> Status {
        let threads = self.all.upgrade().map_or(0, |all| all.session.threads());
        self.status_beside(crate::process::figures(threads as u64))
    }

    fn sync(&self, by: Option<u32>) -> Result<Synced, String> {
        self.sync_data(by)?;
        Ok(Synced { id: self.id.clone() })
    }

    fn limits(&self) -> Limits {
        Limits { limits: self.volume.limits().into_iter().map(live::cgroup_limits).collect() }
    }

    fn limit(&self, request: LimitRequest) -> Result<Limits, String> {
        live::limit(&self.volume, &request)?;
        Ok(self.limits())
    }

    fn events(&self) -> Arc<Events> {
        Arc::clone(self.volume.events())
    }

    fn umount(&self, request: UmountRequest) -> Result<UmountReply, String> {
        let all = self.all.upgrade().ok_or("its mount process is leaving")?;
        let path = self.path.lock().to_string_lossy().into_owned();
        let reply = all.detach(&DetachRequest { path, how: request.how })?;
        Ok(UmountReply { ended: reply.ended, holders: reply.holders })
    }

    fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }
}
