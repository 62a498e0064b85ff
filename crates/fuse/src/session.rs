//! One connection from its beginning to its end.
//!
//! Purpose: [`Session::new`] agrees with the kernel, [`Session::run`] serves until the connection
//! ends, for whatever reason, and returns that reason. After that none of its threads runs, unless
//! a call into the store does not return; such threads are counted. A thread that notifies the
//! kernel of names (module `invalidations`) ends a moment later.
//!

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use recovery::Recovery;
use rustix::io::Errno;
use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};
use volume::Volume;

use crate::admission::capacity;
use crate::connection::{Connection, Transport};
use crate::device::Dev;
use crate::handover::SessionHandover;
use crate::handshake::{SessionError, agree};
use crate::in_flight::RequestView;
use crate::invalidations::Notifier;
use crate::mount::{BeforeMount, Mount, MountKind, READAHEAD_BYTES, SyncDevice, Uring};
use crate::protocol::abi::{InitFlags, Opcode};
use crate::protocol::encode::Validity;
use crate::protocol::init::{Mode, Negotiated, Wishes};
use crate::resent::Resent;
use crate::stats::{Stats, StatsView};
use crate::sync_page::detector::SyncDetector;
use crate::synced_volumes::SessionVolumes;
use crate::threads::spawn;
use crate::transport::dev_fuse::pool::{ReadEnd, ThreadPool};
use crate::transport::uring::PreparedDispatcher;
use crate::tree::MountTree;
use crate::view::TreeHandle;

/// How long the end of the device below the mount is waited for.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// How long the kernel may remember names, and that there are none, and attributes: the store
/// belongs to this connection alone, so that the kernel's copies stay true.
const VALID: Duration = Duration::from_secs(24 * 3600);

/// How a session behaves.
pub struct SessionOptions {
    /// Which side holds data that was only written.
    pub mode: Mode,
    /// Threads at most, and requests under way: each request that waits, for a limit or for a store
    /// that does not answer, holds one. By default what the host can bear, 256 to 1024.
    pub threads_max: usize,
    /// Whether threads that serve a lone client over io_uring may be of the class SCHED_IDLE.
    pub idle_sched: bool,
    /// How long [`Session::run`] waits for calls that do not return after the connection has ended.
    pub exit_grace: Duration,
    /// Where requests in hand are noted, for the server that follows if this process dies: that one
    /// has the kernel send again those that were not answered.
    pub recovery: Option<Arc<Recovery>>,
    /// Called when the kernel asks for the end (DESTROY). umount(2) returns after this has.
    pub on_destroy: Box<dyn FnOnce() + Send>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            threads_max: capacity::of_host(),
            idle_sched: true,
            exit_grace: Duration::from_secs(5),
            recovery: None,
            on_destroy: Box::new(|| {}),
        }
    }
}

impl fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOptions").field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// By DESTROY: `on_destroy` has run, and umount(2) waited for it.
    Destroyed,
    /// Unmounted by the kernel without a word (mounts of type `fuse`): `on_destroy` has **not**
    /// run.
    Unmounted,
    /// Cut by `umount -f` or through `/sys/fs/fuse/connections`.
    Aborted,
    /// The device failed.
    Failed(Errno),
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Why.
    pub reason: EndReason,
    /// Threads that were left behind in calls that did not return.
    pub stuck: usize,
}

/// A connection that serves a volume.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Connection>,
    mount: Mount,
    served: Option<SyncDevice>,
    exit_grace: Duration,
    prepared: Option<PreparedDispatcher>,
    needs_uring: bool,
}

/// A handle for reading the state of a running session, from any thread.
#[derive(Debug, Clone)]
pub struct SessionView(Arc<Connection>);

impl SessionView {
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }

    /// The requests that were served so far.
    #[must_use]
    pub fn stats(&self) -> StatsView {
        self.0.stats.view()
    }

    /// How many threads serve.
    #[must_use]
    pub fn threads(&self) -> usize {
        let ring = self.0.ring.as_ref().map_or(0, |ring| ring.threads());
        self.0.pool.threads() + ring + self.0.sync_all.threads()
    }

    /// How many requests are being handled, without calls that go on although their caller was
    /// killed.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.0.in_flight.in_hand()
    }

    /// The requests under way.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestView> {
        self.0.in_flight.requests()
    }

    /// How requests come from the kernel. Final when the session has begun to run.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.0.transport.lock().clone()
    }

    /// Whether the kernel was seen to report a sync(2) or syncfs(2) of the mount to the daemon, and
    /// to wait for it. Before one was called, it says nothing: kernels send SYNCFS to `fuseblk`
    /// since 6.18, to `fuse` never; older ones write a page of the device below a `fuseblk`.
    #[must_use]
    pub fn has_seen_syncfs(&self) -> bool {
        self.knows_who_syncs() || self.0.page.as_ref().is_some_and(|detector| detector.page.has_heard())
    }

    /// Whether the kernel was seen to name the caller of a sync: SYNCFS does, a page does not.
    #[must_use]
    pub fn knows_who_syncs(&self) -> bool {
        let is_refused = self.0.page.as_ref().is_some_and(SyncDetector::is_only_way);
        !is_refused && self.0.stats.view().of(Opcode::SyncFs) > 0
    }

    /// The agreement with the kernel.
    #[must_use]
    pub fn negotiated(&self) -> Negotiated {
        self.0.negotiated
    }
}

