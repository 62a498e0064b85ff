//! A directory of the host as a store: files are plain files.
//!
//! The store writes nothing of its own there; mounting, unmounting and looking into the directory
//! shows the user's tree and nothing else.
//!
//! # Paths cannot escape
//! Every object is held by an `O_PATH` descriptor. All calls are relative to such a descriptor,
//! with one checked [`Name`] that is never followed if it is a symbolic link, or go to the object
//! itself (`AT_EMPTY_PATH`, `/proc/self/fd/N`). There is no path to swap a part of. An object on
//! another device or mount below the source is refused with [`ErrorKind::CrossDevice`].
//!
//! | module | what |
//! |---|---|
//! | [`table`] | objects by id and inode number, references |
//! | [`node`] | one object |
//! | [`names`] | look-up, creation, removal, renaming |
//! | [`attrs`] | attributes, extended attributes |
//! | [`file`], [`list`] | data, listings |
//! | [`durable`] | what is not durable yet, and syncing it |
//! | [`paths`] | keeps the number of descriptors bounded |
//! | [`recall`] | finding objects by ids that were forgotten |
//! | [`creds`] | ownership of new objects |
//! | [`holder`] | exclusive use |
//! | [`resume`] | the store goes on in the next program of its process |
//! | [`sys`], [`errno`] | system calls, their errors |
//!
//! A process must not fork and go on in the child with an open store: the store's view of
//! `/proc/self/fd` stays the parent's.
//!
//! Lock order: `Inner::searching`, `DirNode::data`, `DirNode::path`, a shard of the table. Beside
//! these, see [`durable`].

mod attrs;
#[allow(unsafe_code, reason = "a thread's own credentials and umask, which rustix has not or calls unsafe")]
mod creds;
mod durable;
mod errno;
mod file;
mod holder;
mod list;
mod names;
mod node;
mod paths;
mod recall;
pub(crate) mod resume;
mod size_max;
#[allow(unsafe_code, reason = "system calls that rustix has not")]
mod sys;
mod table;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use ::handover::Kept;
use recovery::NodeKey;
use rustix::fs::{AtFlags, OFlags, StatVfsMountFlags, Statx, StatxFlags};
use rustix::process::Resource;
use rustix::thread::CapabilitySet;
use sync::Mutex;

use crate::{
    Access, Attr, Created, Creator, Dir, Entry, Error, ErrorKind, File, FileType, Incoming, Name, NewNode,
    ObjectId, OpenDirState, RenameFlags, Result, SetAttr, SetXattr, StatFs, Store, StoreState,
};
use durable::{Change, Unsynced};
use node::DirNode;
use paths::Paths;
use table::Table;

/// Descriptors to count with where there is no limit, and the most to ask for as root: each pins
/// memory of the kernel.
const DESCRIPTORS_WITHOUT_LIMIT: u64 = 1 << 17;

/// A store over a directory of the host.
#[derive(Debug)]
pub struct DirStore {
    inner: Arc<Inner>,
}

/// Options of a [`DirStore`]. A bound that is `None` follows from the limit of descriptors.
#[derive(Debug, Clone, Copy, Default)]
pub struct DirOptions {
    /// Objects that are held open at a time, where others can be opened again (as root); otherwise
    /// without meaning. Five eighths of the limit.
    pub open_max: Option<usize>,
    /// Objects that wait to be synced, before changing another one syncs the oldest. Three
    /// eighths of the limit.
    pub unsynced_max: Option<usize>,
    /// Reading files and directories leaves their times of access as they are, where the process
    /// may ask for that: root, or the owner.
    pub no_atime: bool,
}

/// Figures of the store's syncs so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirCounters {
    /// Files synced.
    pub data_syncs: u64,
    /// Directories synced.
    pub dir_syncs: u64,
    /// Objects synced early, because too many were waiting.
    pub relieved: u64,
    /// Objects that are not durable now.
    pub unsynced: usize,
    /// Objects known now, beside the root.
    pub objects: usize,
    /// Descriptors of objects, the root's included.
    pub open: usize,
    /// Objects whose descriptors are evicted.
    pub evicted: usize,
}

