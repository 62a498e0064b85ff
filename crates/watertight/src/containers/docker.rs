//! `docker-plugin`: Docker's volume plugin protocol, which Podman speaks as well.
//!
//! | call | does |
//! |---|---|
//! | `Create` | keeps the name with its options; makes a volume on object storage that is not there yet |
//! | `Mount` | mounts the volume at a directory of the plugin's, unless it is, and counts one more use by this id |
//! | `Unmount` | counts one use less; the last returns when the data is on the store and the store is free |
//! | `Remove` | unmounts what no process holds, and forgets the name; the data stays |
//! | `Path`, `Get`, `List`, `Capabilities` | tell |
//!
//! The engine's deadlines are kept (Docker waits for 120 s for `Create` and `Mount`, and for 60 s
//! for the others): what is not done by then goes on, and its caller gets an error that says so
//! (module `turns`). Mounts are served by processes in the background (module `mounts`), so that
//! neither restart nor crash of the plugin touches one.
//!
//! # Uses
//! An engine mounts a volume by an id, a container's, and may do so several times: `docker cp` into
//! a container that runs mounts and unmounts by that container's id. So uses are counted for each
//! id. They are on disk before the engine has its answer, and void after a reboot, as mounts are. A
//! use whose caller left before it was answered is taken back. An engine that crashed may not
//! unmount what it had mounted: where an id that is known mounts, or a volume is removed, and the
//! kernel shows nothing that holds the mount, what was counted is void. So it is at any unmount, and
//! at the plugin's start, for ids whose last mount is ten minutes old: their containers would hold the
//! mount by then.
//!
//! Podman counts uses itself, and has one id for all (module `podman`).
//!
//! A volume without uses is not left mounted: where it could not be unmounted, because a process of
//! the host held it or its mount was not waited for, that is tried again until it is.

mod dirs;
mod options;
mod podman;
mod protocol;
mod server;
mod uses;
mod volume;
mod volumes;

use std::time::Duration;

use super::listener::{self, Listener};
use super::records::{Records, VOLUMES_MAX, boot_id};
use crate::cli::DockerPluginArgs;
use crate::registry::RuntimeDir;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use dirs::StateDirs;
use volumes::Volumes;

/// How long calls may take to get their answers when the plugin ends.
const FINISH: Duration = Duration::from_secs(2);
/// Calls that wait for processes or the disk, each on a thread: one for each volume, whose stores
/// may all not answer, and some that describe.
const THREADS_MAX: usize = VOLUMES_MAX + 2048;

/// Runs the verb, until a signal ends it. Mounts stay.
///
/// # Errors
/// When the socket or the directory cannot be used.
pub fn run(args: &DockerPluginArgs) -> Result<()> {
    let state = std::path::absolute(&args.state)
        .map_err(|error| Problem::usage(format!("--state {}: {error}", args.state.shown())))?;
    // An error of it is one of the plugin, and not of the first mount.
    let _made = RuntimeDir::own()?;
    let records = Records::open(&state.join("volumes"))?;
    let boot_id = boot_id()?;
    listener::run(("docker-call", THREADS_MAX), async |stop| {
        let volumes = Volumes::load(StateDirs::below(state)?, records, boot_id);
        let listener = Listener::open(&args.socket)?;
        server::serve(&listener, &volumes, &stop, FINISH).await;
        Ok(())
    })
}
