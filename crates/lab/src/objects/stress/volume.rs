//! A volume under stress: its process, and the programs that use it.
//!
//! # Lock order
//! A worker's lock is held for each of its operations; a thread that needs the volume at rest takes
//! all of them, in their order. `process` is taken after these, then `control` and `held`.
//!
//! | field | protected by |
//! |---|---|
//! | `workers` | a lock each |
//! | `process` | its lock; the thread that makes the events is the only one that takes it |
//! | `is_down` | atomic: set before a kill, so that a worker whose call fails then is no defect |
//! | `control` | its lock; none while nothing is mounted |
//! | `held` | its lock |
//! | `mounts`, `repeated` | atomic: a number for each log, and a figure for the results |

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use parking_lot::{Mutex, MutexGuard};

use super::super::subject::umount;
use super::model::Image;
use super::units::{Stamp, UNIT};
use super::worker::Worker;
use crate::child::Server as Process;
use crate::control::{Control, known};

/// How long a verb may take, in seconds: outages last a minute, and stalls some seconds.
const VERB_MAX_S: &str = "600";
/// How often a verb or a mount is tried that meets faults, and how long after one another.
const TRIES: u32 = 12;
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// How long a volume may be mounted before its record is there.
const RECORD_MAX: Duration = Duration::from_secs(30);
/// What the volume is mounted with, besides a disk cache.
const OPTIONS: &str = "cache=128M,uring=off,disk_cache_size=128M";

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) name: &'static str,
    pub(super) url: String,
    pub(super) directory: PathBuf,
    program: PathBuf,
    endpoint: Option<String>,
    pub(super) workers: Vec<Mutex<Worker>>,
    process: Mutex<Option<Process>>,
    is_down: AtomicBool,
    control: Mutex<Option<Control>>,
    mounts: AtomicU64,
    /// What its snapshots show.
    held: Mutex<Vec<Image>>,
    /// Verbs and mounts that had to be repeated.
    pub(super) repeated: AtomicU64,
}

impl Volume {
    /// A volume at `url` that does not exist yet, with so many workers of so many bytes each.
    ///
    /// # Errors
    /// If its directories cannot be made.
    pub(super) fn new(
        name: &'static str,
        (url, endpoint): (String, Option<String>),
        (program, scratch): (&Path, &Path),
        (workers, budget, seed): (u64, u64, u64),
    ) -> anyhow::Result<Self> {
        let directory = scratch.join(name);
        for part in ["mount", "snapshot", "run", "run-elsewhere", "cache"] {
            fs::create_dir_all(directory.join(part))?;
            fs::set_permissions(directory.join(part), fs::Permissions::from_mode(0o700))?;
        }
        let mount = directory.join("mount");
        let worker = |number| Mutex::new(Worker::new(number, &mount, seed, budget));
        Ok(Self {
            name,
            url,
            program: program.to_owned(),
            endpoint,
            workers: (1..=workers).map(worker).collect(),
            process: Mutex::new(None),
            is_down: AtomicBool::new(true),
            control: Mutex::new(None),
            mounts: AtomicU64::new(0),
            held: Mutex::default(),
            repeated: AtomicU64::new(0),
            directory,
        })
    }

    /// Where it is mounted.
    pub(super) fn at(&self) -> PathBuf {
        self.directory.join("mount")
    }

