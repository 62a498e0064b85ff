//! Changes of the tree: attaching, detaching, moving.
//!
//! Each ends with telling the kernel, by the thread that asked for the change: a directory whose lock somebody keeps, because
//! *its* volume's store hangs, holds up the changes in that directory only.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use mounts::{Inode, MountId, Place, Super, Umount};
use store::FileType;
use sync::atomic::Ordering;
use sync::mutant::is_on;
use volume::{NodeId, Volume};

use super::served::{OnEnd, Served};
use super::wire::{self, Tag};
use super::{Tagged, Tree};
use crate::dev::Dev;
use crate::notify::{self, Note};

/// Why the tree was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The path leads nowhere, or its volume failed.
    #[error("{path}: {error}")]
    Path {
        /// As far as it was walked.
        path: String,
        /// The volume's words.
        error: volume::Error,
    },
    /// A part of the path is not a directory.
    #[error("{0} is not a directory")]
    NotDirectory(String),
    /// Paths here begin at the mountpoint, and have no `..`.
    #[error("{0} is no path inside the mountpoint")]
    BadPath(String),
    /// The mountpoint itself can only be unmounted.
    #[error("this is the mountpoint itself")]
    IsRoot,
    /// Nothing is attached there.
    #[error("nothing is attached at {0}")]
    NotAttached(String),
    /// What the tree says.
    #[error(transparent)]
    Tree(#[from] mounts::Error),
    /// All numbers for mounts have been used.
    #[error("this mount process has attached as many volumes as it can in its life")]
    NoTags,
    /// A node's number is too large for anything but the root volume.
    #[error("the directory's number is too large to be shown in a second place")]
    NodeTooLarge,
}

/// How to detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detach {
    /// Only if nothing is open there, and nothing attached.
    Sync,
    /// At once, with all that is attached below; the last close ends the volume.
    Lazy,
    /// At once, whatever is open; what is not written is given up. Who waits for the volumes gets errors.
    Force,
}

/// A volume that was attached.
#[derive(Debug, Clone)]
pub struct Attached {
    mount: MountId,
    superblock: Super,
}

impl Attached {
    /// Whether a path leads to it: from where it was attached, or another place that it is shown in.
    #[must_use]
    pub fn is_seen(&self) -> bool {
        self.superblock.mounts() > 0
    }
}

/// Something that is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentInfo {
    /// Its mount.
    pub mount: MountId,
    /// Its volume's number, the same for each place of it; 0: of the root volume.
    pub volume: u64,
    /// Where, from the mountpoint on. None: a store cannot say.
    pub path: Option<PathBuf>,
}

/// A node, with a look-up of ours on it: its number stays.
#[derive(Debug)]
struct NodeRef {
    served: Arc<Served>,
    node: NodeId,
}

impl NodeRef {
    /// Of a node that somebody else has a look-up on.
    fn beside(served: &Arc<Served>, node: NodeId) -> Result<Self, volume::Error> {
        let _asked = served.enter().ok_or(volume::Error::Released)?;
        if node != NodeId::ROOT {
            served.volume.look_up_again(node)?;
        }
        Ok(Self { served: Arc::clone(served), node })
    }
}

impl Drop for NodeRef {
    fn drop(&mut self) {
        // The root is known without a look-up.
        if self.node != NodeId::ROOT
            && let Some(_asked) = self.served.enter()
        {
            self.served.volume.forget(self.node, 1);
        }
    }
}

/// A name in a directory, as the kernel knows it.
#[derive(Debug)]
struct Name {
    /// Kept so that the kernel's number for it stays the same.
    _dir: NodeRef,
    wire: u64,
    name: OsString,
}

/// Where a mount is.
#[derive(Debug)]
pub(super) struct Attachment {
    tagged: Arc<Tagged>,
    /// What it is on.
    on: Arc<Tagged>,
    covered: NodeRef,
    name: Arc<Name>,
}

