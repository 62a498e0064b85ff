//! The volume that a person means: by mountpoint, store or id.
//!
//! A path is compared as text first and its last part is never looked up on a mount: a server that
//! hangs must not hang `umount --force`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::control::api::Status;
use crate::control::client::{CallError, Client};
use crate::control::volume_id::VolumeId;
use crate::host::mountinfo::{self, Device, Mount, MountTable};
use crate::host::{checks, spawn_for_result};
use crate::registry::{Found, Record, RuntimeDir};
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Name, Show as _, Shown, exact};

/// How long a process may take to list its attached volumes.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a server may take to look up a path.
const SERVER: Duration = Duration::from_secs(1);

/// A volume of the registry.
#[derive(Debug)]
pub struct RegisteredVolume {
    /// The directory that knows it.
    pub dir: RuntimeDir,
    /// Its record, and the way to its process.
    pub found: Found,
}

impl RegisteredVolume {
    /// The record.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.found.record
    }

    /// Whether it has no mount of its own: it is attached to the mountpoint of another.
    #[must_use]
    pub const fn is_attached(&self) -> bool {
        self.found.record.attached_to.is_some()
    }

    /// Whether its process runs and can be asked.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.found.client.is_some()
    }

    /// The way to its process.
    ///
    /// # Errors
    /// Why there is none.
    pub fn client(&self) -> Result<&Client> {
        self.found.client.as_ref().ok_or_else(|| self.died())
    }

    /// Why there is no way to its process, which is gone or cannot be asked.
    #[must_use]
    pub fn died(&self) -> Problem {
        let record = self.record();
        if let Some(why) = &self.found.silent {
            return Problem::failure(format!(
                "{}: its process ({}) cannot be asked: {why}; how much is not written is unknown",
                record.mountpoint, record.pid
            ));
        }
        Problem::failure(format!(
            "{}: its process ({}) died before everything was written; {}",
            record.mountpoint,
            record.pid,
            record.left_by_death()
        ))
    }

    /// Whether it may be the volume of this mount: for another user's, only that user's mounts, by
    /// the kernel's word.
    fn may_be_at(&self, mount: &Mount) -> bool {
        self.record().device == Device::of(mount)
            && (!self.dir.is_foreign() || mountinfo::is_ours(mount) && mount.owner == Some(self.dir.uid()))
    }

    /// The volume now; none if its process is gone.
    ///
    /// # Errors
    /// When its process does not answer as it should.
    pub fn status(&self) -> Result<Option<Status>, CallError> {
        match &self.found.client {
            None => Ok(None),
            Some(client) => match client.status() {
                Ok(status) => Ok(Some(status)),
                Err(CallError::Gone) => Ok(None),
                Err(error) => Err(error),
            },
        }
    }
}

/// The thing that a name led to.
#[derive(Debug, Default)]
pub struct Target {
    /// The mount there, of any maker.
    pub mount: Option<Mount>,
    /// Our volume.
    pub volume: Option<RegisteredVolume>,
    /// The name as a path: absolute, symbolic links resolved up to the last part. Not where no
    /// volume has it and its server does not answer.
    pub path: Option<PathBuf>,
}

/// All volumes that are checked: this user's own, then the running ones, the newest first.
#[must_use]
pub fn volumes() -> Vec<RegisteredVolume> {
    crate::host::process::raise_descriptors();
    let mut all: Vec<RegisteredVolume> = RuntimeDir::readable()
        .into_iter()
        .flat_map(|dir| {
            dir.volumes().into_iter().map(move |found| RegisteredVolume { dir: dir.clone(), found })
        })
        .collect();
    newest_first(&mut all);
    all
}

/// Volumes found by the indices of the registries.
fn found(find: impl Fn(&RuntimeDir) -> Vec<Found>) -> Vec<RegisteredVolume> {
    let mut all: Vec<RegisteredVolume> = Vec::new();
    for dir in RuntimeDir::readable() {
        all.extend(find(&dir).into_iter().map(|found| RegisteredVolume { dir: dir.clone(), found }));
    }
    all
}

