//! Each mistake has a message and an exit code of its own: 2 for a wrong request, 1 for a failure.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use rustix::mount::{MountFlags, mount_bind, mount_remount};

use crate::rig::{LONG, PROGRAM, Rig, has, run, unshare};

fn mount(rig: &Rig, source: &str, mountpoint: &Path, options: &str) -> crate::rig::Out {
    let mut command = rig.command(&["mount", source]);
    command.arg(mountpoint);
    if !options.is_empty() {
        command.args(["-o", options]);
    }
    run(command)
}

#[test]
fn sources_that_cannot_be() {
    let rig = Rig::new();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let file = rig.root.join("file");
    fs::write(&file, "").unwrap();
    let missing = text(&rig.root.join("missing"));
    mount(&rig, &missing, &rig.mnt, "").ends(2, &format!("source {missing} does not exist"));
    mount(&rig, &format!("dir:{missing}"), &rig.mnt, "").ends(2, "does not exist");
    mount(&rig, &text(&file), &rig.mnt, "").ends(2, "is not a directory");
    mount(&rig, &text(&file.join("x")), &rig.mnt, "").ends(2, "a part of the path is not a directory");
    mount(&rig, "s3:bucket", &rig.mnt, "").ends(2, "no store is called `s3:`");
    mount(&rig, "mem:lots", &rig.mnt, "").ends(2, "mem:size=1G");
    mount(&rig, "mem:size=10", &rig.mnt, "").ends(2, "10 bytes are too few");
    mount(&rig, "fault:wirte:hang,mem:", &rig.mnt, "").ends(2, "wirte");
    mount(&rig, "", &rig.mnt, "").ends(2, "the source is empty");
}

#[test]
fn mountpoints_that_cannot_be() {
    let rig = Rig::new();
    let store = rig.store.to_str().unwrap();
    let full = rig.root.join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("entry"), "").unwrap();
    mount(&rig, store, &rig.root.join("missing"), "")
        .ends(2, "does not exist: make an empty directory first");
    mount(&rig, store, &full.join("entry"), "").ends(2, "is not a directory");
    mount(&rig, store, &full, "").ends(2, "is not empty: it has entry");
    mount(&rig, store, Path::new("/proc"), "").ends(2, "mounted on /proc already: proc (proc)");
    let inside = rig.store.join("inside");
    fs::create_dir(&inside).unwrap();
    mount(&rig, store, &inside, "").ends(2, "lies inside the source");
    mount(&rig, inside.to_str().unwrap(), &inside, "").ends(2, "are the same directory");
    // By another name.
    let link = rig.root.join("link");
    symlink(&rig.store, &link).unwrap();
    mount(&rig, link.to_str().unwrap(), &inside, "").ends(2, "lies inside the source");
    let empty = rig.root.join("empty");
    fs::create_dir(&empty).unwrap();
    // A mountpoint is empty, so a source inside it can only be seen through a mount.
    if rustix::process::geteuid().is_root() {
        fs::create_dir(empty.join("sub")).unwrap();
        let sub = empty.join("sub");
        mount(&rig, sub.to_str().unwrap(), &empty, "").ends(2, "is not empty: it has sub");
    }
}

#[test]
fn options_that_do_not_exist() {
    let rig = Rig::new();
    let store = rig.store.to_str().unwrap();
    let out = mount(&rig, store, &rig.mnt, "ro,frobnicate").ends(2, "there is no mount option frobnicate");
    for (option, _) in watertight::cli::opts::VALID {
        assert!(out.stderr.contains(option), "{option} is not listed: {}", out.stderr);
    }
    mount(&rig, store, &rig.mnt, "cache=1K").ends(2, "at least 4M");
    mount(&rig, store, &rig.mnt, "type=nfs").ends(2, "auto, fuseblk or fuse");
    rig.run(&["mount", store]).ends(2, "MOUNTPOINT");
    rig.run(&["mount", store, "/x", "--log-file", "/y"]).ends(2, "--daemon");
    rig.run(&["--log-level", "loud=loud", "status"]).ends(2, "--log-level loud=loud");
    rig.run(&["--log-level", "warning", "status"]).ends(2, "`warning` is not a level");
}

#[test]
fn verbs_that_do_not_exist() {
    let rig = Rig::new();
    rig.run::<&str>(&[]).ends(2, "Usage");
    rig.run(&["frobnicate"]).ends(2, "frobnicate");
    let out = rig.run(&["limit", "/x", "/mnt"]).ends(2, "limit CGROUP VOLUME");
    assert_eq!(out.stderr.lines().count(), 1, "{}", out.stderr);
    assert_eq!(out.stdout, "");
}

#[test]
fn paths_that_are_no_volumes() {
    let rig = Rig::new();
    let dir = rig.store.to_str().unwrap();
    let missing = rig.root.join("missing");
    let missing = missing.to_str().unwrap();
    rig.run(&["umount", dir]).ends(2, "is not a mountpoint");
    rig.run(&["umount", missing]).ends(2, "neither a path nor a volume's id");
    rig.run(&["umount", "/proc"]).ends(2, "is a mountpoint of type proc, not of a Watertight volume");
    rig.run(&["umount", "--lazy", "--force", dir]).ends(2, "cannot be used with");
    rig.run(&["sync", dir]).ends(2, "is not inside a mounted Watertight volume");
    rig.run(&["status", dir]).ends(2, "is neither a volume nor inside one");
    rig.run(&["wait", missing]).ends(2, "there is no volume");
    rig.run(&["wait", "deadbeef"]).ends(2, "there is no volume deadbeef");
    rig.run(&["wait", dir, "--timeout", "soon"]).ends(2, "is not a duration");
    rig.run(&["wait", dir, "--timeout", "-1"]).ends(2, "`-1` is not a duration");
    rig.run(&["wait", dir]).ok().says("free");
    rig.is_quiet();
}

