//! Changes that are not durable yet, and making them so.
//!
//! `syncfs` would wait for other programs that write to the host's disk. So the store remembers
//! which of its own objects changed since they were last synced, and syncs just those.
//!
//! # State, per object ([`SyncState`], protected by its lock)
//! A clock counts the object's changes. `data_at` and `attrs_at` say when its data (a directory's
//! entries) and its attributes last changed, `data_synced` and `attrs_synced` up to which change
//! they are durable. An object with changes that are not durable, or with a failure, is *queued*
//! and pinned in the table: a later look-up or opening meets the same state.
//!
//! Every change is counted **after** its system call and every sync reads the clock **before** its
//! own: a call that had returned when a sync began is covered by it.
//!
//! # Names
//! `names` holds the directories in which the object got a name, each with the directory's clock
//! after that change. [`Inner::sync_names`] syncs those that are not durable that far, and their
//! own names in turn, so that a whole new path survives.
//!
//! # Failures
//! After a failed sync the kernel takes the pages for clean: a repeated sync would succeed and not
//! report the loss. So a failure stays with the object, and is reported again, until the object was
//! written anew *and* that was synced.
//!
//! # Bound
//! Each queued object costs memory and a descriptor, so that their number is bounded to a share of
//! the descriptors. Over the bound, the caller that makes the next change syncs the oldest
//! sixteenth first: as a batch, which starts the output of all before it waits for the first,
//! because one at a time would cost a journal commit for each file of a large unpacked archive. One
//! caller does that while others go on, up to a quarter over the bound; from there on all callers
//! wait.
//!
//! # What cannot be synced
//! Symbolic links and special files cannot be opened. Their names are durable with their directory;
//! a later change of their own attributes is when the host's journal next commits.
//!
//! Lock order: `DirNode::syncing`, then `DirNode::sync`, then `Unsynced::queue`, then the table's
//! shards. `Unsynced::relieving` comes before all of them, `Inner::spare` between a directory's
//! `DirNode::syncing` and a file's. `DirNode::data` is never held with these.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sync::atomic::{AtomicUsize, Ordering};
use sync::{Mutex, StatCounter};

use super::node::DirNode;
use super::{Inner, errno, sys};
use crate::{Error, ErrorKind, FileType, Result};

/// Descriptors that one batch opens at most.
const BATCH: usize = 256;
/// Threads that sync at a time.
const THREADS: usize = 4;
/// Stack of each but the calling one.
const STACK_SIZE: usize = 256 << 10;

/// Names that an object may have noted before they are scanned.
const NAMES_LOOK: usize = 8;

/// The kinds of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// A file's data or size, a directory's entries.
    Data,
    /// Attributes.
    Attrs,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct SyncState {
    clock: u64,
    data_at: u64,
    attrs_at: u64,
    data_synced: u64,
    attrs_synced: u64,
    failed: Option<Failure>,
    queued: Option<u64>,
    /// A descriptor of the data, where it might not be possible to open it again.
    kept: Option<Arc<OwnedFd>>,
    names: Vec<NameIn>,
    /// How many of them were needed when they were last scanned.
    names_kept: usize,
}

#[derive(Debug, Clone, Copy)]
struct Failure {
    kind: ErrorKind,
    at: u64,
}

/// The object got a name in `parent` when the parent's clock was `at`.
#[derive(Debug, Clone)]
struct NameIn {
    parent: Arc<DirNode>,
    at: u64,
}

impl NameIn {
    /// The name is durable, and so are the directory's own.
    fn is_settled(&self) -> bool {
        let parent = self.parent.sync.lock();
        parent.data_synced >= self.at && parent.names.is_empty()
    }
}

impl SyncState {
    fn is_clean(&self) -> bool {
        self.data_at <= self.data_synced && self.attrs_at <= self.attrs_synced && self.failed.is_none()
    }