impl Session {
    /// Agrees with the kernel on the protocol. Requests wait until [`run`](Self::run).
    ///
    /// # Errors
    /// When the kernel is too old, or the connection ends, or io_uring is a must and cannot be had;
    /// the mount is taken away again.
    pub fn new(volume: Arc<Volume>, mut mount: Mount, options: SessionOptions) -> Result<Self, SessionError> {
        let master = Arc::new(Dev::new(mount.take_fd().map_err(SessionError::Device)?));
        let before = mount.take_uring().unwrap_or_else(|| BeforeMount::new(Uring::Off));
        let new = |()| PreparedDispatcher::new(&master, options.threads_max, options.idle_sched);
        let prepared = before.outcome().and_then(new);
        let wishes = Wishes {
            mode: options.mode,
            max_background: capacity::of_background(options.mode, options.threads_max),
            max_readahead: READAHEAD_BYTES,
            page_bytes: u32::try_from(rustix::param::page_size()).unwrap_or(4096),
            resend: options.recovery.is_some(),
            uring: prepared.is_ok(),
        };
        let negotiated = agree(&master, &wishes)?;
        if options.recovery.is_some() && !negotiated.flags.contains(InitFlags::HAS_RESEND) {
            return Err(SessionError::NoResend);
        }
        let needs_uring = before.is_must();
        // INIT was answered: the kernel's switch may go back to what it was.
        drop(before);
        let prepared = prepared.and_then(|prepared| {
            if negotiated.flags.contains(InitFlags::OVER_IO_URING) {
                Ok(prepared)
            } else {
                Err("the kernel does not offer it".to_owned())
            }
        });
        let (prepared, transport) = match prepared {
            Ok(prepared) => (Some(prepared), Transport::Uring),
            Err(reason) if needs_uring => return Err(SessionError::NoUring { reason }),
            Err(reason) => (None, Transport::Readers { reason }),
        };
        mount.tune();
        let mut served = mount.take_served();
        let page = served.as_mut().and_then(|served| hear(&mount, served));
        let shared = Connection {
            tree: Arc::new(MountTree::new(volume, Arc::clone(&master))),
            negotiated,
            mode: options.mode,
            valid: Validity { entry: VALID, attr: VALID },
            master,
            in_flight: Arc::default(),
            sync_all: Arc::default(),
            page,
            stats: Stats::default(),
            pool: ThreadPool::new(options.threads_max),
            transport: Mutex::new(transport),
            ring: prepared.as_ref().map(|prepared| Arc::clone(prepared.ring())),
            on_destroy: Mutex::new(Some(options.on_destroy)),
            destroyed: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            resent: Resent::new(options.recovery),
        };
        let exit_grace = options.exit_grace;
        let shared = Arc::new(shared);
        if let Some(served) = &served {
            start_hearing(&shared, served);
        }
        Ok(Self { shared, mount, served, exit_grace, prepared, needs_uring })
    }

    /// The session that the program before has written down, over the connection of `mount`. What
    /// was agreed stays: the kernel does not ask again. Requests wait until [`run`](Self::run).
    ///
    /// # Errors
    /// When the mount has no connection any more.
    pub fn take_over(
        volume: Arc<Volume>,
        mut mount: Mount,
        state: &SessionHandover,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let master = Arc::new(Dev::new(mount.take_fd().map_err(SessionError::Device)?));
        let shared = Connection {
            tree: Arc::new(MountTree::new(volume, Arc::clone(&master))),
            negotiated: state.negotiated(),
            mode: state.mode(),
            valid: Validity { entry: VALID, attr: VALID },
            master,
            in_flight: Arc::default(),
            sync_all: Arc::default(),
            page: None,
            stats: Stats::default(),
            pool: ThreadPool::new(options.threads_max),
            transport: Mutex::new(Transport::Readers { reason: state.reason.clone() }),
            ring: None,
            on_destroy: Mutex::new(Some(options.on_destroy)),
            destroyed: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            resent: Resent::new(options.recovery),
        };
        let (exit_grace, shared) = (options.exit_grace, Arc::new(shared));
        Ok(Self { shared, mount, served: None, exit_grace, prepared: None, needs_uring: false })
    }

    /// Drops the session before it [`run`](Self::run)s, and leaves the mount as it is, for another
    /// program of this process that has its connection.
    pub fn leave(mut self) {
        self.mount.mark_unmounted();
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// A means to have the kernel forget names and data.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.shared.tree.root().invalidations), Arc::clone(&self.shared.master))
    }

