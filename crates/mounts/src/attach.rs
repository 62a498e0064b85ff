//! Mounting: a superblock, a part of what is mounted elsewhere, and copies for all mounts that
//! receive the change.
//!
//! A mount to be made is first a list of [`Draft`]s, then one copy of it is made for each place:
//! the requested one, and those that receive it. All copies appear to walks at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::change::{AllLocked, Change};
use crate::error::{Error, Result};
use crate::mount::{Mount, MountId, Parent};
use crate::namespace::{Namespace, Ns};
use crate::superblock::{Inode, Kind, Super};
use crate::tree::{Tie, Tree};
use crate::walk::{Last, Place, Start};

/// A mount to be made.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) superblock: Super,
    pub(crate) root: Inode,
    pub(crate) kind: Kind,
    /// The place that it is on: an earlier draft of the list. None: the first.
    pub(crate) on: Option<(usize, Inode)>,
    pub(crate) tie: Tie,
}

/// A place that gets a copy, and the ties of its mounts.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) on: (MountId, Inode),
    pub(crate) ties: Vec<Tie>,
}

/// A mount that a change made, and the place that it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Its number.
    pub mount: MountId,
    /// Its place when it was made, in any namespace.
    pub on: Place,
}

impl Namespace {
    /// Mounts a superblock on a path; walks there see it when the call returns.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::AlreadyThere`], [`Error::NotDirectory`],
    /// [`Error::TooManyMounts`], [`Error::Ended`], and those of the walk.
    pub fn attach<'a>(
        &self,
        start: impl Into<Start<'a>>,
        path: impl AsRef<Path>,
        superblock: &Super,
    ) -> Result<MountId> {
        first(&self.attach_telling(start, path, superblock)?)
    }

    /// Like [`attach`](Self::attach); returns the mounts that were made: the one on the path first,
    /// then those on all mounts that receive the change.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_telling<'a>(
        &self,
        start: impl Into<Start<'a>>,
        path: impl AsRef<Path>,
        superblock: &Super,
    ) -> Result<Vec<Made>> {
        let draft = Draft {
            superblock: superblock.clone(),
            root: superblock.superblock().root(),
            kind: Kind::Directory,
            on: None,
            tie: Tie::default(),
        };
        self.change_at(start.into(), path.as_ref(), |tree, _, (on, kind), change| {
            check_kinds(path.as_ref(), Kind::Directory, kind)?;
            tree.check_not_there(on, &draft)?;
            let mut drafts = vec![draft.clone()];
            tree.graft(&mut drafts, on, change)
        })
    }

    /// Mounts the inode at `from` also on `to`; with `is_recursive` together with the mounts below
    /// it.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), and [`Error::NotAllowed`] for a mount that is unbindable.
    pub fn bind<'a, 'b>(
        &self,
        from: (impl Into<Start<'a>>, impl AsRef<Path>),
        to: (impl Into<Start<'b>>, impl AsRef<Path>),
        is_recursive: bool,
    ) -> Result<MountId> {
        first(&self.bind_telling(from, to, is_recursive)?)
    }

    /// Like [`bind`](Self::bind); returns the mounts that were made, as
    /// [`attach_telling`](Self::attach_telling).
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_telling<'a, 'b>(
        &self,
        from: (impl Into<Start<'a>>, impl AsRef<Path>),
        to: (impl Into<Start<'b>>, impl AsRef<Path>),
        is_recursive: bool,
    ) -> Result<Vec<Made>> {
        let (from, to) = ((from.0.into(), from.1.as_ref()), (to.0.into(), to.1.as_ref()));
        loop {
            let (place, source) = self.ns.resolve(from.0, from.1, Last::Follow)?;
            let result = self.change_at(to.0, to.1, |tree, _, (on, kind), change| {
                check_kinds(to.1, source, kind)?;
                let mut drafts = tree.drafts(place, source, is_recursive, false)?;
                tree.graft(&mut drafts, on, change)
            });
            // The mount to be bound has left meanwhile: the path leads elsewhere now.
            if result != Err(Error::NotHere) || self.ns.resolve(from.0, from.1, Last::Follow)?.0 == place {
                return result;
            }
        }
    }

    /// Finds a place, takes the lock of the tree, and makes the change there: the walk is made
    /// again if its mount has left meanwhile.
    pub(crate) fn change_at<T>(
        &self,
        start: Start<'_>,
        path: &Path,
        change: impl Fn(&mut Tree, &Arc<Ns>, ((MountId, Inode), Kind), &mut Change) -> Result<T>,
    ) -> Result<T> {
        self.check_rights()?;
        loop {
            let (place, kind) = self.ns.resolve(start, path, Last::Follow)?;
            let mut changed = Change::default();
            let result = {
                let mut tree = self.ns.family.tree.lock();
                let Some(on) = tree.top(&self.ns, place) else {
                    drop(tree);
                    self.check_start(start)?;
                    continue;
                };
                change(&mut tree, &self.ns, (on, kind), &mut changed)
            };
            changed.publish();
            return result;
        }
    }

    /// A start that has left the namespace stays so: there is no use in trying again.
    fn check_start(&self, start: Start<'_>) -> Result<()> {
        match start {
            Start::Pin(pin) if !pin.is_mounted() => Err(Error::NotHere),
            _ => Ok(()),
        }
    }
}

fn first(made: &[Made]) -> Result<MountId> {
    made.first().map(|made| made.mount).ok_or(Error::NotHere)
}

fn check_kinds(path: &Path, source: Kind, target: Kind) -> Result<()> {
    if (source == Kind::Directory) == (target == Kind::Directory) {
        return Ok(());
    }
    Err(Error::NotDirectory { name: path.display().to_string() })
}

impl Tree {
    /// The uppermost mount on this place; none if its mount is not in the namespace.
    pub(crate) fn top(&self, ns: &Arc<Ns>, place: Place) -> Option<(MountId, Inode)> {
        self.nodes.get(&place.mount).filter(|node| Arc::ptr_eq(&node.ns, ns))?;
        let mut at = (place.mount, place.inode);
        while let Some(child) = self.child(at.0, at.1) {
            at = (child, self.nodes.get(&child)?.mount.root);
        }
        Some(at)
    }

    fn check_not_there(&self, on: (MountId, Inode), draft: &Draft) -> Result<()> {
        let is_there = self.nodes.get(&on.0).is_some_and(|node| {
            node.mount.root == on.1 && node.mount.superblock.is_same(&draft.superblock) && draft.root == on.1
        });
        if is_there { Err(Error::AlreadyThere) } else { Ok(()) }
    }

    /// Copies of the mounts at a place.
    pub(crate) fn drafts(
        &self,
        place: Place,
        kind: Kind,
        is_recursive: bool,
        with_unbindable: bool,
    ) -> Result<Vec<Draft>> {
        let top = self.nodes.get(&place.mount).ok_or(Error::NotHere)?;
        if top.tie.is_unbindable && !with_unbindable {
            return Err(Error::NotAllowed { why: "the mount is unbindable" });
        }
        let draft = |id: MountId, on| {
            self.nodes.get(&id).map(|node| Draft {
                superblock: node.mount.superblock.clone(),
                root: node.mount.root,
                kind: node.mount.kind,
                on,
                tie: node.tie,
            })
        };
        let mut drafts =
            vec![Draft { root: place.inode, kind, ..draft(place.mount, None).ok_or(Error::NotHere)? }];
        let mut ids = vec![place.mount];
        let mut next = 0;
        while is_recursive && next < ids.len() {
            let node = self.nodes.get(&ids[next]).ok_or(Error::NotHere)?;
            for &id in &node.children {
                let Some((_, at)) = self.nodes.get(&id).and_then(|child| child.parent) else { continue };
                let is_seen = next > 0
                    || place.inode == node.mount.root
                    || node.mount.superblock.superblock().is_below(at, place.inode);
                let child = draft(id, Some((next, at))).ok_or(Error::NotHere)?;
                if is_seen && (with_unbindable || !child.tie.is_unbindable) {
                    drafts.push(child);
                    ids.push(id);
                }
            }
            next += 1;
        }
        Ok(drafts)
    }

    /// Mounts `drafts` on a place and on all that receive it; the copy on that place comes first.
    fn graft(
        &mut self,
        drafts: &mut [Draft],
        on: (MountId, Inode),
        change: &mut Change,
    ) -> Result<Vec<Made>> {
        let mut sites = self.sites(drafts.iter_mut().map(|draft| &mut draft.tie), on);
        let ties = drafts.iter().map(|draft| draft.tie).collect();
        sites.insert(0, Site { on, ties });
        self.plant(drafts, &sites, change)
    }

    /// The places that receive a mount on `on`; the mount becomes shared if `on` is.
    pub(crate) fn sites<'t>(
        &mut self,
        ties: impl Iterator<Item = &'t mut Tie>,
        on: (MountId, Inode),
    ) -> Vec<Site> {
        let mut sites = Vec::new();
        let Some(group) = self.nodes.get(&on.0).and_then(|node| node.tie.group) else { return sites };
        let mut shared = Vec::new();
        for tie in ties {
            tie.group = tie.group.or_else(|| Some(self.new_group()));
            shared.push(*tie);
        }
        // Groups whose mounts receive it, and the ties of the copies on them.
        let mut groups = vec![(group, shared)];
        let mut next = 0;
        while let Some((group, ties)) = groups.get(next).cloned() {
            for id in self.members(group) {
                if id != on.0 && self.sees(id, on.1) {
                    sites.push(Site { on: (id, on.1), ties: ties.clone() });
                }
            }
            for slave in self.slaves(group) {
                let enslaved = |tie: &Tie| Tie { group: None, master: tie.group, is_unbindable: false };
                match self.nodes.get(&slave).and_then(|node| node.tie.group) {
                    Some(own) if groups.iter().any(|(known, _)| *known == own) => {}
                    Some(own) => {
                        let mut below: Vec<Tie> = ties.iter().map(enslaved).collect();
                        below.iter_mut().for_each(|tie| tie.group = Some(self.new_group()));
                        groups.push((own, below));
                    }
                    None if self.sees(slave, on.1) => {
                        sites.push(Site { on: (slave, on.1), ties: ties.iter().map(enslaved).collect() });
                    }
                    None => {}
                }
            }
            next += 1;
        }
        sites
    }

    /// Makes a copy of `drafts` on each place.
    pub(crate) fn plant(
        &mut self,
        drafts: &[Draft],
        sites: &[Site],
        change: &mut Change,
    ) -> Result<Vec<Made>> {
        let mut namespaces = BTreeMap::new();
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for site in sites {
            let ns = &self.nodes.get(&site.on.0).ok_or(Error::NotHere)?.ns;
            let count = counts
                .entry(ns.home.id)
                .or_insert_with(|| self.counts.get(&ns.home.id).copied().unwrap_or(0));
            *count += drafts.len();
            if *count > ns.options.mounts_max {
                return Err(Error::TooManyMounts { max: ns.options.mounts_max });
            }
            namespaces.insert(ns.home.id, Arc::clone(ns));
        }
        grab(drafts, sites.len())?;
        let locked = AllLocked::lock(&namespaces);
        let mut all = Vec::with_capacity(sites.len() * drafts.len());
        for site in sites {
            let Some(node) = self.nodes.get(&site.on.0) else { continue };
            let (ns, parent) = (Arc::clone(&node.ns), Arc::clone(&node.mount));
            let _shown_to_walks = locked.of(&ns);
            let mut made: Vec<Arc<Mount>> = Vec::with_capacity(drafts.len());
            for (draft, tie) in drafts.iter().zip(&site.ties) {
                let (parent, at) = match draft.on {
                    Some((on, at)) => (&made[on], at),
                    None => (&parent, site.on.1),
                };
                let place = Parent { mount: Arc::clone(parent), at };
                let superblock = draft.superblock.clone();
                let mount = Mount::new(&ns.home, superblock, (draft.root, draft.kind), Some(place));
                self.tuck(&ns, (parent.id, at), &mount, change);
                self.add(&ns, &mount, Some((parent.id, at)), *tie, change);
                all.push(Made { mount: mount.id, on: Place { mount: parent.id, inode: at } });
                made.push(mount);
            }
        }
        Ok(all)
    }

    /// A place that receives a mount may have one already: that one goes on top of the new one, as
    /// if it had come later.
    fn tuck(&mut self, ns: &Arc<Ns>, on: (MountId, Inode), under: &Arc<Mount>, change: &mut Change) {
        let Some(child) = self.child(on.0, on.1) else { return };
        let Some(mount) = self.nodes.get(&child).map(|node| Arc::clone(&node.mount)) else { return };
        self.unhash(ns, &mount, change.old(ns));
        let place = Parent { mount: Arc::clone(under), at: under.root };
        change.old(ns).parents.push(mount.parent.replace(Some(place)));
        self.hash(ns, &mount, (under.id, under.root), change);
    }
}

/// Counts the mounts that are to be made.
pub(crate) fn grab(drafts: &[Draft], copies: usize) -> Result<()> {
    let all = || drafts.iter().flat_map(|draft| std::iter::repeat_n(&draft.superblock, copies));
    for (n, superblock) in all().enumerate() {
        if let Err(error) = superblock.grab() {
            // The superblocks before it have other mounts, or never had one: nothing ends by this.
            all().take(n).for_each(Super::release_unused);
            return Err(error);
        }
    }
    Ok(())
}
