//! From paths to nodes, and from nodes to paths.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use mounts::{Inode, MountId, VfsPath};
use store::FileType;
use volume::NodeId;

use super::change::{Attached, AttachmentInfo, TreeError};
use super::clones::View;
use super::served::Served;
use super::wire::{self, Tag};
use super::{Tagged, Tree};

/// A node, with a look-up of ours on it: its number stays.
#[derive(Debug)]
pub(super) struct NodeRef {
    pub(super) served: Arc<Served>,
    pub(super) node: NodeId,
}

impl NodeRef {
    /// A volume's root, which is known without a look-up.
    pub(super) fn root_of(served: &Arc<Served>) -> Self {
        Self { served: Arc::clone(served), node: NodeId::ROOT }
    }

    /// A reference to a node on which another holder has a look-up.
    pub(super) fn beside(served: &Arc<Served>, node: NodeId) -> Result<Self, volume::Error> {
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
pub(super) struct Name {
    /// Kept so that the kernel's number for it stays the same.
    pub(super) dir: NodeRef,
    pub(super) wire: u64,
    pub(super) name: OsString,
}

/// Where a mount is.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) tagged: Arc<Tagged>,
    /// The mount that it is on.
    pub(super) on: Arc<Tagged>,
    pub(super) covered: NodeRef,
    pub(super) name: Arc<Name>,
    /// The directory that the mount shows. This look-up keeps it known to its volume: the kernel
    /// may give all of its own look-ups back, and look the mount up by name afterwards.
    pub(super) _root: NodeRef,
}

/// The end of a path.
pub(super) struct Spot {
    /// The mount that it ends on.
    pub(super) on: Arc<Tagged>,
    pub(super) node: NodeRef,
    /// Its name; none for the mountpoint itself.
    pub(super) name: Option<Arc<Name>>,
}

impl Spot {
    pub(super) fn place(&self) -> Option<VfsPath> {
        self.on.mount.map(|mount| VfsPath { mount, inode: Inode(self.node.node.0) })
    }
}

impl Tree {
    pub(super) fn walk(&self, (view, path): (&View, &Path)) -> Result<Spot, TreeError> {
        let node = NodeRef { served: Arc::clone(&self.root), node: NodeId::ROOT };
        let mut spot = Spot { on: Arc::clone(&view.root), node, name: None };
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
        let name = Arc::new(Name { dir: from.node, wire, name: name.to_owned() });
        let crossed = self.crossed(Some(&from.on), node.node);
        let Some(on) = crossed else { return Ok(Spot { on: from.on, node, name: Some(name) }) };
        Ok(Spot { node: NodeRef::beside(&on.served, on.root).map_err(failed)?, on, name: Some(name) })
    }

    /// Whether the directory still has its name, now that no thread can take it.
    pub(super) fn still_there(&self, spot: &Spot, path: &Path) -> Result<(), TreeError> {
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

    /// The mount that is attached at a path. Keeps nothing of it.
    pub(super) fn attached_at(&self, at: (&View, &Path)) -> Result<VfsPath, TreeError> {
        let spot = self.walk(at)?;
        let path = at.1;
        let is_root = spot.node.node == spot.on.root && !Arc::ptr_eq(&spot.on, &at.0.root);
        match spot.place() {
            _ if spot.name.is_none() => Err(TreeError::IsRoot),
            Some(place) if is_root => Ok(place),
            _ => Err(TreeError::NotAttached(path.display().to_string())),
        }
    }

    /// The attachments in a namespace.
    pub(crate) fn attachments(&self, view: &View) -> Vec<AttachmentInfo> {
        let mut found: Vec<(MountId, Tag)> = {
            let state = self.state.lock();
            let of_view =
                |(_, at): &(&MountId, &Attachment)| Arc::ptr_eq(&at.tagged.namespace, &view.namespace);
            let one = |(mount, at): (&MountId, &Attachment)| (*mount, at.tagged.served.tag);
            state.places.iter().filter(of_view).map(one).collect()
        };
        found.sort_unstable();
        let info = |(mount, volume): (MountId, Tag)| AttachmentInfo {
            mount,
            volume: volume.number(),
            path: self.path_of(view, mount),
        };
        found.into_iter().map(info).collect()
    }

    /// Where a volume is: at the first of its places in a namespace.
    pub(crate) fn place_of(&self, view: &View, attached: &Attached) -> Option<PathBuf> {
        let mount = {
            let state = self.state.lock();
            let tags = state.of_volume.get(&attached.volume)?.iter();
            let tagged = tags.filter_map(|tag| state.snapshot.by_tag.get(*tag));
            let mut there = tagged.filter(|one| Arc::ptr_eq(&one.namespace, &view.namespace));
            there.find_map(|one| one.mount.filter(|mount| state.places.contains_key(mount)))?
        };
        self.path_of(view, mount)
    }

    /// Which volume is attached uppermost at a path.
    pub(crate) fn volume_at(&self, at: (&View, &Path)) -> Result<u64, TreeError> {
        let place = self.attached_at(at)?;
        let tagged = self.tagged_mount(place.mount);
        let none = || TreeError::NotAttached(at.1.display().to_string());
        tagged.map(|tagged| tagged.served.tag.number()).ok_or_else(none)
    }

    fn path_of(&self, view: &View, mount: MountId) -> Option<PathBuf> {
        let mut path = PathBuf::new();
        let mut at = mount;
        while view.root.mount != Some(at) {
            let place = {
                let state = self.state.lock();
                let here = state.places.get(&at)?;
                PathOf { on: Arc::clone(&here.on), node: here.covered.node }
            };
            // Without the lock: this asks a volume.
            let inside = place.inside()?;
            // A volume attached on top of another has the same path; and `join` would end the last
            // one with a slash.
            path = match (inside.as_os_str().is_empty(), path.as_os_str().is_empty()) {
                (true, _) => path,
                (_, true) => inside,
                _ => inside.join(path),
            };
            at = place.on.mount?;
        }
        Some(path)
    }
}

/// A directory whose path is wanted.
struct PathOf {
    on: Arc<Tagged>,
    node: NodeId,
}

impl PathOf {
    /// The path from the root of its mount.
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
