//! Reading and writing file data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cgroups::CgroupId;
use store::{Access, Attr};
use sync::MutexGuard;
use sync::mutant::is_on;
use throttle::{Completion, OnLimit, Reservation};
use writeback::{Balance, DirtyReservation, InLine, Permit, Waiter};

use crate::cancel::Event;
use crate::events::Limit;
use crate::handles::FileHandle;
use crate::inode::{Inode, Overlay, State};
use crate::page::{PAGE, PAGE_SIZE, Page};
use crate::privileges::SetId;
use crate::{Ctx, Error, HandleId, OpenFlags, Result, Volume, WriteFlags};

/// Bytes that are written under one reservation.
const CHUNK: usize = 1 << 20;

/// How long a writer that waits for room leaves it to others to write what a limit allows: twice as
/// long each time that others did, up to a bound.
const HELD_PAUSE: Duration = Duration::from_millis(1);
const HELD_PAUSE_MAX: Duration = Duration::from_millis(128);
/// Of the writers that wait for room, this many try to help as often as one alone would.
const HELPERS: usize = 16;

/// Room that a writer was given.
struct Room {
    /// Under its owner's limits. Dropped first: a writer that learns of the room in the cache finds
    /// this one as well.
    _reserved: Option<DirtyReservation>,
    /// In the cache.
    permit: Permit,
    /// For how long the writer is slowed down after it has written: before that, its room would be
    /// taken without any data in it to be written.
    pause: Duration,
}

/// Pages read from the store for a write that covers them in part; at most two.
type Bases = Vec<(u64, Arc<Page>)>;

impl Volume {
    /// Reads at `offset` into `buf`; says how many bytes, fewer than asked only at the end of the
    /// file.
    ///
    /// # Errors
    /// The store's, and [`Error::NoHandle`].
    pub fn read(&self, ctx: &Ctx<'_>, handle: HandleId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.readable(handle)?;
        file.inode.read(ctx, offset, buf)
    }

    /// Writes `data` at `offset` and says how much: all of it, or up to the store's largest file.
    ///
    /// Returns when the data is in the volume's cache, or durable with [`WriteFlags::DSYNC`] or
    /// [`WriteFlags::SYNC`]. Waits for room in the cache if its share of it is used up.
    ///
    /// # Errors
    /// [`Error::FileTooBig`] beyond the store's largest file, [`Error::Interrupted`] when the wait
    /// was cancelled, [`Error::Writeback`] when there is no room because this file's data cannot be
    /// written, and the store's.
    pub fn write(
        &self,
        ctx: &Ctx<'_>,
        handle: HandleId,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        let file = self.writable(handle, flags)?;
        let inode = &file.inode;
        // Data that the store cannot take could never be written back. So as much as fits is taken,
        // as write(2) does.
        let room = self.core.file_size_max.saturating_sub(offset);
        let fits = data.len() as u64 <= room;
        // For its own write-back the kernel does not look at how much was taken.
        if !fits && (room == 0 || flags.contains(WriteFlags::KERNEL)) {
            return Err(Error::FileTooBig);
        }
        let data = &data[..usize::try_from(room).unwrap_or(usize::MAX).min(data.len())];
        let end = offset + data.len() as u64;
        if self.core.store.is_read_only() {
            return Err(store::Error::new(store::ErrorKind::ReadOnly, "write").into());
        }
        let by = self.writer(ctx, &file, flags);
        inode.changing_data(set_id_on_write(inode, flags), || {
            let mut parts = data.chunks(CHUNK).enumerate();
            parts.try_for_each(|(n, part)| inode.write(ctx, by, offset + (n * CHUNK) as u64, part))
        })?;
        self.core.bdi.check_background(inode);
        tracing::trace!(node = inode.id.0, offset, end, "written");
        let durable = flags.intersects(WriteFlags::DSYNC | WriteFlags::SYNC)
            || file.flags.intersects(OpenFlags::DSYNC | OpenFlags::SYNC);
        if durable && !flags.contains(WriteFlags::KERNEL) {
            let data_only = !(flags.contains(WriteFlags::SYNC) || file.flags.contains(OpenFlags::SYNC));
            self.fsync_file(ctx, &file, data_only)?;
        }
        Ok(data.len())
    }

