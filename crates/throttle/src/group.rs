//! One cgroup's limits on one store: its use so far, and when it may go on.
//!
//! # Arithmetic
//! For bytes and for operations, each way, a group keeps the time up to which its past work is
//! *paid*: `n` at a rate of `r` a second cost `n / r` seconds. It may go on when the paid time has
//! come; the later of bytes and operations counts. Unused time is worth at most 12 ms afterwards.
//!
//! This stands for blk-throttle's slices of 100 ms. A slice lets a cgroup have its rate times the
//! time since the slice's beginning, rounded up to a slice, so that within 1 s it may be a slice
//! over its limit (10 %). Here no second has more than the limit plus that credit plus one request;
//! a caller that asks for [`chunk_size`](crate::Chain::chunk_size) bytes at a time stays within 2
//! %, or within a page where that is more. As with slices, unused time is not saved up, and
//! requests that go at once (metadata, data that a boost covers) are a debt.
//!
//! Where several cgroups are under one limit, their debts are kept apart: see
//! [`gcra`](crate::gcra).
//!
//! | field | protected by |
//! |---|---|
//! | `path` | immutable |
//! | `buckets` | its own lock; of a chain's groups the outer one (nearer to the root) is locked first |

use std::num::NonZeroU64;
use std::time::Duration;

use sync::{Mutex, MutexGuard};

use crate::gcra::{Debtor, Gcra};
use crate::limit::{CgroupPath, Direction, Limits};

/// Chunks in a second.
const CHUNKS: u64 = 128;
/// The least that is written at a time.
const PAGE: u64 = 4096;
/// The bytes that an owed operation counts as: the largest operation.
const OPERATION_BYTES: u64 = 1 << 20;

/// One request for a limit's permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Which way.
    pub direction: Direction,
    /// Bytes.
    pub bytes: u64,
    /// Calls of the store.
    pub operations: u64,
    /// The data is dirty since this epoch or an earlier one: a boost that began later covers it.
    /// [`u64::MAX`]: no boost does.
    pub epoch: u64,
    /// The inode that the data belongs to: for a boost that covers one inode.
    pub inode: u64,
}

/// One cgroup's limits on one store; analogous to Linux's `throtl_grp`.
#[derive(Debug)]
pub struct ThrotlGroup {
    path: CgroupPath,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
pub(crate) struct Buckets {
    /// The cgroup whose limits these are.
    path: CgroupPath,
    limits: Limits,
    /// By direction: bytes, operations.
    gcras: [[Gcra; 2]; 2],
    /// Boosts: callers wait for this cgroup's data and must not wait for its limits.
    waivers: Vec<Waiver>,
    /// The number of the last count.
    numbers: u64,
}

/// How a request was charged, in case not all of it is done.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Charge {
    number: u64,
    is_debt: bool,
}

/// One boost's entry here: the requests that it covers pass the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiver {
    pub(crate) number: u64,
    /// It covers data that is dirty since this epoch or an earlier one.
    pub(crate) epoch: u64,
    /// Of this inode only.
    pub(crate) inode: Option<u64>,
}

impl Waiver {
    fn covers(&self, request: &Request) -> bool {
        request.epoch <= self.epoch && self.inode.is_none_or(|inode| inode == request.inode)
    }
}

impl ThrotlGroup {
    pub(crate) fn new(path: CgroupPath, limits: Limits) -> Self {
        let buckets = Buckets {
            path: path.clone(),
            limits,
            gcras: Default::default(),
            waivers: Vec::new(),
            numbers: 0,
        };
        Self { path, buckets: Mutex::new(buckets) }
    }

    /// The cgroup whose limits these are.
    #[must_use]
    pub fn path(&self) -> &CgroupPath {
        &self.path
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.buckets().limits
    }

    /// Boosts that cover data of this cgroup now.
    #[must_use]
    pub fn boosts(&self) -> usize {
        self.buckets().waivers.len()
    }

    pub(crate) fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock()
    }
}

