//! `sync`: waits until the dirty data of a volume is durable.
//!
//! Data may rest in the kernel (mapped memory, kernel write-back) and in the volume. syncfs(2)
//! brings the former to the latter (on `fuseblk` that is all), then the mount process makes it
//! durable. Stalled attached volumes are left out of a sync of their mountpoint, which then fails;
//! a sync of an attached volume itself waits for it, and for no other.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use super::ended;
use crate::cli::SyncArgs;
use crate::control::api::Synced;
use crate::control::client::CallError;
use crate::control::progress;
use crate::host::mount_agent;
use crate::host::mountinfo::Mount;
use crate::registry::target::{self, RegisteredVolume, Target};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// How long a process may take to say which volumes are stalled.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs the verb.
///
/// # Errors
/// Exit 1 when something could not be written or was left out, 2 when the path lies in no volume of
/// ours.
pub fn run(args: &SyncArgs) -> Result<()> {
    let shown = args.path.shown();
    let (volume, mount) = find(&args.path)?;
    let client = volume.client()?;
    let what = format!("syncing {shown}");
    progress::say_if_silent(&what, client);
    let flushed = mount.map_or(Ok(()), |mount| {
        let flushed = progress::during(&what, client, || mount_agent::flush(&mount));
        flushed.or_else(|problem| if may_be_another_ones(&volume) { Ok(()) } else { Err(problem) })
    });
    match progress::during(&what, client, || client.sync()) {
        Ok(Synced { left_out, .. }) if left_out.is_empty() => flushed,
        Ok(Synced { left_out, .. }) => {
            for left_out in &left_out {
                let store = "its store does not answer; its dirty data is not durable";
                console().say(&format!("{left_out} is left out: {store}"));
            }
            let volumes = if left_out.len() == 1 { "volume is" } else { "volumes are" };
            let left_out = left_out.len();
            Err(Problem::failure(format!(
                "{shown}: not everything is durable: {left_out} attached {volumes} left out"
            )))
        }
        Err(CallError::Refused(reason)) => {
            Err(Problem::failure(format!("{shown}: not everything is durable: {reason}")))
        }
        // The volume ended meanwhile, which is more than a sync, or less.
        Err(CallError::Gone) => {
            let ended = ended::wait_ended(&volume, client, Duration::ZERO)?;
            ended::report(&volume.record().source, shown, &ended)
        }
        Err(error) => Err(Problem::failure(format!("{shown}: {error}"))),
    }
}

/// Whether it is an attached volume, and the error of syncfs(2) for the whole mountpoint may be
/// that of another one that was left out. The volume's own sync, which comes next, reports its own
/// errors.
fn may_be_another_ones(volume: &RegisteredVolume) -> bool {
    let around = volume.is_attached().then(|| target::mounted_around(Path::new(&volume.record().mountpoint)));
    let client = around.flatten().and_then(|(root, _)| root.found.client);
    let all = client.and_then(|client| client.within(PATIENCE).attached().ok()).unwrap_or_default();
    all.iter().any(|status| status.stalled.is_some())
}

/// The volume that is meant, and its mount, if it has one.
pub(crate) fn find(name: &OsStr) -> Result<(RegisteredVolume, Option<Mount>)> {
    let Target { mount, volume, path } = target::resolve(name);
    if let Some(volume) = volume.filter(RegisteredVolume::is_running) {
        let around =
            volume.is_attached().then(|| target::mounted_around(Path::new(&volume.record().mountpoint)));
        return Ok((volume, mount.or(around.flatten().map(|(_, mount)| mount))));
    }
    let path = path.as_deref();
    path.and_then(target::containing).ok_or_else(|| {
        path.and_then(target::of_another_user).unwrap_or_else(|| {
            Problem::usage(format!(
                "{} is not inside a mounted Watertight volume; `watertight status` lists the volumes, sync(1) syncs other file systems",
                name.shown()
            ))
        })
    })
}
