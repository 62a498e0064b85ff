//! Finds the volume of a node: one mountpoint shows several volumes.
//!
//! Purpose: the mountpoint's tree is a [`mounts::Namespace`] whose root is the session's own
//! volume. A node number of the kernel's names a mount or a volume, and a node in it (module
//! [`wire`]). A look-up of a name at which something is attached crosses into that. Requests for
//! the root volume's nodes skip this module, but for look-ups: these see, by one load, that nothing
//! was ever attached.
//!
//! # State
//! | what | is | changed by |
//! |---|---|---|
//! | [`NamespaceView::namespace`] | the truth: which mount is on which directory | attaching, detaching, moving |
//! | [`Snapshot`] | for requests: volumes and mounts by tag | replaced as a whole, under `state` |
//! | `generation` | which snapshot; 0: nothing was ever attached | under `state` |
//! | `State::by_mount`, `covered` | mounts by number, directories that something is attached to | under `state` |
//! | `State::attachments` | where attached mounts are, in the kernel's words | under `state` |
//! | `State::of_volume` | which tags go with a volume | under `state` |
//!
//! Each serving thread keeps the snapshot that it saw last and looks at `generation` before it uses
//! it: nothing shared is written for a request, nor locked.
//!
//! # What the kernel remembers
//! The kernel keeps names for a day. So the thread that makes a change notifies it at the end
//! (`change`). The notification waits for look-ups under way in that directory: the answers given
//! before the change are forgotten with the rest.
//!
//! # Lock order
//! ```text
//! Served::names       of the volume that something is attached to
//!   the tree of the namespace (see the crate mounts)
//!   Tree::state
//!   Served::holds, Served::on_end      leaves; no code that ends a volume is called under them
//! ```
//!
//! # Orderings
//! P1: `generation` is stored after the snapshot was replaced, both under `state`; a thread that
//! finds a new number takes `state`. A thread that finds the old number uses the old snapshot: as
//! if its request had come before the change, at whose end the kernel is notified.

mod attached_volume;
pub(crate) mod change;
pub(crate) mod clones;
mod persistent_map;
mod reattach;
mod resolve;
mod shutdown;
pub(crate) mod wire;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mounts::{MountId, Namespace, SuperblockRef, VfsPath};
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sync::mutant::is_on;
use volume::{NodeId, Volume};

pub use attached_volume::OnEnd;
pub(crate) use attached_volume::{AttachedVolume, Open};
use clones::NamespaceView;
use persistent_map::PersistentMap;
use resolve::Attachment;
use wire::NodeTag;

use crate::sync_all::SyncTarget;

/// A volume or a mount that node numbers name.
#[derive(Debug)]
pub(crate) struct MountNode {
    pub(crate) tag: NodeTag,
    pub(crate) served: Arc<AttachedVolume>,
    pub(crate) superblock: SuperblockRef,
    /// The mount whose directories these are; none for a volume's files.
    pub(crate) mount: Option<MountId>,
    /// The namespace that the mount is in.
    pub(crate) namespace: Arc<Namespace>,
    /// The root of the mount.
    pub(crate) root: NodeId,
    /// No path leads there any more: only open files and directories are served.
    is_gone: AtomicBool,
    /// Directories that are open through this mount.
    pub(crate) dirs: AtomicUsize,
}

impl MountNode {
    fn of_files(
        tag: NodeTag,
        volume: (Arc<AttachedVolume>, SuperblockRef),
        namespace: &Arc<Namespace>,
    ) -> Self {
        let ((served, superblock), namespace) = (volume, Arc::clone(namespace));
        let (is_gone, dirs) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { tag, served, superblock, mount: None, namespace, root: NodeId::ROOT, is_gone, dirs }
    }

    fn of_mount(
        tag: NodeTag,
        (mount, root): (MountId, NodeId),
        volume: (Arc<AttachedVolume>, SuperblockRef),
        namespace: &Arc<Namespace>,
    ) -> Self {
        Self { mount: Some(mount), root, ..Self::of_files(tag, volume, namespace) }
    }

    pub(crate) fn is_gone(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `MountTree::drop_unmounted`: the rest of the
        // request runs as after the detach.
        self.is_gone.load(Ordering::Acquire)
    }
}

/// The tree as requests see it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Snapshot {
    by_tag: PersistentMap<Arc<MountNode>>,
    /// Clones, by the tag of their root's mount.
    clones: HashMap<NodeTag, Arc<NamespaceView>>,
}

