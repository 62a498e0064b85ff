//! The interface of a store.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use handover::{Incoming, Kept};
use recovery::{NodeKey, Place};

use crate::{
    Access, AllocateMode, Attr, Creator, DirEntry, Entry, Error, ErrorKind, Name, NewNode, ObjectId,
    OpenDirState, RenameFlags, RequestStats, Result, Seek, SetAttr, SetXattr, Snapshots, StatFs, StoreState,
};

/// A new file, open for reading and writing whatever its mode.
#[derive(Debug, Clone)]
pub struct Created {
    /// The object; its receiver holds one reference.
    pub entry: Entry,
    /// Its data.
    pub file: Arc<dyn File>,
}

/// Takes note that others have changed an object.
pub type OnChange = Arc<dyn Fn(ObjectId) -> bool + Send + Sync>;

/// A tree of objects. See the [crate](crate) for references, threads and durability.
///
/// Errors are those of the Linux call of the same name.
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// How a person names this store: `dir:/srv/data`, `mem:`.
    fn describe(&self) -> String;

    /// Whether nothing can be changed.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Promises that a regular file may have this size: its user is about to take data for it, which
    /// it writes later. Refused where a limit has no room for that; asked before a write that lets a
    /// file grow beyond the size that is returned, which was promised: any, where there are no limits.
    fn promise_size(&self, id: ObjectId, size: u64) -> Result<u64> {
        let _ = (id, size);
        Ok(u64::MAX)
    }

    /// How long names, attributes and listings that the store returned may be remembered: it shows
    /// what others change elsewhere. `None`: only its user changes it.
    fn may_be_kept(&self) -> Option<Duration> {
        None
    }

    /// From now on the store calls `tell` with each object in use that others have changed, data or
    /// attributes; if that says `false`, it could not be taken note of, and comes again.
    fn on_change(&self, tell: OnChange) {
        drop(tell);
    }

    /// The size of the largest file, in bytes. A write beyond it is refused at once; were it found
    /// out at write-back, the data could never leave the cache.
    fn file_size_max(&self) -> u64 {
        i64::MAX.unsigned_abs()
    }

    /// How many files the user of this store should keep open although they are not in use.
    fn idle_files_max(&self) -> usize {
        usize::MAX
    }

    /// Finds `name` in `parent`.
    fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry>;

    /// Finds an object by an id on which its user may have given all references back, also before
    /// the store was closed and opened again: an id and a generation together name one object for
    /// as long as it exists, where the medium allows it. The caller has to compare the generation.
    /// [`ErrorKind::Stale`](crate::ErrorKind): there is none, or it cannot be found so.
    fn recall(&self, id: ObjectId) -> Result<Entry> {
        let _ = id;
        Err(Error::new(ErrorKind::Stale, "recall"))
    }

    /// The directory that the directory `id` is in, found as by [`recall`](Self::recall).
    fn recall_parent(&self, id: ObjectId) -> Result<Entry> {
        let _ = id;
        Err(Error::new(ErrorKind::Stale, "recall parent"))
    }

    /// The generation of `id`, which its user has a reference on.
    fn generation(&self, id: ObjectId) -> u32 {
        let _ = id;
        0
    }

    /// Gives `n` references on `id` back.
    fn forget(&self, id: ObjectId, n: u64);

    /// The attributes of `id`.
    fn attr(&self, id: ObjectId) -> Result<Attr>;

    /// Changes attributes of `id`, and returns the new ones.
    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr>;

    /// Makes `name`, which must not exist, a new regular file open for reading and writing.
    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created>;

    /// Makes a regular file without a name, in the file system of `parent`.
    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created>;

    /// Makes `name`, which must not exist, anything but a regular file to be opened.
    fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry>;

    /// Gives `id` another name; also its first, if it came from [`tmpfile`](Self::tmpfile).
    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry>;

    /// Removes the name of something that is no directory.
    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()>;

    /// Moves `name` in `parent` to `new_name` in `new_parent`, as renameat2(2).
    fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// The target of a symbolic link.
    fn read_link(&self, id: ObjectId) -> Result<OsString>;

    /// Opens the data of a regular file. All openings of one object see the same bytes.
    fn open(&self, id: ObjectId, access: Access) -> Result<Arc<dyn File>>;

    /// Opens a directory for listing.
    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>>;

    /// Makes completed changes of this directory's entries durable.
    fn sync_dir(&self, id: ObjectId) -> Result<()>;

    /// Copies up to `len` bytes between two files, and says how many.
    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64>;

    /// The value of an extended attribute.
    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>>;

    /// Sets an extended attribute.
    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()>;

    /// The names of the extended attributes, each ended by NUL, as listxattr(2).
    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()>;

    /// Where `id` is, relative to the root, for a person to read; `None` if the store cannot say.
    fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        let _ = id;
        None
    }

    /// Sizes of the medium.
    fn statfs(&self) -> Result<StatFs>;

    /// The requests that the store sends to a service; `None`: it sends none. Never waits for the
    /// medium.
    fn requests(&self) -> Option<RequestStats> {
        None
    }

    /// Its snapshots; `None`: it keeps none.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Brings a part of a file to the store's cache on this host's disk.
    ///
    /// # Errors
    /// `Unsupported`, in plain words: there is none.
    fn warm(&self, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        let _ = (id, offset, len);
        Err(no_disk_cache())
    }

    /// Whether the store's cache on this host's disk has all of a part of a file.
    ///
    /// # Errors
    /// As [`warm`](Self::warm).
    fn is_warm(&self, id: ObjectId, offset: u64, len: u64) -> Result<bool> {
        let _ = (id, offset, len);
        Err(no_disk_cache())
    }

    /// Makes every completed call of this store durable, and waits for no other program's changes.
    fn sync(&self) -> Result<()>;

    /// Gives up what is not durable: calls that wait for the medium end with an error as far as
    /// the store can end them, and so do later ones. [`close`](Self::close) follows.
    fn abort(&self) {}

    /// Writes the store down for the next program of this process; `kept` gets the descriptors that
    /// the state names. Everything must be durable, and no call may be under way. Asks the medium
    /// about single objects, and nothing more after `until`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] by default;
    /// [`ErrorKind::Busy`] where something is not durable; [`ErrorKind::TimedOut`] after `until`.
    fn hand_over(&self, kept: &mut Kept, until: Instant) -> Result<StoreState> {
        let _ = (kept, until);
        Err(Error::new(ErrorKind::Unsupported, "hand the store over"))
    }

    /// Makes durable what any process has changed, also one that has died: on a store that another
    /// process had before.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    fn sync_everything(&self) -> Result<()> {
        self.sync()
    }

    /// What another process needs to go on with the store if this one dies, but for the objects in use;
    /// and the descriptor that holds the lock on its medium, which that process finds under the number
    /// `lock`. None once it is closed, and by default.
    fn recoverable(&self, lock: RawFd) -> Option<(StoreState, Arc<OwnedFd>)> {
        let _ = lock;
        None
    }

    /// Whether an object that has no name is there for the next process as long as that says that it is
    /// in use; otherwise it is gone when the last descriptor of it is closed.
    fn keeps_nameless(&self) -> bool {
        false
    }

    /// How the host finds an object again when this process has died.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] for an object that is gone; [`ErrorKind::Unsupported`] where the host finds
    /// none, which is the default.
    fn key(&self, id: ObjectId) -> Result<NodeKey> {
        let _ = id;
        Err(Error::new(ErrorKind::Unsupported, "key"))
    }

    /// How many bytes of one tenant may rest in a cache above the store: more is better written at once,
    /// for the way to the medium is long, and is busy that much earlier. `None`, which is the default:
    /// what rests costs nothing, as the medium has a cache of its own.
    fn write_behind_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether [`DirEntry::next`] of a directory's entries may be true of one opening alone
    /// ([`Dir::shares_places`]); otherwise it is the medium's own, and the same for all of them.
    fn lists_by_order(&self) -> bool {
        false
    }

    /// Opens a directory for listing that another opening has listed up to these places, the newest
    /// first.
    ///
    /// # Errors
    /// As those of [`open_dir`](Self::open_dir).
    fn open_dir_behind(&self, id: ObjectId, places: Vec<Place>) -> Result<Arc<dyn Dir>> {
        drop(places);
        self.open_dir(id)
    }

    /// An open directory that the program before this one has handed over.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] by default.
    fn take_over_dir(&self, id: ObjectId, state: &OpenDirState, incoming: &Incoming) -> Result<Arc<dyn Dir>> {
        let _ = (id, state, incoming);
        Err(Error::new(ErrorKind::Unsupported, "take over a directory"))
    }

    /// Releases the medium for another opening. No other call may follow.
    fn close(&self);
}

