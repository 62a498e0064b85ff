//! One limit in one direction, in bytes or operations, by the generic cell rate algorithm: the time
//! up to which past work is paid, the debts of each cgroup, and the reservations of waiters.
//!
//! Work that waits for the limit is *paid* at once: the theoretical arrival time (`tat`) advances
//! by its cost, and by as much again of the debts. Work that goes ahead of the limit, because
//! another caller waits for it or because it must not wait, is a *debt* of its owner. In all, the
//! work done stays what the limit allows, and the debts.
//!
//! A caller that waits in its own call (fsync) waits for `tat` only, even with a debt: it pays its
//! own bytes and as many of the debts. Background work waits until its owner's debt is paid. So a
//! debt is paid by work that is not urgent, by half of the urgent work, and by all unused time; at
//! a limit that several cgroups are under, the others do not wait for it.
//!
//! # Reservations
//! A waiter has a reservation, by number. A refund moves up the waiters with later numbers; of time
//! that has passed unused meanwhile, no more than the credit is left.
//!
//! Times only; no clock, no lock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limit::CgroupPath;

/// The worth of unused time: a waiter that wakes up late catches up.
const CREDIT: Duration = Duration::from_millis(12);

/// A cgroup below the limited one, or the limited one itself: its debts are those of all below it.
pub(crate) type Debtor<'a> = Option<&'a CgroupPath>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Gcra {
    /// Theoretical arrival time: past work is paid up to here.
    tat: Duration,
    /// By owner; none is zero.
    debts: BTreeMap<Option<CgroupPath>, Duration>,
    /// Of waiters, and of those that are doing what they waited for, by number.
    reservations: BTreeMap<u64, Queued>,
    /// Costs counted up to this number were counted by another one.
    since: u64,
}

/// The reservation of one waiter.
#[derive(Debug)]
struct Queued {
    /// The time from which on it may go on.
    not_before: Duration,
    cost: Duration,
    /// The debts that it pays.
    payments: Payments,
}

/// How much of which owner's debts.
type Payments = Vec<(Option<CgroupPath>, Duration)>;

impl Gcra {
    /// One without debts; numbers up to `number` have been given out.
    pub(crate) fn after(number: u64) -> Self {
        Self { since: number, ..Self::default() }
    }

    /// The time at which background work of `owner` may go on.
    pub(crate) fn ready_at(&mut self, owner: Debtor<'_>, now: Duration) -> Duration {
        self.pay(now);
        self.tat.saturating_add(self.debt(owner))
    }

    /// Counts work of this cost that waits for the limit.
    pub(crate) fn charge(&mut self, cost: Duration, now: Duration) -> Payments {
        self.pay(now);
        self.tat = self.tat.max(now.saturating_sub(CREDIT));
        let payments = self.settle(cost);
        self.tat = self.tat.saturating_add(cost).saturating_add(sum(&payments));
        payments
    }

    /// Counts work of this cost that goes ahead of the limit: a debt, which takes no waiter's
    /// waiter.
    pub(crate) fn owe(&mut self, owner: Debtor<'_>, cost: Duration, now: Duration) {
        self.pay(now);
        self.tat = self.tat.max(now.saturating_sub(CREDIT));
        *self.debts.entry(owner.cloned()).or_default() += cost;
        self.debts.retain(|_, debt| !debt.is_zero());
    }

    /// Makes a waiter's reservation and counts its cost; [`Gcra::not_before`] says when it may go
    /// on.
    pub(crate) fn reserve(&mut self, number: u64, cost: Duration, now: Duration) {
        self.pay(now);
        let not_before = self.tat;
        let payments = self.charge(cost, now);
        self.reservations.insert(number, Queued { not_before, cost, payments });
    }

    /// The time from which on a waiter may go on; zero if it has no reservation.
    pub(crate) fn not_before(&self, number: u64) -> Duration {
        self.reservations.get(&number).map_or(Duration::ZERO, |waiter| waiter.not_before)
    }

    /// Takes back a cost counted at `number` for work that was not done, with what it was to pay of
    /// debts; the waiter with that number waits no more. Returns whether another waiter has moved
    /// up.
    pub(crate) fn refund(&mut self, number: u64, cost: Duration, now: Duration) -> bool {
        if number <= self.since {
            return false;
        }
        let waiter = self.reservations.remove(&number);
        if cost.is_zero() {
            return false;
        }
        let payments = waiter.map_or_else(Vec::new, |waiter| part(waiter.payments, cost, waiter.cost));
        let floor = now.saturating_sub(CREDIT);
        let waits = |waiter: &Queued| waiter.not_before > now;
        let next = self.reservations.range(number..).map(|(_, waiter)| waiter).find(|waiter| waits(waiter));
        // Time that has passed unused is gone for the waiters behind it, and has paid debts.
        let all = cost + sum(&payments);
        let back = next.map_or(all, |next| all.min(next.not_before.saturating_sub(floor)));
        let back = self.rewind(back, floor);
        let of_debts = back.saturating_sub(cost);
        for (owner, time) in part(payments, of_debts, all - cost) {
            *self.debts.entry(owner).or_default() += time;
        }
        self.debts.retain(|_, debt| !debt.is_zero());
        let mut has_moved = false;
        for (_, waiter) in self.reservations.range_mut(number..).filter(|(_, waiter)| waits(waiter)) {
            waiter.not_before = waiter.not_before.saturating_sub(back);
            has_moved |= !back.is_zero();
        }
        has_moved
    }

