//! Directories of a test's own.
//!
//! All of them are below one directory per process, named with its id, so that a later run finds
//! and clears what a killed one left mounted.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = "wt-accept-";

/// A directory that goes when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new directory, named after the test; other users may look into it.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: pairs with nothing; only that each value is given out once matters.
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = own_root().join(format!("{name}-{n}"));
        // The last scratch directory of another test may take the root along at any moment.
        let made = (0..10).any(|_| std::fs::create_dir_all(&path).is_ok());
        assert!(made, "cannot make {}", path.display());
        open_to_all(own_root());
        open_to_all(&path);
        Self { path }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory inside.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::create_dir(&path).unwrap_or_else(|e| panic!("mkdir {}: {e}", path.display()));
        open_to_all(&path);
        path
    }

    /// Makes a directory inside that is its owner's only.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn private_dir(&self, name: &str) -> PathBuf {
        let path = self.dir(name);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("chmod");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing may be removed through a mount that is still there.
        for mountpoint in mounts_below(&self.path) {
            detach(&mountpoint);
        }
        if mounts_below(&self.path).is_empty() {
            let _ = std::fs::remove_dir_all(&self.path);
        }
        // The last one takes the process's directory with it; it is not empty before.
        let _ = std::fs::remove_dir(own_root());
    }
}

/// Where scratch directories are made.
#[must_use]
pub fn base() -> PathBuf {
    std::env::var_os("ACCEPTANCE_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// The mountpoints below `path`, deepest first.
#[must_use]
pub fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        mountinfo().into_iter().map(|(at, _)| at).filter(|at| at.starts_with(path)).collect();
    found.sort_by_key(|at| std::cmp::Reverse(at.components().count()));
    found
}

/// The type of the file system mounted at `path`, `None` if nothing is.
#[must_use]
pub fn mount_type(path: &Path) -> Option<String> {
    mountinfo().into_iter().rev().find(|(at, _)| at == path).map(|(_, kind)| kind)
}

/// Takes the mount at `path` away, in use or not.
pub fn detach(path: &Path) {
    use rustix::mount::{UnmountFlags, unmount};
    if unmount(path, UnmountFlags::DETACH).is_err() && !crate::sys::is_root() {
        let _ = std::process::Command::new("fusermount3").args(["-u", "-z"]).arg(path).output();
    }
}

fn mountinfo() -> Vec<(PathBuf, String)> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let at = fields.nth(4)?;
            let kind = fields.skip_while(|f| *f != "-").nth(1)?;
            Some((PathBuf::from(at.replace("\\040", " ")), kind.to_owned()))
        })
        .collect()
}

fn own_root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        clear_leftovers();
        base().join(format!("{PREFIX}{}", std::process::id()))
    })
}

/// Clears what runs left that were killed.
fn clear_leftovers() {
    let Ok(entries) = std::fs::read_dir(base()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.strip_prefix(PREFIX)) else { continue };
        if pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists() {
            for mountpoint in mounts_below(&entry.path()) {
                detach(&mountpoint);
            }
            if mounts_below(&entry.path()).is_empty() {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn open_to_all(path: &Path) {
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755));
}
