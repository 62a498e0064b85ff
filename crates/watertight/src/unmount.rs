//! Taking the kernel mount away: by umount2(2) where that is allowed, else by `fusermount3`.
//!
//! Used by `watertight umount` and by the mount process itself. What happens to the data is the
//! caller's business.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::mountinfo::{Device, Mount, MountTable};
use crate::problem::{Problem, Result};

/// What became of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The path leads to it no more.
    Gone,
    /// Somebody holds it; nothing was changed.
    Held,
}

/// Unmounts unless somebody holds it. On `fuseblk` this waits until the data is on the store.
///
/// # Errors
/// Anything but being held.
pub fn plain(mount: &Mount) -> Result<Outcome> {
    attempt(mount, UnmountFlags::empty(), &["-u"])
}

/// Takes the path away, held or not. On `fuseblk`, not held, this waits until the data is on the store.
///
/// # Errors
/// Whatever umount2(2) or `fusermount3` say.
pub fn detach(mount: &Mount) -> Result<()> {
    attempt(mount, UnmountFlags::DETACH, &["-u", "-z"]).map(drop)
}

/// Aborts the connection to the mount's server, so that whoever waits for it gets an error, and takes
/// the path away.
///
/// # Errors
/// Whatever umount2(2) or `fusermount3` say.
pub fn force(mount: &Mount) -> Result<()> {
    abort(mount.device);
    attempt(mount, UnmountFlags::DETACH | UnmountFlags::FORCE, &["-u", "-z"]).map(drop)
}

/// Aborts the FUSE connection of the file system `device`, if the kernel lets us; says whether it did.
pub fn abort(device: Device) -> bool {
    // The directory's name is the kernel's own form of the device number: 12 bits and 20 bits.
    let name = (u64::from(device.major) << 20) | u64::from(device.minor);
    let path = format!("/sys/fs/fuse/connections/{name}/abort");
    match fs::write(&path, "1") {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(path, %error, "the connection was not aborted by way of sysfs");
            false
        }
    }
}

fn attempt(mount: &Mount, flags: UnmountFlags, helper: &[&str]) -> Result<Outcome> {
    let path = &mount.mountpoint;
    let failed = |error: &dyn std::fmt::Display| {
        Problem::failure(format!("cannot unmount {}: {error}", path.display()))
    };
    // The path must lead to this mount and not to one on top of it.
    let table = MountTable::read().map_err(|error| failed(&error))?;
    match table.at(path) {
        Some(top) if is_same(top, mount) => {}
        _ if !table.iter().any(|other| is_same(other, mount)) => return Ok(Outcome::Gone),
        Some(top) => {
            return Err(failed(&format!("{} is mounted on top of it; unmount that first", top.fs_type)));
        }
        None => return Err(failed(&"it was moved elsewhere")),
    }
    match unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(Outcome::Gone),
        Err(Errno::BUSY) => Ok(Outcome::Held),
        // Somebody else was faster.
        Err(Errno::INVAL | Errno::NOENT) if !is_mounted(mount) => Ok(Outcome::Gone),
        Err(Errno::PERM) => fusermount(path, helper, mount),
        Err(error) => Err(failed(&error)),
    }
}

fn fusermount(path: &Path, arguments: &[&str], mount: &Mount) -> Result<Outcome> {
    let output = Command::new("fusermount3").args(arguments).arg("--").arg(path).env("LC_ALL", "C").output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Problem::failure(format!(
                "cannot unmount {}: without root this needs the program fusermount3 (Debian: apt-get install fuse3)",
                path.display()
            )));
        }
        Err(error) => return Err(Problem::failure(format!("cannot run fusermount3: {error}"))),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !is_mounted(mount) {
        Ok(Outcome::Gone)
    } else if said.contains("busy") {
        Ok(Outcome::Held)
    } else {
        let said = said.trim().trim_start_matches("fusermount3: ");
        Err(Problem::failure(format!("cannot unmount {}: {said}", path.display())))
    }
}

/// Whether this very mount is still there; if the table cannot be read, it is.
#[must_use]
pub fn is_mounted(mount: &Mount) -> bool {
    MountTable::read().map_or(true, |table| table.iter().any(|other| is_same(other, mount)))
}

/// Whether two rows, read at different times, are the same mount. The kernel uses numbers again: all must agree.
fn is_same(a: &Mount, b: &Mount) -> bool {
    (a.id, a.device, &a.fs_type, &a.source) == (b.id, b.device, &b.fs_type, &b.source)
}

/// The number of the mount that `path` leads to, one that is never used again (since Linux 6.8). Its server is not asked.
#[must_use]
pub fn unique_id(path: &Path) -> Option<u64> {
    // STATX_MNT_ID_UNIQUE
    let mask = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let stat = statx(CWD, path, flags, mask).ok()?;
    (stat.stx_mask & mask.bits() != 0).then_some(stat.stx_mnt_id)
}

/// How long a server may take to show that it lives.
const ALIVE: Duration = Duration::from_secs(1);

/// Whether the server of the mount at `path` is gone. One that does not answer is not gone.
#[must_use]
pub fn is_dead(path: &Path) -> bool {
    let (sender, answer) = channel();
    let path = path.to_owned();
    // On a thread of its own, which a server that hangs may keep.
    let ask = move || {
        let stat = statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::MODE);
        let _nobody_waits_any_more = sender.send(stat.err());
    };
    if let Err(error) = thread::Builder::new().spawn(ask) {
        tracing::warn!(%error, "no thread to ask a mount's server with");
        return false;
    }
    answer.recv_timeout(ALIVE) == Ok(Some(Errno::NOTCONN))
}

/// Whether the program `name` can be found.
#[must_use]
pub fn is_in_path(name: &OsStr) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}
