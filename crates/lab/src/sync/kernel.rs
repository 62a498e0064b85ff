//! The running kernel: sync(2) beside a cgroup whose writes to an ext4 are limited by io.max; and
//! the same with a volume of the product's and its limit.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use testing::cgroup::Cgroup;

use super::client::Call;
use super::rig::{MountDir, Rig};
use super::{FSYNC, MIB, SYNC, VERB};
use crate::experiment::Settings;
use crate::progress::Progress;
use crate::report::Recorder;

/// The dirty data of the limited cgroup, and its limit in a second.
const DIRTY_MIB: u64 = 24;
const LIMIT: u64 = MIB;
/// More than it has dirty and owes.
const ROOM_MIB: u64 = 64;
const CACHE_MIB: u64 = 256;
/// Each takes as long as the limit has it take.
const ROUNDS: usize = 2;
/// Syncs when nothing is dirty.
const IDLE: usize = 20;
const FILE: &str = "file";

/// The part.
pub(crate) fn run(
    settings: &Settings,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<Vec<String>> {
    let (kernels, stores) = (Disk::new(1)?, Disk::new(2)?);
    let (slow, other) = Option::zip(Cgroup::make(), Cgroup::make()).context("no cgroup can be made")?;
    let limit = format!("{} wbps={LIMIT}", kernels.number()?);
    fs::write(slow.directory().join("io.max"), limit).context("io.max")?;
    let settings = Settings { source: Some(stores.dir()), ..settings.clone() };
    let dir = MountDir::new(&settings).map_err(anyhow::Error::msg)?;
    let limit = LIMIT.to_string();
    for round in 0..ROUNDS {
        progress.step(&format!("sync: round {} of {ROUNDS}", round + 1));
        kernels.beside(&dir, (&slow, &other), recorder)?;
        for variant in ["default", "isolated"] {
            let rig = Rig::with_cache(&dir, "boost", &limit, (ROOM_MIB, CACHE_MIB))?;
            if variant == "isolated" {
                rig.set(&rig.other, "sync_isolation=1")?;
            }
            ours(&dir, &rig, variant, recorder)?;
            rig.end()?;
        }
    }
    Ok(notes())
}

/// A volume of the product's.
fn ours(dir: &MountDir, rig: &Rig<'_>, variant: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
    let file = dir.mountpoint().join(FILE);
    rig.dirty_by_slow(FILE, DIRTY_MIB)?;
    let took = rig.once(Call::Sync, "")?;
    let is_written = rig.figure("dirty_bytes")? < MIB as f64;
    if variant == "default" && !is_written {
        let why = "no wait: this kernel does not tell the mount of a sync(2); the verb does";
        recorder.absent("sync-throttled", variant, SYNC, why);
    } else {
        recorder.value("sync-throttled", variant, SYNC, took.ms());
    }
    recorder.value("sync-throttled", variant, VERB, rig.once(Call::Verb, "")?.ms());
    for took in dir.time(&rig.slow, Call::WriteFdatasync, &file, 1)? {
        recorder.value("sync-own-after", variant, FSYNC, took.ms());
    }
    rig.rest()?;
    for took in dir.time(&rig.other, Call::Sync, &dir.mountpoint(), IDLE)? {
        recorder.value("sync-idle", variant, SYNC, took.ms());
    }
    Ok(())
}

/// An ext4 on a loop device, whose file is in memory.
struct Disk {
    device: PathBuf,
    directory: tempfile::TempDir,
}

impl Disk {
    fn new(number: usize) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir_in("/dev/shm")?;
        let image = directory.path().join(format!("disk{number}"));
        fs::File::create(&image)?.set_len(256 * MIB)?;
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&image).output()?;
        ensure!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        let device = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        let this = Self { device, directory };
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(&this.device);
        ensure!(command.stdin(Stdio::null()).status()?.success(), "mke2fs failed");
        fs::create_dir(this.dir())?;
        mount(&this.device, this.dir(), "ext4", MountFlags::empty(), None::<&std::ffi::CStr>)?;
        Ok(this)
    }

    fn dir(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// As io.max names it.
    fn number(&self) -> anyhow::Result<String> {
        let number = fs::metadata(&self.device)?.rdev();
        Ok(format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
    }

    /// The kernel's own: the dirty data is in the page cache.
    fn beside(
        &self,
        dir: &MountDir,
        (slow, other): (&Cgroup, &Cgroup),
        recorder: &mut Recorder,
    ) -> anyhow::Result<()> {
        let file = self.dir().join(FILE);
        let mut command = slow.command("dd");
        command.args(["if=/dev/zero", "bs=1M", "conv=notrunc", "status=none"]);
        command.args([format!("count={DIRTY_MIB}"), format!("of={}", file.display())]);
        ensure!(command.stdin(Stdio::null()).status()?.success(), "dd failed");
        ensure!(dirty_kib()? > DIRTY_MIB * 1024 / 2, "what was written is not dirty any more");
        for took in dir.time(other, Call::Sync, &self.dir(), 1)? {
            recorder.value("sync-throttled", "kernel", SYNC, took.ms());
        }
        for took in dir.time(slow, Call::WriteFdatasync, &file, 1)? {
            recorder.value("sync-own-after", "kernel", FSYNC, took.ms());
        }
        for took in dir.time(other, Call::Sync, &self.dir(), IDLE)? {
            recorder.value("sync-idle", "kernel", SYNC, took.ms());
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _not_mounted = unmount(self.dir(), UnmountFlags::DETACH);
        let _gone_already = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

fn dirty_kib() -> anyhow::Result<u64> {
    let text = fs::read_to_string(Path::new("/proc/meminfo"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Dirty:")).context("meminfo has no Dirty")?;
    line.trim().trim_end_matches(" kB").parse().context("Dirty is a number")
}

fn notes() -> Vec<String> {
    vec![
        format!(
            "`sync-throttled`: a cgroup limited to {} MiB/s has {DIRTY_MIB} MiB dirty, and another one, without a limit, calls sync(2) (`sync`; `sync_verb`: `watertight sync`, its start included, after that). `kernel`: an ext4 on a loop device, limited by \
             io.max; `default` and `isolated` (the caller has sync_isolation=1): a volume with its store on such a device, limited by `wbps`. {ROUNDS} times: vanilla takes as long as the limit has it take.",
            LIMIT / MIB
        ),
        "`sync-own-after`: then the limited cgroup writes 4 KiB and calls fdatasync(2). `sync-idle`: sync(2) of the unlimited cgroup when nothing is dirty."
            .to_owned(),
    ]
}
