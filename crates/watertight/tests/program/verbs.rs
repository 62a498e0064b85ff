//! `status`, `sync`, `wait`, and the common part of all verbs.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use watertight::host::mountinfo::MountTable;

use crate::rig::{Rig, eventually, run, skipped};

#[test]
fn the_table_of_mounts_has_the_loop_device_or_the_store() {
    for kind in ["fuseblk", "fuse"] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount(&format!("type={kind}"));
        let store = format!("dir:{}", rig.store.display());
        let source = MountTable::read().at(&rig.mnt).unwrap().source.to_string();
        let volume = rig.volume();
        assert_eq!((&volume["mount_type"], &volume["source"]), (&kind.into(), &store.as_str().into()));
        if kind == "fuse" {
            assert_eq!(source, store);
            // A reader of the reason why a raw unmount does not wait learns which option causes it.
            assert_eq!(volume["mount_type_reason"], "`type=fuse` asks for that");
        } else {
            let number = source.strip_prefix("/dev/").unwrap_or(&source);
            assert!(number.starts_with("loop"), "{source}");
            let file = fs::read_to_string(format!("/sys/block/{number}/loop/backing_file")).unwrap();
            // On kernels that send SYNCFS it is memory; on older ones this process serves it.
            let shown = [format!("/memfd:{store} (deleted)"), format!("/{store}")];
            assert!(shown.contains(&file.trim_end().to_owned()), "{file}");
        }
        rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0));
    }
}

/// By the kernel's behaviour at a first one, not by its version; and a mount does not wait for a
/// store that does not answer it.
#[test]
fn whether_syncs_wait_is_told_by_the_mount_and_by_status() {
    for (kind, waits) in [("fuseblk", true), ("fuse", false)] {
        let Some(mut rig) = Rig::mounting() else { return };
        let daemon = rig.mount(&format!("type={kind},dirty_after=1h"));
        assert_eq!(rig.volume()["syncfs"], waits, "{kind}");
        // Only a request shows which process calls.
        assert_eq!(rig.volume()["syncfs_callers"], waits && testing::kernel_sends_syncfs(), "{kind}");
        let said = "sync(2) and syncfs(2) return before the data is durable";
        let status = rig.run(&["status"]).ok();
        assert_eq!(status.stdout.contains(said), !waits, "{kind}: {}", status.stdout);
        if !waits {
            daemon.says(said);
        }
        fs::write(rig.mnt.join("file"), "text").unwrap();
        rustix::fs::syncfs(fs::File::open(&rig.mnt).unwrap()).unwrap();
        let stored = fs::read_to_string(rig.store.join("file")).unwrap_or_default();
        assert_eq!(stored == "text", waits, "{kind}");
        rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0));
    }
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("sync:hang", "");
    assert_eq!(rig.volume()["syncfs"], rig.volume()["mount_type"] == "fuseblk");
    rig.verb("umount", &["--force"]);
    daemon.end();
}

