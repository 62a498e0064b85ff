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
//! | [`View::namespace`] | the truth: which mount is on which directory | attaching, detaching, moving |
//! | [`Snapshot`] | for requests: volumes and mounts by tag | replaced as a whole, under `state` |
//! | `generation` | which snapshot; 0: nothing was ever attached | under `state` |
//! | `State::by_mount`, `covered` | mounts by number, directories that something is attached to | under `state` |
//! | `State::places` | where attached mounts are, in the kernel's words | under `state` |
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

mod again;
pub(crate) mod change;
pub(crate) mod clones;
mod end;
mod served;
mod spot;
mod versions;
pub(crate) mod wire;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mounts::{MountId, Namespace, SuperblockRef, VfsPath};
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sync::mutant::is_on;
use volume::{NodeId, Volume};

use clones::View;
pub use served::OnEnd;
pub(crate) use served::{Open, Served};
use spot::Attachment;
use versions::Versions;
use wire::Tag;

use crate::syncs::Subject;

/// A volume or a mount that node numbers name.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) tag: Tag,
    pub(crate) served: Arc<Served>,
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

impl Tagged {
    fn of_files(tag: Tag, volume: (Arc<Served>, SuperblockRef), namespace: &Arc<Namespace>) -> Self {
        let ((served, superblock), namespace) = (volume, Arc::clone(namespace));
        let (is_gone, dirs) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { tag, served, superblock, mount: None, namespace, root: NodeId::ROOT, is_gone, dirs }
    }

    fn of_mount(
        tag: Tag,
        (mount, root): (MountId, NodeId),
        volume: (Arc<Served>, SuperblockRef),
        namespace: &Arc<Namespace>,
    ) -> Self {
        Self { mount: Some(mount), root, ..Self::of_files(tag, volume, namespace) }
    }

    pub(crate) fn is_gone(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `Tree::left`: the rest of the request runs
        // as after the detach.
        self.is_gone.load(Ordering::Acquire)
    }
}

/// The tree as requests see it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Snapshot {
    by_tag: Versions<Arc<Tagged>>,
    /// Clones, by the tag of their root's mount.
    clones: HashMap<Tag, Arc<View>>,
}

impl Snapshot {
    pub(crate) fn tagged(&self, tag: Tag) -> Option<&Arc<Tagged>> {
        self.by_tag.get(tag)
    }

    /// The volumes that are attached.
    fn volumes(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.by_tag.values().filter(|tagged| tagged.mount.is_none()).map(|tagged| &tagged.served)
    }
}

/// The snapshot that a thread saw last.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    generation: u64,
    snapshot: Arc<Snapshot>,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Arc<Snapshot>,
    last_tag: Tag,
    by_mount: HashMap<MountId, Arc<Tagged>>,
    places: HashMap<MountId, Attachment>,
    /// Directories on which something is mounted, by volume.
    covered: HashMap<(Tag, NodeId), usize>,
    /// The tags of each volume, its mounts' among them, as long as requests may have them.
    of_volume: HashMap<Tag, BTreeSet<Tag>>,
    /// The tags of the volumes that are attached, by the addresses that the namespaces know them
    /// by: alive as long as they are here.
    by_address: HashMap<usize, Tag>,
}

/// The tree of one mountpoint, and of those that show clones of it.
#[derive(Debug)]
pub(crate) struct Tree {
    first: Arc<View>,
    root: Arc<Served>,
    generation: AtomicU64,
    /// How many clones there are.
    clones: AtomicUsize,
    state: Mutex<State>,
}

