//! `io.max`: who may read from a store and write to it, and when.
//!
//! A [`Throttle`] is one store's. Limits belong to *paths* of cgroups: one that is set before the cgroup is there holds when it comes, and what was
//! owed is still owed by a cgroup that was removed and made again. A cgroup finds the limits that are over it once, as a
//! [`Chain`], and again only when limits were added or taken away.
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
//! Who waits listens first, asks again, and then sleeps. A boost puts its tokens into the groups, and then wakes those who listen. Whoever asked
//! before the token was there is listening already: group and list of listeners have locks, which order both.
//!
//! Lock order: `Throttle::groups`, then groups' buckets, outer first. `Throttle::listeners` and `Throttle::isolated` are leaves; listeners are called with none held.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;
use sync::{Clock, Mutex};

use crate::group::{Group, Request, Token};
use crate::limit::{CgroupPath, Direction, Limits};

/// The limits of one store.
#[derive(Debug)]
pub struct Throttle {
    clock: Arc<dyn Clock>,
    groups: Mutex<BTreeMap<CgroupPath, Arc<Group>>>,
    /// The length of `groups`.
    limited: AtomicU64,
    /// Counts changes of limits.
    generation: AtomicU64,
    /// Counts syncs: what is dirtied after one has begun is of a later epoch.
    epoch: AtomicU64,
    listeners: Mutex<Listeners>,
    isolated: Mutex<BTreeSet<CgroupPath>>,
}

/// The limits that one cgroup is under: its own and those of its ancestors.
#[derive(Debug, Default)]
pub struct Chain {
    /// Outer ones first.
    groups: Vec<Arc<Group>>,
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

/// A place among those who wait. Given back if it is dropped unused.
#[derive(Debug)]
pub struct Ticket<'a> {
    throttle: &'a Throttle,
    chain: Arc<Chain>,
    request: Request,
    /// By group.
    starts: Vec<Duration>,
    is_used: bool,
}

