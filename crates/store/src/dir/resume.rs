//! A directory store that goes on in the next program of its process.
//!
//! The objects in use are written down with their descriptors, which stay open while the program is
//! replaced: files without a name are found again, and the directory stays locked. An object whose
//! descriptor is evicted is written down with its handle. The next program needs a copy of each
//! descriptor beside the original. Where it could not have them all, fewer go over (see
//! [`Selection`]): the data of an open file is opened again by its handle only as the last
//! resort, and only on file systems that keep it meanwhile.
//!
//! Everything has to be durable before, so that no [`SyncState`](super::durable) is handed over,
//! and no call may be under way.

use std::num::NonZero;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, available_parallelism};
use std::time::Instant;

use recovery::NodeKey;
use rustix::process::Resource;

use super::file::DirFile;
use super::node::DirNode;
use super::paths::PathFd;
use super::table::Referenced;
use super::{DirOptions, DirStore, Inner, list, sys};
use crate::dir_state::{DataState, DirState, ObjectState, PathState};
use crate::{Dir, Error, ErrorKind, File, ObjectId, OpenDirState, Result};
use ::handover::{Incoming, Kept};

const OP: &str = "take over the store";

/// The most descriptors that the next program and this one have beside those of objects: threads',
/// sockets, open directories. Of a low limit it is an eighth.
const RESERVE_MAX: usize = 2048;

/// Objects for which another thread is worth its start, when they are taken over; and how many threads.
const OBJECTS_OF_THREAD: usize = 512;
const THREADS_MAX: usize = 8;

/// File systems on which the data of an object that has a name can be opened by its handle later.
/// Not there: those that give a file that is unlinked while it is open another name until it is
/// closed (NFS, FUSE), which removes it.
const KEEP_BY_NAME: [i64; 4] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
];

/// Which descriptors the next program gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Selection {
    /// All of them.
    All,
    /// One of each object with open data, for the data and for the object itself. Others that have a
    /// name go by their handles.
    OpenData,
    /// Those of objects without a name. All others go by their handles.
    Nameless,
}

/// How many descriptors objects have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    /// Each once, also where an object and its data share one.
    all: usize,
    /// Of objects with open data, one each.
    open: usize,
}

impl Counts {
    fn of(known: &[Referenced]) -> Self {
        let mut counts = Self::default();
        for (node, _) in known {
            let data = node.data.lock().upgrade();
            let path = node.path.lock().fd.clone();
            let is_shared = matches!((&path, &data), (Some(fd), Some(data)) if Arc::ptr_eq(fd, &data.fd));
            counts.all += usize::from(path.is_some()) + usize::from(data.is_some()) - usize::from(is_shared);
            counts.open += usize::from(data.is_some());
        }
        counts
    }
}

impl Selection {
    /// The largest of which the next program could have copies; where there is none, it is refused
    /// later, by the number of descriptors.
    fn within(room: usize, counts: Counts, can_open_data_later: impl FnOnce() -> bool) -> Self {
        if counts.all <= room {
            Self::All
        } else if counts.open <= room || !can_open_data_later() {
            Self::OpenData
        } else {
            Self::Nameless
        }
    }
}

/// Of how many descriptors of objects a program with this limit can have copies.
fn room_of(limit: usize) -> usize {
    limit / 2 - RESERVE_MAX.min(limit / 8)
}

impl Inner {
    pub(super) fn hand_over(&self, kept: &mut Kept, until: Instant) -> Result<DirState> {
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.hand_over_within(room_of(usize::try_from(limit).unwrap_or(usize::MAX)), kept, until)
    }

