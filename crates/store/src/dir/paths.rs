//! Keeps the number of `O_PATH` descriptors bounded.
//!
//! The kernel may keep millions of look-ups; a process has fewer descriptors than that. Where the
//! process may open objects by file handle (`CAP_DAC_READ_SEARCH`), the store evicts the
//! descriptors of objects that were not used lately: it notes the handle, closes the descriptor,
//! and opens it again when the object is used. Where it may not, a full table of descriptors is
//! [`ErrorKind::TooManyFiles`](crate::ErrorKind::TooManyFiles).
//!
//! The store does not hold an object whose descriptor is evicted. So:
//! * an object without a name is never evicted ([`Inner::evict`] reads its link count);
//! * a thread that removes a name holds the object meanwhile, and gives it its descriptor back
//!   afterwards ([`Inner::keep_through_unlink`], [`UnlinkGuard`]). Both happen under
//!   [`DirNode::path`]'s lock: a removal is either over, and the count is seen to be zero, or it
//!   puts back what was evicted;
//! * the inode's number may come to name another object when another process removes it. Handles
//!   tell the two apart ([`Inner::intern`]).
//!
//! Objects with open data, or with changes that are not durable, keep their descriptors. A file
//! that was just made has one descriptor for its data and for itself, until the data is closed; so
//! has one that is opened while half of the descriptors are in use.
//!
//! Lock order: [`DirNode::path`], then the table's shards; `Paths::medium` is a leaf. Of two
//! objects' locks the second is only tried.
//!
//! `open`, `evicted`, `last` and `next_search` are figures of the moment: only the choice of when
//! to evict or to refuse depends on them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use recovery::NodeKey;
use rustix::fs::OFlags;
use rustix::io::Errno;
use sync::Mutex;
use sync::atomic::{AtomicUsize, Ordering};

use super::node::DirNode;
use super::sys::Handle;
use super::table::Inserted;
use super::{Inner, attrs, errno, sys};
use crate::{Error, ErrorKind, FileType, Name, ObjectId, Result};

/// Descriptors evicted at a time, at most.
const BATCH_MAX: usize = 32;

/// Descriptors left to the rest of the process: its sockets, its terminal, its own files.
const RESERVE: usize = 64;

/// Of a limit of descriptors, the number that is left to the rest of the process.
pub(crate) fn reserve(limit: usize) -> usize {
    (limit / 8).min(RESERVE)
}

/// The descriptor of an object, or what it takes to open it again.
#[derive(Debug)]
pub(crate) struct PathFd {
    pub(crate) fd: Option<Arc<OwnedFd>>,
    /// Noted when the descriptor is first evicted.
    handle: Option<Handle>,
    /// Used since it was last checked.
    is_used: bool,
}

impl PathFd {
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Self {
        Self { fd: Some(fd), handle: None, is_used: true }
    }

    /// Without the descriptor.
    pub(crate) fn evicted(handle: Handle) -> Self {
        Self { fd: None, handle: Some(handle), is_used: false }
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }
}

/// The counts, and the means to reopen.
#[derive(Debug)]
pub(crate) struct Paths {
    bound: usize,
    /// From this number on descriptors are left to the rest of the process.
    ceiling: usize,
    /// The number of the descriptor that was opened last. The kernel gives the lowest free one.
    last: AtomicUsize,
    open: AtomicUsize,
    evicted: AtomicUsize,
    /// After a search that found nothing to evict: how many are open before the next one.
    next_search: AtomicUsize,
    /// Whether the process may open by handle.
    can_evict: bool,
    /// Any directory of the medium, to open handles with; `None` where that is not possible, and
    /// after the store's close.
    medium: Mutex<Option<Arc<OwnedFd>>>,
}

