//! The life of a volume, from `active` to `released`.
//!
//! The first caller that asks for the end drains: it writes every dirty inode, makes everything
//! durable, and releases the store. A caller that asks while that goes on waits for the same end.
//!
//! Lock order: `Volume::life` is a leaf; nothing is written under it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::{ErrorKind, UnderWay};
use sync::mutant::is_on;
use sync::{Condvar, Mutex, thread};
use writeback::BdiStatus;

use crate::events::{Events, Life as Lived};
use crate::inode::Inode;
use crate::page::PAGE;
use crate::{Caller, Cancel, CgroupPath, Ctx, Error, Result, SyncPolicy, Volume};

/// Threads that drain a volume beside its flushers: the round trips of a distant store are not
/// waited for file by file.
const DRAINERS: usize = 8;
/// How many open files and directories are asked for their openers.
const OPENERS_MAX: usize = 1024;

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifeState {
    /// In use.
    Active,
    /// No path leads to it; open files keep it.
    Detached,
    /// Its data is being written for the last time.
    Draining,
    /// Everything is on the store and the store is free.
    Released,
    /// The store is free, but not everything could be written.
    Failed,
}

/// Data that is not on the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwritten {
    /// The node's number.
    pub node: u64,
    /// The file's path in the volume, if the store can say.
    pub path: Option<PathBuf>,
    /// Bytes.
    pub bytes: u64,
    /// Why, if an attempt failed.
    pub error: Option<ErrorKind>,
}

/// How a drain ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// The data that was not written; empty if all went well.
    pub unwritten: Vec<Unwritten>,
    /// The error of the last step, making everything durable.
    pub sync_error: Option<store::Error>,
    /// How long it took.
    pub took: Duration,
    /// Of this, the wait for inodes that were changing their owners.
    pub switch_drain: Duration,
    /// Inodes that had changed their owners since the volume's beginning.
    pub switched: u64,
}

impl DrainReport {
    /// The errors, in words.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        let bytes: u64 = self.unwritten.iter().map(|file| file.bytes).sum();
        let files = self.unwritten.len();
        let lost = (files > 0).then(|| format!("{bytes} bytes of {files} files were not written"));
        lost.into_iter().chain(self.sync_error.as_ref().map(ToString::to_string)).reduce(|a, b| a + "; " + &b)
    }

    /// Everything is on the store.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unwritten.is_empty() && self.sync_error.is_none()
    }
}

/// A volume's figures.
#[derive(Debug, Clone)]
pub struct Status {
    /// Where it is in its life.
    pub state: LifeState,
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
    /// Writes that had to wait for room in the cache.
    pub writer_waits: u64,
    /// Files whose data could not be written at the last attempt.
    pub failing: Vec<Unwritten>,
    /// How inodes change their owners; each owner's figures are in `switching.wbs`.
    pub switching: BdiStatus,
}

