//! Each kind of request through a real mount.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use common::{Setup, eventually, skipped};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom as Seek, XattrFlags};
use rustix::io::Errno;
use watertight_fuse::abi::Opcode;

const NOBODY: u32 = 65534;

#[test]
fn a_file_without_a_name_gets_one_later() {
    let Some(mounted) = Setup::default().mount() else { return };
    let file = rustix::fs::open(mounted.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
    let file = File::from(file.unwrap());
    (&file).write_all(b"named at last").unwrap();
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let name = mounted.path().join("name");
    rustix::fs::linkat(&file, "", CWD, &name, AtFlags::EMPTY_PATH).unwrap();
    assert_eq!(common::text(&name), "named at last");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    drop(file);
    assert_eq!(mounted.view.stats().of(Opcode::TmpFile), 1);
    mounted.volume.sync_all().unwrap();
    assert_eq!(common::text(&mounted.store_path().join("name")), "named at last");
    mounted.unmount();
}

#[test]
fn writing_by_others_takes_the_set_id_bits_and_capabilities_away() {
    let Some(mounted) = Setup::default().mount() else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can write as somebody else");
    }
    for (how, script) in [
        ("write", "printf x | dd of=file conv=notrunc status=none"),
        ("truncate", "truncate -s 1 file"),
        ("open with O_TRUNC", ": > file"),
    ] {
        let path = mounted.path().join("file");
        fs::write(&path, "program").unwrap();
        // Capabilities: an effective set with CAP_NET_RAW, revision 2.
        let caps: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        rustix::fs::setxattr(&path, "security.capability", &caps, XattrFlags::empty()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(mounted.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let status = Command::new("sh")
            .args(["-c", script])
            .current_dir(mounted.path())
            .uid(NOBODY)
            .gid(NOBODY)
            .status();
        assert!(status.unwrap().success(), "{how}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{how}");
        let mut value = [0; 64];
        let gone = rustix::fs::getxattr(&path, "security.capability", &mut value[..]);
        assert_eq!(gone.unwrap_err(), Errno::NODATA, "{how}");
        fs::remove_file(&path).unwrap();
    }
    mounted.unmount();
}

#[test]
fn writing_by_root_keeps_the_set_id_bits() {
    let Some(mounted) = Setup::default().mount() else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("not root");
    }
    let path = mounted.path().join("file");
    fs::write(&path, "program").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    File::options().write(true).open(&path).unwrap().write_all(b"x").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
    mounted.unmount();
}

#[test]
fn blocks_of_what_is_not_written_back_are_counted_once() {
    const MIB: u64 = 1 << 20;
    let volume = volume::Options { dirty_after: std::time::Duration::from_secs(3600), ..Default::default() };
    let Some(mounted) = (Setup { volume, ..Setup::default() }).mount() else { return };
    let file =
        File::options().read(true).write(true).create_new(true).open(mounted.path().join("f")).unwrap();
    let blocks = || file.metadata().unwrap().blocks();
    let full = vec![1; 1 << 20];
    file.write_all_at(&full, 0).unwrap();
    assert_eq!(blocks(), MIB / 512, "written, and not on the store");
    file.sync_all().unwrap();
    assert_eq!(blocks(), MIB / 512, "on the store");
    file.write_all_at(&full, 0).unwrap();
    assert_eq!(blocks(), MIB / 512, "written over");
    file.write_all_at(&full[..4096], MIB).unwrap();
    assert_eq!(blocks(), MIB / 512 + 8, "longer");
    file.set_len(4096).unwrap();
    assert_eq!(blocks(), 8, "cut");
    file.sync_all().unwrap();
    file.set_len(4 * MIB).unwrap();
    file.write_all_at(&full[..4096], 2 * MIB).unwrap();
    assert_eq!(blocks(), 16, "behind a hole");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 0, 4096).unwrap();
    assert_eq!(blocks(), 8, "punched");
    // A hole's data on the store and data written over it are not told apart.
    file.sync_all().unwrap();
    file.write_all_at(&full[..4096], 2 * MIB).unwrap();
    assert!((8..=16).contains(&blocks()), "written over behind a hole");
    drop(file);
    mounted.unmount();
}

