//! Syncs that are noticed by a dirty page of the mount's device, as on kernels before 6.18: here
//! SYNCFS is refused, as these do not know it.

mod common;

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::hook::OpenAtEnd;
use common::{Mounted, Setup, eventually};
use rustix::fs::syncfs;
use rustix::mount::UnmountFlags;
use store::{At, HookStore, Store};
use watertight_fuse::mount::{MountInfo, Syncs, Wanted};
use watertight_fuse::{Mode, MountKind, SessionOptions};

fn by_page(setup: Setup) -> Option<Mounted> {
    let volume = volume::Options { dirty_after: Duration::from_secs(3600), ..setup.volume };
    Setup { wanted: Wanted::FuseBlk, syncs: Syncs::ByPage, volume, ..setup }.mount()
}

fn stored(mounted: &Mounted, name: &str) -> String {
    fs::read_to_string(mounted.store_path().join(name)).unwrap_or_default()
}

fn device(mounted: &Mounted) -> &Path {
    let MountKind::FuseBlk { loop_device } = &mounted.kind else { panic!("{:?}", mounted.kind) };
    loop_device
}

/// The session has begun to notice syncs.
fn hears(mounted: &Mounted) {
    eventually("a syncfs(2) is heard", || {
        syncfs(fs::File::open(mounted.path()).expect("it is mounted")).expect("the store takes all");
        mounted.view.has_seen_syncfs()
    });
    assert!(!mounted.view.knows_who_syncs());
}

#[test]
fn syncfs_and_sync_return_when_all_is_on_the_store() {
    for mode in [Mode::WriteThrough, Mode::KernelWriteback] {
        let session = SessionOptions { mode, ..SessionOptions::default() };
        let Some(mounted) = by_page(Setup { session, ..Setup::default() }) else { return };
        hears(&mounted);
        let file = mounted.path().join("file");
        fs::write(&file, "one").unwrap();
        if mode == Mode::WriteThrough {
            assert_eq!(stored(&mounted, "file"), "", "written before its time");
        }
        syncfs(fs::File::open(mounted.path()).unwrap()).unwrap();
        assert_eq!(stored(&mounted, "file"), "one", "{mode:?}");
        fs::write(&file, "another").unwrap();
        rustix::fs::sync();
        assert_eq!(stored(&mounted, "file"), "another", "{mode:?}");
        // In place, in a file that is open already: in the second mode the kernel does not report
        // the write before the sync.
        let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
        for text in ["another one", "and another"] {
            std::os::unix::fs::FileExt::write_all_at(&open, text.as_bytes(), 0).unwrap();
            syncfs(fs::File::open(mounted.path()).unwrap()).unwrap();
            assert_eq!(stored(&mounted, "file"), text, "{mode:?}");
        }
        fs::write(&file, "another").unwrap();
        drop(open);
        // Names and attributes too.
        fs::rename(&file, mounted.path().join("renamed")).unwrap();
        rustix::fs::sync();
        assert_eq!(stored(&mounted, "renamed"), "another", "{mode:?}");
        mounted.unmount();
    }
}

/// Not a test of its own: see [`common::mapping`].
#[test]
fn mapping_client() {
    common::mapping::client();
}

#[test]
fn mapped_pages_are_on_the_store_when_sync_returns() {
    let Some(mounted) = by_page(Setup::default()) else { return };
    hears(&mounted);
    for n in 0..3 {
        let path = mounted.path().join(format!("file-{n}"));
        fs::write(&path, vec![b'.'; 8192]).unwrap();
        rustix::fs::sync();
        common::mapping::change_and_sync(&path, &mounted.store_path().join(format!("file-{n}")));
    }
    mounted.unmount();
}

#[test]
fn a_sync_waits_for_the_store() {
    let (setup, gate) = Setup::hanging_in("write");
    let _open = OpenAtEnd(Arc::clone(&gate));
    let Some(mounted) = by_page(setup) else { return };
    hears(&mounted);
    gate.shut();
    fs::write(mounted.path().join("file"), "held").unwrap();
    let dir = fs::File::open(mounted.path()).unwrap();
    let (send, returned) = channel();
    let syncing = std::thread::spawn(move || {
        syncfs(dir.as_fd()).unwrap();
        drop(dir);
        send.send(()).unwrap();
    });
    eventually("the store's write", || gate.waiting() == 1);
    assert!(returned.recv_timeout(Duration::from_millis(200)).is_err(), "it returned before the store did");
    // Meanwhile other clients write and read.
    fs::write(mounted.path().join("other"), "beside").unwrap();
    gate.open();
    syncing.join().unwrap();
    assert_eq!(stored(&mounted, "file"), "held");
    mounted.unmount();
}

