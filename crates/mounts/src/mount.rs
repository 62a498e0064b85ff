//! A mount, analogous to Linux's `struct mount`, and references to it.

use std::fmt;
use std::sync::Arc;

use rcu::{Domain, RcuCell};
use sync::{StatCounter, shards};

use crate::error::Holder;
use crate::protocol::{Legitimized, MountLock, PinKey, Put, Refs};
use crate::superblock::{Inode, Kind, SuperblockRef};

/// A mount's number, never used again in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountId(pub u64);

/// A mount and an inode, found without keeping anything. Analogous to Linux's `struct path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VfsPath {
    /// The mount.
    pub mount: MountId,
    /// The inode in its superblock.
    pub inode: Inode,
}

/// The part that all mounts of one namespace share: its readers and its lock.
#[derive(Debug)]
pub(crate) struct NsCore {
    pub(crate) id: u64,
    pub(crate) domain: Domain,
    pub(crate) lock: MountLock,
    pub(crate) counters: Counters,
}

/// The mountpoint of a mount.
#[derive(Debug, Clone)]
pub(crate) struct Parent {
    pub(crate) mount: Arc<Mount>,
    pub(crate) at: Inode,
}

impl Parent {
    pub(crate) fn path(&self) -> VfsPath {
        VfsPath { mount: self.mount.id, inode: self.at }
    }
}

/// A superblock, or a part of it, at a mountpoint of a namespace. Immutable except for the
/// protocol's counts and for its parent, which changes under the namespace's lock.
pub(crate) struct Mount {
    pub(crate) id: MountId,
    pub(crate) superblock: SuperblockRef,
    /// The inode that is seen at the mountpoint; `kind` is its kind.
    pub(crate) root: Inode,
    pub(crate) kind: Kind,
    pub(crate) core: Arc<NsCore>,
    pub(crate) refs: Refs<Holder>,
    /// None: the namespace's root, or gone.
    pub(crate) parent: RcuCell<Option<Parent>>,
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("id", &self.id).field("root", &self.root).finish_non_exhaustive()
    }
}

/// Shards of each mount's counters at most.
const SHARDS_MAX: usize = 16;

impl Mount {
    /// A mount that the namespace holds; the caller has grabbed the superblock for it.
    pub(crate) fn new(
        core: &Arc<NsCore>,
        superblock: SuperblockRef,
        root: (Inode, Kind),
        parent: Option<Parent>,
    ) -> Arc<Self> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            // ORDERING: Relaxed, only a number of its own for each.
            id: MountId(NEXT.fetch_add(1, Ordering::Relaxed)),
            superblock,
            root: root.0,
            kind: root.1,
            core: Arc::clone(core),
            refs: Refs::new(shards::count(SHARDS_MAX)),
            parent: RcuCell::new(&core.domain, parent),
        })
    }

    /// Takes a reference on a mount that a walk has found in its section, begun with `seq`. Mounts
    /// changed: perhaps with a reference, which must be dropped outside of the section.
    pub(crate) fn legitimize_mnt(self: &Arc<Self>, seq: u64) -> Result<MountRef, Option<MountRef>> {
        let counted = || MountRef::new(Arc::clone(self));
        match self.refs.legitimize(&self.core.lock, seq, shards::of_this_thread()) {
            Legitimized::Held => Ok(counted()),
            Legitimized::Changed => Err(None),
            Legitimized::MustPut => Err(Some(counted())),
        }
    }

    /// Gives a reference back; runs the clean-up if it was the last one. Not in a read section, nor
    /// under locks.
    pub(crate) fn put(&self) {
        if self.refs.put(&self.core.domain, &self.core.lock, shards::of_this_thread()) == Put::Last {
            self.clean_up();
        }
    }

    /// The clean-up, run by the thread that set `DOOMED`.
    pub(crate) fn clean_up(&self) {
        self.superblock.release();
    }
}

/// A reference of a walk that is under way.
#[derive(Debug)]
pub(crate) struct MountRef(Option<Arc<Mount>>);

impl MountRef {
    /// Takes over a reference that was counted.
    pub(crate) fn new(mount: Arc<Mount>) -> Self {
        Self(Some(mount))
    }

    /// One more reference, beside one that the caller knows of.
    pub(crate) fn mntget(mount: &Arc<Mount>) -> Self {
        mount.refs.get(shards::of_this_thread());
        Self(Some(Arc::clone(mount)))
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        self.0.as_ref().expect("taken only by its end")
    }

    /// Gives it a name; `None` if the mount is being unmounted.
    pub(crate) fn pin(mut self, inode: Inode, holder: Holder) -> Option<PathRef> {
        let key = self.mount().refs.pin(shards::of_this_thread(), holder.clone())?;
        let mount = self.0.take().expect("taken only by its end");
        Some(PathRef { mount, inode, key, holder })
    }
}

impl Drop for MountRef {
    fn drop(&mut self) {
        if let Some(mount) = self.0.take() {
            mount.put();
        }
    }
}

/// Keeps a mount. A refused unmount reports its holder; after a lazy unmount the mount stays as
/// long as it has pins.
///
/// The drop of the last pin of an unmounted mount shuts its superblock down, if this was the
/// superblock's last mount, before it returns.
#[derive(Debug)]
pub struct PathRef {
    mount: Arc<Mount>,
    inode: Inode,
    key: PinKey,
    holder: Holder,
}

impl PathRef {
    /// The mount's number.
    #[must_use]
    pub fn mount(&self) -> MountId {
        self.mount.id
    }

    /// The inode where the walk ended.
    #[must_use]
    pub fn inode(&self) -> Inode {
        self.inode
    }

    /// The mounted superblock.
    #[must_use]
    pub fn superblock(&self) -> &SuperblockRef {
        &self.mount.superblock
    }

    /// The holder's name.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Whether the mount is still in its namespace.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.mount.refs.flags() == 0
    }

    pub(crate) fn arc(&self) -> &Arc<Mount> {
        &self.mount
    }
}

impl Drop for PathRef {
    fn drop(&mut self) {
        self.mount.refs.unpin(self.key);
        self.mount.put();
    }
}

/// Figures of a namespace, for people.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) restarts: StatCounter,
    pub(crate) ref_walks: StatCounter,
    pub(crate) unmounts: StatCounter,
    pub(crate) waits: StatCounter,
}
