//! Serving in the background.
//!
//! Threads do not survive fork(2), so the parent starts this program once more. The child leaves
//! the terminal's session, mounts, and writes a line to its standard output, a pipe, when the mount
//! is up, after notes for a person, if there are any. Until then its standard error is the
//! parent's, so that errors reach the caller.

use std::env;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// The word that the child's line starts with.
pub const READY: &str = "ready";
/// The prefix of a line before that: a note for a person, which the parent prints if it prints
/// anything.
pub const NOTE: &str = "note: ";

/// Starts the background process with these arguments, and waits until it is ready or has failed;
/// returns the exit code for either. Prints its notes if `tells`.
///
/// # Errors
/// When it cannot be started.
pub fn start(arguments: impl IntoIterator<Item = OsString>, tells: bool) -> Result<ExitCode> {
    let failed = |error: &dyn std::fmt::Display| {
        Problem::failure(format!("cannot start the background process: {error}"))
    };
    let mut child = Command::new(program())
        // Not as one of mount(8)'s helpers.
        .arg0("watertight")
        .arg("--in-background")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let mut line = String::new();
    if let Some(pipe) = child.stdout.take() {
        let mut pipe = BufReader::new(pipe);
        loop {
            pipe.read_line(&mut line).map_err(|error| failed(&error))?;
            let Some(note) = line.strip_prefix(NOTE) else { break };
            if tells {
                console().say(note.trim_end());
            }
            line.clear();
        }
    }
    if line.starts_with(READY) {
        if tells {
            console().print(line.trim_end());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().map_err(|error| failed(&error))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|&code| code != 0);
    match code {
        // It has said why.
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(failed(&format!("it ended early ({status})"))),
    }
}

/// This program: by its path, whose last part is the process's name, unless an upgrade has replaced the
/// file meanwhile.
fn program() -> PathBuf {
    let link = "/proc/self/exe";
    std::fs::read_link(link).ok().filter(|path| path.exists()).unwrap_or_else(|| link.into())
}

/// The first step of a background process: it leaves the terminal's session, and ends with the
/// parent that waits for it until it [`outlive_parent`]s. Its working directory is left too, later, by
/// [`detach_output`].
///
/// # Errors
/// When the parent does not wait any more.
pub fn leave_session() -> Result<()> {
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "cannot start a session");
    }
    end_with_parent(Some(Signal::TERM));
    // Gone before that, it has closed the pipe.
    let stdout = rustix::stdio::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(_) if fds[0].revents().contains(PollFlags::ERR) => {
            Err(Problem::failure("the process that waited for the background process is gone"))
        }
        _ => Ok(()),
    }
}

/// The process is about to mount: from now on it stays, whether or not its parent does.
pub fn outlive_parent() {
    end_with_parent(None);
}

fn end_with_parent(by: Option<Signal>) {
    if let Err(error) = rustix::process::set_parent_process_death_signal(by) {
        tracing::debug!(%error, "cannot have the kernel end the process with its parent");
    }
}

/// Opens the log file, if one is wanted.
///
/// # Errors
/// Exit 2 when it cannot be opened.
pub fn open_log(path: Option<&Path>) -> Result<Option<File>> {
    path.map(|path| {
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| Problem::usage(format!("--log-file {}: {error}", path.shown())))
    })
    .transpose()
}

/// Lets go of the parent's terminal and directory, once the mount is up: output goes to `log` or
/// nowhere, the working directory is the root.
///
/// # Errors
/// When the kernel refuses.
pub fn detach_output(log: Option<File>) -> Result<()> {
    let detach_output = || {
        let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        match log {
            Some(log) => rustix::stdio::dup2_stderr(&log)?,
            None => rustix::stdio::dup2_stderr(&nowhere)?,
        }
        env::set_current_dir("/")
    };
    detach_output()
        .map_err(|error: std::io::Error| Problem::failure(format!("cannot go to the background: {error}")))
}
