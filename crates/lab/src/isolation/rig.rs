//! Healthy volumes beside others, each with a mount process of its own or all in one.

mod unmounts;
mod work;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use super::beside::{Beside, Kind};
use super::keeper::Keeper;
use super::load::Healthy;
use super::tenants::Tenants;
use crate::child::{self, Server};
use crate::control::{self, Control};
pub(super) use unmounts::Way;
pub(super) use work::{SEEN_OF_A_CROWD, Work};

/// Healthy volumes.
pub(super) const HEALTHY: usize = 10;
/// When a store that does not answer is stalled.
pub(super) const STALL_AFTER: Duration = Duration::from_secs(1);
/// Of the healthy: more than the load's files, so that no writer waits for the store.
const OPTIONS: &str = "cache=128M";
/// Options of volumes that will stall: nothing is written before, and the end waits for nothing.
const STALLING: &str = "cache=16M,stall_after=1s,dirty_after=1h,drain_timeout=1s";
/// Options of volumes that are used.
const USED: &str = "cache=16M";
/// Processes that are started before the first is waited for.
const AT_ONCE: usize = 8;
/// Longer than anything takes that is waited for.
pub(super) const LONG: Duration = Duration::from_secs(300);
/// Between two checks.
const LOOK: Duration = Duration::from_millis(5);

/// A volume of the product.
#[derive(Debug)]
struct Volume {
    name: String,
    /// The directory of its store.
    store: PathBuf,
    options: String,
    /// Of which process, if it has one of its own.
    server: Option<Server>,
    control: Option<Control>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Rig {
    program: PathBuf,
    /// Of the mountpoint that all volumes are attached to, if they are.
    main: Option<(Server, Control)>,
    healthy: Vec<Volume>,
    neighbours: Vec<Volume>,
    beside: Beside,
    is_stalled: bool,
    /// The users of the neighbours, if there are any.
    tenants: Option<Tenants>,
    /// The server whose mount has the stores that stall.
    stores: Option<Server>,
    keeper: Option<Keeper>,
    directory: tempfile::TempDir,
}

/// The result of a verb.
#[derive(Debug)]
struct Done {
    status: ExitStatus,
    took: Duration,
    /// All that it said.
    out: String,
    error: String,
}

/// The resources that the processes of all volumes use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uses {
    pub(super) threads: f64,
    pub(super) mib: f64,
}

impl Rig {
    /// Mounts ten healthy volumes and their neighbours, which do nothing so far.
    pub(super) fn new(
        program: &Path,
        place: &Path,
        is_attached: bool,
        beside: Beside,
    ) -> anyhow::Result<Self> {
        let Beside { kind, count, .. } = beside;
        let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir_in(place)?;
        let keeper = Some(Keeper::start(directory.path())?);
        // From here on, dropping it ends everything.
        let mut rig = Self {
            program: program.to_owned(),
            main: None,
            healthy: Vec::new(),
            neighbours: Vec::new(),
            beside,
            is_stalled: false,
            tenants: None,
            stores: None,
            keeper,
            directory,
        };
        for name in ["stores", "stalling", "mnt", "answering"] {
            fs::create_dir(rig.path(name))?;
        }
        if kind.has_tenants() {
            let tenants = Tenants::new(count, rig.path("log.tenants"))?;
            rig.keeper()?.watch_cgroup(tenants.directory())?;
            rig.tenants = Some(tenants);
        } else if count > 0 {
            rig.serve_stores()?;
        }
        for number in 0..HEALTHY {
            let volume = rig.volume_of(format!("healthy{number}"), "answering", OPTIONS.to_owned())?;
            rig.healthy.push(volume);
        }
        for number in 0..count {
            let (place, options) = match &rig.tenants {
                Some(tenants) if kind.is_limited() => {
                    ("answering", format!("{USED},{}", tenants.limit(number)))
                }
                Some(_) => ("answering", USED.to_owned()),
                None => ("stalling", STALLING.to_owned()),
            };
            let volume = rig.volume_of(format!("neighbour{number}"), place, options)?;
            rig.neighbours.push(volume);
        }
        if is_attached {
            rig.attach_all()?
        } else {
            rig.mount_all()?
        }
        rig.find_controls()?;
        Ok(rig)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn at(&self, volume: &str) -> PathBuf {
        if self.main.is_some() { self.path("all").join(volume) } else { self.path("mnt").join(volume) }
    }

    /// A volume that is not mounted yet, with its store at such a place.
    fn volume_of(&self, name: String, place: &str, options: String) -> anyhow::Result<Volume> {
        let store = self.path(place).join(&name);
        fs::create_dir(&store)?;
        // Of a mountpoint of its own, or of a directory in the store of the one of all.
        fs::create_dir(self.path("mnt").join(&name))?;
        Ok(Volume { name, store, options, server: None, control: None })
    }

    /// A server of directories: one of the product, for it is there. It has a runtime directory of
    /// its own, so that it gets no requests of verbs.
    fn serve_stores(&mut self) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.env("WATERTIGHT_RUNTIME_DIR", self.path("run.stores"));
        command
            .args(["mount", "-o", "type=fuse,uring=off"])
            .arg(self.path("stores"))
            .arg(self.path("stalling"));
        let stores = Server::start(&mut command, &self.path("stalling"), &self.path("log.stores"))?;
        let pid = stores.pid();
        self.stores = Some(stores);
        self.keeper()?.watch(pid)
    }

