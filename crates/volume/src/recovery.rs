//! What a volume leaves behind when its process dies, and how it goes on from there.
//!
//! Nodes and openings are noted in the journal as they are handed out, and taken off it when they are
//! given back; the data of a file that loses its last name while it is open is held by the keeper. All
//! that is written is the store's before the write is answered, so that no data is to be handed over.
//!
//! An opening whose object cannot be found again is there still: calls of it end with the store's
//! error, which is "stale".

use std::ffi::OsStr;
use std::sync::Arc;

use recovery::{Journal, OpenKind, OpenRecord, Slot};
use store::{Access, Name, Store};
use sync::Mutex;
use sync::atomic::Ordering;

use crate::core::Core;
use crate::handles::{DirHandle, FileHandle};
use crate::inode::{Inode, State};
use crate::{Error, HandleId, LimitChange, NodeId, OpenFlags, Options, Result, Volume};

impl Core {
    fn journal(&self) -> Option<&Journal> {
        // Where it is not complete any more, nothing is to be noted.
        let recovery = self.options.recovery.as_ref()?;
        Some(&recovery.journal).filter(|journal| journal.is_complete())
    }

    /// Notes a node that is about to be handed out, if it is not yet. The root needs no note.
    pub(crate) fn note_node(&self, inode: &Inode) {
        let Some(journal) = self.journal() else { return };
        if inode.id == NodeId::ROOT || inode.noted.get().is_some() {
            return;
        }
        let key = self.store.key(inode.id);
        let state = inode.state();
        // Another thread may have found it as well, and noted it meanwhile.
        if inode.noted.get().is_none()
            && let Some(slot) = journal.add_node(inode.id.0, state.lookups, key.as_ref())
        {
            let _is_first = inode.noted.set(slot);
        }
    }

    /// Before anything is called durable: what a server that died has changed is on the store, but which
    /// of it is durable is not known any more. All of it is made so, once.
    pub(crate) fn settle_inherited(&self) -> store::Result<()> {
        let mut is_inherited = self.is_inherited.lock();
        if *is_inherited {
            self.store.sync_everything()?;
            *is_inherited = false;
        }
        Ok(())
    }

    /// Notes an opening that is about to be handed out.
    pub(crate) fn note_open(&self, record: &OpenRecord) -> Option<Slot> {
        self.journal()?.add_open(record)
    }

    /// An opening is closed.
    pub(crate) fn note_closed(&self, noted: Option<Slot>) {
        if let (Some(recovery), Some(slot)) = (&self.options.recovery, noted) {
            recovery.journal.remove_open(slot);
        }
    }
}

impl Inode {
    /// Notes the look-ups that the kernel has; the caller has just changed them.
    pub(crate) fn note_lookups(&self, state: &State) {
        if let (Some(recovery), Some(slot)) = (&self.core.options.recovery, self.noted.get()) {
            recovery.journal.set_lookups(*slot, state.lookups);
        }
    }

    /// It has left the table.
    pub(crate) fn note_forgotten(&self) {
        let Some(recovery) = &self.core.options.recovery else { return };
        if let Some(slot) = self.noted.get() {
            recovery.journal.remove_node(*slot);
        }
        // ORDERING: Relaxed, set by a request for the node, whose look-ups were given back since.
        if self.is_held.load(Ordering::Relaxed) {
            let _keeper_is_gone = recovery.link.drop_held(self.id.0);
        }
    }
}

impl Volume {
    /// A name is about to be removed: the keeper holds the data of the file, if that is open.
    pub(crate) fn keep_open_data(&self, parent: NodeId, name: &OsStr) {
        if self.core.options.recovery.is_none() {
            return;
        }
        let Ok(found) =
            Name::new(name).map_err(drop).and_then(|name| self.core.store.lookup(parent, name).map_err(drop))
        else {
            return;
        };
        self.core.store.forget(found.id, 1);
        if let Some(inode) = self.core.table.get(found.id)
            && inode.state().opens > 0
        {
            self.keep_data(&inode);
        }
    }

    /// The keeper holds the opening of a file, which has no name, or is about to lose it.
    pub(crate) fn keep_data(&self, inode: &Inode) {
        let Some(recovery) = &self.core.options.recovery else { return };
        // ORDERING: Relaxed, one of two that hold it at a time does no harm.
        if !inode.is_held.swap(true, Ordering::Relaxed)
            && let Ok(file) = inode.file(Access::ReadWrite).or_else(|_| inode.file(Access::Read))
            && let Some(fd) = file.descriptor()
        {
            let _keeper_is_gone = recovery.link.hold(inode.id.0, fd);
        }
    }

    /// The volume of a server that has died, over its store: `options` has the journal, and
    /// `limits` are cgroups with their limits as a [`LimitChange`].
    ///
    /// # Errors
    /// When there is no journal, or it contradicts itself.
    pub fn recover(
        store: Arc<dyn Store>,
        options: Options,
        limits: &[(String, String)],
    ) -> Result<Arc<Self>> {
        let volume = Self::new(store, options)?;
        let core = &volume.core;
        let recovery = core.options.recovery.clone().ok_or(Error::Invalid("there is no journal"))?;
        *core.is_inherited.lock() = true;
        core.unsynced.note(|| None);
        for (slot, node) in recovery.journal.nodes() {
            let id = store::ObjectId(node.id);
            let inode = Inode::new(id, core);
            let _is_first = inode.noted.set(slot);
            inode.state().resume(node.lookups, None);
            core.table.restore(inode);
        }
        for (slot, open) in recovery.journal.opens() {
            volume.reopen(slot, &open)?;
        }
        let next = recovery.journal.next_number();
        volume.files.resume_at(next);
        volume.dirs.resume_at(next);
        for (cgroup, change) in limits {
            let change: LimitChange =
                change.parse().map_err(|_| Error::Invalid("the state has a bad limit"))?;
            volume.limit(&cgroup.parse().map_err(|_| Error::Invalid("the state has a bad cgroup"))?, &change);
        }
        Ok(volume)
    }

    /// The keeper holds the data of these nodes: it is told when they are forgotten.
    pub fn mark_held(&self, nodes: impl Iterator<Item = u64>) {
        for inode in nodes.filter_map(|node| self.core.table.get(store::ObjectId(node))) {
            // ORDERING: Relaxed, see `note_forgotten`: one that is forgotten meanwhile stays held.
            inode.is_held.store(true, Ordering::Relaxed);
        }
    }

    fn reopen(&self, slot: Slot, open: &OpenRecord) -> Result<()> {
        let (id, handle) = (store::ObjectId(open.node), HandleId(open.handle));
        if open.kind == OpenKind::Dir {
            // An object that is gone has nothing to list.
            let Ok(dir) = self.core.store.open_dir(id) else { return Ok(()) };
            let opener_pid = open.opener_pid;
            return self.dirs.restore(handle, DirHandle { id, dir, opener_pid, noted: Some(slot) });
        }
        let Ok(inode) = self.inode(id) else { return Ok(()) };
        {
            let mut state = inode.state();
            state.opens += 1;
            state.foreign_mappers += u64::from(open.is_foreign_mapper);
        }
        let tenants = &self.core.options.tenants;
        let handle_state = FileHandle {
            flags: OpenFlags::from_bits_retain(open.flags),
            is_foreign_mapper: open.is_foreign_mapper,
            opener_pid: open.opener_pid,
            opener: tenants.cgroup_of(None),
            seen: Mutex::new(inode.errors.sample()),
            noted: Some(slot),
            inode,
        };
        self.files.restore(handle, handle_state)
    }
}
