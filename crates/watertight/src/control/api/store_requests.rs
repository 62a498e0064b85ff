//! The requests of a store to the service that it is on.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::millis;
use crate::term::shown::Words;
use crate::term::units;

/// The requests that a store on object storage has sent since the start, and those under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRequests {
    /// By kind: `get`, `put`, `list`, `delete`.
    pub by_kind: BTreeMap<String, StoreRequestKind>,
    /// Bytes of data sent.
    pub sent_bytes: u64,
    /// Bytes of data received.
    pub received_bytes: u64,
    /// Answers that asked for fewer requests.
    pub throttled: u64,
    /// Requests that have begun and not ended; one that is retried is one.
    pub under_way: u64,
    /// The age of the oldest of them; 0 where there is none.
    pub oldest_ms: u64,
    /// Set while requests go unanswered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<Unanswered>,
    /// The cache on this host's disk, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_cache: Option<DiskCache>,
    /// The journal on this host that an fsync waits for, with `fsync_to=host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<Journal>,
    /// What others write is followed, with `follow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub following: Option<Following>,
}

/// How what others write is followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Following {
    /// How often it is looked for, in milliseconds.
    pub every_ms: u64,
    /// How old what is shown may be, in milliseconds.
    pub age_ms: u64,
}

/// The cache of the store's data on this host's disk. Its unit is a block: a part of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskCache {
    /// Whether it is used: an error of the disk ends that.
    pub on: bool,
    /// What it takes on disk.
    pub bytes: u64,
    /// What it may take.
    pub bytes_max: u64,
    /// Blocks in it.
    pub blocks: u64,
    /// Blocks that were read from it.
    pub hits: u64,
    /// Blocks that were not in it.
    pub misses: u64,
    /// Blocks in it that were not what was written.
    pub damaged: u64,
    /// Blocks that it did not take, since many were waiting to be written.
    pub skipped: u64,
}

impl From<store::DiskCacheStats> for DiskCache {
    fn from(of: store::DiskCacheStats) -> Self {
        let store::DiskCacheStats { is_on, bytes, bytes_max, blocks, hits, misses, damaged, skipped } = of;
        Self { on: is_on, bytes, bytes_max, blocks, hits, misses, damaged, skipped }
    }
}

/// `1.0 GiB of 10 GiB; 12 blocks read from it, 3 from the store`.
impl fmt::Display for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.on {
            return f.write_str("switched off by an error of the disk");
        }
        let (bytes, most) = (units::bytes(self.bytes), units::bytes(self.bytes_max));
        write!(f, "{bytes} of {most}; {} blocks read from it, {} from the store", self.hits, self.misses)?;
        if self.damaged > 0 {
            write!(f, ", {} damaged", self.damaged)?;
        }
        Ok(())
    }
}

/// What an fsync has made durable on this host, and object storage has not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// Bytes in it that object storage has not.
    pub bytes: u64,
    /// Bytes that it takes on this host's disk.
    pub disk_bytes: u64,
    /// The most that it may take.
    pub disk_bytes_max: u64,
    /// Waits of an fsync for object storage, because the journal was full or broken.
    pub passed_by: u64,
    /// Why it takes nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Words>,
}

/// The requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRequestKind {
    /// Requests sent, each attempt counted.
    pub sent: u64,
    /// Attempts that got no answer, or one that is none to the request.
    pub failures: u64,
    /// Attempts that were retries.
    pub retries: u64,
    /// Attempts that were answered.
    pub answered: u64,
    /// Their time in all, in microseconds.
    pub latency_us: u64,
    /// How many of them took no longer.
    pub latency: Vec<Latency>,
}

/// Requests that were answered in a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The time, in milliseconds.
    pub within_ms: u64,
    /// The requests that took no longer.
    pub requests: u64,
}

/// That the service has not answered of late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// For how many milliseconds.
    pub for_ms: u64,
    /// Why the latest request was not answered.
    pub why: Words,
}

