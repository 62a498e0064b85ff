//! Mounting: a superblock, a part of what is mounted elsewhere, and copies for all mounts that
//! receive the change.
//!
//! A mount to be made is first a list of [`MountTemplate`]s, then one copy of it is made for each
//! mountpoint: the requested one, and those that receive it. All copies appear to walks at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::change::{Change, LockedNamespaces};
use crate::error::{Error, Result};
use crate::mount::{Mount, MountId, Parent, VfsPath};
use crate::namespace::Namespace;
use crate::propagate::AttachTarget;
use crate::superblock::{Inode, Kind, SuperblockRef};
use crate::tree::{Ns, PropagationState, Tree};
use crate::walk::{Base, FinalSymlink};

/// A mount to be made.
#[derive(Debug, Clone)]
pub(crate) struct MountTemplate {
    pub(crate) superblock: SuperblockRef,
    pub(crate) root: Inode,
    pub(crate) kind: Kind,
    /// Its mountpoint: the index of an earlier template, and an inode. None: the first.
    pub(crate) on: Option<(usize, Inode)>,
    pub(crate) propagation: PropagationState,
}

/// A mount that a change made, and its mountpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMount {
    /// Its number.
    pub mount: MountId,
    /// Its mountpoint when it was made, in any namespace.
    pub on: VfsPath,
}

