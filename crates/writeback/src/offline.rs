//! The end of a cgroup: its wb's inodes go to the nearest ancestor that lives.
//!
//! Clean inodes go at once, in batches. One that is dirty or being written stays until it has been written: moved, its data would
//! escape the limits of the cgroup that dirtied it. When its write-back ends the clean-up is queued again.

use std::ops::Bound;
use std::sync::Arc;

use sync::atomic::Ordering;

use crate::Bdi;
use crate::link::Inode;
use crate::queue::Work;
use crate::switch::{Incoming, Isw, Item};
use crate::wb::Wb;

/// Inodes in one batch (`WB_MAX_INODES_PER_ISW`: what fits a page beside the head).
pub const BATCH: usize = 126;

/// A clean-up of one dying wb.
#[derive(Debug)]
pub(crate) struct CleanUp<I: Inode> {
    bdi: Arc<Bdi<I>>,
    wb: Arc<Wb<I>>,
}

/// What was found at a wb.
struct Batch<I> {
    items: Vec<Item<I>>,
    /// Where to go on, if there is more.
    next: Option<u64>,
}

impl<I: Inode> Bdi<I> {
    /// Queues the clean-up of a dying wb, unless it waits already.
    pub(crate) fn clean_up(self: &Arc<Self>, wb: &Arc<Wb<I>>) {
        // ORDERING: AcqRel, pairs with the store in `run`: who finds it set knows that a clean-up will look later.
        if !wb.is_cleaning.swap(true, Ordering::AcqRel) {
            self.switcher.clean_ups.push(CleanUp { bdi: Arc::clone(self), wb: Arc::clone(wb) });
        }
    }

    /// Prepares up to [`BATCH`] clean inodes of `wb`, beginning after `from`.
    fn prepare_batch(&self, wb: &Wb<I>, target: &Incoming<I>, from: u64) -> Batch<I> {
        let mut batch = Batch { items: Vec::new(), next: None };
        // References that are not wanted after all: dropped without the lock.
        let mut spare = Vec::new();
        let lists = wb.lists();
        for (number, inode) in lists.attached.range((Bound::Excluded(from), Bound::Unbounded)) {
            if batch.items.len() == BATCH {
                break;
            }
            batch.next = Some(*number);
            let Some(inode) = inode.upgrade() else { continue };
            let prepared = self.prepare(&inode, &mut inode.link().state(), target);
            batch.items.extend(prepared);
            spare.push(inode);
        }
        drop(lists);
        batch
    }
}

impl<I: Inode> Work for CleanUp<I> {
    fn run(self) {
        let Self { bdi, wb } = self;
        // ORDERING: Release, see `clean_up`: whoever asks from here on gets another one.
        wb.is_cleaning.store(false, Ordering::Release);
        let world = &bdi.switcher.world;
        let mut from = Some(0);
        while let Some(after) = from.take() {
            let target = bdi.target(wb.cgroup().nearest_living().number());
            if Arc::ptr_eq(target.wb(), &wb) || !bdi.superblock.is_active() {
                break;
            }
            let mut target = Some(target);
            world.discipline.section(&world.grace, &mut || {
                let Some(target) = target.take() else { return };
                let batch = bdi.prepare_batch(&wb, &target, after);
                from = batch.next;
                if !batch.items.is_empty() {
                    world.discipline.between();
                    bdi.queue_switch(Isw::new(batch.items, target, world.begin_clean_up()));
                }
            });
        }
        bdi.wbs.give_back(&wb);
    }
}
