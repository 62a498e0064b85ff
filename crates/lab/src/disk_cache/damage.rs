//! One byte of a closed cache's files, changed.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::random::Random;

/// The unit in which a file is looked at: what is all zeros in it was never written.
const PAGE: u64 = 4096;
/// Places that are tried.
const TRIES: usize = 1_000_000;

/// Which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Any that was written.
    Anywhere,
    /// One of the first page of a file.
    FirstPage,
}

/// The files in a directory and in those below, with their sizes.
pub(super) fn files(dir: &Path) -> anyhow::Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut found = Vec::new();
    for entry in dir.read_dir()? {
        let path = entry?.path();
        let metadata = path.symlink_metadata()?;
        if metadata.is_dir() {
            found.append(&mut files(&path)?);
        } else {
            found.push((path, metadata));
        }
    }
    Ok(found)
}

/// Changes a byte of a file below `dir`.
pub(super) fn change_a_byte(dir: &Path, place: Place, random: &mut Random) -> anyhow::Result<()> {
    let mut files = files(dir)?;
    files.retain(|(_, metadata)| metadata.size() > 0);
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut below = |bound: u64| random.next() % bound;
    for _ in 0..TRIES {
        let at = usize::try_from(below(files.len() as u64))?;
        let (path, metadata) = &files[at];
        let bound = if place == Place::FirstPage { metadata.size().min(PAGE) } else { metadata.size() };
        let offset = below(bound);
        let file = File::options().read(true).write(true).open(path)?;
        let mut page = vec![0; usize::try_from(PAGE)?];
        let start = offset - offset % PAGE;
        let read = file.read_at(&mut page, start)?;
        if page[..read].iter().all(|byte| *byte == 0) {
            continue;
        }
        let byte = page[usize::try_from(offset - start)?];
        let changed = byte ^ (1 << below(8));
        return file.write_all_at(&[changed], offset).context("changing a byte");
    }
    anyhow::bail!("no byte was written")
}
