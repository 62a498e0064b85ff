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
use store::{Access, ErrorKind, Name, Store};
use sync::Mutex;
use sync::mutant::is_on;

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
        let key = match self.store.key(inode.id) {
            Ok(key) => Some(key),
            // Another process has removed it from the store. Its number stays its own.
            Err(error) if error.kind() == ErrorKind::Stale => None,
            Err(error) => {
                let volume = self.options.name.as_str();
                tracing::error!(volume, node = inode.id.0, %error, "a node cannot be found again by another server");
                return journal.turn_off();
            }
        };
        let state = inode.state();
        // Another thread may have found it as well, and noted it meanwhile.
        if inode.noted.get().is_none()
            && let Some(slot) = journal.add_node(inode.id.0, noted_lookups(&state), key.as_ref())
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
        if is_on("recovery-opening-not-noted") {
            return None;
        }
        self.journal()?.add_open(record)
    }

    /// An opening is closed.
    pub(crate) fn note_closed(&self, noted: Option<Slot>) {
        if let (Some(recovery), Some(slot)) = (&self.options.recovery, noted) {
            recovery.journal.remove_open(slot);
        }
    }
}

/// The look-ups to note.
fn noted_lookups(state: &State) -> u64 {
    if is_on("recovery-lookups-off-by-one") { state.lookups.saturating_sub(1) } else { state.lookups }
}

impl Inode {
    /// Notes the look-ups that the kernel has; the caller has just changed them.
    pub(crate) fn note_lookups(&self, state: &State) {
        if let (Some(recovery), Some(slot)) = (&self.core.options.recovery, self.noted.get()) {
            recovery.journal.set_lookups(*slot, noted_lookups(state));
        }
    }

    /// It has left the table.
    pub(crate) fn note_forgotten(&self) {
        let Some(recovery) = &self.core.options.recovery else { return };
        if let Some(slot) = self.noted.get() {
            recovery.journal.remove_node(*slot);
        }
        if *self.is_held.lock() {
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
        let Some(inode) = self.core.table.get(found.id) else { return };
        let is_open = {
            let mut state = inode.state();
            // An opening that is not counted yet finds this.
            state.lost_name = true;
            state.opens > 0
        };
        if is_open {
            self.keep_data(&inode);
        }
    }

    /// The keeper holds the opening of a file, which has no name, or is about to lose it.
    pub(crate) fn keep_data(&self, inode: &Inode) {
        let Some(recovery) = &self.core.options.recovery else { return };
        // Also where another thread removes another name: this one's is not removed before the
        // keeper has the data.
        let mut is_held = inode.is_held.lock();
        if !*is_held
            && let Ok(file) = inode.file(Access::ReadWrite).or_else(|_| inode.file(Access::Read))
            && let Some(fd) = file.descriptor()
        {
            match recovery.link.hold(inode.id.0, fd) {
                Ok(()) => *is_held = true,
                Err(error) if error.kind() == std::io::ErrorKind::QuotaExceeded => {
                    recovery.journal.turn_off();
                }
                // The keeper is gone: no server follows.
                Err(_) => {}
            }
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
        for inode in recovery.held.iter().filter_map(|node| core.table.get(store::ObjectId(*node))) {
            *inode.is_held.lock() = true;
        }
        for (slot, open) in recovery.journal.opens() {
            volume.restore_opening(slot, &open)?;
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

    fn restore_opening(&self, slot: Slot, open: &OpenRecord) -> Result<()> {
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