    fn hand_over_within(&self, room: usize, kept: &mut Kept, until: Instant) -> Result<DirState> {
        let op = "hand the store over";
        let busy = |why: &'static str| Error::with(ErrorKind::Busy, op, why);
        if self.unsynced.len() > 0 {
            return Err(busy("something is not durable yet"));
        }
        let lock = self.lock.lock().as_ref().map(|lock| lock.descriptor());
        let lock = lock.ok_or_else(|| busy("it is closed"))?;
        let (next, spent, known) = self.table.in_use();
        let room = room.saturating_sub(kept.numbers().len());
        let selection = Selection::within(room, Counts::of(&known), || self.can_open_data_later(&lock));
        let lock = kept.share(&lock);
        let mut objects = Vec::with_capacity(known.len());
        for (node, refs) in known {
            // The medium may be slow, and requests wait.
            if Instant::now() >= until {
                return Err(Error::new(ErrorKind::TimedOut, op));
            }
            let (path, data) = self
                .selected(selection, &node, kept)
                .ok_or_else(|| busy("an object cannot be found again"))?;
            let generation = node.generation.get().copied();
            objects.push(ObjectState(node.id, node.ino, node.kind, generation, refs, path, data));
        }
        Ok(DirState { lock, next, spent, objects })
    }

    /// Whether open data of an object with a name is there still when the next program opens it,
    /// whatever its mode, unless another process removes that name from the store meanwhile.
    fn can_open_data_later(&self, medium: &OwnedFd) -> bool {
        self.paths.can_evict()
            && self.can_open_any
            && rustix::fs::fstatfs(medium).is_ok_and(|fs| KEEP_BY_NAME.contains(&fs.f_type))
    }

    /// How to find an object and its open data again; `None` where that is not possible.
    fn selected(
        &self,
        selection: Selection,
        node: &Arc<DirNode>,
        kept: &mut Kept,
    ) -> Option<(PathState, Option<DataState>)> {
        let open = node.data.lock().upgrade();
        let goes_by_handle = match selection {
            Selection::All => false,
            Selection::OpenData => open.is_none(),
            Selection::Nameless => true,
        };
        if goes_by_handle && let Some(handle) = self.handle_of_named(node) {
            return Some((handle, None));
        }
        let data = open.as_ref().map(|file| {
            let (can_read, can_write) = file.access();
            DataState(kept.share(&file.fd), can_read, can_write)
        });
        let path = node.path.lock();
        let path = match (&path.fd, path.handle(), &open) {
            (Some(_), _, Some(file)) if selection != Selection::All => PathState::Fd(kept.share(&file.fd)),
            (Some(fd), ..) => PathState::Fd(kept.share(fd)),
            (None, Some(handle), _) => {
                let (kind, bytes) = handle.parts();
                PathState::Handle(kind, bytes.to_vec())
            }
            (None, None, _) => return None,
        };
        Some((path, data))
    }

    /// How to find an object again that has a name.
    fn handle_of_named(&self, node: &Arc<DirNode>) -> Option<PathState> {
        if !self.paths.can_evict() {
            return None;
        }
        let path = node.path.lock();
        let handle = match (&path.fd, path.handle()) {
            (None, handle) => handle?.clone(),
            (Some(fd), handle) => {
                let has_name = self.stat(fd.as_fd(), "hand over").is_ok_and(|stat| stat.stx_nlink > 0);
                let known = handle.cloned().or_else(|| sys::handle_of(fd.as_fd()).ok());
                known.filter(|_| has_name)?
            }
        };
        let (kind, bytes) = handle.parts();
        Some(PathState::Handle(kind, bytes.to_vec()))
    }
}

/// A store and its open files, to be kept until their users have them.
pub type TakenOver = (Arc<DirStore>, Vec<Arc<dyn File>>);

