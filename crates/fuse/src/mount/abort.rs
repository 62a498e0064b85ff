//! Aborts a mount's connections, so that nobody waits for its server any more.
//!
//! Where the server serves the device below the mount as well (module `sync_device`), that connection
//! is aborted too: an unmount writes the device's dirty page, and a server that is stopped, or that was
//! killed and hangs in its store, answers neither.
//!
//! The control file system is looked at through a mount at no path: not every host has it mounted, and
//! where it has, something else may lie over it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::loopdev;
use super::mountinfo::MountInfo;

/// The kernel's control file system for FUSE.
///
/// # Errors
/// The kernel's: this needs root.
pub(crate) fn control() -> io::Result<OwnedFd> {
    let fs = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(fs.as_fd())?;
    Ok(fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

impl MountInfo {
    /// Aborts the mount's connection, and that of the device below it if its server serves that: calls
    /// that wait for the server end with an error.
    ///
    /// # Errors
    /// The kernel's; nothing was aborted then. Without root, a user's own connections can be aborted
    /// where the host has the control file system mounted.
    pub fn abort(&self) -> io::Result<()> {
        // Before: afterwards the mount may be gone.
        let device = loopdev::backing_device((self.major, self.minor), Path::new(&self.source));
        let (Some(own), Ok(control)) = (self.connection_dir().file_name().map(ToOwned::to_owned), control())
        else {
            return std::fs::write(self.connection_dir().join("abort"), "1");
        };
        abort(&control, &own.to_string_lossy())?;
        // A device on anything but a file of a FUSE file system has no such connection.
        if let Some(device) = device
            && let Err(error) = abort(&control, &device.to_string())
        {
            tracing::debug!(%error, device, "the connection of the device below the mount is not aborted");
        }
        Ok(())
    }
}

fn abort(control: &OwnedFd, connection: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(control, format!("{connection}/abort"), flags, Mode::empty())?;
    File::from(file).write_all(b"1")
}
