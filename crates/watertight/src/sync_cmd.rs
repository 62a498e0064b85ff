//! `sync`: until what was dirty in a volume is durable.
//!
//! Data may rest in the kernel (mapped memory, kernel write-back) and in the volume. syncfs(2) brings the
//! former to the latter (on `fuseblk` it is all), then the mount process makes that durable.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use crate::cli::SyncArgs;
use crate::control::client::CallError;
use crate::mountinfo::Mount;
use crate::problem::{Problem, Result};
use crate::target::{self, Target, Volume};
use crate::{kernel_side, progress, umount_cmd};

/// Runs the verb.
///
/// # Errors
/// Exit 1 when something could not be written, 2 when the path lies in no volume of ours.
pub fn run(args: &SyncArgs) -> Result<()> {
    let shown = args.path.to_string_lossy();
    let (volume, mount) = find(&args.path)?;
    let Some(client) = &volume.found.client else { return Err(umount_cmd::died(&volume)) };
    let what = format!("syncing {shown}");
    progress::say_if_silent(&what, client);
    if let Some(mount) = mount {
        progress::during(&what, client, || kernel_side::flush(&mount))?;
    }
    match progress::during(&what, client, || client.sync()) {
        Ok(_) => Ok(()),
        Err(CallError::Refused(reason)) => {
            Err(Problem::failure(format!("{shown}: not everything is durable: {reason}")))
        }
        // The volume ended meanwhile, which is more than a sync, or less.
        Err(CallError::Gone) => {
            let ended = umount_cmd::wait_ended(&volume, client, Duration::ZERO)?;
            umount_cmd::report(&volume.record().source, shown, &ended)
        }
        Err(error) => Err(Problem::failure(format!("{shown}: {error}"))),
    }
}

/// The volume that is meant, and its mount, if it has one.
pub(crate) fn find(name: &OsStr) -> Result<(Volume, Option<Mount>)> {
    let Target { mount, volume, path } = target::resolve(name);
    if let Some(volume) = volume.filter(Volume::is_running) {
        let around =
            volume.is_attached().then(|| target::mounted_around(Path::new(&volume.record().mountpoint)));
        return Ok((volume, mount.or(around.flatten().map(|(_, mount)| mount))));
    }
    path.as_deref().and_then(target::containing).ok_or_else(|| {
        Problem::usage(format!(
            "{} lies in no mounted volume of ours; `watertight status` lists the volumes, sync(1) syncs other file systems",
            name.to_string_lossy()
        ))
    })
}
