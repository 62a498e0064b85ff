//! A tree with everything a file system must keep.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, lsetxattr, makedev,
    mknodat, utimensat,
};

use crate::command::Cmd;
use crate::rng::Rng;
use crate::{program, sys};

/// What the tree could not be given here.
#[derive(Debug, Default)]
pub struct Missing {
    /// Reasons for a person to read.
    pub reasons: Vec<String>,
}

/// Makes the tree at `root`, which must be an empty directory of the host.
///
/// # Panics
/// When something that any user can make cannot be made.
pub fn make(root: &Path, seed: u64) -> Missing {
    let mut rng = Rng::new(seed);
    let mut missing = Missing::default();
    contents(root, &mut rng).expect("files and directories");
    names(root).expect("odd names");
    links(root).expect("links");
    sparse(root, &mut rng).expect("sparse files");
    modes(root).expect("modes");
    specials(root, &mut missing).expect("special files");
    attributes(root, &mut missing).expect("extended attributes");
    acls(root, &mut missing);
    owners(root, &mut missing).expect("owners");
    // Last, and deepest first: everything above changes times.
    times(root).expect("times");
    missing
}

/// Files of the sizes at which block and page logic turns, and a small hierarchy.
fn contents(root: &Path, rng: &mut Rng) -> io::Result<()> {
    let dir = root.join("contents");
    fs::create_dir(&dir)?;
    for size in [0, 1, 511, 512, 4095, 4096, 4097, 65_535, 131_072, 1_048_575, 1_048_577, 3_000_001] {
        fs::write(dir.join(format!("{size} bytes")), rng.bytes(size))?;
    }
    for i in 0..8 {
        let sub = root.join(format!("dirs/{}/{i}", i % 3));
        fs::create_dir_all(&sub)?;
        for j in 0..12 {
            let len = rng.index(9000);
            fs::write(sub.join(format!("file {j}")), rng.bytes(len))?;
        }
    }
    fs::create_dir_all(root.join("dirs/empty"))?;
    fs::create_dir_all(root.join(vec!["deep"; 24].join("/")))
}

fn names(root: &Path) -> io::Result<()> {
    let dir = root.join("names");
    fs::create_dir(&dir)?;
    let longest = [b'L'; 255];
    let names: [&[u8]; 14] = [
        b"new\nline",
        b" leading and trailing ",
        b"-rf",
        b"*?[glob]",
        b"quote'\"`$(true)",
        b"back\\slash\\",
        b"not utf8 \xff\xfe\x80",
        b"\x01\x02\x1b[31m\x7f",
        b"..dots",
        b"...",
        "\u{e9} and e\u{301}".as_bytes(),
        "\u{1f4a7}\u{202e}txt".as_bytes(),
        b"tab\there",
        &longest,
    ];
    for (i, name) in names.iter().enumerate() {
        fs::write(dir.join(OsStr::from_bytes(name)), format!("{i}"))?;
    }
    fs::create_dir(dir.join(OsStr::from_bytes(b"dir\xff\n")))?;
    fs::write(dir.join(OsStr::from_bytes(b"dir\xff\n/inside")), "inside")
}

fn links(root: &Path) -> io::Result<()> {
    let dir = root.join("links");
    fs::create_dir(&dir)?;
    fs::write(dir.join("one"), "shared by three names")?;
    fs::hard_link(dir.join("one"), dir.join("two"))?;
    fs::hard_link(dir.join("one"), root.join("dirs/three"))?;
    use std::os::unix::fs::symlink;
    symlink("one", dir.join("relative"))?;
    symlink("/nonexistent/absolute", dir.join("dangling"))?;
    symlink("loop", dir.join("loop"))?;
    symlink("../dirs", dir.join("to a directory"))?;
    symlink(OsStr::from_bytes(b"odd\xff\ntarget"), dir.join("odd"))?;
    symlink("x".repeat(4095), dir.join("longest"))?;
    fs::hard_link(dir.join("relative"), dir.join("a second name of the link"))
}

fn sparse(root: &Path, rng: &mut Rng) -> io::Result<()> {
    let dir = root.join("sparse");
    fs::create_dir(&dir)?;
    let only_hole = File::create(dir.join("only a hole"))?;
    only_hole.set_len(20 << 20)?;
    let islands = File::create(dir.join("islands"))?;
    for i in 0..6 {
        islands.write_all_at(&rng.bytes(8192), i * (1 << 20) + (64 << 10))?;
    }
    islands.set_len(8 << 20)?;
    let far = File::create(dir.join("a byte after 150 MiB"))?;
    far.write_all_at(b"!", 150 << 20)
}

