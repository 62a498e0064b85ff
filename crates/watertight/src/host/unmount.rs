//! Taking the kernel mount away: by umount2(2) for root, else by `fusermount3`.
//!
//! The caller is responsible for the data. Not for the mount process itself, which asks by way of
//! [`mount_agent`](crate::host::mount_agent).

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fuse::MountError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};

use crate::host::holders::{self, Holder, Holders};
use crate::host::mountinfo::{Mount, MountTable};
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// How long a server may take to show that it lives; all that are asked together have this time.
const ALIVE: Duration = Duration::from_secs(1);
/// Servers that are asked beside each other.
const ASKED_AT_ONCE: usize = 256;

/// How often, and after what pause, an unmount without known holders is tried again; one with
/// holders is tried once more.
const AGAIN: (u32, Duration) = (10, Duration::from_millis(20));

/// How long a helper process of the mount's own may have it open.
const HELPERS: Duration = Duration::from_secs(5);

/// The result of an unmount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The path leads to it no more.
    Gone,
    /// The mount is held; nothing was changed.
    Held(Holders),
}

/// Unmounts unless the mount is held. On `fuseblk` this waits until the data is on the store.
///
/// # Errors
/// Anything but being held.
pub fn plain(mount: &Mount) -> Result<Outcome> {
    // The kernel does not refuse because of another mount of the same file system; the volume would
    // live on.
    let holders = holders::mounts(mount);
    if holders.direct().next().is_some() {
        return Ok(Outcome::Held(holders));
    }
    unless_held(mount, || holders::of(mount).unwrap_or_default())
}

/// Unmounts one of several mounts of a volume, unless that one is held.
///
/// # Errors
/// As [`plain`].
pub fn one_of_several(mount: &Mount) -> Result<Outcome> {
    unless_held(mount, || {
        let mut holders = holders::of(mount).unwrap_or_default();
        // The kernel tells the file system of a mapping, and its mount only by its path.
        let is_of_this = |holder: &Holder| match holder.how {
            holders::HoldKind::Bind => false,
            holders::HoldKind::Mapping => Path::new(&holder.file).starts_with(&mount.mountpoint),
            _ => holder.direct,
        };
        holders.found.retain(is_of_this);
        holders
    })
}

/// Whether this is a helper process of a mount process (`host::mount_agent`), or one that is about to end
/// and has no memory any more. Who only looks like one is waited for a little longer.
pub fn is_passing(holder: &Holder) -> bool {
    let Some(pid) = holder.pid else { return false };
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.is_empty() || arguments.split(|&byte| byte == 0).nth(1) == Some(b"kernel-side")
}

fn unless_held(mount: &Mount, holders: impl Fn() -> Holders) -> Result<Outcome> {
    let (mut tries, pause) = AGAIN;
    let until = Instant::now() + HELPERS;
    let mut was_held = false;
    while tries > 0 {
        if attempt(mount, UnmountFlags::empty())? {
            return Ok(Outcome::Gone);
        }
        let holders = holders();
        let is_held = holders.direct().any(|holder| !is_passing(holder));
        if is_held && was_held {
            return Ok(Outcome::Held(holders));
        }
        was_held = is_held;
        // A helper of the mount's own has it for a moment, after an upgrade for example.
        let is_passing = !is_held && holders.direct().next().is_some();
        if !is_passing || Instant::now() >= until {
            tries -= 1;
        }
        // A process that looks through /proc (as `holders::of` does) holds the files that it looks
        // at for a moment, and a new child holds its parent's open files until its execve(2). No
        // event reports when they are done.
        thread::sleep(pause);
    }
    Ok(Outcome::Held(holders()))
}

/// Takes the path away, held or not. On `fuseblk`, not held, this waits until the data is on the
/// store.
///
/// # Errors
/// The errors of umount2(2) or `fusermount3`.
pub fn detach(mount: &Mount) -> Result<()> {
    attempt(mount, UnmountFlags::DETACH).map(drop)
}

