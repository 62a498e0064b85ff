//! The program serving one mount: its log, its life, its death.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;

use crate::command::{Running, spawn};
use crate::{program, sys};

/// How long a mount may take. Far more than it needs: the machine may be busy.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// Where the program keeps its control sockets; each subject has a directory of its own.
pub const RUNTIME_DIR: &str = "WATERTIGHT_RUNTIME_DIR";

/// `watertight mount` in the foreground.
#[derive(Debug)]
pub struct Daemon {
    process: Running,
    log: Log,
    command: String,
    followers: Vec<JoinHandle<()>>,
}

/// What the program said, standard output and error together.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// All of it so far.
    ///
    /// # Panics
    /// When a reader panicked.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("log")).into_owned()
    }

    fn push(&self, line: &[u8]) {
        self.0.lock().expect("log").extend_from_slice(line);
    }
}

impl Daemon {
    /// Mounts `source` at `mountpoint` and waits until it is ready; its control socket is in
    /// `runtime`.
    ///
    /// # Errors
    /// What the program said, when it is not ready in time or ended before.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn mount(
        source: &OsString,
        mountpoint: &Path,
        options: &[String],
        runtime: &Path,
    ) -> Result<Self, String> {
        let mut command = Command::new(program::watertight());
        command.arg("mount").arg(source).arg(mountpoint);
        if !options.is_empty() {
            command.arg("-o").arg(options.join(","));
        }
        let shown = format!("{command:?}");
        command.env(RUNTIME_DIR, runtime);
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(sys::die_with_parent) };
        let mut process = Running::new(spawn(&mut command, &shown));
        let log = Log::default();
        let (ready, is_ready) = mpsc::channel();
        let err = process.stderr().map(|err| follow(err, log.clone(), None));
        let out = process.stdout().map(|out| follow(out, log.clone(), Some(ready)));
        let followers = err.into_iter().chain(out).collect();
        let mut daemon = Self { process, log, command: shown, followers };
        // The channel closes when the program ends, so this does not wait in vain.
        match is_ready.recv_timeout(READY_LIMIT) {
            Ok(()) => Ok(daemon),
            Err(_) => {
                let status = daemon.process.wait(Duration::from_secs(1));
                daemon.kill();
                let how = status.map_or_else(|| "is not ready".to_owned(), |s| format!("ended: {s}"));
                Err(format!("{}: {how}; it said:\n{}", daemon.command, daemon.log.text()))
            }
        }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it said.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// How it was started.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.command
    }

    /// A handle to signal it from elsewhere.
    #[must_use]
    pub fn pidfd(&self) -> OwnedFd {
        self.process.pidfd()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for its end; the log is complete then.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let status = self.process.wait(limit);
        if status.is_some() {
            // The pipes are closed; nothing is started that could keep them.
            for follower in self.followers.drain(..) {
                let _ = follower.join();
            }
        }
        status
    }

    /// `kill -9`, and the end.
    pub fn kill(&mut self) {
        self.process.kill();
        let _ = self.wait(Duration::ZERO);
    }

    /// A value in KiB of `/proc/PID/status`, as `VmHWM`.
    ///
    /// # Panics
    /// When the process or the field is not there.
    #[must_use]
    pub fn memory_kib(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.id());
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        text.lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
            .unwrap_or_else(|| panic!("{path} has no {field}"))
    }
}

/// Copies `stream` into `log`; says on `ready` when the line came that says the mount is there.
fn follow(stream: impl Read + Send + 'static, log: Log, ready: Option<mpsc::Sender<()>>) -> JoinHandle<()> {
    let is_shown = std::env::var_os("ACCEPTANCE_SHOW_LOG").is_some();
    thread::spawn(move || {
        let mut ready = ready;
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            log.push(&line);
            if is_shown {
                let _ = std::io::stderr().write_all(&line);
            }
            if line.starts_with(b"ready")
                && let Some(ready) = ready.take()
            {
                let _ = ready.send(());
            }
            line.clear();
        }
    })
}
