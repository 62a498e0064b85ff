//! The unix socket, with mode 0600, at which a container engine or an orchestrator calls, and the
//! process that answers there until a signal ends it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::control::accept::check_peer;
use crate::host::notify::notify;
use crate::host::signals;
use crate::term::console::console;
use crate::term::logging;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// The pause after a connection that was not accepted, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs `serve` to its end, on this thread, and calls that block on `threads` others of that name.
/// What `serve` gets is notified when a signal ends the process.
///
/// # Errors
/// Those of `serve`; the process cannot have threads, or handle signals.
pub(super) fn run<S: Future<Output = Result<()>>>(
    (name, threads): (&str, usize),
    serve: impl FnOnce(Arc<Notify>) -> S,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(threads)
        .thread_name(name)
        .build()
        .map_err(|error| Problem::failure(format!("cannot start: {error}")))?;
    let stop = Arc::new(Notify::new());
    let on_signal = Arc::clone(&stop);
    signals::watch(move |name| {
        // There is nothing to read again.
        if name != "SIGHUP" {
            on_signal.notify_one();
        }
        true
    })
    .map_err(|error| Problem::failure(format!("cannot handle signals: {error}")))?;
    let result = runtime.block_on(serve(stop));
    // What a call began goes on in processes of its own.
    runtime.shutdown_background();
    result
}

/// A listening socket; its name goes when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, and says so; what an earlier process left there is replaced. To be called in
    /// a runtime.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let listener = Self::bind(path)?;
        console().print(&format!("ready: listening at {}", path.shown()));
        logging::take_all();
        notify("READY=1");
        Ok(listener)
    }

    /// The next connection of this process's own user, with one of the permits; others are refused.
    /// `None`: `stop` was notified.
    pub(super) async fn next(
        &self,
        permits: &Arc<Semaphore>,
        stop: &Notify,
    ) -> Option<(UnixStream, OwnedSemaphorePermit)> {
        loop {
            let stream = tokio::select! {
                () = stop.notified() => return None,
                next = self.socket.accept() => match next {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "a connection was not accepted");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                },
            };
            if let Err(reason) = check_peer(&stream, rustix::process::geteuid().as_raw()) {
                tracing::warn!(reason, "a connection was refused");
                continue;
            }
            match Arc::clone(permits).try_acquire_owned() {
                Ok(permit) => return Some((stream, permit)),
                Err(_) => tracing::warn!("a connection was refused: there are too many"),
            }
        }
    }

    fn bind(path: &Path) -> Result<Self> {
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
