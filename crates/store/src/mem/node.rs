//! One object in memory.
//!
//! # Access
//! * `id`, `kind`, `target`: immutable.
//! * `data`: a file's bytes, protected by its lock. Held while bytes are copied, by this object
//!   alone.
//! * `meta`: attributes, extended attributes, references; protected by its lock, which is held for
//!   moments only.
//!
//! Lock order: the tree, then `data`, then `meta`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use sync::{Mutex, RwLock};

use super::blocks::Blocks;
use super::space::Space;
use crate::{
    Attr, Creator, Error, ErrorKind, FileType, ObjectId, Result, SetAttr, SetXattr, TimeSet, Timestamp,
};

/// The space that an object, or one more name of it, takes beside its data.
pub(crate) const OBJECT_BYTES: u64 = 1024;
const XATTR_NAME_MAX: usize = 255;
const XATTR_VALUE_MAX: usize = 65536;
/// Names and values of one object's attributes together.
const XATTRS_BYTES_MAX: usize = 1 << 20;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

/// An object.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: ObjectId,
    pub(crate) kind: FileType,
    /// The target of a symbolic link.
    pub(crate) target: OsString,
    pub(crate) data: RwLock<Blocks>,
    pub(crate) meta: Mutex<Meta>,
    space: Arc<Space>,
}

/// The part of an object that changes beside its data.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) refs: u64,
    /// Has no name and may get its first.
    pub(crate) is_tmpfile: bool,
    pub(crate) attr: Attr,
    xattrs: BTreeMap<OsString, Vec<u8>>,
    xattr_bytes: usize,
}

impl Meta {
    /// Moves the time of the last change of the attributes.
    pub(crate) fn changed(&mut self) {
        self.attr.ctime = Timestamp::now();
    }

    /// Moves the times of the last write.
    pub(crate) fn written(&mut self) {
        let now = Timestamp::now();
        (self.attr.mtime, self.attr.ctime) = (now, now);
    }
}

/// The properties of a new object.
pub(crate) struct NewObject<'a> {
    pub(crate) id: ObjectId,
    pub(crate) kind: FileType,
    pub(crate) perm: u32,
    pub(crate) nlink: u32,
    pub(crate) rdev: u32,
    pub(crate) target: &'a OsStr,
    pub(crate) creator: Creator,
}

impl Node {
    /// Makes an object with one reference. Its `OBJECT_BYTES` and the target's are taken already.
    pub(crate) fn new(space: &Arc<Space>, new_object: NewObject<'_>) -> Self {
        let now = Timestamp::now();
        let size = new_object.target.len() as u64;
        let attr = Attr {
            ino: new_object.id.0,
            kind: new_object.kind,
            perm: new_object.perm & 0o7777,
            nlink: new_object.nlink,
            uid: new_object.creator.uid,
            gid: new_object.creator.gid,
            rdev: new_object.rdev,
            size,
            blocks: 0,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
        };
        Self {
            id: new_object.id,
            kind: new_object.kind,
            target: new_object.target.to_owned(),
            data: RwLock::new(Blocks::new(Arc::clone(space))),
            meta: Mutex::new(Meta {
                refs: 1,
                is_tmpfile: false,
                attr,
                xattrs: BTreeMap::new(),
                xattr_bytes: 0,
            }),
            space: Arc::clone(space),
        }
    }

    pub(crate) fn attr(&self) -> Attr {
        self.meta.lock().attr
    }

    /// Takes over the effect of a write on the data; `data` is still locked.
    pub(crate) fn note_write(&self, data: &Blocks) {
        let mut meta = self.meta.lock();
        meta.attr.size = data.size();
        meta.attr.blocks = data.charged() / 512;
        meta.written();
    }

    /// As relatime does: only when the last read was not seen since the last change.
    pub(crate) fn note_read(&self) {
        const DAY: i64 = 24 * 3600;
        let now = Timestamp::now();
        let mut meta = self.meta.lock();
        let attr = &mut meta.attr;
        let is_old = attr.atime <= attr.mtime || attr.atime <= attr.ctime;
        if is_old || now.secs - attr.atime.secs > DAY {
            attr.atime = now;
        }
    }

