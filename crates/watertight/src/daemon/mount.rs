//! `mount`: makes a store a mounted volume and serves it until it is unmounted.
//!
//! The order is chosen so that a failure at any step leaves nothing behind: check the request, take
//! the signals, open the store (which locks it for this process), start the volume, mount,
//! register, serve.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use cgroups::Hierarchy;
use rustix::mount::MountFlags;
use volume::events::Life;
use volume::{Tenants, Volume};

use super::attachments::Attachments;
use super::background;
use super::connection::{AtomicConnectionState, ConnectionState};
use super::event::SupervisorEvent;
use super::mounted_volume::MountedVolume;
use super::recovery::{keep, serve as recovery};
use super::store::{is_read_only, open_store, start_volume};
use super::supervisor::{self, Supervisor};
use super::upgrade::upgrader::Upgrader;
use super::volume_info::{VolumeInfo, recorded_journal};
use crate::cli::MountArgs;
use crate::cli::opts::{self, MountOptions};
use crate::control::api::{Upgrades, now_ms};
use crate::control::progress;
use crate::control::server::Server;
use crate::host::checks::{self, Source};
use crate::host::keeper_id::KeeperId;
use crate::host::mountinfo::{self, Device};
use crate::host::notify::notify;
use crate::host::signals::{self, StartupPhase};
use crate::host::{mount_agent, privileges, unmount, utab};
use crate::registry::nested::check_alone;
use crate::registry::{self, Record, Registration, RuntimeDir};
use crate::term::console::{Colour, console};
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Name, Show as _, exact, in_one_line};
use crate::term::{logging, units};

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a request that cannot be mounted, 1 for a failure, and for data that was lost.
pub fn run(args: &MountArgs, in_background: bool, is_kept: bool) -> Result<ExitCode> {
    if args.background && !in_background {
        return background::start(std::env::args_os().skip(1), true);
    }
    let options = MountOptions::parse(&args.options)?;
    if options.recover && !is_kept {
        return keep::run(args, in_background);
    }
    let recovery = if options.recover { Some(recovery::begin()?) } else { None };
    let recovery = recovery.as_ref();
    let tree = Hierarchy::find(&options.cgroup)
        .map_err(|error| Problem::usage(in_one_line(&format!("option cgroup: {error}"))))?;
    if in_background {
        background::leave_session()?;
    }
    // Before there is a second thread.
    fuse::register_process();
    if !options.recover {
        // What a device of the process reports would end with it.
        fuse::mount::will_serve();
    }
    let (sender, events) = channel();
    let startup = StartupPhase::default();
    let (phase, signal_sender) = (startup.clone(), sender.clone());
    let farewell = format!("{}: stopped before it was mounted", args.mountpoint.shown());
    let on_signal = move |name| {
        phase.end_process(&farewell);
        signal_sender.send(SupervisorEvent::Signal(name)).is_ok()
    };
    signals::watch(on_signal).map_err(|error| Problem::failure(format!("cannot handle signals: {error}")))?;
    let what = format!("mounting {}", args.mountpoint.shown());
    let (from, to) = (format!("the store {}", args.source.shown()), args.mountpoint.shown().to_string());
    let source = progress::waiting_for(&what, &from, || checks::source(&args.source))?;
    opts::fit(&args.options, &source.spec)?;
    if options.recover {
        recovery::check_source(&source.spec, &options)?;
    }
    let mountpoint = progress::waiting_for(&what, &to, || checks::mountpoint(&args.mountpoint))?;
    if args.no_links && mountpoint != args.mountpoint {
        let (given, real) = (args.mountpoint.shown(), mountpoint.shown());
        return Err(Problem::usage(format!("mountpoint {given} leads to {real}, by a symbolic link")));
    }
    if let Some(directory) = &source.directory {
        checks::apart(directory, &mountpoint)?;
    }
    let name = exact(&mountpoint);
    let shown = mountpoint.clone();
    let step = tracing::info_span!("mount", volume = name, source = %source.spec).entered();
    let log = background::open_log(args.log_file.as_deref())?;

    let runtime_dir = RuntimeDir::own()?;
    fuse::mount::check_device().map_err(|error| Problem::failure(error.to_string()))?;
    mount_agent::start()?;

    if let Some(directory) = &source.directory {
        check_alone(directory)?;
    }
    let whom = if options.objects.takeover {
        format!("the holder of {}", source.spec.shown())
    } else {
        from.clone()
    };
    let store = progress::waiting_for(&what, &whom, || open_store(&source, &options, &mountpoint))?;
    recovery::check_store(&options, &*store)?;
    if source.url.is_some() {
        // Held by this process for every host: it is given back, whatever comes.
        startup.finish();
    }
    // After the store has raised the limit of descriptors, and before threads are started that
    // write.
    privileges::respect_quotas();
    let read_only = is_read_only(&options, (&source, &name), &*store)?;
    // Its thread serves all volumes of the process; its events are logged with the first.
    let tenants = || tree.map_or_else(|| Ok(Arc::default()), Tenants::of);
    let tenants = volume::span_of(&name).in_scope(tenants);
    let tenants = tenants.map_err(|error| {
        store.close();
        Problem::failure(format!("the host's cgroups cannot be watched: {error}"))
    })?;
    let start = || start_volume(&name, &options, store, Arc::clone(&tenants), recovery);
    let volume = progress::waiting_for(&what, &from, start)?;
    options.limits.iter().for_each(|(cgroup, change)| volume.limit(cgroup, change));
    let connection = Arc::new(AtomicConnectionState::default());
    startup.finish();
    if in_background {
        background::outlive_parent();
    }
    let session = match start_session(
        &options,
        &source,
        &mountpoint,
        read_only,
        (&volume, &connection, sender.clone()),
    ) {
        Ok(session) => session,
        Err(problem) => {
            volume.shutdown();
            return Err(problem);
        }
    };
    let info = info(&options, &source, read_only, &session).inspect_err(|_| drop(volume.shutdown()))?;
    let mount = session.mount().hand_over();

    let record = Record::new(info.id.clone(), info.source.clone(), &mountpoint, Device::of(&info.mount));
    let keeper = recovery
        .and_then(|_| KeeperId::of(rustix::process::getppid()?.as_raw_nonzero().get().unsigned_abs()));
    let journal = recorded_journal(&options.objects);
    let record = Record { keeper, journal, read_only, ..record };
    let registered = runtime_dir.register(record);
    let (registration, listener) = registered.inspect_err(|_| drop(volume.shutdown()))?;
    let upgrader = Upgrader::new(&listener, mount, Upgrades::default())
        .map_err(|error| Problem::failure(format!("no descriptor for the control socket: {error}")))
        .inspect_err(|_| drop(volume.shutdown()))?;
    let changes = Arc::clone(&upgrader.changes);
    let attachments =
        Attachments::new(session.tree(), session.view(), info.clone(), runtime_dir, tenants, changes);
    let mounted =
        MountedVolume::new(info, volume, attachments, sender.clone(), Arc::clone(&connection), upgrader);
    let mounted = Arc::new(mounted);
    let owner = rustix::process::geteuid().as_raw();
    if let Err(why) = recovery::give(mounted.handed(), 0) {
        registration.withdraw();
        mounted.volume.shutdown();
        return Err(Problem::failure(format!("recover=on: the keeper was not given what it needs: {why}")));
    }
    let started = Server::start(listener, owner, Arc::clone(&mounted) as Arc<_>)
        .map_err(|error| Problem::failure(format!("the control socket cannot be served: {error}")))
        .and_then(|server| serve(session, name, connection, sender.clone()).map(|()| server));
    let server = match started {
        Ok(server) => server,
        Err(problem) => {
            registration.withdraw();
            mounted.volume.shutdown();
            return Err(problem);
        }
    };

    let mut supervisor = Supervisor::new(Arc::clone(&mounted), events, sender);
    supervisor.try_syncfs();
    let utab = utab::Entry::add(&mounted.info.mount, &mounted.info.id);
    let at = mounted.info.mount.mountpoint.clone();
    mounted.volume.events().life(Life::Mounted, Some(at));
    let lines = announcement(&mounted, in_background);
    // The keeper first: who reads that it is ready may kill the server, and another one is to follow.
    match recovery {
        Some(recovery) if in_background => {
            detach_output(log);
            // With the output that the keeper is to have.
            recovery::ready(recovery, &lines.join("\n"));
        }
        _ => {
            if let Some(recovery) = recovery {
                recovery::ready(recovery, "");
            }
            lines.iter().for_each(|line| console().print(line));
            if in_background {
                detach_output(log);
            }
        }
    }
    notify(&format!("READY=1\nSTATUS=serving {}", mounted.info.mount.mountpoint.shown()));
    drop(step);
    let (source, mountpoint) = (source.spec, shown);
    supervise(Up { mounted, supervisor, registration, server, utab, source, mountpoint })
}

