//! The data that a sync covers, and the limits that it may pass.
//!
//! | policy | a sync writes and waits for | at whose limits |
//! |---|---|---|
//! | [`SyncPolicy::Vanilla`] | all that is dirty | each owner's |
//! | [`SyncPolicy::Boost`] | all that is dirty | its own cgroup's and those of that one's ancestors; the rest goes at once, as a debt of its owner |
//! | [`SyncPolicy::Isolated`] | data of its own cgroup and those below (or of the nearest cgroup above it for which isolation was set) | as with `Boost` |
//!
//! A sync covers the data that was dirty when it began: it begins an epoch, and data dirtied
//! afterwards belongs to the next. So a sync ends, however many writers go on, and repeated syncs
//! are no way round a limit.
//!
//! An inode that is on its way to another wb is found where it is: no thread moves one while a sync
//! looks. An isolated sync also finds inodes that are on their way to its own cgroup. A sync
//! without work finds that out without a lock of the device.
//!
//! Lock order: as in `bdi`.

use std::sync::Arc;
use std::time::Duration;

use sync::mutant::is_on;

use cgroups::CgroupId;
use throttle::{Boost, CgroupPath, Chain, Direction, OnLimit, Request, Scope, ThrottledWrite};

use crate::device::bdi::Bdi;
use crate::device::inode::Inode;
use crate::device::wb::Wb;

/// The policy of a sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SyncPolicy {
    /// All that is dirty, at its owners' limits.
    Vanilla,
    /// All that is dirty, at full speed.
    #[default]
    Boost,
    /// Data of its own cgroup and those below it.
    Isolated,
}

/// The process that syncs.
pub trait SyncCaller: Sync {
    /// The cgroup that it is in at this moment.
    fn cgroup(&self) -> CgroupPath;
}

impl SyncCaller for CgroupPath {
    fn cgroup(&self) -> CgroupPath {
        self.clone()
    }
}

/// A sync that has begun. Boosts the data that it waits for until it is dropped.
pub struct Syncing<'a, I: Inode> {
    bdi: &'a Bdi<I>,
    caller: &'a dyn SyncCaller,
    epoch: u64,
    inodes: Vec<Arc<I>>,
    boost: Option<Boost>,
}

impl<I: Inode> std::fmt::Debug for Syncing<'_, I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Syncing");
        debug.field("epoch", &self.epoch).field("inodes", &self.inodes.len()).field("boost", &self.boost);
        debug.finish_non_exhaustive()
    }
}

impl<I: Inode> Bdi<I> {
    /// Begins a sync.
    pub fn begin_sync<'a>(&'a self, caller: &'a dyn SyncCaller, policy: SyncPolicy) -> Syncing<'a, I> {
        let epoch = self.throttle().begin_epoch();
        let who = caller.cgroup();
        let inodes = match policy {
            _ if self.unwritten() == 0 => Vec::new(),
            SyncPolicy::Vanilla | SyncPolicy::Boost => self.snapshot(),
            SyncPolicy::Isolated => {
                self.snapshot_of(&self.throttle().isolation_of(&who).unwrap_or_else(|| who.clone()))
            }
        };
        let may_boost = policy != SyncPolicy::Vanilla && !inodes.is_empty();
        let chains = may_boost.then(|| self.chains_of(&inodes));
        let scope = if policy == SyncPolicy::Isolated { Scope::These } else { Scope::All };
        let boost = chains.map(|chains| self.throttle().boost(&who, &chains, epoch, scope));
        Syncing { bdi: self, caller, epoch, inodes, boost }
    }

