//! What a volume leaves behind when its process dies, and how it goes on from there.
//!
//! Nodes and openings are noted in the journal as they are handed out, and taken off it when they are
//! given back; the data of a file that loses its last name while it is open is held by the keeper. All
//! that is written is the store's before the write is answered, so that no data is to be handed over.
//!
//! An opening whose object cannot be found again is there still, also of a directory: calls of it end
//! with the store's error, which is "stale".
//!
//! A file that the keeper does not take is lost with the server, and only that one: see
//! [`NotHeld`](crate::noted::NotHeld).

use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, OnceLock};

use recovery::{Journal, OpenKind, OpenRecord, Place, Slot};
use store::{Access, Dir, DirEntry, ErrorKind, Name, Store};
use sync::Mutex;
use sync::atomic::Ordering;
use sync::mutant::is_on;

use crate::core::Core;
use crate::handles::{DirHandle, FileHandle};
use crate::inode::{Inode, State};
use crate::noted::Held;
use crate::{Error, HandleId, LimitChange, NodeId, OpenFlags, Options, Result, Volume};

/// A directory that was open when a server died, and that could not be opened again yet.
#[derive(Debug)]
struct Unopened {
    store: Arc<dyn Store>,
    id: NodeId,
    places: Vec<Place>,
    opened: OnceLock<Arc<dyn Dir>>,
}

impl Dir for Unopened {
    fn list(&self, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> store::Result<()> {
        let dir = match self.opened.get() {
            Some(dir) => dir,
            None => {
                let dir = self.store.open_dir_behind(self.id, self.places.clone())?;
                self.opened.get_or_init(|| dir)
            }
        };
        dir.list(offset, sink)
    }

    fn shares_places(&self) -> bool {
        self.opened.get().is_some_and(|dir| dir.shares_places())
    }
}

/// Whether a message could not be sent because nobody is there to read it.
fn is_keeper_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

impl Core {
    fn journal(&self) -> Option<&Journal> {
        // Where it is not complete any more, nothing is to be noted.
        let recovery = self.options.recovery.as_ref()?;
        Some(&recovery.journal).filter(|journal| journal.is_complete())
    }

