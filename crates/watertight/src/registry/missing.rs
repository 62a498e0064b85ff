//! The volumes of a file that `serve` has not mounted, for verbs that list the volumes of the host.
//!
//! `serve` writes them to `PID.serve` in its runtime directory, and keeps that file locked as long
//! as it lives: a list that is not locked belongs to a `serve` that was killed, and a process of
//! the same user that finds it removes it. A change is a new file, renamed over the old one, so
//! that readers see a whole list.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use crate::control::api::Missing;
use crate::host::new_file;
use crate::registry::RuntimeDir;
use crate::term::shown::Show as _;

/// A list is not longer than that.
const BYTES_MAX: u64 = 16 << 20;
/// The bound on reading another user's list.
const FOREIGN_BYTES_MAX: u64 = 1 << 20;

/// The list of this process.
#[derive(Debug, Default)]
pub(crate) struct MissingList {
    written: Option<(PathBuf, File)>,
    told: Vec<Missing>,
}

impl MissingList {
    /// Makes it these, if they are others than before.
    pub(crate) fn tell(&mut self, missing: Vec<Missing>) {
        if missing == self.told {
            return;
        }
        match write(&missing) {
            Ok(written) => (self.written, self.told) = (Some(written), missing),
            Err(error) => tracing::warn!(
                error,
                "cannot record the volumes that are not mounted: `watertight status` does not show them"
            ),
        }
    }
}

impl Drop for MissingList {
    fn drop(&mut self) {
        if let Some((path, _locked)) = &self.written {
            let _gone_already = fs::remove_file(path);
        }
    }
}

fn write(missing: &[Missing]) -> Result<(PathBuf, File), String> {
    let dir = RuntimeDir::own().map_err(|problem| problem.to_string())?;
    let path = dir.path().join(format!("{}.serve", std::process::id()));
    let new = path.with_extension("serve.new");
    let make = || {
        let mut file = new_file(&new)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(&serde_json::to_vec(missing)?)?;
        fs::rename(&new, &path)?;
        Ok(file)
    };
    let file = make().map_err(|error: std::io::Error| format!("{}: {error}", path.shown()))?;
    Ok((path, file))
}

/// Those of all processes of `serve` that this user may see, by mountpoint.
#[must_use]
pub fn all() -> Vec<Missing> {
    let mut all: Vec<Missing> = RuntimeDir::readable().iter().flat_map(in_dir).collect();
    all.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    all
}

/// The volumes that the lists in this runtime directory name.
#[must_use]
pub fn in_dir(dir: &RuntimeDir) -> Vec<Missing> {
    dir.files(".serve").flat_map(|(name, file)| read(dir, &name, file)).collect()
}

fn read(dir: &RuntimeDir, name: &str, file: File) -> Vec<Missing> {
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        if !dir.is_foreign() {
            let _gone_already = fs::remove_file(dir.path().join(name));
        }
        return Vec::new();
    }
    let bytes_max = if dir.is_foreign() { FOREIGN_BYTES_MAX } else { BYTES_MAX };
    let mut text = Vec::new();
    let read = file.take(bytes_max).read_to_end(&mut text);
    read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
}