impl Snapshot {
    pub(crate) fn mount_node(&self, tag: NodeTag) -> Option<&Arc<MountNode>> {
        self.by_tag.get(tag)
    }

    /// The volumes that are attached.
    fn volumes(&self) -> impl Iterator<Item = &Arc<AttachedVolume>> {
        self.by_tag
            .values()
            .filter(|mount_node| mount_node.mount.is_none())
            .map(|mount_node| &mount_node.served)
    }
}

/// The snapshot that a thread saw last.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCache {
    generation: u64,
    snapshot: Arc<Snapshot>,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Arc<Snapshot>,
    last_tag: NodeTag,
    by_mount: HashMap<MountId, Arc<MountNode>>,
    attachments: HashMap<MountId, Attachment>,
    /// Directories on which something is mounted, by volume.
    covered: HashMap<(NodeTag, NodeId), usize>,
    /// The tags of each volume, its mounts' among them, as long as requests may have them.
    of_volume: HashMap<NodeTag, BTreeSet<NodeTag>>,
    /// The tags of the volumes that are attached, by the addresses that the namespaces know them
    /// by: alive as long as they are here.
    by_address: HashMap<usize, NodeTag>,
}

/// The tree of one mountpoint, and of those that show clones of it.
#[derive(Debug)]
pub(crate) struct MountTree {
    first: Arc<NamespaceView>,
    root: Arc<AttachedVolume>,
    generation: AtomicU64,
    /// How many clones there are.
    clones: AtomicUsize,
    state: Mutex<State>,
}

impl MountTree {
    /// A tree with this volume as its root.
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        let root = Arc::new(AttachedVolume::new(volume, NodeTag::ROOT, false, None));
        root.add_mount(NodeTag::ROOT);
        let superblock = SuperblockRef::new(Arc::clone(&root) as Arc<_>);
        let namespace =
            Namespace::new(&superblock, mounts::Options::default()).expect("a new superblock can be mounted");
        let namespace = Arc::new(namespace);
        let mount = namespace.root().expect("it was mounted just now");
        let volume = (Arc::clone(&root), superblock);
        let mount_node =
            Arc::new(MountNode::of_mount(NodeTag::ROOT, (mount, NodeId::ROOT), volume, &namespace));
        let mut state = State::default();
        state.by_mount.insert(mount, Arc::clone(&mount_node));
        let first = NamespaceView::new(namespace, mount_node, std::ffi::OsString::new());
        let (generation, clones) = (AtomicU64::new(0), AtomicUsize::new(0));
        Self { first: Arc::new(first), root, generation, clones, state: Mutex::new(state) }
    }

    /// The mountpoint's own view.
    pub(crate) fn first(&self) -> &Arc<NamespaceView> {
        &self.first
    }

    /// Whether there are clones.
    #[inline]
    pub(crate) fn has_clones(&self) -> bool {
        // ORDERING: Acquire, with the Release in `clones`: raised before the kernel can see a
        // clone.
        self.clones.load(Ordering::Acquire) > 0
    }

    pub(crate) fn root(&self) -> &Arc<AttachedVolume> {
        &self.root
    }

    /// Whether nothing was ever attached.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        // ORDERING: Acquire, P1.
        self.generation.load(Ordering::Acquire) == 0
    }

    /// The snapshot of now, for a thread that saw an older one.
    pub(crate) fn snapshot<'s>(&self, cache: &'s mut SnapshotCache) -> &'s Arc<Snapshot> {
        // ORDERING: Acquire, P1.
        let is_old = self.generation.load(Ordering::Acquire) != cache.generation;
        if is_old && !(cache.generation > 0 && is_on("tree-seen-unchecked")) {
            let state = self.state.lock();
            let old = std::mem::replace(&mut cache.snapshot, Arc::clone(&state.snapshot));
            // ORDERING: Relaxed, written under the lock.
            cache.generation = self.generation.load(Ordering::Relaxed);
            drop(state);
            // The last thread that saw it drops all that has left since.
            drop(old);
        }
        &cache.snapshot
    }

    /// The volumes that are attached.
    pub(crate) fn volumes(&self) -> Vec<Arc<AttachedVolume>> {
        if self.is_plain() {
            return Vec::new();
        }
        let snapshot = Arc::clone(&self.state.lock().snapshot);
        snapshot.volumes().map(Arc::clone).collect()
    }

    /// The attached volumes, to be synced.
    pub(crate) fn sync_targets(&self) -> Vec<Arc<dyn SyncTarget>> {
        self.volumes().into_iter().map(|served| served as Arc<dyn SyncTarget>).collect()
    }

    /// Whether something is attached to this directory, in any place where it is seen.
    pub(crate) fn is_covered(&self, volume: NodeTag, node: NodeId) -> bool {
        self.state.lock().covered.contains_key(&(volume, node))
    }

    /// The uppermost mount on a directory that is seen through a mount (none: the root volume's
    /// first), if there is one.
    pub(crate) fn crossed(&self, through: Option<&MountNode>, node: NodeId) -> Option<Arc<MountNode>> {
        let through = through.unwrap_or(&self.first.root);
        let mut place = VfsPath { mount: through.mount?, inode: mounts::Inode(node.0) };
        let mut found = None;
        while let Some(mount) = through.namespace.mounted_on(place) {
            // It may leave meanwhile: then the directory below is seen.
            let Some(mount_node) = self.mount_node(mount) else { break };
            place = VfsPath { mount, inode: mounts::Inode(mount_node.root.0) };
            found = Some(mount_node);
        }
        found
    }

    /// The tag of a mount that was found in the namespace.
    fn mount_node(&self, mount: MountId) -> Option<Arc<MountNode>> {
        self.state.lock().by_mount.get(&mount).map(Arc::clone)
    }

    /// Replaces the snapshot that requests see. The old one is dropped without the lock: where no
    /// other thread has it, that costs as much as the tree is large, with whatever has left it.
    fn change<T>(&self, change: impl FnOnce(&mut State, &mut Snapshot) -> T) -> T {
        let mut state = self.state.lock();
        let mut snapshot = Snapshot::clone(&state.snapshot);
        let result = change(&mut state, &mut snapshot);
        let old = std::mem::replace(&mut state.snapshot, Arc::new(snapshot));
        // ORDERING: Release, P1. Relaxed for the load: written under the lock.
        self.generation.store(self.generation.load(Ordering::Relaxed) + 1, Ordering::Release);
        drop(state);
        drop(old);
        result
    }

    /// A directory that was open through a mount is closed.
    pub(crate) fn closed_dir(&self, mount_node: &MountNode) {
        // ORDERING: SeqCst, before the load of `is_gone`; `drop_unmounted` stores that one, then
        // loads this one. One of them sees the other.
        if mount_node.dirs.fetch_sub(1, Ordering::SeqCst) == 1 && mount_node.is_gone.load(Ordering::SeqCst) {
            self.change(|state, snapshot| state.drop_node(snapshot, mount_node));
        }
    }
}

