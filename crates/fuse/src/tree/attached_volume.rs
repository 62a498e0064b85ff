//! A volume in the tree.
//!
//! Requests for a volume that was attached are served in a read section of the volume's own, so
//! that its end can wait for them: after it no request calls the store. The section lasts as long
//! as the request; where a store hangs, only its own volume's end hangs. The root volume's requests
//! are not in sections: it ends with the connection.
//!
//! # Orderings
//! P1: a request opens a section, then reads `is_closed`; the end sets it, then waits for a
//! grace period. Either the request sees that it is closed, or it is waited for.
//!
//! P2: `attachments` is raised before a second mount can be walked. A look-up that did not see it
//! answers for the first place only, and holds the directory's lock in the kernel: a change through
//! the second place is reported to the first after that answer.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mounts::{ActiveRef, Inode, Superblock};
use rcu::{Domain, Guard};
use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Mutex, RwLock};
use volume::{Cancel, CgroupPath, DrainReport, HandleId, NodeId, Volume};

use super::wire::{self, NodeTag};
use crate::device::Dev;
use crate::invalidations::InvalidationQueue;
use crate::notify::{Invalidation, NotifyError};
use crate::sync_all::{Skipped, SyncTarget};

/// How long the end of a volume that was given up is waited for where no call of its store hangs.
const ABORT_WAIT: Duration = Duration::from_secs(2);

/// Called when a volume has ended, with how it did.
pub type OnEnd = Box<dyn FnOnce(&DrainReport) + Send>;

/// A volume in the tree.
pub(crate) struct AttachedVolume {
    pub(crate) volume: Arc<Volume>,
    /// The tag of its files.
    pub(crate) tag: NodeTag,
    pub(crate) is_read_only: bool,
    /// How long the kernel may remember what others change elsewhere; none: nobody does.
    pub(crate) may_be_kept: Option<Duration>,
    /// The read sections of requests in hand.
    domain: Domain,
    is_closed: AtomicBool,
    /// Callers that wait for it get an error. Its orderings are those of module
    /// `admission::stall_quota`.
    pub(crate) is_aborted: AtomicBool,
    /// When it was given up.
    aborted_at: OnceLock<Instant>,
    /// The mounts through which its directories are seen, by tag; and how many.
    mounts: RwLock<Vec<NodeTag>>,
    attachments: AtomicUsize,
    /// Notifies the kernel of changes of its names.
    pub(crate) invalidations: Arc<InvalidationQueue>,
    /// Held by a thread that attaches something to a directory of this volume, and (shared) by a
    /// thread that takes or moves a directory's name.
    pub(crate) names: RwLock<()>,
    /// The number of the last stall for which the log says that a sync left this volume out.
    skip_logged: AtomicU64,
    /// Open files, and open directories.
    open_refs: Mutex<HashMap<(Open, HandleId), ActiveRef>>,
    on_end: Mutex<Option<OnEnd>>,
}

/// The kinds of open objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) enum Open {
    File,
    Directory,
}

impl fmt::Debug for AttachedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedVolume").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl AttachedVolume {
    pub(crate) fn new(volume: Arc<Volume>, tag: NodeTag, is_read_only: bool, on_end: Option<OnEnd>) -> Self {
        Self {
            may_be_kept: volume.may_be_kept(),
            volume,
            tag,
            is_read_only,
            domain: Domain::new(),
            is_closed: AtomicBool::new(false),
            is_aborted: AtomicBool::new(false),
            aborted_at: OnceLock::new(),
            mounts: RwLock::default(),
            attachments: AtomicUsize::new(0),
            invalidations: Arc::default(),
            names: RwLock::default(),
            skip_logged: AtomicU64::new(0),
            open_refs: Mutex::default(),
            on_end: Mutex::new(on_end),
        }
    }

    /// Has the kernel forget what it remembers of files that others have changed elsewhere. Names, and
    /// attributes of directories, it asks for again soon: see `may_be_kept`.
    pub(crate) fn forget_changed(&self, dev: &Arc<Dev>) {
        let (tag, dev, invalidations) = (self.tag, Arc::downgrade(dev), Arc::downgrade(&self.invalidations));
        self.volume.on_change(Arc::new(move |file| {
            let (Some(dev), Some(invalidations)) = (dev.upgrade(), invalidations.upgrade()) else {
                return true;
            };
            let Some(node) = wire::join(tag, file) else { return true };
            let changed = Invalidation::Inode { id: store::ObjectId(node), offset: 0, len: 0 };
            match invalidations.invalidate(&dev, [changed]) {
                Ok(()) | Err(NotifyError::Ended) => true,
                Err(NotifyError::Full | NotifyError::NoThread) => false,
            }
        }));
    }

    /// The right to ask the volume; none if it is ending.
    pub(crate) fn enter(&self) -> Option<Guard<'_>> {
        let section = self.domain.read();
        // ORDERING: Relaxed, P1: the section's own barrier, and that of the grace period.
        (!self.is_closed.load(Ordering::Relaxed)).then_some(section)
    }

    /// Whether its end, which has begun, is not to be waited for any more: it was given up, calls
    /// that were under way then have had their time, and no data is left that could be written.
    pub(super) fn is_abandoned(&self) -> bool {
        let Some(since) = self.aborted_at.get() else { return false };
        // ORDERING: Relaxed: a thread that has not seen yet that it is ending ends it, too, and
        // finds out.
        self.is_closed.load(Ordering::Relaxed)
            && (self.volume.is_left_to_its_store(*since) || since.elapsed() >= ABORT_WAIT)
    }

    /// Whether it was given up, or its end has begun.
    pub(super) fn is_ending(&self) -> bool {
        // ORDERING: SeqCst for `is_aborted`, as where it is set. Relaxed for the other: a request
        // that comes too late is refused.
        self.is_aborted.load(Ordering::SeqCst) || self.is_closed.load(Ordering::Relaxed)
    }

    /// It will be seen through one more mount. To be called before that can be walked.
    pub(crate) fn add_mount(&self, mount: NodeTag) {
        let mut tags = self.mounts.write();
        tags.push(mount);
        // ORDERING: Release, with the Acquire in `is_shared`: P2.
        self.attachments.store(tags.len(), Ordering::Release);
    }

    /// Whether it is seen through this mount.
    pub(crate) fn is_shown_through(&self, mount: NodeTag) -> bool {
        self.mounts.read().contains(&mount)
    }

    /// No path leads through that mount any more.
    pub(crate) fn remove_mount(&self, mount: NodeTag) {
        let mut tags = self.mounts.write();
        tags.retain(|tag| *tag != mount);
        // ORDERING: Release, as above.
        self.attachments.store(tags.len(), Ordering::Release);
    }

    /// Whether its directories are seen in more than one place: the kernel has the names of a
    /// directory once for each place, and knows by itself only of changes that are made in that
    /// place.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        // ORDERING: Acquire, P2.
        self.attachments.load(Ordering::Acquire) > 1
    }

    /// The mounts through which its directories are seen, without this one.
    pub(crate) fn seen_elsewhere(&self, mount: NodeTag) -> Vec<NodeTag> {
        self.mounts.read().iter().copied().filter(|tag| *tag != mount).collect()
    }

    /// Something was opened: the volume stays until [`released`](Self::released).
    pub(crate) fn opened(&self, what: Open, handle: HandleId, hold: Option<ActiveRef>) {
        if let Some(hold) = hold {
            self.open_refs.lock().insert((what, handle), hold);
        }
    }

    /// The file or directory is closed. The hold is to be dropped outside of the volume's section:
    /// that may end the volume.
    #[must_use]
    pub(crate) fn released(&self, what: Open, handle: HandleId) -> Option<ActiveRef> {
        if self.tag == NodeTag::ROOT {
            return None;
        }
        self.open_refs.lock().remove(&(what, handle))
    }

    /// What is open of it, in a fixed order.
    pub(super) fn all_open(&self) -> Vec<(Open, HandleId)> {
        let mut open: Vec<_> = self.open_refs.lock().keys().copied().collect();
        open.sort_unstable_by_key(|(what, handle)| (*what, handle.0));
        open
    }

    fn path_of(&self, node: Inode) -> Option<std::path::PathBuf> {
        let _asked = self.enter()?;
        self.volume.path_of(store::ObjectId(node.0))
    }
}

