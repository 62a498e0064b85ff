//! Another process of this program, which does one step for a call and outlives this process.
//!
//! It is in a process group of its own, so that no signal to this one's reaches it, and what it
//! says goes to a file without a name: neither the end of this process nor that of a mount process
//! in the background, which has the same standard error until it is mounted, can hold the other up.

use std::ffi::{OsStr, OsString};
use std::fs::File;
#[cfg(feature = "csi")]
use std::io::{self, Write as _};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::credentials::Credentials;
use crate::host::process;
use crate::term::shown::in_one_line;

/// Bytes of a process's words that are read.
const WORDS_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a process's answer that are read.
#[cfg(feature = "csi")]
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// How a process is started.
#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Its credentials, which it gets in its environment: the arguments are for every user to see.
    pub(super) credentials: Credentials,
    /// The command that runs it outside of this process's cgroup; empty: none does.
    pub(super) wrapper: Vec<OsString>,
    /// What it has as its standard input, where it is not asked anything: a lock, until it ends.
    pub(super) held: Option<File>,
    /// The mountpoint of a `mount` is there, by its real path, and no link is followed to it.
    pub(super) real_path: bool,
}

/// Runs this program with these arguments to its end; what it prints on standard output is dropped.
/// After `patience` it gets a SIGTERM.
///
/// # Errors
/// What it said on standard error, in a line.
pub(super) fn run<A: AsRef<OsStr>>(arguments: &[A], patience: Option<Duration>) -> Result<(), String> {
    run_as(&Launch::default(), arguments, patience)
}

/// As [`run`], started so.
///
/// # Errors
/// As there.
pub(super) fn run_as<A: AsRef<OsStr>>(
    launch: &Launch,
    arguments: &[A],
    patience: Option<Duration>,
) -> Result<(), String> {
    let held = launch.held.as_ref().map(File::try_clone).transpose();
    let held = held.map_err(|error| format!("cannot pass a lock on: {error}"))?;
    let stdin = held.map_or_else(Stdio::null, Stdio::from);
    finish(command(launch, arguments).stdin(stdin).stdout(Stdio::null()), patience)
}

/// As [`run_as`], of a process that reads `input` and answers on standard output.
///
/// # Errors
/// As there.
#[cfg(feature = "csi")]
pub(super) fn ask<A: AsRef<OsStr>>(
    launch: &Launch,
    arguments: &[A],
    input: &[u8],
    patience: Option<Duration>,
) -> Result<Vec<u8>, String> {
    let made = |error: io::Error| format!("cannot make a temporary file: {error}");
    let (mut question, mut answer) =
        (tempfile::tempfile().map_err(made)?, tempfile::tempfile().map_err(made)?);
    let written = question.write_all(input).and_then(|()| question.seek(SeekFrom::Start(0)));
    written.map_err(|error| format!("cannot write a temporary file: {error}"))?;
    let out = answer.try_clone().map_err(made)?;
    finish(command(launch, arguments).stdin(question).stdout(out), patience)?;
    whole(&mut answer, ANSWER_BYTES_MAX)
}

/// An answer that is not longer than this.
#[cfg(feature = "csi")]
fn whole(file: &mut File, most: u64) -> Result<Vec<u8>, String> {
    let answer = bytes(file, most.saturating_add(1))?;
    if answer.len() as u64 > most {
        return Err(format!("a process of watertight answered with more than {most} bytes"));
    }
    Ok(answer)
}

fn command<A: AsRef<OsStr>>(launch: &Launch, arguments: &[A]) -> Command {
    let mut command = match launch.wrapper.split_first() {
        Some((wrapper, more)) => {
            let mut command = Command::new(wrapper);
            // By its path: where it was replaced meanwhile, nothing has this one, and starting fails.
            let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
            command.args(more).arg(own);
            command
        }
        None => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("watertight");
            command
        }
    };
    command.args(arguments);
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC").env_remove("RUST_LOG");
    command.process_group(0).current_dir("/");
    launch.credentials.apply(&mut command);
    command
}

fn finish(command: &mut Command, patience: Option<Duration>) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot start a process of watertight: {error}");
    let mut words = tempfile::tempfile().map_err(|error| format!("cannot make a temporary file: {error}"))?;
    command.stderr(words.try_clone().map_err(|error| failed(&error))?);
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let is_late = patience.is_some_and(|patience| !process::child_ends_within(&child, patience));
    if is_late {
        terminate(&child);
    }
    let status = child.wait().map_err(|error| failed(&error))?;
    if status.success() {
        return Ok(());
    }
    let words = in_one_line(&joined(&text(&mut words)?));
    match (words.is_empty(), is_late) {
        (false, _) => Err(words),
        (true, true) => Err(format!("it took longer than {} s", patience.unwrap_or_default().as_secs())),
        (true, false) => Err(format!("a process of watertight ended with {status}")),
    }
}

/// Lines as one: those that are indented go on with the sentence before them.
fn joined(words: &str) -> String {
    let (mut all, mut was_indented) = (String::new(), false);
    for line in words.lines().filter(|line| !line.trim().is_empty()) {
        let is_indented = line.starts_with(' ');
        if !all.is_empty() {
            all.push_str(if is_indented && !was_indented { " " } else { "; " });
        }
        all.push_str(line.strip_prefix("watertight: ").unwrap_or(line).trim());
        was_indented = is_indented;
    }
    all
}

fn text(file: &mut File) -> Result<String, String> {
    Ok(String::from_utf8_lossy(&bytes(file, WORDS_BYTES_MAX)?).into_owned())
}

fn bytes(file: &mut File, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(most).read_to_end(&mut bytes));
    read.map_err(|error| format!("what a process of watertight said cannot be read: {error}"))?;
    Ok(bytes)
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(child.id().cast_signed())
}

/// Its pid is its own until it is reaped, which only this thread does.
fn terminate(child: &Child) {
    if let Some(pid) = pid(child) {
        let _ended_meanwhile = kill_process(pid, Signal::TERM);
    }
}

#[cfg(all(test, feature = "csi"))]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_indented_ones_go_on_with_a_sentence() {
        let words = "watertight: /a is held by\n  sh (pid 1)\n  cat (pid 2)\n\n`umount` says more\n";
        assert_eq!(joined(words), "/a is held by sh (pid 1); cat (pid 2); `umount` says more");
        assert_eq!(joined(" \n"), "");
    }

    #[test]
    fn an_answer_that_is_too_long_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"answer").unwrap();
        assert_eq!(whole(&mut file, 6).unwrap(), b"answer");
        assert!(whole(&mut file, 5).unwrap_err().contains("more than 5 bytes"));
    }
}
