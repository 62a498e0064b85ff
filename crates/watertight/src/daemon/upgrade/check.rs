//! Whether another program can follow this one.
//!
//! The new program is asked, by its hidden verb `can-take`, before anything is touched: with the
//! version of the state, and the arguments with which it would be started. It is asked as the very
//! file that is executed later, by a descriptor: a package manager that replaces the file meanwhile
//! changes nothing. Which files are executed at all: see [`super::program`].

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Parser as _;

use super::state::{READS, VERSION};
use crate::cli::opts::MountOptions;
use crate::cli::{CanTakeArgs, Cli, Verb};
use crate::host::process::child_ends_within;
use crate::host::spawn_for_result;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::in_one_line;

/// How long the new program may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// The most of its answer that is read.
const ANSWER_BYTES: u64 = 4096;
/// What it has to say.
const YES: &str = "watertight: this program can take the state over";

/// Asks the program whether it can follow, started with these arguments.
///
/// # Errors
/// Why not, in its words.
pub(crate) fn ask(program: &File, arguments: &[OsString]) -> Result<(), String> {
    let mut child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .arg0("watertight")
        .arg("can-take")
        .arg(VERSION.to_string())
        .arg("--")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        .spawn()
        .map_err(|error| format!("the new program cannot be started: {error}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let answer = spawn_for_result("can-take", move || (read(out), read(err)))
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let until = Instant::now() + ANSWER;
    let answer = answer.recv_timeout(ANSWER).map_err(|error| match error {
        RecvTimeoutError::Timeout => "the new program does not answer whether it can take over".to_owned(),
        RecvTimeoutError::Disconnected => "the new program's answer could not be read".to_owned(),
    });
    let (out, err) = answer.inspect_err(|_| kill(&mut child))?;
    // Both streams are closed, or it has said more than is read; it may go on all the same.
    let left = until.saturating_duration_since(Instant::now());
    let has_said_more = out.len() as u64 >= ANSWER_BYTES || err.len() as u64 >= ANSWER_BYTES;
    if has_said_more || !child_ends_within(&child, left) {
        kill(&mut child);
    }
    let status = child.wait().map_err(|error| format!("the new program cannot be waited for: {error}"))?;
    if status.success() && out.trim_end() == YES {
        return Ok(());
    }
    let said = in_one_line(err.trim()).to_string();
    let why = if said.is_empty() { status.to_string() } else { said };
    Err(format!("the new program cannot take over from this one: {why}"))
}

fn kill(child: &mut Child) {
    let _ended_by_itself = child.kill();
    let _reaped = child.wait();
}

fn read(stream: Option<impl std::io::Read>) -> String {
    let mut bytes = Vec::new();
    let _as_far_as_it_came = stream.map(|stream| stream.take(ANSWER_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs the hidden verb `can-take`.
///
/// # Errors
/// Why this program cannot follow.
pub(crate) fn answer(args: &CanTakeArgs) -> Result<()> {
    if !READS.contains(&args.version) {
        return Err(Problem::failure(format!(
            "it reads states of version {} to {}, and this one has version {}",
            READS.start(),
            READS.end(),
            args.version
        )));
    }
    options_of(&args.arguments).map_err(Problem::usage)?;
    console().print(YES);
    Ok(())
}

/// The options of a mount process that was started with these arguments.
///
/// # Errors
/// Which of them makes no sense to this program, in words.
pub(super) fn options_of(arguments: &[OsString]) -> Result<MountOptions, String> {
    let cli = Cli::try_parse_from(arguments).map_err(|error| {
        format!("it does not know the mount's arguments: {}", in_one_line(&error.to_string()))
    })?;
    let Verb::Mount(mount) = &cli.verb else {
        return Err("the arguments are not those of a mount".to_owned());
    };
    MountOptions::parse(&mount.options).map_err(|problem| problem.to_string())
}
