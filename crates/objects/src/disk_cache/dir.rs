//! The directories of the cache: opened without following links, and only where they are a cache's
//! and this user's alone.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, flock, fstat, mkdirat, openat, openat2, renameat, statat, unlinkat, utimensat,
};
use rustix::io::Errno;
use store::{Error, ErrorKind, Result};

use super::entry::HEADER;
use super::files::Files;
use crate::blocks::{BLOCK, Key};
use crate::rows::Object;
use crate::uuid::Uuid;

/// What says that a directory is a cache's.
const MARK: &str = "watertight-cache";
const LOCK: &str = "lock";
/// The file that is being written: there is one writer.
const TEMPORARY: &str = "new";
const ALONE: Mode = Mode::RWXU;
const OPEN_DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Why a directory cannot be a cache's.
pub(super) fn refused(dir: &Path, why: &str) -> Error {
    Error::with(ErrorKind::Invalid, "open disk cache", format!("disk cache {}: {why}", dir.display()))
}

/// One volume's directory.
#[derive(Debug)]
pub(super) struct VolumeDir {
    fd: OwnedFd,
    lock: Mutex<Option<OwnedFd>>,
}

/// A block's file: its length and time.
pub(super) type Found = (Key, u64, SystemTime);

fn name_of((object, block): Key) -> String {
    match object {
        Object::Log(number) => format!("l-{number:016x}-{block:08x}"),
        Object::Segment(epoch, number) => format!("s-{epoch:016x}-{number:016x}-{block:08x}"),
    }
}

/// The block whose file has this name.
fn key_of(name: &str) -> Option<Key> {
    let number = |part: &str| u64::from_str_radix(part, 16).ok();
    let parts: Vec<&str> = name.split('-').collect();
    let (object, block) = match parts[..] {
        ["l", log, block] => (Object::Log(number(log)?), block),
        ["s", epoch, segment, block] => (Object::Segment(number(epoch)?, number(segment)?), block),
        _ => return None,
    };
    let key = (object, u32::from_str_radix(block, 16).ok()?);
    // No other name of the same numbers.
    (name_of(key) == name).then_some(key)
}

/// Opens a directory that is this user's alone, and makes it where it is not there.
fn open_own(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, String> {
    match mkdirat(parent, name, ALONE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(format!("it cannot be made: {}", io::Error::from(error))),
    }
    let dir = match openat(parent, name, OPEN_DIR, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::LOOP | Errno::NOTDIR) => return Err("it is not a directory".to_owned()),
        Err(error) => return Err(io::Error::from(error).to_string()),
    };
    let stat = fstat(&dir).map_err(|error| io::Error::from(error).to_string())?;
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Err(format!("it belongs to user {}, not to {user}", stat.st_uid));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err("it is open to other users: its mode should be 0700".to_owned());
    }
    Ok(dir)
}

/// The names in a directory.
fn names(dir: &OwnedFd) -> io::Result<impl Iterator<Item = String>> {
    let entries = Dir::read_from(dir)?.filter_map(|entry| {
        let name = entry.ok()?.file_name().to_str().ok()?.to_owned();
        (name != "." && name != "..").then_some(name)
    });
    Ok(entries)
}

/// Checks that a directory is a cache's, and marks an empty one as such.
fn check_mark(dir: &OwnedFd) -> Result<(), String> {
    let is_marked = || {
        statat(dir, MARK, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    };
    if is_marked() {
        return Ok(());
    }
    let name = names(dir).map_err(|error| error.to_string())?.next();
    // Another mount may be marking it.
    if let Some(name) = name.filter(|_| !is_marked()) {
        return Err(format!(
            "it is not empty, and no cache: it has {name:?}; give an empty directory, or one to be made"
        ));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(dir, MARK, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) => Ok(()),
        Err(Errno::EXIST) if is_marked() => Ok(()),
        Err(error) => Err(io::Error::from(error).to_string()),
    }
}

fn open_volume(path: &Path, uuid: [u8; 16]) -> Result<(OwnedFd, OwnedFd), String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err("give an absolute path of a directory of its own".to_owned());
    };
    let parent = openat2(CWD, parent, OPEN_DIR - OFlags::NOFOLLOW, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map_err(|error| match error {
            Errno::LOOP => format!("{} is reached by a symbolic link: give its real path", parent.display()),
            error => format!("{}: {}", parent.display(), io::Error::from(error)),
        })?;
    let base = open_own(&parent, name)?;
    check_mark(&base)?;
    let volume = open_own(&base, Uuid::from_bytes(uuid).to_string().as_ref())?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = openat(&volume, LOCK, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| io::Error::from(error).to_string())?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok((volume, lock)),
        Err(Errno::WOULDBLOCK) => {
            Err("another mount of this volume uses it: give this one a directory of its own".to_owned())
        }
        Err(error) => Err(io::Error::from(error).to_string()),
    }
}

impl VolumeDir {
    /// Opens a volume's directory below `path`, and lists its blocks.
    ///
    /// # Errors
    /// `Invalid`, in plain words.
    pub(super) fn open(path: &Path, uuid: [u8; 16]) -> Result<(Self, Vec<Found>)> {
        let refused = |why: String| refused(path, &why);
        let (fd, lock) = open_volume(path, uuid).map_err(refused)?;
        let mut found = Vec::new();
        for name in names(&fd).map_err(|error| refused(error.to_string()))? {
            let Some(key) = key_of(&name) else {
                if name == TEMPORARY {
                    let _gone_already = unlinkat(&fd, TEMPORARY, AtFlags::empty());
                }
                continue;
            };
            let Ok(stat) = statat(&fd, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let len = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if !is_file || len <= HEADER as u64 || len > BLOCK + HEADER as u64 {
                let _gone_already = unlinkat(&fd, name.as_str(), AtFlags::empty());
                continue;
            }
            let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
            found.push((key, len, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)));
        }
        Ok((Self { fd, lock: Mutex::new(Some(lock)) }, found))
    }
}

impl Files for VolumeDir {
    fn unlock(&self) {
        self.lock.lock().take();
    }

    fn read(&self, key: Key) -> io::Result<Option<Bytes>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name_of(key), flags, Mode::empty()) {
            Ok(file) => std::fs::File::from(file),
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let most = BLOCK + HEADER as u64;
        let mut content = Vec::with_capacity(usize::try_from(most).unwrap_or_default() + 1);
        file.take(most + 1).read_to_end(&mut content)?;
        Ok(Some(content.into()))
    }

    fn write(&self, key: Key, parts: &[&[u8]]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = std::fs::File::from(openat(&self.fd, TEMPORARY, flags, Mode::RUSR | Mode::WUSR)?);
        let written = parts.iter().try_for_each(|part| file.write_all(part));
        if let Err(error) = written {
            let _gone_already = unlinkat(&self.fd, TEMPORARY, AtFlags::empty());
            return Err(error);
        }
        Ok(renameat(&self.fd, TEMPORARY, &self.fd, name_of(key))?)
    }

    fn remove(&self, key: Key) -> io::Result<()> {
        match unlinkat(&self.fd, name_of(key), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn touch(&self, key: Key) {
        let now = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        let _gone = utimensat(&self.fd, name_of(key), &now, AtFlags::SYMLINK_NOFOLLOW);
    }
}
