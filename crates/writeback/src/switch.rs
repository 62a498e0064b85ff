//! Moving inodes from one wb to another.
//!
//! 1. *Prepare*, under the inode's lock: pin the superblock (which looks at `SB_ACTIVE` again),
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
//! that it misses none that moves), then as in `link`. They are released between two inodes: the
//! thousands of a removed cgroup must not hold up a writer that dirties one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sync::atomic::Ordering;
use sync::mutant::is_on;
use sync::thread;

use crate::Bdi;
use crate::cgroup::Owner;
use crate::drain::{Bell, OwnSwitches, Pin};
use crate::grace::Cookie;
use crate::link::{Inode, Link, Place, State};
use crate::queue::Work;
use crate::switcher::{InFlight, World};
use crate::wb::Wb;

/// Inodes between two offers to let another thread run.
const YIELD_AFTER: usize = 16;

/// `isw`: inodes on their way to one wb.
#[derive(Debug)]
pub(crate) struct Isw<I: Inode> {
    items: Vec<Item<I>>,
    target: Incoming<I>,
    _in_flight: InFlight,
}

/// One inode on its way. Dropped in this order: the reference, then the pin.
#[derive(Debug)]
pub(crate) struct Item<I> {
    inode: Option<Arc<I>>,
    pin: Option<Pin>,
}

impl<I> Drop for Item<I> {
    fn drop(&mut self) {
        if is_on("switch-unpin-before-put") {
            drop(self.pin.take());
        }
        drop(self.inode.take());
    }
}

/// Keeps a wb while a switch to it is under way. Dropped with no lock held.
#[derive(Debug)]
pub(crate) struct Incoming<I: Inode> {
    wb: Arc<Wb<I>>,
    bdi: Arc<Bdi<I>>,
}

impl<I: Inode> Drop for Incoming<I> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; a thread that then gives the wb back takes a lock first.
        self.wb.incoming.fetch_sub(1, Ordering::Relaxed);
        // The clean-up of its cgroup found the wb in use; no other thread would come back.
        if !self.wb.cgroup().is_living() {
            self.bdi.give_back(&self.wb);
        }
    }
}

/// A worker's run.
#[derive(Debug)]
pub(crate) enum Switch<I: Inode> {
    /// Makes the switches that wait for this grace period.
    Make(Arc<Bdi<I>>, Cookie),
    /// Gives a wb back on behalf of a drain. That may wait for room among the callbacks, which all
    /// superblocks share.
    GiveBack(Arc<Bdi<I>>, Arc<Wb<I>>),
}

impl<I: Inode> Bdi<I> {
    /// The wb of `owner`, or of its nearest ancestor that lives.
    pub(crate) fn target(self: &Arc<Self>, owner: Owner) -> Incoming<I> {
        let mut cgroup = self.switcher.cgroups().nearest(owner);
        loop {
            // Removed in between: its parent.
            match self.wbs.get_or_make(&cgroup) {
                Some(wb) => return Incoming { wb, bdi: Arc::clone(self) },
                None => cgroup = cgroup.nearest_living(),
            }
        }
    }

    /// A foreign switch: lets `owner` have the inode. `false` if it is on its way already, if too
    /// many are, or if the superblock is being unmounted.
    pub fn switch_to(self: &Arc<Self>, inode: &Arc<I>, owner: Owner) -> bool {
        let world = &self.switcher.world;
        if inode.link().is_switching() || !self.superblock.is_active() {
            return false;
        }
        let Some(in_flight) = world.begin_foreign(&self.in_flight) else { return false };
        inode.changes_owner();
        let mut parts = Some((self.target(owner), in_flight));
        let mut is_queued = false;
        world.discipline.section(&world.grace, &mut || {
            let Some((target, in_flight)) = parts.take() else { return };
            let prepared = self.prepare(inode, &mut inode.link().state(), &target);
            let Some(item) = prepared else { return };
            world.discipline.between();
            self.queue_switch(Isw::new(vec![item], target, in_flight));
            is_queued = true;
        });
        is_queued
    }

    /// Step 1. The caller holds the inode's lock: `state`.
    pub(crate) fn prepare(&self, inode: &Arc<I>, state: &mut State, target: &Incoming<I>) -> Option<Item<I>> {
        let link = inode.link();
        let pin = self.switcher.world.discipline.pin(&self.superblock).ok()?;
        let is_there = link.index() == target.wb.index;
        if state.freeing || state.place == Place::Off || link.is_switching() || is_there {
            if is_on("switch-failed-kept") {
                self.superblock.pin().into_iter().for_each(std::mem::forget);
            }
            return None;
        }
        // ORDERING: Relaxed: the grace period of the worker orders it against accounting, the lock
        // against all other threads.
        link.switching.store(true, Ordering::Relaxed);
        state.heading = target.wb.index;
        Some(Item { inode: Some(Arc::clone(inode)), pin })
    }

