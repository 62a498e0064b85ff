//! One limit one way, bytes or operations: up to when what was done is paid, and who owes what of it.
//!
//! What is done in turn is *paid* at once: the paid time goes on by what it cost. What went ahead of the limit, because somebody else waited for it or
//! because it must not wait, is the *debt* of who did it. Who has a debt goes on when it is paid. At a limit that several cgroups are under, the others do not wait
//! for that: what they do is paid in its turn, and as much again of the debts with it. So debts take half of the limit at most as long as others use the rest,
//! and all of it that nobody uses. In all, what was done stays what the limit lets do, and the debts.
//!
//! Times only; no clock, no lock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limit::CgroupPath;

/// What unused time is worth: who wakes up late catches up.
const CREDIT: Duration = Duration::from_millis(12);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    paid: Duration,
    /// By who owes; none is zero.
    debts: BTreeMap<CgroupPath, Duration>,
}

impl Meter {
    /// When `owner` may go on.
    pub(crate) fn ready_at(&mut self, owner: &CgroupPath, now: Duration) -> Duration {
        self.pay(now);
        self.paid.saturating_add(self.debt(owner))
    }

    /// Counts what costs so much. `is_ahead`: it is a debt, and takes nobody else's place.
    pub(crate) fn charge(&mut self, owner: &CgroupPath, cost: Duration, now: Duration, is_ahead: bool) {
        self.pay(now);
        self.paid = self.paid.max(now.saturating_sub(CREDIT));
        if is_ahead || self.debts.contains_key(owner) {
            let debt = self.debts.entry(owner.clone()).or_default();
            *debt = debt.saturating_add(cost);
        } else {
            let others = self.pay_debts(cost);
            self.paid = self.paid.saturating_add(cost).saturating_add(others);
        }
    }

    /// Takes back what cost so much and was not done.
    pub(crate) fn refund(&mut self, owner: &CgroupPath, cost: Duration) {
        let owed = self.debt(owner).min(cost);
        if !owed.is_zero() {
            self.set_debt(owner, self.debt(owner) - owed);
        }
        self.paid = self.paid.saturating_sub(cost - owed);
    }

    /// By how much `owner` is ahead.
    pub(crate) fn ahead(&mut self, owner: &CgroupPath, now: Duration) -> Duration {
        self.ready_at(owner, now).saturating_sub(now)
    }

    /// By how much all are ahead together.
    pub(crate) fn ahead_in_all(&mut self, now: Duration) -> Duration {
        self.pay(now);
        let debts = self.debts.values().fold(Duration::ZERO, |sum, debt| sum.saturating_add(*debt));
        self.paid.saturating_add(debts).saturating_sub(now)
    }

    /// Another rate: what is ahead now costs what `cost` makes of it.
    pub(crate) fn scale(&mut self, now: Duration, cost: impl Fn(Duration) -> Duration) {
        self.pay(now);
        let queued = self.paid.saturating_sub(now);
        if !queued.is_zero() {
            self.paid = now.saturating_add(cost(queued));
        }
        self.debts.values_mut().for_each(|debt| *debt = cost(*debt));
        self.debts.retain(|_, debt| !debt.is_zero());
    }

    /// What `owner` owes is `heir`'s; nobody's in particular without one: all wait for it.
    pub(crate) fn inherit(&mut self, owner: &CgroupPath, heir: Option<&CgroupPath>) {
        let Some(debt) = self.debts.remove(owner) else { return };
        match heir {
            Some(heir) => self.set_debt(heir, self.debt(heir).saturating_add(debt)),
            None => self.paid = self.paid.saturating_add(debt),
        }
    }

    fn debt(&self, owner: &CgroupPath) -> Duration {
        self.debts.get(owner).copied().unwrap_or_default()
    }

    fn set_debt(&mut self, owner: &CgroupPath, debt: Duration) {
        if debt.is_zero() {
            self.debts.remove(owner);
        } else {
            self.debts.insert(owner.clone(), debt);
        }
    }

    /// Time that nobody used, and nobody is going to use, pays debts.
    fn pay(&mut self, now: Duration) {
        if !self.debts.is_empty() {
            let unused = now.saturating_sub(CREDIT).saturating_sub(self.paid);
            let paid = self.pay_debts(unused);
            self.paid += paid;
        }
    }

    /// Pays `most` of the debts, as much of each; says how much there was to pay.
    fn pay_debts(&mut self, most: Duration) -> Duration {
        let mut left = most;
        while !left.is_zero() && !self.debts.is_empty() {
            let debtors = u32::try_from(self.debts.len()).unwrap_or(u32::MAX);
            let share = (left / debtors).max(Duration::from_nanos(1));
            self.debts.retain(|_, debt| {
                let part = share.min(*debt).min(left);
                *debt -= part;
                left -= part;
                !debt.is_zero()
            });
        }
        most - left
    }
}