/// Aborts the connection to the mount's server, so that callers that wait for it get an error, and
/// takes the path away. In this order: an unmount waits for the users of the file system at that
/// moment, and they for the server; after the abort none of them waits for it.
///
/// # Errors
/// The errors of umount2(2) or `fusermount3`.
pub fn force(mount: &Mount) -> Result<()> {
    let mut flags = UnmountFlags::DETACH;
    if let Err(error) = mount.abort() {
        let path = mount.mountpoint.shown();
        tracing::debug!(%path, %error, "cannot abort the connection through its control file");
        flags |= UnmountFlags::FORCE;
    }
    attempt(mount, flags).map(drop)
}

/// Returns whether the mount is gone; it is not when it is held.
fn attempt(mount: &Mount, flags: UnmountFlags) -> Result<bool> {
    let path = &mount.mountpoint;
    let failed = |what: &str| Problem::failure(format!("cannot unmount {}: {what}", path.shown()));
    // The path must lead to this mount and not to one on top of it.
    let table = MountTable::read();
    match table.at(path) {
        Some(top) if top.is_same(mount) => {}
        _ if !table.iter().any(|other| other.is_same(mount)) => return Ok(true),
        Some(top) => {
            return Err(failed(&format!("{} is mounted on top of it; unmount that first", top.fstype)));
        }
        None => return Err(failed("it was moved elsewhere")),
    }
    // Others may rename directories above the mountpoint at any moment, and put a link in their
    // place. `fusermount3`, which an ordinary user needs, takes no descriptor.
    let pinned = if rustix::process::geteuid().is_root() {
        Some(Pinned::new(mount).map_err(|why| failed(&why))?)
    } else {
        None
    };
    let path = pinned.as_ref().map_or_else(|| path.clone(), Pinned::path);
    match fuse::mount::unmount(&path, flags | UnmountFlags::NOFOLLOW, true) {
        Ok(()) => Ok(true),
        Err(MountError::Busy { .. }) => Ok(false),
        // Another caller was faster.
        Err(_) if !mount.is_present() => Ok(true),
        Err(error) => Err(Problem::failure(error.to_string())),
    }
}

/// The directory of a mountpoint, which others may be able to change: from here on the path leads to it,
/// whatever is renamed.
struct Pinned {
    dir: OwnedFd,
    name: OsString,
}

impl Pinned {
    /// Follows no link: the table of mounts has none in its paths.
    fn new(mount: &Mount) -> Result<Self, String> {
        let (Some(parent), Some(name)) = (mount.mountpoint.parent(), mount.mountpoint.file_name()) else {
            return Err("its path has no parent directory".to_owned());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let dir = dir.map_err(|error| format!("{}: {error}", parent.shown()))?;
        // Its server is not asked.
        let look = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
        let stat = statx(&dir, name, look, StatxFlags::MNT_ID).map_err(|error| error.to_string())?;
        if stat.stx_mask & StatxFlags::MNT_ID.bits() != 0 && stat.stx_mnt_id != mount.id {
            return Err("its path leads to another mount by now".to_owned());
        }
        Ok(Self { dir, name: name.to_owned() })
    }

    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.dir.as_raw_fd().to_string()).join(&self.name)
    }
}

