//! The mount in the hands of the next program.
//!
//! Everything that can fail comes before the mount and its session are made, which would take the
//! mount away where they are dropped. If it fails, the program before, whose file is still open, is
//! executed again, with the state unchanged and the reason in a memory file. If that one fails as
//! well, or a program crashes, the mount ends with the process.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cgroups::Hierarchy;
use handover::Incoming;
use recovery::Recovery;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use store::{DirOptions, DirStore, ErrorKind, NumberedState, Store, StoreState};
use volume::{Reopening, Tenants, Volume};

use super::state::{State, now_ns};
use super::upgrader::{Upgrader, with_state};
use crate::cli::MountArgs;
use crate::cli::opts::{self, MountOptions};
use crate::control::api::Upgrades;
use crate::control::server::Server;
use crate::daemon::attachments::Attachments;
use crate::daemon::attachments::handover::{AttachedState, ResumedAttached, Shared};
use crate::daemon::connection::AtomicConnectionState;
use crate::daemon::event::SupervisorEvent;
use crate::daemon::mount::{Up, serve as serve_session, session_options, supervise};
use crate::daemon::mounted_volume::MountedVolume;
use crate::daemon::recovery::serve;
use crate::daemon::store::volume_options;
use crate::daemon::supervisor::Supervisor;
use crate::daemon::volume_info::VolumeInfo;
use crate::host::{mount_agent, notify, privileges, signals, spawn_for_result, utab};
use crate::object_volumes;
use crate::registry::RuntimeDir;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{exact, in_one_line};

/// Callers that may wait for the control socket.
const BACKLOG: i32 = 128;
/// The pause before a bucket that does not answer is asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// How long a new program waits for a bucket; the one before it waits without end.
const OPEN_MAX: Duration = Duration::from_secs(60);
/// How often the watchdog is answered meanwhile, at least.
const LOOK: Duration = Duration::from_secs(1);
/// The most of a reason that is read.
const REASON_BYTES: u64 = 4096;

/// Takes over the state in this descriptor, and serves the mount until it is unmounted.
///
/// # Errors
/// As those of a mount; and when there is no state.
pub(crate) fn run(args: &MountArgs, number: i32) -> Result<ExitCode> {
    // After fexecve(2) the kernel names the process after the descriptor's number.
    let _only_a_name = rustix::thread::set_name(c"watertight");
    // Before there is a second thread.
    fuse::register_process();
    let none = |error: &dyn std::fmt::Display| Problem::failure(format!("--taken-over={number}: {error}"));
    notify::alive();
    let mut incoming = Incoming::open(number).map_err(|error| none(&error))?;
    let state = State::parse(incoming.content()).map_err(|error| none(&error))?;
    incoming.list(&state.kept).map_err(|error| none(&error))?;
    let reason = reason_of(&state, &incoming);
    let options = match MountOptions::parse(&args.options) {
        Ok(options) => options,
        Err(problem) => return Err(fall_back(&state, &incoming, number, &reason, problem)),
    };
    match resume(&options, &state, &incoming, reason.as_deref(), None) {
        Ok(resumed) => {
            incoming.commit();
            let mut up = resumed.settle();
            if let Some(pid) = state.agent {
                mount_agent::reap(pid);
            }
            mount_agent::start().unwrap_or_else(|problem| tracing::warn!("{problem}"));
            let mounted = Arc::clone(&up.mounted);
            let past = mounted.upgrader.past();
            let pause_ms = past.pause_us / 1000;
            let volume = mounted.volume.name();
            match &past.error {
                None => tracing::info!(
                    volume,
                    version = past.version.as_str(),
                    pause_ms,
                    "this program has taken over"
                ),
                Some(error) => {
                    tracing::error!(
                        volume,
                        pause_ms,
                        "the new program could not take over, this one goes on: {}",
                        error.as_str()
                    );
                }
            }
            up.supervisor.try_syncfs();
            supervise(up)
        }
        Err(problem) => Err(fall_back(&state, &incoming, number, &reason, problem)),
    }
}

