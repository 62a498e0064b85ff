//! The set-id bits and the capabilities of a file go when its data is changed, and the kernel knows
//! it before the call returns: over both transports, in both modes.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Mounted, Setup, skipped};
use rustix::fs::{AtFlags, FallocateFlags, Mode as Bits, OFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use watertight_fuse::{Mode, SessionOptions, Uring};

const NOBODY: u32 = 65534;
const OP: &str = "WATERTIGHT_TEST_OP";
const FILE: &str = "WATERTIGHT_TEST_FILE";
const CAPABILITY: &str = "security.capability";

/// A byte of a program that means nothing.
const UNUSED: u64 = 9;

/// Everything that changes data.
const OPS: [&str; 13] = [
    "write",
    "direct write",
    "mapped write",
    "truncate",
    "ftruncate",
    "open with O_TRUNC",
    "allocate",
    "allocate, keep size",
    "punch hole",
    "zero range",
    "zero range, keep size",
    "copy_file_range",
    "write by a second descriptor",
];

/// Not a test of its own: the work of another process.
#[test]
fn child() {
    let (Ok(op), Some(path)) = (std::env::var(OP), std::env::var_os(FILE)) else { return };
    let path = PathBuf::from(path);
    let watched = rustix::fs::open(&path, OFlags::PATH, Bits::empty()).unwrap();
    let mode = |how: AtFlags| {
        let stat = rustix::fs::statx(&watched, "", AtFlags::EMPTY_PATH | how, StatxFlags::MODE).unwrap();
        stat.stx_mode & 0o7777
    };
    perform(&op, &path);
    // First what the kernel has, then what it says.
    println!("\nsaid: {:o} {:o}", mode(AtFlags::STATX_DONT_SYNC), mode(AtFlags::empty()));
}

fn perform(op: &str, path: &Path) {
    let open = || File::options().read(true).write(true).open(path).unwrap();
    let allocate = |flags| rustix::fs::fallocate(open(), flags, 4096, 16384).unwrap();
    match op {
        "write" => open().write_all_at(b"x", UNUSED).unwrap(),
        "write by a second descriptor" => {
            let _first = open();
            open().write_all_at(b"x", UNUSED).unwrap();
        }
        "direct write" => {
            let direct = libc::O_DIRECT;
            let file = File::options().write(true).custom_flags(direct).open(path).unwrap();
            file.write_all_at(&[7; 4096], 0).unwrap();
        }
        "mapped write" => map(&open()),
        "truncate" => {
            let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: a string that ends with NUL and lives through the call.
            assert_eq!(unsafe { libc::truncate(path.as_ptr(), 5) }, 0);
        }
        "ftruncate" => open().set_len(20_000).unwrap(),
        "open with O_TRUNC" => drop(File::create(path).unwrap()),
        "allocate" => allocate(FallocateFlags::empty()),
        "allocate, keep size" => allocate(FallocateFlags::KEEP_SIZE),
        "punch hole" => allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
        "zero range" => allocate(FallocateFlags::ZERO_RANGE),
        "zero range, keep size" => allocate(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
        "copy_file_range" => {
            let source = File::open(path.with_file_name("source")).unwrap();
            let copied = rustix::fs::copy_file_range(&source, None, open(), None, 4096).unwrap();
            assert_eq!(copied, 4096);
        }
        other => panic!("{other}"),
    }
}

/// Changes a byte through a mapping.
fn map(file: &File) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping of a file of this length at an address of the kernel's choice, which
    // ends below.
    unsafe {
        let start = mmap(std::ptr::null_mut(), 4096, read_write, shared, file.as_fd(), 0).unwrap();
        start.cast::<u8>().add(usize::try_from(UNUSED).unwrap()).write(b'x');
        msync(start, 4096, MsyncFlags::SYNC).unwrap();
        munmap(start, 4096).unwrap();
    }
}

/// A program of this test's that every user can start, and its output as the user `uid`.
fn act(mounted: &Mounted, uid: u32, op: &str) -> String {
    let program = mounted.dir.path().join("program");
    if !program.exists() {
        // Copied by another process: a child that this one starts meanwhile has all that is open
        // here.
        let mut copy = Command::new("cp");
        copy.arg(std::env::current_exe().unwrap()).arg(&program);
        assert!(copy.status().unwrap().success());
    }
    let mut command = Command::new(program);
    command.args(["--exact", "child", "--nocapture"]).current_dir("/").uid(uid).gid(uid);
    let output = command.env(OP, op).env(FILE, mounted.path().join("file")).output().unwrap();
    assert!(output.status.success(), "{op}: {output:?}");
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().find_map(|line| line.strip_prefix("said: ")).unwrap().to_owned()
}

/// Each transport in each mode; nothing where this host does not let us.
fn mounts() -> Vec<(Mounted, String)> {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can act as somebody else");
        return Vec::new();
    }
    let transports = [Uring::Off, common::uring()];
    let all = transports.into_iter().flat_map(|uring| {
        [Mode::WriteThrough, Mode::KernelWriteback].into_iter().filter_map(move |mode| {
            let session = SessionOptions { mode, ..SessionOptions::default() };
            let mounted = Setup { session, uring, ..Setup::default() }.mount()?;
            fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o777)).unwrap();
            fs::set_permissions(mounted.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            Some((mounted, format!("{uring:?} {mode:?}")))
        })
    });
    all.collect()
}