impl SyncTarget for AttachedVolume {
    fn number(&self) -> u64 {
        self.tag.number()
    }

    fn sync(&self, by: &CgroupPath, cancel: &Cancel) -> volume::Result<()> {
        // A volume that has ended is durable, or has reported what is not.
        let Some(_asked) = self.enter() else { return Ok(()) };
        self.volume.span().in_scope(|| self.volume.sync_by(by, cancel))
    }

    fn skip_reason(&self) -> Option<Skipped> {
        // ORDERING: SeqCst, as where it is set; see P1 of `sync_all`.
        if self.is_aborted.load(Ordering::SeqCst) {
            return Some(Skipped::Aborted);
        }
        self.volume.is_known_to_stall().then_some(Skipped::Stalled)
    }

    fn name(&self) -> String {
        self.volume.name().to_owned()
    }

    fn has_unsynced_of(&self, by: &CgroupPath) -> bool {
        self.volume.has_unsynced_of(by)
    }

    fn has_open_files(&self) -> bool {
        self.volume.has_open_files()
    }

    fn log_skipped(&self) {
        let stall = self.volume.stalls();
        // ORDERING: Relaxed, nothing is published by it.
        if self.skip_logged.swap(stall, Ordering::Relaxed) != stall {
            let volume = self.volume.name();
            tracing::warn!(
                volume,
                "{volume} is left out of a sync of the mountpoint: its store does not answer; its dirty data is not durable yet"
            );
        }
    }
}

impl Superblock for AttachedVolume {
    fn root(&self) -> Inode {
        Inode(NodeId::ROOT.0)
    }

    fn is_below(&self, inode: Inode, dir: Inode) -> bool {
        match (self.path_of(inode), self.path_of(dir)) {
            (Some(inode), Some(dir)) => inode.starts_with(dir),
            _ => false,
        }
    }

    fn force(&self) {
        // ORDERING: SeqCst, P3 of `admission::stall_quota`: before the scan of the slots.
        self.is_aborted.store(true, Ordering::SeqCst);
        self.aborted_at.get_or_init(Instant::now);
        self.volume.abort();
    }

    fn may_wait(&self) -> bool {
        self.tag != NodeTag::ROOT
    }

    fn flush(&self) {
        if self.tag != NodeTag::ROOT {
            self.volume.write_back();
        }
    }

    fn shutdown(&self) {
        if self.tag == NodeTag::ROOT {
            // The connection's end is its end.
            return;
        }
        if self.is_abandoned() {
            return;
        }
        // ORDERING: Relaxed, P1: before the grace period's barrier.
        self.is_closed.store(true, Ordering::Relaxed);
        // Requests leave while the volume flushes, and no new ones come: when that is done there is
        // usually nothing to wait for.
        let report = self.volume.shutdown_beside_requests(|| {
            if !is_on("tree-end-beside-requests") {
                self.domain.synchronize_expedited();
            }
        });
        let on_end = self.on_end.lock().take();
        if let Some(on_end) = on_end
            && catch_unwind(AssertUnwindSafe(|| on_end(&report))).is_err()
        {
            tracing::error!("the handler of a volume's end panicked");
        }
    }
}