    fn keeper(&mut self) -> anyhow::Result<&mut Keeper> {
        self.keeper.as_mut().context("the keeper has left")
    }

    fn command(&self, verb: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env("WATERTIGHT_RUNTIME_DIR", self.path("run")).args(verb);
        command
    }

    fn mount(&self, Volume { name, store, options, .. }: &Volume) -> anyhow::Result<Server> {
        let mut command = self.command(&["mount", "-o", options]);
        command.arg(store).arg(self.at(name));
        Server::begin(&mut command, &self.at(name), &self.log(name))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path(&format!("log.{name}"))
    }

    fn mount_all(&mut self) -> anyhow::Result<()> {
        let count = self.healthy.len() + self.neighbours.len();
        for first in (0..count).step_by(AT_ONCE) {
            let some = first..count.min(first + AT_ONCE);
            for at in some.clone() {
                let server = self.mount(self.volume(at))?;
                self.volume_mut(at).server = Some(server);
            }
            for volume in some.map(|at| self.volume(at)) {
                let Some(server) = &volume.server else { continue };
                server.mounted(&self.log(&volume.name))?;
            }
        }
        Ok(())
    }

    /// The healthy, and then the others.
    fn volume(&self, at: usize) -> &Volume {
        if at < HEALTHY { &self.healthy[at] } else { &self.neighbours[at - HEALTHY] }
    }

    fn volume_mut(&mut self, at: usize) -> &mut Volume {
        if at < HEALTHY { &mut self.healthy[at] } else { &mut self.neighbours[at - HEALTHY] }
    }

    fn attach_all(&mut self) -> anyhow::Result<()> {
        let mountpoint = self.path("all");
        fs::create_dir(&mountpoint)?;
        let mut command = self.command(&["mount"]);
        command.arg(self.path("mnt")).arg(&mountpoint);
        let server = Server::start(&mut command, &mountpoint, &self.log("all"))?;
        let mut found = None;
        eventually("the mount's control socket", || {
            found = control::known(&self.path("run"))?.pop();
            Ok(found.is_some())
        })?;
        self.main = found.map(|(_, control)| (server, control));
        self.healthy.iter().chain(&self.neighbours).try_for_each(|volume| self.attach(volume))
    }

    fn attach(&self, Volume { name, store, options, .. }: &Volume) -> anyhow::Result<()> {
        let (_, control) = self.main.as_ref().context("nothing to attach to")?;
        let wish = json!({ "path": name, "source": store, "options": [options] });
        control.call("POST", "/v1/attach", &wish).map(drop)
    }

