//! Write-back: from the cache to the store.

use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cgroups::CgroupId;
use store::{Access, ErrorKind, SetAttr, TimeSet};
use sync::atomic::Ordering;
use sync::mutant::is_on;
use throttle::{Completion, OnLimit, ThrottledWrite};
use writeback::{InodeWb, Outcome};

use crate::cancel::Cancel;
use crate::inode::{Inode, Io, State};
use crate::io::cache::Run;
use crate::io::page::PAGE;
use crate::{Error, Result};

impl writeback::Inode for Inode {
    fn write_back(self: &Arc<Self>) -> Outcome {
        let write = self.core.bdi.throttled_write(self, u64::MAX, OnLimit::Skip);
        let outcome = match self.writeout(&write, None, false) {
            Err(_) => Outcome::Failed,
            Ok((Completion::Throttled | Completion::Aborted, _)) => Outcome::Throttled,
            Ok((Completion::Done, _)) => {
                let io = self.io();
                match self.write_times(&io) {
                    Err(_) => Outcome::Failed,
                    Ok(()) => self.unlist_if_clean(),
                }
            }
        };
        if outcome == Outcome::Clean {
            self.close_file_if_idle();
            self.core.retire(self.id);
        }
        outcome
    }

    fn on_owner_change(&self) {
        // From here on, data written for the old owner is the new one's as well.
        self.core.unsynced.note(|| None);
    }

    fn inode_wb(&self) -> &InodeWb<Self> {
        &self.inode_wb
    }
}

/// Pages that are taken out for writing, as long as it is not known how that ended: a store that
/// panics has not written them.
struct Unfinished<'a> {
    inode: &'a Inode,
    first: u64,
    pages: usize,
    is_over: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.inode.state();
        let freed = state.cache.end_run(self.first, self.pages, false);
        self.inode.note_pages(&state);
        debug_assert!(freed.is_empty(), "unwritten pages stay");
    }
}

