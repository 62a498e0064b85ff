//! Moving inodes from one wb to another.
//!
//! 1. *Prepare*, under the inode's lock: pin the superblock (which reads `SB_ACTIVE` again),
//!    check that the inode is not on its way already, not being freed, not there already; set
//!    `I_WB_SWITCH`; take a reference. A step that fails gives the pin back.
//! 2. *Queue*: push the inodes on the superblock's list, in the batch that waits for the same grace
//!    period; a thread that begins a batch queues a worker's run for it (`pending`).
//! 3. *Work*: wait for that grace period, so that page accounting sees the flags; take the batch,
//!    **once**; then move inode after inode, each under both wbs' locks, clear its flag, drop the
//!    reference, **then** the pin. A drain does the same with all batches of its superblock, and
//!    waits for no worker's turn.
//!
//! A worker that took another batch as well would find switches whose flags no grace period has
//! followed, and would not end while new ones come: each batch has a run of its own.
//!
//! A flush waits for runs by number. A run takes only its own batch, or a later one that waits for
//! the same grace period after a drain took its own. So a switch that was queued before a flush is
//! made by a run that was queued before that flush, or by its superblock's drain.
//!
//! Locks: `Bdi::switching` (shared; a sync holds it exclusively while it looks for dirty inodes, so
//! that it misses none that moves), then as in `inode_wb`. They are released between two inodes:
//! the thousands of a removed cgroup must not hold up a writer that dirties one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sync::atomic::Ordering;
use sync::mutant::is_on;
use sync::thread;

use cgroups::CgroupId;

use crate::device::bdi::{Bdi, Isw, Item, SwitchTarget};
use crate::device::inode::{Inode, InodeWb, InodeWbState, OnList};
use crate::device::wb::Wb;
use crate::switch::domain::Cookie;
use crate::switch::drain::{DrainWaker, OwnSwitches};
use crate::switch::foreign::Foreign;
use crate::switch::switcher::{InFlight, SwitchState};

/// Inodes between two offers to let another thread run.
const YIELD_AFTER: usize = 16;

impl<I: Inode> Bdi<I> {
    /// The wb of `owner`, or of its nearest ancestor that lives.
    pub(crate) fn target(self: &Arc<Self>, owner: CgroupId) -> SwitchTarget<I> {
        let mut cgroup = self.switcher.cgroups().nearest(owner);
        loop {
            // Removed in between: its parent.
            match self.wbs.get_or_make(&cgroup) {
                Some(wb) => return SwitchTarget { wb, bdi: Arc::clone(self) },
                None => cgroup = cgroup.nearest_living(),
            }
        }
    }

    /// A foreign switch: lets `owner` have the inode. `false` if it is on its way already, if too
    /// many are, or if the superblock is being unmounted.
    pub fn switch_to(self: &Arc<Self>, inode: &Arc<I>, owner: CgroupId) -> bool {
        let switch_state = &self.switcher.state;
        if inode.inode_wb().is_switching() || !self.superblock.is_active() {
            return false;
        }
        let Some(in_flight) = switch_state.begin_foreign(&self.in_flight) else { return false };
        inode.on_owner_change();
        self.switch_one(inode, owner, in_flight)
    }

    /// Prepares the switch of one inode, and queues it. `false` if it need not be switched.
    pub(super) fn switch_one(self: &Arc<Self>, inode: &Arc<I>, owner: CgroupId, in_flight: InFlight) -> bool {
        let switch_state = &self.switcher.state;
        let mut parts = Some((self.target(owner), in_flight));
        let mut is_queued = false;
        switch_state.strategy.section(&switch_state.domain, &mut || {
            let Some((target, in_flight)) = parts.take() else { return };
            let prepared = self.prepare(inode, &mut inode.inode_wb().state(), &target);
            let Some(item) = prepared else { return };
            switch_state.strategy.delay_point();
            self.queue_switch(Isw { items: vec![item], target, _in_flight: in_flight });
            is_queued = true;
        });
        is_queued
    }

