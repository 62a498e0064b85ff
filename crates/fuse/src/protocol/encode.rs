//! A volume's answers to the structures of the protocol.
//!
//! Purpose: conversions of attributes, entries and sizes, and [`Listing`], which packs directory
//! entries into a buffer as READDIR and READDIRPLUS want them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use store::{FileType, StatFs};
use zerocopy::IntoBytes as _;

use crate::protocol::abi::{self, AttrOut, Dirent, DirentPlus, EntryOut, StatFsOut};

/// How long the kernel may use an answer without asking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Of names, and that there is none.
    pub entry: Duration,
    /// Of attributes.
    pub attr: Duration,
}

impl Validity {
    /// The validity for these attributes. A file with set-id bits loses them when any process
    /// changes its data, and the kernel executes it by the attributes that it has cached: it has to
    /// ask each time.
    fn of(self, attr: &store::Attr) -> Self {
        let is_set_id = attr.perm & 0o4000 != 0 || attr.perm & 0o2010 == 0o2010;
        if attr.kind == FileType::Regular && is_set_id { Self { attr: Duration::ZERO, ..self } } else { self }
    }
}

const S_IFSOCK: u32 = 0o140_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFREG: u32 = 0o100_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFMT: u32 = 0o170_000;

/// The type bits of `st_mode`.
#[must_use]
pub const fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::Regular => S_IFREG,
        FileType::Directory => S_IFDIR,
        FileType::Symlink => S_IFLNK,
        FileType::Fifo => S_IFIFO,
        FileType::Socket => S_IFSOCK,
        FileType::CharDevice => S_IFCHR,
        FileType::BlockDevice => S_IFBLK,
    }
}

/// The type that a mode names.
#[must_use]
pub const fn file_type(mode: u32) -> Option<FileType> {
    Some(match mode & S_IFMT {
        // mknod(2): no type means a regular file.
        0 | S_IFREG => FileType::Regular,
        S_IFDIR => FileType::Directory,
        S_IFLNK => FileType::Symlink,
        S_IFIFO => FileType::Fifo,
        S_IFSOCK => FileType::Socket,
        S_IFCHR => FileType::CharDevice,
        S_IFBLK => FileType::BlockDevice,
        _ => return None,
    })
}

/// `d_type` of a directory entry; 0 where it is not known.
#[must_use]
pub const fn dirent_type(kind: Option<FileType>) -> u32 {
    match kind {
        Some(kind) => type_bits(kind) >> 12,
        None => 0,
    }
}

/// Attributes.
#[must_use]
pub fn attr(attr: &store::Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs.cast_unsigned(),
        mtime: attr.mtime.secs.cast_unsigned(),
        ctime: attr.ctime.secs.cast_unsigned(),
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: type_bits(attr.kind) | (attr.perm & 0o7777),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

/// The reply to GETATTR and SETATTR.
#[must_use]
pub fn attr_out(of: &store::Attr, valid: Validity) -> AttrOut {
    let valid = valid.of(of);
    AttrOut {
        attr_valid: valid.attr.as_secs(),
        attr_valid_nsec: valid.attr.subsec_nanos(),
        dummy: 0,
        attr: attr(of),
    }
}

/// The reply to LOOKUP and to each request that makes a name.
#[must_use]
pub fn entry_out(entry: &store::Entry, valid: Validity) -> EntryOut {
    let valid = valid.of(&entry.attr);
    EntryOut {
        nodeid: entry.id.0,
        generation: entry.generation.into(),
        entry_valid: valid.entry.as_secs(),
        attr_valid: valid.attr.as_secs(),
        entry_valid_nsec: valid.entry.subsec_nanos(),
        attr_valid_nsec: valid.attr.subsec_nanos(),
        attr: attr(&entry.attr),
    }
}

/// The reply to LOOKUP that says that there is no such name, and for how long this is valid.
#[must_use]
pub fn no_entry_out(valid: Validity) -> EntryOut {
    EntryOut {
        entry_valid: valid.entry.as_secs(),
        entry_valid_nsec: valid.entry.subsec_nanos(),
        ..EntryOut::default()
    }
}

/// The reply to STATFS.
#[must_use]
pub fn statfs_out(of: &StatFs) -> StatFsOut {
    StatFsOut {
        blocks: of.blocks,
        bfree: of.bfree,
        bavail: of.bavail,
        files: of.files,
        ffree: of.ffree,
        bsize: of.bsize,
        namelen: of.namelen,
        frsize: of.frsize,
        ..StatFsOut::default()
    }
}

/// Directory entries, packed into a buffer one after the other.
#[derive(Debug)]
pub struct Listing<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Listing<'a> {
    /// An empty listing that fills `buffer` at most.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    /// How many bytes are used.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// How many bytes are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.buffer.len() - self.used
    }

    /// How many bytes a plain entry with this name needs.
    #[must_use]
    pub fn plain_len(name: &OsStr) -> usize {
        abi::record_len(size_of::<Dirent>() + name.len())
    }

    /// How many bytes an entry with attributes needs.
    #[must_use]
    pub fn plus_len(name: &OsStr) -> usize {
        abi::record_len(size_of::<DirentPlus>() + name.len())
    }

    /// Adds a plain entry, unless it does not fit.
    #[must_use]
    pub fn add(&mut self, entry: &store::DirEntry) -> bool {
        let Some(dirent) = Self::dirent(entry, entry.kind) else { return false };
        self.push(dirent.as_bytes(), &entry.name)
    }

    /// Adds an entry with the result of its look-up (`EntryOut::default()` for none), unless it
    /// does not fit.
    #[must_use]
    pub fn add_plus(&mut self, entry: &store::DirEntry, found: &EntryOut) -> bool {
        let kind = if found.nodeid == 0 { entry.kind } else { file_type(found.attr.mode) };
        let Some(dirent) = Self::dirent(entry, kind) else { return false };
        let record = DirentPlus { entry: *found, dirent };
        self.push(record.as_bytes(), &entry.name)
    }

    fn dirent(entry: &store::DirEntry, kind: Option<FileType>) -> Option<Dirent> {
        let namelen = u32::try_from(entry.name.len()).ok()?;
        Some(Dirent { ino: entry.ino, off: entry.next, namelen, r#type: dirent_type(kind) })
    }

    fn push(&mut self, record: &[u8], name: &OsStr) -> bool {
        let name = name.as_bytes();
        let len = abi::record_len(record.len() + name.len());
        if len > self.left() {
            return false;
        }
        let place = &mut self.buffer[self.used..self.used + len];
        let (fixed, rest) = place.split_at_mut(record.len());
        fixed.copy_from_slice(record);
        let (text, padding) = rest.split_at_mut(name.len());
        text.copy_from_slice(name);
        padding.fill(0);
        self.used += len;
        true
    }
}

#[cfg(test)]
mod tests;
