//! `clone-volume`: makes a volume that begins as a snapshot of another.

use crate::cli::CloneVolumeArgs;
use crate::control::progress;
use crate::object_volumes::{canonical, problem};
use crate::term::console::console;
use crate::term::problem::Result;
use crate::term::shown::Show as _;
use crate::term::units;

/// Runs the verb.
///
/// # Errors
/// Exit 2 for URLs and names that cannot be; 1 where there is no such snapshot, or a volume
/// already, and where the bucket cannot be used.
pub fn run(args: &CloneVolumeArgs) -> Result<()> {
    let (url, new) = (canonical(&args.url)?, canonical(&args.new_url)?);
    let what = format!("cloning {}", url.shown());
    let clone = || objects::clone_volume(&url, &args.name, &new).map_err(|error| problem(&url, &error));
    let cloned = progress::waiting_for(&what, "the bucket", clone)?;
    if args.json {
        return console().print_value(&cloned);
    }
    let (bytes, files) =
        (units::bytes(cloned.snapshot.bytes), units::count(cloned.snapshot.files, "file", "files"));
    console().print(&format!(
        "{}: a volume is there now, which begins with {bytes} in {files} of {}, snapshot {}",
        cloned.url.shown(),
        url.shown(),
        cloned.snapshot.name.shown()
    ));
    Ok(())
}