    pub(crate) fn set_attr(&self, set: &SetAttr) -> Result<Attr> {
        let op = "set attr";
        if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
            return Err(Error::new(ErrorKind::Invalid, op));
        }
        if let Some(size) = set.size {
            self.may_set_size(size, op)?;
        }
        let mut data = set.size.map(|_| self.data.write());
        if let (Some(data), Some(size)) = (&mut data, set.size) {
            data.set_size(size);
        }
        let mut meta = self.meta.lock();
        if let Some(data) = &data {
            meta.attr.size = data.size();
            meta.attr.blocks = data.charged() / 512;
            meta.written();
        }
        if *set != SetAttr::default() {
            meta.changed();
        }
        let now = meta.attr.ctime;
        let attr = &mut meta.attr;
        if set.uid.is_some() || set.gid.is_some() {
            attr.uid = set.uid.unwrap_or(attr.uid);
            attr.gid = set.gid.unwrap_or(attr.gid);
            if self.kind != FileType::Directory {
                attr.perm &= !SET_UID;
                if attr.perm & GROUP_EXEC != 0 {
                    attr.perm &= !SET_GID;
                }
            }
        }
        if let Some(perm) = set.perm {
            if self.kind == FileType::Symlink {
                return Err(Error::new(ErrorKind::Unsupported, op));
            }
            attr.perm = perm & 0o7777;
        }
        let time = |set: Option<TimeSet>, old| match set {
            None => old,
            Some(TimeSet::Now) => now,
            Some(TimeSet::At(t)) => t,
        };
        attr.atime = time(set.atime, attr.atime);
        attr.mtime = time(set.mtime, attr.mtime);
        Ok(*attr)
    }

    fn may_set_size(&self, size: u64, op: &'static str) -> Result<()> {
        let kind = match self.kind {
            FileType::Regular if i64::try_from(size).is_ok() => return Ok(()),
            FileType::Regular => ErrorKind::FileTooBig,
            FileType::Directory => ErrorKind::IsDirectory,
            _ => ErrorKind::Invalid,
        };
        Err(Error::new(kind, op))
    }

    pub(crate) fn get_xattr(&self, name: &OsStr) -> Result<Vec<u8>> {
        let op = "get xattr";
        self.may_have_xattr(name, false, op)?;
        let meta = self.meta.lock();
        meta.xattrs.get(name).cloned().ok_or_else(|| Error::new(ErrorKind::NoAttribute, op))
    }

    pub(crate) fn list_xattr(&self) -> Vec<u8> {
        let meta = self.meta.lock();
        meta.xattrs.keys().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect()
    }

    pub(crate) fn set_xattr(&self, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        let op = "set xattr";
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::new(ErrorKind::TooBig, op));
        }
        self.may_have_xattr(name, true, op)?;
        let mut meta = self.meta.lock();
        let old = meta.xattrs.get(name).map(Vec::len);
        match (how, old) {
            (SetXattr::Create, Some(_)) => return Err(Error::new(ErrorKind::Exists, op)),
            (SetXattr::Replace, None) => return Err(Error::new(ErrorKind::NoAttribute, op)),
            _ => {}
        }
        let before = old.map_or(0, |len| len + name.len());
        let after = meta.xattr_bytes - before + name.len() + value.len();
        if after > XATTRS_BYTES_MAX {
            return Err(Error::new(ErrorKind::NoSpace, op));
        }
        if after > meta.xattr_bytes {
            self.space.take((after - meta.xattr_bytes) as u64, op)?;
        } else {
            self.space.give((meta.xattr_bytes - after) as u64);
        }
        meta.xattr_bytes = after;
        meta.xattrs.insert(name.to_owned(), value.to_vec());
        meta.changed();
        Ok(())
    }

    pub(crate) fn remove_xattr(&self, name: &OsStr) -> Result<()> {
        let op = "remove xattr";
        self.may_have_xattr(name, true, op)?;
        let mut meta = self.meta.lock();
        let old = meta.xattrs.remove(name).ok_or_else(|| Error::new(ErrorKind::NoAttribute, op))?;
        let bytes = name.len() + old.len();
        meta.xattr_bytes -= bytes;
        meta.changed();
        drop(meta);
        self.space.give(bytes as u64);
        Ok(())
    }

    /// The kernel's rules of names, as far as they do not depend on the caller.
    fn may_have_xattr(&self, name: &OsStr, is_change: bool, op: &'static str) -> Result<()> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() > XATTR_NAME_MAX {
            return Err(Error::new(ErrorKind::Range, op));
        }
        let known = [&b"user."[..], b"trusted.", b"security."];
        let kind = match known.iter().find(|prefix| bytes.starts_with(prefix)) {
            None => ErrorKind::Unsupported,
            Some(prefix) if prefix.len() == bytes.len() => ErrorKind::Invalid,
            Some(&b"user.") if !matches!(self.kind, FileType::Regular | FileType::Directory) => {
                if is_change {
                    ErrorKind::NotPermitted
                } else {
                    ErrorKind::NoAttribute
                }
            }
            Some(_) => return Ok(()),
        };
        Err(Error::new(kind, op))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let xattr_bytes = self.meta.lock().xattr_bytes as u64;
        self.space.give(OBJECT_BYTES + self.target.len() as u64 + xattr_bytes);
    }
}
