//! Look-up, creation, removal and renaming in a directory of the host.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::durable::Change;
use super::file::DirFile;
use super::node::DirNode;
use super::{Inner, attrs, creds, errno, recall, sys};
use crate::{
    Created, Creator, Entry, Error, ErrorKind, FileType, Name, NewNode, ObjectId, RenameFlags, Result,
};

const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Inner {
    /// Opens the object of any kind that `name` is, links not followed.
    fn open_path(&self, dir: BorrowedFd<'_>, name: Name<'_>) -> Result<OwnedFd, Errno> {
        self.with_room(|| retry_on_intr(|| rustix::fs::openat(dir, name.as_os_str(), PATH, 0.into())))
    }

    /// Makes an entry of an object that was found or made in `parent`.
    fn intern_entry(&self, parent: &Arc<DirNode>, fd: Arc<OwnedFd>, stat: &Statx) -> (Entry, Arc<DirNode>) {
        let attr = attrs::attr_of(stat);
        let (node, is_new) = self.intern(Arc::clone(&fd), attr.ino, attr.kind);
        if is_new && let Some(at) = Self::unsynced_entries(parent) {
            // Its name may be one of those that are not durable.
            Self::note_name(&node, parent, at);
        }
        (Entry { id: node.id, attr, generation: recall::generation_of(&node, fd.as_fd(), stat) }, node)
    }

    pub(crate) fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        let op = "lookup";
        let dir = self.table.get(parent, op)?;
        let dir_fd = self.fd(&dir, op)?;
        let fd = self.open_path(dir_fd.as_fd(), name).map_err(errno::failed(op))?;
        let stat = self.stat_inside(fd.as_fd(), op)?;
        Ok(self.intern_entry(&dir, Arc::new(fd), &stat).0)
    }

    pub(crate) fn create(
        self: &Arc<Self>,
        parent: ObjectId,
        name: Name<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Created> {
        let op = "create";
        let dir = self.table.get(parent, op)?;
        let dir_fd = self.fd(&dir, op)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let data = {
            let creator = creds::take(self.ownership, creator).map_err(errno::failed(op))?;
            let mode = creator.mode(perm);
            let open = |flags| rustix::fs::openat(&dir_fd, name.as_os_str(), flags, mode);
            let open = || retry_on_intr(|| self.quietly(flags, open));
            self.with_room(open).map_err(errno::failed(op))?
        };
        let at = self.changed(&dir, Change::Data);
        let stat = self.stat(data.as_fd(), op)?;
        let (created, node) = self.created(&dir, data, &stat);
        Self::note_name(&node, &dir, at);
        Ok(created)
    }

    /// The object that was just made and is open as `data`.
    fn created(self: &Arc<Self>, dir: &Arc<DirNode>, data: OwnedFd, stat: &Statx) -> (Created, Arc<DirNode>) {
        let data = Arc::new(data);
        let (entry, node) = self.intern_entry(dir, Arc::clone(&data), stat);
        let file = DirFile::of_new(self, &node, data);
        (Created { entry, file }, node)
    }

    pub(crate) fn tmpfile(
        self: &Arc<Self>,
        parent: ObjectId,
        perm: u32,
        creator: Creator,
    ) -> Result<Created> {
        let op = "tmpfile";
        let dir = self.table.get(parent, op)?;
        let dir_fd = self.fd(&dir, op)?;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let data = {
            let creator = creds::take(self.ownership, creator).map_err(errno::failed(op))?;
            let mode = creator.mode(perm);
            let open = |flags| rustix::fs::openat(&dir_fd, ".", flags, mode);
            let open = || retry_on_intr(|| self.quietly(flags, open));
            self.with_room(open).map_err(errno::failed(op))?
        };
        let stat = self.stat(data.as_fd(), op)?;
        Ok(self.created(&dir, data, &stat).0)
    }

    pub(crate) fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        let op = "make";
        let dir = self.table.get(parent, op)?;
        let dir_fd = self.fd(&dir, op)?;
        let os_name = name.as_os_str();
        {
            let creator = creds::take(self.ownership, creator).map_err(errno::failed(op))?;
            let mode = creator.mode(perm);
            match what {
                NewNode::Directory => rustix::fs::mkdirat(&dir_fd, os_name, mode),
                NewNode::Symlink(target) => rustix::fs::symlinkat(target, &dir_fd, os_name),
                NewNode::Special { kind, rdev } => {
                    let Some(file_type) = special_type(kind) else {
                        return Err(Error::new(ErrorKind::Invalid, op));
                    };
                    let dev = if matches!(kind, FileType::CharDevice | FileType::BlockDevice) {
                        attrs::decode_dev(rdev)
                    } else {
                        0
                    };
                    rustix::fs::mknodat(&dir_fd, os_name, file_type, mode, dev)
                }
            }
            .map_err(errno::failed(op))?;
        }
        let at = self.changed(&dir, Change::Data);
        let fd = self.open_path(dir_fd.as_fd(), name).map_err(errno::failed(op))?;
        let stat = self.stat_inside(fd.as_fd(), op)?;
        let (entry, node) = self.intern_entry(&dir, Arc::new(fd), &stat);
        Self::note_name(&node, &dir, at);
        Ok(entry)
    }

    pub(crate) fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        let op = "link";
        let node = self.table.get(id, op)?;
        let dir = self.table.get(parent, op)?;
        let (fd, dir_fd) = (self.fd(&node, op)?, self.fd(&dir, op)?);
        let os_name = name.as_os_str();
        if self.can_link_empty {
            rustix::fs::linkat(&fd, c"", &dir_fd, os_name, AtFlags::EMPTY_PATH)
        } else {
            let short = sys::FdName::short(fd.as_fd());
            rustix::fs::linkat(&self.proc_fds, short.as_c_str(), &dir_fd, os_name, AtFlags::SYMLINK_FOLLOW)
        }
        .map_err(errno::failed(op))?;
        self.named(&node, &dir);
        // Without a name until now, it may have been passed over by a sync.
        self.changed(&node, Change::Data);
        let stat = self.stat(fd.as_fd(), op)?;
        self.table.add_reference(&node);
        let generation = recall::generation_of(&node, fd.as_fd(), &stat);
        Ok(Entry { id, attr: attrs::attr_of(&stat), generation })
    }

    pub(crate) fn remove(&self, parent: ObjectId, name: Name<'_>, is_dir: bool) -> Result<()> {
        let op = if is_dir { "rmdir" } else { "unlink" };
        let dir = self.table.get(parent, op)?;
        let dir_fd = self.fd(&dir, op)?;
        let _doomed = self.keep_through_unlink(dir_fd.as_fd(), name);
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(&dir_fd, name.as_os_str(), flags).map_err(errno::failed(op))?;
        self.changed(&dir, Change::Data);
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let op = "rename";
        let from = self.table.get(parent, op)?;
        let to = self.table.get(new_parent, op)?;
        let (from_fd, to_fd) = (self.fd(&from, op)?, self.fd(&to, op)?);
        let _doomed = self.keep_through_unlink(to_fd.as_fd(), new_name);
        let how = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        rustix::fs::renameat_with(&from_fd, name.as_os_str(), &to_fd, new_name.as_os_str(), how)
            .map_err(errno::failed(op))?;
        let at = self.changed(&to, Change::Data);
        self.note_moved(&to, to_fd.as_fd(), new_name, at);
        if parent != new_parent {
            self.changed(&from, Change::Data);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            let at = self.changed(&from, Change::Data);
            self.note_moved(&from, from_fd.as_fd(), name, at);
        }
        Ok(())
    }

    /// Notes the new name of an object that is known.
    fn note_moved(&self, dir: &Arc<DirNode>, dir_fd: BorrowedFd<'_>, name: Name<'_>, at: u64) {
        if let Some(node) = self.known_as(dir_fd, name) {
            Self::note_name(&node, dir, at);
        }
    }

    /// The object that `name` is, if it is known.
    pub(crate) fn known_as(&self, dir: BorrowedFd<'_>, name: Name<'_>) -> Option<Arc<DirNode>> {
        let mask = StatxFlags::INO | StatxFlags::MNT_ID;
        let stat = rustix::fs::statx(dir, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW, mask).ok()?;
        if self.is_inside(&stat) { self.table.find(stat.stx_ino) } else { None }
    }

    pub(crate) fn read_link(&self, id: ObjectId) -> Result<OsString> {
        let op = "read link";
        let node = self.table.get(id, op)?;
        if node.kind != FileType::Symlink {
            return Err(Error::new(ErrorKind::Invalid, op));
        }
        let fd = self.fd(&node, op)?;
        let target = rustix::fs::readlinkat(&fd, c"", Vec::new()).map_err(errno::failed(op))?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}

fn special_type(kind: FileType) -> Option<rustix::fs::FileType> {
    use rustix::fs::FileType as T;
    Some(match kind {
        FileType::Regular => T::RegularFile,
        FileType::Fifo => T::Fifo,
        FileType::Socket => T::Socket,
        FileType::CharDevice => T::CharacterDevice,
        FileType::BlockDevice => T::BlockDevice,
        FileType::Directory | FileType::Symlink => return None,
    })
}
