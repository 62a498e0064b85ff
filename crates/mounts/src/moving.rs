//! Moving mounts: to another mountpoint, and another root for the namespace.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::change::{Change, LockedNamespaces};
use crate::error::{Error, Result};
use crate::mount::{Mount, MountId, Parent, VfsPath};
use crate::namespace::Namespace;
use crate::superblock::Kind;
use crate::tree::{Ns, Tree};
use crate::walk::{Base, FinalSymlink};

impl Namespace {
    /// Moves the mount that `from` leads to, with all mounts below it, to `to`. Walks see it at one
    /// of both mountpoints, never at neither.
    ///
    /// # Errors
    /// [`Error::NotMountRoot`], [`Error::IntoItself`], [`Error::NotAllowed`] for the namespace's
    /// root, below a shared mount, and for a tree with an unbindable mount onto a shared one; and
    /// those of [`attach`](Self::attach).
    pub fn move_mount<'a, 'b>(
        &self,
        from: (impl Into<Base<'a>>, impl AsRef<Path>),
        to: (impl Into<Base<'b>>, impl AsRef<Path>),
    ) -> Result<()> {
        let (from, to) = ((from.0.into(), from.1.as_ref()), (to.0.into(), to.1.as_ref()));
        loop {
            let (place, source) = self.ns.resolve(from.0, from.1, FinalSymlink::Follow)?;
            let result = self.change_at(to.0, to.1, |tree, ns, (on, kind), change| {
                if (source == Kind::Directory) != (kind == Kind::Directory) {
                    return Err(Error::NotDirectory { name: to.1.display().to_string() });
                }
                tree.move_to(ns, place, on, change)
            });
            // The mount has left meanwhile: the path leads elsewhere now.
            if result != Err(Error::NotHere)
                || self.ns.resolve(from.0, from.1, FinalSymlink::Follow)?.0 == place
            {
                return result;
            }
        }
    }

    /// Makes the mount that `new_root` leads to the namespace's root, and puts the old root on
    /// `put_old`, which is `new_root` or below it, as pivot_root(2) does.
    ///
    /// # Errors
    /// [`Error::NotMountRoot`]; [`Error::NotAllowed`] if `new_root` is the root already, `put_old`
    /// is not below it, or one of the mounts concerned is below a shared mount; those of the walk.
    pub fn pivot_root<'a, 'b>(
        &self,
        new_root: (impl Into<Base<'a>>, impl AsRef<Path>),
        put_old: (impl Into<Base<'b>>, impl AsRef<Path>),
    ) -> Result<()> {
        let (place, _) = self.ns.resolve(new_root.0.into(), new_root.1.as_ref(), FinalSymlink::Follow)?;
        self.change_at(put_old.0.into(), put_old.1.as_ref(), |tree, ns, (on, _), change| {
            tree.pivot_root(ns, place, on, change)
        })
    }
}

impl Tree {
    /// The mount whose root a path is, and its mountpoint.
    fn movable(&self, ns: &Arc<Ns>, place: VfsPath) -> Result<(Arc<Mount>, VfsPath)> {
        let node = self.nodes.get(&place.mount).filter(|node| Arc::ptr_eq(&node.ns, ns));
        let node = node.ok_or(Error::NotHere)?;
        if node.mount.root != place.inode {
            return Err(Error::NotMountRoot);
        }
        let on = node.parent.ok_or(Error::NotAllowed { why: "it is the namespace's root" })?;
        if self.is_shared(on.mount) {
            return Err(Error::NotAllowed { why: "the mount below it is shared" });
        }
        Ok((Arc::clone(&node.mount), on))
    }

    fn is_shared(&self, id: MountId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.propagation.group.is_some())
    }

    fn move_to(&mut self, ns: &Arc<Ns>, from: VfsPath, to: VfsPath, change: &mut Change) -> Result<()> {
        let (mount, _) = self.movable(ns, from)?;
        if self.is_in_subtree(to.mount, mount.id) {
            return Err(Error::IntoItself);
        }
        let mut templates = self.copy_tree(from, mount.kind, true, true)?;
        if self.is_shared(to.mount) && templates.iter().any(|template| template.propagation.is_unbindable) {
            return Err(Error::NotAllowed { why: "an unbindable mount would become shared" });
        }
        // In the order of the templates; copies may come below some of them.
        let ids = self.breadth_first(mount.id);
        let targets = self.attach_targets(templates.iter_mut().map(|template| &mut template.propagation), to);
        if !targets.is_empty() {
            self.attach_copies(&templates, &targets, change)?;
        }
        if self.is_shared(to.mount) {
            for (id, template) in ids.into_iter().zip(templates) {
                self.set_propagation_state(id, template.propagation);
            }
        }
        let namespaces = BTreeMap::from([(ns.core.id, Arc::clone(ns))]);
        let _locked = LockedNamespaces::lock(&namespaces);
        self.rehash(ns, &mount, to, change);
        Ok(())
    }

    /// Moves a mount from one mountpoint to another. The namespace's lock is held.
    fn rehash(&mut self, ns: &Arc<Ns>, mount: &Arc<Mount>, to: VfsPath, change: &mut Change) {
        let Some(on) = self.nodes.get(&to.mount).map(|node| Arc::clone(&node.mount)) else { return };
        self.unhash(ns, mount, change.retired(ns));
        change.retired(ns).parents.push(mount.parent.replace(Some(Parent { mount: on, at: to.inode })));
        self.hash(ns, mount, to, change);
    }

    fn pivot_root(
        &mut self,
        ns: &Arc<Ns>,
        new: VfsPath,
        put_old: VfsPath,
        change: &mut Change,
    ) -> Result<()> {
        let (new_root, _) = self.movable(ns, new)?;
        let old_root = ns.root_id().and_then(|id| self.nodes.get(&id)).ok_or(Error::NotHere)?;
        let old_root = Arc::clone(&old_root.mount);
        if !self.is_in_subtree(put_old.mount, new_root.id) {
            return Err(Error::NotAllowed { why: "the old root's place is not below the new root" });
        }
        if self.is_shared(put_old.mount) || self.is_shared(new_root.id) {
            return Err(Error::NotAllowed { why: "the new root is shared" });
        }
        let namespaces = BTreeMap::from([(ns.core.id, Arc::clone(ns))]);
        let _locked = LockedNamespaces::lock(&namespaces);
        self.unhash(ns, &new_root, change.retired(ns));
        change.retired(ns).roots.push(ns.root.replace(Some(Arc::clone(&new_root))));
        self.rehash(ns, &old_root, put_old, change);
        Ok(())
    }
}
