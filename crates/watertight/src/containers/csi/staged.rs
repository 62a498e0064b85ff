//! What a node does with a volume, in its turn. All of this blocks, on threads of its own.
//!
//! The kernel's mount table and the registry of mount processes are asked each time, and nothing is
//! remembered: a driver that was killed at any point, or replaced, finds what there is.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use csi_proto::tonic::Code;
use rustix::fs::statvfs;

use super::allowed::NodeOptions;
use super::bind;
use super::capability::Access;
use super::failure::{Failure, Result};
use super::held::Held;
use super::ids::{Prefixes, digest, host_path, url_of};
use super::place::Place;
use super::pod_limits::{CgroupLimits, POD_LIMITS};
use super::targets::Targets;
use super::unmounting::{self, End};
use crate::cli::opts;
use crate::containers::credentials::Credentials;
use crate::containers::mounts::{self, Mounted};
use crate::containers::program::{self, Launch};
use crate::host::checks;
use crate::host::mountinfo::{Device, Mount, MountTable, is_ours};
use crate::host::unmount;
use crate::registry::target::{self, RegisteredVolume, Target};
use crate::term::shown::{Show as _, exact};

/// What a static or ephemeral volume's attributes may be; others are those of sidecars.
pub const ATTRIBUTES: [&str; 2] = ["type", "path"];
const OF_SIDECARS: [&str; 2] = ["csi.storage.k8s.io/", "storage.kubernetes.io/"];

/// The last part of the paths where kubelet has volumes staged.
const STAGING: &str = "globalmount";
/// Paths that a message names.
const NAMED_MAX: usize = 10;

/// What all of a node's volumes have.
#[derive(Debug)]
pub(super) struct Host {
    /// The directory below which volumes are staged and published: as it was given, and without
    /// links.
    pub(super) root: (PathBuf, PathBuf),
    pub(super) prefixes: Prefixes,
    /// The directories of this host below which volumes may be.
    pub(super) directories: Vec<PathBuf>,
    /// What mounts may use of this host.
    pub(super) options: NodeOptions,
    pub(super) logs: PathBuf,
    /// Where the directories of ephemeral volumes are mounted.
    pub(super) bases: PathBuf,
    /// Where the locks of staging paths are.
    pub(super) held: PathBuf,
    /// Which bases pods' paths show.
    pub(super) targets: Targets,
    /// The command that runs a mount process outside of this one's cgroup.
    pub(super) wrapper: Vec<OsString>,
}

/// What a volume rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A volume on object storage.
    Url(String),
    /// A directory of this host, not looked at yet.
    Directory(PathBuf),
}

/// How a volume is shown to a pod.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) read_only: bool,
    pub(super) limits: Option<CgroupLimits>,
}

impl Shown {
    /// Shows it, with the pod's limits set before, unless it is shown there already.
    fn show(&self, mount: &Mount, volume: &RegisteredVolume, place: &Place) -> Result<()> {
        if let Some(limits) = &self.limits {
            let client = volume.client().map_err(|problem| Failure::not_ready(problem.to_string()))?;
            let table = MountTable::read();
            let there = table.at(place.path());
            let is_new = there.is_none_or(|there| Device::of(there) != Device::of(mount));
            limits.apply(client, is_new)?;
        }
        bind::show(mount, place, self.read_only)
    }
}

impl Host {
    /// A path that a call names: as the kernel's table would have it.
    ///
    /// # Errors
    /// It is not below the root.
    pub(super) fn path(&self, what: &str, path: &str) -> Result<PathBuf> {
        let (given, real) = &self.root;
        let path = host_path(what, path, given)?;
        let rest = path.strip_prefix(given).map_err(|error| Failure::internal(error.to_string()))?;
        Ok(real.join(rest))
    }

    /// Where a path leads now: no link is on its way, and it is none. What is mounted there is not
    /// looked at.
    fn place(&self, path: &Path) -> Result<Place> {
        let place = Place::open(&self.root.1, path)?;
        if MountTable::read().at(path).is_none() && place.is_link() {
            return Err(Failure::not_ready(format!("{}: it is a symbolic link", path.shown())));
        }
        Ok(place)
    }

