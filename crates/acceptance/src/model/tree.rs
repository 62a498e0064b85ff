//! The model's names: directories, links, renames, attributes.
//!
//! Errors come in the order in which Linux finds them.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;

use super::op::{P, Rename, SetX, fill_bytes, path, target, xattr_name};
use super::{Errno, Op, Outcome, SLOTS, Value};

/// A node.
pub type Id = u32;

/// The root directory.
pub(super) const ROOT: Id = 0;

/// What a node is.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, Id>),
    Symlink(String),
    Fifo,
}

/// A file, directory, link or fifo.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Node {
    pub kind: Kind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    /// Names that lead to it; of a directory, not counted.
    pub nlink: u32,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// The modification time, if it was set and nothing has changed it since.
    pub mtime: Option<(i64, u32)>,
}

/// An open file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle {
    pub(super) id: Id,
    pub(super) append: bool,
    pub(super) direct: bool,
}

/// The whole file system.
#[derive(Debug, Clone)]
pub struct Model {
    pub(super) nodes: BTreeMap<Id, Node>,
    pub(super) slots: [Option<Handle>; SLOTS],
    /// Unnamed files that may still be given a name.
    linkable: Vec<Id>,
    next: Id,
    /// Owner of what is made.
    owner: (u32, u32),
}

pub(super) type Res<T> = Result<T, Errno>;

pub(super) fn err<T>(code: i32) -> Res<T> {
    Err(Errno(code))
}

/// Where the last component of a path is, or would be.
#[derive(Debug, Clone)]
struct Place {
    dir: Id,
    name: Vec<u8>,
    node: Option<Id>,
}

impl Model {
    /// An empty root directory; new files will belong to `owner`.
    #[must_use]
    pub fn new(owner: (u32, u32)) -> Self {
        let mut model =
            Self { nodes: BTreeMap::new(), slots: [None; SLOTS], linkable: Vec::new(), next: 0, owner };
        model.add(Kind::Dir(BTreeMap::new()), 0o755, 1);
        model
    }

    /// The node `id`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    /// The file that `slot` has open.
    #[must_use]
    pub fn open_file(&self, slot: usize) -> Option<(Id, &Node)> {
        self.slots[slot].map(|handle| (handle.id, self.node(handle.id)))
    }

    /// A path that leads to `id`, from the root.
    #[must_use]
    pub fn path_of(&self, id: Id) -> Option<std::path::PathBuf> {
        let mut queue = vec![(ROOT, std::path::PathBuf::new())];
        while let Some((dir, at)) = queue.pop() {
            if let Kind::Dir(entries) = &self.node(dir).kind {
                for (name, child) in entries {
                    let at = at.join(std::ffi::OsStr::from_bytes(name));
                    if *child == id {
                        return Some(at);
                    }
                    queue.push((*child, at));
                }
            }
        }
        None
    }

    /// Closes every file: what an unmount needs.
    pub fn close_all(&mut self) {
        self.slots = [None; SLOTS];
        self.collect();
    }

    /// Applies `op`; `None` when it makes no sense now.
    pub fn apply(&mut self, op: &Op) -> Option<Outcome> {
        let done = |r: Res<()>| Some(r.map(|()| Value::Done));
        let outcome = match *op {
            Op::Mkdir { path, perm } => done(self.make(path, Kind::Dir(BTreeMap::new()), perm)),
            Op::Symlink { path, target: t } => done(self.make(path, Kind::Symlink(target(t)), 0o777)),
            Op::Fifo { path } => done(self.make(path, Kind::Fifo, 0o644)),
            Op::Rmdir { path } => done(self.rmdir(path)),
            Op::Unlink { path } => done(self.unlink(path)),
            Op::Link { from, to } => done(self.link(from, to)),
            Op::LinkSlot { slot, to } => {
                let id = self.slots[slot]?.id;
                done(self.link_open(id, to))
            }
            Op::Rename { from, to, how } => done(self.rename(from, to, how)),
            Op::Chmod { path, perm } => done(self.with_target(path, |node| node.perm = perm)),
            Op::Chown { path, uid, gid } => {
                if self.owner.0 != 0 {
                    return None;
                }
                done(self.with_node(path, |node| (node.uid, node.gid) = (uid, gid)))
            }
            Op::SetTimes { path, secs, nanos } => {
                done(self.with_node(path, |node| node.mtime = Some((secs, nanos))))
            }
            Op::SetXattr { path, name, len, fill, how } => {
                done(self.set_xattr(path, xattr_name(name), fill_bytes(fill, len), how))
            }
            Op::RemoveXattr { path, name } => done(self.remove_xattr(path, xattr_name(name))),
            Op::Truncate { path, len } => done(self.truncate(path, len)),
            Op::Remount => {
                self.close_all();
                Some(Ok(Value::Done))
            }
            Op::SyncAll => Some(Ok(Value::Done)),
            _ => self.apply_to_file(op),
        };
        self.collect();
        outcome
    }