pub(crate) struct Inner {
    path: PathBuf,
    /// Device and mount of all objects of this store.
    dev: (u32, u32),
    mount: Option<u64>,
    /// `/proc/self/fd`, of all stores of the process.
    proc_fds: Arc<OwnedFd>,
    is_read_only: bool,
    no_atime: bool,
    file_size_max: u64,
    idle_files_max: usize,
    ownership: creds::Ownership,
    /// An object that was opened once can be opened again.
    can_open_any: bool,
    /// `linkat` may be given a descriptor alone.
    can_link_empty: bool,
    table: Table,
    paths: Arc<Paths>,
    unsynced: Unsynced,
    /// Held by a search for an id.
    searching: Mutex<()>,
    /// Closed for a moment when an object must be synced and no descriptor is left. There is one
    /// since the first object was opened.
    spare: Mutex<Option<OwnedFd>>,
    /// Holds the directory's lock; `None` once closed.
    lock: Mutex<Option<holder::Exclusive>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DirStore {
    /// Opens the directory `path` as a store, for this store alone.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and [`ErrorKind::NotDirectory`] if it is no directory,
    /// [`ErrorKind::Busy`] with the holder's name if it is in use.
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        Self::open_with(path, DirOptions::default())
    }

    /// Opens a directory with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: DirOptions) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { inner: Arc::new(Inner::open(path.as_ref(), options)?) }))
    }

    /// The process that has the directory `path` in use as a store, in words for a person; nothing
    /// is opened or locked.
    ///
    /// # Errors
    /// The errors of opening the directory.
    pub fn holder(path: impl AsRef<Path>) -> Result<Option<String>> {
        holder::of(path.as_ref())
    }

    /// Figures of the store's syncs so far.
    #[must_use]
    pub fn counters(&self) -> DirCounters {
        let unsynced = &self.inner.unsynced;
        let (open, evicted) = self.inner.paths.counts();
        DirCounters {
            data_syncs: unsynced.data_syncs.get(),
            dir_syncs: unsynced.dir_syncs.get(),
            relieved: unsynced.relieved.get(),
            unsynced: unsynced.len(),
            objects: self.inner.table.len(),
            open,
            evicted,
        }
    }
}

/// Raises the limits of descriptors as far as may be, and says what the soft one is.
fn raise_descriptor_limit() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(DESCRIPTORS_WITHOUT_LIMIT);
    let mut current = limit.current.unwrap_or(DESCRIPTORS_WITHOUT_LIMIT);
    // The first is for root only; both are refused above the kernel's own bound.
    for wanted in [DESCRIPTORS_WITHOUT_LIMIT.max(hard), hard] {
        let both = rustix::process::Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if rustix::process::setrlimit(Resource::Nofile, both).is_ok() {
            current = wanted;
            break;
        }
    }
    usize::try_from(current.min(DESCRIPTORS_WITHOUT_LIMIT)).unwrap_or(usize::MAX)
}

/// `/proc/self/fd`. Stores share it, as long as there is one.
fn proc_fds(op: &'static str) -> Result<Arc<OwnedFd>> {
    static SHARED: std::sync::Mutex<Weak<OwnedFd>> = std::sync::Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fd) = shared.upgrade() {
        return Ok(fd);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(c"/proc/self/fd", flags, 0.into())
        .ok()
        .filter(|fd| sys::is_proc(fd.as_fd()))
        .ok_or_else(|| Error::with(ErrorKind::Unsupported, op, "/proc is not mounted"))?;
    let fd = Arc::new(fd);
    *shared = Arc::downgrade(&fd);
    Ok(fd)
}

/// Whether the medium decides about access by the capabilities of the caller alone, on this
/// machine.
fn is_local(root: impl AsFd) -> bool {
    const LOCAL: [i64; 8] = [
        0xef53,      // ext2, ext3, ext4
        0x5846_5342, // xfs
        0x9123_683e, // btrfs
        0x0102_1994, // tmpfs
        0xf2f5_2010, // f2fs
        0x2fc1_2fc1, // zfs
        0xca45_1a4e, // bcachefs
        0x794c_7630, // overlayfs
    ];
    rustix::fs::fstatfs(root).is_ok_and(|s| LOCAL.contains(&s.f_type))
}

const STAT_MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

impl Inner {
    fn open(path: &Path, options: DirOptions) -> Result<Self> {
        let op = "open store";
        let shown = path.display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(path, flags, 0.into()).map_err(errno::failed_with(op, &shown))?;
        Self::with_lock(holder::lock(lock, path)?, path, options)
    }

