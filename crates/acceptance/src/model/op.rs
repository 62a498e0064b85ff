//! Operations, and how chance makes them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use proptest::prelude::*;

use super::SLOTS;

/// A path, as an index: few paths, so that operations meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct P(pub u8);

const POOL: [&[u8]; 14] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"d/a",
    b"d/b",
    b"d/e",
    b"d/e/a",
    b"d/e/b",
    b"e",
    b"e/a",
    b"a/a",
    b"odd \xff\n",
    b"d/",
];

/// The path that `p` names: the last ones have the longest name there is, and one byte more.
#[must_use]
pub fn path(p: P) -> PathBuf {
    let index = usize::from(p.0);
    let name = match index {
        13 => [POOL[13], &[b'L'; 255][..]].concat(),
        14 => vec![b'L'; 256],
        _ => POOL[index].to_vec(),
    };
    PathBuf::from(OsStr::from_bytes(&name))
}

const PATHS: u8 = 15;

/// How a file is opened; always for reading and writing, never through a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the flags of open(2)")]
pub struct How {
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    pub append: bool,
    pub direct: bool,
}

/// How renameat2(2) treats the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the flags of renameat2(2)")]
pub enum Rename {
    Replace,
    NoReplace,
    Exchange,
}

/// What fallocate(2) does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the flags of fallocate(2)")]
pub enum Allocate {
    Extend,
    KeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
}

/// How setxattr(2) treats an attribute that exists, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the flags of setxattr(2)")]
pub enum SetX {
    Any,
    Create,
    Replace,
}

/// One operation. `slot` is an open file, `at` an offset, `fill` seeds the bytes written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "named after the system calls")]
pub enum Op {
    Open { slot: usize, path: P, how: How },
    Tmpfile { slot: usize, dir: P },
    Close { slot: usize },
    Read { slot: usize, at: u64, len: usize },
    Write { slot: usize, at: u64, len: usize, fill: u8 },
    MapWrite { slot: usize, at: u64, len: usize, fill: u8 },
    MapRead { slot: usize, at: u64, len: usize },
    Truncate { path: P, len: u64 },
    FTruncate { slot: usize, len: u64 },
    Allocate { slot: usize, how: Allocate, at: u64, len: u64 },
    Copy { from: usize, at: u64, to: usize, to_at: u64, len: usize },
    SeekHole { slot: usize, at: u64 },
    Fsync { slot: usize, data_only: bool },
    SyncAll,
    Mkdir { path: P, perm: u32 },
    Rmdir { path: P },
    Unlink { path: P },
    Symlink { path: P, target: u8 },
    Fifo { path: P },
    Link { from: P, to: P },
    LinkSlot { slot: usize, to: P },
    Rename { from: P, to: P, how: Rename },
    Chmod { path: P, perm: u32 },
    Chown { path: P, uid: u32, gid: u32 },
    SetTimes { path: P, secs: i64, nanos: u32 },
    SetXattr { path: P, name: u8, len: usize, fill: u8, how: SetX },
    RemoveXattr { path: P, name: u8 },
    Remount,
}

fn any_path() -> impl Strategy<Value = P> {
    // The name that is too long, seldom.
    prop_oneof![40 => (0..PATHS - 1).prop_map(P), 1 => Just(P(PATHS - 1))]
}

fn slot() -> impl Strategy<Value = usize> {
    0..SLOTS
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(0),
        4 => 0_u64..9000,
        2 => (0_u64..40).prop_map(|page| page * 4096),
        2 => 0_u64..200_000,
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0_usize),
        4 => 1_usize..5000,
        2 => (1_usize..20).prop_map(|pages| pages * 4096),
        1 => 1_usize..150_000,
    ]
}

fn how() -> impl Strategy<Value = How> {
    let flag = |percent: u32| prop::bool::weighted(f64::from(percent) / 100.0);
    (flag(90), flag(6), flag(12), flag(15), flag(12)).prop_map(
        |(create, exclusive, truncate, append, direct)| How {
            create,
            exclusive: create && exclusive,
            truncate,
            append,
            direct,
        },
    )
}

