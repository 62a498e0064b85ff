//! The scenarios.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::kernel::Kernel;
use super::strategy::Engine;
use super::subject::{Ours, Subject};
use super::{oracle, trees};
use crate::report::{Metric, Recorder, Shown};
use crate::stats::Histogram;
use crate::table::Table;

const fn ms(name: &'static str) -> Metric {
    Metric::new(name, "ms")
}

pub(super) const UMOUNT: Metric = ms("umount");
pub(super) const LAZY: Metric = ms("umount-lazy");
pub(super) const END: Metric = ms("namespace-end");
pub(super) const CONTAINER: Metric = ms("container");
const UMOUNT_P99: Metric = Metric::new("umount_p99", "ms").shown(Shown::P99);
const LAZY_P99: Metric = Metric::new("umount-lazy_p99", "ms").shown(Shown::P99);
const WALKS: Metric = Metric::rate("walks_per_s", "1/s");
/// The rate of the thread that mounts and unmounts beside the walks: a faster unmount disturbs
/// walks more often.
const UNMOUNTS: Metric = Metric::rate("unmounts_per_s", "1/s");

/// Of eight walks one goes elsewhere.
const WALKS_AT_ONCE: u64 = 8;

/// Mounts and unmounts of each kind before the measured ones.
const WARM_UP: usize = 2;
/// Trees, containers and peers of one slice, one after the other.
const REPEATED: u32 = 3;

/// One scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Something is mounted and unmounted, again and again.
    Unmount { engine: Engine, is_loaded: bool },
    /// The life of a container.
    Container { engine: Engine },
    /// A tree with so many mounts goes.
    Tree { mounts: usize },
    /// One unmount takes so many copies along.
    Peers { peers: usize },
    /// Walks of so many threads, beside a thread that mounts and unmounts or alone.
    Walks { threads: usize, is_storm: bool },
    /// The errors of a strategy.
    Oracle,
}

use Scenario::{Container, Oracle, Peers, Tree, Unmount, Walks};

/// All of them.
pub(super) const ALL: Table<Scenario, 19> = Table([
    ("expedited", Unmount { engine: Engine::Expedited, is_loaded: false }),
    ("expedited-loaded", Unmount { engine: Engine::Expedited, is_loaded: true }),
    ("rt", Unmount { engine: Engine::Normal, is_loaded: false }),
    ("rt-loaded", Unmount { engine: Engine::Normal, is_loaded: true }),
    ("rt-only-loaded", Unmount { engine: Engine::NormalOnly, is_loaded: true }),
    ("container", Container { engine: Engine::Expedited }),
    ("container-rt", Container { engine: Engine::Normal }),
    ("tree-10", Tree { mounts: 10 }),
    ("tree-100", Tree { mounts: 100 }),
    ("tree-1000", Tree { mounts: 1000 }),
    ("tree-10000", Tree { mounts: 10_000 }),
    ("peers-1000", Peers { peers: 1000 }),
    ("walks-1", Walks { threads: 1, is_storm: false }),
    ("walks-2", Walks { threads: 2, is_storm: false }),
    ("walks-8", Walks { threads: 8, is_storm: false }),
    ("walks-1-storm", Walks { threads: 1, is_storm: true }),
    ("walks-2-storm", Walks { threads: 2, is_storm: true }),
    ("walks-8-storm", Walks { threads: 8, is_storm: true }),
    ("oracle", Oracle),
]);

impl Scenario {
    pub(crate) fn name(self) -> &'static str {
        ALL.name(self)
    }

    /// About how long a slice of it takes.
    pub(crate) fn takes(self, slice: Duration) -> Duration {
        match self {
            Unmount { engine: Engine::Normal | Engine::NormalOnly, .. } => slice * 2,
            Tree { mounts: 10_000 } => Duration::from_millis(100) * REPEATED,
            Container { engine: Engine::Normal | Engine::NormalOnly } => Duration::from_millis(40) * REPEATED,
            Container { .. } | Tree { .. } | Peers { .. } => Duration::from_millis(10) * REPEATED,
            Oracle => Duration::from_millis(100),
            Unmount { .. } | Walks { .. } => slice,
        }
    }

    fn metric(self) -> Metric {
        match self {
            Unmount { .. } | Peers { .. } => UMOUNT,
            Container { .. } => CONTAINER,
            Tree { .. } => LAZY,
            Walks { .. } => WALKS,
            Oracle => oracle::INSIDE,
        }
    }

    /// A slice of it.
    pub(crate) fn slice(self, variant: &str, slice: Duration, recorder: &mut Recorder) {
        let result = match self {
            Unmount { engine, is_loaded } => subject(variant, engine)
                .and_then(|s| unmounts(self, variant, &*s, is_loaded, slice * 2, recorder)),
            Walks { threads, is_storm } => subject(variant, Engine::Expedited)
                .and_then(|subject| walks(&*subject, threads, is_storm, slice))
                .map(|(walks, unmounts)| {
                    recorder.rate(self.name(), variant, WALKS, walks);
                    if is_storm {
                        recorder.rate(self.name(), variant, UNMOUNTS, unmounts);
                    }
                }),
            _ if variant.starts_with("kernel") => {
                Err("not ours: only single mounts are measured there".into())
            }
            Container { engine } => trees::containers(self.name(), variant, (engine, REPEATED), recorder),
            Tree { .. } | Peers { .. } => (0..REPEATED).try_for_each(|_| self.many(variant, recorder)),
            Oracle => oracle::record(self.name(), variant, recorder),
        };
        if let Err(why) = result {
            recorder.absent(self.name(), variant, self.metric(), &why);
        }
    }
}

