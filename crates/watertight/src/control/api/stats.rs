//! How long operations take.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sync::Durations;
use volume::events::Limit;

use crate::control::volume_id::VolumeId;
use crate::term::shown::Name;

/// The answer to `GET /v1/stats`: what is counted since this process serves the volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// The volume.
    pub id: VolumeId,
    /// Where it is mounted or attached.
    pub mountpoint: Name,
    /// For how long it has been counted.
    pub counted_ms: u64,
    /// By class, those of which there was one.
    pub operations: BTreeMap<String, Operation>,
    /// The waits for limits, by cgroup: those with the longest, in all.
    pub limit_waits: Vec<LimitWait>,
}

/// The operations of one class that were answered. Their time begins when the request was read from
/// the kernel. Times of parts are sums; what is left of `total_us` is the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// How many.
    pub count: u64,
    /// Their time in all.
    pub total_us: u64,
    /// The longest.
    pub max_us: u64,
    /// Time spent waiting for a thread.
    pub queue_us: u64,
    /// Time spent waiting for limits of cgroups.
    pub limit_us: u64,
    /// Time spent waiting for room in the cache.
    pub cache_us: u64,
    /// Time spent in calls of the store.
    pub store_us: u64,
    /// How many took how long, the shortest first; classes without any are left out.
    pub latency: Vec<OperationLatency>,
}

/// Operations that took about as long as each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationLatency {
    /// They took no longer, and longer than the class before; missing: longer than 134 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_us: Option<u64>,
    /// How many they are.
    pub count: u64,
}

/// The waits for one limit of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitWait {
    /// The cgroup's path in the tree.
    pub cgroup: Name,
    /// The limit.
    pub limit: Limit,
    /// How many waits there were, those under way included.
    pub waits: u64,
    /// Their time in all, as far as they have come.
    pub waited_us: u64,
    /// How many are under way.
    pub waiting: u64,
    /// For how long the first of these has been.
    pub longest_us: u64,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Operation {
    /// The histogram.
    #[must_use]
    pub fn durations(&self) -> Durations {
        let (sum, max) = (Duration::from_micros(self.total_us), Duration::from_micros(self.max_us));
        let mut durations = Durations::of(sum, max);
        for class in &self.latency {
            durations.add_bucket(class.within_us.map(Duration::from_micros), class.count);
        }
        durations
    }

    /// The part of the time that is none of the others: the program's own work, and its locks.
    #[must_use]
    pub fn rest_us(&self) -> u64 {
        let parts = [self.queue_us, self.limit_us, self.cache_us, self.store_us];
        parts.iter().fold(self.total_us, |left, part| left.saturating_sub(*part))
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let times = self.durations().since(&earlier.durations());
        Self {
            count: times.count(),
            total_us: micros(times.sum),
            max_us: micros(times.max),
            queue_us: self.queue_us.saturating_sub(earlier.queue_us),
            limit_us: self.limit_us.saturating_sub(earlier.limit_us),
            cache_us: self.cache_us.saturating_sub(earlier.cache_us),
            store_us: self.store_us.saturating_sub(earlier.store_us),
            latency: latency(&times),
        }
    }
}

fn latency(times: &Durations) -> Vec<OperationLatency> {
    let class =
        |(bound, count): (Option<Duration>, u64)| OperationLatency { within_us: bound.map(micros), count };
    times.buckets().map(class).collect()
}

impl From<&volume::OpLatency> for Operation {
    fn from(of: &volume::OpLatency) -> Self {
        Self {
            count: of.times.count(),
            total_us: micros(of.times.sum),
            max_us: micros(of.times.max),
            queue_us: micros(of.queue),
            limit_us: micros(of.limit),
            cache_us: micros(of.cache),
            store_us: micros(of.store),
            latency: latency(&of.times),
        }
    }
}

impl From<volume::LimitWait> for LimitWait {
    fn from(of: volume::LimitWait) -> Self {
        Self {
            cgroup: Name::of(&of.cgroup),
            limit: of.limit,
            waits: of.waits,
            waited_us: micros(of.waited),
            waiting: of.waiting,
            longest_us: micros(of.longest),
        }
    }
}

impl LimitWait {
    /// What was added since `earlier`, and the waits under way.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            waits: self.waits.saturating_sub(earlier.waits),
            waited_us: self.waited_us.saturating_sub(earlier.waited_us),
            ..self.clone()
        }
    }
}

impl Stats {
    /// What was added since `earlier`; all of it where the process is another one since.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if self.counted_ms < earlier.counted_ms {
            return self.clone();
        }
        let operation = |(name, now): (&String, &Operation)| {
            let added = earlier.operations.get(name).map_or_else(|| now.clone(), |before| now.since(before));
            (added.count > 0).then(|| (name.clone(), added))
        };
        let wait = |now: &LimitWait| {
            let of = |before: &&LimitWait| (&before.cgroup, before.limit) == (&now.cgroup, now.limit);
            let added =
                earlier.limit_waits.iter().find(of).map_or_else(|| now.clone(), |before| now.since(before));
            (added.waited_us > 0 || added.waiting > 0).then_some(added)
        };
        Self {
            id: self.id.clone(),
            mountpoint: self.mountpoint.clone(),
            counted_ms: self.counted_ms - earlier.counted_ms,
            operations: self.operations.iter().filter_map(operation).collect(),
            limit_waits: self.limit_waits.iter().filter_map(wait).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(counts: &[(u64, u64)]) -> Operation {
        let latency: Vec<_> = counts
            .iter()
            .map(|(us, count)| OperationLatency { within_us: Some(*us), count: *count })
            .collect();
        let (count, total_us) =
            (latency.iter().map(|of| of.count).sum(), counts.iter().map(|(us, n)| us * n).sum());
        Operation { count, total_us, max_us: 5000, latency, ..Operation::default() }
    }

    #[test]
    fn between_two_moments_only_what_was_added_counts() {
        let mut before = Stats { counted_ms: 1000, ..Stats::default() };
        before.operations.insert("read".to_owned(), operation(&[(4, 10), (5120, 1)]));
        before.operations.insert("open".to_owned(), operation(&[(4, 1)]));
        let mut now = Stats { counted_ms: 3000, ..before.clone() };
        now.operations.insert("read".to_owned(), operation(&[(4, 10), (16, 3), (5120, 1)]));
        now.operations.insert("write".to_owned(), operation(&[(8, 2)]));
        let added = now.since(&before);
        assert_eq!(added.counted_ms, 2000);
        assert_eq!(added.operations.keys().collect::<Vec<_>>(), ["read", "write"]);
        let read = &added.operations["read"];
        assert_eq!((read.count, read.total_us, read.max_us), (3, 48, 16));
        assert_eq!(read.latency, [OperationLatency { within_us: Some(16), count: 3 }]);
        // Another process counts from the beginning.
        assert_eq!(before.since(&now), before);
    }

    #[test]
    fn the_rest_is_what_no_part_has() {
        let of = Operation {
            total_us: 100,
            queue_us: 10,
            limit_us: 20,
            cache_us: 5,
            store_us: 25,
            ..Operation::default()
        };
        assert_eq!(of.rest_us(), 40);
        assert_eq!(Operation { store_us: u64::MAX, ..of }.rest_us(), 0);
    }
}
