//! `install-helpers`: symbolic links to this program where mount(8) and umount(8) look.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{Helper, is_absolute};
use crate::cli::InstallHelpersArgs;
use crate::console::console;
use crate::problem::{Problem, Result};

/// The names of the helpers. A mount is of type `fuse.watertight` or `fuseblk.watertight`; umount(8) looks by the type.
pub const NAMES: [&str; 4] = [
    "mount.fuse.watertight",
    "mount.fuseblk.watertight",
    "umount.fuse.watertight",
    "umount.fuseblk.watertight",
];

/// Runs the verb.
///
/// # Errors
/// Exit 2 when the directory is none, or something else has a helper's name; 1 when a link cannot be made.
pub fn run(args: &InstallHelpersArgs) -> Result<()> {
    let dir = &args.directory;
    if !is_absolute(dir) {
        return Err(Problem::usage(format!("{} is not the absolute path of a directory", dir.display())));
    }
    if !dir.is_dir() {
        return Err(Problem::usage(format!("{} is no directory", dir.display())));
    }
    let program = program()?;
    for name in NAMES {
        let link = dir.join(name);
        debug_assert!(Helper::named(link.as_os_str()).is_some());
        let shown = link.display();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Problem::failure(format!("no permission to change {shown}; run it as root"))
            }
            _ => Problem::failure(format!("{shown}: {error}")),
        };
        remove(&link, failed)?;
        if args.remove {
            continue;
        }
        symlink(&program, &link).map_err(failed)?;
        console().print(&format!("{shown} -> {}", program.display()));
    }
    Ok(())
}

/// This program, wherever it was found.
fn program() -> Result<PathBuf> {
    std::env::current_exe()
        .map_err(|error| Problem::failure(format!("this program's own path is not known: {error}")))
}

/// Removes a link that an earlier run made, and nothing else.
fn remove(link: &Path, failed: impl Fn(io::Error) -> Problem) -> Result<()> {
    match fs::symlink_metadata(link) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(meta) if meta.is_symlink() => fs::remove_file(link).map_err(failed),
        Ok(_) => Err(Problem::usage(format!(
            "{} is no symbolic link, so it is not replaced; remove it first",
            link.display()
        ))),
    }
}
