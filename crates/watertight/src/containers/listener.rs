//! The unix socket that a container engine calls, with mode 0600.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// A listening socket; its name goes when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`; what an earlier process left there is replaced. To be called in a
    /// runtime.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn bind(path: &Path) -> Result<Self> {
        let bind = || {
            if let Some(parent) = path.parent() {
                DirBuilder::new().mode(0o755).recursive(true).create(parent)?;
            }
            // It gets its name when it listens and nobody else can open it.
            let new = path.with_extension("new");
            let _left_over = fs::remove_file(&new);
            let listener = StdListener::bind(&new)?;
            fs::set_permissions(&new, Permissions::from_mode(0o600))?;
            fs::rename(&new, path)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        let socket = bind().map_err(|error: io::Error| {
            Problem::failure(format!("cannot listen at {}: {error}", path.shown()))
        })?;
        Ok(Self { socket, path: path.to_owned() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _replaced_or_gone = fs::remove_file(&self.path);
    }
}
