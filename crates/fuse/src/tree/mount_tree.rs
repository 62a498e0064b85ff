//! The tree as a whole: its state, and the snapshot that requests see.
//!
//! Module [`tree`](super) has the state, the lock order and the orderings.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::sync::Arc;

use mounts::{MountId, Namespace, SuperblockRef, VfsPath};
use sync::Mutex;
use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::mutant::is_on;
use volume::{NodeId, Volume};

use super::attached_volume::AttachedVolume;
use super::mount_node::{Attachment, MountNode};
use super::namespace_view::NamespaceView;
use super::persistent_map::PersistentMap;
use super::wire::NodeTag;
use crate::device::Dev;
use crate::sync_all::SyncTarget;

/// The tree as requests see it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Snapshot {
    pub(super) by_tag: PersistentMap<Arc<MountNode>>,
    /// Clones, by the tag of their root's mount.
    pub(super) clones: HashMap<NodeTag, Arc<NamespaceView>>,
}

impl Snapshot {
    pub(crate) fn mount_node(&self, tag: NodeTag) -> Option<&Arc<MountNode>> {
        self.by_tag.get(tag)
    }

    /// The volumes that are attached.
    pub(super) fn volumes(&self) -> impl Iterator<Item = &Arc<AttachedVolume>> {
        self.by_tag
            .values()
            .filter(|mount_node| mount_node.mount.is_none())
            .map(|mount_node| &mount_node.served)
    }

    /// The clone whose root has this tag.
    pub(crate) fn clone_of(&self, tag: NodeTag) -> Option<&Arc<NamespaceView>> {
        self.clones.get(&tag)
    }
}

/// The snapshot that a thread saw last.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCache {
    pub(super) generation: u64,
    pub(super) snapshot: Arc<Snapshot>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) last_tag: NodeTag,
    pub(super) by_mount: HashMap<MountId, Arc<MountNode>>,
    pub(super) attachments: HashMap<MountId, Attachment>,
    /// Directories on which something is mounted, by volume.
    pub(super) covered: HashMap<(NodeTag, NodeId), usize>,
    /// The tags of each volume, its mounts' among them, as long as requests may have them.
    pub(super) of_volume: HashMap<NodeTag, BTreeSet<NodeTag>>,
    /// The tags of the volumes that are attached, by the addresses that the namespaces know them
    /// by: alive as long as they are here.
    pub(super) by_address: HashMap<usize, NodeTag>,
}

/// The tree of one mountpoint, and of those that show clones of it.
#[derive(Debug)]
pub(crate) struct MountTree {
    /// The kernel, which is notified of changes.
    pub(super) dev: Arc<Dev>,
    pub(super) first: Arc<NamespaceView>,
    pub(super) root: Arc<AttachedVolume>,
    pub(super) generation: AtomicU64,
    /// How many clones there are.
    pub(super) clones: AtomicUsize,
    pub(super) state: Mutex<State>,
}

impl MountTree {
    /// A tree with this volume as its root, of the connection `dev`.
    pub(crate) fn new(volume: Arc<Volume>, dev: Arc<Dev>) -> Self {
        let root = Arc::new(AttachedVolume::new(volume, NodeTag::ROOT, false, None));
        root.add_mount(NodeTag::ROOT);
        root.forget_changed(&dev);
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
        Self { dev, first: Arc::new(first), root, generation, clones, state: Mutex::new(state) }
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
    pub(super) fn mount_node(&self, mount: MountId) -> Option<Arc<MountNode>> {
        self.state.lock().by_mount.get(&mount).map(Arc::clone)
    }

    /// Replaces the snapshot that requests see. The old one is dropped without the lock: where no
    /// other thread has it, that costs as much as the tree is large, with whatever has left it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State, &mut Snapshot) -> T) -> T {
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

    /// The clone of this name.
    pub(crate) fn clone_named(&self, name: &OsStr) -> Option<Arc<NamespaceView>> {
        self.state.lock().snapshot.clones.values().find(|view| view.name == name).map(Arc::clone)
    }

    /// All clones.
    pub(crate) fn clones(&self) -> Vec<Arc<NamespaceView>> {
        self.state.lock().snapshot.clones.values().map(Arc::clone).collect()
    }
}

impl State {
    /// Requests find these from now on.
    pub(super) fn add_node(&mut self, snapshot: &mut Snapshot, mount_node: Arc<MountNode>) {
        self.of_volume.entry(mount_node.served.tag).or_default().insert(mount_node.tag);
        self.by_address.insert(Arc::as_ptr(&mount_node.served).addr(), mount_node.served.tag);
        snapshot.by_tag.insert(mount_node.tag, mount_node);
    }

    /// Forgets a mount's directories, if none of them is open.
    pub(super) fn drop_node(&mut self, snapshot: &mut Snapshot, mount_node: &MountNode) {
        // ORDERING: SeqCst, see `MountTree::closed_dir`.
        if mount_node.is_gone.load(Ordering::SeqCst) && mount_node.dirs.load(Ordering::SeqCst) == 0 {
            snapshot.by_tag.remove(mount_node.tag);
            if let Some(tags) = self.of_volume.get_mut(&mount_node.served.tag) {
                tags.remove(&mount_node.tag);
            }
        }
    }

    /// Forgets all tags of a volume that requests may have.
    pub(super) fn drop_volume(&mut self, snapshot: &mut Snapshot, volume: NodeTag) {
        for tag in self.of_volume.remove(&volume).unwrap_or_default() {
            let Some(mount_node) = snapshot.by_tag.remove(tag) else { continue };
            self.by_address.remove(&Arc::as_ptr(&mount_node.served).addr());
            if let Some(mount) = mount_node.mount {
                self.by_mount.remove(&mount);
            }
        }
    }

    /// The volume of a superblock that is attached.
    pub(super) fn volume_of(&self, superblock: &SuperblockRef) -> Option<&Arc<MountNode>> {
        let address = Arc::as_ptr(superblock.superblock()).addr();
        self.snapshot.by_tag.get(*self.by_address.get(&address)?)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
