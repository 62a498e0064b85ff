//! `io.max`: which requests may read from a store and write to it, and when.
//!
//! A [`Throttle`] belongs to one store. Limits belong to *paths* of cgroups: a limit that is set
//! before the cgroup exists applies once it does, and a cgroup that is removed and made again still
//! owes what it owed. A cgroup looks up the limits that it is under once, as a [`Chain`], and again
//! only when limits were added or taken away.
//!
//! | call | for |
//! |---|---|
//! | [`Throttle::try_admit`] | a caller with other work to do meanwhile: a flusher |
//! | [`Throttle::reserve`] | a caller that waits in its own call: its request is charged at once, so that waiters go in order |
//! | [`Throttle::charge`] | a request that must not wait: metadata, an unmount; it leaves a debt |
//! | [`Throttle::boost`] | data that another caller waits for |
//!
//! Every group of a chain must admit a request, and is charged for it.
//!
//! # A boost and waiters
//! A waiter registers as a listener, asks again, and then sleeps. A boost adds its waivers to the
//! groups, and then wakes the listeners. A waiter that asked before the waiver was there is already
//! a listener: the groups and the list of listeners have locks, which order both.
//!
//! Lock order: `Throttle::groups`, then groups' buckets, outer first. `Throttle::listeners` and
//! `Throttle::isolated` are leaves; listeners are called with none held.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::mutant::is_on;
use sync::{Clock, Mutex};

use crate::group::{Charge, Request, ThrotlGroup};
use crate::limit::{CgroupPath, Direction, Limits};

/// The limits of one store.
#[derive(Debug)]
pub struct Throttle {
    clock: Arc<dyn Clock>,
    pub(crate) groups: Mutex<BTreeMap<CgroupPath, Arc<ThrotlGroup>>>,
    /// The length of `groups`.
    limited: AtomicU64,
    /// No limit holds, until they are resumed; changed under `groups`.
    is_suspended: AtomicBool,
    /// Counts changes of limits.
    generation: AtomicU64,
    /// Counts boosts.
    pub(crate) boosts: AtomicU64,
    /// Counts syncs: data dirtied after a sync has begun belongs to a later epoch.
    epoch: AtomicU64,
    listeners: Mutex<Listeners>,
    isolated: Mutex<BTreeSet<CgroupPath>>,
    no_limits: Arc<Chain>,
}

/// The limits that one cgroup is under: its own and those of its ancestors.
#[derive(Debug)]
pub struct Chain {
    /// The cgroup that is under these limits.
    pub(crate) owner: CgroupPath,
    /// Outer ones first.
    pub(crate) groups: Vec<Arc<ThrotlGroup>>,
    generation: u64,
}

#[derive(Default)]
struct Listeners {
    next: u64,
    by_number: BTreeMap<u64, Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").field("count", &self.by_number.len()).finish_non_exhaustive()
    }
}

/// A registered listener: it is called at boosts and changes of limits, until dropped.
#[derive(Debug)]
pub struct Listening<'a> {
    throttle: &'a Throttle,
    number: u64,
}

