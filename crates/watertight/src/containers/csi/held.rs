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
//!
//! The file has places for two notes, and a new note is written over the older one: a writer that is
//! killed leaves the newer one whole. The file itself is never replaced, as the lock is its.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use csi_proto::tonic::Code;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::failure::{Failure, Result};
use super::ids::digest;
use crate::term::shown::{Show as _, exact};

/// Bytes of a note.
const NOTE_BYTES_MAX: usize = 64 << 10;
/// Where notes begin.
const PLACES: [u64; 2] = [0, NOTE_BYTES_MAX as u64];

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
    /// Whether a caller was told how it ended.
    pub(super) is_told: bool,
}

impl Note {
    pub(super) fn new(path: &Path, own_keys: bool) -> Self {
        Self { path: exact(path), own_keys, ..Self::default() }
    }

    /// Reads what a lock's file has on this path; one that is damaged has nothing.
    pub(super) fn read(file: &File, path: &Path) -> Self {
        let note = Self::newest(file).map(|(_, _, note)| note);
        note.filter(|note| note.path == exact(path)).unwrap_or_else(|| Self::new(path, false))
    }

    /// The number of the newest note that is whole, where the older one is, and the note.
    fn newest(file: &File) -> Option<(u64, u64, Self)> {
        let [first, second] = PLACES;
        let all = [(first, second), (second, first)].into_iter().filter_map(|(place, other)| {
            let (number, note) = Self::at(file, place)?;
            Some((number, other, note))
        });
        all.max_by_key(|(number, ..)| *number)
    }

    /// A note and its number; none: there is none, or its writer was killed.
    fn at(file: &File, place: u64) -> Option<(u64, Self)> {
        let mut bytes = vec![0; NOTE_BYTES_MAX];
        let len = file.read_at(&mut bytes, place).ok()?;
        let line = bytes.get(..len)?.split(|&byte| byte == b'\n').next()?;
        let (sum, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        let is_whole = u64::from_str_radix(sum, 16).ok()? == digest(rest.as_bytes());
        let (number, note) = rest.split_once(' ').filter(|_| is_whole)?;
        Some((number.parse().ok()?, serde_json::from_str(note).ok()?))
    }

    /// Writes it there.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let (last, place) = Self::newest(file).map_or((0, PLACES[0]), |(number, older, _)| (number, older));
        let rest = format!("{} {}", last.saturating_add(1), serde_json::to_string(self)?);
        let line = format!("{:016x} {rest}\n", digest(rest.as_bytes()));
        if line.len() > NOTE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the note is too long"));
        }
        file.write_all_at(line.as_bytes(), place)
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
        self.write(&Note { source: source.to_owned(), own_keys, ..self.note() })
    }

    /// Keeps that it is mounted.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn mounted(&self) -> Result<()> {
        self.write(&Note { staged: true, is_told: false, ..self.note() })
    }

    fn write(&self, note: &Note) -> Result<()> {
        note.write(&self.file)
            .map_err(|error| Failure::internal(format!("cannot write {}: {error}", self.path.shown())))
    }

    /// Keeps that an answer has named what was lost. To an orchestrator the volume may still be staged:
    /// the note keeps that, too.
    pub(super) fn told(&self) {
        // After an error the next answer names it again.
        let _named_again = self.write(&Note { lost: None, is_told: true, ..self.note() });
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
        held.begin("file:///a", true).unwrap();
        assert_eq!(held.note(), lost, "nobody was told");
        held.told();
        assert_eq!(held.note(), Note { lost: None, is_told: true, ..lost });
        held.mounted().unwrap();
        assert!(!held.note().is_told);
        drop(held);
        assert!(!take("/b").note().own_keys);
        fs::write(dir.path().join("lock"), "{").unwrap();
        assert_eq!(take("/a").note(), Note::new(Path::new("/a"), false));
    }

    #[test]
    fn a_writer_that_is_killed_leaves_the_note_before() {
        let dir = tempfile::tempdir().unwrap();
        let held = Held::take(dir.path().join("lock"), Path::new("/a")).unwrap();
        held.begin("file:///a", true).unwrap();
        for n in 0..3 {
            held.mounted().unwrap();
            let before = held.note();
            let (_, place, _) = Note::newest(&held.file).unwrap();
            let lost = Note { lost: Some(n.to_string().repeat(9_000)), ..before.clone() };
            lost.write(&held.file).unwrap();
            assert_eq!(held.note(), lost);
            // Only the first page of it came to the file.
            held.file.write_all_at(&[b' '; 8192], place + 4096).unwrap();
            assert_eq!(held.note(), before);
        }
    }
}
