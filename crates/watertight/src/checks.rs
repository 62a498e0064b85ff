//! What can be said about a source and a mountpoint before anything is mounted: each thing that is
//! wrong has its own message.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use store::ErrorKind;

use crate::mountinfo::MountTable;
use crate::problem::{Problem, Result};
use crate::unmount::is_in_path;

/// The device through which a file system is served.
const DEV_FUSE: &str = "/dev/fuse";

/// A store as a person named it, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// For [`store::open`], and the name in `status`.
    pub spec: String,
    /// The directory, if it is one.
    pub directory: Option<PathBuf>,
}

/// Checks the store's name; a directory must exist.
///
/// # Errors
/// Exit 2, naming what is wrong with it.
pub fn source(given: &str) -> Result<Source> {
    let scheme =
        given.split_once(':').filter(|(scheme, _)| !scheme.is_empty() && !scheme.contains(['/', '.']));
    let (prefix, path) = match scheme {
        Some(("dir", path)) => ("dir:".to_owned(), path),
        Some(("mem", "")) => return Ok(Source { spec: given.to_owned(), directory: None }),
        Some(("mem", _)) => {
            return Err(Problem::usage(format!("source {given}: a memory store is named just mem:")));
        }
        // fault:WHAT:INNER wraps another store.
        Some(("fault", rest)) => {
            let (what, inner) = rest.split_once(':').unwrap_or((rest, ""));
            let inner = source(inner)?;
            return Ok(Source { spec: format!("fault:{what}:{}", inner.spec), directory: inner.directory });
        }
        Some((scheme, _)) if !Path::new(given).exists() => {
            return Err(Problem::usage(format!(
                "source {given}: there is no kind of store {scheme}; give a directory (dir:PATH or just PATH), or mem:"
            )));
        }
        _ => ("dir:".to_owned(), given),
    };
    if path.is_empty() {
        return Err(Problem::usage("the source is empty; give a directory, or mem:"));
    }
    let meta = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Problem::usage(format!("source {path} does not exist; make the directory first"))
        }
        io::ErrorKind::NotADirectory => {
            Problem::usage(format!("source {path}: a part of the path is not a directory"))
        }
        io::ErrorKind::PermissionDenied => {
            Problem::usage(format!("source {path}: no permission to reach it"))
        }
        _ => Problem::usage(format!("source {path}: {error}")),
    })?;
    if !meta.is_dir() {
        return Err(Problem::usage(format!("source {path} is not a directory")));
    }
    let directory =
        fs::canonicalize(path).map_err(|error| Problem::usage(format!("source {path}: {error}")))?;
    let Some(text) = directory.to_str() else {
        return Err(Problem::usage(format!("source {}: its path is not UTF-8", directory.display())));
    };
    Ok(Source { spec: format!("{prefix}{text}"), directory: Some(directory) })
}

/// Checks the mountpoint: an empty directory where nothing is mounted. Gives its real path.
///
/// # Errors
/// Exit 2, naming what is wrong with it.
pub fn mountpoint(given: &Path) -> Result<PathBuf> {
    let shown = given.display();
    let wrong = |what: &str| Problem::usage(format!("mountpoint {shown} {what}"));
    let table = MountTable::read().map_err(|error| Problem::failure(format!("the mount table: {error}")))?;
    let path = fs::canonicalize(given).map_err(|error| match error.raw_os_error() {
        // ENOTCONN: its server died.
        Some(107) => {
            wrong(&format!("is a mount whose server is gone; `watertight umount {shown}` clears it"))
        }
        _ => match error.kind() {
            io::ErrorKind::NotFound => wrong("does not exist; make an empty directory first"),
            io::ErrorKind::NotADirectory => wrong("cannot be reached: a part of the path is not a directory"),
            io::ErrorKind::PermissionDenied => wrong("cannot be reached: no permission"),
            _ => wrong(&format!("cannot be reached: {error}")),
        },
    })?;
    if let Some(mount) = table.at(&path) {
        let what = format!("{} ({})", mount.source.to_string_lossy(), mount.fs_type);
        return Err(wrong(&format!("is already mounted: {what}; unmount that, or choose another directory")));
    }
    let meta = fs::metadata(&path).map_err(|error| wrong(&format!("cannot be looked at: {error}")))?;
    if !meta.is_dir() {
        return Err(wrong("is not a directory"));
    }
    let mut entries = fs::read_dir(&path).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    if let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        return Err(wrong(&format!(
            "is not empty: it has {}; choose an empty directory",
            name.to_string_lossy()
        )));
    }
    Ok(path)
}

