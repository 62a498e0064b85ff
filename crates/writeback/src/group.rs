//! One cgroup's limits on one store: what it was let do, and when it may go on.
//!
//! # Arithmetic
//! For bytes and for operations, each way, a group keeps the time up to which what it did is *paid*: `n` at a rate of `r` a second cost `n / r`
//! seconds. It may go on when the paid time has come; the later of bytes and operations counts. Time that
//! nobody used is worth at most [`CREDIT`] afterwards.
//!
//! This stands for blk-throttle's slices of 100 ms. A slice lets a cgroup have its rate times the time since the slice's beginning, rounded up to a
//! slice, so that within 1 s it may be a slice over its limit (10 %). Here no second has more than the limit plus [`CREDIT`] plus
//! one request; who asks for a [`piece`](Group::piece) at a time stays within 2 %, or within a page where that is more. As with slices, unused time is
//! not saved up, and what goes at once (metadata, what a boost covers) is a debt: the paid time is then far ahead.
//!
//! | field | protected by |
//! |---|---|
//! | `path` | immutable |
//! | `buckets` | its own lock; of a chain's groups the outer one (nearer to the root) is locked first |

use std::num::NonZeroU64;
use std::time::Duration;

use sync::{Mutex, MutexGuard};

use crate::limit::{CgroupPath, Direction, Limits};

/// What unused time is worth: who wakes up late catches up.
const CREDIT: Duration = Duration::from_millis(12);
/// Pieces in a second.
const PIECES: u64 = 128;
/// The least that is written at a time.
const PAGE: u64 = 4096;
/// What an operation that is owed counts as, in bytes: the largest.
const OPERATION: u64 = 1 << 20;

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Which way.
    pub direction: Direction,
    /// Bytes.
    pub bytes: u64,
    /// Calls of the store.
    pub operations: u64,
    /// The data is dirty since this epoch or an earlier one: a boost that began later covers it. [`u64::MAX`]: no boost does.
    pub epoch: u64,
    /// Whose data: for a boost that covers one inode.
    pub inode: u64,
}

/// One cgroup's limits on one store.
#[derive(Debug)]
pub struct Group {
    path: CgroupPath,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
pub(crate) struct Buckets {
    limits: Limits,
    /// By direction: bytes, operations.
    paid: [[Duration; 2]; 2],
    /// Who waits for this cgroup's data and must not wait for its limits.
    tokens: Vec<Token>,
}

/// One boost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) number: u64,
    /// It covers what is dirty since this epoch or an earlier one.
    pub(crate) epoch: u64,
    /// Of this inode only.
    pub(crate) inode: Option<u64>,
}

impl Token {
    fn covers(&self, request: &Request) -> bool {
        request.epoch <= self.epoch && self.inode.is_none_or(|inode| inode == request.inode)
    }
}

impl Group {
    pub(crate) fn new(path: CgroupPath, limits: Limits) -> Self {
        let buckets = Buckets { limits, paid: Default::default(), tokens: Vec::new() };
        Self { path, buckets: Mutex::new(buckets) }
    }

    /// Whose limits these are.
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
        self.buckets().tokens.len()
    }

    pub(crate) fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock()
    }
}

impl Buckets {
    /// When the request may go on.
    pub(crate) fn ready_at(&self, request: &Request) -> Duration {
        let waits = |(limit, paid): (Option<NonZeroU64>, Duration)| limit.map(|_| paid);
        let is_covered = self.tokens.iter().any(|token| token.covers(request));
        let both = self.both(request.direction).filter_map(waits).max();
        both.filter(|_| !is_covered).unwrap_or_default()
    }

    /// Counts what is done, or about to be.
    pub(crate) fn charge(&mut self, request: &Request, now: Duration) {
        for (limit, paid, amount) in self.amounts(request) {
            let Some(limit) = limit else { continue };
            *paid = (*paid).max(now.saturating_sub(CREDIT)).saturating_add(cost(amount, limit));
        }
    }

    /// Gives back what was charged and not done.
    pub(crate) fn refund(&mut self, request: &Request) {
        for (limit, paid, amount) in self.amounts(request) {
            let Some(limit) = limit else { continue };
            *paid = paid.saturating_sub(cost(amount, limit));
        }
    }

    /// Other limits from now on. What is owed stays owed: the same bytes, at the new rate.
    pub(crate) fn set_limits(&mut self, limits: Limits, now: Duration) {
        for direction in [Direction::Read, Direction::Write] {
            let (old, new) = (self.limits.of(direction), limits.of(direction));
            for ((paid, old), new) in self.paid[direction as usize].iter_mut().zip(old).zip(new) {
                let owed = paid.saturating_sub(now);
                *paid = match (old, new) {
                    (Some(old), Some(new)) if !owed.is_zero() => now + cost(amount(owed, old), new),
                    (Some(_), Some(_)) => *paid,
                    _ => Duration::ZERO,
                };
            }
        }
        self.limits = limits;
    }

    /// What was done ahead of the limits, in bytes.
    pub(crate) fn owed(&self, direction: Direction, now: Duration) -> u64 {
        let worth = [1, OPERATION];
        let owed = self.both(direction).zip(worth).filter_map(|((limit, paid), worth)| {
            Some(amount(paid.saturating_sub(now), limit?).saturating_mul(worth))
        });
        owed.max().unwrap_or(0)
    }

    /// When no more than `most` bytes will be owed.
    pub(crate) fn owed_until(&self, direction: Direction, most: u64) -> Duration {
        let worth = [1, OPERATION];
        let times = self
            .both(direction)
            .zip(worth)
            .filter_map(|((limit, paid), worth)| Some(paid.saturating_sub(cost(most / worth, limit?))));
        times.max().unwrap_or_default()
    }

    /// The most that should be asked for at once, so that averages over a second keep to the limit.
    pub(crate) fn piece(&self, direction: Direction) -> u64 {
        let [bytes, _] = self.limits.of(direction);
        bytes.map_or(u64::MAX, |rate| (rate.get() / PIECES / PAGE * PAGE).max(PAGE))
    }

    pub(crate) fn add_token(&mut self, token: Token) {
        self.tokens.push(token);
    }

    pub(crate) fn remove_token(&mut self, number: u64) {
        self.tokens.retain(|token| token.number != number);
    }

    fn both(&self, direction: Direction) -> impl Iterator<Item = (Option<NonZeroU64>, Duration)> {
        self.limits.of(direction).into_iter().zip(self.paid[direction as usize])
    }

    fn amounts(
        &mut self,
        request: &Request,
    ) -> impl Iterator<Item = (Option<NonZeroU64>, &mut Duration, u64)> {
        let limits = self.limits.of(request.direction);
        let paid = &mut self.paid[request.direction as usize];
        let amounts = [request.bytes, request.operations];
        limits.into_iter().zip(paid).zip(amounts).map(|((limit, paid), amount)| (limit, paid, amount))
    }
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
