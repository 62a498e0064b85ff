//! The mounts of `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use cgroups::unescaped;
use serde::{Deserialize, Serialize};

/// One mount of this process' namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountInfo {
    /// The mount's number; it may be used again after the mount is gone.
    pub id: u64,
    /// The number of the mount that it is mounted on.
    pub parent: u64,
    /// Major number of the file system's device.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Which directory of the file system it shows, as a path from the file system's root.
    pub root: PathBuf,
    /// Where.
    pub mountpoint: PathBuf,
    /// The peer group that mounts on it propagate in, where it is shared.
    pub peer_group: Option<u64>,
    /// Type, with its subtype.
    pub fstype: String,
    /// The source of the mount.
    pub source: String,
    /// Whether the file system is read-only, in all of its mounts.
    pub is_read_only: bool,
    /// The options of this mount alone, as the kernel has them: `rw,nosuid,relatime`.
    #[serde(default)]
    pub options: String,
    /// Whether set-id bits and capabilities of its programs count, seen through this mount.
    pub has_suid: bool,
    /// Whether its devices can be opened, through this mount.
    pub has_devices: bool,
    /// The user that mounted it, where it is a FUSE mount.
    pub owner: Option<u32>,
}

impl MountInfo {
    /// The mounts of this process' namespace, in the kernel's order.
    #[must_use]
    pub fn all() -> Vec<Self> {
        all()
    }

    /// The mounts of another process' namespace, by its directory in `/proc`; none where that
    /// cannot be read.
    #[must_use]
    pub fn all_of(process: &Path) -> Vec<Self> {
        read(&process.join("mountinfo"))
    }

    /// Whether both describe the same mount. The kernel uses numbers again, so all that cannot
    /// change is compared.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let key = |info: &'_ Self| (info.id, info.major, info.minor);
        key(self) == key(other) && self.fstype == other.fstype && self.source == other.source
    }

    /// Whether this mount is still there.
    #[must_use]
    pub fn is_present(&self) -> bool {
        all().iter().any(|other| self.is_same(other))
    }

    /// The connection's directory in the control file system.
    #[must_use]
    pub fn connection_dir(&self) -> PathBuf {
        // The kernel's own encoding of a device number.
        let number = (u64::from(self.major) << 20) | u64::from(self.minor);
        PathBuf::from(format!("/sys/fs/fuse/connections/{number}"))
    }

    /// The directory of the settings for its cached data.
    pub(crate) fn bdi_dir(&self, is_block: bool) -> PathBuf {
        let suffix = if is_block { "-fuseblk" } else { "" };
        PathBuf::from(format!("/sys/class/bdi/{}:{}{suffix}", self.major, self.minor))
    }
}

fn all() -> Vec<MountInfo> {
    read(Path::new("/proc/self/mountinfo"))
}

fn read(table: &Path) -> Vec<MountInfo> {
    let text = std::fs::read(table).unwrap_or_default();
    text.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

/// The mount that is seen at this (absolute, canonical) path.
pub(crate) fn topmost(mountpoint: &Path) -> Option<MountInfo> {
    all().into_iter().rfind(|info| info.mountpoint == mountpoint)
}

fn parse(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|&byte| byte == b' ');
    let mut text = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let id = text()?.parse().ok()?;
    let parent = text()?.parse().ok()?;
    let (major, minor) = text()?.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    let mut path = || Some(PathBuf::from(OsString::from_vec(unescaped(fields.next()?))));
    let (root, mountpoint) = (path()?, path()?);
    let flags = fields.next()?;
    let is_set = |name: &[u8]| flags.split(|&byte| byte == b',').any(|flag| flag == name);
    // Optional fields end with a dash.
    let mut peer_group = None;
    for field in fields.by_ref().take_while(|field| *field != b"-") {
        if let Some(number) = field.strip_prefix(b"shared:") {
            peer_group = std::str::from_utf8(number).ok()?.parse().ok();
        }
    }
    let fstype = String::from_utf8(unescaped(fields.next()?)).ok()?;
    let source = OsString::from_vec(unescaped(fields.next()?)).to_string_lossy().into_owned();
    let of_all = fields.next().unwrap_or_default();
    let is_read_only = of_all.split(|&byte| byte == b',').any(|option| option == b"ro");
    let owner = of_all.split(|&byte| byte == b',').find_map(|option| option.strip_prefix(b"user_id="));
    let owner = owner.and_then(|owner| std::str::from_utf8(owner).ok()?.parse().ok());
    Some(MountInfo {
        id,
        parent,
        major,
        minor,
        root,
        mountpoint,
        peer_group,
        fstype,
        source,
        is_read_only,
        options: String::from_utf8_lossy(flags).into_owned(),
        has_suid: !is_set(b"nosuid"),
        has_devices: !is_set(b"nodev"),
        owner,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_their_escapes() {
        let line =
            br"36 35 0:52 /sub\040dir /mnt/a\040b\134c rw,nosuid shared:1 master:2 - fuse.watertight dir:/srv\040x rw,user_id=65534,group_id=0";
        let info = parse(line).unwrap();
        assert_eq!((info.id, info.parent, info.major, info.minor), (36, 35, 0, 52));
        assert_eq!(
            (info.root.as_path(), info.mountpoint.as_path()),
            (Path::new("/sub dir"), Path::new(r"/mnt/a b\c"))
        );
        assert_eq!((info.peer_group, info.is_read_only), (Some(1), false));
        assert_eq!((info.has_suid, info.has_devices), (false, true));
        assert_eq!((info.fstype.as_str(), info.source.as_str()), ("fuse.watertight", "dir:/srv x"));
        assert_eq!(info.owner, Some(65534));
        assert_eq!(info.connection_dir(), Path::new("/sys/fs/fuse/connections/52"));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1 2 3"), None);
    }

    #[test]
    fn proc_is_among_the_mounts() {
        let proc = topmost(Path::new("/proc")).unwrap();
        assert_eq!(proc.fstype, "proc");
        assert!(proc.is_present());
    }
}