impl Paths {
    /// Tries handles out on the open directory `root`.
    pub(crate) fn new(bound: usize, descriptors: usize, root: &Arc<OwnedFd>) -> Self {
        let medium = || -> Result<Arc<OwnedFd>, Errno> {
            let handle = sys::handle_of(root.as_fd())?;
            sys::open_handle(root.as_fd(), &handle)?;
            Ok(Arc::clone(root))
        };
        let medium = medium().ok();
        Self {
            bound: bound.max(1),
            ceiling: descriptors,
            last: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            evicted: AtomicUsize::new(0),
            next_search: AtomicUsize::new(0),
            can_evict: medium.is_some(),
            medium: Mutex::new(medium),
        }
    }

    /// Whether descriptors can be evicted.
    pub(crate) fn can_evict(&self) -> bool {
        self.can_evict
    }

    /// Closes the descriptors of the store's root, however long the store itself is kept: they are
    /// not used any more, and the root's file system can be unmounted.
    pub(crate) fn close(&self, root: &DirNode) {
        drop(self.medium.lock().take());
        if root.path.lock().fd.take().is_some() {
            self.count_evicted();
        }
    }

    /// Descriptors open, and evicted.
    pub(crate) fn counts(&self) -> (usize, usize) {
        // ORDERING: Relaxed, a figure of the moment.
        (self.open.load(Ordering::Relaxed), self.evicted.load(Ordering::Relaxed))
    }

    fn is_crowded(&self) -> bool {
        // ORDERING: Relaxed, see the module's head.
        let next = self.next_search.load(Ordering::Relaxed);
        self.can_evict() && self.counts().0 > self.bound.max(next)
    }

    fn batch(&self) -> usize {
        (self.bound / 8).clamp(1, BATCH_MAX)
    }

    /// Notes how a search ended: when all that is open is in use, the next one waits until there is
    /// clearly more.
    fn searched(&self, has_found: bool) {
        let next = if has_found { 0 } else { self.counts().0 + self.bound / 16 };
        // ORDERING: Relaxed, see the module's head.
        self.next_search.store(next, Ordering::Relaxed);
    }

