//! `install-helpers`: symbolic links to this program where mount(8) and umount(8) look.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::call::Helper;
use crate::cli::InstallHelpersArgs;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// The names of the helpers. A mount is of type `fuse.watertight` or `fuseblk.watertight`;
/// umount(8) looks by the type.
pub const NAMES: [&str; 4] = [
    "mount.fuse.watertight",
    "mount.fuseblk.watertight",
    "umount.fuse.watertight",
    "umount.fuseblk.watertight",
];

/// Runs the verb.
///
/// # Errors
/// Exit 2 when the directory is none, or something else has a helper's name, which is left as it
/// is; 1 when a link cannot be made.
pub fn run(args: &InstallHelpersArgs) -> Result<()> {
    let dir = &args.directory;
    if !dir.is_absolute() {
        return Err(Problem::usage(format!("{} is not the absolute path of a directory", dir.shown())));
    }
    if !dir.is_dir() {
        return Err(Problem::usage(format!("{} is not a directory", dir.shown())));
    }
    let program = program()?;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for link in NAMES.map(|name| dir.join(name)) {
        debug_assert!(Helper::named(link.as_os_str()).is_some());
        match of_another(&link, &program) {
            Some(other) => others.push(other),
            None => own.push(link),
        }
    }
    if !args.remove && !others.is_empty() {
        return Err(Problem::usage(format!("nothing is changed; remove first:\n  {}", others.join("\n  "))));
    }
    for link in own {
        let shown = link.shown();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Problem::failure(format!("no permission to change {shown}; run it as root"))
            }
            _ => Problem::failure(format!("{shown}: {error}")),
        };
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ if args.remove => continue,
            _ => {}
        }
        symlink(&program, &link).map_err(failed)?;
        console().print(&format!("{shown} -> {}", program.shown()));
    }
    match others.is_empty() {
        true => Ok(()),
        false => Err(Problem::usage(format!("left as it is:\n  {}", others.join("\n  ")))),
    }
}

/// This program, wherever it was found.
fn program() -> Result<PathBuf> {
    std::env::current_exe()
        .map_err(|error| Problem::failure(format!("cannot find this program's own path: {error}")))
}

/// A path with a helper's name that was not made by this verb, or by a package of ours: anything
/// but a link to this program, or to one of its name in another place, which need not exist any
/// more.
fn of_another(link: &Path, program: &Path) -> Option<String> {
    let shown = link.shown();
    if !fs::symlink_metadata(link).is_ok_and(|meta| meta.is_symlink()) {
        return link.exists().then(|| format!("{shown} is not a symbolic link"));
    }
    let target = fs::read_link(link).ok()?;
    let is_ours = target.file_name() == Some(OsStr::new("watertight"))
        || target == program
        || fs::canonicalize(link).is_ok_and(|path| path == program);
    (!is_ours).then(|| format!("{shown} is a link to {}, not to this program", target.shown()))
}
