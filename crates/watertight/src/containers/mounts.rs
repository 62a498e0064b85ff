//! A volume at a directory that only this program uses: what is there, mounting it, unmounting it.
//!
//! The kernel's mount table and the registry of mount processes are asked each time, and nothing is
//! remembered: a mount process may have been killed, and a person may have unmounted.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use super::program::{self, Launch};
use crate::control::api::Status;
use crate::host::holders::{self, HoldKind};
use crate::host::mountinfo::{self, Mount};
use crate::registry::target::{self, RegisteredVolume, Target};
use crate::term::shown::Show as _;

/// How long a mount may take, after which its process is ended: a store that does not answer must
/// not keep one for each attempt.
const MOUNT_MAX: Duration = Duration::from_secs(600);
/// How long a mount waits for an earlier one of the same volume that some process still holds.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(90);
/// A mount's log that is longer than this is set aside at the next mount.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// How long a mount process may take to say how it is.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// What is at a directory.
pub(super) enum Mounted {
    /// Nothing.
    No,
    /// A volume, and its process answers.
    Running(Mount, RegisteredVolume),
    /// The mount of a process that is gone, or that cannot be asked.
    Dead,
    /// No path leads to the volume any more, but its process still has it.
    Leaving(RegisteredVolume),
}

impl Mounted {
    /// Looks.
    ///
    /// # Errors
    /// There is a mount of another kind.
    pub(super) fn at(path: &Path) -> Result<Self, String> {
        let Target { mount, volume, path: resolved } = target::resolve(path.as_os_str());
        let is_here = |at: &Path| at == path || resolved.as_deref().is_some_and(|resolved| at == resolved);
        // Not what is found by its store, nor another mount of the same volume.
        let mount = mount.filter(|mount| is_here(&mount.mountpoint));
        let running = volume.filter(|volume| {
            let is_its_own = is_here(volume.record().mountpoint.as_path());
            volume.is_running() && !volume.is_attached() && (mount.is_some() || is_its_own)
        });
        match (mount, running) {
            (Some(mount), _) if !mountinfo::is_ours(&mount) => Err(format!(
                "{} is a mountpoint of type {}, not of a Watertight volume; unmount it with umount(8)",
                path.shown(),
                mount.fstype.shown()
            )),
            (Some(mount), Some(volume)) => Ok(Self::Running(mount, volume)),
            (Some(_), None) => Ok(Self::Dead),
            (None, Some(volume)) => Ok(Self::Leaving(volume)),
            (None, None) => Ok(Self::No),
        }
    }

    /// How the volume is, if its process says so in time.
    pub(super) fn status(&self) -> Option<Status> {
        match self {
            Self::Running(_, volume) | Self::Leaving(volume) => {
                volume.found.client.as_ref()?.status_within(STATUS_TIMEOUT).ok()
            }
            Self::No | Self::Dead => None,
        }
    }
}

/// Mounts `source` at `path`, unless it is there already. The mount is served by a process in the
/// background, which logs to `log`.
///
/// # Errors
/// Why not.
pub(super) fn mount(
    launch: &Launch,
    source: &str,
    options: &str,
    path: &Path,
    log: &Path,
) -> Result<(), String> {
    match Mounted::at(path)? {
        Mounted::Running(..) => return Ok(()),
        Mounted::Dead => {
            // What was lost was said when it was found: this caller goes on.
            let said = unmount_at(path, launch.real_path).err().unwrap_or_default();
            tracing::warn!(volume = %path.shown().exact(), said, "cleared the mount of a process that is gone");
        }
        Mounted::Leaving(volume) => wait(&volume, Some(LEAVE_TIMEOUT))?,
        Mounted::No => {}
    }
    let mut arguments: Vec<OsString> = vec!["mount".into(), "-d".into(), "--log-file".into(), log.into()];
    if launch.real_path {
        arguments.push("--no-links".into());
    } else {
        make_mountpoint(path)?;
    }
    set_aside(log);
    if !options.is_empty() {
        arguments.extend(["-o".into(), options.into()]);
    }
    arguments.extend(["--".into(), source.into(), path.into()]);
    program::run_as(launch, &arguments, Some(MOUNT_MAX))
}

