//! `umount`: returns when the data is on the store, the store is released and the mount is gone.
//!
//! The steps of the plain verb: find the holders of the mount; have everything written while it is
//! still mounted, so that a store that fails costs only a message; take the kernel mount away; ask
//! the process how the volume ended; wait until that process is gone.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::attach;
use super::ended::{report, wait_ended};
use super::one_of_several::{self, OtherMounts, Remaining};
use crate::cli::UmountArgs;
use crate::control::api::{Ended, State, Status, UmountKind, UmountReply, UmountRequest};
use crate::control::client::{CallError, Client};
use crate::control::progress;
use crate::host::holders::{self, Holders};
use crate::host::mountinfo::{self, Mount};
use crate::host::process::{self, has_ended, is_zombie};
use crate::host::unmount::{self, Outcome};
use crate::registry::target::{self, RegisteredVolume, Target};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, Shown};

/// How long a process may take to leave after its volume ended.
const LEAVE: Duration = Duration::from_secs(30);
/// How long a process may take to answer `umount --force`. It gives its stores two seconds itself;
/// the rest is for a busy host: a process that is killed cannot tell what is lost.
const FORCE: Duration = Duration::from_secs(10);
/// How long a process may take to be gone after it has answered, or was killed.
const GONE: Duration = Duration::from_secs(3);
/// How long a process that has ended may take to close its files. After that it counts as waiting
/// for its store.
const CLOSING: Duration = Duration::from_millis(200);
/// How often a process that leaves is checked.
const LOOK: Duration = Duration::from_millis(20);
/// After this time the verb reports that a volume without a path is still held.
const HELD_ELSEWHERE: Duration = Duration::from_secs(3);
/// How soon a volume ends that was given up.
const ENDS: Duration = Duration::from_secs(1);
/// One long call of `wait`.
const LONG: Duration = Duration::from_secs(3600);
/// Runs the verb.
///
/// # Errors
/// Exit 2 when the path is no mount of ours, 1 when it is held, cannot be written, or lost data.
pub fn run(args: &UmountArgs) -> Result<()> {
    let Target { mount, volume, path } = target::resolve(&args.path);
    let volume = volume.filter(|volume| volume.is_running() || mount.is_some());
    if args.no_links {
        check_no_links(&args.path, mount.as_ref(), volume.as_ref())?;
    }
    if volume.as_ref().is_some_and(RegisteredVolume::is_attached) {
        return attach::detach(args);
    }
    process::leave_directory();
    match (mount, volume) {
        (Some(mount), Some(volume)) if mountinfo::is_ours(&mount) => {
            let Some(client) = &volume.found.client else { return without_process(args, &mount, &volume) };
            let what = format!("unmounting {}", mount.mountpoint.shown());
            let seen = if args.force { None } else { progress::say_if_silent(&what, client) };
            let job = UmountJob { mount: &mount, volume: &volume, client, seen };
            let is_named_by_path = path.as_deref() == Some(mount.mountpoint.as_path());
            if let Some(others) = job.that_stay(is_named_by_path) {
                return match one_of_several::leave(args, &mount, &others, client)? {
                    Remaining::Others => Ok(()),
                    Remaining::Nothing => job.ended_with_others(args),
                };
            }
            match (args.force, args.lazy) {
                (true, _) => job.force(),
                (_, true) => job.lazy(),
                _ => job.plain(),
            }
        }
        (Some(mount), None) if mountinfo::is_ours(&mount) && !mountinfo::is_for_this_user(&mount) => {
            Err(target::not_to_be_asked(mount.mountpoint.shown(), &mount))
        }
        (Some(mount), None) if mountinfo::is_ours(&mount) => dead(&mount, None),
        (None, Some(volume)) => detached(&volume, args.force),
        (mount, _) => Err(not_ours(&args.path, path.as_deref(), mount.as_ref())),
    }
}

/// Checks that what was found is at this very path, or was mounted there and has been moved.
fn check_no_links(path: &OsStr, mount: Option<&Mount>, volume: Option<&RegisteredVolume>) -> Result<()> {
    let is_here = |at: &Path| at == Path::new(path);
    let is_moved = volume.is_some_and(|volume| is_here(volume.record().mountpoint.as_path()));
    match mount {
        Some(mount) if !is_moved && !is_here(&mount.mountpoint) => {
            let (path, real) = (path.shown(), mount.mountpoint.shown());
            Err(Problem::usage(format!("{path} leads to {real}, by a symbolic link")))
        }
        _ => Ok(()),
    }
}

