//! The values that stores and volumes exchange.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// Names an object of a store while its user holds a reference on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId(pub u64);

impl ObjectId {
    /// The root directory; it needs no reference.
    pub const ROOT: Self = Self(1);
}

/// The kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum FileType {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileType {
    const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// Its number, in what is written down.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The kind with this number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// A point in time, as in `struct timespec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// Nanoseconds, below 1 000 000 000.
    pub nanos: u32,
}

impl Timestamp {
    /// The wall clock's time, by the clock that file systems use: a finer one would make a write of
    /// now seem newer than one that the host's file system makes a moment later.
    #[must_use]
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Self { secs: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) }
    }
}

/// The attributes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The number users see (`st_ino`).
    pub ino: u64,
    /// The kind of object.
    pub kind: FileType,
    /// Permission bits with set-user-id, set-group-id and sticky: the low 12 bits of `st_mode`.
    pub perm: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file (kernel encoding of `st_rdev`).
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes in use.
    pub blocks: u64,
    /// Preferred size of a transfer, in bytes.
    pub blksize: u32,
    /// Last read.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change of the attributes.
    pub ctime: Timestamp,
}

/// An object with its attributes. Its receiver holds one reference on `id`.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The object.
    pub id: ObjectId,
    /// Its attributes at that moment.
    pub attr: Attr,
    /// Tells it from others that had its id before, or have it in another store; see
    /// [`Store::recall`](crate::Store::recall).
    pub generation: u32,
}

/// The owner of an object that is made, and the umask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Creator {
    /// Owner of the new object.
    pub uid: u32,
    /// Its group, unless the directory's set-group-id bit says otherwise.
    pub gid: u32,
    /// Bits to take from the mode, unless the directory has a default ACL.
    pub umask: u32,
}

/// An object to make with [`Store::make`](crate::Store::make).
#[derive(Debug, Clone, Copy)]
pub enum NewNode<'a> {
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a std::ffi::OsStr),
    /// An empty file, fifo, socket or device; `rdev` counts for devices only.
    Special {
        /// Which.
        kind: FileType,
        /// The device number.
        rdev: u32,
    },
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For reading and writing.
    ReadWrite,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSet {
    /// The store's clock.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change; one that is `None` stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (the low 12 bits).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<TimeSet>,
    /// Last write.
    pub mtime: Option<TimeSet>,
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// Make or replace it.
    Any,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

bitflags::bitflags! {
    /// How a rename treats the target; as renameat2(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail when the target exists.
        const NOREPLACE = 1;
        /// Exchange the two.
        const EXCHANGE = 2;
        /// Leave a whiteout at the source.
        const WHITEOUT = 4;
    }

    /// The kind of allocation; as fallocate(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AllocateMode: u32 {
        /// Do not change the file's size.
        const KEEP_SIZE = 0x01;
        /// Make a hole; needs `KEEP_SIZE`.
        const PUNCH_HOLE = 0x02;
        /// Make it read as zeros.
        const ZERO_RANGE = 0x10;
    }
}

/// The target of a seek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// One entry of a directory listing, `.` and `..` included.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// Its name.
    pub name: OsString,
    /// Its number.
    pub ino: u64,
    /// Its kind, when the medium says so without another call.
    pub kind: Option<FileType>,
    /// Where a later listing goes on after this entry.
    pub next: u64,
}

/// Sizes of the medium; as statvfs(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the three block counts, in bytes.
    pub frsize: u32,
    /// Preferred size of a transfer, in bytes.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub bfree: u64,
    /// Blocks free for unprivileged users.
    pub bavail: u64,
    /// Objects in all.
    pub files: u64,
    /// Objects free.
    pub ffree: u64,
    /// Longest name, in bytes.
    pub namelen: u32,
}
