//! The arguments of `stats`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::Users;
use crate::term::units::parse_duration;

/// `stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// The volume: its mountpoint, store or id, or a path in it.
    pub volume: OsString,
    /// One line for each class of operations, or for each limit that a cgroup has waited for.
    #[arg(long, value_name = "WHAT", default_value = "op")]
    pub by: StatsBy,
    /// Print what was added in each interval instead of all since the mount; 10ms or more.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub interval: Option<Duration>,
    /// End after so many intervals; without it, go on until a signal, or the volume's end.
    #[arg(long, value_name = "N", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print JSON, for programs: a line for each interval.
    #[arg(long)]
    pub json: bool,
    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

/// What a line of `stats` is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatsBy {
    /// A class of operations.
    Op,
    /// A limit of a cgroup.
    Cgroup,
}

/// The end of its help.
pub(super) const HELP: &str = "Examples:\n  \
    watertight stats /mnt/data\n  \
    watertight stats --interval 1s /mnt/data\n  \
    watertight stats --by cgroup --interval 10s --count 6 /mnt/data\n  \
    watertight stats --json /mnt/data | jq .operations.fsync.p99_us\n\n\
    Lines are in the order of the time that they took in all. P50 to MAX are latencies: from when the mount process has read a \
    request to its answer. QUEUE, LIMIT, CACHE, STORE and REST say what that time was spent on: waiting for a thread, for a limit \
    of a cgroup, for room in the cache, calls of the store, and everything else (the program's own work, its locks, other \
    threads that work for the request). Requests that the kernel answers from its caches do not come, and time that they wait \
    in the kernel is not known. An operation counts when it is answered; for those under way see `watertight status`.";
