//! What is mounted from the bucket: a volume, or a directory of a peer's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::bucket::Server;
use super::delay::Line;
use super::peers::Peer;
use super::requests::{LOG_FILTER, Requests};
use super::wire::Sent;
use crate::child::Server as Process;
use crate::control::{Control, known};

/// How long a mount may be busy that nobody uses.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// How long a volume may be mounted before its record is there.
const RECORD_MAX: Duration = Duration::from_secs(10);

/// A place in the bucket, and how it is mounted.
pub(super) struct Subject {
    pub(super) directory: PathBuf,
    pub(super) program: PathBuf,
    pub(super) kind: Kind,
    /// By which it finds the server, if there is one.
    pub(super) line: Option<Line>,
}

pub(super) enum Kind {
    Ours {
        url: String,
        /// What it is mounted with.
        options: String,
    },
    Peer(Peer),
}

/// A mount of a subject.
pub(super) struct Mounted {
    process: Process,
    at: PathBuf,
    run: Option<PathBuf>,
    log: PathBuf,
}

impl Subject {
    /// A new volume of ours.
    ///
    /// # Errors
    /// If it cannot be formatted.
    pub(super) fn ours(program: &Path, server: &Server, scratch: &Path, name: &str) -> anyhow::Result<Self> {
        let subject = Self::unmade(program, server, scratch, name)?;
        subject.run(&["format", subject.url()])?;
        Ok(subject)
    }

    /// A new volume of ours, which is mounted with these options and a journal.
    ///
    /// # Errors
    /// If it cannot be formatted.
    pub(super) fn ours_with_journal(
        program: &Path,
        server: &Server,
        scratch: &Path,
        name: &str,
        options: &str,
    ) -> anyhow::Result<Self> {
        let mut subject = Self::ours(program, server, scratch, name)?;
        let journal = subject.directory.join("journal");
        fs::create_dir_all(&journal)?;
        if let Kind::Ours { options: its, .. } = &mut subject.kind {
            *its = format!("{options},journal={}", journal.display());
        }
        Ok(subject)
    }

    /// A volume of ours that is not formatted.
    ///
    /// # Errors
    /// If its directories cannot be made.
    pub(super) fn unmade(
        program: &Path,
        server: &Server,
        scratch: &Path,
        name: &str,
    ) -> anyhow::Result<Self> {
        let kind = Kind::Ours { url: server.url(name), options: String::new() };
        let (directory, line) = (directories(scratch, name)?, server.line()?);
        Ok(Self { directory, program: program.to_owned(), kind, line })
    }

    /// Runs the program for a volume of ours; the requests that it sent, if it says so.
    ///
    /// # Errors
    /// If it fails, in its words.
    pub(super) fn run(&self, arguments: &[&str]) -> anyhow::Result<Option<Requests>> {
        let output =
            self.command(arguments).env("WATERTIGHT_RUNTIME_DIR", self.directory.join("run")).output()?;
        let verb = arguments.first().copied().unwrap_or_default();
        ensure!(output.status.success(), "{verb}: {}", said(&output));
        Ok(Requests::logged(&String::from_utf8_lossy(&output.stderr)))
    }

    /// The URL of a volume of ours; nothing for a peer's.
    pub(super) fn url(&self) -> &str {
        match &self.kind {
            Kind::Ours { url, .. } => url,
            Kind::Peer(_) => "",
        }
    }

    /// Mounts it.
    ///
    /// # Errors
    /// If it does not come up.
    pub(super) fn mount(&self) -> anyhow::Result<Mounted> {
        self.mount_at("mount", "run", "")
    }

    /// Mounts it in another place, as another host does.
    ///
    /// # Errors
    /// If it does not come up.
    pub(super) fn mount_elsewhere(&self) -> anyhow::Result<Mounted> {
        self.mount_at("elsewhere", "run-elsewhere", "")
    }