impl State {
    /// Requests find these from now on.
    fn add_node(&mut self, snapshot: &mut Snapshot, mount_node: Arc<MountNode>) {
        self.of_volume.entry(mount_node.served.tag).or_default().insert(mount_node.tag);
        self.by_address.insert(Arc::as_ptr(&mount_node.served).addr(), mount_node.served.tag);
        snapshot.by_tag.insert(mount_node.tag, mount_node);
    }

    /// Forgets a mount's directories, if none of them is open.
    fn drop_node(&mut self, snapshot: &mut Snapshot, mount_node: &MountNode) {
        // ORDERING: SeqCst, see `MountTree::closed_dir`.
        if mount_node.is_gone.load(Ordering::SeqCst) && mount_node.dirs.load(Ordering::SeqCst) == 0 {
            snapshot.by_tag.remove(mount_node.tag);
            if let Some(tags) = self.of_volume.get_mut(&mount_node.served.tag) {
                tags.remove(&mount_node.tag);
            }
        }
    }

    /// Forgets all tags of a volume that requests may have.
    fn drop_volume(&mut self, snapshot: &mut Snapshot, volume: NodeTag) {
        for tag in self.of_volume.remove(&volume).unwrap_or_default() {
            let Some(mount_node) = snapshot.by_tag.remove(tag) else { continue };
            self.by_address.remove(&Arc::as_ptr(&mount_node.served).addr());
            if let Some(mount) = mount_node.mount {
                self.by_mount.remove(&mount);
            }
        }
    }

    /// The volume of a superblock that is attached.
    fn volume_of(&self, superblock: &SuperblockRef) -> Option<&Arc<MountNode>> {
        let address = Arc::as_ptr(superblock.superblock()).addr();
        self.snapshot.by_tag.get(*self.by_address.get(&address)?)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
