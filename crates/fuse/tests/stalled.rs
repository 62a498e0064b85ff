//! An attached volume whose store does not answer, and the syncs that it must not hold up.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cgroups::{Choice, Hierarchy};
use common::hook::{Gate, OpenAtEnd};
use common::{Mounted, Setup, eventually, text};
use rustix::io::Errno;
use store::{At, HookStore};
use testing::cgroup::Cgroup;
use volume::{Tenants, Volume};
use watertight_fuse::Detach;
use watertight_fuse::mount::Wanted;

/// An attached volume whose store's own syncs hang while the gate is shut, and fail after that if
/// `fails` is set.
struct Attached {
    dir: tempfile::TempDir,
    volume: Arc<Volume>,
    gate: Arc<Gate>,
    fails: Arc<AtomicBool>,
}

impl Attached {
    /// Attaches a volume to the directory `name`, with a file `file` whose data is not on the store
    /// yet.
    fn at(mounted: &Mounted, name: &str) -> Self {
        Self::with(mounted, name, Arc::default())
    }

    fn with(mounted: &Mounted, name: &str, tenants: Arc<Tenants>) -> Self {
        let (dir, gate, fails) = (tempfile::tempdir().unwrap(), Arc::<Gate>::default(), Arc::default());
        let store = HookStore::new(store::open(&format!("dir:{}", dir.path().display())).unwrap());
        let (hung, failing) = (Arc::clone(&gate), Arc::<AtomicBool>::clone(&fails));
        store.hook(move |at, op| {
            if at == At::Before && op == "sync" {
                hung.pass();
                // ORDERING: SeqCst, the test's own flag.
                if failing.swap(false, Ordering::SeqCst) {
                    return Err(store::Error::with(store::ErrorKind::Io, "sync", "as the test wants it"));
                }
            }
            Ok(())
        });
        // Data is written only when a caller asks for it.
        let (dirty_after, stall_after) = (Duration::from_secs(3600), Duration::from_millis(20));
        let options = volume::Options { dirty_after, stall_after, tenants, ..volume::Options::default() };
        let volume = Volume::new(store, options).unwrap();
        fs::create_dir(mounted.path().join(name)).unwrap();
        mounted.tree.attach(Path::new(name), &volume, false, Box::new(|_| {})).unwrap();
        fs::write(mounted.path().join(name).join("file"), name).unwrap();
        Self { dir, volume, gate, fails }
    }