impl From<&store::RequestStats> for StoreRequests {
    fn from(stats: &store::RequestStats) -> Self {
        let kind = |kind: &store::RequestKind| {
            let mut answered = 0;
            let within = stats.bounds.iter().zip(&kind.latencies).map(|(bound, requests)| {
                answered += requests;
                Latency { within_ms: millis(*bound), requests: answered }
            });
            let kind_stats = StoreRequestKind {
                latency: within.collect(),
                sent: kind.sent,
                failures: kind.failures,
                retries: kind.retries,
                answered: kind.latencies.iter().sum(),
                latency_us: u64::try_from(kind.latency.as_micros()).unwrap_or(u64::MAX),
            };
            (kind.name.to_owned(), kind_stats)
        };
        Self {
            by_kind: stats.kinds.iter().map(kind).collect(),
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
            throttled: stats.throttled,
            under_way: stats.under_way,
            oldest_ms: stats.oldest.map_or(0, millis),
            unanswered: stats
                .unanswered
                .as_ref()
                .map(|of| Unanswered { for_ms: millis(of.since), why: of.why.as_str().into() }),
            disk_cache: stats.disk_cache.map(Into::into),
            journal: stats.journal.as_ref().map(|of| Journal {
                bytes: of.bytes,
                disk_bytes: of.disk_bytes,
                disk_bytes_max: of.disk_bytes_max,
                passed_by: of.passed_by,
                failed: of.failed.as_ref().map(|why| why.as_str().into()),
            }),
            following: stats
                .following
                .map(|of| Following { every_ms: millis(of.every), age_ms: millis(of.age) }),
        }
    }
}

/// `1.0 MiB are in the journal only, which has 32 MiB of 1.0 GiB`.
impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bytes, disk, max] = [self.bytes, self.disk_bytes, self.disk_bytes_max].map(units::bytes);
        write!(f, "{bytes} are in the journal only, which has {disk} of {max}")?;
        if self.passed_by > 0 {
            let waits = units::count(self.passed_by, "wait", "waits");
            write!(f, "; {waits} of fsyncs for the bucket, because it was full or broken")?;
        }
        Ok(())
    }
}

/// `12 get, 3 put (1 failed, 1 retry, 0 throttled); 1.0 MiB sent, 4 KiB received`.
impl fmt::Display for StoreRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |figure: fn(&StoreRequestKind) -> u64| self.by_kind.values().map(figure).sum::<u64>();
        let kinds = self.by_kind.iter().filter(|(_, kind)| kind.sent > 0);
        let kinds: Vec<_> = kinds.map(|(name, kind)| format!("{} {name}", kind.sent)).collect();
        let kinds = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
        let failures = sum(|kind| kind.failures);
        let retries = units::count(sum(|kind| kind.retries), "retry", "retries");
        let (sent, received) = (units::bytes(self.sent_bytes), units::bytes(self.received_bytes));
        write!(
            f,
            "{kinds} ({failures} failed, {retries}, {} throttled); {sent} sent, {received} received",
            self.throttled
        )?;
        if self.under_way > 0 {
            let oldest = units::duration(Duration::from_millis(self.oldest_ms));
            write!(f, "; {} under way, the oldest for {oldest}", self.under_way)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_latency_become_what_took_no_longer() {
        let put = store::RequestKind {
            name: "put",
            sent: 9,
            failures: 1,
            retries: 1,
            latency: Duration::from_micros(123_456),
            latencies: vec![2, 3, 1],
        };
        let stats = store::RequestStats {
            kinds: vec![put, store::RequestKind { name: "get", ..store::RequestKind::default() }],
            bounds: vec![Duration::from_millis(1), Duration::from_millis(10)],
            sent_bytes: 2048,
            oldest: Some(Duration::from_secs(3)),
            under_way: 2,
            ..store::RequestStats::default()
        };
        let requests = StoreRequests::from(&stats);
        let put = &requests.by_kind["put"];
        assert_eq!((put.answered, put.latency_us), (6, 123_456));
        let within: Vec<_> = put.latency.iter().map(|of| (of.within_ms, of.requests)).collect();
        assert_eq!(within, [(1, 2), (10, 5)]);
        let text = requests.to_string();
        assert!(text.starts_with("9 put (1 failed, 1 retry, 0 throttled); 2.0 KiB sent"), "{text}");
        assert!(text.ends_with("2 under way, the oldest for 3.0 s"), "{text}");
    }
}
