//! `clone`: a second mountpoint; and `umount` of one of several.

use std::path::{Path, PathBuf};

use crate::checks;
use crate::cli::{CloneArgs, UmountArgs};
use crate::console::console;
use crate::control::api::{CloneRequest, How, LeaveRequest};
use crate::control::client::Client;
use crate::mountinfo::{Device, Mount, MountTable};
use crate::problem::{Problem, Result};
use crate::target::{self, Volume};
use crate::{progress, umount_cmd};

/// Runs `clone`.
///
/// # Errors
/// Exit 2 for a volume or a directory that is none, 1 for what fails.
pub fn run(args: &CloneArgs) -> Result<()> {
    let given = args.volume.to_string_lossy();
    let volume = target::resolve(&args.volume).volume.filter(|volume| !volume.is_attached());
    let Some(volume) = volume else {
        return Err(Problem::usage(format!(
            "{given} is no mounted volume of ours; `watertight status` lists the volumes"
        )));
    };
    let client = volume.found.client.as_ref().ok_or_else(|| umount_cmd::died(&volume))?;
    let new = checks::mountpoint(&args.new)?;
    let Some(mountpoint) = new.to_str().map(str::to_owned) else {
        return Err(Problem::usage(format!("{} cannot be named: it is not UTF-8", new.display())));
    };
    let request = CloneRequest { mountpoint, propagation: args.propagation };
    let reply =
        client.clone_to(&request).map_err(|error| Problem::failure(format!("{}: {error}", new.display())))?;
    let first = &volume.record().mountpoint;
    console().print(&format!("{first} is shown at {}, too ({})", reply.mountpoint, args.propagation));
    Ok(())
}

/// Whether a volume has other mountpoints beside this one.
#[must_use]
pub fn is_one_of_several(mount: &Mount, volume: &Volume, client: &Client) -> bool {
    let table = MountTable::read();
    let others = table.of_device(Device::of(mount)).filter(|other| !other.is_same(mount));
    let mut others = others.map(|other| &other.mountpoint).peekable();
    if others.peek().is_none() {
        return false;
    }
    let Ok(status) = client.status() else { return false };
    let mut all: Vec<PathBuf> = status.clones.into_iter().map(|clone| clone.mountpoint.into()).collect();
    all.push(PathBuf::from(&volume.record().mountpoint));
    // A mount that somebody else made keeps the volume busy, as ever.
    all.contains(&mount.mountpoint) && others.all(|other| all.contains(other))
}

/// Unmounts one of several mountpoints.
///
/// # Errors
/// Exit 1 when it is held or cannot be written.
pub fn leave(args: &UmountArgs, mount: &Mount, client: &Client) -> Result<()> {
    let path = mount.mountpoint.display();
    let how = match (args.force, args.lazy) {
        (true, _) => How::Force,
        (_, true) => How::Lazy,
        _ => How::Plain,
    };
    let request = LeaveRequest { mountpoint: mount.mountpoint.to_string_lossy().into_owned(), how };
    let reply = progress::during(&format!("unmounting {path}"), client, || client.leave(&request));
    let reply = reply.map_err(|error| Problem::failure(format!("{path}: {error}")))?;
    let lines = reply.holders.lines().join("\n  ");
    match (how, reply.is_held) {
        (How::Plain, true) => Err(Problem::failure(format!(
            "{path} is busy (EBUSY); it is held by\n  {lines}\n\
             `watertight umount --lazy {path}` takes the path away now"
        ))),
        (_, true) => {
            console().print(&format!("{path}: the path is gone, files are still open:\n  {lines}"));
            Ok(())
        }
        _ => {
            let others = others(mount);
            console().print(&format!("{path}: unmounted; the volume goes on at {others}"));
            Ok(())
        }
    }
}

fn others(mount: &Mount) -> String {
    let table = MountTable::read();
    let shown = |other: &Mount| Path::display(&other.mountpoint).to_string();
    let others: Vec<String> =
        table.of_device(Device::of(mount)).filter(|other| !other.is_same(mount)).map(shown).collect();
    others.join(", ")
}
