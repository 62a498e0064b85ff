//! Writing file data into the cache.

use std::sync::Arc;
use std::time::Duration;

use cgroups::CgroupId;
use store::{Access, Attr};
use sync::MutexGuard;
use sync::mutant::is_on;
use throttle::{OnLimit, Reservation};

use crate::handles::FileHandle;
use crate::inode::{Inode, Overlay, State};
use crate::io::page::{PAGE, PAGE_SIZE, Page};
use crate::privileges::SetId;
use crate::{Ctx, Error, HandleId, OpenFlags, Result, Volume, WriteFlags};

/// Bytes that are written under one reservation.
const CHUNK: usize = 1 << 20;

/// Pages read from the store for a write that covers them in part; at most two.
type Bases = Vec<(u64, Arc<Page>)>;

impl Volume {
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
        // For its own write-back the kernel does not check how much was taken.
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
        if self.core.options.write_through {
            // Accepted data is the store's, and not lost with this process.
            (ctx.before_wait)();
            let write = self.core.bdi.throttled_write(inode, u64::MAX, OnLimit::Wait);
            inode.writeout_all(&write, Some(ctx.cancel))?;
            inode.take_times_of_store();
        }
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

    fn writable(&self, handle: HandleId, flags: WriteFlags) -> Result<Arc<FileHandle>> {
        let file = self.files.get(handle)?;
        let allowed = file.flags.contains(OpenFlags::WRITE) || flags.contains(WriteFlags::KERNEL);
        if allowed { Ok(file) } else { Err(Error::NoHandle(handle)) }
    }
}

impl Inode {
    /// Writes at most `CHUNK` bytes into the cache.
    fn write(self: &Arc<Self>, ctx: &Ctx<'_>, by: CgroupId, offset: u64, data: &[u8]) -> Result<()> {
        let mut read_reservation = None;
        loop {
            if let Some(pause) = self.try_write(ctx, by, offset, data, &mut read_reservation)? {
                self.pause_writer(ctx, pause);
                return Ok(());
            }
        }
    }

    /// One attempt; says for how long the writer is to be slowed down. `None` if a page that was
    /// read for it is out of date already, or now is the `read_reservation` to read it.
    fn try_write<'a>(
        self: &'a Arc<Self>,
        ctx: &Ctx<'_>,
        by: CgroupId,
        offset: u64,
        data: &[u8],
        read_reservation: &mut Option<Reservation<'a>>,
    ) -> Result<Option<Duration>> {
        let end = offset + data.len() as u64;
        // Owned first: its owner's limits hold, and its bytes are counted.
        self.core.bdi.attach(self, by);
        let mut room = self.reserve(ctx, end.div_ceil(PAGE) - offset / PAGE)?;
        // The pages at both ends may be partly old.
        let mut bases = Bases::default();
        let mut state = self.begin_overlay()?;
        if state.overlay.is_some_and(|overlay| end > overlay.size) && end > state.promised {
            // Before the data is taken: a limit of the store's is held to here, not at write-back.
            let sizes_set = state.sizes_set;
            drop(state);
            let promised = self.core.store.promise_size(self.id, end)?;
            state = self.begin_overlay()?;
            if state.sizes_set != sizes_set {
                return Ok(None);
            }
            state.promised = state.promised.max(promised);
        }
        let changes = state.changes;
        let missing = state.partial(offset, end).count() as u64;
        if missing > 0 && read_reservation.is_none() && self.core.bdi.throttle().is_limiting() {
            drop(state);
            // A writer that waits for a limit holds no room that others need.
            drop(room);
            *read_reservation = Some(self.reserve_read(ctx, by, |_| (missing * PAGE, missing))?);
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
                if let Some(read_reservation) = read_reservation.take() {
                    read_reservation.commit(bases.len() as u64 * PAGE, bases.len() as u64);
                }
                return Ok(None);
            }
        }
        if let Some(read_reservation) = read_reservation.take() {
            read_reservation.commit(bases.len() as u64 * PAGE, bases.len() as u64);
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
