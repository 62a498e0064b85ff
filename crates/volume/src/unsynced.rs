//! Records which tenants changed something that the store has not made durable yet: an isolated
//! sync of another tenant need not ask the store.
//!
//! A change is noted after it was made, and taken off when a sync of the store has succeeded that
//! began after it was noted. Its owner is noted only where a cgroup is isolated. Three kinds of
//! change count for every owner, until the next sync of the store: a change from before that; a
//! change by a cgroup that was removed since, which concerns the cgroups that come after it and
//! those above; and data of a file that changes its owner: the new owner's sync covers the file,
//! the old one's the data that was written while it was the owner.
//!
//! Lock order: a leaf.

use std::collections::HashMap;

use cgroups::CgroupId;
use sync::Mutex;

/// Tenants that are told apart; changes of further ones count for every owner.
const OWNERS_MAX: usize = 4096;

/// The tenants with changes that are not durable.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedChanges(Mutex<Changes>);

#[derive(Debug, Default)]
struct Changes {
    /// A cgroup is isolated: the owner of a change matters.
    is_noting: bool,
    /// Counts syncs that began.
    epoch: u64,
    /// The epoch in which something last changed.
    by_owner: HashMap<CgroupId, u64>,
    of_anybody: Option<u64>,
    /// How many of all bytes that were ever written had been written when the last successful sync
    /// began.
    covered_bytes: u64,
}

/// A sync of the store that has begun: which changes it covers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncEpoch {
    number: u64,
    written_bytes: u64,
}

impl UnsyncedChanges {
    /// Something was changed; `who` is asked only if it matters. A change without an owner counts
    /// for every owner.
    pub(crate) fn note(&self, who: impl FnOnce() -> Option<CgroupId>) {
        let is_noting = self.0.lock().is_noting;
        let owner = if is_noting { who() } else { None };
        let mut changes = self.0.lock();
        let epoch = changes.epoch;
        match owner
            .filter(|owner| changes.by_owner.len() < OWNERS_MAX || changes.by_owner.contains_key(owner))
        {
            Some(owner) => _ = changes.by_owner.insert(owner, epoch),
            None => changes.of_anybody = Some(epoch),
        }
    }

    /// From now on the owners of changes are noted.
    pub(crate) fn note_owners(&self) {
        self.0.lock().is_noting = true;
    }

    /// Whether one of the tenants that are `own` may have changed something.
    pub(crate) fn is_any(&self, own: impl Fn(CgroupId) -> bool) -> bool {
        let changes = self.0.lock();
        changes.of_anybody.is_some() || changes.by_owner.keys().any(|owner| own(*owner))
    }

    /// A sync of the store begins, to which `written_bytes` had been written by then.
    pub(crate) fn begin(&self, written_bytes: u64) -> SyncEpoch {
        let mut changes = self.0.lock();
        changes.epoch += 1;
        SyncEpoch { number: changes.epoch, written_bytes }
    }

    /// How many of `written_bytes`, all that ever were written, no sync of the store has covered.
    pub(crate) fn bytes(&self, written_bytes: u64) -> u64 {
        written_bytes.saturating_sub(self.0.lock().covered_bytes)
    }

    /// The sync has succeeded.
    pub(crate) fn end(&self, epoch: SyncEpoch) {
        let mut changes = self.0.lock();
        changes.by_owner.retain(|_, changed| *changed >= epoch.number);
        changes.covered_bytes = changes.covered_bytes.max(epoch.written_bytes);
        changes.of_anybody = changes.of_anybody.filter(|changed| *changed >= epoch.number);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const A: CgroupId = CgroupId(1);

    #[test]
    fn bytes_count_until_a_sync_has_succeeded_that_began_later() {
        let unsynced = UnsyncedChanges::default();
        assert_eq!(unsynced.bytes(10), 10);
        let (early, late) = (unsynced.begin(10), unsynced.begin(30));
        assert_eq!(unsynced.bytes(30), 30, "none has succeeded");
        unsynced.end(late);
        unsynced.end(early);
        assert_eq!((unsynced.bytes(30), unsynced.bytes(35)), (0, 5));
    }

    #[test]
    fn a_change_counts_until_a_later_sync_has_succeeded() {
        let unsynced = UnsyncedChanges::default();
        assert!(!unsynced.is_any(|_| true));
        unsynced.note(|| panic!("nobody wants to know yet"));
        assert!(unsynced.is_any(|_| false), "it may be anybody's");
        unsynced.note_owners();
        unsynced.end(unsynced.begin(0));
        assert!(!unsynced.is_any(|_| true));
        let too_early = unsynced.begin(0);
        unsynced.note(|| Some(A));
        unsynced.end(too_early);
        assert!(unsynced.is_any(|owner| owner == A) && !unsynced.is_any(|owner| owner != A));
        unsynced.begin(0);
        assert!(unsynced.is_any(|owner| owner == A), "that one failed");
        unsynced.end(unsynced.begin(0));
        assert!(!unsynced.is_any(|owner| owner == A));
        unsynced.note(|| None);
        assert!(unsynced.is_any(|_| false));
    }
}