/// Why the program after the one that wrote the state could not take over: if there is a reason,
/// this is the one that wrote it.
fn reason_of(state: &State, incoming: &Incoming) -> Option<String> {
    let mut file = File::from(incoming.take(state.reason).ok()?);
    let mut text = Vec::new();
    file.rewind().and_then(|()| file.take(REASON_BYTES).read_to_end(&mut text)).ok()?;
    (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Executes the program before. Returns if that failed, or this is it.
fn fall_back(
    state: &State,
    incoming: &Incoming,
    number: i32,
    reason: &Option<String>,
    problem: Problem,
) -> Problem {
    if reason.is_some() {
        return problem;
    }
    let note = |text: &str| -> std::io::Result<OwnedFd> {
        let mut file = File::from(incoming.take(state.reason)?);
        file.rewind()?;
        file.write_all(text.as_bytes())?;
        incoming.take(state.program)
    };
    let arguments = with_state(&state.arguments(), number);
    let error = match note(&in_one_line(&problem.to_string())) {
        Ok(program) => handover::replace_program(program.as_fd(), &arguments, &incoming.numbers()),
        Err(error) => error,
    };
    Problem::failure(format!("{problem}; and the program before cannot be executed again: {error}"))
}

/// A server that follows another one, which is no more: a keeper has started it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Follower<'a> {
    pub(crate) recovery: &'a Arc<Recovery>,
    /// That one has left its place to this program.
    pub(crate) upgraded: bool,
}

/// Makes the mount's parts of the state. Without a `follower` it is this process's, and was handed over.
pub(crate) fn resume(
    options: &MountOptions,
    state: &State,
    incoming: &Incoming,
    reason: Option<&str>,
    follower: Option<Follower<'_>>,
) -> Result<Resumed> {
    let failed = |what: &str, error: &dyn std::fmt::Display| Problem::failure(format!("{what}: {error}"));
    let recovery = follower.map(|follower| follower.recovery);
    let is_upgrade = follower.map_or(reason.is_none(), |follower| follower.upgraded);
    // The program before takes the mount over if this one does not.
    let briefly = Awaited::Until(Instant::now() + OPEN_MAX);
    let awaited = if is_upgrade { briefly } else { Awaited::UntilItAnswers };
    // What is opened stays open if this program fails: closed, it would be anybody's.
    let mut opened = ManuallyDrop::new(Vec::new());
    let tree = Hierarchy::find(&options.cgroup)
        .map_err(|error| Problem::usage(in_one_line(&format!("option cgroup: {error}"))))?;
    if !options.recover {
        // As in the first program: what a device of the process reports would end with it.
        fuse::mount::will_serve();
    }
    let (sender, events) = channel();
    let to_supervisor = sender.clone();
    signals::watch(move |name| to_supervisor.send(SupervisorEvent::Signal(name)).is_ok())
        .map_err(|error| failed("cannot handle signals", &error))?;
    handover::unblock_signals();
    let mountpoint = &state.mounted.mountpoint;
    let name = exact(mountpoint);
    let runtime_dir = RuntimeDir::own()?;
    let registration = match recovery {
        None => runtime_dir.resume(&state.id)?,
        Some(_) => runtime_dir.take_over(&state.id)?,
    };
    let listener = incoming.take(state.listener).map_err(|error| failed("the control socket", &error))?;
    if recovery.is_some() {
        // Callers see whose process listens: this one's, from now on.
        rustix::net::listen(&listener, BACKLOG).map_err(|error| failed("the control socket", &error))?;
    }
    let listener = UnixListener::from(listener);

    let store_failed = |error: store::Error| failed("the store", &error);
    let of_mount = StoreOf {
        source: &state.source,
        mountpoint,
        options,
        is_kept: follower.is_some(),
        device: state.session.device,
    };
    let taken = take_store(&of_mount, &state.volume.store, incoming, awaited);
    let TakenStore { store, files, directory } = taken.map_err(store_failed)?;
    privileges::respect_quotas();
    let tenants = || tree.map_or_else(|| Ok(Arc::default()), Tenants::of);
    let tenants = volume::span_of(&name).in_scope(tenants);
    let tenants = tenants.map_err(|error| failed("the host's cgroups cannot be watched", &error))?;
    let volume_options = volume_options(&name, options, Arc::clone(&tenants), recovery);
    // The program before can have the mount back, unless this is it.
    let reopening = if reason.is_none() { Reopening::Required } else { Reopening::Tried };
    let volume = match recovery {
        None => Volume::take_over(store, volume_options, &state.volume, incoming, reopening),
        Some(_) => Volume::recover(store, volume_options, state.volume.limits()),
    };
    let volume = volume.map_err(|error| failed("the volume", &error))?;
    opened.push(Arc::clone(&volume));
    drop(files);
    let (mut attached, device) = (Vec::new(), state.session.device);
    for one in &state.attached {
        let resumed = take_attached(one, (&runtime_dir, device), &tenants, incoming, (awaited, reopening));
        let resumed = resumed.map_err(|why| failed("what is attached", &why))?;
        opened.push(Arc::clone(&resumed.volume));
        attached.push(resumed);
    }

    let upgrades = Upgrades {
        count: state.upgrades + u64::from(is_upgrade),
        failed: state.failed + u64::from(reason.is_some()),
        error: reason.map(|reason| reason.to_owned().into()),
        pause_us: 0,
        ..Upgrades::default()
    };
    let mut upgrader = Upgrader::new(&listener, state.mounted.clone(), upgrades)
        .map_err(|error| failed("the control socket", &error))?;
    let connection = Arc::new(AtomicConnectionState::default());
    let mount = fuse::Mount::take_over(&state.mounted, state.session.device, state.mount.clone(), incoming)
        .map_err(|error| failed("the connection to the kernel", &error))?;
    let session_options = session_options(options, &volume, &connection, sender.clone());
    let session = fuse::Session::take_over(Arc::clone(&volume), mount, &state.session, session_options)
        .map_err(|error| failed("the connection to the kernel", &error))?;
    let info = VolumeInfo {
        id: state.id.clone(),
        source: state.source.clone(),
        mount: state.mount.clone(),
        unique_id: state.unique_id,
        type_reason: state.mounted.reason.clone(),
        mode: opts::name_of(options.mode),
        read_only: state.read_only,
        started_ms: state.started_ms,
        drain_timeout: options.drain_timeout,
    };
    if follower.is_none() || is_upgrade {
        upgrader.past.pause_us = now_ns().saturating_sub(state.paused_ns) / 1000;
    }
    let changes = Arc::clone(&upgrader.changes);
    let attachments = Attachments::new(
        session.tree(),
        session.view(),
        info.clone(),
        runtime_dir,
        tenants,
        Arc::clone(&changes),
    );
    attachments.resume_failed(&state.failed_attached);
    let mounted =
        MountedVolume::new(info, volume, attachments, sender.clone(), Arc::clone(&connection), upgrader);
    let mounted = Arc::new(mounted);
    let owner = rustix::process::geteuid().as_raw();
    // Calls wait until all is as it was.
    let closed = changes.close(Instant::now(), || true);
    let attached = mounted.attachments.take_over(&state.session, (attached, &state.clones), incoming);
    let attached = attached.map_err(|why| failed("what is attached", &why));
    let served = attached.and_then(|attached| {
        let server = Server::start(listener, owner, Arc::clone(&mounted) as Arc<_>);
        let server = server.map_err(|error| failed("the control socket cannot be served", &error))?;
        Ok((server, attached))
    });
    let (server, mut attached) = match served {
        Ok(served) => served,
        Err(problem) => {
            session.leave();
            // No call passes, either: the program before has what is attached.
            let _open = ManuallyDrop::new((mounted, closed));
            return Err(problem);
        }
    };
    if let Some(recovery) = recovery {
        if let Err(why) = serve::give(mounted.handed(), 0) {
            tracing::warn!(volume = mounted.volume.name(), why, "no other server can follow this one");
        }
        // Before it reads requests: one that ends it is told from a server that cannot serve at all.
        serve::ready(recovery, "");
    }
    attached.enter();
    serve_session(session, name, connection, sender.clone())?;
    mounted.attachments.watch_clones();
    drop((closed, ManuallyDrop::into_inner(opened)));
    let utab = utab::Entry::resume(&mounted.info.mount.mountpoint);
    let (source, mountpoint) = (state.source.clone(), mountpoint.clone());
    let supervisor = Supervisor::new(Arc::clone(&mounted), events, sender);
    let up = Up { mounted, supervisor, registration, server, utab, source, mountpoint };
    Ok(Resumed { up, directory, attached })
}

/// A mount that is served again.
pub(crate) struct Resumed {
    pub(crate) up: Up,
    directory: Option<Arc<DirStore>>,
    attached: Shared,
}

impl Resumed {
    /// The program before does not take it back any more.
    pub(crate) fn settle(self) -> Up {
        let Self { mut up, directory, attached } = self;
        up.registration.settle();
        directory.iter().for_each(|directory| directory.settle());
        attached.settle();
        up
    }
}

/// A store that was taken over.
struct TakenStore {
    store: Arc<dyn Store>,
    /// Its open files, which are to be kept until the volume has them.
    files: Vec<Arc<dyn store::File>>,
    /// The store, if it is a directory's: its lock is shared with the program before.
    directory: Option<Arc<DirStore>>,
}

/// How long a store is waited for whose medium does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The program before can take it over then.
    Until(Instant),
    /// Until it answers: no other program can.
    UntilItAnswers,
}