/// Where a path leads.
struct Spot {
    /// The mount that it ends on.
    on: Arc<Tagged>,
    node: NodeRef,
    /// Its name; none for the mountpoint itself.
    name: Option<Arc<Name>>,
}

impl Spot {
    fn place(&self) -> Option<Place> {
        self.on.mount.map(|mount| Place { mount, inode: Inode(self.node.node.0) })
    }
}

impl Tree {
    fn walk(&self, path: &Path) -> Result<Spot, TreeError> {
        let mut spot = Spot { on: self.root_tagged(), node: self.root_ref(), name: None };
        let mut walked = PathBuf::new();
        for part in path.components() {
            let name = match part {
                Component::Normal(name) => name,
                Component::RootDir | Component::CurDir => continue,
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(TreeError::BadPath(path.display().to_string()));
                }
            };
            walked.push(name);
            spot = self.step(spot, name, &walked)?;
        }
        Ok(spot)
    }

    fn step(&self, from: Spot, name: &OsStr, walked: &Path) -> Result<Spot, TreeError> {
        let shown = || walked.display().to_string();
        let failed = |error| TreeError::Path { path: shown(), error };
        let served = Arc::clone(&from.on.served);
        let node = {
            let _asked = served.enter().ok_or_else(|| failed(volume::Error::Released))?;
            let found = served.volume.lookup(from.node.node, name).map_err(failed)?;
            let node = NodeRef { served: Arc::clone(&served), node: found.id };
            if found.attr.kind != FileType::Directory {
                return Err(TreeError::NotDirectory(shown()));
            }
            node
        };
        let wire = wire::join(from.on.tag, from.node.node).ok_or(TreeError::NodeTooLarge)?;
        let name = Arc::new(Name { _dir: from.node, wire, name: name.to_owned() });
        let crossed = from.on.mount.and_then(|mount| self.crossed(mount, node.node));
        let Some(on) = crossed else { return Ok(Spot { on: from.on, node, name: Some(name) }) };
        Ok(Spot { node: NodeRef::beside(&on.served, on.root).map_err(failed)?, on, name: Some(name) })
    }

    fn root_ref(&self) -> NodeRef {
        NodeRef { served: Arc::clone(&self.root), node: NodeId::ROOT }
    }

    fn root_tagged(&self) -> Arc<Tagged> {
        let volume = (Arc::clone(&self.root), self.root_super.clone());
        Arc::new(Tagged::of_mount(Tag::ROOT, self.root_mount, NodeId::ROOT, volume))
    }

    /// Attaches a volume to a directory; whoever looks there sees it when the call returns.
    pub(crate) fn attach(
        self: &Arc<Self>,
        dev: &Dev,
        path: &Path,
        volume: &Arc<Volume>,
        is_read_only: bool,
        on_end: OnEnd,
    ) -> Result<Attached, TreeError> {
        let spot = self.walk(path)?;
        let (Some(place), Some(name)) = (spot.place(), spot.name.clone()) else {
            return Err(TreeError::IsRoot);
        };
        let (tag, mount_tag) = (self.new_tag()?, self.new_tag()?);
        let tree = Arc::downgrade(self);
        let ended: OnEnd = Box::new(move |report| {
            on_end(report);
            if let Some(tree) = tree.upgrade() {
                tree.forget_volume(tag);
            }
        });
        let served = Arc::new(Served::new(Arc::clone(volume), tag, is_read_only, Some(ended)));
        let superblock = Super::new(Arc::clone(&served) as Arc<_>);
        // Before it can be crossed into.
        let files = Tagged::of_files(tag, (Arc::clone(&served), superblock.clone()));
        self.change(|state, snapshot| state.add_tag(snapshot, Arc::new(files)));
        let mounted = || {
            // Nobody takes the directory's name away meanwhile.
            let below = Arc::clone(&spot.node.served);
            let _names = below.names.write();
            self.still_there(&spot, path)?;
            served.is_seen_through(mount_tag);
            let mount = self.namespace.attach(place, "", &superblock)?;
            let (served, superblock) = (Arc::clone(&served), superblock.clone());
            self.note(Tagged::of_mount(mount_tag, mount, NodeId::ROOT, (served, superblock)), spot, &name);
            Ok(mount)
        };
        let mount = mounted().inspect_err(|_: &TreeError| self.forget_volume(tag))?;
        tell(dev, &name, None);
        self.catch_up(dev, mount);
        Ok(Attached { mount, superblock })
    }

    /// A mount may have left before it was known here.
    fn catch_up(&self, dev: &Dev, mount: MountId) {
        if !self.is_mounted(mount) {
            let superblocks = self.left(dev, &[mount]);
            debug_assert!(superblocks.len() <= 1);
        }
    }

    /// A new mount is known from now on.
    fn note(&self, tagged: Tagged, spot: Spot, name: &Arc<Name>) {
        let tagged = Arc::new(tagged);
        let Some(mount) = tagged.mount else { return };
        self.change(|state, snapshot| {
            state.add_tag(snapshot, Arc::clone(&tagged));
            snapshot.by_mount.insert(mount, Arc::clone(&tagged));
            snapshot.cover((spot.node.served.tag, spot.node.node));
            let name = Arc::clone(name);
            state.places.insert(mount, Attachment { tagged, on: spot.on, covered: spot.node, name });
        });
    }

    /// Whether the directory still has its name, now that nobody can take it.
    fn still_there(&self, spot: &Spot, path: &Path) -> Result<(), TreeError> {
        let Some(name) = &spot.name else { return Ok(()) };
        let covered = &spot.node;
        if covered.node == spot.on.root || covered.node == NodeId::ROOT {
            return Ok(());
        }
        let (_, dir) = wire::split(name.wire);
        let failed = |error| TreeError::Path { path: path.display().to_string(), error };
        let served = &covered.served;
        let _asked = served.enter().ok_or_else(|| failed(volume::Error::Released))?;
        let found = served.volume.lookup(dir, &name.name).map_err(failed)?;
        served.volume.forget(found.id, 1);
        if found.id == covered.node {
            Ok(())
        } else {
            Err(TreeError::NotAttached(path.display().to_string()))
        }
    }

    fn new_tag(&self) -> Result<Tag, TreeError> {
        let mut state = self.state.lock();
        state.last_tag = state.last_tag.next().ok_or(TreeError::NoTags)?;
        Ok(state.last_tag)
    }

    /// Takes what is attached at a path away. On return no path leads there, for any process; and its volume has ended, if
    /// this was its last place and nothing of it is open.
    pub(crate) fn detach(&self, dev: &Dev, path: &Path, how: Detach) -> Result<(), TreeError> {
        let place = self.attached_at(path)?;
        let flags = match how {
            Detach::Sync => Umount::empty(),
            Detach::Lazy => Umount::DETACH,
            Detach::Force => Umount::DETACH | Umount::FORCE,
        };
        let mut given_up = Vec::new();
        self.namespace.umount_telling(place, "", flags, |mounts| given_up = self.left(dev, mounts))?;
        if how == Detach::Force {
            // What is open keeps nothing.
            given_up.iter().filter(|superblock| superblock.mounts() == 0).for_each(|superblock| {
                superblock.superblock().force();
                superblock.superblock().shutdown();
            });
        }
        Ok(())
    }

    /// Whether the volume is still where it was attached, or moved to.
    pub(crate) fn is_attached(&self, attached: &Attached) -> bool {
        self.is_mounted(attached.mount)
    }

    fn is_mounted(&self, mount: MountId) -> bool {
        self.namespace.root_of(mount).is_some()
    }

    /// The mount that is attached at a path. Keeps nothing of it.
    fn attached_at(&self, path: &Path) -> Result<Place, TreeError> {
        let spot = self.walk(path)?;
        let is_root = spot.node.node == spot.on.root && spot.on.tag != Tag::ROOT;
        match spot.place() {
            _ if spot.name.is_none() => Err(TreeError::IsRoot),
            Some(place) if is_root => Ok(place),
            _ => Err(TreeError::NotAttached(path.display().to_string())),
        }
    }

    /// Mounts have left the namespace: requests hear of it, and the kernel. Says of which superblocks they were.
    fn left(&self, dev: &Dev, mounts: &[MountId]) -> Vec<Super> {
        let gone: Vec<Attachment> = self.change(|state, snapshot| {
            let gone: Vec<Attachment> =
                mounts.iter().filter_map(|mount| state.places.remove(mount)).collect();
            for one in &gone {
                // ORDERING: SeqCst, see `closed_dir`; Release would do for requests.
                if !is_on("tree-left-unmarked") {
                    one.tagged.is_gone.store(true, Ordering::SeqCst);
                }
                if let Some(mount) = one.tagged.mount {
                    snapshot.by_mount.remove(mount);
                }
                snapshot.uncover(one);
                state.drop_tag(snapshot, &one.tagged);
            }
            gone
        });
        gone.iter().for_each(|one| one.tagged.served.is_not_seen_through(one.tagged.tag));
        for one in &gone {
            tell(dev, &one.name, wire::join(one.tagged.tag, one.tagged.root));
        }
        gone.iter().map(|one| one.tagged.superblock.clone()).collect()
    }

    /// A volume has ended: nothing of it is known any more.
    fn forget_volume(&self, volume: Tag) {
        self.change(|state, snapshot| {
            if is_on("tree-tag-used-again") {
                state.last_tag = Tag::ROOT;
            }
            state.drop_volume(snapshot, volume);
        });
    }

    /// Moves what is attached at a path to another directory, with all that is attached below.
    pub(crate) fn move_to(&self, dev: &Dev, from: &Path, to: &Path) -> Result<(), TreeError> {
        let place = self.attached_at(from)?;
        let spot = self.walk(to)?;
        let (Some(target), Some(new_name)) = (spot.place(), spot.name.clone()) else {
            return Err(TreeError::IsRoot);
        };
        let old_name = {
            let below = Arc::clone(&spot.node.served);
            let _names = below.names.write();
            self.still_there(&spot, to)?;
            self.namespace.move_mount((place, ""), (target, ""))?;
            self.change(|state, snapshot| {
                // It may have left meanwhile.
                let Some(moved) = state.places.get_mut(&place.mount) else { return Err(spot) };
                let Spot { on, node, .. } = spot;
                snapshot.uncover(moved);
                snapshot.cover((node.served.tag, node.node));
                // What is given up is dropped without the lock.
                let old = (std::mem::replace(&mut moved.on, on), std::mem::replace(&mut moved.covered, node));
                Ok((std::mem::replace(&mut moved.name, Arc::clone(&new_name)), old))
            })
        };
        let old_name = old_name.map(|(name, _)| name).ok();
        for name in old_name.iter().chain([&new_name]) {
            tell(dev, name, None);
        }
        Ok(())
    }

    /// Shows a directory in a second place.
    pub(crate) fn bind(&self, dev: &Dev, from: &Path, to: &Path) -> Result<(), TreeError> {
        let source = self.walk(from)?;
        let spot = self.walk(to)?;
        let (Some(place), Some(target), Some(name)) = (source.place(), spot.place(), spot.name.clone())
        else {
            return Err(TreeError::IsRoot);
        };
        let tag = self.new_tag()?;
        let served = Arc::clone(&source.on.served);
        let superblock = source.on.superblock.clone();
        let mounted = {
            let below = Arc::clone(&spot.node.served);
            let _names = below.names.write();
            self.still_there(&spot, to)?;
            served.is_seen_through(tag);
            let bound = self.namespace.bind((place, ""), (target, ""), false);
            let mount = bound.inspect_err(|_| served.is_not_seen_through(tag))?;
            self.note(Tagged::of_mount(tag, mount, source.node.node, (served, superblock)), spot, &name);
            mount
        };
        tell(dev, &name, None);
        self.catch_up(dev, mounted);
        Ok(())
    }

    /// Waits until nothing is open of what is attached at a path, or `until`; says whether nothing is.
    pub(crate) fn wait_closed(&self, path: &Path, until: Instant) -> Result<bool, TreeError> {
        let place = self.attached_at(path)?;
        let superblock = self.namespace.superblock(place.mount);
        Ok(superblock.is_none_or(|superblock| superblock.wait_unheld(until)))
    }

    /// What is attached.
    pub(crate) fn attachments(&self) -> Vec<AttachmentInfo> {
        let mut found: Vec<(MountId, Tag, Arc<Tagged>, PathOf)> = {
            let state = self.state.lock();
            let one = |(mount, at): (&MountId, &Attachment)| {
                let path = PathOf { on: Arc::clone(&at.on), node: at.covered.node };
                (*mount, at.tagged.served.tag, Arc::clone(&at.tagged), path)
            };
            state.places.iter().map(one).collect()
        };
        found.sort_by_key(|(mount, ..)| *mount);
        // Without the lock: a store is asked.
        let path = |mount: MountId| self.path_of(mount, &found);
        found
            .iter()
            .map(|(mount, volume, ..)| AttachmentInfo {
                mount: *mount,
                volume: volume.number(),
                path: path(*mount),
            })
            .collect()
    }

    fn path_of(&self, mount: MountId, all: &[(MountId, Tag, Arc<Tagged>, PathOf)]) -> Option<PathBuf> {
        let mut path = PathBuf::new();
        let mut at = mount;
        while at != self.root_mount {
            let (.., place) = all.iter().find(|(mount, ..)| *mount == at)?;
            let inside = place.inside()?;
            // What is attached on top of something has the same path.
            path = if inside.as_os_str().is_empty() { path } else { inside.join(path) };
            at = place.on.mount?;
        }
        Some(path)
    }

    /// Ends everything that is attached, and waits for it.
    pub(crate) fn end(&self) {
        if let Err(error) = self.namespace.shut() {
            tracing::error!(%error, "what is attached cannot be ended");
        }
        let volumes: Vec<Arc<Served>> = self.state.lock().snapshot.volumes().map(Arc::clone).collect();
        // Others may be ending it, and files that are open may keep a volume: nobody can use them any more.
        for served in volumes {
            mounts::Superblock::shutdown(&*served);
        }
    }
}

