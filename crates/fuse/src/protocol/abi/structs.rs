//! The protocol's structures, field by field as in `linux/fuse.h`.
#![allow(
    missing_debug_implementations,
    reason = "the structures derive it; types that zerocopy makes inside do not"
)]

use zerocopy::{FromBytes, Immutable, IntoBytes};

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident [$size:literal] { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
            #[repr(C)]
            pub struct $name { $(pub $field: $type),* }

            // The kernel's size.
            const _: () = assert!(size_of::<$name>() == $size);
        )*

        /// Names and sizes of all structures, for tests that compare them with another source.
        pub const SIZES: &[(&str, usize)] = &[$((stringify!($name), $size)),*];
    };
}

wire! {
    /// Begins every request.
    InHeader [40] {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Begins every reply and notification.
    OutHeader [16] { len: u32, error: i32, unique: u64 }

    InitIn [64] { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut [64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }

    Attr [88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut [128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut [104] { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    GetAttrIn [16] { getattr_flags: u32, dummy: u32, fh: u64 }
    SetAttrIn [88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }

    ForgetIn [8] { nlookup: u64 }
    ForgetOne [16] { nodeid: u64, nlookup: u64 }
    BatchForgetIn [8] { count: u32, dummy: u32 }

    MkNodIn [16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkDirIn [8] { mode: u32, umask: u32 }
    RenameIn [8] { newdir: u64 }
    Rename2In [16] { newdir: u64, flags: u32, padding: u32 }
    LinkIn [8] { oldnodeid: u64 }

    OpenIn [8] { flags: u32, open_flags: u32 }
    CreateIn [16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut [16] { fh: u64, open_flags: u32, backing_id: i32 }
    /// The reply to CREATE and TMPFILE.
    CreateOut [144] { entry: EntryOut, open: OpenOut }
    ReleaseIn [24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn [24] { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    FSyncIn [16] { fh: u64, fsync_flags: u32, padding: u32 }

    ReadIn [40] {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn [40] {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteOut [8] { size: u32, padding: u32 }

    /// `fuse_kstatfs`, which is all of `fuse_statfs_out`.
    StatFsOut [80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }

    /// As sent when `SETXATTR_EXT` is not negotiated.
    SetXattrInCompat [8] { size: u32, flags: u32 }
    SetXattrIn [16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetXattrIn [8] { size: u32, padding: u32 }
    GetXattrOut [8] { size: u32, padding: u32 }

    FileLock [24] { start: u64, end: u64, r#type: u32, pid: u32 }
    LkIn [48] { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    LkOut [24] { lk: FileLock }

    AccessIn [8] { mask: u32, padding: u32 }
    InterruptIn [8] { unique: u64 }
    FAllocateIn [32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LSeekIn [24] { fh: u64, offset: u64, whence: u32, padding: u32 }
    LSeekOut [8] { offset: u64 }
    CopyFileRangeIn [56] {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut [8] { bytes_copied: u64 }

    /// Followed by the name, padded to 8 bytes.
    Dirent [24] { ino: u64, off: u64, namelen: u32, r#type: u32 }
    /// Followed by the name, padded to 8 bytes.
    DirentPlus [152] { entry: EntryOut, dirent: Dirent }

    NotifyInvalInodeOut [24] { ino: u64, off: i64, len: i64 }
    /// Followed by the name and a NUL.
    NotifyInvalEntryOut [16] { parent: u64, namelen: u32, flags: u32 }
    /// Followed by the name and a NUL.
    NotifyDeleteOut [24] { parent: u64, child: u64, namelen: u32, padding: u32 }
    /// Followed by the nodes' numbers.
    NotifyPruneOut [16] { count: u32, padding: u32, spare: u64 }
}
