//! Writes an inode's pages, and reads them from the store, as its tenant's limits allow.
//!
//! A thread that waits for a limit does not hold the inode's `io` lock: it is taken for one run of
//! pages at a time. So a sync from another cgroup, which need not wait, finds it free.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cgroups::CgroupId;
use store::ErrorKind;
use sync::accounting;
use throttle::{
    CgroupPath, ChunkSource, Completion, Direction, Grant, OnLimit, Request, Reservation, ThrottledWrite,
};

use crate::cancel::{Cancel, CancelGuard, WakeEvent};
use crate::events::{Limit, WaitsForLimit};
use crate::inode::{Inode, Io};
use crate::io::page::PAGE;
use crate::{Ctx, Error, Result};

/// Bytes that a cgroup may owe and have dirty together, as a part of the cache: as much as one
/// heavy writer may have dirty.
const OWED_MAX: u64 = 4;
const OWED_OF: u64 = 5;

/// Writes an inode's dirty pages once, from the first to the last.
struct Writeout<'a> {
    inode: &'a Arc<Inode>,
    cancel: Option<&'a Cancel>,
    /// The `io` lock is not waited for.
    try_lock: bool,
    event: Arc<WakeEvent>,
    next: u64,
    pages: u64,
    took: Duration,
}

impl ChunkSource for Writeout<'_> {
    type Error = Error;

    fn left(&self, epoch: u64) -> u64 {
        self.inode.state().cache.dirty_since(epoch) * PAGE
    }

    fn write(&mut self, epoch: u64, bytes: u64) -> Result<u64> {
        let io = if self.try_lock {
            let Some(io) = self.inode.try_io() else { return Ok(0) };
            io
        } else {
            self.inode.io()
        };
        let pages = usize::try_from((bytes / PAGE).max(1)).unwrap_or(usize::MAX);
        let Some(run) = self.inode.take_run(self.next, pages, epoch) else { return Ok(0) };
        let count = run.pages.len() as u64;
        self.next = run.first + count;
        let clock = &self.inode.core.options.clock;
        let begun = clock.now();
        self.inode.write_run(&io, run)?;
        self.pages += count;
        self.took += clock.now().saturating_sub(begun);
        Ok(count * PAGE)
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let event = Arc::clone(&self.event);
        Arc::new(move || event.set())
    }

    fn sleep(&mut self, until: Duration) -> bool {
        let core = &self.inode.core;
        let is_over = || core.is_aborted() || self.cancel.is_some_and(Cancel::is_cancelled);
        if is_over() {
            return false;
        }
        let _watch: Option<CancelGuard<'_>> = self.cancel.map(|cancel| cancel.watch(&self.event));
        let left = until.saturating_sub(core.options.clock.now());
        let _waits = self.inode.waits_for_limit(core.bdi.owner_of(self.inode), Limit::IoMax);
        // The limit lets a chunk go at that time; the caller waits for all of the file.
        accounting::expect(None, Some(self.left(u64::MAX)));
        self.event.wait(Some(Instant::now() + left));
        !is_over()
    }
}

impl Inode {
    /// Writes the pages that are dirty since the epoch of `write` or before, as one round of the
    /// decision which owner the inode should have. The caller does not have the `io` lock. Returns
    /// how it ended, and how many pages were written.
    ///
    /// An error is recorded for every open file and the data stays, dirty.
    pub(crate) fn writeout(
        self: &Arc<Self>,
        write: &ThrottledWrite<'_>,
        cancel: Option<&Cancel>,
        try_lock: bool,
    ) -> Result<(Completion, u64)> {
        let mut writeout = Writeout {
            inode: self,
            cancel,
            try_lock,
            event: Arc::default(),
            next: 0,
            pages: 0,
            took: Duration::ZERO,
        };
        let result = write.run(&mut writeout);
        self.end_round(writeout.pages, writeout.took);
        Ok((result?, writeout.pages))
    }

    /// Writes the pages that are dirty since the epoch of `write` or before, and waits for its
    /// limits, and for other threads that write some of them already.
    pub(crate) fn writeout_all(
        self: &Arc<Self>,
        write: &ThrottledWrite<'_>,
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        loop {
            match self.writeout(write, cancel, false)?.0 {
                Completion::Done => {}
                Completion::Throttled | Completion::Aborted if self.core.is_aborted() => {
                    return Err(Error::Released);
                }
                Completion::Throttled | Completion::Aborted => return Err(Error::Interrupted),
            }
            // A thread that wrote a part of it meanwhile holds this lock. If that failed the data
            // is here again: this call tries it, and reports the error.
            let _nobody_writes = self.io();
            let state = self.state();
            if state.failing.is_none() || !state.cache.is_dirty_since(write.epoch()) {
                return Ok(());
            }
        }
    }

    /// Writes the pages that are dirty at this moment for a caller that has the `io` lock, and so
    /// must not wait: the written bytes are owed.
    pub(crate) fn write_pages(self: &Arc<Self>, io: &Io<'_>) -> Result<()> {
        let clock = &self.core.options.clock;
        let begun = clock.now();
        let (mut next, mut pages, mut result) = (0, 0, Ok(()));
        while let Some(run) = self.take_run(next, usize::MAX, u64::MAX) {
            let count = run.pages.len() as u64;
            next = run.first + count;
            self.core.bdi.charge(self, count * PAGE);
            result = self.write_run(io, run);
            if result.is_err() {
                break;
            }
            pages += count;
        }
        self.end_round(pages, clock.now().saturating_sub(begun));
        result
    }