impl Buckets {
    /// The time at which a request of cgroup `owner` may go on in the background; zero if a boost
    /// covers it.
    pub(crate) fn ready_at(&mut self, owner: &CgroupPath, request: &Request, now: Duration) -> Duration {
        if self.covers(request) {
            return Duration::ZERO;
        }
        let owner = self.below(owner);
        let times = self.limited(request.direction).map(|(_, gcra)| gcra.ready_at(owner, now));
        times.max().unwrap_or_default()
    }

    /// Whether a boost covers the request.
    pub(crate) fn covers(&self, request: &Request) -> bool {
        self.waivers.iter().any(|waiver| waiver.covers(request))
    }

    /// Counts a request that goes now: because it may, or, with `must`, in any case, as a debt of
    /// `owner`.
    pub(crate) fn charge(
        &mut self,
        owner: &CgroupPath,
        request: &Request,
        now: Duration,
        must: bool,
    ) -> Charge {
        let (owner, is_debt) = (self.below(owner), must || self.covers(request));
        self.each(
            request,
            |gcra, cost| if is_debt { gcra.owe(owner, cost, now) } else { _ = gcra.charge(cost, now) },
        );
        self.next_charge(is_debt)
    }

    /// Makes the reservation of a caller that waits in its own call; where a boost covers the
    /// request, that is a debt.
    pub(crate) fn reserve(&mut self, owner: &CgroupPath, request: &Request, now: Duration) -> Charge {
        if self.covers(request) {
            return self.charge(owner, request, now, true);
        }
        let charge = self.next_charge(false);
        self.each(request, |gcra, cost| gcra.reserve(charge.number, cost, now));
        charge
    }

    /// The time from which on a waiter may go on; zero if a boost covers the request.
    pub(crate) fn not_before(&self, charge: Charge, request: &Request) -> Duration {
        if self.covers(request) {
            return Duration::ZERO;
        }
        let times = self.gcras[request.direction as usize].iter().map(|gcra| gcra.not_before(charge.number));
        times.max().unwrap_or_default()
    }

    /// Ends a reservation and refunds `rest`: what was charged and not done. Returns whether
    /// another waiter moved up.
    pub(crate) fn refund(
        &mut self,
        owner: &CgroupPath,
        charge: Charge,
        rest: &Request,
        now: Duration,
    ) -> bool {
        let (owner, mut has_moved) = (self.below(owner), false);
        self.each(rest, |gcra, cost| {
            if charge.is_debt {
                gcra.refund_debt(charge.number, owner, cost, now);
            } else {
                has_moved |= gcra.refund(charge.number, cost, now);
            }
        });
        has_moved
    }

