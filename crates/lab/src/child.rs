//! A server in a process of its own, and the wait for its mount.
//!
//! A server is started in a process group of its own (a Ctrl-C on the terminal is the lab's to
//! handle), is sent SIGTERM by the kernel if the lab dies, and is gone when its [`Server`] is
//! dropped: first its mount is taken away, then it is waited for, then it is ended.

use anyhow::{Context as _, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until its mount is there: on a host with a thousand others that want
/// to run, long.
const START_MAX: Duration = Duration::from_secs(120);
/// How long a server may take to end after its mount is gone.
const END_MAX: Duration = Duration::from_secs(120);
/// How long a mount that is to go may be held.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// A running server with its mount.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pid_fd: OwnedFd,
    mountpoint: PathBuf,
    /// Set when the mount was taken away and the process waited for.
    is_over: bool,
}

impl Server {
    /// Starts `command` with its output going to `log` and waits until something is mounted on
    /// `mountpoint`.
    ///
    /// # Errors
    /// If the program cannot be started, ends or takes too long; with its output.
    pub(crate) fn start(command: &mut Command, mountpoint: &Path, log: &Path) -> anyhow::Result<Self> {
        let server = Self::begin(command, mountpoint, log)?;
        server.mounted(log)?;
        Ok(server)
    }

    /// Starts `command` with its output going to `log`; for a caller that starts several and waits
    /// for all of them. Called by a thread that lives as long as the lab: the kernel takes its end
    /// for the lab's.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn begin(command: &mut Command, mountpoint: &Path, log: &Path) -> anyhow::Result<Self> {
        let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        ends_with_the_lab(command);
        let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let pid_fd = pidfd_open(pid(&child)?, PidfdFlags::empty()).context("cannot watch the server")?;
        Ok(Self { child, pid_fd, mountpoint: mountpoint.to_owned(), is_over: false })
    }

    /// Waits until something is mounted on the mountpoint.
    ///
    /// # Errors
    /// If the program ends or takes too long; with its output in `log`.
    pub(crate) fn mounted(&self, log: &Path) -> anyhow::Result<()> {
        let mut mounts = File::open("/proc/self/mountinfo").context("cannot read the mount table")?;
        self.wait_for_mount(&mut mounts).map_err(|error| {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
            error.context(format!("the server's last output: {}", last.trim()))
        })
    }

    fn wait_for_mount(&self, mounts: &mut File) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_MAX;
        loop {
            if is_mountpoint(mounts, &self.mountpoint)? {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no mount after {} s", START_MAX.as_secs());
            // The mount table signals PRI when it changes, the process IN when it ends.
            let mut fds = [PollFd::new(&*mounts, PollFlags::PRI), PollFd::new(&self.pid_fd, PollFlags::IN)];
            wait(&mut fds, left)?;
            if fds[1].revents().contains(PollFlags::IN) && !is_mountpoint(mounts, &self.mountpoint)? {
                bail!("the server ended without a mount");
            }
        }
    }

    /// Processor time that the server has used so far, all its threads together.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        cpu_time(pid(&self.child).ok()?)
    }

    /// Takes the mount away and waits until the server has ended.
    ///
    /// # Errors
    /// If the mount cannot be taken away or the server does not end; it is killed then.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.take_down()
    }

    /// Its process' id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it: it answers nothing from then on, and ends only by [`kill`](Self::kill).
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn suspend(&self) -> anyhow::Result<()> {
        rustix::process::kill_process(pid(&self.child)?, Signal::STOP).context("cannot stop the server")
    }

    /// Ends it by a signal, and takes away the dead mount that it leaves: for a server that has
    /// stopped, or whose store has.
    ///
    /// # Errors
    /// If it is still there after a while.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.is_over = true;
        self.child.kill().context("cannot kill the server")?;
        let mut fds = [PollFd::new(&self.pid_fd, PollFlags::IN)];
        wait(&mut fds, END_MAX)?;
        let has_ended = fds[0].revents().contains(PollFlags::IN);
        let _gone_already = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
        ensure!(has_ended, "a server that was killed still exists after {} s", END_MAX.as_secs());
        self.child.wait().context("cannot wait for the server")?;
        Ok(())
    }

    fn take_down(&mut self) -> anyhow::Result<()> {
        self.is_over = true;
        let unmounted = unmount(&self.mountpoint);
        if unmounted.is_err() {
            // Not ours to hang on: the server may still end well when it is asked to.
            let _ = rustix::process::kill_process(pid(&self.child)?, Signal::TERM);
        }
        let mut fds = [PollFd::new(&self.pid_fd, PollFlags::IN)];
        wait(&mut fds, END_MAX)?;
        let has_ended = fds[0].revents().contains(PollFlags::IN);
        if !has_ended {
            self.child.kill().context("cannot kill the server")?;
        }
        self.child.wait().context("cannot wait for the server")?;
        if unmounted.is_err() {
            // A killed server leaves a dead mount behind.
            let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
        }
        unmounted?;
        ensure!(has_ended, "the server did not end within {} s of its unmount: killed", END_MAX.as_secs());
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_over
            && let Err(error) = self.take_down()
        {
            eprintln!("lab: {}: {error:#}", self.mountpoint.display());
        }
    }
}

