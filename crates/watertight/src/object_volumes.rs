//! Volumes on object storage, where this program is built with them: the only way to the crate
//! `objects`, which is the cargo feature of that name.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::{Error, Store};

use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, in_one_line};

/// What `s3://…` gets from a program that is built without.
#[cfg(not(feature = "objects"))]
const ABSENT: &str = "this watertight is built without volumes on object storage (cargo feature `objects`)";

/// Other stores whose names could be followed by `//`.
const OTHER_STORES: [&str; 3] = ["dir", "mem", "fault"];

/// The operation in which reading a key file fails.
#[cfg(feature = "objects")]
const KEY_FILE: &str = "key file";

/// Whether a source is meant as the URL of a volume, rightly or wrongly: `WORD://`, of a word that
/// names no other store.
#[must_use]
pub fn looks_like(source: &str) -> bool {
    source.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
            && !OTHER_STORES.contains(&scheme)
    })
}

/// Whether a volume is in the memory of the process that opens it, so that each name of it means a
/// new one.
#[must_use]
pub fn is_memory(url: &str) -> bool {
    url.starts_with("memory://")
}

/// The one name of the volume that a URL names, by which it is known. Asks no server.
///
/// # Errors
/// Exit 2: what is wrong with it.
#[cfg(feature = "objects")]
pub fn canonical(url: &str) -> Result<String> {
    objects::canonical(url).map_err(|error| Problem::usage(in_one_line(&format!("source {}", words(&error)))))
}

/// Fails: this program is built without.
#[cfg(not(feature = "objects"))]
pub fn canonical(_url: &str) -> Result<String> {
    Err(absent())
}

/// The directory of this host that a canonical `file://` URL names.
#[must_use]
pub fn directory(url: &str) -> Option<PathBuf> {
    #[cfg(feature = "objects")]
    return objects::directory(url);
    #[cfg(not(feature = "objects"))]
    return url.strip_prefix("file://").map(PathBuf::from);
}

/// The options of a mount that only such volumes have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectOptions {
    /// Take the volume from a holder that does not answer.
    pub takeover: bool,
    /// How often it is looked for what others have committed, of one that is only read.
    pub follow: Option<std::time::Duration>,
    /// The host whose journal may be given up.
    pub abandon: Option<String>,
    /// The snapshot to show.
    pub snapshot: Option<String>,
    /// The file with the key.
    pub key_file: Option<PathBuf>,
    /// The directory of the disk cache.
    pub disk_cache: Option<PathBuf>,
    /// The most bytes that the volume's part of it takes.
    pub disk_cache_bytes: Option<u64>,
    /// The directory of the journal.
    pub journal: Option<PathBuf>,
    /// An fsync returns when the journal has it.
    pub fsync_to_host: bool,
    /// A change returns when the journal's files have it.
    pub accept_to_host: bool,
    /// The most bytes of the journal.
    pub journal_size: Option<u64>,
}

/// What a disk cache takes that was not given a bound.
#[cfg(feature = "objects")]
const DISK_CACHE_BYTES: u64 = 10 << 30;

/// Opens the volume, which is to be seen at `mountpoint`.
///
/// # Errors
/// Those of the store.
#[cfg(feature = "objects")]
pub(crate) fn open(
    url: &str,
    options: &ObjectOptions,
    read_only: bool,
    mountpoint: &Path,
) -> store::Result<Arc<dyn Store>> {
    // One in memory is this process's own, and not read by others.
    let read_only = read_only && !is_memory(url);
    if is_memory(url) {
        // It is this process's own, which has made it already if it was attached before.
        let made = objects::format(url, &objects::FormatOptions::default()).map(drop);
        made.or_else(|error| if error.kind() == store::ErrorKind::Exists { Ok(()) } else { Err(error) })?;
    }
    objects::open(url, &objects::OpenOptions { read_only, ..open_options(options, mountpoint) })
}

/// Opens the volume as the program before in this process has left it: see [`check_reopening`]. Or as
/// another process that has died: then `journal_lock` is its lock on the journal.
///
/// # Errors
/// Those of the store.
#[cfg(feature = "objects")]
pub(crate) fn resume(
    url: &str,
    options: &ObjectOptions,
    mountpoint: &Path,
    handed: &store::NumberedState,
    journal_lock: Option<Arc<OwnedFd>>,
) -> store::Result<Arc<dyn Store>> {
    let options = open_options(options, mountpoint);
    // Nobody's journal is given up twice.
    let handed = Some(handed.clone());
    let (takeover, abandon) = (false, None);
    objects::open(url, &objects::OpenOptions { handed, journal_lock, takeover, abandon, ..options })
}

/// Fails: this program is built without.
#[cfg(not(feature = "objects"))]
pub(crate) fn resume(
    _url: &str,
    _options: &ObjectOptions,
    _mountpoint: &Path,
    _handed: &store::NumberedState,
    _journal_lock: Option<Arc<OwnedFd>>,
) -> store::Result<Arc<dyn Store>> {
    Err(Error::with(store::ErrorKind::Unsupported, "open store", ABSENT))
}