impl Inode {
    /// Writes what is dirty since the epoch of `write` or before, and leaves the inode listed for
    /// the flusher to take off: only a flusher knows on which list it is.
    ///
    /// # Errors
    /// The store's, which is recorded; [`Error::Interrupted`] and [`Error::Released`].
    pub(crate) fn write_for_sync(
        self: &Arc<Self>,
        write: &ThrottledWrite<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        // A panic over one inode must not keep the others from being written.
        let write = || self.writeout_all(write, cancel).and_then(|()| self.write_times(&self.io()));
        let written = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
            self.state().failing = Some(ErrorKind::Io);
            Err(self.record(store::Error::new(ErrorKind::Io, "write-back panicked")))
        });
        self.close_file_if_idle();
        written
    }

    /// Notes that something of the inode was changed on the store, which `owner` owned before that.
    /// If its owner changes meanwhile, the change counts for every owner.
    fn note_changed(&self, owner: Option<CgroupId>) {
        let still = |_: &CgroupId| !self.inode_wb.is_switching() && self.core.bdi.owner_of(self) == owner;
        self.core.unsynced.note(|| owner.filter(still));
    }

    /// The next run of pages to be written, `pages` at most, that are dirty since `epoch` or
    /// before.
    pub(crate) fn take_run(&self, from: u64, pages: usize, epoch: u64) -> Option<Run> {
        let mut state = self.state();
        if !state.cache.is_dirty_since(epoch) {
            return None;
        }
        let last = state.overlay?.size.saturating_sub(1) / PAGE;
        let run = state.cache.take_run(from, last, pages, epoch);
        self.note_pages(&state);
        run
    }

    pub(crate) fn write_run(&self, _io: &Io<'_>, run: Run) -> Result<()> {
        let offset = run.first * PAGE;
        let size = self.state().overlay.map_or(0, |overlay| overlay.size);
        let end = size.min(offset + run.pages.len() as u64 * PAGE);
        let count = run.pages.len();
        let mut unfinished = Unfinished { inode: self, first: run.first, pages: count, is_over: false };
        let owner = self.core.bdi.owner_of(self);
        let result = self.write_slices(&run, offset, end, owner);
        unfinished.is_over = true;
        // Also where it failed: a part may be there.
        self.note_changed(owner);
        if result.is_ok() {
            // Before it is taken for written: a thread that asks meanwhile what is not durable gets
            // no less.
            self.core.counters.bytes_written_back.add(end.saturating_sub(offset));
        }
        // Before the cache examines its pages: these references would count as another user's.
        drop(run.pages);
        let (freed, permit) = {
            let mut state = self.state();
            let freed = state.cache.end_run(run.first, count, result.is_ok());
            let permit = state.remove_pages(freed.len());
            self.note_pages(&state);
            state.changes += 1;
            match &result {
                Ok(()) => {
                    state.failing = None;
                    if let Some(overlay) = &mut state.overlay {
                        overlay.store_size = overlay.store_size.max(end);
                    }
                }
                Err(error) => state.failing = Some(error.kind()),
            }
            (freed, permit)
        };
        self.core.pool.recycle(freed);
        drop(permit);
        result.map_err(|error| self.record(error))
    }

    fn write_slices(&self, run: &Run, offset: u64, end: u64, owner: Option<CgroupId>) -> store::Result<()> {
        let file = match self.file(Access::ReadWrite) {
            Ok(file) => file,
            Err(Error::Store(error)) => return Err(error),
            Err(_) => return Err(store::Error::new(ErrorKind::Io, "open for write-back")),
        };
        let mut left = end.saturating_sub(offset);
        let mut slices = Vec::with_capacity(run.pages.len());
        for page in &run.pages {
            let part = usize::try_from(left.min(PAGE)).unwrap_or(0);
            if part > 0 {
                slices.push(IoSlice::new(&page.bytes()[..part]));
            }
            left -= part as u64;
        }
        file.charge_to(owner.unwrap_or(CgroupId::ROOT).0);
        file.write_at(&slices, offset)
    }

    /// Records a write-back error in all places that report it: every open file, the log, the
    /// counters.
    pub(crate) fn record(&self, error: store::Error) -> Error {
        self.errors.set(error.kind());
        self.core.counters.writeback_errors.add(1);
        let path = self.core.store.path_of(self.id);
        let (volume, shown) =
            (self.core.options.name.as_str(), path.as_ref().map(|path| path.to_string_lossy()));
        tracing::error!(volume, node = self.id.0, path = shown.as_deref(), %error, "write-back failed; the data stays in the cache");
        self.state().failing_path.clone_from(&path);
        self.core.events.error(self.id.0, path, error.kind());
        Error::Store(error)
    }

    /// Sets the file's time of last change on the store, once no page is left to write; write-back
    /// itself changed it there. With that the overlay ends, unless the file was changed meanwhile.
    pub(crate) fn write_times(&self, _io: &Io<'_>) -> Result<()> {
        let mtime = {
            let mut state = self.state();
            match state.overlay {
                None => return Ok(()),
                Some(_) if state.cache.held() > 0 => return Ok(()),
                Some(overlay) if overlay.times_pending => overlay.mtime,
                Some(_) => {
                    state.end_overlay(None);
                    self.core.note_settled();
                    return Ok(());
                }
            }
        };
        let set = SetAttr { mtime: Some(TimeSet::At(mtime)), ..SetAttr::default() };
        let owner = self.core.bdi.owner_of(self);
        let stored = match self.core.store.set_attr(self.id, &set) {
            Ok(attr) => Some(attr.ctime),
            // A daemon without rights over the file cannot set its times; the data is safe.
            Err(error) if matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::AccessDenied) => None,
            Err(error) => {
                self.state().failing = Some(error.kind());
                return Err(self.record(error));
            }
        };
        self.note_changed(owner);
        let mut state = self.state();
        let settled = state.cache.held() == 0 && state.overlay.is_some_and(|now| now.mtime == mtime);
        if settled || is_on("volume-settle-unchecked") {
            state.failing = None;
            state.end_overlay(stored);
            self.core.note_settled();
        }
        Ok(())
    }

    /// Ends the overlay where all of it is on the store, whose times are shown from then on: those of
    /// its own writes, which a server that follows shows as well.
    pub(crate) fn take_times_of_store(&self) {
        let is_written = |state: &State| state.overlay.is_some() && state.cache.held() == 0;
        if !is_written(&self.state()) {
            return;
        }
        // A flusher that is setting the overlay's time has it set before.
        let _io = self.io();
        let mut state = self.state();
        if is_written(&state) {
            state.failing = None;
            state.end_overlay(None);
            self.core.note_settled();
        }
    }

    fn unlist_if_clean(&self) -> Outcome {
        let mut state = self.state();
        if state.overlay.is_some() && !is_on("volume-unlist-unchecked") {
            return Outcome::Dirty;
        }
        state.listed = false;
        Outcome::Clean
    }

    /// Drops all unwritten data, which cannot be read any more, and takes the inode off the lists,
    /// so that its space on the store is free at once. If it is being written at this moment, the
    /// flusher ends it.
    pub(crate) fn discard(self: &Arc<Self>) {
        let Some(io) = self.try_io() else { return };
        let (gone, permit) = {
            let mut state = self.state();
            if state.lookups > 0 || state.opens > 0 {
                return;
            }
            let gone = state.cache.clear();
            let permit = state.remove_pages(gone.len());
            if state.overlay.is_some() {
                state.end_overlay(None);
                self.core.note_settled();
            }
            self.note_pages(&state);
            if state.listed && self.core.bdi.del_dirty(self) {
                state.listed = false;
            }
            (gone, permit)
        };
        drop(io);
        self.core.pool.recycle(gone);
        drop(permit);
        self.close_file_if_idle();
    }

    /// Reports to the budget how much this inode holds, and to its wb how much of that is dirty and
    /// how much is being written. A page that was changed while it is being written counts as
    /// dirty.
    pub(crate) fn note_pages(&self, state: &State) {
        let (held, dirty) = (state.cache.held(), state.cache.dirty());
        // ORDERING: Relaxed, a figure for the budget's thresholds; written under the state lock.
        self.held.store(held, Ordering::Relaxed);
        self.core.bdi.account(self, dirty * PAGE, (held - dirty) * PAGE);
    }

    /// Lists the inode with its wb, which is that of `by` if it has none. The caller has just set
    /// `listed`, and still holds the state lock.
    pub(crate) fn list(self: &Arc<Self>, by: CgroupId) {
        self.core.bdi.mark_dirty(Arc::clone(self), by);
    }
}
