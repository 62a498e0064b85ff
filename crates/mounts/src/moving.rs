//! Moving mounts: to another place of the tree, and another root for the namespace.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::change::{AllLocked, Change};
use crate::error::{Error, Result};
use crate::mount::{Mount, MountId, Parent};
use crate::namespace::{Namespace, Ns};
use crate::superblock::{Inode, Kind};
use crate::tree::{Tie, Tree};
use crate::walk::{Last, Place, Start};

impl Namespace {
    /// Moves the mount that `from` leads to, with all mounts below it, to `to`. Walks see it at one
    /// of both places, never at neither.
    ///
    /// # Errors
    /// [`Error::NotMountRoot`], [`Error::IntoItself`], [`Error::NotAllowed`] for the namespace's
    /// root, below a shared mount, and for a tree with an unbindable mount onto a shared one; and
    /// those of [`attach`](Self::attach).
    pub fn move_mount<'a, 'b>(
        &self,
        from: (impl Into<Start<'a>>, impl AsRef<Path>),
        to: (impl Into<Start<'b>>, impl AsRef<Path>),
    ) -> Result<()> {
        let (from, to) = ((from.0.into(), from.1.as_ref()), (to.0.into(), to.1.as_ref()));
        loop {
            let (place, source) = self.ns.resolve(from.0, from.1, Last::Follow)?;
            let result = self.change_at(to.0, to.1, |tree, ns, (on, kind), change| {
                if (source == Kind::Directory) != (kind == Kind::Directory) {
                    return Err(Error::NotDirectory { name: to.1.display().to_string() });
                }
                tree.move_to(ns, place, on, change)
            });
            // The mount has left meanwhile: the path leads elsewhere now.
            if result != Err(Error::NotHere) || self.ns.resolve(from.0, from.1, Last::Follow)?.0 == place {
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
    pub fn pivot<'a, 'b>(
        &self,
        new_root: (impl Into<Start<'a>>, impl AsRef<Path>),
        put_old: (impl Into<Start<'b>>, impl AsRef<Path>),
    ) -> Result<()> {
        let (place, _) = self.ns.resolve(new_root.0.into(), new_root.1.as_ref(), Last::Follow)?;
        self.change_at(put_old.0.into(), put_old.1.as_ref(), |tree, ns, (on, _), change| {
            tree.pivot(ns, place, on, change)
        })
    }
}

impl Tree {
    /// The mount whose root a place is, and the place that it is on.
    fn movable(&self, ns: &Arc<Ns>, place: Place) -> Result<(Arc<Mount>, (MountId, Inode))> {
        let node = self.nodes.get(&place.mount).filter(|node| Arc::ptr_eq(&node.ns, ns));
        let node = node.ok_or(Error::NotHere)?;
        if node.mount.root != place.inode {
            return Err(Error::NotMountRoot);
        }
        let on = node.parent.ok_or(Error::NotAllowed { why: "it is the namespace's root" })?;
        if self.is_shared(on.0) {
            return Err(Error::NotAllowed { why: "the mount below it is shared" });
        }
        Ok((Arc::clone(&node.mount), on))
    }

    fn is_shared(&self, id: MountId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.tie.group.is_some())
    }

    fn move_to(
        &mut self,
        ns: &Arc<Ns>,
        from: Place,
        to: (MountId, Inode),
        change: &mut Change,
    ) -> Result<()> {
        let (mount, _) = self.movable(ns, from)?;
        if self.is_in_subtree(to.0, mount.id) {
            return Err(Error::IntoItself);
        }
        let mut drafts = self.drafts(from, mount.kind, true, true)?;
        if self.is_shared(to.0) && drafts.iter().any(|draft| draft.tie.is_unbindable) {
            return Err(Error::NotAllowed { why: "an unbindable mount would become shared" });
        }
        // In the order of the drafts; copies may come below some of them.
        let ids = self.breadth_first(mount.id);
        let sites = self.sites(drafts.iter_mut().map(|draft| &mut draft.tie), to);
        if !sites.is_empty() {
            self.plant(&drafts, &sites, change)?;
        }
        if self.is_shared(to.0) {
            for (id, draft) in ids.into_iter().zip(drafts) {
                self.set_tie(id, draft.tie);
            }
        }
        let namespaces = BTreeMap::from([(ns.home.id, Arc::clone(ns))]);
        let _locked = AllLocked::lock(&namespaces);
        self.rehash(ns, &mount, to, change);
        Ok(())
    }

    fn set_tie(&mut self, id: MountId, tie: Tie) {
        if let Some(was) = self.nodes.get(&id).map(|node| node.tie) {
            self.untie(id, was);
            self.tie(id, tie);
        }
    }

    /// Moves a mount from one place to another. The namespace's lock is held.
    fn rehash(&mut self, ns: &Arc<Ns>, mount: &Arc<Mount>, to: (MountId, Inode), change: &mut Change) {
        let Some(on) = self.nodes.get(&to.0).map(|node| Arc::clone(&node.mount)) else { return };
        self.unhash(ns, mount, change.old(ns));
        change.old(ns).parents.push(mount.parent.replace(Some(Parent { mount: on, at: to.1 })));
        self.hash(ns, mount, to, change);
    }

    fn pivot(
        &mut self,
        ns: &Arc<Ns>,
        new: Place,
        put_old: (MountId, Inode),
        change: &mut Change,
    ) -> Result<()> {
        let (new_root, _) = self.movable(ns, new)?;
        let old_root = ns.root_id().and_then(|id| self.nodes.get(&id)).ok_or(Error::NotHere)?;
        let old_root = Arc::clone(&old_root.mount);
        if !self.is_in_subtree(put_old.0, new_root.id) {
            return Err(Error::NotAllowed { why: "the old root's place is not below the new root" });
        }
        if self.is_shared(put_old.0) || self.is_shared(new_root.id) {
            return Err(Error::NotAllowed { why: "the new root is shared" });
        }
        let namespaces = BTreeMap::from([(ns.home.id, Arc::clone(ns))]);
        let _locked = AllLocked::lock(&namespaces);
        self.unhash(ns, &new_root, change.old(ns));
        change.old(ns).roots.push(ns.root.replace(Some(Arc::clone(&new_root))));
        self.rehash(ns, &old_root, put_old, change);
        Ok(())
    }
}

/// How a mount propagates changes on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// To its copies, and theirs to it.
    Shared,
    /// It receives the changes of its former peers, and passes nothing on.
    Slave,
    /// Neither.
    Private,
    /// Neither, and a bind does not copy it.
    Unbindable,
}

impl Namespace {
    /// Sets how the mount that a path leads to propagates; with `is_recursive` all below it, too.
    ///
    /// # Errors
    /// [`Error::NotMountRoot`], [`Error::NotHere`], [`Error::NotPermitted`], and those of the walk.
    pub fn set_propagation<'a>(
        &self,
        start: impl Into<Start<'a>>,
        path: impl AsRef<Path>,
        propagation: Propagation,
        is_recursive: bool,
    ) -> Result<()> {
        self.check_rights()?;
        let (place, _) = self.ns.resolve(start.into(), path.as_ref(), Last::Follow)?;
        let mut tree = self.ns.family.tree.lock();
        let node = tree.nodes.get(&place.mount).filter(|node| Arc::ptr_eq(&node.ns, &self.ns));
        if node.ok_or(Error::NotHere)?.mount.root != place.inode {
            return Err(Error::NotMountRoot);
        }
        let ids = if is_recursive { tree.subtree(place.mount) } else { vec![place.mount] };
        for id in ids {
            tree.set_propagation(id, propagation);
        }
        Ok(())
    }

    /// A namespace with copies of all mounts. Copies of shared mounts are peers of the originals,
    /// copies of slaves are slaves. Its readers are its own.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], and [`Error::NotHere`] if this one has ended.
    pub fn try_clone(&self) -> Result<Self> {
        self.check_rights()?;
        let from = &self.ns;
        let ns = Ns::new(Arc::clone(&from.family), from.options.clone(), Arc::clone(&from.teardown));
        let mut change = Change::default();
        let result = {
            let mut tree = from.family.tree.lock();
            tree.clone_all(from, &ns, &mut change)
        };
        change.publish();
        result.map(|()| Self::of(ns))
    }
}

impl Tree {
    fn set_propagation(&mut self, id: MountId, propagation: Propagation) {
        let Some(Tie { group, master, .. }) = self.nodes.get(&id).map(|node| node.tie) else { return };
        // A remaining peer has others to receive from, or keeps its master.
        let peers = group.filter(|&group| self.members(group).len() > 1);
        let tie = match propagation {
            Propagation::Shared => {
                Tie { group: group.or_else(|| Some(self.new_group())), master, is_unbindable: false }
            }
            Propagation::Slave => Tie { group: None, master: peers.or(master), is_unbindable: false },
            Propagation::Private => Tie::default(),
            Propagation::Unbindable => Tie { is_unbindable: true, ..Tie::default() },
        };
        self.set_tie(id, tie);
    }

    fn clone_all(&mut self, from: &Arc<Ns>, to: &Arc<Ns>, change: &mut Change) -> Result<()> {
        let root = from.root_id().and_then(|id| self.nodes.get(&id)).ok_or(Error::NotHere)?;
        let place = Place { mount: root.mount.id, inode: root.mount.root };
        let drafts = self.drafts(place, root.mount.kind, true, true)?;
        crate::attach::grab(&drafts, 1)?;
        let mut made: Vec<Arc<Mount>> = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let place = draft.on.map(|(on, at)| Parent { mount: Arc::clone(&made[on]), at });
            let on = place.as_ref().map(|parent| (parent.mount.id, parent.at));
            let mount = Mount::new(&to.home, draft.superblock, (draft.root, draft.kind), place);
            match on {
                None => self.set_root(to, &mount, draft.tie, change),
                Some(_) => self.add(to, &mount, on, draft.tie, change),
            }
            made.push(mount);
        }
        Ok(())
    }
}
