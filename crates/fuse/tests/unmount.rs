//! umount(2) and sync(2) on either type of mount.

mod common;

use std::ffi::CStr;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::hook::{Gate, OpenAtEnd};
use common::{Setup, eventually, skipped};
use rustix::mount::{MountFlags, UnmountFlags};
use watertight_fuse::abi::Opcode;
use watertight_fuse::mount::Wanted;
use watertight_fuse::{EndReason, SessionOptions};

/// A mount whose end is held back at a gate.
fn held_back(wanted: Wanted) -> Option<(common::Mounted, Arc<Gate>)> {
    let gate = Arc::new(Gate::default());
    gate.shut();
    let end = Arc::clone(&gate);
    let session = SessionOptions { on_destroy: Box::new(move || end.pass()), ..SessionOptions::default() };
    let mounted = Setup { wanted, session, ..Setup::default() }.mount()?;
    Some((mounted, gate))
}

#[test]
fn umount_of_fuseblk_returns_after_the_drain() {
    let Some((mut mounted, gate)) = held_back(Wanted::FuseBlk) else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    fs::write(mounted.path().join("file"), "held").unwrap();
    let path = mounted.path();
    let returned = Arc::new(AtomicBool::new(false));
    let unmounting = {
        let returned = Arc::clone(&returned);
        std::thread::spawn(move || {
            common::umount(&path);
            // ORDERING: SeqCst here and in the load: a flag between the test's threads.
            returned.store(true, Ordering::SeqCst);
        })
    };
    eventually("DESTROY", || gate.waiting() == 1);
    // Not proof by itself that it waits; that nothing is in the store and the other call is still
    // under way is.
    std::thread::sleep(Duration::from_millis(200));
    assert!(!returned.load(Ordering::SeqCst), "umount returned before DESTROY was answered");
    assert_eq!(fs::read(mounted.store_path().join("file")).unwrap(), b"", "written before its time");
    gate.open();
    unmounting.join().unwrap();
    assert_eq!(common::text(&mounted.store_path().join("file")), "held");
    assert_eq!(mounted.ended().reason, EndReason::Destroyed);
}

#[test]
fn umount_of_fuse_does_not_wait() {
    let Some((mut mounted, gate)) = held_back(Wanted::Fuse) else { return };
    let _open = OpenAtEnd(gate);
    fs::write(mounted.path().join("file"), "later").unwrap();
    common::umount(&mounted.path());
    assert_eq!(mounted.ended().reason, EndReason::Unmounted);
    assert_eq!(mounted.view.stats().of(Opcode::Destroy), 0);
    mounted.volume.shutdown();
    assert_eq!(common::text(&mounted.store_path().join("file")), "later");
}

#[test]
fn lazy_umount_of_fuseblk_waits_when_nobody_holds_it() {
    let Some((mut mounted, gate)) = held_back(Wanted::FuseBlk) else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    let path = mounted.path();
    let (send, returned) = channel();
    let unmounting = std::thread::spawn(move || {
        rustix::mount::unmount(path, UnmountFlags::DETACH).unwrap();
        send.send(()).unwrap();
    });
    eventually("DESTROY", || gate.waiting() == 1);
    assert!(returned.recv_timeout(Duration::from_millis(200)).is_err(), "umount -l did not wait");
    gate.open();
    unmounting.join().unwrap();
    assert_eq!(mounted.ended().reason, EndReason::Destroyed);
}

#[test]
fn lazy_umount_of_fuseblk_in_use_returns_and_the_last_closer_waits() {
    let Some((mut mounted, gate)) = held_back(Wanted::FuseBlk) else { return };
    let _open = OpenAtEnd(Arc::clone(&gate));
    let file = fs::File::create(mounted.path().join("file")).unwrap();
    rustix::mount::unmount(mounted.path(), UnmountFlags::DETACH).unwrap();
    assert_eq!(gate.waiting(), 0, "DESTROY although a file is open");
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0, "the path still leads to it");
    std::os::unix::fs::FileExt::write_all_at(&file, b"by the last", 0).unwrap();
    let (send, returned) = channel();
    let closing = std::thread::spawn(move || {
        drop(file);
        send.send(()).unwrap();
    });
    eventually("DESTROY", || gate.waiting() == 1);
    assert!(returned.recv_timeout(Duration::from_millis(200)).is_err(), "the last close did not wait");
    gate.open();
    closing.join().unwrap();
    assert_eq!(mounted.ended().reason, EndReason::Destroyed);
    assert_eq!(common::text(&mounted.store_path().join("file")), "by the last");
}

#[test]
fn umount_in_use_is_busy_and_nothing_ends() {
    let Some(mounted) = Setup::default().mount() else { return };
    let file = fs::File::create(mounted.path().join("file")).unwrap();
    let error = rustix::mount::unmount(mounted.path(), UnmountFlags::empty()).unwrap_err();
    assert_eq!(error, rustix::io::Errno::BUSY);
    drop(file);
    fs::write(mounted.path().join("other"), "still served").unwrap();
    mounted.unmount();
}

