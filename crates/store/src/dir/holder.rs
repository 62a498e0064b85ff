//! Exclusive use of a directory, and the process that has it.
//!
//! An `flock` on the directory itself: nothing is written, the lock ends with the process, however
//! that ends, and the directory is recognised by any path that leads there.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::errno;
use crate::{Error, ErrorKind, Result};

/// An open directory that is one store's alone, until this is dropped.
///
/// The lock is released explicitly. The store has the descriptor for other uses as well, and so
/// does a child of this process that has not executed its program yet: the lock would last until
/// that closes it.
#[derive(Debug)]
pub(crate) struct Exclusive {
    fd: Arc<OwnedFd>,
    /// Another program of this process may have the lock by a descriptor of its own: it is not
    /// released.
    is_shared: bool,
}

impl Exclusive {
    /// The directory's descriptor.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// The program before may take the lock back, or may not any more.
    pub(crate) fn set_shared(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }
}

impl AsFd for Exclusive {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        if self.is_shared {
            return;
        }
        // It can only fail where the kernel has no memory; closing the descriptor releases the lock
        // then.
        let _given_back = rustix::io::retry_on_intr(|| rustix::fs::flock(&*self.fd, FlockOperation::Unlock));
    }
}

/// Locks the open directory `fd` for this store alone.
pub(crate) fn lock(fd: OwnedFd, path: &Path) -> Result<Exclusive> {
    let op = "open store";
    match rustix::io::retry_on_intr(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(Exclusive { fd: Arc::new(fd), is_shared: false }),
        Err(Errno::AGAIN) => {
            let holder = holder(&fd).unwrap_or_else(|| "a process that cannot be seen from here".to_owned());
            Err(Error::with(ErrorKind::Busy, op, format!("{} is in use by {holder}", path.display())))
        }
        Err(e) => Err(errno::failed_with(op, &path.display().to_string())(e)),
    }
}

/// The process that holds the directory `path`, in words.
pub(crate) fn of(path: &Path) -> Result<Option<String>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())
        .map_err(errno::failed_with("look at store", &path.display().to_string()))?;
    Ok(holder(&fd))
}

/// The process that holds the lock, in words.
fn holder(fd: &OwnedFd) -> Option<String> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = find_flock(&locks, stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)?;
    if pid == std::process::id() {
        return Some(format!("this process (pid {pid})"));
    }
    Some(match command_line(pid) {
        Some(command) => format!("pid {pid} ({command})"),
        None => format!("pid {pid}"),
    })
}

/// The pid of the one `flock` that `/proc/locks` shows on this inode.
///
/// Some file systems show another device number there than to stat(2): without a match of both, the
/// inode number alone decides if it is the only one.
fn find_flock(locks: &str, major: u32, minor: u32, ino: u64) -> Option<u32> {
    let mut with_ino = Vec::new();
    for line in locks.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // "1: FLOCK ADVISORY WRITE 1234 fe:00:5678 0 EOF"; a waiter has "->" in the second field.
        let [_, "FLOCK", _, _, pid, object, ..] = fields.as_slice() else { continue };
        let mut parts = object.split(':');
        let (Some(maj), Some(min), Some(number)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if number.parse() != Ok(ino) {
            continue;
        }
        let Ok(pid) = pid.parse::<u32>() else { continue };
        if u32::from_str_radix(maj, 16) == Ok(major) && u32::from_str_radix(min, 16) == Ok(minor) {
            return Some(pid);
        }
        with_ino.push(pid);
    }
    match with_ino.as_slice() {
        [pid] => Some(*pid),
        _ => None,
    }
}

fn command_line(pid: u32) -> Option<String> {
    let raw = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<_> =
        raw.split(|&b| b == 0).filter(|w| !w.is_empty()).map(String::from_utf8_lossy).collect();
    if words.is_empty() { None } else { Some(words.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: POSIX  ADVISORY  WRITE 11 fe:00:500 0 EOF
2: FLOCK  ADVISORY  WRITE 12 fe:00:500 0 EOF
2: -> FLOCK  ADVISORY  WRITE 13 fe:00:500 0 EOF
3: FLOCK  ADVISORY  WRITE 14 08:11:500 0 EOF
4: FLOCK  ADVISORY  WRITE 15 00:2a:77 0 EOF
";

    #[test]
    fn finds_the_holder_and_not_who_waits_or_holds_another_kind() {
        assert_eq!(find_flock(LOCKS, 0xfe, 0, 500), Some(12));
        assert_eq!(find_flock(LOCKS, 8, 0x11, 500), Some(14));
        assert_eq!(find_flock(LOCKS, 0xfe, 0, 501), None);
    }

    #[test]
    fn another_device_number_is_accepted_where_the_inode_is_the_only_one() {
        assert_eq!(find_flock(LOCKS, 0, 0x30, 77), Some(15));
        assert_eq!(find_flock(LOCKS, 0, 0x30, 500), None, "two candidates");
    }

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let open = || rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let fd = open();
        let childs = fd.try_clone().unwrap();
        let first = lock(fd, dir.path()).unwrap();
        assert_eq!(lock(open(), dir.path()).unwrap_err().kind(), ErrorKind::Busy);
        drop(first);
        drop(lock(open(), dir.path()).unwrap());
        drop(childs);
    }
}
