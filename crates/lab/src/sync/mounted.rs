//! The same on a mount: real cgroups, fio's writers, sync(1) and fsync.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use testing::cgroup::Cgroup;

use super::{FSYNC, OF_LIMIT, SYNC};
use crate::child::Server;
use crate::experiment::Settings;
use crate::report::Recorder;
use crate::volumes::ours::program;

/// The limit of the throttled cgroup, in bytes a second, and what its sixteen writers write.
const LIMIT: u64 = 8 << 20;
const WRITERS: u64 = 16;
const WRITER_MIB: u64 = 3;
/// How long writers write on while others sync.
const BUSY: Duration = Duration::from_secs(6);
/// What a victim makes durable.
const FSYNCS: u32 = 50;

/// What the mounts stand on.
pub(crate) struct Mounted {
    program: PathBuf,
    directory: tempfile::TempDir,
}

/// One mount, with the two cgroups.
struct World<'a> {
    of: &'a Mounted,
    slow: Cgroup,
    other: Cgroup,
    server: Server,
}

impl Mounted {
    pub(crate) fn new(settings: &Settings) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let fio = Command::new("fio").arg("--version").stdout(Stdio::null()).status();
        if !fio.is_ok_and(|status| status.success()) {
            return Err("fio is not installed".to_owned());
        }
        let program = program(settings)?;
        let make = |place: &Path| tempfile::Builder::new().prefix("watertight-lab.").tempdir_in(place);
        let place = settings.source.clone().unwrap_or_else(std::env::temp_dir);
        let directory = make(&place).map_err(|error| error.to_string())?;
        for name in ["store", "mnt"] {
            std::fs::create_dir(directory.path().join(name)).map_err(|error| error.to_string())?;
        }
        Ok(Self { program, directory })
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "`mounted`: {WRITERS} fio writers of {WRITER_MIB} MiB each in a cgroup limited to {} MiB/s, all of it dirty when `sync -f` of the \
                 mount is timed in another cgroup; vanilla should take {:.1} s. `unloaded`: the same without a limit. `fsync`: of one of the \
                 files. `isolated`: nothing of the caller's is dirty. `idle`: nothing is dirty. Times are of the whole command, its start included.",
                LIMIT >> 20,
                (WRITERS * WRITER_MIB) as f64 / (LIMIT >> 20) as f64
            ),
            format!(
                "`neighbour_of_limit`: what the limited cgroup wrote while it wrote without end for {} s and others synced each 0.3 s, less what it \
                 owed at the end, of what its limit allows.",
                BUSY.as_secs()
            ),
            format!(
                "`neighbour`: the time of {FSYNCS} writes of 4 KiB with fdatasync beside the limited cgroup's queue; `neighbour-alone`: without it."
            ),
            format!("The store is a directory on {}.", self.directory.path().display()),
        ]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn mount(&self, policy: &str, limit: u64) -> anyhow::Result<World<'_>> {
        let (slow, other) = Option::zip(Cgroup::make(), Cgroup::make()).context("no cgroup can be made")?;
        let wbps = if limit == 0 { "max".to_owned() } else { limit.to_string() };
        let options = format!(
            "dirty_after=1h,cache=256M,sync_policy={policy},limit={}:wbps={wbps}:dirty_max=64M",
            slow.path().display()
        );
        let mut command = self.command(&["mount", "-o", &options]);
        command.arg(self.path("store")).arg(self.path("mnt"));
        let server = Server::start(&mut command, &self.path("mnt"), &self.path("log"))?;
        Ok(World { of: self, slow, other, server })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("WATERTIGHT_RUNTIME_DIR", self.path("run"));
        command
    }

    /// All syncs of one variant, and what becomes of the limited cgroup.
    pub(crate) fn run(&self, variant: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
        let policy = if variant == "unloaded" { "boost" } else { variant };
        let limit = if variant == "unloaded" { 0 } else { LIMIT };
        let world = self.mount(policy, limit)?;
        // Once before: the files are there, and what the first use costs is over.
        world.write("")?;
        let all: PathBuf = self.path("mnt");
        world.rest(limit)?;
        (0..5).try_for_each(|_| {
            world.timed(&all, true).map(|took| recorder.value("idle", variant, SYNC, took))
        })?;
        world.write("")?;
        let took = world.timed(&all, true)?;
        recorder.value("mounted", variant, SYNC, took);
        world.rest(limit)?;
        if variant != "isolated" {
            world.write("")?;
            let one = all.join("writer.0.0");
            recorder.value("mounted", variant, FSYNC, world.timed(&one, false)?);
            world.rest(limit)?;
        }
        if variant == "boost" {
            recorder.value("mounted", variant, OF_LIMIT, world.of_limit()?);
        }
        world.end()
    }

    /// A victim's fsyncs, alone and beside the limited cgroup.
    pub(crate) fn neighbour(&self, recorder: &mut Recorder) -> anyhow::Result<()> {
        let world = self.mount("boost", 1 << 20)?;
        world.victim()?;
        for _ in 0..3 {
            recorder.value("neighbour-alone", "boost", FSYNC, world.victim()?);
            let mut writers = world.fio(&["--time_based", "--runtime=60"], "q").spawn()?;
            // Until its writers wait: the queue is as long as it may be.
            std::thread::sleep(Duration::from_secs(1));
            let took = world.victim();
            writers.kill().and_then(|()| writers.wait())?;
            recorder.value("neighbour", "boost", FSYNC, took?);
            world
                .of
                .command(&["limit"])
                .arg(world.slow.path())
                .arg(self.path("mnt"))
                .arg("wbps=max")
                .status()?;
            world.of.command(&["sync"]).arg(self.path("mnt")).status()?;
            world
                .of
                .command(&["limit"])
                .arg(world.slow.path())
                .arg(self.path("mnt"))
                .arg("wbps=1M")
                .status()?;
        }
        world.end()
    }
}