#[test]
fn an_error_of_the_store_is_told_and_the_next_sync_tries_again() {
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_failing = Arc::clone(&fails);
    let wrap = Box::new(move |inner| -> Arc<dyn Store> {
        let hooked = HookStore::new(inner);
        hooked.hook(move |at, op| {
            // ORDERING: SeqCst here and below: a flag between the test's threads.
            if at == At::Before && op == "sync" && is_failing.load(std::sync::atomic::Ordering::SeqCst) {
                return Err(store::Error::new(store::ErrorKind::Io, "sync"));
            }
            Ok(())
        });
        hooked
    });
    let Some(mounted) = by_page(Setup { wrap, ..Setup::default() }) else { return };
    hears(&mounted);
    fs::write(mounted.path().join("file"), "text").unwrap();
    let dir = fs::File::open(mounted.path()).unwrap();
    fails.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(syncfs(&dir), Err(rustix::io::Errno::IO));
    fails.store(false, std::sync::atomic::Ordering::SeqCst);
    syncfs(&dir).unwrap();
    assert_eq!(stored(&mounted, "file"), "text");
    drop(dir);
    mounted.unmount();
}

/// A write of the page while no process is in a sync: here by fdatasync(2) of the device, as the
/// kernel's flusher would.
#[test]
fn a_page_that_the_flusher_writes_has_nothing_written_and_later_syncs_are_heard() {
    let Some(mounted) = by_page(Setup::default()) else { return };
    hears(&mounted);
    let page = fs::OpenOptions::new().write(true).open(device(&mounted)).unwrap();
    let mut n = 0;
    // Another process on the host may sync at that moment, or keep all processors busy.
    eventually("nothing is written", || {
        n += 1;
        fs::write(mounted.path().join("file"), format!("text {n}")).unwrap();
        page.sync_data().unwrap();
        stored(&mounted, "file") != format!("text {n}")
    });
    drop(page);
    syncfs(fs::File::open(mounted.path()).unwrap()).unwrap();
    assert_eq!(stored(&mounted, "file"), format!("text {n}"));
    mounted.unmount();
}

#[test]
fn an_unmount_leaves_no_device_and_all_on_the_store() {
    let Some(mut mounted) = by_page(Setup::default()) else { return };
    hears(&mounted);
    let loop_device = device(&mounted).to_owned();
    let name = loop_device.file_name().unwrap().to_owned();
    let backing = Path::new("/sys/block").join(&name).join("loop/backing_file");
    let backed = fs::read_to_string(&backing).unwrap();
    // Tools show the source of the mount.
    assert_eq!(backed, "/watertight\n");
    fs::write(mounted.path().join("file"), "text").unwrap();
    common::umount(&mounted.path());
    assert_eq!(stored(&mounted, "file"), "text");
    mounted.ended();
    // Another process may still look at it, and yet another may have it by now.
    eventually("the device is free", || fs::read_to_string(&backing).map_or(true, |file| file != backed));
}

/// The kernel refuses FIFREEZE of ioctl_fs(2) for each FUSE mount: the device leaves no process
/// frozen, and syncs are noticed after it.
#[test]
fn a_freeze_is_refused_and_leaves_nothing_behind() {
    let Some(mounted) = by_page(Setup::default()) else { return };
    hears(&mounted);
    fs::write(mounted.path().join("file"), "before").unwrap();
    let frozen = Command::new("fsfreeze").arg("-f").arg(mounted.path()).output().unwrap();
    let said = String::from_utf8_lossy(&frozen.stderr).into_owned();
    assert!(!frozen.status.success() && said.contains("Operation not supported"), "{frozen:?}");
    fs::write(mounted.path().join("file"), "after").unwrap();
    syncfs(fs::File::open(mounted.path()).unwrap()).unwrap();
    assert_eq!(stored(&mounted, "file"), "after");
    mounted.unmount();
}

/// A store that hangs does not hold up a caller of sync(2), which may mean another file system;
/// nothing is lost by that.
#[test]
fn a_store_that_is_known_to_stall_is_not_waited_for_and_synced_once_it_answers() {
    let (setup, gate) = Setup::hanging_in("write");
    let _open = OpenAtEnd(Arc::clone(&gate));
    let stalling = volume::Options { stall_after: Duration::from_millis(20), ..volume::Options::default() };
    let Some(mounted) = by_page(Setup { volume: stalling, ..setup }) else { return };
    hears(&mounted);
    gate.shut();
    fs::write(mounted.path().join("file"), "held").unwrap();
    let dir = fs::File::open(mounted.path()).unwrap();
    let sync = |dir: &fs::File| {
        let dir = dir.try_clone().unwrap();
        let syncing = std::thread::spawn(move || syncfs(&dir));
        eventually("the call ends", || {
            mounted.volume.look();
            syncing.is_finished()
        });
        syncing.join().unwrap()
    };
    for _ in 0..2 {
        assert_eq!(sync(&dir), Err(rustix::io::Errno::IO));
    }
    gate.open();
    eventually("it is synced", || sync(&dir).is_ok());
    assert_eq!(stored(&mounted, "file"), "held");
    drop(dir);
    mounted.unmount();
}

