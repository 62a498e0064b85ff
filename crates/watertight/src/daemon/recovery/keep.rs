//! The keeper's part of the program.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;

use recovery::keeper::{Ended, Events, Keeper, Server};
use rustix::process::Signal;

use crate::cli::MountArgs;
use crate::daemon::upgrade::upgrader::arguments;
use crate::host::{notify, process, signals};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, exact};

/// Keeps a server with this process's own arguments until it ends; returns its exit code.
///
/// # Errors
/// When none can be started, and when the keeper gives up.
pub(crate) fn run(args: &MountArgs, in_background: bool) -> Result<ExitCode> {
    let failed =
        |error: std::io::Error| Problem::failure(format!("recover=on: no server can be started: {error}"));
    if in_background && let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "cannot start a session");
    }
    process::raise_descriptors();
    let program = File::open("/proc/self/exe").map_err(failed)?;
    let server = Server::default();
    let signalled = server.clone();
    signals::watch(move |name| {
        signalled.signal(match name {
            "SIGINT" => Signal::INT,
            "SIGTERM" => Signal::TERM,
            _ => Signal::HUP,
        });
        true
    })
    .map_err(failed)?;
    let volume = exact(&args.mountpoint);
    let keeper = Keeper::new(program.into(), arguments(), server);
    let ended = keeper.run(&mut Told { volume: &volume, in_background }).map_err(failed)?;
    match ended {
        Ended::Server(status) => {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
        }
        Ended::GivenUp(words) => Err(Problem::failure(format!("{}: {words}", args.mountpoint.shown()))),
    }
}

struct Told<'a> {
    volume: &'a str,
    in_background: bool,
}

impl Events for Told<'_> {
    fn ready(&mut self, output: Vec<OwnedFd>, lines: &str) {
        if !self.in_background {
            return;
        }
        lines.lines().for_each(|line| console().print(line));
        // The server has let go of the caller's terminal and directory.
        if let [out, err] = output.as_slice() {
            let moved = rustix::stdio::dup2_stdout(out).and_then(|()| rustix::stdio::dup2_stderr(err));
            if let Err(error) = moved.map_err(Into::into).and_then(|()| std::env::set_current_dir("/")) {
                tracing::warn!(volume = self.volume, %error, "cannot let go of the caller's terminal");
            }
        }
    }

    fn notify(&mut self, text: &str) {
        notify::notify(text);
    }

    fn say(&mut self, words: &str) {
        tracing::error!(volume = self.volume, "{words}");
    }
}
