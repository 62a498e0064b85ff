//! An open runtime directory: its files are reached through its descriptor, one name at a time.
//!
//! Another user may change that user's directory while it is read. So nothing in it is followed,
//! waited for or believed for its name: no symbolic link, no mount (a FUSE server of the user's
//! would answer, or not), no FIFO, no file that belongs to another user or is longer than expected,
//! and only so many names.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;

use crate::host::mountinfo::MountTable;
use crate::term::shown::Show as _;

/// How many names of another user's directory are checked.
const FOREIGN_NAMES_MAX: usize = 16 << 10;
/// How often openat2(2) is asked again that found the tree changing.
const AGAIN: usize = 16;

/// The user that a directory belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// This process's user's.
    Own,
    /// Another user's: it is only read.
    Foreign,
}

/// An open runtime directory.
#[derive(Debug, Clone)]
pub struct OpenDir {
    fd: Arc<OwnedFd>,
    /// The user it belongs to.
    owner: u32,
    access: Access,
}

impl OpenDir {
    /// Opens this user's own directory.
    ///
    /// # Errors
    /// The defect of an existing directory.
    pub fn own(path: &Path, owner: u32) -> Result<Option<Self>, String> {
        let flags =
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Every user may make a directory in /tmp, and mount a file system over it that shows it as
        // the caller's.
        let fd = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if parent == Path::new("/tmp") => {
                open_base(parent).and_then(|base| beneath(&base, name, flags))
            }
            _ => openat(CWD, path, flags, Mode::empty()),
        };
        Self::checked(fd, path, owner, Access::Own)
    }

    /// Opens another user's directory `name` in `parent`, a directory that root has made.
    ///
    /// # Errors
    /// The defect of an existing directory.
    pub(crate) fn foreign(parent: &Path, name: &OsStr, owner: u32) -> Result<Option<Self>, String> {
        let path = parent.join(name);
        let Some(base) = Base::open(parent)? else { return Ok(None) };
        let flags =
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Self::checked(beneath(&base.0, name, flags), &path, owner, Access::Foreign)
    }

    fn checked(
        fd: rustix::io::Result<OwnedFd>,
        path: &Path,
        owner: u32,
        access: Access,
    ) -> Result<Option<Self>, String> {
        let path = path.shown();
        let fd = match fd {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(format!("{path} is not a directory")),
            Err(Errno::XDEV) => return Err(format!("{path} is a mountpoint")),
            Err(error) => return Err(format!("{path}: {error}")),
        };
        let meta = fstat(&fd).map_err(|error| format!("{path}: {error}"))?;
        if meta.st_uid != owner {
            return Err(format!("{path} belongs to user {}, not to {owner}", meta.st_uid));
        }
        if meta.st_mode & 0o077 != 0 {
            return Err(format!("{path} is open to other users: its mode should be 0700"));
        }
        Ok(Some(Self { fd: Arc::new(fd), owner, access }))
    }

    #[cfg(fuzzing)]
    pub(crate) fn as_foreign(&self) -> Self {
        Self { access: Access::Foreign, ..self.clone() }
    }

    /// The user it belongs to.
    pub(crate) const fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether it is another user's.
    pub(crate) fn is_foreign(&self) -> bool {
        self.access == Access::Foreign
    }

    /// A path that leads to this directory, for calls that take no descriptor.
    pub(crate) fn by_descriptor(&self) -> PathBuf {
        by_descriptor(self.fd.as_fd())
    }

    /// The names in it that end in `suffix`, without that; and whether these are all.
    pub(crate) fn names(&self, suffix: &str) -> (Vec<String>, bool) {
        let max = if self.is_foreign() { FOREIGN_NAMES_MAX } else { usize::MAX };
        let mut names = Vec::new();
        let Ok(entries) = entries(&self.fd) else { return (names, true) };
        for (n, entry) in entries.enumerate() {
            if n >= max {
                return (names, false);
            }
            let Ok(entry) = entry else { break };
            let name = entry.file_name().to_str().ok().and_then(|name| name.strip_suffix(suffix));
            names.extend(name.map(str::to_owned));
        }
        (names, true)
    }

    /// The content of a regular file of the owner's, if it is one and not longer than `bytes_max`.
    pub(crate) fn read(&self, name: &str, bytes_max: u64) -> Option<Vec<u8>> {
        read(self.file(name)?, bytes_max)
    }

    /// A regular file of the owner's, open for reading. Nothing is waited for.
    pub(crate) fn file(&self, name: &str) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (fd, meta) = self.open(name, flags).ok()?;
        (FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile && meta.st_uid == self.owner)
            .then(|| File::from(fd))
    }

    /// A socket of the owner's, for connect(2) by its descriptor. Anything else of this name is
    /// invalid data.
    pub(crate) fn socket(&self, name: &str) -> io::Result<SocketFile> {
        let is_none =
            || io::Error::new(io::ErrorKind::InvalidData, "it is not a socket of the directory's owner");
        let (fd, meta) = self.open(name, OFlags::PATH).map_err(|error| match error {
            Errno::LOOP | Errno::XDEV => is_none(),
            error => error.into(),
        })?;
        let is_socket = FileType::from_raw_mode(meta.st_mode) == FileType::Socket;
        if is_socket && meta.st_uid == self.owner { Ok(SocketFile(fd)) } else { Err(is_none()) }
    }

    fn open(&self, name: &str, flags: OFlags) -> rustix::io::Result<(OwnedFd, Stat)> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match self.access {
            // One name, in a directory that no one else can write to.
            Access::Own => openat(&self.fd, name, flags, Mode::empty()),
            Access::Foreign => beneath(&self.fd, name.as_ref(), flags),
        }?;
        let meta = fstat(&fd)?;
        Ok((fd, meta))
    }
}