    /// Mounts a volume of ours whose fsyncs wait for a journal.
    ///
    /// # Errors
    /// If it does not come up.
    pub(super) fn mount_with_journal(&self) -> anyhow::Result<Mounted> {
        let journal = self.directory.join("journal");
        fs::create_dir_all(&journal)?;
        self.mount_at("mount", "run", &format!("fsync_to=host,journal={}", journal.display()))
    }

    fn mount_at(&self, place: &str, run: &str, options: &str) -> anyhow::Result<Mounted> {
        let (at, run) = (self.directory.join(place), self.directory.join(run));
        let (mut command, run) = match &self.kind {
            Kind::Ours { url, options: its } => {
                let options = if options.is_empty() { its } else { options };
                fs::create_dir_all(&run)?;
                fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
                let mut command = self.command(&["mount"]);
                command.arg(url).arg(&at).env("WATERTIGHT_RUNTIME_DIR", &run);
                if !options.is_empty() {
                    command.args(["-o", options]);
                }
                (command, Some(run))
            }
            Kind::Peer(peer) => {
                let mut command = self.command(&[]);
                peer.mount(&mut command, &self.cache(), &at);
                (command, None)
            }
        };
        let log = self.directory.join(format!("{place}.log"));
        let process = Process::start(&mut command, &at, &log)?;
        Ok(Mounted { process, at, run, log })
    }

    /// Mounts a volume of ours in another place, though a process holds it that does not answer.
    ///
    /// # Errors
    /// If it does not come up.
    pub(super) fn take_over(&self) -> anyhow::Result<Mounted> {
        self.mount_at("elsewhere", "run-elsewhere", "takeover")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // With a bundle, versions of rclone refuse every S3 server.
        command.args(arguments).env_remove("AWS_CA_BUNDLE").stdin(Stdio::null());
        command.envs(self.line.iter().map(|line| ("AWS_ENDPOINT_URL", line.endpoint())));
        if matches!(self.kind, Kind::Ours { .. }) {
            command.args(["--log-format", "json"]).env("RUST_LOG", LOG_FILTER);
        }
        command
    }

    /// Removes what nobody needs from the bucket of a volume of ours.
    ///
    /// # Errors
    /// If the program does not do it.
    pub(super) fn collect_garbage(&self) -> anyhow::Result<()> {
        self.run(&["gc", self.url()]).map(drop)
    }

    /// Whether a peer still has something on this host to be uploaded, which its next mount does.
    ///
    /// # Errors
    /// If its cache directory cannot be read.
    pub(super) fn has_something_to_upload(&self) -> std::io::Result<bool> {
        match &self.kind {
            Kind::Ours { .. } => Ok(false),
            Kind::Peer(peer) => peer.has_something_to_upload(&self.cache()),
        }
    }

    /// This volume of ours for a client with an address of its own, which has no journal.
    ///
    /// # Errors
    /// If no port is free.
    pub(super) fn of_another_host(&self, server: &Server) -> anyhow::Result<Self> {
        let kind = Kind::Ours { url: self.url().to_owned(), options: String::new() };
        let (directory, program) = (self.directory.clone(), self.program.clone());
        Ok(Self { directory, program, kind, line: server.line()? })
    }

    /// Where a peer keeps what it has not uploaded.
    fn cache(&self) -> PathBuf {
        self.directory.join("cache")
    }

    /// What it has sent so far, its program's other calls included; none without a server.
    ///
    /// # Errors
    /// If a connection was not understood.
    pub(super) fn sent(&self) -> anyhow::Result<Option<Sent>> {
        self.line.as_ref().map(Line::sent).transpose()
    }
}

/// The directories of a subject.
///
/// # Errors
/// If they cannot be made.
pub(super) fn directories(scratch: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let directory = scratch.join(name);
    for part in ["mount", "elsewhere", "cache"] {
        fs::create_dir_all(directory.join(part))?;
    }
    Ok(directory)
}

impl Mounted {
    pub(super) fn path(&self) -> &Path {
        &self.at
    }