    /// To attach volumes to it, and to detach them.
    #[must_use]
    pub fn tree(&self) -> TreeHandle {
        TreeHandle::first(Arc::clone(&self.shared))
    }

    /// A handle for its state while it runs.
    #[must_use]
    pub fn view(&self) -> SessionView {
        SessionView(Arc::clone(&self.shared))
    }

    /// Serves until the connection ends.
    ///
    /// # Errors
    /// [`SessionError::Start`] when the host gives no thread, [`SessionError::NoUring`] when the
    /// kernel refuses what it agreed to; the mount is taken away again.
    pub fn run(mut self) -> Result<Ended, SessionError> {
        let span = self.shared.span().clone();
        let _of_the_mount = span.enter();
        self.shared.resent.ask(&self.shared.master).map_err(|error| SessionError::Device(error.into()))?;
        let in_flight = Arc::clone(&self.shared.in_flight);
        let watcher = spawn("wt-fuse-signals", move || in_flight.watch()).map_err(SessionError::Start)?;
        let started = self.shared.pool.start(&self.shared).map_err(SessionError::Start);
        let outcome = started.and_then(|()| self.start_ring()).map(|()| self.wait());
        self.shared.in_flight.end();
        self.shared.tree.root().invalidations.end();
        if watcher.join().is_err() {
            tracing::error!("the session's watcher thread panicked");
        }
        outcome
    }

    fn start_ring(&mut self) -> Result<(), SessionError> {
        let Some(prepared) = self.prepared.take() else { return Ok(()) };
        match prepared.start(&self.shared) {
            Ok(()) => {
                self.shared.pool.relax();
                Ok(())
            }
            Err(reason) if self.needs_uring => Err(SessionError::NoUring { reason }),
            Err(reason) => {
                tracing::warn!(reason, "cannot use io_uring: requests come over /dev/fuse");
                *self.shared.transport.lock() = Transport::Readers { reason };
                Ok(())
            }
        }
    }

    fn wait(&mut self) -> Ended {
        let (end, mut stuck) = self.shared.pool.wait(self.exit_grace);
        // ORDERING: Acquire, pairs with the Release in `Connection::destroy`.
        let destroyed = self.shared.destroyed.load(Ordering::Acquire);
        if !destroyed {
            // A forced unmount has no DESTROY, and waits for the write of the page.
            // ORDERING: Relaxed: the thread that answers that write checks again soon.
            self.shared.aborted.store(true, Ordering::Relaxed);
        }
        self.end_page();
        let until = Instant::now() + self.exit_grace;
        if let Some(ring) = &self.shared.ring {
            // No entry has come back with the end where the kernel has refused all of them.
            ring.end();
            stuck += ring.wait(until);
        }
        stuck += self.shared.sync_all.end(until);
        let reason = match end {
            _ if destroyed => EndReason::Destroyed,
            ReadEnd::Unmounted => EndReason::Unmounted,
            ReadEnd::Aborted => EndReason::Aborted,
            ReadEnd::Failed(error) => EndReason::Failed(error),
        };
        if matches!(reason, EndReason::Destroyed | EndReason::Unmounted) {
            self.mount.mark_unmounted();
        }
        if reason == EndReason::Destroyed
            && let Some(served) = &self.served
        {
            // The kernel writes its dirty pages of the device last. Another process may still look
            // at the device; umount(2) does not wait for it.
            served.wait(LAST_WRITE);
        }
        Ended { reason, stuck }
    }

    fn end_page(&self) {
        if let Some(detector) = &self.shared.page {
            detector.page.end();
        }
    }
}

impl Drop for Session {
    /// A session may end in another way than by DESTROY.
    fn drop(&mut self) {
        if let Some(ring) = &self.shared.ring {
            ring.end();
        }
        self.end_page();
    }
}

/// Detects syncs by the device's pages.
fn hear(mount: &Mount, served: &mut SyncDevice) -> Option<SyncDetector> {
    let MountKind::FuseBlk { loop_device } = mount.kind() else { return None };
    let connection = mount.info().map(crate::mount::MountInfo::connection_dir);
    SyncDetector::new(served, loop_device, connection)
        .inspect_err(|error| tracing::debug!(%error, "syncs of the mount go unnoticed: cannot open its device for writing"))
        .ok()
}

/// From now on the kernel's writes of the device's pages are syncs of the volumes.
fn start_hearing(shared: &Arc<Connection>, served: &SyncDevice) {
    let Some(detector) = &shared.page else { return };
    let weak = Arc::downgrade(shared);
    served.on_write(Box::new(move || {
        let Some(shared) = weak.upgrade() else { return Ok(()) };
        let volumes = SessionVolumes(Arc::clone(&shared));
        shared.page.as_ref().map_or(Ok(()), |detector| detector.page.written(&volumes))
    }));
    // The first sync shows how the kernel reports them.
    detector.page.note_change();
}
