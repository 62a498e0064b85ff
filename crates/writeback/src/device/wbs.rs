//! The wbs of one backing device.
//!
//! Readers find them without a lock, in a read section, by number of their cgroup or by index. An
//! index names one wb as long as an inode has it; it is used again after that. The root's wb has
//! index 0 and stays.
//!
//! `ready` is an eventpoll of them, for the flushers: see `flusher`.
//!
//! Lock order: `Wbs::writer`, then a wb's lists, then `ready`, which is signalled under any lock.
//! An old table is dropped after them: that may wait for callbacks.

use std::collections::HashMap;
use std::sync::Arc;

use eventpoll::{EventPoll, Events, Flag, Interest};
use sync::Mutex;
use sync::atomic::{AtomicUsize, Ordering};

use cgroups::CgroupId;

use crate::device::inode::Inode;
use crate::device::wb::Wb;
use crate::switch::cgroup::Cgroup;
use crate::switch::domain::{Domain, Guard, RcuCell};

/// A wb is reported to one flusher, and to no other before that one rearms it.
const ONE: Interest = Interest::level(Events::IN).one_shot();

/// The wbs of one backing device.
#[derive(Debug)]
pub(crate) struct Wbs<I: Inode> {
    current: RcuCell<Table<I>>,
    /// Held by a thread that changes the table; contains a copy of it.
    writer: Mutex<Table<I>>,
    /// Inodes that wait for their first write-back, of all wbs.
    dirty_inodes: Arc<AtomicUsize>,
    /// Wbs that a flusher should check; none where there are no flushers.
    pub(crate) ready: Option<EventPoll>,
}

#[derive(Debug)]
struct Table<I: Inode> {
    by_index: Vec<Option<Arc<Wb<I>>>>,
    by_owner: HashMap<CgroupId, Arc<Wb<I>>>,
}

impl<I: Inode> Clone for Table<I> {
    fn clone(&self) -> Self {
        Self { by_index: self.by_index.clone(), by_owner: self.by_owner.clone() }
    }
}

impl<I: Inode> Wbs<I> {
    pub(crate) fn new(domain: &Domain, root: &Arc<Cgroup>, has_flushers: bool) -> Self {
        let dirty_inodes = Arc::default();
        let ready = has_flushers.then(EventPoll::new);
        let root = make(root, 0, &dirty_inodes, ready.as_ref());
        let table = Table {
            by_index: vec![Some(Arc::clone(&root))],
            by_owner: HashMap::from([(root.owner(), Arc::clone(&root))]),
        };
        Self { current: RcuCell::new(domain, table.clone()), writer: Mutex::new(table), dirty_inodes, ready }
    }

    /// Inodes that wait for their first write-back, as of a moment ago.
    pub(crate) fn dirty_inodes(&self) -> usize {
        // ORDERING: Relaxed, a figure for thresholds.
        self.dirty_inodes.load(Ordering::Relaxed)
    }

    /// Calls `look` on the wb with an index that an inode has; `None` for
    /// [`NONE`](crate::device::inode::NONE), and where the index is out of date.
    pub(crate) fn with<R>(
        &self,
        guard: &Guard<'_>,
        index: u32,
        look: impl FnOnce(&Arc<Wb<I>>) -> R,
    ) -> Option<R> {
        let index = usize::try_from(index).ok()?;
        self.current.load(guard).by_index.get(index)?.as_ref().map(look)
    }

    pub(crate) fn find(&self, guard: &Guard<'_>, owner: CgroupId) -> Option<Arc<Wb<I>>> {
        self.current.load(guard).by_owner.get(&owner).cloned()
    }

    /// Whether the root's is the only one.
    pub(crate) fn is_alone(&self, guard: &Guard<'_>) -> bool {
        self.current.load(guard).by_index.iter().flatten().nth(1).is_none()
    }

    /// The number of cgroups that have one.
    pub(crate) fn count(&self, guard: &Guard<'_>) -> usize {
        self.current.load(guard).by_owner.len()
    }

    /// All of them, the dying ones too.
    pub(crate) fn all(&self, guard: &Guard<'_>) -> Vec<Arc<Wb<I>>> {
        self.current.load(guard).by_index.iter().flatten().cloned().collect()
    }

    /// Asks for a flusher to check each of them.
    pub(crate) fn signal_all(&self, guard: &Guard<'_>) {
        self.current.load(guard).by_index.iter().flatten().for_each(|wb| wb.signal());
    }

