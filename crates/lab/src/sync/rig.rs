//! The basis of the mounts, and one of them with the limited cgroup's writers and a process in
//! another cgroup.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use testing::cgroup::Cgroup;

use super::client::{self, Call, Took};
use crate::child::Server;
use crate::experiment::Settings;
use crate::volumes::ours::program;

/// The sixteen writers of the published experiment, and the data of each.
pub(super) const WRITERS: u64 = 16;
pub(super) const WRITER_MIB: u64 = 3;
/// The most that the cgroup may have dirty and owe together: more than twice the data that the
/// writers write once, so that it is not written before the sync.
pub(super) const ROOM_MIB: u64 = 128;
/// Far longer than anything takes.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Directories for a mount, and the program.
pub(super) struct MountDir {
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl MountDir {
    pub(super) fn new(settings: &Settings) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let fio = Command::new("fio").arg("--version").stdout(Stdio::null()).status();
        if !fio.is_ok_and(|status| status.success()) {
            return Err("fio is not installed".to_owned());
        }
        let program = program(settings)?;
        let dir = settings.source.clone().unwrap_or_else(std::env::temp_dir);
        let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir_in(dir);
        let directory = directory.map_err(|error| error.to_string())?;
        for name in ["store", "mnt"] {
            std::fs::create_dir(directory.path().join(name)).map_err(|error| error.to_string())?;
        }
        Ok(Self { program, directory })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn mountpoint(&self) -> PathBuf {
        self.path("mnt")
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("WATERTIGHT_RUNTIME_DIR", self.path("run")).stdin(Stdio::null());
        command
    }

    pub(super) fn mount(&self, source: &str, options: &str) -> anyhow::Result<Server> {
        let mut command = self.command(&["mount", "-o", options, source]);
        command.arg(self.mountpoint());
        let server = Server::start(&mut command, &self.mountpoint(), &self.path("log"))?;
        // The mount is there a moment before its process can be asked.
        let begun = Instant::now();
        while self.status()?["volumes"][0].is_null() {
            ensure!(begun.elapsed() < LONG, "its process does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// The output of `status`.
    fn status(&self) -> anyhow::Result<serde_json::Value> {
        let output = self.command(&["status", "--json"]).arg(self.mountpoint()).output()?;
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    pub(super) fn unmount(&self) -> anyhow::Result<()> {
        ensure!(self.command(&["umount"]).arg(self.mountpoint()).status()?.success(), "umount failed");
        Ok(())
    }

    /// Makes a process in `cgroup` repeat a call so often.
    pub(super) fn time(
        &self,
        cgroup: &Cgroup,
        call: Call,
        path: &Path,
        count: usize,
    ) -> anyhow::Result<Vec<Took>> {
        client::time(cgroup, call, path, count, (&self.program, &self.path("run")))
    }
}

/// A mount, with the limited cgroup and another one.
pub(super) struct Rig<'a> {
    pub(super) dir: &'a MountDir,
    pub(super) slow: Cgroup,
    pub(super) other: Cgroup,
    server: Server,
    limit: String,
    room: u64,
}

/// Writers that write without end, until this is dropped.
pub(super) struct Writers(Child);

impl Drop for Writers {
    fn drop(&mut self) {
        let _ended_already = self.0.kill().and_then(|()| self.0.wait());
    }
}

impl<'a> Rig<'a> {
    /// With such a policy; `limit` as `wbps` takes it, and how much the cgroup may have dirty and
    /// owe.
    pub(super) fn new(dir: &'a MountDir, policy: &str, limit: &str, room_mib: u64) -> anyhow::Result<Self> {
        Self::with_cache(dir, policy, limit, (room_mib, 256))
    }

    /// A rig with such a cache.
    pub(super) fn with_cache(
        dir: &'a MountDir,
        policy: &str,
        limit: &str,
        (room_mib, cache_mib): (u64, u64),
    ) -> anyhow::Result<Self> {
        let (slow, other) = Option::zip(Cgroup::make(), Cgroup::make()).context("no cgroup can be made")?;
        let options = format!(
            "dirty_after=1h,cache={cache_mib}M,sync_policy={policy},limit={}:wbps={limit}:dirty_max={room_mib}M",
            slow.path().display()
        );
        let source = format!("dir:{}", dir.path("store").display());
        let server = dir.mount(&source, &options)?;
        Ok(Self { dir, slow, other, server, limit: limit.to_owned(), room: room_mib << 20 })
    }

    /// Sets limits of a cgroup.
    pub(super) fn set(&self, cgroup: &Cgroup, limits: &str) -> anyhow::Result<()> {
        let mut command = self.dir.command(&["limit"]);
        command.arg(cgroup.path()).arg(self.dir.mountpoint()).arg(limits);
        ensure!(command.status()?.success(), "watertight limit failed");
        Ok(())
    }

    /// The sixteen writers.
    fn fio(&self, name: &str, size_mib: u64, more: &[&str]) -> Command {
        let mut command = self.slow.command("fio");
        command.args(["--name=writer", "--rw=write", "--bs=1M", "--fallocate=none", "--thread"]);
        command.arg(format!("--filename_format={name}writer.$jobnum.$filenum"));
        command.arg(format!("--numjobs={WRITERS}")).arg(format!("--size={size_mib}M"));
        command.arg("--directory").arg(self.dir.mountpoint()).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Makes all their data dirty, and writes the dirty data of other programs elsewhere: sync(2)
    /// covers that as well.
    pub(super) fn fill(&self) -> anyhow::Result<()> {
        self.fill_with(WRITER_MIB)
    }

    /// Fills, with so much from each writer.
    pub(super) fn fill_with(&self, writer_mib: u64) -> anyhow::Result<()> {
        rustix::fs::sync();
        ensure!(self.fio("", writer_mib, &[]).status()?.success(), "fio failed");
        ensure!(self.figure("dirty_bytes")? > 0.9 * ((WRITERS * writer_mib) << 20) as f64, "it was written");
        Ok(())
    }

    /// Writes a file in the limited cgroup.
    pub(super) fn dirty_by_slow(&self, name: &str, mib: u64) -> anyhow::Result<()> {
        self.dirty(&self.slow, name, mib)
    }

    /// Writes a file in the other cgroup.
    pub(super) fn dirty_by_other(&self, name: &str, mib: u64) -> anyhow::Result<()> {
        self.dirty(&self.other, name, mib)
    }

    fn dirty(&self, by: &Cgroup, name: &str, mib: u64) -> anyhow::Result<()> {
        let mut command = by.command("dd");
        command.args(["if=/dev/zero", "bs=1M", "conv=notrunc", "status=none"]).arg(format!("count={mib}"));
        command.arg(format!("of={}", self.dir.mountpoint().join(name).display()));
        ensure!(command.stdin(Stdio::null()).status()?.success(), "dd failed");
        Ok(())
    }

    /// Has them write new data without end.
    pub(super) fn begin_writing(&self, name: &str) -> anyhow::Result<Writers> {
        Ok(Writers(self.fio(name, 1 << 10, &["--time_based", "--runtime=600"]).spawn()?))
    }

    /// Begins writing, and waits until every writer has written something.
    pub(super) fn write_unlimited(&self, name: &str) -> anyhow::Result<Writers> {
        let writers = self.begin_writing(name)?;
        let begun = Instant::now();
        let writes =
            |number| std::fs::metadata(self.writer(name, number)).is_ok_and(|metadata| metadata.len() > 0);
        while !(0..WRITERS).all(writes) {
            ensure!(begun.elapsed() < LONG, "the writers never write");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(writers)
    }

    fn writer(&self, name: &str, number: u64) -> PathBuf {
        self.dir.mountpoint().join(format!("{name}writer.{number}.0"))
    }

    /// Begins writing, and waits until the room is used up and the writers wait for more (1 MiB at
    /// a time). The writers pause before that.
    pub(super) fn write_without_end(&self, name: &str) -> anyhow::Result<Writers> {
        let before = self.figure("writer_waits")?;
        let writers = self.begin_writing(name)?;
        let begun = Instant::now();
        let full = self.room.saturating_sub(2 << 20) as f64;
        while self.figure("writer_waits")? < before + WRITERS as f64 || self.figure("dirty_bytes")? < full {
            ensure!(begun.elapsed() < LONG, "the writers never wait for room");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(writers)
    }

    /// One call by the other cgroup, on the mount or a file in it.
    pub(super) fn once(&self, call: Call, name: &str) -> anyhow::Result<Took> {
        let took = self.dir.time(&self.other, call, &self.dir.mountpoint().join(name), 1)?;
        took.into_iter().next().context("one call")
    }

    /// Everything written, and nothing owed.
    pub(super) fn rest(&self) -> anyhow::Result<()> {
        self.set(&self.slow, "wbps=max")?;
        ensure!(self.dir.command(&["sync"]).arg(self.dir.mountpoint()).status()?.success(), "sync failed");
        self.set(&self.slow, &format!("wbps={}", self.limit))
    }

    /// A figure of `status`.
    pub(super) fn figure(&self, name: &str) -> anyhow::Result<f64> {
        let status = self.dir.status()?;
        status["volumes"][0][name].as_f64().with_context(|| format!("status has no {name}"))
    }

    /// Bytes of the files in the store's directory, as its own file system counts them, not the
    /// product.
    pub(super) fn on_store(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for entry in std::fs::read_dir(self.dir.path("store"))? {
            sum += entry?.metadata()?.blocks() * 512;
        }
        Ok(sum)
    }

    /// Removes the written files, so that the disk has room.
    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        for number in 0..WRITERS {
            std::fs::remove_file(self.writer(name, number))?;
        }
        Ok(())
    }

    pub(super) fn end(self) -> anyhow::Result<()> {
        self.dir.unmount()?;
        self.server.stop()
    }
}
