//! How long the requests of each cgroup have waited for its limits.
//!
//! Lock order: `LimitWaits::by_limit` is a leaf.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sync::Mutex;

/// Limits of cgroups whose waits are remembered. Beyond that, the least waited for is forgotten
/// that no thread waits for now.
const LIMITS_MAX: usize = 2048;

/// A limit that readers and writers of a cgroup meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Limit {
    /// The bytes and operations of a second.
    #[serde(rename = "io.max")]
    IoMax,
    /// Its dirty bytes.
    #[serde(rename = "memory.dirty_max")]
    DirtyMax,
}

impl Limit {
    /// Its name, as cgroups have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IoMax => "io.max",
            Self::DirtyMax => "memory.dirty_max",
        }
    }
}

/// The waits for one limit of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitWait {
    /// The cgroup, as a path below the root of the hierarchy.
    pub cgroup: PathBuf,
    /// The limit.
    pub limit: Limit,
    /// How many threads have waited for it, those that wait now included; one that sleeps several
    /// times for one piece of work may count each time.
    pub waits: u64,
    /// For how long in all, as far as waits under way have come.
    pub waited: Duration,
    /// How many wait now.
    pub waiting: u64,
    /// For how long the first of these has waited; zero where none waits.
    pub longest: Duration,
}

/// The waits for all limits of a volume's cgroups.
#[derive(Debug, Default)]
pub(crate) struct LimitWaits {
    by_limit: Mutex<BTreeMap<(PathBuf, Limit), Waits>>,
}

#[derive(Debug, Default)]
struct Waits {
    count: u64,
    ended: Duration,
    /// When each of the waits under way began.
    under_way: Vec<Instant>,
}

impl Waits {
    fn waited(&self, now: Instant) -> Duration {
        let elapsed = self.under_way.iter().map(|begun| now.saturating_duration_since(*begun));
        elapsed.fold(self.ended, Duration::saturating_add)
    }
}

impl LimitWaits {
    /// A thread begins to wait.
    pub(crate) fn begin(&self, cgroup: &Path, limit: Limit, now: Instant) {
        let mut by_limit = self.by_limit.lock();
        let key = (cgroup.to_owned(), limit);
        if by_limit.len() >= LIMITS_MAX && !by_limit.contains_key(&key) {
            let idle = by_limit.iter().filter(|(_, waits)| waits.under_way.is_empty());
            let least = idle.min_by_key(|(_, waits)| waits.ended).map(|(key, _)| key.clone());
            if let Some(least) = least {
                by_limit.remove(&least);
            }
        }
        let waits = by_limit.entry(key).or_default();
        waits.count += 1;
        waits.under_way.push(now);
    }

    /// A thread that began to wait then does so no more.
    pub(crate) fn end(&self, of: &(PathBuf, Limit), begun: Instant, now: Instant) {
        let mut by_limit = self.by_limit.lock();
        let Some(waits) = by_limit.get_mut(of) else { return };
        if let Some(at) = waits.under_way.iter().position(|other| *other == begun) {
            waits.under_way.swap_remove(at);
            waits.ended = waits.ended.saturating_add(now.saturating_duration_since(begun));
        }
    }

    /// All of them, by cgroup.
    pub(crate) fn all(&self, now: Instant) -> Vec<LimitWait> {
        let by_limit = self.by_limit.lock();
        let wait = |((cgroup, limit), waits): (&(PathBuf, Limit), &Waits)| LimitWait {
            cgroup: cgroup.clone(),
            limit: *limit,
            waits: waits.count,
            waited: waits.waited(now),
            waiting: waits.under_way.len() as u64,
            longest: waits
                .under_way
                .iter()
                .min()
                .map_or(Duration::ZERO, |begun| now.saturating_duration_since(*begun)),
        };
        by_limit.iter().map(wait).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_under_way_count_as_far_as_they_have_come() {
        let (waits, start) = (LimitWaits::default(), Instant::now());
        let of = (PathBuf::from("/a"), Limit::IoMax);
        waits.begin(&of.0, of.1, start);
        waits.begin(&of.0, of.1, start + SECOND);
        let all = waits.all(start + SECOND * 3);
        assert_eq!((all[0].waits, all[0].waited, all[0].waiting), (2, SECOND * 5, 2));
        assert_eq!(all[0].longest, SECOND * 3);
        waits.end(&of, start, start + SECOND * 4);
        waits.end(&of, start + SECOND, start + SECOND * 4);
        let all = waits.all(start + SECOND * 9);
        assert_eq!((all[0].waits, all[0].waited, all[0].waiting), (2, SECOND * 7, 0));
        assert_eq!((all.len(), all[0].longest), (1, Duration::ZERO));
    }

    #[test]
    fn of_too_many_cgroups_those_that_waited_least_are_forgotten() {
        let (waits, start) = (LimitWaits::default(), Instant::now());
        for n in 0..LIMITS_MAX + 3 {
            let of = (PathBuf::from(format!("/{n}")), Limit::DirtyMax);
            waits.begin(&of.0, of.1, start);
            if n != 0 {
                waits.end(&of, start, start + Duration::from_millis(n as u64));
            }
        }
        let known: Vec<PathBuf> = waits.all(start).into_iter().map(|wait| wait.cgroup).collect();
        assert_eq!(known.len(), LIMITS_MAX);
        let is_known = |name: &str| known.iter().any(|path| path == Path::new(name));
        assert!(is_known("/0"), "a thread waits there");
        assert!(!is_known("/1") && !is_known("/3") && is_known("/4"));
    }
}
