//! How a volume ended, and its lost data.

use serde::{Deserialize, Serialize};

use super::state::State;
use crate::term::shown::{Name, Words};
use crate::term::units;

/// How many files an [`Unwritten`] names.
pub const FILES_NAMED_MAX: usize = 1000;

/// A file whose data could not be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileError {
    /// Its path inside the volume, or `inode NUMBER` where it has no name (any more).
    pub file: Name,
    /// How much is affected.
    pub bytes: u64,
    /// Why.
    pub error: Words,
}

/// Data that was not written when a volume ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unwritten {
    /// How much in all.
    pub bytes: u64,
    /// Of how many files.
    pub files: u64,
    /// Which, the first thousand.
    pub named: Vec<FileError>,
}

impl Unwritten {
    /// Whether nothing was lost.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0 && self.files == 0
    }

    /// Adds what was not written of a volume that was attached at `path`.
    pub fn add(&mut self, path: &str, other: Self) {
        self.bytes += other.bytes;
        self.files += other.files;
        let room = FILES_NAMED_MAX.saturating_sub(self.named.len());
        self.named.extend(other.named.into_iter().take(room).map(|file| FileError {
            file: format!("{path}/{}", file.file.as_str().trim_start_matches('/')).into(),
            ..file
        }));
    }

    /// The total, then a line for each file (the first `max`), for a person.
    #[must_use]
    pub fn lines(&self, max: usize) -> Vec<String> {
        let files = units::count(self.files, "file", "files");
        let mut lines = vec![format!("not written: {} of {files}", units::exactly(self.bytes))];
        lines.extend(self.named.iter().take(max).map(|file| {
            let why = if file.error.is_empty() { String::new() } else { format!(": {}", file.error) };
            format!("  {}: {}{why}", file.file, units::count(file.bytes, "byte", "bytes"))
        }));
        let named = self.named.len().min(max) as u64;
        if self.files > named {
            lines.push(format!("  and {} more", units::count(self.files - named, "file", "files")));
        }
        lines
    }
}

/// How a volume ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// [`State::Released`] or [`State::Failed`].
    pub state: State,
    /// Milliseconds since the epoch.
    pub ended_ms: u64,
    /// The lost data.
    pub unwritten: Unwritten,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Words>,
    /// How long it waited for inodes that were changing their owners, in microseconds.
    #[serde(default)]
    pub switch_drain_us: u64,
    /// Inodes that had changed their owners since the start.
    #[serde(default)]
    pub switched_inodes: u64,
}

impl Ended {
    /// Its wait for switches, in words; empty if no inode ever changed its owner.
    #[must_use]
    pub fn switching(&self) -> String {
        let Self { switched_inodes, switch_drain_us, .. } = self;
        if *switched_inodes == 0 {
            return String::new();
        }
        format!(
            "; changes of owner so far: {switched_inodes}; waited for the last of them: {switch_drain_us} us"
        )
    }

    /// The lost data and the reason, a line each below `headline`; `named` files at most by their
    /// names.
    #[must_use]
    pub fn lost(&self, headline: String, named: usize) -> Vec<String> {
        let mut lines = vec![headline];
        lines.extend(self.error.as_ref().map(Words::to_string));
        lines.extend(self.unwritten.lines(named));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_told_exactly_and_in_bounds() {
        let file = |n: u64| FileError { file: format!("/f{n}").into(), bytes: n, error: Words::default() };
        let lost = Unwritten { bytes: 6 << 20, files: 5, named: (1..=3).map(file).collect() };
        assert_eq!(
            lost.lines(2),
            [
                "not written: 6.0 MiB (6291456 bytes) of 5 files",
                "  /f1: 1 byte",
                "  /f2: 2 bytes",
                "  and 3 files more"
            ]
        );
        assert!(!lost.is_empty());
        assert!(Unwritten::default().is_empty());
    }
}
