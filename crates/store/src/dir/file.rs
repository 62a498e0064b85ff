//! The data of a regular file of the host.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use super::durable::Change;
use super::node::DirNode;
use super::{Inner, errno};
use crate::{Access, AllocateMode, Error, ErrorKind, File, FileType, ObjectId, Result, Seek};

/// Most buffers in one system call (`UIO_MAXIOV`).
const BUFFERS_MAX: usize = 1024;

/// An opening of a file's data; normally all openings of an object share one.
#[derive(Debug)]
pub(crate) struct DirFile {
    store: Arc<Inner>,
    node: Arc<DirNode>,
    pub(crate) fd: Arc<OwnedFd>,
    can_read: bool,
    pub(crate) can_write: bool,
}

impl DirFile {
    /// Takes `fd`, open for reading and writing, as the data of the new object `node`.
    pub(crate) fn of_new(store: &Arc<Inner>, node: &Arc<DirNode>, fd: Arc<OwnedFd>) -> Arc<Self> {
        Self::shared(store, node, fd, true, true)
    }

    /// Takes `fd` as the data of `node` that all its openings share.
    pub(crate) fn shared(
        store: &Arc<Inner>,
        node: &Arc<DirNode>,
        fd: Arc<OwnedFd>,
        can_read: bool,
        can_write: bool,
    ) -> Arc<Self> {
        let file = Self::make(store, node, fd, can_read, can_write);
        *node.data.lock() = Arc::downgrade(&file);
        file
    }

    /// Whether it can be read and written.
    pub(crate) fn access(&self) -> (bool, bool) {
        (self.can_read, self.can_write)
    }

    fn make(
        store: &Arc<Inner>,
        node: &Arc<DirNode>,
        fd: Arc<OwnedFd>,
        can_read: bool,
        can_write: bool,
    ) -> Arc<Self> {
        store.table.pin(node);
        Arc::new(Self { store: Arc::clone(store), node: Arc::clone(node), fd, can_read, can_write })
    }

    fn needs_write(&self, op: &'static str) -> Result<()> {
        if self.can_write { Ok(()) } else { Err(Error::new(ErrorKind::AccessDenied, op)) }
    }
}

impl Drop for DirFile {
    fn drop(&mut self) {
        if !self.store.can_open_any && self.can_write {
            Inner::keep_for_sync(&self.node, &self.fd);
        }
        self.store.swap_for_path_fd(&self.node, &self.fd);
        let left_over = self.store.table.unpin(&self.node);
        self.store.drop_unlinked(left_over);
    }
}

impl Inner {
    /// The shared opening of `id`'s data, with at least this access.
    pub(crate) fn open_data(self: &Arc<Self>, id: ObjectId, access: Access) -> Result<Arc<DirFile>> {
        let op = "open";
        let node = self.table.get(id, op)?;
        match node.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::new(ErrorKind::IsDirectory, op)),
            FileType::Symlink => return Err(Error::new(ErrorKind::Loop, op)),
            _ => return Err(Error::new(ErrorKind::Invalid, op)),
        }
        let path = self.fd(&node, op)?;
        // Held while the file is opened: a thread that comes at the same time shares it.
        let mut data = node.data.lock();
        if let Some(file) = data.upgrade()
            && (file.can_write || access == Access::Read)
        {
            return Ok(file);
        }
        let (fd, can_read, can_write) = match access {
            Access::Read => (self.reopen(path.as_fd(), OFlags::RDONLY), true, false),
            Access::ReadWrite => match self.reopen(path.as_fd(), OFlags::RDWR) {
                // Only a process that is not root meets a file that may be written and not read.
                Err(Errno::ACCESS) => (self.reopen(path.as_fd(), OFlags::WRONLY), false, true),
                other => (other, true, true),
            },
        };
        let fd = Arc::new(fd.map_err(errno::failed(op))?);
        let file = DirFile::make(self, &node, fd, can_read, can_write);
        *data = Arc::downgrade(&file);
        drop(data);
        self.share_data_fd(&node, &file.fd);
        Ok(file)
    }

    /// Opens the object behind an `O_PATH` descriptor.
    pub(crate) fn reopen(&self, path: std::os::fd::BorrowedFd<'_>, how: OFlags) -> Result<OwnedFd, Errno> {
        let name = super::sys::FdName::short(path);
        let flags = how | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = || {
            self.quietly(flags, |flags| rustix::fs::openat(&self.proc_fds, name.as_c_str(), flags, 0.into()))
        };
        self.with_room(|| retry_on_intr(open))
    }
}

