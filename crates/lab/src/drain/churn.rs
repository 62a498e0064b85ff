//! Switches that never end: superblocks whose inodes change their owners again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cgroups::CgroupId;
use writeback::{Bdi, Inode as _};

use super::load::{self, Unmounted};
use super::subject::{File, Subject};

/// Inodes of a target that lose their owner.
const TARGETS_INODES: usize = 8;
/// Inodes of the superblock that keeps the count of switches in flight above zero.
const KEEPERS_INODES: usize = 64;
/// Between two of its switches.
const KEEPERS_PAUSE: Duration = Duration::from_micros(250);
/// Each neighbour's inode changes its owner so often, if the engine lets it.
const EVERY_MS: usize = 50;
/// How long neighbours switch before anything is measured: each of them has begun.
const SETTLE: Duration = Duration::from_millis(100);

/// A superblock and its inodes.
type Device = (Arc<Bdi<File>>, Vec<Arc<File>>);

/// Superblocks and how often an inode of theirs changes its owner.
struct Churn {
    devices: Vec<Device>,
    owners: [CgroupId; 2],
    pause: Duration,
    /// So many switches begin after each pause.
    at_once: usize,
}

impl Churn {
    fn new(subject: &Subject, superblocks: usize, inodes: usize) -> Self {
        let owners = [subject.cgroup(), subject.cgroup()];
        let device = |_| {
            let bdi = subject.mount();
            let files: Vec<_> = (0..inodes).map(|_| Arc::new(File::default())).collect();
            files.iter().for_each(|file| bdi.attach(file, owners[0]));
            (bdi, files)
        };
        let devices = (0..superblocks).map(device).collect();
        Self { devices, owners, pause: KEEPERS_PAUSE, at_once: 1 }
    }

    /// Begins one switch after the other, of inodes that are not on their way, as long as `goes_on`
    /// returns `true`.
    fn run(&self, goes_on: &dyn Fn() -> bool) {
        let all = || self.devices.iter().flat_map(|(bdi, files)| files.iter().map(move |file| (bdi, file)));
        let mut next = all().cycle();
        while goes_on() {
            for (bdi, file) in next.by_ref().take(self.at_once) {
                if !file.inode_wb().is_switching() {
                    let is_first = bdi.owner_of(file) == Some(self.owners[0]);
                    bdi.switch_to(file, self.owners[usize::from(is_first)]);
                }
            }
            thread::sleep(self.pause);
        }
    }

    fn end(self, subject: &Subject) {
        drop(self.devices);
        self.owners.into_iter().for_each(|owner| subject.switcher.remove_cgroup(owner));
        subject.switcher.flush();
    }
}

/// Keeps at least one switch in flight, except for a moment after each grace period, as long as
/// `goes_on` returns `true`.
pub(crate) fn keep_in_flight(subject: &Subject, goes_on: &dyn Fn() -> bool) {
    let churn = Churn::new(subject, 1, KEEPERS_INODES);
    churn.run(goes_on);
    churn.end(subject);
}

/// `measure` beside so many superblocks with switches of their own.
pub(crate) fn beside<R>(subject: &Subject, neighbours: usize, measure: impl FnOnce(&Subject) -> R) -> R {
    let mut churn = Churn::new(subject, neighbours, 1);
    churn.at_once = neighbours.div_ceil(EVERY_MS);
    let pause_ms = (EVERY_MS * churn.at_once).checked_div(neighbours).unwrap_or(1).max(1);
    churn.pause = Duration::from_millis(pause_ms as u64);
    let is_over = AtomicBool::new(false);
    let measured = thread::scope(|scope| {
        // ORDERING: Relaxed, a flag that is polled.
        let goes_on = || !is_over.load(Ordering::Relaxed);
        if neighbours > 0 {
            let churn = &churn;
            scope.spawn(move || churn.run(&goes_on));
            thread::sleep(SETTLE);
        }
        let measured = measure(subject);
        is_over.store(true, Ordering::Relaxed);
        measured
    });
    churn.end(subject);
    measured
}

/// A superblock whose inodes have just lost their owner, and are on their way to another one,
/// mounted and unmounted.
pub(crate) fn unmount_in_flight(subject: &Subject) -> Unmounted {
    let bdi = subject.mount();
    let cgroup = subject.cgroup();
    let files: Vec<_> = (0..TARGETS_INODES).map(|_| Arc::new(File::default())).collect();
    files.iter().for_each(|file| bdi.attach(file, cgroup));
    subject.switcher.remove_cgroup(cgroup);
    // Those that have arrived were too fast for us.
    let is_under_way =
        |file: &Arc<File>| file.inode_wb().is_switching() || bdi.owner_of(file) == Some(CgroupId::ROOT);
    while !files.iter().all(is_under_way) {
        thread::yield_now();
    }
    load::unmount(subject, &bdi, files)
}
