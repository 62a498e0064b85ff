//! A namespace: the interface of the crate.

use std::path::Path;
use std::sync::Arc;

use rcu::Domain;

use crate::change::Change;
use crate::error::{Error, Holder, Result};
use crate::mount::{Mount, MountId, PathRef, VfsPath};
use crate::superblock::{Inode, Kind, SuperblockRef};
use crate::teardown::{OnDemand, Teardown};
use crate::tree::{Node, Ns, Options, PropagationState};
use crate::walk::{Base, FinalSymlink};

/// A tree of mounts, with its own readers.
///
/// The handle that [`new`](Self::new), [`try_clone`](Self::try_clone) or
/// [`try_beside`](Self::try_beside) gave ends the namespace when it is dropped.
#[derive(Debug)]
pub struct Namespace {
    pub(crate) ns: Arc<Ns>,
    rights: Rights,
    is_owner: bool,
}

/// The rights of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Everything.
    Change,
    /// Walk, and pin paths.
    Walk,
}

/// Figures of a namespace since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Mounts that are in it.
    pub mounts: usize,
    /// Walks that had to start again because mounts changed.
    pub restarts: u64,
    /// Walks that went on with references.
    pub ref_walks: u64,
    /// Mounts that left it.
    pub unmounts: u64,
    /// Unmounts that had to wait for a grace period.
    pub waits: u64,
}

/// A mount, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// Its number.
    pub mount: MountId,
    /// Its mountpoint; `None` for the namespace's root.
    pub on: Option<VfsPath>,
    /// The inode of its superblock that it shows.
    pub root: Inode,
    /// The group of its peers.
    pub shared: Option<u64>,
    /// The group whose changes it receives.
    pub master: Option<u64>,
    /// A bind does not copy it.
    pub is_unbindable: bool,
    /// The holders of pins on it.
    pub holders: Vec<Holder>,
}

impl Namespace {
    /// A namespace with `root` as its root.
    ///
    /// # Errors
    /// [`Error::Ended`] if that was shut down.
    pub fn new(root: &SuperblockRef, options: Options) -> Result<Self> {
        Self::with_teardown(root, options, Arc::new(OnDemand))
    }

    /// A namespace with another way to end mounts, for experiments.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[doc(hidden)]
    pub fn with_teardown(
        root: &SuperblockRef,
        options: Options,
        teardown: Arc<dyn Teardown>,
    ) -> Result<Self> {
        root.grab()?;
        let ns = Ns::new(Arc::default(), options, teardown);
        Ok(Self::with_root(ns, root))
    }

    /// An empty one, with a mount of a superblock, which the caller has grabbed, as its root.
    pub(crate) fn with_root(ns: Arc<Ns>, root: &SuperblockRef) -> Self {
        let mount = Mount::new(&ns.core, root.clone(), (root.superblock().root(), Kind::Directory), None);
        let mut change = Change::default();
        ns.propagation_domain.tree.lock().set_root(&ns, &mount, PropagationState::default(), &mut change);
        change.retire();
        Self::of(ns)
    }

    pub(crate) fn of(ns: Arc<Ns>) -> Self {
        Self { ns, rights: Rights::Change, is_owner: true }
    }

    /// Another handle, which does not end the namespace when it is dropped.
    #[must_use]
    pub fn handle(&self, rights: Rights) -> Self {
        let rights = if self.rights == Rights::Walk { Rights::Walk } else { rights };
        Self { ns: Arc::clone(&self.ns), rights, is_owner: false }
    }

    pub(crate) fn check_rights(&self) -> Result<()> {
        if self.rights == Rights::Change { Ok(()) } else { Err(Error::NotPermitted) }
    }