    /// Uses a directory that is this process's alone.
    fn with_lock(lock: holder::Exclusive, path: &Path, options: DirOptions) -> Result<Self> {
        let op = "open store";
        let shown = path.display().to_string();
        let limit = raise_descriptor_limit();
        let descriptors = limit - paths::reserve(limit);
        // One descriptor for the lock, for the directory itself, and to open handles with:
        // thousands of idle stores have no more.
        let root = lock.descriptor();
        let stat = rustix::fs::statx(&root, c"", AtFlags::EMPTY_PATH, STAT_MASK)
            .map_err(errno::failed_with(op, &shown))?;
        let medium = rustix::fs::fstatvfs(&root).map_err(errno::failed_with(op, &shown))?;
        let proc_fds = proc_fds(op)?;
        let capabilities = creds::capabilities();
        let file_size_max = size_max::of(lock.as_fd());
        let paths = Arc::new(Paths::new(options.open_max.unwrap_or(descriptors / 8 * 5), descriptors, &root));
        let root = DirNode::new(ObjectId::ROOT, stat.stx_ino, FileType::Directory, root, Arc::clone(&paths));
        Ok(Self {
            path: std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            dev: (stat.stx_dev_major, stat.stx_dev_minor),
            mount: mount_of(&stat),
            proc_fds,
            is_read_only: medium.f_flag.contains(StatVfsMountFlags::RDONLY),
            no_atime: options.no_atime,
            file_size_max,
            idle_files_max: descriptors / 4,
            ownership: creds::Ownership::possible(is_local(&lock)),
            can_open_any: capabilities.contains(CapabilitySet::DAC_OVERRIDE),
            can_link_empty: capabilities.contains(CapabilitySet::DAC_READ_SEARCH),
            table: Table::new(root),
            paths,
            unsynced: Unsynced::new(options.unsynced_max.unwrap_or(descriptors / 8 * 3)),
            searching: Mutex::new(()),
            spare: Mutex::new(None),
            lock: Mutex::new(Some(lock)),
        })
    }

    fn stat(&self, fd: BorrowedFd<'_>, op: &'static str) -> Result<Statx> {
        rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, STAT_MASK).map_err(errno::failed(op))
    }

    /// The attributes of an object that was reached by a name, which may lead elsewhere.
    fn stat_inside(&self, fd: BorrowedFd<'_>, op: &'static str) -> Result<Statx> {
        let stat = self.stat(fd, op)?;
        if self.is_inside(&stat) { Ok(stat) } else { Err(Error::new(ErrorKind::CrossDevice, op)) }
    }

    fn is_inside(&self, stat: &Statx) -> bool {
        let is_same_mount = match (self.mount, mount_of(stat)) {
            (Some(ours), Some(other)) => ours == other,
            _ => true,
        };
        is_same_mount && self.dev == (stat.stx_dev_major, stat.stx_dev_minor)
    }

    /// The node of a directory.
    fn dir_node(&self, id: ObjectId, op: &'static str) -> Result<Arc<DirNode>> {
        let node = self.table.get(id, op)?;
        if node.kind == FileType::Directory { Ok(node) } else { Err(Error::new(ErrorKind::NotDirectory, op)) }
    }

    /// Opens a directory for listing and syncing.
    fn open_entries(&self, path: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.with_room(|| self.quietly(flags, |flags| rustix::fs::openat(path, ".", flags, 0.into())))
    }

    /// Opens an object to be read, without a change of its time of access if the options ask for
    /// that and it is allowed.
    fn quietly<T>(
        &self,
        flags: OFlags,
        open: impl Fn(OFlags) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        if self.no_atime {
            match open(flags | OFlags::NOATIME) {
                // Another user's object.
                Err(rustix::io::Errno::PERM) => {}
                done => return done,
            }
        }
        open(flags)
    }
}