impl World<'_> {
    /// The sixteen writers.
    fn fio(&self, more: &[&str], name: &str) -> Command {
        let mut command = self.slow.command("fio");
        let (jobs, size) = (format!("--numjobs={WRITERS}"), format!("--size={WRITER_MIB}M"));
        command.args(["--name=writer", "--rw=write", "--bs=1M", "--fallocate=none", "--thread"]);
        command.arg(format!("--filename_format={name}writer.$jobnum.$filenum"));
        command.args([&jobs, &size]).arg("--directory").arg(self.of.path("mnt")).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn write(&self, name: &str) -> anyhow::Result<()> {
        ensure!(self.fio(&[], name).status()?.success(), "fio failed");
        Ok(())
    }

    /// Times sync(1) of a file or a file system, in the other cgroup, in ms.
    fn timed(&self, path: &Path, whole: bool) -> anyhow::Result<f64> {
        let mut command = self.other.command("sync");
        command.args(whole.then_some("-f")).arg(path).stdin(Stdio::null());
        let begun = Instant::now();
        ensure!(command.status()?.success(), "sync failed");
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    /// Clean, and nothing owed.
    fn rest(&self, limit: u64) -> anyhow::Result<()> {
        let set = |limit: &str| {
            let mut command = self.of.command(&["limit"]);
            command.arg(self.slow.path()).arg(self.of.path("mnt")).arg(format!("wbps={limit}"));
            command.status()
        };
        set("max")?;
        self.of.command(&["sync"]).arg(self.of.path("mnt")).status()?;
        ensure!(self.slow.command("sync").arg("-f").arg(self.of.path("mnt")).status()?.success(), "sync");
        set(&if limit == 0 { "max".to_owned() } else { limit.to_string() })?;
        Ok(())
    }

    /// What the limited cgroup writes while others sync, in per cent of its limit.
    fn of_limit(&self) -> anyhow::Result<f64> {
        let mut writers: Child = self.fio(&["--time_based", "--runtime=60"], "").spawn()?;
        std::thread::sleep(Duration::from_secs(1));
        self.timed(&self.of.path("mnt"), true)?;
        let (before, begun) = (self.written()?, Instant::now());
        while begun.elapsed() < BUSY {
            self.timed(&self.of.path("mnt"), true)?;
            std::thread::sleep(Duration::from_millis(300));
        }
        let (after, took) = (self.written()?, begun.elapsed());
        writers.kill().and_then(|()| writers.wait())?;
        Ok((after - before) / (took.as_secs_f64() * LIMIT as f64) * 100.0)
    }

    /// Bytes written to the store, less what is owed for them.
    fn written(&self) -> anyhow::Result<f64> {
        let ask = |arguments: &[&str]| -> anyhow::Result<serde_json::Value> {
            let output = self.of.command(arguments).arg(self.of.path("mnt")).output()?;
            Ok(serde_json::from_slice(&output.stdout)?)
        };
        let status = ask(&["status", "--json"])?;
        let limits = ask(&["limit", "--show", "--json"])?;
        let written = status["volumes"][0]["written_bytes"].as_f64().context("written_bytes")?;
        let owed = limits["limits"][0]["owed_bytes"].as_f64().context("owed_bytes")?;
        Ok(written - owed)
    }

    /// The time of the victim's fsyncs, in ms.
    fn victim(&self) -> anyhow::Result<f64> {
        let file = self.of.path("mnt").join("victim");
        let mut command = self.other.command("fio");
        command.args(["--name=victim", "--rw=write", "--bs=4k", "--fdatasync=1", "--fallocate=none"]);
        command.arg(format!("--filename={}", file.display()));
        command.arg(format!("--size={}k", FSYNCS * 4)).args(["--output-format=json", "--thread"]);
        let output = command.stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "fio failed");
        let text = String::from_utf8_lossy(&output.stdout);
        let from = text.find('{').context("fio says nothing")?;
        let said: serde_json::Value = serde_json::from_str(&text[from..])?;
        let sync = &said["jobs"][0]["sync"]["lat_ns"];
        let mean = sync["mean"].as_f64().context("lat_ns")?;
        Ok(mean * f64::from(FSYNCS) / 1e6)
    }

    fn end(self) -> anyhow::Result<()> {
        let unmounted = self.of.command(&["umount"]).arg(self.of.path("mnt")).status()?;
        ensure!(unmounted.success(), "umount failed");
        self.server.stop()
    }
}
