//! One tree of cgroups of the host.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Names a cgroup: its directory's inode number; 0 for the root of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupId(pub u64);

impl CgroupId {
    /// The root of the tree.
    pub const ROOT: Self = Self(0);
}

/// The choice of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Choice {
    /// The tree that the host uses: version 2 if it has the controllers `memory` or `io`, else the
    /// tree of `memory`, of `blkio`, of version 2 at last. None of them: off.
    #[default]
    Auto,
    /// Version 2.
    V2,
    /// The version 1 tree with this controller, or with this name: `memory`, `name=systemd`.
    Controller(String),
    /// None: all threads are in the root.
    Off,
}

/// Why a tree cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is not mounted.
    #[error("no cgroup hierarchy with {wanted} is mounted here; there are: {found}")]
    NotMounted {
        /// The requested controller.
        wanted: String,
        /// The trees that are mounted.
        found: String,
    },
}

/// A tree of cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its name in `/proc/TID/cgroup`: empty for version 2.
    controller: String,
    mountpoint: PathBuf,
    /// The directory of the tree that is mounted there.
    root: PathBuf,
}

/// A cgroup, with those above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The cgroup's directories from below the root downwards, each with its name; none for the
    /// root.
    pub chain: Vec<(CgroupId, OsString)>,
}

impl Found {
    /// The cgroup's id.
    #[must_use]
    pub fn id(&self) -> CgroupId {
        self.chain.last().map_or(CgroupId::ROOT, |(id, _)| *id)
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "v2" => Self::V2,
            "off" => Self::Off,
            "" => return Err("give auto, v2, off, or the name of a version 1 controller".to_owned()),
            name => Self::Controller(name.to_owned()),
        })
    }
}

impl fmt::Display for Hierarchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.controller.is_empty() { "v2" } else { &self.controller })
    }
}

impl Hierarchy {
    /// The tree that `choice` names; `None` for none.
    ///
    /// # Errors
    /// [`Error::NotMounted`], except for [`Choice::Auto`].
    pub fn find(choice: &Choice) -> Result<Option<Self>, Error> {
        let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let all = Mounted::all_in(&text);
        let with = |name: &str| all.iter().find(|mounted| mounted.has(name)).map(|at| at.tree(name));
        let wanted = match choice {
            Choice::Off => return Ok(None),
            Choice::Auto => {
                let of_v2 = with("").filter(Self::is_used);
                return Ok(of_v2.or_else(|| ["memory", "blkio", ""].into_iter().find_map(with)));
            }
            Choice::V2 => "",
            Choice::Controller(name) => name,
        };
        with(wanted).map(Some).ok_or_else(|| {
            let names: Vec<String> = all.iter().map(Mounted::names).collect();
            let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let wanted = if wanted.is_empty() { "version 2".to_owned() } else { format!("`{wanted}`") };
            Error::NotMounted { wanted, found }
        })
    }

    /// A tree whose root is this directory, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn at(mountpoint: &Path, controller: &str) -> Self {
        Self { controller: controller.to_owned(), mountpoint: mountpoint.to_owned(), root: "/".into() }
    }

    /// Whether it is the version 2 tree of a host that uses it for memory or I/O.
    fn is_used(&self) -> bool {
        let controllers = std::fs::read_to_string(self.mountpoint.join("cgroup.controllers"));
        controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "memory" || name == "io"))
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The path of a thread's cgroup below the mountpoint; `None` if there is no such thread, or
    /// its cgroup is not visible from here. For a thread in a removed cgroup, the path of the
    /// nearest one above.
    #[must_use]
    pub fn path_of(&self, tid: u32) -> Option<PathBuf> {
        let text = std::fs::read(format!("/proc/{tid}/cgroup")).ok()?;
        let mut lines = text.split(|&byte| byte == b'\n').filter_map(split_line);
        let (_, path) = lines.find(|(names, _)| has_name(names, self.controller.as_bytes()))?;
        let path = match path.strip_suffix(b" (deleted)") {
            Some(gone) => Path::new(OsStr::from_bytes(gone)).parent()?,
            None => Path::new(OsStr::from_bytes(path)),
        };
        let below = path.strip_prefix(&self.root).ok()?;
        // A cgroup outside of this process's cgroup namespace.
        let is_outside = below.components().any(|part| part == Component::ParentDir);
        (!is_outside).then(|| below.strip_prefix("/").unwrap_or(below).to_owned())
    }

    /// The cgroup at `path`, which is below the mountpoint, and those above it; `None` if it does
    /// not exist.
    #[must_use]
    pub fn look_up(&self, path: &Path) -> Option<Found> {
        let mut at = self.mountpoint.clone();
        let mut chain = Vec::new();
        for part in path.components() {
            let Component::Normal(name) = part else { continue };
            at.push(name);
            chain.push((self.id_at(&at)?, name.to_owned()));
        }
        Some(Found { chain })
    }

    /// The number of the cgroup with this directory.
    pub(crate) fn id_at(&self, directory: &Path) -> Option<CgroupId> {
        std::fs::metadata(directory).ok().filter(|meta| meta.is_dir()).map(|meta| CgroupId(meta.ino()))
    }
}

