//! A volume's figures. None of these calls asks the store.

use std::sync::Arc;
use std::time::Instant;

use store::{ErrorKind, RequestStats, UnderWay};
use writeback::BdiStatus;

use crate::events::Events;
use crate::inode::Inode;
use crate::io::page::PAGE;
use crate::latency::Latencies;
use crate::lifecycle::state::{Unwritten, VolumeState};
use crate::limit_waits::LimitWait;
use crate::volume::Volume;

/// How many open files and directories are asked for their openers.
const OPENERS_MAX: usize = 1024;

/// A volume's figures.
#[derive(Debug, Clone)]
pub struct Status {
    /// Where it is in its life.
    pub state: VolumeState,
    /// The call that its store has not answered in time, if there is one.
    pub stalled: Option<UnderWay>,
    /// How often the store did not answer in time, as far as [`Volume::look`] noticed.
    pub stalls: u64,
    /// The store, as a person names it.
    pub store: String,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Bytes to be written, those under way included.
    pub dirty_bytes: u64,
    /// Of these, the bytes that are on their way to the store.
    pub writeback_bytes: u64,
    /// Files with unwritten data.
    pub dirty_files: u64,
    /// Bytes in the cache, data that was reserved for included.
    pub cached_bytes: u64,
    /// The cache's hard bound, in bytes.
    pub cache_bytes_max: u64,
    /// Inodes in the table.
    pub nodes: u64,
    /// Open files and directories.
    pub open_files: u64,
    /// The threads that opened them, each once, by number; none where not all are known, or too
    /// many are open ([`Volume::openers`]).
    pub openers: Vec<u32>,
    /// Bytes written back since the start.
    pub bytes_written_back: u64,
    /// Write-back errors since the start.
    pub writeback_errors: u64,
    /// Reads that the store has failed since the start.
    pub read_errors: u64,
    /// Writes that had to wait for room in the cache.
    pub writer_waits: u64,
    /// Files whose data could not be written at the last attempt.
    pub failing: Vec<Unwritten>,
    /// The store's requests to a service, where it sends any.
    pub store_requests: Option<RequestStats>,
    /// How inodes change their owners; each owner's figures are in `switching.wbs`.
    pub switching: BdiStatus,
}