/// Refuses a range beyond the largest file.
fn check_range(offset: u64, len: u64, op: &'static str) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(Error::new(ErrorKind::FileTooBig, op)),
    }
}

/// Writes all of `bufs`; says how many bytes went out when it fails.
fn write_all(fd: &OwnedFd, bufs: &[IoSlice<'_>], mut offset: u64) -> Result<(), (Errno, bool)> {
    let mut has_written = false;
    let mut rest: Vec<IoSlice<'_>>;
    let mut todo = bufs;
    loop {
        let batch = &todo[..todo.len().min(BUFFERS_MAX)];
        let wanted: usize = batch.iter().map(|b| b.len()).sum();
        if wanted == 0 {
            if batch.len() == todo.len() {
                return Ok(());
            }
            todo = &todo[batch.len()..];
            continue;
        }
        let written =
            retry_on_intr(|| rustix::io::pwritev(fd, batch, offset)).map_err(|errno| (errno, has_written))?;
        if written == 0 {
            return Err((Errno::IO, has_written));
        }
        has_written = true;
        offset += written as u64;
        if written == wanted {
            todo = &todo[batch.len()..];
        } else {
            // A part only: go on behind it.
            rest = todo.to_vec();
            let mut slices = rest.as_mut_slice();
            IoSlice::advance_slices(&mut slices, written);
            let left = slices.len();
            let from = rest.len() - left;
            return write_all(fd, &rest[from..], offset).map_err(|(errno, _)| (errno, true));
        }
        if todo.is_empty() {
            return Ok(());
        }
    }
}

impl File for DirFile {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let op = "read";
        if !self.can_read {
            return Err(Error::new(ErrorKind::AccessDenied, op));
        }
        check_range(offset, 0, op)?;
        let mut done = 0;
        while done < buf.len() {
            let into = IoSliceMut::new(&mut buf[done..]);
            let at = offset + done as u64;
            let mut into = [into];
            let n =
                retry_on_intr(|| rustix::io::preadv(&self.fd, &mut into, at)).map_err(errno::failed(op))?;
            if n == 0 {
                break;
            }
            done += n;
        }
        Ok(done)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let op = "write";
        self.needs_write(op)?;
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        check_range(offset, len as u64, op)?;
        if len == 0 {
            return Ok(());
        }
        let result = write_all(&self.fd, bufs, offset);
        if !matches!(result, Err((_, false))) {
            self.store.changed(&self.node, Change::Data);
        }
        result.map_err(|(errno, _)| Error::new(ErrorKind::of(errno), op))
    }

    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let op = "allocate";
        self.needs_write(op)?;
        check_range(offset, len, op)?;
        let flags = FallocateFlags::from_bits_retain(mode.bits());
        let result = retry_on_intr(|| rustix::fs::fallocate(&self.fd, flags, offset, len));
        self.store.changed(&self.node, Change::Data);
        result.map_err(errno::failed(op))
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        let op = "seek";
        if i64::try_from(offset).is_err() {
            return Err(Error::new(ErrorKind::NoSuchAddress, op));
        }
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        // The descriptor's own position moves with it; no call uses that.
        rustix::fs::seek(&self.fd, from).map_err(errno::failed(op))
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.store.sync_node(&self.node, &self.fd, data_only)?;
        self.store.sync_names(&self.node)
    }
}
