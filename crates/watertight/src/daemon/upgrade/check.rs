//! Whether another program can follow this one.
//!
//! The new program is asked, by its hidden verb `can-take`, before anything is touched: with the
//! version of the state, and the arguments with which it would be started. It is asked as the very
//! file that is executed later, by a descriptor: a package manager that replaces the file meanwhile
//! changes nothing.
//!
//! The path is the caller's, who is root or the mount's owner. A file that a third user owns or may
//! write to is not executed, whoever names it.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Parser as _;

use super::state::{READS, VERSION};
use crate::cli::opts::MountOptions;
use crate::cli::{CanTakeArgs, Cli, Verb};
use crate::host::spawn_for_result;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, in_one_line};

/// How long the new program may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// The most of its answer that is read.
const ANSWER_BYTES: u64 = 4096;
/// What it has to say.
const YES: &str = "watertight: this program can take the state over";

/// Opens the program at this path.
///
/// # Errors
/// When it is no file that could be one, or is another user's.
pub(crate) fn open(path: &Path) -> Result<File, String> {
    let shown = path.shown();
    if !path.is_absolute() {
        return Err(format!("the path of the new program must be absolute, not {shown}"));
    }
    // A fifo would wait for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| format!("the new program {shown} cannot be opened: {error}"))?;
    match file.metadata() {
        Ok(meta) if meta.is_file() => {
            check_owner(&meta).map_err(|why| format!("the new program {shown} {why}"))?;
            Ok(file)
        }
        _ => Err(format!("the new program {shown} is not a file")),
    }
}

/// Whether nobody but root and this process's user can have written the file. (In a user namespace
/// root's files are those of a user without a number: that user owns the program that serves now,
/// too.)
fn check_owner(meta: &Metadata) -> Result<(), String> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let is_serving_owner = || std::fs::metadata("/proc/self/exe").is_ok_and(|now| now.uid() == meta.uid());
    if meta.uid() != 0 && meta.uid() != user && !is_serving_owner() {
        return Err(format!(
            "belongs to user {}: it must be root's, user {user}'s, or of the owner of the program that serves",
            meta.uid()
        ));
    }
    // An access list shows as rights of the group.
    let by_group = meta.mode() & 0o020 != 0 && (user == 0 || meta.gid() != group);
    if meta.mode() & 0o002 != 0 || by_group {
        return Err("can be written by other users: `chmod go-w` takes that away".to_owned());
    }
    Ok(())
}

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
    // Both streams are closed, or it has said more than is read.
    if Instant::now() > until || out.len() as u64 >= ANSWER_BYTES || err.len() as u64 >= ANSWER_BYTES {
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
    let cli = Cli::try_parse_from(&args.arguments).map_err(|error| {
        Problem::usage(format!("it does not know the mount's arguments: {}", in_one_line(&error.to_string())))
    })?;
    let Verb::Mount(mount) = &cli.verb else {
        return Err(Problem::usage("the arguments are not those of a mount"));
    };
    MountOptions::parse(&mount.options)?;
    console().print(YES);
    Ok(())
}
