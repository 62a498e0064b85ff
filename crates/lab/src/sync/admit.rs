//! The cost of admitting a write, with few and with many cgroups that have limits: in the throttle
//! alone, and by the product's whole path.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use sync::{Clock, RealClock};
use testing::cgroup::Cgroup;
use throttle::{CgroupPath, Direction, Request, Throttle};

use super::client::Call;
use super::rig::MountDir;
use crate::report::{Metric, Recorder};

const ADMIT: Metric = Metric::new("admit", "ns");
pub(super) const WRITE: Metric = Metric::new("write_sync", "us");

/// Admissions in one sample.
const ADMISSIONS: u32 = 100_000;
/// So much that it never stops a writer: each admission is the whole arithmetic.
const FAR: &str = "wbps=1000000G wiops=1000000G";
/// Of how many cgroups the writes are timed, and how many of each.
const TIMED: usize = 4;
const WRITES: usize = 500;

pub(super) const NOTE: &str = "`admit-N`: N cgroups with limits so high that nobody waits. `admit`: one admission in the throttle alone, of the cgroups in \
                               turn. `write_sync`: a write of 4 KiB with O_DSYNC on a mount with a store in memory, by processes in four of the cgroups, \
                               once all of them have written; `unloaded`: as many cgroups without limits.";

/// Nanoseconds to admit one write with so many limited cgroups, in turn.
pub(super) fn throttle(scenario: &str, cgroups: usize, recorder: &mut Recorder) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::default());
    let throttle = Throttle::new(clock);
    let paths = (0..cgroups).map(|number| format!("/tenants/{number}").parse::<CgroupPath>());
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    let limits = FAR.parse()?;
    paths.iter().for_each(|path| throttle.set(path, limits));
    let chains: Vec<_> = paths.iter().map(|path| throttle.chain(path)).collect();
    let request =
        Request { direction: Direction::Write, bytes: 4096, operations: 1, epoch: u64::MAX, inode: 0 };
    for _ in 0..20 {
        let begun = Instant::now();
        for chain in chains.iter().cycle().take(ADMISSIONS as usize) {
            ensure!(throttle.try_admit(chain, &request).is_ok(), "the limit is far away");
        }
        let each = begun.elapsed().as_secs_f64() * 1e9 / f64::from(ADMISSIONS);
        recorder.value(scenario, "boost", ADMIT, each);
    }
    Ok(())
}

/// Microseconds of a synchronous write on a mount, by cgroups among so many that have limits, or
/// have none.
pub(super) fn write(
    dir: &MountDir,
    scenario: &str,
    count: usize,
    is_limited: bool,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let Some(parent) = Cgroup::make() else { anyhow::bail!("no cgroup can be made") };
    let cgroups: Vec<Cgroup> = (0..count).map(|number| parent.child(&number.to_string())).collect();
    let limit = |cgroup: &Cgroup| format!("limit={}:{}", cgroup.path().display(), FAR.replace(' ', ":"));
    let limits: Vec<String> = cgroups.iter().filter(|_| is_limited).map(limit).collect();
    let options = [vec!["cache=256M,dirty_after=1h".to_owned()], limits].concat().join(",");
    let server = dir.mount("mem:size=1G", &options)?;
    let path = |number: usize| dir.mountpoint().join(number.to_string());
    for (number, cgroup) in cgroups.iter().enumerate() {
        dir.time(cgroup, Call::WriteSync, &path(number), 1)?;
    }
    for nth in 0..TIMED {
        let number = nth * count / TIMED;
        for took in dir.time(&cgroups[number], Call::WriteSync, &path(number), WRITES)? {
            recorder.value(scenario, if is_limited { "boost" } else { "unloaded" }, WRITE, took.ms() * 1e3);
        }
    }
    dir.unmount()?;
    server.stop()
}
