//! The server's part: it gives the keeper what the next server needs.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::{AsFd as _, RawFd};
use std::sync::Arc;

use recovery::{Journal, Link, Recovery, keeper};
use rustix::process::Signal;
use store::Store;

use crate::cli::opts::MountOptions;
use crate::daemon::upgrade::state::{State, now_ns};
use crate::daemon::upgrade::upgrader::Handed;
use crate::host::{checks, notify};
use crate::object_volumes;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// Where the next server finds what this one gives: see [`keeper::NUMBERS`].
pub(crate) const STATE: RawFd = keeper::NUMBERS.start;
pub(crate) const JOURNAL: RawFd = STATE + 1;
const DEVICE: RawFd = STATE + 2;
pub(crate) const LOCK: RawFd = STATE + 3;
const LISTENER: RawFd = STATE + 4;

/// The means of the first server.
///
/// # Errors
/// When there is no keeper, or no memory.
pub(crate) fn begin() -> Result<Arc<Recovery>> {
    let failed = |error: std::io::Error| Problem::failure(format!("recover=on: {error}"));
    let link = Link::new(keeper::take(keeper::LINK).map_err(failed)?, &[]);
    let recovery = Arc::new(Recovery { journal: Journal::create().map_err(failed)?, link, held: Vec::new() });
    notify::through(&recovery);
    Ok(recovery)
}

/// Whether a volume over this source can be recovered.
///
/// # Errors
/// Why not, in words.
pub(crate) fn check_source(spec: &str, options: &MountOptions) -> Result<()> {
    let inner = checks::innermost(spec);
    let why = if object_volumes::is_memory(inner) || inner.starts_with("mem:") {
        "is in the memory of its process, and ends with it"
    } else if !object_volumes::looks_like(inner) {
        return Ok(());
    } else if options.read_only == Some(true) || options.objects.snapshot.is_some() {
        "is on object storage, where a volume that is only read is held by nobody: leave recover=on out"
    } else if options.objects.journal.is_none() {
        "is on object storage: give journal=DIR as well, a directory of this host, where what was accepted is kept until the bucket has it"
    } else {
        return Ok(());
    };
    Err(Problem::usage(format!("recover=on: {} {why}", spec.shown())))
}

/// Whether the host finds this store's objects again.
///
/// # Errors
/// Why not, in words.
pub(crate) fn check_store(options: &MountOptions, store: &dyn Store) -> Result<()> {
    if !options.recover || store.key(store::ObjectId::ROOT).is_ok() {
        return Ok(());
    }
    store.close();
    Err(Problem::failure(
        "recover=on: the store's files cannot be found again by file handles: that needs root, and a file system that has them (ext4, xfs, btrfs, tmpfs)",
    ))
}

/// Gives the keeper the state, in place of what it had. `paused_ns`: when requests began to wait for the
/// next server, by CLOCK_MONOTONIC; 0: they do not.
///
/// # Errors
/// Why that cannot be done, in words.
pub(crate) fn give(mounted: Handed<'_>, paused_ns: u64) -> std::result::Result<(), String> {
    let Some(recovery) = mounted.volume.recovery() else { return Ok(()) };
    let io = |error: std::io::Error| error.to_string();
    let (volume, lock) = mounted.volume.recoverable(LOCK).ok_or("its store is closed")?;
    let session = mounted.session.recoverable(DEVICE);
    let kept = vec![DEVICE, LOCK, LISTENER];
    let state = State { kept, paused_ns, ..mounted.state(LISTENER, session, volume) };
    let bytes = serde_json::to_vec(&state).map_err(|error| error.to_string())?;
    let sealed = handover::seal("watertight-state", &bytes).map_err(io)?;
    let device = mounted.session.device();
    let journal = recovery.journal.file().ok_or("the journal is in no file")?;
    let given = [sealed.as_fd(), journal, device.as_fd(), lock.as_fd(), mounted.upgrader.listener.as_fd()];
    recovery.link.send_state(&given).map_err(io)
}

/// The mount is up, or is about to be: `lines` are for who waits for it, and the keeper passes them on.
pub(crate) fn ready(recovery: &Recovery, lines: &str) {
    if let Err(error) = recovery.link.send_ready(lines) {
        tracing::warn!(%error, "the keeper does not read: no other process follows if this one dies");
    }
}

/// Leaves this server's place to one of another program, and ends this process. Requests that it has in
/// its hands are sent to that one again, and each is executed once, as after a death.
///
/// # Errors
/// Why that cannot be done, in words: nothing has changed then.
pub(crate) fn leave_to(
    recovery: &Recovery,
    mounted: Handed<'_>,
    program: &File,
) -> std::result::Result<Infallible, String> {
    let failed = |error: std::io::Error| format!("the keeper cannot start the new program: {error}");
    give(mounted, now_ns())?;
    recovery.link.send_program(program.as_fd()).map_err(failed)?;
    tracing::info!(volume = mounted.volume.name(), "another program takes over");
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)
        .map_err(|error| failed(error.into()))?;
    loop {
        std::thread::park();
    }
}

/// The mount is gone: if this process ends, no other is to follow.
pub(crate) fn end(recovery: Option<&Recovery>) {
    if let Some(recovery) = recovery {
        let _keeper_is_gone = recovery.link.end();
    }
}