/// Whether a bucket that gave this error may answer otherwise later, if nobody changes anything.
pub(crate) fn may_answer_later(error: &Error) -> bool {
    use store::ErrorKind::{AccessDenied, Io, TimedOut};
    matches!(error.kind(), Io | TimedOut | AccessDenied)
}

/// Whether another program in this process will be able to open the volume, and this one if that one
/// is not: nothing that is not there any more is needed for it.
///
/// # Errors
/// Why not, in words.
pub(crate) fn check_reopening(url: &str, options: &ObjectOptions) -> std::result::Result<(), String> {
    if is_memory(url) {
        return Err("it is in the memory of this program".to_owned());
    }
    for directory in options.disk_cache.iter().chain(&options.journal) {
        std::fs::metadata(directory).map_err(|error| format!("{}: {error}", directory.shown()))?;
    }
    #[cfg(feature = "objects")]
    objects::check_key(url, options.key_file.as_deref())
        .map_err(|error| in_one_line(words(&error)).to_string())?;
    Ok(())
}

#[cfg(feature = "objects")]
fn open_options(options: &ObjectOptions, mountpoint: &Path) -> objects::OpenOptions {
    let ObjectOptions {
        takeover,
        follow,
        abandon,
        snapshot,
        key_file,
        disk_cache,
        disk_cache_bytes,
        journal,
        fsync_to_host,
        accept_to_host,
        journal_size,
    } = options.clone();
    let bytes_max = disk_cache_bytes.unwrap_or(DISK_CACHE_BYTES);
    let disk_cache = disk_cache.map(|dir| objects::DiskCacheOptions { dir, bytes_max });
    let journal = journal.map(|directory| objects::JournalOptions {
        directory,
        size_max: journal_size,
        is_fsync_target: fsync_to_host,
        is_accept_target: accept_to_host,
    });
    let mountpoint = crate::term::shown::exact(mountpoint);
    objects::OpenOptions {
        mountpoint,
        takeover,
        abandon,
        read_only: false,
        follow,
        snapshot,
        key_file,
        disk_cache,
        journal,
        handed: None,
        journal_lock: None,
    }
}

/// Fails: this program is built without.
#[cfg(not(feature = "objects"))]
pub(crate) fn open(
    _url: &str,
    _options: &ObjectOptions,
    _read_only: bool,
    _mountpoint: &Path,
) -> store::Result<Arc<dyn Store>> {
    Err(Error::with(store::ErrorKind::Unsupported, "open store", ABSENT))
}

/// What is at a canonical URL, in words; changes nothing.
///
/// # Errors
/// Why it cannot be mounted.
#[cfg(feature = "objects")]
pub(crate) fn look(url: &str) -> Result<String> {
    let info = objects::info(url, None).map_err(|error| problem(url, &error))?;
    let encrypted = if info.encrypted { "an encrypted volume" } else { "a volume" };
    let holder = info.holder.map_or_else(
        || "nobody holds it".to_owned(),
        |holder| format!("process {} of host {} holds it", holder.pid, in_one_line(&holder.host)),
    );
    Ok(format!("{} answers: {encrypted}, made {}; {holder}", url.shown(), in_one_line(&info.created)))
}

/// Fails: this program is built without.
#[cfg(not(feature = "objects"))]
pub(crate) fn look(_url: &str) -> Result<String> {
    Err(absent())
}

/// Why a volume can be neither opened, made nor described, in plain words.
pub(crate) fn problem(url: &str, error: &Error) -> Problem {
    let words = in_one_line(words(error));
    #[cfg(feature = "objects")]
    if error.op() == KEY_FILE {
        return Problem::usage(format!("key file: {words}"));
    }
    let words = if words.contains(url) { words } else { format!("{}: {words}", url.shown()) };
    match error.kind() {
        store::ErrorKind::Invalid => Problem::usage(words),
        _ => Problem::failure(words),
    }
}

/// An error's own words, without the operation's name, which means nothing to a person.
pub(crate) fn words(error: &Error) -> &str {
    error.detail().unwrap_or("it cannot be used")
}

/// Why nothing of it works here.
#[cfg(not(feature = "objects"))]
pub(crate) fn absent() -> Problem {
    Problem::failure(ABSENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_told_from_a_path_and_from_other_stores() {
        for url in ["s3://bucket", "S3://bucket/a", "ftp://x", "file:///a", "az://c/p:q"] {
            assert!(looks_like(url), "{url}");
        }
        for other in [
            "/srv/s3://x",
            "./s3://x",
            "s3:bucket",
            "://x",
            "dir://srv",
            "mem://",
            "fault:a,s3://b/c",
            "1://x",
            "",
        ] {
            assert!(!looks_like(other), "{other}");
        }
    }
}
