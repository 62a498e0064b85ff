//! The rows of the screen: one for each volume, and for each cgroup in it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::control::api::{CgroupLimits, State, Status};
use crate::control::progress::Rate;
use crate::control::volume_id::VolumeId;
use crate::host::pods::Pods;
use crate::registry::survey::Survey;
use crate::term::shown::Name;

/// A snapshot of all volumes.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) volumes: Vec<VolumeRow>,
    pub(super) cgroups: Vec<CgroupRow>,
    /// Mountpoints of volumes whose process does not answer.
    pub(super) silent: Vec<String>,
}

/// A volume. Sizes are bytes, rates bytes a second.
#[derive(Debug, Clone)]
pub(super) struct VolumeRow {
    pub(super) mountpoint: String,
    pub(super) state: State,
    /// Waits to be written.
    pub(super) dirty: u64,
    pub(super) writeback: u64,
    pub(super) into: u64,
    pub(super) out: u64,
    /// Writers that had to wait, a second.
    pub(super) waits: u64,
    /// For how long the store has not answered, in milliseconds.
    pub(super) stalled_ms: u64,
    pub(super) failing: u64,
}

/// A cgroup in a volume.
#[derive(Debug, Clone)]
pub(super) struct CgroupRow {
    pub(super) path: String,
    pub(super) mountpoint: String,
    pub(super) inodes: u64,
    pub(super) dirty: u64,
    pub(super) writeback: u64,
    pub(super) limits: Option<CgroupLimits>,
}

/// Counters of the snapshots before.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<VolumeId, [Rate; 3]>);

impl Rates {
    /// Asks all volumes, each for so long.
    pub(super) fn look(&mut self, patience: Duration) -> Table {
        let mut table = Table::default();
        let mut seen = BTreeMap::new();
        let survey = Survey::within(patience);
        for status in survey.volumes {
            let mut rates = self.0.remove(&status.id).unwrap_or_default();
            table.add(&status, &mut rates, Instant::now());
            seen.insert(status.id, rates);
        }
        table.silent.extend(survey.silent.into_iter().map(|(record, _)| record.mountpoint.to_string()));
        self.0 = seen;
        table
    }
}

impl Table {
    fn add(&mut self, status: &Status, rates: &mut [Rate; 3], now: Instant) {
        let [into, out, waits] = rates;
        self.volumes.push(VolumeRow {
            mountpoint: status.mountpoint.to_string(),
            state: status.state,
            dirty: status.to_write_bytes,
            writeback: status.writeback_bytes,
            into: into.update(now, status.written_bytes.saturating_add(status.dirty_bytes)),
            out: out.update(now, status.written_bytes),
            waits: waits.update(now, status.writer_waits),
            stalled_ms: status.stalled.as_ref().map_or(0, |stalled| stalled.for_ms),
            failing: status.failing_files,
        });
        let paths = status.cgroups.iter().map(|cgroup| &cgroup.path);
        let paths = paths.chain(status.limits.iter().map(|limits| &limits.cgroup));
        let pods = Pods::of_cgroups(paths.map(Name::as_str));
        let row = |path: &Name, limits| CgroupRow {
            path: pods.at(path.as_str()).map_or_else(|| path.to_string(), |pod| pod.to_string()),
            ..CgroupRow::limited(&status.mountpoint, path, limits)
        };
        let mut limits: BTreeMap<&Name, &CgroupLimits> =
            status.limits.iter().map(|limits| (&limits.cgroup, limits)).collect();
        self.cgroups.extend(status.cgroups.iter().map(|cgroup| {
            // Limits belong to the path, not to one that was removed.
            let own = if cgroup.removed { None } else { limits.remove(&cgroup.path) };
            CgroupRow {
                inodes: cgroup.owned_inodes,
                dirty: cgroup.to_write_bytes,
                writeback: cgroup.writeback_bytes,
                ..row(&cgroup.path, own)
            }
        }));
        let others = limits.into_iter();
        self.cgroups.extend(others.map(|(path, limits)| row(path, Some(limits))));
    }
}

impl CgroupRow {
    /// A cgroup that has nothing, and may have limits.
    fn limited(mountpoint: &Name, path: &Name, limits: Option<&CgroupLimits>) -> Self {
        Self {
            path: path.to_string(),
            mountpoint: mountpoint.to_string(),
            inodes: 0,
            dirty: 0,
            writeback: 0,
            limits: limits.cloned(),
        }
    }
}