fn modes(root: &Path) -> io::Result<()> {
    let dir = root.join("modes");
    fs::create_dir(&dir)?;
    // An ordinary user cannot copy files that none may read.
    let closed = if sys::is_root() { 0o000 } else { 0o444 };
    for mode in [closed, 0o400, 0o644, 0o777, 0o4755, 0o2755, 0o6711, 0o1644] {
        let path = dir.join(format!("file {mode:o}"));
        fs::write(&path, format!("{mode:o}"))?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    for mode in [0o700, 0o1777, 0o2775] {
        let path = dir.join(format!("dir {mode:o}"));
        fs::create_dir(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn specials(root: &Path, missing: &mut Missing) -> io::Result<()> {
    let dir = root.join("specials");
    fs::create_dir(&dir)?;
    mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0)?;
    // A socket's path has a short limit, which a scratch directory's may exceed: bound from inside.
    mknodat(CWD, dir.join("socket"), FileType::Socket, Mode::from_raw_mode(0o755), 0)
        .or_else(|_| UnixListener::bind(dir.join("socket")).map(drop))?;
    if sys::is_root() {
        mknodat(CWD, dir.join("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 3))?;
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, dir.join("block"), FileType::BlockDevice, mode, makedev(259, 70_000))?;
    } else {
        missing.reasons.push("devices need root".to_owned());
    }
    Ok(())
}

fn attributes(root: &Path, missing: &mut Missing) -> io::Result<()> {
    let dir = root.join("xattrs");
    fs::create_dir(&dir)?;
    let set = |path: &Path, name: &str, value: &[u8]| lsetxattr(path, name, value, XattrFlags::empty());
    for name in ["a", "b"] {
        let path = dir.join(name);
        fs::write(&path, name)?;
        set(&path, "user.text", b"plain")?;
        set(&path, "user.empty", b"")?;
        set(&path, "user.binary", b"\0\x01\xff\n\0")?;
        set(&path, &format!("user.{}", "n".repeat(200)), &[b'v'; 1000])?;
    }
    set(&dir, "user.directory", b"has one too")?;
    if sys::is_root() {
        std::os::unix::fs::symlink("a", dir.join("link"))?;
        set(&dir.join("link"), "trusted.on-a-link", b"the link's own")?;
        set(&dir.join("a"), "trusted.secret", b"root's")?;
    } else {
        missing.reasons.push("trusted attributes need root".to_owned());
    }
    Ok(())
}

fn acls(root: &Path, missing: &mut Missing) {
    let dir = root.join("acls");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(dir.join("file"), "acl").expect("write");
    fs::create_dir(dir.join("default")).expect("mkdir");
    if program::find("setfacl").is_none() {
        missing.reasons.push("setfacl is not installed".to_owned());
        return;
    }
    let set =
        |args: &[&str], path: &str| Cmd::new("setfacl").args(args).arg(dir.join(path)).run().status.success();
    if !set(&["-m", "u:1:rw,g:2:r,m::rw"], "file") || !set(&["-d", "-m", "u:1:rwx"], "default") {
        missing.reasons.push("the host's file system has no ACLs".to_owned());
    }
}

fn owners(root: &Path, missing: &mut Missing) -> io::Result<()> {
    let dir = root.join("owners");
    fs::create_dir(&dir)?;
    if !sys::is_root() {
        missing.reasons.push("other owners need root".to_owned());
        return Ok(());
    }
    for (uid, gid) in [(1, 1), (65_534, 65_534), (1_000_000, 2_000_000), (4_294_967_293, 7)] {
        let path = dir.join(format!("{uid}:{gid}"));
        fs::write(&path, "owned")?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(CWD, &path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        let link = path.with_extension("link");
        std::os::unix::fs::symlink("x", &link)?;
        chownat(CWD, &link, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// Times before 1970, after 2038, and with every nanosecond in use.
fn times(root: &Path) -> io::Result<()> {
    let mut rng = Rng::new(7);
    let seconds =
        [-86_400, -1, 0, 1, 951_782_400, 1_700_000_000, 2_147_483_648, 4_294_967_296, 7_258_118_400];
    let mut all: Vec<_> = crate::tree::walk(root).into_keys().collect();
    all.sort_by_key(|name| std::cmp::Reverse(name.components().count()));
    for (i, name) in all.iter().enumerate() {
        let path = if name.as_os_str().is_empty() { root.to_owned() } else { root.join(name) };
        let nanos = i64::try_from(rng.below(1_000_000_000)).unwrap_or(1);
        let time = Timespec { tv_sec: seconds[i % seconds.len()], tv_nsec: nanos };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
