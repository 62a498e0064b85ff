//! The kernel's mount table, as this process sees it.
//!
//! No path is looked up here, so a mount whose server hangs cannot hang the reader.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use fuse::mount::MountInfo as Mount;

use crate::host::users;
use crate::term::shown::Name;

/// A device number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Device {
    /// Major number; 0 for file systems without a block device.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// The device of a mount's file system.
    #[must_use]
    pub const fn of(mount: &Mount) -> Self {
        Self { major: mount.major, minor: mount.minor }
    }

    /// Parses `MAJOR:MINOR` in hexadecimal digits, as in `/proc/PID/maps`.
    #[must_use]
    pub fn parse_hex(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        let parse = |digits| u32::from_str_radix(digits, 16).ok();
        Some(Self { major: parse(major)?, minor: parse(minor)? })
    }
}

/// Whether one of our processes made this mount.
#[must_use]
pub fn is_ours(mount: &Mount) -> bool {
    mount.fstype.split_once('.').is_some_and(|(_, subtype)| subtype == fuse::mount::SUBTYPE)
}

/// Which of `suid` and `dev` at least one of the mounts allows.
pub fn privileges<'a>(mounts: impl IntoIterator<Item = &'a Mount>) -> Vec<Name> {
    let (mut suid, mut dev) = (false, false);
    for mount in mounts {
        suid |= mount.has_suid;
        dev |= mount.has_devices;
    }
    [(suid, "suid"), (dev, "dev")]
        .into_iter()
        .filter(|(is_on, _)| *is_on)
        .map(|(_, name)| Name::from(name))
        .collect()
}

/// Whether this process may have to do with the mount: it is this user's, or root asked for all
/// users'. Others' are not even asked whether they live: with a server that hangs, the caller would
/// wait for good.
#[must_use]
pub fn is_for_this_user(mount: &Mount) -> bool {
    is_own(mount) || users::includes_all_users()
}

/// Whether this user has made the mount, by the kernel's word.
#[must_use]
pub fn is_own(mount: &Mount) -> bool {
    mount.owner == Some(rustix::process::geteuid().as_raw())
}

/// `fuse` or `fuseblk` for our mounts: the part of the type before the dot.
#[must_use]
pub fn kind(mount: &Mount) -> &str {
    mount.fstype.split_once('.').map_or(&mount.fstype, |(kind, _)| kind)
}

/// All mounts that this process can see; empty where there is no `/proc`.
#[derive(Debug, Clone, Default)]
pub struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads the table.
    #[must_use]
    pub fn read() -> Self {
        Self(Mount::all())
    }

    /// The mounts, in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// The mount that a path lookup of exactly `mountpoint` reaches: the topmost of the mounts
    /// stacked there.
    #[must_use]
    pub fn at(&self, mountpoint: &Path) -> Option<&Mount> {
        let here: Vec<&Mount> = self.0.iter().filter(|m| m.mountpoint == mountpoint).collect();
        let covered = |m: &&&Mount| here.iter().any(|over| over.parent == m.id);
        here.iter().rev().find(|m| !covered(m)).or(here.last()).copied()
    }

    /// The mounts of the file system `device`.
    pub fn of_device(&self, device: Device) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |m| Device::of(m) == device)
    }

    /// The other mounts of the file system of `mount`.
    pub fn others(&self, mount: &Mount) -> impl Iterator<Item = &Mount> {
        self.of_device(Device::of(mount)).filter(move |other| !other.is_same(mount))
    }

    /// Whether an unmount of `mount` may take `other` along, by propagation: both show the same
    /// directory and are on the same directory of a file system that is mounted twice and shared.
    /// Yes also where it propagates the other way only.
    #[must_use]
    pub fn may_go_along(&self, mount: &Mount, other: &Mount) -> bool {
        let on = |mount: &Mount| self.0.iter().find(|below| below.id == mount.parent);
        let (Some(below), Some(other_below)) = (on(mount), on(other)) else { return false };
        below.peer_group.is_some()
            && below.id != other_below.id
            && Device::of(below) == Device::of(other_below)
            && mount.root == other.root
            && covered(below, mount).is_some_and(|dir| covered(other_below, other) == Some(dir))
    }

    /// The mounts directly on `mount`, which keep it busy.
    pub fn on(&self, mount: &Mount) -> impl Iterator<Item = &Mount> {
        let id = mount.id;
        self.0.iter().filter(move |m| m.parent == id && m.id != id)
    }

    /// The mount that `path`, absolute and without symbolic links, lies in.
    #[must_use]
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|dir| self.at(dir))
    }
}

