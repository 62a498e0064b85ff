//! Set-id programs and devices of a store: they count on this host only where an option asks for
//! that.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::json;

use crate::rig::{Rig, has, run, skipped};

const NOBODY: u32 = 65534;

/// Puts a set-user-id id(1) of root's and a device that is always empty into a directory.
fn fill(dir: &Path) {
    let id = crate::rig::tool("id").unwrap();
    // By another process: one that this one starts meanwhile has all that is open here.
    assert!(Command::new("cp").arg(id).arg(dir.join("id")).status().unwrap().success());
    fs::set_permissions(dir.join("id"), fs::Permissions::from_mode(0o4755)).unwrap();
    let device = Mode::from_raw_mode(0o666);
    mknodat(CWD, dir.join("null"), FileType::CharacterDevice, device, makedev(1, 3)).unwrap();
}

/// Whether the program runs as root for another user, and whether the device opens.
fn count(dir: &Path) -> (bool, bool) {
    let mut command = Command::new(dir.join("id"));
    command.arg("-u").uid(NOBODY).gid(NOBODY);
    let out = run(command);
    assert_eq!(out.code, Some(0), "{}", out.stderr);
    (out.stdout.trim() == "0", File::open(dir.join("null")).is_ok())
}

fn as_root() -> Option<Rig> {
    let rig = Rig::mounting()?;
    if !rustix::process::geteuid().is_root() || !has("id") {
        skipped("only root can have programs and devices count");
        return None;
    }
    fs::set_permissions(&rig.root, fs::Permissions::from_mode(0o755)).unwrap();
    Some(rig)
}

#[test]
fn set_id_programs_and_devices_count_only_where_that_was_asked_for() {
    for (options, privileges) in [
        ("", &[][..]),
        ("defaults,exec", &[]),
        ("suid,nosuid,dev,nodev", &[]),
        ("suid", &["suid"]),
        ("dev", &["dev"]),
        ("allow_suid,allow_dev", &["suid", "dev"]),
    ] {
        let Some(mut rig) = as_root() else { return };
        fill(&rig.store);
        let daemon = rig.mount(options);
        let has = |name| privileges.contains(&name);
        assert_eq!(count(&rig.mnt), (has("suid"), has("dev")), "{options}");
        let told = rig.volume()["privileges"].clone();
        if privileges.is_empty() {
            assert!(told.is_null(), "{options}: {told}");
        } else {
            assert_eq!(told, json!(privileges), "{options}");
            daemon.says(&format!("mounted with {}: ", privileges.join(",")));
            rig.run(&["status"]).ok().says(&format!(",{}", privileges.join(",")));
        }
        rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0));
    }
}

/// Volumes that are attached, and clones, are parts of a mountpoint that is one for the kernel.
#[test]
fn what_holds_for_a_mountpoint_holds_for_all_that_is_in_it() {
    for (options, counts) in [("", (false, false)), ("suid,dev", (true, true))] {
        let Some(mut rig) = as_root() else { return };
        let daemon = rig.mount(options);
        let (other, second, place) = (rig.root.join("other"), rig.root.join("second"), rig.mnt.join("x"));
        for dir in [&other, &second, &place] {
            fs::create_dir(dir).unwrap();
        }
        fill(&other);
        let run = |verb: &str, from: &Path, to: &Path| {
            let mut command = rig.command(&[verb]);
            command.arg(from).arg(to);
            crate::rig::run(command)
        };
        run("attach", &other, &place).ok();
        assert_eq!(count(&place), counts, "{options}");
        run("clone", &rig.mnt, &second).ok();
        assert_eq!(count(&second.join("x")), counts, "{options}");
        let mut command = rig.command(&["attach", "-o", "suid"]);
        command.arg(&other).arg(&place);
        crate::rig::run(command).ends(2, "is the mountpoint's");
        for path in [&second, &rig.mnt] {
            let mut command = rig.command(&["umount"]);
            command.arg(path);
            crate::rig::run(command).ok();
        }
        assert_eq!(daemon.end(), Some(0));
    }
}
