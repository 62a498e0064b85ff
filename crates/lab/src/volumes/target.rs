//! The targets: ours and the peers, each behind a directory in which clients work.

use super::dirs::RunDirs;
use super::scenario::Scenario;
use super::{ours, peers};
use crate::child::Server;
use crate::experiment::Settings;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The server of a running target.
#[derive(Debug)]
pub(crate) enum Serving {
    /// A process.
    Process(Server),
    /// The kernel, in a directory that was there before.
    Directory,
    /// The kernel, on an image that is mounted until this is dropped.
    Image(peers::Image),
}

/// A target that is up.
#[derive(Debug)]
pub(crate) struct Mounted {
    root: PathBuf,
    serving: Serving,
    /// Processor time of the server when it was up, and in its own slices since.
    cpu_at_start: Option<Duration>,
    cpu_own: Duration,
}

impl Mounted {
    /// A target whose clients work in `root`.
    pub(crate) fn new(root: PathBuf, serving: Serving) -> Self {
        Self { root, serving, cpu_at_start: None, cpu_own: Duration::ZERO }
    }

    /// Where clients work.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the kernel's cache of a file is in front of the target, and not part of it.
    pub(crate) fn drops_cache(&self) -> bool {
        matches!(self.serving, Serving::Process(_))
    }

    /// Processor time of the server so far.
    pub(crate) fn cpu_time(&mut self) -> Option<Duration> {
        let Serving::Process(server) = &self.serving else { return None };
        let now = server.cpu_time()?;
        self.cpu_at_start.get_or_insert(now);
        Some(now)
    }

    /// Counts the time used since `before` as the target's own, and returns it.
    pub(crate) fn add_own_cpu(&mut self, before: Option<Duration>) -> Option<Duration> {
        let used = self.cpu_time()?.saturating_sub(before?);
        self.cpu_own += used;
        Some(used)
    }

    /// Processor time that the server used between its slices.
    pub(crate) fn idle_cpu(&self) -> Option<Duration> {
        let Serving::Process(server) = &self.serving else { return None };
        Some(server.cpu_time()?.saturating_sub(self.cpu_at_start?).saturating_sub(self.cpu_own))
    }

    /// Takes it down.
    ///
    /// # Errors
    /// If the mount cannot be taken away or the server does not end.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        match self.serving {
            Serving::Process(server) => server.stop(),
            Serving::Image(image) => image.stop(),
            Serving::Directory => Ok(()),
        }
    }
}

/// Whether a target can be measured.
#[derive(Debug)]
pub(crate) enum State {
    Up(Mounted),
    /// Not, and why: a short reason up to a colon, then the rest.
    Down(String),
}

/// How a target is brought up.
#[derive(Debug)]
pub(crate) enum Start {
    /// A server; its mount appears at `root`.
    Server { command: Command, root: PathBuf, log: PathBuf },
    /// A directory that the kernel serves.
    Directory(PathBuf),
    /// A file system image to be made in `directory` and mounted at `root`.
    Image { directory: PathBuf, root: PathBuf },
    /// It cannot be.
    Impossible(String),
}

/// Ours in one mode on one store, or a peer.
#[derive(Debug)]
pub(crate) struct Target {
    /// Its variant in the rows.
    pub(crate) variant: &'static str,
    /// Whether it is on our memory store.
    pub(crate) in_memory: bool,
    /// Whether written data can be read again.
    pub(crate) stores_data: bool,
    /// Whether its rows stand for the memory store too.
    pub(crate) stands_for_memory: bool,
    /// Notes for a reader about its rows.
    pub(crate) note: String,
    pub(crate) start: Start,
    pub(crate) state: State,
    /// Scenarios in which it failed; they are not tried again.
    pub(crate) failed: HashSet<Scenario>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.variant)?;
        if self.in_memory { f.write_str(" (memory store)") } else { Ok(()) }
    }
}

impl Target {
    /// A target with a directory on the host, as most are.
    pub(crate) fn new(variant: &'static str, start: Start, note: &str) -> Self {
        Self {
            variant,
            in_memory: false,
            stores_data: true,
            stands_for_memory: false,
            note: note.to_owned(),
            start,
            state: State::Down("not started".to_owned()),
            failed: HashSet::new(),
        }
    }

