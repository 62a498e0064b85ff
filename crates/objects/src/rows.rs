//! Rows: the keys and values of a volume's metadata.
//!
//! | key | value |
//! |---|---|
//! | `I` inode | [`InodeRow`], and behind it, of one that counts for quotas, the number of its project |
//! | `D` directory, name | [`EntryRow`] |
//! | `E` inode, end | [`ExtentRow`]: the bytes before `end`, which is exclusive |
//! | `X` inode, name | an extended attribute's value |
//! | `O` inode | none: an inode without a name that is to be removed; or the size it is cut to |
//! | `C` | [`Totals`], merged |
//! | `G` | none: of each object that has data it is known how much of it is alive |
//! | `G` object | [`Usage`]: how much of the object is in use, merged |
//! | `H` object | the number of the newest manifest when the object was found dead |
//! | `S` number | [`Born`]: what there was when the snapshot with this number was made |
//! | `Q` directory, `U` directory | a quota, and what is used of it ([`crate::quotas`]) |
//! | `L` | the number of the object of the log up to which garbage was looked for |
//!
//! Numbers in keys are big-endian, so that the engine's order is theirs. Extents are found by their
//! end: the first whose end lies behind an offset is the only one that can hold it.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::{Attr, Error, ErrorKind, FileType, Result, Timestamp};

/// The size that `st_blksize` names.
const BLKSIZE: u32 = 4096;

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub(crate) struct Time {
    secs: i64,
    nanos: u32,
}

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Self { secs: at.secs, nanos: at.nanos }
    }
}

impl From<Time> for Timestamp {
    fn from(at: Time) -> Self {
        Self { secs: at.secs, nanos: at.nanos.min(999_999_999) }
    }
}

/// The kinds of inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl From<FileType> for Kind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::Regular => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
        }
    }
}

impl From<Kind> for FileType {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Regular => Self::Regular,
            Kind::Directory => Self::Directory,
            Kind::Symlink => Self::Symlink,
            Kind::Fifo => Self::Fifo,
            Kind::Socket => Self::Socket,
            Kind::CharDevice => Self::CharDevice,
            Kind::BlockDevice => Self::BlockDevice,
        }
    }
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InodeRow {
    pub(crate) kind: Kind,
    pub(crate) perm: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) size: u64,
    /// Bytes that extents hold.
    pub(crate) allocated: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    /// The directory that a directory is in.
    pub(crate) parent: u64,
    /// The target of a symbolic link.
    pub(crate) target: Vec<u8>,
}

impl InodeRow {
    pub(crate) fn attr(&self, ino: u64) -> Attr {
        Attr {
            ino,
            kind: self.kind.into(),
            perm: self.perm & 0o7777,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.allocated.div_ceil(512),
            blksize: BLKSIZE,
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }
}

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryRow {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
}

/// The object that data is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Object {
    /// An object of the log.
    Log(u64),
    /// A segment: the epoch of the holder that wrote it, and its number.
    Segment(u64, u64),
}

/// Data as it was written to an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) object: Object,
    /// Where it begins in the object.
    pub(crate) at: u32,
    /// Bytes of the plain data.
    pub(crate) len: u32,
    /// The lengths of its chunks ([`ChunkTable`](crate::codec::ChunkTable)).
    pub(crate) table: Vec<u8>,
}

/// A part of a file that has data, or space reserved for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExtentRow {
    pub(crate) len: u64,
    /// Where the data is, and how many bytes of it come before this extent's; none: it reads as
    /// zeros.
    pub(crate) data: Option<(Stored, u32)>,
}