    /// Notes a node that is about to be handed out, if it is not yet. The root needs no note.
    pub(crate) fn note_node(&self, inode: &Inode) {
        let (Some(noted), Some(journal)) = (&inode.noted, self.journal()) else { return };
        if inode.id == NodeId::ROOT || noted.slot.get().is_some() {
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
        if noted.slot.get().is_none()
            && let Some(slot) = journal.add_node(inode.id.0, noted_lookups(&state), key.as_ref())
        {
            let _is_first = noted.slot.set(slot);
        }
    }

    /// How far an open directory was listed before.
    fn places(&self, opening: Slot) -> Vec<Place> {
        self.options.recovery.as_ref().map_or_else(Vec::new, |recovery| recovery.journal.places(opening))
    }

    /// Whether a file without a name is gone with this process, unless the keeper holds an opening of it.
    fn has_keeper_hold_nameless(&self) -> bool {
        self.options.recovery.is_some() && !self.store.keeps_nameless()
    }

    /// Before anything is called durable: what a server that died has changed is on the store, but which
    /// of it is durable is not known any more. All of it is made so, once.
    pub(crate) fn settle_inherited(&self) -> store::Result<()> {
        // ORDERING: Acquire, pairs with the store below: who finds it settled comes after the sync that
        // has settled it. It is set before the volume is shared, and never again, so that a thread that
        // reads an old value finds it left, and waits for the lock.
        if !self.inherited.is_left.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one = self.inherited.settling.lock();
        // ORDERING: Relaxed, it is changed under the lock only.
        if self.inherited.is_left.load(Ordering::Relaxed) {
            self.store.sync_everything()?;
            // ORDERING: Release, see above.
            self.inherited.is_left.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// The keeper has not taken a file that loses its name.
    fn note_not_held(&self, inode: &Inode, error: &io::Error) {
        // ORDERING: Relaxed here and below, a figure.
        self.not_held.now.fetch_add(1, Ordering::Relaxed);
        // ORDERING: Relaxed, one thread of all gets the first value.
        if !self.not_held.is_said.swap(true, Ordering::Relaxed) {
            let volume = self.options.name.as_str();
            tracing::warn!(
                volume, node = inode.id.0, %error,
                "an open file loses its name, and its data if this process dies: the keeper does not hold it; more of them are counted in `status`"
            );
        }
    }

    /// A file is not there any more, or is held now, that the keeper had not taken.
    fn end_not_held(&self) {
        // ORDERING: Relaxed, see `note_not_held`.
        self.not_held.now.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes an opening that is about to be handed out.
    pub(crate) fn note_open(&self, record: &OpenRecord) -> Option<Slot> {
        if is_on("recovery-opening-not-noted") {
            return None;
        }
        self.journal()?.add_open(record)
    }

    /// An open directory is about to be answered up to this entry.
    pub(crate) fn note_place(&self, opening: Slot, (from, next): (u64, u64), name: &OsStr) {
        if let Some(journal) = self.journal() {
            journal.set_place(opening, from, next, name);
        }
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
        if let (Some(recovery), Some(noted)) = (&self.core.options.recovery, &self.noted)
            && let Some(slot) = noted.slot.get()
        {
            recovery.journal.set_lookups(*slot, noted_lookups(state));
        }
    }

    /// It has left the table.
    pub(crate) fn note_forgotten(&self) {
        let (Some(recovery), Some(noted)) = (&self.core.options.recovery, &self.noted) else { return };
        if let Some(slot) = noted.slot.get() {
            recovery.journal.remove_node(*slot);
        }
        match *noted.held.lock() {
            Held::No => {}
            Held::Yes(id) => recovery.link.drop_held(id),
            Held::Refused => self.core.end_not_held(),
        }
    }
}

impl Volume {
    /// A name is about to be removed: the keeper holds the data of the file, if that is open.
    pub(crate) fn keep_open_data(&self, parent: NodeId, name: &OsStr) {
        if !self.core.has_keeper_hold_nameless() {
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
        let (Some(recovery), Some(noted)) = (&self.core.options.recovery, &inode.noted) else { return };
        if !self.core.has_keeper_hold_nameless() {
            return;
        }
        // Also where another thread removes another name: this one's is not removed before the
        // keeper has the data.
        let mut held = noted.held.lock();
        if matches!(*held, Held::Yes(_)) {
            return;
        }
        let give = || {
            let file = inode.file(Access::ReadWrite).or_else(|_| inode.file(Access::Read));
            let file = file.map_err(io::Error::other)?;
            recovery.link.hold(inode.id.0, file.descriptor().ok_or(io::ErrorKind::Unsupported)?)
        };
        match give() {
            Ok(id) => {
                if std::mem::replace(&mut *held, Held::Yes(id)) == Held::Refused {
                    self.core.end_not_held();
                }
            }
            // No server follows.
            Err(error) if is_keeper_gone(&error) => {}
            Err(error) => {
                if std::mem::replace(&mut *held, Held::Refused) == Held::No {
                    self.core.note_not_held(inode, &error);
                }
            }
        }
    }

    /// How many files have lost a name while they were open and would be gone if this process died: the
    /// keeper holds no more.
    #[must_use]
    pub fn not_held(&self) -> u64 {
        // ORDERING: Relaxed, a figure.
        self.core.not_held.now.load(Ordering::Relaxed)
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
        // ORDERING: Relaxed, no other thread has the volume yet.
        core.inherited.is_left.store(true, Ordering::Relaxed);
        core.unsynced.note(|| None);
        for (slot, node) in recovery.journal.nodes() {
            let id = store::ObjectId(node.id);
            let inode = Inode::new(id, core);
            if let Some(noted) = &inode.noted {
                let _is_first = noted.slot.set(slot);
            }
            inode.state().resume(node.lookups, None);
            core.table.restore(inode);
        }
        for held in &recovery.held {
            let inode = core.table.get(store::ObjectId(held.node));
            match inode.as_ref().and_then(|inode| inode.noted.as_ref()).map(|noted| noted.held.lock()) {
                Some(mut state) if *state == Held::No => *state = Held::Yes(held.id),
                // Its inode is gone, or another opening of it is held.
                _ => recovery.link.drop_held(held.id),
            }
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
            // One that is gone stays open until the kernel closes it, and then gives its slot back.
            let (store, places) = (Arc::clone(&self.core.store), self.core.places(slot));
            let dir = store.open_dir_behind(id, places.clone());
            let dir =
                dir.unwrap_or_else(|_| Arc::new(Unopened { store, id, places, opened: OnceLock::new() }));
            let opener_pid = open.opener_pid;
            return self.dirs.restore(handle, DirHandle { id, dir, opener_pid, noted: Some(slot) });
        }
        let Ok(inode) = self.inode(id) else {
            // Of a node that was not noted: the kernel cannot refer to it.
            self.core.note_closed(Some(slot));
            return Ok(());
        };
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
