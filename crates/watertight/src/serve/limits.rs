//! The file's limits of cgroups, sent to running mount processes.
//!
//! A process that starts has its limits among its options, so that there is no moment without them.
//! A thread of its own sends them to the control socket of a running process: a process that does
//! not answer holds up no other volume.
//!
//! The limits of a cgroup in the file are set as a whole: a limit that the file omits is `max`. A
//! cgroup that is no longer in the file has no limits any more; one that never was in it keeps the
//! limits that `watertight limit` has set.
//!
//! Lock order: `told`, then `wanted`. The thread that sends last sends the limits that were set
//! last.

use std::sync::Arc;
use std::thread;

use sync::Mutex;

use super::config::{CgroupLimit, VolumeConfig};
use crate::control::api::LimitRequest;
use crate::registry::target::{self, Target};
use crate::term::shown::Show as _;

/// Everything lifted.
const NONE: &str = "rbps=max wbps=max riops=max wiops=max dirty_max=max sync_isolation=0";

/// The limits on one volume.
#[derive(Debug, Default)]
pub(super) struct VolumeLimits {
    /// Those that its process has been sent, by cgroup.
    told: Mutex<Vec<String>>,
    wanted: Mutex<Vec<CgroupLimit>>,
}

impl VolumeLimits {
    /// Its process was started with these.
    pub(super) fn started_with(&self, limits: &[CgroupLimit]) {
        *self.told.lock() = limits.iter().map(|limit| limit.cgroup.clone()).collect();
    }

    /// Makes its process apply the file's limits.
    pub(super) fn tell(self: &Arc<Self>, volume: &VolumeConfig) {
        self.wanted.lock().clone_from(&volume.limits);
        let (own, mountpoint) = (Arc::clone(self), volume.place().to_owned());
        let thread = thread::Builder::new().name("limits".to_owned());
        let started = thread.spawn(move || {
            if let Err(why) = own.tell_now(&target::resolve(mountpoint.as_os_str())) {
                let shown = mountpoint.shown();
                tracing::error!(volume = %shown.exact(), "{shown}: cannot set the limits of the file until the next reload: {why}");
            }
        });
        if let Err(error) = started {
            let shown = volume.place().shown();
            tracing::error!(volume = %shown.exact(), "{shown}: cannot set the limits of the file: cannot start a thread: {error}");
        }
    }

    fn tell_now(&self, volume: &Target) -> Result<(), String> {
        let mut told = self.told.lock();
        let wanted = self.wanted.lock().clone();
        if wanted.is_empty() && told.is_empty() {
            return Ok(());
        }
        let client = volume.volume.as_ref().and_then(|volume| volume.found.client.as_ref());
        let client = client.ok_or("its process is gone")?;
        let set = |cgroup: &str, limits: &str| {
            let request = LimitRequest { cgroup: cgroup.to_owned(), limits: limits.to_owned() };
            client.limit(&request).map(drop).map_err(|error| error.to_string())
        };
        let is_wanted = |cgroup: &String| wanted.iter().any(|limit| limit.cgroup == *cgroup);
        for gone in told.iter().filter(|cgroup| !is_wanted(cgroup)) {
            set(gone, NONE)?;
        }
        told.retain(is_wanted);
        for limit in &wanted {
            if !told.contains(&limit.cgroup) {
                told.push(limit.cgroup.clone());
            }
            set(&limit.cgroup, &format!("{NONE} {}", limit.limits))?;
        }
        Ok(())
    }
}