/// A mount that is served.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) mounted: Arc<MountedVolume>,
    pub(crate) supervisor: Supervisor,
    pub(crate) registration: Registration,
    pub(crate) server: Server,
    pub(crate) utab: Option<utab::Entry>,
    pub(crate) source: String,
    pub(crate) mountpoint: PathBuf,
}

/// Sees a mount that is served to its end.
pub(crate) fn supervise(up: Up) -> Result<ExitCode> {
    let Up { mounted, mut supervisor, registration, server, utab, source, mountpoint } = up;
    let _of_the_volume = mounted.volume.span().clone().entered();
    let ended = supervisor.run();
    drop(utab);
    recovery::end(mounted.volume.recovery().map(|recovery| &**recovery));
    supervisor.finish(&ended, registration, server);
    let closing = volume::abort::closing() as u64;
    if closing > 0 {
        let stores = units::count(closing, "store that was given up", "stores that were given up");
        tracing::warn!(volume = %mountpoint.shown().exact(), "{stores}: files are still being closed; this process does not wait for that");
    }
    supervisor::outcome(source.shown(), &Name::of(&mountpoint), &ended).map(|()| ExitCode::SUCCESS)
}

fn start_session(
    options: &MountOptions,
    source: &Source,
    mountpoint: &std::path::Path,
    read_only: bool,
    (volume, connection, sender): (&Arc<Volume>, &Arc<AtomicConnectionState>, Sender<SupervisorEvent>),
) -> Result<fuse::Session> {
    let mut flags = options.flags.iter().fold(MountFlags::empty(), |flags, name| {
        flags
            | match name.as_str() {
                "nosuid" => MountFlags::NOSUID,
                "nodev" => MountFlags::NODEV,
                "noexec" => MountFlags::NOEXEC,
                "nosymfollow" => MountFlags::NOSYMFOLLOW,
                _ => MountFlags::NOATIME,
            }
    });
    flags.set(MountFlags::RDONLY, read_only);
    let mount_options = fuse::MountOptions {
        wanted: options.mount_type,
        fsname: source.spec.clone(),
        uring: options.uring,
        allow_other: options.allow_other,
        flags,
        no_links: true,
        ..fuse::MountOptions::new(mountpoint)
    };
    let mount = fuse::Mount::new(&mount_options).map_err(|error| match error {
        fuse::MountError::Mountpoint(_) | fuse::MountError::Option { .. } => {
            Problem::usage(error.to_string())
        }
        _ => Problem::failure(error.to_string()),
    })?;
    let session_options = session_options(options, volume, connection, sender);
    fuse::Session::new(Arc::clone(volume), mount, session_options)
        .map_err(|error| Problem::failure(format!("cannot serve {}: {error}", mountpoint.shown())))
}