    /// What a volume rests on, by its id and its attributes.
    ///
    /// # Errors
    /// It is no volume of this driver's.
    pub(super) fn source(&self, id: &str, attributes: &HashMap<String, String>) -> Result<Source> {
        let is_known = |key: &str| {
            ATTRIBUTES.contains(&key)
                || POD_LIMITS.contains(&key)
                || OF_SIDECARS.iter().any(|prefix| key.starts_with(prefix))
        };
        if let Some(key) = attributes.keys().find(|key| !is_known(key)) {
            return Err(Failure::invalid(format!(
                "there is no attribute {key:?}; there are: {}, {}",
                ATTRIBUTES.join(", "),
                POD_LIMITS.join(", ")
            )));
        }
        match (attributes.get("type").map(String::as_str), attributes.get("path")) {
            (None | Some("object"), None) => self.prefixes.volume(id).map(Source::Url),
            (Some("directory"), Some(path)) => {
                host_path("attribute path", path, Path::new("/")).map(Source::Directory)
            }
            (Some("directory"), None) => {
                Err(Failure::invalid("the attribute path is missing: a directory of the node"))
            }
            (None | Some("object"), Some(_)) => {
                Err(Failure::invalid("the attribute path is for `type: directory`"))
            }
            (Some(other), _) => {
                Err(Failure::invalid(format!("attribute type: {other:?}: give object or directory")))
            }
        }
    }

    /// The name of the source for `mount`.
    fn spec(&self, source: &Source) -> Result<String> {
        match source {
            Source::Url(url) => Ok(url.clone()),
            Source::Directory(path) => self.directory(path).map(|path| format!("dir:{}", exact(path))),
        }
    }

    /// A directory that root may serve: below one that this driver was given, and no other user can
    /// put something else in its place.
    fn directory(&self, path: &Path) -> Result<PathBuf> {
        let refused = |why: &str| Failure::not_ready(format!("{}: {why}", path.shown()));
        let real = fs::canonicalize(path).map_err(|error| refused(&error.to_string()))?;
        let allowed = self.directories.iter().find_map(|allowed| {
            let allowed = fs::canonicalize(allowed).ok()?;
            // Not deeper: a volume's users, root in a container among them, may change what is in it.
            (real.parent() == Some(allowed.as_path())).then_some(allowed)
        });
        let Some(allowed) = allowed else {
            return Err(refused("it is not in a directory that this driver was given by --directory"));
        };
        let meta = fs::symlink_metadata(&allowed).map_err(|error| refused(&error.to_string()))?;
        if meta.uid() != 0 || meta.mode() & 0o022 != 0 {
            return Err(refused(&format!(
                "others than root can change {}, and with it what is mounted",
                allowed.shown()
            )));
        }
        Ok(real)
    }

