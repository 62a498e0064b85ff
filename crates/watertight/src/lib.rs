//! The program: the command line, the mount process and its control socket.
//!
//! ```text
//! main ─ cli          the words that a person types
//!         │
//!         ├─ verbs    umount, attach, status, top, …: ask mount processes, print, end
//!         ├─ serve    the volumes of a configuration file, a process for each mountpoint
//!         ├─ containers  volumes for container engines, which call over a socket
//!         └─ daemon   the mount process: mount, supervise, attach, drain
//!              │
//!           registry  the volumes of this host, found by id, path or store
//!              │
//!           control   the control socket: messages, server, client, metrics
//!              │
//!            host     the kernel's mounts and their holders, processes, signals
//!              │
//!       object_volumes the crate `objects`, where this program is built with it
//!              │
//!            term     names, messages, tables, the terminal, the log
//! ```
//!
//! A module uses those below it; in the row of three, `verbs` and `serve` use `daemon` as well, and
//! all three use `cli`, which has the options. So `host`, `control` and `registry` know neither the
//! verbs nor the mount process. Read `daemon::mount` first: a mount from its first check to its
//! end; then `verbs::umount`, and the table of calls in `control`.
//!
//! The binary is [`main`] and nothing else; everything is a library so that tests reach it.

#![forbid(unsafe_code)]

pub mod cli;
pub mod containers;
pub mod control;
pub mod daemon;
pub mod host;
pub mod object_volumes;
pub mod registry;
pub mod serve;
pub mod term;
pub mod verbs;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Verb};
use crate::host::{mount_agent, users};
use crate::term::console::{Colour, console};
use crate::term::logging::{self, LogFormat};
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::verbs::mount_helpers::{self, Helper};
use crate::verbs::{attach, bench, clone, demo, events, limit, man_pages, status, sync, top, umount, wait};

/// Runs the program with the process's own arguments.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(helper) = std::env::args_os().next().as_deref().and_then(Helper::named) {
        return mount_helpers::main(helper);
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        cli::shown_error(error, Cli::try_parse_from::<Vec<String>, String>).exit();
    });
    match run(&cli) {
        Ok(code) => code,
        Err(problem) => {
            console().clear_status();
            tell(&cli.verb, &problem);
            ExitCode::from(problem.exit().code())
        }
    }
}

/// Reports why the verb failed: in the log, where all of standard error is the log, else as text.
fn tell(verb: &Verb, problem: &Problem) {
    // Unless the caller asked for a log without errors.
    let is_logged = logging::has_all() && tracing::enabled!(tracing::Level::ERROR);
    match verb {
        Verb::Mount(args) if is_logged => {
            tracing::error!(volume = %args.mountpoint.shown().exact(), "{problem}");
        }
        _ if is_logged => tracing::error!("{problem}"),
        _ => console().say(&format!("{} {problem}", console().paint_err(Colour::Red, "watertight:"))),
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    let (default, level) = match &cli.verb {
        Verb::Mount(args) => (LogFormat::for_mount(args.log_file.is_some()), "info"),
        Verb::Serve(args) if args.serves() => (LogFormat::for_mount(false), "info"),
        Verb::DockerPlugin(_) => (LogFormat::for_mount(false), "info"),
        #[cfg(feature = "csi")]
        Verb::Csi(_) => (LogFormat::for_mount(false), "info"),
        _ => (LogFormat::Text, "warn"),
    };
    logging::start(cli.log_format.unwrap_or(default), cli.log_level.as_deref(), level)?;
    if level == "info" && cli.log_format.is_some() {
        logging::take_all();
    }
    if cli.verb.is_for_all_users() {
        users::include_all_users()?;
    }
    match &cli.verb {
        Verb::Mount(args) => {
            return match (cli.taken_over, &cli.kept) {
                (Some(state), _) => daemon::upgrade::resume::run(args, state),
                (None, Some(kept)) if kept.servers > 0 => daemon::recovery::resume::run(args, kept),
                (None, kept) => daemon::mount::run(args, cli.in_background, kept.is_some()),
            };
        }
        #[cfg(feature = "objects")]
        Verb::Format(args) => verbs::format::run(args)?,
        #[cfg(feature = "objects")]
        Verb::Info(args) => verbs::info::run(args)?,
        #[cfg(feature = "objects")]
        Verb::ChangeKey(args) => verbs::change_key::run(args)?,
        #[cfg(feature = "objects")]
        Verb::Gc(args) => verbs::gc::run(args)?,
        #[cfg(feature = "objects")]
        Verb::Fsck(args) => return verbs::fsck::run(args),
        #[cfg(feature = "objects")]
        Verb::Snapshot(args) => verbs::snapshot::run(args)?,
        #[cfg(feature = "objects")]
        Verb::CloneVolume(args) => verbs::clone_volume::run(args)?,
        #[cfg(feature = "objects")]
        Verb::Quota(args) => verbs::quota::run(args)?,
        #[cfg(not(feature = "objects"))]
        Verb::Format(_)
        | Verb::Info(_)
        | Verb::ChangeKey(_)
        | Verb::Gc(_)
        | Verb::Fsck(_)
        | Verb::Snapshot(_)
        | Verb::CloneVolume(_)
        | Verb::Quota(_) => {
            return Err(object_volumes::absent());
        }
        Verb::Warm(args) => verbs::warm::run(args)?,
        Verb::Umount(args) => umount::run(args)?,
        Verb::Attach(args) => attach::attach(args)?,
        Verb::Detach(args) => attach::detach(args)?,
        Verb::Move(args) => attach::move_to(args)?,
        Verb::Clone(args) => clone::run(args)?,
        Verb::Sync(args) => sync::run(args)?,
        Verb::Status(args) => status::run(args)?,
        Verb::Stats(args) => verbs::stats::run(args)?,
        Verb::Why(args) => verbs::why::run(args)?,
        Verb::Doctor(args) => verbs::doctor::run(args)?,
        Verb::Events(args) => events::run(args)?,
        Verb::Wait(args) => wait::run(args)?,
        Verb::Serve(args) => serve::run(args)?,
        Verb::DockerPlugin(args) => containers::docker::run(args)?,
        #[cfg(feature = "csi")]
        Verb::Csi(args) => containers::csi::run(args)?,
        #[cfg(feature = "csi")]
        Verb::CsiStep => containers::csi::step::run()?,
        #[cfg(feature = "csi")]
        Verb::CsiUnmount { path } => containers::csi::unmounting::run(path)?,
        #[cfg(feature = "csi")]
        Verb::CsiOutside { command } => containers::csi::outside::run(command)?,
        Verb::Top(args) => top::run(args)?,
        Verb::Demo(args) => demo::run(args)?,
        Verb::Bench(args) => bench::run(args)?,
        Verb::Limit(args) => limit::run(args)?,
        Verb::Upgrade(args) => verbs::upgrade::run(args)?,
        Verb::CanTake(args) => daemon::upgrade::check::answer(args)?,
        Verb::KernelSide(args) => mount_agent::run(args.probe.as_deref())?,
        Verb::InstallHelpers(args) => mount_helpers::install(args)?,
        Verb::ManPages(args) => man_pages::run(args)?,
        Verb::Completions { shell } => {
            clap_complete::generate(*shell, &mut cli::visible(), "watertight", &mut std::io::stdout());
        }
    }
    Ok(ExitCode::SUCCESS)
}
