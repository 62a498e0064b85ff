//! `upgrade`: another version of the program takes mounts over, which go on meanwhile.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::UpgradeArgs;
use crate::control::api::{UpgradeRequest, Upgrades, millis};
use crate::control::client::{CallError, Client};
use crate::registry::target::{self, RegisteredVolume};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, in_one_line};
use crate::term::units;

/// How long a process may take for the rest: asking the new program, replacing the old one.
const BESIDE: Duration = Duration::from_secs(60);

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a name that is no mount of ours or a program that cannot be found, 1 where a mount was
/// not upgraded.
pub fn run(args: &UpgradeArgs) -> Result<()> {
    let program = program(args)?;
    let volumes = if args.all { all() } else { named(args)? };
    if volumes.is_empty() {
        console().print("no volume is mounted");
        return Ok(());
    }
    let request =
        UpgradeRequest { program, timeout_ms: millis(args.timeout), max_pause_ms: millis(args.max_pause) };
    let limit = args.timeout.saturating_add(args.max_pause).saturating_add(BESIDE);
    let mut problems = Vec::new();
    for volume in &volumes {
        let mountpoint = &volume.record().mountpoint;
        match upgrade(volume, &request, limit) {
            Ok(Upgrades { version, pause_us, .. }) => {
                let pause = units::duration(Duration::from_micros(pause_us));
                console().print(&format!(
                    "{mountpoint}: served by version {version} now; requests waited {pause}"
                ));
            }
            Err(why) => problems.push(format!("{mountpoint}: not upgraded: {why}")),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Problem::failure(problems.join("\n"))) }
}

/// The path of the new program, as the mount process opens it.
fn program(args: &UpgradeArgs) -> Result<String> {
    let path = match &args.program {
        Some(path) => std::fs::canonicalize(path).map_err(|error| {
            Problem::usage(format!("the program {} cannot be found: {error}", path.shown()))
        })?,
        None => std::env::current_exe()
            .map_err(|error| Problem::failure(format!("this program cannot be found: {error}")))?,
    };
    let not_text =
        |path: PathBuf| Problem::usage(format!("the path of the program, {}, is not UTF-8", path.shown()));
    path.into_os_string().into_string().map_err(|path| not_text(path.into()))
}

/// All mounts that run.
fn all() -> Vec<RegisteredVolume> {
    target::volumes().into_iter().filter(|volume| volume.is_running() && !volume.is_attached()).collect()
}

fn named(args: &UpgradeArgs) -> Result<Vec<RegisteredVolume>> {
    let find = |name: &std::ffi::OsString| {
        target::resolve(name).volume.filter(RegisteredVolume::is_running).ok_or_else(|| {
            Problem::usage(format!(
                "{} is not a mounted Watertight volume; `watertight status` lists the volumes",
                name.shown()
            ))
        })
    };
    args.volumes.iter().map(find).collect()
}

/// Upgrades one; returns the state afterwards.
fn upgrade(
    volume: &RegisteredVolume,
    request: &UpgradeRequest,
    limit: Duration,
) -> std::result::Result<Upgrades, String> {
    let client = volume.client().map_err(|problem| problem.to_string())?;
    let before = client.status().map_err(|error| error.to_string())?.upgrades;
    match client.upgrade(request, limit) {
        Ok(_) => return Err("the mount process has answered what it does not".to_owned()),
        Err(CallError::Gone) => {}
        Err(error) => return Err(error.to_string()),
    }
    // Its socket goes on listening: the answer comes from whichever program serves next.
    let after = ask(client)?;
    match &after.error {
        Some(error) if after.failed > before.failed => Err(format!(
            "the new program could not take over, the old one goes on: {}",
            in_one_line(error.as_str())
        )),
        _ if after.count > before.count => Ok(after),
        _ => {
            Err("the mount process has closed the connection, and serves as before; its log says more"
                .to_owned())
        }
    }
}

fn ask(client: &Client) -> std::result::Result<Upgrades, String> {
    client.status().map(|status| status.upgrades).map_err(|error| match error {
        CallError::Gone => "the mount process has ended; its log says why".to_owned(),
        error => error.to_string(),
    })
}
