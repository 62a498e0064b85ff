//! The control socket's server: one thread, a bounded number of connections, small messages.
//!
//! Every connection is taken at once and is for one request. Connections that wait for their peers
//! are bounded for each process and each user (module `connections`); calls that take long (`sync`,
//! `umount`, `wait`, `events`) have permits of their own (module `call_limits`), so that they keep no
//! other caller from asking for the status or unmounting. Blocking calls run on tokio's blocking
//! threads.
//!
//! A user can make this server hold, beside its long calls, so many connections with 16 KiB of a
//! head, 64 KiB of a body and one answer each.
//!
//! # Shutdown
//! [`Server::finish`] takes no more connections, gives those under way a moment to receive how the
//! volume ended, and joins the thread.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::accept::{Limiters, accept};
use super::call_limits::THREADS_MAX;
use super::service::Service;

/// Threads of detaches: permits are for their callers. A volume that is given up may keep one for as
/// long as its store does not answer, and must not take the thread of another: as many as there may
/// be volumes.
const DETACHES_MAX: usize = 100_000;
/// A running control server.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    runtime: Handle,
    limits: Limiters,
}

/// One more socket of a running server; its connections are answered to their end when this is
/// dropped.
#[derive(Debug)]
pub struct ListenerGuard {
    stop: watch::Sender<bool>,
    listener: Arc<UnixListener>,
}

impl ListenerGuard {
    /// The socket.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

impl Server {
    /// Serves `service` on `listener` to root and to `owner_uid`.
    ///
    /// # Errors
    /// Those of making the thread and its event loop.
    pub fn start(listener: StdListener, owner_uid: u32, service: Arc<dyn Service>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Self::run(move |stopped, limits| async move {
            match UnixListener::from_std(listener) {
                Ok(listener) => accept(Arc::new(listener), owner_uid, service, limits, stopped).await,
                Err(error) => tracing::error!(%error, "the control socket cannot be served"),
            }
        })
    }

    /// Serves nothing so far.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn idle() -> io::Result<Self> {
        Self::run(|mut stopped, _| async move { drop(stopped.wait_for(|stop| *stop).await) })
    }

    fn run<F: Future<Output = ()>>(
        body: impl FnOnce(watch::Receiver<bool>, Limiters) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(THREADS_MAX + DETACHES_MAX)
            .thread_name("control-call")
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = watch::channel(false);
        let limits = Limiters::default();
        let given = limits.clone();
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            runtime.block_on(body(stopped, given));
            // A call that blocks on a store that hangs must not keep the process.
            runtime.shutdown_background();
        })?;
        Ok(Self { stop, thread: Some(thread), runtime: handle, limits })
    }

    /// Serves another `service` on another `listener`, by the same thread.
    ///
    /// # Errors
    /// Those of making the listener ready.
    pub fn add_listener(
        &self,
        listener: StdListener,
        owner_uid: u32,
        service: Arc<dyn Service>,
    ) -> io::Result<ListenerGuard> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = watch::channel(false);
        let in_runtime = self.runtime.enter();
        let listener = Arc::new(UnixListener::from_std(listener)?);
        drop(in_runtime);
        self.runtime.spawn(accept(Arc::clone(&listener), owner_uid, service, self.limits.clone(), stopped));
        Ok(ListenerGuard { stop, listener })
    }

    /// Ends the server; answers under way are finished first, within two seconds.
    pub fn finish(mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control server's thread panicked");
        }
    }
}
