//! Names, attributes and directories, which pass through to the store.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use recovery::journal::request_in_hand;
use recovery::{OpenKind, OpenRecord};
use store::{Attr, DirEntry, Entry, Name, NewNode, RenameFlags, SetXattr, StatFs};

use sync::mutant::is_on;

use crate::files::creator;
use crate::handles::DirHandle;
use crate::inode::Inode;
use crate::privileges::gives_privileges;
use crate::{Ctx, Error, HandleId, NodeId, Result, Volume};

impl Volume {
    /// Finds `name` in `parent`. The entry carries a look-up.
    ///
    /// # Errors
    /// The store's.
    pub fn lookup(&self, parent: NodeId, name: &OsStr) -> Result<Entry> {
        let settled = self.core.settled();
        let entry = self.core.store.lookup(parent, Name::new(name)?)?;
        let (mut entry, inode) = self.know(entry);
        // The inode may have been written and forgotten between the store's answer and this check.
        if settled != self.core.settled()
            && !is_on("volume-lookup-unchecked")
            && entry.attr.kind == store::FileType::Regular
            && let Ok(attr) = inode.attr()
        {
            entry.attr = attr;
        }
        Ok(entry)
    }

    /// The entry of `id`, on which the caller has a look-up (the root needs none). The entry
    /// carries another one.
    ///
    /// # Errors
    /// The store's; [`Error::NoNode`].
    pub fn look_up_again(&self, id: NodeId) -> Result<Entry> {
        let inode = self.inode(id)?;
        inode.add_lookup();
        match inode.attr() {
            Ok(attr) => Ok(Entry { id, attr, generation: self.core.store.generation(id) }),
            Err(error) => {
                self.forget(id, 1);
                Err(error)
            }
        }
    }

    /// The entry of `id`, on which the caller may have given all look-ups back, in this volume or
    /// in one before over the same store: see [`Store::recall`](store::Store::recall). The entry
    /// carries a look-up.
    ///
    /// # Errors
    /// The store's; stale if there is none.
    pub fn recall(&self, id: NodeId) -> Result<Entry> {
        Ok(self.know(self.core.store.recall(id)?).0)
    }

    /// The directory that the directory `id` is in. The entry carries a look-up.
    ///
    /// # Errors
    /// As [`recall`](Self::recall).
    pub fn recall_parent(&self, id: NodeId) -> Result<Entry> {
        Ok(self.know(self.core.store.recall_parent(id)?).0)
    }

    /// The path of `id`, relative to the root, for people; `None` if the store cannot say.
    #[must_use]
    pub fn path_of(&self, id: NodeId) -> Option<std::path::PathBuf> {
        self.core.store.path_of(id)
    }

    /// Whether more files and directories are known than [`Options::nodes_max`](crate::Options::nodes_max).
    #[must_use]
    pub fn has_surplus(&self) -> bool {
        self.core.table.has_surplus(self.core.options.nodes_max)
    }

    /// Some of those that have been known for longest and that nobody uses, if there is a surplus: the
    /// front end does well to forget them. Each call names others.
    #[must_use]
    pub fn name_surplus(&self) -> Vec<NodeId> {
        self.core.table.name_surplus(self.core.options.nodes_max)
    }

    /// Gives `n` look-ups on `id` back.
    pub fn forget(&self, id: NodeId, n: u64) {
        if let Some(inode) = self.given_back(id, n) {
            self.core.release_lookups(&inode);
        }
    }

    /// [`forget`](Self::forget) where the caller is not to wait for the store: a thread of the
    /// volume's own asks it.
    pub fn forget_later(&self, id: NodeId, n: u64) {
        if let Some(inode) = self.given_back(id, n) {
            self.core.defer_inode(&inode);
        }
    }

    fn given_back(&self, id: NodeId, n: u64) -> Option<Arc<Inode>> {
        let inode = self.core.table.get(id)?;
        let mut state = inode.state();
        state.lookups = state.lookups.saturating_sub(n);
        inode.note_lookups(&state);
        drop(state);
        Some(inode)
    }