    /// Begins to make one inode's data durable, whichever cgroup owns it: it is boosted as for
    /// [`SyncPolicy::Boost`].
    pub fn begin_fsync<'a>(
        &'a self,
        caller: &'a dyn SyncCaller,
        policy: SyncPolicy,
        inode: &Arc<I>,
    ) -> Syncing<'a, I> {
        let epoch = self.throttle().begin_epoch();
        let boost = (policy != SyncPolicy::Vanilla).then(|| {
            let chain = self.chain_of(inode);
            let number = inode.inode_wb().number;
            self.throttle().boost(&caller.cgroup(), chain.as_slice(), epoch, Scope::Inode(number))
        });
        Syncing { bdi: self, caller, epoch, inodes: vec![Arc::clone(inode)], boost }
    }

    /// The limits that are over an inode's data; `None` before it has an owner.
    pub fn chain_of(&self, inode: &I) -> Option<Arc<Chain>> {
        Some(self.wb_at(inode.inode_wb().index())?.chain(self.throttle()))
    }

    /// Charges the inode's owner for a write of so many bytes that must not wait.
    pub fn charge(&self, inode: &I, bytes: u64) {
        if let Some(chain) = self.chain_of(inode).filter(|chain| !chain.is_empty()) {
            let inode = inode.inode_wb().number;
            let direction = Direction::Write;
            self.throttle().charge(&chain, &Request { direction, bytes, operations: 1, epoch: 0, inode });
        }
    }

    /// The time until which the inode's owner owes so much that it may not dirty `more` bytes: with
    /// its dirty bytes, more than its `dirty_max` or `bytes_max`.
    pub fn owes_until(&self, inode: &I, more: u64, bytes_max: u64) -> Option<Duration> {
        if !self.throttle().is_limiting() {
            return None;
        }
        let wb = self.wb_at(inode.inode_wb().index())?;
        let own_max = wb.domains(&self.dirty_limits).limits.iter().map(|domain| domain.bytes_max).min();
        let most = own_max.map_or(bytes_max, |own| own.min(bytes_max));
        let room = most.saturating_sub(wb.unwritten_bytes().saturating_add(more));
        self.throttle().owed_until(&wb.chain(self.throttle()), room)
    }

    /// The limits that a cgroup is under.
    pub fn chain_of_owner(self: &Arc<Self>, owner: CgroupId) -> Arc<Chain> {
        let known = self.wbs.find(&self.switcher.domain().read(), owner);
        let wb = known.unwrap_or_else(|| Arc::clone(&self.target(owner).wb));
        wb.chain(self.throttle())
    }

    /// A way past the limits for data of `inode` that is dirty since `epoch` or before.
    pub fn throttled_write<'a>(&'a self, inode: &'a I, epoch: u64, how: OnLimit) -> ThrottledWrite<'a> {
        let chain = || self.chain_of(inode).unwrap_or_else(|| self.throttle().no_limits());
        ThrottledWrite::new(self.throttle(), chain, epoch, inode.inode_wb().number, how)
    }

    /// Whether any inode is dirty or being written that `who` or a cgroup below it owns, or that is
    /// on its way there. Waits for no writer, nor for inodes that move.
    pub fn has_unwritten_of(&self, who: &CgroupPath) -> bool {
        loop {
            // As in `snapshot_of`: an inode that moves between two wbs of `who` may be missed, and
            // the move is counted then.
            let moved = self.switched.get();
            let is_own = |wb: &Arc<Wb<I>>| wb.cgroup_path().is_within(who);
            if self.all_wbs().into_iter().filter(is_own).any(|wb| !wb.is_settled()) {
                return true;
            }
            if self.switched.get() == moved {
                return false;
            }
        }
    }

    /// Every inode that is dirty and owned by `who` or below, or on its way there.
    fn snapshot_of(&self, who: &CgroupPath) -> Vec<Arc<I>> {
        let is_own = |wb: &Arc<Wb<I>>| wb.cgroup_path().is_within(who);
        // An inode that moves between two of these wbs during the search is found in neither: it
        // was not yet on its way to the first when that one was checked, and has left the second. A
        // move is counted under both wbs' locks: a thread that searched the first before it and at
        // the second after it finds the count changed.
        let moved = self.switched.get();
        let own: Vec<Arc<Wb<I>>> = self.all_wbs().into_iter().filter(is_own).collect();
        // Only the locks of these wbs: a tenant with nothing to write waits for no other.
        let is_settled = own.iter().all(|wb| wb.is_settled());
        if is_settled && (self.switched.get() == moved || is_on("isolation-looks-once")) {
            return Vec::new();
        }
        let _nobody_moves = self.switching.write();
        let mut found: Vec<Arc<I>> = own.iter().flat_map(|wb| wb.snapshot()).collect();
        if is_on("isolation-forgets-switched") {
            return found;
        }
        let others = self.all_wbs().into_iter().filter(|wb| !is_own(wb));
        for inode in others.flat_map(|wb| wb.snapshot()) {
            let switch_target = inode.inode_wb().switch_target();
            if switch_target.is_some_and(|to| own.iter().any(|wb| wb.index == to)) {
                found.push(inode);
            }
        }
        found
    }

    /// The limits over these inodes, each once.
    fn chains_of(&self, inodes: &[Arc<I>]) -> Vec<Arc<Chain>> {
        let mut owners: Vec<u32> = inodes.iter().map(|inode| inode.inode_wb().index()).collect();
        owners.sort_unstable();
        owners.dedup();
        let wbs = owners.into_iter().filter_map(|index| self.wb_at(index));
        wbs.map(|wb| wb.chain(self.throttle())).filter(|chain| !chain.is_empty()).collect()
    }
}

impl<I: Inode> Syncing<'_, I> {
    /// The inodes to be written: their data that is dirty since the epoch or before.
    #[must_use]
    pub fn inodes(&self) -> &[Arc<I>] {
        &self.inodes
    }

    /// The sync's epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The way past the limits for one of them.
    #[must_use]
    pub fn throttled_write<'a>(&'a self, inode: &'a I) -> ThrottledWrite<'a> {
        self.bdi.throttled_write(inode, self.epoch, OnLimit::Wait).boosted(self.boost.as_ref())
    }
}

impl<I: Inode> Drop for Syncing<'_, I> {
    fn drop(&mut self) {
        if let Some(boost) = self.boost.as_mut().filter(|_| is_on("boost-by-current-cgroup")) {
            boost.narrow_to(&self.caller.cgroup());
        }
    }
}
