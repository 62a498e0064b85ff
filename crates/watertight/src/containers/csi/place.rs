//! A path that a call names, held by a descriptor of the directory that it is in: whatever is renamed
//! or linked after the look at the path, what is made, mounted and removed is in that directory.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, mkdirat, openat, openat2, statx, unlinkat,
};
use rustix::io::Errno;

use super::failure::{Failure, Result};
use crate::term::shown::Show as _;

/// A name in a directory.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    dir: OwnedFd,
    name: OsString,
}

impl Place {
    /// Opens the directory of a path below `root`, and follows no link below it.
    ///
    /// # Errors
    /// There is no such directory.
    pub(super) fn open(root: &Path, path: &Path) -> Result<Self> {
        let refused = |why: &dyn std::fmt::Display| {
            Failure::not_ready(format!("{}: its directory cannot be used: {why}", path.shown()))
        };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused(&"it has none"));
        };
        let below = parent.strip_prefix(root).map_err(|_| refused(&"it lies elsewhere"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat2(CWD, root, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let base = base.map_err(|error| refused(&error))?;
        let dir = if below.as_os_str().is_empty() {
            base
        } else {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            openat2(&base, below, flags, Mode::empty(), resolve).map_err(|error| refused(&error))?
        };
        Ok(Self { path: path.to_owned(), dir, name: name.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a symbolic link. The server of a mount that is there is not asked.
    pub(super) fn is_link(&self) -> bool {
        let look = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
        statx(&self.dir, &self.name, look, StatxFlags::TYPE)
            .is_ok_and(|found| FileType::from_raw_mode(found.stx_mode.into()) == FileType::Symlink)
    }

    /// The directory of this name, which is made if it is not there.
    ///
    /// # Errors
    /// Something else is there; the kernel's.
    pub(super) fn make_dir(&self) -> io::Result<OwnedFd> {
        match mkdirat(&self.dir, &self.name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.dir, &self.name, flags, Mode::empty())?)
    }

    /// Removes the directory of this name, if it is there.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn remove_dir(&self) -> io::Result<()> {
        match unlinkat(&self.dir, &self.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_put_in_the_place_of_a_directory_gets_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        for name in ["pods", "outside"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let place = Place::open(&root, &root.join("pods/mount")).unwrap();
        fs::rename(root.join("pods"), root.join("moved")).unwrap();
        symlink(root.join("outside"), root.join("pods")).unwrap();
        place.make_dir().unwrap();
        assert!(root.join("moved/mount").is_dir() && !root.join("outside/mount").exists());
        fs::create_dir(root.join("outside/mount")).unwrap();
        place.remove_dir().unwrap();
        place.remove_dir().unwrap();
        assert!(!root.join("moved/mount").exists() && root.join("outside/mount").exists());
        // A link is neither on the way nor at its end.
        assert!(Place::open(&root, &root.join("pods/mount")).is_err());
        symlink(root.join("outside"), root.join("moved/mount")).unwrap();
        assert!(place.is_link() && place.make_dir().is_err());
        assert!(Place::open(&root, &root.join("none/mount")).is_err());
        assert!(Place::open(&root, Path::new("/etc/mount")).is_err());
        assert!(!Place::open(&root, &root.join("moved")).unwrap().is_link());
    }
}