/// Unmounts another user's mount, for umount(8), as root: by umount2(2) alone, as if there were no
/// helper. That user's process gets no request, so that the verb waits for nothing that it might
/// not do. None: it is no such mount.
#[must_use]
pub fn of_another_user(args: &UmountArgs) -> Option<Result<()>> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let mount = target::mount_at(&args.path)
        .filter(|mount| mountinfo::is_ours(mount) && !mountinfo::is_own(mount))?;
    let unmounted = match (args.force, args.lazy) {
        (true, _) => unmount::force(&mount),
        (_, true) => unmount::detach(&mount),
        _ => unmount::one_of_several(&mount).and_then(|outcome| match outcome {
            Outcome::Gone => Ok(()),
            Outcome::Held(holders) => Err(held(mount.mountpoint.shown(), &holders)),
        }),
    };
    Some(unmounted)
}

/// The result for a volume that was to be written and unmounted.
enum UmountOutcome {
    Ended(Ended),
    /// The mount is held, and stays.
    Held(Holders),
    /// Not everything could be written.
    Not(CallError),
    /// The volume is still mounted in other places.
    Elsewhere(OtherMounts),
}

struct UmountJob<'a> {
    mount: &'a Mount,
    volume: &'a RegisteredVolume,
    client: &'a Client,
    /// The process's status at the beginning; a forced unmount does not ask.
    seen: Option<Status>,
}

