//! Finds objects by their ids when the store knows nothing of them any more: for handles that
//! programs keep, as `name_to_handle_at` gives them, while caches are dropped, files are renamed,
//! and the store is closed and opened again.
//!
//! An id that is an inode number (see [`table`](super::table)) is searched in all directories of
//! the store, from the root on. The host could open the inode at once by a handle of its own. But
//! only a name that leads there shows whether the inode is in the store or beside it on the same
//! file system: a made-up id must not lead out of the store. A search costs as much as listing the
//! store; one runs at a time, for [`SEARCH_MAX`] at most.
//!
//! The host uses inode numbers again. An object's **generation** tells it from those that had its
//! number before: a digest of the host's handle, which names an object for as long as it exists and
//! never another one; where the medium has no handles, of the time of its birth; where it has
//! neither, it is 0, and the object is only found while it is known.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, Statx, StatxFlags, openat};

use super::list::DirDir;
use super::node::DirNode;
use super::table::COUNTED_FROM;
use super::{Inner, attrs, errno, sys};
use crate::{Dir as _, Entry, Error, ErrorKind, FileType, ObjectId, Result};

/// How long a search may take. An object that was not found by then counts as gone.
const SEARCH_MAX: Duration = Duration::from_secs(60);
/// How deep a search goes: each level keeps a descriptor.
const LEVELS_MAX: usize = 512;

const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The generation of `node`, to which `fd` and `stat` belong.
pub(crate) fn generation_of(node: &DirNode, fd: BorrowedFd<'_>, stat: &Statx) -> u32 {
    *node.generation.get_or_init(|| {
        let born = || {
            let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
            let (secs, nanos) = (stat.stx_btime.tv_sec.to_le_bytes(), stat.stx_btime.tv_nsec);
            has_birth.then(|| sys::digest(&secs, nanos))
        };
        // 0 means that there is none.
        sys::handle_of(fd).ok().map(|handle| handle.digest()).or_else(born).map_or(0, |digest| digest.max(1))
    })
}

/// A directory that is being searched.
struct Level {
    fd: OwnedFd,
    /// Its entries that may be directories.
    left: Vec<OsString>,
}

impl Inner {
    pub(crate) fn recall(&self, id: ObjectId) -> Result<Entry> {
        let op = "recall";
        let stale = || Error::new(ErrorKind::Stale, op);
        let is_ino = id.0 < COUNTED_FROM;
        let known = self.table.get(id, op).ok();
        let known = known.or_else(|| self.table.find(id.0).filter(|node| is_ino && node.id == id));
        let fd = match known {
            Some(node) => self.fd(&node, op)?,
            None if is_ino => Arc::new(self.search(id.0)?.ok_or_else(stale)?),
            None => return Err(stale()),
        };
        let entry = self.recalled(&fd, op)?;
        if entry.id == id && (entry.generation != 0 || id == ObjectId::ROOT) {
            return Ok(entry);
        }
        let left_over = self.table.forget(entry.id, 1);
        self.drop_unlinked(left_over);
        Err(stale())
    }

    pub(crate) fn recall_parent(&self, id: ObjectId) -> Result<Entry> {
        let op = "recall parent";
        let node = self.table.get(id, op)?;
        if node.kind != FileType::Directory || id == ObjectId::ROOT {
            return Err(Error::new(ErrorKind::Stale, op));
        }
        let fd = self.fd(&node, op)?;
        let above = self.with_room(|| openat(&fd, "..", PATH | OFlags::DIRECTORY, 0.into()));
        self.recalled(&Arc::new(above.map_err(errno::failed(op))?), op)
    }

    pub(crate) fn generation(&self, id: ObjectId) -> u32 {
        let node = self.table.get(id, "generation").ok();
        node.and_then(|node| node.generation.get().copied()).unwrap_or(0)
    }

    /// The entry of an object that was found, with a reference. Its name, if it has one, is as
    /// durable as it was when it was known last.
    fn recalled(&self, fd: &Arc<OwnedFd>, op: &'static str) -> Result<Entry> {
        let stat = self.stat_inside(fd.as_fd(), op)?;
        let attr = attrs::attr_of(&stat);
        let (node, _) = self.intern(Arc::clone(fd), attr.ino, attr.kind);
        Ok(Entry { id: node.id, attr, generation: generation_of(&node, fd.as_fd(), &stat) })
    }

    /// The object with this inode number, if a name leads to it.
    fn search(&self, ino: u64) -> Result<Option<OwnedFd>> {
        let op = "search";
        let _one_at_a_time = self.searching.lock();
        let until = Instant::now() + SEARCH_MAX;
        let root = self.fd(self.table.root(), op)?;
        let root = self.with_room(|| openat(&root, ".", PATH | OFlags::DIRECTORY, 0.into()));
        let mut next = Some(root.map_err(errno::failed(op))?);
        let mut levels: Vec<Level> = Vec::new();
        loop {
            if let Some(fd) = next.take() {
                let mut left = Vec::new();
                if let Some(found) = self.search_in(&fd, ino, &mut left) {
                    return Ok(Some(found));
                }
                if levels.len() < LEVELS_MAX {
                    levels.push(Level { fd, left });
                }
            }
            let Some(level) = levels.last_mut() else { return Ok(None) };
            match level.left.pop() {
                _ if Instant::now() > until => return Ok(None),
                Some(name) => {
                    // Gone meanwhile, no directory, or on another device: passed over.
                    let fd = self.with_room(|| openat(&level.fd, &name, PATH | OFlags::DIRECTORY, 0.into()));
                    next = fd.ok().filter(|fd| self.stat_inside(fd.as_fd(), op).is_ok());
                }
                None => drop(levels.pop()),
            }
        }
    }

    /// Looks through one directory; adds the directories to be searched next to `dirs`.
    fn search_in(&self, fd: &OwnedFd, ino: u64, dirs: &mut Vec<OsString>) -> Option<OwnedFd> {
        let op = "search";
        let entries = self.open_entries(fd).ok()?;
        let mut named = Vec::new();
        let mut note = |entry: crate::DirEntry| {
            if entry.name == "." || entry.name == ".." {
                return true;
            }
            if entry.ino == ino {
                named.push(entry.name.clone());
            }
            if entry.kind.is_none_or(|kind| kind == FileType::Directory) {
                dirs.push(entry.name);
            }
            true
        };
        DirDir::new(entries, None).list(0, &mut note).ok()?;
        named.into_iter().find_map(|name| {
            let found = self.with_room(|| openat(fd, &name, PATH, 0.into())).ok()?;
            let stat = self.stat_inside(found.as_fd(), op).ok()?;
            (stat.stx_ino == ino).then_some(found)
        })
    }
}