/// Checks that neither of the two directories, both real paths, lies in the other.
///
/// # Errors
/// Exit 2, saying which in which.
pub fn apart(source: &Path, mountpoint: &Path) -> Result<()> {
    let (from, to) = (source.display(), mountpoint.display());
    if source == mountpoint {
        return Err(Problem::usage(format!("source and mountpoint are the same directory, {from}")));
    }
    if mountpoint.starts_with(source) {
        return Err(Problem::usage(format!(
            "mountpoint {to} lies inside the source {from}; choose one outside"
        )));
    }
    if source.starts_with(mountpoint) {
        return Err(Problem::usage(format!(
            "source {from} lies inside the mountpoint {to}, which would hide it"
        )));
    }
    Ok(())
}

/// Checks that this host and this user can serve a file system at all.
///
/// # Errors
/// Exit 1, naming what is missing and what would help.
pub fn fuse() -> Result<()> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEV_FUSE) {
        return Err(Problem::failure(match error.kind() {
            io::ErrorKind::NotFound => {
                format!(
                    "{DEV_FUSE} does not exist: load the kernel's FUSE module (modprobe fuse), or give the container the device"
                )
            }
            io::ErrorKind::PermissionDenied => {
                format!(
                    "no permission to open {DEV_FUSE}: run as root, or let root make it accessible (chmod 666 {DEV_FUSE})"
                )
            }
            _ => format!("{DEV_FUSE} cannot be opened: {error}"),
        }));
    }
    if !rustix::process::geteuid().is_root() && !is_in_path(OsStr::new("fusermount3")) {
        return Err(Problem::failure(
            "without root, mounting needs the program fusermount3, which is not in PATH (Debian: apt-get install fuse3)",
        ));
    }
    Ok(())
}

/// Who has the directory `dir` in use as a store, in words; none if nobody.
#[must_use]
pub fn store_holder(dir: &Path) -> Option<String> {
    match store::open(&format!("dir:{}", dir.display())) {
        Ok(store) => {
            store.close();
            None
        }
        Err(error) if error.kind() == ErrorKind::Busy => Some(error.to_string()),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Exit;

    fn said<T: std::fmt::Debug>(result: Result<T>) -> String {
        let problem = result.unwrap_err();
        assert_eq!(problem.exit(), Exit::Usage);
        problem.to_string()
    }

    #[test]
    fn sources_are_made_canonical_or_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let text = real.to_str().unwrap();
        let good = Source { spec: format!("dir:{text}"), directory: Some(real.clone()) };
        assert_eq!(source(text).unwrap(), good);
        assert_eq!(source(&format!("dir:{text}/.")).unwrap(), good);
        assert_eq!(source("mem:").unwrap().directory, None);
        let fault = source(&format!("fault:delay=1ms:{text}/")).unwrap();
        assert_eq!(
            fault,
            Source { spec: format!("fault:delay=1ms:dir:{text}"), directory: Some(real.clone()) }
        );

        fs::write(real.join("file"), "").unwrap();
        assert!(said(source(&format!("{text}/none"))).contains("does not exist"));
        assert!(said(source(&format!("{text}/file"))).contains("is not a directory"));
        assert!(said(source(&format!("{text}/file/x"))).contains("a part of the path"));
        assert!(said(source("s3:bucket")).contains("no kind of store s3"));
        assert!(said(source("mem:x")).contains("just mem:"));
        assert!(said(source("")).contains("empty"));
    }

    #[test]
    fn mountpoints_must_be_empty_directories() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(mountpoint(dir.path()).unwrap(), real);
        assert!(said(mountpoint(&real.join("none"))).contains("does not exist"));
        fs::write(real.join("file"), "").unwrap();
        assert!(said(mountpoint(&real)).contains("is not empty: it has file"));
        assert!(said(mountpoint(&real.join("file"))).contains("is not a directory"));
        assert!(said(mountpoint(Path::new("/proc"))).contains("is already mounted: proc (proc)"));
    }

    #[test]
    fn source_and_mountpoint_lie_apart() {
        let apart = |a: &str, b: &str| super::apart(Path::new(a), Path::new(b));
        apart("/a/b", "/a/bc").unwrap();
        assert!(said(apart("/a", "/a")).contains("the same"));
        assert!(said(apart("/a", "/a/m")).contains("lies inside the source"));
        assert!(said(apart("/m/s", "/m")).contains("lies inside the mountpoint"));
    }
}
