//! How to mount.

use std::path::PathBuf;

use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};

use super::enable_uring::Uring;

/// The part of the type after the dot: the kernel shows `fuse.watertight`, `fuseblk.watertight`.
pub const SUBTYPE: &str = "watertight";

/// Which type of mount is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wanted {
    /// `fuseblk` where possible, else `fuse`.
    #[default]
    Auto,
    /// `fuse`.
    Fuse,
    /// `fuseblk`, or fail.
    FuseBlk,
}

/// How the daemon notices sync(2) and syncfs(2) of a mount of type `fuseblk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Syncs {
    /// As SYNCFS, which kernels send since 6.18; on older ones by a dirty page of the device.
    #[default]
    Auto,
    /// By a dirty page of the device; SYNCFS is refused, as older kernels do not know it.
    ByPage,
}

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Where.
    pub mountpoint: PathBuf,
    /// Whether the mountpoint is its own real path: where a symbolic link leads elsewhere by now,
    /// nothing is mounted.
    pub no_links: bool,
    /// Which type.
    pub wanted: Wanted,
    /// The name of the volume, for a person; shown as the source by the kernel for type `fuse`, by
    /// tools for type `fuseblk`.
    pub fsname: String,
    /// Let other users in; the default is yes for root, no for others.
    pub allow_other: Option<bool>,
    /// `ro`, `nosuid`, `nodev`, `noexec`, `noatime` and the like.
    pub flags: MountFlags,
    /// How the daemon notices syncs.
    pub syncs: Syncs,
    /// Whether the session is to talk to the kernel over io_uring. This is asked here because the
    /// kernel's switch for it has to be on when it mounts.
    pub uring: Uring,
}

impl MountOptions {
    /// The defaults for this directory.
    #[must_use]
    pub fn new(mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            no_links: false,
            wanted: Wanted::Auto,
            fsname: "watertight".to_owned(),
            allow_other: None,
            flags: MountFlags::empty(),
            syncs: Syncs::default(),
            uring: Uring::default(),
        }
    }
}

/// The kind of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountKind {
    /// Type `fuseblk`: umount(2) returns after DESTROY was answered, sync(2) reaches the volume.
    FuseBlk {
        /// The block device under it.
        loop_device: PathBuf,
    },
    /// Type `fuse`: umount(2) returns at once, sync(2) does not reach the volume.
    Fuse {
        /// Why it is not `fuseblk`.
        reason: String,
    },
}

/// What a mount is to its process, written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountHandover {
    /// Where.
    pub mountpoint: PathBuf,
    /// The device below it, if it is of type `fuseblk`.
    pub loop_device: Option<PathBuf>,
    /// Why it is plain `fuse`, if it is.
    pub reason: Option<String>,
    /// `fusermount3` made it.
    pub by_fusermount: bool,
}

impl MountHandover {
    pub(crate) fn kind(&self) -> MountKind {
        match &self.loop_device {
            Some(device) => MountKind::FuseBlk { loop_device: device.clone() },
            None => MountKind::Fuse { reason: self.reason.clone().unwrap_or_default() },
        }
    }
}