    /// The attributes of `id`.
    ///
    /// # Errors
    /// The store's; [`Error::NoNode`].
    pub fn attr(&self, id: NodeId) -> Result<Attr> {
        self.inode(id)?.attr()
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The store's.
    pub fn read_link(&self, id: NodeId) -> Result<OsString> {
        Ok(self.core.store.read_link(id)?)
    }

    /// Makes a directory, symbolic link, device, fifo, socket or empty file. The entry carries a
    /// look-up.
    ///
    /// # Errors
    /// The store's.
    pub fn make(
        &self,
        ctx: &Ctx<'_>,
        parent: NodeId,
        name: &OsStr,
        what: NewNode<'_>,
        perm: u32,
    ) -> Result<Entry> {
        let entry = self.core.store.make(parent, Name::new(name)?, what, perm, creator(ctx.caller))?;
        self.note_metadata(&ctx.caller);
        Ok(self.know(entry).0)
    }

    /// Removes a name of something that is no directory.
    ///
    /// # Errors
    /// The store's.
    pub fn unlink(&self, ctx: &Ctx<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        self.keep_open_data(parent, name);
        self.core.store.unlink(parent, Name::new(name)?)?;
        self.note_metadata(&ctx.caller);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The store's.
    pub fn rmdir(&self, ctx: &Ctx<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        self.core.store.rmdir(parent, Name::new(name)?)?;
        self.note_metadata(&ctx.caller);
        Ok(())
    }

    /// Moves a name, as renameat2(2).
    ///
    /// # Errors
    /// The store's.
    pub fn rename(
        &self,
        ctx: &Ctx<'_>,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<()> {
        let (name, new_name) = (Name::new(name)?, Name::new(new_name)?);
        if flags.is_empty() {
            self.write_before_replacing(ctx, (parent, name), (new_parent, new_name));
        }
        if !flags.contains(RenameFlags::EXCHANGE) {
            self.keep_open_data(new_parent, new_name.as_os_str());
        }
        self.core.store.rename(parent, name, new_parent, new_name, flags)?;
        self.note_metadata(&ctx.caller);
        Ok(())
    }

    /// Writes the file `from` if it is about to replace `to`, so that a crash of this process
    /// leaves the old content or the new one under that name, and not an empty file. It is not
    /// synced: fsync(2) is there for a crash of the host. An error is kept for the file's own fsync
    /// and close.
    fn write_before_replacing(&self, ctx: &Ctx<'_>, from: (NodeId, Name<'_>), to: (NodeId, Name<'_>)) {
        let find = |(parent, name): (NodeId, Name<'_>)| {
            let found = self.core.store.lookup(parent, name).ok()?;
            self.core.store.forget(found.id, 1);
            self.core.table.get(found.id)
        };
        if self.core.budget.used() == 0 || find(to).is_none() {
            return;
        }
        if let Some(inode) = find(from)
            && inode.state().cache.held() > 0
        {
            (ctx.before_wait)();
            let _recorded = inode.write_for_sync(&inode.unthrottled_write(), None);
        }
    }

    /// Gives `id` another name. The entry carries a look-up.
    ///
    /// # Errors
    /// The store's.
    pub fn link(&self, ctx: &Ctx<'_>, id: NodeId, parent: NodeId, name: &OsStr) -> Result<Entry> {
        let entry = self.core.store.link(id, parent, Name::new(name)?)?;
        self.note_change(id, entry.attr.ctime);
        self.note_metadata(&ctx.caller);
        Ok(self.know(entry).0)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// The store's.
    pub fn open_dir(&self, ctx: &Ctx<'_>, id: NodeId) -> Result<HandleId> {
        let dir = self.core.store.open_dir(id)?;
        let opener_pid = ctx.caller.pid;
        Ok(self.dirs.add(|handle| {
            let noted = self.core.note_open(&OpenRecord {
                kind: OpenKind::Dir,
                handle: handle.0,
                node: id.0,
                flags: 0,
                is_foreign_mapper: false,
                opener_pid,
                request: request_in_hand(),
            });
            DirHandle { id, dir, opener_pid, noted }
        }))
    }

    /// Lists a directory from `offset` on until `sink` says `false`.
    ///
    /// # Errors
    /// The store's; [`Error::NoHandle`].
    pub fn list(&self, handle: HandleId, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let dir = self.dirs.get(handle)?;
        let Some(slot) = dir.noted.filter(|_| self.core.store.lists_by_order()) else {
            return Ok(dir.dir.list(offset, sink)?);
        };
        let mut last = None;
        let listed = dir.dir.list(offset, &mut |entry| {
            let place = (entry.next, entry.name.clone());
            let is_taken = sink(entry);
            if is_taken {
                last = Some(place);
            }
            is_taken
        });
        if let Some((next, name)) = last {
            self.core.note_place(slot, (offset, next), &name);
        }
        Ok(listed?)
    }

    /// Whether what an open directory lists may be remembered: a place in it means the same to every
    /// opening of the directory.
    #[must_use]
    pub fn shares_places(&self, handle: HandleId) -> bool {
        self.dirs.get(handle).is_ok_and(|dir| dir.dir.shares_places())
    }

    /// Whether a server that follows continues listings where the kernel does: where the programs have
    /// taken all entries of an answer.
    #[must_use]
    pub fn continues_listings(&self) -> bool {
        self.core.options.recovery.is_some() && self.core.store.lists_by_order()
    }

    /// Makes completed changes of a directory's entries durable.
    ///
    /// # Errors
    /// The store's; [`Error::NoHandle`].
    pub fn sync_dir(&self, handle: HandleId) -> Result<()> {
        self.core.settle_inherited()?;
        Ok(self.core.store.sync_dir(self.dirs.get(handle)?.id)?)
    }

    /// The last descriptor of a directory was closed.
    pub fn release_dir(&self, handle: HandleId) {
        if let Some(dir) = self.dirs.remove(handle) {
            self.core.note_closed(dir.noted);
            self.core.release_dir(dir);
        }
    }

    /// [`release_dir`](Self::release_dir) where the caller is not to wait for the store: a thread
    /// of the volume's own asks it.
    pub fn release_dir_later(&self, handle: HandleId) {
        if let Some(dir) = self.dirs.remove(handle) {
            self.core.note_closed(dir.noted);
            self.core.defer_dir(dir);
        }
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// The store's.
    pub fn get_xattr(&self, id: NodeId, name: &OsStr) -> Result<Vec<u8>> {
        Ok(self.core.store.get_xattr(id, name)?)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// The store's.
    pub fn set_xattr(
        &self,
        ctx: &Ctx<'_>,
        id: NodeId,
        name: &OsStr,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let set = || Ok(self.core.store.set_xattr(id, name, value, how)?);
        match self.core.table.get(id).filter(|_| gives_privileges(name)) {
            Some(inode) => {
                inode.write_before_giving(ctx);
                inode.giving_privileges(set)
            }
            None => set(),
        }?;
        self.note_change(id, store::Timestamp::now());
        self.note_metadata(&ctx.caller);
        Ok(())
    }

    /// The names of the extended attributes, each ended by NUL.
    ///
    /// # Errors
    /// The store's.
    pub fn list_xattr(&self, id: NodeId) -> Result<Vec<u8>> {
        Ok(self.core.store.list_xattr(id)?)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// The store's.
    pub fn remove_xattr(&self, ctx: &Ctx<'_>, id: NodeId, name: &OsStr) -> Result<()> {
        let remove = || Ok(self.core.store.remove_xattr(id, name)?);
        match self.core.table.get(id).filter(|_| gives_privileges(name)) {
            Some(inode) => inode.giving_privileges(remove),
            None => remove(),
        }?;
        self.note_change(id, store::Timestamp::now());
        self.note_metadata(&ctx.caller);
        Ok(())
    }

    /// Sizes of the store.
    ///
    /// # Errors
    /// The store's.
    pub fn statfs(&self) -> Result<StatFs> {
        Ok(self.core.store.statfs()?)
    }

    /// Something beside the data of `id` was changed: its ctime shows that also while there is
    /// unwritten data.
    fn note_change(&self, id: NodeId, ctime: store::Timestamp) {
        if let Some(inode) = self.core.table.get(id)
            && let Some(overlay) = &mut inode.state().overlay
        {
            overlay.ctime = overlay.ctime.max(ctime);
        }
    }

    pub(crate) fn inode(&self, id: NodeId) -> Result<Arc<Inode>> {
        if let Some(inode) = self.core.table.get(id) {
            return Ok(inode);
        }
        // The root is known without a look-up; its own reference is never given back.
        if id == NodeId::ROOT {
            return Ok(self.core.table.look_up(id, || Inode::new(id, &self.core)).0);
        }
        Err(Error::NoNode(id))
    }

    /// Takes over an entry that came with a reference: its inode, with a look-up more, and the
    /// entry as users see it.
    pub(crate) fn know(&self, mut entry: Entry) -> (Entry, Arc<Inode>) {
        let (inode, known) = self.core.table.look_up(entry.id, || Inode::new(entry.id, &self.core));
        self.core.note_node(&inode);
        if known {
            self.core.store.forget(entry.id, 1);
            let overlaid = {
                let state = inode.state();
                state.apply(&mut entry.attr);
                state.overlay.is_some()
            };
            // A write-back may have ended between the store's answer and this check.
            if !overlaid
                && !is_on("volume-know-unchecked")
                && entry.attr.kind == store::FileType::Regular
                && let Ok(attr) = inode.attr()
            {
                entry.attr = attr;
            }
        }
        (entry, inode)
    }
}