/// An extent at its place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) row: ExtentRow,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.row.len
    }

    /// The stored data that it has, and which bytes of that; `None`: it reads as zeros.
    pub(crate) fn stored_part(&self) -> Result<Option<(&Stored, Range<u32>)>> {
        let Some((stored, skip)) = &self.row.data else { return Ok(None) };
        let len = u32::try_from(self.row.len).ok();
        let end = len.and_then(|len| skip.checked_add(len)).ok_or_else(|| corrupted("an extent"))?;
        Ok(Some((stored, *skip..end)))
    }

    /// Its part in `start..end`, which lies inside it.
    pub(crate) fn part(&self, start: u64, end: u64) -> Self {
        debug_assert!(self.start <= start && start < end && end <= self.end(), "a part of it");
        let data = self.row.data.as_ref().map(|(stored, skip)| {
            let more = u32::try_from(start - self.start).unwrap_or(u32::MAX);
            (stored.clone(), skip.saturating_add(more))
        });
        Self { start, row: ExtentRow { len: end - start, data } }
    }
}

/// What the volume holds, or a change of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) bytes: i64,
    pub(crate) inodes: i64,
}

impl Totals {
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    pub(crate) const fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }

    /// Files, directories and links: the root has no name.
    pub(crate) fn files(self) -> u64 {
        self.inodes.saturating_sub(1).try_into().unwrap_or(0)
    }
}

/// How much of an object is in use, or a change of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Bytes of extents that refer to it.
    pub(crate) live: i64,
    /// Bytes of data that were written to it.
    pub(crate) written: i64,
}

impl Usage {
    pub(crate) const fn plus(self, change: Self) -> Self {
        Self {
            live: self.live.saturating_add(change.live),
            written: self.written.saturating_add(change.written),
        }
    }

    /// A stored value. Early builds did not count what was written: none of it is known.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let corrupted = || corrupted("a count of live bytes");
        let (live, rest) = postcard::take_from_bytes(bytes).map_err(|_| corrupted())?;
        if rest.is_empty() {
            return Ok(Self { live, written: 0 });
        }
        let written = postcard::from_bytes(rest).map_err(|_| corrupted())?;
        Ok(Self { live, written })
    }
}

/// An inode's row, and the project that it counts for.
pub(crate) fn inode_to_bytes(row: &InodeRow, project: Option<u64>) -> Bytes {
    match project {
        None => to_bytes(row),
        Some(project) => to_bytes(&(row, project)),
    }
}

/// An inode's row, and the project that it counts for, if it does.
pub(crate) fn inode_from_bytes(bytes: &[u8]) -> Result<(InodeRow, Option<u64>)> {
    let corrupt = |_| corrupted("an inode");
    let (row, rest) = postcard::take_from_bytes(bytes).map_err(corrupt)?;
    let project = if rest.is_empty() { None } else { Some(postcard::from_bytes(rest).map_err(corrupt)?) };
    Ok((row, project))
}

/// The key of [`Totals`].
pub(crate) const TOTALS: &[u8] = b"C";

/// The key of the mark that there are rows with [`live_key`]s: volumes of early builds have none.
pub(crate) const COUNTED: &[u8] = b"G";

/// The key of the number up to which the log was searched for garbage.
pub(crate) const SEARCHED: &[u8] = b"L";

/// Which objects there were when a snapshot was made: those with smaller numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Born {
    /// The last object of the log.
    pub(crate) log: u64,
    /// The next segment: its holder's epoch, and its number.
    pub(crate) segment: (u64, u64),
}

impl Born {
    /// Whether an object may have been there.
    pub(crate) fn had(&self, object: Object) -> bool {
        match object {
            Object::Log(number) => number <= self.log,
            Object::Segment(epoch, number) => (epoch, number) < self.segment,
        }
    }
}

/// The key of what there was when a snapshot was made.
pub(crate) fn born_key(snapshot: u64) -> Vec<u8> {
    [b"S", &snapshot.to_be_bytes()[..]].concat()
}

/// The snapshot of a [`born_key`].
pub(crate) fn born_number(key: &[u8]) -> Result<u64> {
    let number = key.get(1..).and_then(|number| number.try_into().ok()).map(u64::from_be_bytes);
    number.ok_or_else(|| corrupted("the key of a snapshot"))
}

/// The key of the number of the manifest that was the newest when an object was found dead:
/// snapshots of later manifests do not need it.
pub(crate) fn held_key(object: Object) -> Vec<u8> {
    let mut key = live_key(object);
    key[0] = b'H';
    key
}