    /// The mount and inode that a path leads to at a moment of the call. Keeps nothing: takes no
    /// lock and writes no memory that other threads read, unless it has to wait for a
    /// superblock or mounts change meanwhile.
    ///
    /// # Errors
    /// Those of the walk: [`Error::NoEntry`], [`Error::NotDirectory`], [`Error::TooManyLinks`],
    /// those of superblocks, and [`Error::NotHere`] if the start is gone.
    pub fn resolve<'a>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        last: FinalSymlink,
    ) -> Result<(VfsPath, Kind)> {
        self.ns.resolve(start.into(), path.as_ref(), last)
    }

    /// Like [`resolve`](Self::resolve), and keeps the mount: a refused unmount reports `holder`.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn pin<'a>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        last: FinalSymlink,
        holder: impl Into<Holder>,
    ) -> Result<PathRef> {
        self.ns.pin(start.into(), path.as_ref(), last, &holder.into())
    }

    /// Calls `look` on the inode that a path leads to: the mount does not end meanwhile. No unmount
    /// reports a holder; a synchronous one is not refused, but waits until `look` returns, so that
    /// this must not take long.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn visit<'a, T>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        last: FinalSymlink,
        look: impl FnOnce(&SuperblockRef, Inode, Kind) -> T,
    ) -> Result<T> {
        self.ns.visit(start.into(), path.as_ref(), last, look)
    }

    /// The mount on this mountpoint, if any.
    #[must_use]
    pub fn mounted_on(&self, place: VfsPath) -> Option<MountId> {
        let guard = self.ns.core.domain.read();
        self.ns.by_mountpoint.find((place.mount.0, place.inode.0), &guard).map(|mount| mount.id)
    }

    /// The superblock of the mount with this number.
    #[must_use]
    pub fn superblock(&self, mount: MountId) -> Option<SuperblockRef> {
        let guard = self.ns.core.domain.read();
        self.ns.by_id.find((mount.0, 0), &guard).map(|mount| mount.superblock.clone())
    }

    /// The number of the root's mount; `None` once the namespace has ended.
    #[must_use]
    pub fn root(&self) -> Option<MountId> {
        self.ns.root_id()
    }

    /// All mounts, parents before children.
    #[must_use]
    pub fn mounts(&self) -> Vec<MountInfo> {
        let root = {
            let guard = self.ns.core.domain.read();
            self.ns.root.load(&guard).as_ref().map(|root| root.id)
        };
        let tree = self.ns.propagation_domain.tree.lock();
        let Some(root) = root.filter(|root| tree.nodes.contains_key(root)) else { return Vec::new() };
        tree.breadth_first(root).into_iter().filter_map(|id| tree.nodes.get(&id)).map(info).collect()
    }

    /// The figures so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.ns.core.counters;
        Stats {
            mounts: self.ns.propagation_domain.tree.lock().counts.get(&self.ns.core.id).copied().unwrap_or(0),
            restarts: counters.restarts.get(),
            ref_walks: counters.ref_walks.get(),
            unmounts: counters.unmounts.get(),
            waits: counters.waits.get(),
        }
    }

    /// Its readers, for experiments.
    #[doc(hidden)]
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.ns.core.domain
    }

    /// Ends the namespace: on return no path leads anywhere, and every superblock whose last mounts
    /// were here, and that has no pins or active references, is shut down.
    pub fn end(self) {
        drop(self);
    }

    /// Ends a namespace that other handles still use: they find nothing. If it was ended before, or
    /// is just being ended, the call returns at once.
    ///
    /// # Errors
    /// [`Error::NotPermitted`].
    pub fn shut(&self) -> Result<()> {
        self.shut_with(|_| {})
    }

    /// Like [`shut`](Self::shut); calls `left` with the mounts that go, once no walk finds them and
    /// before they are ended: no lock is held.
    ///
    /// # Errors
    /// [`Error::NotPermitted`].
    pub fn shut_with(&self, left: impl FnOnce(&[MountId])) -> Result<()> {
        self.check_rights()?;
        self.ns.end(left);
        Ok(())
    }

    /// The inode that the mount with this number shows of its superblock; `None` if the mount is
    /// not in this namespace.
    #[must_use]
    pub fn root_of(&self, mount: MountId) -> Option<Inode> {
        let guard = self.ns.core.domain.read();
        self.ns.by_id.find((mount.0, 0), &guard).map(|mount| mount.root)
    }
}

fn info(node: &Node) -> MountInfo {
    MountInfo {
        mount: node.mount.id,
        on: node.parent,
        root: node.mount.root,
        shared: node.propagation.group,
        master: node.propagation.master,
        is_unbindable: node.propagation.is_unbindable,
        holders: node.mount.refs.pinned_by(),
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.is_owner {
            self.ns.end(|_| {});
        }
    }
}
