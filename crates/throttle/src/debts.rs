//! What cgroups have done ahead of their limits, written down for another [`Throttle`], whose clock
//! need not be this one's: as bytes and operations, not as times.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::group::Buckets;
use crate::limit::CgroupPath;
use crate::throttle::Throttle;

/// Amounts by direction (read, write): bytes, operations.
pub type Amounts = [[u64; 2]; 2];

/// What was done ahead of the limits of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debts {
    /// The cgroup whose limits they are.
    pub cgroup: CgroupPath,
    /// What all that comes has to wait for.
    pub ahead: Amounts,
    /// What the background work of each owner has to wait for besides. `None`: that of every owner.
    pub owed: BTreeMap<Option<CgroupPath>, Amounts>,
}

impl Throttle {
    /// Writes down what is owed now.
    #[must_use]
    pub fn debts(&self) -> Vec<Debts> {
        let now = self.now();
        let groups = self.groups.lock();
        let all = groups.iter().map(|(path, group)| group.buckets().debts(path, now));
        all.filter(|debts| debts.ahead != Amounts::default() || !debts.owed.is_empty()).collect()
    }

    /// Cgroups owe this as well. At limits that are not set here nothing is owed.
    pub fn owe(&self, debts: &[Debts]) {
        let now = self.now();
        let groups = self.groups.lock();
        for one in debts {
            if let Some(group) = groups.get(&one.cgroup) {
                group.buckets().owe(one, now);
            }
        }
    }
}

impl Buckets {
    fn debts(&mut self, cgroup: &CgroupPath, now: Duration) -> Debts {
        let mut debts = Debts { cgroup: cgroup.clone(), ahead: Amounts::default(), owed: BTreeMap::new() };
        self.each_limit(|direction, what, rate, gcra| {
            debts.ahead[direction as usize][what] = rate.amount(gcra.ahead_of_all(now));
            for (owner, debt) in gcra.debts() {
                let amounts = debts.owed.entry(owner.clone()).or_default();
                amounts[direction as usize][what] = rate.amount(debt);
            }
        });
        debts
    }

    fn owe(&mut self, debts: &Debts, now: Duration) {
        self.each_limit(|direction, what, rate, gcra| {
            let of = |amounts: &Amounts| rate.cost(amounts[direction as usize][what]);
            let _pays_nothing = gcra.charge(of(&debts.ahead), now);
            for (owner, amounts) in &debts.owed {
                gcra.owe(owner.as_ref(), of(amounts), now);
            }
        });
    }
}