/// How the session of this volume behaves.
pub(super) fn session_options(
    options: &MountOptions,
    volume: &Arc<Volume>,
    connection: &Arc<AtomicConnectionState>,
    sender: Sender<SupervisorEvent>,
) -> fuse::SessionOptions {
    let defaults = fuse::SessionOptions::default();
    let (drained, state) = (Arc::clone(volume), Arc::clone(connection));
    fuse::SessionOptions {
        mode: options.mode,
        threads_max: options.threads.unwrap_or(defaults.threads_max),
        idle_sched: options.idle_sched,
        recovery: volume.recovery().map(Arc::clone),
        on_destroy: Box::new(move || {
            drained.shutdown();
            state.advance(ConnectionState::Unmounted);
            // Not when the session's threads are gone as well: clients that wait for the end would
            // wait for that too. The process may leave before the kernel has the answer: the kernel
            // goes on then as if it had.
            let _supervisor_has_left = sender.send(SupervisorEvent::SessionEnded);
        }),
        ..defaults
    }
}

fn info(
    options: &MountOptions,
    source: &Source,
    read_only: bool,
    session: &fuse::Session,
) -> Result<VolumeInfo> {
    let mount = session.mount();
    let mount_row = mount.info().cloned().ok_or_else(|| {
        Problem::failure(format!(
            "{} was unmounted again while it was being mounted",
            mount.mountpoint().shown()
        ))
    })?;
    Ok(VolumeInfo {
        id: registry::new_id()?,
        source: source.spec.clone(),
        unique_id: unmount::unique_id(&mount_row.mountpoint),
        mount: mount_row,
        type_reason: match mount.kind() {
            fuse::MountKind::FuseBlk { .. } => None,
            fuse::MountKind::Fuse { reason } => Some(reason.clone()),
        },
        mode: opts::name_of(options.mode),
        read_only,
        started_ms: now_ms(),
        drain_timeout: options.drain_timeout,
    })
}

