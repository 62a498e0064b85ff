//! The kernel's switch for FUSE over io_uring.
//!
//! The kernel reads it when it mounts (to offer it in INIT) and when INIT is answered; after
//! that the connection keeps what was agreed. There is one switch for the whole host, which is its
//! administrator's: a mount only reads it. With `uring=on` a daemon that runs as root switches it on
//! for as long as mounting takes, and puts it back to what it was. A lock file keeps other processes
//! that do the same out, or one would put it back while another needs it.
//!
//! A process that is killed in between leaves the switch on. The lock file says so: it holds
//! [`WAS_OFF`] from before the switch is turned on until after it was put back, so that the next
//! process that takes the lock puts it back. Both files go with a reboot.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The switch.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The process that holds a lock on this file may change the switch.
const LOCK: &str = "/run/watertight-uring.lock";
/// The content of the lock file while the switch is on and has to be put back.
const WAS_OFF: &[u8] = b"was off\n";
/// How long another process may hold the lock before this one goes without.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether to talk to the kernel over io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Uring {
    /// Over io_uring where the host's switch for it is on, else over `/dev/fuse`.
    #[default]
    Auto,
    /// Over io_uring, or fail. Root turns the host's switch on for as long as mounting takes.
    On,
    /// Not over io_uring.
    Off,
}

/// The preparations before mount(2). Dropped when INIT was answered.
#[derive(Debug)]
pub(crate) struct BeforeMount {
    wish: Uring,
    switch: Result<Enabled, String>,
}

impl BeforeMount {
    /// Makes the kernel offer io_uring to mounts made from now on.
    pub(crate) fn new(wish: Uring) -> Self {
        let switch = match wish {
            Uring::Off => Err("not wanted".to_owned()),
            Uring::Auto => look(),
            Uring::On => enable(),
        };
        Self { wish, switch }
    }

    /// Whether the session must not fall back to `/dev/fuse`.
    pub(crate) fn is_must(&self) -> bool {
        self.wish == Uring::On
    }

    /// Whether mounts made now can have it; the error says why not.
    pub(crate) fn outcome(&self) -> Result<(), String> {
        self.switch.as_ref().map(drop).map_err(Clone::clone)
    }
}

/// The switch is on. Dropped, it is as it was.
#[derive(Debug)]
struct Enabled(Option<Restore>);

#[derive(Debug)]
struct Restore {
    switch: PathBuf,
    /// Locked.
    lock: File,
}

impl Drop for Enabled {
    fn drop(&mut self) {
        let Some(Restore { switch, lock }) = &self.0 else { return };
        match std::fs::write(switch, "N") {
            Ok(()) => note(lock, b""),
            Err(error) => tracing::warn!(%error, "cannot turn {} off again", switch.display()),
        }
    }
}

/// Says why it is not on, if it is not.
fn look() -> Result<Enabled, String> {
    look_at(Path::new(SWITCH))
}

/// Switches it on, or says why it cannot be.
fn enable() -> Result<Enabled, String> {
    if rustix::process::geteuid().is_root() { enable_at(Path::new(SWITCH), Path::new(LOCK)) } else { look() }
}

fn look_at(switch: &Path) -> Result<Enabled, String> {
    match is_enabled(switch)? {
        true => Ok(Enabled(None)),
        false => Err(format!(
            "{} is off: the administrator can turn it on, and `uring=on` as root does while it mounts",
            switch.display()
        )),
    }
}

fn enable_at(switch: &Path, lock_file: &Path) -> Result<Enabled, String> {
    let shown = switch.display();
    let lock = lock(lock_file)?;
    if is_enabled(switch)? {
        // By an administrator, or by another of these processes that was killed.
        let is_left_over = is_noted(&lock);
        return Ok(Enabled(is_left_over.then(|| Restore { switch: switch.to_owned(), lock })));
    }
    note(&lock, WAS_OFF);
    if let Err(error) = std::fs::write(switch, "Y") {
        note(&lock, b"");
        return Err(format!("{shown} is off and cannot be changed: {error}"));
    }
    Ok(Enabled(Some(Restore { switch: switch.to_owned(), lock })))
}

fn is_enabled(switch: &Path) -> Result<bool, String> {
    match std::fs::read_to_string(switch) {
        Ok(text) => Ok(text.starts_with(['Y', '1'])),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("this kernel has no FUSE over io_uring (Linux 6.14 and newer can)".to_owned())
        }
        Err(error) => Err(format!("cannot read {}: {error}", switch.display())),
    }
}

fn is_noted(lock: &File) -> bool {
    let mut found = [0; WAS_OFF.len()];
    lock.read_exact_at(&mut found, 0).is_ok() && found == WAS_OFF
}

/// Notes what has to be known when this process is killed.
fn note(lock: &File, what: &[u8]) {
    let noted = lock.set_len(0).and_then(|()| lock.write_all_at(what, 0));
    if let Err(error) = noted {
        tracing::warn!(%error, "cannot write {LOCK}");
    }
}

fn lock(path: &Path) -> Result<File, String> {
    let shown = path.display();
    let failed = |error: &dyn std::fmt::Display| format!("cannot lock {shown}: {error}");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(|error| failed(&error))?;
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
            Err(format!("another process has been mounting for {} s (it holds {shown})", PATIENCE.as_secs()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch that is a plain file, and its lock file.
    fn host(is_enabled: bool) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (switch, lock) = (dir.path().join("switch"), dir.path().join("lock"));
        std::fs::write(&switch, if is_enabled { "Y\n" } else { "N\n" }).unwrap();
        (dir, switch, lock)
    }

    #[test]
    fn a_switch_is_put_back_to_what_it_was() {
        for was_on in [false, true] {
            let (_dir, switch, lock) = host(was_on);
            let on = enable_at(&switch, &lock).unwrap();
            assert!(is_enabled(&switch).unwrap());
            drop(on);
            assert_eq!(is_enabled(&switch).unwrap(), was_on);
            assert_eq!(std::fs::read(&lock).unwrap(), b"");
        }
    }

    #[test]
    fn what_a_killed_process_left_on_is_put_back_by_the_next() {
        let (_dir, switch, lock) = host(false);
        std::fs::write(&switch, "Y").unwrap();
        std::fs::write(&lock, WAS_OFF).unwrap();
        drop(enable_at(&switch, &lock).unwrap());
        assert!(!is_enabled(&switch).unwrap());
        assert_eq!(std::fs::read(&lock).unwrap(), b"");
    }

    #[test]
    fn the_note_is_there_as_long_as_the_switch_has_to_be_put_back() {
        let (_dir, switch, lock) = host(false);
        let on = enable_at(&switch, &lock).unwrap();
        assert_eq!(std::fs::read(&lock).unwrap(), WAS_OFF);
        drop(on);
    }

    #[test]
    fn a_look_changes_nothing() {
        let (dir, switch, lock) = host(false);
        assert!(look_at(&switch).unwrap_err().contains("uring=on"));
        assert!(!is_enabled(&switch).unwrap());
        std::fs::write(&switch, "Y").unwrap();
        drop(look_at(&switch).unwrap());
        assert!(is_enabled(&switch).unwrap() && !lock.exists());
        let missing = dir.path().join("missing");
        assert!(look_at(&missing).unwrap_err().contains("6.14"));
    }
}
