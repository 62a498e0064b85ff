//! One limit in one direction, in bytes or operations: the time up to which past work is paid, the
//! debts of each owner, and the places of waiters.
//!
//! Work that is done in its turn is *paid* at once: the paid time advances by its cost, and by as
//! much again of the debts. Work that goes ahead of the limit, because another caller waits for it
//! or because it must not wait, is a *debt* of its owner. In all, the work done stays what the
//! limit allows, and the debts.
//!
//! A caller that waits in its own call (fsync) waits for the paid time only, even with a debt: it
//! pays its own bytes and as many of the debts. Background work waits until its owner's debt is
//! paid. So a debt is paid by work that is not urgent, by half of the urgent work, and by all
//! unused time; at a limit that several cgroups are under, the others do not wait for it.
//!
//! # Places
//! A waiter has a place, with its number. A refund moves up the waiters with later places; of time
//! that has passed unused meanwhile, no more than the credit is left.
//!
//! Times only; no clock, no lock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limit::CgroupPath;

/// The worth of unused time: a waiter that wakes up late catches up.
const CREDIT: Duration = Duration::from_millis(12);

/// A cgroup below the limited one, or the limited one itself: its debts are those of all below it.
pub(crate) type Owner<'a> = Option<&'a CgroupPath>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    paid: Duration,
    /// By owner; none is zero.
    debts: BTreeMap<Option<CgroupPath>, Duration>,
    /// Of waiters, and of those that are doing what they waited for, by number.
    places: BTreeMap<u64, Place>,
    /// Costs counted up to this number were counted by another meter.
    since: u64,
}

/// The place of one waiter.
#[derive(Debug)]
struct Place {
    /// The time from which on it may go on.
    turn: Duration,
    cost: Duration,
    /// The debts that it pays.
    pays: Pays,
}

/// How much of which owner's debts.
type Pays = Vec<(Option<CgroupPath>, Duration)>;

impl Meter {
    /// An empty meter; numbers up to `number` have been given out.
    pub(crate) fn after(number: u64) -> Self {
        Self { since: number, ..Self::default() }
    }

    /// The time at which background work of `owner` may go on.
    pub(crate) fn ready_at(&mut self, owner: Owner<'_>, now: Duration) -> Duration {
        self.pay(now);
        self.paid.saturating_add(self.debt(owner))
    }

    /// Counts work of this cost that is done in its turn.
    pub(crate) fn charge(&mut self, cost: Duration, now: Duration) -> Pays {
        self.pay(now);
        self.paid = self.paid.max(now.saturating_sub(CREDIT));
        let pays = self.pay_debts(cost);
        self.paid = self.paid.saturating_add(cost).saturating_add(sum(&pays));
        pays
    }

    /// Counts work of this cost that goes ahead of the limit: a debt, which takes no waiter's
    /// place.
    pub(crate) fn owe(&mut self, owner: Owner<'_>, cost: Duration, now: Duration) {
        self.pay(now);
        self.paid = self.paid.max(now.saturating_sub(CREDIT));
        *self.debts.entry(owner.cloned()).or_default() += cost;
        self.debts.retain(|_, debt| !debt.is_zero());
    }

    /// Gives a waiter a place and counts the cost; [`Meter::turn`] says from when on it may go on.
    pub(crate) fn queue(&mut self, number: u64, cost: Duration, now: Duration) {
        self.pay(now);
        let turn = self.paid;
        let pays = self.charge(cost, now);
        self.places.insert(number, Place { turn, cost, pays });
    }

    /// The time from which on a place may go on; zero if there is no such place.
    pub(crate) fn turn(&self, number: u64) -> Duration {
        self.places.get(&number).map_or(Duration::ZERO, |place| place.turn)
    }

    /// Takes back a cost counted at `number` for work that was not done, with what it was to pay of
    /// debts; the waiter with that place waits no more. Returns whether another waiter has moved
    /// up.
    pub(crate) fn refund(&mut self, number: u64, cost: Duration, now: Duration) -> bool {
        if number <= self.since {
            return false;
        }
        let place = self.places.remove(&number);
        if cost.is_zero() {
            return false;
        }
        let pays = place.map_or_else(Vec::new, |place| part(place.pays, cost, place.cost));
        let floor = now.saturating_sub(CREDIT);
        let waits = |place: &Place| place.turn > now;
        let next = self.places.range(number..).map(|(_, place)| place).find(|place| waits(place));
        // Time that has passed unused is gone for the waiters behind it, and has paid debts.
        let all = cost + sum(&pays);
        let back = next.map_or(all, |next| all.min(next.turn.saturating_sub(floor)));
        let back = self.give_back(back, floor);
        let of_debts = back.saturating_sub(cost);
        for (owner, time) in part(pays, of_debts, all - cost) {
            *self.debts.entry(owner).or_default() += time;
        }
        self.debts.retain(|_, debt| !debt.is_zero());
        let mut has_moved = false;
        for (_, place) in self.places.range_mut(number..).filter(|(_, place)| waits(place)) {
            place.turn = place.turn.saturating_sub(back);
            has_moved |= !back.is_zero();
        }
        has_moved
    }