/// The directory that `mount`, which is on `below`, covers there, as a path from that file system's
/// root.
fn covered(below: &Mount, mount: &Mount) -> Option<PathBuf> {
    let dir: PathBuf = mount.mountpoint.strip_prefix(&below.mountpoint).ok()?.components().collect();
    Some(below.root.components().chain(dir.components()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, parent: u64, minor: u32, mountpoint: &str, fstype: &str) -> Mount {
        let source = "x".to_owned();
        Mount {
            id,
            parent,
            major: 0,
            minor,
            root: "/".into(),
            mountpoint: mountpoint.into(),
            peer_group: None,
            fstype: fstype.to_owned(),
            source,
            is_read_only: false,
            has_suid: false,
            has_devices: false,
            options: String::new(),
            owner: None,
        }
    }

    #[test]
    fn the_topmost_of_stacked_mounts_is_found() {
        let table = MountTable(vec![
            mount(21, 1, 1, "/", "ext4"),
            // Not in the order of mounting: the one on top comes first.
            mount(41, 40, 3, "/mnt/a", "fuseblk.watertight"),
            mount(40, 21, 41, "/mnt/a", "fuse.watertight"),
            mount(43, 41, 51, "/mnt/a/in", "tmpfs"),
        ]);
        let top = table.at(Path::new("/mnt/a")).unwrap();
        assert_eq!(top.id, 41);
        assert_eq!(table.on(top).map(|m| m.id).collect::<Vec<_>>(), [43]);
        assert_eq!(table.containing(Path::new("/mnt/a/in/deep")).unwrap().id, 43);
        assert_eq!(table.containing(Path::new("/elsewhere")).unwrap().id, 21);
        assert_eq!(table.of_device(Device { major: 0, minor: 3 }).count(), 1);
        assert!(table.at(Path::new("/mnt")).is_none());
    }

    #[test]
    fn what_propagation_takes_along_is_known() {
        let shared = |mut mount: Mount| {
            mount.peer_group = Some(7);
            mount
        };
        let volume = |id, parent, at: &str| mount(id, parent, 9, at, "fuse.watertight");
        let table = MountTable(vec![
            shared(mount(21, 1, 1, "/", "ext4")),
            shared(mount(22, 21, 1, "/copy", "ext4")),
            mount(23, 21, 2, "/tmp", "tmpfs"),
            shared(Mount { root: "/mnt".into(), ..mount(24, 21, 1, "/part", "ext4") }),
            volume(44, 24, "/part"),
            volume(40, 21, "/mnt"),
            volume(41, 22, "/copy/mnt"),
            volume(42, 21, "/elsewhere"),
            volume(43, 23, "/tmp/mnt"),
        ]);
        let along = |other: &str| {
            let at = |path: &str| table.at(Path::new(path)).unwrap();
            table.may_go_along(at("/mnt"), at(other))
        };
        assert!(along("/copy/mnt") && along("/part"));
        assert!(!along("/elsewhere") && !along("/tmp/mnt"));
        assert_eq!(table.others(table.at(Path::new("/mnt")).unwrap()).count(), 4);
    }

    #[test]
    fn our_mounts_are_known_by_their_type() {
        assert!(is_ours(&mount(1, 0, 1, "/a", "fuse.watertight")));
        assert!(is_ours(&mount(1, 0, 1, "/a", "fuseblk.watertight")));
        assert!(!is_ours(&mount(1, 0, 1, "/a", "fuse.sshfs")));
        assert!(!is_ours(&mount(1, 0, 1, "/a", "watertight")));
        assert_eq!(kind(&mount(1, 0, 1, "/a", "fuseblk.watertight")), "fuseblk");
    }

    #[test]
    fn the_running_system_has_a_root() {
        assert!(MountTable::read().at(Path::new("/")).is_some());
        assert_eq!(Device::parse_hex("fe:0a"), Some(Device { major: 254, minor: 10 }));
        assert_eq!(Device::parse_hex("fe"), None);
    }
}