    /// The flusher that has taken a wb gives it to the next one that waits; at once if it is due,
    /// else when the wb is signalled.
    pub(crate) fn rearm(&self, wb: &Wb<I>, is_due: bool) {
        let (Some(ready), Some(work)) = (&self.ready, &wb.work) else { return };
        if is_due {
            work.set();
        }
        // It fails when it is closed: no flusher waits any more.
        let _ = ready.modify(work, ONE, wb.index.into());
    }

    /// Ends the wait of all flushers.
    pub(crate) fn close(&self) {
        self.ready.iter().for_each(EventPoll::close);
    }

    /// The wb of a cgroup, made if there is none, and counted as having a switch under way, so that
    /// it stays. `None` if the cgroup was removed.
    pub(crate) fn get_or_make(&self, cgroup: &Arc<Cgroup>) -> Option<Arc<Wb<I>>> {
        let mut table = self.writer.lock();
        // Under the lock: a thread that removes the cgroup marks it first, and looks for its wb
        // afterwards.
        if !cgroup.is_living() {
            return None;
        }
        // A wb of another cgroup, which had the number before and is about to die, is not the right
        // one.
        let is_its = |wb: &&Arc<Wb<I>>| Arc::ptr_eq(wb.cgroup(), cgroup);
        let mut old = None;
        let known = table.by_owner.get(&cgroup.id()).filter(is_its).cloned();
        let wb = known.unwrap_or_else(|| {
            let free = table.by_index.iter().position(Option::is_none);
            let index = free.unwrap_or(table.by_index.len());
            let number = u32::try_from(index).expect("fewer cgroups than numbers");
            let made = make(cgroup, number, &self.dirty_inodes, self.ready.as_ref());
            if index == table.by_index.len() {
                table.by_index.push(None);
            }
            table.by_index[index] = Some(Arc::clone(&made));
            table.by_owner.insert(cgroup.id(), Arc::clone(&made));
            old = Some(self.current.replace(table.clone()));
            made
        });
        // ORDERING: Relaxed, under `writer`, as is the read in `wb_put`.
        wb.incoming.fetch_add(1, Ordering::Relaxed);
        drop(table);
        drop(old);
        Some(wb)
    }

    /// Takes the wb of a removed cgroup out of those that are found by number: it is dying.
    pub(crate) fn unlink(&self, cgroup: &Arc<Cgroup>) -> Option<Arc<Wb<I>>> {
        let mut table = self.writer.lock();
        let is_its = |wb: &&Arc<Wb<I>>| Arc::ptr_eq(wb.cgroup(), cgroup);
        let wb = Arc::clone(table.by_index.iter().flatten().find(is_its)?);
        // Another cgroup may have the number by now, and a wb of its own.
        let is_found = table.by_owner.get(&cgroup.id()).is_some_and(|found| Arc::ptr_eq(found, &wb));
        let old = is_found.then(|| {
            table.by_owner.remove(&cgroup.id());
            self.current.replace(table.clone())
        });
        wb.lists().dying = true;
        drop(table);
        drop(old);
        Some(wb)
    }

    /// Gives a dying wb back if nothing is left of it.
    pub(crate) fn wb_put(&self, wb: &Arc<Wb<I>>) {
        let mut table = self.writer.lock();
        let mut lists = wb.lists();
        let Some(slot) = usize::try_from(wb.index).ok().and_then(|index| table.by_index.get_mut(index))
        else {
            return;
        };
        if wb.is_unused(&lists) && slot.as_ref().is_some_and(|there| Arc::ptr_eq(there, wb)) {
            *slot = None;
            let old = self.current.replace(table.clone());
            // Under the lists' lock, as the search: a thread that has found the wb by its index
            // before sees that from here on.
            lists.gone = true;
            drop(lists);
            drop(table);
            drop(old);
        }
    }
}

fn make<I: Inode>(
    cgroup: &Arc<Cgroup>,
    index: u32,
    dirty_inodes: &Arc<AtomicUsize>,
    ready: Option<&EventPoll>,
) -> Arc<Wb<I>> {
    let work = ready.map(|_| Flag::new());
    if let (Some(ready), Some(work)) = (ready, &work) {
        // It fails when it is closed: no flusher waits any more.
        let _ = ready.add(work, ONE, index.into());
    }
    Arc::new(Wb::new(Arc::clone(cgroup), index, dirty_inodes, work))
}
