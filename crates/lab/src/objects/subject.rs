//! What is mounted from the bucket: a volume, or a directory of a peer's.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::bucket::Server;
use super::requests::{LOG_FILTER, Requests};
use crate::child::Server as Process;
use crate::control::{Control, known};

/// How long a mount may be busy that nobody uses.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// How long a volume may be mounted before its record is there.
const RECORD_MAX: Duration = Duration::from_secs(10);

/// A place in the bucket, and how it is mounted.
pub(super) struct Subject {
    directory: PathBuf,
    program: PathBuf,
    kind: Kind,
    /// The server's, for a volume of ours.
    endpoint: Option<String>,
}

enum Kind {
    Ours {
        url: String,
        /// What it is mounted with.
        options: String,
    },
    Rclone {
        remote: String,
        flags: Vec<String>,
    },
    /// Its metadata are in a database on this host.
    Juicefs {
        metadata: String,
        writeback: bool,
    },
}

/// A process whose mount is gone.
pub(super) struct Unmounted {
    process: Process,
    log: PathBuf,
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
        let ours = Self::new(program.to_owned(), scratch, name, kind)?;
        Ok(Self { endpoint: server.endpoint.clone(), ..ours })
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
            Kind::Rclone { .. } | Kind::Juicefs { .. } => "",
        }
    }

    /// A directory of rclone's, which keeps what is written and uploads it later.
    ///
    /// # Errors
    /// If rclone is not installed.
    pub(super) fn rclone(server: &Server, scratch: &Path, name: &str) -> anyhow::Result<Self> {
        let program = crate::volumes::peers::find("rclone").map_err(anyhow::Error::msg)?;
        let endpoint = server.endpoint.clone().context("not run: it needs a server")?;
        let flags = ["--config", "", "--s3-provider", "Other", "--s3-env-auth", "--s3-force-path-style"];
        let mut flags: Vec<String> = flags.map(str::to_owned).into();
        flags.extend(["--s3-endpoint".to_owned(), endpoint]);
        let remote = format!(":s3:{}", server.url(name).trim_start_matches("s3://"));
        Self::new(program, scratch, name, Kind::Rclone { remote, flags })
    }

    /// A new volume of JuiceFS's, which with `writeback` keeps what is written and uploads it
    /// later.
    ///
    /// # Errors
    /// If JuiceFS is not installed, or cannot format it.
    pub(super) fn juicefs(
        server: &Server,
        scratch: &Path,
        name: &str,
        writeback: bool,
    ) -> anyhow::Result<Self> {
        let program = crate::volumes::peers::find("juicefs").map_err(anyhow::Error::msg)?;
        let bucket = server.bucket_url().context("not run: it needs a server")?;
        let metadata = format!("sqlite3://{}/{name}/metadata.db", scratch.display());
        let subject =
            Self::new(program, scratch, name, Kind::Juicefs { metadata: metadata.clone(), writeback })?;
        let mut format = subject.command(&["format", "--storage", "s3", "--trash-days", "0", "--bucket"]);
        for (theirs, ours) in [("ACCESS_KEY", "AWS_ACCESS_KEY_ID"), ("SECRET_KEY", "AWS_SECRET_ACCESS_KEY")] {
            format.env(theirs, std::env::var_os(ours).unwrap_or_default());
        }
        let output =
            format.arg(bucket).arg(metadata).arg(format!("lab-{}-{name}", std::process::id())).output()?;
        ensure!(output.status.success(), "juicefs format: {}", said(&output));
        Ok(subject)
    }

    fn new(program: PathBuf, scratch: &Path, name: &str, kind: Kind) -> anyhow::Result<Self> {
        let directory = scratch.join(name);
        for part in ["mount", "elsewhere", "cache"] {
            fs::create_dir_all(directory.join(part))?;
        }
        Ok(Self { directory, program, kind, endpoint: None })
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
        let mut command = self.command(&["mount"]);
        let run = match &self.kind {
            Kind::Ours { url, options: its } => {
                let options = if options.is_empty() { its } else { options };
                fs::create_dir_all(&run)?;
                fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
                command.arg(url).arg(&at).env("WATERTIGHT_RUNTIME_DIR", &run);
                if !options.is_empty() {
                    command.args(["-o", options]);
                }
                Some(run)
            }
            Kind::Rclone { remote, flags } => {
                command.arg(remote).arg(&at).args(flags).args(["--vfs-cache-mode", "writes", "--cache-dir"]);
                command.arg(self.directory.join("cache"));
                None
            }
            Kind::Juicefs { metadata, writeback } => {
                command.args(["--no-usage-report", "--cache-dir"]).arg(self.directory.join("cache"));
                command.args(writeback.then_some("--writeback")).arg(metadata).arg(&at);
                None
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
        // With a bundle, rclone 1.60 refuses every S3 server.
        command.args(arguments).env_remove("AWS_CA_BUNDLE").stdin(Stdio::null());
        command.envs(self.endpoint.iter().map(|endpoint| ("AWS_ENDPOINT_URL", endpoint)));
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

    /// How many bytes of the files in `tree`, another client does not find at this moment.
    ///
    /// # Errors
    /// If it cannot look.
    pub(super) fn bytes_missing(&self, tree: &Path) -> anyhow::Result<u64> {
        match &self.kind {
            Kind::Ours { .. } => {
                let mounted = self.mount_elsewhere()?;
                let missing = files(tree)?.into_iter().try_fold(0, |missing, (name, len)| {
                    let is_there =
                        fs::read(mounted.path().join(&name)).ok() == Some(fs::read(tree.join(&name))?);
                    Ok(missing + if is_there { 0 } else { len })
                });
                mounted.unmount()?;
                missing
            }
            Kind::Rclone { remote, flags } => {
                let mut list =
                    self.command(&["lsf", "--recursive", "--files-only", "--format", "sp", remote]);
                let output = list.args(flags).output()?;
                // A directory that is not there yet ends it with 3.
                ensure!(
                    output.status.success() || output.status.code() == Some(3),
                    "rclone lsf: {}",
                    said(&output)
                );
                let listed = String::from_utf8_lossy(&output.stdout);
                let found: HashSet<&str> = listed.lines().collect();
                let all = files(tree)?.into_iter();
                let lost = all.filter(|(name, len)| !found.contains(format!("{len};{name}").as_str()));
                Ok(lost.map(|(_, len)| len).sum())
            }
            Kind::Juicefs { metadata, .. } => {
                let output = self.command(&["fsck", metadata]).output()?;
                let said = said(&output);
                if output.status.success() {
                    return Ok(0);
                }
                // `3 objects are lost (9000000 bytes), 3 broken files:`
                let lost =
                    said.split_once(" objects are lost (").and_then(|(_, rest)| rest.split_once(" bytes"));
                lost.and_then(|(bytes, _)| bytes.parse().ok())
                    .with_context(|| format!("juicefs fsck: {said}"))
            }
        }
    }
}

impl Mounted {
    pub(super) fn path(&self) -> &Path {
        &self.at
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
        let unmounted = self.leave()?;
        let took = begun.elapsed();
        Ok((took, unmounted.requests()?))
    }

    /// umount(8) alone.
    ///
    /// # Errors
    /// If umount(8) fails.
    pub(super) fn leave(self) -> anyhow::Result<Unmounted> {
        umount(&self.at)?;
        Ok(Unmounted { process: self.process, log: self.log })
    }

    /// umount(8), and its process's end.
    ///
    /// # Errors
    /// If umount(8) fails.
    pub(super) fn unmount(self) -> anyhow::Result<()> {
        umount(&self.at)?;
        // What it does from here on is not waited for, as nobody does.
        std::thread::spawn(move || self.process.stop());
        Ok(())
    }
}

impl Unmounted {
    /// All requests of the process, whose end is waited for.
    ///
    /// # Errors
    /// If the process does not end.
    pub(super) fn requests(self) -> anyhow::Result<Option<Requests>> {
        self.process.stop()?;
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

/// The files of a tree, by their names in it, and their sizes.
fn files(tree: &Path) -> anyhow::Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(tree)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            files.extend(
                self::files(&entry.path())?.into_iter().map(|(below, len)| (format!("{name}/{below}"), len)),
            );
        } else {
            files.push((name, entry.metadata()?.len()));
        }
    }
    Ok(files)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
