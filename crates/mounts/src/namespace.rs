//! A namespace: the interface of the crate.

use std::path::Path;
use std::sync::Arc;

use rcu::{Domain, DomainOptions, RcuCell};

use crate::change::Change;
use crate::error::{Error, Holder, Result};
use crate::map::{Map, Old};
use crate::mount::{Counters, Home, Mount, MountId, Pin};
use crate::protocol::MountLock;
use crate::strategy::{OnDemand, Teardown};
use crate::superblock::{Inode, Kind, Super};
use crate::tree::{Family, Node, Tie, Tree};
use crate::walk::{Last, Place, Start};

/// Mounts that a namespace may have, unless its options say otherwise.
const MOUNTS_MAX: usize = 100_000;

/// How a namespace behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Mounts that it may have.
    pub mounts_max: usize,
    /// Its readers' domain.
    pub domain: DomainOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self { mounts_max: MOUNTS_MAX, domain: DomainOptions::default() }
    }
}

/// A tree of mounts, with its own readers.
///
/// The handle that [`new`](Self::new) or [`try_clone`](Self::try_clone) gave ends the namespace
/// when it is dropped.
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
    /// Walk, and keep places.
    Walk,
}

/// The part that all handles share.
#[derive(Debug)]
pub(crate) struct Ns {
    pub(crate) home: Arc<Home>,
    /// The mount on (mount, inode).
    pub(crate) by_place: Map,
    /// By (number, 0).
    pub(crate) by_id: Map,
    /// None: ended.
    pub(crate) root: RcuCell<Option<Arc<Mount>>>,
    pub(crate) family: Arc<Family>,
    pub(crate) teardown: Arc<dyn Teardown>,
    pub(crate) options: Options,
    pub(crate) counters: Counters,
}

/// Figures of a namespace since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Mounts that are in it.
    pub mounts: usize,
    /// Walks that had to start again because mounts changed.
    pub restarts: u64,
    /// Walks that went on with references.
    pub with_references: u64,
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
    /// The place that it is on; `None` for the namespace's root.
    pub on: Option<Place>,
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
    pub fn new(root: &Super, options: Options) -> Result<Self> {
        Self::with_teardown(root, options, Arc::new(OnDemand))
    }

    /// A namespace with another way to end mounts, for experiments.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[doc(hidden)]
    pub fn with_teardown(root: &Super, options: Options, teardown: Arc<dyn Teardown>) -> Result<Self> {
        root.grab()?;
        let ns = Ns::new(Arc::default(), options, teardown);
        let mount = Mount::new(&ns.home, root.clone(), (root.superblock().root(), Kind::Directory), None);
        let mut change = Change::default();
        ns.family.tree.lock().set_root(&ns, &mount, Tie::default(), &mut change);
        change.publish();
        Ok(Self::of(ns))
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

    /// The place that a path leads to at a moment of the call. Keeps nothing: takes no lock and
    /// writes no memory that other threads read, unless it has to wait for a superblock or mounts
    /// change meanwhile.
    ///
    /// # Errors
    /// Those of the walk: [`Error::NoEntry`], [`Error::NotDirectory`], [`Error::TooManyLinks`],
    /// those of superblocks, and [`Error::NotHere`] if the start is gone.
    pub fn resolve<'a>(
        &self,
        start: impl Into<Start<'a>>,
        path: impl AsRef<Path>,
        last: Last,
    ) -> Result<(Place, Kind)> {
        self.ns.resolve(start.into(), path.as_ref(), last)
    }

    /// Like [`resolve`](Self::resolve), and keeps the place: a refused unmount reports `holder`.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn pin<'a>(
        &self,
        start: impl Into<Start<'a>>,
        path: impl AsRef<Path>,
        last: Last,
        holder: impl Into<Holder>,
    ) -> Result<Pin> {
        self.ns.pin(start.into(), path.as_ref(), last, &holder.into())
    }

    /// Calls `look` on the place that a path leads to: the mount does not end meanwhile. No unmount
    /// reports a holder; a synchronous one is not refused, but waits until `look` returns, so that
    /// this must not take long.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn visit<'a, T>(
        &self,
        start: impl Into<Start<'a>>,
        path: impl AsRef<Path>,
        last: Last,
        look: impl FnOnce(&Super, Inode, Kind) -> T,
    ) -> Result<T> {
        self.ns.visit(start.into(), path.as_ref(), last, look)
    }

    /// The mount on a place, if any.
    #[must_use]
    pub fn mounted_on(&self, place: Place) -> Option<MountId> {
        let guard = self.ns.home.domain.read();
        self.ns.by_place.find((place.mount.0, place.inode.0), &guard).map(|mount| mount.id)
    }

    /// The superblock of the mount with this number.
    #[must_use]
    pub fn superblock(&self, mount: MountId) -> Option<Super> {
        let guard = self.ns.home.domain.read();
        self.ns.by_id.find((mount.0, 0), &guard).map(|mount| mount.superblock.clone())
    }

    /// The place of the mount with this number; `None` for the root, and for a mount that is not in
    /// this namespace.
    #[must_use]
    pub fn place_of(&self, mount: MountId) -> Option<Place> {
        let guard = self.ns.home.domain.read();
        let mount = self.ns.by_id.find((mount.0, 0), &guard)?;
        mount.parent.load(&guard).as_ref().map(|parent| Place { mount: parent.mount.id, inode: parent.at })
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
            let guard = self.ns.home.domain.read();
            self.ns.root.load(&guard).as_ref().map(|root| root.id)
        };
        let tree = self.ns.family.tree.lock();
        let Some(root) = root.filter(|root| tree.nodes.contains_key(root)) else { return Vec::new() };
        tree.breadth_first(root).into_iter().filter_map(|id| tree.nodes.get(&id)).map(info).collect()
    }

    /// The figures so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.ns.counters;
        Stats {
            mounts: self.ns.family.tree.lock().counts.get(&self.ns.home.id).copied().unwrap_or(0),
            restarts: counters.restarts.get(),
            with_references: counters.with_references.get(),
            unmounts: counters.unmounts.get(),
            waits: counters.waits.get(),
        }
    }

    /// Its readers, for experiments.
    #[doc(hidden)]
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.ns.home.domain
    }

    /// Ends the namespace: on return no path leads anywhere, and every superblock whose last mounts
    /// were here, and that has no pins or holds, is shut down.
    pub fn end(self) {
        drop(self);
    }

    /// Ends a namespace that other handles still use: they find nothing. If it was ended before, or
    /// is just being ended, the call returns at once.
    ///
    /// # Errors
    /// [`Error::NotPermitted`].
    pub fn shut(&self) -> Result<()> {
        self.shut_telling(|_| {})
    }

    /// Like [`shut`](Self::shut); calls `left` with the mounts that go, once no walk finds them and
    /// before they are ended: no lock is held.
    ///
    /// # Errors
    /// [`Error::NotPermitted`].
    pub fn shut_telling(&self, left: impl FnOnce(&[MountId])) -> Result<()> {
        self.check_rights()?;
        self.ns.end(left);
        Ok(())
    }

    /// The inode that the mount with this number shows of its superblock; `None` if the mount is
    /// not in this namespace.
    #[must_use]
    pub fn root_of(&self, mount: MountId) -> Option<Inode> {
        let guard = self.ns.home.domain.read();
        self.ns.by_id.find((mount.0, 0), &guard).map(|mount| mount.root)
    }
}