    /// The cgroup that a debt is kept under; none for the limited cgroup itself.
    fn below<'a>(&self, owner: &'a CgroupPath) -> Debtor<'a> {
        (*owner != self.path).then_some(owner)
    }

    fn next_charge(&mut self, is_debt: bool) -> Charge {
        self.numbers += 1;
        Charge { number: self.numbers, is_debt }
    }

    /// Calls `count` for each limit of the request, with its cost there.
    fn each(&mut self, request: &Request, mut count: impl FnMut(&mut Gcra, Duration)) {
        for ((limit, gcra), amount) in self.both(request.direction).zip(amounts(request)) {
            if let Some(limit) = limit {
                count(gcra, cost(amount, limit));
            }
        }
    }

    /// Other limits from now on. What is owed stays owed: the same bytes, at the new rate.
    pub(crate) fn set_limits(&mut self, limits: Limits, now: Duration) {
        let numbers = self.numbers;
        for direction in [Direction::Read, Direction::Write] {
            for ((old, gcra), new) in self.both(direction).zip(limits.of(direction)) {
                match (old, new) {
                    (Some(old), Some(new)) => gcra.scale(now, |time| cost(amount(time, old), new)),
                    _ => *gcra = Gcra::after(numbers),
                }
            }
        }
        self.limits = limits;
    }

    /// The bytes that `owner` wrote or read ahead of the limits.
    pub(crate) fn owed(&mut self, owner: &CgroupPath, direction: Direction, now: Duration) -> u64 {
        let owner = self.below(owner);
        self.in_bytes(direction, |gcra| gcra.ahead(owner, now))
    }

    /// The bytes that all owners wrote or read ahead of the limits.
    pub(crate) fn owed_in_all(&mut self, direction: Direction, now: Duration) -> u64 {
        self.in_bytes(direction, |gcra| gcra.ahead_in_all(now))
    }

    fn in_bytes(&mut self, direction: Direction, ahead: impl Fn(&mut Gcra) -> Duration) -> u64 {
        let worth = [1, OPERATION_BYTES];
        let owed = self.both(direction).zip(worth).filter_map(|((limit, gcra), worth)| {
            let limit = limit?;
            Some(amount(ahead(gcra), limit).saturating_mul(worth))
        });
        owed.max().unwrap_or(0)
    }

    /// The time from which on `owner` owes no more than `most` bytes.
    pub(crate) fn owed_until(
        &mut self,
        owner: &CgroupPath,
        direction: Direction,
        most: u64,
        now: Duration,
    ) -> Duration {
        let (owner, worth) = (self.below(owner), [1, OPERATION_BYTES]);
        let times = self.both(direction).zip(worth).filter_map(|((limit, gcra), worth)| {
            let limit = limit?;
            Some(gcra.ready_at(owner, now).saturating_sub(cost(most / worth, limit)))
        });
        times.max().unwrap_or_default()
    }

    /// The debt of `owner`, which was removed, becomes one of `heir`; at the heir's own limit all
    /// below it wait for it.
    pub(crate) fn inherit(&mut self, owner: &CgroupPath, heir: &CgroupPath) {
        let heir = self.below(heir);
        self.gcras.iter_mut().flatten().for_each(|gcra| gcra.inherit(owner, heir));
    }

    /// The most that a caller should ask for at once, so that averages over a second keep to the
    /// limit.
    pub(crate) fn chunk_size(&self, direction: Direction) -> u64 {
        let [bytes, _] = self.limits.of(direction);
        bytes.map_or(u64::MAX, |rate| (rate.get() / CHUNKS / PAGE * PAGE).max(PAGE))
    }

    pub(crate) fn add_waiver(&mut self, waiver: Waiver) {
        self.waivers.push(waiver);
    }

    pub(crate) fn remove_waiver(&mut self, number: u64) {
        self.waivers.retain(|waiver| waiver.number != number);
    }

    /// Calls `look` with each limit that is set: its direction, whether it is of bytes (0) or of
    /// operations (1), its rate, and its state.
    pub(crate) fn each_limit(&mut self, mut look: impl FnMut(Direction, usize, Rate, &mut Gcra)) {
        for direction in [Direction::Read, Direction::Write] {
            for (what, (limit, gcra)) in self.both(direction).enumerate() {
                if let Some(limit) = limit {
                    look(direction, what, Rate(limit), gcra);
                }
            }
        }
    }

    fn both(&mut self, direction: Direction) -> impl Iterator<Item = (Option<NonZeroU64>, &mut Gcra)> {
        self.limits.of(direction).into_iter().zip(&mut self.gcras[direction as usize])
    }

    fn limited(&mut self, direction: Direction) -> impl Iterator<Item = (NonZeroU64, &mut Gcra)> {
        self.both(direction).filter_map(|(limit, gcra)| Some((limit?, gcra)))
    }
}

/// What a limit lets pass in a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate(NonZeroU64);

impl Rate {
    /// See [`cost`].
    pub(crate) fn cost(self, amount: u64) -> Duration {
        cost(amount, self.0)
    }

    /// See [`amount`].
    pub(crate) fn amount(self, time: Duration) -> u64 {
        amount(time, self.0)
    }
}

/// Bytes, operations.
fn amounts(request: &Request) -> [u64; 2] {
    [request.bytes, request.operations]
}

/// How long `amount` takes at `rate` a second, rounded up.
fn cost(amount: u64, rate: NonZeroU64) -> Duration {
    let nanos = (u128::from(amount) * 1_000_000_000).div_ceil(u128::from(rate.get()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// How much fits into `time` at `rate` a second.
fn amount(time: Duration, rate: NonZeroU64) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(rate.get()) / 1_000_000_000).unwrap_or(u64::MAX)
}
