//! Checks of a source and a mountpoint before anything is mounted: each mistake has a message of
//! its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fuse::MountpointError;

use crate::host::mountinfo::MountTable;
use crate::host::unmount;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, in_one_line};

/// A store as a person named it, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// For [`store::open`], and the name in `status`: a directory by its real path.
    pub spec: String,
    /// The directory, if it is one.
    pub directory: Option<PathBuf>,
}

/// Checks the store's name; a directory must exist.
///
/// # Errors
/// Exit 2, naming what is wrong with it; exit 1 where only the permission to reach it is missing.
pub fn source(given: &str) -> Result<Source> {
    match given.split_once(':') {
        // A store around another one.
        Some(("fault", rest)) => {
            let Some((rules, inner)) = rest.split_once(',') else {
                return Ok(Source { spec: given.to_owned(), directory: None });
            };
            let inner = source(inner)?;
            Ok(Source { spec: format!("fault:{rules},{}", inner.spec), directory: inner.directory })
        }
        Some(("dir", path)) => directory(path),
        // The stores themselves judge everything else that has the form of a store's name.
        Some((scheme, _)) if scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) => {
            Ok(Source { spec: given.to_owned(), directory: None })
        }
        _ => directory(given),
    }
}

/// The directory that a checked source names.
#[must_use]
pub fn directory_of(spec: &str) -> Option<&str> {
    match spec.split_once(':')? {
        ("dir", path) => Some(path),
        ("fault", rest) => directory_of(rest.split_once(',')?.1),
        _ => None,
    }
}

fn directory(path: &str) -> Result<Source> {
    if path.is_empty() {
        return Err(Problem::usage("the source is empty; give a directory, or mem:"));
    }
    let shown = path.shown();
    let wrong = |what: &str| Problem::usage(format!("source {shown} {what}"));
    let meta = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => wrong("does not exist; make the directory first"),
        io::ErrorKind::NotADirectory => wrong("cannot be reached: a part of the path is not a directory"),
        io::ErrorKind::PermissionDenied => {
            Problem::failure(format!("no permission to use the store {shown}: it cannot be reached"))
        }
        _ => wrong(&format!("cannot be reached: {error}")),
    })?;
    if !meta.is_dir() {
        return Err(wrong("is not a directory"));
    }
    let directory = fs::canonicalize(path).map_err(|error| wrong(&format!("cannot be reached: {error}")))?;
    let Some(text) = directory.to_str() else { return Err(wrong("cannot be named: its path is not UTF-8")) };
    Ok(Source { spec: format!("dir:{text}"), directory: Some(directory) })
}

/// Checks the mountpoint: an empty directory where nothing is mounted. Gives its real path.
///
/// # Errors
/// Exit 2, naming what is wrong with it.
pub fn mountpoint(given: &Path) -> Result<PathBuf> {
    let shown = given.shown();
    fuse::check_mountpoint(given).map_err(|error| {
        let advice = match &error {
            MountpointError::Missing(_) => "make an empty directory first".to_owned(),
            MountpointError::NotEmpty(_) => first_entry(given)
                .map_or_else(String::new, |name| format!("it has {name}; choose an empty directory")),
            MountpointError::AlreadyMounted(_) | MountpointError::Dead(_) if unmount::is_dead(given) => {
                format!("its server is gone: `watertight umount {shown}` clears it")
            }
            MountpointError::AlreadyMounted(_) => match fs::canonicalize(given) {
                Ok(path) => MountTable::read().at(&path).map_or_else(String::new, |mount| {
                    format!(
                        "{} ({}); unmount that, or choose another directory",
                        mount.source.shown(),
                        mount.fstype.shown()
                    )
                }),
                Err(error) => error.to_string(),
            },
            _ => String::new(),
        };
        let advice = if advice.is_empty() { advice } else { format!(": {advice}") };
        Problem::usage(format!("{}{advice}", in_one_line(&error.to_string())))
    })
}

fn first_entry(dir: &Path) -> Option<String> {
    let entry = fs::read_dir(dir).ok()?.next()?.ok()?;
    Some(entry.file_name().shown().to_string())
}

/// Checks that neither of the two directories, both real paths, lies in the other.
///
/// # Errors
/// Exit 2, saying which in which.
pub fn apart(source: &Path, mountpoint: &Path) -> Result<()> {
    let (from, to) = (source.shown(), mountpoint.shown());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::problem::Exit;

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
        let fault = source(&format!("fault:write:delay=1ms,{text}/")).unwrap();
        assert_eq!(fault.spec, format!("fault:write:delay=1ms,dir:{text}"));
        assert_eq!(fault.directory, Some(real.clone()));
        assert_eq!(directory_of(&fault.spec), Some(text));
        assert_eq!(directory_of(&good.spec), Some(text));
        assert_eq!(directory_of("mem:"), None);

        fs::write(real.join("file"), "").unwrap();
        assert!(said(source(&format!("{text}/none"))).contains("does not exist"));
        assert!(said(source(&format!("{text}/file"))).contains("is not a directory"));
        assert!(said(source(&format!("{text}/file/x"))).contains("a part of the path"));
        assert!(said(source(&format!("fault:,{text}/none"))).contains("does not exist"));
        assert!(said(source("")).contains("empty"));
    }

    #[test]
    fn mountpoints_must_be_empty_directories() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(mountpoint(dir.path()).unwrap(), real);
        assert!(said(mountpoint(&real.join("none"))).contains("does not exist: make an empty directory"));
        fs::write(real.join("file"), "").unwrap();
        assert!(said(mountpoint(&real)).contains("is not empty: it has file"));
        assert!(said(mountpoint(&real.join("file"))).contains("is not a directory"));
        assert!(said(mountpoint(Path::new("/proc"))).contains("already: proc (proc)"));
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