/// `HIERARCHY:NAMES:PATH`.
fn split_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b':');
    let (_number, names, path) = (parts.next()?, parts.next()?, parts.next()?);
    Some((names, path))
}

fn has_name(names: &[u8], name: &[u8]) -> bool {
    names.split(|&byte| byte == b',').any(|known| known == name)
}

/// A mount of a tree of cgroups.
#[derive(Debug)]
struct Mounted {
    /// Empty for version 2.
    options: Vec<String>,
    mountpoint: PathBuf,
    root: PathBuf,
}

impl Mounted {
    /// Those that a path leads to: of several at one mountpoint, the last is on top. One below it may
    /// be of a cgroup namespace that no process here is in.
    fn all_in(table: &[u8]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for mounted in table.split(|&byte| byte == b'\n').filter_map(Self::parse) {
            all.retain(|below| below.mountpoint != mounted.mountpoint);
            all.push(mounted);
        }
        all
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let options = match *fields.get(dash + 1)? {
            b"cgroup2" => Vec::new(),
            b"cgroup" => {
                let options = std::str::from_utf8(fields.get(dash + 3)?).ok()?;
                options.split(',').map(str::to_owned).collect()
            }
            _ => return None,
        };
        let path =
            |at: usize| fields.get(at).map(|field| PathBuf::from(OsString::from_vec(unescaped(field))));
        Some(Self { options, mountpoint: path(4)?, root: path(3)? })
    }

    fn has(&self, name: &str) -> bool {
        if name.is_empty() { self.options.is_empty() } else { self.options.iter().any(|known| known == name) }
    }

    fn names(&self) -> String {
        if self.options.is_empty() {
            return "v2".to_owned();
        }
        let names = self.options.iter().filter(|option| !matches!(option.as_str(), "rw" | "ro" | "xattr"));
        names.cloned().collect::<Vec<_>>().join(",")
    }

    fn tree(&self, name: &str) -> Hierarchy {
        Hierarchy {
            controller: name.to_owned(),
            mountpoint: self.mountpoint.clone(),
            root: self.root.clone(),
        }
    }
}

/// A field of a mountinfo table: the kernel writes bytes that would break a line as `\` and three
/// octal digits.
#[must_use]
pub fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_both_versions_are_read() {
        let v1 = b"14:35 31 0:32 /docker/x /sys/fs/cgroup/a\\040b rw - cgroup cgroup rw,cpu,memory";
        let v1 = Mounted::parse(v1).unwrap();
        assert_eq!(
            (v1.mountpoint.to_str(), v1.root.to_str()),
            (Some("/sys/fs/cgroup/a b"), Some("/docker/x"))
        );
        assert!(v1.has("memory") && !v1.has("mem") && !v1.has(""));
        assert_eq!(v1.names(), "cpu,memory");
        let v2 =
            Mounted::parse(b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw").unwrap();
        assert!(v2.has("") && !v2.has("memory"));
        assert!(Mounted::parse(b"30 23 0:26 / /proc rw - proc proc rw").is_none());
    }

    #[test]
    fn of_two_trees_at_one_mountpoint_the_upper_one_counts() {
        let table = b"41 31 0:32 /../.. /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            42 31 0:33 /../.. /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
            50 49 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let all = Mounted::all_in(table);
        let roots: Vec<_> = all.iter().map(|one| (one.names(), one.root.to_str().unwrap())).collect();
        assert_eq!(roots, [("pids".to_owned(), "/../.."), ("memory".to_owned(), "/")]);
    }

    #[test]
    fn lines_of_threads_are_split_once() {
        assert_eq!(split_line(b"4:cpu,memory:/a:b"), Some((&b"cpu,memory"[..], &b"/a:b"[..])));
        assert_eq!(split_line(b"0::/"), Some((&b""[..], &b"/"[..])));
        assert!(has_name(b"cpu,memory", b"memory") && has_name(b"", b"") && !has_name(b"cpu", b""));
    }

    #[test]
    fn a_choice_is_parsed_and_what_is_not_there_is_refused_with_what_is() {
        assert_eq!("v2".parse(), Ok(Choice::V2));
        assert_eq!("off".parse(), Ok(Choice::Off));
        assert_eq!("name=systemd".parse(), Ok(Choice::Controller("name=systemd".into())));
        assert!("".parse::<Choice>().is_err());
        assert!(Hierarchy::find(&Choice::Off).unwrap().is_none());
        let error = Hierarchy::find(&Choice::Controller("nonesuch".into())).unwrap_err().to_string();
        assert!(error.contains("`nonesuch`") && error.contains("there are:"), "{error}");
    }

    #[test]
    fn look_up_names_every_cgroup_on_the_way() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let tree = Hierarchy::at(dir.path(), "x");
        let found = tree.look_up(Path::new("a/b")).unwrap();
        let names: Vec<_> = found.chain.iter().map(|(_, name)| name.to_str().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(found.id().0, std::fs::metadata(dir.path().join("a/b")).unwrap().ino());
        assert_eq!(tree.look_up(Path::new("")).unwrap().id(), CgroupId::ROOT);
        assert!(tree.look_up(Path::new("a/c")).is_none());
    }
}
