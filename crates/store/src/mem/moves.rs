//! Renaming in a memory store, with the kernel's order of checks.

use std::ffi::OsStr;
use std::sync::Arc;

use super::node::Node;
use super::tree::{Kind, Names, Tree};
use crate::{Creator, Error, ErrorKind, FileType, Name, ObjectId, RenameFlags, Result};

impl Tree {
    pub(crate) fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let op = "rename";
        let fail = |kind| Err(Error::new(kind, op));
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if exchanges && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT) {
            return fail(ErrorKind::Invalid);
        }
        let (name, new_name) = (name.as_os_str(), new_name.as_os_str());
        let mut names = self.names.write();
        for dir in [parent, new_parent] {
            if names.node(dir.0, op)?.kind != FileType::Directory {
                return fail(ErrorKind::NotDirectory);
            }
        }
        names.dir(new_parent, op)?;
        let node = names.child(parent, name, op)?;
        let target = match names.child(new_parent, new_name, op) {
            Ok(target) => Some(target),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return fail(ErrorKind::Exists);
        }
        if target.is_none() && exchanges {
            return fail(ErrorKind::NotFound);
        }
        if names.is_at_or_above(node.id.0, new_parent) {
            return fail(ErrorKind::Invalid);
        }
        if target.as_ref().is_some_and(|t| names.is_at_or_above(t.id.0, parent)) {
            return fail(if exchanges { ErrorKind::Invalid } else { ErrorKind::NotEmpty });
        }
        let moved = Rename { parent, name, new_parent, new_name };
        let gone = match target {
            Some(target) if target.id == node.id => None,
            Some(target) if exchanges => {
                names.exchange(&moved, &node, &target)?;
                None
            }
            target => {
                let gone = names.replace(&moved, &node, target.as_ref())?;
                if flags.contains(RenameFlags::WHITEOUT) {
                    self.leave_whiteout(&mut names, parent, name)?;
                }
                gone
            }
        };
        drop(names);
        drop(gone);
        Ok(())
    }

    /// A character device 0:0, with which overlay file systems mark a removed name.
    fn leave_whiteout(&self, names: &mut Names, parent: ObjectId, name: &OsStr) -> Result<()> {
        let what = Kind { kind: FileType::CharDevice, rdev: 0, target: OsStr::new("") };
        let creator = Creator { uid: 0, gid: 0, umask: 0 };
        let node = names.add(&self.space, parent, what, 0, 1, creator)?;
        node.meta.lock().refs = 0;
        names.dir(parent, "rename")?.insert(name, node.id.0);
        Ok(())
    }
}

/// One rename.
struct Rename<'a> {
    parent: ObjectId,
    name: &'a OsStr,
    new_parent: ObjectId,
    new_name: &'a OsStr,
}

impl Names {
    fn exchange(&mut self, moved: &Rename<'_>, node: &Arc<Node>, target: &Arc<Node>) -> Result<()> {
        let op = "rename";
        self.dir(moved.parent, op)?.insert(moved.name, target.id.0);
        self.dir(moved.new_parent, op)?.insert(moved.new_name, node.id.0);
        self.adopted(node, moved.parent, moved.new_parent);
        self.adopted(target, moved.new_parent, moved.parent);
        self.moved(moved, node);
        target.meta.lock().changed();
        Ok(())
    }

    fn replace(
        &mut self,
        moved: &Rename<'_>,
        node: &Arc<Node>,
        target: Option<&Arc<Node>>,
    ) -> Result<Option<Arc<Node>>> {
        let op = "rename";
        let is_dir = node.kind == FileType::Directory;
        let mut gone = None;
        if let Some(target) = target {
            match (is_dir, target.kind == FileType::Directory) {
                (true, false) => return Err(Error::new(ErrorKind::NotDirectory, op)),
                (false, true) => return Err(Error::new(ErrorKind::IsDirectory, op)),
                _ => {}
            }
            if is_dir {
                if self.dirs.get(&target.id.0).is_some_and(|d| !d.entries.is_empty()) {
                    return Err(Error::new(ErrorKind::NotEmpty, op));
                }
                self.add_links(moved.new_parent, -1);
            }
            gone = self.unlinked(target);
        }
        self.dir(moved.parent, op)?.remove(moved.name);
        self.dir(moved.new_parent, op)?.insert(moved.new_name, node.id.0);
        self.adopted(node, moved.parent, moved.new_parent);
        self.moved(moved, node);
        Ok(gone)
    }

    /// Notes that a directory has another parent.
    fn adopted(&mut self, node: &Node, from: ObjectId, to: ObjectId) {
        if from == to || node.kind != FileType::Directory {
            return;
        }
        if let Some(dir) = self.dirs.get_mut(&node.id.0) {
            dir.parent = to.0;
        }
        self.add_links(from, -1);
        self.add_links(to, 1);
    }

    fn moved(&self, moved: &Rename<'_>, node: &Node) {
        self.touch(moved.parent);
        self.touch(moved.new_parent);
        node.meta.lock().changed();
    }
}
