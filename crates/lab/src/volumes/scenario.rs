//! The work on a mount, and its metrics.

use super::clients::{self, Asker, Maker, Reader, Timing, Work, Writer};
use super::sizes::Sizes;
use super::target::Mounted;
use super::trees::Trees;
use crate::report::{Metric, Shown};
use crate::stats::Histogram;
use crate::table::Table;
use std::time::Duration;

const MB_PER_S: Metric = Metric::rate("mb_per_s", "MB/s");
const OPS_PER_S: Metric = Metric::rate("ops_per_s", "1/s");
const SECONDS: Metric = Metric::new("seconds", "s");
const P99_US: Metric = Metric::new("p99_us", "us").shown(Shown::P99);
/// The time of the server's processors for an operation, spinning included; the cost of sleeping is
/// not in it.
const SERVER_CPU_US: Metric = Metric::new("server_cpu_us", "us");

/// Notes for every reader of the rows.
pub(super) const NOTES: [&str; 7] = [
    "Every target has its mount for the whole run; a slice goes to one target at a time, a round begins with another target than the one before. \
     After a slice that writes, its file is fsynced outside of the measured time.",
    "`seqwrite-1m`: 1 MiB writes over a new file and its close, one client; written, not durable. `seqread-1m`: 1 MiB reads of the laid-out file.",
    "`randwrite-4k-N`, `stat-N`, `create-unlink-N`: N client threads, each with a file or directory of its own. `randwrite-4k-fdatasync`: a write and an fdatasync, one client.",
    "`seqread-1m`, `randread-4k-1`: the kernel's cache of the file is dropped before each pass, so that reads reach the server; what the server or the file system below it \
     keeps is warm. ext4 and tmpfs read their warm page cache.",
    "`stat-N`: statx with AT_STATX_FORCE_SYNC, so that it reaches the server. `create-unlink-N`: open with O_CREAT and O_EXCL, close, unlink, counted as one.",
    "`p99_us`: durations of all operations of all rounds, as the client saw them. `.../mem`: our memory store; the null server's rows are the same measurement as without `/mem`.",
    "`server_cpu_us`: processor time of the serving process for one operation, all threads, spinning included.",
];

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scenario {
    SeqWrite,
    RandWrite { clients: usize },
    RandWriteSync,
    SeqRead,
    RandRead,
    Stat { clients: usize },
    CreateUnlink { clients: usize },
    Untar,
    GitClone,
}

/// The result of a slice.
#[derive(Debug)]
pub(crate) enum Found {
    /// So many a second, each of these durations.
    Rate { per_second: f64, latency: Histogram, operations: u64 },
    /// It took so long.
    Seconds(f64),
}

/// All of them.
pub(super) const ALL: Table<Scenario, 12> = Table([
    ("seqwrite-1m", Scenario::SeqWrite),
    ("randwrite-4k-1", Scenario::RandWrite { clients: 1 }),
    ("randwrite-4k-2", Scenario::RandWrite { clients: 2 }),
    ("randwrite-4k-fdatasync", Scenario::RandWriteSync),
    ("seqread-1m", Scenario::SeqRead),
    ("randread-4k-1", Scenario::RandRead),
    ("stat-1", Scenario::Stat { clients: 1 }),
    ("stat-2", Scenario::Stat { clients: 2 }),
    ("create-unlink-1", Scenario::CreateUnlink { clients: 1 }),
    ("create-unlink-2", Scenario::CreateUnlink { clients: 2 }),
    ("untar", Scenario::Untar),
    ("git-clone", Scenario::GitClone),
]);