    /// Attaches another volume of ours at a path in this one.
    ///
    /// # Errors
    /// If its process does not do it.
    pub(super) fn attach(&self, path: &str, source: &str) -> anyhow::Result<()> {
        let run = self.run.as_ref().context("no volume of ours")?;
        let wish = serde_json::json!({ "path": path, "source": source, "options": [] });
        control(run)?.call("POST", "/v1/attach", &wish).map(drop)
    }

    /// The requests that the volume has sent; none if it does not say.
    ///
    /// # Errors
    /// If its process does not answer.
    pub(super) fn requests(&self) -> anyhow::Result<Option<Requests>> {
        let Some(run) = &self.run else { return Ok(None) };
        let control = control(run)?;
        let status = control.status()?;
        Ok(Requests::of_status(&status))
    }

    /// The requests that a volume of ours has sent.
    ///
    /// # Errors
    /// If its process does not answer, or it is none of ours.
    pub(super) fn requests_so_far(&self) -> anyhow::Result<Requests> {
        self.requests()?.context("the volume does not count its requests")
    }

    /// Stops its process: it answers nothing from then on.
    ///
    /// # Errors
    /// If it is gone.
    pub(super) fn suspend(&self) -> anyhow::Result<()> {
        self.process.suspend()
    }

    /// Ends its process by a signal.
    ///
    /// # Errors
    /// If it is still there after a while.
    pub(super) fn kill(self) -> anyhow::Result<()> {
        self.process.kill()
    }

    /// umount(8): how long it took, and all requests of the process, whose end is waited for.
    ///
    /// # Errors
    /// If umount(8) fails, or the process does not end.
    pub(super) fn unmount_and_count(self) -> anyhow::Result<(Duration, Option<Requests>)> {
        let begun = Instant::now();
        let unmounted = self.umount()?;
        let took = begun.elapsed();
        Ok((took, unmounted.end()?))
    }

    /// umount(8), without a wait for the end of its process.
    ///
    /// # Errors
    /// If umount(8) fails.
    pub(super) fn unmount(self) -> anyhow::Result<()> {
        self.umount().map(drop)
    }

    /// As [`unmount`](Self::unmount), for a caller that waits for the process later.
    ///
    /// # Errors
    /// If umount(8) fails.
    pub(super) fn umount(self) -> anyhow::Result<Unmounted> {
        umount(&self.at)?;
        let Self { process, log, .. } = self;
        Ok(Unmounted { process: std::thread::spawn(move || process.stop()), log })
    }
}

/// A process whose mount is gone. It is waited for in the background if it is dropped.
pub(super) struct Unmounted {
    process: JoinHandle<anyhow::Result<()>>,
    log: PathBuf,
}

impl Unmounted {
    /// Waits for the process's end; the requests that it logged, if it is one of ours.
    ///
    /// # Errors
    /// If it does not end.
    pub(super) fn end(self) -> anyhow::Result<Option<Requests>> {
        self.process.join().expect("it does not panic")?;
        Ok(Requests::logged(&fs::read_to_string(&self.log)?))
    }
}

/// The one volume in a runtime directory.
///
/// # Errors
/// If it has no record after a while.
pub(super) fn control(run: &Path) -> anyhow::Result<Control> {
    let until = Instant::now() + RECORD_MAX;
    loop {
        if let Some((_, control)) = known(run)?.pop() {
            return Ok(control);
        }
        ensure!(Instant::now() < until, "the volume has no record");
        // Another process writes it, a moment after the mount is there.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// umount(8), once nothing else keeps the mount busy: a program that has just mounted it may still
/// look which calls the kernel passes on.
pub(super) fn umount(at: &Path) -> anyhow::Result<()> {
    let until = Instant::now() + BUSY_MAX;
    loop {
        let output = Command::new("umount").arg(at).stdin(Stdio::null()).env("LC_ALL", "C").output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = said(&output);
        ensure!(said.contains("busy") && Instant::now() < until, "umount: {said}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