fn data_op() -> impl Strategy<Value = Op> {
    use Allocate::*;
    let allocate =
        prop_oneof![Just(Extend), Just(KeepSize), Just(PunchHole), Just(ZeroRange), Just(ZeroRangeKeepSize)];
    let range = || (slot(), offset(), length());
    prop_oneof![
        8 => (range(), any::<u8>()).prop_map(|((slot, at, len), fill)| Op::Write { slot, at, len, fill }),
        3 => (range(), any::<u8>()).prop_map(|((slot, at, len), fill)| Op::MapWrite { slot, at, len, fill }),
        3 => range().prop_map(|(slot, at, len)| Op::Read { slot, at, len }),
        1 => range().prop_map(|(slot, at, len)| Op::MapRead { slot, at, len }),
        2 => (slot(), offset()).prop_map(|(slot, len)| Op::FTruncate { slot, len }),
        2 => (allocate, range()).prop_map(
            |(how, (slot, at, len))| Op::Allocate { slot, how, at, len: len as u64 }),
        2 => (range(), slot(), offset()).prop_map(
            |((from, at, len), to, to_at)| Op::Copy { from, at, to, to_at, len }),
        1 => (slot(), offset()).prop_map(|(slot, at)| Op::SeekHole { slot, at }),
        2 => (slot(), any::<bool>()).prop_map(|(slot, data_only)| Op::Fsync { slot, data_only }),
    ]
}

fn name_op() -> impl Strategy<Value = Op> {
    let rename =
        prop_oneof![4 => Just(Rename::Replace), 1 => Just(Rename::NoReplace), 1 => Just(Rename::Exchange)];
    let dir_perm = prop_oneof![Just(0o755), Just(0o700)];
    prop_oneof![
        5 => (any_path(), dir_perm).prop_map(|(path, perm)| Op::Mkdir { path, perm }),
        2 => any_path().prop_map(|path| Op::Rmdir { path }),
        4 => any_path().prop_map(|path| Op::Unlink { path }),
        2 => (any_path(), 0_u8..4).prop_map(|(path, target)| Op::Symlink { path, target }),
        1 => any_path().prop_map(|path| Op::Fifo { path }),
        3 => (any_path(), any_path()).prop_map(|(from, to)| Op::Link { from, to }),
        1 => (slot(), any_path()).prop_map(|(slot, to)| Op::LinkSlot { slot, to }),
        6 => (any_path(), any_path(), rename).prop_map(|(from, to, how)| Op::Rename { from, to, how }),
    ]
}

fn attribute_op() -> impl Strategy<Value = Op> {
    let perm = prop_oneof![Just(0o644), Just(0o600), Just(0o755), Just(0o777), Just(0o700)];
    let set = prop_oneof![3 => Just(SetX::Any), 1 => Just(SetX::Create), 1 => Just(SetX::Replace)];
    let secs = prop_oneof![Just(-5_i64), Just(0), 1_i64..2_000_000_000, Just(5_000_000_000)];
    prop_oneof![
        (any_path(), offset()).prop_map(|(path, len)| Op::Truncate { path, len }),
        (any_path(), perm).prop_map(|(path, perm)| Op::Chmod { path, perm }),
        (any_path(), 0_u32..4, 0_u32..4).prop_map(|(path, uid, gid)| Op::Chown { path, uid, gid }),
        (any_path(), secs, 0_u32..1_000_000_000).prop_map(|(path, secs, nanos)| Op::SetTimes {
            path,
            secs,
            nanos
        }),
        (any_path(), 0_u8..3, 0_usize..200, any::<u8>(), set)
            .prop_map(|(path, name, len, fill, how)| Op::SetXattr { path, name, len, fill, how }),
        (any_path(), 0_u8..3).prop_map(|(path, name)| Op::RemoveXattr { path, name }),
    ]
}

/// Any operation; a remount about once in `remount` of them.
pub fn op(remount: u32) -> impl Strategy<Value = Op> {
    let open = prop_oneof![
        9 => (slot(), any_path(), how()).prop_map(|(slot, path, how)| Op::Open { slot, path, how }),
        1 => (slot(), any_path()).prop_map(|(slot, dir)| Op::Tmpfile { slot, dir }),
    ];
    let rest = remount.saturating_sub(5).max(20);
    prop_oneof![
        rest * 20 / 100 => open,
        rest * 3 / 100 => slot().prop_map(|slot| Op::Close { slot }),
        rest * 42 / 100 => data_op(),
        rest * 25 / 100 => name_op(),
        rest * 8 / 100 => attribute_op(),
        1 => Just(Op::SyncAll),
        1 => Just(Op::Remount),
    ]
}

/// The bytes of a write.
pub(super) fn fill_bytes(fill: u8, len: usize) -> Vec<u8> {
    // Places differ from their neighbours, pages from theirs, and nothing is zero.
    (0..len)
        .map(|i| u8::try_from((i * 7 + (i >> 12) * 13 + usize::from(fill)) % 255).unwrap_or(0) + 1)
        .collect()
}

/// The name of an extended attribute.
pub(super) fn xattr_name(name: u8) -> &'static str {
    ["user.one", "user.two", "user.three"][usize::from(name) % 3]
}

/// Where a symbolic link leads: nowhere.
pub(super) fn target(target: u8) -> String {
    format!("nowhere-{}", "x".repeat(usize::from(target) * 30))
}