    /// All workers, which do nothing meanwhile.
    pub(super) fn at_rest(&self) -> Vec<MutexGuard<'_, Worker>> {
        self.workers.iter().map(Mutex::lock).collect()
    }

    /// From now on its snapshots show these.
    pub(super) fn hold(&self, images: Vec<Image>) {
        *self.held.lock() = images;
    }

    /// Bytes of data that its files and snapshots need, data that several share counted once; none if
    /// a worker does not rest within `patience`.
    pub(super) fn needed(&self, patience: Duration) -> Option<u64> {
        let mut units: Vec<(Stamp, usize)> = Vec::new();
        let mut add = |image: &Image| {
            for file in image.files.values() {
                units.extend(file.iter().copied().zip(0..).filter(|(stamp, _)| *stamp != 0));
            }
        };
        self.held.lock().iter().for_each(&mut add);
        for worker in &self.workers {
            let image = match patience {
                Duration::MAX => worker.lock().image(),
                _ => worker.try_lock_for(patience)?.image(),
            };
            add(&image);
        }
        units.sort_unstable();
        units.dedup();
        Some((units.len() * UNIT) as u64)
    }

    /// Bytes that its workers have written, and calls and syncs that they have made.
    pub(super) fn work(&self, patience: Duration) -> Option<(u64, u64, u64)> {
        self.workers.iter().try_fold((0, 0, 0), |(written, operations, syncs), worker| {
            let worker = worker.try_lock_for(patience)?;
            Some((written + worker.written, operations + worker.operations, syncs + worker.syncs))
        })
    }

    /// Whether calls may fail now, since its process is gone.
    pub(super) fn is_down(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `kill`: a call that fails since the process
        // was killed is followed by a load that sees it.
        self.is_down.load(Ordering::Acquire)
    }

    /// Its control socket, while it is mounted.
    pub(super) fn control(&self) -> Option<Control> {
        self.control.lock().clone()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", VERB_MAX_S]).arg(&self.program).args(arguments);
        self.environment(&mut command, "run");
        command
    }

    fn environment(&self, command: &mut Command, run: &str) {
        command.stdin(Stdio::null()).env_remove("AWS_CA_BUNDLE").env("RUST_LOG", "info");
        command.envs(self.endpoint.iter().map(|endpoint| ("AWS_ENDPOINT_URL", endpoint)));
        command.env("WATERTIGHT_RUNTIME_DIR", self.directory.join(run));
    }

    /// Runs the program once.
    ///
    /// # Errors
    /// If it fails, in its words.
    pub(super) fn verb_once(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(arguments).output()?;
        // What `fsck --json` finds is on standard output.
        let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{}: {}: {}", arguments.join(" "), output.status, said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs the program, and again where it meets faults. One that says `done` has been done by the
    /// attempt before, whose answer was lost.
    ///
    /// # Errors
    /// If it fails each time, in its last words.
    pub(super) fn verb(&self, arguments: &[&str], done: &str) -> anyhow::Result<String> {
        self.again(|number| match self.verb_once(arguments) {
            Err(error) if number > 0 && !done.is_empty() && format!("{error:#}").contains(done) => {
                Ok(String::new())
            }
            other => other,
        })
    }

    fn again<T>(&self, mut attempt: impl FnMut(u32) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut number = 0;
        loop {
            match attempt(number) {
                Ok(done) => return Ok(done),
                Err(error) if number + 1 == TRIES => return Err(error.context(format!("{TRIES} times"))),
                Err(error) => {
                    eprintln!("lab: {}: attempt {}: {error:#}", self.name, number + 1);
                    // ORDERING: Relaxed; a figure for the results.
                    self.repeated.fetch_add(1, Ordering::Relaxed);
                    number += 1;
                    // The store is ill, and no event reports that it is well again.
                    std::thread::sleep(AGAIN_AFTER);
                }
            }
        }
    }

    /// Mounts it, on its own mountpoint.
    ///
    /// # Errors
    /// If it does not come up.
    pub(super) fn mount(&self) -> anyhow::Result<()> {
        let options = format!("{OPTIONS},disk_cache={}", self.directory.join("cache").display());
        let process = self.again(|_| self.start(&self.url, &self.at(), "run", &options))?;
        let process_id = process.pid();
        *self.process.lock() = Some(process);
        *self.control.lock() = Some(self.control_of(process_id)?);
        // ORDERING: Release; workers that see it find the mount.
        self.is_down.store(false, Ordering::Release);
        Ok(())
    }

    /// The control socket of the process that serves now: those that were killed have records, too.
    fn control_of(&self, process: u32) -> anyhow::Result<Control> {
        let until = Instant::now() + RECORD_MAX;
        loop {
            let known = known(&self.directory.join("run"))?.into_iter().map(|(_, control)| control);
            let is_its = |control: &Control| control.status().is_ok_and(|status| status["pid"] == process);
            if let Some(control) = known.into_iter().find(is_its) {
                return Ok(control);
            }
            ensure!(Instant::now() < until, "process {process} has no record");
            // Another process writes it, a moment after the mount is there.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Mounts something else that belongs to it: a snapshot, a clone.
    ///
    /// # Errors
    /// If it does not come up.
    pub(super) fn mount_beside(&self, url: &str, options: &str) -> anyhow::Result<Process> {
        let at = self.directory.join("snapshot");
        self.again(|_| self.start(url, &at, "run-elsewhere", options))
    }

    fn start(&self, url: &str, at: &Path, run: &str, options: &str) -> anyhow::Result<Process> {
        // ORDERING: Relaxed; it only numbers the logs.
        let number = self.mounts.fetch_add(1, Ordering::Relaxed);
        let mut command = Command::new(&self.program);
        command.args(["--log-format", "json", "mount", "-o", options]).arg(url).arg(at);
        self.environment(&mut command, run);
        Process::start(&mut command, at, &self.directory.join(format!("mount-{number}.log")))
    }

    /// Unmounts it, by its own verb or by umount(8), and waits for the process.
    ///
    /// # Errors
    /// If it does not do it, or leaves something.
    pub(super) fn unmount(&self, by_verb: bool) -> anyhow::Result<Duration> {
        let process = self.process.lock().take().context("nothing is mounted")?;
        *self.control.lock() = None;
        // ORDERING: Release, as in `kill`. All workers rest, and do not begin meanwhile.
        self.is_down.store(true, Ordering::Release);
        let begun = Instant::now();
        let pid = process.pid();
        if by_verb {
            self.verb_once(&["umount", &self.at().display().to_string()])?;
        } else {
            umount(&self.at())?;
        }
        let took = begun.elapsed();
        process.stop()?;
        ensure!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is there after the unmount");
        self.nothing_is_left()?;
        Ok(took)
    }

    /// Neither mount nor loop device of it is there.
    fn nothing_is_left(&self) -> anyhow::Result<()> {
        let place = self.directory.display().to_string();
        for table in ["/proc/self/mountinfo", "/proc/mounts"] {
            let table = fs::read_to_string(table)?;
            if let Some(line) = table.lines().find(|line| line.contains(&place)) {
                bail!("a mount is left: {line}");
            }
        }
        let Ok(blocks) = fs::read_dir("/sys/block") else { return Ok(()) };
        for block in blocks.flatten() {
            let backing = fs::read_to_string(block.path().join("loop/backing_file")).unwrap_or_default();
            ensure!(!backing.contains(&place), "{:?} is left: {backing}", block.file_name());
        }
        Ok(())
    }

    /// Kills its process in the midst of everything.
    ///
    /// # Errors
    /// If it is still there after a while.
    pub(super) fn kill(&self) -> anyhow::Result<()> {
        let process = self.process.lock().take().context("nothing is mounted")?;
        *self.control.lock() = None;
        // ORDERING: Release; before the kill: see `is_down`.
        self.is_down.store(true, Ordering::Release);
        process.kill()
    }

    /// One of its workers runs until the end: an operation, and then a pause, by a seed.
    ///
    /// # Errors
    /// What the worker has met while the process was there.
    pub(super) fn run_worker(
        &self,
        number: usize,
        pace: &mut Pace,
        is_over: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        while !is_over() {
            let mut worker = self.workers[number].lock();
            if !self.is_down() {
                let stepped = worker.step();
                if let Err(error) = stepped
                    && !self.is_down()
                {
                    return Err(error.context(format!("{}: {}", self.name, worker.name())));
                }
            }
            drop(worker);
            pace.pause();
        }
        Ok(())
    }
}

/// How fast a worker is.
#[derive(Debug)]
pub(super) struct Pace {
    random: crate::random::Random,
    /// Operations of a burst that are left.
    burst: u64,
}

/// Pauses between operations, at most, in milliseconds; and bursts without pauses: one after so many
/// operations, of so many at most.
const PAUSE_MAX_MS: u64 = 2000;
const BURST_AFTER: u64 = 200;
const BURST_MAX: u64 = 120;

impl Pace {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: crate::random::Random::new(seed), burst: 0 }
    }

    fn pause(&mut self) {
        if self.burst > 0 {
            self.burst -= 1;
            // Others may have the volume at rest.
            std::thread::yield_now();
            return;
        }
        if self.random.next().is_multiple_of(BURST_AFTER) {
            self.burst = self.random.next() % BURST_MAX;
        }
        std::thread::sleep(Duration::from_millis(self.random.next() % PAUSE_MAX_MS));
    }
}