impl Tree {
    /// A tree with this volume as its root.
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        let root = Arc::new(Served::new(volume, Tag::ROOT, false, None));
        root.is_seen_through(Tag::ROOT);
        let superblock = SuperblockRef::new(Arc::clone(&root) as Arc<_>);
        let namespace =
            Namespace::new(&superblock, mounts::Options::default()).expect("a new superblock can be mounted");
        let namespace = Arc::new(namespace);
        let mount = namespace.root().expect("it was mounted just now");
        let volume = (Arc::clone(&root), superblock);
        let tagged = Arc::new(Tagged::of_mount(Tag::ROOT, (mount, NodeId::ROOT), volume, &namespace));
        let mut state = State::default();
        state.by_mount.insert(mount, Arc::clone(&tagged));
        let first = View::new(namespace, tagged, std::ffi::OsString::new());
        let (generation, clones) = (AtomicU64::new(0), AtomicUsize::new(0));
        Self { first: Arc::new(first), root, generation, clones, state: Mutex::new(state) }
    }

    /// The mountpoint's own view.
    pub(crate) fn first(&self) -> &Arc<View> {
        &self.first
    }

    /// Whether there are clones.
    #[inline]
    pub(crate) fn has_clones(&self) -> bool {
        // ORDERING: Acquire, with the Release in `clones`: raised before the kernel can see a
        // clone.
        self.clones.load(Ordering::Acquire) > 0
    }

    pub(crate) fn root(&self) -> &Arc<Served> {
        &self.root
    }

    /// Whether nothing was ever attached.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        // ORDERING: Acquire, P1.
        self.generation.load(Ordering::Acquire) == 0
    }

    /// The snapshot of now, for a thread that saw an older one.
    pub(crate) fn look<'s>(&self, seen: &'s mut Seen) -> &'s Arc<Snapshot> {
        // ORDERING: Acquire, P1.
        let is_old = self.generation.load(Ordering::Acquire) != seen.generation;
        if is_old && !(seen.generation > 0 && is_on("tree-seen-unchecked")) {
            let state = self.state.lock();
            let old = std::mem::replace(&mut seen.snapshot, Arc::clone(&state.snapshot));
            // ORDERING: Relaxed, written under the lock.
            seen.generation = self.generation.load(Ordering::Relaxed);
            drop(state);
            // The last thread that saw it drops all that has left since.
            drop(old);
        }
        &seen.snapshot
    }

    /// The volumes that are attached.
    pub(crate) fn volumes(&self) -> Vec<Arc<Served>> {
        if self.is_plain() {
            return Vec::new();
        }
        let snapshot = Arc::clone(&self.state.lock().snapshot);
        snapshot.volumes().map(Arc::clone).collect()
    }

    /// The attached volumes, to be synced.
    pub(crate) fn subjects(&self) -> Vec<Arc<dyn Subject>> {
        self.volumes().into_iter().map(|served| served as Arc<dyn Subject>).collect()
    }

    /// Whether something is attached to this directory, in any place where it is seen.
    pub(crate) fn is_covered(&self, volume: Tag, node: NodeId) -> bool {
        self.state.lock().covered.contains_key(&(volume, node))
    }

    /// The uppermost mount on a directory that is seen through a mount (none: the root volume's
    /// first), if there is one.
    pub(crate) fn crossed(&self, through: Option<&Tagged>, node: NodeId) -> Option<Arc<Tagged>> {
        let through = through.unwrap_or(&self.first.root);
        let mut place = VfsPath { mount: through.mount?, inode: mounts::Inode(node.0) };
        let mut found = None;
        while let Some(mount) = through.namespace.mounted_on(place) {
            // It may leave meanwhile: then the directory below is seen.
            let Some(tagged) = self.tagged_mount(mount) else { break };
            place = VfsPath { mount, inode: mounts::Inode(tagged.root.0) };
            found = Some(tagged);
        }
        found
    }

    /// The tag of a mount that was found in the namespace.
    fn tagged_mount(&self, mount: MountId) -> Option<Arc<Tagged>> {
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
    pub(crate) fn closed_dir(&self, tagged: &Tagged) {
        // ORDERING: SeqCst, before the load of `is_gone`; `left` stores that one, then loads this
        // one. One of them sees the other.
        if tagged.dirs.fetch_sub(1, Ordering::SeqCst) == 1 && tagged.is_gone.load(Ordering::SeqCst) {
            self.change(|state, snapshot| state.drop_tag(snapshot, tagged));
        }
    }
}

impl State {
    /// Requests find these from now on.
    fn add_tag(&mut self, snapshot: &mut Snapshot, tagged: Arc<Tagged>) {
        self.of_volume.entry(tagged.served.tag).or_default().insert(tagged.tag);
        self.by_address.insert(Arc::as_ptr(&tagged.served).addr(), tagged.served.tag);
        snapshot.by_tag.insert(tagged.tag, tagged);
    }

    /// Forgets a mount's directories, if none of them is open.
    fn drop_tag(&mut self, snapshot: &mut Snapshot, tagged: &Tagged) {
        // ORDERING: SeqCst, see `Tree::closed_dir`.
        if tagged.is_gone.load(Ordering::SeqCst) && tagged.dirs.load(Ordering::SeqCst) == 0 {
            snapshot.by_tag.remove(tagged.tag);
            if let Some(tags) = self.of_volume.get_mut(&tagged.served.tag) {
                tags.remove(&tagged.tag);
            }
        }
    }

    /// Forgets all tags of a volume that requests may have.
    fn drop_volume(&mut self, snapshot: &mut Snapshot, volume: Tag) {
        for tag in self.of_volume.remove(&volume).unwrap_or_default() {
            let Some(tagged) = snapshot.by_tag.remove(tag) else { continue };
            self.by_address.remove(&Arc::as_ptr(&tagged.served).addr());
            if let Some(mount) = tagged.mount {
                self.by_mount.remove(&mount);
            }
        }
    }

    /// The volume of a superblock that is attached.
    fn volume_of(&self, superblock: &SuperblockRef) -> Option<&Arc<Tagged>> {
        let address = Arc::as_ptr(superblock.superblock()).addr();
        self.snapshot.by_tag.get(*self.by_address.get(&address)?)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