    /// Takes back a cost that `owner` owed, counted at `number`, for work that was not done.
    pub(crate) fn forgive(&mut self, number: u64, owner: Owner<'_>, cost: Duration, now: Duration) {
        if number <= self.since {
            return;
        }
        let key = owner.cloned();
        let debt = self.debts.get(&key).copied().unwrap_or_default();
        let owed = debt.min(cost);
        self.debts.insert(key, debt - owed);
        self.debts.retain(|_, debt| !debt.is_zero());
        // The part of it that is paid already.
        self.give_back(cost - owed, now.saturating_sub(CREDIT));
    }

    /// By how much `owner` is ahead.
    pub(crate) fn ahead(&mut self, owner: Owner<'_>, now: Duration) -> Duration {
        self.ready_at(owner, now).saturating_sub(now)
    }

    /// By how much all owners are ahead together.
    pub(crate) fn ahead_in_all(&mut self, now: Duration) -> Duration {
        self.pay(now);
        let debts = self.debts.values().fold(Duration::ZERO, |sum, debt| sum.saturating_add(*debt));
        self.paid.saturating_add(debts).saturating_sub(now)
    }

    /// The rate changes: what is ahead now costs what `cost` makes of it.
    pub(crate) fn scale(&mut self, now: Duration, cost: impl Fn(Duration) -> Duration) {
        self.pay(now);
        let queued = self.paid.saturating_sub(now);
        if !queued.is_zero() {
            self.paid = now.saturating_add(cost(queued));
        }
        for place in self.places.values_mut() {
            place.turn = now.saturating_add(cost(place.turn.saturating_sub(now)));
            place.cost = cost(place.cost);
            place.pays.iter_mut().for_each(|(_, time)| *time = cost(*time));
        }
        self.debts.values_mut().for_each(|debt| *debt = cost(*debt));
        self.debts.retain(|_, debt| !debt.is_zero());
    }

    /// The debt of `owner` becomes one of `heir`.
    pub(crate) fn inherit(&mut self, owner: &CgroupPath, heir: Owner<'_>) {
        if let Some(debt) = self.debts.remove(&Some(owner.clone())) {
            *self.debts.entry(heir.cloned()).or_default() += debt;
        }
    }

    fn debt(&self, owner: Owner<'_>) -> Duration {
        let of = |key: Option<CgroupPath>| self.debts.get(&key).copied().unwrap_or_default();
        let own = owner.map_or(Duration::ZERO, |owner| of(Some(owner.clone())));
        own.saturating_add(of(None))
    }

    /// Returns how much it could give back.
    fn give_back(&mut self, time: Duration, floor: Duration) -> Duration {
        let before = self.paid;
        self.paid = before.saturating_sub(time).max(before.min(floor));
        before - self.paid
    }

    /// Time that no request used or is going to use pays debts.
    fn pay(&mut self, now: Duration) {
        if !self.debts.is_empty() {
            let unused = now.saturating_sub(CREDIT).saturating_sub(self.paid);
            let pays = self.pay_debts(unused);
            self.paid += sum(&pays);
        }
    }

    /// Pays `most` of the debts, an equal part of each; returns how much of which owner's.
    fn pay_debts(&mut self, most: Duration) -> Pays {
        let mut pays = Pays::new();
        let mut left = most;
        while !left.is_zero() && !self.debts.is_empty() {
            let debtors = u32::try_from(self.debts.len()).unwrap_or(u32::MAX);
            let share = (left / debtors).max(Duration::from_nanos(1));
            self.debts.retain(|owner, debt| {
                let part = share.min(*debt).min(left);
                *debt -= part;
                left -= part;
                pays.push((owner.clone(), part));
                !debt.is_zero()
            });
        }
        pays
    }
}

fn sum(pays: &Pays) -> Duration {
    pays.iter().map(|(_, time)| *time).sum()
}

/// Of each payment, the fraction that `of` is of `whole`.
fn part(pays: Pays, of: Duration, whole: Duration) -> Pays {
    if of == whole {
        return pays;
    }
    let (of, whole) = (of.min(whole).as_nanos(), whole.as_nanos().max(1));
    let nanos = |time: Duration| u64::try_from(time.as_nanos() * of / whole).unwrap_or(u64::MAX);
    pays.into_iter().map(|(owner, time)| (owner, Duration::from_nanos(nanos(time)))).collect()
}