/// A file with both bits and a capability, which every process has seen.
fn privileged(mounted: &Mounted) -> PathBuf {
    let path = mounted.path().join("file");
    fs::write(mounted.path().join("source"), [3; 4096]).unwrap();
    fs::write(&path, [1; 12288]).unwrap();
    // An effective set with CAP_NET_RAW, revision 2.
    let caps: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(&path, CAPABILITY, &caps, XattrFlags::empty()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
    assert!(has_capability(&path));
    path
}

fn has_capability(path: &Path) -> bool {
    match rustix::fs::getxattr(path, CAPABILITY, &mut [0; 64][..]) {
        Ok(_) => true,
        Err(Errno::NODATA) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_change_of_data_by_others_takes_set_id_bits_and_capabilities_away() {
    let mut kept = Vec::new();
    for (mounted, how) in mounts() {
        for op in OPS {
            let path = privileged(&mounted);
            let said = act(&mounted, NOBODY, op);
            let stored = mounted.store_path().join("file");
            let mode = fs::metadata(&stored).unwrap().mode() & 0o7777;
            let caps = (has_capability(&path), has_capability(&stored));
            let (cached, now) = said.split_once(' ').unwrap();
            // The kernel announces every change but that of a mapping. What it has cached then is
            // not believed by any code that asks.
            let is_stale = now != "777" || cached != "777" && op != "mapped write";
            if is_stale || (mode, caps) != (0o777, (false, false)) {
                kept.push(format!("{how}: {op}: kernel {said}, store {mode:o}, capability {caps:?}"));
            }
            fs::remove_file(&path).unwrap();
        }
        mounted.unmount();
    }
    assert!(kept.is_empty(), "\n{}", kept.join("\n"));
}

#[test]
fn changes_by_root_keep_the_set_id_bits_and_no_capability() {
    let mut wrong = Vec::new();
    for (mounted, how) in mounts() {
        for op in OPS {
            let path = privileged(&mounted);
            let said = act(&mounted, 0, op);
            let stored = mounted.store_path().join("file");
            let mode = fs::metadata(&stored).unwrap().mode() & 0o7777;
            let caps = (has_capability(&path), has_capability(&stored));
            // Linux lets a mapping keep them, on any file system, until the host's is written.
            let has_to = op != "mapped write" && caps != (false, false);
            if (said.as_str(), mode) != ("6777 6777", 0o6777) || has_to {
                wrong.push(format!("{how}: {op}: kernel {said}, store {mode:o}, capability {caps:?}"));
            }
            fs::remove_file(&path).unwrap();
        }
        mounted.unmount();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_change_of_owner_takes_both_away_also_by_root() {
    for (mounted, how) in mounts() {
        let path = privileged(&mounted);
        std::os::unix::fs::chown(&path, Some(1), Some(1)).unwrap();
        let stored = mounted.store_path().join("file");
        for path in [&path, &stored] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o777, "{how}");
            assert!(!has_capability(path), "{how}");
        }
        mounted.unmount();
    }
}

#[test]
fn a_program_that_somebody_changed_runs_as_who_starts_it() {
    let Some(id) = ["/usr/bin/id", "/bin/id"].iter().find(|path| Path::new(path).exists()) else {
        return skipped("no id(1)");
    };
    for (mounted, how) in mounts() {
        let path = mounted.path().join("file");
        let run = || {
            let output = Command::new(&path).arg("-u").uid(NOBODY).gid(NOBODY).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        for n in 0..20 {
            assert!(Command::new("cp").arg(id).arg(&path).status().unwrap().success());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
            assert_eq!(run(), "0\n", "{how}: before it is changed");
            let op = ["write", "mapped write"][n % 2];
            act(&mounted, NOBODY, op);
            assert_eq!(run(), "65534\n", "{how}: {op}");
            fs::remove_file(&path).unwrap();
        }
        mounted.unmount();
    }
}

/// Data that was written before goes to the store before: the host takes the capability from a file
/// that is written.
#[test]
fn a_capability_outlives_the_data_from_before_it() {
    for (mounted, how) in mounts().into_iter().filter(|(_, how)| how.contains("WriteThrough")) {
        let path = privileged(&mounted);
        File::open(&path).unwrap().sync_all().unwrap();
        assert!(has_capability(&path) && has_capability(&mounted.store_path().join("file")), "{how}");
        mounted.unmount();
    }
}

/// Bits that are set after a file was once found without any go at the next write, too.
#[test]
fn bits_that_are_set_later_go_as_well() {
    for (mounted, how) in mounts() {
        let path = privileged(&mounted);
        for op in ["write", "copy_file_range", "write", "allocate"] {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
            assert_eq!(act(&mounted, NOBODY, op), "777 777", "{how}: {op}");
            // Set-group-id without execution by the group is no privilege.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o2767)).unwrap();
            act(&mounted, NOBODY, "mapped write");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o2767, "{how}");
        }
        mounted.unmount();
    }
}