impl DirStore {
    /// The store that the program before has handed over, and its open files, to be kept until
    /// their users have them.
    ///
    /// # Errors
    /// When the state or a descriptor is not what it should be.
    pub fn take_over(
        path: &Path,
        options: DirOptions,
        state: &DirState,
        incoming: &Incoming,
    ) -> Result<TakenOver> {
        let failed = |error: std::io::Error| Error::with(ErrorKind::Invalid, OP, error.to_string());
        let lock = incoming.take(state.lock).map_err(failed)?;
        let inner = Arc::new(Inner::over(lock, path, options)?);
        inner.table.resume(state.next, &state.spent);
        let threads = match state.objects.len() / OBJECTS_OF_THREAD {
            0 | 1 => 1,
            many => many.min(available_parallelism().map_or(1, NonZero::get)).min(THREADS_MAX),
        };
        let share = state.objects.len().div_ceil(threads).max(1);
        let resume = |share: &[ObjectState]| {
            let files = share.iter().map(|object| inner.resume_object(object, incoming));
            files.filter_map(Result::transpose).collect::<Result<Vec<_>>>()
        };
        let files = std::thread::scope(|scope| {
            let mut shares = state.objects.chunks(share);
            let own = shares.next().unwrap_or_default();
            let resume = &resume;
            let start = |share| (share, Builder::new().spawn_scoped(scope, move || resume(share)));
            let others: Vec<_> = shares.map(start).collect();
            let mut files = resume(own)?;
            for (share, other) in others {
                files.extend(match other {
                    Ok(other) => other.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, OP)))?,
                    // The host gives no thread.
                    Err(_) => resume(share)?,
                });
            }
            Ok::<_, Error>(files)
        })?;
        Ok((Arc::new(Self { inner }), files))
    }

    /// Whether the object that this key was of is still there; `medium` is the store's directory.
    #[must_use]
    pub fn has(medium: BorrowedFd<'_>, key: &NodeKey) -> bool {
        let handle = sys::Handle::of_parts(key.handle.0, &key.handle.1);
        sys::open_handle(medium, &handle).is_ok_and(|fd| {
            rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_ino == key.ino && stat.st_nlink > 0)
        })
    }

    /// The program before does not take the store back any more: its end releases the directory.
    pub fn settle(&self) {
        if let Some(lock) = self.inner.lock.lock().as_mut() {
            lock.set_shared(false);
        }
    }
}

impl Inner {
    /// An object that the program before had in use; with its open data, if it had some.
    fn resume_object(
        self: &Arc<Self>,
        object: &ObjectState,
        incoming: &Incoming,
    ) -> Result<Option<Arc<dyn File>>> {
        let failed = |error: std::io::Error| Error::with(ErrorKind::Invalid, OP, error.to_string());
        let ObjectState(id, ino, kind, generation, refs, path, data) = object;
        let take = |number: RawFd| {
            let fd = incoming.take(number).map_err(failed)?;
            if self.stat_inside(fd.as_fd(), OP)?.stx_ino == *ino {
                return Ok(Arc::new(fd));
            }
            Err(Error::with(ErrorKind::Invalid, OP, "a descriptor is not its object's"))
        };
        let of_data = data.as_ref().map(|DataState(number, ..)| take(*number)).transpose()?;
        let path = match (path, &of_data) {
            // A file that was just made has one descriptor for its data and for itself.
            (PathState::Fd(number), Some(fd)) if data.as_ref().is_some_and(|data| data.0 == *number) => {
                PathFd::new(Arc::clone(fd))
            }
            (PathState::Fd(number), _) => PathFd::new(take(*number)?),
            (PathState::Handle(kind, bytes), _) => PathFd::evicted(sys::Handle::of_parts(*kind, bytes)),
        };
        let generation = generation.map_or_else(OnceLock::new, OnceLock::from);
        let node = DirNode::resumed(*id, *ino, *kind, generation, path, Arc::clone(&self.paths));
        let node = self
            .table
            .restore(node, *refs)
            .ok_or_else(|| Error::with(ErrorKind::Invalid, OP, format!("object {} is there twice", id.0)))?;
        if self.paths.can_evict() {
            self.table.queue(&node);
        }
        let file = data.as_ref().zip(of_data).map(|(DataState(_, can_read, can_write), fd)| {
            DirFile::shared(self, &node, fd, *can_read, *can_write) as Arc<dyn File>
        });
        Ok(file)
    }

    pub(super) fn take_over_dir(
        &self,
        id: ObjectId,
        state: &OpenDirState,
        incoming: &Incoming,
    ) -> Result<Arc<dyn Dir>> {
        let absent = || Error::with(ErrorKind::Invalid, OP, "a directory was not handed over");
        let OpenDirState::Fd(number) = state else { return Err(absent()) };
        let fd = incoming.take(*number).map_err(|_| absent())?;
        let node = self.dir_node(id, OP)?;
        let stat = self.stat(fd.as_fd(), OP)?;
        if stat.stx_ino != node.ino {
            return Err(Error::with(ErrorKind::Invalid, OP, "a descriptor is not its directory's"));
        }
        let root_ino = (id == ObjectId::ROOT).then_some(node.ino);
        Ok(Arc::new(list::DirDir::new(fd, root_ino)))
    }