/// A socket in a directory, wherever its name leads by now.
#[derive(Debug)]
pub(crate) struct SocketFile(OwnedFd);

impl SocketFile {
    /// A path that leads to it.
    pub(crate) fn path(&self) -> PathBuf {
        by_descriptor(self.0.as_fd())
    }
}

/// A directory that runtime directories of others are in: root has made it, but a user may have
/// mounted over it.
pub(crate) struct Base(OwnedFd);

impl Base {
    /// Opens it; none if it is not there.
    ///
    /// # Errors
    /// A FUSE file system is mounted there: its server, a user's process, must not get any request.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, String> {
        let shown = path.shown();
        let fd = match open_base(path) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(format!("{shown}: {error}")),
        };
        match fstype(&fd) {
            Some(fstype) if !fstype.starts_with("fuse") => Ok(Some(Self(fd))),
            Some(fstype) => Err(format!(
                "{shown} is a mount of type {}, by a user: it is not looked into",
                fstype.shown()
            )),
            None => Err(format!("{shown} is on a mount that is not in /proc/self/mountinfo")),
        }
    }

    /// A path that leads to it, for calls that take no descriptor.
    pub(crate) fn by_descriptor(&self) -> PathBuf {
        by_descriptor(self.0.as_fd())
    }

    /// The names in it, up to a bound.
    pub(crate) fn names(&self) -> Vec<OsString> {
        let entries = entries(&self.0);
        let names = entries.into_iter().flatten().take(FOREIGN_NAMES_MAX).flatten();
        names.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec())).collect()
    }
}

/// O_PATH: a file system is not asked for anything by this.
fn open_base(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens one name in a directory, which is no link and no mountpoint.
fn beneath(dir: &impl AsFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let mut result = Err(Errno::AGAIN);
    for _ in 0..AGAIN {
        result = openat2(dir, name, flags, Mode::empty(), resolve);
        if result.as_ref().err() != Some(&Errno::AGAIN) {
            break;
        }
    }
    result
}

/// The type of the file system that a descriptor leads to. Its server is not asked: fstatfs(2)
/// would.
pub(crate) fn fstype(fd: &OwnedFd) -> Option<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id: u64 = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()?;
    MountTable::read().iter().find(|mount| mount.id == id).map(|mount| mount.fstype.clone())
}

fn entries(dir: impl AsFd) -> rustix::io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Dir::new(openat(dir, ".", flags, Mode::empty())?)
}

fn by_descriptor(fd: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// All of a file, unless it is longer than this.
pub(crate) fn read(file: File, bytes_max: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let read = file.take(bytes_max + 1).read_to_end(&mut text).ok()? as u64;
    (read <= bytes_max).then_some(text)
}