fn mount_of(stat: &Statx) -> Option<u64> {
    (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

impl Store for DirStore {
    fn describe(&self) -> String {
        format!("dir:{}", self.inner.path.display())
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only
    }

    fn file_size_max(&self) -> u64 {
        self.inner.file_size_max
    }

    fn idle_files_max(&self) -> usize {
        self.inner.idle_files_max
    }

    fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.inner.lookup(parent, name)
    }

    fn recall(&self, id: ObjectId) -> Result<Entry> {
        self.inner.recall(id)
    }

    fn recall_parent(&self, id: ObjectId) -> Result<Entry> {
        self.inner.recall_parent(id)
    }

    fn generation(&self, id: ObjectId) -> u32 {
        self.inner.generation(id)
    }

    fn forget(&self, id: ObjectId, n: u64) {
        if id != ObjectId::ROOT {
            let left_over = self.inner.table.forget(id, n);
            self.inner.drop_unlinked(left_over);
        }
    }

    fn attr(&self, id: ObjectId) -> Result<Attr> {
        self.inner.attr(id)
    }

    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        self.inner.set_attr(id, set)
    }

    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created> {
        self.inner.create(parent, name, perm, creator)
    }

    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created> {
        self.inner.tmpfile(parent, perm, creator)
    }

    fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        self.inner.make(parent, name, what, perm, creator)
    }

    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.inner.link(id, parent, name)
    }

    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.inner.remove(parent, name, false)
    }

    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.inner.remove(parent, name, true)
    }

    fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.inner.rename(parent, name, new_parent, new_name, flags)
    }

    fn read_link(&self, id: ObjectId) -> Result<OsString> {
        self.inner.read_link(id)
    }

    fn open(&self, id: ObjectId, access: Access) -> Result<Arc<dyn File>> {
        self.inner.open_data(id, access).map(|file| file as Arc<dyn File>)
    }

    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>> {
        let op = "open dir";
        let node = self.inner.dir_node(id, op)?;
        let path = self.inner.fd(&node, op)?;
        let fd = self.inner.open_entries(&path).map_err(errno::failed(op))?;
        let root_ino = (id == ObjectId::ROOT).then_some(node.ino);
        Ok(Arc::new(list::DirDir::new(fd, root_ino)))
    }

    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        let (inner, op) = (&self.inner, "sync dir");
        let node = inner.dir_node(id, op)?;
        let path = inner.fd(&node, op)?;
        inner.with_spare(|| {
            let fd = inner.open_entries(&path).map_err(errno::failed(op))?;
            inner.sync_node(&node, &fd, false)
        })?;
        inner.sync_names(&node)
    }

    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64> {
        let op = "copy range";
        let from = self.inner.open_data(src, Access::Read)?;
        let to = self.inner.open_data(dst, Access::ReadWrite)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (mut src_off, mut dst_off) = (src_off, dst_off);
        let done = rustix::io::retry_on_intr(|| {
            rustix::fs::copy_file_range(&from.fd, Some(&mut src_off), &to.fd, Some(&mut dst_off), len)
        });
        if !matches!(done, Ok(0)) {
            self.inner.changed(&self.inner.table.get(dst, op)?, Change::Data);
        }
        done.map(|n| n as u64).map_err(errno::failed(op))
    }

    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        self.inner.get_xattr(id, name)
    }

    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        self.inner.set_xattr(id, name, value, how)
    }

    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        self.inner.list_xattr(id)
    }

    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        self.inner.remove_xattr(id, name)
    }

    fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        let (inner, op) = (&self.inner, "path");
        let fd = inner.fd(&inner.table.get(id, op).ok()?, op).ok()?;
        let link = |fd: BorrowedFd<'_>| {
            let name = sys::FdName::short(fd);
            let target = rustix::fs::readlinkat(&inner.proc_fds, name.as_c_str(), Vec::new()).ok()?;
            Some(PathBuf::from(OsString::from_vec(target.into_bytes())))
        };
        let root = inner.fd(inner.table.root(), op).ok()?;
        link(fd.as_fd())?.strip_prefix(link(root.as_fd())?).ok().map(Path::to_owned)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.inner.statfs()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync_all()
    }

    fn hand_over(&self, kept: &mut Kept, until: Instant) -> Result<StoreState> {
        self.inner.hand_over(kept, until).map(StoreState::Dir)
    }

    fn sync_everything(&self) -> Result<()> {
        let op = "sync";
        let root = self.inner.fd(self.inner.table.root(), op)?;
        // An `O_PATH` descriptor is not enough.
        let root = self.inner.open_entries(&root).map_err(errno::failed(op))?;
        rustix::fs::syncfs(&root).map_err(errno::failed(op))
    }

    fn recoverable(&self, lock: RawFd) -> Option<(StoreState, Arc<OwnedFd>)> {
        let held = self.inner.lock.lock().as_ref().map(|lock| lock.descriptor())?;
        Some((StoreState::Dir(crate::DirState::of_lock(lock)), held))
    }

    fn key(&self, id: ObjectId) -> Result<NodeKey> {
        self.inner.key(id)
    }

    fn take_over_dir(&self, id: ObjectId, state: &OpenDirState, incoming: &Incoming) -> Result<Arc<dyn Dir>> {
        self.inner.take_over_dir(id, state, incoming)
    }

    fn close(&self) {
        let lock = self.inner.lock.lock().take();
        self.inner.unsynced.clear();
        self.inner.table.clear();
        self.inner.paths.close(self.inner.table.root());
        drop(lock);
    }
}
