//! The calls of mount(8) and umount(8), and the options of fstab that are for others.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Parser;

/// Which helper this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helper {
    /// mount(8)'s.
    Mount,
    /// umount(8)'s.
    Umount,
}

impl Helper {
    /// The helper that is meant by the name that the program was started by.
    #[must_use]
    pub fn named(program: &OsStr) -> Option<Self> {
        let name = Path::new(program).file_name()?.to_str()?;
        let (verb, kind) = name.split_once('.')?;
        match (verb, kind) {
            ("mount", "fuse.watertight" | "fuseblk.watertight") => Some(Self::Mount),
            ("umount", "fuse.watertight" | "fuseblk.watertight") => Some(Self::Umount),
            _ => None,
        }
    }
}

/// Mount a store: called by mount(8).
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.watertight", version)]
pub(super) struct MountCall {
    /// The store.
    pub(super) source: String,
    /// Where to.
    pub(super) mountpoint: PathBuf,
    /// Options, separated by commas, those of fstab among them.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) options: Vec<String>,
    /// Do all but mounting.
    #[arg(short = 'f')]
    pub(super) fake: bool,
    /// Leave out options that do not exist.
    #[arg(short = 's')]
    pub(super) sloppy: bool,
    /// Say what is done.
    #[arg(short = 'v')]
    pub(super) verbose: bool,
    /// Nothing: there is no table of mounts to keep.
    #[arg(short = 'n')]
    pub(super) no_table: bool,
    /// The type, as fstab has it.
    #[arg(short = 't', value_name = "TYPE")]
    pub(super) fstype: Option<String>,
    /// A mount namespace, which mount(8) has entered already.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    pub(super) namespace: Option<OsString>,
}

/// Unmount: called by umount(8).
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.watertight", version)]
pub(super) struct UmountCall {
    /// The mountpoint.
    pub(super) path: OsString,
    /// Take the path away although it is held.
    #[arg(short = 'l')]
    pub(super) lazy: bool,
    /// Give up at once what is not written.
    #[arg(short = 'f')]
    pub(super) force: bool,
    /// Nothing: there is no table of mounts to keep.
    #[arg(short = 'n')]
    pub(super) no_table: bool,
    /// Nothing: a volume that cannot be unmounted stays as it is.
    #[arg(short = 'r')]
    pub(super) read_only: bool,
    /// Say what is done.
    #[arg(short = 'v')]
    pub(super) verbose: bool,
    /// The type.
    #[arg(short = 't', value_name = "TYPE")]
    pub(super) fstype: Option<String>,
    /// A mount namespace, which umount(8) has entered already.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    pub(super) namespace: Option<OsString>,
}

/// Whether an option of fstab is for another program: mount(8) itself, systemd, other readers of
/// the table.
pub(super) fn is_fstab_only(option: &str) -> bool {
    const NAMES: [&str; 27] = [
        // mount(8) passes `rw` by default; the verb's `rw` would refuse a store that is read-only.
        "rw",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "nousers",
        "owner",
        "noowner",
        "group",
        "nogroup",
        "_netdev",
        "nofail",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        // A volume keeps the access times that its store keeps, and the kernel keeps none.
        "nodiratime",
        "diratime",
        "lazytime",
        "nolazytime",
        // Options of the kernel's own file systems, or that a volume implies.
        "async",
        "nomand",
        "iversion",
        "noiversion",
        "silent",
        "loud",
    ];
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    NAMES.contains(&name)
        || matches!(name, "comment" | "helper" | "uhelper")
        || name.to_ascii_lowercase().starts_with("x-")
}