impl Scenario {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        ALL.name(self)
    }

    /// The metrics: the figure, then the tail and the server's share where they apply.
    pub(crate) fn metrics(self) -> &'static [Metric] {
        match self {
            Self::SeqWrite | Self::SeqRead => &[MB_PER_S],
            Self::Untar | Self::GitClone => &[SECONDS],
            _ => &[OPS_PER_S, P99_US, SERVER_CPU_US],
        }
    }

    /// Whether it only works where written data can be read again.
    pub(crate) fn needs_data(self) -> bool {
        matches!(self, Self::GitClone)
    }

    /// Whether its figure rests on the store's word that data is durable.
    pub(crate) fn is_about_durability(self) -> bool {
        matches!(self, Self::RandWriteSync)
    }

    /// The time of a slice, about.
    pub(crate) fn expected(self, sizes: &Sizes) -> Duration {
        match self {
            Self::SeqWrite => Duration::from_secs_f64(sizes.sequential_bytes as f64 / 600e6),
            Self::Untar => Duration::from_micros(1_000) * sizes.tar_files,
            Self::GitClone => Duration::from_millis(200) + Duration::from_micros(500) * sizes.git_files,
            _ => sizes.slice + sizes.warm_up + Duration::from_millis(20),
        }
    }

    /// Gives the mount one slice.
    ///
    /// # Errors
    /// If a call of a client or a program fails.
    pub(crate) fn run(self, mounted: &Mounted, sizes: &Sizes, trees: &Trees) -> anyhow::Result<Found> {
        let root = mounted.root();
        let drops = mounted.drops_cache();
        let timing = Timing { warm_up: sizes.warm_up, slice: sizes.slice };
        let each = |clients: usize| 0..clients;
        let work: Work = match self {
            Self::SeqWrite => return seq_write(mounted, sizes),
            Self::Untar => return Ok(Found::Seconds(trees.untar(root)?.as_secs_f64())),
            Self::GitClone => return Ok(Found::Seconds(trees.git_clone(root)?.as_secs_f64())),
            Self::RandWrite { clients } => {
                let writers = each(clients).map(|client| Writer::open(root, client, sizes, false));
                let work = clients::run(writers.collect::<Result<_, _>>()?, timing)?;
                clients::settle(root)?;
                work
            }
            Self::RandWriteSync => clients::run(vec![Writer::open(root, 0, sizes, true)?], timing)?,
            Self::SeqRead => {
                let mut work = clients::run(vec![Reader::sequential(root, sizes, drops)?], timing)?;
                work.per_second *= clients::LARGE as f64 / 1e6;
                work
            }
            Self::RandRead => clients::run(vec![Reader::random(root, sizes, drops)?], timing)?,
            Self::Stat { clients } => clients::run(
                each(clients).map(|client| Asker::open(root, client)).collect::<Result<_, _>>()?,
                timing,
            )?,
            Self::CreateUnlink { clients } => clients::run(
                each(clients).map(|client| Maker::open(root, client)).collect::<Result<_, _>>()?,
                timing,
            )?,
        };
        Ok(Found::Rate { per_second: work.per_second, latency: work.latency, operations: work.operations })
    }
}

fn seq_write(mounted: &Mounted, sizes: &Sizes) -> anyhow::Result<Found> {
    let path = mounted.root().join(clients::SEQUENTIAL);
    let took = clients::write_file(&path, sizes.sequential_bytes)?;
    // The next target's file has the same memory.
    std::fs::remove_file(&path)?;
    let per_second = sizes.sequential_bytes as f64 / 1e6 / took.as_secs_f64();
    Ok(Found::Rate { per_second, latency: Histogram::default(), operations: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_scenarios_belong_together() {
        for name in ALL.names() {
            assert_eq!(ALL.named(name).unwrap().name(), name);
        }
        assert_eq!(ALL.named("randwrite-4k-2"), Some(Scenario::RandWrite { clients: 2 }));
        assert_eq!(ALL.named("create-unlink-1"), Some(Scenario::CreateUnlink { clients: 1 }));
        assert_eq!(ALL.named("git-clone"), Some(Scenario::GitClone));
        assert_eq!(ALL.named("nothing"), None);
    }
}
