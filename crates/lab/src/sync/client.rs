//! The caller of syncs: this executable in a process of its own, which stands in the cgroup in
//! question, and times calls. So no figure has the start of a program in it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use testing::cgroup::Cgroup;

use crate::child;

/// The first argument of such a process.
pub(crate) const COMMAND: &str = "sync-client";

/// A page of data.
const PAGE: [u8; 4096] = [7; 4096];

/// A call that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// sync(2): all file systems of the host.
    Sync,
    /// syncfs(2), as of `sync -f`.
    Syncfs,
    /// fsync(2).
    Fsync,
    /// The verb `watertight sync`, a program with its start.
    Verb,
    /// A write of 4 KiB with `O_DSYNC`.
    WriteSync,
    /// A write of 4 KiB and fdatasync(2).
    WriteFdatasync,
}

impl Call {
    const ALL: [(&str, Self); 6] = [
        ("sync", Self::Sync),
        ("syncfs", Self::Syncfs),
        ("fsync", Self::Fsync),
        ("verb", Self::Verb),
        ("write-sync", Self::WriteSync),
        ("write-fdatasync", Self::WriteFdatasync),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, call)| *call == self).map_or("", |(name, _)| name)
    }

    fn opens(self, path: &Path) -> std::io::Result<File> {
        match self {
            Self::Sync | Self::Syncfs | Self::Fsync | Self::Verb => File::open(path),
            Self::WriteSync => OpenOptions::new()
                .create(true)
                .write(true)
                .truncate(false)
                .custom_flags(libc::O_DSYNC)
                .open(path),
            Self::WriteFdatasync => OpenOptions::new().create(true).write(true).truncate(false).open(path),
        }
    }

    fn once(self, file: &File, number: u64, path: &Path, program: &Path) -> anyhow::Result<()> {
        match self {
            Self::Sync => rustix::fs::sync(),
            Self::Syncfs => rustix::fs::syncfs(file)?,
            Self::Fsync => file.sync_all()?,
            Self::Verb => {
                let mut command = std::process::Command::new(program);
                ensure!(command.arg("sync").arg(path).status()?.success(), "watertight sync failed");
            }
            Self::WriteSync => file.write_all_at(&PAGE, number * PAGE.len() as u64)?,
            Self::WriteFdatasync => {
                file.write_all_at(&PAGE, number * PAGE.len() as u64)?;
                file.sync_data()?;
            }
        }
        Ok(())
    }
}

/// The process: `sync-client CALL PATH COUNT PROGRAM`. Prints a line of nanoseconds for each call.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    child::exit(COMMAND, serve(&arguments.collect::<Vec<_>>()))
}

fn serve(arguments: &[OsString]) -> anyhow::Result<()> {
    let [call, path, count, program] = arguments else { anyhow::bail!("CALL PATH COUNT PROGRAM") };
    let named = Call::ALL.iter().find(|(name, _)| call == name);
    let (_, call) = *named.with_context(|| format!("there is no call {}", call.display()))?;
    let (path, program) = (PathBuf::from(path), PathBuf::from(program));
    let count: u64 = count.to_str().and_then(|count| count.parse().ok()).context("COUNT is a number")?;
    let file = call.opens(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut out = std::io::stdout();
    for number in 0..count {
        let begun = Instant::now();
        call.once(&file, number, &path, &program)?;
        writeln!(out, "{}", begun.elapsed().as_nanos())?;
    }
    Ok(())
}

/// A call that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub(super) time: Duration,
    /// When its end was seen.
    pub(super) until: Instant,
}

impl Took {
    pub(super) fn ms(&self) -> f64 {
        self.time.as_secs_f64() * 1e3
    }
}

/// Makes a process in `cgroup` repeat a call so often.
pub(super) fn time(
    cgroup: &Cgroup,
    call: Call,
    path: &Path,
    count: usize,
    (program, runtime): (&Path, &Path),
) -> anyhow::Result<Vec<Took>> {
    let mut command = cgroup.command(std::env::current_exe()?);
    command.args([COMMAND, call.name()]).arg(path).arg(count.to_string()).arg(program);
    command.env("WATERTIGHT_RUNTIME_DIR", runtime).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("the client does not start")?;
    let out = BufReader::new(child.stdout.take().context("it has an output")?);
    let mut all = Vec::new();
    for line in out.lines() {
        let time = Duration::from_nanos(line?.parse().context("the client says nanoseconds")?);
        all.push(Took { time, until: Instant::now() });
    }
    ensure!(child.wait()?.success() && all.len() == count, "the client failed");
    Ok(all)
}