/// In a process group of its own, and sent SIGTERM if the lab dies; not begun at all if it has died
/// by then.
pub(crate) fn ends_with_the_lab(command: &mut Command) {
    ends_with(command, rustix::process::getpid());
}

fn ends_with(command: &mut Command, parent: Pid) {
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes two system calls, which are
    // async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            // Of a parent that was gone before there is no signal.
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(rustix::io::Errno::SRCH.into())
            }
        });
    }
}

/// The exit code of this executable as another's process, `lab COMMAND …`: the error goes to
/// standard error.
pub(crate) fn exit(command: &str, done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Processor time that a process has used so far, all its threads together.
pub(crate) fn cpu_time(process: Pid) -> Option<Duration> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write to the one local variable that they are given a pointer to.
    let errors = unsafe {
        libc::clock_getcpuclockid(process.as_raw_nonzero().get(), &raw mut clock) != 0
            || libc::clock_gettime(clock, &raw mut time) != 0
    };
    (!errors).then_some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

/// The id of a child.
pub(crate) fn pid(child: &Child) -> anyhow::Result<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process without an id")
}

/// Waits for one of `fds`, at most `at_most`; an interrupted wait ends early.
pub(crate) fn wait(fds: &mut [PollFd<'_>], at_most: Duration) -> anyhow::Result<()> {
    let timeout = Timespec::try_from(at_most).context("a wait that is too long")?;
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait"),
    }
}

/// Unmounts as root by the system call, else through `fusermount3`.
fn unmount(mountpoint: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let result = rustix::mount::unmount(mountpoint, UnmountFlags::empty());
        // A process that looks through /proc, as `umount` does, holds the files that it looks at
        // for a moment.
        if result == Err(rustix::io::Errno::BUSY) && begun.elapsed() < BUSY_MAX {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        return unmounted(mountpoint, result);
    }
}

fn unmounted(mountpoint: &Path, result: rustix::io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(rustix::io::Errno::PERM) => {
            let status = Command::new("fusermount3").arg("-u").arg(mountpoint).stderr(Stdio::null()).status();
            ensure!(status.is_ok_and(|s| s.success()), "`fusermount3 -u` failed");
            Ok(())
        }
        // Already gone, with its server.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot unmount {}", mountpoint.display())),
    }
}

/// Whether the mount table, read from its start, has something on `mountpoint`.
fn is_mountpoint(mounts: &mut File, mountpoint: &Path) -> anyhow::Result<bool> {
    use std::io::Seek as _;
    let mut table = String::new();
    mounts.rewind()?;
    mounts.read_to_string(&mut table).context("cannot read the mount table")?;
    // Paths of the lab's own making have no characters that the table escapes.
    Ok(table.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| Path::new(place) == mountpoint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_without_a_mount_is_an_error_with_its_words() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo cannot serve >&2; exit 3"]);
        let error = Server::start(&mut command, &directory.path().join("mnt"), &directory.path().join("log"))
            .unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains("cannot serve") && message.contains("ended without a mount"), "{message}");
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(directory.path().join("nothing"));
        let error = Server::start(&mut command, directory.path(), &directory.path().join("log")).unwrap_err();
        assert!(format!("{error:#}").contains("cannot start"), "{error:#}");
    }

    #[test]
    fn what_has_another_parent_than_the_lab_by_now_is_not_begun() {
        let directory = tempfile::tempdir().unwrap();
        let touch = |name: &str, parent: Pid| {
            let mut command = Command::new("touch");
            ends_with(command.arg(directory.path().join(name)), parent);
            command.status()
        };
        assert!(touch("one", rustix::process::getpid()).unwrap().success());
        // A process that is gone is no other's parent.
        let error = touch("two", rustix::process::getppid().unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        assert!(directory.path().join("one").exists() && !directory.path().join("two").exists());
    }

    #[test]
    fn the_root_is_a_mountpoint_and_a_new_directory_is_not() {
        let mut mounts = File::open("/proc/self/mountinfo").unwrap();
        assert!(is_mountpoint(&mut mounts, Path::new("/")).unwrap());
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_mountpoint(&mut mounts, directory.path()).unwrap());
    }
}
