//! `wait`: until a volume is drained and its store is free.

use std::time::{Duration, Instant};

use super::ended::{LOST_NAMED_MAX, wait_ended};
use crate::cli::WaitArgs;
use crate::control::api::{Ended, State};
use crate::control::client::{CallError, Client};
use crate::control::progress;
use crate::host::{checks, mountinfo, unmount};
use crate::registry::Record;
use crate::registry::target::{self, RegisteredVolume, Target};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// How long a process may take to leave once its volume ended.
const LEAVE: Duration = Duration::from_secs(30);

/// Runs the verb.
///
/// # Errors
/// Exit 1: not drained at the timeout, or it ended with data lost. Exit 2: no such volume.
pub fn run(args: &WaitArgs) -> Result<()> {
    let Target { mount, volume, path } = target::resolve(&args.volume);
    let name = args.volume.shown();
    let Some(volume) = volume else {
        if let Some(mount) = mount.filter(mountinfo::is_ours) {
            if mountinfo::is_for_this_user(&mount) && unmount::is_dead(&mount.mountpoint) {
                let at = mount.mountpoint.shown();
                return Err(Problem::failure(format!(
                    "{name}: its process is gone, the dead mount is still there; `watertight umount {at}` clears it"
                )));
            }
            if mountinfo::is_own(&mount) {
                return Err(Problem::failure(format!(
                    "{name}: a volume is mounted there without a record in this user's runtime directory, so that its process \
                     cannot be asked"
                )));
            }
            return Err(target::not_to_be_asked(name, &mount));
        }
        return match path.filter(|path| path.is_dir()) {
            Some(dir) => unknown_directory(&dir),
            None if args.volume.to_str().and_then(checks::url_of).is_some() => Err(Problem::usage(format!(
                "no process of this host has the volume {name}; `watertight info {name}` tells who holds it"
            ))),
            None => Err(Problem::usage(format!(
                "there is no volume {name}; `watertight status` lists the volumes by mountpoint, store and id"
            ))),
        };
    };
    let said = outcome(args, &volume);
    if args.forget {
        forget(&volume)?;
    }
    said
}

/// Removes the record of a volume that has ended.
fn forget(volume: &RegisteredVolume) -> Result<()> {
    let id = &volume.record().id;
    let has_ended = |record: &Record| record.ended.is_some() || !volume.is_running();
    if !volume.dir.read_record(id).as_ref().is_some_and(has_ended) {
        return Ok(());
    }
    volume.dir.forget(id).map_err(|error| Problem::failure(format!("cannot forget volume {id}: {error}")))?;
    let at = &volume.record().mountpoint;
    console()
        .print(&format!("{at}: forgotten: `status` and the metrics no longer report how volume {id} ended"));
    Ok(())
}

fn outcome(args: &WaitArgs, volume: &RegisteredVolume) -> Result<()> {
    let ended = match (&volume.found.client, &volume.record().ended) {
        (Some(client), _) => wait(volume, client, args.timeout)?,
        (None, Some(ended)) => {
            let by_id = volume.record().id.as_str() == args.volume;
            match used_again(volume) {
                Some(again) if !by_id => return Err(Problem::failure(again)),
                _ => ended.clone(),
            }
        }
        (None, None) => return Err(volume.died()),
    };
    report(volume, &ended)
}

/// The present user of a store, if the volume that ended at a path is not the one that is meant:
/// its store is in use in another place, and so not free.
fn used_again(ended: &RegisteredVolume) -> Option<String> {
    let source = &ended.record().source;
    let store = crate::host::checks::identity_of(source.as_str())?;
    let again = target::running(store.as_ref()).into_iter().find(|other| other.record().source == *source)?;
    let (there, here) = (again.record(), &ended.record().mountpoint);
    Some(format!(
        "{here}: a volume ended there, and its store {source} is in use again, at {} (volume {})",
        there.mountpoint, there.id
    ))
}

fn wait(volume: &RegisteredVolume, client: &Client, timeout: Option<Duration>) -> Result<Ended> {
    let mountpoint = &volume.record().mountpoint;
    let what = format!("waiting for {mountpoint}");
    let Some(timeout) = timeout else {
        let ended = progress::during(&what, client, || wait_ended(volume, client, LEAVE))?;
        return leave(client, LEAVE, volume, ended);
    };
    let until = Instant::now() + timeout;
    match progress::during(&what, client, || client.wait(timeout)) {
        Ok(reply) => match reply.ended {
            Some(ended) => leave(client, until.saturating_duration_since(Instant::now()), volume, ended),
            None => Err(Problem::failure(format!(
                "{mountpoint}: not yet: {}, {} to be written, {} open",
                reply.status.state,
                reply.status.unwritten(),
                crate::term::units::count(reply.status.open_files, "file", "files"),
            ))),
        },
        Err(CallError::Gone) => wait_ended(volume, client, Duration::ZERO),
        Err(error) => Err(Problem::failure(format!("{mountpoint}: {error}"))),
    }
}

/// Waits until the process is gone as well, and with it all it held.
fn leave(client: &Client, timeout: Duration, volume: &RegisteredVolume, ended: Ended) -> Result<Ended> {
    // That process goes on: it serves the mountpoint.
    if volume.is_attached() || client.wait_gone(timeout.max(Duration::from_secs(1))) {
        return Ok(ended);
    }
    let (record, pid) = (volume.record(), client.pid());
    let mut lines = if ended.state == State::Released {
        vec![format!("{}: everything is on {}", record.mountpoint, record.source)]
    } else {
        lost("not free, and", volume, &ended)
    };
    lines.push(format!("its process {pid} is still there: it may wait in the kernel for its store"));
    Err(Problem::failure(lines.join("\n")))
}

fn report(volume: &RegisteredVolume, ended: &Ended) -> Result<()> {
    let record = volume.record();
    if ended.state == State::Released {
        let (at, on, switching) = (&record.mountpoint, &record.source, ended.switching());
        console().print(&format!("{at}: free; everything is on {on}{switching}"));
        return Ok(());
    }
    Err(Problem::failure(lost("free, but", volume, ended).join("\n")))
}

/// The lost data, and the reason; `free` is the text about the store.
fn lost(free: &str, volume: &RegisteredVolume, ended: &Ended) -> Vec<String> {
    let record = volume.record();
    let headline = format!("{}: {free} not everything is on {}", record.mountpoint, record.source);
    ended.lost(headline, LOST_NAMED_MAX)
}

/// A directory without a record: free, unless a process holds it as a store.
fn unknown_directory(dir: &std::path::Path) -> Result<()> {
    match store::DirStore::holder(dir).unwrap_or_default() {
        Some(holder) => Err(Problem::failure(format!("{}: in use as a store by {holder}", dir.shown()))),
        None => {
            console().print(&format!("{}: free; no volume is known there", dir.shown()));
            Ok(())
        }
    }
}
