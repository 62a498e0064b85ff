//! The expected tree after each verb, by the rules of mount(2) and of `SEMANTICS.md`: no threads,
//! no caches, no kernel.

use std::collections::BTreeMap;

/// A directory of a store: the store's number (0: the mountpoint's own), and its own.
pub(super) type Dir = (usize, usize);
/// A name's directory and the name.
type Name = (Dir, &'static str);

/// The expected end of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Well,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UmountKind {
    Plain,
    Lazy,
    Force,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    id: usize,
    /// The mount that it is on, and which directory of that.
    on: (usize, Dir),
    /// Which life of its volume it is of.
    life: usize,
    root: Dir,
}

/// The tree of one mountpoint; a shared clone has an equal one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Model {
    dirs: BTreeMap<Name, Dir>,
    mounts: Vec<Mount>,
    /// Stores that a volume has, and which life of it.
    lives: BTreeMap<usize, usize>,
    /// Open files of the volume of each life.
    held: BTreeMap<usize, usize>,
    last: usize,
    pub(super) was_cloned: bool,
}

/// The mount that the mountpoint shows without any other.
const BASE: usize = 0;

impl Model {
    /// The mountpoint's own store has the directories `outer`; each of `stores` others a directory
    /// `in`.
    pub(super) fn new(outer: &[&'static str], stores: usize) -> Self {
        let mut model = Self {
            dirs: BTreeMap::new(),
            mounts: Vec::new(),
            lives: BTreeMap::new(),
            held: BTreeMap::new(),
            last: 0,
            was_cloned: false,
        };
        for name in outer {
            let dir = (0, model.next());
            model.dirs.insert(((0, 0), name), dir);
        }
        for store in 1..=stores {
            let dir = (store, model.next());
            model.dirs.insert(((store, 0), "in"), dir);
        }
        model
    }

    fn next(&mut self) -> usize {
        self.last += 1;
        self.last
    }

    pub(super) fn dirs(&self) -> impl Iterator<Item = (Dir, Vec<&'static str>)> {
        self.dirs.values().map(|&dir| (dir, self.names_of(dir)))
    }

    /// Its path in its store.
    pub(super) fn names_of(&self, dir: Dir) -> Vec<&'static str> {
        let Some((&(parent, name), _)) = self.dirs.iter().find(|(_, known)| **known == dir) else {
            return Vec::new();
        };
        let mut names = self.names_of(parent);
        names.push(name);
        names
    }

    /// The uppermost mount on a directory that is seen through a mount.
    fn top(&self, mut at: (usize, Dir)) -> (usize, Dir) {
        while let Some(above) = self.mounts.iter().find(|mount| mount.on == at) {
            at = (above.id, above.root);
        }
        at
    }

    fn walk(&self, path: &str) -> Option<(usize, Dir)> {
        let mut at = (BASE, (0, 0));
        for part in path.split('/') {
            let (_, dir) = self.dirs.iter().find(|((parent, name), _)| *parent == at.1 && *name == part)?;
            at = self.top((at.0, *dir));
        }
        Some(at)
    }

    /// The directory, and its store, that a path leads to.
    pub(super) fn leads_to(&self, path: &str) -> Option<Dir> {
        self.walk(path).map(|(_, dir)| dir)
    }

    fn mount_at(&self, path: &str) -> Option<&Mount> {
        let (id, dir) = self.walk(path)?;
        self.mounts.iter().find(|mount| mount.id == id && mount.root == dir)
    }

    fn put(&mut self, (on, life, root): ((usize, Dir), usize, Dir)) {
        let id = self.next();
        self.mounts.push(Mount { id, on, life, root });
    }

    fn places(&self, life: usize) -> usize {
        self.mounts.iter().filter(|mount| mount.life == life).count()
    }

    fn holds(&self, life: usize) -> usize {
        self.held.get(&life).copied().unwrap_or(0)
    }

    /// Volumes that no path leads to and that nothing holds have ended.
    fn settle(&mut self) {
        let alive: Vec<usize> = self.lives.values().copied().collect();
        for life in alive {
            if self.places(life) + self.holds(life) == 0 {
                self.lives.retain(|_, known| *known != life);
            }
        }
    }

    pub(super) fn attach(&mut self, store: usize, path: &str) -> Ends {
        let Some(on) = self.walk(path) else { return Ends::Refused };
        let top = self.mounts.iter().find(|mount| mount.id == on.0 && mount.root == on.1);
        if let Some(&life) = self.lives.get(&store) {
            if top.is_some_and(|top| top.life == life && top.root == (store, 0)) {
                return Ends::Well;
            }
            self.put((on, life, (store, 0)));
        } else {
            let life = self.next();
            self.lives.insert(store, life);
            self.put((on, life, (store, 0)));
        }
        Ends::Well
    }

    pub(super) fn bind(&mut self, from: &str, to: &str) -> Ends {
        let (Some(from), Some(on)) = (self.walk(from), self.walk(to)) else { return Ends::Refused };
        let life = self.mounts.iter().find(|mount| mount.id == from.0).map_or(0, |mount| mount.life);
        self.put((on, life, from.1));
        Ends::Well
    }

    fn subtree(&self, top: usize) -> Vec<usize> {
        let mut all = vec![top];
        let mut next = 0;
        while let Some(&id) = all.get(next) {
            all.extend(self.mounts.iter().filter(|mount| mount.on.0 == id).map(|mount| mount.id));
            next += 1;
        }
        all
    }

