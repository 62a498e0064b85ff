//! The verdict of a device's dirty limits on a writer: the rules of `dirty::limits`, with the bytes
//! of the device's wbs.

use std::sync::Arc;

use throttle::CgroupPath;

use crate::device::bdi::Bdi;
use crate::device::inode::Inode;
use crate::device::wb::Wb;
use crate::dirty::limits::{self, Balance, DirtyReservation};

const PAGE: u64 = 4096;

impl<I: Inode> Bdi<I> {
    /// Wakes the flushers if the inode's owner is over its background threshold, or has more than may
    /// rest, or if the cache is over its own and the owner is one that holds much.
    pub fn check_background(&self, inode: &I) {
        let over_bg_thresh = self.over_bg_thresh(1);
        if over_bg_thresh {
            self.start_background();
        }
        let has_own_limit = self.dirty_limits.is_used() || self.options.write_behind_bytes.is_some();
        if !over_bg_thresh && !has_own_limit {
            return;
        }
        let looked = self.wbs.with(&self.switcher.domain().read(), inode.inode_wb().index(), Arc::clone);
        if let Some(wb) =
            looked.filter(|wb| self.is_urgent(wb) || (over_bg_thresh && self.over_fair_share(wb)))
        {
            wb.signal();
            self.ensure_flusher();
        }
    }

    /// Sets how many bytes a cgroup and those below it may have that are not on the store
    /// (`memory.dirty_max`); `None`: any number.
    pub fn set_dirty_max(&self, path: &CgroupPath, bytes_max: Option<u64>) {
        self.dirty_limits.set(path, bytes_max);
        self.limits_changed();
    }

    /// Sets a limit for each cgroup for which none is set, the root left out.
    pub fn set_dirty_max_of_others(&self, bytes_max: Option<u64>) {
        self.dirty_limits.set_of_others(bytes_max);
        self.limits_changed();
    }

    /// The limits that were set by [`set_dirty_max`](Self::set_dirty_max).
    pub fn dirty_max(&self) -> Vec<(CgroupPath, u64)> {
        self.dirty_limits.all()
    }

    /// Wakes waiters after a switch: a cgroup has less than before though nothing was written, and
    /// inodes came under other limits.
    pub(crate) fn wake_waiters(&self) {
        self.budget.wake_all();
        if self.throttle.is_limiting() {
            self.throttle.wake_all();
        }
    }

    /// A wb's bytes were changed: counts them at its limits.
    pub(crate) fn recount(&self, wb: &Wb<I>) {
        if self.dirty_limits.is_used() {
            wb.domains(&self.dirty_limits);
        }
    }

    /// Limits were changed: waiters ask again.
    pub fn limits_changed(&self) {
        if self.dirty_limits.is_used() {
            self.all_wbs().iter().for_each(|wb| _ = wb.domains(&self.dirty_limits));
        }
        self.budget.wake_all();
        self.signal_all();
    }

    /// Whether the inode's owner may have so many pages more, by its limits and by its share of the
    /// cache beside the other cgroups.
    pub fn balance(&self, inode: &I, pages: u64) -> Balance {
        self.reserve(inode, pages).0
    }

    /// Like [`balance`](Self::balance), and reserves the room: no other writer gets it until it is
    /// dropped, when the pages are accounted for.
    pub fn reserve(&self, inode: &I, pages: u64) -> (Balance, Option<DirtyReservation>) {
        let section = self.switcher.domain().read();
        let Some(wb) = self.wbs.with(&section, inode.inode_wb().index(), Arc::clone) else {
            return (Balance::Freerun, None);
        };
        let held = wb.unwritten_bytes();
        let is_alone = self.wbs.is_alone(&section);
        if !is_alone
            && !limits::has_share(self.budget.limit(), self.budget.used(), held.div_ceil(PAGE), pages)
        {
            return (Balance::Blocked, None);
        }
        if !self.dirty_limits.is_used() {
            return (Balance::Freerun, None);
        }
        drop(section);
        wb.domains(&self.dirty_limits).reserve(pages * PAGE, wb.bandwidth(), &self.budget)
    }

    /// Whether [`reserve`](Self::reserve) would give room, when others have taken the `promised`
    /// pages.
    pub fn has_room(&self, inode: &I, pages: u64, promised: u64) -> bool {
        let section = self.switcher.domain().read();
        let Some(wb) = self.wbs.with(&section, inode.inode_wb().index(), Arc::clone) else { return true };
        let held = wb.unwritten_bytes().div_ceil(PAGE).saturating_add(promised);
        let used = self.budget.used().saturating_add(promised);
        let has_share = || limits::has_share(self.budget.limit(), used, held, pages);
        if !self.wbs.is_alone(&section) && !has_share() {
            return false;
        }
        !self.dirty_limits.is_used() || wb.domains(&self.dirty_limits).has_room(pages * PAGE, promised * PAGE)
    }

    /// Whether the owner's own limits leave no room for so many pages more.
    pub fn is_at_dirty_limit(&self, inode: &I, pages: u64) -> bool {
        let looked = self.wbs.with(&self.switcher.domain().read(), inode.inode_wb().index(), Arc::clone);
        let is_at = |wb: Arc<Wb<I>>| !wb.domains(&self.dirty_limits).has_room(pages * PAGE, 0);
        self.dirty_limits.is_used() && looked.is_some_and(is_at)
    }

    /// Whether a wb's data is to be written at once, for its owner's limits.
    pub(crate) fn is_over_background(&self, wb: &Wb<I>) -> bool {
        let domains = wb.domains(&self.dirty_limits);
        domains.limits.iter().any(|domain| limits::is_over_background(domain.bytes_max, domain.held()))
    }
}