    /// Locks and uses the open directory `fd`.
    fn over(fd: OwnedFd, path: &Path, options: DirOptions) -> Result<Self> {
        // The lock belongs to the opening, and so to this process still.
        let mut lock = super::holder::lock(fd, path)?;
        lock.set_shared(true);
        Self::with_lock(lock, path, options)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Access, Creator, Name, Store as _};

    #[test]
    fn low_limits_leave_room_too() {
        assert_eq!([0, 1024, 4096, 1 << 17].map(room_of), [0, 384, 1536, (1 << 16) - 2048]);
        assert!(room_of(usize::MAX) > 1 << 40);
    }

    #[test]
    fn open_data_goes_by_handle_last_and_where_it_is_kept_only() {
        let counts = Counts { all: 30, open: 10 };
        let within = |room, can| Selection::within(room, counts, || can);
        assert_eq!(within(30, true), Selection::All);
        assert_eq!(within(29, true), Selection::OpenData);
        assert_eq!(within(10, true), Selection::OpenData);
        assert_eq!(within(9, true), Selection::Nameless);
        assert_eq!(within(9, false), Selection::OpenData);
    }

    #[test]
    fn what_has_no_name_and_what_is_open_keep_their_descriptors() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = DirStore::open(dir.path()).expect("a store");
        let inner = &store.inner;
        if !inner.paths.can_evict() {
            return testing::skipped("this process or the host's file system opens nothing by handle");
        }
        let make = |name: &'static str| {
            let name = Name::new(std::ffi::OsStr::new(name)).expect("a name");
            store.create(ObjectId::ROOT, name, 0o600, creator()).expect("a file")
        };
        let (looked_at, open, unlinked) = (make("looked-at"), make("open"), make("unlinked"));
        let id = looked_at.entry.id;
        drop(looked_at.file);
        let gone = Name::new(std::ffi::OsStr::new("unlinked")).expect("a name");
        store.unlink(ObjectId::ROOT, gone).expect("it is there");
        store.sync().expect("durable");
        assert_eq!(Counts::of(&inner.table.in_use().2), Counts { all: 3, open: 2 }, "new files share theirs");
        let later = Instant::now() + Duration::from_secs(60);
        let late = store.hand_over(&mut Kept::default(), Instant::now()).map_err(|error| error.kind());
        assert_eq!(late, Err(ErrorKind::TimedOut));
        let ids = [id, open.entry.id, unlinked.entry.id];
        // Whether each has a descriptor of its own, and of its data.
        let handed = |room| {
            let state = inner.hand_over_within(room, &mut Kept::default(), later).expect("a state");
            ids.map(|id| {
                let ObjectState(.., path, data) =
                    state.objects.iter().find(|object| object.0 == id).expect("it");
                (matches!(path, PathState::Fd(_)), data.is_some())
            })
        };
        assert_eq!(handed(3), [(true, false), (true, true), (true, true)]);
        assert_eq!(handed(2), [(false, false), (true, true), (true, true)]);
        let lock = inner.lock.lock().as_ref().map(|lock| lock.descriptor()).expect("it is locked");
        let last = inner.can_open_data_later(&lock);
        assert_eq!(handed(1), [(false, false), (!last, !last), (true, true)]);
        // An opening that does not share: one descriptor goes over.
        let second = store.open(id, Access::ReadWrite).expect("it is there");
        assert_eq!(Counts::of(&inner.table.in_use().2), Counts { all: 4, open: 3 });
        let mut kept = Kept::default();
        inner.hand_over_within(3, &mut kept, later).expect("a state");
        assert_eq!(kept.numbers().len(), 3 + 1, "and the lock's");
        drop((second, open.file, unlinked.file));
    }

    fn creator() -> Creator {
        Creator {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0,
        }
    }
}
