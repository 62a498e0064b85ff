//! Requests that a store sends to a service, where it is one that does.

use std::time::Duration;

/// Requests of one kind since the store was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestKind {
    /// The kind's name: `get`, `put`.
    pub name: &'static str,
    /// Requests sent, each attempt counted.
    pub sent: u64,
    /// Attempts that got no answer, or one that is none to the request.
    pub failures: u64,
    /// Attempts that were retries.
    pub retries: u64,
    /// The time of the attempts that were answered, in all.
    pub latency: Duration,
    /// How many of them took as long: one number for each of [`RequestStats::bounds`], one for the
    /// longer ones.
    pub latencies: Vec<u64>,
}

/// That no request has been answered of late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// Since the first that was not.
    pub since: Duration,
    /// Why the latest was not, in plain words.
    pub why: String,
}

/// The requests of a store since it was opened, and those that are under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestStats {
    /// By kind.
    pub kinds: Vec<RequestKind>,
    /// The upper limits of the classes of [`RequestKind::latencies`].
    pub bounds: Vec<Duration>,
    /// Bytes of data sent.
    pub sent_bytes: u64,
    /// Bytes of data received.
    pub received_bytes: u64,
    /// Answers that asked for fewer requests.
    pub throttled: u64,
    /// Requests that have begun and not ended; one that is retried is one.
    pub under_way: u64,
    /// The age of the oldest of them.
    pub oldest: Option<Duration>,
    /// Set while requests go unanswered.
    pub unanswered: Option<Unanswered>,
    /// Bytes that only this process has: neither the service nor a journal has them.
    pub unsaved_bytes: u64,
    /// The cache on this host's disk, where there is one.
    pub disk_cache: Option<DiskCacheStats>,
    /// The journal on this host that an fsync waits for, if there is one.
    pub journal: Option<JournalStats>,
    /// Set where what others write is followed.
    pub following: Option<Following>,
}

/// How what others write is followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Following {
    /// How often it is looked for.
    pub every: Duration,
    /// How old what is shown may be.
    pub age: Duration,
}

/// A cache of the service's data on this host's disk. Its unit is a block: a part of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCacheStats {
    /// Whether it is used: an error of the disk ends that.
    pub is_on: bool,
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

/// A journal of what an fsync has made durable on this host, and the service has not yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Bytes in it that the service has not.
    pub bytes: u64,
    /// Bytes that it takes on this host's disk.
    pub disk_bytes: u64,
    /// The most that it may take.
    pub disk_bytes_max: u64,
    /// Fsyncs and segments that waited for the service, because the journal was full or broken.
    pub passed_by: u64,
    /// Why it takes nothing any more, in plain words.
    pub failed: Option<String>,
}
