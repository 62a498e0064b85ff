//! A caller waits for data of other cgroups, but not for their limits.
//!
//! A boost has a waiver in each group whose limits it waives. It keeps these groups, not the way to
//! find them: it takes its waivers back from these, wherever its waiter has been moved meanwhile.
//! Data that the waiter waits for may come under other limits before it is written: a limit is set,
//! or the inode changes its owner. The thread that writes it for the waiter then
//! [covers](Boost::cover) these as well, for the same data.
//!
//! Lock order: `Boost::covered`, then groups' buckets.

use std::collections::BTreeMap;
use std::sync::Arc;

use sync::Mutex;
use sync::atomic::Ordering;
use sync::mutant::is_on;

use crate::group::{ThrotlGroup, Waiver};
use crate::limit::CgroupPath;
use crate::throttle::{Chain, Throttle};

/// The data that a waiter waits for, of all that is dirty since its epoch or before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All data of all cgroups.
    All,
    /// All data of the cgroups that it begins with, and single inodes of others.
    These,
    /// Data of one inode.
    Inode(u64),
}

type Covered = BTreeMap<(usize, Option<u64>), Arc<ThrotlGroup>>;

/// Lets data that another caller waits for pass limits, until dropped.
#[derive(Debug)]
pub struct Boost {
    throttle: Arc<Throttle>,
    /// The waiter's cgroup when it began.
    waiter: CgroupPath,
    number: u64,
    epoch: u64,
    scope: Scope,
    /// The groups that have a waiver, by address, for all their data or that of one inode.
    covered: Mutex<Covered>,
}

impl Throttle {
    /// Lets data of the cgroups of `chains` go on that is dirty since `epoch` or before, of one
    /// inode or of all, because a caller in cgroup `waiter` waits for it. Limits of the waiter's
    /// own cgroup and of its ancestors still hold: a group's limits are waived only for a waiter
    /// that is neither in the group nor below it. Requests that wait for the waived limits are
    /// woken. Data that comes under other limits meanwhile is [covered](Boost::cover) there as
    /// well.
    pub fn boost(
        self: &Arc<Self>,
        waiter: &CgroupPath,
        chains: &[Arc<Chain>],
        epoch: u64,
        scope: Scope,
    ) -> Boost {
        let boost = Boost {
            throttle: Arc::clone(self),
            waiter: waiter.clone(),
            // ORDERING: Relaxed, only a number.
            number: self.boosts.fetch_add(1, Ordering::Relaxed),
            epoch: if is_on("boost-unbounded") { u64::MAX } else { epoch },
            scope,
            covered: Mutex::default(),
        };
        let inode = if let Scope::Inode(inode) = scope { Some(inode) } else { None };
        boost.add(chains.iter().flat_map(|chain| chain.groups()), inode);
        boost
    }
}

impl Boost {
    /// Waives the limits of `chain` as well, for one inode that the waiter waits for.
    pub fn cover(&self, chain: &Chain, inode: u64) {
        if !chain.is_empty() && !is_on("boost-not-extended") {
            self.add(chain.groups().iter(), (self.scope != Scope::All).then_some(inode));
        }
    }

    fn add<'a>(&self, groups: impl Iterator<Item = &'a Arc<ThrotlGroup>>, inode: Option<u64>) {
        let mut is_new = false;
        let mut covered = self.covered.lock();
        for group in groups.filter(|group| !self.waiter.is_within(group.path())) {
            let address = Arc::as_ptr(group).addr();
            if covered.contains_key(&(address, None)) || covered.contains_key(&(address, inode)) {
                continue;
            }
            covered.insert((address, inode), Arc::clone(group));
            group.buckets().add_waiver(Waiver { number: self.number, epoch: self.epoch, inode });
            is_new = true;
        }
        drop(covered);
        if is_new && !is_on("boost-no-kick") {
            self.throttle.wake_all();
        }
    }

    /// No data is boosted: there is no limit, or the waiter is under each of them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.covered.lock().is_empty()
    }

    /// Takes back only what a waiter in `cgroup` would have been given: a mutant.
    #[doc(hidden)]
    pub fn narrow_to(&mut self, cgroup: &CgroupPath) {
        self.covered.lock().retain(|_, group| !cgroup.is_within(group.path()));
    }
}

impl Drop for Boost {
    fn drop(&mut self) {
        let covered = std::mem::take(&mut *self.covered.lock());
        for group in covered.values() {
            group.buckets().remove_waiver(self.number);
        }
        if !covered.is_empty() {
            // Threads that waited for the same data have nothing to wait for any more.
            self.throttle.wake_all();
        }
    }
}