#[test]
fn writes_do_not_ask_for_capabilities_each_time() {
    let Some(mounted) = Setup::default().mount() else { return };
    let file = File::create(mounted.path().join("file")).unwrap();
    for n in 0..100u64 {
        file.write_all_at(&[1; 4096], n * 4096).unwrap();
    }
    let stats = mounted.view.stats();
    assert_eq!(stats.of(Opcode::Write), 100);
    assert!(stats.of(Opcode::GetXattr) <= 2, "{} xattr requests", stats.of(Opcode::GetXattr));
    drop(file);
    mounted.unmount();
}

#[test]
fn the_largest_offset_is_a_clean_error() {
    let Some(mounted) = Setup::default().mount() else { return };
    let file =
        File::options().read(true).write(true).create(true).truncate(true).open(mounted.path().join("file"));
    let file = file.unwrap();
    // The kernel says EINVAL by itself where even the end of the request has no number.
    for (offset, errno) in [(i64::MAX as u64, libc::EINVAL), (i64::MAX as u64 - 1, libc::EINVAL)] {
        assert_eq!(file.write_at(b"xxxx", offset).unwrap_err().raw_os_error(), Some(errno));
    }
    assert_eq!(file.set_len(i64::MAX as u64).unwrap_err().raw_os_error(), Some(libc::EFBIG));
    let end = i64::MAX as u64 - 4096;
    let error = rustix::fs::fallocate(&file, FallocateFlags::empty(), end, 8192).unwrap_err();
    assert_eq!(error, Errno::FBIG);
    file.write_all_at(b"fine", 0).unwrap();
    drop(file);
    mounted.unmount();
}

#[test]
fn holes_are_made_found_and_refused() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&vec![7; 1 << 20]).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 256 << 10, 256 << 10).unwrap();
    assert_eq!(rustix::fs::seek(&file, Seek::Hole(0)).unwrap(), 256 << 10);
    assert_eq!(rustix::fs::seek(&file, Seek::Data(300 << 10)).unwrap(), 512 << 10);
    assert_eq!(rustix::fs::seek(&file, Seek::Data(2 << 20)).unwrap_err(), Errno::NXIO);
    let mut part = vec![1; 100];
    file.read_exact_at(&mut part, 300 << 10).unwrap();
    assert!(part.iter().all(|&byte| byte == 0));
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 3 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3 << 20);
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(&mut part).unwrap();
    assert!(part.iter().all(|&byte| byte == 0));
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(rustix::fs::fallocate(&file, mode, 0, 4096).unwrap_err(), Errno::OPNOTSUPP);
    }
    drop(file);
    mounted.unmount();
}

/// getxattr(2) without room: how much is needed.
fn xattr_len(path: &Path, name: &CStr) -> isize {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: two strings that end with NUL, and no memory to write to.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) }
}

/// listxattr(2) without room.
fn xattr_list_len(path: &Path) -> isize {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends with NUL, and no memory to write to.
    unsafe { libc::listxattr(path.as_ptr(), std::ptr::null_mut(), 0) }
}

#[test]
fn extended_attributes_tell_how_long_they_are() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    fs::write(&path, "x").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.a", b"12345", XattrFlags::empty()).unwrap();
    assert_eq!(set("user.a", b"1", XattrFlags::CREATE).unwrap_err(), Errno::EXIST);
    assert_eq!(set("user.b", b"1", XattrFlags::REPLACE).unwrap_err(), Errno::NODATA);
    assert_eq!(xattr_len(&path, c"user.a"), 5);
    let mut short = [0; 3];
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut short[..]).unwrap_err(), Errno::RANGE);
    let mut right = [0; 5];
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut right[..]).unwrap(), 5);
    assert_eq!(&right, b"12345");
    let mut names = vec![0; 500];
    let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    assert_eq!(xattr_list_len(&path), len as isize);
    names.truncate(len);
    assert!(names.split(|&byte| byte == 0).any(|name| name == b"user.a"));
    assert_eq!(rustix::fs::listxattr(&path, &mut [0; 2][..]).unwrap_err(), Errno::RANGE);
    let large = vec![b'v'; 3000];
    set("user.large", &large, XattrFlags::empty()).unwrap();
    let mut back = vec![0; 4000];
    assert_eq!(rustix::fs::getxattr(&path, "user.large", &mut back[..]).unwrap(), 3000);
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut right[..]).unwrap_err(), Errno::NODATA);
    mounted.unmount();
}