    /// Notes the number of a descriptor that was just opened, and returns it.
    fn saw(&self, fd: &OwnedFd) -> usize {
        let number = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX);
        // ORDERING: Relaxed, see the module's head.
        self.last.store(number, Ordering::Relaxed);
        number
    }

    fn is_half_full(&self) -> bool {
        // ORDERING: Relaxed, see the module's head.
        self.last.load(Ordering::Relaxed) >= self.ceiling / 2
    }

    fn is_nearly_full(&self) -> bool {
        // ORDERING: Relaxed, see the module's head.
        self.last.load(Ordering::Relaxed) >= self.ceiling - self.ceiling.min(RESERVE)
    }

    /// Counts the descriptor of a new object.
    pub(crate) fn count_opened(&self) {
        // ORDERING: Relaxed here and below, see the module's head.
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of an object.
    pub(crate) fn count_ended(&self, was_open: bool) {
        let count = if was_open { &self.open } else { &self.evicted };
        // ORDERING: Relaxed, see the module's head.
        count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts that an object has lost its descriptor.
    pub(crate) fn count_evicted(&self) {
        // ORDERING: Relaxed, see the module's head.
        self.evicted.fetch_add(1, Ordering::Relaxed);
        // ORDERING: Relaxed, as above.
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn count_reopened(&self) {
        // ORDERING: Relaxed, see the module's head.
        self.open.fetch_add(1, Ordering::Relaxed);
        // ORDERING: Relaxed, as above.
        self.evicted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An object that is about to lose a name.
#[derive(Debug)]
pub(crate) struct UnlinkGuard<'a> {
    store: &'a Inner,
    node: Arc<DirNode>,
    fd: Arc<OwnedFd>,
}

impl Drop for UnlinkGuard<'_> {
    /// Gives the object its descriptor back, if that was evicted meanwhile.
    fn drop(&mut self) {
        let mut path = self.node.path.lock();
        if path.fd.is_some() {
            return;
        }
        path.fd = Some(Arc::clone(&self.fd));
        drop(path);
        self.store.count_reopened(&self.node);
    }
}

impl Inner {
    /// The object's descriptor, opened again if it was evicted.
    pub(crate) fn fd(&self, node: &Arc<DirNode>, op: &'static str) -> Result<Arc<OwnedFd>> {
        let mut path = node.path.lock();
        path.is_used = true;
        if let Some(fd) = &path.fd {
            return Ok(Arc::clone(fd));
        }
        let fd = self.open_again(node, path.handle.as_ref()).map_err(errno::failed(op))?;
        let fd = Arc::new(fd);
        path.fd = Some(Arc::clone(&fd));
        drop(path);
        self.count_reopened(node);
        Ok(fd)
    }

    /// Counts that `node` has a descriptor again.
    fn count_reopened(&self, node: &DirNode) {
        self.paths.count_reopened();
        self.table.queue(node);
        self.evict_if_crowded();
    }

    fn open_again(&self, node: &DirNode, handle: Option<&Handle>) -> Result<OwnedFd, Errno> {
        let medium = self.paths.medium.lock().clone();
        let (Some(medium), Some(handle)) = (medium, handle) else { return Err(Errno::STALE) };
        let open = || sys::open_handle(medium.as_fd(), handle);
        let fd = match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.evict_batch();
                open()?
            }
            other => other?,
        };
        let stat = rustix::fs::statx(&fd, c"", rustix::fs::AtFlags::EMPTY_PATH, super::STAT_MASK)?;
        let attr = attrs::attr_of(&stat);
        // The handle opens on the mount of `medium`, which is ours.
        if attr.ino == node.ino && attr.kind == node.kind { Ok(fd) } else { Err(Errno::STALE) }
    }

    /// Opens by `open`, after descriptors were evicted if there are too many; refuses while too
    /// few are left for the rest of the process.
    pub(crate) fn with_room(&self, open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
        if self.is_full() {
            if self.paths.can_evict() {
                self.evict_batch();
            }
            if self.is_full() {
                return Err(Errno::MFILE);
            }
        }
        let opened = match open() {
            Err(Errno::MFILE | Errno::NFILE) if self.paths.can_evict() => {
                self.evict_batch();
                open()
            }
            other => other,
        };
        if let Ok(fd) = &opened {
            self.paths.saw(fd);
            self.keep_spare();
        }
        opened
    }

    /// Whether the next descriptor would be one of those that are left to the rest of the process.
    /// Costs system calls only when the last one was close to that.
    fn is_full(&self) -> bool {
        self.paths.is_nearly_full()
            && match rustix::io::fcntl_dupfd_cloexec(&self.proc_fds, 0) {
                Ok(next) => self.paths.saw(&next) >= self.paths.ceiling,
                Err(_) => true,
            }
    }

    /// Enters the object of `fd` into the table, with one more reference; says whether it is new
    /// there.
    pub(crate) fn intern(&self, fd: Arc<OwnedFd>, ino: u64, kind: FileType) -> (Arc<DirNode>, bool) {
        let mut fd = fd;
        loop {
            let make = |id, fd| DirNode::new(id, ino, kind, fd, Arc::clone(&self.paths));
            let (node, found) = match self.table.insert(ino, kind, fd, make) {
                Inserted::New(node) => {
                    if self.paths.can_evict() {
                        self.table.queue(&node);
                        self.evict_if_crowded();
                    }
                    return (node, true);
                }
                Inserted::Known(node, found) => (node, found),
            };
            match self.adopt_fd(&node, found) {
                None => return (node, false),
                // The number belongs to another object by now, and the known one is gone.
                Some(found) => {
                    self.table.remove_stale(&node);
                    fd = found;
                }
            }
        }
    }

    /// Gives `node` the descriptor of the object that was found under its number, if its own was
    /// evicted and it is the same one; gives the descriptor back if it is another one.
    fn adopt_fd(&self, node: &DirNode, found: Arc<OwnedFd>) -> Option<Arc<OwnedFd>> {
        let mut path = node.path.lock();
        path.is_used = true;
        if path.fd.is_some() {
            return None;
        }
        match sys::handle_of(found.as_fd()) {
            Ok(handle) if Some(&handle) != path.handle.as_ref() => Some(found),
            _ => {
                path.fd = Some(found);
                drop(path);
                self.count_reopened(node);
                None
            }
        }
    }

    /// How the host finds an object again when this process has died.
    pub(crate) fn key(&self, id: ObjectId) -> Result<NodeKey> {
        let op = "key";
        if !self.paths.can_evict() {
            return Err(Error::new(ErrorKind::Unsupported, op));
        }
        let node = self.table.get(id, op)?;
        let known = node.path.lock().handle.clone();
        let handle = match known {
            Some(handle) => handle,
            None => {
                let fd = self.fd(&node, op)?;
                let handle = sys::handle_of(fd.as_fd()).map_err(errno::failed(op))?;
                node.path.lock().handle = Some(handle.clone());
                handle
            }
        };
        let (kind, bytes) = handle.parts();
        let generation = node.generation.get().copied();
        Ok(NodeKey { ino: node.ino, kind: node.kind.number(), generation, handle: (kind, bytes.to_vec()) })
    }

    /// Uses the descriptor of an object's open data for the object itself where descriptors get
    /// scarce, in place of an `O_PATH` one.
    pub(crate) fn share_data_fd(&self, node: &DirNode, data: &Arc<OwnedFd>) {
        if self.paths.is_half_full() {
            let mut path = node.path.lock();
            let before = path.fd.as_mut().map(|fd| std::mem::replace(fd, Arc::clone(data)));
            drop(path);
            drop(before);
        }
    }

    /// Takes an `O_PATH` descriptor for `node` in the place of `data`, which is about to be closed.
    /// If there is none to be had, the data stays open.
    pub(crate) fn swap_for_path_fd(&self, node: &DirNode, data: &Arc<OwnedFd>) {
        let mut path = node.path.lock();
        if path.fd.as_ref().is_some_and(|fd| Arc::ptr_eq(fd, data))
            && let Ok(fd) = self.reopen(data.as_fd(), OFlags::PATH)
        {
            path.fd = Some(Arc::new(fd));
        }
    }

    /// Keeps the object that `name` is from being lost by the loss of that name.
    pub(crate) fn keep_through_unlink(&self, dir: BorrowedFd<'_>, name: Name<'_>) -> Option<UnlinkGuard<'_>> {
        if !self.paths.can_evict() {
            return None;
        }
        let node = self.known_as(dir, name)?;
        // An object that cannot be opened again is lost already.
        let fd = self.fd(&node, "hold").ok()?;
        Some(UnlinkGuard { store: self, node, fd })
    }

    fn evict_if_crowded(&self) {
        if self.paths.is_crowded() {
            self.evict_batch();
        }
    }

    fn evict_batch(&self) {
        let unused = self.table.unused(self.paths.batch(), |node| {
            // A thread that holds the lock is using it.
            node.path.try_lock().is_some_and(|mut path| !std::mem::take(&mut path.is_used))
        });
        let mut has_found = false;
        for node in unused {
            if self.evict(&node) {
                has_found = true;
            } else {
                self.table.queue(&node);
            }
        }
        self.paths.searched(has_found);
    }

    /// Puts the descriptor of `node` away; says whether it did.
    fn evict(&self, node: &DirNode) -> bool {
        // Only tried: the caller may hold the lock of another object that waits for a descriptor.
        let Some(mut path) = node.path.try_lock() else { return false };
        let Some(fd) = &path.fd else { return true };
        let has_name = self.stat(fd.as_fd(), "put away").is_ok_and(|stat| stat.stx_nlink > 0);
        if !has_name || path.is_used {
            return false;
        }
        if path.handle.is_none() {
            path.handle = sys::handle_of(fd.as_fd()).ok();
        }
        if path.handle.is_none() {
            return false;
        }
        let fd = path.fd.take();
        self.paths.count_evicted();
        drop(path);
        drop(fd);
        true
    }
}