    /// Brings it up, or notes why not.
    pub(crate) fn mount(&mut self) {
        self.state = match self.try_mount() {
            Ok(mounted) => State::Up(mounted),
            Err(why) => State::Down(why),
        };
    }

    fn try_mount(&mut self) -> Result<Mounted, String> {
        let cannot = |error: anyhow::Error| format!("cannot mount: {error:#}");
        match &mut self.start {
            Start::Impossible(why) => Err(why.clone()),
            Start::Directory(root) => Ok(Mounted::new(root.clone(), Serving::Directory)),
            Start::Image { directory, root } => {
                let image = peers::Image::mount(directory, root).map_err(cannot)?;
                Ok(Mounted::new(root.clone(), Serving::Image(image)))
            }
            Start::Server { command, root, log } => {
                let server = Server::start(command, root, log).map_err(cannot)?;
                Ok(Mounted::new(root.clone(), Serving::Process(server)))
            }
        }
    }

    /// The names of its rows for a scenario.
    pub(crate) fn rows(&self, scenario: Scenario) -> Vec<String> {
        let (plain, memory) = (scenario.name().to_owned(), format!("{}/mem", scenario.name()));
        match (self.in_memory, self.stands_for_memory) {
            (true, _) => vec![memory],
            (false, true) => vec![plain, memory],
            (false, false) => vec![plain],
        }
    }

    /// The note of its row.
    pub(crate) fn row_note(&self, scenario: Scenario) -> Option<String> {
        if self.variant == "rclone" && scenario.is_about_durability() {
            return Some(format!("{}; fdatasync ends in rclone's own cache", self.note));
        }
        (!self.note.is_empty()).then(|| self.note.clone())
    }

    /// The command that serves it, for a reader that wants to do the same.
    pub(crate) fn command_note(&self) -> Option<String> {
        let Start::Server { command, .. } = &self.start else { return None };
        let arguments: Vec<String> = command.get_args().map(shown).collect();
        let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
        Some(format!("{self}: `{} {}`", program.to_string_lossy(), arguments.join(" ")))
    }
}

/// An argument as a reader would write it: a path of this run is `DIR`.
fn shown(argument: &OsStr) -> String {
    let argument = argument.to_string_lossy();
    match argument.split_once('/') {
        Some(("", _)) => "DIR".to_owned(),
        Some((option, _)) if option.ends_with('=') => format!("{option}DIR"),
        _ if argument.is_empty() => "''".to_owned(),
        _ => argument.into_owned(),
    }
}

/// The targets of the chosen variants, in the order of the table.
pub(crate) fn all(settings: &Settings, dirs: &RunDirs) -> Vec<Target> {
    let mut targets = Vec::new();
    let program = ours::program(settings);
    for &variant in &settings.variants {
        match variant {
            "null" => targets.push(peers::null(dirs)),
            "bindfs" => targets.push(peers::bindfs(dirs)),
            "rclone" => targets.push(peers::rclone(dirs)),
            "passthrough_ll" => targets.push(peers::passthrough_ll(dirs)),
            "ext4" => targets.push(peers::ext4(dirs)),
            "tmpfs" => targets.push(peers::tmpfs(dirs)),
            ours => targets.extend(ours::targets(ours, &program, dirs)),
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_run_are_not_shown() {
        for (argument, text) in [
            ("/tmp/x/mnt", "DIR"),
            ("source=/dev/shm/x", "source=DIR"),
            ("--multithreaded", "--multithreaded"),
            ("cache=1G,mode=kernel-writeback", "cache=1G,mode=kernel-writeback"),
            ("mem:", "mem:"),
            ("", "''"),
        ] {
            assert_eq!(shown(OsStr::new(argument)), text);
        }
    }

    #[test]
    fn the_memory_store_has_rows_of_its_own_and_the_null_server_both() {
        let rows = |in_memory, stands_for_memory| {
            let target = Target::new("v", Start::Impossible(String::new()), "");
            Target { in_memory, stands_for_memory, ..target }.rows(Scenario::Untar)
        };
        assert_eq!(rows(false, false), ["untar"]);
        assert_eq!(rows(true, false), ["untar/mem"]);
        assert_eq!(rows(false, true), ["untar", "untar/mem"]);
    }
}
