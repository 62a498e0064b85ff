//! A directory store that goes on in the next program of its process.
//!
//! The objects in use are written down with their descriptors, which stay open while the program is
//! replaced: files without a name are found again, and the directory stays locked. An object whose
//! descriptor is evicted is written down with its handle. So are all that have a name where the next program
//! could not have a copy of each descriptor beside the original: their data is opened again when it is
//! used.
//!
//! Everything has to be durable before, so that no [`SyncState`](super::durable) is handed over,
//! and no call may be under way.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::process::Resource;

use super::file::DirFile;
use super::node::DirNode;
use super::paths::PathFd;
use super::table::Referenced;
use super::{DirOptions, DirStore, Inner, list, sys};
use crate::dir_state::{DataState, DirState, ObjectState, PathState};
use crate::{Dir, Error, ErrorKind, File, ObjectId, Result};
use ::handover::{Incoming, Kept};

const OP: &str = "take over the store";

/// Descriptors that the next program and this one have beside those of objects: threads', sockets,
/// open directories.
const NEXT_RESERVE: usize = 2048;

impl Inner {
    pub(super) fn hand_over(&self, kept: &mut Kept) -> Result<DirState> {
        let op = "hand the store over";
        let busy = |why: &'static str| Error::with(ErrorKind::Busy, op, why);
        if self.unsynced.len() > 0 {
            return Err(busy("something is not durable yet"));
        }
        let lock = self.lock.lock().as_ref().map(|lock| lock.descriptor());
        let lock = kept.share(&lock.ok_or_else(|| busy("it is closed"))?);
        let (next, spent, known) = self.table.in_use();
        let is_short = self.is_short(&known);
        let mut objects = Vec::with_capacity(known.len());
        for (node, refs) in known {
            let generation = node.generation.get().copied();
            if is_short && let Some(handle) = self.handle_of_named(&node) {
                objects.push(ObjectState(node.id, node.ino, node.kind, generation, refs, handle, None));
                continue;
            }
            let data = node.data.lock().upgrade().map(|file| {
                let (can_read, can_write) = file.access();
                DataState(kept.share(&file.fd), can_read, can_write)
            });
            let path = node.path.lock();
            let path = match (&path.fd, path.handle()) {
                (Some(fd), _) => PathState::Fd(kept.share(fd)),
                (None, Some(handle)) => {
                    let (kind, bytes) = handle.parts();
                    PathState::Handle(kind, bytes.to_vec())
                }
                (None, None) => return Err(busy("an object cannot be found again")),
            };
            objects.push(ObjectState(node.id, node.ino, node.kind, generation, refs, path, data));
        }
        Ok(DirState { lock, next, spent, objects })
    }

    /// Whether the next program could not have a copy of each descriptor.
    fn is_short(&self, known: &[Referenced]) -> bool {
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = usize::try_from(limit / 2).unwrap_or(usize::MAX).saturating_sub(NEXT_RESERVE);
        let is_open = |node: &DirNode| node.data.lock().strong_count() > 0;
        self.paths.counts().0 + known.iter().filter(|(node, _)| is_open(node)).count() > room
    }

    /// How to find an object again that has a name, and to open it whatever its mode.
    fn handle_of_named(&self, node: &Arc<DirNode>) -> Option<PathState> {
        if !self.paths.can_evict() || !self.can_open_any {
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
        let mut files: Vec<Arc<dyn File>> = Vec::new();
        for ObjectState(id, ino, kind, generation, refs, path, data) in &state.objects {
            // A file that was just made has one descriptor for its data and for itself.
            let mut taken: HashMap<RawFd, Arc<OwnedFd>> = HashMap::new();
            let mut take = |number: RawFd| match taken.get(&number) {
                Some(fd) => Ok(Arc::clone(fd)),
                None => {
                    let fd = Arc::new(incoming.take(number).map_err(failed)?);
                    taken.insert(number, Arc::clone(&fd));
                    Ok::<_, Error>(fd)
                }
            };
            let mut take_of_object = |number: RawFd| {
                let fd = take(number)?;
                if inner.stat_inside(fd.as_fd(), OP)?.stx_ino == *ino {
                    return Ok(fd);
                }
                Err(Error::with(ErrorKind::Invalid, OP, "a descriptor is not its object's"))
            };
            let path = match path {
                PathState::Fd(number) => PathFd::new(take_of_object(*number)?),
                PathState::Handle(kind, bytes) => PathFd::evicted(sys::Handle::of_parts(*kind, bytes)),
            };
            let generation = generation.map_or_else(OnceLock::new, OnceLock::from);
            let node = DirNode::resumed(*id, *ino, *kind, generation, path, Arc::clone(&inner.paths));
            let node = inner.table.restore(node, *refs).ok_or_else(|| {
                Error::with(ErrorKind::Invalid, OP, format!("object {} is there twice", id.0))
            })?;
            if inner.paths.can_evict() {
                inner.table.queue(&node);
            }
            if let Some(DataState(fd, can_read, can_write)) = data {
                files.push(DirFile::shared(&inner, &node, take_of_object(*fd)?, *can_read, *can_write));
            }
        }
        Ok((Arc::new(Self { inner }), files))
    }

    /// The program before does not take the store back any more: its end releases the directory.
    pub fn settle(&self) {
        if let Some(lock) = self.inner.lock.lock().as_mut() {
            lock.set_shared(false);
        }
    }
}

impl Inner {
    pub(super) fn take_over_dir(&self, id: ObjectId, fd: OwnedFd) -> Result<Arc<dyn Dir>> {
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
