//! The names of a memory store.
//!
//! One lock for all names: an operation on names takes well below a microsecond, and moving a
//! directory must see the whole chain of its parents unchanged. Data never takes this lock.
//!
//! Lock order: `names`, then [`Node::data`], then [`Node::meta`].

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use sync::RwLock;

use super::node::{NewObject, Node, OBJECT_BYTES};
use super::space::Space;
use crate::{Creator, DirEntry, Entry, Error, ErrorKind, FileType, Name, ObjectId, Result};

const SET_GID: u32 = 0o2000;
/// Offsets of `.` and `..`; entries come behind.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// All names and objects.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) space: Arc<Space>,
    /// Of all objects but the root: no other store in memory has had it.
    generation: u32,
    pub(super) names: RwLock<Names>,
}

#[derive(Debug)]
pub(super) struct Names {
    /// All objects with a name or a reference.
    nodes: HashMap<u64, Arc<Node>>,
    /// The directories that are not removed.
    pub(super) dirs: HashMap<u64, Directory>,
    next_id: u64,
}

#[derive(Debug)]
pub(super) struct Directory {
    pub(super) parent: u64,
    pub(super) entries: HashMap<Arc<OsStr>, DirSlot>,
    /// In the order of creation, by offset: offsets stay right whatever entries come and go.
    order: BTreeMap<u64, Arc<OsStr>>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct DirSlot {
    node: u64,
    offset: u64,
}

impl Directory {
    fn new(parent: u64) -> Self {
        Self { parent, entries: HashMap::new(), order: BTreeMap::new(), next: DOT_DOT + 1 }
    }

    fn get(&self, name: &OsStr) -> Option<u64> {
        self.entries.get(name).map(|slot| slot.node)
    }

    pub(super) fn insert(&mut self, name: &OsStr, node: u64) {
        if let Some(slot) = self.entries.get_mut(name) {
            slot.node = node;
            return;
        }
        let name: Arc<OsStr> = Arc::from(name);
        let offset = self.next;
        self.next += 1;
        self.order.insert(offset, Arc::clone(&name));
        self.entries.insert(name, DirSlot { node, offset });
    }

    pub(super) fn remove(&mut self, name: &OsStr) {
        if let Some(slot) = self.entries.remove(name) {
            self.order.remove(&slot.offset);
        }
    }
}

/// The properties of a new object; see [`Tree::make`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind<'a> {
    pub(crate) kind: FileType,
    pub(crate) rdev: u32,
    pub(crate) target: &'a OsStr,
}

impl Names {
    pub(super) fn node(&self, id: u64, op: &'static str) -> Result<&Arc<Node>> {
        self.nodes.get(&id).ok_or_else(|| Error::new(ErrorKind::Stale, op))
    }

    /// The entries of `parent`, which a caller holds.
    pub(super) fn dir(&mut self, parent: ObjectId, op: &'static str) -> Result<&mut Directory> {
        let node = self.node(parent.0, op)?;
        if node.kind != FileType::Directory {
            return Err(Error::new(ErrorKind::NotDirectory, op));
        }
        // A removed directory has no entries and gets none.
        self.dirs.get_mut(&parent.0).ok_or_else(|| Error::new(ErrorKind::NotFound, op))
    }

    pub(super) fn child(&mut self, parent: ObjectId, name: &OsStr, op: &'static str) -> Result<Arc<Node>> {
        let id = self.dir(parent, op)?.get(name).ok_or_else(|| Error::new(ErrorKind::NotFound, op))?;
        self.node(id, op).map(Arc::clone)
    }

    pub(super) fn touch(&self, dir: ObjectId) {
        if let Some(node) = self.nodes.get(&dir.0) {
            node.meta.lock().written();
        }
    }

    /// Whether `id` is `dir` or one of the directories above it.
    pub(super) fn is_at_or_above(&self, id: u64, dir: ObjectId) -> bool {
        let mut at = dir.0;
        loop {
            if at == id {
                return true;
            }
            match self.dirs.get(&at) {
                Some(directory) if directory.parent != at => at = directory.parent,
                _ => return false,
            }
        }
    }

