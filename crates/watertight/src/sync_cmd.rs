//! `sync`: until what was dirty in a volume is durable.

use std::ffi::OsStr;

use crate::cli::SyncArgs;
use crate::control::client::CallError;
use crate::problem::{Problem, Result};
use crate::target::{self, Target, Volume};
use crate::{progress, umount_cmd};

/// Runs the verb.
///
/// # Errors
/// Exit 1 when something could not be written, 2 when the path lies in no volume of ours.
pub fn run(args: &SyncArgs) -> Result<()> {
    let shown = args.path.to_string_lossy();
    let volume = find(&args.path)?;
    let Some(client) = &volume.found.client else { return Err(umount_cmd::died(&volume)) };
    match progress::during(&format!("syncing {shown}"), client, || client.sync()) {
        Ok(_) => Ok(()),
        Err(CallError::Refused(reason)) => {
            Err(Problem::failure(format!("{shown}: not everything is durable: {reason}")))
        }
        Err(error) => Err(Problem::failure(format!("{shown}: {error}"))),
    }
}

fn find(name: &OsStr) -> Result<Volume> {
    let Target { volume, path, .. } = target::resolve(name);
    if let Some(volume) = volume.filter(Volume::is_running) {
        return Ok(volume);
    }
    path.as_deref().and_then(target::containing).ok_or_else(|| {
        Problem::usage(format!(
            "{} lies in no mounted volume of ours; `watertight status` lists the volumes, sync(1) syncs other file systems",
            name.to_string_lossy()
        ))
    })
}