    fn find_controls(&mut self) -> anyhow::Result<()> {
        let wanted = self.healthy.len() + self.neighbours.len() + usize::from(self.main.is_some());
        let mut known = Vec::new();
        eventually("the volumes' control sockets", || {
            known = control::known(&self.path("run"))?;
            Ok(known.len() == wanted)
        })?;
        for at in 0..self.healthy.len() + self.neighbours.len() {
            let place = self.at(&self.volume(at).name);
            let found = known.iter().find(|(at, _)| *at == place);
            let (_, control) = found.with_context(|| format!("no record of {}", place.display()))?;
            self.volume_mut(at).control = Some(control.clone());
        }
        Ok(())
    }

    /// The healthy volumes.
    pub(super) fn healthy(&self) -> Vec<Healthy> {
        let healthy = self.healthy.iter();
        let is_attached = self.main.is_some();
        let one = |volume: &Volume| Healthy {
            at: self.at(&volume.name),
            control: volume.control.clone().filter(|_| is_attached),
        };
        healthy.map(one).collect()
    }

    /// Starts the neighbours' work. Returns, if they stall, how long after its time each was
    /// reported as stalled.
    pub(super) fn begin(&mut self) -> anyhow::Result<Vec<f64>> {
        if self.beside.kind.has_tenants() {
            self.work()?;
            return Ok(Vec::new());
        }
        // Each volume that can stall has something to write.
        let files: Vec<PathBuf> =
            self.neighbours.iter().map(|volume| self.at(&volume.name).join("dirty")).collect();
        let keeper = self.keeper()?;
        files.iter().try_for_each(|file| keeper.dirty(file))?;
        if self.beside.kind == Kind::Stalled { self.stall() } else { Ok(Vec::new()) }
    }

    /// Stops the stores' server; every one of its volumes has a caller in fsync(2). For each
    /// volume: how long after its time `status` said so, in milliseconds.
    fn stall(&mut self) -> anyhow::Result<Vec<f64>> {
        let Some(stores) = &self.stores else { return Ok(Vec::new()) };
        self.is_stalled = true;
        let keeper = self.keeper.as_mut().context("the keeper has left")?;
        stores.suspend()?;
        let begun = Instant::now();
        keeper.fsync()?;
        let mut left: Vec<&Volume> = self.neighbours.iter().collect();
        let mut noticed = Vec::new();
        eventually("all are stalled", || {
            let mut others = Vec::new();
            for volume in left.drain(..) {
                if volume.is_stalled()? {
                    noticed.push((begun.elapsed().as_secs_f64() - STALL_AFTER.as_secs_f64()) * 1e3);
                } else {
                    others.push(volume);
                }
            }
            left = others;
            Ok(left.is_empty())
        })?;
        Ok(noticed)
    }

    /// A measurement counts as beside stalled volumes only if all of them are stalled, and each has
    /// its waiting caller; and as beside others only if none is stalled, and the working ones work.
    pub(super) fn are_as_they_were(&mut self) -> anyhow::Result<()> {
        let is_stalled = self.is_stalled;
        for volume in &self.neighbours {
            ensure!(volume.is_stalled()? == is_stalled, "{}: stalled is not {is_stalled}", volume.name);
        }
        let (count, waiting) = (self.count_of_stalled(), self.keeper()?.waiting()?);
        ensure!(waiting == count, "{waiting} of {count} callers of fsync wait");
        self.is_at_work()
    }

    fn count_of_stalled(&self) -> usize {
        if self.is_stalled { self.neighbours.len() } else { 0 }
    }

    /// `status` of everything, and how long it took.
    pub(super) fn status(&self) -> anyhow::Result<Duration> {
        let done = self.verb(&["status"], None)?;
        ensure!(done.status.success(), "status: {}", done.error);
        let stalled = done.out.lines().filter(|line| line.contains(" stalled ")).count();
        ensure!(stalled == self.count_of_stalled(), "status says that {stalled} are stalled");
        Ok(done.took)
    }

