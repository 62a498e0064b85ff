//! The entry in `/run/mount/utab` that makes umount(8) call our helper.
//!
//! As root on a plain absolute path umount(8) asks statfs(2) for the type, which has no part after
//! the dot, and so looks for `umount.fuse` only. If utab, libmount's table of what the kernel does
//! not keep, has any entry for the path, it reads the kernel's table, and finds
//! `umount.fuseblk.watertight`. Without our entry umount(8) works as well, by umount2(2); only its
//! messages are poorer, and plain `fuse` does not wait.
//!
//! The table is libmount's: it is changed under libmount's lock, by writing a new file and renaming
//! it.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::host::mountinfo::{self, Mount, MountTable};
use crate::host::new_file;

/// Where libmount keeps it.
const DIR: &str = "/run/mount";
/// The option by which our entries are known; options with `x-` mean nothing to others.
const MARK: &str = "x-watertight=";
/// How often, and with what pause, the lock is tried: its holder writes one small file.
const TRIES: (u32, Duration) = (100, Duration::from_millis(10));

/// An entry; removed when dropped.
#[derive(Debug)]
pub struct Entry {
    dir: PathBuf,
    target: String,
}

impl Entry {
    /// Notes the mount of volume `id`; none without root, or where the table cannot be written.
    #[must_use]
    pub fn add(mount: &Mount, id: &impl Display) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let entry = Self { dir: DIR.into(), target: escape(mount.mountpoint.as_os_str().as_bytes()) };
        let line =
            format!("SRC={} TARGET={} ROOT=/ OPTS={MARK}{id}", escape(mount.source.as_bytes()), entry.target);
        match fs::create_dir_all(DIR).and_then(|()| entry.change(Some(&line))) {
            Ok(()) => Some(entry),
            Err(error) => {
                tracing::debug!(%error, "cannot add an entry to {DIR}/utab: umount(8) does not call the helper");
                None
            }
        }
    }

    /// The entry that the program before this one has added.
    #[must_use]
    pub(crate) fn resume(mountpoint: &Path) -> Option<Self> {
        let target = escape(mountpoint.as_os_str().as_bytes());
        rustix::process::geteuid().is_root().then(|| Self { dir: DIR.into(), target })
    }

    /// Replaces the table's entry for this path, and removes our entries of former mounts.
    fn change(&self, line: Option<&str>) -> io::Result<()> {
        let _lock = lock(&self.dir.join("utab.lock"))?;
        let table = self.dir.join("utab");
        let old = match fs::read_to_string(&table) {
            Ok(old) => old,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mounts = MountTable::read();
        let ours: Vec<String> = mounts
            .iter()
            .filter(|mount| mountinfo::is_ours(mount))
            .map(|mount| escape(mount.mountpoint.as_os_str().as_bytes()))
            .collect();
        let stays = |entry: &&str| {
            let target = field(entry, "TARGET=").unwrap_or("");
            let is_ours = field(entry, "OPTS=").is_some_and(|options| options.starts_with(MARK));
            target != self.target && (!is_ours || ours.iter().any(|path| path == target))
        };
        let mut new: String = old.lines().filter(stays).flat_map(|entry| [entry, "\n"]).collect();
        if let Some(line) = line {
            new.push_str(line);
            new.push('\n');
        }
        let temporary = self.dir.join(format!("utab.watertight-{}", std::process::id()));
        new_file(&temporary)?.write_all(new.as_bytes())?;
        fs::set_permissions(&temporary, Permissions::from_mode(0o644))?;
        fs::rename(&temporary, &table)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Err(error) = self.change(None) {
            tracing::debug!(%error, "cannot remove an entry from {DIR}/utab");
        }
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let (tries, pause) = TRIES;
    for _ in 0..tries {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            // Another process's lock; no event reports its release (a blocking call might never
            // return).
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => thread::sleep(pause),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "another process keeps the table locked"))
}

/// The value of one field of an entry.
fn field<'a>(entry: &'a str, name: &str) -> Option<&'a str> {
    entry.split(' ').find_map(|field| field.strip_prefix(name))
}

/// As in fstab: characters that would end a field, in octal digits.
fn escape(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' ' | '\t' | '\n' | '\\' => escaped.push_str(&format!("\\{:03o}", u32::from(c))),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let table = dir.path().join("utab");
        fs::write(
            &table,
            "SRC=/dev/x TARGET=/mnt/nfs ROOT=/ OPTS=_netdev\nSRC=a TARGET=/gone ROOT=/ OPTS=x-watertight=1\n",
        )
        .unwrap();
        let entry = Entry { dir: dir.path().to_owned(), target: escape(b"/mnt/my data") };
        entry.change(Some("SRC=b TARGET=/mnt/my\\040data ROOT=/ OPTS=x-watertight=2")).unwrap();
        let others = "SRC=/dev/x TARGET=/mnt/nfs ROOT=/ OPTS=_netdev\n";
        let both = format!("{others}SRC=b TARGET=/mnt/my\\040data ROOT=/ OPTS=x-watertight=2\n");
        assert_eq!(fs::read_to_string(&table).unwrap(), both);
        drop(entry);
        assert_eq!(fs::read_to_string(&table).unwrap(), others);
    }

    #[test]
    fn a_lock_that_is_kept_is_not_waited_for_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let kept = lock(&path).unwrap();
        assert_eq!(lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(kept);
        lock(&path).unwrap();
    }
}
