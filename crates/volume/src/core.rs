//! The state that the parts of one volume share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use recovery::Recovery;
use store::{Store, Watch};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::mutant::is_on;
use sync::{Clock, RealClock, StatCounter};
use writeback::{Bdi, Budget, SyncPolicy};

use crate::cancel::WakeEvent;
use crate::deferred_close::DeferredClose;
use crate::events::Events;
use crate::failed_reads::FailedReads;
use crate::inode::Inode;
use crate::io::page::Pool;
use crate::latency::Latencies;
use crate::noted::{Inherited, NotHeld};
use crate::stall::Stall;
use crate::table::Table;
use crate::tenants::Tenants;
use crate::unsynced::{SyncEpoch, UnsyncedChanges};

/// The options of a volume.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name in the log, in the field `volume`.
    pub name: String,
    /// Hard bound on cached file data, in bytes; at least 4 MiB.
    pub cache_bytes_max: u64,
    /// How many bytes each cgroup may have that are not on the store, the root left out; `None`:
    /// its share of the cache.
    pub dirty_bytes_max: Option<u64>,
    /// Flusher threads, at most: they are there while there is something to write. The last one
    /// that is free goes only to a cgroup where no other is.
    pub flushers: usize,
    /// Dirty data rests this long before it is written without need.
    pub dirty_after: Duration,
    /// Write a file's data when it is closed, and report the outcome there.
    pub flush_on_close: bool,
    /// Pause after a write-back that failed; grows with each further failure.
    pub retry_pause: Duration,
    /// How long an unmount goes on trying after data could be written last.
    pub drain_deadline: Duration,
    /// A store that takes longer over one call counts as stalled.
    pub stall_after: Duration,
    /// The policy of a sync whose caller's cgroup sets none.
    pub sync_policy: SyncPolicy,
    /// The tenants that write; volumes of one process share them.
    pub tenants: Arc<Tenants>,
    /// Where it is written down what the kernel knows, for the server that follows if this process
    /// dies. [`write_through`](Self::write_through) is on then.
    pub recovery: Option<Arc<Recovery>>,
    /// All that is written goes to the store before the writer is answered: what was accepted is as
    /// safe as the store keeps it.
    pub write_through: bool,
    /// Files and directories that the front end may know at a time: see
    /// [`Volume::name_surplus`](crate::Volume::name_surplus).
    pub nodes_max: usize,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// Each takes some 2 KiB here, and 1 KiB in the kernel.
const NODES_MAX: usize = 512 << 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            name: String::new(),
            cache_bytes_max: 256 << 20,
            dirty_bytes_max: None,
            flushers: 3,
            dirty_after: Duration::from_secs(5),
            flush_on_close: false,
            retry_pause: Duration::from_secs(1),
            drain_deadline: Duration::from_secs(60),
            stall_after: Duration::from_secs(5),
            sync_policy: SyncPolicy::default(),
            tenants: Arc::default(),
            recovery: None,
            write_through: false,
            nodes_max: NODES_MAX,
            clock: Arc::new(RealClock::default()),
        }
    }
}

/// The state that the parts of one volume share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) file_size_max: u64,
    /// Files that may wait for write-back, open though no handle uses them, before the thread that
    /// closes one writes it.
    pub(crate) idle_files_max: usize,
    pub(crate) options: Options,
    pub(crate) budget: Arc<Budget>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) bdi: Arc<Bdi<Inode>>,
    /// Names the volume in the log lines of its threads.
    pub(crate) span: tracing::Span,
    pub(crate) table: Table,
    pub(crate) counters: Counters,
    pub(crate) latencies: Latencies,
    pub(crate) failed_reads: FailedReads,
    pub(crate) unsynced: UnsyncedChanges,
    pub(crate) events: Arc<Events>,
    pub(crate) stall: Stall,
    pub(crate) deferred_close: DeferredClose,
    pub(crate) inherited: Inherited,
    pub(crate) not_held: NotHeld,
    /// Overlays that ended.
    settled: AtomicU64,
    aborted: AtomicBool,
    aborted_event: WakeEvent,
}

