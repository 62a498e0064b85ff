//! The kernel's mount table, as this process sees it.
//!
//! Everything here reads `/proc/self/mountinfo` and nothing else: no path is looked up, so a mount
//! whose server hangs cannot hang the reader.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The subtype that the kernel shows for our mounts: `fuse.watertight`, `fuseblk.watertight`.
pub const SUBTYPE: &str = "watertight";

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Device {
    /// Major number; 0 for file systems without a block device.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount's number, unique while it exists.
    pub id: u64,
    /// The number of the mount it is mounted on.
    pub parent: u64,
    /// The file system's device.
    pub device: Device,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// `ext4`, `fuse.watertight`.
    pub fs_type: String,
    /// What is mounted, as the file system names it.
    pub source: OsString,
}

impl Mount {
    /// Whether one of our processes made this mount.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.fs_type.split_once('.').is_some_and(|(_, subtype)| subtype == SUBTYPE)
    }

    /// `fuse` or `fuseblk` for our mounts: the part of the type before the dot.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.fs_type.split_once('.').map_or(&self.fs_type, |(kind, _)| kind)
    }
}

/// All mounts that this process can see.
#[derive(Debug, Clone, Default)]
pub struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads the table.
    ///
    /// # Errors
    /// Those of reading `/proc/self/mountinfo`.
    pub fn read() -> std::io::Result<Self> {
        Ok(Self::parse(&fs::read("/proc/self/mountinfo")?))
    }

    /// Parses the kernel's text; lines that are none are left out.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        Self(text.split(|&b| b == b'\n').filter_map(parse_line).collect())
    }

    /// The mounts, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// The mount that a path lookup of exactly `mountpoint` reaches: the topmost of those stacked there.
    #[must_use]
    pub fn at(&self, mountpoint: &Path) -> Option<&Mount> {
        let here: Vec<&Mount> = self.0.iter().filter(|m| m.mountpoint == mountpoint).collect();
        let covered = |m: &&&Mount| here.iter().any(|over| over.parent == m.id);
        here.iter().rev().find(|m| !covered(m)).or(here.last()).copied()
    }

    /// The mounts of the file system `device`.
    pub fn of_device(&self, device: Device) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |m| m.device == device)
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

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = parse_device(std::str::from_utf8(fields.next()?).ok()?, 10)?;
    let _root = fields.next()?;
    let mountpoint = PathBuf::from(unescape(fields.next()?));
    fields.by_ref().find(|field| *field == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    Some(Mount { id, parent, device, mountpoint, fs_type, source })
}

/// Parses `MAJOR:MINOR`, written in `radix`.
pub(crate) fn parse_device(text: &str, radix: u32) -> Option<Device> {
    let (major, minor) = text.split_once(':')?;
    let parse = |n| u32::from_str_radix(n, radix).ok();
    Some(Device { major: parse(major)?, minor: parse(minor)? })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Undoes the kernel's octal escapes of blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(value) = octal {
            out.push(value);
            rest = &tail[3..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 21 0:41 / /mnt/with\\040blank rw,nosuid shared:1 master:2 - fuse.watertight dir:/srv/a\\134b rw,user_id=0
41 40 7:3 / /mnt/with\\040blank rw - fuseblk.watertight /dev/loop3 rw
42 21 0:50 / /mnt/x rw - fuse.sshfs host: rw
43 41 0:51 / /mnt/with\\040blank/in rw - tmpfs tmpfs rw
nonsense
";

    #[test]
    fn lines_are_parsed_with_their_escapes() {
        let table = MountTable::parse(TABLE);
        assert_eq!(table.iter().count(), 5);
        let first = table.iter().nth(1).unwrap();
        assert_eq!(first.mountpoint, Path::new("/mnt/with blank"));
        assert_eq!(first.source, "dir:/srv/a\\b");
        assert_eq!(first.device, Device { major: 0, minor: 41 });
        assert!(first.is_ours());
        assert_eq!(first.kind(), "fuse");
        assert!(!table.at(Path::new("/mnt/x")).unwrap().is_ours());
    }

    #[test]
    fn the_topmost_of_stacked_mounts_is_found() {
        let table = MountTable::parse(TABLE);
        let top = table.at(Path::new("/mnt/with blank")).unwrap();
        assert_eq!(top.id, 41);
        assert_eq!(table.on(top).map(|m| m.id).collect::<Vec<_>>(), [43]);
        assert_eq!(table.containing(Path::new("/mnt/with blank/in/deep")).unwrap().id, 43);
        assert_eq!(table.containing(Path::new("/elsewhere")).unwrap().id, 21);
        assert_eq!(table.of_device(Device { major: 7, minor: 3 }).count(), 1);
        assert!(table.at(Path::new("/mnt")).is_none());
    }

    #[test]
    fn the_running_system_has_a_root() {
        let table = MountTable::read().unwrap();
        assert!(table.at(Path::new("/")).is_some());
    }
}
