//! Showing a clone of a namespace at a second mountpoint.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::mountinfo::MountInfo;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

/// The beginning of the names of clones.
pub(crate) const PREFIX: &str = ".watertight-clone-";

/// The name of the clone that a mount of ours shows, or a directory of; none: it shows the first
/// namespace.
#[must_use]
pub fn shown_clone(mount: &MountInfo) -> Option<&OsStr> {
    let name = mount.root.iter().nth(1)?;
    name.as_bytes().starts_with(PREFIX.as_bytes()).then_some(name)
}

/// Shows the clone `name` (see [`TreeHandle::clone_name`](crate::TreeHandle::clone_name)) of the
/// mount at `mountpoint` also at `target`, with the same flags. Only root may.
///
/// The kernel asks the file system's server: not to be called by a thread that the server needs.
///
/// # Errors
/// Those of open_tree(2) and move_mount(2).
pub fn show(mountpoint: &Path, name: &OsStr, target: &Path) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let root = open_tree(CWD, mountpoint.join(name), flags)?;
    match move_mount(root, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH) {
        // Older kernels have no such call, and no other that does it.
        Err(Errno::NOSYS) => Err(io::Error::new(io::ErrorKind::Unsupported, "Linux 5.2 or newer is needed")),
        shown => Ok(shown?),
    }
}