    pub(super) fn detach(&mut self, path: &str, how: UmountKind) -> Ends {
        let Some(mount) = self.mount_at(path).cloned() else { return Ends::Refused };
        let going = self.subtree(mount.id);
        let is_last = self.places(mount.life) == 1;
        if how == UmountKind::Plain
            && (going.len() > 1 || (is_last && mount.life != 0 && self.holds(mount.life) > 0))
        {
            return Ends::Refused;
        }
        self.mounts.retain(|mount| !going.contains(&mount.id));
        if how == UmountKind::Force {
            let given_up: Vec<usize> =
                self.lives.values().copied().filter(|life| self.places(*life) == 0).collect();
            // Of the volumes that leave now; others that are only held were not meant.
            for life in given_up.into_iter().filter(|life| *life == mount.life) {
                self.held.remove(&life);
            }
        }
        self.settle();
        Ends::Well
    }

    /// Whether a forced detach would take along volumes that are mounted below and held: each of
    /// them is given up, too.
    pub(super) fn is_simple(&self, path: &str) -> bool {
        self.mount_at(path).is_none_or(|mount| self.subtree(mount.id).len() == 1)
    }

    pub(super) fn move_to(&mut self, from: &str, to: &str) -> Ends {
        let (Some(mount), Some(on)) = (self.mount_at(from).map(|mount| mount.id), self.walk(to)) else {
            return Ends::Refused;
        };
        if self.was_cloned || self.subtree(mount).contains(&on.0) {
            return Ends::Refused;
        }
        self.mounts.iter_mut().filter(|other| other.id == mount).for_each(|other| other.on = on);
        Ends::Well
    }

    /// Opens a file in a directory; returns which life of which volume it holds. None: there is no
    /// such directory.
    pub(super) fn open(&mut self, path: &str) -> Option<usize> {
        let (id, _) = self.walk(path)?;
        let life = self.mounts.iter().find(|mount| mount.id == id).map_or(0, |mount| mount.life);
        *self.held.entry(life).or_default() += 1;
        Some(life)
    }

    pub(super) fn close(&mut self, life: usize) {
        // A volume that was given up is not held.
        if let Some(held) = self.held.get_mut(&life) {
            *held -= 1;
        }
        self.settle();
    }

    fn parts(path: &'static str) -> (Option<&'static str>, &'static str) {
        path.rsplit_once('/').map_or((None, path), |(dir, name)| (Some(dir), name))
    }

    /// The name that a path is, if its directory is one of the mountpoint's own.
    fn own_name(&self, path: &'static str) -> Option<Name> {
        let (dir, name) = Self::parts(path);
        let at = dir.map_or(Some((BASE, (0, 0))), |dir| self.walk(dir))?;
        (at.0 == BASE).then_some((at.1, name))
    }

    fn is_bound(&self, dir: Dir) -> bool {
        self.mounts.iter().any(|mount| mount.root == dir)
    }

    fn is_covered(&self, dir: Dir) -> bool {
        self.mounts.iter().any(|mount| mount.on.1 == dir)
    }

    /// None: nothing that this model knows the end of.
    pub(super) fn mkdir(&mut self, path: &'static str) -> Option<Dir> {
        let name = self.own_name(path).filter(|name| !self.dirs.contains_key(name))?;
        let dir = (0, self.next());
        self.dirs.insert(name, dir);
        Some(dir)
    }

    /// Whether a directory can be renamed or removed: refused where something is attached to it.
    fn taken(&self, path: &'static str) -> Option<(Name, Dir, Ends)> {
        let name = self.own_name(path)?;
        let dir = *self.dirs.get(&name)?;
        Some((name, dir, if self.is_covered(dir) { Ends::Refused } else { Ends::Well }))
    }

    pub(super) fn rmdir(&mut self, path: &'static str) -> Option<Ends> {
        let (name, dir, ends) = self.taken(path)?;
        if self.is_bound(dir) || self.dirs.keys().any(|(parent, _)| *parent == dir) {
            return None;
        }
        if ends == Ends::Well {
            self.dirs.remove(&name);
        }
        Some(ends)
    }

    pub(super) fn rename(&mut self, from: &'static str, to: &'static str) -> Option<Ends> {
        let new = self.own_name(to).filter(|name| !self.dirs.contains_key(name))?;
        let (old, dir, ends) = self.taken(from)?;
        // Not into itself.
        if new.0 == dir || self.names_of(new.0).starts_with(&self.names_of(dir)) || self.is_bound(dir) {
            return None;
        }
        if ends == Ends::Well {
            self.dirs.remove(&old);
            self.dirs.insert(new, dir);
        }
        Some(ends)
    }

    /// Of each store that a volume has: whether a path leads to it.
    pub(super) fn volumes(&self) -> BTreeMap<usize, bool> {
        self.lives.iter().map(|(&store, &life)| (store, self.places(life) > 0)).collect()
    }

    /// Whether a path leads to this directory through a mount of its volume that shows the volume's
    /// root.
    pub(super) fn is_at(&self, store: usize, path: &str) -> bool {
        self.lives.get(&store).is_some_and(|life| self.all_at(path).iter().any(|known| known == life))
    }

    /// Whether something is attached above a path.
    pub(super) fn is_hidden(&self, path: &str) -> bool {
        path.match_indices('/').any(|(at, _)| !self.all_at(&path[..at]).is_empty())
    }

    /// All that is attached at a path, the uppermost last.
    fn all_at(&self, path: &str) -> Vec<usize> {
        let mut at = (BASE, (0, 0));
        let mut lives = Vec::new();
        for part in path.split('/') {
            let found = self.dirs.iter().find(|((parent, name), _)| *parent == at.1 && *name == part);
            let Some((_, dir)) = found else { return Vec::new() };
            at = (at.0, *dir);
            lives.clear();
            while let Some(above) = self.mounts.iter().find(|mount| mount.on == at) {
                at = (above.id, above.root);
                lives.push(above.life);
            }
        }
        lives
    }
}