    /// Step 2.
    pub(crate) fn queue_switch(self: &Arc<Self>, isw: Isw<I>) {
        let bdi = Arc::clone(self);
        let push = move || {
            let World { grace, discipline, .. } = &*bdi.switcher.world;
            let pushed = bdi.pending.push(isw, grace, &bdi.superblock, discipline.waits_in_turn());
            // From here on the superblock may be gone; the device is not.
            pushed.bell.into_iter().for_each(Bell::ring);
            if let Some(after) = pushed.run {
                let queue = bdi.switcher.switches.clone();
                queue.push(Switch::Make(bdi, after));
            }
        };
        let world = &self.switcher.world;
        if world.discipline.is_deferred() { world.grace.call(push) } else { push() }
    }

    /// One inode of step 3; returns the wb that it came from.
    fn move_inode(&self, inode: &Arc<I>, to: &Arc<Wb<I>>) -> Option<Arc<Wb<I>>> {
        let link = inode.link();
        // The index stays: only this thread may change it, as long as the flag is set.
        let from = self.wb_at(link.index()).filter(|from| !Arc::ptr_eq(from, to))?;
        self.note_touch();
        let _sync_waits = self.switching.read();
        let (mut from_lists, mut to_lists) = Wb::both(&from, to);
        let mut state = link.state();
        let mut is_new = false;
        if !state.freeing {
            transfer(link, &from, to);
            self.recount(&from);
            self.recount(to);
            if let Some(entry) = from_lists.remove(link, &mut state) {
                to_lists.insert(link, &mut state, entry);
            }
            state.foreign = crate::Foreign::default();
            state.round = None;
            to.switched.add(1);
            self.switched.add(1);
            self.switcher.world.switched.add(1);
            from.note_lists(&mut from_lists);
            is_new = to.note_lists(&mut to_lists);
        }
        // ORDERING: Release, P2 of `link`.
        let order = if is_on("switch-clear-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        link.switching.store(false, order);
        drop((state, from_lists, to_lists));
        if is_new {
            self.need_flusher();
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
            self.tell_of_less();
        }
        left.iter().for_each(|wb| self.give_back(wb));
        dying.retain(|wb| wb.lists().dying);
        dying.iter().for_each(|wb| self.clean_up(wb));
    }

    /// Gives a dying wb back if nothing is left of it. A drain leaves that to another thread, so
    /// that it does not wait for the work of others.
    fn give_back(self: &Arc<Self>, wb: &Arc<Wb<I>>) {
        if self.superblock.is_active() {
            self.wbs.give_back(wb);
        } else if !wb.cgroup().is_living() {
            self.switcher.switches.push(Switch::GiveBack(Arc::clone(self), Arc::clone(wb)));
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
                tracing::error!("an inode panicked when it changed its owner");
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

impl<I: Inode> Isw<I> {
    pub(crate) fn new(items: Vec<Item<I>>, target: Incoming<I>, in_flight: InFlight) -> Self {
        Self { items, target, _in_flight: in_flight }
    }
}

impl<I: Inode> Incoming<I> {
    pub(crate) fn wb(&self) -> &Arc<Wb<I>> {
        &self.wb
    }
}

/// Moves an inode's bytes to another wb, and the inode itself (`i_wb`). Both wbs' lists and the
/// inode are locked.
fn transfer<I: Inode>(link: &Link<I>, from: &Wb<I>, to: &Wb<I>) {
    let _accounting_waits = link.pages.lock();
    for (bytes, from, to) in
        [(&link.dirty, &from.dirty, &to.dirty), (&link.writeback, &from.writeback, &to.writeback)]
    {
        // ORDERING: Relaxed: by P1 of `link` accounting is over, or waits for the lock; the sums
        // are figures.
        let bytes = bytes.load(Ordering::Relaxed);
        from.fetch_sub(bytes, Ordering::Relaxed);
        to.fetch_add(bytes, Ordering::Relaxed);
    }
    // ORDERING: Release, P2 of `link` for a thread without a lock.
    let order = if is_on("switch-clear-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    link.wb.store(to.index, order);
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
                self.switcher.world.grace.wait_for(after);
            }
            this.make_switches(list);
        }
    }
}

impl<I: Inode> Work for Switch<I> {
    fn run(self) {
        let (bdi, after) = match self {
            Self::Make(bdi, after) => (bdi, after),
            Self::GiveBack(bdi, wb) => return bdi.wbs.give_back(&wb),
        };
        let World { grace, discipline, .. } = &*bdi.switcher.world;
        let list = if discipline.waits_in_turn() {
            let list = bdi.pending.take_first();
            grace.synchronize();
            list
        } else {
            if !is_on("switch-no-grace") {
                grace.wait_for(after);
            }
            // Until then a drain can take it.
            bdi.pending.take(after)
        };
        bdi.make_switches(list);
        while is_on("switch-worker-loops") {
            let Some((_, more)) = bdi.pending.take_all() else { break };
            bdi.make_switches(more);
        }
    }
}