    /// Mounts a volume at its staging path, unless it is there.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn stage(
        &self,
        source: &Source,
        access: &Access,
        path: &Path,
        credentials: Credentials,
    ) -> Result<()> {
        let place = self.place(path)?;
        if MountTable::read().at(path).is_none() {
            // The mount's process follows no link to it either.
            let made = place.make_dir();
            made.map_err(|error| Failure::not_ready(format!("{}: {error}", path.shown())))?;
        }
        self.mount(&self.held(path)?, source, access, path, credentials)
    }

    /// The lock of a staging path or a base.
    fn held(&self, path: &Path) -> Result<Held> {
        Held::take(self.held.join(format!("{:016x}", name_of(path))), path)
    }

    fn mount(
        &self,
        held: &Held,
        source: &Source,
        access: &Access,
        path: &Path,
        credentials: Credentials,
    ) -> Result<()> {
        let spec = self.spec(source)?;
        let options = access.options(matches!(source, Source::Url(_)), &self.options)?;
        opts::fit(&options, &spec).map_err(|problem| Failure::invalid(format!("mountOptions: {problem}")))?;
        if let Mounted::Running(mount, volume) = Mounted::at(path).map_err(Failure::not_ready)? {
            check_own(&volume, path)?;
            check_same(&mount, &volume, &spec, access)?;
            // An earlier driver may have been killed before it noted that.
            return if held.note().staged { Ok(()) } else { held.mounted() };
        }
        // Else nobody would be told any more.
        check_told(held)?;
        check_alone(path)?;
        held.begin(&spec, credentials == Credentials::default())?;
        let (wrapper, lock) = (self.wrapper.clone(), Some(held.share()?));
        let launch = Launch { credentials, wrapper, held: lock, real_path: true };
        let log = self.logs.join(format!("{:016x}.log", name_of(path)));
        mounts::mount(&launch, &spec, &options.join(","), path, &log).map_err(Failure::not_ready)?;
        held.mounted()
    }

    /// Unmounts the volume of this id at its staging path.
    ///
    /// # Errors
    /// Another volume is there; as [`unmount`](Self::unmount).
    pub(super) fn unstage(&self, id: &str, path: &Path) -> Result<()> {
        let held = self.held(path)?;
        check_told(&held)?;
        if !is_gone(path) {
            let _looked_at = self.place(path)?;
        }
        check_id_at(id, path)?;
        self.unmount(&held, path)?;
        held.remove();
        Ok(())
    }

    /// Unmounts what is at a path; returns when its data is on its store and the store is free. A
    /// process of its own does it, which goes on without this one.
    ///
    /// # Errors
    /// The volume is mounted elsewhere too, or a process holds it; or it is gone, and what was lost.
    fn unmount(&self, held: &Held, path: &Path) -> Result<()> {
        check_alone(path)?;
        if matches!(Mounted::at(path), Ok(Mounted::No)) {
            return check_ended(held, path);
        }
        let (wrapper, lock) = (self.wrapper.clone(), Some(held.share()?));
        let launch = Launch { wrapper, held: lock, ..Launch::default() };
        let arguments = ["csi-unmount".as_ref(), "--".as_ref(), path.as_os_str()];
        let Err(why) = program::run_as(&launch, &arguments, None) else { return Ok(()) };
        // It has written down what was lost.
        check_told(held)?;
        Err(Failure::not_ready(why))
    }

    /// A caller was told what was lost.
    pub(super) fn told(&self, path: &Path) {
        // Else the next call is answered with it as well.
        if let Ok(held) = self.held(path) {
            held.told();
        }
    }

    /// Stages a volume anew, where it was staged and nobody serves it any more.
    ///
    /// # Errors
    /// As [`mount`](Self::mount).
    pub(super) fn serve_again(
        &self,
        source: &Source,
        access: &Access,
        staged: &Path,
        credentials: Credentials,
    ) -> Result<()> {
        let held = self.held(staged)?;
        match Mounted::at(staged).map_err(Failure::not_ready)? {
            Mounted::Dead => self.stage_again(&held, source, access, staged, credentials),
            // An earlier call has taken the dead mount away and could not mount yet.
            Mounted::No if held.note().staged => self.stage_again(&held, source, access, staged, credentials),
            _ => Ok(()),
        }
    }

    /// Shows a staged volume at a pod's path.
    ///
    /// # Errors
    /// It is not staged.
    pub(super) fn publish(
        &self,
        source: &Source,
        (staged, target): (&Path, &Path),
        shown: &Shown,
    ) -> Result<()> {
        let place = self.place(target)?;
        check_target(target)?;
        let _held = self.held(staged)?;
        match Mounted::at(staged).map_err(Failure::not_ready)? {
            Mounted::Running(mount, volume) => {
                check_own(&volume, staged)?;
                let spec = self.spec(source)?;
                if checks::identity_of(volume.record().source.as_str()) != checks::identity_of(&spec) {
                    return Err(another(&volume, staged));
                }
                shown.show(&mount, &volume, &place)
            }
            Mounted::Dead => Err(Failure::not_ready(format!("{}: {}", staged.shown(), death(staged)))),
            Mounted::Leaving(_) | Mounted::No => {
                Err(Failure::not_ready(format!("no volume is staged at {}", staged.shown())))
            }
        }
    }

    /// Stages a volume anew whose process is gone: orchestrators do not, while they believe it staged.
    ///
    /// # Errors
    /// It needs keys that this call does not have; why it cannot be mounted.
    fn stage_again(
        &self,
        held: &Held,
        source: &Source,
        access: &Access,
        staged: &Path,
        credentials: Credentials,
    ) -> Result<()> {
        let _looked_at = self.place(staged)?;
        let at = staged.shown();
        if MountTable::read().at(staged).is_some() && !unmount::is_dead(staged) {
            let why = "the process that serves the volume cannot be asked; `watertight status` has more";
            return Err(Failure::not_ready(format!("{at}: {why}")));
        }
        let note = held.note();
        if checks::identity_of(&note.source) != checks::identity_of(&self.spec(source)?) {
            let before = &note.source;
            return Err(Failure::not_ready(format!("{at}: another volume was staged there, {before:?}")));
        }
        if credentials == Credentials::default() && !note.own_keys {
            return Err(Failure::not_ready(format!(
                "{at}: {}; it was staged with keys of its class, which publishing does not have: give the class \
                 csi.storage.k8s.io/node-publish-secret-name as well, or end all of the volume's pods on this node",
                death(staged)
            )));
        }
        tracing::warn!(volume = %at.exact(), "staged anew: the process that served it is gone");
        self.mount(held, source, access, staged, credentials)
    }

    /// Removes a pod's mount of the volume of this id.
    ///
    /// # Errors
    /// Another volume, or a staged one, is there; the kernel's.
    pub(super) fn unpublish(&self, id: &str, target: &Path) -> Result<()> {
        if is_gone(target) {
            return Ok(());
        }
        let place = self.place(target)?;
        check_target(target)?;
        check_id_at(id, target)?;
        bind::remove(&place)
    }

    /// Where the directory of an ephemeral volume is mounted, for all pods that have it.
    pub(super) fn base(&self, source: &Source) -> Result<PathBuf> {
        match source {
            Source::Directory(path) => Ok(self.bases.join(format!("{:016x}", name_of(path)))),
            Source::Url(_) => Err(Failure::invalid(
                "an ephemeral volume is a directory of the node (`type: directory`, `path`): who writes a pod is not to \
                 choose a bucket that the node's credentials open; use a PersistentVolumeClaim",
            )),
        }
    }

    /// Mounts the directory of an ephemeral volume at its base, unless it is there.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn serve_base(&self, source: &Source, access: &Access, base: &Path) -> Result<()> {
        // A pod that only reads does not decide for others.
        let access = Access { read_only: false, ..access.clone() };
        let held = self.held(base)?;
        if let Err(error) = DirBuilder::new().mode(0o700).create(base)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(Failure::internal(format!("cannot make the directory {}: {error}", base.shown())));
        }
        self.mount(&held, source, &access, base, Credentials::default())
    }

    /// Shows what is at a base at a pod's path. `false`: it has been released meanwhile.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn show_base(&self, base: &Path, target: &Path, shown: &Shown) -> Result<bool> {
        let place = self.place(target)?;
        check_target(target)?;
        let _held = self.held(base)?;
        match Mounted::at(base).map_err(Failure::not_ready)? {
            Mounted::Running(mount, volume) => {
                let name = exact(base.file_name().unwrap_or_default());
                let kept = self.targets.keep(target, &name);
                kept.map_err(|error| Failure::internal(format!("cannot keep the target path: {error}")))?;
                shown.show(&mount, &volume, &place).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// The base that a pod's path shows, or showed until an unpublishing that has not ended well yet.
    pub(super) fn base_of(&self, target: &Path) -> Option<PathBuf> {
        let table = MountTable::read();
        let shown = table.at(target).and_then(|there| {
            table.of_device(Device::of(there)).find(|mount| mount.mountpoint.starts_with(&self.bases))
        });
        let base = shown.map(|mount| mount.mountpoint.clone());
        base.or_else(|| self.targets.base_of(target).map(|name| self.bases.join(name)))
    }

    /// Removes a pod's mount of an ephemeral volume, and unmounts its base if no other pod shows it.
    ///
    /// # Errors
    /// As [`unpublish`](Self::unpublish) and [`release`](Self::release).
    pub(super) fn unpublish_ephemeral(&self, id: &str, target: &Path, base: &Path) -> Result<()> {
        self.unpublish(id, target)?;
        self.release(base)?;
        self.targets.forget(target);
        Ok(())
    }

    /// Forgets paths of pods that are gone.
    pub(super) fn forget_gone(&self) {
        self.targets.forget_all(is_gone);
    }

    /// Unmounts a base that no pod shows any more.
    ///
    /// # Errors
    /// As [`unmount`](Self::unmount).
    pub(super) fn release(&self, base: &Path) -> Result<()> {
        let held = self.held(base)?;
        check_told(&held)?;
        let table = MountTable::read();
        if let Some(mount) = table.at(base)
            && table.others(mount).next().is_some()
        {
            return Ok(());
        }
        self.unmount(&held, base)?;
        held.remove();
        match fs::remove_dir(base) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::internal(format!("cannot remove the directory {}: {error}", base.shown())))
            }
            _ => Ok(()),
        }
    }

    /// The bases that are there.
    pub(super) fn all_bases(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.bases).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Where the volume of this id is mounted.
    ///
    /// # Errors
    /// `NotFound`: nowhere.
    pub(super) fn staged_at(id: &str) -> Result<PathBuf> {
        let mount = target::resolve(id.as_ref()).mount.filter(is_ours);
        let mount = mount.ok_or_else(|| Failure::not_found(format!("{id:?} is not mounted on this node")))?;
        Ok(mount.mountpoint)
    }

    /// The volume that is mounted at a path, if its process answers; else why not, in words.
    ///
    /// # Errors
    /// `NotFound`: no volume is there.
    pub(super) fn look(path: &Path) -> Result<std::result::Result<Mount, String>> {
        let mounted = Mounted::at(path).map_err(Failure::not_found)?;
        let status = mounted.status();
        match (mounted, status) {
            (Mounted::No, _) => Err(Failure::not_found(format!("no volume is mounted at {}", path.shown()))),
            (Mounted::Dead, _) => Ok(Err(death(path))),
            (Mounted::Leaving(_), _) => Ok(Err("the volume is being unmounted".to_owned())),
            (Mounted::Running(..), None) => {
                Ok(Err("the process that serves the volume does not answer".to_owned()))
            }
            (Mounted::Running(mount, _), Some(status)) => Ok(status.health().map(|()| mount)),
        }
    }

    /// Gives a mounted volume on object storage a larger quota.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn enlarge(path: &Path, bytes: u64) -> Result<()> {
        let now = statvfs(path).map_err(|error| Failure::not_ready(error.to_string()))?;
        if now.f_blocks.saturating_mul(now.f_frsize) >= bytes {
            return Ok(());
        }
        let bytes = bytes.to_string();
        let arguments: [&std::ffi::OsStr; 6] = [
            "quota".as_ref(),
            "set".as_ref(),
            "--bytes".as_ref(),
            bytes.as_ref(),
            "--".as_ref(),
            path.as_os_str(),
        ];
        program::run(&arguments, None).map_err(Failure::not_ready)
    }
}