    fn stored(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    /// The store stops answering in a sync that begins now, and the volume is known to stall: as
    /// the daemon checks about once a second.
    fn stalls(&self, mounted: &Mounted) -> JoinHandle<Result<(), volume::Error>> {
        self.gate.shut();
        let volume = Arc::clone(&self.volume);
        let waits = std::thread::spawn(move || volume.sync_all());
        self.is_known_to_stall(mounted);
        waits
    }

    fn is_known_to_stall(&self, mounted: &Mounted) {
        eventually("the stall is noticed", || self.volume.status().stalled.is_some());
        mounted.tree.apply_stall_quota();
    }
}

fn mounted() -> Option<Mounted> {
    // Kernels send SYNCFS to this type only.
    if !testing::kernel_sends_syncfs() {
        common::skipped("this kernel does not pass syncfs(2) on");
        return None;
    }
    Setup { wanted: Wanted::FuseBlk, ..Setup::default() }.mount()
}

fn syncfs(mounted: &Mounted) -> JoinHandle<Result<(), Errno>> {
    let root = File::open(mounted.path()).unwrap();
    std::thread::spawn(move || rustix::fs::syncfs(&root))
}

/// A volume whose store hangs, the guard that lets it answer at the end, and the sync that waits
/// for it.
fn hanging_under_a_sync(mounted: &Mounted) -> (Attached, OpenAtEnd, JoinHandle<Result<(), Errno>>) {
    let hung = Attached::at(mounted, "hung");
    let opens = OpenAtEnd(Arc::clone(&hung.gate));
    hung.gate.shut();
    let sync = syncfs(mounted);
    eventually("the store hangs", || hung.gate.waiting() > 0);
    (hung, opens, sync)
}

fn end(mounted: Mounted, names: &[&str]) {
    for name in names {
        mounted.tree.detach(Path::new(name), Detach::Lazy).unwrap();
    }
    mounted.unmount();
}

#[test]
fn a_sync_of_the_mountpoint_leaves_out_a_volume_that_is_stalled() {
    let Some(mounted) = mounted() else { return };
    let (hung, well) = (Attached::at(&mounted, "hung"), Attached::at(&mounted, "well"));
    fs::write(mounted.path().join("file"), "root").unwrap();
    let _opens = OpenAtEnd(Arc::clone(&hung.gate));
    let waits = hung.stalls(&mounted);
    fs::write(mounted.path().join("hung/later"), "later").unwrap();
    assert_eq!(syncfs(&mounted).join().unwrap(), Err(Errno::IO), "what was written there is not durable");
    assert_eq!(text(&well.stored()), "well");
    assert_eq!(text(&mounted.store_path().join("file")), "root");
    assert_eq!(hung.gate.waiting(), 1, "the stalled one was asked again");
    // A caller on the control socket learns which volume was left out.
    assert_eq!(mounted.tree.sync_for(std::process::id()).unwrap().len(), 1);
    hung.gate.open();
    waits.join().unwrap().unwrap();
    // It answers again: the next sync is of all.
    eventually("the stall's end is noticed", || hung.volume.status().stalled.is_none());
    syncfs(&mounted).join().unwrap().unwrap();
    assert_eq!(text(&hung.dir.path().join("later")), "later");
    assert_eq!(mounted.tree.sync_for(std::process::id()).unwrap(), Vec::<String>::new());
    end(mounted, &["hung", "well"]);
}

#[test]
fn who_has_nothing_in_a_stalled_volume_syncs_beside_it_without_an_error() {
    let (Some(a), Some(b)) = (Cgroup::make(), Cgroup::make()) else { return };
    let tree = Hierarchy::find(&Choice::Auto).unwrap();
    let tenants = tree.map_or_else(Arc::default, |tree| Tenants::of(tree).unwrap());
    let options = volume::Options { tenants: Arc::clone(&tenants), ..volume::Options::default() };
    let Some(mounted) = (Setup { wanted: Wanted::FuseBlk, volume: options, ..Setup::default() }).mount()
    else {
        return;
    };
    let hung = Attached::with(&mounted, "hung", tenants);
    let _opens = OpenAtEnd(Arc::clone(&hung.gate));
    let write = |by: &Cgroup, file: &str| {
        let file = format!("of={}", mounted.path().join(file).display());
        by.run("dd", &["if=/dev/zero", &file, "bs=4096", "count=1"]);
    };
    write(&a, "hung/a");
    write(&b, "b");
    let waits = hung.stalls(&mounted);
    let syncs = |by: &Cgroup| {
        let output = by.command("sync").arg("-f").arg(mounted.path()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Its data is on its way to the store, or there, and not durable.
    let (is_durable, said) = syncs(&a);
    assert!(!is_durable && said.contains("Input/output error"), "{said}");
    assert_eq!(syncs(&b), (true, String::new()));
    assert!(mounted.store_path().join("b").exists());
    hung.gate.open();
    waits.join().unwrap().unwrap();
    eventually("the stall's end is noticed", || hung.volume.status().stalled.is_none());
    assert_eq!(syncs(&a), (true, String::new()));
    end(mounted, &["hung"]);
}

#[test]
fn a_sync_that_is_under_way_leaves_out_a_volume_that_stalls() {
    let Some(mounted) = mounted() else { return };
    let (hung, well) = (Attached::at(&mounted, "hung"), Attached::at(&mounted, "well"));
    let _opens = OpenAtEnd(Arc::clone(&hung.gate));
    hung.gate.shut();
    let syncs: Vec<_> = (0..8).map(|_| syncfs(&mounted)).collect();
    eventually("the store hangs", || hung.gate.waiting() > 0);
    hung.is_known_to_stall(&mounted);
    for sync in syncs {
        assert_eq!(sync.join().unwrap(), Err(Errno::IO), "what was written there is not durable");
    }
    assert_eq!(text(&well.stored()), "well");
    // However many callers asked before it was known, and after.
    assert_eq!(syncfs(&mounted).join().unwrap(), Err(Errno::IO));
    assert_eq!(hung.gate.waiting(), 1, "more than one thread hangs in one store");
    hung.gate.open();
    end(mounted, &["hung", "well"]);
    assert_eq!(text(&hung.stored()), "hung");
}

#[test]
fn a_sync_waits_for_the_mountpoints_own_volume() {
    let (setup, gate) = Setup::hanging_in("sync");
    let options = volume::Options { stall_after: Duration::from_millis(20), ..volume::Options::default() };
    let Some(mounted) = (Setup { wanted: Wanted::FuseBlk, volume: options, ..setup }).mount() else { return };
    let _opens = OpenAtEnd(Arc::clone(&gate));
    let well = Attached::at(&mounted, "well");
    fs::write(mounted.path().join("file"), "root").unwrap();
    gate.shut();
    let sync = syncfs(&mounted);
    eventually("the store hangs", || gate.waiting() > 0);
    eventually("the stall is noticed", || mounted.volume.status().stalled.is_some());
    mounted.tree.apply_stall_quota();
    // The attached volume does not wait for it.
    eventually("the attached one is durable", || fs::read(well.stored()).is_ok_and(|data| data == b"well"));
    assert!(!sync.is_finished(), "its own data is not durable yet");
    gate.open();
    sync.join().unwrap().unwrap();
    assert_eq!(text(&mounted.store_path().join("file")), "root");
    end(mounted, &["well"]);
}

#[test]
fn what_failed_after_the_volume_was_left_out_is_told_by_the_next_sync() {
    let Some(mounted) = mounted() else { return };
    let (hung, _opens, sync) = hanging_under_a_sync(&mounted);
    hung.is_known_to_stall(&mounted);
    assert_eq!(sync.join().unwrap(), Err(Errno::IO), "it is left out");
    // ORDERING: SeqCst, the test's own flag.
    hung.fails.store(true, Ordering::SeqCst);
    hung.gate.open();
    eventually("the stall's end is noticed", || hung.volume.status().stalled.is_none());
    assert_eq!(syncfs(&mounted).join().unwrap(), Err(Errno::IO));
    assert_eq!(syncfs(&mounted).join().unwrap(), Ok(()));
    end(mounted, &["hung"]);
}

#[test]
fn who_syncs_while_a_stalled_volume_is_given_up_is_not_held_up() {
    let Some(mounted) = mounted() else { return };
    let (hung, _opens, sync) = hanging_under_a_sync(&mounted);
    let tree = mounted.tree.clone();
    // Its end waits for its store.
    let detach = std::thread::spawn(move || tree.detach(Path::new("hung"), Detach::Force));
    assert_eq!(sync.join().unwrap(), Err(Errno::IO), "what it had is lost");
    hung.gate.open();
    detach.join().unwrap().unwrap();
    mounted.unmount();
}