impl Throttle {
    /// A store without limits.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            groups: Mutex::default(),
            limited: AtomicU64::new(0),
            is_suspended: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            boosts: AtomicU64::new(0),
            epoch: AtomicU64::new(1),
            listeners: Mutex::default(),
            isolated: Mutex::default(),
            no_limits: Arc::default(),
        }
    }

    /// The chain of an inode that has no owner.
    #[must_use]
    pub fn no_limits(&self) -> Arc<Chain> {
        Arc::clone(&self.no_limits)
    }

    /// The current time, on the clock that all times here refer to.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Sets what a cgroup may do from now on, whether or not it exists. Without any limit left, it
    /// is not limited and owes nothing.
    pub fn set(&self, path: &CgroupPath, limits: Limits) {
        let mut groups = self.groups.lock();
        let now = self.now();
        if limits.is_max() {
            if let Some(group) = groups.remove(path) {
                group.buckets().set_limits(limits, now);
            }
        } else {
            let group = groups
                .entry(path.clone())
                .or_insert_with_key(|path| Arc::new(ThrotlGroup::new(path.clone(), limits)));
            group.buckets().set_limits(limits, now);
        }
        // ORDERING: Relaxed, see `is_limiting`.
        self.limited.store(groups.len() as u64, Ordering::Relaxed);
        // ORDERING: Release, pairs with `is_current`: a thread that reads the new count and looks
        // the limits up again finds the change, by the lock as well.
        self.generation.fetch_add(1, Ordering::Release);
        drop(groups);
        self.wake_all();
    }

    /// Lets every request go at once, those that wait as well, until `false` is given: the limits
    /// and what is owed at them stay as they are.
    pub fn suspend(&self, is_suspended: bool) {
        let groups = self.groups.lock();
        // ORDERING: Relaxed, see `is_limiting`; `chain` reads it under the lock.
        self.is_suspended.store(is_suspended, Ordering::Relaxed);
        // ORDERING: Release, as in `set`.
        self.generation.fetch_add(1, Ordering::Release);
        drop(groups);
        self.wake_all();
    }

    /// The paths of cgroups have changed: holders of a chain look theirs up again.
    pub fn paths_changed(&self) {
        // ORDERING: Release, as in `set`: the paths were changed before, under their locks.
        self.generation.fetch_add(1, Ordering::Release);
        self.wake_all();
    }

    /// All limits, by path.
    pub fn limits(&self) -> Vec<(CgroupPath, Limits)> {
        self.groups.lock().iter().map(|(path, group)| (path.clone(), group.limits())).collect()
    }

    /// Whether anything is limited.
    pub fn is_limiting(&self) -> bool {
        // ORDERING: Relaxed; a thread that sees a limit too late goes on without it a moment
        // longer.
        self.limited.load(Ordering::Relaxed) > 0 && !self.is_suspended.load(Ordering::Relaxed)
    }

    /// The limits of a cgroup itself.
    pub fn get(&self, path: &CgroupPath) -> Limits {
        self.groups.lock().get(path).map_or_else(Limits::default, |group| group.limits())
    }

    /// The limits that a cgroup is under.
    pub fn chain(&self, path: &CgroupPath) -> Arc<Chain> {
        let groups = self.groups.lock();
        // ORDERING: Relaxed, changed under the lock.
        let generation = self.generation.load(Ordering::Relaxed);
        // ORDERING: Relaxed, changed under the lock.
        let holds = !self.is_suspended.load(Ordering::Relaxed);
        // In the map's order an ancestor comes before what is below it.
        let over = groups.values().filter(|group| holds && path.is_within(group.path())).map(Arc::clone);
        Arc::new(Chain { owner: path.clone(), groups: over.collect(), generation })
    }

    /// Whether `chain` is what [`Throttle::chain`] would give for its cgroup.
    pub fn is_current(&self, chain: &Chain) -> bool {
        // ORDERING: Acquire, see `set`. A thread that sees a change late uses the old limits a
        // moment longer.
        chain.generation == self.generation.load(Ordering::Acquire)
    }

    /// The epoch of data that is dirtied now.
    pub fn epoch(&self) -> u64 {
        // ORDERING: Relaxed. Data whose write returned before a sync began has at most that sync's
        // epoch: the write happens before the sync, and a count never falls. For all other data any
        // epoch is right.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins a sync. Returns the epoch of all data that is dirty at this moment; data dirtied
    /// later has a later one.
    pub fn begin_epoch(&self) -> u64 {
        // ORDERING: Relaxed, see `epoch`.
        self.epoch.fetch_add(1, Ordering::Relaxed)
    }

    /// Charges the request if it may go on now.
    ///
    /// # Errors
    /// When the request may go on, unless a boost covers it; nothing was charged.
    pub fn try_admit(&self, chain: &Chain, request: &Request) -> Result<(), Duration> {
        if chain.is_empty() {
            return Ok(());
        }
        let now = self.now();
        let ready_at = admit(chain, 0, request, now, Duration::ZERO, false, &mut []);
        if ready_at <= now { Ok(()) } else { Err(ready_at) }
    }

    /// When a request of the least size could go on.
    pub fn ready_at(&self, chain: &Chain, request: &Request) -> Duration {
        if chain.is_empty() {
            return Duration::ZERO;
        }
        let now = self.now();
        let times = chain.groups.iter().map(|group| group.buckets().ready_at(&chain.owner, request, now));
        times.max().unwrap_or_default()
    }

    /// Charges a request that goes on in any case: a debt.
    pub fn charge(&self, chain: &Chain, request: &Request) {
        if !chain.is_empty() {
            admit(chain, 0, request, self.now(), Duration::ZERO, true, &mut []);
        }
    }

    /// Ends reservations, and refunds the charge for what was not done. Waiters that moved up are
    /// woken afterwards.
    pub(crate) fn refund(&self, chain: &Chain, charge: &[Charge], rest: &Request) {
        let now = self.now();
        if is_on("kick-before-moving-up") {
            self.wake_all();
        }
        let each = chain.groups.iter().zip(charge);
        let moved = each.fold(false, |moved, (group, charge)| {
            group.buckets().refund(&chain.owner, *charge, rest, now) || moved
        });
        if moved && !is_on("moving-up-without-kick") && !is_on("kick-before-moving-up") {
            self.wake_all();
        }
    }

    /// The bytes that the chain's cgroup wrote ahead of the limits. They stand for data that would
    /// still be dirty without a boost.
    pub fn owed(&self, chain: &Chain) -> u64 {
        if chain.is_empty() {
            return 0;
        }
        let now = self.now();
        let each = chain.groups.iter();
        let owed = each.map(|group| group.buckets().owed(&chain.owner, Direction::Write, now));
        owed.max().unwrap_or(0)
    }

    /// The bytes that a cgroup and all below it wrote ahead of its own limits.
    pub fn owed_in_all(&self, path: &CgroupPath) -> u64 {
        let group = self.groups.lock().get(path).cloned();
        group.map_or(0, |group| group.buckets().owed_in_all(Direction::Write, self.now()))
    }

    /// Until when the chain's cgroup owes more than `most` bytes; `None` if that is not so now.
    pub fn owed_until(&self, chain: &Chain, most: u64) -> Option<Duration> {
        if chain.is_empty() {
            return None;
        }
        let now = self.now();
        let each = chain.groups.iter();
        let times = each.map(|group| group.buckets().owed_until(&chain.owner, Direction::Write, most, now));
        times.max().filter(|time| *time > now)
    }

    /// A cgroup was removed. What it owes at limits that other cgroups are also under becomes a
    /// debt of `heir`, which comes after it. A limit of its own stays, with what is owed at it.
    pub fn owner_removed(&self, path: &CgroupPath, heir: &CgroupPath) {
        for group in self.groups.lock().values().filter(|group| path.is_within(group.path())) {
            if group.path() != path {
                group.buckets().inherit(path, heir);
            }
        }
    }

    /// `io.sync_isolation`: whether syncs of a cgroup and those below it cover only what these own.
    pub fn set_isolated(&self, path: &CgroupPath, is_isolated: bool) {
        let mut isolated = self.isolated.lock();
        if is_isolated {
            isolated.insert(path.clone());
        } else {
            isolated.remove(path);
        }
    }

    /// The cgroups whose syncs are isolated.
    pub fn isolated(&self) -> Vec<CgroupPath> {
        self.isolated.lock().iter().cloned().collect()
    }

    /// The cgroup within which a sync of `path` stays: the nearest one, itself included, that is
    /// isolated.
    pub fn isolation_of(&self, path: &CgroupPath) -> Option<CgroupPath> {
        self.isolated.lock().iter().rev().find(|known| path.is_within(known)).cloned()
    }

    /// Calls `wake` whenever a waiter should ask again before the time that it was given: at a
    /// boost, or when a limit changes. Some calls are spurious. The caller asks once more after
    /// registering.
    #[must_use]
    pub fn listen(&self, wake: Arc<dyn Fn() + Send + Sync>) -> Listening<'_> {
        let mut listeners = self.listeners.lock();
        let number = listeners.number();
        listeners.by_number.insert(number, wake);
        Listening { throttle: self, number }
    }

    /// Like [`Throttle::listen`], for as long as the throttle exists.
    pub fn listen_always(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        let mut listeners = self.listeners.lock();
        let number = listeners.number();
        listeners.by_number.insert(number, wake);
    }

    /// Wakes all listeners.
    pub fn wake_all(&self) {
        let listeners: Vec<_> = self.listeners.lock().by_number.values().cloned().collect();
        for wake in listeners {
            wake();
        }
    }
}