/// Checks that no loss is left that nobody was told of.
fn check_told(held: &Held) -> Result<()> {
    held.note().lost.map_or(Ok(()), |lost| Err(Failure::new(Code::DataLoss, lost)))
}

/// Checks how the volume ended that was mounted at a path where none is any more: who unmounted it
/// may have been killed before it said so.
fn check_ended(held: &Held, path: &Path) -> Result<()> {
    let note = held.note();
    if !note.staged || note.is_told {
        return Ok(());
    }
    match unmounting::end_of(path) {
        End::Well => Ok(()),
        End::Lost(words) => Err(Failure::new(Code::DataLoss, words)),
        End::Silent(words) => Err(Failure::not_ready(words)),
        // As after the host's start: it says nothing about a loss.
        End::Unknown => {
            tracing::warn!(path = %path.shown().exact(), "no record says how the volume ended that was staged here");
            Ok(())
        }
    }
}

/// What happened to the volume whose dead mount is at a path, as far as its record says.
fn death(path: &Path) -> String {
    let table = MountTable::read();
    let all = table.at(path).into_iter().flat_map(|mount| table.of_device(Device::of(mount)));
    let volume = all.filter_map(|mount| target::resolve(mount.mountpoint.as_os_str()).volume);
    let died = volume.filter(|volume| !volume.is_running()).map(|volume| volume.died().to_string()).next();
    format!(
        "the process that served the volume is gone{}; the volume is served again when its pods' containers are started \
         anew",
        died.map_or_else(String::new, |died| format!(" ({died})"))
    )
}

