//! Files: opening, closing, making durable, and operations on ranges.

use std::ffi::OsStr;
use std::sync::Arc;

use recovery::journal::request_in_hand;
use recovery::{OpenKind, OpenRecord};
use store::{Access, AllocateMode, Attr, Created, Creator, Entry, ErrorKind, Name, Seek, SetAttr};
use sync::Mutex;

use crate::handles::FileHandle;
use crate::inode::{Inode, Io};
use crate::privileges::SetId;
use crate::tenants::TenantOf;
use crate::{Caller, Ctx, Error, HandleId, NodeId, OpenFlags, Result, Volume};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

impl Volume {
    /// Makes and opens a file. The entry carries a look-up.
    ///
    /// # Errors
    /// The store's. If the name exists, [`ErrorKind::Exists`] with `EXCLUSIVE`, else
    /// [`ErrorKind::Stale`]: the caller then looks it up, checks permissions, and opens it.
    pub fn create(
        &self,
        ctx: &Ctx<'_>,
        parent: NodeId,
        name: &OsStr,
        perm: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, HandleId)> {
        let made = self.core.store.create(parent, Name::new(name)?, perm, creator(ctx.caller));
        match made {
            Ok(created) => {
                let (entry, opening) = self.open_created(ctx, created);
                Ok((entry, opening.finish(ctx, flags)))
            }
            // Another caller made it since this one checked. It has not been checked yet whether
            // this caller may open that file, so the caller has to check again.
            Err(error) if error.kind() == ErrorKind::Exists && !flags.contains(OpenFlags::EXCLUSIVE) => {
                Err(store::Error::new(ErrorKind::Stale, "create").into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes and opens a file without a name in the file system of `parent`. The entry carries a
    /// look-up.
    ///
    /// # Errors
    /// The store's.
    pub fn tmpfile(
        &self,
        ctx: &Ctx<'_>,
        parent: NodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, HandleId)> {
        let created = self.core.store.tmpfile(parent, perm, creator(ctx.caller))?;
        let (entry, opening) = self.open_created(ctx, created);
        // Before the opening is noted: a server that finds it noted finds the data as well.
        self.keep_data(opening.inode());
        Ok((entry, opening.finish(ctx, flags)))
    }

    fn open_created(&self, ctx: &Ctx<'_>, created: Created) -> (Entry, Opening<'_>) {
        let (entry, inode) = self.know(created.entry);
        self.note_metadata(&ctx.caller);
        // Counted first, so that a thread that finds the name does not close the data in between.
        inode.state().opens += 1;
        inode.set_file(Access::ReadWrite, &created.file);
        (entry, Opening { volume: self, inode: Some(inode) })
    }

    /// Opens a file.
    ///
    /// # Errors
    /// The store's; [`Error::NoNode`].
    pub fn open(&self, ctx: &Ctx<'_>, id: NodeId, flags: OpenFlags) -> Result<HandleId> {
        let inode = self.inode(id)?;
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        if writes && self.core.store.is_read_only() {
            return Err(store::Error::new(ErrorKind::ReadOnly, "open").into());
        }
        // Counted before the store is asked, so that no thread closes the data in between.
        let lost_name = {
            let mut state = inode.state();
            state.opens += 1;
            state.lost_name
        };
        let opening = Opening { volume: self, inode: Some(inode) };
        opening.inode().file(if writes { Access::ReadWrite } else { Access::Read })?;
        if lost_name {
            self.keep_data(opening.inode());
        }
        if flags.contains(OpenFlags::TRUNCATE) {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            self.set_attr(ctx, id, &set, flags.contains(OpenFlags::KILL_PRIV))?;
        }
        Ok(opening.finish(ctx, flags))
    }

    /// One descriptor of an open file was closed: reports a write-back error that this opening has
    /// not reported. Writes the file's data first if the options say so, or if more closed files
    /// wait for write-back than the store should keep open.
    ///
    /// # Errors
    /// [`Error::Writeback`]; [`Error::NoHandle`].
    pub fn flush(&self, ctx: &Ctx<'_>, handle: HandleId) -> Result<()> {
        let file = self.files.get(handle)?;
        let must_write =
            self.core.options.flush_on_close || self.core.bdi.dirty_inodes() > self.core.idle_files_max;
        if must_write && file.inode.state().cache.held() > 0 {
            (ctx.before_wait)();
            let _ = self.writeout_file(ctx, &file.inode);
        }
        file.report()
    }

    /// The last descriptor was closed. Unwritten data stays and will be written.
    pub fn release(&self, handle: HandleId) {
        if let Some(file) = self.files.remove(handle) {
            self.core.note_closed(file.noted);
            file.closed();
            self.core.release(&file.inode);
        }
    }

    /// [`release`](Self::release) where the caller is not to wait for the store: a thread of the
    /// volume's own asks it.
    pub fn release_later(&self, handle: HandleId) {
        if let Some(file) = self.files.remove(handle) {
            self.core.note_closed(file.noted);
            file.closed();
            self.core.defer_inode(&file.inode);
        }
    }

    fn close_inode(&self, inode: &Arc<Inode>) {
        inode.state().opens -= 1;
        self.core.release(inode);
    }

    /// Makes the file durable: its data, size and name; with `data_only` not its other attributes.
    ///
    /// # Errors
    /// A write-back error since this opening last reported one, this call's own included.
    pub fn fsync(&self, ctx: &Ctx<'_>, handle: HandleId, data_only: bool) -> Result<()> {
        let file = self.files.get(handle)?;
        self.fsync_file(ctx, &file, data_only)
    }

    pub(crate) fn fsync_file(&self, ctx: &Ctx<'_>, file: &FileHandle, data_only: bool) -> Result<()> {
        (ctx.before_wait)();
        // Both record their errors, which `report` then returns.
        let synced = self.writeout_file(ctx, &file.inode).and_then(|()| file.inode.make_durable(data_only));
        match synced {
            Err(error @ (Error::Interrupted | Error::Released)) => Err(error),
            _ => file.report(),
        }
    }

    /// Writes now what is dirty of a file, whichever caller dirtied it, and waits for no limit but
    /// those that the caller is under.
    fn writeout_file(&self, ctx: &Ctx<'_>, inode: &Arc<Inode>) -> Result<()> {
        let caller = TenantOf { tenants: &self.core.options.tenants, caller: ctx.caller };
        let syncing = self.core.bdi.begin_fsync(&caller, self.core.options.sync_policy, inode);
        inode.writeout_all(&syncing.throttled_write(inode), Some(ctx.cancel))
    }

    /// Allocates, zeroes or punches a range.
    ///
    /// # Errors
    /// The store's; [`Error::FileTooBig`].
    pub fn allocate(
        &self,
        ctx: &Ctx<'_>,
        handle: HandleId,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let file = self.files.get(handle)?;
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        end.ok_or(Error::FileTooBig)?;
        (ctx.before_wait)();
        let inode = &file.inode;
        inode.changing_data(SetId::DropUnlessAllowed(&ctx.caller), || {
            let io = inode.io();
            inode.write_pages(&io)?;
            let done = inode.file(Access::ReadWrite)?.allocate(mode, offset, len);
            // A part of it may be done also when it failed.
            inode.changed_on_store(&io)?;
            self.note_metadata(&ctx.caller);
            Ok(done?)
        })
    }

    /// Where the next data or hole begins.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchAddress`] beyond the end.
    pub fn seek(&self, ctx: &Ctx<'_>, handle: HandleId, what: Seek, offset: u64) -> Result<u64> {
        let file = self.files.get(handle)?;
        file.inode.write_out(ctx)?;
        Ok(file.inode.file(Access::Read)?.seek(what, offset)?)
    }

    /// Copies up to `len` bytes between two files, inside the store; says how many.
    ///
    /// # Errors
    /// The store's; on [`ErrorKind::Unsupported`] and [`ErrorKind::CrossDevice`] the caller has to
    /// copy the data itself.
    pub fn copy_range(
        &self,
        ctx: &Ctx<'_>,
        (src, src_offset): (HandleId, u64),
        (dst, dst_offset): (HandleId, u64),
        len: u64,
    ) -> Result<u64> {
        let (src, dst) = (self.files.get(src)?, self.files.get(dst)?);
        (ctx.before_wait)();
        src.inode.write_out(ctx)?;
        dst.inode.changing_data(SetId::DropUnlessAllowed(&ctx.caller), || {
            let io = dst.inode.io();
            dst.inode.write_pages(&io)?;
            let (from, to) = (src.inode.id, dst.inode.id);
            let copied = self.core.store.copy_range(from, src_offset, to, dst_offset, len);
            if let Ok(bytes) = &copied {
                self.core.counters.bytes_copied.add(*bytes);
            }
            dst.inode.changed_on_store(&io)?;
            self.note_metadata(&ctx.caller);
            Ok(copied?)
        })
    }

    /// Changes attributes, and returns the new ones. `kill_priv`: drop the set-id bits and
    /// capabilities.
    ///
    /// # Errors
    /// The store's; [`Error::NoNode`].
    pub fn set_attr(&self, ctx: &Ctx<'_>, id: NodeId, set: &SetAttr, kill_priv: bool) -> Result<Attr> {
        let inode = self.inode(id)?;
        let change = || match set.size {
            None => inode.set_attr(set),
            Some(size) => inode.set_size(ctx, set, size),
        };
        let changed = if set.perm.is_some() || set.uid.is_some() || set.gid.is_some() {
            if set.perm.is_some_and(|perm| perm & SET_ID != 0) {
                inode.write_before_giving(ctx);
            }
            if kill_priv {
                inode.drop_privileges(SetId::Drop)?;
            }
            inode.giving_privileges(change)?
        } else if kill_priv {
            inode.changing_data(SetId::Drop, change)?
        } else {
            change()?
        };
        self.note_metadata(&ctx.caller);
        Ok(changed)
    }
}

/// An inode that counts one opening more, until the handle is made or the opening failed.
struct Opening<'a> {
    volume: &'a Volume,
    inode: Option<Arc<Inode>>,
}

impl Opening<'_> {
    fn inode(&self) -> &Arc<Inode> {
        self.inode.as_ref().expect("present until finished")
    }

    fn finish(mut self, ctx: &Ctx<'_>, flags: OpenFlags) -> HandleId {
        let inode = self.inode.take().expect("finished once");
        let seen = Mutex::new(inode.errors.sample());
        // Asked only where it may be needed: a look-up of the cgroup costs a new thread more than
        // an opening.
        let writes = flags.contains(OpenFlags::WRITE);
        let tenants = &self.volume.core.options.tenants;
        let tenant = writes.then(|| tenants.of_caller(&ctx.caller)).flatten();
        let opener = tenants.cgroup_of(tenant);
        let is_foreign_mapper = flags.contains(OpenFlags::MAPPABLE) && ctx.caller.uid != 0;
        if is_foreign_mapper {
            inode.state().foreign_mappers += 1;
        }
        let opener_pid = ctx.caller.pid;
        self.volume.files.add(|handle| {
            let noted = self.volume.core.note_open(&OpenRecord {
                kind: OpenKind::File,
                handle: handle.0,
                node: inode.id.0,
                flags: flags.bits(),
                is_foreign_mapper,
                opener_pid,
                request: request_in_hand(),
            });
            FileHandle { inode, flags, is_foreign_mapper, opener_pid, opener, seen, noted }
        })
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(inode) = self.inode.take() {
            self.volume.close_inode(&inode);
        }
    }
}

impl FileHandle {
    /// It is no opening of the inode any more.
    fn closed(&self) {
        let mut state = self.inode.state();
        state.opens -= 1;
        state.foreign_mappers -= u64::from(self.is_foreign_mapper);
    }

    /// A write-back error that this opening has not reported yet.
    fn report(&self) -> Result<()> {
        let mut seen = self.seen.lock();
        match self.inode.errors.check_and_advance(&mut seen) {
            Some(kind) => Err(Error::Writeback(kind)),
            None => Ok(()),
        }
    }
}

impl Inode {
    /// Makes written data durable. Errors are recorded for every open file.
    pub(crate) fn make_durable(self: &Arc<Self>, data_only: bool) -> Result<()> {
        if let Err(error) = self.core.settle_inherited() {
            return Err(self.record(error));
        }
        // The thread that writes the last of it at this moment holds this lock.
        let io = self.io();
        if !data_only {
            self.write_times(&io)?;
        }
        drop(io);
        let synced = match self.file(Access::Read) {
            Ok(file) => file.sync(data_only),
            Err(Error::Store(error)) => Err(error),
            Err(other) => return Err(other),
        };
        synced.map_err(|error| self.record(error))
    }

    /// Brings the store up to date for an operation that reads from it next.
    fn write_out(self: &Arc<Self>, ctx: &Ctx<'_>) -> Result<()> {
        if self.state().cache.held() == 0 {
            return Ok(());
        }
        (ctx.before_wait)();
        self.writeout_all(&self.unthrottled_write(), None)
    }

    /// Writes what is dirty before the file gets set-id bits or capabilities: the host takes them
    /// away from a file that is written, and older data must not cause that. An error is kept for
    /// the file's own fsync and close.
    pub(crate) fn write_before_giving(self: &Arc<Self>, ctx: &Ctx<'_>) {
        let _recorded = self.write_out(ctx);
    }

    fn set_attr(&self, set: &SetAttr) -> Result<Attr> {
        loop {
            let changes = self.state().changes;
            let mut attr = self.core.store.set_attr(self.id, set)?;
            let mut state = self.state();
            if let Some(overlay) = &mut state.overlay {
                overlay.ctime = attr.ctime;
                if set.mtime.is_some() {
                    overlay.mtime = attr.mtime;
                }
            } else if set.mtime.is_some() && state.changes != changes {
                // A write-back that ended meanwhile may have put its own time over this one.
                continue;
            }
            state.apply(&mut attr);
            return Ok(attr);
        }
    }

    fn set_size(&self, ctx: &Ctx<'_>, set: &SetAttr, size: u64) -> Result<Attr> {
        let io = self.try_io().unwrap_or_else(|| {
            (ctx.before_wait)();
            self.io()
        });
        self.set_size_locked(&io, set, size)
    }

    fn set_size_locked(&self, _io: &Io<'_>, set: &SetAttr, size: u64) -> Result<Attr> {
        let mut attr = self.core.store.set_attr(self.id, set)?;
        let (gone, permit) = {
            let mut state = self.state();
            let gone = state.cache.truncate(&self.core.pool, size);
            let permit = state.remove_pages(gone.len());
            state.changes += 1;
            state.sizes_set += 1;
            if state.promised < u64::MAX {
                state.promised = size;
            }
            if let Some(overlay) = &mut state.overlay {
                overlay.size = size;
                overlay.store_size = size;
                overlay.mtime = attr.mtime;
                overlay.ctime = attr.ctime;
            }
            state.apply(&mut attr);
            self.note_pages(&state);
            (gone, permit)
        };
        self.core.pool.recycle(gone);
        drop(permit);
        Ok(attr)
    }

    /// The store's content was changed around the cache.
    fn changed_on_store(&self, _io: &Io<'_>) -> Result<()> {
        let attr = self.core.store.attr(self.id)?;
        let mut state = self.state();
        state.changes += 1;
        if let Some(overlay) = &mut state.overlay {
            overlay.size = overlay.size.max(attr.size);
            overlay.store_size = overlay.store_size.max(attr.size);
            overlay.mtime = attr.mtime;
            overlay.ctime = attr.ctime;
        }
        Ok(())
    }
}

pub(crate) fn creator(caller: Caller) -> Creator {
    Creator { uid: caller.uid, gid: caller.gid, umask: caller.umask }
}
