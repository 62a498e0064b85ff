//! One object in use.
//!
//! While a file has unwritten data, its **overlay** has its size and times; without one, the store
//! has them. An inode with an overlay is listed with its wb until a flusher finds nothing left to
//! do.
//!
//! # Access
//! | field | protected by |
//! |---|---|
//! | `state` | its own lock |
//! | `privileges` | held while set-id bits and capabilities are given or taken away |
//! | `io` | held while data goes to the store, and by each operation that must not run beside that (truncate, allocate, copy) |
//! | `file` | its own lock, a leaf |
//! | `held` | written under `state`, read by the budget without |
//!
//! Lock order: `privileges`, then `io` (two inodes: the lower id first), then `state`, then `file`;
//! [`Noted::held`], then `file`. The store is called under `privileges`, `io` and `Noted::held` at most,
//! so that a store that hangs on one file stops this file only.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use store::{Access, Attr, ErrorKind, File, Timestamp};
use sync::atomic::AtomicU64;
use sync::mutant::is_on;
use sync::{Mutex, MutexGuard};
use writeback::{ErrSeq, InodeWb, Permit};

use crate::core::Core;
use crate::io::cache::Cache;
use crate::io::page::PAGE;
use crate::noted::Noted;
use crate::privileges::Known;
use crate::{NodeId, Result};

/// One object in use.
pub(crate) struct Inode {
    pub(crate) id: NodeId,
    /// Its number among those that came to its part of the table.
    pub(crate) arrival: u64,
    pub(crate) core: Arc<Core>,
    pub(crate) errors: ErrSeq<ErrorKind>,
    /// Write-back's part.
    pub(crate) inode_wb: InodeWb<Self>,
    /// Pages in the cache, for the budget's thresholds.
    pub(crate) held: Arc<AtomicU64>,
    /// See [`crate::privileges`].
    pub(crate) privileges: Mutex<()>,
    io: Mutex<()>,
    state: Mutex<State>,
    file: Mutex<Option<OpenFile>>,
    /// What is left to a server that follows; none where none is to follow.
    pub(crate) noted: Option<Box<Noted>>,
}

pub(crate) struct OpenFile {
    access: Access,
    file: Arc<dyn File>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) lookups: u64,
    pub(crate) opens: u64,
    pub(crate) cache: Cache,
    /// The permit for the pages in the cache.
    permit: Permit,
    pub(crate) overlay: Option<Overlay>,
    /// On the lists of its wb: set by the thread that begins an overlay, cleared by the flusher
    /// that finds none.
    pub(crate) listed: bool,
    /// Counts the events that make a read of the store stale: written runs, truncations, the
    /// overlay's end.
    pub(crate) changes: u64,
    /// The size that the store has promised to take; 0: it was not asked; `u64::MAX`: any.
    pub(crate) promised: u64,
    /// How often the size was set, which ends a promise.
    pub(crate) sizes_set: u64,
    /// The error of the last write-back, if it failed and the data is still here.
    pub(crate) failing: Option<ErrorKind>,
    /// The file's name when that happened: `status` shows it and does not ask the store.
    pub(crate) failing_path: Option<PathBuf>,
    /// On the list of things to close or forget later.
    pub(crate) is_deferred: bool,
    /// Openings through which a user that is not root can have mapped the file to write.
    pub(crate) foreign_mappers: u64,
    /// It lost a name, or was about to, and may have none: what opens it has the keeper hold it.
    pub(crate) lost_name: bool,
    /// Set under `privileges` as well.
    pub(crate) known: Known,
    /// The store's ctime after our own write-back, and the earlier one that users still see.
    shown_ctime: Option<(Timestamp, Timestamp)>,
}

/// The size and times that are newer here than on the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overlay {
    pub(crate) size: u64,
    /// The store's size: nothing needs to be read from beyond it.
    pub(crate) store_size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    /// `mtime` has still to be set on the store.
    pub(crate) times_pending: bool,
}

/// The `io` lock of an inode. Its end is reported to writers that wait for room and found it taken:
/// they may write the file themselves, or have to learn that it cannot be written.
#[derive(Debug)]
pub(crate) struct Io<'a> {
    inode: &'a Inode,
    lock: Option<MutexGuard<'a, ()>>,
}