/// Figures for `status`.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes_written_back: StatCounter,
    /// By the store itself, from one file to another.
    pub(crate) bytes_copied: StatCounter,
    pub(crate) writeback_errors: StatCounter,
    pub(crate) read_errors: StatCounter,
    pub(crate) waits: StatCounter,
}

impl Core {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        mut options: Options,
        budget: Arc<Budget>,
        (bdi, span): (Arc<Bdi<Inode>>, tracing::Span),
    ) -> Arc<Self> {
        let (watched, watch) = Watch::over(Arc::clone(&store));
        // Checkers have no store that hangs, and try enough orders of steps without those of the
        // watch.
        let store = if cfg!(any(loom, shuttle)) { store } else { watched };
        options.write_through |= options.recovery.is_some();
        Arc::new(Self {
            stall: Stall::new(watch, options.stall_after),
            idle_files_max: store.idle_files_max(),
            file_size_max: store.file_size_max().min(i64::MAX.unsigned_abs()),
            store,
            options,
            pool: Pool::new(usize::try_from(budget.limit()).unwrap_or(usize::MAX)),
            budget,
            bdi,
            span,
            table: Table::default(),
            counters: Counters::default(),
            latencies: Latencies::default(),
            failed_reads: FailedReads::default(),
            unsynced: UnsyncedChanges::default(),
            events: Arc::default(),
            deferred_close: DeferredClose::default(),
            inherited: Inherited::default(),
            not_held: NotHeld::default(),
            settled: AtomicU64::new(0),
            aborted: AtomicBool::new(false),
            aborted_event: WakeEvent::default(),
        })
    }

    /// Aborts the volume: callers that wait get an error.
    pub(crate) fn abort(&self) {
        // ORDERING: Relaxed; the budget's queue has a lock, which orders it. A waiter takes that
        // lock to queue itself and loads afterwards; this stores and takes the lock afterwards. If
        // the waiter had the lock first, this thread finds it there and calls it, and its event's
        // lock brings this store along; if this had it first, the lock brings it to the waiter's
        // load. `wait_aborted` has its own event, set below. Any other thread that loads may see it
        // a little later.
        if is_on("volume-force-late") {
            self.budget.wake_all();
        }
        self.aborted.store(true, Ordering::Relaxed);
        if !is_on("volume-force-late") {
            self.budget.wake_all();
        }
        self.bdi.throttle().wake_all();
        self.aborted_event.set();
        self.deferred_close.wake();
    }

    /// A sync of the store begins.
    pub(crate) fn begin_sync(&self) -> SyncEpoch {
        self.unsynced.begin(self.put_bytes())
    }

    /// At most how many bytes were given to the store and are not covered by a sync of it.
    pub(crate) fn not_known_durable(&self) -> u64 {
        self.unsynced.bytes(self.put_bytes())
    }

    fn put_bytes(&self) -> u64 {
        self.counters.bytes_written_back.get() + self.counters.bytes_copied.get()
    }

    /// Counts an overlay that ended: attributes that the store returned before may be older than
    /// those that it has now.
    pub(crate) fn note_settled(&self) {
        // ORDERING: Release, pairs with the load in `settled`: a thread that sees this count finds
        // on the store what the overlay said. Weaker, a look-up could take an old size for one from
        // after the write-back.
        self.settled.fetch_add(1, Ordering::Release);
    }

    /// Overlays that ended so far.
    pub(crate) fn settled(&self) -> u64 {
        // ORDERING: Acquire, see `note_settled`; the table's lock makes the count visible to a
        // thread that no longer finds the inode.
        self.settled.load(Ordering::Acquire)
    }

    /// Waits until the volume is aborted, but at most `at_most`.
    pub(crate) fn wait_aborted(&self, at_most: Duration) {
        self.aborted_event.wait(Some(Instant::now() + at_most));
    }

    pub(crate) fn is_aborted(&self) -> bool {
        // ORDERING: Relaxed, see `abort`.
        self.aborted.load(Ordering::Relaxed)
    }
}
