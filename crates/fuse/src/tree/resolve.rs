//! From paths to nodes, and from nodes to paths.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use mounts::{Inode, MountId, VfsPath};
use store::FileType;
use volume::NodeId;

use super::mount_node::{Attachment, Dentry, MountNode, NodePin};
use super::mount_tree::MountTree;
use super::namespace_view::NamespaceView;
use super::types::{Attached, AttachmentInfo, TreeError};
use super::wire::{self, NodeTag};

/// The end of a path.
pub(super) struct ResolvedPath {
    /// The mount that it ends on.
    pub(super) on: Arc<MountNode>,
    pub(super) node: NodePin,
    /// Its name; none for the mountpoint itself.
    pub(super) name: Option<Arc<Dentry>>,
}

impl ResolvedPath {
    pub(super) fn place(&self) -> Option<VfsPath> {
        self.on.mount.map(|mount| VfsPath { mount, inode: Inode(self.node.node.0) })
    }

    /// The place that something can be mounted on, and its name.
    pub(super) fn target(&self) -> Result<(VfsPath, Arc<Dentry>), TreeError> {
        self.place().zip(self.name.clone()).ok_or(TreeError::IsRoot)
    }
}

impl MountTree {
    pub(super) fn walk(&self, (view, path): (&NamespaceView, &Path)) -> Result<ResolvedPath, TreeError> {
        let node = NodePin { served: Arc::clone(&self.root), node: NodeId::ROOT };
        let mut resolved = ResolvedPath { on: Arc::clone(&view.root), node, name: None };
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
            resolved = self.step(resolved, name, &walked)?;
        }
        Ok(resolved)
    }

    fn step(&self, from: ResolvedPath, name: &OsStr, walked: &Path) -> Result<ResolvedPath, TreeError> {
        let shown = || walked.display().to_string();
        let failed = |error| TreeError::Path { path: shown(), error };
        let served = Arc::clone(&from.on.served);
        let node = {
            let _asked = served.enter().ok_or_else(|| failed(volume::Error::Released))?;
            let found = served.volume.lookup(from.node.node, name).map_err(failed)?;
            let node = NodePin { served: Arc::clone(&served), node: found.id };
            if found.attr.kind != FileType::Directory {
                return Err(TreeError::NotDirectory(shown()));
            }
            node
        };
        let wire = wire::join(from.on.tag, from.node.node).ok_or(TreeError::NodeTooLarge)?;
        let name = Arc::new(Dentry { dir: from.node, wire, name: name.to_owned() });
        let crossed = self.crossed(Some(&from.on), node.node);
        let Some(on) = crossed else { return Ok(ResolvedPath { on: from.on, node, name: Some(name) }) };
        Ok(ResolvedPath { node: NodePin::beside(&on.served, on.root).map_err(failed)?, on, name: Some(name) })
    }

    /// Whether the directory still has its name, now that no thread can take it.
    pub(super) fn check_still_there(&self, resolved: &ResolvedPath, path: &Path) -> Result<(), TreeError> {
        let Some(name) = &resolved.name else { return Ok(()) };
        let covered = &resolved.node;
        if covered.node == resolved.on.root || covered.node == NodeId::ROOT {
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
    pub(super) fn attached_at(&self, at: (&NamespaceView, &Path)) -> Result<VfsPath, TreeError> {
        let resolved = self.walk(at)?;
        let path = at.1;
        let is_root = resolved.node.node == resolved.on.root && !Arc::ptr_eq(&resolved.on, &at.0.root);
        match resolved.place() {
            _ if resolved.name.is_none() => Err(TreeError::IsRoot),
            Some(place) if is_root => Ok(place),
            _ => Err(TreeError::NotAttached(path.display().to_string())),
        }
    }

    /// The attachments in a namespace.
    pub(crate) fn attachments(&self, view: &NamespaceView) -> Vec<AttachmentInfo> {
        let mut found: Vec<(MountId, NodeTag)> = {
            let state = self.state.lock();
            let of_view =
                |(_, at): &(&MountId, &Attachment)| Arc::ptr_eq(&at.mount_node.namespace, &view.namespace);
            let one = |(mount, at): (&MountId, &Attachment)| (*mount, at.mount_node.served.tag);
            state.attachments.iter().filter(of_view).map(one).collect()
        };
        found.sort_unstable();
        let info = |(mount, volume): (MountId, NodeTag)| AttachmentInfo {
            mount,
            volume: volume.number(),
            path: self.path_of(view, mount),
        };
        found.into_iter().map(info).collect()
    }

    /// Where a volume is: at the first of its places in a namespace.
    pub(crate) fn place_of(&self, view: &NamespaceView, attached: &Attached) -> Option<PathBuf> {
        let mount = {
            let state = self.state.lock();
            let tags = state.of_volume.get(&attached.volume)?.iter();
            let mount_node = tags.filter_map(|tag| state.snapshot.by_tag.get(*tag));
            let mut there = mount_node.filter(|one| Arc::ptr_eq(&one.namespace, &view.namespace));
            there.find_map(|one| one.mount.filter(|mount| state.attachments.contains_key(mount)))?
        };
        self.path_of(view, mount)
    }

    /// Which volume is attached uppermost at a path.
    pub(crate) fn volume_at(&self, at: (&NamespaceView, &Path)) -> Result<u64, TreeError> {
        let place = self.attached_at(at)?;
        let mount_node = self.mount_node(place.mount);
        let none = || TreeError::NotAttached(at.1.display().to_string());
        mount_node.map(|mount_node| mount_node.served.tag.number()).ok_or_else(none)
    }

    fn path_of(&self, view: &NamespaceView, mount: MountId) -> Option<PathBuf> {
        let mut path = PathBuf::new();
        let mut at = mount;
        while view.root.mount != Some(at) {
            let place = {
                let state = self.state.lock();
                let here = state.attachments.get(&at)?;
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
    on: Arc<MountNode>,
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