/// Whether there is no directory that the path could be in: what is not there needs no removal.
fn is_gone(path: &Path) -> bool {
    path.parent().is_some_and(|parent| !parent.exists())
}

fn another(volume: &RegisteredVolume, path: &Path) -> Failure {
    let source = volume.record().source.shown();
    Failure::not_ready(format!("{}: another volume is mounted there, {source}", path.shown()))
}

/// Checks that what is mounted at a path, if the registry knows it, is the volume of this id. The
/// id of a directory is any name, and no URL.
fn check_id_at(id: &str, path: &Path) -> Result<()> {
    let Target { mount, volume: Some(volume), .. } = target::resolve(path.as_os_str()) else { return Ok(()) };
    let is_mounted = mount.is_some_and(|mount| mount.mountpoint == path);
    let is_leaving = volume.is_running() && volume.record().mountpoint.as_path() == path;
    if !is_mounted && !is_leaving {
        return Ok(());
    }
    let url = url_of(id)?;
    let source = volume.record().source.as_str();
    let is_it = match &url {
        Some(url) => checks::identity_of(source) == Some(url.as_str()),
        None => checks::url_of(source).is_none(),
    };
    if is_it { Ok(()) } else { Err(another(&volume, path)) }
}

/// Checks that a path shows a volume that was mounted there, and not a bind mount of another place.
fn check_own(volume: &RegisteredVolume, path: &Path) -> Result<()> {
    let own = volume.record().mountpoint.as_path();
    if own == path {
        return Ok(());
    }
    Err(Failure::not_ready(format!("{}: it is a bind mount of {}", path.shown(), own.shown())))
}