impl Namespace {
    /// Mounts a superblock on a path; walks there see it when the call returns.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::AlreadyThere`], [`Error::NotDirectory`],
    /// [`Error::TooManyMounts`], [`Error::Ended`], and those of the walk.
    pub fn attach<'a>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        superblock: &SuperblockRef,
    ) -> Result<MountId> {
        first(&self.attach_all(start, path, superblock)?)
    }

    /// Like [`attach`](Self::attach); returns the mounts that were made: the one on the path first,
    /// then those on all mounts that receive the change.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_all<'a>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        superblock: &SuperblockRef,
    ) -> Result<Vec<NewMount>> {
        self.attach_template(start.into(), path.as_ref(), superblock, superblock.superblock().root(), true)
    }

    /// Like [`attach_all`](Self::attach_all), and shows the directory `root` of the superblock, which
    /// need not be mounted elsewhere, and may be there already.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), without [`Error::AlreadyThere`].
    pub fn attach_dir_all<'a>(
        &self,
        start: impl Into<Base<'a>>,
        path: impl AsRef<Path>,
        superblock: &SuperblockRef,
        root: Inode,
    ) -> Result<Vec<NewMount>> {
        self.attach_template(start.into(), path.as_ref(), superblock, root, false)
    }

    fn attach_template(
        &self,
        start: Base<'_>,
        path: &Path,
        superblock: &SuperblockRef,
        root: Inode,
        once: bool,
    ) -> Result<Vec<NewMount>> {
        let template = MountTemplate {
            superblock: superblock.clone(),
            root,
            kind: Kind::Directory,
            on: None,
            propagation: PropagationState::default(),
        };
        self.change_at(start, path, |tree, _, (on, kind), change| {
            check_kinds(path, Kind::Directory, kind)?;
            if once {
                tree.check_not_there(on, &template)?;
            }
            let mut templates = vec![template.clone()];
            tree.graft_tree(&mut templates, on, change)
        })
    }

    /// Mounts the inode at `from` also on `to`; with `is_recursive` together with the mounts below
    /// it.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), and [`Error::NotAllowed`] for a mount that is unbindable.
    pub fn bind<'a, 'b>(
        &self,
        from: (impl Into<Base<'a>>, impl AsRef<Path>),
        to: (impl Into<Base<'b>>, impl AsRef<Path>),
        is_recursive: bool,
    ) -> Result<MountId> {
        first(&self.bind_all(from, to, is_recursive)?)
    }

    /// Like [`bind`](Self::bind); returns the mounts that were made, as
    /// [`attach_all`](Self::attach_all).
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_all<'a, 'b>(
        &self,
        from: (impl Into<Base<'a>>, impl AsRef<Path>),
        to: (impl Into<Base<'b>>, impl AsRef<Path>),
        is_recursive: bool,
    ) -> Result<Vec<NewMount>> {
        let (from, to) = ((from.0.into(), from.1.as_ref()), (to.0.into(), to.1.as_ref()));
        loop {
            let (place, source) = self.ns.resolve(from.0, from.1, FinalSymlink::Follow)?;
            let result = self.change_at(to.0, to.1, |tree, _, (on, kind), change| {
                check_kinds(to.1, source, kind)?;
                let mut templates = tree.copy_tree(place, source, is_recursive, false)?;
                tree.graft_tree(&mut templates, on, change)
            });
            // The mount to be bound has left meanwhile: the path leads elsewhere now.
            if result != Err(Error::NotHere)
                || self.ns.resolve(from.0, from.1, FinalSymlink::Follow)?.0 == place
            {
                return result;
            }
        }
    }

    /// A namespace with copies of all mounts. Copies of shared mounts are peers of the originals,
    /// copies of slaves are slaves. Its readers are its own.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], and [`Error::NotHere`] if this one has ended.
    pub fn try_clone(&self) -> Result<Self> {
        self.check_rights()?;
        let ns = self.ns.beside();
        let mut change = Change::default();
        let result = {
            let mut tree = ns.propagation_domain.tree.lock();
            tree.clone_all(&self.ns, &ns, &mut change)
        };
        change.retire();
        result.map(|()| Self::of(ns))
    }

    /// A namespace with a mount of this one's root and no other, which has no peers: others are
    /// attached there one by one, and [tied](Self::tie). So a clone is made that was written down.
    ///
    /// # Errors
    /// As [`try_clone`](Self::try_clone).
    pub fn try_beside(&self) -> Result<Self> {
        self.check_rights()?;
        let root = self.root().and_then(|root| self.superblock(root)).ok_or(Error::NotHere)?;
        root.grab()?;
        Ok(Self::with_root(self.ns.beside(), &root))
    }

    /// Finds a mountpoint, takes the lock of the tree, and makes the change there: the walk is made
    /// again if its mount has left meanwhile.
    pub(crate) fn change_at<T>(
        &self,
        start: Base<'_>,
        path: &Path,
        change: impl Fn(&mut Tree, &Arc<Ns>, (VfsPath, Kind), &mut Change) -> Result<T>,
    ) -> Result<T> {
        self.check_rights()?;
        loop {
            let (place, kind) = self.ns.resolve(start, path, FinalSymlink::Follow)?;
            let mut changed = Change::default();
            let result = {
                let mut tree = self.ns.propagation_domain.tree.lock();
                let Some(on) = tree.topmost(&self.ns, place) else {
                    drop(tree);
                    self.check_start(start)?;
                    continue;
                };
                change(&mut tree, &self.ns, (on, kind), &mut changed)
            };
            changed.retire();
            return result;
        }
    }

    /// A start that has left the namespace stays so: there is no use in trying again.
    fn check_start(&self, start: Base<'_>) -> Result<()> {
        match start {
            Base::Ref(pin) if !pin.is_mounted() => Err(Error::NotHere),
            _ => Ok(()),
        }
    }
}

fn first(made: &[NewMount]) -> Result<MountId> {
    made.first().map(|made| made.mount).ok_or(Error::NotHere)
}

fn check_kinds(path: &Path, source: Kind, target: Kind) -> Result<()> {
    if (source == Kind::Directory) == (target == Kind::Directory) {
        return Ok(());
    }
    Err(Error::NotDirectory { name: path.display().to_string() })
}

impl Tree {
    /// The uppermost mount on this path; none if its mount is not in the namespace.
    pub(crate) fn topmost(&self, ns: &Arc<Ns>, place: VfsPath) -> Option<VfsPath> {
        self.nodes.get(&place.mount).filter(|node| Arc::ptr_eq(&node.ns, ns))?;
        let mut at = place;
        while let Some(mount) = self.child(at) {
            at = VfsPath { mount, inode: self.nodes.get(&mount)?.mount.root };
        }
        Some(at)
    }

    fn check_not_there(&self, on: VfsPath, template: &MountTemplate) -> Result<()> {
        let is_there = self.nodes.get(&on.mount).is_some_and(|node| {
            node.mount.root == on.inode
                && node.mount.superblock.is_same(&template.superblock)
                && template.root == on.inode
        });
        if is_there { Err(Error::AlreadyThere) } else { Ok(()) }
    }

    /// Templates of the mounts at a path. Analogous to Linux's `copy_tree`.
    pub(crate) fn copy_tree(
        &self,
        place: VfsPath,
        kind: Kind,
        is_recursive: bool,
        with_unbindable: bool,
    ) -> Result<Vec<MountTemplate>> {
        let top = self.nodes.get(&place.mount).ok_or(Error::NotHere)?;
        if top.propagation.is_unbindable && !with_unbindable {
            return Err(Error::NotAllowed { why: "the mount is unbindable" });
        }
        let template = |id: MountId, on| {
            self.nodes.get(&id).map(|node| MountTemplate {
                superblock: node.mount.superblock.clone(),
                root: node.mount.root,
                kind: node.mount.kind,
                on,
                propagation: node.propagation,
            })
        };
        let mut templates = vec![MountTemplate {
            root: place.inode,
            kind,
            ..template(place.mount, None).ok_or(Error::NotHere)?
        }];
        let mut ids = vec![place.mount];
        let mut next = 0;
        while is_recursive && next < ids.len() {
            let node = self.nodes.get(&ids[next]).ok_or(Error::NotHere)?;
            for &id in &node.children {
                let on = self.nodes.get(&id).and_then(|child| child.parent);
                let Some(VfsPath { inode: at, .. }) = on else { continue };
                let is_seen = next > 0
                    || place.inode == node.mount.root
                    || node.mount.superblock.superblock().is_below(at, place.inode);
                let child = template(id, Some((next, at))).ok_or(Error::NotHere)?;
                if is_seen && (with_unbindable || !child.propagation.is_unbindable) {
                    templates.push(child);
                    ids.push(id);
                }
            }
            next += 1;
        }
        Ok(templates)
    }

    /// Mounts `templates` on a mountpoint and on all that receive it; the copy on that one comes
    /// first.
    fn graft_tree(
        &mut self,
        templates: &mut [MountTemplate],
        on: VfsPath,
        change: &mut Change,
    ) -> Result<Vec<NewMount>> {
        let mut targets =
            self.attach_targets(templates.iter_mut().map(|template| &mut template.propagation), on);
        let states = templates.iter().map(|template| template.propagation).collect();
        targets.insert(0, AttachTarget { on, states });
        self.attach_copies(templates, &targets, change)
    }

    /// Makes a copy of `templates` on each mountpoint.
    pub(crate) fn attach_copies(
        &mut self,
        templates: &[MountTemplate],
        targets: &[AttachTarget],
        change: &mut Change,
    ) -> Result<Vec<NewMount>> {
        let mut namespaces = BTreeMap::new();
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for target in targets {
            let ns = &self.nodes.get(&target.on.mount).ok_or(Error::NotHere)?.ns;
            let count = counts
                .entry(ns.core.id)
                .or_insert_with(|| self.counts.get(&ns.core.id).copied().unwrap_or(0));
            *count += templates.len();
            if *count > ns.options.mounts_max {
                return Err(Error::TooManyMounts { max: ns.options.mounts_max });
            }
            namespaces.insert(ns.core.id, Arc::clone(ns));
        }
        grab(templates, targets.len())?;
        let locked = LockedNamespaces::lock(&namespaces);
        let mut all = Vec::with_capacity(targets.len() * templates.len());
        for target in targets {
            let Some(node) = self.nodes.get(&target.on.mount) else { continue };
            let (ns, parent) = (Arc::clone(&node.ns), Arc::clone(&node.mount));
            let _shown_to_walks = locked.of(&ns);
            let mut made: Vec<Arc<Mount>> = Vec::with_capacity(templates.len());
            for (template, propagation) in templates.iter().zip(&target.states) {
                let (parent, at) = match template.on {
                    Some((on, at)) => (&made[on], at),
                    None => (&parent, target.on.inode),
                };
                let place = Parent { mount: Arc::clone(parent), at };
                let on = place.path();
                let superblock = template.superblock.clone();
                let mount = Mount::new(&ns.core, superblock, (template.root, template.kind), Some(place));
                self.tuck(&ns, on, &mount, change);
                self.add(&ns, &mount, Some(on), *propagation, change);
                all.push(NewMount { mount: mount.id, on });
                made.push(mount);
            }
        }
        Ok(all)
    }

    fn clone_all(&mut self, from: &Arc<Ns>, to: &Arc<Ns>, change: &mut Change) -> Result<()> {
        let root = from.root_id().and_then(|id| self.nodes.get(&id)).ok_or(Error::NotHere)?;
        let place = VfsPath { mount: root.mount.id, inode: root.mount.root };
        let templates = self.copy_tree(place, root.mount.kind, true, true)?;
        grab(&templates, 1)?;
        let mut made: Vec<Arc<Mount>> = Vec::with_capacity(templates.len());
        for template in templates {
            let place = template.on.map(|(on, at)| Parent { mount: Arc::clone(&made[on]), at });
            let on = place.as_ref().map(Parent::path);
            let mount = Mount::new(&to.core, template.superblock, (template.root, template.kind), place);
            match on {
                None => self.set_root(to, &mount, template.propagation, change),
                Some(_) => self.add(to, &mount, on, template.propagation, change),
            }
            made.push(mount);
        }
        Ok(())
    }

    /// A mountpoint that receives a mount may have one already: that one goes on top of the new
    /// one, as if it had come later.
    fn tuck(&mut self, ns: &Arc<Ns>, on: VfsPath, under: &Arc<Mount>, change: &mut Change) {
        let Some(child) = self.child(on) else { return };
        let Some(mount) = self.nodes.get(&child).map(|node| Arc::clone(&node.mount)) else { return };
        self.unhash(ns, &mount, change.retired(ns));
        let place = Parent { mount: Arc::clone(under), at: under.root };
        let on = place.path();
        change.retired(ns).parents.push(mount.parent.replace(Some(place)));
        self.hash(ns, &mount, on, change);
    }
}

/// Counts the mounts that are to be made.
pub(crate) fn grab(templates: &[MountTemplate], copies: usize) -> Result<()> {
    let all = || templates.iter().flat_map(|template| std::iter::repeat_n(&template.superblock, copies));
    for (n, superblock) in all().enumerate() {
        if let Err(error) = superblock.grab() {
            // The superblocks before it have other mounts, or never had one: nothing ends by this.
            all().take(n).for_each(SuperblockRef::release_unused);
            return Err(error);
        }
    }
    Ok(())
}
