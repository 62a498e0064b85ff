//! `attach`, `detach`, `move`: volumes in directories of a mounted one.
//!
//! The mount process does the work; this module finds which one, and builds its request.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::ended;
use crate::cli::opts::{self, MountOptions, of_the_mountpoint};
use crate::cli::{AttachArgs, MoveArgs, UmountArgs};
use crate::control::api::{AttachRequest, DetachReply, DetachRequest, MoveRequest, UmountKind};
use crate::control::client::CallError;
use crate::control::progress;
use crate::control::volume_id::VolumeId;
use crate::host::{checks, process};
use crate::registry::target::{self, RegisteredVolume};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Name, Show as _, exact};

/// A place inside a mountpoint of ours.
struct MountedPath {
    volume: RegisteredVolume,
    /// From the mountpoint on.
    inside: String,
    /// As a person writes it.
    path: PathBuf,
    /// The mountpoint, which may be one of several of the volume.
    mountpoint: PathBuf,
}

impl MountedPath {
    fn find(given: &OsStr) -> Result<Self> {
        let shown = given.shown();
        let none = || {
            Problem::usage(format!(
                "{shown} is not inside a mounted Watertight volume; `watertight status` lists the volumes"
            ))
        };
        let path = target::plain_path(given).ok_or_else(none)?;
        let (volume, mount) = target::mounted_around(&path).ok_or_else(none)?;
        let inside = path.strip_prefix(&mount.mountpoint).unwrap_or(Path::new(""));
        let Some(inside) = inside.to_str().map(str::to_owned) else {
            return Err(Problem::usage(format!(
                "{shown} is not UTF-8, which paths inside a volume have to be"
            )));
        };
        if inside.is_empty() {
            return Err(Problem::usage(format!(
                "{shown} is the mountpoint itself: give a directory inside it; `watertight umount` unmounts it"
            )));
        }
        Ok(Self { volume, inside, path, mountpoint: mount.mountpoint })
    }

    fn mountpoint(&self) -> Option<String> {
        self.mountpoint.to_str().map(str::to_owned)
    }

    fn failed(&self, error: &CallError) -> Problem {
        Problem::failure(format!("{}: {error}", self.path.shown()))
    }
}

/// Runs `attach`.
///
/// # Errors
/// Exit 2 for an invalid place or volume, 1 for a failure.
pub fn attach(args: &AttachArgs) -> Result<()> {
    MountOptions::parse(&args.options)?;
    if let Some(option) = args.options.iter().find_map(|list| of_the_mountpoint(list)) {
        return Err(Problem::usage(format!(
            "option {option} is the mountpoint's, not a volume's; give it to `watertight mount`"
        )));
    }
    let place = MountedPath::find(args.path.as_os_str())?;
    let AttachSource { source, volume, from } = source_of(&args.volume, &place)?;
    if from.is_some() && !args.options.is_empty() {
        return Err(Problem::usage(
            "a directory that is shown in a second place has no options of its own: leave out -o",
        ));
    }
    if let Some(source) = &source {
        opts::fit(&args.options, source)?;
    }
    let (path, options) = (place.inside.clone(), args.options.clone());
    let request = AttachRequest { path, source, volume, from, options, mountpoint: place.mountpoint() };
    let reply = place.volume.client()?.attach(&request, None).map_err(|error| place.failed(&error))?;
    let given = args.volume.shown();
    let id = reply.id.map_or_else(String::new, |id| format!(" (volume {id})"));
    console().print(&format!("{given} is attached at {}{id}", reply.mountpoint));
    Ok(())
}

/// The volume or directory to be attached: one of these.
#[derive(Default)]
struct AttachSource {
    source: Option<String>,
    volume: Option<VolumeId>,
    from: Option<String>,
}

/// A store, a volume of the same process, or a directory inside the same mountpoint. A path means
/// the thing that it leads to now; a volume that was there once is named by its id or its store.
fn source_of(given: &OsStr, place: &MountedPath) -> Result<AttachSource> {
    let text = given.to_str().ok_or_else(|| Problem::usage("the volume's name is not UTF-8"))?;
    let of_store = |source: String| AttachSource { source: Some(source), ..AttachSource::default() };
    let is_meant = |volume: &RegisteredVolume| {
        let is_at =
            target::plain_path(given).is_some_and(|path| Path::new(&volume.record().mountpoint) == path);
        !is_at || !volume.is_attached()
    };
    let path = match target::running(given).into_iter().find(is_meant) {
        // An id, a mountpoint, or a store that is in use.
        Some(volume) if volume.record().pid != place.volume.record().pid => {
            return Err(other_process(text, &volume.record().mountpoint));
        }
        Some(volume) if volume.record().id == *text && volume.is_attached() => {
            return Ok(AttachSource { volume: Some(volume.record().id.clone()), ..AttachSource::default() });
        }
        Some(volume) if volume.is_attached() => {
            return Ok(of_store(volume.record().source.as_str().to_owned()));
        }
        Some(volume) => PathBuf::from(&volume.record().mountpoint),
        None => match target::plain_path(given).filter(|path| path.is_dir()) {
            Some(path) => path,
            None => return Ok(of_store(checks::source(text)?.spec)),
        },
    };
    match target::mounted_around(&path) {
        Some((around, mount)) if around.record().id == place.volume.record().id => {
            if mount.mountpoint != place.mountpoint {
                let meant = place.mountpoint.shown();
                return Err(Problem::usage(format!(
                    "{text} is inside another mountpoint of the same volume: give its path inside {meant}"
                )));
            }
            let inside = path.strip_prefix(&mount.mountpoint).unwrap_or(Path::new(""));
            if inside.as_os_str().is_empty() {
                let at = mount.mountpoint.shown();
                return Err(Problem::usage(format!(
                    "{text} is the volume of the mountpoint {at} itself, whose files are there already; a directory of it can \
                     be shown in a second place: `watertight attach {at}/DIRECTORY PATH`"
                )));
            }
            Ok(AttachSource { from: Some(exact(inside)), ..AttachSource::default() })
        }
        Some((around, _)) => Err(other_process(text, &around.record().mountpoint)),
        None => Ok(of_store(checks::source(text)?.spec)),
    }
}