/// The running volumes that a name may mean: an id, a mountpoint, a store. However many others
/// there are.
#[must_use]
pub fn running(name: &OsStr) -> Vec<RegisteredVolume> {
    candidates(name, plain_path(name).as_deref())
}

/// The volumes whose stores are directories around or below this one.
#[must_use]
pub fn nested(store: &Path) -> Vec<RegisteredVolume> {
    found(|dir| dir.nested(store))
}

fn candidates(name: &OsStr, path: Option<&Path>) -> Vec<RegisteredVolume> {
    let mut all = found(|dir| dir.at(&exact(name), path));
    all.retain(RegisteredVolume::is_running);
    newest_first(&mut all);
    all
}

fn newest_first(volumes: &mut [RegisteredVolume]) {
    // Another user's records never come before this user's own.
    volumes.sort_by_key(|volume| {
        (volume.dir.is_foreign(), !volume.is_running(), std::cmp::Reverse(volume.record().started_ms))
    });
}

/// Finds the mount and the volume that `name` means.
#[must_use]
pub fn resolve(name: &OsStr) -> Target {
    let (table, path) = (MountTable::read(), absolute(name));
    let known = choose(name, path.clone(), &table, candidates(name, path.as_deref()));
    if known.volume.is_some() {
        return known;
    }
    let (path, is_seen) = path.map_or((None, true), look_at);
    let known = choose(name, path.clone(), &table, candidates(name, path.as_deref()));
    if known.volume.is_some() {
        return known;
    }
    // The index does not know volumes that ended, nor mounts that a user moved; an id is found all
    // the same.
    let by_id: Option<VolumeId> = name.to_str().and_then(|id| id.parse().ok());
    let ended = found(|dir| by_id.as_ref().and_then(|id| dir.find(id)).into_iter().collect());
    let known = choose(name, path.clone(), &table, if ended.is_empty() { volumes() } else { ended });
    if known.volume.is_none() && known.mount.is_none() && path.as_deref().is_some_and(is_attached_at) {
        return choose(name, path.clone(), &table, candidates(name, path.as_deref()));
    }
    Target { path: known.path.filter(|_| is_seen), ..known }
}

/// Asks the process whose mountpoint `path` lies in whether a volume is attached there. The process
/// updates the paths of its volumes' records, which a rename above them may have changed.
fn is_attached_at(path: &Path) -> bool {
    let client = mounted_around(path).and_then(|(volume, _)| volume.found.client);
    let all = client.and_then(|client| client.within(PATIENCE).attached().ok()).unwrap_or_default();
    all.iter().any(|status| Path::new(&status.mountpoint) == path)
}

fn choose(
    name: &OsStr,
    path: Option<PathBuf>,
    table: &MountTable,
    mut volumes: Vec<RegisteredVolume>,
) -> Target {
    let mut take = |wanted: &dyn Fn(&RegisteredVolume) -> bool| {
        let index = volumes.iter().position(wanted)?;
        Some(volumes.swap_remove(index))
    };

    if let Some(id) = name.to_str()
        && let Some(volume) = take(&|volume| volume.record().id == *id)
    {
        let mount = mount_of(&volume, table);
        return Target { mount, volume: Some(volume), path: None };
    }
    let mount = path.as_deref().and_then(|path| table.at(path)).cloned();
    if let Some(mount) = mount {
        let volume = take(&|volume| is_served_at(volume, &mount))
            .or_else(|| take(&|volume| mountinfo::is_ours(&mount) && is_unfinished(volume, &mount)));
        // A mount over a directory that is also a store (not ours): the store may be meant.
        if volume.is_some() || mountinfo::is_ours(&mount) {
            return Target { mount: Some(mount), volume, path };
        }
        let volume = path.as_deref().and_then(|path| take(&|volume| names(volume, name, path)));
        let own = volume.as_ref().and_then(|volume| mount_of(volume, table));
        return Target { mount: own.or(Some(mount)), volume, path };
    }
    let volume = match path.as_deref() {
        Some(path) => take(&|volume| names(volume, name, path)),
        None => name.to_str().and_then(checks::url_of).and_then(|url| take(&|volume| has_url(volume, &url))),
    };
    let mount = volume.as_ref().and_then(|volume| mount_of(volume, table));
    Target { mount, volume, path }
}

