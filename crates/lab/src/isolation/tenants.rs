//! The neighbours' cgroups with the processes in them, as the lab sees them.
//!
//! Each neighbour has a cgroup with two below it, and a process in each of these: for any work,
//! there are as many of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::event::{PollFd, PollFlags};
use testing::cgroup::Cgroup;

use super::beside::{Beside, Kind};
use super::rig::LONG;
use super::tenant::COMMAND;
use crate::child::{self, cpu_time, ends_with_the_lab};

/// Operations of all churning neighbours together, in a second: so many that the processors have
/// little to do.
pub(super) const CHURNED: u32 = 512;
/// The bytes that all throttled neighbours together may write in a second, for the same reason; and
/// the data that each may have to be written.
pub(super) const LIMIT_KIB: u64 = 1024;
pub(super) const ROOM_KIB: u64 = 1024;

/// Processes of one neighbour.
pub(super) const SIDES: usize = 2;

/// One neighbour's processes. Its cgroups go when no process is in them any more: the inner ones
/// first.
#[derive(Debug)]
struct Tenant {
    processes: Vec<Child>,
    sides: [Cgroup; SIDES],
    cgroup: Cgroup,
}

/// All neighbours'.
#[derive(Debug)]
pub(super) struct Tenants {
    all: Vec<Tenant>,
    parent: Cgroup,
    /// The directory of the processes' logs.
    logs: PathBuf,
}

impl Tenants {
    /// Cgroups for so many, without processes.
    pub(super) fn new(count: usize, logs: PathBuf) -> anyhow::Result<Self> {
        let parent = Cgroup::make().context("no cgroup can be made")?;
        let tenant = |number: usize| {
            let cgroup = parent.child(&number.to_string());
            Tenant { processes: Vec::new(), sides: ["0", "1"].map(|side| cgroup.child(side)), cgroup }
        };
        let all = (0..count).map(tenant).collect();
        fs::create_dir(&logs)?;
        Ok(Self { all, parent, logs })
    }

    /// The directory of the cgroup that all others are in.
    pub(super) fn directory(&self) -> &Path {
        self.parent.directory()
    }

    /// The mount option for a neighbour's limit.
    pub(super) fn limit(&self, number: usize) -> String {
        let path = self.all[number].cgroup.path().display();
        format!("limit={path}:wbps={}:dirty_max={ROOM_KIB}K", limit_bytes(self.all.len()))
    }

    /// Has all begin; `places` are the volumes.
    pub(super) fn start(
        &mut self,
        Beside { kind, crowd, .. }: Beside,
        places: &[PathBuf],
    ) -> anyhow::Result<()> {
        let count = u32::try_from(places.len())?.max(1);
        let each = Duration::from_secs(1) * count / CHURNED;
        for (number, (tenant, place)) in self.all.iter_mut().zip(places).enumerate() {
            // Not all at the same moment.
            let after = each * u32::try_from(number)? / count;
            for (side, cgroup) in tenant.sides.iter().enumerate() {
                let mut command = cgroup.command(std::env::current_exe()?);
                command.arg(COMMAND);
                match (kind, side) {
                    (Kind::Throttled, 0) => command.arg("write").arg(place.join("written")),
                    (Kind::Throttled, _) => command.arg("sync").arg(place.join("synced")),
                    (Kind::Crowd, 0) => command.arg("crowd").arg(place).arg(crowd.to_string()),
                    (Kind::Mapping, 0) => command.arg("map").arg(place).arg(crowd.to_string()),
                    (Kind::Churning, _) => command.arg("churn").arg(place).args([
                        side.to_string(),
                        each.as_nanos().to_string(),
                        after.as_nanos().to_string(),
                    ]),
                    _ => command.arg("rest"),
                };
                let log = File::create(self.logs.join(format!("{number}.{side}")))?;
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
                ends_with_the_lab(&mut command);
                tenant.processes.push(command.spawn().context("a neighbour's process does not start")?);
            }
        }
        self.are_ready()
    }

    /// Waits until each has said so, or has ended.
    fn are_ready(&mut self) -> anyhow::Result<()> {
        for process in self.all.iter_mut().flat_map(|tenant| &mut tenant.processes) {
            let out = process.stdout.take().context("it has an output")?;
            let mut said = [PollFd::new(&out, PollFlags::IN)];
            child::wait(&mut said, LONG)?;
            ensure!(
                !said[0].revents().is_empty(),
                "a neighbour's process has not begun after {} s",
                LONG.as_secs()
            );
        }
        self.are_there()
    }

    /// None has ended.
    pub(super) fn are_there(&mut self) -> anyhow::Result<()> {
        for (number, tenant) in self.all.iter_mut().enumerate() {
            ensure!(tenant.processes.len() == SIDES, "neighbour {number} has no processes");
            for (side, process) in tenant.processes.iter_mut().enumerate() {
                let Some(status) = process.try_wait()? else { continue };
                let said = fs::read_to_string(self.logs.join(format!("{number}.{side}")));
                bail!("neighbour {number}'s process {side}: {status}: {}", said.unwrap_or_default().trim());
            }
        }
        Ok(())
    }

    /// Processor time that they have used so far.
    pub(super) fn cpu_time(&self) -> Duration {
        let processes = self.all.iter().flat_map(|tenant| &tenant.processes);
        processes.filter_map(|process| cpu_time(child::pid(process).ok()?)).sum()
    }

    /// Ends them, and waits for none: their calls may end only with their mounts.
    pub(super) fn kill(&mut self) {
        for process in self.all.iter_mut().flat_map(|tenant| &mut tenant.processes) {
            let _ended_already = process.kill();
        }
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        self.kill();
        for process in self.all.iter_mut().flat_map(|tenant| &mut tenant.processes) {
            let _ended_already = process.wait();
        }
    }
}

/// The bytes that each of so many throttled neighbours may write in a second.
pub(super) fn limit_bytes(count: usize) -> u64 {
    (LIMIT_KIB << 10) / count.max(1) as u64
}

/// Removes a cgroup with its children, if they have no process.
pub(super) fn remove(directory: &Path) -> std::io::Result<()> {
    for inner in fs::read_dir(directory)?.flatten() {
        if inner.file_type()?.is_dir() {
            remove(&inner.path())?;
        }
    }
    fs::remove_dir(directory)
}
