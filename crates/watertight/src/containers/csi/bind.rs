//! Bind mounts: a staged volume, shown to a pod at its own path.
//!
//! The kernel's table of mounts says what is there, and no path is looked up that leads into a
//! volume: one whose store does not answer holds nothing up here. A mount is copied and put in its
//! place by descriptors: what somebody puts in the place of a directory on the way gets no mount.

use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_remount, move_mount, open_tree,
};

use super::failure::{Failure, Result};
use super::place::Place;
use crate::host::mountinfo::{Device, Mount, MountTable, is_ours};
use crate::host::unmount;
use crate::term::shown::Show as _;

/// Mounts on top of each other that are removed from one path.
const LAYERS_MAX: usize = 64;

/// Shows what `from`, a mount of ours, shows at `to` as well. The directory is made.
///
/// # Errors
/// Something else is there; the kernel's.
pub(super) fn show(from: &Mount, to: &Place, read_only: bool) -> Result<()> {
    let failed = |what: &str, error: &dyn Display| {
        Failure::internal(format!("cannot {what} {}: {error}", to.path().shown()))
    };
    for _ in 0..LAYERS_MAX {
        let table = MountTable::read();
        match table.at(to.path()) {
            None => break,
            Some(there) if Device::of(there) == Device::of(from) => {
                if has_option(there, "ro") == read_only {
                    return Ok(());
                }
                let restricted = restrict(there, &root_of(there)?, read_only);
                return restricted.map_err(|error| failed("change the mount at", &error));
            }
            // Of a process that is gone, or of an earlier staging.
            Some(there) => take_away(there, to.path())?,
        }
    }
    let copy = copy_of(from)?;
    let dir = to.make_dir().map_err(|error| failed("make the directory", &error))?;
    put(&copy, &dir).map_err(|error| failed("mount at", &error))?;
    let table = MountTable::read();
    let there = table.at(to.path()).filter(|there| Some(there.id) == id_of(&copy));
    let done = match there {
        None => Err(Failure::not_ready(format!("{}: it leads elsewhere by now", to.path().shown()))),
        Some(there) if read_only => {
            restrict(there, &copy, true).map_err(|error| failed("make read-only", &error))
        }
        Some(_) => Ok(()),
    };
    if done.is_err() {
        // The error is the one that counts.
        let _gone = rustix::mount::unmount(by_descriptor(&copy), UnmountFlags::DETACH);
    }
    done
}

/// The root of this mount, and of no other that its path leads to by now.
fn root_of(mount: &Mount) -> Result<OwnedFd> {
    let at = mount.mountpoint.shown();
    let gone =
        |why: &dyn Display| Failure::not_ready(format!("{at}: the volume is not there any more: {why}"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat2(CWD, &mount.mountpoint, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let root = root.map_err(|error| gone(&error))?;
    if id_of(&root) == Some(mount.id) { Ok(root) } else { Err(gone(&"another mount is")) }
}

/// A copy of this mount, which is nowhere yet.
fn copy_of(mount: &Mount) -> Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(root_of(mount)?, "", flags).map_err(|error| {
        Failure::internal(format!("cannot copy the mount at {}: {error}", mount.mountpoint.shown()))
    })
}

/// Puts a copy at a directory.
fn put(copy: &OwnedFd, dir: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(copy, "", dir, "", flags)
}

/// The number of the mount that a descriptor leads to. Its server is not asked.
fn id_of(fd: &impl AsFd) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let found = statx(fd, "", flags, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// A path that leads to it, for calls that take no descriptor.
fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Removes what [`show`] made, and the directory. What is open there stays usable for its holders.
///
/// # Errors
/// Something else is there; the kernel's.
pub(super) fn remove(at: &Place) -> Result<()> {
    for _ in 0..LAYERS_MAX {
        let table = MountTable::read();
        let Some(there) = table.at(at.path()) else { break };
        take_away(there, at.path())?;
    }
    at.remove_dir().map_err(|error| {
        Failure::internal(format!("cannot remove the directory {}: {error}", at.path().shown()))
    })
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

/// Makes a mount, by its root, read-only, or not, and leaves its other flags as they are.
fn restrict(there: &Mount, root: &OwnedFd, read_only: bool) -> rustix::io::Result<()> {
    let mut flags = MountFlags::BIND;
    for (name, flag) in [
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME),
        ("nodiratime", MountFlags::NODIRATIME),
        ("relatime", MountFlags::RELATIME),
        ("nosymfollow", MountFlags::NOSYMFOLLOW),
    ] {
        if has_option(there, name) {
            flags |= flag;
        }
    }
    flags.set(MountFlags::RDONLY, read_only);
    mount_remount(by_descriptor(root), flags, "")
}

/// Whether a mount has an option, apart from those of its file system.
fn has_option(there: &Mount, name: &str) -> bool {
    there.options.split(',').any(|option| option == name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A host's own mount stands in for a volume's.
    #[test]
    fn a_directory_that_is_swapped_between_the_look_and_the_mount_gets_none() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        for name in ["pods", "outside", "outside/mount"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let table = MountTable::read();
        let from = table.at(Path::new("/proc")).unwrap();
        let place = Place::open(&root, &root.join("pods/mount")).unwrap();
        fs::rename(root.join("pods"), root.join("moved")).unwrap();
        symlink(root.join("outside"), root.join("pods")).unwrap();
        let wrong = show(from, &place, false).unwrap_err();
        assert!(wrong.words().contains("leads elsewhere"), "{wrong:?}");
        let below = |mount: &&Mount| mount.mountpoint.starts_with(&root);
        assert_eq!(MountTable::read().iter().filter(below).count(), 0);
        // What is where it was gets the mount, with its flags.
        let place = Place::open(&root, &root.join("moved/mount")).unwrap();
        show(from, &place, true).unwrap();
        let there = MountTable::read().at(&root.join("moved/mount")).cloned().unwrap();
        assert!(Device::of(&there) == Device::of(from) && has_option(&there, "ro"), "{there:?}");
        assert_eq!(has_option(&there, "nosuid"), has_option(from, "nosuid"));
        unmount::detach(&there).unwrap();
        // One whose path leads to another mount by now is not copied.
        let other = Mount { mountpoint: "/".into(), ..from.clone() };
        assert!(copy_of(&other).is_err());
    }
}