    pub(super) fn add(&mut self, kind: Kind, perm: u32, nlink: u32) -> Id {
        let id = self.next;
        self.next += 1;
        let (uid, gid) = self.owner;
        self.nodes.insert(id, Node { kind, perm, uid, gid, nlink, xattrs: BTreeMap::new(), mtime: None });
        id
    }

    /// A new file without a name in the directory `path`.
    pub(super) fn add_unnamed(&mut self, dir: P) -> Res<Id> {
        let place = self.resolve(dir)?;
        let id = self.follow(&place)?;
        if !matches!(self.node(id).kind, Kind::Dir(_)) {
            return err(libc::ENOTDIR);
        }
        let id = self.add(Kind::File(Vec::new()), 0o644, 0);
        self.linkable.push(id);
        Ok(id)
    }

    /// The node at `path` itself, made by `make` if it is missing.
    pub(super) fn find_or_make(&mut self, at: P, perm: u32, exclusive: Option<bool>) -> Res<(Id, bool)> {
        let place = self.resolve(at)?;
        match (place.node, exclusive) {
            (Some(_), Some(true)) => err(libc::EEXIST),
            (Some(id), _) => Ok((id, false)),
            (None, None) => err(libc::ENOENT),
            (None, Some(_)) => {
                let id = self.add(Kind::File(Vec::new()), perm, 1);
                self.enter(&place, id);
                Ok((id, true))
            }
        }
    }

    /// What is no longer reachable goes.
    fn collect(&mut self) {
        let open: Vec<Id> = self.slots.iter().flatten().map(|h| h.id).collect();
        self.nodes.retain(|id, node| node.nlink > 0 || open.contains(id));
        self.linkable.retain(|id| open.contains(id));
    }

