//! The loads of neighbours and targets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cgroups::CgroupId;
use writeback::Bdi;

use super::churn;
use super::subject::{File, Subject};

/// The time of a store for 4 KiB.
pub(crate) const WRITE: Duration = Duration::from_micros(100);
/// The time of a store to make everything durable at the end.
pub(crate) const SYNC: Duration = Duration::from_millis(2);
/// How long a load runs before anything is measured.
pub(crate) const SETTLE: Duration = Duration::from_millis(30);

/// Overwrites in the life of a neighbour's cgroup.
const OVERWRITES: usize = 256;
/// Neighbours that one disk serves at its full speed.
const AT_FULL_SPEED: usize = 4;
/// Inodes of a cgroup that ends beside a writer.
const DYING: usize = 1000;
/// Callbacks of other subsystems for each cgroup that is torn down.
const CALLBACKS: usize = 64;
const PAGE: u64 = 4096;

/// How an unmount went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unmounted {
    pub(crate) umount: Duration,
    pub(crate) drain: Duration,
    pub(crate) busy: usize,
    /// Switches in flight, of all superblocks, when the drain began.
    pub(crate) in_flight: usize,
}

/// A synchronous overwrite of 4 KiB by a process in `by`.
fn overwrite(bdi: &Arc<Bdi<File>>, file: &Arc<File>, by: CgroupId, store_takes: Option<Duration>) {
    bdi.mark_dirty(Arc::clone(file), by);
    bdi.account(file, PAGE, 0);
    bdi.note_write(file, by, PAGE);
    let begun = Instant::now();
    bdi.account(file, 0, PAGE);
    store_takes.into_iter().for_each(thread::sleep);
    bdi.account(file, 0, 0);
    bdi.del_dirty(file);
    bdi.end_round(file, PAGE, begun.elapsed());
}

/// A cgroup is made, writes, is removed.
fn one_life(
    subject: &Subject,
    bdi: &Arc<Bdi<File>>,
    file: &Arc<File>,
    store_takes: Duration,
    overwrites: usize,
    goes_on: &dyn Fn() -> bool,
) {
    let cgroup = subject.cgroup();
    for _ in 0..overwrites {
        if !goes_on() {
            break;
        }
        overwrite(bdi, file, cgroup, Some(store_takes));
    }
    subject.switcher.remove_cgroup(cgroup);
    tear_down(subject);
}

/// The callbacks of other subsystems with a cgroup.
fn tear_down(subject: &Subject) {
    for _ in 0..CALLBACKS {
        let gone = vec![0_u8; 256];
        subject.switcher.domain().call(move || drop(std::hint::black_box(gone)));
    }
}

/// The load of `neighbours`, as long as `measure` runs; with `switches`, their inodes change their
/// owners, and another superblock keeps switches in flight all the time, so that no drain is spared
/// its wait by chance.
pub(crate) fn beside<R>(
    subject: &Subject,
    neighbours: usize,
    switches: bool,
    measure: impl FnOnce(&Subject) -> R,
) -> R {
    let is_over = AtomicBool::new(false);
    // ORDERING: Relaxed, a flag that is polled.
    let goes_on = || !is_over.load(Ordering::Relaxed);
    let share = u32::try_from(neighbours.div_ceil(AT_FULL_SPEED).max(1)).unwrap_or(u32::MAX);
    let devices: Vec<_> = (0..neighbours).map(|_| subject.mount()).collect();
    let measured = thread::scope(|scope| {
        for bdi in &devices {
            let body = || {
                let file = Arc::new(File::default());
                bdi.attach(&file, CgroupId::ROOT);
                while goes_on() {
                    if switches {
                        one_life(subject, bdi, &file, WRITE * share, OVERWRITES, &goes_on);
                    } else {
                        (0..OVERWRITES)
                            .take_while(|_| goes_on())
                            .for_each(|_| overwrite(bdi, &file, CgroupId::ROOT, Some(WRITE * share)));
                        tear_down(subject);
                    }
                }
            };
            let made = thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, body);
            made.expect("the host gives threads");
        }
        if switches && neighbours > 0 {
            scope.spawn(|| churn::keep_in_flight(subject, &goes_on));
        }
        if neighbours > 0 {
            thread::sleep(SETTLE);
        }
        let measured = measure(subject);
        is_over.store(true, Ordering::Relaxed);
        measured
    });
    subject.switcher.flush();
    measured
}

/// Synchronous overwrites of one cgroup for about `slice`, beside another one's end with [`DYING`]
/// inodes, again and again; with `removes` unset the inodes are made and go without any removal.
/// Returns the time of each overwrite.
pub(crate) fn beside_removals(subject: &Subject, removes: bool, slice: Duration) -> Vec<Duration> {
    let bdi = subject.mount();
    let is_over = AtomicBool::new(false);
    let mut writes = Vec::new();
    thread::scope(|scope| {
        let dying = || {
            // ORDERING: Relaxed, a flag that is polled.
            while !is_over.load(Ordering::Relaxed) {
                let cgroup = subject.cgroup();
                let files: Vec<_> = (0..DYING).map(|_| Arc::new(File::default())).collect();
                files.iter().for_each(|file| bdi.attach(file, cgroup));
                if removes {
                    subject.switcher.remove_cgroup(cgroup);
                    subject.switcher.flush();
                }
                thread::sleep(WRITE);
            }
        };
        scope.spawn(dying);
        let victim = subject.cgroup();
        let file = Arc::new(File::default());
        let until = Instant::now() + slice;
        while Instant::now() < until {
            let begun = Instant::now();
            overwrite(&bdi, &file, victim, None);
            writes.push(begun.elapsed());
            thread::sleep(WRITE / 2);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    subject.switcher.flush();
    writes
}

/// A superblock without writers, mounted and unmounted.
pub(crate) fn idle(subject: &Subject) -> Unmounted {
    let bdi = subject.mount();
    let file = Arc::new(File::default());
    bdi.attach(&file, CgroupId::ROOT);
    unmount(subject, &bdi, vec![file])
}

/// A superblock whose inode has just changed its owner, and has lost that one.
pub(crate) fn churning(subject: &Subject) -> Unmounted {
    let bdi = subject.mount();
    let file = Arc::new(File::default());
    bdi.attach(&file, CgroupId::ROOT);
    one_life(subject, &bdi, &file, WRITE, 16, &|| true);
    unmount(subject, &bdi, vec![file])
}

/// Unmounts; gives up `files` first.
pub(crate) fn unmount(subject: &Subject, bdi: &Arc<Bdi<File>>, files: Vec<Arc<File>>) -> Unmounted {
    let begun = Instant::now();
    let dirty = bdi.snapshot();
    for _inode in &dirty {
        thread::sleep(WRITE);
    }
    drop((dirty, files));
    let in_flight = subject.switcher.stats().in_flight;
    let drain = bdi.drain();
    let busy = bdi.evict();
    thread::sleep(SYNC);
    Unmounted { umount: begun.elapsed(), drain, busy, in_flight }
}
