//! The part that all backing devices of a process share: cgroups, read sections, and the threads
//! that switch inodes.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::sync::atomic::AtomicUsize as StdAtomicUsize;
use std::sync::{Arc, Weak};

use sync::atomic::{AtomicUsize, Ordering};
use sync::{Mutex, StatCounter};

use cgroups::CgroupId;
use throttle::CgroupPath;

use crate::switch::cgroup::{Cgroup, Cgroups};
use crate::switch::domain::Domain;
use crate::switch::strategy::{DrainStrategy, PerSuperblock, SharedState};
use crate::switch::work_queue::WorkQueue;

/// Foreign switches are refused when so many are in flight (`WB_FRN_MAX_IN_FLIGHT`), and those of a
/// superblock that has as many as are left.
pub const IN_FLIGHT_MAX: usize = 1024;

/// Threads that switch. One wait of a grace period serves all that were queued before it began.
/// Loom has few threads.
const THREADS_MAX: usize = if cfg!(loom) { 1 } else { 4 };

/// A backing device, as changes of cgroups reach it.
pub(crate) trait CgroupEvents: Send + Sync + Debug {
    /// The paths of cgroups have changed: limits are looked up again.
    fn paths_changed(&self);

    /// A cgroup was removed: its wb is not found any more, and the inodes of that go to the cgroup
    /// at `heir`.
    fn cgroup_removed(self: Arc<Self>, cgroup: &Arc<Cgroup>, path: &CgroupPath, heir: &CgroupPath);
}

/// The part that all backing devices of a process share.
#[derive(Debug)]
pub struct Switcher {
    pub(crate) state: Arc<SwitchState>,
    cgroups: Cgroups,
    pub(crate) switches: WorkQueue,
    pub(crate) clean_ups: WorkQueue,
    bdis: Mutex<Bdis>,
}

/// All devices that live, and some that do not any more.
#[derive(Debug)]
struct Bdis {
    known: Vec<Weak<dyn CgroupEvents>>,
    /// Devices that are gone are swept when so many are known: seldom, where there are thousands.
    sweep_at: usize,
}

impl Default for Bdis {
    fn default() -> Self {
        Self { known: Vec::new(), sweep_at: 16 }
    }
}

/// The part that knows nothing of inodes.
#[derive(Debug)]
pub(crate) struct SwitchState {
    pub(crate) domain: Domain,
    pub(crate) strategy: Box<dyn DrainStrategy>,
    in_flight: AtomicUsize,
    most_in_flight: StdAtomicUsize,
    refused: StatCounter,
    pub(crate) switched: StatCounter,
}

/// One switch in flight, until dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    state: Arc<SwitchState>,
    /// The count of its superblock. Not a part of that, which may be gone by now.
    own: Arc<AtomicUsize>,
}

/// Figures of the switching so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchStats {
    /// Switches in flight.
    pub in_flight: usize,
    /// The most that there were at a time, foreign ones and clean-ups together.
    pub most_in_flight: usize,
    /// Foreign switches that were refused because too many were in flight.
    pub refused: u64,
    /// Inodes that were switched.
    pub switched: u64,
    /// Runs of a worker that ended with a panic. Anything but 0 is a defect.
    pub panics: u64,
}

impl Default for Switcher {
    fn default() -> Self {
        Self::new(Domain::default(), Box::new(PerSuperblock))
    }
}

impl Switcher {
    /// With read sections in a given domain, and another strategy than the right one.
    #[must_use]
    pub fn new(domain: Domain, strategy: Box<dyn DrainStrategy>) -> Self {
        let state = SwitchState {
            domain,
            strategy,
            in_flight: AtomicUsize::new(0),
            most_in_flight: StdAtomicUsize::new(0),
            refused: StatCounter::default(),
            switched: StatCounter::default(),
        };
        Self {
            state: Arc::new(state),
            cgroups: Cgroups::default(),
            switches: WorkQueue::new("wb-switch", THREADS_MAX),
            clean_ups: WorkQueue::new("wb-clean-up", 1),
            bdis: Mutex::default(),
        }
    }

    /// The cgroups that live.
    pub fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// The read sections.
    pub fn domain(&self) -> &Domain {
        &self.state.domain
    }