/// A volume whose store is taken over.
#[derive(Clone, Copy)]
struct StoreOf<'a> {
    source: &'a str,
    /// Where it is seen.
    mountpoint: &'a Path,
    options: &'a MountOptions,
    /// A keeper has the store's lock.
    is_kept: bool,
    /// The connection.
    device: RawFd,
}

/// The store that a state names.
fn take_store(
    of: &StoreOf<'_>,
    state: &StoreState,
    incoming: &Incoming,
    awaited: Awaited,
) -> store::Result<TakenStore> {
    match state {
        StoreState::Dir(dir) => {
            let path = of.source.strip_prefix("dir:").unwrap_or(of.source);
            let no_atime = of.options.flags.iter().any(|flag| flag == "noatime");
            let dir_options = DirOptions { no_atime, ..Default::default() };
            let (store, files) = DirStore::take_over(Path::new(path), dir_options, dir, incoming)?;
            Ok(TakenStore { store: Arc::clone(&store) as _, files, directory: Some(store) })
        }
        StoreState::Numbered(numbered) => {
            let lock = of.is_kept.then(|| incoming.take(serve::LOCK)).transpose();
            let lock = lock.map_err(|error| store::Error::with(ErrorKind::Io, "open", error.to_string()))?;
            // Without a keeper the volume is opened all the same, so that it is closed in order.
            let is_aborted = || of.is_kept && is_aborted(incoming, of.device);
            let store = open_again(of, (numbered, lock.map(Arc::new)), (awaited, &is_aborted))?;
            Ok(TakenStore { store, files: Vec::new(), directory: None })
        }
    }
}