/// The data of one regular file.
pub trait File: Send + Sync + fmt::Debug {
    /// The descriptor of its opening, if it has one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads at `offset` until `buf` is full or the file ends; says how many bytes.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// What is written from here on counts for this tenant: a number that the caller chooses. A store
    /// in whose memory data waits keeps room there for each tenant.
    fn charge_to(&self, tenant: u64) {
        let _ = tenant;
    }

    /// Writes all of `bufs`, one after the other, at `offset`; a failure may leave a part written.
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()>;

    /// Allocates, zeroes or punches a range, as fallocate(2).
    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()>;

    /// Where the next data or hole begins; [`ErrorKind::NoSuchAddress`](crate::ErrorKind) past the
    /// end.
    fn seek(&self, what: Seek, offset: u64) -> Result<u64>;

    /// Makes the data, the size and the file's name durable; the other attributes too unless
    /// `data_only`.
    fn sync(&self, data_only: bool) -> Result<()>;
}

/// An open directory.
pub trait Dir: Send + Sync + fmt::Debug {
    /// Lists from `offset` on (0, or a [`DirEntry::next`]) until `sink` says `false`; an entry that
    /// was refused so comes again from its predecessor's `next`.
    fn list(&self, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()>;

    /// Whether [`DirEntry::next`] means the same to every opening of the directory, also in another
    /// process, for as long as this one is open. What it lists may be remembered then, and be continued
    /// by another opening.
    fn shares_places(&self) -> bool {
        true
    }

    /// The descriptor of the opening, where it is one of the host's.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Writes the opening down for the next program of this process; `kept` gets its descriptor, if it
    /// has one. No call may be under way.
    ///
    /// # Errors
    /// [`ErrorKind::TooManyFiles`] where the process has no descriptor left; [`ErrorKind::Unsupported`]
    /// for one that has none, which is the default.
    fn hand_over(&self, kept: &mut Kept) -> Result<OpenDirState> {
        let op = "hand a directory over";
        let fd = self.descriptor().ok_or_else(|| Error::new(ErrorKind::Unsupported, op))?;
        let number = kept.copy(fd).map_err(|_| Error::new(ErrorKind::TooManyFiles, op))?;
        Ok(OpenDirState::Fd(number))
    }
}

fn no_disk_cache() -> Error {
    let why = "only a volume on object storage that is mounted with -o disk_cache=DIR has a disk cache";
    Error::with(ErrorKind::Unsupported, "warm", why)
}
