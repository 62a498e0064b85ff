//! External commands that cannot hang a test.
//!
//! Each command runs in a process group of its own and has a time limit; past it the group is
//! killed and the test fails with what the command had said. Output goes to files, not to pipes: a
//! grandchild that keeps the descriptor open cannot keep the test waiting.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

/// A command to run to its end.
#[derive(Debug)]
pub struct Cmd {
    inner: Command,
    limit: Duration,
    input: Vec<u8>,
}

/// What a command left.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
    /// How long it took.
    pub took: Duration,
}

impl Output {
    /// The standard output as text.
    #[must_use]
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The standard error as text.
    #[must_use]
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl Cmd {
    /// `program` with a limit of one minute.
    #[must_use]
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut inner = Command::new(program);
        inner.env("LC_ALL", "C").process_group(0);
        Self { inner, limit: Duration::from_secs(60), input: Vec::new() }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.inner.arg(arg);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.inner.args(args);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.inner.env(key, value);
        self
    }

    /// Runs in `dir`.
    #[must_use]
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.inner.current_dir(dir);
        self
    }

    /// Ends after `limit` at the latest; in long versions after ten times that.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = if crate::is_long() { limit * 10 } else { limit };
        self
    }

    /// Leaves its standard error unseen, where it is expected to complain; for
    /// [`start`](Self::start).
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.inner.stderr(Stdio::null());
        self
    }

    /// Feeds `input` to its standard input.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// When it cannot be started, or takes longer than the limit.
    #[must_use]
    pub fn run(mut self) -> Output {
        let what = format!("{:?}", self.inner);
        let (mut out, mut err) = (spool(&[]), spool(&[]));
        let started = Instant::now();
        let child =
            spawn(self.inner.stdin(spool(&self.input)).stdout(clone(&out)).stderr(clone(&err)), &what);
        let mut child = Running::new(child);
        let status = child.wait(testing::patience(self.limit));
        let took = started.elapsed();
        let mut output = |status| Output { status, stdout: drain(&mut out), stderr: drain(&mut err), took };
        match status {
            Some(status) => output(status),
            None => {
                child.kill();
                let said = output(ExitStatus::default());
                panic!(
                    "{what}: still running after {:?}\n--- stdout\n{}--- stderr\n{}",
                    self.limit,
                    said.out(),
                    said.err()
                );
            }
        }
    }

    /// Runs it to its end, which must be a success.
    ///
    /// # Panics
    /// When it fails, or as [`run`](Self::run) does.
    pub fn ok(self) -> Output {
        let what = format!("{:?}", self.inner);
        let output = self.run();
        assert!(
            output.status.success(),
            "{what}: {}\n--- stdout\n{}--- stderr\n{}",
            output.status,
            output.out(),
            output.err()
        );
        output
    }

    /// Starts it and returns; standard output comes through a pipe, standard error goes to the
    /// test's own.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(mut self) -> Running {
        let what = format!("{:?}", self.inner);
        Running::new(spawn(self.inner.stdin(spool(&self.input)).stdout(Stdio::piped()), &what))
    }
}

/// Held from fork to exec: in between the child has every file of this process open.
static SPAWNING: Mutex<()> = Mutex::new(());

/// Starts `command`, which `what` describes.
///
/// # Panics
/// When it cannot be started.
pub(crate) fn spawn(command: &mut Command, what: &str) -> Child {
    let spawned = {
        let _guard = SPAWNING.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn()
    };
    spawned.unwrap_or_else(|e| panic!("{what}: cannot be started: {e}"))
}

/// Waits until no child of another test that is only being started holds files that this test has
/// closed; they would keep a volume in use.
pub(crate) fn wait_for_spawns() {
    drop(SPAWNING.lock().unwrap_or_else(PoisonError::into_inner));
}

/// A process that is killed, with its group, when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
}

impl Running {
    /// Takes charge of `child`, which leads a process group.
    ///
    /// # Panics
    /// When the kernel refuses a pidfd.
    #[must_use]
    pub fn new(child: Child) -> Self {
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd_open of a child");
        Self { child, pidfd, status: None }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipe to its standard output, once.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// The pipe to its standard error, once.
    pub fn stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// Another handle to signal it, safe after its end.
    ///
    /// # Panics
    /// When the kernel refuses another descriptor.
    #[must_use]
    pub fn pidfd(&self) -> OwnedFd {
        self.pidfd.try_clone().expect("a second descriptor")
    }

    /// Sends a signal; after its end, nothing happens.
    pub fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// Kills it and its group, and waits a few seconds for its end.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            let _ = self.wait(Duration::from_secs(5));
        }
    }

    /// Waits for its end; `None` when it still runs after `limit`.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.status.is_none() && is_ended(&self.pidfd, limit) {
            self.status = Some(self.child.wait().expect("wait for a child"));
        }
        self.status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the process of `pidfd` has ended, at most `limit`.
fn is_ended(pidfd: &OwnedFd, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("poll of a pidfd: {e}"),
        }
    }
}

fn spool(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(content).expect("write a temporary file");
    file.rewind().expect("rewind a temporary file");
    file
}

fn clone(file: &File) -> File {
    file.try_clone().expect("a second descriptor")
}

fn drain(file: &mut File) -> Vec<u8> {
    let mut text = Vec::new();
    file.rewind().expect("rewind a temporary file");
    file.read_to_end(&mut text).expect("read a temporary file");
    text
}