fn other_process(given: impl std::fmt::Display, mountpoint: &Name) -> Problem {
    Problem::usage(format!(
        "{given} is served by another mount process, at {mountpoint}: it can be attached only there; \
         unmount it first, or use mount(8) with --bind"
    ))
}

/// Runs `detach`.
///
/// # Errors
/// Exit 2 when nothing is attached there, 1 when it is held, cannot be written, or lost data.
pub fn detach(args: &UmountArgs) -> Result<()> {
    let attached = |volume: &RegisteredVolume| volume.is_attached() && volume.is_running();
    let known = target::resolve(&args.path).volume.filter(attached);
    let mut meant = None;
    let path = match &known {
        // By its id or its store: it is at the path of its record, which a rename above it may have
        // changed.
        Some(volume) if target::plain_path(&args.path) != Some(volume.record().mountpoint.clone().into()) => {
            meant = Some(volume.record().id.clone());
            let status = volume.status().map_err(|error| Problem::failure(error.to_string()))?;
            status.map_or_else(|| volume.record().mountpoint.clone(), |status| status.mountpoint).into()
        }
        _ => args.path.clone(),
    };
    let place = MountedPath::find(&path)?;
    process::leave_directory();
    let client = place.volume.client()?;
    let how = args.how();
    let request =
        DetachRequest { path: place.inside.clone(), how, volume: meant, mountpoint: place.mountpoint() };
    let what = format!("detaching {}", place.path.shown());
    // The kernel has no dirty data of a file that is neither open nor mapped: it hands it over with
    // each close(2) and munmap(2). (syncfs(2) would wait for all volumes of the mountpoint.)
    let shown = known.as_ref().and_then(|volume| volume.found.client.as_ref()).unwrap_or(client);
    let reply = progress::during(&what, shown, || client.detach(&request, None));
    report(&place, how, reply.map_err(|error| place.failed(&error))?)
}

fn report(place: &MountedPath, how: UmountKind, reply: DetachReply) -> Result<()> {
    let path = place.path.shown();
    if let Some(ended) = &reply.ended {
        return ended::report_as(
            "detached",
            reply.source.as_ref().map_or_else(|| "its store".to_owned(), Name::to_string),
            path,
            ended,
        );
    }
    if !reply.is_held {
        console().print(&format!("{path}: detached"));
        return Ok(());
    }
    let lines = reply.holders.lines().join("\n  ");
    if how == UmountKind::Plain {
        return Err(Problem::failure(format!(
            "{path} is busy (EBUSY); it is held by\n  {lines}\n\
             `watertight detach --lazy {path}` removes the path now and writes the data afterwards"
        )));
    }
    console().print(&format!("{path}: the path is gone, the volume is still held by\n  {lines}"));
    if let Some(id) = reply.id {
        console().print(&format!(
            "its data is being written: `watertight wait {id}` returns when it is on the store"
        ));
    }
    Ok(())
}

/// Runs `move`.
///
/// # Errors
/// Exit 2 for invalid places, 1 for a failure; then nothing was changed.
pub fn move_to(args: &MoveArgs) -> Result<()> {
    let (from, to) = (MountedPath::find(args.from.as_os_str())?, MountedPath::find(args.to.as_os_str())?);
    if from.volume.record().id != to.volume.record().id || from.mountpoint != to.mountpoint {
        return Err(Problem::usage(format!(
            "{} and {} are in two mountpoints; detach it here and attach it there",
            from.path.shown(),
            to.path.shown()
        )));
    }
    let mountpoint = from.mountpoint();
    let request = MoveRequest { from: from.inside.clone(), to: to.inside.clone(), mountpoint };
    let reply = from.volume.client()?.move_to(&request).map_err(|error| from.failed(&error))?;
    console().print(&format!("{} is at {} now", from.path.shown(), reply.mountpoint));
    Ok(())
}