/// Finds the volume that `path` lies in, for a path that need not be a mountpoint, and the mount
/// that it lies in.
#[must_use]
pub fn containing(path: &Path) -> Option<(RegisteredVolume, Option<Mount>)> {
    let table = MountTable::read();
    let mount = table.containing(path)?;
    let of_mount = |volume: &RegisteredVolume| {
        volume.is_running()
            && volume.may_be_at(mount)
            && (!volume.is_attached() || path.starts_with(volume.record().mountpoint.as_path()))
    };
    // The volume that is attached deepest has the path.
    let depth = |volume: &RegisteredVolume| {
        if volume.is_attached() { volume.record().mountpoint.as_str().len() } else { 0 }
    };
    let near = found(|dir| dir.around(path)).into_iter().filter(of_mount).max_by_key(depth);
    let volume = near.or_else(|| volumes().into_iter().filter(of_mount).max_by_key(depth))?;
    Some((volume, Some(mount.clone())))
}

/// The mount at a path, which is resolved without asking a server that does not answer.
#[must_use]
pub fn mount_at(name: &OsStr) -> Option<Mount> {
    let table = MountTable::read();
    let path = absolute(name)?;
    table.at(&path).cloned().or_else(|| table.at(&look_at(path).0?).cloned())
}

/// The problem, where `path` lies in a mount of ours that another user's process serves.
#[must_use]
pub fn of_another_user(path: &Path) -> Option<Problem> {
    let table = MountTable::read();
    let mount = table.containing(path).filter(|mount| mountinfo::is_ours(mount))?;
    (!mountinfo::is_for_this_user(mount)).then(|| not_to_be_asked(path.shown(), mount))
}

/// Why nothing is known of a mount of ours.
#[must_use]
pub fn not_to_be_asked(name: Shown<'_>, mount: &Mount) -> Problem {
    let at = mount.mountpoint.shown();
    if rustix::process::geteuid().is_root() {
        let whose = mount.owner.map_or_else(|| "another user".to_owned(), |user| format!("user {user}"));
        return Problem::failure(format!(
            "{name}: a volume of {whose} is mounted at {at}; with --all-users root asks the user's process"
        ));
    }
    Problem::failure(format!(
        "{name}: a volume is mounted at {at}, by a process that only its own user and root may ask"
    ))
}

/// The volume whose own mountpoint `path` lies in, and its mount.
#[must_use]
pub fn mounted_around(path: &Path) -> Option<(RegisteredVolume, Mount)> {
    let table = MountTable::read();
    let mount = table.containing(path).filter(|mount| mountinfo::is_ours(mount))?;
    let is_it = |volume: &RegisteredVolume| is_served_at(volume, mount);
    let near = candidates(OsStr::new("/"), Some(&mount.mountpoint)).into_iter().find(is_it);
    Some((near.or_else(|| volumes().into_iter().find(is_it))?, mount.clone()))
}

fn is_served_at(volume: &RegisteredVolume, mount: &Mount) -> bool {
    volume.is_running() && !volume.is_attached() && volume.may_be_at(mount)
}

/// The path that leads to a running volume; none if there is none.
fn mount_of(volume: &RegisteredVolume, table: &MountTable) -> Option<Mount> {
    if !volume.is_running() || volume.is_attached() {
        return None;
    }
    let record = volume.record();
    let mut mounts: Vec<&Mount> =
        table.iter().filter(|mount| mountinfo::is_ours(mount) && volume.may_be_at(mount)).collect();
    mounts.sort_by_key(|mount| record.mountpoint != Name::of(&mount.mountpoint));
    mounts.first().map(|&mount| mount.clone())
}