impl Drop for Io<'_> {
    fn drop(&mut self) {
        drop(self.lock.take());
        if !is_on("volume-io-silent") {
            self.inode.core.budget.wake_owner(&self.inode.held);
        }
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inode").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Inode {
    pub(crate) fn new(id: NodeId, core: &Arc<Core>) -> Self {
        Self {
            id,
            arrival: 0,
            core: Arc::clone(core),
            errors: ErrSeq::default(),
            inode_wb: InodeWb::default(),
            held: Arc::new(AtomicU64::new(0)),
            privileges: Mutex::new(()),
            io: Mutex::new(()),
            state: Mutex::new(State::new(core.budget.nothing())),
            file: Mutex::new(None),
            noted: core.options.recovery.is_some().then(Box::default),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Keeps data from going to the store. May wait for as long as the store takes.
    pub(crate) fn io(&self) -> Io<'_> {
        Io { inode: self, lock: Some(self.io.lock()) }
    }

    /// The lock, if it is free.
    pub(crate) fn try_io(&self) -> Option<Io<'_>> {
        let lock = Some(self.io.try_lock()?);
        Some(Io { inode: self, lock })
    }

    pub(crate) fn add_lookup(&self) {
        let mut state = self.state.lock();
        state.lookups += 1;
        self.note_lookups(&state);
    }

    /// The inode has no look-ups and no openings, and nothing to write.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        state.lookups == 0 && state.opens == 0 && !state.listed
    }

    /// The front end has looked it up, and does nothing with it; nothing is to be written, and no error to
    /// be told.
    pub(crate) fn is_idle(&self) -> bool {
        let is_told = self.errors.parts().is_none_or(|(_, _, is_told)| is_told);
        let state = self.state.lock();
        is_told && state.lookups > 0 && state.opens == 0 && !state.listed
    }

    /// The data, opened on the store if it is not yet; writing needs `ReadWrite`.
    pub(crate) fn file(&self, access: Access) -> Result<Arc<dyn File>> {
        if let Some(open) = self.file.lock().as_ref()
            && (access == Access::Read || open.access == Access::ReadWrite)
        {
            return Ok(Arc::clone(&open.file));
        }
        let file = self.core.store.open(self.id, access)?;
        self.set_file(access, &file);
        Ok(file)
    }

    /// Keeps an open file for all further uses.
    pub(crate) fn set_file(&self, access: Access, file: &Arc<dyn File>) {
        let mut open = self.file.lock();
        if open.as_ref().is_none_or(|open| open.access == Access::Read) {
            let before = open.replace(OpenFile { access, file: Arc::clone(file) });
            drop(open);
            // This may close a file, for which its store may be waited.
            drop(before);
        }
    }

    /// Takes the open file out, for the caller to close.
    pub(crate) fn take_file(&self) -> Option<OpenFile> {
        self.file.lock().take()
    }

    /// Closes the data when no handle has it open and nothing is left to write.
    pub(crate) fn close_file_if_idle(&self) {
        let closed = {
            let state = self.state();
            // Under the state lock: a thread that opens the file now counts its opening first, and
            // finds the data closed or open.
            let is_idle = state.opens == 0 && state.overlay.is_none();
            if is_idle { self.file.lock().take() } else { None }
        };
        drop(closed);
    }

    /// The attributes as users see them.
    pub(crate) fn attr(&self) -> Result<Attr> {
        loop {
            let before = self.state.lock().changes;
            let mut attr = self.core.store.attr(self.id)?;
            let state = self.state.lock();
            // A write-back that ended between the two checks would leave us with the old size.
            if state.changes == before || state.overlay.is_some() || is_on("volume-attr-unchecked") {
                state.apply(&mut attr);
                return Ok(attr);
            }
        }
    }
}

impl State {
    fn new(permit: Permit) -> Self {
        Self {
            lookups: 0,
            opens: 0,
            cache: Cache::default(),
            permit,
            overlay: None,
            listed: false,
            changes: 0,
            promised: 0,
            sizes_set: 0,
            failing: None,
            failing_path: None,
            is_deferred: false,
            foreign_mappers: 0,
            lost_name: false,
            known: Known::default(),
            shown_ctime: None,
        }
    }

    /// The store's ctime and the one that users see instead, if they differ.
    pub(crate) fn shown_ctime(&self) -> Option<(Timestamp, Timestamp)> {
        self.shown_ctime
    }

    /// Goes on as in the program before.
    pub(crate) fn resume(&mut self, lookups: u64, shown_ctime: Option<(Timestamp, Timestamp)>) {
        (self.lookups, self.shown_ctime) = (lookups, shown_ctime);
    }

    /// Pages came into the cache, under this permit.
    pub(crate) fn add_pages(&mut self, permit: Permit) {
        self.permit.join(permit);
    }

    /// So many pages left the cache. Drop what is returned without the lock: it wakes waiting
    /// writers.
    #[must_use]
    pub(crate) fn remove_pages(&mut self, pages: usize) -> Option<Permit> {
        self.permit.split(pages as u64)
    }

    /// Puts the newer size and times over the store's attributes.
    pub(crate) fn apply(&self, attr: &mut Attr) {
        if let Some(overlay) = &self.overlay {
            attr.size = overlay.size;
            attr.mtime = overlay.mtime;
            attr.ctime = overlay.ctime;
            attr.blocks = self.blocks(attr.blocks, overlay.size);
        } else if let Some((stored, shown)) = self.shown_ctime
            && attr.ctime == stored
        {
            attr.ctime = shown;
        }
    }

    /// Blocks of 512 bytes that the file takes when all is written, as far as can be known without
    /// asking the store which of the cached pages it has already: no more than its size takes,
    /// unless the store has more. Exact but for files with holes whose data is written over.
    fn blocks(&self, stored: u64, size: u64) -> u64 {
        const PAGE_BLOCKS: u64 = PAGE / 512;
        let all = size.div_ceil(PAGE).saturating_mul(PAGE_BLOCKS);
        (stored + self.cache.held() * PAGE_BLOCKS).min(all.max(stored))
    }

    /// Ends the overlay: the store knows everything. `stored` is its ctime after our own changes.
    pub(crate) fn end_overlay(&mut self, stored: Option<Timestamp>) {
        if let (Some(overlay), Some(stored)) = (self.overlay.take(), stored) {
            self.shown_ctime = Some((stored, overlay.ctime));
        }
        self.changes += 1;
    }
}