    /// Step 1. The caller holds the inode's lock: `state`.
    pub(crate) fn prepare(
        &self,
        inode: &Arc<I>,
        state: &mut InodeWbState,
        target: &SwitchTarget<I>,
    ) -> Option<Item<I>> {
        let inode_wb = inode.inode_wb();
        let pin = self.switcher.state.strategy.pin(&self.superblock).ok()?;
        let is_there = inode_wb.index() == target.wb.index;
        if state.freeing || state.on_list == OnList::Off || inode_wb.is_switching() || is_there {
            if is_on("switch-failed-kept") {
                self.superblock.pin().into_iter().for_each(std::mem::forget);
            }
            return None;
        }
        // ORDERING: Relaxed: the grace period of the worker orders it against accounting, the lock
        // against all other threads.
        inode_wb.switching.store(true, Ordering::Relaxed);
        state.switch_target = target.wb.index;
        Some(Item { inode: Some(Arc::clone(inode)), pin })
    }

    /// Step 2.
    pub(crate) fn queue_switch(self: &Arc<Self>, isw: Isw<I>) {
        let bdi = Arc::clone(self);
        let push = move || {
            let SwitchState { domain, strategy, .. } = &*bdi.switcher.state;
            let pushed = bdi.pending.push(isw, domain, &bdi.superblock, strategy.waits_in_turn());
            // From here on the superblock may be gone; the device is not.
            pushed.waker.into_iter().for_each(DrainWaker::wake);
            if let Some(after) = pushed.run {
                let queue = bdi.switcher.switches.clone();
                queue.push(move || bdi.run_switches(after));
            }
        };
        let switch_state = &self.switcher.state;
        if switch_state.strategy.is_deferred() { switch_state.domain.call(push) } else { push() }
    }

    /// A worker's run: makes the switches that wait for this grace period.
    fn run_switches(self: &Arc<Self>, after: Cookie) {
        let SwitchState { domain, strategy, .. } = &*self.switcher.state;
        let list = if strategy.waits_in_turn() {
            let list = self.pending.take_first();
            domain.synchronize();
            list
        } else {
            if !is_on("switch-no-grace") {
                domain.cond_synchronize(after);
            }
            // Until then a drain can take it.
            self.pending.take(after)
        };
        self.make_switches(list);
        while is_on("switch-worker-loops") {
            let Some((_, more)) = self.pending.take_all() else { break };
            self.make_switches(more);
        }
    }