impl Volume {
    /// Its name in the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.options.name
    }

    /// Names the volume in the log lines of threads that serve it, and it alone: these enter the
    /// span.
    #[must_use]
    pub fn span(&self) -> &tracing::Span {
        &self.core.span
    }

    /// How long its operations take; its front end records them.
    #[must_use]
    pub fn latencies(&self) -> &Latencies {
        &self.core.latencies
    }

    /// How long requests have waited for the limits of their cgroups.
    #[must_use]
    pub fn limit_waits(&self) -> Vec<LimitWait> {
        self.core.events.limit_waits().all(Instant::now())
    }

    /// Its events, as a stream.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.core.events
    }

    /// Notices what has begun or ended since the last check, and reports it as events: that the
    /// store does not answer, or answers again, the end of a full cache and of a limit's waits. The
    /// daemon checks about once a second. Returns the call that the store has not answered in time,
    /// if there is one. Never asks the store.
    pub fn look(&self) -> Option<UnderWay> {
        self.core.events.look_at_waits();
        self.core.stall.look(&self.core.events)
    }

    /// The volume's figures. Never asks the store. Notices stalls as [`look`](Self::look) does.
    #[must_use]
    pub fn status(&self) -> Status {
        let dirty = self.dirty_inodes();
        let waiting: Vec<(&Arc<Inode>, Pending)> =
            dirty.iter().filter_map(|inode| Some((inode, inode.pending()?))).collect();
        let dirty_bytes = waiting.iter().map(|(_, pending)| pending.bytes).sum();
        let under_way: u64 = waiting.iter().map(|(_, pending)| pending.under_way).sum();
        let failing = waiting.iter().filter(|(_, pending)| pending.error.is_some());
        let failing: Vec<Unwritten> = failing.map(|(inode, pending)| inode.unwritten(*pending)).collect();
        let state = self.lifecycle.state.lock().0;
        let stalled = self.look();
        let written = self.core.counters.bytes_written_back.get();
        Status {
            state,
            stalled,
            stalls: self.core.stall.count(),
            store: self.core.store.describe(),
            read_only: self.core.store.is_read_only(),
            dirty_bytes,
            writeback_bytes: under_way.min(dirty_bytes),
            dirty_files: waiting.len() as u64,
            cached_bytes: self.core.budget.used() * PAGE,
            cache_bytes_max: self.core.budget.limit() * PAGE,
            nodes: self.core.table.len() as u64,
            open_files: (self.files.len() + self.dirs.len()) as u64,
            openers: self.openers().unwrap_or_default(),
            bytes_written_back: written,
            writeback_errors: self.core.counters.writeback_errors.get(),
            read_errors: self.core.counters.read_errors.get(),
            writer_waits: self.core.counters.waits.get(),
            store_requests: self.core.store.requests(),
            switching: self.core.bdi.status(),
            failing,
        }
    }

    /// How long names, attributes and listings may be remembered: [`Store::may_be_kept`](store::Store).
    #[must_use]
    pub fn may_be_kept(&self) -> Option<std::time::Duration> {
        self.core.store.may_be_kept()
    }

    /// Has the store tell of what others change: [`Store::on_change`](store::Store).
    pub fn on_change(&self, tell: store::OnChange) {
        self.core.store.on_change(tell);
    }

    /// Whether files are open, or were until a moment ago. Costs nothing, and asks no store.
    #[must_use]
    pub fn has_open_files(&self) -> bool {
        self.files.len() > 0
    }

    /// The threads that opened what is open, each once, by number, as this process knows them.
    /// Other processes may have it since: by fork(2), or over a socket. `None` if one of the
    /// threads is not known here, or more than 1024 files and directories are open.
    #[must_use]
    pub fn openers(&self) -> Option<Vec<u32>> {
        let mut pids = Vec::new();
        let mut note = |pid: u32| {
            pids.push(pid);
            pid != 0 && pids.len() <= OPENERS_MAX
        };
        let are_all =
            self.files.each(|file| note(file.opener_pid)) && self.dirs.each(|dir| note(dir.opener_pid));
        pids.sort_unstable();
        pids.dedup();
        are_all.then_some(pids)
    }

    /// The call that the store has not answered in time, if there is one.
    #[must_use]
    pub fn stalled(&self) -> Option<UnderWay> {
        self.core.stall.now()
    }

    /// Whether the store did not answer at the last [check](Self::look). Costs nothing.
    #[must_use]
    pub fn is_known_to_stall(&self) -> bool {
        self.core.stall.is_reported()
    }

    /// Stalls that were noticed so far.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.core.stall.count()
    }
}

/// The data of one inode that is not on the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    bytes: u64,
    /// Taken out of the cache's dirty pages, and being written.
    under_way: u64,
    error: Option<ErrorKind>,
}

impl Inode {
    pub(crate) fn pending(&self) -> Option<Pending> {
        let state = self.state();
        let bytes = (state.cache.held() * PAGE).min(state.overlay.map_or(0, |overlay| overlay.size));
        let under_way = (state.cache.held() - state.cache.dirty()) * PAGE;
        let error = state.failing;
        (bytes > 0 || error.is_some()).then_some(Pending { bytes, under_way, error })
    }

    /// The inode's data that is not on the store, under the name that it had at its last error.
    pub(crate) fn unwritten(&self, pending: Pending) -> Unwritten {
        let Pending { bytes, error, .. } = pending;
        Unwritten { node: self.id.0, path: self.state().failing_path.clone(), bytes, error }
    }
}