impl super::Snapshot {
    fn cover(&mut self, dir: (Tag, NodeId)) {
        *self.covered.shard_mut(dir).entry(dir).or_default() += 1;
    }

    fn uncover(&mut self, one: &Attachment) {
        let dir = (one.covered.served.tag, one.covered.node);
        let shard = self.covered.shard_mut(dir);
        if let Some(count) = shard.get_mut(&dir) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&dir);
            }
        }
    }
}

/// A directory whose path is wanted.
struct PathOf {
    on: Arc<Tagged>,
    node: NodeId,
}

impl PathOf {
    /// From what its mount shows.
    fn inside(&self) -> Option<PathBuf> {
        let _asked = self.on.served.enter()?;
        let volume = &self.on.served.volume;
        let path = volume.path_of(self.node)?;
        if self.on.root == NodeId::ROOT {
            return Some(path);
        }
        path.strip_prefix(volume.path_of(self.on.root)?).ok().map(Path::to_owned)
    }
}

/// Has the kernel forget what is under this name; a mount's root that was there is removed for those inside it.
fn tell(dev: &Dev, name: &Name, gone: Option<u64>) {
    let (parent, name) = (store::ObjectId(name.wire), name.name.clone());
    match gone {
        None => notify::send(dev, &Note::Entry { parent, name }),
        Some(child) => {
            let child = store::ObjectId(child);
            notify::send(dev, &Note::Delete { parent, child, name: name.clone() });
            // Where that was refused, the name is forgotten all the same.
            notify::send(dev, &Note::Entry { parent, name });
            notify::send(dev, &Note::Inode { id: child, offset: -1, len: 0 });
        }
    }
}