impl UmountJob<'_> {
    fn plain(&self) -> Result<()> {
        self.unmount_unless_held(|_| self.search())?.map_err(|holders| held(self.path(), &holders))
    }

    /// The mounts that stay when this one goes. None: it is the last, or the volume was meant and
    /// not one mount of it, which all but its own mountpoints keep busy.
    fn that_stay(&self, is_named_by_path: bool) -> Option<OtherMounts> {
        let others = OtherMounts::beside(self.mount, self.client);
        if others.is_empty() || is_named_by_path {
            return Some(others).filter(|others| !others.is_empty());
        }
        let clones = self.client.status().ok()?.clones;
        let mut all: Vec<PathBuf> = clones.into_iter().map(|clone| clone.mountpoint.into()).collect();
        all.push(PathBuf::from(&self.volume.record().mountpoint));
        others.are_all_among(&all).then_some(others)
    }

    /// This mount is gone, and so are the others: another caller took them away meanwhile.
    fn ended_with_others(&self, args: &UmountArgs) -> Result<()> {
        if args.force {
            return detached(self.volume, true);
        }
        let ended = if args.lazy {
            self.client.wait(Duration::ZERO).ok().and_then(|reply| reply.ended)
        } else {
            Some(progress::during(&self.what(), self.client, || self.wait_ended())?)
        };
        match ended {
            Some(ended) => self.report(&ended),
            None => {
                self.tell_that_data_follows(&self.search());
                Ok(())
            }
        }
    }

    /// The holders, among all processes of the host.
    fn search(&self) -> Holders {
        holders::of(self.mount).unwrap_or_default()
    }

    fn lazy(&self) -> Result<()> {
        // Not all holders need to be known for this: the host is searched only if the threads that
        // opened files do not hold it.
        let quickly = |status: &Status| {
            let held = holders::of_openers(&status.openers, self.mount, &self.mount.mountpoint);
            held.unwrap_or_else(|| self.search())
        };
        let Err(holders) = self.unmount_unless_held(quickly)? else { return Ok(()) };
        progress::during(&self.what(), self.client, || unmount::detach(self.mount))?;
        // A holder may have let go meanwhile.
        if let Ok(reply) = self.client.wait(Duration::ZERO)
            && let Some(ended) = reply.ended
        {
            return self.report(&ended);
        }
        self.tell_that_data_follows(&holders);
        Ok(())
    }

    fn tell_that_data_follows(&self, holders: &Holders) {
        let id = &self.volume.record().id;
        console().print(&format!("{}: the path is gone, the volume is still held by", self.path()));
        for line in holders.lines() {
            console().print(&format!("  {line}"));
        }
        console().print(&format!(
            "its data is being written: `watertight wait {id}` returns when it is on the store"
        ));
    }

    fn force(&self) -> Result<()> {
        let unique_id = unmount::unique_id(&self.mount.mountpoint);
        match give_up(self.path(), self.client) {
            Ok(reply) => {
                let leaving = leave(self.client);
                // The process took the mount away; if it could not, it is ours to do.
                let is_same = unmount::unique_id(&self.mount.mountpoint) == unique_id;
                if is_same && self.mount.is_present() {
                    unmount::force(self.mount)?;
                }
                leaving.end(self.client);
                match reply.ended {
                    Some(ended) => self.report(&ended),
                    None => Err(Problem::failure(format!(
                        "{}: unmounted, but how it ended is unknown",
                        self.path()
                    ))),
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the mount process does not answer: killing it");
                unmount::force(self.mount)?;
                kill(self.client);
                Err(unknown(self.path(), &error))
            }
        }
    }

    /// Unmounts and waits until the volume is released; if held, returns the holders, by a first
    /// `look`, or by a search.
    fn unmount_unless_held(&self, look: impl Fn(&Status) -> Holders) -> Result<Result<(), Holders>> {
        let mounts = holders::mounts(self.mount);
        if mounts.direct().next().is_some() {
            return Ok(Err(mounts));
        }
        // A search first, where files are open: the holders are reported before everything is
        // written. Not always: searching /proc disturbs others for a moment.
        if let Some(status) = self.seen.as_ref().filter(|status| status.open_files > 0) {
            let holders = look(status);
            if holders.direct().any(|holder| !unmount::is_passing(holder)) {
                return Ok(Err(holders));
            }
        }
        let ended = match progress::during(&self.what(), self.client, || self.write_and_unmount())? {
            UmountOutcome::Ended(ended) => ended,
            UmountOutcome::Held(holders) => return Ok(Err(holders)),
            UmountOutcome::Not(error) => return self.not_written(error).map(Ok),
            // Bound to another place meanwhile.
            UmountOutcome::Elsewhere(others) => {
                others.tell(self.mount);
                return Ok(Ok(()));
            }
        };
        if !self.client.wait_gone(LEAVE) {
            return Err(Problem::failure(format!(
                "{}: the volume is {}, but its process {} does not exit",
                self.path(),
                ended.state,
                self.client.pid()
            )));
        }
        self.report(&ended).map(Ok)
    }

    /// Has everything written while the volume is mounted, takes the mount away, and waits for the
    /// volume's end.
    fn write_and_unmount(&self) -> Result<UmountOutcome> {
        if let Err(error) = self.client.sync_all() {
            return Ok(UmountOutcome::Not(error));
        }
        if let Outcome::Held(holders) = unmount::plain(self.mount)? {
            return Ok(UmountOutcome::Held(holders));
        }
        let others = OtherMounts::after(self.mount, self.client);
        if others.is_empty() {
            self.wait_ended().map(UmountOutcome::Ended)
        } else {
            Ok(UmountOutcome::Elsewhere(others))
        }
    }

    /// Not everything was written: the volume stays as it is, unless it was ended meanwhile, by
    /// SIGTERM or by force.
    fn not_written(&self, error: CallError) -> Result<()> {
        let path = self.path();
        if let Some(ended) = self.ended_meanwhile() {
            return self.report(&ended);
        }
        match error {
            CallError::Gone => dead(self.mount, Some(self.volume)),
            CallError::Refused(reason) => Err(Problem::failure(format!(
                "{path} stays mounted, its data could not be written: {reason}\n\
                 nothing is lost as long as it is mounted; `watertight umount --force {path}` gives the data up"
            ))),
            error => Err(Problem::failure(format!("{path} stays mounted: {error}"))),
        }
    }

    fn ended_meanwhile(&self) -> Option<Ended> {
        match self.client.wait(ENDS) {
            Ok(reply) if reply.status.state == State::Draining => {
                wait_ended(self.volume, self.client, LONG).ok()
            }
            Ok(reply) => reply.ended,
            Err(_) => self.volume.dir.read_record(&self.volume.record().id)?.ended,
        }
    }

    /// Waits until the volume ended; reports if it is still held although no path leads to it.
    fn wait_ended(&self) -> Result<Ended> {
        let reply = self.client.wait(HELD_ELSEWHERE).ok();
        if let Some(ended) = reply.as_ref().and_then(|reply| reply.ended.clone()) {
            return Ok(ended);
        }
        if reply.is_some_and(|reply| reply.status.state == State::Detached) {
            let holders = self.search().lines().join("\n  ");
            console()
                .say(&format!("{}: the path is gone, the volume is still held by\n  {holders}", self.path()));
        }
        wait_ended(self.volume, self.client, LONG)
    }

    fn report(&self, ended: &Ended) -> Result<()> {
        report(&self.volume.record().source, self.path(), ended)
    }

    fn path(&self) -> Shown<'_> {
        self.mount.mountpoint.shown()
    }

    fn what(&self) -> String {
        format!("unmounting {}", self.path())
    }
}

fn held(path: Shown<'_>, holders: &Holders) -> Problem {
    let lines = holders.lines().join("\n  ");
    Problem::failure(format!(
        "{path} is busy (EBUSY); it is held by\n  {lines}\n\
         `watertight umount --lazy {path}` removes the path now and writes the data afterwards"
    ))
}

/// A volume that is known, and has no process that could be asked.
fn without_process(args: &UmountArgs, mount: &Mount, volume: &RegisteredVolume) -> Result<()> {
    if volume.found.silent.is_none() {
        return dead(mount, Some(volume));
    }
    // It may be there, and have all to write.
    if args.force {
        unmount::force(mount)?;
    }
    Err(volume.died())
}