/// Serves the kernel's requests on threads of their own until the connection ends.
pub(super) fn serve(
    session: fuse::Session,
    volume: String,
    connection: Arc<AtomicConnectionState>,
    sender: Sender<SupervisorEvent>,
) -> Result<()> {
    let body = move || {
        let result = session.run();
        connection.advance(match &result {
            Ok(ended) if ended.reason == fuse::EndReason::Destroyed => ConnectionState::Unmounted,
            // Without DESTROY the kernel reports an unmount like an umount2(2) with MNT_FORCE,
            // which may leave the mount where it is.
            _ => ConnectionState::Aborted,
        });
        match result {
            Ok(ended) if ended.stuck > 0 => {
                tracing::warn!(volume, threads = ended.stuck, "calls to the store have not returned");
            }
            Ok(ended) => tracing::debug!(volume, ?ended, "the session has ended"),
            Err(error) => tracing::error!(volume, %error, "the session failed"),
        }
        let _supervisor_has_left = sender.send(SupervisorEvent::SessionEnded);
    };
    thread::Builder::new()
        .name("session".to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|error| Problem::failure(format!("cannot start the serving thread: {error}")))
}

/// The effect of `-o suid` and `-o dev` on this host, in a line.
fn privileges_note(privileges: &[Name]) -> String {
    let means = |name: &Name| match name.as_str() {
        "suid" => "set-id bits and capabilities of its programs take effect on this host",
        _ => "its devices can be opened on this host",
    };
    format!(
        "mounted with {}: {}",
        privileges.iter().map(Name::as_str).collect::<Vec<_>>().join(","),
        privileges.iter().map(means).collect::<Vec<_>>().join(", and ")
    )
}

fn detach_output(log: Option<File>) {
    if let Err(problem) = background::detach_output(log) {
        // The mount is up all the same.
        tracing::error!("{problem}");
    }
}

/// The lines for who waits for the mount; what a person is to know beside is logged, or is notes among
/// these lines if the mount goes to the background.
fn announcement(mounted: &MountedVolume, in_background: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let info = &mounted.info;
    let mount = &info.mount;
    let how = format!("{}{}", mountinfo::kind(mount), if info.read_only { ", read-only" } else { "" });
    // All that the kernel does not give, in one line.
    let mut lacks = Vec::new();
    if let Some(reason) = &info.type_reason {
        lacks.push(format!(
            "plain `fuse`, for which a raw umount2(2) does not wait: {}; `watertight umount` waits",
            in_one_line(reason)
        ));
    }
    if !mounted.attachments.session.has_seen_syncfs() {
        lacks.push(mount_agent::NO_SYNCFS.to_owned());
    }
    let lacks = lacks.join("; ");
    if !lacks.is_empty() && in_background {
        lines.push(format!("{}{lacks}", background::NOTE));
    } else if !lacks.is_empty() {
        tracing::info!(volume = mounted.volume.name(), "{lacks}");
    }
    let privileges = mountinfo::privileges([mount]);
    if !privileges.is_empty() {
        let note = privileges_note(&privileges);
        if in_background {
            lines.push(format!("{}{note}", background::NOTE));
        } else if logging::has_all() {
            tracing::warn!(volume = mounted.volume.name(), "{note}");
        } else {
            console().say(&console().paint_err(Colour::Yellow, &note));
        }
    }
    lines.push(format!(
        "{}: {} is mounted at {} (volume {}, {how}, pid {})",
        background::READY,
        info.source.shown(),
        mount.mountpoint.shown(),
        info.id,
        std::process::id()
    ));
    lines
}