#[test]
fn renames_replace_refuse_and_exchange() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (a, b) = (mounted.path().join("a"), mounted.path().join("b"));
    fs::write(&a, "A").unwrap();
    fs::write(&b, "B").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE).unwrap_err(), Errno::EXIST);
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((common::text(&a), common::text(&b)), ("B".to_owned(), "A".to_owned()));
    let open = File::open(&b).unwrap();
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(common::text(&b), "B");
    assert!(!a.exists());
    let mut old = String::new();
    (&open).read_to_string(&mut old).unwrap();
    assert_eq!(old, "A", "an open file outlives its replacement");
    drop(open);
    mounted.unmount();
}

#[test]
fn ranges_are_copied_between_files() {
    let Some(mounted) = Setup::default().mount() else { return };
    let content: Vec<u8> = (0..2_000_000u32).map(|n| (n % 253) as u8).collect();
    fs::write(mounted.path().join("from"), &content).unwrap();
    let from = File::open(mounted.path().join("from")).unwrap();
    let to = File::options().read(true).write(true).create_new(true).open(mounted.path().join("to")).unwrap();
    let (mut from_at, mut to_at) = (1000u64, 500u64);
    let mut left = 1_500_000;
    while left > 0 {
        let n = rustix::fs::copy_file_range(&from, Some(&mut from_at), &to, Some(&mut to_at), left).unwrap();
        assert!(n > 0);
        left -= n;
    }
    let copied = fs::read(mounted.path().join("to")).unwrap();
    assert_eq!(copied.len(), 1_500_500);
    assert_eq!(copied[500..], content[1000..1_501_000]);
    drop((from, to));
    mounted.unmount();
}

#[test]
fn creation_takes_the_umask_and_the_callers_ids() {
    let Some(mounted) = Setup::default().mount() else { return };
    fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(mounted.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "umask 027; : > file; mkdir dir; mkfifo fifo; ln -s x link"]);
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
    assert!(command.current_dir(mounted.path()).status().unwrap().success());
    let look = |name: &str| fs::symlink_metadata(mounted.path().join(name)).unwrap();
    assert_eq!(look("file").mode(), libc::S_IFREG | 0o640);
    assert_eq!(look("dir").mode(), libc::S_IFDIR | 0o750);
    assert_eq!(look("fifo").mode(), libc::S_IFIFO | 0o640);
    assert!(look("fifo").file_type().is_fifo());
    for name in ["file", "dir", "fifo", "link"] {
        let owner = if is_root { NOBODY } else { rustix::process::geteuid().as_raw() };
        assert_eq!(look(name).uid(), owner, "{name}");
    }
    mounted.unmount();
}

#[test]
fn mapping_client() {
    common::mapping::client();
}

#[test]
fn mapped_writes_are_durable_after_msync() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    fs::write(&path, vec![b'.'; 8192]).unwrap();
    common::mapping::change(&path, true);
    let stored = fs::read(mounted.store_path().join("file")).unwrap();
    assert_eq!((stored[0], stored[1], stored[4096]), (b's', b'.', b's'));
    // Written without msync: there at the last close, in what others read.
    common::mapping::change(&path, false);
    let read = fs::read(&path).unwrap();
    assert_eq!((read[0], read[1], read[4096]), (b'm', b'.', b'm'));
    mounted.unmount();
}

#[test]
fn direct_and_synchronous_writes_work() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    let file = File::options().write(true).create_new(true).custom_flags(libc::O_DSYNC).open(&path).unwrap();
    file.write_all_at(b"durable", 0).unwrap();
    assert_eq!(common::text(&mounted.store_path().join("file")), "durable");
    drop(file);
    let direct = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut back = [0; 7];
    direct.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"durable");
    direct.write_all_at(b"around", 0).unwrap();
    assert_eq!(common::text(&path), "arounde");
    drop(direct);
    mounted.unmount();
}