    pub(crate) fn register(&self, bdi: Weak<dyn CgroupEvents>) {
        let mut bdis = self.bdis.lock();
        if bdis.known.len() >= bdis.sweep_at {
            bdis.known.retain(|known| known.strong_count() > 0);
            bdis.sweep_at = (2 * bdis.known.len()).max(16);
        }
        bdis.known.push(bdi);
    }

    fn bdis(&self) -> Vec<Arc<dyn CgroupEvents>> {
        self.bdis.lock().known.iter().filter_map(Weak::upgrade).collect()
    }

    /// A cgroup has a new name: it, and those below it, come under the limits of their new paths.
    pub fn rename_cgroup(&self, id: CgroupId, name: &OsStr) {
        self.cgroups.rename(id, name);
        self.bdis().iter().for_each(|bdi| bdi.paths_changed());
    }

    /// A cgroup was removed: its wbs are not found any more, and their inodes go to the nearest
    /// ancestor that lives. Returns at once; the inodes move on other threads.
    pub fn remove_cgroup(&self, id: CgroupId) {
        let Some(cgroup) = self.cgroups.remove(id) else { return };
        let path = |cgroup: &Cgroup| CgroupPath::from(&*cgroup.path());
        let (path, heir) = (path(&cgroup), path(&cgroup.nearest_living()));
        for bdi in self.bdis() {
            bdi.cgroup_removed(&cgroup, &path, &heir);
        }
    }

    /// Returns when all switches and clean-ups that were queued before the call have been done.
    pub fn flush(&self) {
        self.clean_ups.flush();
        self.switches.flush();
    }

    /// The figures so far.
    pub fn stats(&self) -> SwitchStats {
        let state = &self.state;
        // ORDERING: Relaxed, figures for people.
        SwitchStats {
            in_flight: state.in_flight.load(Ordering::Relaxed),
            most_in_flight: state.most_in_flight.load(Ordering::Relaxed),
            refused: state.refused.get(),
            switched: state.switched.get(),
            panics: self.switches.panics() + self.clean_ups.panics(),
        }
    }
}

impl SharedState for Switcher {
    fn domain(&self) -> &Domain {
        &self.state.domain
    }

    fn in_flight(&self) -> usize {
        self.state.in_flight()
    }

    fn flush(&self) {
        self.switches.flush();
    }
}

impl SwitchState {
    fn in_flight(&self) -> usize {
        // ORDERING: Relaxed, for `base`, which is wrong at any ordering, and for people.
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a switch in, unless too many are in flight. A superblock may have as many as it
    /// leaves for the others: one that asks for all gets half, and of several that do, each leaves
    /// as much as it has for the next.
    pub(crate) fn begin_foreign(self: &Arc<Self>, own: &Arc<AtomicUsize>) -> Option<InFlight> {
        // ORDERING: Relaxed, the exchange alone keeps the bound; the share is exact except for
        // switches that come at once.
        let mine = own.fetch_add(1, Ordering::Relaxed);
        let fits = |all: usize| (mine < IN_FLIGHT_MAX.saturating_sub(all)).then_some(all + 1);
        let before = self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        let Ok(before) = before else {
            own.fetch_sub(1, Ordering::Relaxed);
            self.refused.add(1);
            return None;
        };
        Some(self.begun(own, before))
    }

    /// Counts a switch in whose inodes must move: their cgroup was removed.
    pub(crate) fn begin_clean_up(self: &Arc<Self>, own: &Arc<AtomicUsize>) -> InFlight {
        // ORDERING: Relaxed, only counted.
        own.fetch_add(1, Ordering::Relaxed);
        self.begun(own, self.in_flight.fetch_add(1, Ordering::Relaxed))
    }

    fn begun(self: &Arc<Self>, own: &Arc<AtomicUsize>, before: usize) -> InFlight {
        // ORDERING: Relaxed, a figure for people.
        self.most_in_flight.fetch_max(before + 1, Ordering::Relaxed);
        InFlight { state: Arc::clone(self), own: Arc::clone(own) }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // ORDERING: Relaxed, only counted.
        self.own.fetch_sub(1, Ordering::Relaxed);
        self.state.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
