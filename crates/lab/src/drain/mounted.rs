//! A writer on a real mount, beside the end of another cgroup with a thousand files.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use testing::cgroup::Cgroup;

use crate::child::Server;
use crate::experiment::Settings;
use crate::volumes::ours::program;

/// How many files the cgroup has when it ends.
const FILES: usize = 1000;
/// How long the victim writes from the removal on; far longer than the files need.
const WINDOW: Duration = Duration::from_millis(300);
/// Between two of its writes.
const PAUSE: Duration = Duration::from_micros(100);

/// A mounted volume on a directory store, and the victim's file on it.
pub(super) struct Mounted {
    program: PathBuf,
    directory: tempfile::TempDir,
    server: Server,
    victim: File,
}

impl Mounted {
    pub(super) fn new(settings: &Settings) -> anyhow::Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "needs root");
        let program = program(settings).map_err(anyhow::Error::msg)?;
        let place = settings.source.clone().unwrap_or_else(std::env::temp_dir);
        let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir_in(place)?;
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("store"))?;
        fs::create_dir(at("mnt"))?;
        let mut command = Command::new(&program);
        command.env("WATERTIGHT_RUNTIME_DIR", at("run")).args(["mount", "-o", "dirty_after=1h"]);
        command.arg(at("store")).arg(at("mnt"));
        let server = Server::start(&mut command, &at("mnt"), &at("log"))?;
        let victim = OpenOptions::new().create_new(true).write(true).open(at("mnt/victim"))?;
        Ok(Self { program, directory, server, victim })
    }

    /// Makes the cgroup and writes its files, and returns the time of each write of the victim
    /// while the cgroup ends; or while it stays, if not `removes`.
    pub(super) fn beside_removal(&self, removes: bool) -> anyhow::Result<Vec<Duration>> {
        let parent = Cgroup::make().context("no cgroup can be made")?;
        let child = parent.child("child");
        let files = self.directory.path().join("mnt/files");
        fs::create_dir(&files)?;
        let script = format!("n=0; until [ $n = {FILES} ]; do n=$((n + 1)); echo > $0/$n; done");
        ensure!(child.command("sh").args(["-c", &script]).arg(&files).status()?.success(), "files");
        self.watertight(&["sync"])?;
        ensure!(self.owned(&child)? == FILES, "the cgroup has to own its files");
        let ended = removes.then(|| thread::spawn(move || child.remove()));
        let writes = self.victims_writes()?;
        if let Some(ended) = ended {
            ensure!(ended.join().is_ok(), "the cgroup is in use");
            ensure!(self.owned(&parent)? == FILES, "the files were not found again at the parent");
        }
        fs::remove_dir_all(&files)?;
        Ok(writes)
    }

    fn victims_writes(&self) -> anyhow::Result<Vec<Duration>> {
        let (block, mut writes, until) = ([1; 4096], Vec::new(), Instant::now() + WINDOW);
        while Instant::now() < until {
            let begun = Instant::now();
            self.victim.write_all_at(&block, 0)?;
            writes.push(begun.elapsed());
            thread::sleep(PAUSE);
        }
        Ok(writes)
    }

    fn owned(&self, by: &Cgroup) -> anyhow::Result<usize> {
        let status: serde_json::Value = serde_json::from_slice(&self.watertight(&["status", "--json"])?)?;
        let all = status["volumes"][0]["cgroups"].as_array().context("cgroups")?;
        let one =
            all.iter().find(|cgroup| cgroup["path"].as_str().map(std::path::Path::new) == Some(by.path()));
        let owned = one.and_then(|cgroup| cgroup["owned_inodes"].as_u64()).unwrap_or(0);
        Ok(usize::try_from(owned)?)
    }

    fn watertight(&self, verb: &[&str]) -> anyhow::Result<Vec<u8>> {
        let mut command = Command::new(&self.program);
        command.args(verb).arg(self.directory.path().join("mnt"));
        let output = command.env("WATERTIGHT_RUNTIME_DIR", self.directory.path().join("run")).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.stdout)
    }

    pub(super) fn end(self) -> anyhow::Result<()> {
        drop(self.victim);
        self.server.stop()
    }
}
