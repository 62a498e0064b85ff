//! A process with a mount namespace of its own, which fills it with bind mounts and prints how long
//! its end takes. The process goes back to its old namespace: the last user leaves, and the
//! kernel's work for that is done before setns(2) returns.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};

use crate::child;

/// The first argument of such a process.
pub(crate) const COMMAND: &str = "kernels-namespace";

/// The mounts that are made in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Bind mounts of one directory: nothing but mounts ends with them.
    Binds,
    /// A tmpfs each: a superblock ends with each, as with a volume of ours.
    Tmpfs,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Binds, Self::Tmpfs];

    fn name(self) -> &'static str {
        match self {
            Self::Binds => "binds",
            Self::Tmpfs => "tmpfs",
        }
    }

    /// Mounts one.
    pub(super) fn mount(self, source: &Path, place: &Path) -> rustix::io::Result<()> {
        match self {
            Self::Binds => mount_bind(source, place),
            Self::Tmpfs => mount("lab", place, "tmpfs", MountFlags::empty(), None::<&std::ffi::CStr>),
        }
    }
}

/// The process: `kernels-namespace DIRECTORY COUNT KIND`. Prints nanoseconds.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    child::exit(COMMAND, serve(&arguments.collect::<Vec<_>>()))
}

fn serve(arguments: &[OsString]) -> anyhow::Result<()> {
    let [directory, count, kind] = arguments else { anyhow::bail!("DIRECTORY COUNT KIND") };
    let directory = Path::new(directory);
    let count: usize = count.to_str().and_then(|count| count.parse().ok()).context("COUNT is a number")?;
    let kind = Kind::ALL.into_iter().find(|known| kind == known.name()).context("KIND is binds or tmpfs")?;
    let old = File::open("/proc/self/ns/mnt")?;
    // SAFETY: takes no pointer; the process has one thread.
    ensure!(unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0, std::io::Error::last_os_error());
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("lab", directory, "tmpfs", MountFlags::empty(), None::<&std::ffi::CStr>)?;
    mount_all(directory, count, kind)?;
    let begun = Instant::now();
    // SAFETY: takes no pointer; the descriptor is open.
    ensure!(unsafe { libc::setns(old.as_raw_fd(), libc::CLONE_NEWNS) } == 0, std::io::Error::last_os_error());
    let took = begun.elapsed();
    writeln!(std::io::stdout(), "{}", took.as_nanos())?;
    Ok(())
}

/// Makes directories `0`, `1`, … and mounts something on each.
pub(super) fn mount_all(directory: &Path, count: usize, kind: Kind) -> anyhow::Result<()> {
    let source = directory.join("source");
    std::fs::create_dir_all(&source)?;
    for number in 0..count {
        let place = directory.join(number.to_string());
        std::fs::create_dir_all(&place)?;
        kind.mount(&source, &place)?;
    }
    Ok(())
}

/// A process makes a namespace with so many mounts, and leaves it.
pub(super) fn end_of(directory: &Path, count: usize, kind: Kind) -> anyhow::Result<Duration> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(directory).arg(count.to_string()).arg(kind.name());
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output()?;
    ensure!(output.status.success(), "a namespace could not be made");
    Ok(Duration::from_nanos(String::from_utf8(output.stdout)?.trim().parse()?))
}