/// An attached volume, but for its place.
fn take_attached<'a>(
    state: &'a AttachedState,
    (runtime_dir, device): (&RuntimeDir, RawFd),
    tenants: &Arc<Tenants>,
    incoming: &Incoming,
    (awaited, reopening): (Awaited, Reopening),
) -> std::result::Result<ResumedAttached<'a>, String> {
    let registration = runtime_dir.resume(&state.id).map_err(|problem| problem.to_string())?;
    let options = MountOptions::parse(&state.options).map_err(|problem| problem.to_string())?;
    let record = registration.record();
    let (source, mountpoint) = (record.source.as_str(), Path::new(&record.mountpoint));
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", exact(mountpoint));
    let of = StoreOf { source, mountpoint, options: &options, is_kept: false, device };
    let TakenStore { store, files, directory } =
        take_store(&of, &state.volume.store, incoming, awaited).map_err(|error| named(&error))?;
    let volume_options = volume_options(&exact(mountpoint), &options, Arc::clone(tenants), None);
    let volume = Volume::take_over(store, volume_options, &state.volume, incoming, reopening)
        .map_err(|error| named(&error))?;
    drop(files);
    Ok(ResumedAttached { state, options, registration, volume, directory })
}

/// Whether the kernel's connection has ended.
pub(crate) fn is_aborted(incoming: &Incoming, device: RawFd) -> bool {
    let Ok(device) = incoming.take(device) else { return true };
    let mut fds = [PollFd::new(&device, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_err() || fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

fn given_up() -> store::Error {
    store::Error::with(ErrorKind::Io, "open", "the mount was given up")
}

/// Opens a volume on object storage again. The service manager's watchdog is answered meanwhile.
fn open_again(
    of: &StoreOf<'_>,
    (numbered, journal_lock): (&NumberedState, Option<Arc<OwnedFd>>),
    (awaited, is_aborted): (Awaited, &dyn Fn() -> bool),
) -> store::Result<Arc<dyn Store>> {
    let is_last = awaited == Awaited::UntilItAnswers;
    let mut is_told = false;
    loop {
        let (spec, objects) = (of.source.to_owned(), of.options.objects.clone());
        let (mountpoint, numbered) = (of.mountpoint.to_owned(), numbered.clone());
        let lock = journal_lock.clone();
        let open = move || object_volumes::resume(&spec, &objects, &mountpoint, &numbered, lock);
        let failed =
            |error: std::io::Error| store::Error::with(ErrorKind::NoMemory, "open", error.to_string());
        let opened = spawn_for_result("open-again", open).map_err(failed)?;
        let error = loop {
            notify::alive();
            match opened.recv_timeout(LOOK) {
                Ok(Ok(store)) => return Ok(store),
                Ok(Err(error)) => break error,
                // The program before asks again, and finds what this one has begun.
                Err(_) if matches!(awaited, Awaited::Until(until) if Instant::now() >= until) => {
                    return Err(store::Error::with(
                        ErrorKind::TimedOut,
                        "open",
                        "the bucket does not answer",
                    ));
                }
                // Nobody waits for it any more.
                Err(_) if is_aborted() => return Err(given_up()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(store::Error::new(ErrorKind::Io, "open"));
                }
            }
        };
        if !is_last || !object_volumes::may_answer_later(&error) {
            return Err(error);
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::error!(%error, "the volume cannot be opened again: it is tried until it can");
        }
        if is_aborted() {
            return Err(given_up());
        }
        std::thread::sleep(ASKED_AGAIN);
    }
}
