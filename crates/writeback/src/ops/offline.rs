//! The end of a cgroup: its wb's inodes go to the nearest ancestor that lives.
//!
//! Inodes with nothing to be written go at once, in batches. One that is dirty or being written
//! stays until it has been written: if it were moved, its data would escape the limits of the
//! cgroup that dirtied it. It goes when its write-back ends.

use std::ops::Bound;
use std::sync::Arc;

use sync::atomic::Ordering;
use sync::mutant::is_on;

use throttle::CgroupPath;

use crate::device::bdi::{Bdi, Isw, Item, SwitchTarget};
use crate::device::inode::{Inode, Key};
use crate::device::wb::Wb;
use crate::switch::cgroup::Cgroup;
use crate::switch::switcher::CgroupEvents;

/// Inodes in one batch (`WB_MAX_INODES_PER_ISW`: what fits a page beside the head).
pub const BATCH: usize = 126;

/// The inodes of one search.
struct Batch<I> {
    items: Vec<Item<I>>,
    /// Where to go on, if there is more.
    next: Option<After>,
}

/// How far the search has come: the clean inodes first, then those that wait for a flusher though
/// they have been written. Each inode is checked once.
#[derive(Clone, Copy)]
enum After {
    Attached(u64),
    Dirty(Key),
}

impl<I: Inode> Bdi<I> {
    /// Queues the clean-up of a dying wb, unless it waits already.
    pub(crate) fn clean_up(self: &Arc<Self>, wb: &Arc<Wb<I>>) {
        // ORDERING: AcqRel, pairs with the store in `run_clean_up`: a thread that finds it set
        // knows that a clean-up will check later.
        if !wb.is_cleaning.swap(true, Ordering::AcqRel) {
            let (this, wb) = (Arc::clone(self), Arc::clone(wb));
            self.switcher.clean_ups.push(move || this.run_clean_up(&wb));
        }
    }

    /// Lets an inode of a dying wb go that has nothing left to be written. A caller that waits for
    /// that can rely on it: the inode leaves with the write-back that wrote the last of it,
    /// whichever thread did that.
    pub(crate) fn switch_to_ancestor(self: &Arc<Self>, inode: &Arc<I>, from: &Arc<Wb<I>>) {
        let in_flight = self.switcher.state.begin_clean_up(&self.in_flight);
        self.switch_one(inode, from.cgroup().nearest_living().id(), in_flight);
    }

    /// Prepares up to [`BATCH`] inodes of `wb` that have nothing to be written, beginning after
    /// `from`.
    fn prepare_batch(&self, wb: &Wb<I>, target: &SwitchTarget<I>, from: After) -> Batch<I> {
        let mut batch = Batch { items: Vec::new(), next: None };
        // A pin for the whole batch. It is declared first so that it is dropped last: a reference
        // that is not needed after all may be the inode's last.
        let Ok(_pin) = self.switcher.state.strategy.pin(&self.superblock) else { return batch };
        // References that are not needed after all: dropped without the lock.
        let mut spare = Vec::new();
        let lists = wb.lists();
        let (attached, dirty) = match from {
            After::Attached(number) => (Some(Bound::Excluded(number)), Bound::Unbounded),
            After::Dirty(key) => (None, Bound::Excluded(key)),
        };
        let attached = attached.into_iter().flat_map(|from| lists.attached.range((from, Bound::Unbounded)));
        let clean = attached.map(|(number, inode)| (After::Attached(*number), inode.upgrade()));
        let dirty = lists.dirty.range((dirty, Bound::Unbounded));
        let is_written = |inode: &&Arc<I>| inode.inode_wb().bytes() == (0, 0);
        let written =
            dirty.map(|(key, listed)| (After::Dirty(*key), Some(&listed.inode).filter(is_written).cloned()));
        // A fixed number is checked, whatever is found: the lock is not held for longer.
        for (at, inode) in clean.chain(written).take(BATCH) {
            batch.next = Some(at);
            if let Some(inode) = inode {
                batch.items.extend(self.prepare(&inode, &mut inode.inode_wb().state(), target));
                spare.push(inode);
            }
        }
        drop(lists);
        batch
    }

    fn run_clean_up(self: &Arc<Self>, wb: &Arc<Wb<I>>) {
        // ORDERING: Release, see `clean_up`: a thread that asks from here on gets another one.
        wb.is_cleaning.store(false, Ordering::Release);
        let switch_state = &self.switcher.state;
        let mut from = Some(After::Attached(0));
        while let Some(after) = from.take() {
            let target = self.target(wb.cgroup().nearest_living().id());
            if Arc::ptr_eq(&target.wb, wb) || !self.superblock.is_active() {
                break;
            }
            // Counted first: strategies that ask whether any switch is in flight close the
            // superblock before they do.
            let begin = || switch_state.begin_clean_up(&self.in_flight);
            let in_flight = (!is_on("switch-counted-late")).then(begin);
            let mut parts = Some((target, in_flight));
            switch_state.strategy.section(&switch_state.domain, &mut || {
                let Some((target, in_flight)) = parts.take() else { return };
                let Batch { items, next } = self.prepare_batch(wb, &target, after);
                from = next;
                if !items.is_empty() {
                    switch_state.strategy.delay_point();
                    let _in_flight = in_flight.unwrap_or_else(begin);
                    self.queue_switch(Isw { items, target, _in_flight });
                }
            });
        }
        self.wbs.wb_put(wb);
    }
}

impl<I: Inode> CgroupEvents for Bdi<I> {
    fn paths_changed(&self) {
        self.throttle.paths_changed();
        self.dirty_limits.paths_changed();
        self.limits_changed();
    }

    fn cgroup_removed(self: Arc<Self>, cgroup: &Arc<Cgroup>, path: &CgroupPath, heir: &CgroupPath) {
        self.throttle.owner_removed(path, heir);
        if let Some(wb) = self.wbs.unlink(cgroup) {
            self.clean_up(&wb);
        }
    }
}