/// Makes the directory, unless it is there. One with files in it is not hidden by a mount: they would be
/// lost to who wrote them.
fn make_mountpoint(path: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_empty = fs::read_dir(path).map(|mut entries| entries.next().is_none());
            match is_empty {
                Ok(true) => Ok(()),
                Ok(false) => Err(strange_files(path)),
                Err(error) => Err(format!("cannot read the mountpoint {}: {error}", path.shown())),
            }
        }
        made => made.map_err(|error| format!("cannot make the mountpoint {}: {error}", path.shown())),
    }
}

/// Unmounts what is at `path`, which may be a real one that no link is followed from; returns when
/// its data is on its store and the store is free, however long that takes.
///
/// # Errors
/// Why it is still there, or what was lost.
pub(super) fn unmount(path: &Path, is_real: bool) -> Result<(), String> {
    match Mounted::at(path)? {
        Mounted::No => Ok(()),
        Mounted::Running(..) => unmount_at(path, is_real).map_err(|why| with_data_safe(why, path)),
        Mounted::Dead => unmount_at(path, is_real),
        Mounted::Leaving(volume) => wait(&volume, None),
    }
}

/// A volume that stays, because processes hold it, has its data written all the same.
fn with_data_safe(why: String, path: &Path) -> String {
    if !matches!(Mounted::at(path), Ok(Mounted::Running(..))) {
        return why;
    }
    match write(path) {
        Ok(()) => format!("{why}; what was written so far is on its store"),
        Err(error) => format!("{why}; and its data could not be written: {error}"),
    }
}

/// Writes all data of the volume at `path` to its store.
///
/// # Errors
/// Why not.
pub(super) fn write(path: &Path) -> Result<(), String> {
    program::run(&["sync".as_ref(), "--".as_ref(), path.as_os_str()], None)
}

/// Unmounts, and removes the mountpoint: also where the unmount says what was lost. What is a mere
/// directory of the host must not be taken for the volume.
///
/// # Errors
/// As [`unmount`].
pub(super) fn remove(path: &Path) -> Result<(), String> {
    let unmounted = unmount(path, false);
    if unmounted.is_err() && !matches!(Mounted::at(path), Ok(Mounted::No)) {
        return unmounted;
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            unmounted.and(Err(strange_files(path)))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            unmounted.and(Err(format!("cannot remove the mountpoint {}: {error}", path.shown())))
        }
        _ => unmounted,
    }
}

/// What was written while nothing was mounted.
fn strange_files(path: &Path) -> String {
    format!(
        "the mountpoint {} has files in it that were written while no volume was mounted there; move them away",
        path.shown()
    )
}

fn unmount_at(path: &Path, is_real: bool) -> Result<(), String> {
    let mut arguments: Vec<&OsStr> = vec!["umount".as_ref()];
    arguments.extend(is_real.then_some(OsStr::new("--no-links")));
    arguments.extend(["--".as_ref(), path.as_os_str()]);
    program::run(&arguments, None)
}

/// Waits for the end of a volume without a path.
fn wait(volume: &RegisteredVolume, patience: Option<Duration>) -> Result<(), String> {
    let mut arguments = vec!["wait".to_owned()];
    arguments.extend(patience.map(|patience| format!("--timeout={}", patience.as_secs())));
    arguments.extend(["--".to_owned(), volume.record().id.to_string()]);
    program::run(&arguments, None)
}

/// Whether the volume at `path` is in use: a process has something of it open, or it is mounted in
/// another place, as in the mount namespace of a container.
pub(super) fn is_held(mount: &Mount) -> bool {
    let elsewhere = holders::mounts(mount);
    // A search that fails proves nothing.
    elsewhere.direct().next().is_some()
        || holders::of(mount).map_or(true, |held| {
            held.direct().next().is_some() || held.found.iter().any(|one| one.how == HoldKind::Namespace)
        })
}

/// Keeps a log from growing for ever: each mount may add to it.
fn set_aside(log: &Path) {
    if fs::symlink_metadata(log).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        let _grows_on = fs::rename(log, log.with_extension("log.old"));
    }
}