    pub(super) fn add_links(&self, id: ObjectId, by: i32) {
        if let Some(node) = self.nodes.get(&id.0) {
            let mut meta = node.meta.lock();
            meta.attr.nlink = meta.attr.nlink.saturating_add_signed(by);
        }
    }

    /// Takes away one name of `node`, and returns an object that is not needed any more.
    pub(super) fn unlinked(&mut self, node: &Node) -> Option<Arc<Node>> {
        let is_gone = {
            let mut meta = node.meta.lock();
            meta.changed();
            if node.kind == FileType::Directory {
                meta.attr.nlink = 0;
            } else {
                meta.attr.nlink = meta.attr.nlink.saturating_sub(1);
            }
            meta.attr.nlink == 0 && meta.refs == 0
        };
        if node.kind == FileType::Directory {
            self.dirs.remove(&node.id.0);
        }
        if is_gone { self.nodes.remove(&node.id.0) } else { None }
    }

    /// Makes an object with one reference and no name.
    pub(super) fn add(
        &mut self,
        space: &Arc<Space>,
        parent: ObjectId,
        what: Kind<'_>,
        perm: u32,
        nlink: u32,
        mut creator: Creator,
    ) -> Result<Arc<Node>> {
        let op = "make";
        let dir = self.node(parent.0, op)?.attr();
        let mut perm = perm & !(creator.umask & 0o777);
        if dir.perm & SET_GID != 0 {
            creator.gid = dir.gid;
            if what.kind == FileType::Directory {
                perm |= SET_GID;
            }
        }
        if what.kind == FileType::Symlink {
            perm = 0o777;
        }
        space.take(OBJECT_BYTES + what.target.len() as u64, op)?;
        let id = ObjectId(self.next_id);
        self.next_id += 1;
        let Kind { kind, rdev, target } = what;
        let node = Arc::new(Node::new(space, NewObject { id, kind, perm, nlink, rdev, target, creator }));
        self.nodes.insert(id.0, Arc::clone(&node));
        Ok(node)
    }
}

impl Tree {
    /// A root directory that belongs to this process.
    pub(crate) fn new(space: Arc<Space>) -> Self {
        let creator = Creator {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0,
        };
        let root = NewObject {
            id: ObjectId::ROOT,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            rdev: 0,
            target: OsStr::new(""),
            creator,
        };
        // The root is there however small the space is.
        let _ = space.take(OBJECT_BYTES, "open store");
        let id = ObjectId::ROOT.0;
        let names = Names {
            nodes: HashMap::from([(id, Arc::new(Node::new(&space, root)))]),
            dirs: HashMap::from([(id, Directory::new(id))]),
            next_id: id + 1,
        };
        // Keyed at random; 0 is the root's.
        let random = RandomState::new().hash_one(0_u8).to_le_bytes();
        let generation = u32::from_le_bytes([random[0], random[1], random[2], random[3]]) | 1;
        Self { space, generation, names: RwLock::new(names) }
    }

    pub(crate) fn generation(&self, id: ObjectId) -> u32 {
        if id == ObjectId::ROOT { 0 } else { self.generation }
    }

    /// The entry of `node`, with one more reference.
    fn refer(&self, node: &Node) -> Entry {
        let mut meta = node.meta.lock();
        meta.refs += 1;
        Entry { id: node.id, attr: meta.attr, generation: self.generation(node.id) }
    }

    /// Finds an object that has a name or references.
    pub(crate) fn recall(&self, id: ObjectId) -> Result<Entry> {
        self.names.read().node(id.0, "recall").map(|node| self.refer(node))
    }