    /// Takes back a cost that `owner` owed, counted at `number`, for work that was not done.
    pub(crate) fn refund_debt(&mut self, number: u64, owner: Debtor<'_>, cost: Duration, now: Duration) {
        if number <= self.since {
            return;
        }
        let key = owner.cloned();
        let debt = self.debts.get(&key).copied().unwrap_or_default();
        let owed = debt.min(cost);
        self.debts.insert(key, debt - owed);
        self.debts.retain(|_, debt| !debt.is_zero());
        // The part of it that is paid already.
        self.rewind(cost - owed, now.saturating_sub(CREDIT));
    }

    /// By how much the limit is ahead for every owner, one without debts too.
    pub(crate) fn ahead_of_all(&mut self, now: Duration) -> Duration {
        self.pay(now);
        self.tat.saturating_sub(now)
    }

    /// What each owner owes.
    pub(crate) fn debts(&self) -> impl Iterator<Item = (&Option<CgroupPath>, Duration)> {
        self.debts.iter().map(|(owner, debt)| (owner, *debt))
    }

    /// By how much `owner` is ahead.
    pub(crate) fn ahead(&mut self, owner: Debtor<'_>, now: Duration) -> Duration {
        self.ready_at(owner, now).saturating_sub(now)
    }

    /// By how much all owners are ahead together.
    pub(crate) fn ahead_in_all(&mut self, now: Duration) -> Duration {
        self.pay(now);
        let debts = self.debts.values().fold(Duration::ZERO, |sum, debt| sum.saturating_add(*debt));
        self.tat.saturating_add(debts).saturating_sub(now)
    }

    /// The rate changes: what is ahead now costs what `cost` makes of it.
    pub(crate) fn scale(&mut self, now: Duration, cost: impl Fn(Duration) -> Duration) {
        self.pay(now);
        let queued = self.tat.saturating_sub(now);
        if !queued.is_zero() {
            self.tat = now.saturating_add(cost(queued));
        }
        for waiter in self.reservations.values_mut() {
            waiter.not_before = now.saturating_add(cost(waiter.not_before.saturating_sub(now)));
            waiter.cost = cost(waiter.cost);
            waiter.payments.iter_mut().for_each(|(_, time)| *time = cost(*time));
        }
        self.debts.values_mut().for_each(|debt| *debt = cost(*debt));
        self.debts.retain(|_, debt| !debt.is_zero());
    }

    /// The debt of `owner` becomes one of `heir`.
    pub(crate) fn inherit(&mut self, owner: &CgroupPath, heir: Debtor<'_>) {
        if let Some(debt) = self.debts.remove(&Some(owner.clone())) {
            *self.debts.entry(heir.cloned()).or_default() += debt;
        }
    }

    fn debt(&self, owner: Debtor<'_>) -> Duration {
        let of = |key: Option<CgroupPath>| self.debts.get(&key).copied().unwrap_or_default();
        let own = owner.map_or(Duration::ZERO, |owner| of(Some(owner.clone())));
        own.saturating_add(of(None))
    }

    /// Returns how much it could give back.
    fn rewind(&mut self, time: Duration, floor: Duration) -> Duration {
        let before = self.tat;
        self.tat = before.saturating_sub(time).max(before.min(floor));
        before - self.tat
    }

    /// Time that no request used or is going to use pays debts.
    fn pay(&mut self, now: Duration) {
        if !self.debts.is_empty() {
            let unused = now.saturating_sub(CREDIT).saturating_sub(self.tat);
            let payments = self.settle(unused);
            self.tat += sum(&payments);
        }
    }

    /// Pays `most` of the debts, an equal part of each; returns how much of which owner's.
    fn settle(&mut self, most: Duration) -> Payments {
        let mut payments = Payments::new();
        let mut left = most;
        while !left.is_zero() && !self.debts.is_empty() {
            let debtors = u32::try_from(self.debts.len()).unwrap_or(u32::MAX);
            let share = (left / debtors).max(Duration::from_nanos(1));
            self.debts.retain(|owner, debt| {
                let part = share.min(*debt).min(left);
                *debt -= part;
                left -= part;
                payments.push((owner.clone(), part));
                !debt.is_zero()
            });
        }
        payments
    }
}

fn sum(payments: &Payments) -> Duration {
    payments.iter().map(|(_, time)| *time).sum()
}

/// Of each payment, the fraction that `of` is of `whole`.
fn part(payments: Payments, of: Duration, whole: Duration) -> Payments {
    if of == whole {
        return payments;
    }
    let (of, whole) = (of.min(whole).as_nanos(), whole.as_nanos().max(1));
    let nanos = |time: Duration| u64::try_from(time.as_nanos() * of / whole).unwrap_or(u64::MAX);
    payments.into_iter().map(|(owner, time)| (owner, Duration::from_nanos(nanos(time)))).collect()
}
