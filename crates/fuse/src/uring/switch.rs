//! The kernel's switch for FUSE over io_uring.
//!
//! The kernel looks at it when it mounts (to offer it in INIT) and when INIT is answered; after that the
//! connection keeps what was agreed. As root it is switched on for as long as that takes, and put back to what it was. Other
//! processes that do the same are kept out by a lock file, or one would put it back while another needs it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The switch.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Who holds a lock on this may change the switch.
const LOCK: &str = "/run/watertight-uring.lock";
/// How long another process may hold the lock before this one goes without.
const PATIENCE: Duration = Duration::from_secs(10);

/// The switch is on. Dropped, it is as it was.
#[derive(Debug)]
pub(super) struct On {
    /// The lock, if the switch has to be put back.
    _lock: Option<File>,
    was_off: bool,
}

impl Drop for On {
    fn drop(&mut self) {
        if self.was_off
            && let Err(error) = std::fs::write(SWITCH, "N")
        {
            tracing::warn!(%error, "{SWITCH} stays on");
        }
    }
}

/// Switches it on, or says why it cannot be.
pub(super) fn on() -> Result<On, String> {
    let is_root = rustix::process::geteuid().is_root();
    let lock = if is_root { Some(lock()?) } else { None };
    if is_on()? {
        return Ok(On { _lock: None, was_off: false });
    }
    if !is_root {
        return Err(format!("{SWITCH} is off, and only root can change it"));
    }
    std::fs::write(SWITCH, "Y").map_err(|error| format!("{SWITCH} is off and cannot be changed: {error}"))?;
    Ok(On { _lock: lock, was_off: true })
}

fn is_on() -> Result<bool, String> {
    match std::fs::read_to_string(SWITCH) {
        Ok(text) => Ok(text.starts_with(['Y', '1'])),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("this kernel has no FUSE over io_uring (Linux 6.14 and newer can)".to_owned())
        }
        Err(error) => Err(format!("cannot read {SWITCH}: {error}")),
    }
}

fn lock() -> Result<File, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot lock {LOCK}: {error}");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(LOCK).map_err(|error| failed(&error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Ok(file),
        Err(Errno::WOULDBLOCK) => {}
        Err(error) => return Err(failed(&error)),
    }
    // flock(2) knows no time limit: a thread waits, and lets go at once if it is too late.
    let (send, receive) = mpsc::channel();
    let waiting = move || {
        let locked = rustix::fs::flock(&file, FlockOperation::LockExclusive).map(|()| file);
        // Failure: too late; the lock goes with the file.
        let _late = send.send(locked);
    };
    std::thread::Builder::new()
        .name("wt-fuse-lock".to_owned())
        .spawn(waiting)
        .map_err(|error| failed(&error))?;
    match receive.recv_timeout(PATIENCE) {
        Ok(Ok(file)) => Ok(file),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => {
            Err(format!("another process has been mounting for {} s (it holds {LOCK})", PATIENCE.as_secs()))
        }
    }
}
