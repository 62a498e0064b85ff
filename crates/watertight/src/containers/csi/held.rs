//! A lock of a staging path that a driver's end does not free while a mount that it began goes on.
//!
//! It is an advisory lock (flock(2)) of a file in the state directory. The `mount` process has the
//! file as its standard input, and so the lock, until it ends: by then the volume is mounted or
//! never will be. The process in the background, which serves the volume, does not inherit it.
//!
//! The turns (module `locks`) order the calls of one driver; so only processes of an earlier one can
//! have the lock, and nobody waits for it: the orchestrator asks again. It is taken last.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use csi_proto::tonic::Code;
use rustix::fs::{FlockOperation, flock};

use super::failure::{Failure, Result};
use crate::term::shown::Show as _;

/// The lock, until it and all of its descriptors are closed.
#[derive(Debug)]
pub(super) struct Held {
    file: File,
    path: PathBuf,
}

impl Held {
    /// Takes the lock whose file this is; `what` is the staging path, for the words.
    ///
    /// # Errors
    /// `Aborted`: a process of an earlier driver has it.
    pub(super) fn take(file: PathBuf, what: &Path) -> Result<Self> {
        let late = || {
            let why = "a mount that an earlier process of the driver began is not done yet; ask again";
            Failure::new(Code::Aborted, format!("{}: {why}", what.shown()))
        };
        let failed = |error: io::Error| Failure::internal(format!("cannot lock {}: {error}", file.shown()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let opened = options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(&file);
        let opened = opened.map_err(failed)?;
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(late()),
            Err(error) => return Err(failed(error.into())),
        }
        // Removed meanwhile: another takes the lock by a new file.
        if opened.metadata().map_err(failed)?.nlink() == 0 {
            return Err(late());
        }
        Ok(Self { file: opened, path: file })
    }

    /// A descriptor for a process that is to have the lock as well.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn share(&self) -> Result<File> {
        self.file.try_clone().map_err(|error| Failure::internal(format!("cannot share a lock: {error}")))
    }

    /// Frees it, with its file: the path is not used any more.
    pub(super) fn remove(self) {
        let _stays_as_an_empty_file = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_got_the_lock_keeps_it_until_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (file, what) = (dir.path().join("lock"), Path::new("/staging"));
        let take = || Held::take(file.clone(), what);
        let held = take().unwrap();
        let mut tail = Command::new("tail");
        let mut child =
            tail.args(["-f", "/dev/null"]).stdin(Stdio::from(held.share().unwrap())).spawn().unwrap();
        // The command keeps the descriptor for another process.
        drop(tail);
        drop(held);
        assert_eq!(take().unwrap_err().code, Code::Aborted);
        child.kill().unwrap();
        child.wait().unwrap();
        // A process that another test starts has it too, until its exec.
        let freed = std::iter::repeat_with(take).find_map(std::result::Result::ok);
        freed.unwrap().remove();
        assert!(!file.exists());
    }
}
