//! `io.max`: who may read from a store and write to it, and when.
//!
//! A [`Throttle`] is one store's. Limits belong to *paths* of cgroups: one that is set before the
//! cgroup is there holds when it comes, and what was owed is still owed by a cgroup that was
//! removed and made again. A cgroup finds the limits that are over it once, as a [`Chain`], and
//! again only when limits were added or taken away.
//!
//! | call | for |
//! |---|---|
//! | [`Throttle::try_admit`] | who has something else to do meanwhile: a flusher |
//! | [`Throttle::reserve`] | who waits in its own call: its place is counted at once, so that those who wait go in order |
//! | [`Throttle::charge`] | what must not wait: metadata, an unmount; it leaves a debt |
//! | [`Throttle::boost`] | somebody else waits for the data |
//!
//! Every group of a chain must admit a request, and is charged for it.
//!
//! # A boost and who waits
//! Who waits listens first, asks again, and then sleeps. A boost puts its tokens into the groups,
//! and then wakes those who listen. Whoever asked before the token was there is listening already:
//! group and list of listeners have locks, which order both.
//!
//! Lock order: `Throttle::groups`, then groups' buckets, outer first. `Throttle::listeners` and
//! `Throttle::isolated` are leaves; listeners are called with none held.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;
use sync::{Clock, Mutex};

use crate::boost::{Boost, Scope};
use crate::group::{Counted, Group, Request};
use crate::limit::{CgroupPath, Direction, Limits};
use crate::ticket::Ticket;

/// The limits of one store.
#[derive(Debug)]
pub struct Throttle {
    clock: Arc<dyn Clock>,
    groups: Mutex<BTreeMap<CgroupPath, Arc<Group>>>,
    /// The length of `groups`.
    limited: AtomicU64,
    /// Counts changes of limits.
    generation: AtomicU64,
    /// Counts boosts.
    boosts: AtomicU64,
    /// Counts syncs: what is dirtied after one has begun is of a later epoch.
    epoch: AtomicU64,
    listeners: Mutex<Listeners>,
    isolated: Mutex<BTreeSet<CgroupPath>>,
    no_limits: Arc<Chain>,
}

/// The limits that one cgroup is under: its own and those of its ancestors.
#[derive(Debug)]
pub struct Chain {
    /// Whose.
    pub(crate) owner: CgroupPath,
    /// Outer ones first.
    pub(crate) groups: Vec<Arc<Group>>,
    generation: u64,
}

/// Whether a request may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// Yes; it has been charged.
    Now,
    /// Not before this time, unless somebody boosts it. Nothing was charged.
    At(Duration),
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

