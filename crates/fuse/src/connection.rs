//! One connection to the kernel: what the threads that serve it share.
//!
//! # Lock order
//! `Connection::transport` and `Connection::on_destroy` are leaves: the handler of the end is taken
//! out and called without its lock.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};
use volume::{Cancel, CgroupPath};

use crate::device::Dev;
use crate::in_flight::InFlight;
use crate::protocol::encode::Validity;
use crate::protocol::init::{Mode, Negotiated};
use crate::resent::Resent;
use crate::stats::Stats;
use crate::sync_all::{SyncAll, Synced};
use crate::sync_page::detector::SyncDetector;
use crate::transport::dev_fuse::pool::ThreadPool;
use crate::transport::uring::ring::Ring;
use crate::tree::MountTree;

/// How requests come from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Threads read them from `/dev/fuse`.
    Readers {
        /// Why not over io_uring.
        reason: String,
    },
    /// Over io_uring.
    Uring,
}

/// The state of a connection, which the threads of a session share.
pub(crate) struct Connection {
    pub(crate) tree: Arc<MountTree>,
    pub(crate) negotiated: Negotiated,
    pub(crate) mode: Mode,
    pub(crate) valid: Validity,
    pub(crate) master: Arc<Dev>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) sync_all: Arc<SyncAll>,
    /// Where the kernel does not send SYNCFS, or was not seen to send it yet.
    pub(crate) page: Option<SyncDetector>,
    pub(crate) stats: Stats,
    pub(crate) pool: ThreadPool,
    pub(crate) transport: Mutex<Transport>,
    pub(crate) ring: Option<Arc<Ring>>,
    pub(crate) on_destroy: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pub(crate) destroyed: AtomicBool,
    /// The kernel has ended it without DESTROY.
    pub(crate) aborted: AtomicBool,
    pub(crate) resent: Resent,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Connection {
    /// A session without a kernel, whose pool may have `threads_max` threads.
    #[cfg(all(test, shuttle))]
    pub(crate) fn without_kernel(volume: Arc<volume::Volume>, master: Arc<Dev>, pool: ThreadPool) -> Self {
        let agreed = crate::protocol::decode::Agreed::default();
        Self {
            tree: Arc::new(MountTree::new(volume, Arc::clone(&master))),
            negotiated: Negotiated { minor: 0, flags: crate::protocol::abi::InitFlags::empty(), agreed },
            mode: Mode::default(),
            valid: Validity { entry: std::time::Duration::ZERO, attr: std::time::Duration::ZERO },
            master,
            in_flight: Arc::default(),
            sync_all: Arc::default(),
            page: None,
            stats: Stats::default(),
            pool,
            transport: Mutex::new(Transport::Uring),
            ring: None,
            on_destroy: Mutex::new(None),
            destroyed: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            resent: Resent::default(),
        }
    }

    /// Names the mountpoint's volume in the log lines of the session's threads. Those about an
    /// attached volume name it themselves.
    pub(crate) fn span(&self) -> &tracing::Span {
        self.tree.root().volume.span()
    }

    /// Syncs all that is attached, and the session's own volume by `own`. Volumes that do not
    /// answer are left out, which is logged.
    pub(crate) fn sync_attached(
        &self,
        by: impl FnOnce() -> CgroupPath,
        cancel: &Cancel,
        own: impl FnOnce() -> volume::Result<()>,
    ) -> Synced {
        if self.tree.is_plain() {
            return Synced::of_one(own());
        }
        let synced = self.sync_all.sync(&by(), &self.tree.sync_targets(), cancel, own);
        synced.skipped.iter().for_each(|target| target.log_skipped());
        synced
    }

    /// Ends what is attached, and brings the session's own volume to its store meanwhile: one store
    /// that hangs holds up its own volume only.
    fn end_attached(&self) {
        if self.tree.is_plain() {
            return;
        }
        std::thread::scope(|scope| {
            let sync = || {
                if let Err(error) = self.tree.root().volume.sync_all() {
                    tracing::debug!(%error, "the sync failed; the volume's end tries again");
                }
            };
            let own = std::thread::Builder::new().spawn_scoped(scope, sync);
            self.tree.end();
            drop(own);
        });
    }

    /// Whether it has ended, or the kernel has asked for that.
    pub(crate) fn has_ended(&self) -> bool {
        self.on_destroy.lock().is_none() || self.pool.has_ended()
    }

    /// The kernel asks for the end.
    pub(crate) fn destroy(&self) {
        self.end_attached();
        let handler = self.on_destroy.lock().take();
        if let Some(handler) = handler
            && catch_unwind(AssertUnwindSafe(handler)).is_err()
        {
            tracing::error!("the handler for the end of the connection panicked");
        }
        if let Some(detector) = &self.page {
            detector.page.end();
        }
        // ORDERING: Release, pairs with the Acquire in `Session::wait`, which sees the handler's work.
        self.destroyed.store(true, Ordering::Release);
    }
}
