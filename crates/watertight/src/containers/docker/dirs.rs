//! Where the plugin has its files.

use std::path::PathBuf;

use crate::containers::records::own_dir;
use crate::term::problem::Result;

/// Directories of this user's alone.
#[derive(Debug, Clone)]
pub(super) struct StateDirs {
    pub(super) mounts: PathBuf,
    pub(super) logs: PathBuf,
}

impl StateDirs {
    /// Makes those that are missing.
    ///
    /// # Errors
    /// When one cannot be made, or is open to others.
    pub(super) fn below(state: PathBuf) -> Result<Self> {
        let dirs = Self { mounts: state.join("mounts"), logs: state.join("logs") };
        for dir in [&dirs.mounts, &dirs.logs] {
            own_dir(dir)?;
        }
        Ok(dirs)
    }
}
