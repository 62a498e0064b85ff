//! How long a volume's operations take, and what for.
//!
//! A front end records each operation that it has served. Counts are in shards, which threads that
//! record at the same time seldom share; a shard, and in it the histogram of a class, is made when
//! it is first used, so that an idle volume has none.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sync::accounting::{Part, Spent};
use sync::{Durations, Histogram, StatCounter, shards};

/// Shards at most.
const SHARDS: usize = 4;

macro_rules! op_classes {
    ($($class:ident = $name:literal,)*) => {
        /// The classes of operations that are told apart.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "they are named as the kernel names them")]
        pub enum OpClass { $($class),* }

        impl OpClass {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$class),*];

            /// The name of the class.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$class => $name),* }
            }
        }
    };
}

op_classes! {
    Lookup = "lookup",
    GetAttr = "getattr",
    SetAttr = "setattr",
    ReadLink = "readlink",
    Open = "open",
    Create = "create",
    Read = "read",
    Write = "write",
    FAllocate = "fallocate",
    CopyFileRange = "copy_file_range",
    LSeek = "lseek",
    Flush = "flush",
    FSync = "fsync",
    Release = "release",
    ReadDir = "readdir",
    Unlink = "unlink",
    Rename = "rename",
    Xattr = "xattr",
    StatFs = "statfs",
    SyncFs = "syncfs",
    Other = "other",
}

const CLASSES: usize = OpClass::ALL.len();

/// The time of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpTime {
    /// From its arrival to its answer.
    pub total: Duration,
    /// Of it, the wait for a thread.
    pub queue: Duration,
    /// Of it, what its thread spent on the parts.
    pub spent: Spent,
}

/// The operations of one class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpLatency {
    /// Their times.
    pub times: Durations,
    /// Of their sum, the waits for a thread.
    pub queue: Duration,
    /// Of their sum, the waits for limits.
    pub limit: Duration,
    /// Of their sum, the waits for room in the cache.
    pub cache: Duration,
    /// Of their sum, the calls of the store.
    pub store: Duration,
}

/// The operations of one volume, by class.
#[derive(Debug)]
pub struct Latencies {
    shards: Box<[OnceLock<Box<Shard>>]>,
    since: Instant,
}

#[derive(Debug)]
struct Shard([OnceLock<Box<Counts>>; CLASSES]);

#[derive(Debug, Default)]
struct Counts {
    times: Histogram,
    queue_ns: StatCounter,
    limit_ns: StatCounter,
    cache_ns: StatCounter,
    store_ns: StatCounter,
}

impl Default for Latencies {
    fn default() -> Self {
        let shards = (0..shards::count(SHARDS)).map(|_| OnceLock::new()).collect();
        Self { shards, since: Instant::now() }
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl Latencies {
    /// Counts an operation that was served.
    pub fn record(&self, class: OpClass, time: &OpTime) {
        let shard = self.shards[shards::of_this_thread() % self.shards.len()].get_or_init(Box::default);
        let counts = shard.0[class as usize].get_or_init(Box::default);
        counts.times.record(time.total);
        let parts = [
            (&counts.queue_ns, time.queue),
            (&counts.limit_ns, time.spent.on(Part::Limit)),
            (&counts.cache_ns, time.spent.on(Part::Cache)),
            (&counts.store_ns, time.spent.on(Part::Store)),
        ];
        for (counter, part) in parts.into_iter().filter(|(_, part)| !part.is_zero()) {
            counter.add(u64::try_from(part.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// For how long operations have been counted.
    #[must_use]
    pub fn counted_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// The classes of which there was an operation.
    #[must_use]
    pub fn by_class(&self) -> Vec<(OpClass, OpLatency)> {
        let shards: Vec<&Shard> = self.shards.iter().filter_map(|shard| Some(&**shard.get()?)).collect();
        let latency = |class: OpClass| {
            let mut sum = OpLatency::default();
            for counts in shards.iter().filter_map(|shard| shard.0[class as usize].get()) {
                counts.times.add_to(&mut sum.times);
                sum.queue += Duration::from_nanos(counts.queue_ns.get());
                sum.limit += Duration::from_nanos(counts.limit_ns.get());
                sum.cache += Duration::from_nanos(counts.cache_ns.get());
                sum.store += Duration::from_nanos(counts.store_ns.get());
            }
            sum
        };
        let all = OpClass::ALL.iter().map(|class| (*class, latency(*class)));
        all.filter(|(_, latency)| latency.times.count() > 0).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_threads_record_is_added_up_by_class() {
        let latencies = Latencies::default();
        assert!(latencies.by_class().is_empty());
        let (total, queue) = (Duration::from_millis(3), Duration::from_millis(1));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        latencies.record(OpClass::Read, &OpTime { total, queue, ..OpTime::default() });
                    }
                });
            }
        });
        latencies.record(OpClass::Other, &OpTime::default());
        let all = latencies.by_class();
        assert_eq!(all.iter().map(|(class, _)| class.name()).collect::<Vec<_>>(), ["read", "other"]);
        let (_, read) = &all[0];
        assert_eq!((read.times.count(), read.times.sum, read.times.max), (800, total * 800, total));
        assert_eq!((read.queue, read.limit, read.store), (queue * 800, Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn names_of_classes_are_told_apart() {
        let mut names: Vec<&str> = OpClass::ALL.iter().map(|class| class.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CLASSES);
    }
}
