//! What is mounted from the bucket: a volume, or a directory of a peer's.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::bucket::Server;
use crate::child::Server as Process;
use crate::control::known;

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

/// A mount of a subject.
pub(super) struct Mounted {
    process: Process,
    at: PathBuf,
    run: Option<PathBuf>,
}

/// Requests so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    pub(super) all: u64,
    pub(super) puts: u64,
}

impl Subject {
    /// A new volume of ours.
    ///
    /// # Errors
    /// If it cannot be formatted.
    pub(super) fn ours(program: &Path, server: &Server, scratch: &Path, name: &str) -> anyhow::Result<Self> {
        let url = server.url(name);
        let subject = Self {
            endpoint: server.endpoint.clone(),
            ..Self::new(program.to_owned(), scratch, name, Kind::Ours { url: url.clone() })?
        };
        let output = subject.command(&["format", &url]).output()?;
        ensure!(output.status.success(), "format: {}", said(&output));
        Ok(subject)
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
            Kind::Ours { url } => {
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
        let process = Process::start(&mut command, &at, &self.directory.join(format!("{place}.log")))?;
        Ok(Mounted { process, at, run })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // With a bundle, rclone 1.60 refuses every S3 server.
        command.args(arguments).env_remove("AWS_CA_BUNDLE").stdin(Stdio::null());
        command.envs(self.endpoint.iter().map(|endpoint| ("AWS_ENDPOINT_URL", endpoint)));
        command
    }

    /// Removes what nobody needs from the bucket of a volume of ours.
    ///
    /// # Errors
    /// If the program does not do it.
    pub(super) fn collect_garbage(&self) -> anyhow::Result<()> {
        let Kind::Ours { url } = &self.kind else { return Ok(()) };
        let run = self.directory.join("run");
        let output = self.command(&["gc", url]).env("WATERTIGHT_RUNTIME_DIR", run).output()?;
        ensure!(output.status.success(), "{}", said(&output));
        Ok(())
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
        let until = Instant::now() + RECORD_MAX;
        let control = loop {
            match known(run)?.pop() {
                Some((_, control)) => break control,
                None => ensure!(Instant::now() < until, "the volume has no record"),
            }
            // Another process writes it, a moment after the mount is there.
            std::thread::sleep(Duration::from_millis(5));
        };
        let status = control.status()?;
        let Some(kinds) = status["store_requests"]["by_kind"].as_object() else { return Ok(None) };
        let sent = |kind: &serde_json::Value| kind["sent"].as_u64().unwrap_or(0);
        let puts = kinds.get("put").map_or(0, sent);
        Ok(Some(Requests { all: kinds.values().map(sent).sum(), puts }))
    }

    /// umount(8), and its process's end.
    ///
    /// # Errors
    /// If umount(8) fails.
    pub(super) fn unmount(self) -> anyhow::Result<()> {
        let output = Command::new("umount").arg(&self.at).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "umount: {}", said(&output));
        // What it does from here on is not waited for, as nobody does.
        std::thread::spawn(move || self.process.stop());
        Ok(())
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