    /// One inode of step 3; returns the wb that it came from.
    fn move_inode(&self, inode: &Arc<I>, to: &Arc<Wb<I>>) -> Option<Arc<Wb<I>>> {
        let inode_wb = inode.inode_wb();
        // The index stays: only this thread may change it, as long as the flag is set.
        let from = self.wb_at(inode_wb.index()).filter(|from| !Arc::ptr_eq(from, to))?;
        self.note_touch();
        let _sync_waits = self.switching.read();
        let (mut from_lists, mut to_lists) = Wb::both(&from, to);
        let mut state = inode_wb.state();
        let mut is_new = false;
        if !state.freeing {
            transfer(inode_wb, &from, to);
            self.recount(&from);
            self.recount(to);
            if let Some(entry) = from_lists.remove(inode_wb, &mut state) {
                to_lists.insert(inode_wb, &mut state, entry);
            }
            state.foreign = Foreign::default();
            state.round = None;
            to.switched.add(1);
            self.switched.add(1);
            self.switcher.state.switched.add(1);
            from.note_lists(&mut from_lists);
            is_new = to.note_lists(&mut to_lists);
        }
        // ORDERING: Release, P2 of `inode_wb`.
        let order = if is_on("switch-clear-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        inode_wb.switching.store(false, order);
        drop((state, from_lists, to_lists));
        if is_new {
            self.ensure_flusher();
        }
        Some(from)
    }

    /// Step 3, after the grace period.
    fn make_switches(self: &Arc<Self>, list: Vec<Isw<I>>) {
        let mut left: Vec<Arc<Wb<I>>> = Vec::new();
        let mut dying: Vec<Arc<Wb<I>>> = Vec::new();
        let add = |to: &mut Vec<Arc<Wb<I>>>, wb: Arc<Wb<I>>| {
            if !to.iter().any(|known| Arc::ptr_eq(known, &wb)) {
                to.push(wb);
            }
        };
        for isw in list {
            add(&mut dying, Arc::clone(&isw.target.wb));
            self.move_inodes(isw).into_iter().for_each(|wb| add(&mut left, wb));
        }
        // From here on the superblock may be gone; the device is not. A writer that waited because
        // its cgroup had too much may go on.
        if !is_on("switch-tells-nobody") {
            self.wake_waiters();
        }
        left.iter().for_each(|wb| self.wb_put(wb));
        dying.retain(|wb| wb.lists().dying);
        dying.iter().for_each(|wb| self.clean_up(wb));
    }

    /// Gives a dying wb back if nothing is left of it. A drain leaves that to another thread: it
    /// may wait for room among the callbacks, which all superblocks share.
    pub(crate) fn wb_put(self: &Arc<Self>, wb: &Arc<Wb<I>>) {
        if self.superblock.is_active() {
            self.wbs.wb_put(wb);
        } else if !wb.cgroup().is_living() {
            let (this, wb) = (Arc::clone(self), Arc::clone(wb));
            self.switcher.switches.push(move || this.wbs.wb_put(&wb));
        }
    }

    /// Moves the inodes of one switch; returns the wbs that they came from.
    fn move_inodes(&self, mut isw: Isw<I>) -> Vec<Arc<Wb<I>>> {
        let mut left: Vec<Arc<Wb<I>>> = Vec::new();
        for (number, item) in isw.items.drain(..).enumerate() {
            // A panic over one inode must not keep the others from moving: their flags would stay
            // set.
            let one = || {
                let from = item.inode.as_ref().and_then(|inode| self.move_inode(inode, &isw.target.wb));
                drop(item);
                from
            };
            let from = catch_unwind(AssertUnwindSafe(one)).unwrap_or_else(|_| {
                self.panics.add(1);
                tracing::error!("an inode panicked while it changed its owner");
                None
            });
            if let Some(from) = from
                && !left.iter().any(|known| Arc::ptr_eq(known, &from))
            {
                left.push(from);
            }
            if number % YIELD_AFTER == YIELD_AFTER - 1 {
                thread::yield_now();
            }
        }
        left
    }
}

/// Moves an inode's bytes to another wb, and the inode itself (`i_wb`). Both wbs' lists and the
/// inode are locked.
fn transfer<I: Inode>(inode_wb: &InodeWb<I>, from: &Wb<I>, to: &Wb<I>) {
    let _accounting_waits = inode_wb.pages.lock();
    for (bytes, from, to) in
        [(&inode_wb.dirty, &from.dirty, &to.dirty), (&inode_wb.writeback, &from.writeback, &to.writeback)]
    {
        // ORDERING: Relaxed: by P1 of `inode_wb` accounting is over, or waits for the lock; the
        // sums are figures.
        let bytes = bytes.load(Ordering::Relaxed);
        from.fetch_sub(bytes, Ordering::Relaxed);
        to.fetch_add(bytes, Ordering::Relaxed);
    }
    // ORDERING: Release, P2 of `inode_wb` for a thread without a lock.
    let order = if is_on("switch-clear-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    inode_wb.wb.store(to.index, order);
}

impl<I: Inode> OwnSwitches for Bdi<I> {
    fn are_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    fn make(&self) {
        // The caller of the drain has the device.
        let Some(this) = self.this.upgrade() else { return };
        if let Some((after, list)) = self.pending.take_all() {
            if !is_on("switch-drain-no-grace") {
                self.switcher.state.domain.cond_synchronize(after);
            }
            this.make_switches(list);
        }
    }
}
