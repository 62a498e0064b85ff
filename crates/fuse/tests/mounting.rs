//! Options of a mount, and what prevents one.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use common::{Setup, skipped};
use rustix::mount::MountFlags;
use watertight_fuse::mount::Wanted;
use watertight_fuse::{Mode, Mount, MountError, MountOptions, SessionOptions};

const TASK: &str = "WATERTIGHT_MOUNT_TEST";

#[test]
fn flags_reach_the_kernel() {
    for wanted in [Wanted::Fuse, Wanted::FuseBlk] {
        let flags = MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NOSUID;
        let Some(mounted) = (Setup { wanted, flags, ..Setup::default() }).mount() else { return };
        fs::write(mounted.store_path().join("file"), "x").unwrap();
        let error = fs::write(mounted.path().join("file"), "y").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{wanted:?}");
        assert_eq!(common::text(&mounted.path().join("file")), "x");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let path = mounted.path().canonicalize().unwrap();
        let line = mounts.lines().find(|line| line.contains(path.to_str().unwrap())).unwrap();
        for word in ["ro,", "nosuid", "noexec", ".watertight", "default_permissions", "allow_other"] {
            assert!(line.contains(word), "no {word} in {line}");
        }
        mounted.unmount();
    }
}

#[test]
fn reading_ahead_is_raised() {
    for wanted in [Wanted::Fuse, Wanted::FuseBlk] {
        let Some(mounted) = (Setup { wanted, ..Setup::default() }).mount() else { return };
        let found = fs::read_dir("/sys/class/bdi").unwrap().any(|bdi| {
            let bdi = bdi.unwrap();
            let name = bdi.file_name().into_string().unwrap();
            let of_mount = match wanted {
                Wanted::Fuse => name == mounted.device,
                _ => name == format!("{}-fuseblk", mounted.device),
            };
            of_mount && fs::read_to_string(bdi.path().join("read_ahead_kb")).unwrap().trim() == "1024"
        });
        assert!(found, "{wanted:?} {}", mounted.device);
        mounted.unmount();
    }
}

#[test]
fn a_mountpoint_is_used_once() {
    let Some(mounted) = Setup::default().mount() else { return };
    let error = Mount::new(&MountOptions::new(mounted.path())).unwrap_err();
    assert!(error.to_string().contains("something is mounted on"), "{error}");
    mounted.unmount();
}

/// Not a test of its own: the work of a process without privileges.
#[test]
fn child() {
    let Ok(at) = std::env::var(TASK) else { return };
    let mut options = MountOptions::new(at);
    options.wanted = match std::env::var("WANTED").as_deref() {
        Ok("fuseblk") => Wanted::FuseBlk,
        _ => Wanted::Auto,
    };
    match Mount::new(&options) {
        Ok(mount) => println!("\nsaid: mounted {:?}", mount.kind()),
        Err(error) => println!("\nsaid: {error}"),
    }
}

fn as_nobody(path: Option<&str>, wanted: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can start a process as somebody else");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // The test program may lie where only its owner can reach it.
    let program = dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "child", "--nocapture"]).current_dir("/").uid(65534).gid(65534);
    command.env(TASK, &at).env("WANTED", wanted);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    Some(output.lines().find_map(|line| line.strip_prefix("said: ")).unwrap().to_owned())
}

#[test]
fn without_root_and_fusermount_it_says_what_is_missing() {
    let Some(said) = as_nobody(Some("/nonexistent"), "auto") else { return };
    assert_eq!(said, MountError::NoFusermount.to_string());
    let Some(said) = as_nobody(None, "fuseblk") else { return };
    assert!(said.contains("fuseblk") && said.contains("needs root"), "{said}");
}

#[test]
fn kernel_write_back_keeps_what_is_written() {
    let session = SessionOptions { mode: Mode::KernelWriteback, ..SessionOptions::default() };
    let Some(mounted) = (Setup { session, ..Setup::default() }).mount() else { return };
    let path = mounted.path().join("file");
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 241) as u8).collect();
    fs::write(&path, &content).unwrap();
    // A page that is written in part is filled through a handle that may not read.
    let file = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"part", 1_000_001).unwrap();
    file.set_len(2_500_000).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    file.set_modified(time).unwrap();
    drop(file);
    let mut expected = content;
    expected.truncate(2_500_000);
    expected[1_000_001..1_000_005].copy_from_slice(b"part");
    assert!(fs::read(&path).unwrap() == expected);
    let mut mounted = mounted;
    common::umount(&mounted.path());
    mounted.ended();
    mounted.volume.shutdown();
    assert!(fs::read(mounted.store_path().join("file")).unwrap() == expected);
    let stored = fs::metadata(mounted.store_path().join("file")).unwrap();
    assert_eq!(stored.modified().unwrap(), time);
}