#[derive(Debug)]
pub(crate) struct Life {
    state: Mutex<(LifeState, Option<DrainReport>)>,
    ended: Condvar,
    /// The result of the end, with the names of files, which a store that is closed does not know
    /// any more.
    pub(crate) found: Mutex<Option<DrainReport>>,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            state: Mutex::new((LifeState::Active, None)),
            ended: Condvar::default(),
            found: Mutex::default(),
        }
    }
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

    /// Its events, as a stream.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.core.events
    }

    /// Notices what has begun or ended since the last look, and reports it as events: that the
    /// store does not answer, or answers again, the end of a full cache and of a limit's waits. The
    /// daemon looks about once a second. Returns the call that the store has not answered in time,
    /// if there is one. Never asks the store.
    pub fn look(&self) -> Option<UnderWay> {
        self.core.events.look_at_waits();
        self.core.stall.look(&self.core.events)
    }

    /// The volume's figures. Never asks the store. Looks as [`look`](Self::look) does.
    #[must_use]
    pub fn status(&self) -> Status {
        let dirty = self.dirty_inodes();
        let waiting: Vec<(&Arc<Inode>, Pending)> =
            dirty.iter().filter_map(|inode| Some((inode, inode.pending()?))).collect();
        let dirty_bytes = waiting.iter().map(|(_, pending)| pending.bytes).sum();
        let under_way: u64 = waiting.iter().map(|(_, pending)| pending.under_way).sum();
        let failing = waiting.iter().filter(|(_, pending)| pending.error.is_some());
        let failing: Vec<Unwritten> = failing.map(|(inode, pending)| inode.unwritten(*pending)).collect();
        let state = self.life.state.lock().0;
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
            writer_waits: self.core.counters.waits.get(),
            switching: self.core.bdi.status(),
            failing,
        }
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

    /// Whether the store did not answer at the last [look](Self::look). Costs nothing.
    #[must_use]
    pub fn is_known_to_stall(&self) -> bool {
        self.core.stall.is_told()
    }

    /// Stalls that were noticed so far.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.core.stall.count()
    }

    /// Makes durable what was dirty when the call began, and what the store had not made durable
    /// yet: all of it, or with isolation what the caller's cgroup owns and changed. Waits for the
    /// limits that the caller is under, and no others.
    ///
    /// # Errors
    /// The first failure; every file's own is reported to its open files as well.
    /// [`Error::Interrupted`] when the wait was cancelled.
    pub fn sync(&self, ctx: &Ctx<'_>) -> Result<()> {
        (ctx.before_wait)();
        self.sync_as(&self.core.options.tenants.path_of(&ctx.caller), Some(ctx.cancel))
    }

    /// Syncs for a process of the host, without a request.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_for(&self, pid: u32) -> Result<()> {
        let caller = Caller { pid, ..Caller::default() };
        self.sync_as(&self.core.options.tenants.path_of(&caller), None)
    }

    /// Syncs for a cgroup.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_by(&self, who: &CgroupPath, cancel: &Cancel) -> Result<()> {
        self.sync_as(who, Some(cancel))
    }

    /// Syncs all data, at full speed: bytes ahead of a limit are owed.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_all(&self) -> Result<()> {
        let failed = self.write_all();
        self.end_sync(failed)
    }

    fn sync_as(&self, who: &CgroupPath, cancel: Option<&Cancel>) -> Result<()> {
        let core = &self.core;
        let scope = core.bdi.throttle().isolation_of(who);
        let policy = if scope.is_some() { SyncPolicy::Isolated } else { core.options.sync_policy };
        let syncing = core.bdi.begin_sync(who, policy);
        let write = |inode: &Arc<Inode>| inode.write_for_sync(&syncing.throttled_write(inode), cancel);
        let failed = self.write_each(syncing.inodes(), write);
        if core.is_forced() {
            return Err(Error::Released);
        }
        if cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Error::Interrupted);
        }
        if policy == SyncPolicy::Isolated
            && syncing.inodes().is_empty()
            && !self.may_have_changed(scope.as_ref().unwrap_or(who))
        {
            return Ok(());
        }
        // The store's own sync is under no limit.
        drop(syncing);
        self.end_sync(failed)
    }

    /// Whether something that a cgroup or one below it owns may not be durable: dirty data, data on
    /// its way to the store, and changes that the store has not made durable yet. A change of
    /// unknown owner counts for every cgroup. Where an isolated cgroup above covers this cgroup's
    /// syncs, that one is meant. The owners of changes from before
    /// [`note_owners`](Self::note_owners) are not known.
    ///
    /// Never asks the store, and takes no lock that is held while it is asked.
    #[must_use]
    pub fn has_undurable_of(&self, who: &CgroupPath) -> bool {
        let isolated = self.core.bdi.throttle().isolation_of(who);
        let scope = isolated.as_ref().unwrap_or(who);
        if is_on("undurable-asked-first") {
            return self.may_have_changed(scope) || self.core.bdi.has_unwritten_of(scope);
        }
        // In this order: written data is noted as changed before it is taken off the dirty data.
        self.core.bdi.has_unwritten_of(scope) || self.may_have_changed(scope)
    }

    /// Whether the store has something that a cgroup or one below it changed and that is not
    /// durable yet.
    fn may_have_changed(&self, who: &CgroupPath) -> bool {
        // The owner of a change is not known any more when its cgroup was removed since.
        let path = |owner| self.core.options.tenants.path_of_living(owner);
        self.core.undurable.is_any(|owner| path(owner).is_none_or(|path| path.is_within(who)))
    }

    fn end_sync(&self, failed: Vec<Error>) -> Result<()> {
        let turn = self.core.begin_sync();
        self.core.store.sync()?;
        self.core.undurable.end(turn);
        match failed.into_iter().next() {
            Some(Error::Store(error)) => Err(Error::Writeback(error.kind())),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// A path leads to the volume again.
    pub fn set_attached(&self) {
        let mut state = self.life.state.lock();
        if state.0 == LifeState::Detached {
            state.0 = LifeState::Active;
        }
    }

    /// No path leads to the volume any more.
    pub fn set_detached(&self) {
        let mut state = self.life.state.lock();
        if state.0 == LifeState::Active {
            state.0 = LifeState::Detached;
            self.core.events.life(Lived::Detached, None);
        }
    }

    /// Writes everything, makes it durable and gives the store free; says what could not be
    /// written.
    ///
    /// Tries again while attempts fail, until
    /// [`Options::drain_deadline`](crate::Options::drain_deadline) has passed since the last byte
    /// could be written, or until [`force`](Self::force). No other call may follow but `status`.
    /// Later callers get the first one's report when it is there.
    pub fn shutdown(&self) -> DrainReport {
        self.end(None::<fn()>)
    }

    /// [`shutdown`](Self::shutdown) where requests may still be in hand: dirty data is written
    /// while they are, once, and `wait` returns when they are over.
    pub fn shutdown_beside_requests(&self, wait: impl FnOnce()) -> DrainReport {
        self.end(Some(wait))
    }

    /// Writes what is dirty now, once, so that the end does not have to. Errors are kept with the
    /// files; the end tries these again.
    pub fn write_back(&self) {
        let _told_by_the_end = self.write_all();
    }

    fn end(&self, wait: Option<impl FnOnce()>) -> DrainReport {
        {
            let mut state = self.life.state.lock();
            if !matches!(state.0, LifeState::Active | LifeState::Detached) {
                while state.1.is_none() {
                    self.life.ended.wait(&mut state);
                }
                return state.1.clone().unwrap_or_default();
            }
            state.0 = LifeState::Draining;
            self.core.events.life(Lived::Draining, None);
        }
        let begun = Instant::now();
        let _drain = tracing::info_span!("drain", volume = %self.core.options.name).entered();
        if let Some(wait) = wait {
            tracing::info_span!("flush").in_scope(|| self.write_back());
            tracing::info_span!("wait_for_requests").in_scope(wait);
        }
        tracing::info_span!("write_back").in_scope(|| self.drain());
        let sync_error = tracing::info_span!("sync_store").in_scope(|| self.make_durable().err());
        let unwritten = self.unwritten();
        *self.life.found.lock() = Some(DrainReport {
            unwritten: unwritten.clone(),
            sync_error: sync_error.clone(),
            ..DrainReport::default()
        });
        tracing::info_span!("close_files").in_scope(|| self.core.later.wait(|| self.core.is_forced()));
        self.core.bdi.stop(
            Instant::now() + if self.core.is_forced() { Duration::ZERO } else { Duration::from_secs(1) },
        );
        // From here on no other thread has one of the volume's inodes.
        let switch_drain = tracing::info_span!("wait_for_switches").in_scope(|| self.core.bdi.drain());
        tracing::info_span!("release")
            .in_scope(|| if self.core.is_forced() { self.close_given_up() } else { self.holdings().close() });
        let switched = self.core.bdi.status().switched;
        let report = DrainReport { unwritten, sync_error, took: begun.elapsed(), switch_drain, switched };
        let end = if report.is_complete() { LifeState::Released } else { LifeState::Failed };
        self.core.events.end(report.error());
        *self.life.state.lock() = (end, Some(report.clone()));
        self.life.ended.notify_all();
        report
    }

    /// How the volume's end went, once it is there.
    #[must_use]
    pub fn report(&self) -> Option<DrainReport> {
        self.life.state.lock().1.clone()
    }

    fn drain(&self) {
        let mut last_progress = Instant::now();
        let mut written = self.core.counters.bytes_written_back.get();
        loop {
            let failed = self.write_all();
            let clean = self.dirty_inodes().iter().all(|inode| inode.pending().is_none());
            if (clean && failed.is_empty()) || self.core.is_forced() {
                return;
            }
            let now = self.core.counters.bytes_written_back.get();
            if now > written {
                (written, last_progress) = (now, Instant::now());
            } else if last_progress.elapsed() >= self.core.options.drain_deadline {
                return;
            }
            if !failed.is_empty() {
                // Not in place of a wake-up: nothing reports when a store that failed will work
                // again.
                self.core.wait_forced(self.core.options.retry_pause.min(Duration::from_secs(1)));
            }
        }
    }

    /// Writes what is dirty now, at once; returns the errors.
    fn write_all(&self) -> Vec<Error> {
        self.write_each(&self.dirty_inodes(), |inode| inode.write_for_sync(&inode.owing(), None))
    }

    /// Writes these inodes, with several threads; returns the errors.
    fn write_each(
        &self,
        inodes: &[Arc<Inode>],
        write: impl Fn(&Arc<Inode>) -> Result<()> + Sync,
    ) -> Vec<Error> {
        let queue = Mutex::new(inodes.iter());
        let failed = Mutex::new(Vec::new());
        let work = || {
            let _of_the_volume = self.core.span.enter();
            loop {
                let next = queue.lock().next();
                let Some(inode) = next else { return };
                if self.core.is_forced() {
                    return;
                }
                if let Err(error) = write(inode) {
                    failed.lock().push(error);
                }
            }
        };
        let others = DRAINERS.min(inodes.len()).saturating_sub(1);
        thread::run_scoped(others, 256 * 1024, work);
        failed.into_inner()
    }

    pub(crate) fn dirty_inodes(&self) -> Vec<Arc<Inode>> {
        self.core.bdi.snapshot()
    }
}

impl mounts::Superblock for Volume {
    fn flush(&self) {
        self.write_back();
    }

    fn shutdown(&self) {
        Volume::shutdown(self);
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

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "isolation_tests.rs"]
mod tests;