/// A mount whose process is gone, or which this user's runtime directory does not know.
fn dead(mount: &Mount, volume: Option<&RegisteredVolume>) -> Result<()> {
    let path = mount.mountpoint.shown();
    let is_dead = volume.is_some() || unmount::is_dead(&mount.mountpoint);
    if let Outcome::Held(holders) = unmount::one_of_several(mount)? {
        unmount::detach(mount)?;
        console().say(&format!("{path} was held by\n  {}", holders.lines().join("\n  ")));
    }
    console().print(&format!("{path}: the mount is gone"));
    Err(volume.map_or_else(
        || {
            let what = if is_dead {
                "no process served it any more, and no record says how its process ended"
            } else {
                "its process runs, but has no record in this user's runtime directory, so that it could not be asked how the volume ended"
            };
            Problem::failure(format!("{path}: {what}; what was not fsynced before may be lost"))
        },
        RegisteredVolume::died,
    ))
}

/// A volume without a path.
fn detached(volume: &RegisteredVolume, force: bool) -> Result<()> {
    let record = volume.record();
    let Some(client) = &volume.found.client else { return Err(volume.died()) };
    if !force {
        return Err(Problem::failure(format!(
            "{}: already detached, open files hold it; `watertight wait {}` returns when its data is on the store",
            record.mountpoint, record.id
        )));
    }
    let reply = give_up(&record.mountpoint, client);
    leave(client).end(client);
    match reply.map(|reply| reply.ended) {
        Ok(Some(ended)) => report(&record.source, &record.mountpoint, &ended),
        Ok(None) => {
            Err(Problem::failure(format!("{}: unmounted, but how it ended is unknown", record.mountpoint)))
        }
        Err(error) => Err(unknown(&record.mountpoint, &error)),
    }
}

/// Has the volume's process give up what it has not written.
fn give_up(
    mountpoint: impl std::fmt::Display,
    client: &Client,
) -> std::result::Result<UmountReply, CallError> {
    let call = || client.umount(UmountRequest { how: UmountKind::Force }, Some(FORCE));
    let what = format!("unmounting {mountpoint} by force");
    // Without a thread that reports how long it takes, it is done all the same.
    progress::waiting_for(&what, &format!("its process {}", client.pid()), || Ok(call()))
        .unwrap_or_else(|_no_thread| call())
}

/// Whether a process that should leave is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExitState {
    Gone,
    /// It has ended, except threads that wait in the kernel: for a store that does not answer.
    InTheKernel,
    Not,
}

/// Waits until the process is gone, or can do no more.
fn leave(client: &Client) -> ExitState {
    let until = Instant::now() + GONE;
    let mut ended_since = None;
    loop {
        if client.wait_gone(LOOK) {
            return ExitState::Gone;
        }
        let pid = client.pid();
        if is_zombie(pid)
            || has_ended(pid) && ended_since.get_or_insert_with(Instant::now).elapsed() >= CLOSING
        {
            return ExitState::InTheKernel;
        }
        if Instant::now() >= until {
            return ExitState::Not;
        }
    }
}

impl ExitState {
    /// Ends a process that is not gone.
    fn end(self, client: &Client) {
        match self {
            Self::Gone => {}
            Self::InTheKernel => console().say(&format!(
                "its process {} has ended, but is still there: it frees its memory, or waits in the kernel until its store answers",
                client.pid()
            )),
            Self::Not => kill(client),
        }
    }
}

/// Ends a process that did not end by itself: nothing is to be kept running.
fn kill(client: &Client) {
    let pid = client.pid();
    if let Err(error) = client.kill() {
        tracing::warn!(pid, %error, "the mount process cannot be killed");
    } else if !client.wait_gone(GONE) {
        tracing::warn!(pid, "the mount process was killed and is still there");
    }
}

fn unknown(mountpoint: impl std::fmt::Display, error: &CallError) -> Problem {
    Problem::failure(format!(
        "{mountpoint}: unmounted by force; its process did not answer ({error}), so how much was not written is unknown"
    ))
}

fn not_ours(name: &OsStr, path: Option<&Path>, mount: Option<&Mount>) -> Problem {
    let shown = name.shown();
    match (mount, path) {
        (Some(mount), _) => Problem::usage(format!(
            "{shown} is a mountpoint of type {}, not of a Watertight volume; umount(8) unmounts it",
            mount.fstype
        )),
        (None, Some(path)) if std::fs::symlink_metadata(path).is_ok() => {
            Problem::usage(format!("{shown} is not a mountpoint; `watertight status` lists the volumes"))
        }
        _ => Problem::usage(format!(
            "there is no {shown}, neither a path nor a volume's id; `watertight status` lists the volumes"
        )),
    }
}