/// The number of the mount that `path` leads to, one that is never used again (since Linux 6.8).
/// Its server is not asked.
#[must_use]
pub fn unique_id(path: &Path) -> Option<u64> {
    // STATX_MNT_ID_UNIQUE
    let mask = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let stat = statx(CWD, path, flags, mask).ok()?;
    (stat.stx_mask & mask.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Whether the server of the mount at `path` is gone. A server that does not answer is not gone.
#[must_use]
pub fn is_dead(path: &Path) -> bool {
    !dead_among(&[path]).is_empty()
}

/// The mounts of these whose servers are gone, in their order. All are asked beside each other, and
/// a server that has not answered after a second is not gone.
///
/// Other processes ask ([`says_dead`]): a thread that waits for a server that hangs would keep this
/// one from ending.
#[must_use]
pub fn dead_among<'p>(paths: &[&'p Path]) -> Vec<&'p Path> {
    let until = Instant::now() + ALIVE;
    let table = MountTable::read();
    let mut left = paths.iter().enumerate().filter(|(_, path)| !table.at(path).is_some_and(somebody_waits));
    let mut asked: Vec<(usize, Probe)> = Vec::new();
    let mut dead = Vec::new();
    loop {
        asked.extend(
            left.by_ref()
                .take(ASKED_AT_ONCE - asked.len())
                .filter_map(|(n, path)| Some((n, Probe::start(path)?))),
        );
        if asked.is_empty() || !answer_by(until, &asked) {
            break;
        }
        asked.retain_mut(|(n, probe)| match probe.answer() {
            None => true,
            Some(is_dead) => {
                dead.extend(is_dead.then_some(*n));
                false
            }
        });
    }
    dead.sort_unstable();
    dead.into_iter().map(|n| paths[n]).collect()
}

/// Waits until one of them has answered; no: none has in time.
fn answer_by(until: Instant, asked: &[(usize, Probe)]) -> bool {
    let mut ready: Vec<_> = asked.iter().map(|(_, probe)| PollFd::new(&probe.said, PollFlags::IN)).collect();
    let limit = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
    match poll(&mut ready, limit.as_ref()) {
        Ok(n) => n > 0,
        Err(error) => error == Errno::INTR,
    }
}

/// A process that asks.
struct Probe {
    child: Child,
    said: ChildStdout,
}

impl Probe {
    fn start(path: &Path) -> Option<Self> {
        let ask = Command::new("/proc/self/exe")
            .args(["kernel-side", "--probe"])
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = ask
            .inspect_err(|error| tracing::warn!(%error, "cannot start a process that asks a mount's server"))
            .ok()?;
        let said = child.stdout.take()?;
        Some(Self { child, said })
    }

    /// Whether the server is gone, once that is known.
    fn answer(&mut self) -> Option<bool> {
        let mut ready = [PollFd::new(&self.said, PollFlags::IN)];
        if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|n| n == 0) {
            return None;
        }
        let mut said = String::new();
        let read = self.said.read_to_string(&mut said);
        let _reaped = self.child.wait();
        Some(read.is_ok() && said.trim() == DEAD)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // It may wait in the kernel until the server answers, and is not waited for. A process that
        // has answered is gone already.
        let _gone_already = self.child.kill();
    }
}

/// The output of the asking process where the server is gone.
const DEAD: &str = "dead";
const ALIVE_SAID: &str = "alive";

/// Asks the server of the mount at `path`; for as long as it takes.
#[must_use]
pub fn says_dead(path: &Path) -> &'static str {
    match statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::MODE) {
        Err(errno) if fuse::mount::means_dead(errno) => DEAD,
        _ => ALIVE_SAID,
    }
}

/// Whether requests wait for the mount's server: then it lives, and may hang.
fn somebody_waits(mount: &Mount) -> bool {
    let waiting = fs::read_to_string(mount.connection_dir().join("waiting"));
    waiting.is_ok_and(|n| n.trim().parse::<u64>().is_ok_and(|n| n > 0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_that_leads_elsewhere_by_now_is_not_unmounted() {
        let table = MountTable::read();
        let proc = table.at(Path::new("/proc")).unwrap();
        assert_eq!(fs::canonicalize(Pinned::new(proc).unwrap().path()).unwrap(), Path::new("/proc"));
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        symlink("/", real.join("link")).unwrap();
        fs::create_dir(real.join("proc")).unwrap();
        for path in [real.join("link/proc"), real.join("proc"), "/".into()] {
            assert!(
                Pinned::new(&Mount { mountpoint: path.clone(), ..proc.clone() }).is_err(),
                "{}",
                path.shown()
            );
        }
    }
}