fn info(node: &Node) -> MountInfo {
    MountInfo {
        mount: node.mount.id,
        on: node.parent.map(|(mount, inode)| Place { mount, inode }),
        root: node.mount.root,
        shared: node.tie.group,
        master: node.tie.master,
        is_unbindable: node.tie.is_unbindable,
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

impl Drop for Ns {
    fn drop(&mut self) {
        self.family.keep(&self.home.domain);
    }
}

impl Ns {
    pub(crate) fn new(family: Arc<Family>, options: Options, teardown: Arc<dyn Teardown>) -> Arc<Self> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let domain = family.domain(|| teardown.domain(&options.domain));
        Arc::new(Self {
            by_place: Map::new(&domain),
            by_id: Map::new(&domain),
            root: RcuCell::new(&domain, None),
            // ORDERING: Relaxed, only a number of its own for each.
            home: Arc::new(Home {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                domain,
                lock: MountLock::default(),
            }),
            family,
            teardown,
            options,
            counters: Counters::default(),
        })
    }
}

impl Tree {
    /// Makes a mount the root of a namespace; the former one is not touched.
    pub(crate) fn set_root(&mut self, ns: &Arc<Ns>, mount: &Arc<Mount>, tie: Tie, change: &mut Change) {
        let _locked = ns.home.lock.lock();
        change.old(ns).roots.push(ns.root.replace(Some(Arc::clone(mount))));
        self.add(ns, mount, None, tie, change);
    }

    /// Adds a mount that is new. The namespace's lock is held.
    pub(crate) fn add(
        &mut self,
        ns: &Arc<Ns>,
        mount: &Arc<Mount>,
        parent: Option<(MountId, Inode)>,
        tie: Tie,
        change: &mut Change,
    ) {
        let count = self.counts.entry(ns.home.id).or_default();
        *count += 1;
        let count = *count;
        ns.by_id.insert((mount.id.0, 0), mount, count, change.old(ns));
        let node = Node {
            mount: Arc::clone(mount),
            ns: Arc::clone(ns),
            parent: None,
            children: std::collections::HashSet::default(),
            tie: Tie::default(),
            expiry: None,
        };
        self.nodes.insert(mount.id, node);
        self.tie(mount.id, tie);
        if let Some(parent) = parent {
            self.hash(ns, mount, parent, change);
        }
    }

    /// Puts a mount of the tree on a place. The namespace's lock is held.
    pub(crate) fn hash(
        &mut self,
        ns: &Arc<Ns>,
        mount: &Arc<Mount>,
        on: (MountId, Inode),
        change: &mut Change,
    ) {
        let count = self.counts.get(&ns.home.id).copied().unwrap_or(0);
        ns.by_place.insert((on.0.0, on.1.0), mount, count, change.old(ns));
        if let Some(node) = self.nodes.get_mut(&mount.id) {
            node.parent = Some(on);
        }
        if let Some(node) = self.nodes.get_mut(&on.0) {
            node.children.insert(mount.id);
        }
    }

    /// Takes a mount of the tree off its place. The namespace's lock is held.
    pub(crate) fn unhash(&mut self, ns: &Ns, mount: &Arc<Mount>, old: &mut Old) {
        let Some(on) = self.nodes.get_mut(&mount.id).and_then(|node| node.parent.take()) else { return };
        ns.by_place.remove((on.0.0, on.1.0), old);
        old.parents.push(mount.parent.replace(None));
        if let Some(node) = self.nodes.get_mut(&on.0) {
            node.children.remove(&mount.id);
        }
    }
}