#[test]
fn concurrent_appends_lose_nothing() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("log");
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut file = File::options().append(true).create(true).open(path).unwrap();
                for n in 0..200 {
                    file.write_all(format!("{writer} {n:04}\n").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let text = common::text(&path);
    assert_eq!(text.len(), 4 * 200 * 7);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 800);
    mounted.unmount();
}

#[test]
fn what_the_kernel_knows_is_not_asked_again() {
    let Some(mounted) = Setup::default().mount() else { return };
    let asked = |op| mounted.view.stats().of(op);
    let missing = mounted.path().join("missing");
    assert!(fs::symlink_metadata(&missing).is_err());
    let look_ups = asked(Opcode::Lookup);
    for _ in 0..10 {
        assert!(fs::symlink_metadata(&missing).is_err());
    }
    assert_eq!(asked(Opcode::Lookup), look_ups, "that there is no such name is remembered");
    fs::write(&missing, "x").unwrap();
    assert_eq!(fs::metadata(&missing).unwrap().len(), 1);
    let (look_ups, attrs) = (asked(Opcode::Lookup), asked(Opcode::GetAttr));
    for _ in 0..10 {
        assert_eq!(fs::metadata(&missing).unwrap().len(), 1);
    }
    assert_eq!((asked(Opcode::Lookup), asked(Opcode::GetAttr)), (look_ups, attrs));
    fs::remove_file(&missing).unwrap();
    assert!(fs::symlink_metadata(&missing).is_err());
    mounted.unmount();
}

#[test]
fn listings_are_remembered_until_the_directory_changes() {
    let Some(mounted) = Setup::default().mount() else { return };
    let list = || {
        let mut names: Vec<_> =
            fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let asked = || {
        let stats = mounted.view.stats();
        stats.of(Opcode::ReadDir) + stats.of(Opcode::ReadDirPlus)
    };
    fs::write(mounted.path().join("a"), "").unwrap();
    assert_eq!(list(), ["a"]);
    let before = asked();
    for _ in 0..5 {
        assert_eq!(list(), ["a"]);
    }
    assert_eq!(asked(), before, "the listing is not remembered");
    fs::write(mounted.path().join("b"), "").unwrap();
    assert_eq!(list(), ["a", "b"]);
    fs::rename(mounted.path().join("a"), mounted.path().join("c")).unwrap();
    assert_eq!(list(), ["b", "c"]);
    fs::remove_file(mounted.path().join("b")).unwrap();
    assert_eq!(list(), ["c"]);
    fs::hard_link(mounted.path().join("c"), mounted.path().join("d")).unwrap();
    assert_eq!(list(), ["c", "d"]);
    fs::create_dir(mounted.path().join("e")).unwrap();
    assert_eq!(list(), ["c", "d", "e"]);
    fs::remove_dir(mounted.path().join("e")).unwrap();
    assert_eq!(list(), ["c", "d"]);
    mounted.unmount();
}

#[test]
fn removed_files_leave_no_nodes_behind() {
    let Some(mounted) = Setup::default().mount() else { return };
    for round in 0..2000 {
        let path = mounted.path().join(format!("f{round}"));
        File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
    }
    eventually("FORGET of removed files", || mounted.volume.status().nodes < 50);
    // No process waits for a RELEASE, and over io_uring it may be overtaken.
    eventually("RELEASE of all files", || mounted.volume.status().open_files == 0);
    mounted.unmount();
}

#[test]
fn an_open_file_outlives_its_name() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path: &Path = &mounted.path().join("file");
    let mut file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    fs::remove_file(path).unwrap();
    file.write_all(b"still here").unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    mounted.unmount();
}

#[test]
fn sizes_of_the_medium_are_told() {
    let Some(mounted) = Setup::default().mount() else { return };
    let sizes = rustix::fs::statvfs(mounted.path()).unwrap();
    assert!(sizes.f_blocks > 0 && sizes.f_bfree <= sizes.f_blocks && sizes.f_namemax >= 255);
    mounted.unmount();
}