    /// The owner for which a write counts.
    fn writer(&self, ctx: &Ctx<'_>, file: &FileHandle, flags: WriteFlags) -> CgroupId {
        let tenants = &self.core.options.tenants;
        // The kernel's own write-back names no meaningful caller.
        let of_kernel = flags.contains(WriteFlags::KERNEL);
        let tenant = if of_kernel { None } else { tenants.of_caller(&ctx.caller) };
        let owner = self.core.bdi.owner_of(&file.inode);
        // Where there is an owner, a removed cgroup's write counts for no cgroup; a first owner has
        // to live.
        let tenant = tenant.filter(|tenant| owner.is_some() || tenants.is_living(*tenant));
        tenant.or(owner).unwrap_or_else(|| file.opener.nearest_living().id())
    }

    fn readable(&self, handle: HandleId) -> Result<Arc<FileHandle>> {
        // The kernel reads through any handle to fill the rest of a page that is partly written.
        self.files.get(handle)
    }

    fn writable(&self, handle: HandleId, flags: WriteFlags) -> Result<Arc<FileHandle>> {
        let file = self.files.get(handle)?;
        let allowed = file.flags.contains(OpenFlags::WRITE) || flags.contains(WriteFlags::KERNEL);
        if allowed { Ok(file) } else { Err(Error::NoHandle(handle)) }
    }
}

impl Inode {
    pub(crate) fn read(&self, ctx: &Ctx<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let last = (offset + buf.len() as u64 - 1) / PAGE;
        let (size, pages) = {
            let state = self.state();
            match state.overlay {
                None => (None, Vec::new()),
                Some(overlay) => {
                    let pages = state.cache.range(offset / PAGE, last);
                    (Some(overlay.size), pages.map(|(index, page)| (index, Arc::clone(page))).collect())
                }
            }
        };
        let Some(size) = size else {
            return self.read_store(ctx, buf, offset);
        };
        let wanted = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let buf = &mut buf[..wanted];
        if wanted == 0 {
            return Ok(0);
        }
        let covered = pages.len() as u64 == (offset + wanted as u64 - 1) / PAGE - offset / PAGE + 1;
        if !covered {
            let got = self.read_store(ctx, buf, offset)?;
            buf[got..].fill(0);
        }
        for (index, page) in &pages {
            copy_page(page, *index, offset, buf);
        }
        Ok(wanted)
    }

    /// Writes at most `CHUNK` bytes into the cache.
    fn write(self: &Arc<Self>, ctx: &Ctx<'_>, by: CgroupId, offset: u64, data: &[u8]) -> Result<()> {
        let mut turn = None;
        loop {
            if let Some(pause) = self.try_write(ctx, by, offset, data, &mut turn)? {
                self.slow_down(ctx, pause);
                return Ok(());
            }
        }
    }

