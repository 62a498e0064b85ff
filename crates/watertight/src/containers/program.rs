//! Another process of this program, which does one step for a call and outlives this process.
//!
//! It is in a process group of its own, so that no signal to this one's reaches it, and what it says
//! goes to a file without a name: neither the end of this process nor that of a mount process in the
//! background, which has the same standard error until it is mounted, can hold the other up.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::term::shown::in_one_line;

/// Bytes of a process's words that are read.
const WORDS_BYTES_MAX: u64 = 16 << 10;
/// Bytes of its answer that are read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Runs this program with these arguments to its end; returns what it printed on standard output.
/// After `patience` it gets a SIGTERM.
///
/// # Errors
/// What it said on standard error, in a line.
pub(super) fn run<A: AsRef<OsStr>>(arguments: &[A], patience: Option<Duration>) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot start a process of watertight: {error}");
    let (mut words, mut answer) = (file()?, file()?);
    let handle = |file: &File| file.try_clone().map(Stdio::from);
    let mut command = Command::new("/proc/self/exe");
    command.arg0("watertight").args(arguments);
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").env_remove("RUST_LOG");
    command.stdin(Stdio::null()).process_group(0).current_dir("/");
    command.stdout(handle(&answer).map_err(|error| failed(&error))?);
    command.stderr(handle(&words).map_err(|error| failed(&error))?);
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let is_late = patience.is_some_and(|patience| !ends_within(&child, patience));
    if is_late {
        terminate(&child);
    }
    let status = child.wait().map_err(|error| failed(&error))?;
    if status.success() {
        return text(&mut answer, ANSWER_BYTES_MAX);
    }
    let words = text(&mut words, WORDS_BYTES_MAX)?;
    let words = words.lines().map(|line| line.strip_prefix("watertight: ").unwrap_or(line).trim());
    let words = in_one_line(&words.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; "));
    match (words.is_empty(), is_late) {
        (false, _) => Err(words),
        (true, true) => Err(format!("it took longer than {} s", patience.unwrap_or_default().as_secs())),
        (true, false) => Err(format!("a process of watertight ended with {status}")),
    }
}

fn file() -> Result<File, String> {
    tempfile::tempfile().map_err(|error| format!("cannot make a temporary file: {error}"))
}

fn text(file: &mut File, bytes_max: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(bytes_max).read_to_end(&mut bytes));
    read.map_err(|error| format!("what a process of watertight said cannot be read: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(child.id().cast_signed())
}

/// Waits for the process; returns whether it has ended by then. It is not reaped.
fn ends_within(child: &Child, patience: Duration) -> bool {
    let Some(process) = pid(child).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return true;
    };
    let patience =
        Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// Its pid is its own until it is reaped, which only this thread does.
fn terminate(child: &Child) {
    if let Some(pid) = pid(child) {
        let _ended_meanwhile = kill_process(pid, Signal::TERM);
    }
}
