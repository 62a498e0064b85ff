//! `clone`: a second mountpoint.

use crate::cli::CloneArgs;
use crate::control::api::CloneRequest;
use crate::host::checks;
use crate::registry::target;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// Runs `clone`.
///
/// # Errors
/// Exit 2 for an invalid volume or directory, 1 for a failure.
pub fn run(args: &CloneArgs) -> Result<()> {
    let given = args.volume.shown();
    let volume = target::resolve(&args.volume).volume.filter(|volume| !volume.is_attached());
    let Some(volume) = volume else {
        return Err(Problem::usage(format!(
            "{given} is not a mounted Watertight volume; `watertight status` lists the volumes"
        )));
    };
    let client = volume.client()?;
    let new = checks::mountpoint(&args.new)?;
    let Some(mountpoint) = new.to_str().map(str::to_owned) else {
        return Err(Problem::usage(format!(
            "{} is not UTF-8, which the path of a clone has to be",
            new.shown()
        )));
    };
    let request = CloneRequest { mountpoint, propagation: args.propagation };
    let reply =
        client.clone_to(&request).map_err(|error| Problem::failure(format!("{}: {error}", new.shown())))?;
    let first = &volume.record().mountpoint;
    console().print(&format!("{first} is shown at {}, too ({})", reply.mountpoint, args.propagation));
    Ok(())
}