#[test]
fn a_volume_is_mounted_written_synced_and_unmounted() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h,cache=8M,flushers=1");
    fs::write(rig.mnt.join("a"), vec![7; 100_000]).unwrap();

    let volume = rig.volume();
    assert_eq!(volume["state"], "active");
    assert_eq!(volume["mountpoint"], rig.mnt.to_str().unwrap());
    assert_eq!(volume["source"], format!("dir:{}", rig.store.display()));
    assert_eq!(volume["pid"], daemon.pid);
    assert_eq!(volume["mode"], "write-through");
    assert!(["io_uring", "dev-fuse"].contains(&volume["transport"].as_str().unwrap()), "{volume}");
    assert_eq!(volume["dirty_bytes"], 100_000);
    assert_eq!(volume["dirty_files"], 1);
    assert_eq!(volume["cache_bytes_max"], 8 << 20);
    assert_eq!(rig.stored("a").unwrap().len(), 0, "nothing has asked for the data yet");
    // Another program's sync(2) may have it written before this asks.
    let table = || {
        fs::write(rig.mnt.join("a"), vec![7; 100_000]).unwrap();
        rig.run(&["status"]).ok()
    };
    let table = std::iter::repeat_with(table).take(20).find(|table| table.stdout.contains("97.7 KiB"));
    let table = table.expect("other programs' syncs have it written each time");
    for word in ["VOLUME", "active", rig.mnt.to_str().unwrap()] {
        assert!(table.stdout.contains(word), "{word}: {}", table.stdout);
    }
    assert!(!table.stdout.contains('\x1b'), "colours, but not on a terminal");

    // Names, links and attributes are on the store at once, and nothing else is.
    fs::create_dir(rig.mnt.join("dir")).unwrap();
    fs::hard_link(rig.mnt.join("a"), rig.mnt.join("dir/link")).unwrap();
    symlink("a", rig.mnt.join("soft")).unwrap();
    fs::set_permissions(rig.mnt.join("a"), fs::Permissions::from_mode(0o640)).unwrap();
    let names = |dir: &Path| {
        let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut all: Vec<String> = all.collect();
        all.sort();
        all
    };
    assert_eq!(names(&rig.store), ["a", "dir", "soft"]);
    assert_eq!(names(&rig.store.join("dir")), ["link"]);
    assert_eq!(fs::read_link(rig.store.join("soft")).unwrap(), Path::new("a"));
    let stored = fs::metadata(rig.store.join("a")).unwrap();
    assert_eq!((stored.mode() & 0o7777, stored.nlink(), stored.len()), (0o640, 2, 0));
    // No other user can ask.
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&rig.runtime), mode(&rig.socket())), (0o700, 0o600));

    // By mountpoint, by a path inside, by store, by id.
    let id = volume["id"].as_str().unwrap();
    rig.verb("sync", &[]).ok();
    assert_eq!(rig.stored("a").unwrap(), vec![7; 100_000]);
    assert_eq!(rig.volume()["dirty_bytes"], 0);
    for name in [rig.mnt.join("a").to_str().unwrap(), rig.store.to_str().unwrap(), id] {
        fs::write(rig.mnt.join("b"), name).unwrap();
        rig.run(&["sync", name]).ok();
        assert_eq!(rig.stored("b").unwrap(), name.as_bytes());
        if !name.ends_with('a') {
            rig.run(&["status", name]).ok().says(id);
        }
    }

    fs::write(rig.mnt.join("c"), "last").unwrap();
    rig.verb("umount", &[]).ok().says("everything is on dir:");
    assert_eq!(rig.stored("c").unwrap(), b"last");
    assert!(!rig.is_mounted());
    assert_eq!(daemon.end(), Some(0));
    for name in [rig.mnt.to_str().unwrap(), rig.store.to_str().unwrap(), id] {
        rig.run(&["wait", name]).ok().says("everything is on dir:");
    }
    rig.is_quiet();
}

#[test]
fn two_volumes_are_told_apart() {
    let Some(mut rig) = Rig::mounting() else { return };
    let first = rig.mount("");
    let (store, mnt) = (rig.store.clone(), rig.mnt.clone());
    (rig.store, rig.mnt) = (rig.root.join("store2"), rig.root.join("mnt2"));
    fs::create_dir(&rig.store).unwrap();
    fs::create_dir(&rig.mnt).unwrap();
    let second = rig.mount("type=fuse");
    let status = rig.status();
    assert_eq!(status["volumes"].as_array().unwrap().len(), 2, "{status}");
    let note = rig.run(&["status"]).ok();
    assert!(note.stdout.contains("a raw umount2(2) does not wait"), "{}", note.stdout);
    fs::write(mnt.join("x"), "1").unwrap();
    fs::write(rig.mnt.join("x"), "2").unwrap();
    rig.run(&["umount", store.to_str().unwrap()]).ok();
    assert_eq!(first.end(), Some(0));
    assert_eq!(fs::read(store.join("x")).unwrap(), b"1");
    assert_eq!(rig.volume()["pid"], second.pid);
    rig.verb("umount", &[]).ok();
    assert_eq!(rig.stored("x").unwrap(), b"2");
}