/// Is told of boosts and changes of limits, until dropped.
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
            generation: AtomicU64::new(0),
            boosts: AtomicU64::new(0),
            epoch: AtomicU64::new(1),
            listeners: Mutex::default(),
            isolated: Mutex::default(),
            no_limits: Arc::default(),
        }
    }

    /// The chain of what has no owner.
    pub(crate) fn no_limits(&self) -> Arc<Chain> {
        Arc::clone(&self.no_limits)
    }

    /// Time, as all times here are meant.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Sets what a cgroup may do from now on, whether or not it is there. With no limit left it is
    /// not limited, and owes nothing.
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
                .or_insert_with_key(|path| Arc::new(Group::new(path.clone(), limits)));
            group.buckets().set_limits(limits, now);
        }
        // ORDERING: Relaxed, see `is_limiting`.
        self.limited.store(groups.len() as u64, Ordering::Relaxed);
        // ORDERING: Release, pairs with `is_current`: who sees the count and looks again finds the
        // change, by the lock as well.
        self.generation.fetch_add(1, Ordering::Release);
        drop(groups);
        self.kick();
    }

    /// Cgroups have other paths: who has a chain finds it again.
    pub(crate) fn paths_changed(&self) {
        // ORDERING: Release, as in `set`: the paths were changed before, under their locks.
        self.generation.fetch_add(1, Ordering::Release);
        self.kick();
    }

    /// What is limited, by path.
    pub fn limits(&self) -> Vec<(CgroupPath, Limits)> {
        self.groups.lock().iter().map(|(path, group)| (path.clone(), group.limits())).collect()
    }

    /// Whether anything is limited.
    pub fn is_limiting(&self) -> bool {
        // ORDERING: Relaxed; who sees a limit too late goes on without it a moment longer.
        self.limited.load(Ordering::Relaxed) > 0
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
        // In the map's order an ancestor comes before what is below it.
        let over = groups.values().filter(|group| path.is_within(group.path())).map(Arc::clone);
        Arc::new(Chain { owner: path.clone(), groups: over.collect(), generation })
    }

    /// Whether `chain` is what [`Throttle::chain`] would give for its cgroup.
    pub fn is_current(&self, chain: &Chain) -> bool {
        // ORDERING: Acquire, see `set`. Who sees a change late goes by the old limits a moment
        // longer.
        chain.generation == self.generation.load(Ordering::Acquire)
    }

    /// The epoch of what is dirtied now.
    pub fn epoch(&self) -> u64 {
        // ORDERING: Relaxed. Data whose write returned before a sync began has at most that sync's
        // epoch: the write happens before the sync, and a count never falls. For all other data any
        // epoch is right.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins a sync: gives the epoch of all that is dirty at this moment; what is dirtied later
    /// has a later one.
    pub fn begin_epoch(&self) -> u64 {
        // ORDERING: Relaxed, see `epoch`.
        self.epoch.fetch_add(1, Ordering::Relaxed)
    }

    /// Charges the request if it may go on now.
    pub fn try_admit(&self, chain: &Chain, request: &Request) -> Admission {
        if chain.is_empty() {
            return Admission::Now;
        }
        let now = self.now();
        let ready_at = admit(chain, 0, request, now, Duration::ZERO, false, &mut []);
        if ready_at <= now { Admission::Now } else { Admission::At(ready_at) }
    }

    /// The same, with the right to give back what was not done.
    ///
    /// # Errors
    /// When it may go on.
    pub fn try_reserve(&self, chain: &Arc<Chain>, request: Request) -> Result<Ticket<'_>, Duration> {
        let now = self.now();
        let mut counted = vec![Counted::default(); chain.groups.len()];
        let ready_at = admit(chain, 0, &request, now, Duration::ZERO, false, &mut counted);
        if ready_at <= now { Ok(Ticket::new(self, chain, request, counted, false)) } else { Err(ready_at) }
    }

    /// Charges what goes on in any case, with the right to give back what was not done.
    pub fn charge_ahead(&self, chain: &Arc<Chain>, request: Request) -> Ticket<'_> {
        let mut counted = vec![Counted::default(); chain.groups.len()];
        admit(chain, 0, &request, self.now(), Duration::ZERO, true, &mut counted);
        Ticket::new(self, chain, request, counted, false)
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

    /// Charges the request, and says when it may go on.
    pub fn reserve(&self, chain: &Arc<Chain>, request: Request) -> Ticket<'_> {
        let now = self.now();
        let each = chain.groups.iter();
        let counted = each.map(|group| group.buckets().queue(&chain.owner, &request, now)).collect();
        Ticket::new(self, chain, request, counted, true)
    }

    /// Charges what goes on in any case: a debt.
    pub fn charge(&self, chain: &Chain, request: &Request) {
        if !chain.is_empty() {
            admit(chain, 0, request, self.now(), Duration::ZERO, true, &mut []);
        }
    }

    /// Gives back places, and what was charged and not done. Whoever moved up is woken, once it
    /// has.
    pub(crate) fn refund(&self, chain: &Chain, counted: &[Counted], rest: &Request) {
        let now = self.now();
        if is_on("kick-before-moving-up") {
            self.kick();
        }
        let each = chain.groups.iter().zip(counted);
        let moved = each.fold(false, |moved, (group, counted)| {
            group.buckets().refund(&chain.owner, *counted, rest, now) || moved
        });
        if moved && !is_on("moving-up-without-kick") && !is_on("kick-before-moving-up") {
            self.kick();
        }
    }

    /// What the chain's cgroup wrote ahead of the limits, in bytes. It stands for data that would
    /// be dirty still, had nobody boosted it.
    pub fn owed(&self, chain: &Chain) -> u64 {
        if chain.is_empty() {
            return 0;
        }
        let now = self.now();
        let each = chain.groups.iter();
        let owed = each.map(|group| group.buckets().owed(&chain.owner, Direction::Write, now));
        owed.max().unwrap_or(0)
    }

    /// What a cgroup and all below it wrote ahead of its own limits.
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

    /// A cgroup was removed: what it owes at limits that are over others as well is that of `heir`,
    /// which comes into its place. A limit of its own stays, with what is owed at it.
    pub(crate) fn owner_removed(&self, path: &CgroupPath, heir: &CgroupPath) {
        for group in self.groups.lock().values().filter(|group| path.is_within(group.path())) {
            if group.path() != path {
                group.buckets().inherit(path, heir);
            }
        }
    }

    /// `io.sync_isolation`: whether syncs of a cgroup and those below cover only what these own.
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

    /// Within which cgroup a sync of `path` stays: the nearest, itself included, that is isolated.
    pub fn isolation_of(&self, path: &CgroupPath) -> Option<CgroupPath> {
        self.isolated.lock().iter().rev().find(|known| path.is_within(known)).cloned()
    }

    /// Lets data of the cgroups of `chains` go on that is dirty since `epoch` or before, of one
    /// inode or of all, because somebody in cgroup `waiter` waits for it. Limits of the waiter's
    /// own cgroup and of its ancestors hold as before: a group's limits are waived only for who is
    /// neither in it nor below it. Whoever waits for these limits now is woken. Data that comes
    /// under other limits meanwhile is [covered](Boost::cover) there as well.
    pub fn boost(
        self: &Arc<Self>,
        waiter: &CgroupPath,
        chains: &[Arc<Chain>],
        epoch: u64,
        scope: Scope,
    ) -> Boost {
        // ORDERING: Relaxed, only a number.
        let number = self.boosts.fetch_add(1, Ordering::Relaxed);
        Boost::new(Arc::clone(self), waiter, number, epoch, scope, chains)
    }

    /// Calls `wake` whenever somebody who waits should ask again, before the time that was told:
    /// there is a boost, or a limit was changed. Calls may come for nothing. Ask once more after
    /// this.
    #[must_use]
    pub fn listen(&self, wake: Arc<dyn Fn() + Send + Sync>) -> Listening<'_> {
        let mut listeners = self.listeners.lock();
        let number = listeners.number();
        listeners.by_number.insert(number, wake);
        Listening { throttle: self, number }
    }

    /// The same, for as long as there are limits.
    pub fn listen_always(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        let mut listeners = self.listeners.lock();
        let number = listeners.number();
        listeners.by_number.insert(number, wake);
    }

    /// Wakes all who listen.
    pub fn kick(&self) {
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
/// held. Gives the latest of their times; if that has come, or `must`, all are charged.
fn admit(
    chain: &Chain,
    from: usize,
    request: &Request,
    now: Duration,
    latest: Duration,
    must: bool,
    counted: &mut [Counted],
) -> Duration {
    let Some(group) = chain.groups.get(from) else {
        return latest;
    };
    let mut buckets = group.buckets();
    let latest = latest.max(buckets.ready_at(&chain.owner, request, now));
    let all = admit(chain, from + 1, request, now, latest, must, counted);
    if must || all <= now {
        let charged = buckets.charge(&chain.owner, request, now, must);
        if let Some(counted) = counted.get_mut(from) {
            *counted = charged;
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
    pub fn groups(&self) -> &[Arc<Group>] {
        &self.groups
    }

    /// The most of such requests that should be asked for at once, in bytes: limits that a boost
    /// waives do not count.
    #[must_use]
    pub fn piece(&self, request: &Request) -> u64 {
        let each = self.groups.iter().map(|group| group.buckets());
        let held = each.filter(|buckets| !buckets.covers(request));
        held.map(|buckets| buckets.piece(request.direction)).min().unwrap_or(u64::MAX)
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
