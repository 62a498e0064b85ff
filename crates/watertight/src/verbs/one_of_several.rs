//! `umount` of one of several mounts of a volume: bind mounts, also of its directories, and clones.
//!
//! A bind mount is the kernel's alone: it goes by umount2(2), at once, without a request to the
//! volume's process, which may hang. Only for the last mount of a clone does the process end the
//! clone. The last mount of all is the volume's end and not for this module, except for two callers
//! that take the last two away at the same time.

use std::path::{Path, PathBuf};

use fuse::mount::shown_clone;

use crate::cli::UmountArgs;
use crate::control::api::{LeaveRequest, UmountKind};
use crate::control::client::Client;
use crate::control::progress;
use crate::host::mountinfo::{Device, Mount, MountTable};
use crate::host::unmount::{self, Outcome};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Show as _, exact};

/// The mounts of a volume that stay when one of them goes.
#[derive(Debug)]
pub struct OtherMounts {
    here: Vec<Mount>,
    /// Of the namespace of the volume's process, if this is another.
    elsewhere: Vec<Mount>,
}

impl OtherMounts {
    /// The mounts beside `mount`, except those that its unmount takes along, by propagation.
    #[must_use]
    pub fn beside(mount: &Mount, client: &Client) -> Self {
        let table = MountTable::read();
        let here = table.others(mount).filter(|other| !table.may_go_along(mount, other)).cloned().collect();
        Self { here, elsewhere: elsewhere(mount, client.pid()) }
    }

    /// Those that are left when `mount` is gone, with all that went along.
    #[must_use]
    pub fn after(mount: &Mount, client: &Client) -> Self {
        let here = MountTable::read().others(mount).cloned().collect();
        Self { here, elsewhere: elsewhere(mount, client.pid()) }
    }

    /// Whether there are none: the volume ends, or has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.here.is_empty() && self.elsewhere.is_empty()
    }

    /// Whether all of them are among these mountpoints.
    #[must_use]
    pub fn are_all_among(&self, mountpoints: &[PathBuf]) -> bool {
        self.elsewhere.is_empty() && self.here.iter().all(|other| mountpoints.contains(&other.mountpoint))
    }

    /// Whether the process has to end a clone, or the view that only the first mountpoint shows:
    /// `mount` is the last that shows it, and the process sees the same mounts.
    fn end_a_view_without(&self, mount: &Mount) -> bool {
        let is_other = |other: &Mount| shown_clone(other) != shown_clone(mount);
        self.elsewhere.is_empty() && self.here.iter().all(is_other)
    }

    /// Reports that a mount is gone and the volume is not.
    pub fn tell(&self, gone: &Mount) {
        let mut lines: Vec<String> =
            self.here.iter().map(|other| other.mountpoint.shown().to_string()).collect();
        let there = |other: &Mount| format!("{} in another mount namespace", other.mountpoint.shown());
        lines.extend(self.elsewhere.iter().map(there));
        let path = gone.mountpoint.shown();
        console().print(&format!("{path}: unmounted; the volume goes on at {}", lines.join(", ")));
    }
}

/// The mounts of the volume in the mount namespace of its process, if that is not this one's.
fn elsewhere(mount: &Mount, pid: u32) -> Vec<Mount> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/mnt")).ok();
    let there = namespace(&process);
    if there.is_none() || there == namespace(Path::new("/proc/self")) {
        return Vec::new();
    }
    let mut all = Mount::all_of(&process);
    all.retain(|other| Device::of(other) == Device::of(mount));
    all
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remaining {
    /// The volume goes on elsewhere.
    Others,
    /// The others were taken away meanwhile: the volume ends.
    Nothing,
}

/// Takes one of several mounts away.
///
/// # Errors
/// Exit 1 when it is held or, as the last one of a clone, cannot be written.
pub fn leave(args: &UmountArgs, mount: &Mount, others: &OtherMounts, client: &Client) -> Result<Remaining> {
    let how = args.how();
    if others.end_a_view_without(mount) {
        leave_view(how, mount, client)?;
    } else if how == UmountKind::Plain {
        if let Outcome::Held(holders) = unmount::one_of_several(mount)? {
            return Err(held(mount, &holders.lines()));
        }
    } else {
        unmount::detach(mount)?;
    }
    let left = OtherMounts::after(mount, client);
    if left.is_empty() {
        return Ok(Remaining::Nothing);
    }
    left.tell(mount);
    Ok(Remaining::Others)
}

fn leave_view(how: UmountKind, mount: &Mount, client: &Client) -> Result<()> {
    let path = mount.mountpoint.shown();
    let request = LeaveRequest { mountpoint: exact(&mount.mountpoint), how };
    let reply = progress::during(&format!("unmounting {path}"), client, || client.leave(&request));
    let reply = reply.map_err(|error| Problem::failure(format!("{path}: {error}")))?;
    match (how, reply.is_held) {
        (UmountKind::Plain, true) => return Err(held(mount, &reply.holders.lines())),
        (_, true) => {
            let lines = reply.holders.lines().join("\n  ");
            console().print(&format!("{path}: the path is gone, files are still open:\n  {lines}"));
        }
        _ => {}
    }
    Ok(())
}

fn held(mount: &Mount, holders: &[String]) -> Problem {
    let (path, lines) = (mount.mountpoint.shown(), holders.join("\n  "));
    Problem::failure(format!(
        "{path} is busy (EBUSY); it is held by\n  {lines}\n`watertight umount --lazy {path}` removes the path now"
    ))
}