    pub(super) fn uses(&self) -> anyhow::Result<Uses> {
        let done = self.verb(&["status", "--json"], None)?;
        let status: Value = serde_json::from_str(&done.out)?;
        let volumes = status["volumes"].as_array().context("no volumes")?;
        let mut processes: Vec<(u64, &Value)> = Vec::new();
        for volume in volumes {
            let pid = volume["pid"].as_u64().context("a volume without a process")?;
            if !processes.iter().any(|(known, _)| *known == pid) {
                processes.push((pid, &volume["process"]));
            }
        }
        let wanted = if self.main.is_some() { 1 } else { self.healthy.len() + self.neighbours.len() };
        ensure!(processes.len() == wanted, "status knows {} processes, not {wanted}", processes.len());
        let sum = |name: &str| processes.iter().filter_map(|(_, uses)| uses[name].as_f64()).sum::<f64>();
        Ok(Uses { threads: sum("threads"), mib: sum("resident_bytes") / 1_048_576.0 })
    }

    /// Gives up a stalled volume.
    pub(super) fn force(&mut self, at: usize) -> anyhow::Result<Duration> {
        let name = self.neighbours[at].name.clone();
        let done = self.verb(&["umount", "--force"], Some(&name))?;
        let is_told = done.status.code() == Some(1) && done.error.contains("dirty: 4096 bytes");
        ensure!(is_told, "umount --force did not tell what is lost: {}", done.error);
        Ok(done.took)
    }

    /// A verb of the program until it has ended, its start included; about a volume, if one is
    /// named.
    fn verb(&self, words: &[&str], volume: Option<&str>) -> anyhow::Result<Done> {
        // Files, not pipes: it is waited for first, with a limit.
        let (out, error) = (self.path("out"), self.path("error"));
        let mut command = self.command(words);
        command.args(volume.map(|name| self.at(name)));
        command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&error)?);
        let begun = Instant::now();
        let mut child = command.spawn()?;
        let Some((status, took)) = wait(&mut child, begun)? else {
            let _ended_now = child.kill();
            bail!("`watertight {}` has not ended after {} s", words.join(" "), LONG.as_secs());
        };
        let read = |file: &Path| fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Done { status, took, out: read(&out)?, error: read(&error)? })
    }

    /// Ends all of it.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.take_down()
    }

    /// In this order: callers that wait for the stores stop waiting; then processes that wait for
    /// these callers can be ended; and then the rest.
    fn take_down(&mut self) -> anyhow::Result<()> {
        let mut ended = Ok(());
        let mut and = |result: anyhow::Result<()>| {
            if ended.is_ok() {
                ended = result;
            }
        };
        if let Some(stores) = self.stores.take() {
            and(stores.kill());
        }
        if let Some(tenants) = &mut self.tenants {
            tenants.kill();
        }
        for volume in &mut self.neighbours {
            volume.server.take().into_iter().for_each(|server| and(server.kill()));
        }
        for volume in &mut self.healthy {
            volume.server.take().into_iter().for_each(|server| and(server.stop()));
        }
        if let Some((server, _)) = self.main.take() {
            // Attached volumes that have lost their stores would be tried again until a deadline.
            and(if self.neighbours.is_empty() { server.stop() } else { server.kill() });
        }
        // Their users have nothing to wait for now.
        self.tenants = None;
        self.keeper = None;
        ended
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("lab: {}: {error:#}", self.directory.path().display());
        }
    }
}

/// Waits for a child's end, at most [`LONG`]; how it ended, and how long it took.
fn wait(process: &mut std::process::Child, begun: Instant) -> anyhow::Result<Option<(ExitStatus, Duration)>> {
    use rustix::event::{PollFd, PollFlags};
    use rustix::process::{PidfdFlags, pidfd_open};
    let fd = pidfd_open(child::pid(process)?, PidfdFlags::empty())?;
    loop {
        let left = LONG.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        child::wait(&mut [PollFd::new(&fd, PollFlags::IN)], left)?;
        let took = begun.elapsed();
        if let Some(status) = process.try_wait()? {
            return Ok(Some((status, took)));
        }
    }
}

/// Waits until `done` returns `true`; no event reports that.
fn eventually(what: &str, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !done()? {
        ensure!(begun.elapsed() < LONG, "never: {what}");
        std::thread::sleep(LOOK);
    }
    Ok(())
}