    /// Finds the directory that a directory with a name is in.
    pub(crate) fn recall_parent(&self, id: ObjectId) -> Result<Entry> {
        let op = "recall parent";
        let names = self.names.read();
        let stale = || Error::new(ErrorKind::Stale, op);
        let parent = names.dirs.get(&id.0).filter(|_| id != ObjectId::ROOT).ok_or_else(stale)?.parent;
        names.node(parent, op).map(|node| self.refer(node))
    }

    /// The object of an id with references.
    pub(crate) fn get(&self, id: ObjectId, op: &'static str) -> Result<Arc<Node>> {
        let names = self.names.read();
        let node = names.node(id.0, op)?;
        if id != ObjectId::ROOT && node.meta.lock().refs == 0 {
            return Err(Error::new(ErrorKind::Stale, op));
        }
        Ok(Arc::clone(node))
    }

    pub(crate) fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        let op = "lookup";
        let not_found = || Error::new(ErrorKind::NotFound, op);
        let names = self.names.read();
        if names.node(parent.0, op)?.kind != FileType::Directory {
            return Err(Error::new(ErrorKind::NotDirectory, op));
        }
        let dir = names.dirs.get(&parent.0).ok_or_else(not_found)?;
        let id = dir.get(name.as_os_str()).ok_or_else(not_found)?;
        names.node(id, op).map(|node| self.refer(node))
    }

    pub(crate) fn forget(&self, id: ObjectId, n: u64) {
        if id == ObjectId::ROOT {
            return;
        }
        let may_go = {
            let names = self.names.read();
            let Some(node) = names.nodes.get(&id.0) else { return };
            let mut meta = node.meta.lock();
            debug_assert!(meta.refs >= n, "object {} forgotten {n} times of {}", id.0, meta.refs);
            meta.refs = meta.refs.saturating_sub(n);
            meta.refs == 0 && meta.attr.nlink == 0
        };
        if may_go {
            let mut names = self.names.write();
            let is_gone = names.nodes.get(&id.0).is_some_and(|node| {
                let meta = node.meta.lock();
                meta.refs == 0 && meta.attr.nlink == 0
            });
            let gone = if is_gone { names.nodes.remove(&id.0) } else { None };
            drop(names);
            drop(gone);
        }
    }

    /// Makes `name` in `parent`.
    pub(crate) fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: Kind<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<(Entry, Arc<Node>)> {
        let op = "make";
        let name = name.as_os_str();
        let mut names = self.names.write();
        if names.dir(parent, op)?.get(name).is_some() {
            return Err(Error::new(ErrorKind::Exists, op));
        }
        let is_dir = what.kind == FileType::Directory;
        let node = names.add(&self.space, parent, what, perm, if is_dir { 2 } else { 1 }, creator)?;
        names.dir(parent, op)?.insert(name, node.id.0);
        if is_dir {
            names.dirs.insert(node.id.0, Directory::new(parent.0));
            names.add_links(parent, 1);
        }
        names.touch(parent);
        Ok((Entry { id: node.id, attr: node.attr(), generation: self.generation }, node))
    }

    pub(crate) fn tmpfile(
        &self,
        parent: ObjectId,
        perm: u32,
        creator: Creator,
    ) -> Result<(Entry, Arc<Node>)> {
        let mut names = self.names.write();
        names.dir(parent, "tmpfile")?;
        let what = Kind { kind: FileType::Regular, rdev: 0, target: OsStr::new("") };
        let node = names.add(&self.space, parent, what, perm, 0, creator)?;
        node.meta.lock().is_tmpfile = true;
        Ok((Entry { id: node.id, attr: node.attr(), generation: self.generation }, node))
    }

    pub(crate) fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        let op = "link";
        let node = self.get(id, op)?;
        let mut names = self.names.write();
        if names.dir(parent, op)?.get(name.as_os_str()).is_some() {
            return Err(Error::new(ErrorKind::Exists, op));
        }
        if node.kind == FileType::Directory {
            return Err(Error::new(ErrorKind::NotPermitted, op));
        }
        let entry = {
            let mut meta = node.meta.lock();
            if meta.attr.nlink == 0 && !meta.is_tmpfile {
                return Err(Error::new(ErrorKind::NotFound, op));
            }
            if meta.attr.nlink == u32::MAX {
                return Err(Error::new(ErrorKind::TooManyLinks, op));
            }
            meta.is_tmpfile = false;
            meta.attr.nlink += 1;
            meta.refs += 1;
            meta.changed();
            Entry { id, attr: meta.attr, generation: self.generation }
        };
        names.dir(parent, op)?.insert(name.as_os_str(), id.0);
        names.touch(parent);
        Ok(entry)
    }

    pub(crate) fn remove(&self, parent: ObjectId, name: Name<'_>, is_dir: bool) -> Result<()> {
        let op = if is_dir { "rmdir" } else { "unlink" };
        let name = name.as_os_str();
        let mut names = self.names.write();
        let node = names.child(parent, name, op)?;
        match (node.kind == FileType::Directory, is_dir) {
            (true, false) => return Err(Error::new(ErrorKind::IsDirectory, op)),
            (false, true) => return Err(Error::new(ErrorKind::NotDirectory, op)),
            _ => {}
        }
        if is_dir && names.dirs.get(&node.id.0).is_some_and(|d| !d.entries.is_empty()) {
            return Err(Error::new(ErrorKind::NotEmpty, op));
        }
        names.dir(parent, op)?.remove(name);
        if is_dir {
            names.add_links(parent, -1);
        }
        names.touch(parent);
        let gone = names.unlinked(&node);
        drop(names);
        drop(gone);
        Ok(())
    }

    /// Up to `max` entries of a directory, behind `offset`.
    pub(crate) fn entries(&self, node: &Node, offset: u64, max: usize) -> Vec<DirEntry> {
        let names = self.names.read();
        let Some(dir) = names.dirs.get(&node.id.0) else { return Vec::new() };
        let dots = [(DOT, ".", node.id.0), (DOT_DOT, "..", dir.parent)];
        let dots = dots.into_iter().map(|(next, name, ino)| DirEntry {
            name: OsString::from(name),
            ino,
            kind: Some(FileType::Directory),
            next,
        });
        let rest = dir.order.range(offset + 1..).filter_map(|(&next, name)| {
            let ino = dir.get(name)?;
            let kind = names.nodes.get(&ino).map(|n| n.kind);
            Some(DirEntry { name: name.to_os_string(), ino, kind, next })
        });
        dots.filter(|e| e.next > offset).chain(rest).take(max).collect()
    }

    /// A path of an object, by a search: for messages to a person.
    pub(crate) fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        let names = self.names.read();
        let name_in = |dir: &Directory, id: u64| {
            dir.entries.iter().find(|(_, slot)| slot.node == id).map(|(name, _)| Arc::clone(name))
        };
        let mut parts = Vec::new();
        let mut at = id.0;
        while at != ObjectId::ROOT.0 {
            let (parent, name) = match names.dirs.get(&at) {
                Some(dir) => (dir.parent, name_in(names.dirs.get(&dir.parent)?, at)?),
                None => names.dirs.iter().find_map(|(&dir, d)| Some((dir, name_in(d, at)?)))?,
            };
            parts.push(name);
            at = parent;
        }
        Some(parts.iter().rev().map(AsRef::<OsStr>::as_ref).collect::<PathBuf>())
    }

    /// Objects with a name or a reference.
    pub(crate) fn len(&self) -> usize {
        self.names.read().nodes.len()
    }

    /// Forgets all but the root.
    pub(crate) fn clear(&self) {
        let mut names = self.names.write();
        let root = names.nodes.remove(&ObjectId::ROOT.0);
        let old = std::mem::take(&mut names.nodes);
        names.dirs = HashMap::from([(ObjectId::ROOT.0, Directory::new(ObjectId::ROOT.0))]);
        names.nodes.extend(root.map(|node| (node.id.0, node)));
        drop(names);
        drop(old);
    }
}
