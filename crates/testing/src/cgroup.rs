//! Real cgroups for tests, in the tree that the product uses by itself.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cgroups::{Choice, Hierarchy};

/// A cgroup that a test made; removed when dropped, with what is still in it.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    path: PathBuf,
}

impl Cgroup {
    /// A new one below the root; `None`, and a line that says so, where none can be made.
    #[must_use]
    pub fn make() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tree = Hierarchy::find(&Choice::Auto).ok().flatten();
        let Some(tree) = tree else {
            crate::skipped("no tree of cgroups is mounted");
            return None;
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("watertight-test-{}-{number}", std::process::id());
        let made = Self::at(tree.mountpoint().join(&name), Path::new("/").join(&name));
        if let Err(error) = &made {
            crate::skipped(format!("no cgroup can be made in {}: {error}", tree.mountpoint().display()));
        }
        made.ok()
    }

    fn at(directory: PathBuf, path: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir(&directory).map(|()| Self { directory, path })
    }

    /// One inside of it.
    ///
    /// # Panics
    /// If that cannot be made.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self::at(self.directory.join(name), self.path.join(name)).expect("a cgroup in one that was made")
    }

    /// Its path from the root of the tree.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A command that runs inside of it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.directory.join("cgroup.procs"));
        command.arg(program.as_ref());
        command
    }

    /// Runs a program inside of it.
    ///
    /// # Panics
    /// If it fails.
    pub fn run<A: AsRef<OsStr>>(&self, program: impl AsRef<OsStr>, arguments: &[A]) {
        let out = self.command(program).args(arguments).output().expect("sh runs");
        assert!(out.status.success(), "{}: {out:?}", self.path.display());
    }

    /// Removes it.
    ///
    /// # Panics
    /// If that cannot be done within a minute: a process is in it.
    pub fn remove(self) {
        assert!(self.try_remove(Duration::from_secs(60)), "{} is in use", self.directory.display());
    }

    /// A process that has ended leaves a moment later.
    fn try_remove(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        while let Err(error) = std::fs::remove_dir(&self.directory) {
            if error.kind() == std::io::ErrorKind::NotFound {
                break;
            }
            if begun.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.try_remove(Duration::from_secs(5));
    }
}