/// Checks that a path can be a pod's: no volume is staged there.
fn check_target(target: &Path) -> Result<()> {
    let is_staging = target.file_name().is_some_and(|name| name == STAGING);
    let is_its_own = || {
        let found = target::resolve(target.as_os_str());
        found.mount.is_some_and(|mount| mount.mountpoint == target)
            && found.volume.is_some_and(|volume| volume.record().mountpoint.as_path() == target)
    };
    if is_staging || is_its_own() {
        return Err(Failure::not_ready(format!("{}: it is a path where a volume is staged", target.shown())));
    }
    Ok(())
}

/// Checks that no other mount shows the running volume of a path, which it would keep in use, and
/// names them. Those that an unmount takes along do not count.
fn check_alone(path: &Path) -> Result<()> {
    let table = MountTable::read();
    let is_running = || target::resolve(path.as_os_str()).volume.is_some_and(|volume| volume.is_running());
    let left: Vec<String> = match table.at(path) {
        Some(mount) if is_ours(mount) && is_running() => table
            .others(mount)
            .filter(|other| other.mountpoint != path && !table.may_go_along(mount, other))
            .map(|other| other.mountpoint.shown().to_string())
            .collect(),
        Some(_) => return Ok(()),
        None => {
            let running = target::running(path.as_os_str());
            let here = running.iter().filter(|volume| {
                !volume.dir.is_foreign()
                    && !volume.is_attached()
                    && volume.record().mountpoint.as_path() == path
            });
            here.flat_map(|volume| table.of_device(volume.record().device))
                .filter(|mount| is_ours(mount))
                .map(|mount| mount.mountpoint.shown().to_string())
                .collect()
        }
    };
    if left.is_empty() {
        return Ok(());
    }
    let named: Vec<&str> = left.iter().take(NAMED_MAX).map(String::as_str).collect();
    Err(Failure::not_ready(format!(
        "{}: the volume is mounted at {} other path(s), which have to be unmounted first: {}",
        path.shown(),
        left.len(),
        named.join(", ")
    )))
}

/// Whether what is mounted is what is asked for.
fn check_same(mount: &Mount, volume: &RegisteredVolume, spec: &str, access: &Access) -> Result<()> {
    let source = volume.record().source.as_str();
    let at = mount.mountpoint.shown();
    if checks::identity_of(source) != checks::identity_of(spec) {
        let why = format!("{at}: another volume is mounted there, {}", source.shown());
        return Err(Failure::new(Code::AlreadyExists, why));
    }
    if access.read_only && !mount.is_read_only {
        let why = format!("{at}: the volume is mounted there for writing");
        return Err(Failure::new(Code::AlreadyExists, why));
    }
    Ok(())
}

/// A number for a path, as a part of a file's name. Two paths of one number get in each other's way,
/// in words, and nothing else.
fn name_of(path: &Path) -> u64 {
    digest(path.as_os_str().as_bytes())
}