#[test]
fn forced_umount_fails_requests_in_flight() {
    for wanted in [Wanted::Fuse, Wanted::FuseBlk] {
        let (setup, gate) = Setup::hanging_in("statfs");
        let _open = OpenAtEnd(Arc::clone(&gate));
        let Some(mut mounted) = (Setup { wanted, ..setup }).mount() else { return };
        gate.shut();
        let path = mounted.path();
        let client = std::thread::spawn(move || rustix::fs::statvfs(path).map(drop));
        eventually("the hung request", || gate.waiting() == 1);
        rustix::mount::unmount(mounted.path(), UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
        let error = client.join().unwrap().unwrap_err();
        assert_eq!(error, rustix::io::Errno::CONNABORTED, "{wanted:?}");
        gate.open();
        let ended = mounted.ended();
        // DESTROY cannot come any more.
        assert_eq!((ended.reason, ended.stuck), (EndReason::Unmounted, 0), "{wanted:?}");
    }
}

#[test]
fn an_aborted_connection_says_so() {
    // The control file system, in a place of the test's own: not every host has it mounted.
    let control = tempfile::tempdir().unwrap();
    if let Err(error) =
        rustix::mount::mount("none", control.path(), "fusectl", MountFlags::empty(), None::<&CStr>)
    {
        return skipped(&format!("cannot mount fusectl: {error}"));
    }
    for wanted in [Wanted::Fuse, Wanted::FuseBlk] {
        let Some(mut mounted) = (Setup { wanted, ..Setup::default() }).mount() else { continue };
        let number = mounted.connection.file_name().unwrap().to_owned();
        fs::write(control.path().join(number).join("abort"), "1").unwrap();
        assert_eq!(mounted.ended().reason, EndReason::Aborted);
        // The session has taken the dead mount away.
        assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
        assert!(watertight_fuse::check_mountpoint(&mounted.path()).is_ok());
    }
    common::umount(control.path());
}

#[test]
fn calls_that_do_not_return_are_counted_and_left_behind() {
    let (setup, gate) = Setup::hanging_in("statfs");
    let _open = OpenAtEnd(Arc::clone(&gate));
    let session = SessionOptions { exit_grace: Duration::from_millis(50), ..SessionOptions::default() };
    let Some(mut mounted) = (Setup { session, ..setup }).mount() else { return };
    gate.shut();
    let path = mounted.path();
    let client = std::thread::spawn(move || rustix::fs::statvfs(path).map(drop));
    eventually("the hung request", || gate.waiting() == 1);
    rustix::mount::unmount(mounted.path(), UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    assert!(client.join().unwrap().is_err());
    // On a loaded host other threads may not have ended either.
    assert!(mounted.ended().stuck >= 1, "one hangs");
    eventually("all others end", || mounted.view.threads() == 1);
    gate.open();
    eventually("it ends as well", || mounted.view.threads() == 0);
}

#[test]
fn syncfs_reaches_the_store_on_fuseblk_only() {
    for (wanted, reaches) in [(Wanted::FuseBlk, testing::kernel_sends_syncfs()), (Wanted::Fuse, false)] {
        let Some(mounted) = (Setup { wanted, ..Setup::default() }).mount() else { return };
        fs::write(mounted.path().join("file"), "synced").unwrap();
        let root = fs::File::open(mounted.path()).unwrap();
        rustix::fs::syncfs(&root).unwrap();
        let stored = fs::read_to_string(mounted.store_path().join("file")).unwrap_or_default();
        assert_eq!(stored == "synced", reaches, "{wanted:?}");
        assert_eq!(mounted.view.has_seen_syncfs(), reaches, "{wanted:?}");
        drop(root);
        mounted.unmount();
    }
}

#[test]
fn the_loop_device_is_free_after_the_unmount() {
    let Some(mounted) = (Setup { wanted: Wanted::FuseBlk, ..Setup::default() }).mount() else { return };
    let watertight_fuse::MountKind::FuseBlk { loop_device } = mounted.kind.clone() else {
        panic!("not fuseblk: {:?}", mounted.kind)
    };
    let name = loop_device.file_name().unwrap().to_owned();
    let backing = std::path::Path::new("/sys/block").join(name).join("loop/backing_file");
    let Ok(file) = fs::read_to_string(&backing) else {
        return skipped(&format!("{} cannot be read", backing.display()));
    };
    assert!(file.contains("watertight"), "{file}");
    mounted.unmount();
    // Another mount may take the same device at once.
    eventually("the loop device is given back", || {
        fs::read_to_string(&backing).map_or(true, |now| !now.contains("watertight"))
    });
}

#[test]
fn a_mount_that_is_never_served_goes_away() {
    let dir = tempfile::tempdir().unwrap();
    let options = watertight_fuse::MountOptions::new(dir.path());
    let mount = match watertight_fuse::Mount::new(&options) {
        Ok(mount) => mount,
        Err(error) => return skipped(&error.to_string()),
    };
    assert!(mount.is_mounted());
    let info = mount.info().unwrap().clone();
    let error = watertight_fuse::check_mountpoint(dir.path()).unwrap_err();
    assert!(matches!(error, watertight_fuse::MountpointError::AlreadyMounted(_)), "{error}");
    // Without a server.
    let mut mount = mount;
    drop(mount.take_fd().unwrap());
    assert!(mount.take_fd().is_err());
    // A busy host may take longer than the check waits.
    eventually("it is known to be dead", || {
        let error = watertight_fuse::check_mountpoint(dir.path()).unwrap_err();
        matches!(error, watertight_fuse::MountpointError::Dead(_))
    });
    drop(mount);
    assert!(!info.is_present());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
