//! A caller waits for data of other cgroups, but not for their limits.
//!
//! A boost is a token in each group whose limits are waived. It keeps these groups, not the way to
//! find them: it takes its tokens back from these, wherever its waiter has been moved meanwhile.
//! Data that the waiter waits for may come under other limits before it is written: a limit is set,
//! or the inode changes its owner. The thread that writes it for the waiter then
//! [covers](Boost::cover) these as well, for the same data.
//!
//! Lock order: `Boost::covered`, then groups' buckets.

use std::collections::BTreeMap;
use std::sync::Arc;

use sync::Mutex;
use sync::mutant::is_on;

use crate::group::{Group, Token};
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

type Covered = BTreeMap<(usize, Option<u64>), Arc<Group>>;

/// Lets data that another caller waits for pass limits, until dropped.
#[derive(Debug)]
pub struct Boost {
    throttle: Arc<Throttle>,
    /// The waiter's cgroup when it began.
    waiter: CgroupPath,
    number: u64,
    epoch: u64,
    scope: Scope,
    /// The groups that have a token, by address, for all their data or that of one inode.
    covered: Mutex<Covered>,
}

impl Boost {
    pub(crate) fn new(
        throttle: Arc<Throttle>,
        waiter: &CgroupPath,
        number: u64,
        epoch: u64,
        scope: Scope,
        chains: &[Arc<Chain>],
    ) -> Self {
        let epoch = if is_on("boost-unbounded") { u64::MAX } else { epoch };
        let waiter = waiter.clone();
        let boost = Self { throttle, waiter, number, epoch, scope, covered: Mutex::default() };
        let inode = if let Scope::Inode(inode) = scope { Some(inode) } else { None };
        boost.add(chains.iter().flat_map(|chain| chain.groups()), inode);
        boost
    }

    /// Waives the limits of `chain` as well, for one inode that the waiter waits for.
    pub fn cover(&self, chain: &Chain, inode: u64) {
        if !chain.is_empty() && !is_on("boost-not-extended") {
            self.add(chain.groups().iter(), (self.scope != Scope::All).then_some(inode));
        }
    }

    fn add<'a>(&self, groups: impl Iterator<Item = &'a Arc<Group>>, inode: Option<u64>) {
        let mut is_new = false;
        let mut covered = self.covered.lock();
        for group in groups.filter(|group| !self.waiter.is_within(group.path())) {
            let address = Arc::as_ptr(group).addr();
            if covered.contains_key(&(address, None)) || covered.contains_key(&(address, inode)) {
                continue;
            }
            covered.insert((address, inode), Arc::clone(group));
            group.buckets().add_token(Token { number: self.number, epoch: self.epoch, inode });
            is_new = true;
        }
        drop(covered);
        if is_new && !is_on("boost-no-kick") {
            self.throttle.kick();
        }
    }

    /// No data is boosted: there is no limit, or the waiter is under each of them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.covered.lock().is_empty()
    }

    /// Takes back only what a waiter in `cgroup` would have been given: a mutant.
    pub(crate) fn keep_for(&mut self, cgroup: &CgroupPath) {
        self.covered.lock().retain(|_, group| !cgroup.is_within(group.path()));
    }
}

impl Drop for Boost {
    fn drop(&mut self) {
        let covered = std::mem::take(&mut *self.covered.lock());
        for group in covered.values() {
            group.buckets().remove_token(self.number);
        }
        if !covered.is_empty() {
            // Threads that waited for the same data have nothing to wait for any more.
            self.throttle.kick();
        }
    }
}