    fn entries(&self, dir: Id) -> &BTreeMap<Vec<u8>, Id> {
        match &self.node(dir).kind {
            Kind::Dir(entries) => entries,
            other => panic!("node {dir} is no directory but {other:?}"),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        let node = self.nodes.get_mut(&dir).expect("a directory");
        node.mtime = None;
        match &mut node.kind {
            Kind::Dir(entries) => entries,
            other => panic!("node {dir} is no directory but {other:?}"),
        }
    }

    fn enter(&mut self, place: &Place, id: Id) {
        self.entries_mut(place.dir).insert(place.name.clone(), id);
    }

    fn leave(&mut self, place: &Place) {
        self.entries_mut(place.dir).remove(&place.name);
    }

    /// Walks to the last component.
    fn resolve(&self, at: P) -> Res<Place> {
        let path = path(at);
        let place = self.parent(&path)?;
        self.look(place)
    }

    /// Walks to the directory of the last component, without looking for that.
    fn parent(&self, path: &std::path::Path) -> Res<Place> {
        let bytes = path.as_os_str().as_bytes();
        let mut parts: Vec<&[u8]> = bytes.split(|b| *b == b'/').collect();
        let name = parts.pop().unwrap_or_default().to_vec();
        let mut dir = ROOT;
        for part in parts {
            let next = *self.entries(dir).get(part).ok_or(Errno(libc::ENOENT))?;
            match self.node(next).kind {
                Kind::Dir(_) => dir = next,
                // All symbolic links dangle.
                Kind::Symlink(_) => return err(libc::ENOENT),
                Kind::File(_) | Kind::Fifo => return err(libc::ENOTDIR),
            }
        }
        Ok(Place { dir, name, node: None })
    }

    fn look(&self, mut place: Place) -> Res<Place> {
        if place.name.len() > 255 {
            return err(libc::ENAMETOOLONG);
        }
        place.node = self.entries(place.dir).get(&place.name).copied();
        Ok(place)
    }

    /// The node at a place, through a symbolic link, which leads nowhere.
    fn follow(&self, place: &Place) -> Res<Id> {
        match place.node {
            Some(id) if !matches!(self.node(id).kind, Kind::Symlink(_)) => Ok(id),
            _ => err(libc::ENOENT),
        }
    }

    /// The place for something new.
    fn vacant(&self, at: P) -> Res<Place> {
        let place = self.resolve(at)?;
        if place.node.is_some() { err(libc::EEXIST) } else { Ok(place) }
    }

    fn with_node(&mut self, at: P, change: impl FnOnce(&mut Node)) -> Res<()> {
        let id = self.resolve(at)?.node.ok_or(Errno(libc::ENOENT))?;
        change(self.nodes.get_mut(&id).expect("just found"));
        Ok(())
    }

    fn with_target(&mut self, at: P, change: impl FnOnce(&mut Node)) -> Res<()> {
        let id = self.follow(&self.resolve(at)?)?;
        change(self.nodes.get_mut(&id).expect("just found"));
        Ok(())
    }

    fn make(&mut self, at: P, kind: Kind, perm: u32) -> Res<()> {
        let place = self.vacant(at)?;
        let id = self.add(kind, perm, 1);
        self.enter(&place, id);
        Ok(())
    }

    fn rmdir(&mut self, at: P) -> Res<()> {
        let place = self.resolve(at)?;
        let id = place.node.ok_or(Errno(libc::ENOENT))?;
        match &self.node(id).kind {
            Kind::Dir(entries) if entries.is_empty() => {}
            Kind::Dir(_) => return err(libc::ENOTEMPTY),
            _ => return err(libc::ENOTDIR),
        }
        self.leave(&place);
        self.drop_name(id);
        Ok(())
    }

    fn unlink(&mut self, at: P) -> Res<()> {
        let place = self.resolve(at)?;
        let id = place.node.ok_or(Errno(libc::ENOENT))?;
        if matches!(self.node(id).kind, Kind::Dir(_)) {
            return err(libc::EISDIR);
        }
        self.leave(&place);
        self.drop_name(id);
        Ok(())
    }

    fn drop_name(&mut self, id: Id) {
        self.nodes.get_mut(&id).expect("had a name").nlink -= 1;
    }

    fn link(&mut self, from: P, to: P) -> Res<()> {
        let id = self.resolve(from)?.node.ok_or(Errno(libc::ENOENT))?;
        let place = self.vacant(to)?;
        if matches!(self.node(id).kind, Kind::Dir(_)) {
            return err(libc::EPERM);
        }
        self.nodes.get_mut(&id).expect("just found").nlink += 1;
        self.enter(&place, id);
        Ok(())
    }

    /// Gives an open file a name; one that lost all its names cannot come back, a new one can.
    fn link_open(&mut self, id: Id, to: P) -> Res<()> {
        let place = self.vacant(to)?;
        if self.node(id).nlink == 0 && !self.linkable.contains(&id) {
            return err(libc::ENOENT);
        }
        self.linkable.retain(|l| *l != id);
        self.nodes.get_mut(&id).expect("open").nlink += 1;
        self.enter(&place, id);
        Ok(())
    }

    fn rename(&mut self, from: P, to: P, how: Rename) -> Res<()> {
        let (from_path, to_path) = (path(from), path(to));
        let old = self.parent(&from_path)?;
        let new = self.parent(&to_path)?;
        let old = self.look(old)?;
        let id = old.node.ok_or(Errno(libc::ENOENT))?;
        let new = self.look(new)?;
        match (how, new.node) {
            (Rename::NoReplace, Some(_)) => return err(libc::EEXIST),
            (Rename::Exchange, None) => return err(libc::ENOENT),
            _ => {}
        }
        if self.is_within(new.dir, id) {
            return err(libc::EINVAL);
        }
        if new.node.is_some_and(|target| self.is_within(old.dir, target)) {
            return err(if how == Rename::Exchange { libc::EINVAL } else { libc::ENOTEMPTY });
        }
        if new.node == Some(id) {
            return Ok(());
        }
        if let (Rename::Exchange, Some(other)) = (how, new.node) {
            self.enter(&old, other);
            self.enter(&new, id);
            return Ok(());
        }
        if let Some(target) = new.node {
            match (&self.node(id).kind, &self.node(target).kind) {
                (Kind::Dir(_), Kind::Dir(entries)) if !entries.is_empty() => return err(libc::ENOTEMPTY),
                (Kind::Dir(_), Kind::Dir(_)) => {}
                (Kind::Dir(_), _) => return err(libc::ENOTDIR),
                (_, Kind::Dir(_)) => return err(libc::EISDIR),
                _ => {}
            }
            self.drop_name(target);
        }
        self.leave(&old);
        self.enter(&new, id);
        Ok(())
    }

    /// Whether the directory `dir` is `ancestor` or below it.
    fn is_within(&self, dir: Id, ancestor: Id) -> bool {
        if dir == ancestor {
            return true;
        }
        match &self.node(ancestor).kind {
            Kind::Dir(entries) => entries.values().any(|child| self.is_within(dir, *child)),
            _ => false,
        }
    }

    fn set_xattr(&mut self, at: P, name: &str, value: Vec<u8>, how: SetX) -> Res<()> {
        let id = self.resolve(at)?.node.ok_or(Errno(libc::ENOENT))?;
        let node = self.nodes.get_mut(&id).expect("just found");
        if matches!(node.kind, Kind::Symlink(_) | Kind::Fifo) {
            return err(libc::EPERM);
        }
        match (how, node.xattrs.contains_key(name)) {
            (SetX::Create, true) => err(libc::EEXIST),
            (SetX::Replace, false) => err(libc::ENODATA),
            _ => {
                node.xattrs.insert(name.to_owned(), value);
                Ok(())
            }
        }
    }

    fn remove_xattr(&mut self, at: P, name: &str) -> Res<()> {
        let id = self.resolve(at)?.node.ok_or(Errno(libc::ENOENT))?;
        let node = self.nodes.get_mut(&id).expect("just found");
        if matches!(node.kind, Kind::Symlink(_) | Kind::Fifo) {
            return err(libc::EPERM);
        }
        node.xattrs.remove(name).map(|_| ()).ok_or(Errno(libc::ENODATA))
    }

    fn truncate(&mut self, at: P, len: u64) -> Res<()> {
        let id = self.follow(&self.resolve(at)?)?;
        match self.node(id).kind {
            Kind::Dir(_) => err(libc::EISDIR),
            Kind::Fifo => err(libc::EINVAL),
            _ => {
                self.resize(id, len);
                Ok(())
            }
        }
    }
}