#[test]
fn a_store_in_use_names_its_holder() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let other = rig.root.join("other");
    fs::create_dir(&other).unwrap();
    let out = mount(&rig, rig.store.to_str().unwrap(), &other, "").ends(1, "is in use");
    for part in [format!("pid {}", daemon.pid), "watertight mount".to_owned(), rig.mnt.display().to_string()]
    {
        assert!(out.stderr.contains(&part), "no {part} in {}", out.stderr);
    }
    // Another mount at the same place is refused, too.
    let store = rig.root.join("store2");
    fs::create_dir(&store).unwrap();
    mount(&rig, store.to_str().unwrap(), &rig.mnt, "").ends(2, "fuseblk.watertight");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn stores_inside_each_other_are_refused() {
    let Some(mut rig) = Rig::mounting() else { return };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (inside, other) = (rig.store.join("inside"), rig.root.join("other"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&other).unwrap();
    let daemon = rig.mount("");
    let out = mount(&rig, &text(&inside), &other, "").ends(1, "lies inside");
    for part in [text(&rig.store), text(&rig.mnt)] {
        assert!(out.stderr.contains(&part), "no {part} in {}", out.stderr);
    }
    // By another name, in a store around it, and from outside.
    let link = rig.root.join("link");
    symlink(&inside, &link).unwrap();
    mount(&rig, &text(&link), &other, "").ends(1, "lies inside");
    mount(&rig, &format!("fault:,dir:{}", text(&inside)), &other, "").ends(1, "lies inside");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));

    // A volume that was unmounted is in no other's way.
    let daemon = rig.mount_source(&text(&inside), "");
    mount(&rig, &text(&rig.store), &other, "").ends(1, "contains");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_runtime_directory_of_somebody_else_is_not_used() {
    let rig = Rig::new();
    fs::create_dir(&rig.runtime).unwrap();
    fs::set_permissions(&rig.runtime, Permissions::from_mode(0o777)).unwrap();
    mount(&rig, "mem:", &rig.mnt, "").ends(1, "its mode should be 0700");
    assert!(!rig.is_mounted());
}

#[test]
fn a_read_only_store_is_mounted_read_only_or_refused() {
    let Some(mut rig) = Rig::mounting() else { return };
    fs::write(rig.store.join("old"), "old").unwrap();
    let frozen = rig.root.join("frozen");
    fs::create_dir(&frozen).unwrap();
    mount_bind(&rig.store, &frozen).unwrap();
    mount_remount(&frozen, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    let source = frozen.to_str().unwrap();

    mount(&rig, source, &rig.mnt, "rw").ends(1, "is read-only, and rw was asked for");
    assert!(!rig.is_mounted());

    let daemon = rig.mount_source(source, "");
    daemon.says("is read-only: it is mounted read-only");
    assert_eq!(fs::read_to_string(rig.mnt.join("old")).unwrap(), "old");
    let refused = fs::write(rig.mnt.join("new"), "new").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(rig.volume()["read_only"], true);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn read_only_can_be_asked_for() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("ro");
    let refused = fs::write(rig.mnt.join("new"), "new").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

/// Runs a shell script in a mount namespace of its own.
fn in_namespace(rig: &Rig, script: &str) -> crate::rig::Out {
    let (_alone, mut command) = unshare();
    command.args(["--mount", "sh", "-ec", script]);
    command
        .env("WATERTIGHT_RUNTIME_DIR", &rig.runtime)
        .env("P", PROGRAM)
        .env("S", &rig.store)
        .env("M", &rig.mnt);
    run(command)
}

#[test]
fn a_host_without_fuse() {
    let Some(rig) = Rig::mounting().filter(|_| has("unshare")) else { return };
    let out = in_namespace(&rig, "mount -t tmpfs none /dev; exec \"$P\" mount \"$S\" \"$M\"");
    out.ends(1, "/dev/fuse does not exist").ends(1, "modprobe fuse");
}

#[test]
fn root_without_the_right_to_mount() {
    let Some(rig) = Rig::mounting().filter(|_| has("setpriv")) else { return };
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", PROGRAM, "mount"]);
    command.arg(&rig.store).arg(&rig.mnt).env("WATERTIGHT_RUNTIME_DIR", &rig.runtime);
    run(command).ends(1, "no permission to mount");
    assert!(!rig.is_mounted());
    // Each failure left the store free, and no record behind.
    rig.is_quiet();
}

#[test]
fn a_store_that_is_left_alone_after_a_failed_mount() {
    let Some(mut rig) = Rig::mounting() else { return };
    mount(&rig, rig.store.to_str().unwrap(), &rig.mnt, "type=fuseblk,cache=4M,rw,ro,frob").ends(2, "frob");
    let daemon = rig.mount("");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
    assert!(daemon.line(LONG).is_none());
}