#[test]
fn kernel_write_back_keeps_the_same_promise() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:delay=50ms", "mode=kernel-writeback,dirty_after=1h");
    assert_eq!(rig.volume()["mode"], "kernel-writeback");
    if rig.volume()["mount_type"] != "fuseblk" {
        skipped("plain fuse: syncfs does not wait for the pages that it hands over");
        return;
    }
    // Open, so that no close has brought it out of the kernel.
    let mut open = fs::File::create(rig.mnt.join("open")).unwrap();
    open.write_all(&[5; 200_000]).unwrap();
    rig.verb("sync", &[]).ok();
    assert_eq!(rig.stored("open").unwrap(), vec![5; 200_000]);
    open.write_all(&[6; 200_000]).unwrap();
    drop(open);
    fs::write(rig.mnt.join("a"), vec![3; 300_000]).unwrap();
    rig.verb("umount", &[]).ok();
    assert_eq!(rig.stored("a").unwrap(), vec![3; 300_000]);
    assert_eq!(rig.stored("open").unwrap().len(), 400_000);
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn wait_says_what_is_left_and_then_that_it_is_free() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    let out = rig.verb("wait", &["--timeout", "200ms"]).ends(1, "not yet: active, 5 B of 1 file");
    assert!(out.took >= Duration::from_millis(200), "{:?}", out.took);
    let mut command = rig.command(&["wait"]);
    command.arg(&rig.mnt);
    let waiting = std::thread::spawn(move || run(command));
    rig.verb("umount", &[]).ok();
    waiting.join().unwrap().ok().says("free");
    assert_eq!(daemon.end(), Some(0));
}

/// Whether a `fuseblk` mount's loop device is still in use for it.
fn loop_device(rig: &Rig) -> impl Fn() -> bool + use<> {
    // The mount has the device's number.
    let device = fs::metadata(&rig.mnt).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let backing = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
    let is_ours = move || fs::read_to_string(&backing).is_ok_and(|file| file.contains("watertight"));
    let has_loop_device = rig.volume()["mount_type"] == "fuseblk" && Path::new("/sys/dev/block").exists();
    assert_eq!(is_ours(), has_loop_device);
    is_ours
}

/// The loop device belongs to the mount, not to the process: paths to a mount whose process was
/// killed give errors, they do not lead below it.
#[test]
fn the_loop_device_of_a_killed_process_goes_with_the_mount_and_nobody_has_to_look() {
    for flags in [UnmountFlags::empty(), UnmountFlags::DETACH] {
        let Some(mut rig) = Rig::mounting() else { return };
        if !rustix::process::geteuid().is_root() {
            return skipped("only root has a loop device, and may unmount");
        }
        let daemon = rig.mount("");
        let is_ours = loop_device(&rig);
        daemon.kill();
        let error = fs::metadata(rig.mnt.join("not-asked-before")).unwrap_err();
        let error = Errno::from_io_error(&error).unwrap();
        // The last one while the kernel takes the process's io_uring apart.
        assert!([Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED].contains(&error), "{error}");
        rustix::mount::unmount(&rig.mnt, flags).unwrap();
        eventually("the loop device is given back", || !is_ours());
    }
}

#[test]
fn reading_leaves_times_of_access_alone_where_that_is_asked_for() {
    let Some(mut rig) = Rig::mounting() else { return };
    let old = UNIX_EPOCH + Duration::from_secs(1_000_000);
    let file = rig.store.join("file");
    fs::write(&file, "content").unwrap();
    fs::File::open(&file)
        .unwrap()
        .set_times(fs::FileTimes::new().set_accessed(old).set_modified(old))
        .unwrap();
    let daemon = rig.mount("noatime");
    assert_eq!(fs::read(rig.mnt.join("file")).unwrap(), b"content");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(fs::metadata(&file).unwrap().accessed().unwrap(), old);
}

