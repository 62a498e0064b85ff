//! A volume's mount process: started, or taken over, and watched by a thread.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::config::VolumeConfig;
use crate::control::api::State;
use crate::daemon::background::READY;
use crate::host::{checks, process};
use crate::registry::RuntimeDir;
use crate::registry::target::{self, Target};
use crate::term::logging;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Name, Show as _, Words};

/// How many lost files of a volume are named.
const LOST_NAMED_MAX: usize = 5;
/// How long a process may take to go that has ended.
const KEPT: Duration = Duration::from_secs(1);
/// One wait for a process that was taken over.
const LONG: Duration = Duration::from_secs(3600);
/// The stack of a thread that waits for one process.
const STACK: usize = 128 << 10;

/// A volume's process.
#[derive(Debug)]
pub(super) struct Child {
    pid: u32,
    /// Since when it is known to have ended and not to go.
    kept_since: Option<Instant>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// With everything written.
    Unmounted,
    /// Otherwise; how.
    Failed(String),
}

impl Child {
    /// Takes the volume over if it is mounted, else starts its process. `ready` is called once it
    /// is mounted, `ended` when the process is gone; both from another thread.
    pub(super) fn start(
        volume: &VolumeConfig,
        ready: impl FnOnce() + Send + 'static,
        ended: impl FnOnce(Ending) + Send + 'static,
    ) -> Result<Self> {
        if let Some(running) = running(volume)? {
            let pid = running.record().pid;
            tracing::info!(
                volume = %volume.mountpoint.shown().exact(),
                "{} is mounted already by process {pid}, which is taken over",
                volume.mountpoint.shown()
            );
            watch(move || {
                ready();
                ended(wait_for(&running));
            })?;
            return Ok(Self { pid, kept_since: None });
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0("watertight").args(logging::arguments()).arg("mount");
        let options = volume.mount_options();
        if !options.is_empty() {
            command.args(["-o", &options]);
        }
        let mut child = command
            .arg("--")
            .arg(&volume.source)
            .arg(&volume.mountpoint)
            // The service manager is notified of all volumes by the one process that it started.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for the process that serves all.
            .process_group(0)
            .spawn()
            .map_err(|error| Problem::failure(format!("cannot start the mount process: {error}")))?;
        let pid = child.id();
        watch(move || {
            let mut line = String::new();
            if let Some(out) = child.stdout.take()
                && BufReader::new(out).read_line(&mut line).is_ok()
                && line.starts_with(READY)
            {
                ready();
            }
            ended(match child.wait() {
                Ok(status) if status.success() => Ending::Unmounted,
                Ok(status) => Ending::Failed(format!("its process {pid} ended with {status}{}", lost(pid))),
                Err(error) => Ending::Failed(format!("its process {pid} cannot be waited for: {error}")),
            });
        })?;
        Ok(Self { pid, kept_since: None })
    }

    /// Whether the process has ended except for threads that wait in the kernel, for a store that
    /// does not answer. A process that is about to be reaped looks the same for a moment.
    pub(super) fn waits_in_the_kernel(&mut self) -> bool {
        if !process::has_ended(self.pid) {
            self.kept_since = None;
            return false;
        }
        self.kept_since.get_or_insert_with(Instant::now).elapsed() >= KEPT
    }

    /// How it ended that does not go although it has ended.
    pub(super) fn ending(&self) -> Ending {
        let pid = self.pid;
        let ended = RuntimeDir::readable().iter().find_map(|dir| dir.end_of(pid));
        if ended.is_some_and(|ended| ended.state == State::Released) {
            return Ending::Unmounted;
        }
        Ending::Failed(format!(
            "its process {pid} has ended, and waits in the kernel for its store{}",
            lost(pid)
        ))
    }

    /// Sends a signal to the process.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid.cast_signed()) {
            let _gone_already = kill_process(pid, signal);
        }
    }
}

/// The data that a process reports as not written.
fn lost(pid: u32) -> String {
    let ended = RuntimeDir::readable().iter().find_map(|dir| dir.end_of(pid));
    let Some(ended) = ended.filter(|ended| ended.state != State::Released) else { return String::new() };
    let unwritten = (!ended.unwritten.is_empty()).then(|| ended.unwritten.lines(LOST_NAMED_MAX));
    let lines = unwritten.unwrap_or_default().into_iter().map(|line| line.trim().to_owned());
    let said = ended.error.iter().map(Words::to_string).chain(lines);
    said.fold(String::new(), |all, line| all + "; " + &line)
}

fn watch(body: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name("volume".to_owned()).stack_size(STACK);
    thread.spawn(body).map(drop).map_err(|error| Problem::failure(format!("cannot start a thread: {error}")))
}

/// The volume, if it is mounted from its source.
fn running(volume: &VolumeConfig) -> Result<Option<target::RegisteredVolume>> {
    let Target { volume: found, .. } = target::resolve(volume.mountpoint.as_os_str());
    let Some(found) = found.filter(|found| found.is_running()) else { return Ok(None) };
    let here = found.record().mountpoint == Name::of(&volume.mountpoint);
    Ok((here && checks::source(&volume.source)?.spec == found.record().source).then_some(found))
}

/// Waits for the end of a process that is not our child; its record tells how it ended.
fn wait_for(volume: &target::RegisteredVolume) -> Ending {
    let Some(client) = &volume.found.client else { return Ending::Unmounted };
    while !client.wait_gone(LONG) {}
    match volume.dir.read_record(&volume.record().id).and_then(|record| record.ended) {
        Some(ended) if ended.state == State::Released => Ending::Unmounted,
        Some(_) => Ending::Failed("it ended with data that was not written".to_owned()),
        None => Ending::Failed(format!("its process {} died", client.pid())),
    }
}

/// Clears the mount of a process that died.
pub(super) fn clear(mountpoint: &Path) {
    let Target { mount: Some(mount), volume, .. } = target::resolve(mountpoint.as_os_str()) else { return };
    if crate::host::mountinfo::is_ours(&mount)
        && volume.is_none_or(|volume| !volume.is_running())
        && let Err(problem) = crate::host::unmount::detach(&mount)
    {
        tracing::warn!(volume = %mountpoint.shown().exact(), "{problem}");
    }
}