    fn settle(&mut self, up_to: u64, attrs_too: bool) {
        self.data_synced = self.data_synced.max(up_to);
        if attrs_too {
            self.attrs_synced = self.attrs_synced.max(up_to);
        }
    }
}

/// The queue of objects that are not durable.
#[derive(Debug)]
pub(crate) struct Unsynced {
    queue: Mutex<Queue>,
    relieving: Mutex<()>,
    bound: usize,
    pub(crate) data_syncs: StatCounter,
    pub(crate) dir_syncs: StatCounter,
    pub(crate) relieved: StatCounter,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// Oldest first.
    nodes: BTreeMap<u64, Arc<DirNode>>,
}

impl Unsynced {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            queue: Mutex::new(Queue::default()),
            relieving: Mutex::new(()),
            bound: bound.max(8),
            data_syncs: StatCounter::default(),
            dir_syncs: StatCounter::default(),
            relieved: StatCounter::default(),
        }
    }

    /// Objects that are not durable.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().nodes.len()
    }

    fn push(&self, node: &Arc<DirNode>) -> u64 {
        let mut queue = self.queue.lock();
        queue.next += 1;
        let number = queue.next;
        queue.nodes.insert(number, Arc::clone(node));
        number
    }

    fn remove(&self, number: u64) {
        let gone = self.queue.lock().nodes.remove(&number);
        drop(gone);
    }

    fn oldest(&self, n: usize) -> Vec<Arc<DirNode>> {
        self.queue.lock().nodes.values().take(n).cloned().collect()
    }

    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut self.queue.lock().nodes);
        for node in old.values() {
            let mut state = node.sync.lock();
            state.queued = None;
            let _names = std::mem::take(&mut state.names);
        }
    }
}

impl Inner {
    /// Counts a change of `node`, and says the node's clock after it. To be called after the system
    /// call that made the change, without any lock.
    pub(crate) fn changed(&self, node: &Arc<DirNode>, what: Change) -> u64 {
        let (clock, is_new) = {
            let mut state = node.sync.lock();
            state.clock += 1;
            match what {
                Change::Data => state.data_at = state.clock,
                Change::Attrs => state.attrs_at = state.clock,
            }
            (state.clock, self.enqueue(node, &mut state))
        };
        if is_new {
            self.relieve();
        }
        clock
    }

    /// Queues an object that is not queued yet; says whether it did.
    fn enqueue(&self, node: &Arc<DirNode>, state: &mut SyncState) -> bool {
        let is_new = state.queued.is_none() && node.can_be_opened();
        if is_new {
            state.queued = Some(self.unsynced.push(node));
            self.table.pin(node);
        }
        is_new
    }

    /// Counts that `node` got a name in `parent`.
    pub(crate) fn named(&self, node: &DirNode, parent: &Arc<DirNode>) {
        let at = self.changed(parent, Change::Data);
        Self::note_name(node, parent, at);
    }

    /// Notes that a name of `node` may not be durable before `parent` is, up to its clock `at`.
    pub(crate) fn note_name(node: &DirNode, parent: &Arc<DirNode>, at: u64) {
        let crowd = {
            let mut state = node.sync.lock();
            match state.names.iter_mut().find(|n| n.parent.id == parent.id) {
                Some(name) => name.at = at,
                None => state.names.push(NameIn { parent: Arc::clone(parent), at }),
            }
            if state.names.len() < NAMES_LOOK.max(state.names_kept * 2) {
                return;
            }
            state.names.clone()
        };
        // Each name holds a directory, which may be long gone: a file that is moved about must not
        // collect them.
        let (kept, settled): (Vec<_>, Vec<_>) = crowd.into_iter().partition(|name| !name.is_settled());
        let mut state = node.sync.lock();
        state.names_kept = kept.len();
        state.names.retain(|name| !settled.iter().any(|s| s.parent.id == name.parent.id && s.at >= name.at));
    }

    /// The clock of `dir`'s last change, if its entries are not all durable.
    pub(crate) fn unsynced_entries(dir: &DirNode) -> Option<u64> {
        let state = dir.sync.lock();
        (state.data_at > state.data_synced).then_some(state.data_at)
    }

