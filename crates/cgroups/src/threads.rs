//! Which cgroup a thread is in, remembered for a moment.
//!
//! Reading `/proc` takes longer than a small write. An answer is used for [`STALE_AFTER`] at most.
//! For so long, a thread that was moved, or one that got the number of an ended thread, may count
//! for the former cgroup.
//!
//! Lock order: a shard is a leaf.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sync::Mutex;

use crate::CgroupId;

/// How long an answer is used.
pub(crate) const STALE_AFTER: Duration = Duration::from_millis(50);
const SHARDS: usize = 16;
/// Answers that one shard keeps.
const SHARD_MAX: usize = 512;

/// Known cgroups of threads.
#[derive(Debug, Default)]
pub struct ThreadCache {
    shards: [Mutex<HashMap<u32, (CgroupId, Instant)>>; SHARDS],
}

impl ThreadCache {
    /// The cgroup of `tid` as of 50 ms ago at most; if it is not known, `find` looks it up. A
    /// failed look-up is not remembered.
    pub fn get(&self, tid: u32, find: impl FnOnce() -> Option<CgroupId>) -> Option<CgroupId> {
        let shard = &self.shards[tid as usize % SHARDS];
        let now = Instant::now();
        if let Some((id, since)) = shard.lock().get(&tid)
            && now.duration_since(*since) < STALE_AFTER
        {
            return Some(*id);
        }
        let id = find()?;
        let mut known = shard.lock();
        if known.len() >= SHARD_MAX {
            known.retain(|_, (_, since)| now.duration_since(*since) < STALE_AFTER);
            if known.len() >= SHARD_MAX {
                known.clear();
            }
        }
        // Its age is that of the question: the answer may be as old.
        known.insert(tid, (id, now));
        Some(id)
    }

    /// Forgets which threads were in a cgroup.
    pub fn forget(&self, id: CgroupId) {
        for shard in &self.shards {
            shard.lock().retain(|_, (known, _)| *known != id);
        }
    }

    /// The number of answers that are kept: at most 8192.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_used_for_a_moment_and_their_number_is_bounded() {
        let threads = ThreadCache::default();
        let mut asked = 0;
        let begun = Instant::now();
        while asked < 3 {
            let id = threads.get(7, || {
                asked += 1;
                Some(CgroupId(asked))
            });
            assert_eq!(id, Some(CgroupId(asked)));
        }
        // Two answers expired.
        assert!(begun.elapsed() >= STALE_AFTER * 2);
        assert_eq!(threads.get(8, || None), None);
        assert_eq!(threads.get(8, || Some(CgroupId(5))), Some(CgroupId(5)));
        threads.forget(CgroupId(5));
        assert_eq!(threads.get(8, || Some(CgroupId(6))), Some(CgroupId(6)));
        for tid in 0..100_000 {
            threads.get(tid, || Some(CgroupId::ROOT));
        }
        assert!(threads.len() <= SHARDS * SHARD_MAX && !threads.is_empty());
    }
}