/// Whether the volume was served at `mount` by a process that was killed.
fn is_unfinished(volume: &RegisteredVolume, mount: &Mount) -> bool {
    let record = volume.record();
    record.ended.is_none()
        && record.attached_to.is_none()
        && volume.may_be_at(mount)
        && record.mountpoint == Name::of(&mount.mountpoint)
}

/// Whether `name` means a volume without a mount at `path`. Another user's records may be untrue
/// about paths: that user's volumes are found by the mounts that the kernel knows, or by their ids.
fn names(volume: &RegisteredVolume, name: &OsStr, path: &Path) -> bool {
    let record = volume.record();
    if volume.dir.is_foreign() {
        let table = MountTable::read();
        let is_below = table.containing(path).is_some_and(|mount| volume.may_be_at(mount));
        return volume.is_attached() && is_below && record.mountpoint.as_path() == path;
    }
    let path = exact(path);
    record.mountpoint == path
        || record.source == exact(name)
        || checks::directory_of(record.source.as_str()).is_some_and(|dir| dir == Path::new(&path))
}

/// Whether the volume's store has this canonical URL. Another user's records may be untrue about
/// that.
fn has_url(volume: &RegisteredVolume, url: &str) -> bool {
    !volume.dir.is_foreign() && checks::identity_of(volume.record().source.as_str()) == Some(url)
}

/// `name` as an absolute path whose directories are resolved; the last part is resolved only if it
/// is a symbolic link. As it stands, if a running volume has that path, or where its directories
/// are on a server that does not answer.
#[must_use]
pub fn plain_path(name: &OsStr) -> Option<PathBuf> {
    let path = absolute(name)?;
    let is_named = |volume: &RegisteredVolume| names(volume, path.as_os_str(), &path);
    if candidates(path.as_os_str(), Some(&path)).iter().any(is_named) {
        return Some(path);
    }
    look_at(path).0
}

/// `name` as a path, without any look-up. None: it is empty, or the URL of a store.
fn absolute(name: &OsStr) -> Option<PathBuf> {
    if name.to_str().is_some_and(|name| checks::url_of(name).is_some()) {
        return None;
    }
    let name = name.as_bytes();
    let name = Path::new(OsStr::from_bytes(name.strip_prefix(b"dir:").unwrap_or(name)));
    Some(std::path::absolute(name).ok()?.components().collect())
}

/// A path with its directories resolved, and whether that was done in time: if not, the path is as
/// it was.
fn look_at(path: PathBuf) -> (Option<PathBuf>, bool) {
    let same = path.clone();
    // Not waited for: it may hang as long as that server does.
    match spawn_for_result("path", move || resolved(&same)) {
        Ok(found) => found.recv_timeout(SERVER).map_or((Some(path), false), |path| (path, true)),
        Err(_) => (resolved(&path), true),
    }
}

fn resolved(absolute: &Path) -> Option<PathBuf> {
    let (Some(parent), Some(Component::Normal(last))) =
        (absolute.parent(), absolute.components().next_back())
    else {
        return fs::canonicalize(absolute).ok();
    };
    let path = fs::canonicalize(parent).map_or_else(|_| absolute.to_owned(), |parent| parent.join(last));
    // Reading the link asks no server, as looking at its target would.
    if fs::read_link(&path).is_ok() { fs::canonicalize(&path).ok() } else { Some(path) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_are_made_plain_without_looking_at_their_end() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(real.join("a")).unwrap();
        symlink(real.join("a"), real.join("link")).unwrap();
        let plain = |name: PathBuf| plain_path(name.as_os_str()).unwrap();
        assert_eq!(plain(real.join("a")), real.join("a"));
        assert_eq!(plain(real.join("a/")), real.join("a"));
        assert_eq!(plain(real.join("link")), real.join("a"));
        assert_eq!(plain(real.join("link/missing")), real.join("a/missing"));
        assert_eq!(plain(real.join("missing/deeper")), real.join("missing/deeper"));
        assert_eq!(plain(PathBuf::from("/")), Path::new("/"));
        let mut spec = std::ffi::OsString::from("dir:");
        spec.push(&real);
        assert_eq!(plain(spec.into()), real);
    }
}
