//! Bind mounts: a staged volume, shown to a pod at its own path.
//!
//! The kernel's table of mounts says what is there, and no path is looked up that leads into a
//! volume: one whose store does not answer holds nothing up here.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::mount::{MountFlags, mount_bind, mount_remount};

use super::failure::{Failure, Result};
use crate::host::mountinfo::{Device, Mount, MountTable, is_ours};
use crate::host::unmount;
use crate::term::shown::Show as _;

/// Mounts on top of each other that are removed from one path.
const LAYERS_MAX: usize = 64;

/// Shows what `from`, a mount of ours, shows at `to` as well. The directory is made.
///
/// # Errors
/// Something else is there; the kernel's.
pub(super) fn show(from: &Mount, to: &Path, read_only: bool) -> Result<()> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::internal(format!("cannot {what} {}: {error}", to.shown()))
    };
    for _ in 0..LAYERS_MAX {
        let table = MountTable::read();
        match table.at(to) {
            None => break,
            Some(there) if Device::of(there) == Device::of(from) => {
                if has_option(there, "ro") == read_only {
                    return Ok(());
                }
                return restrict(there, read_only).map_err(|error| failed("change the mount at", &error));
            }
            // Of a process that is gone, or of an earlier staging.
            Some(there) => take_away(there, to)?,
        }
    }
    match DirBuilder::new().mode(0o750).create(to) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("make the directory", &error));
        }
        _ => {}
    }
    if !fs::symlink_metadata(to).is_ok_and(|meta| meta.is_dir()) {
        return Err(Failure::not_ready(format!("{} is there, and is no directory", to.shown())));
    }
    mount_bind(&from.mountpoint, to).map_err(|error| failed("mount at", &error))?;
    let table = MountTable::read();
    let there = table.at(to).ok_or_else(|| failed("find the mount at", &"it is gone again"))?;
    if Device::of(there) != Device::of(from) {
        // The staged mount went in between, and its directory was shown instead.
        let _error_that_counts = unmount::detach(there);
        return Err(Failure::not_ready(format!("{}: no volume is there any more", from.mountpoint.shown())));
    }
    if !read_only {
        return Ok(());
    }
    restrict(there, true).map_err(|error| {
        let _error_that_counts = unmount::detach(there);
        failed("make the mount read-only at", &error)
    })
}

/// Removes what [`show`] made, and the directory. What is open there stays usable for its holders.
///
/// # Errors
/// Something else is there; the kernel's.
pub(super) fn remove(at: &Path) -> Result<()> {
    for _ in 0..LAYERS_MAX {
        let table = MountTable::read();
        let Some(there) = table.at(at) else { break };
        take_away(there, at)?;
    }
    match fs::remove_dir(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::internal(format!("cannot remove the directory {}: {error}", at.shown())))
        }
        _ => Ok(()),
    }
}

fn take_away(there: &Mount, at: &Path) -> Result<()> {
    if !is_ours(there) {
        return Err(Failure::not_ready(format!(
            "{} is a mountpoint of type {}, not of a Watertight volume",
            at.shown(),
            there.fstype.shown()
        )));
    }
    unmount::detach(there).map_err(|problem| Failure::internal(problem.to_string()))
}

/// Makes one mount read-only, or not, and leaves its other flags as they are.
fn restrict(there: &Mount, read_only: bool) -> rustix::io::Result<()> {
    let mut flags = MountFlags::BIND;
    for (name, flag) in [
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME),
        ("nodiratime", MountFlags::NODIRATIME),
        ("relatime", MountFlags::RELATIME),
    ] {
        if has_option(there, name) {
            flags |= flag;
        }
    }
    flags.set(MountFlags::RDONLY, read_only);
    mount_remount(&there.mountpoint, flags, "")
}

/// Whether a mount has an option, apart from those of its file system.
fn has_option(there: &Mount, name: &str) -> bool {
    there.options.split(',').any(|option| option == name)
}
