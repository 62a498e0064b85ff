//! Attached volumes whose stores hang on command.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use store::{FaultStore, Store};
use volume::{DrainReport, Volume};
use watertight_fuse::Attached;

use super::{Mounted, eventually};

/// Longer than anything that happens takes.
pub const LONG: Duration = Duration::from_secs(60);

/// An attached volume whose store hangs on command.
pub struct Hanging {
    pub store: Arc<FaultStore>,
    pub volume: Arc<Volume>,
    pub attached: Attached,
    pub root: PathBuf,
    pub dir: tempfile::TempDir,
}

impl Hanging {
    /// A volume whose stall a check finds 20 ms after it has begun.
    pub fn new(mounted: &Mounted, name: &str, rules: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let inner = store::open(&format!("dir:{}", dir.path().display())).unwrap();
        let store = FaultStore::new(inner, rules).unwrap();
        let options = volume::Options {
            stall_after: Duration::from_millis(20),
            dirty_after: Duration::from_secs(3600),
            flushers: 1,
            ..volume::Options::default()
        };
        let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, options).unwrap();
        let root = mounted.path().join(name);
        fs::create_dir(&root).unwrap();
        let on_end = Box::new(|_: &DrainReport| {});
        let attached = mounted.tree.attach(Path::new(name), &volume, false, on_end).unwrap();
        Self { store, volume, attached, root, dir }
    }

    /// A client that reads the file.
    pub fn read(&self) -> JoinHandle<Result<Vec<u8>, Option<i32>>> {
        let path = self.root.join("file");
        std::thread::spawn(move || fs::read(path).map_err(|error| error.raw_os_error()))
    }

    /// Waits until `n` of its calls hang.
    pub fn is_hanging(&self, n: usize) {
        assert!(self.store.wait_hanging(n, LONG));
    }
}

/// Stores that hang do so no more when a test ends, however it does.
pub struct Release(pub Vec<Arc<FaultStore>>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.iter().for_each(|store| store.release());
    }
}

/// Looks at the volumes and relieves the mountpoint, as the daemon does about once a second.
pub fn look(mounted: &Mounted, volumes: &[Hanging]) {
    for one in volumes {
        let _seen = one.volume.status();
    }
    mounted.tree.apply_stall_quota();
}

pub fn all_stalled(mounted: &Mounted, volumes: &[Hanging]) {
    eventually("all are stalled", || {
        look(mounted, volumes);
        volumes.iter().all(|one| one.volume.is_known_to_stall())
    });
    look(mounted, volumes);
}