/// Data that somebody else waits for goes on without regard to limits, until dropped.
#[derive(Debug)]
pub struct Boost {
    throttle: Arc<Throttle>,
    /// Those that have the token: it is taken back from these, whatever has become of the waiter's cgroup.
    groups: Vec<Arc<Group>>,
    number: u64,
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
            epoch: AtomicU64::new(1),
            listeners: Mutex::default(),
            isolated: Mutex::default(),
        }
    }

    /// Time, as all times here are meant.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Sets what a cgroup may do from now on, whether or not it is there. With no limit left it is not limited, and owes nothing.
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
        // ORDERING: Release, pairs with `is_current`: who sees the count and looks again finds the change, by the lock as well.
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
        Arc::new(Chain { groups: over.collect(), generation })
    }

    /// Whether `chain` is what [`Throttle::chain`] would give for its cgroup.
    pub fn is_current(&self, chain: &Chain) -> bool {
        // ORDERING: Acquire, see `set`. Who sees a change late goes by the old limits a moment longer.
        chain.generation == self.generation.load(Ordering::Acquire)
    }

    /// The epoch of what is dirtied now.
    pub fn epoch(&self) -> u64 {
        // ORDERING: Relaxed. Data whose write returned before a sync began has at most that sync's epoch: the write happens before the
        // sync, and a count never falls. For all other data any epoch is right.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins a sync: gives the epoch of all that is dirty at this moment; what is dirtied later has a later one.
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
        let ready_at = admit(&chain.groups, request, now, Duration::ZERO, false);
        if ready_at <= now { Admission::Now } else { Admission::At(ready_at) }
    }

    /// The same, with the right to give back what was not done.
    ///
    /// # Errors
    /// When it may go on.
    pub fn try_reserve(&self, chain: &Arc<Chain>, request: Request) -> Result<Ticket<'_>, Duration> {
        match self.try_admit(chain, &request) {
            Admission::Now => Ok(self.ticket(chain, request, Vec::new())),
            Admission::At(time) => Err(time),
        }
    }

    /// Charges what goes on in any case, with the right to give back what was not done.
    pub fn charge_ahead(&self, chain: &Arc<Chain>, request: Request) -> Ticket<'_> {
        self.charge(chain, &request);
        self.ticket(chain, request, Vec::new())
    }

    fn ticket(&self, chain: &Arc<Chain>, request: Request, starts: Vec<Duration>) -> Ticket<'_> {
        Ticket { throttle: self, chain: Arc::clone(chain), request, starts, is_used: false }
    }

    /// When a request of the least size could go on.
    pub fn ready_at(&self, chain: &Chain, request: &Request) -> Duration {
        chain.groups.iter().map(|group| group.buckets().ready_at(request)).max().unwrap_or_default()
    }

    /// Charges the request, and says when it may go on.
    pub fn reserve(&self, chain: &Arc<Chain>, request: Request) -> Ticket<'_> {
        let mut starts = Vec::new();
        if !chain.is_empty() {
            let now = self.now();
            for group in &chain.groups {
                let mut buckets = group.buckets();
                starts.push(buckets.ready_at(&request));
                buckets.charge(&request, now);
            }
        }
        self.ticket(chain, request, starts)
    }

    /// Charges what goes on in any case: a debt.
    pub fn charge(&self, chain: &Chain, request: &Request) {
        if !chain.is_empty() {
            admit(&chain.groups, request, self.now(), Duration::ZERO, true);
        }
    }

    /// Gives back what was charged and not done.
    pub fn refund(&self, chain: &Chain, request: &Request) {
        for group in &chain.groups {
            group.buckets().refund(request);
        }
    }

    /// What was written ahead of the limits, in bytes. It stands for data that would be dirty still, had nobody boosted it.
    pub fn owed(&self, chain: &Chain) -> u64 {
        if chain.is_empty() {
            return 0;
        }
        let now = self.now();
        let owed = chain.groups.iter().map(|group| group.buckets().owed(Direction::Write, now));
        owed.max().unwrap_or(0)
    }

    /// Until when more than `most` bytes are owed; `None` if that is not so now.
    pub fn owed_until(&self, chain: &Chain, most: u64) -> Option<Duration> {
        if chain.is_empty() {
            return None;
        }
        let times = chain.groups.iter().map(|group| group.buckets().owed_until(Direction::Write, most));
        times.max().filter(|time| *time > self.now())
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

    /// Lets data of the cgroups of `chains` go on that is dirty since `epoch` or before, of one inode or of all, because somebody in
    /// cgroup `waiter` waits for it. Limits of the waiter's own cgroup and of its ancestors hold as before: a group's limits
    /// are waived only for who is neither in it nor below it. Whoever waits for these limits now is woken.
    pub fn boost(
        self: &Arc<Self>,
        waiter: &CgroupPath,
        chains: &[Arc<Chain>],
        epoch: u64,
        inode: Option<u64>,
    ) -> Boost {
        let epoch = if is_on("boost-unbounded") { u64::MAX } else { epoch };
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for group in chains.iter().flat_map(|chain| &chain.groups) {
            let is_known = groups.iter().any(|known| Arc::ptr_eq(known, group));
            if !is_known && !waiter.is_within(group.path()) {
                groups.push(Arc::clone(group));
            }
        }
        let throttle = Arc::clone(self);
        if groups.is_empty() {
            return Boost { throttle, groups, number: 0 };
        }
        let number = self.listeners.lock().number();
        let token = Token { number, epoch, inode };
        for group in &groups {
            group.buckets().add_token(token);
        }
        if !is_on("boost-no-kick") {
            self.kick();
        }
        Boost { throttle, groups, number }
    }

    /// Calls `wake` whenever somebody who waits should ask again, before the time that was told: there is a boost, or a limit was changed.
    /// Calls may come for nothing. Ask once more after this.
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

/// Goes through the groups, outer first, with the locks of those before held. Gives the latest of their times; if that has come, or
/// `must`, all are charged.
fn admit(groups: &[Arc<Group>], request: &Request, now: Duration, latest: Duration, must: bool) -> Duration {
    let Some((first, rest)) = groups.split_first() else {
        return latest;
    };
    let mut buckets = first.buckets();
    let latest = latest.max(buckets.ready_at(request));
    let all = admit(rest, request, now, latest, must);
    if must || all <= now {
        buckets.charge(request, now);
    }
    all
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

    /// The most that should be asked for at once, in bytes.
    #[must_use]
    pub fn piece(&self, direction: Direction) -> u64 {
        let pieces = self.groups.iter().map(|group| group.buckets().piece(direction));
        pieces.min().unwrap_or(u64::MAX)
    }
}

impl Ticket<'_> {
    /// Until when to sleep; `None` if it is one's turn.
    #[must_use]
    pub fn waits_until(&self) -> Option<Duration> {
        // Another rate: what was reckoned is wrong. Those who wait go once, and are counted right from then on.
        if self.chain.is_empty() || !self.throttle.is_current(&self.chain) {
            return None;
        }
        let covered = |group: &Group| group.buckets().ready_at(&self.request).is_zero();
        let now = self.throttle.now();
        let held = self.chain.groups.iter().zip(&self.starts);
        held.filter(|(group, start)| **start > now && !covered(group)).map(|(_, start)| *start).max()
    }

    /// It was one's turn, and so much was done of what was asked for.
    pub fn used(mut self, bytes: u64, operations: u64) {
        self.is_used = true;
        let rest = Request {
            bytes: self.request.bytes.saturating_sub(bytes),
            operations: self.request.operations.saturating_sub(operations),
            ..self.request
        };
        self.throttle.refund(&self.chain, &rest);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.throttle.refund(&self.chain, &self.request);
        }
    }
}

impl Boost {
    /// Nobody is boosted: there is no limit, or the waiter is under each of them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Takes back only what a waiter in `cgroup` would have been given: a mutant.
    pub(crate) fn keep_for(&mut self, cgroup: &CgroupPath) {
        self.groups.retain(|group| !cgroup.is_within(group.path()));
    }

    /// Those whose limits are waived.
    #[must_use]
    pub fn groups(&self) -> &[Arc<Group>] {
        &self.groups
    }
}

impl Drop for Boost {
    fn drop(&mut self) {
        for group in &self.groups {
            group.buckets().remove_token(self.number);
        }
        if !self.groups.is_empty() {
            // Who waited for the same data has nothing to wait for any more.
            self.throttle.kick();
        }
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
