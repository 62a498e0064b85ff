//! A store in memory, gone when it is closed.
//!
//! It behaves as a local file system of Linux does: set-group-id directories, link counts, times,
//! holes, renames, extended attributes (`user.`, `trusted.`, `security.`), objects that live on
//! while they are referenced. There are no access control lists. Nothing is ever slow, so that it
//! also shows the cost of the layers above.
//!
//! The memory is bounded: data by 4 KiB, each object with [`node::OBJECT_BYTES`].
//!
//! | module | what |
//! |---|---|
//! | [`tree`], [`moves`] | names, references; renaming |
//! | [`node`] | attributes of one object |
//! | [`blocks`] | its data |
//! | [`space`] | the bound; memory to use again |
//! | [`file`] | open files and directories |
//!
//! Lock order: the tree, an object's data, its attributes.

mod blocks;
mod file;
mod moves;
mod node;
mod space;
mod tree;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use recovery::NodeKey;

use crate::{
    Access, Attr, Created, Creator, Dir, Entry, Error, ErrorKind, File, FileType, Name, NewNode, ObjectId,
    RenameFlags, Result, SetAttr, SetXattr, StatFs, Store,
};
use file::{MemDir, MemFile};
use space::Space;
use tree::{Kind, Tree};

/// Unit of the sizes that [`Store::statfs`] returns.
const FRAGMENT: u32 = 4096;
/// Most bytes that one call copies, so that it ends soon.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// A store in memory.
#[derive(Debug)]
pub struct MemStore {
    tree: Arc<Tree>,
}

impl MemStore {
    /// An empty store of at most `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self { tree: Arc::new(Tree::new(Arc::new(Space::new(capacity)))) })
    }

    /// An empty store of at most half of the machine's memory.
    #[must_use]
    pub fn with_default_capacity() -> Arc<Self> {
        let info = rustix::system::sysinfo();
        Self::new((info.totalram as u64).saturating_mul(u64::from(info.mem_unit)) / 2)
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.tree.space.used()
    }

    /// Objects with a name or a reference, the root included.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.tree.len()
    }
}

impl Store for MemStore {
    fn describe(&self) -> String {
        "mem:".to_owned()
    }

    fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.tree.lookup(parent, name)
    }

    fn recall(&self, id: ObjectId) -> Result<Entry> {
        self.tree.recall(id)
    }

    fn recall_parent(&self, id: ObjectId) -> Result<Entry> {
        self.tree.recall_parent(id)
    }

    fn generation(&self, id: ObjectId) -> u32 {
        self.tree.generation(id)
    }

    /// For tests, in which it outlives its volume.
    fn key(&self, id: ObjectId) -> Result<NodeKey> {
        let kind = self.tree.get(id, "key")?.attr().kind.number();
        Ok(NodeKey { ino: id.0, kind, generation: None, handle: (0, Vec::new()) })
    }

    fn forget(&self, id: ObjectId, n: u64) {
        self.tree.forget(id, n);
    }

    fn attr(&self, id: ObjectId) -> Result<Attr> {
        Ok(self.tree.get(id, "attr")?.attr())
    }

    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        self.tree.get(id, "set attr")?.set_attr(set)
    }

    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created> {
        let what = Kind { kind: FileType::Regular, rdev: 0, target: OsStr::new("") };
        let (entry, node) = self.tree.make(parent, name, what, perm, creator)?;
        Ok(Created { entry, file: Arc::new(MemFile(node)) })
    }

    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created> {
        let (entry, node) = self.tree.tmpfile(parent, perm, creator)?;
        Ok(Created { entry, file: Arc::new(MemFile(node)) })
    }

    fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        let empty = OsStr::new("");
        let what = match what {
            NewNode::Directory => Kind { kind: FileType::Directory, rdev: 0, target: empty },
            NewNode::Symlink(target) => Kind { kind: FileType::Symlink, rdev: 0, target },
            NewNode::Special { kind: kind @ (FileType::CharDevice | FileType::BlockDevice), rdev } => {
                Kind { kind, rdev, target: empty }
            }
            NewNode::Special { kind: FileType::Directory | FileType::Symlink, .. } => {
                return Err(Error::new(ErrorKind::Invalid, "make"));
            }
            NewNode::Special { kind, .. } => Kind { kind, rdev: 0, target: empty },
        };
        self.tree.make(parent, name, what, perm, creator).map(|(entry, _)| entry)
    }

    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.tree.link(id, parent, name)
    }

    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.tree.remove(parent, name, false)
    }

    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.tree.remove(parent, name, true)
    }

    fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.tree.rename(parent, name, new_parent, new_name, flags)
    }

    fn read_link(&self, id: ObjectId) -> Result<OsString> {
        let node = self.tree.get(id, "read link")?;
        if node.kind != FileType::Symlink {
            return Err(Error::new(ErrorKind::Invalid, "read link"));
        }
        Ok(node.target.clone())
    }

    fn open(&self, id: ObjectId, _access: Access) -> Result<Arc<dyn File>> {
        let node = self.tree.get(id, "open")?;
        let kind = match node.kind {
            FileType::Regular => return Ok(Arc::new(MemFile(node))),
            FileType::Directory => ErrorKind::IsDirectory,
            FileType::Symlink => ErrorKind::Loop,
            _ => ErrorKind::Invalid,
        };
        Err(Error::new(kind, "open"))
    }

    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>> {
        let node = self.tree.get(id, "open dir")?;
        if node.kind != FileType::Directory {
            return Err(Error::new(ErrorKind::NotDirectory, "open dir"));
        }
        Ok(Arc::new(MemDir { tree: Arc::clone(&self.tree), node }))
    }

    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        self.open_dir(id).map(drop)
    }

    /// Whole blocks are shared, not copied.
    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64> {
        let op = "copy range";
        for id in [src, dst] {
            self.open(id, Access::ReadWrite)?;
        }
        let (from, to) = (self.tree.get(src, op)?, self.tree.get(dst, op)?);
        let shared = {
            let data = from.data.read();
            let len = len.min(COPY_BYTES_MAX).min(data.size().saturating_sub(src_off));
            if src == dst && src_off < dst_off + len && dst_off < src_off + len {
                return Err(Error::new(ErrorKind::Invalid, op));
            }
            if dst_off.checked_add(len).is_none_or(|end| i64::try_from(end).is_err()) {
                return Err(Error::new(ErrorKind::FileTooBig, op));
            }
            data.share(src_off, usize::try_from(len).unwrap_or(usize::MAX))
        };
        if shared.is_empty() {
            return Ok(0);
        }
        let mut data = to.data.write();
        let mut done = 0;
        let mut result = Ok(());
        for extent in &shared {
            result = data.put_shared(extent, dst_off + extent.at as u64);
            if result.is_err() {
                break;
            }
            done += extent.len() as u64;
        }
        to.note_write(&data);
        if done > 0 { Ok(done) } else { result.map(|()| 0) }
    }

    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        self.tree.get(id, "get xattr")?.get_xattr(name)
    }

    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        self.tree.get(id, "set xattr")?.set_xattr(name, value, how)
    }

    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        Ok(self.tree.get(id, "list xattr")?.list_xattr())
    }

    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        self.tree.get(id, "remove xattr")?.remove_xattr(name)
    }

    fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        self.tree.path_of(id)
    }

    fn statfs(&self) -> Result<StatFs> {
        let space = &self.tree.space;
        let unit = u64::from(FRAGMENT);
        let free = space.capacity().saturating_sub(space.used());
        let objects = self.tree.len() as u64;
        let ffree = free / node::OBJECT_BYTES;
        Ok(StatFs {
            frsize: FRAGMENT,
            bsize: FRAGMENT,
            blocks: space.capacity() / unit,
            bfree: free / unit,
            bavail: free / unit,
            files: objects + ffree,
            ffree,
            namelen: 255,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) {
        self.tree.clear();
    }
}