/// A forced unmount is what ends the calls that wait for such a store; nothing has noticed a stall yet.
#[test]
fn a_forced_unmount_waits_for_no_store_and_ends_a_sync_that_does() {
    let (setup, gate) = Setup::hanging_in("write");
    let _open = OpenAtEnd(Arc::clone(&gate));
    let unnoticed = volume::Options { stall_after: Duration::from_secs(3600), ..volume::Options::default() };
    let Some(mounted) = by_page(Setup { volume: unnoticed, ..setup }) else { return };
    hears(&mounted);
    gate.shut();
    fs::write(mounted.path().join("file"), "held").unwrap();
    let dir = fs::File::open(mounted.path()).unwrap();
    let syncing = std::thread::spawn(move || syncfs(dir));
    eventually("the store's write", || gate.waiting() == 1);
    let path = mounted.path().to_owned();
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
    let unmounting = std::thread::spawn(move || rustix::mount::unmount(path, flags));
    eventually("both calls end", || syncing.is_finished() && unmounting.is_finished());
    assert_eq!(gate.waiting(), 1, "the store still hangs");
    assert_eq!(unmounting.join().unwrap(), Ok(()));
    assert_eq!(syncing.join().unwrap(), Err(rustix::io::Errno::IO));
}

/// As `umount --force` does for a server that does not answer: nobody waits for its device either.
#[test]
fn the_connection_of_the_device_is_aborted_with_the_mounts() {
    let Some(mounted) = by_page(Setup::default()) else { return };
    hears(&mounted);
    let device = fs::OpenOptions::new().write(true).open(device(&mounted)).unwrap();
    let write = || device.write_all_at(&[0; 4096], 0).and_then(|()| device.sync_all());
    write().unwrap();
    let info = MountInfo::all().into_iter().find(|info| info.mountpoint == mounted.path()).unwrap();
    info.abort().unwrap();
    assert_eq!(write().unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    drop(device);
    // Its session may have taken it away by then.
    let unmounted = rustix::mount::unmount(mounted.path(), UnmountFlags::DETACH);
    assert!(matches!(unmounted, Ok(()) | Err(rustix::io::Errno::INVAL)), "{unmounted:?}");
}

/// In execve(2) it closes a file of a server that hangs, and keeps `/proc/PID/syscall` from being
/// read meanwhile.
#[test]
fn a_process_that_hangs_in_execve_holds_up_no_sync() {
    let (setup, gate) = Setup::hanging_in("write");
    let _open = OpenAtEnd(Arc::clone(&gate));
    let session = SessionOptions { mode: Mode::KernelWriteback, ..SessionOptions::default() };
    let volume = volume::Options { cache_bytes_max: 4 << 20, ..volume::Options::default() };
    let hanging = Setup { wanted: Wanted::Fuse, session, volume, ..setup };
    let Some(hanging) = hanging.mount() else { return };
    let Some(mounted) = by_page(Setup::default()) else { return };
    hears(&mounted);
    gate.shut();
    // The kernel's pages are dirty; whoever closes it writes them, which the store holds up.
    let mut held = fs::File::create(hanging.path().join("file")).unwrap();
    std::io::Write::write_all(&mut held, &vec![1; 16 << 20]).unwrap();
    let child = std::thread::spawn(|| Command::new("true").status());
    let own = format!("PPid:\t{}\n", std::process::id());
    // Not `stat`, which would wait for it.
    let hangs = |process: fs::DirEntry| {
        let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
        status.contains("State:\tD") && status.contains(&own)
    };
    eventually("a child hangs in execve", || fs::read_dir("/proc").unwrap().flatten().any(hangs));
    for text in ["one", "two"] {
        fs::write(mounted.path().join("file"), text).unwrap();
        syncfs(fs::File::open(mounted.path()).unwrap()).unwrap();
        assert_eq!(stored(&mounted, "file"), text);
    }
    mounted.unmount();
    gate.open();
    child.join().unwrap().unwrap();
    drop(held);
    hanging.unmount();
}
