//! Which base each pod's path shows: a file for each path, in the state directory.
//!
//! The kernel's mount table says it while the path shows something. Between the end of that and the
//! end of the base's unmount only this does, also for a driver that comes after a killed one.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ids::digest;
use crate::host::new_file;
use crate::term::shown::exact;

/// The files.
#[derive(Debug)]
pub(super) struct Targets {
    dir: PathBuf,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    target: String,
    /// The last part of its path.
    base: String,
}

impl Targets {
    pub(super) const fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn file(&self, target: &Path) -> PathBuf {
        self.dir.join(format!("{:016x}.json", digest(exact(target).as_bytes())))
    }

    /// Keeps it. A process that is killed in it leaves what was there.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn keep(&self, target: &Path, base: &str) -> io::Result<()> {
        let record = Record { target: exact(target), base: base.to_owned() };
        let file = self.file(target);
        if read(&file).is_some_and(|there| there == record) {
            return Ok(());
        }
        let new = file.with_extension("new");
        new_file(&new)?.write_all(&serde_json::to_vec(&record)?)?;
        fs::rename(new, file)
    }

    /// The last part of the base's path, if one is kept.
    pub(super) fn base_of(&self, target: &Path) -> Option<String> {
        let record = read(&self.file(target)).filter(|record| record.target == exact(target))?;
        let is_name = !record.base.is_empty() && !record.base.starts_with('.') && !record.base.contains('/');
        is_name.then_some(record.base)
    }

    /// The path shows nothing any more, and who asked knows how the base ended.
    pub(super) fn forget(&self, target: &Path) {
        if self.base_of(target).is_some() {
            let _stays = fs::remove_file(self.file(target));
        }
    }

    /// Forgets the paths that no pod can have any more, as this says.
    pub(super) fn forget_all(&self, is_gone: impl Fn(&Path) -> bool) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            // One that is damaged says nothing.
            if read(&entry.path()).is_none_or(|record| is_gone(Path::new(&record.target))) {
                let _stays = fs::remove_file(entry.path());
            }
        }
    }
}

fn read(file: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_its_base_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (targets, [a, b]) = (Targets::new(dir.path().to_owned()), ["/a", "/b"].map(Path::new));
        assert_eq!(targets.base_of(a), None);
        targets.keep(a, "0").unwrap();
        targets.keep(a, "1").unwrap();
        targets.keep(b, "..").unwrap();
        assert_eq!((targets.base_of(a).as_deref(), targets.base_of(b)), (Some("1"), None));
        targets.keep(b, "1").unwrap();
        fs::write(dir.path().join("damaged.json"), "{").unwrap();
        targets.forget_all(|target| target == b);
        assert_eq!((targets.base_of(a).as_deref(), targets.base_of(b)), (Some("1"), None));
        targets.forget(a);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