    /// One attempt; says for how long the writer is to be slowed down. `None` if a page that was
    /// read for it is out of date already, or now is the `turn` to read it.
    fn try_write<'a>(
        self: &'a Arc<Self>,
        ctx: &Ctx<'_>,
        by: CgroupId,
        offset: u64,
        data: &[u8],
        turn: &mut Option<Reservation<'a>>,
    ) -> Result<Option<Duration>> {
        let end = offset + data.len() as u64;
        // Owned first: its owner's limits hold, and its bytes are counted.
        self.core.bdi.attach(self, by);
        let mut room = self.reserve(ctx, end.div_ceil(PAGE) - offset / PAGE)?;
        // The pages at both ends may be partly old.
        let mut bases = Bases::default();
        let mut state = self.begin_overlay()?;
        let changes = state.changes;
        let missing = state.partial(offset, end).count() as u64;
        if missing > 0 && turn.is_none() && self.core.bdi.throttle().is_limiting() {
            drop(state);
            // A writer that waits for a limit holds no room that others need.
            drop(room);
            *turn = Some(self.turn_to_read(ctx, by, |_| (missing * PAGE, missing))?);
            return Ok(None);
        }
        while let Some(index) = state.missing_base(offset, end, &bases) {
            drop(state);
            (ctx.before_wait)();
            bases.push((index, self.read_base(index)?));
            state = self.state();
            let is_old = state.changes != changes || state.overlay.is_none();
            if is_old && !is_on("volume-base-unchecked") {
                // The next attempt reads again, and has to wait again.
                if let Some(turn) = turn.take() {
                    turn.commit(bases.len() as u64 * PAGE, bases.len() as u64);
                }
                return Ok(None);
            }
        }
        if let Some(turn) = turn.take() {
            turn.commit(bases.len() as u64 * PAGE, bases.len() as u64);
        }
        let made = self.copy_in(&mut state, offset, data, &mut bases);
        // Reserved for every page that the write touches; no more can have been made.
        if let Some(used) = room.permit.split(made) {
            state.add_pages(used);
        }
        self.note_pages(&state);
        self.core.bdi.note_write(self, by, data.len() as u64);
        if !std::mem::replace(&mut state.listed, true) {
            // Before the lock is released: another writer that finds the file listed may be
            // followed by a sync.
            if is_on("volume-list-late") {
                drop(state);
            }
            self.list(by);
        }
        Ok(Some(room.pause))
    }

    /// Copies data into the cache; says how many pages that made.
    fn copy_in(&self, state: &mut State, offset: u64, data: &[u8], bases: &mut Bases) -> u64 {
        let (mut done, mut made) = (0, 0);
        let epoch = self.core.bdi.throttle().epoch();
        while done < data.len() {
            let at = offset + done as u64;
            let (index, within) = (at / PAGE, usize::try_from(at % PAGE).unwrap_or(0));
            let part = (PAGE_SIZE - within).min(data.len() - done);
            let base = bases.iter().position(|(i, _)| *i == index).map(|found| bases.swap_remove(found).1);
            made += u64::from(state.cache.write(
                &self.core.pool,
                index,
                within,
                &data[done..done + part],
                base,
                epoch,
            ));
            done += part;
        }
        let now = store::Timestamp::now();
        if let Some(overlay) = &mut state.overlay {
            overlay.size = overlay.size.max(offset + data.len() as u64);
            overlay.mtime = now;
            overlay.ctime = now;
            overlay.times_pending = true;
        }
        made
    }

    /// The state with an overlay, which is made from the store's attributes if there is none.
    fn begin_overlay(&self) -> Result<MutexGuard<'_, State>> {
        loop {
            let state = self.state();
            if state.overlay.is_some() {
                return Ok(state);
            }
            let changes = state.changes;
            drop(state);
            let attr = self.attr()?;
            let mut state = self.state();
            let is_new = state.changes == changes || is_on("volume-overlay-unchecked");
            if is_new && state.overlay.is_none() {
                state.overlay = Some(Overlay::from(&attr));
            }
            if state.overlay.is_some() {
                return Ok(state);
            }
        }
    }

    /// Reads the page that a partial write falls into.
    fn read_base(&self, index: u64) -> Result<Arc<Page>> {
        let mut page = self.core.pool.page();
        let bytes = Arc::get_mut(&mut page).ok_or(Error::Invalid("page of the pool"))?.bytes_mut();
        let got = self.file(Access::Read)?.read_at(bytes, index * PAGE)?;
        bytes[got..].fill(0);
        Ok(page)
    }

    /// Room for `pages` more pages, if there is, in the cache and under its owner's limits.
    fn take_room(&self, pages: u64) -> Option<Room> {
        let (balance, reserved) = self.core.bdi.reserve(self, pages);
        if balance == Balance::Blocked {
            return None;
        }
        // ORDERING: Relaxed, a figure for the threshold (see `note_pages`).
        let held = self.held.load(sync::atomic::Ordering::Relaxed);
        let permit = self.core.budget.try_take(pages, held)?;
        let pause = if let Balance::Pause(pause) = balance { pause } else { Duration::ZERO };
        Some(Room { _reserved: reserved, permit, pause })
    }

    /// Makes a writer wait whose cgroup comes near its limit.
    fn slow_down(&self, ctx: &Ctx<'_>, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        self.core.bdi.check_background(self);
        (ctx.before_wait)();
        self.core.counters.waits.add(1);
        let _waits = self.waits_for_limit(self.core.bdi.owner_of(self), Limit::DirtyMax);
        let event = Arc::new(Event::default());
        let _watch = ctx.cancel.watch(&event);
        event.wait(Some(Instant::now() + pause));
    }

    /// The number of the line that the writers share whose pages count for the same limits.
    fn line(&self) -> u64 {
        self.core.bdi.owner_of(self).map_or(CgroupId::ROOT.0, |owner| owner.0)
    }

    /// Room for `pages` more pages. Waits while this inode's share of the cache, or its owner's, is
    /// used up.
    fn reserve(self: &Arc<Self>, ctx: &Ctx<'_>, pages: u64) -> Result<Room> {
        // Data of the owner's that others waited for, and that it owes, counts as dirty still.
        if self.owes_until(pages).is_none()
            && let Some(room) = self.take_room(pages)
        {
            return Ok(room);
        }
        (ctx.before_wait)();
        self.core.counters.waits.add(1);
        // The first that applies: a debt of the owner's, its dirty limit, room.
        let limit = if self.owes_until(pages).is_some() {
            Some(Limit::IoMax)
        } else {
            self.core.bdi.is_at_dirty_limit(self, pages).then_some(Limit::DirtyMax)
        };
        let _waits = limit.map(|limit| self.waits_for_limit(self.core.bdi.owner_of(self), limit));
        let _waits_for_room = limit.is_none().then(|| self.core.events.waits_for_room());
        let event = Arc::new(Event::default());
        let _watch = ctx.cancel.watch(&event);
        let wake = {
            let event = Arc::clone(&event);
            Box::new(move || event.set())
        };
        // Each piece that is written would wake all writers that wait at their cgroup's limit,
        // whether or not it is room enough for any of them.
        let may_go = {
            let inode = Arc::clone(self);
            Box::new(move |promised: u64, at: InLine| {
                let owes = || at == InLine::Behind && inode.owes_until(pages + promised).is_some();
                inode.core.bdi.has_room(&inode, pages, promised) && !owes()
            })
        };
        let held = Arc::clone(&self.held);
        let waiter = Waiter { pages, held, may_go, wake };
        let queued = self.core.budget.queue(self.line(), waiter);
        if is_on("volume-reserve-once") {
            event.wait(None);
        }
        let look = |owed_until: &mut Option<Duration>| {
            queued.look(self.line(), || {
                *owed_until = self.owes_until(pages);
                if owed_until.is_none() { self.take_room(pages) } else { None }
            })
        };
        let (mut pause, mut wants_all) = (HELD_PAUSE, None);
        loop {
            let mut owed_until = None;
            if let Some(room) = look(&mut owed_until) {
                return Ok(room);
            }
            if ctx.cancel.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if self.core.is_forced() {
                return Err(Error::Released);
            }
            // Room under its own dirty limit comes from its cgroup's writing, which `may_go`
            // reports. Only a writer that waits for the cache needs the data of all cgroups
            // written, for as long as it waits.
            if owed_until.is_some() || self.core.bdi.is_at_dirty_limit(self, pages) {
                wants_all = None;
                self.core.bdi.check_background(self);
            } else {
                wants_all.get_or_insert_with(|| self.core.bdi.begin_room_wait());
            }
            let mut helps_at = None;
            // A writer that fills the cache helps to empty it, so that none depends on a flusher
            // that hangs in another file.
            if self.state().cache.dirty() > 0 {
                // Other waiting writers are called for room meanwhile: the store may not answer.
                queued.set_busy();
                // An attempt, also where the last one failed: the store may have recovered.
                let write = self.core.bdi.throttled_write(self, u64::MAX, OnLimit::Skip);
                match self.sweep(&write, None, true)? {
                    (_, pages) if pages > 0 => {
                        pause = HELD_PAUSE;
                        continue;
                    }
                    // Another thread writes what the limit allows: the more often that is so, the
                    // less a helper is needed.
                    (Completion::Throttled, _) => {
                        // A whole crowd together tries no more often than that many.
                        let crowds = u32::try_from(queued.in_line() / HELPERS).unwrap_or(u32::MAX);
                        helps_at = Some(write.ready_at() + pause * crowds.saturating_add(1));
                        pause = (pause * 2).min(HELD_PAUSE_MAX);
                    }
                    _ => {}
                }
                // No thread called this one meanwhile.
                if let Some(room) = look(&mut owed_until) {
                    return Ok(room);
                }
            }
            if let Some(kind) = self.state().failing {
                return Err(Error::Writeback(kind));
            }
            // A debt is paid by time, for which the first of the line wakes.
            let paid_at = owed_until.filter(|_| queued.is_first());
            let until = paid_at.into_iter().chain(helps_at).min();
            let now = self.core.options.clock.now();
            event.wait(until.map(|until| Instant::now() + until.saturating_sub(now)));
        }
    }
}

