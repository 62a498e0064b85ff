//! Trees copied onto a volume and compared bit for bit: there, after a remount, in the store's
//! directory, and copied back.
#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use watertight_acceptance::oddtree;
use watertight_acceptance::program::have;
use watertight_acceptance::scratch::Scratch;
use watertight_acceptance::tree::{Compare, assert_same, differences};
use watertight_acceptance::{Cmd, Subject, note};

/// A copier: source directory, target directory (exists, empty).
type Copier = fn(&Path, &Path);

fn cp(from: &Path, to: &Path) {
    Cmd::new("cp").args(["-a", "-T"]).args([from, to]).limit(Duration::from_secs(120)).ok();
}

fn rsync(from: &Path, to: &Path) {
    let mut from = from.as_os_str().to_owned();
    from.push("/");
    let args = if watertight_acceptance::sys::is_root() { "-aHAXS" } else { "-aHS" };
    Cmd::new("rsync").arg(args).arg(from).arg(to).limit(Duration::from_secs(120)).ok();
}

fn tar(from: &Path, to: &Path) {
    let archive = from.with_extension("tar");
    let how = ["--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--format=posix", "--numeric-owner"];
    let tar = || Cmd::new("tar").args(how).limit(Duration::from_secs(120));
    tar().args(["--create", "--file"]).arg(&archive).arg("--directory").args([from, Path::new(".")]).ok();
    tar()
        .args(["--extract", "--preserve-permissions", "--file"])
        .arg(&archive)
        .arg("--directory")
        .arg(to)
        .ok();
    fs::remove_file(archive).expect("remove the archive");
}

fn copied(name: &str, tool: &str, copy: Copier, how: Compare) {
    if !have(name, &[tool]) {
        return;
    }
    let Some(mut subject) = Subject::start(name) else { return };
    // Holes are not told there (SEEK_HOLE), for the program cannot know them; copiers find them by
    // zeros.
    let how = Compare { exact_holes: how.exact_holes && !subject.is_kernel_writeback(), ..how };
    let origin = subject.outside("origin");
    for reason in oddtree::make(&origin, 5).reasons {
        note(name, &format!("without: {reason}"));
    }
    let copy_at = subject.at("copy");
    fs::create_dir(&copy_at).expect("mkdir");
    copy(&origin, &copy_at);
    prune(name, &origin, &copy_at);
    assert_same("on the mount", &origin, &copy_at, how);
    subject.remount();
    assert_same("after a remount", &origin, &copy_at, how);
    let back = subject.outside("back");
    copy(&copy_at, &back);
    assert_same("copied back", &origin, &back, how);
    subject.close();
    let stored = subject.store().join("copy");
    assert_same("in the store", &origin, &stored, how);
}

/// Takes out of the comparison what tar leaves out by its nature: sockets.
fn prune(name: &str, origin: &Path, copy: &Path) {
    let socket = Path::new("specials/socket");
    if name == "tar" && !copy.join(socket).exists() {
        let dir = origin.join("specials");
        let modified = dir.metadata().expect("stat").modified().expect("mtime");
        fs::remove_file(origin.join(socket)).expect("remove the socket");
        fs::File::open(dir).expect("open").set_modified(modified).expect("set mtime");
    }
}

#[test]
fn cp_keeps_everything() {
    copied("cp", "cp", cp, Compare::default());
}

#[test]
fn rsync_keeps_everything() {
    // rsync finds holes by itself, in its own block size.
    copied("rsync", "rsync", rsync, Compare { exact_holes: false, ..Compare::default() });
}

#[test]
fn tar_keeps_everything() {
    copied("tar", "tar", tar, Compare { exact_holes: false, ..Compare::default() });
}

/// A second rsync finds nothing to do, also after a remount: sizes and times are what it set.
#[test]
fn rsync_again_finds_nothing_to_do() {
    let name = "rsync-again";
    if !have(name, &["rsync"]) {
        return;
    }
    let Some(mut subject) = Subject::start(name) else { return };
    let origin = subject.outside("origin");
    oddtree::make(&origin, 6);
    let copy = subject.at("copy");
    rsync(&origin, &copy);
    let again = |copy: &Path| {
        let args = if watertight_acceptance::sys::is_root() { "-aHAXS" } else { "-aHS" };
        let mut from = origin.clone().into_os_string();
        from.push("/");
        Cmd::new("rsync").args([args, "--itemize-changes", "--checksum"]).arg(from).arg(copy).ok().out()
    };
    assert_eq!(again(&copy), "");
    subject.remount();
    assert_eq!(again(&copy), "");
}

/// Anti-vacuity: the comparer sees each kind of difference.
#[test]
fn the_comparer_sees_every_difference() {
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 12] = [
        ("contents differ", |t| flip_byte(&t.join("contents/1048577 bytes"))),
        ("size", |t| truncate(&t.join("contents/4097 bytes"), 4096)),
        ("mode", |t| chmod(&t.join("modes/file 644"), 0o640)),
        ("mode", |t| chmod(&t.join("modes/file 4755"), 0o755)),
        ("only in", |t| fs::remove_file(t.join("names/new\nline")).unwrap()),
        ("only in", |t| fs::write(t.join("new"), "").unwrap()),
        ("mtime", |t| nudge_mtime(&t.join("contents/1 bytes"))),
        ("mtime", |t| nudge_mtime(&t.join("dirs/empty"))),
        ("target", |t| retarget(&t.join("links/relative"))),
        ("one file only in", |t| split_link(&t.join("links/two"))),
        ("xattrs", |t| {
            Cmd::new("setfattr").args(["-n", "user.text", "-v", "other"]).arg(t.join("xattrs/a")).ok();
        }),
        ("data at", |t| fill_hole(&t.join("sparse/islands"))),
    ];
    if !have("comparer", &["setfattr"]) {
        return;
    }
    let scratch = Scratch::new("comparer");
    let origin = scratch.dir("origin");
    oddtree::make(&origin, 5);
    for (i, (complaint, change)) in changes.iter().enumerate() {
        let copy: PathBuf = scratch.dir(&format!("copy {i}"));
        cp(&origin, &copy);
        let found = differences(&origin, &copy, Compare::default());
        assert_eq!(found, Vec::<String>::new(), "before change {i}");
        change(&copy);
        let found = differences(&origin, &copy, Compare::default());
        assert!(found.iter().any(|f| f.contains(complaint)), "change {i}, {complaint}: {found:?}");
        fs::remove_dir_all(&copy).unwrap();
    }
}

fn flip_byte(path: &Path) {
    let mut data = fs::read(path).unwrap();
    let at = data.len() - 3;
    data[at] ^= 1;
    keeping_mtime(path, || fs::write(path, &data).unwrap());
}

fn truncate(path: &Path, len: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn nudge_mtime(path: &Path) {
    let meta = path.metadata().unwrap();
    let nanos = if meta.mtime_nsec() > 0 { meta.mtime_nsec() - 1 } else { 1 };
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec { tv_sec: meta.mtime(), tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

fn keeping_mtime(path: &Path, change: impl FnOnce()) {
    let modified = path.metadata().unwrap().modified().unwrap();
    change();
    fs::OpenOptions::new().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

fn retarget(path: &Path) {
    fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink("two", path).unwrap();
}

fn split_link(path: &Path) {
    let data = fs::read(path).unwrap();
    fs::remove_file(path).unwrap();
    fs::write(path, data).unwrap();
}

fn fill_hole(path: &Path) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    keeping_mtime(path, || file.write_all_at(&[0; 4096], 512 << 10).unwrap());
}