impl Scenario {
    /// Runs once, for scenarios with many mounts.
    fn many(self, variant: &str, recorder: &mut Recorder) -> Result<(), String> {
        match self {
            Tree { mounts } => trees::tree(self.name(), variant, mounts, recorder),
            Peers { peers } => trees::peers(self.name(), variant, peers, recorder),
            Unmount { .. } | Container { .. } | Walks { .. } | Oracle => Ok(()),
        }
    }
}

fn subject(variant: &str, engine: Engine) -> Result<Box<dyn Subject>, String> {
    let is_normal = engine == Engine::Normal;
    Ok(match variant {
        "kernel" | "kernel-rcu-normal" if engine == Engine::NormalOnly => {
            return Err("not ours: the kernel's own are as it is built".into());
        }
        "kernel" if is_normal => return Err("see expedited: the kernel as it runs".into()),
        "kernel-rcu-normal" if !is_normal => return Err("see rt: only with the switch on".into()),
        "kernel" | "kernel-rcu-normal" => Box::new(Kernel::new(is_normal)?),
        _ => Box::new(Ours::new(variant, engine)),
    })
}

/// Walks beside `work`, on so many threads; returns the number of walks.
fn beside_walkers<T>(subject: &dyn Subject, threads: usize, work: impl FnOnce() -> T) -> (T, u64) {
    let (is_over, begun, walks) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicU64::new(0));
    let result = std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut mine = 0;
                // ORDERING: Relaxed here and below: flags that are polled, and counts.
                begun.fetch_add(1, Ordering::Relaxed);
                while !is_over.load(Ordering::Relaxed) {
                    (1..WALKS_AT_ONCE).for_each(|_| subject.walk());
                    subject.walk_elsewhere();
                    mine += WALKS_AT_ONCE;
                }
                walks.fetch_add(mine, Ordering::Relaxed);
            });
        }
        while begun.load(Ordering::Relaxed) < threads {
            std::thread::yield_now();
        }
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        result
    });
    (result, walks.into_inner())
}

fn unmounts(
    scenario: Scenario,
    variant: &str,
    subject: &dyn Subject,
    is_loaded: bool,
    slice: Duration,
    recorder: &mut Recorder,
) -> Result<(), String> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (took, _) = beside_walkers(subject, if is_loaded { threads } else { 0 }, || {
        let mut took = [Histogram::default(), Histogram::default()];
        for is_lazy in [false, true].repeat(WARM_UP) {
            subject.attach()?;
            subject.umount(is_lazy)?;
        }
        let end = Instant::now() + slice;
        while Instant::now() < end {
            for (is_lazy, took) in [false, true].into_iter().zip(&mut took) {
                subject.attach()?;
                took.add(subject.umount(is_lazy)?);
            }
        }
        Ok::<_, String>(took)
    });
    subject.settle();
    let [sync, lazy] = took?;
    for (metrics, took) in [([UMOUNT, UMOUNT_P99], sync), ([LAZY, LAZY_P99], lazy)] {
        for metric in metrics {
            recorder.operations_ms(scenario.name(), variant, metric, &took);
        }
    }
    Ok(())
}

fn walks(
    subject: &dyn Subject,
    threads: usize,
    is_storm: bool,
    slice: Duration,
) -> Result<(f64, f64), String> {
    if !is_storm {
        subject.attach()?;
    }
    let begun = Instant::now();
    let (result, walks) = beside_walkers(subject, threads, || {
        let mut unmounts = 0_u32;
        while begun.elapsed() < slice {
            if is_storm {
                subject.attach()?;
                subject.umount(true)?;
                unmounts += 1;
            } else {
                std::thread::sleep(slice);
            }
        }
        Ok::<_, String>(unmounts)
    });
    let seconds = begun.elapsed().as_secs_f64();
    if !is_storm {
        subject.umount(true)?;
    }
    subject.settle();
    result.map(|unmounts| (walks as f64 / seconds, f64::from(unmounts) / seconds))
}
