//! Processes: this one's use of the host's resources, and whether another one has ended.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::Child;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

use serde::{Deserialize, Serialize};

/// A mount process's use of the host; 0 where the kernel does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Threads.
    pub threads: u64,
    /// Of these, the ones that serve requests or wait for them.
    pub serving_threads: u64,
    /// Open descriptors.
    pub open_fds: u64,
    /// How many may be open.
    pub max_fds: u64,
    /// Memory in use (the resident set).
    pub resident_bytes: u64,
    /// Tasks of volumes on object storage that have not ended.
    pub tasks: u64,
}

/// The figures now; of the threads, `serving_threads` serve requests.
#[must_use]
pub fn figures(serving_threads: u64) -> Process {
    Process {
        threads: threads(),
        serving_threads,
        open_fds: open_fds(),
        max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        resident_bytes: resident_bytes(),
        tasks: tasks(),
    }
}

#[cfg(feature = "objects")]
fn tasks() -> u64 {
    objects::tasks()
}

/// The program is built without object storage: it has no such volumes.
#[cfg(not(feature = "objects"))]
const fn tasks() -> u64 {
    0
}

/// Takes as many descriptors as this process may have.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Refused: then there are as many as there are.
    let _refused = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Waits at most so long for the end of a process; returns whether it has ended. It is not reaped.
///
/// # Errors
/// Those of poll(2).
pub fn ends_within(pidfd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let timeout =
        Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits at most so long for the end of a child; returns whether it has ended. It is not reaped.
pub fn child_ends_within(child: &Child, timeout: Duration) -> bool {
    let pid = Pid::from_raw(child.id().cast_signed());
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    process.is_none_or(|process| ends_within(process, timeout).unwrap_or(true))
}

/// A directory's links are itself, its name, and each directory in it: here, each thread.
fn threads() -> u64 {
    fs::metadata("/proc/self/task").map_or(0, |meta| meta.nlink().saturating_sub(2))
}

/// Since Linux 6.2 the directory's size is their number; before, they have to be counted (the one
/// that reads is among them).
fn open_fds() -> u64 {
    match fs::metadata("/proc/self/fd") {
        Ok(meta) if meta.size() > 0 => meta.size(),
        _ => fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1) as u64),
    }
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Leaves the working directory, once all paths are resolved: it may lie in the mount that is to
/// go, and this process must not hold that.
pub fn leave_directory() {
    if let Err(error) = std::env::set_current_dir("/") {
        tracing::debug!(%error, "the working directory stays as it is");
    }
}

/// Whether a process's first thread is gone, while others may still be on their way out.
#[must_use]
pub fn is_zombie(pid: u32) -> bool {
    // Not `stat`, which the kernel may hold back while a process is in execve(2).
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("State:"))
        .is_some_and(|state| state.trim().starts_with('Z'))
}

/// Whether a process has ended but is not gone: its first thread has freed the memory, and either
/// still closes files or is a zombie. Other threads may still be on their way out.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.starts_with("0 ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_what_the_process_does() {
        let before = figures(3);
        assert_eq!(before.serving_threads, 3);
        assert!(before.threads >= 1 && before.resident_bytes > 0, "{before:?}");
        assert!(before.open_fds >= 3 && before.open_fds <= before.max_fds, "{before:?}");
        // Far more than tests that run beside this one open and close.
        let open: Vec<_> = (0..200).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        assert!(figures(0).open_fds >= before.open_fds + 100, "{:?}", figures(0));
        drop(open);
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv().is_err());
        assert!(figures(0).threads >= 2);
        drop(stop);
        assert!(thread.join().unwrap());
    }
}
