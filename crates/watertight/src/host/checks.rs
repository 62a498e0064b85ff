//! Checks of a source and a mountpoint before anything is mounted: each mistake has a message of
//! its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fuse::MountpointError;

use crate::host::mountinfo::MountTable;
use crate::host::unmount;
use crate::object_volumes;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, in_one_line};

/// A store as a person named it, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// For [`store::open`], and the name in `status`: a directory by its real path.
    pub spec: String,
    /// The directory of this host that has its bytes, if there is one.
    pub directory: Option<PathBuf>,
    /// The canonical URL of a volume on object storage.
    pub url: Option<String>,
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
                return Ok(Source { spec: given.to_owned(), directory: None, url: None });
            };
            let inner = source(inner)?;
            Ok(Source { spec: format!("fault:{rules},{}", inner.spec), ..inner })
        }
        _ if object_volumes::looks_like(given) => object_volume(given),
        Some(("dir", path)) => directory(path),
        // The stores themselves judge everything else that has the form of a store's name.
        Some((scheme, _)) if scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) => {
            Ok(Source { spec: given.to_owned(), directory: None, url: None })
        }
        _ => directory(given),
    }
}

/// The source without the stores around it that only fail.
#[must_use]
pub fn innermost(spec: &str) -> &str {
    match spec.split_once(':') {
        Some(("fault", rest)) => rest.split_once(',').map_or(spec, |(_, inner)| innermost(inner)),
        _ => spec,
    }
}

/// The name by which a checked source is one store, for every volume of this host: a directory, or
/// a canonical URL. None for memory: each name of that means a new store.
#[must_use]
pub fn identity_of(spec: &str) -> Option<&str> {
    let inner = innermost(spec);
    let is_memory = || inner.starts_with("memory:");
    (inner.starts_with("dir:") || object_volumes::looks_like(inner) && !is_memory()).then_some(inner)
}

/// The URL of the volume on object storage that a name means, if it has the form of one.
#[must_use]
pub fn url_of(name: &str) -> Option<String> {
    let inner = innermost(name);
    object_volumes::looks_like(inner).then(|| object_volumes::canonical(inner).ok())?
}

/// The directory of this host that has the bytes of a checked source.
#[must_use]
pub fn directory_of(spec: &str) -> Option<PathBuf> {
    let inner = innermost(spec);
    if object_volumes::looks_like(inner) {
        return object_volumes::directory(inner);
    }
    plain_directory_of(inner).map(PathBuf::from)
}

/// The directory of a checked source whose files are those of the volume.
#[must_use]
pub fn plain_directory_of(spec: &str) -> Option<&str> {
    innermost(spec).strip_prefix("dir:")
}

fn object_volume(given: &str) -> Result<Source> {
    let url = object_volumes::canonical(given)?;
    // As it is, where it is not there: opening the volume says so.
    let directory = object_volumes::directory(&url).map(|given| fs::canonicalize(&given).unwrap_or(given));
    Ok(Source { spec: url.clone(), directory, url: Some(url) })
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
    Ok(Source { spec: format!("dir:{text}"), directory: Some(directory), url: None })
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
        let good = Source { spec: format!("dir:{text}"), directory: Some(real.clone()), url: None };
        assert_eq!(source(text).unwrap(), good);
        assert_eq!(source(&format!("dir:{text}/.")).unwrap(), good);
        assert_eq!(source("mem:").unwrap().directory, None);
        let fault = source(&format!("fault:write:delay=1ms,{text}/")).unwrap();
        assert_eq!(fault.spec, format!("fault:write:delay=1ms,dir:{text}"));
        assert_eq!(fault.directory, Some(real.clone()));
        for spec in [&fault.spec, &good.spec] {
            assert_eq!(directory_of(spec), Some(real.clone()));
            assert_eq!(plain_directory_of(spec), Some(text));
            assert_eq!(identity_of(spec), Some(&*good.spec));
        }
        assert_eq!((directory_of("mem:"), identity_of("mem:")), (None, None));

        fs::write(real.join("file"), "").unwrap();
        assert!(said(source(&format!("{text}/none"))).contains("does not exist"));
        assert!(said(source(&format!("{text}/file"))).contains("is not a directory"));
        assert!(said(source(&format!("{text}/file/x"))).contains("a part of the path"));
        assert!(said(source(&format!("fault:,{text}/none"))).contains("does not exist"));
        assert!(said(source("")).contains("empty"));
    }

    #[cfg(feature = "objects")]
    #[test]
    fn a_volume_on_object_storage_has_one_name() {
        for (given, url) in [
            ("s3://bucket/a/b", "s3://bucket/a/b"),
            ("s3://bucket//a/b/", "s3://bucket/a/b"),
            ("fault:write:hang,s3://bucket/a/b/", "s3://bucket/a/b"),
        ] {
            let source = source(given).unwrap();
            assert_eq!(source.url.as_deref(), Some(url));
            assert_eq!(source.directory, None);
            assert_eq!(identity_of(&source.spec), Some(url));
            assert_eq!(url_of(given).as_deref(), Some(url));
            assert_eq!((directory_of(&source.spec), plain_directory_of(&source.spec)), (None, None));
        }
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let file = source(&format!("file://{}/", real.to_str().unwrap())).unwrap();
        assert_eq!(file.spec, format!("file://{}", real.to_str().unwrap()));
        assert_eq!(file.directory, Some(real.clone()));
        assert_eq!((directory_of(&file.spec), plain_directory_of(&file.spec)), (Some(real), None));
        assert_eq!(identity_of(&source("memory://x").unwrap().spec), None);
        assert_eq!(url_of("/srv/data"), None);
        for wrong in
            ["s3://", "ftp://host/x", "s3://user:secret@bucket/a", "s3://bucket/a?key=secret", "file:///"]
        {
            assert!(!said(source(wrong)).contains("secret"), "{wrong}");
        }
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