/// The longest [`live_key`].
pub(crate) const LIVE_KEY_BYTES_MAX: usize = 18;

/// The key of the bytes that are alive in an object.
pub(crate) fn live_key(object: Object) -> Vec<u8> {
    let mut key = COUNTED.to_vec();
    match object {
        Object::Log(number) => {
            key.push(b'L');
            key.extend_from_slice(&number.to_be_bytes());
        }
        Object::Segment(epoch, number) => {
            key.push(b'S');
            key.extend_from_slice(&epoch.to_be_bytes());
            key.extend_from_slice(&number.to_be_bytes());
        }
    }
    key
}

/// The object of a [`live_key`].
pub(crate) fn live_object(key: &[u8]) -> Result<Object> {
    let number = |from: usize| key.get(from..from + 8)?.try_into().ok().map(u64::from_be_bytes);
    let object = match (key.get(1), key.len()) {
        (Some(b'L'), 10) => number(2).map(Object::Log),
        (Some(b'S'), LIVE_KEY_BYTES_MAX) => {
            number(2).zip(number(10)).map(|(epoch, number)| Object::Segment(epoch, number))
        }
        _ => None,
    };
    object.ok_or_else(|| corrupted("a count of live bytes"))
}

fn key(tag: u8, ino: u64, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(tag);
    key.extend_from_slice(&ino.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

pub(crate) fn inode_key(ino: u64) -> Vec<u8> {
    key(b'I', ino, &[])
}

pub(crate) fn entry_key(dir: u64, name: &OsStr) -> Vec<u8> {
    key(b'D', dir, name.as_bytes())
}

pub(crate) fn extent_key(ino: u64, end: u64) -> Vec<u8> {
    key(b'E', ino, &end.to_be_bytes())
}

pub(crate) fn xattr_key(ino: u64, name: &OsStr) -> Vec<u8> {
    key(b'X', ino, name.as_bytes())
}

pub(crate) fn orphan_key(ino: u64) -> Vec<u8> {
    key(b'O', ino, &[])
}

/// The key of a directory's quota.
pub(crate) fn quota_key(dir: u64) -> Vec<u8> {
    key(b'Q', dir, &[])
}

/// The key of what is used of a directory's quota.
pub(crate) fn usage_key(dir: u64) -> Vec<u8> {
    key(b'U', dir, &[])
}

/// All keys with this tag and inode.
pub(crate) fn keys_of(tag: u8, ino: u64) -> Range<Vec<u8>> {
    let end = ino.checked_add(1).map_or_else(|| vec![tag + 1], |next| key(tag, next, &[]));
    key(tag, ino, &[])..end
}

/// All keys with this tag.
pub(crate) fn all_keys(tag: u8) -> Range<Vec<u8>> {
    vec![tag]..vec![tag + 1]
}

/// The part of a key behind its tag and inode.
pub(crate) fn rest_of(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// The inode of a key.
pub(crate) fn ino_of(key: &[u8]) -> Result<u64> {
    let ino = key.get(1..9).and_then(|ino| ino.try_into().ok()).map(u64::from_be_bytes);
    ino.ok_or_else(|| corrupted("a key"))
}

/// The end of the extent with this key.
pub(crate) fn extent_end(key: &[u8]) -> Result<u64> {
    let end = rest_of(key).try_into().map(u64::from_be_bytes);
    end.map_err(|_| corrupted("an extent's key"))
}

/// A value as it is stored.
pub(crate) fn to_bytes(value: &impl Serialize) -> Bytes {
    // A vector takes every row: there is no other way to fail.
    Bytes::from(postcard::to_allocvec(value).unwrap_or_default())
}

/// A stored value.
pub(crate) fn from_bytes<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|_| corrupted(what))
}

pub(crate) fn corrupted(what: &'static str) -> Error {
    Error::with(ErrorKind::Io, "read metadata", format!("{what} is corrupted"))
}