    fn end_round(self: &Arc<Self>, pages: u64, took: Duration) {
        if pages > 0 {
            self.core.bdi.end_round(self, pages * PAGE, took);
        }
    }

    /// A write that waits for nothing: the written bytes are owed.
    pub(crate) fn unthrottled_write(&self) -> ThrottledWrite<'_> {
        self.core.bdi.throttled_write(self, u64::MAX, OnLimit::Charge)
    }

    /// Reads from the store as fast as the caller's limits allow.
    pub(crate) fn read_store(&self, ctx: &Ctx<'_>, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = self.read_within_limits(ctx, buf, offset);
        if let Err(Error::Store(error)) = &read
            && error.kind() == ErrorKind::Io
        {
            self.record_failed_read(offset, error);
        }
        read
    }

    /// Counts a read that the store has failed, and logs it unless the log has enough of its file. A
    /// volume that was given up fails its reads itself: these are only logged.
    fn record_failed_read(&self, offset: u64, error: &store::Error) {
        if !self.core.is_aborted() {
            self.core.counters.read_errors.add(1);
        }
        let now = self.core.options.clock.now();
        let Some(left_out) = self.core.failed_reads.note(self.id, offset, now) else { return };
        let path = self.core.store.path_of(self.id);
        let (volume, path) =
            (self.core.options.name.as_str(), path.as_ref().map(|path| path.to_string_lossy()));
        let (node, path) = (self.id.0, path.as_deref());
        tracing::error!(volume, node, path, offset, %error, left_out, "a read failed");
    }

    fn read_within_limits(&self, ctx: &Ctx<'_>, buf: &mut [u8], offset: u64) -> Result<usize> {
        let file = self.file(store::Access::Read)?;
        let bdi = &self.core.bdi;
        if !bdi.throttle().is_limiting() {
            return Ok(file.read_at(buf, offset)?);
        }
        let reader = self.core.options.tenants.of_caller(&ctx.caller);
        let Some(reader) = reader.or_else(|| bdi.owner_of(self)) else {
            return Ok(file.read_at(buf, offset)?);
        };
        let mut done = 0;
        while done < buf.len() {
            let left = (buf.len() - done) as u64;
            let reservation = self.reserve_read(ctx, reader, |piece| (left.min(piece), 1))?;
            let part = usize::try_from(reservation.request().bytes).unwrap_or(usize::MAX);
            let got = file.read_at(&mut buf[done..done + part], offset + done as u64);
            let read = *got.as_ref().unwrap_or(&0);
            reservation.commit(read as u64, 1);
            got?;
            done += read;
            if read < part {
                break;
            }
        }
        Ok(done)
    }

    /// Waits until the limits of `reader` let it read as many bytes, in as many calls, as `amount`
    /// makes of the most that should be asked for at once.
    pub(crate) fn reserve_read(
        &self,
        ctx: &Ctx<'_>,
        reader: CgroupId,
        amount: impl Fn(u64) -> (u64, u64),
    ) -> Result<Reservation<'_>> {
        let bdi = &self.core.bdi;
        loop {
            let chain = bdi.chain_of_owner(reader);
            let asked =
                Request { direction: Direction::Read, bytes: 0, operations: 1, epoch: u64::MAX, inode: 0 };
            let (bytes, operations) = amount(chain.chunk_size(&asked));
            let reservation = bdi.throttle().reserve(&chain, Request { bytes, operations, ..asked });
            if reservation.grant() == Grant::Now {
                return Ok(reservation);
            }
            let _waits = self.waits_for_limit(Some(reader), Limit::IoMax);
            if self.wait_for(ctx, &reservation)? {
                return Ok(reservation);
            }
        }
    }

    /// Until when a writer has to wait because the file's owner would owe as much as it may have
    /// dirty, with `more` pages.
    pub(crate) fn owes_until(&self, more: u64) -> Option<Duration> {
        let cache_bytes = self.core.budget.limit() * OWED_MAX / OWED_OF * PAGE;
        self.core.bdi.owes_until(self, more * PAGE, cache_bytes)
    }

    /// A thread waits for a limit of `owner`, until the guard is dropped.
    pub(crate) fn waits_for_limit(&self, owner: Option<CgroupId>, limit: Limit) -> WaitsForLimit<'_> {
        let tenants = &self.core.options.tenants;
        let path = owner.map_or_else(CgroupPath::root, |owner| tenants.path(owner));
        self.core.events.waits_for_limit(path.to_string().into(), limit)
    }

    /// Waits for a reservation's grant; `false` if limits were changed.
    fn wait_for(&self, ctx: &Ctx<'_>, reservation: &Reservation<'_>) -> Result<bool> {
        (ctx.before_wait)();
        let event = Arc::new(WakeEvent::default());
        let _watch = ctx.cancel.watch(&event);
        let wake = Arc::clone(&event);
        let _listening = self.core.bdi.throttle().listen(Arc::new(move || wake.set()));
        loop {
            let until = match reservation.grant() {
                Grant::Now => return Ok(true),
                Grant::Stale => return Ok(false),
                Grant::NotBefore(until) => until,
            };
            if ctx.cancel.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if self.core.is_aborted() {
                return Err(Error::Released);
            }
            let left = until.saturating_sub(self.core.options.clock.now());
            let until = Instant::now() + left;
            accounting::expect(Some(until), None);
            event.wait(Some(until));
        }
    }
}