#[test]
fn a_process_that_was_killed_is_told_of_and_cleared_away() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    let file = fs::File::create(rig.mnt.join("synced")).unwrap();
    (&file).write_all(b"safe").unwrap();
    file.sync_all().unwrap();
    drop(file);
    let is_ours = loop_device(&rig);
    daemon.kill();

    let out = rig.run(&["status"]).ok().says("no process serves it any more");
    assert!(out.stdout.contains("died"), "{}", out.stdout);
    rig.verb("wait", &[]).ends(1, "died");
    // Mounting over the dead mount is refused with the way out.
    // A busy host may take longer than the check waits.
    eventually("it is refused with the way out", || {
        let mut command = rig.command(&["mount"]);
        command.arg(&rig.store).arg(&rig.mnt);
        run(command).ends(2, "").stderr.contains("its server is gone: `watertight umount")
    });
    rig.verb("umount", &[]).ends(1, "died");
    assert!(!rig.is_mounted());
    eventually("the loop device is given back", || !is_ours());
    assert_eq!(rig.stored("synced").unwrap(), b"safe");

    let again = rig.mount("");
    assert_eq!(fs::read(rig.mnt.join("synced")).unwrap(), b"safe");
    assert!(rig.status()["ended"].as_array().unwrap().is_empty(), "the new mount supersedes the dead one");
    rig.verb("umount", &[]).ok();
    assert_eq!(again.end(), Some(0));
}

#[test]
fn wait_sees_a_store_that_another_registry_holds() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let mut command = rig.command(&["wait"]);
    command.arg(&rig.store).env("WATERTIGHT_RUNTIME_DIR", rig.root.join("elsewhere"));
    let out = run(command).ends(1, "in use as a store");
    assert!(out.stderr.contains(&format!("pid {}", daemon.pid)), "{}", out.stderr);
}

#[test]
fn a_store_that_does_not_answer_is_called_stalled() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:hang", "dirty_after=10ms,stall_after=200ms");
    assert_eq!(rig.volume()["state"], "active");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    rig.is_stalled_in("write");
    rig.run(&["status"]).ok().says("stalled: the store has not answered `write` for ");
    // The log names the call that was late first, which may be another one.
    daemon.says("is stalled: the store has not answered `");
    assert!(rig.volume()["stalls"].as_u64() > Some(0), "it is counted");
    // Requests that need no store go on.
    assert_eq!(fs::read(rig.mnt.join("a")).unwrap(), b"12345");
    rig.verb("umount", &["--force"]).ends(1, "5 bytes");
    assert_eq!(daemon.end(), Some(1));
}

#[test]
fn write_back_errors_are_shown() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:fail=ENOSPC", "dirty_after=10ms,drain_timeout=1s");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    eventually("the error is in status", || rig.volume()["errors"].as_array().is_some_and(|e| e.len() == 1));
    let error = rig.volume()["errors"][0].clone();
    assert_eq!((&error["file"], &error["bytes"]), (&"a".into(), &5.into()));
    assert_eq!(error["error"], "no space left on the store");
    rig.run(&["status"]).ok().says("could not be written: no space left");
    rig.verb("sync", &[]).ends(1, "not everything is durable");
    daemon.says("write-back failed");
    rig.verb("umount", &["--force"]).ends(1, "5 bytes");
    assert_eq!(daemon.end(), Some(1));
}

#[test]
fn help_has_examples() {
    let rig = Rig::new();
    for verb in ["mount", "umount", "sync", "status", "wait", "demo", "bench", "man-pages", "completions"] {
        let out = rig.run(&[verb, "--help"]).ok();
        assert!(out.stdout.contains("Example"), "{verb}: {}", out.stdout);
        assert!(out.stdout.contains(&format!("watertight {verb}")), "{verb}: {}", out.stdout);
    }
    rig.run(&["mount", "--help"]).ok().says("drain_timeout=TIME");
}

