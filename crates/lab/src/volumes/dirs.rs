//! Where the files lie: one directory on one file system for every store and every peer, so that
//! none has the faster disk; and a scratch directory for mountpoints, logs and trees. Both are gone
//! at the end.

use anyhow::{Context as _, ensure};
use rustix::fs::{FsWord, statfs};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const TMPFS_MAGIC: FsWord = 0x0102_1994;
const EXT_MAGIC: FsWord = 0xEF53;
/// Where the kernel's shared memory is, a tmpfs on nearly every machine.
const SHARED_MEMORY: &str = "/dev/shm";

/// Kind of a file system, as far as the experiment cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tmpfs,
    Ext,
    Other,
}

/// The kind of the file system that holds `path`.
pub(crate) fn kind(path: &Path) -> Kind {
    match statfs(path).map(|fs| fs.f_type) {
        Ok(TMPFS_MAGIC) => Kind::Tmpfs,
        Ok(EXT_MAGIC) => Kind::Ext,
        _ => Kind::Other,
    }
}

/// The directories of a run.
#[derive(Debug)]
pub(crate) struct RunDirs {
    stores: TempDir,
    scratch: TempDir,
    shared: Option<TempDir>,
    kind: Kind,
}

impl RunDirs {
    /// Makes the directories, the stores' below `source` if that is given.
    ///
    /// # Errors
    /// If they cannot be made.
    pub(crate) fn new(source: Option<&Path>) -> anyhow::Result<Self> {
        let shared = Path::new(SHARED_MEMORY);
        let parent = match source {
            Some(given) => {
                ensure!(given.is_dir(), "--source {}: not a directory", given.display());
                given.canonicalize()?
            }
            None if kind(shared) == Kind::Tmpfs => shared.to_owned(),
            None => std::env::temp_dir().canonicalize()?,
        };
        let make = |parent: &Path| {
            tempfile::Builder::new()
                .prefix("watertight-lab.")
                .tempdir_in(parent)
                .with_context(|| format!("cannot make a directory in {}", parent.display()))
        };
        Ok(Self {
            stores: make(&parent)?,
            scratch: make(&std::env::temp_dir().canonicalize()?)?,
            shared: if kind(shared) == Kind::Tmpfs { Some(make(shared)?) } else { None },
            kind: kind(&parent),
        })
    }

    /// A new directory for files that a target serves.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn store(&self, name: &str) -> anyhow::Result<PathBuf> {
        make_dir(self.stores.path().join(name))
    }

    /// The kind of file system that the stores are on.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The directory for everything that is not served.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A new directory to mount on.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn mountpoint(&self, name: &str) -> anyhow::Result<PathBuf> {
        make_dir(self.scratch.path().join(format!("mnt-{name}")))
    }

    /// A directory in the kernel's shared memory, if that is a tmpfs; gone with the others.
    pub(crate) fn shared_memory(&self, name: &str) -> Option<anyhow::Result<PathBuf>> {
        let shared = self.shared.as_ref()?;
        Some(make_dir(shared.path().join(name)))
    }

    /// For the reader of the result: where the files lie and what a successful fdatasync means
    /// there.
    pub(crate) fn note(&self) -> String {
        let parent = self.stores.path().parent().unwrap_or(Path::new("/")).display();
        match self.kind {
            Kind::Tmpfs => format!(
                "Directory stores and the directories of all peers but ext4 are on tmpfs ({parent}). Durability there: none; \
                 `randwrite-4k-fdatasync` is the way to the store and back, not a disk. On ext4 it is the disk."
            ),
            Kind::Ext => format!(
                "Directory stores and the directories of all peers but tmpfs are on ext4 ({parent}). Durability of \
                 `randwrite-4k-fdatasync`: on the disk, as far as ext4 and the disk keep their word."
            ),
            Kind::Other => format!(
                "Directory stores and the directories of all peers are in {parent}. Durability of \
                 `randwrite-4k-fdatasync`: what that file system gives."
            ),
        }
    }
}

fn make_dir(path: PathBuf) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_gone_with_the_place() {
        let parent = tempfile::tempdir().unwrap();
        let dirs = RunDirs::new(Some(parent.path())).unwrap();
        let (store, mountpoint) = (dirs.store("one").unwrap(), dirs.mountpoint("one").unwrap());
        assert!(
            store.starts_with(parent.path().canonicalize().unwrap()) && store.is_dir() && mountpoint.is_dir()
        );
        assert!(dirs.note().contains(&*parent.path().canonicalize().unwrap().to_string_lossy()));
        drop(dirs);
        assert!(!store.exists() && !mountpoint.exists());
    }

    #[test]
    fn a_source_that_is_not_a_directory_is_refused() {
        let error = RunDirs::new(Some(Path::new("/dev/null"))).unwrap_err();
        assert!(error.to_string().contains("--source /dev/null"), "{error}");
    }
}
