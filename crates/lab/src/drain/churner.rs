//! A process that keeps inodes changing owners on one file system: in a new cgroup it overwrites a
//! file synchronously, leaves the cgroup and removes it, again and again. One process for each file
//! system, because a process is in one cgroup as a whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};

use crate::child;

/// The first argument of such a process.
pub(crate) const COMMAND: &str = "drain-churner";
/// Synchronous overwrites in each cgroup.
pub(super) const WRITES: u64 = 16;
const PAGE: [u8; 4096] = [7; 4096];
/// Where cgroups are made: of version 2, with the memory and io controllers on.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The cgroup of each process between two cgroups of its own.
const PREFIX: &str = "watertight-churn";

/// The process, until it is killed: `drain-churner FILE NUMBER switching|steady`.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    child::exit(COMMAND, serve(&arguments.collect::<Vec<_>>()))
}

fn serve(arguments: &[OsString]) -> anyhow::Result<()> {
    let [path, number, how] = arguments else { anyhow::bail!("FILE NUMBER switching|steady") };
    let (number, is_switching) = (number.to_str().context("NUMBER")?, how == "switching");
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).custom_flags(libc::O_DSYNC).open(path)?;
    let (home, own) = (directory(number, "home"), directory(number, "own"));
    let join = |cgroup: &Path| fs::write(cgroup.join("cgroup.procs"), "0");
    fs::create_dir_all(&home)?;
    join(&home)?;
    loop {
        fs::create_dir(&own)?;
        // Without switches, the cgroup comes and goes, and the process stays in its old one.
        if is_switching {
            join(&own)?;
        }
        overwrite(&file)?;
        if is_switching {
            join(&home)?;
        }
        fs::remove_dir(&own)?;
    }
}

/// Overwrites the file. Its pages leave the cache before, because pages stay charged to the cgroup
/// that brought them in.
fn overwrite(file: &File) -> anyhow::Result<()> {
    fadvise(file, 0, None, Advice::DontNeed)?;
    for page in 0..WRITES {
        file.write_all_at(&PAGE, page * PAGE.len() as u64)?;
    }
    Ok(())
}

fn directory(number: &str, name: &str) -> PathBuf {
    Path::new(CGROUPS).join(format!("{PREFIX}-{number}-{name}"))
}

/// A running one; its cgroups go with it.
pub(super) struct Churner {
    child: Child,
    number: String,
}

impl Churner {
    /// Starts one that writes to `file`.
    pub(super) fn start(file: &Path, number: usize, is_switching: bool) -> anyhow::Result<Self> {
        let number = number.to_string();
        let how = if is_switching { "switching" } else { "steady" };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).arg(file).args([&number, how]).stdin(Stdio::null()).stdout(Stdio::null());
        child::ends_with_the_lab(&mut command);
        Ok(Self { child: command.spawn().context("cannot start a churner")?, number })
    }

    /// Whether the process still churns.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Churner {
    fn drop(&mut self) {
        let _ended_already = self.child.kill().and_then(|()| self.child.wait());
        for name in ["own", "home"] {
            // A cgroup has a dead process for a moment.
            for _ in 0..200 {
                match fs::remove_dir(directory(&self.number, name)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    }
                    _ => break,
                }
            }
        }
    }
}