#[test]
fn nothing_but_the_program_is_needed() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_source("mem:size=16M", "");
    assert!(Command::new("cp").arg("/proc/self/status").arg(rig.mnt.join("s")).status().unwrap().success());
    assert!(fs::read_to_string(rig.mnt.join("s")).unwrap().contains("VmRSS"));
    rig.verb("umount", &[]).ok().says("everything is on mem:");
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn where_asked_a_close_writes_and_reports() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("flush_on_close,dirty_after=1h");
    fs::write(rig.mnt.join("a"), "here").unwrap();
    assert_eq!(rig.stored("a").unwrap(), b"here");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));

    let daemon = rig.mount_faulty("write:fail=ENOSPC", "flush_on_close,dirty_after=1h,drain_timeout=1s");
    let source = rig.root.join("source");
    fs::write(&source, "text").unwrap();
    let mut copy = Command::new("cp");
    copy.arg(&source).arg(rig.mnt.join("b"));
    run(copy).ends(1, "No space left on device");
    rig.verb("umount", &["--force"]).ends(1, "not written");
    assert_eq!(daemon.end(), Some(1));
}

#[test]
fn status_of_a_path_in_a_volume_is_that_of_the_volume() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let at = |path: &str| rig.mnt.join(path).to_str().unwrap().to_owned();
    fs::create_dir_all(rig.mnt.join("in/x")).unwrap();
    fs::write(rig.mnt.join("file"), "x").unwrap();
    rig.run(&["attach", "mem:", &at("in/x")]).ok();
    fs::create_dir(rig.mnt.join("in/x/deep")).unwrap();
    for (path, volume) in [("file", ""), ("in", ""), ("in/x/deep", "in/x"), ("in/x/none", "in/x")] {
        let told = rig.run(&["status", &at(path)]).ok();
        let shown = at(volume);
        let shown = shown.trim_end_matches('/');
        let first = told.stdout.lines().next().unwrap();
        assert!(first.starts_with(&format!("{} is inside volume ", at(path))), "{told:?}");
        assert!(first.ends_with(&format!(", {shown}")), "{told:?}");
        let report = rig.run(&["status", "--json", &at(path)]).ok().stdout;
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let volumes: Vec<_> =
            report["volumes"].as_array().unwrap().iter().map(|v| &v["mountpoint"]).collect();
        assert_eq!(volumes, [shown]);
    }
    // The mountpoint itself, and a path in no volume.
    assert!(!rig.run(&["status", &at("in/x")]).ok().stdout.contains("is inside volume"));
    rig.run(&["status", rig.root.to_str().unwrap()]).ends(2, "is neither a volume nor inside one");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_volume_of_another_runtime_directory_is_not_called_dead() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("type=fuseblk");
    fs::write(rig.mnt.join("a"), "a").unwrap();
    let elsewhere = |verb: &str| {
        let mut command = rig.command(&[verb]);
        command.arg(&rig.mnt).env("WATERTIGHT_RUNTIME_DIR", rig.root.join("other"));
        run(command)
    };
    let out = elsewhere("wait").ends(1, "without a record in this user's runtime directory");
    assert!(!out.stderr.contains("died") && !out.stderr.contains("gone"), "{out:?}");
    let mut command = rig.command(&["status", "--json"]);
    command.env("WATERTIGHT_RUNTIME_DIR", rig.root.join("other"));
    let status: serde_json::Value = serde_json::from_str(&run(command).ok().stdout).unwrap();
    assert!(status["unknown"].as_u64().unwrap() >= 1, "{status}");
    let out = elsewhere("umount").ends(1, "has no record in this user's runtime directory");
    assert!(!out.stderr.contains("died"), "{out:?}");
    // An unmount of this kind waits for the data, whichever program asks for it.
    assert_eq!(rig.stored("a").unwrap(), b"a");
    assert_eq!(daemon.end(), Some(0));
}
