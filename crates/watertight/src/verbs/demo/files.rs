//! Files with known content.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::say::failed;
use crate::term::problem::Result;
use crate::term::units;

/// How many files are written.
pub(super) const FILES: usize = 48;
/// How large each is, in bytes.
const FILE_BYTES: usize = 512 << 10;

/// Files by name, as a checksum and a length of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Content(BTreeMap<PathBuf, (u64, usize)>);

impl Content {
    /// The content of a directory.
    pub(super) fn of(dir: &Path) -> Result<Self> {
        let read = || {
            let mut content = Self::default();
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                let mut bytes = Vec::new();
                File::open(&path)?.read_to_end(&mut bytes)?;
                content.add(path.file_name().unwrap_or_default().into(), &bytes);
            }
            Ok(content)
        };
        read().map_err(|error: std::io::Error| failed("reading the store", &error))
    }

    fn add(&mut self, name: PathBuf, bytes: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        self.0.insert(name, (hasher.finish(), bytes.len()));
    }

    /// How many of these files `other` does not have as they are here.
    pub(super) fn missing_from(&self, other: &Self) -> usize {
        self.0.iter().filter(|(name, file)| other.0.get(*name) != Some(file)).count()
    }

    /// How many bytes of these files `other` does not have as they are here.
    pub(super) fn bytes_missing_from(&self, other: &Self) -> u64 {
        let missing = self.0.iter().filter(|(name, file)| other.0.get(*name) != Some(file));
        missing.map(|(_, (_, len))| *len as u64).sum()
    }

    pub(super) fn checksum(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, (checksum, len)) in &self.0 {
            hasher.write(name.as_os_str().as_encoded_bytes());
            hasher.write_u64(*checksum);
            hasher.write_usize(*len);
        }
        hasher.finish()
    }

    pub(super) fn describe(&self) -> String {
        let bytes: usize = self.0.values().map(|(_, len)| len).sum();
        format!("{} files, {}", self.0.len(), units::bytes(bytes as u64))
    }
}

/// Writes the demo's files and returns their content.
pub(super) fn write_files(dir: &Path) -> Result<(Content, Duration)> {
    write(dir, |_| Ok(()))
}

/// Writes the demo's files, each durable before the next, and returns their content.
pub(super) fn write_synced_files(dir: &Path) -> Result<(Content, Duration)> {
    write(dir, File::sync_all)
}

fn write(dir: &Path, end: impl Fn(&File) -> io::Result<()>) -> Result<(Content, Duration)> {
    let mut content = Content::default();
    let mut bytes = vec![0; FILE_BYTES];
    let begun = Instant::now();
    for index in 0..FILES {
        let name = PathBuf::from(format!("file-{index:02}"));
        let mut state = index as u64 + 1;
        for chunk in bytes.chunks_mut(8) {
            // xorshift: different bytes in each file, equal in each run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        let write = || {
            let mut file = File::create(dir.join(&name))?;
            file.write_all(&bytes)?;
            end(&file)
        };
        write().map_err(|error: io::Error| failed("writing a file", &error))?;
        content.add(name, &bytes);
    }
    Ok((content, begun.elapsed()))
}
