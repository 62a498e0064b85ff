//! Why a directory could not be mounted, and opening the device.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::point::MountpointError;
use crate::device::DEV_FUSE;

/// Why a directory could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The directory will not do.
    #[error(transparent)]
    Mountpoint(#[from] MountpointError),
    /// There is no FUSE.
    #[error(
        "{DEV_FUSE} does not exist: load the kernel module (modprobe fuse), or pass the device into the \
         container (--device {DEV_FUSE})"
    )]
    NoDevice,
    /// FUSE may not be used.
    #[error("no permission to open {DEV_FUSE}: {source}")]
    DevicePermission {
        /// The error of open(2).
        source: io::Error,
    },
    /// The device is there but not the file system.
    #[error("the kernel has no file system of type {fstype}")]
    NoFileSystem {
        /// The type.
        fstype: String,
    },
    /// mount(2) is not allowed.
    #[error(
        "no permission to mount on {}: the process needs CAP_SYS_ADMIN (root, or --cap-add SYS_ADMIN)",
        .mountpoint.display()
    )]
    Permission {
        /// Where.
        mountpoint: PathBuf,
    },
    /// Another failure of mount(2).
    #[error("cannot mount type {fstype} on {}: {source}", .mountpoint.display())]
    Mount {
        /// The type.
        fstype: String,
        /// Where.
        mountpoint: PathBuf,
        /// The error of mount(2).
        source: io::Error,
    },
    /// `fuseblk` was asked for and there is no block device for it.
    #[error("no loop device for a mount of type fuseblk: {reason}")]
    NoLoopDevice {
        /// Why.
        reason: String,
    },
    /// The program that mounts for users is missing.
    #[error(
        "fusermount3 is not installed, and only root can mount without it: install the package fuse3, or \
         run as root"
    )]
    NoFusermount,
    /// The program that mounts for users refused.
    #[error("fusermount3 refused: {message}")]
    Fusermount {
        /// Its message.
        message: String,
    },
    /// An option cannot be passed on.
    #[error("mount option {option:?} cannot be used here: {reason}")]
    Option {
        /// The option.
        option: String,
        /// Why.
        reason: &'static str,
    },
    /// In use.
    #[error("{} is in use", .mountpoint.display())]
    Busy {
        /// Where.
        mountpoint: PathBuf,
    },
    /// Another failure of umount(2).
    #[error("cannot unmount {}: {source}", .mountpoint.display())]
    Unmount {
        /// Where.
        mountpoint: PathBuf,
        /// The error of umount(2).
        source: io::Error,
    },
}

/// Whether there is FUSE at all, for a program that wants to know before it begins.
///
/// # Errors
/// [`MountError::NoDevice`].
pub fn check_device() -> Result<(), MountError> {
    if Path::new(DEV_FUSE).exists() { Ok(()) } else { Err(MountError::NoDevice) }
}

pub(super) fn open_device() -> Result<OwnedFd, MountError> {
    match OpenOptions::new().read(true).write(true).open(DEV_FUSE) {
        Ok(file) => Ok(file.into()),
        Err(source) => Err(match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
            _ => MountError::DevicePermission { source },
        }),
    }
}
