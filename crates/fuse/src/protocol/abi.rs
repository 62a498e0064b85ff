//! The FUSE wire protocol: numbers and structures as the Linux kernel lays them out, version 7.45.
//!
//! Purpose: one place that says what the bytes are; nothing here acts. Structures are plain old
//! data without padding of the compiler's, so that reading and writing them needs no unsafe code;
//! their sizes are compared with the kernel's when this crate is built.
//!
//! Names are those of `linux/fuse.h` without the `fuse_` prefix.
#![allow(missing_docs, reason = "names and meanings are those of the kernel's linux/fuse.h")]

mod structs;

pub use structs::*;

/// The protocol's major version.
pub const KERNEL_VERSION: u32 = 7;
/// The newest minor version that this crate knows.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// The oldest minor version that this crate serves (Linux 5.4 has 7.31).
pub const OLDEST_MINOR_VERSION: u32 = 31;
/// The root directory's node.
pub const ROOT_ID: u64 = 1;
/// Bytes that a read buffer must hold at least, besides `max_write`.
pub const MIN_READ_BUFFER: usize = 8192;

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// The operation that a request asks for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($name = $number),* }

        impl Opcode {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The opcode of this number, if it is known.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Its name, as the kernel spells it without the prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, GetAttr = 3, SetAttr = 4, ReadLink = 5, Symlink = 6, MkNod = 8, MkDir = 9,
    Unlink = 10, RmDir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, StatFs = 17,
    Release = 18, FSync = 20, SetXattr = 21, GetXattr = 22, ListXattr = 23, RemoveXattr = 24, Flush = 25,
    Init = 26, OpenDir = 27, ReadDir = 28, ReleaseDir = 29, FSyncDir = 30, GetLk = 31, SetLk = 32,
    SetLkW = 33, Access = 34, Create = 35, Interrupt = 36, BMap = 37, Destroy = 38, Ioctl = 39, Poll = 40,
    NotifyReply = 41, BatchForget = 42, FAllocate = 43, ReadDirPlus = 44, Rename2 = 45, LSeek = 46,
    CopyFileRange = 47, SetupMapping = 48, RemoveMapping = 49, SyncFs = 50, TmpFile = 51, StatX = 52,
    CopyFileRange64 = 53,
}

/// One more than the largest opcode number.
pub const OPCODES: usize = 54;

bitflags::bitflags! {
    /// The features that INIT negotiates (`flags`, and from bit 32 on `flags2`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const FILE_OPS = 1 << 2;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const SPLICE_WRITE = 1 << 7;
        const SPLICE_MOVE = 1 << 8;
        const SPLICE_READ = 1 << 9;
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        const POSIX_ACL = 1 << 20;
        const ABORT_ERROR = 1 << 21;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const MAP_ALIGNMENT = 1 << 26;
        const SUBMOUNTS = 1 << 27;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const SECURITY_CTX = 1 << 32;
        const HAS_INODE_DAX = 1 << 33;
        const CREATE_SUPP_GROUP = 1 << 34;
        const HAS_EXPIRE_ONLY = 1 << 35;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const PASSTHROUGH = 1 << 37;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// The attributes that SETATTR changes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SetAttrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }

    /// How the kernel is to treat an open file; in the reply to OPEN, OPENDIR, CREATE, TMPFILE.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FOpen: u32 {
        const DIRECT_IO = 1 << 0;
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        const PASSTHROUGH = 1 << 7;
    }

    /// How data came to be written.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct WriteInFlags: u32 {
        const CACHE = 1 << 0;
        const LOCKOWNER = 1 << 1;
        const KILL_SUIDGID = 1 << 2;
    }
}

/// In `open_in.open_flags` and `create_in.open_flags`: drop set-user-id and set-group-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// In `fsync_in.fsync_flags`: the data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// In `setxattr_in.setxattr_flags`: clear the set-group-id bit along with
/// `system.posix_acl_access`.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// The largest offset of a lock.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// Notifications; the number goes into the reply header's `error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum NotifyCode {
    InvalInode = 2,
    InvalEntry = 3,
    Delete = 6,
    Resend = 7,
    Prune = 9,
}

/// From this minor version on the kernel takes [`NotifyCode::Prune`] (Linux 6.18).
pub const MINOR_WITH_PRUNE: u32 = 45;

/// Length of `record` bytes in a directory listing, which aligns its records to 8.
#[must_use]
pub const fn record_len(record: usize) -> usize {
    (record + 7) & !7
}