impl Listeners {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Goes through the chain's groups from `from` on, outer first, with the locks of those before
/// held. Returns the latest of their times; if that has come, or if `must`, all are charged.
pub(crate) fn admit(
    chain: &Chain,
    from: usize,
    request: &Request,
    now: Duration,
    latest: Duration,
    must: bool,
    charge: &mut [Charge],
) -> Duration {
    let Some(group) = chain.groups.get(from) else {
        return latest;
    };
    let mut buckets = group.buckets();
    let latest = latest.max(buckets.ready_at(&chain.owner, request, now));
    let all = admit(chain, from + 1, request, now, latest, must, charge);
    if must || all <= now {
        let charged = buckets.charge(&chain.owner, request, now, must);
        if let Some(charge) = charge.get_mut(from) {
            *charge = charged;
        }
    }
    all
}

impl Default for Chain {
    fn default() -> Self {
        Self { owner: CgroupPath::root(), groups: Vec::new(), generation: 0 }
    }
}

impl Chain {
    /// Nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The limits, outer ones first.
    #[must_use]
    pub fn groups(&self) -> &[Arc<ThrotlGroup>] {
        &self.groups
    }

    /// The largest request of this kind that a caller should ask for at once, in bytes: limits that
    /// a boost waives do not count.
    #[must_use]
    pub fn chunk_size(&self, request: &Request) -> u64 {
        let each = self.groups.iter().map(|group| group.buckets());
        let held = each.filter(|buckets| !buckets.covers(request));
        held.map(|buckets| buckets.chunk_size(request.direction)).min().unwrap_or(u64::MAX)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.throttle.listeners.lock().by_number.remove(&self.number);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "throttle_tests.rs"]
mod tests;