    /// Keeps `fd` for the sync to come, if there is one.
    pub(crate) fn keep_for_sync(node: &DirNode, fd: &Arc<OwnedFd>) {
        let mut state = node.sync.lock();
        if !state.is_clean() {
            state.kept = Some(Arc::clone(fd));
        }
    }

    /// Makes one object durable: its data, its attributes too unless `data_only`.
    pub(crate) fn sync_node(&self, node: &Arc<DirNode>, fd: &OwnedFd, data_only: bool) -> Result<()> {
        let op = "sync";
        let Some(_only_one) = Self::wait_for_sync(node, data_only) else { return Ok(()) };
        let up_to = node.sync.lock().clock;
        let result = if node.kind == FileType::Directory {
            self.unsynced.dir_syncs.add(1);
            rustix::fs::fsync(fd)
        } else {
            self.unsynced.data_syncs.add(1);
            if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }
        };
        let mut state = node.sync.lock();
        match result {
            // Not every file system can sync a directory; then there is nothing to wait for.
            Err(Errno::INVAL) if node.kind == FileType::Directory => state.settle(up_to, true),
            Err(e) => {
                let kind = ErrorKind::of(e);
                // Data written while the sync went on may be lost as well.
                state.failed = Some(Failure { kind, at: state.clock });
                self.enqueue(node, &mut state);
                return Err(Error::new(kind, op));
            }
            Ok(()) => {
                state.settle(up_to, !data_only);
                if let Some(failure) = state.failed {
                    let was_written_anew = state.data_at > failure.at && up_to > failure.at;
                    if node.kind != FileType::Directory && !was_written_anew {
                        return Err(Error::new(failure.kind, op));
                    }
                    state.failed = None;
                }
            }
        }
        self.dequeue_if_clean(node, state);
        Ok(())
    }

    /// Keeps other syncs of the same file away: of several that use the same descriptor, the kernel
    /// reports a failure to one only. `None` if a sync that began after this call covers it.
    fn wait_for_sync(node: &DirNode, data_only: bool) -> Option<Option<sync::MutexGuard<'_, ()>>> {
        if node.kind == FileType::Directory {
            return Some(None);
        }
        if let Some(guard) = node.syncing.try_lock() {
            return Some(Some(guard));
        }
        let up_to = node.sync.lock().clock;
        let guard = node.syncing.lock();
        let state = node.sync.lock();
        let is_done = state.failed.is_none()
            && state.data_synced >= up_to
            && (data_only || state.attrs_synced >= up_to);
        if is_done { None } else { Some(Some(guard)) }
    }

    fn dequeue_if_clean(&self, node: &DirNode, mut state: sync::MutexGuard<'_, SyncState>) {
        if !state.is_clean() {
            return;
        }
        let kept = state.kept.take();
        let queued = state.queued.take();
        drop(state);
        drop(kept);
        if let Some(number) = queued {
            self.unsynced.remove(number);
            // If other pins are left the object is open, and is checked when it is closed.
            let _ = self.table.unpin(node);
        }
    }

    /// Takes `node` for durable: it has no name any more.
    ///
    /// `up_to` is its clock from before the scan of its names: a file may get a name again after
    /// that.
    fn settle_unlinked(&self, node: &DirNode, up_to: u64) {
        let mut state = node.sync.lock();
        state.settle(up_to, true);
        if state.clock == up_to {
            state.failed = None;
        }
        // A directory gets no name again.
        let names =
            if node.kind == FileType::Directory { std::mem::take(&mut state.names) } else { Vec::new() };
        self.dequeue_if_clean(node, state);
        drop(names);
    }

    /// Drops an object that cannot be reached any more and that only waits to be synced:
    /// without a name there is nothing to sync, and its space is to be free at once.
    pub(crate) fn drop_unlinked(&self, left_over: Option<Arc<DirNode>>) {
        let Some(node) = left_over else { return };
        let is_open = node.data.lock().strong_count() > 0;
        if is_open {
            return;
        }
        let up_to = node.sync.lock().clock;
        let is_unlinked = self
            .fd(&node, "forget")
            .and_then(|path| self.stat(path.as_fd(), "forget"))
            .is_ok_and(|stat| stat.stx_nlink == 0);
        if is_unlinked {
            self.settle_unlinked(&node, up_to);
        }
    }

    /// Makes the names of `node` durable, and those of the directories above it that are new. No
    /// name is struck off before all of it is done: a caller that comes meanwhile, or after a
    /// failure, has to do it, too.
    pub(crate) fn sync_names(&self, node: &Arc<DirNode>) -> Result<()> {
        let mut seen = Vec::new();
        let mut done = Vec::new();
        let mut todo = vec![Arc::clone(node)];
        while let Some(node) = todo.pop() {
            let names = node.sync.lock().names.clone();
            for name in names {
                self.sync_entries(&name.parent, name.at)?;
                if !seen.contains(&name.parent.id) {
                    seen.push(name.parent.id);
                    todo.push(Arc::clone(&name.parent));
                }
                done.push((Arc::clone(&node), name));
            }
        }
        for (node, name) in done {
            node.sync.lock().names.retain(|n| n.parent.id != name.parent.id || n.at > name.at);
        }
        Ok(())
    }

    /// Makes the entries of `dir` durable up to its clock `at`; once for all the callers that wait.
    fn sync_entries(&self, dir: &Arc<DirNode>, at: u64) -> Result<()> {
        if dir.sync.lock().data_synced >= at {
            return Ok(());
        }
        let _only_one = dir.syncing.lock();
        if dir.sync.lock().data_synced >= at {
            return Ok(());
        }
        self.with_spare(|| self.open_for_sync(dir)?.map_or(Ok(()), |fd| self.sync_node(dir, &fd, false)))
    }

    /// A descriptor to sync `node` with; `None` if it has no name any more, so that it need not be.
    fn open_for_sync(&self, node: &Arc<DirNode>) -> Result<Option<Arc<OwnedFd>>> {
        let op = "sync";
        let path = self.fd(node, op)?;
        let up_to = node.sync.lock().clock;
        let stat = self.stat(path.as_fd(), op)?;
        if stat.stx_nlink == 0 {
            self.settle_unlinked(node, up_to);
            return Ok(None);
        }
        let open = node.data.lock().upgrade();
        if let Some(file) = open {
            return Ok(Some(Arc::clone(&file.fd)));
        }
        let kept = node.sync.lock().kept.clone();
        if kept.is_some() {
            return Ok(kept);
        }
        let opened = if node.kind == FileType::Directory {
            self.open_entries(&path)
        } else {
            match self.reopen(path.as_fd(), OFlags::RDONLY) {
                Err(Errno::ACCESS) => self.reopen(path.as_fd(), OFlags::WRONLY),
                other => other,
            }
        };
        opened.map(|fd| Some(Arc::new(fd))).map_err(errno::failed(op))
    }

    /// Makes durable all changes of the store that were complete when the call began.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.sync_batch(self.unsynced.oldest(usize::MAX))
    }

    /// Syncs the oldest objects when there are too many.
    fn relieve(&self) {
        let len = self.unsynced.len();
        if len <= self.unsynced.bound {
            return;
        }
        let _relieving = if len > self.unsynced.bound / 4 * 5 {
            self.unsynced.relieving.lock()
        } else {
            match self.unsynced.relieving.try_lock() {
                Some(guard) => guard,
                None => return,
            }
        };
        if self.unsynced.len() <= self.unsynced.bound {
            return;
        }
        let oldest = self.unsynced.oldest((self.unsynced.bound / 16).max(1));
        self.unsynced.relieved.add(oldest.len() as u64);
        if let Err(error) = self.sync_batch(oldest.clone()) {
            // Not this caller's failure: it stays with its object, and a sync of that reports it.
            tracing::warn!(store = %self.path.display(), %error, "early sync failed");
            self.move_failed_back(&oldest);
        }
    }

    /// Failed objects go to the end of the queue, so that the next batch finds others.
    fn move_failed_back(&self, nodes: &[Arc<DirNode>]) {
        for node in nodes {
            let mut state = node.sync.lock();
            if state.failed.is_some()
                && let Some(number) = state.queued
            {
                self.unsynced.remove(number);
                state.queued = Some(self.unsynced.push(node));
            }
        }
    }

    /// Syncs files, then directories; reports the first failure after trying all.
    fn sync_batch(&self, nodes: Vec<Arc<DirNode>>) -> Result<()> {
        let (dirs, files): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|n| n.kind == FileType::Directory);
        let mut result = Ok(());
        for chunk in files.chunks(BATCH).chain(dirs.chunks(BATCH)) {
            let done = self.sync_chunk(chunk);
            result = result.and(done);
        }
        result
    }

    fn sync_chunk(&self, nodes: &[Arc<DirNode>]) -> Result<()> {
        let first_error = Mutex::new(None);
        let fail = |error| {
            first_error.lock().get_or_insert(error);
        };
        let mut jobs = Vec::with_capacity(nodes.len());
        let mut rest = Vec::new();
        for node in nodes {
            match self.open_for_sync(node) {
                Ok(None) => {}
                Ok(Some(fd)) => {
                    if node.kind == FileType::Regular && node.sync.lock().data_at > 0 {
                        // Only a head start; the sync below reports errors.
                        let _ = sys::start_writing(fd.as_fd());
                    }
                    jobs.push((node, fd));
                }
                Err(error) if error.kind() == ErrorKind::TooManyFiles => rest.push(node),
                Err(error) => fail(error),
            }
        }
        let sync = |node: &Arc<DirNode>, fd: &OwnedFd| {
            let data_only = {
                let state = node.sync.lock();
                if state.is_clean() {
                    return Ok(());
                }
                state.attrs_at <= state.attrs_synced
            };
            self.sync_node(node, fd, data_only)
        };
        parallel(&jobs, |(node, fd)| {
            if let Err(error) = sync(node, fd) {
                fail(error);
            }
        });
        drop(jobs);
        for node in rest {
            let one = || self.open_for_sync(node)?.map_or(Ok(()), |fd| sync(node, &fd));
            if let Err(error) = self.with_spare(one) {
                fail(error);
            }
        }
        first_error.into_inner().map_or(Ok(()), Err)
    }

    /// Makes a spare descriptor if there is none, now that an object was opened.
    pub(crate) fn keep_spare(&self) {
        // The thread that holds the lock is about to do so.
        if let Some(mut spare) = self.spare.try_lock()
            && spare.is_none()
        {
            *spare = spare_descriptor(&self.proc_fds);
        }
    }

    /// Does `work`, which opens one descriptor for itself, also when no other descriptor is left.
    pub(crate) fn with_spare(&self, work: impl Fn() -> Result<()>) -> Result<()> {
        match work() {
            Err(error) if error.kind() == ErrorKind::TooManyFiles => {
                let mut spare = self.spare.lock();
                drop(spare.take());
                let result = work();
                *spare = spare_descriptor(&self.proc_fds);
                result
            }
            other => other,
        }
    }
}

/// A descriptor that is only there to be closed when another one is needed.
fn spare_descriptor(any: &OwnedFd) -> Option<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(any, 0).ok()
}

/// Calls `work` for each job, on a few threads where there are enough. Without another thread this
/// one does it all.
fn parallel<J: Sync>(jobs: &[J], work: impl Fn(&J) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        // ORDERING: Relaxed. The index only hands out jobs; the scope's end publishes their
        // results.
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(job);
        }
    };
    let helpers = (jobs.len() / 2).min(THREADS).saturating_sub(1);
    sync::thread::run_scoped(helpers, STACK_SIZE, run);
}
