//! What is shown: a row for each volume, and for each cgroup in it.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::control::api::{State, Status};
use crate::progress::Rate;
use crate::target;

/// A look at all volumes.
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
    pub(super) dirty: u64,
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
}

/// Counters of the looks before.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<String, [Rate; 3]>);

impl Rates {
    /// Asks all volumes.
    pub(super) fn look(&mut self) -> Table {
        let mut table = Table::default();
        let mut seen = BTreeMap::new();
        for volume in target::volumes().iter().filter(|volume| volume.is_running()) {
            match volume.status() {
                Ok(Some(status)) => {
                    let mut rates = self.0.remove(&status.id).unwrap_or_default();
                    table.add(&status, &mut rates, Instant::now());
                    seen.insert(status.id, rates);
                }
                Ok(None) => {}
                Err(_) => table.silent.push(volume.record().mountpoint.clone()),
            }
        }
        self.0 = seen;
        table
    }
}

impl Table {
    fn add(&mut self, status: &Status, rates: &mut [Rate; 3], now: Instant) {
        let [into, out, waits] = rates;
        self.volumes.push(VolumeRow {
            mountpoint: status.mountpoint.clone(),
            state: status.state,
            dirty: status.dirty_bytes,
            into: into.update(now, status.written_bytes.saturating_add(status.dirty_bytes)),
            out: out.update(now, status.written_bytes),
            waits: waits.update(now, status.writer_waits),
            stalled_ms: status.stalled.as_ref().map_or(0, |stalled| stalled.for_ms),
            failing: status.failing_files,
        });
        self.cgroups.extend(status.cgroups.iter().map(|cgroup| CgroupRow {
            path: cgroup.path.clone(),
            mountpoint: status.mountpoint.clone(),
            inodes: cgroup.owned_inodes,
            dirty: cgroup.dirty_bytes,
            writeback: cgroup.writeback_bytes,
        }));
    }
}
