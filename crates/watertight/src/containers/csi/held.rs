//! A lock of a staging path that a driver's end does not free while a mount that it began goes on.
//!
//! It is an advisory lock (flock(2)) of a file in the state directory. The `mount` process has the
//! file as its standard input, and so the lock, until it ends: by then the volume is mounted or
//! never will be. The process in the background, which serves the volume, does not inherit it.
//!
//! The turns (module `locks`) order the calls of one driver; so only processes of an earlier one can
//! have the lock, and nobody waits for it: the orchestrator asks again. It is taken last.
//!
//! An unmount's process has it in the same way, and leaves in the file how the volume ended, where
//! data was lost: a driver that comes after a killed one finds the true outcome.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use csi_proto::tonic::Code;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::failure::{Failure, Result};
use crate::term::shown::{Show as _, exact};

/// Bytes of a note.
const NOTE_BYTES_MAX: usize = 32 << 10;

/// What is known of a path, in the file of its lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The path: another one may have the same lock.
    path: String,
    /// The volume, by its store.
    pub(super) source: String,
    /// Whether it was mounted there, and not unmounted by this driver since.
    pub(super) staged: bool,
    /// Whether the volume was mounted with the driver's own keys, and needs none of a call.
    pub(super) own_keys: bool,
    /// What was lost when it ended, if no caller has been told yet.
    pub(super) lost: Option<String>,
}

impl Note {
    fn new(path: &Path, own_keys: bool) -> Self {
        Self { path: exact(path), own_keys, ..Self::default() }
    }

    /// Reads what a lock's file has on this path; one that is damaged has nothing.
    pub(super) fn read(file: &File, path: &Path) -> Self {
        let mut bytes = vec![0; NOTE_BYTES_MAX];
        let note =
            file.read_at(&mut bytes, 0).ok().and_then(|len| serde_json::from_slice(&bytes[..len]).ok());
        note.filter(|note: &Self| note.path == exact(path)).unwrap_or_else(|| Self::new(path, false))
    }

    /// Writes it there.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let bytes = serde_json::to_vec(self)?;
        file.write_all_at(&bytes, 0)?;
        file.set_len(bytes.len() as u64)
    }
}

/// The lock, until it and all of its descriptors are closed.
#[derive(Debug)]
pub(super) struct Held {
    file: File,
    path: PathBuf,
    /// The path that it is the lock of.
    what: PathBuf,
}

impl Held {
    /// Takes the lock whose file this is; `what` is the staging path, for the words.
    ///
    /// # Errors
    /// `Aborted`: a process of an earlier driver has it.
    pub(super) fn take(file: PathBuf, what: &Path) -> Result<Self> {
        let late = || {
            let why = "what an earlier process of the driver began there is not done yet; ask again";
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
        Ok(Self { file: opened, path: file, what: what.to_owned() })
    }

    /// What is known of the path.
    pub(super) fn note(&self) -> Note {
        Note::read(&self.file, &self.what)
    }

    /// Keeps which volume is to be mounted, and with whose keys, before that begins.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn begin(&self, source: &str, own_keys: bool) -> Result<()> {
        let note = self.note();
        if let Some(lost) = &note.lost {
            tracing::warn!(path = %self.what.shown().exact(), lost, "a loss that nobody was told of");
        }
        let source = source.to_owned();
        self.write(&Note { source, own_keys, lost: None, ..note })
    }

    /// Keeps that it is mounted.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn mounted(&self) -> Result<()> {
        self.write(&Note { staged: true, ..self.note() })
    }

    fn write(&self, note: &Note) -> Result<()> {
        note.write(&self.file)
            .map_err(|error| Failure::internal(format!("cannot write {}: {error}", self.path.shown())))
    }

    /// A caller was told what was lost.
    pub(super) fn told(&self) {
        // Else the next call is answered with it as well.
        let _answered_again = self.write(&Note { lost: None, staged: false, ..self.note() });
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

    #[test]
    fn a_note_is_of_its_path_alone() {
        let dir = tempfile::tempdir().unwrap();
        let take = |what: &str| Held::take(dir.path().join("lock"), Path::new(what)).unwrap();
        let held = take("/a");
        assert_eq!(held.note(), Note::new(Path::new("/a"), false));
        held.begin("file:///a", true).unwrap();
        assert!(!held.note().staged);
        held.mounted().unwrap();
        assert!(held.note().staged && held.note().own_keys);
        let lost = Note { lost: Some("a".repeat(10_000)), ..held.note() };
        lost.write(&held.file).unwrap();
        assert_eq!(held.note(), lost);
        held.told();
        let told = Note { source: "file:///a".to_owned(), ..Note::new(Path::new("/a"), true) };
        assert_eq!(held.note(), told);
        drop(held);
        assert!(!take("/b").note().own_keys);
        fs::write(dir.path().join("lock"), "{").unwrap();
        assert_eq!(take("/a").note(), Note::new(Path::new("/a"), false));
    }
}
