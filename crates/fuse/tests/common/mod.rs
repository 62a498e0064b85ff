//! A volume over a directory, mounted for a test.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_debug_implementations, reason = "test code")]

pub mod hanging;
pub mod hook;
pub mod mapping;
pub mod raw;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hook::Gate;
use rustix::mount::{MountFlags, UnmountFlags};
use store::{At, HookStore, Store};
use tempfile::TempDir;
use volume::Volume;
use watertight_fuse::mount::{Syncs, Wanted};
use watertight_fuse::{
    Ended, Mount, MountError, MountKind, MountOptions, Notifier, Session, SessionOptions, SessionView,
    TreeHandle, Uring,
};

/// Says visibly that a test could not run here.
pub fn skipped(why: &str) {
    testing::skipped(why);
}

/// A mounted volume.
pub struct Mounted {
    pub volume: Arc<Volume>,
    pub view: SessionView,
    pub notifier: Notifier,
    pub tree: TreeHandle,
    /// The file system's device, as `MAJOR:MINOR`.
    pub device: String,
    pub kind: MountKind,
    /// Its directory in the control file system.
    pub connection: PathBuf,
    pub dir: TempDir,
    thread: Option<JoinHandle<Ended>>,
}

type Wrap = Box<dyn FnOnce(Arc<dyn Store>) -> Arc<dyn Store>>;

/// How tests talk to the kernel unless they say so themselves: `WATERTIGHT_TEST_URING` says `on`
/// (where it cannot be had, tests fail) or `off`; without it they
/// take it where the kernel has it and they may turn its switch on.
pub fn uring() -> Uring {
    match std::env::var("WATERTIGHT_TEST_URING").as_deref() {
        Ok("on") => Uring::On,
        Ok("off") => Uring::Off,
        _ if Path::new("/sys/module/fuse/parameters/enable_uring").exists()
            && rustix::process::geteuid().is_root() =>
        {
            Uring::On
        }
        _ => Uring::Auto,
    }
}

/// How to mount for a test.
pub struct Setup {
    pub wanted: Wanted,
    pub uring: Uring,
    pub flags: MountFlags,
    pub syncs: Syncs,
    pub session: SessionOptions,
    pub volume: volume::Options,
    /// Wraps the store.
    pub wrap: Wrap,
    /// Shut the volume down when the kernel asks for it.
    pub drain_on_destroy: bool,
    /// Called after mount(2), before INIT is answered.
    pub before_init: Box<dyn FnOnce()>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            wanted: Wanted::Auto,
            uring: uring(),
            flags: MountFlags::empty(),
            syncs: Syncs::default(),
            session: SessionOptions::default(),
            volume: volume::Options::default(),
            wrap: Box::new(|store| store),
            drain_on_destroy: true,
            before_init: Box::new(|| {}),
        }
    }
}

impl Setup {
    /// Calls `hook` before each operation of the store.
    pub fn with_hook(hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        let wrap = Box::new(|inner| -> Arc<dyn Store> {
            let hooked = HookStore::new(inner);
            hooked.hook(move |at, op| {
                if at == At::Before {
                    hook(op);
                }
                Ok(())
            });
            hooked
        });
        Self { wrap, ..Self::default() }
    }

    /// The store hangs in the operation `hanging` while the gate is shut.
    pub fn hanging_in(hanging: &'static str) -> (Self, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        let hung = Arc::clone(&gate);
        let setup = Self::with_hook(move |op| {
            if op == hanging {
                hung.pass();
            }
        });
        (setup, gate)
    }

    /// Mounts; `None` (with a line on stderr) where this host does not let us.
    pub fn mount(self) -> Option<Mounted> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        std::fs::create_dir(dir.path().join("store")).unwrap();
        let store = store::open(&format!("dir:{}", dir.path().join("store").display())).unwrap();
        let store = (self.wrap)(store);
        let volume = Volume::new(store, self.volume).unwrap();
        let mut options = MountOptions::new(dir.path().join("mnt"));
        options.wanted = self.wanted;
        options.uring = self.uring;
        options.flags = self.flags;
        options.syncs = self.syncs;
        let mount = match Mount::new(&options) {
            Ok(mount) => mount,
            Err(
                error @ (MountError::NoDevice
                | MountError::DevicePermission { .. }
                | MountError::Permission { .. }
                | MountError::NoFusermount
                | MountError::NoLoopDevice { .. }),
            ) => {
                skipped(&error.to_string());
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut session = self.session;
        if self.drain_on_destroy {
            let drained = Arc::clone(&volume);
            let then = std::mem::replace(&mut session.on_destroy, Box::new(|| {}));
            session.on_destroy = Box::new(move || {
                then();
                drained.shutdown();
            });
        }
        let kind = mount.kind().clone();
        let info = mount.info().unwrap();
        let (connection, device) = (info.connection_dir(), format!("{}:{}", info.major, info.minor));
        (self.before_init)();
        let session = Session::new(Arc::clone(&volume), mount, session).unwrap();
        let (view, notifier, tree) = (session.view(), session.notifier(), session.tree());
        let thread = std::thread::spawn(move || session.run().unwrap());
        Some(Mounted { volume, view, notifier, tree, device, kind, connection, dir, thread: Some(thread) })
    }
}

impl Mounted {
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn store_path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub fn is_block(&self) -> bool {
        matches!(self.kind, MountKind::FuseBlk { .. })
    }

    /// Unmounts and says how the session ended.
    pub fn unmount(mut self) -> Ended {
        umount(&self.path());
        self.ended()
    }

    /// Waits for the session's end. Prints where all threads are if some of the session's are left.
    pub fn ended(&mut self) -> Ended {
        let ended = self.thread.take().unwrap().join().unwrap();
        if ended.stuck > 0 {
            println!("{} thread(s) left, of these:\n{}", ended.stuck, threads());
        }
        ended
    }
}

/// Where the threads of this process are, for a person.
fn threads() -> String {
    let of = |task: fs::DirEntry| {
        let text = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{} {}{}", text("comm").trim(), text("syscall"), text("stack"))
    };
    fs::read_dir("/proc/self/task").unwrap().flatten().map(of).collect()
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = rustix::mount::unmount(self.path(), UnmountFlags::FORCE | UnmountFlags::DETACH);
            if !std::thread::panicking() {
                let _ = thread.join();
            }
        }
    }
}

/// `umount2(2)` without flags. A process that another test of the same program starts has all open
/// files until its `execve`, so EBUSY is not yet an answer.
pub fn umount(path: &Path) {
    eventually("nobody uses the mount", || match rustix::mount::unmount(path, UnmountFlags::empty()) {
        Err(rustix::io::Errno::BUSY) => false,
        unmounted => unmounted.map(|()| true).unwrap(),
    });
}

/// Waits until `is_so`, for as long as a slow machine may need.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < testing::patience(Duration::from_secs(60)), "never happened: {what}");
        std::thread::yield_now();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The content of a file, as a string.
pub fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