impl State {
    /// A page at one end of the write whose other bytes must be read first.
    fn missing_base(&self, offset: u64, end: u64, bases: &Bases) -> Option<u64> {
        let is_ready = |index: u64| bases.iter().any(|(base, _)| *base == index);
        self.partial(offset, end).find(|index| !is_ready(*index))
    }

    /// The pages at the ends of the write that it covers in part, and whose other bytes are on the
    /// store.
    fn partial(&self, offset: u64, end: u64) -> impl Iterator<Item = u64> {
        let (first, last) = (offset / PAGE, (end - 1) / PAGE);
        let ends = [Some(first), Some(last).filter(|last| *last != first)];
        ends.into_iter().flatten().filter(move |index| {
            let Some(overlay) = self.overlay else { return false };
            let start = index * PAGE;
            let covers = offset <= start && (end >= start + PAGE || end >= overlay.store_size);
            !covers && start < overlay.store_size && !self.cache.has(*index)
        })
    }
}

impl From<&Attr> for Overlay {
    fn from(attr: &Attr) -> Self {
        Self {
            size: attr.size,
            store_size: attr.size,
            mtime: attr.mtime,
            ctime: attr.ctime,
            times_pending: false,
        }
    }
}

/// The effect of a write on the set-id bits: for write(2) the kernel says it, for its own cache it
/// says nothing.
fn set_id_on_write(inode: &Inode, flags: WriteFlags) -> SetId<'static> {
    let of_kernel = flags.contains(WriteFlags::KERNEL);
    if flags.contains(WriteFlags::KILL_PRIV) || of_kernel && inode.state().foreign_mappers > 0 {
        SetId::Drop
    } else {
        SetId::Keep
    }
}

/// Copies the part of page `index` that lies in `buf`, which begins at `offset` of the file.
fn copy_page(page: &Page, index: u64, offset: u64, buf: &mut [u8]) {
    let start = index * PAGE;
    let from = offset.max(start);
    let until = (offset + buf.len() as u64).min(start + PAGE);
    if from >= until {
        return;
    }
    let place = |at: u64, base: u64| usize::try_from(at - base).unwrap_or(usize::MAX);
    let source = &page.bytes()[place(from, start)..place(until, start)];
    buf[place(from, offset)..place(until, offset)].copy_from_slice(source);
}
