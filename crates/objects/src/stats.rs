//! What the requests of a bucket did, and what they are doing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::counter::StatCounter;
use crate::problem::Problem;

/// The kinds of requests, by which they are counted and, by most stores, priced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Reads an object, or a part of one.
    Get,
    /// Writes an object.
    Put,
    /// Lists names.
    List,
    /// Deletes objects.
    Delete,
}

/// Upper limits of the classes of the latency histogram, in milliseconds; one class more is above.
pub const LATENCY_MS: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];

/// Requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindStats {
    /// Requests sent, each attempt counted.
    pub requests: u64,
    /// Attempts that got no answer, or one that is no answer to the request (`500`, `403`).
    pub failures: u64,
    /// Attempts that were retries.
    pub retries: u64,
    /// Time of the attempts that were answered, in all.
    pub latency_us: u64,
    /// How many of them took as long: one number for each of [`LATENCY_MS`], one for the longer
    /// ones.
    pub latency: Vec<u64>,
}

/// Since when the store is ill, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// How long no request has been answered, since the first that was not.
    pub for_ms: u64,
    /// Why the latest was not.
    pub problem: String,
}

/// A bucket's requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Reads.
    pub get: KindStats,
    /// Writes.
    pub put: KindStats,
    /// Listings.
    pub list: KindStats,
    /// Deletions.
    pub delete: KindStats,
    /// Bytes of objects written.
    pub bytes_up: u64,
    /// Bytes of objects read.
    pub bytes_down: u64,
    /// Answers that asked for fewer requests (`429`, `503 SlowDown`).
    pub throttled: u64,
    /// Requests that have begun and not ended; one that is retried is one.
    pub under_way: u64,
    /// The age of the oldest of them.
    pub oldest_ms: Option<u64>,
    /// Set while requests go unanswered.
    pub failing: Option<Failing>,
}

impl From<Stats> for store::RequestStats {
    fn from(stats: Stats) -> Self {
        let kinds = [("get", stats.get), ("put", stats.put), ("list", stats.list), ("delete", stats.delete)];
        let kinds = kinds.map(|(name, of)| store::RequestKind {
            name,
            sent: of.requests,
            failures: of.failures,
            retries: of.retries,
            latency: Duration::from_micros(of.latency_us),
            latencies: of.latency,
        });
        Self {
            kinds: kinds.into(),
            bounds: LATENCY_MS.map(Duration::from_millis).into(),
            unsaved_bytes: 0,
            sent_bytes: stats.bytes_up,
            received_bytes: stats.bytes_down,
            throttled: stats.throttled,
            under_way: stats.under_way,
            oldest: stats.oldest_ms.map(Duration::from_millis),
            unanswered: stats.failing.map(|failing| store::Unanswered {
                since: Duration::from_millis(failing.for_ms),
                why: failing.problem,
            }),
            disk_cache: None,
            following: None,
            journal: None,
        }
    }
}

#[derive(Debug, Default)]
struct KindCounters {
    requests: StatCounter,
    failures: StatCounter,
    retries: StatCounter,
    latency_us: StatCounter,
    latency: [StatCounter; LATENCY_MS.len() + 1],
}

impl KindCounters {
    fn stats(&self) -> KindStats {
        KindStats {
            requests: self.requests.get(),
            failures: self.failures.get(),
            retries: self.retries.get(),
            latency_us: self.latency_us.get(),
            latency: self.latency.iter().map(StatCounter::get).collect(),
        }
    }
}

#[derive(Debug, Default)]
struct UnderWay {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    kinds: [KindCounters; 4],
    bytes_up: StatCounter,
    bytes_down: StatCounter,
    throttled: StatCounter,
    under_way: Mutex<UnderWay>,
    failing: Mutex<Option<(Instant, String)>>,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Counters {
    const fn kind(&self, kind: Kind) -> &KindCounters {
        &self.kinds[kind as usize]
    }

    /// A request is under way until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWayGuard {
        let mut under_way = self.under_way.lock();
        let id = under_way.next;
        under_way.next += 1;
        under_way.since.insert(id, Instant::now());
        UnderWayGuard { counters: Arc::clone(self), id }
    }

    pub(crate) fn sent(&self, kind: Kind) {
        self.kind(kind).requests.add(1);
    }

    pub(crate) fn retried(&self, kind: Kind) {
        self.kind(kind).retries.add(1);
    }

    /// An attempt was answered after `time`.
    pub(crate) fn answered(&self, kind: Kind, time: Duration) {
        let class = LATENCY_MS.partition_point(|limit| millis(time) >= *limit);
        self.kind(kind).latency_us.add(micros(time));
        self.kind(kind).latency[class].add(1);
        *self.failing.lock() = None;
    }

    pub(crate) fn failed(&self, kind: Kind, problem: &Problem) {
        self.kind(kind).failures.add(1);
        if problem.is_throttle() {
            self.throttled.add(1);
        }
        let mut failing = self.failing.lock();
        let since = failing.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *failing = Some((since, problem.to_string()));
    }

    pub(crate) fn up(&self, bytes: u64) {
        self.bytes_up.add(bytes);
    }

    pub(crate) fn down(&self, bytes: u64) {
        self.bytes_down.add(bytes);
    }

    pub(crate) fn stats(&self) -> Stats {
        let under_way = self.under_way.lock();
        // The first to begin has the lowest number.
        let oldest = under_way.since.first_key_value().map(|(_, since)| millis(since.elapsed()));
        let count = under_way.since.len() as u64;
        drop(under_way);
        let failing = self
            .failing
            .lock()
            .as_ref()
            .map(|(since, problem)| Failing { for_ms: millis(since.elapsed()), problem: problem.clone() });
        Stats {
            get: self.kind(Kind::Get).stats(),
            put: self.kind(Kind::Put).stats(),
            list: self.kind(Kind::List).stats(),
            delete: self.kind(Kind::Delete).stats(),
            bytes_up: self.bytes_up.get(),
            bytes_down: self.bytes_down.get(),
            throttled: self.throttled.get(),
            under_way: count,
            oldest_ms: oldest,
            failing,
        }
    }
}

/// See [`Counters::begin`].
#[derive(Debug)]
pub(crate) struct UnderWayGuard {
    counters: Arc<Counters>,
    id: u64,
}

impl Drop for UnderWayGuard {
    fn drop(&mut self) {
        self.counters.under_way.lock().since.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_request_under_way_has_an_age() {
        let counters = Arc::new(Counters::default());
        assert_eq!(counters.stats().oldest_ms, None);
        let first = counters.begin();
        tokio::time::advance(Duration::from_secs(2)).await;
        let second = counters.begin();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((counters.stats().under_way, counters.stats().oldest_ms), (2, Some(3_000)));
        drop(first);
        assert_eq!((counters.stats().under_way, counters.stats().oldest_ms), (1, Some(1_000)));
        drop(second);
        assert_eq!(counters.stats(), Counters::default().stats());
    }

    #[test]
    fn an_answer_has_its_class_of_latency() {
        let counters = Counters::default();
        for millis in [0, 1, 4, 9_999, 10_000, 60_000] {
            counters.answered(Kind::Put, Duration::from_millis(millis));
        }
        let put = counters.stats().put;
        assert_eq!(put.latency_us, 80_004_000);
        let filled: Vec<_> = put.latency.iter().enumerate().filter(|(_, count)| **count > 0).collect();
        assert_eq!(filled, [(0, &1), (1, &1), (2, &1), (12, &1), (13, &2)]);
    }
}
