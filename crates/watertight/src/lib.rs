//! The program: the command line, the mount process and its control socket.
//!
//! | module | purpose |
//! |---|---|
//! | `cli`, `opts`, `units` | the words that a person types |
//! | `checks` | mistakes in them, in words |
//! | `attach`, `attach_cmd`, `clone_cmd` | volumes in directories of a mounted one, and second mountpoints |
//! | `mount_cmd`, `background`, `supervisor`, `live`, `stalls`, `process` | the mount process |
//! | `control`, `registry`, `target`, `metrics` | finding mount processes and talking to them; their figures for Prometheus |
//! | `umount_cmd`, `several`, `sync_cmd`, `status_cmd`, `events_cmd`, `wait_cmd` | the other verbs |
//! | `unmount`, `kernel_side`, `mountinfo`, `holders` | the kernel's mounts and their holders |
//! | `helpers`, `utab` | the helpers of mount(8) and umount(8), and the entry that makes these call them |
//! | `console`, `columns`, `progress`, `logging`, `signals`, `notify` | the terminal, the log, signals, the service manager |
//! | `serve`, `suggest` | the volumes of a configuration file, and suggestions for wrong words in it |
//! | `top` | the volumes, live |
//! | `demo`, `bench`, `man_pages` | the verbs of these names |
//!
//! The binary is [`main`] and nothing else; everything is a library so that tests reach it.

#![forbid(unsafe_code)]

pub mod attach;
pub mod attach_cmd;
pub mod background;
pub mod bench;
pub mod checks;
pub mod cli;
pub mod clone_cmd;
pub mod columns;
pub mod console;
pub mod control;
pub mod demo;
pub mod events_cmd;
pub mod helpers;
pub mod holders;
pub mod kernel_side;
pub mod limit_cmd;
pub mod live;
pub mod logging;
pub mod man_pages;
pub mod metrics;
pub mod mount_cmd;
pub mod mountinfo;
pub mod notify;
pub mod opts;
pub mod privileges;
pub mod problem;
pub mod process;
pub mod progress;
pub mod registry;
pub mod serve;
pub mod several;
pub mod shown;
pub mod signals;
pub mod stalls;
pub mod status_cmd;
pub mod suggest;
pub mod supervisor;
pub mod survey;
pub mod sync_cmd;
pub mod target;
pub mod top;
pub mod umount_cmd;
pub mod units;
pub mod unmount;
pub mod utab;
pub mod volume_id;
pub mod wait_cmd;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Verb};
use crate::console::{Colour, console};
use crate::helpers::Helper;
use crate::logging::LogFormat;
use crate::problem::{Problem, Result};
use crate::shown::Show as _;

/// Runs the program with the process's own arguments.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(helper) = std::env::args_os().next().as_deref().and_then(Helper::named) {
        return helpers::main(helper);
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
    let level = cli.log_level.as_deref();
    if let Verb::Mount(args) = &cli.verb {
        let format = cli.log_format.unwrap_or_else(|| LogFormat::for_mount(args.log_file.is_some()));
        logging::start(format, level, "info")?;
        if cli.log_format.is_some() {
            logging::take_all();
        }
        return mount_cmd::run(args, cli.in_background);
    }
    if let Verb::Serve(args) = &cli.verb
        && args.serves()
    {
        logging::start(cli.log_format.unwrap_or_else(|| LogFormat::for_mount(false)), level, "info")?;
        if cli.log_format.is_some() {
            logging::take_all();
        }
    } else {
        logging::start(cli.log_format.unwrap_or(LogFormat::Text), level, "warn")?;
    }
    if cli.verb.is_for_all_users() {
        registry::users::include_all_users()?;
    }
    match &cli.verb {
        Verb::Mount(_) => {}
        Verb::Umount(args) => umount_cmd::run(args)?,
        Verb::Attach(args) => attach_cmd::attach(args)?,
        Verb::Detach(args) => attach_cmd::detach(args)?,
        Verb::Move(args) => attach_cmd::move_to(args)?,
        Verb::Clone(args) => clone_cmd::run(args)?,
        Verb::Sync(args) => sync_cmd::run(args)?,
        Verb::Status(args) => status_cmd::run(args)?,
        Verb::Events(args) => events_cmd::run(args)?,
        Verb::Wait(args) => wait_cmd::run(args)?,
        Verb::Serve(args) => serve::run(args)?,
        Verb::Top(args) => top::run(args)?,
        Verb::Demo(args) => demo::run(args)?,
        Verb::Bench(args) => bench::run(args)?,
        Verb::Limit(args) => limit_cmd::run(args)?,
        Verb::KernelSide(args) => kernel_side::run(args)?,
        Verb::InstallHelpers(args) => helpers::install(args)?,
        Verb::ManPages(args) => man_pages::run(args)?,
        Verb::Completions { shell } => {
            clap_complete::generate(*shell, &mut cli::visible(), "watertight", &mut std::io::stdout());
        }
    }
    Ok(ExitCode::SUCCESS)
}
