//! Attributes and extended attributes of objects of the host.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Statx, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::durable::Change;
use super::node::DirNode;
use super::{Inner, errno, sys};
use crate::{
    Attr, Error, ErrorKind, FileType, ObjectId, Result, SetAttr, SetXattr, StatFs, TimeSet, Timestamp,
};

/// Most bytes of a value or of a list of names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const XATTR_BYTES_MAX: usize = 65536;
/// A first guess that fits nearly always.
const XATTR_BYTES_GUESS: usize = 1024;

const KIND_MASK: u32 = libc::S_IFMT;

fn kind_of(mode: u32) -> FileType {
    match mode & KIND_MASK {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::Fifo,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::Regular,
    }
}

/// The kernel's own 32-bit encoding of a device number.
fn encode_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The reverse, into the form that mknod(2) takes.
pub(crate) fn decode_dev(rdev: u32) -> rustix::fs::Dev {
    rustix::fs::makedev((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

fn time_of(t: &rustix::fs::StatxTimestamp) -> Timestamp {
    Timestamp { secs: t.tv_sec, nanos: t.tv_nsec }
}

pub(crate) fn attr_of(stat: &Statx) -> Attr {
    let mode = u32::from(stat.stx_mode);
    Attr {
        ino: stat.stx_ino,
        kind: kind_of(mode),
        perm: mode & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: encode_dev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        blksize: stat.stx_blksize,
        atime: time_of(&stat.stx_atime),
        mtime: time_of(&stat.stx_mtime),
        ctime: time_of(&stat.stx_ctime),
    }
}

fn timespec(set: Option<TimeSet>) -> Timespec {
    let (tv_sec, tv_nsec) = match set {
        None => (0, libc::UTIME_OMIT),
        Some(TimeSet::Now) => (0, libc::UTIME_NOW),
        Some(TimeSet::At(t)) => (t.secs, i64::from(t.nanos)),
    };
    Timespec { tv_sec, tv_nsec }
}

impl Inner {
    pub(crate) fn attr(&self, id: ObjectId) -> Result<Attr> {
        let op = "attr";
        let node = self.table.get(id, op)?;
        let fd = self.fd(&node, op)?;
        Ok(attr_of(&self.stat(fd.as_fd(), op)?))
    }

    /// Owner first, because a change of owner drops set-id bits that `perm` may then ask for; times
    /// last, because the others move them.
    pub(crate) fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        let op = "set attr";
        let node = self.table.get(id, op)?;
        let fd = self.fd(&node, op)?;
        let result = self.apply(&node, &fd, set);
        // A part of it may be done also when it failed.
        if set.size.is_some() {
            self.changed(&node, Change::Data);
        }
        let has_attrs = SetAttr { size: None, ..*set } != SetAttr::default();
        if has_attrs {
            self.changed(&node, Change::Attrs);
        }
        result.map_err(errno::failed(op))?;
        Ok(attr_of(&self.stat(fd.as_fd(), op)?))
    }

    fn apply(&self, node: &Arc<DirNode>, fd: &OwnedFd, set: &SetAttr) -> Result<(), Errno> {
        if set.uid.is_some() || set.gid.is_some() {
            if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
                return Err(Errno::INVAL);
            }
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(perm) = set.perm {
            self.set_perm(fd, perm & 0o7777)?;
        }
        if let Some(size) = set.size {
            self.set_size(node, fd, size)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times =
                Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
            rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    fn set_perm(&self, fd: &OwnedFd, perm: u32) -> Result<(), Errno> {
        match sys::fchmodat2_empty(fd.as_fd(), perm) {
            // Before Linux 6.6, or behind a filter that does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => {
                let name = sys::FdName::short(fd.as_fd());
                let mode = rustix::fs::Mode::from_raw_mode(perm);
                rustix::fs::chmodat(&self.proc_fds, name.as_c_str(), mode, AtFlags::empty())
            }
            other => other,
        }
    }

    fn set_size(&self, node: &DirNode, fd: &OwnedFd, size: u64) -> Result<(), Errno> {
        match node.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        if i64::try_from(size).is_err() {
            return Err(Errno::FBIG);
        }
        // An open file may be cut whatever its mode says by now.
        let open = node.data.lock().upgrade();
        match open {
            Some(file) if file.can_write => rustix::fs::ftruncate(&file.fd, size),
            _ => sys::truncate(sys::FdName::full(fd.as_fd()).as_c_str(), size),
        }
    }

    pub(crate) fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        let name = xattr_name(name, "get xattr")?;
        self.read_xattr(id, "get xattr", |path, buf| rustix::fs::getxattr(path, name.as_c_str(), buf))
    }

    pub(crate) fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        self.read_xattr(id, "list xattr", |path, buf| rustix::fs::listxattr(path, buf))
    }

    /// Through the /proc path, which the calls with descriptors do not follow for `O_PATH` ones; of
    /// a symbolic link it reaches the link itself.
    fn read_xattr(
        &self,
        id: ObjectId,
        op: &'static str,
        read: impl Fn(&CStr, &mut [u8]) -> Result<usize, Errno>,
    ) -> Result<Vec<u8>> {
        let node = self.table.get(id, op)?;
        let fd = self.fd(&node, op)?;
        let path = sys::FdName::full(fd.as_fd());
        let mut buf = vec![0; XATTR_BYTES_GUESS];
        loop {
            match read(path.as_c_str(), &mut buf) {
                Ok(len) => {
                    buf.truncate(len);
                    return Ok(buf);
                }
                Err(Errno::RANGE) if buf.len() < XATTR_BYTES_MAX => buf.resize(XATTR_BYTES_MAX, 0),
                Err(e) => return Err(errno::failed(op)(e)),
            }
        }
    }

    pub(crate) fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        let flags = match how {
            SetXattr::Any => XattrFlags::empty(),
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
        };
        self.change_xattr(id, name, "set xattr", |path, name| rustix::fs::setxattr(path, name, value, flags))
    }

    pub(crate) fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        self.change_xattr(id, name, "remove xattr", |path, name| rustix::fs::removexattr(path, name))
    }

    fn change_xattr(
        &self,
        id: ObjectId,
        name: &OsStr,
        op: &'static str,
        change: impl Fn(&CStr, &CStr) -> Result<(), Errno>,
    ) -> Result<()> {
        let name = xattr_name(name, op)?;
        let node = self.table.get(id, op)?;
        let fd = self.fd(&node, op)?;
        change(sys::FdName::full(fd.as_fd()).as_c_str(), &name).map_err(errno::failed(op))?;
        self.changed(&node, Change::Attrs);
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation, reason = "block sizes and name lengths are small")]
    pub(crate) fn statfs(&self) -> Result<StatFs> {
        let op = "statfs";
        let fd = self.fd(self.table.root(), op)?;
        let s = rustix::fs::fstatvfs(&fd).map_err(errno::failed(op))?;
        Ok(StatFs {
            frsize: s.f_frsize as u32,
            bsize: s.f_bsize as u32,
            blocks: s.f_blocks,
            bfree: s.f_bfree,
            bavail: s.f_bavail,
            files: s.f_files,
            ffree: s.f_ffree,
            namelen: s.f_namemax as u32,
        })
    }
}

fn xattr_name(name: &OsStr, op: &'static str) -> Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| Error::new(ErrorKind::Invalid, op))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_way_there_and_back() {
        for (major, minor) in [(0, 0), (1, 3), (8, 17), (259, 70000), (0xfff, 0xf_ffff)] {
            let dev = decode_dev(encode_dev(major, minor));
            assert_eq!((rustix::fs::major(dev), rustix::fs::minor(dev)), (major, minor));
        }
    }
}
