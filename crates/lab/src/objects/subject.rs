//! What is mounted from the bucket: a volume, or a directory of a peer's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
}

enum Kind {
    Ours { url: String },
    Rclone { remote: String, flags: Vec<String> },
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
        let output = Command::new(program).arg("format").arg(&url).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "format: {}", String::from_utf8_lossy(&output.stderr).trim());
        Self::new(program.to_owned(), scratch, name, Kind::Ours { url })
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

    fn new(program: PathBuf, scratch: &Path, name: &str, kind: Kind) -> anyhow::Result<Self> {
        let directory = scratch.join(name);
        for part in ["mount", "elsewhere", "cache"] {
            fs::create_dir_all(directory.join(part))?;
        }
        Ok(Self { directory, program, kind })
    }

    /// Mounts it.
    ///
    /// # Errors
    /// If it does not come up.
    pub(super) fn mount(&self) -> anyhow::Result<Mounted> {
        self.mount_at("mount", "run")
    }

    fn mount_at(&self, place: &str, run: &str) -> anyhow::Result<Mounted> {
        let (at, run) = (self.directory.join(place), self.directory.join(run));
        let mut command = Command::new(&self.program);
        command.arg("mount");
        let run = match &self.kind {
            Kind::Ours { url } => {
                fs::create_dir_all(&run)?;
                fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
                command.arg(url).arg(&at).env("WATERTIGHT_RUNTIME_DIR", &run);
                Some(run)
            }
            Kind::Rclone { remote, flags } => {
                command.arg(remote).arg(&at).args(flags).args(["--vfs-cache-mode", "writes", "--cache-dir"]);
                // With one, rclone 1.60 refuses every S3 server.
                command.arg(self.directory.join("cache")).env_remove("AWS_CA_BUNDLE");
                None
            }
        };
        let process = Process::start(&mut command, &at, &self.directory.join(format!("{place}.log")))?;
        Ok(Mounted { process, at, run })
    }

    /// How many files another client finds at this moment.
    ///
    /// # Errors
    /// If it cannot look.
    pub(super) fn files_found(&self) -> anyhow::Result<u64> {
        match &self.kind {
            Kind::Ours { .. } => {
                let mounted = self.mount_at("elsewhere", "run-elsewhere")?;
                let found = count_files(mounted.path());
                mounted.unmount()?;
                found
            }
            Kind::Rclone { remote, flags } => {
                let listed = Command::new(&self.program)
                    .args(["lsf", "--recursive", "--files-only", remote])
                    .args(flags)
                    .env_remove("AWS_CA_BUNDLE")
                    .output()?;
                // A directory that is not there yet ends it with 3.
                ensure!(
                    listed.status.success() || listed.status.code() == Some(3),
                    "rclone lsf: {}",
                    String::from_utf8_lossy(&listed.stderr).trim()
                );
                Ok(String::from_utf8_lossy(&listed.stdout).lines().count() as u64)
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
        ensure!(output.status.success(), "umount: {}", String::from_utf8_lossy(&output.stderr).trim());
        // What it does from here on is not waited for, as nobody does.
        std::thread::spawn(move || self.process.stop());
        Ok(())
    }
}

fn count_files(at: &Path) -> anyhow::Result<u64> {
    let mut files = 0;
    for entry in fs::read_dir(at)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() { count_files(&entry.path())? } else { 1 };
    }
    Ok(files)
}
