//! What is known of each volume, in a file for each: replaced atomically and made durable before an
//! engine gets its answer, read strictly at the start.
//!
//! The directory is this user's alone (0700), and one process's at a time, by a lock that goes with
//! the process. A file that is not as it should be keeps its volume's name, with the reason:
//! nothing is guessed, and other volumes are served.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::names::VolumeName;
use crate::host::new_file;
use crate::host::open_dir::OpenDir;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// Bytes of a file.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// How many volumes are kept.
pub(super) const VOLUMES_MAX: usize = 10_000;
const SUFFIX: &str = ".json";

/// What is kept of a volume.
pub(super) trait Record: Serialize + DeserializeOwned {
    /// Checks what serde does not.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&self, name: &VolumeName) -> Result<(), String>;
}

/// The records in one directory.
#[derive(Debug)]
pub(super) struct Records<R> {
    dir: PathBuf,
    open: OpenDir,
    _lock: File,
    of: PhantomData<fn() -> R>,
}

impl<R: Record> Records<R> {
    /// Opens the directory, made if it is missing, for this process alone.
    ///
    /// # Errors
    /// When it cannot be made, is open to others, or another process has it.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let open = own_dir(dir)?;
        let lock = dir.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(lock);
        let lock = lock.map_err(|error| unusable(dir, &error))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => unusable(dir, &"another process of watertight uses it"),
            error => unusable(dir, &error),
        })?;
        Ok(Self { dir: dir.to_owned(), open, _lock: lock, of: PhantomData })
    }

    /// All of them; for one that cannot be used, why.
    pub(super) fn read_all(&self) -> Vec<(VolumeName, Result<R, String>)> {
        let (names, _) = self.open.names(SUFFIX);
        let named = names.into_iter().filter_map(|name| VolumeName::try_from(name).ok());
        named.take(VOLUMES_MAX).map(|name| (name.clone(), self.read(&name))).collect()
    }

    fn read(&self, name: &VolumeName) -> Result<R, String> {
        let text = self.open.read(&format!("{name}{SUFFIX}"), RECORD_BYTES_MAX);
        let text = text.ok_or("it is no plain file of this user's, or too long")?;
        let record: R = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        record.check(name).map(|()| record)
    }

    /// Writes one; durable on return.
    ///
    /// # Errors
    /// Why not; the old one stays.
    pub(super) fn write(&self, name: &VolumeName, record: &R) -> Result<(), String> {
        let path = self.path(name);
        let write = || {
            let new = self.dir.join(format!("{name}{SUFFIX}.new"));
            let mut file = new_file(&new)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            self.sync()
        };
        write().map_err(|error: io::Error| format!("cannot write {}: {error}", path.shown()))
    }

    /// Removes one; durable on return.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn remove(&self, name: &VolumeName) -> Result<(), String> {
        let path = self.path(name);
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        };
        removed.map_err(|error| format!("cannot remove {}: {error}", path.shown()))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// A record's file, for messages.
    pub(super) fn file(&self, name: &VolumeName) -> String {
        self.path(name).shown().to_string()
    }

    fn path(&self, name: &VolumeName) -> PathBuf {
        // Not `with_extension`: a name may have dots.
        self.dir.join(format!("{name}{SUFFIX}"))
    }
}

/// A directory of this user's alone, made if it is missing.
///
/// # Errors
/// When it cannot be made, or is open to others.
pub(super) fn own_dir(dir: &Path) -> Result<OpenDir> {
    let made = DirBuilder::new().mode(0o700).recursive(true).create(dir);
    made.map_err(|error| unusable(dir, &error))?;
    let uid = rustix::process::geteuid().as_raw();
    let open = OpenDir::own(dir, uid).map_err(|error| unusable(dir, &error))?;
    open.ok_or_else(|| unusable(dir, &"it was removed meanwhile"))
}

fn unusable(dir: &Path, error: &dyn std::fmt::Display) -> Problem {
    Problem::failure(format!("cannot use the directory {}: {error}", dir.shown()))
}

/// This boot of the host: what was mounted in another one is gone.
///
/// # Errors
/// When the kernel does not say.
pub(super) fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = fs::read_to_string(path).map_err(|error| Problem::failure(format!("{path}: {error}")))?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Number(u32);

    impl Record for Number {
        fn check(&self, _: &VolumeName) -> Result<(), String> {
            if self.0 < 100 { Ok(()) } else { Err("too large".to_owned()) }
        }
    }

    fn name(name: &str) -> VolumeName {
        VolumeName::try_from(name.to_owned()).unwrap()
    }

    #[test]
    fn a_record_is_replaced_and_one_that_is_damaged_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/state");
        let records = Records::<Number>::open(&dir).unwrap();
        assert!(records.read_all().is_empty());
        records.write(&name("a.b"), &Number(1)).unwrap();
        records.write(&name("a.b"), &Number(2)).unwrap();
        records.write(&name("a.c"), &Number(200)).unwrap();
        fs::write(dir.join("cut.json"), "{").unwrap();
        fs::write(dir.join(".hidden.json"), "1").unwrap();
        symlink(dir.join("a.b.json"), dir.join("link.json")).unwrap();
        // As a crash leaves it.
        fs::write(dir.join("late.json.new"), "1").unwrap();
        let all = records.read_all();
        let read = |of: &str| all.iter().find(|(name, _)| name.as_str() == of).map(|(_, read)| read);
        assert_eq!(read("a.b"), Some(&Ok(Number(2))));
        assert_eq!(read("a.c"), Some(&Err("too large".to_owned())));
        assert!(matches!(read("cut"), Some(Err(_))) && matches!(read("link"), Some(Err(_))));
        assert_eq!(all.len(), 4);
        records.remove(&name("a.b")).unwrap();
        records.remove(&name("a.b")).unwrap();
        assert_eq!(records.read_all().len(), 3);
    }

    #[test]
    fn a_directory_is_one_process_s_and_nobody_else_s() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("state");
        let first = Records::<Number>::open(&dir).unwrap();
        let second = Records::<Number>::open(&dir).unwrap_err().to_string();
        assert!(second.contains("another process of watertight uses it"), "{second}");
        drop(first);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        let open = Records::<Number>::open(&dir).unwrap_err().to_string();
        assert!(open.contains("0700"), "{open}");
    }
}
