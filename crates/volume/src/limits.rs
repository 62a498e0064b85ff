//! The limits that cgroups have on a volume's store, as people set them.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::str::FromStr;

use throttle::{CgroupPath, Direction, LimitError, Limits, Request, number};

use crate::{Caller, Volume};

/// The limits of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLimits {
    /// The cgroup.
    pub cgroup: CgroupPath,
    /// `io.max`.
    pub limits: Limits,
    /// How many bytes it may have that are not on the store.
    pub dirty_bytes_max: Option<u64>,
    /// `io.sync_isolation`: syncs of the cgroup and of those below cover only what these own.
    pub sync_isolation: bool,
    /// Bytes that were written ahead of the limits, because another caller waited for them.
    pub owed_bytes: u64,
}

impl CgroupLimits {
    /// The change that sets all of them, in words.
    #[must_use]
    pub fn as_change(&self) -> String {
        let dirty_max = self.dirty_bytes_max.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        format!("{} dirty_max={dirty_max} sync_isolation={}", self.limits, u8::from(self.sync_isolation))
    }
}

/// A change for one cgroup: of the limits that it names, and no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitChange {
    limits: String,
    dirty_bytes_max: Option<Option<NonZeroU64>>,
    sync_isolation: Option<bool>,
}

impl FromStr for LimitChange {
    type Err = LimitError;

    /// Pairs as in `wbps=1M sync_isolation=1`, separated by blanks or commas.
    fn from_str(text: &str) -> Result<Self, LimitError> {
        let mut change = Self { limits: String::new(), dirty_bytes_max: None, sync_isolation: None };
        for pair in text.split([' ', ',', '\n']).filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sync_isolation", value)) => change.sync_isolation = Some(switch(value)?),
                Some(("dirty_max", value)) => change.dirty_bytes_max = Some(number("dirty_max", value)?),
                _ => {
                    change.limits.push_str(pair);
                    change.limits.push(' ');
                }
            }
        }
        Limits::default().change(&change.limits)?;
        Ok(change)
    }
}

fn switch(value: &str) -> Result<bool, LimitError> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(LimitError::NotASwitch { key: "sync_isolation", value: value.to_owned() }),
    }
}

impl Volume {
    /// Changes a cgroup's limits from now on, whether it is there or not.
    pub fn limit(&self, cgroup: &CgroupPath, change: &LimitChange) {
        let throttle = self.core.bdi.throttle();
        let mut limits = throttle.get(cgroup);
        if limits.change(&change.limits).is_ok() && !change.limits.is_empty() {
            throttle.set(cgroup, limits);
            // Writers wait in the budget's queue for debts to be paid.
            self.core.bdi.limits_changed();
        }
        if let Some(bytes_max) = change.dirty_bytes_max {
            self.set_dirty_max(cgroup, bytes_max.map(NonZeroU64::get));
        }
        if let Some(is_isolated) = change.sync_isolation {
            throttle.set_isolated(cgroup, is_isolated);
            self.note_owners();
        }
        let volume = self.name();
        tracing::info!(volume, %cgroup, %limits, isolation = change.sync_isolation, "limits changed");
    }

    /// From now on the owners of changes that are not durable yet are noted;
    /// [`has_unsynced_of`](Self::has_unsynced_of) tells them apart. Earlier changes count for
    /// every owner, until the next sync of the store.
    pub fn note_owners(&self) {
        self.core.unsynced.note_owners();
    }

    /// Something beside file data was changed: that went to the store at once, and counts as an
    /// operation that is owed. Where the caller cannot be found, the change counts for every owner,
    /// and no owner is charged.
    pub(crate) fn note_metadata(&self, caller: &Caller) {
        let core = &self.core;
        let owner = || core.options.tenants.of_caller(caller);
        core.unsynced.note(owner);
        if core.bdi.throttle().is_limiting()
            && let Some(owner) = owner()
        {
            let chain = core.bdi.chain_of_owner(owner);
            let direction = Direction::Write;
            core.bdi
                .throttle()
                .charge(&chain, &Request { direction, bytes: 0, operations: 1, epoch: 0, inode: 0 });
        }
    }

    /// The limits that are set, by cgroup.
    #[must_use]
    pub fn limits(&self) -> Vec<CgroupLimits> {
        let throttle = self.core.bdi.throttle();
        let isolated = throttle.isolated();
        let dirty_max: BTreeMap<CgroupPath, u64> = self.core.bdi.dirty_max().into_iter().collect();
        let mut all: Vec<CgroupPath> = throttle.limits().into_iter().map(|(path, _)| path).collect();
        all.extend(isolated.iter().chain(dirty_max.keys()).cloned());
        all.sort();
        all.dedup();
        let describe = |cgroup: CgroupPath| CgroupLimits {
            limits: throttle.get(&cgroup),
            dirty_bytes_max: dirty_max.get(&cgroup).copied(),
            sync_isolation: isolated.contains(&cgroup),
            owed_bytes: throttle.owed(&throttle.chain(&cgroup)).max(throttle.owed_in_all(&cgroup)),
            cgroup,
        };
        all.into_iter().map(describe).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_refused_as_a_whole() {
        for bad in
            ["wbps", "dirty_max=x", "wbps=fast", "frob=1", "sync_isolation=yes", "wbps=1M sync_isolation=2"]
        {
            assert!(bad.parse::<LimitChange>().is_err(), "{bad}");
        }
        let change: LimitChange = "wbps=1M sync_isolation=1,riops=max".parse().unwrap();
        assert_eq!(change.sync_isolation, Some(true));
    }
}
