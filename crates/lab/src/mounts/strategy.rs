//! The strategies that are compared, the faulty ones included.
//!
//! All but the default have one domain for all their namespaces, as a kernel has. Their grace
//! periods are those of the engine that a scenario names; the default's are always its own.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};

use mounts::teardown::{FinalPut, OnDemand, Teardown, UmountReason, UmountedMount};
use rcu::{Cookie, Domain, DomainOptions, WorkQueue};
use sync::{CachePadded, Condvar, Mutex, shards};

/// The grace periods that strategies wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// As short as they get.
    Expedited,
    /// With a tick, as a real-time kernel has them.
    Normal,
    /// Normal ones, and there are no others: the default's own are with a tick, too.
    NormalOnly,
}

/// The treatment of mounts that left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A grace period, then the puts.
    Expedited,
    /// A lazy unmount leaves the puts to a pool of threads, after a grace period.
    Deferred,
    /// The end of a namespace does so, too.
    DeferredAll,
    /// One thread does it for all.
    GlobalWorker,
    /// A cookie after the unhashing, and a wait only if it has not passed.
    PolledGlobal,
    /// A global poll, with the cookie that was taken when the mounts left, one for all that left
    /// together.
    PolledGlobalAtUnlink,
    /// A cookie for each mount; `is_inverted`: waits if they *have* passed.
    PolledMount { is_inverted: bool },
    /// No grace period where no other thread has a reference.
    OnDemand,
    /// Two lists: mounts without other users end at once, the others after a grace period.
    TwoList,
    /// Each mount's count is read until it shows no other user, so many times; then a grace period.
    PerMountCount,
    /// Each walk counts itself; the unmount waits for the count's end.
    WalkerCount,
    /// A walk that takes a reference counts itself on its processor meanwhile; the unmount waits
    /// for the end of all such, in place of a grace period.
    PercpuLegitimize,
}

/// A strategy with its engine.
pub(crate) struct Strategy {
    kind: Kind,
    engine: Engine,
    domain: Domain,
    /// Those that walk, by the phase in which they began.
    walkers: [AtomicUsize; 2],
    phase: AtomicUsize,
    flip: Mutex<()>,
    /// Those that make a mount their own, in shards of the threads.
    legitimizing: [CachePadded<AtomicUsize>; SHARDS],
}

/// As many as processors, within reason.
const SHARDS: usize = 16;

impl fmt::Debug for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Strategy")
            .field("kind", &self.kind)
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

/// The names in the table; the default is the crate's own and none of these.
pub(crate) const KINDS: [(&str, Kind); 13] = [
    ("expedited", Kind::Expedited),
    ("deferred", Kind::Deferred),
    ("deferred-all", Kind::DeferredAll),
    ("global-worker", Kind::GlobalWorker),
    ("polled-global", Kind::PolledGlobal),
    ("polled-global-at-unlink", Kind::PolledGlobalAtUnlink),
    ("polled-mount", Kind::PolledMount { is_inverted: true }),
    ("polled-mount-corrected", Kind::PolledMount { is_inverted: false }),
    ("gp-on-demand", Kind::OnDemand),
    ("two-list", Kind::TwoList),
    ("per-mount-count", Kind::PerMountCount),
    ("walker-count", Kind::WalkerCount),
    ("percpu-legitimize", Kind::PercpuLegitimize),
];

/// The teardown of this name; and the strategy behind it, if it is not the default.
pub(crate) fn teardown(
    name: &str,
    engine: Engine,
    options: &DomainOptions,
) -> (Arc<dyn Teardown>, Option<Arc<Strategy>>) {
    let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == name) else {
        let default: Arc<dyn Teardown> = match engine {
            Engine::NormalOnly => Arc::new(WithoutExpedited),
            Engine::Expedited | Engine::Normal => Arc::new(OnDemand),
        };
        return (default, None);
    };
    let strategy = Arc::new(Strategy {
        kind: *kind,
        engine,
        domain: Domain::with_options(options.clone()),
        walkers: [AtomicUsize::new(0), AtomicUsize::new(0)],
        phase: AtomicUsize::new(0),
        flip: Mutex::new(()),
        legitimizing: Default::default(),
    });
    (Arc::clone(&strategy) as _, Some(strategy))
}

impl Strategy {
    fn wait(&self, cookie: Cookie) {
        match self.engine {
            Engine::Expedited => self.domain.cond_synchronize_expedited(cookie),
            Engine::Normal | Engine::NormalOnly => self.domain.cond_synchronize(cookie),
        }
    }

    /// A walk, counted where the strategy wants that.
    pub(crate) fn counted<T>(&self, walk: impl FnOnce() -> T) -> T {
        if self.kind != Kind::WalkerCount {
            return walk();
        }
        // ORDERING: SeqCst throughout: the simplest form of the demonstration.
        let phase = self.phase.load(Ordering::SeqCst) & 1;
        self.walkers[phase].fetch_add(1, Ordering::SeqCst);
        let result = walk();
        self.walkers[phase].fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// A walk that takes a reference, counted where the strategy wants that. This does more than
    /// the strategy asks for: the walk is counted from its beginning.
    pub(crate) fn legitimizing<T>(&self, walk: impl FnOnce() -> T) -> T {
        if self.kind != Kind::PercpuLegitimize {
            return walk();
        }
        let count = &self.legitimizing[shards::of_this_thread() % SHARDS];
        // ORDERING: SeqCst, as above.
        count.fetch_add(1, Ordering::SeqCst);
        let result = walk();
        count.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Waits until each processor was seen without one.
    fn wait_for_legitimizing(&self) {
        for count in &self.legitimizing {
            while count.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until all present walks have ended: two phases, since a walk that read the phase may
    /// count itself late.
    fn wait_for_walkers(&self) {
        let _turn = self.flip.lock();
        for _ in 0..2 {
            let phase = self.phase.fetch_add(1, Ordering::SeqCst) & 1;
            while self.walkers[phase].load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Whether a thread waits in [`wait_for_walkers`](Self::wait_for_walkers).
    pub(crate) fn is_waiting(&self) -> bool {
        self.kind == Kind::WalkerCount && self.flip.try_lock().is_none()
    }

    /// Leaves the puts of these mounts to the pool, after a grace period.
    fn defer(&self, gone: Vec<UmountedMount>) {
        let pool: Arc<dyn WorkQueue> = POOL.clone();
        self.domain.queue_work(&pool, move || put_all(gone, false));
    }

    /// Waits until the callbacks and the pool have nothing left to do.
    pub(crate) fn settle(&self) {
        self.domain.barrier();
        if matches!(self.kind, Kind::Deferred | Kind::DeferredAll) {
            POOL.settle();
        }
    }
}

/// Threads of the pool: a superblock that hangs holds one of them, and the others go on.
const POOL_THREADS: usize = 4;

/// The pool to which `deferred` leaves puts, as a kernel does to its workqueue. For all namespaces.
static POOL: LazyLock<Arc<Pool>> = LazyLock::new(|| {
    let (jobs, queue) = channel::<Job>();
    let queue = Arc::new(Mutex::new(queue));
    let pool = Arc::new(Pool { jobs, unfinished: Mutex::new(0), is_idle: Condvar::new() });
    for _ in 0..POOL_THREADS {
        let (queue, pool) = (Arc::clone(&queue), Arc::clone(&pool));
        std::thread::spawn(move || {
            while let Ok(job) = { queue.lock().recv() } {
                job();
                pool.finished();
            }
        });
    }
    pool
});

struct Pool {
    jobs: Sender<Job>,
    unfinished: Mutex<usize>,
    is_idle: Condvar,
}

impl Pool {
    fn finished(&self) {
        let mut unfinished = self.unfinished.lock();
        *unfinished -= 1;
        if *unfinished == 0 {
            self.is_idle.notify_all();
        }
    }

    /// Waits until nothing is left to do.
    fn settle(&self) {
        let mut unfinished = self.unfinished.lock();
        while *unfinished > 0 {
            self.is_idle.wait(&mut unfinished);
        }
    }
}

impl WorkQueue for Pool {
    fn push(&self, work: Job) {
        *self.unfinished.lock() += 1;
        // Its threads are there as long as the process is.
        let _ = self.jobs.send(work);
    }
}

/// How often a mount's count is checked before a grace period is waited for.
const LOOKS: u32 = 16;

/// Whether it has no other user; if it has, lets others run first.
fn is_alone_now(gone: &UmountedMount) -> bool {
    let is_alone = gone.count() == 1;
    if !is_alone {
        std::thread::yield_now();
    }
    is_alone
}

/// The default, on a host whose grace periods cannot be hurried.
#[derive(Debug)]
struct WithoutExpedited;

impl Teardown for WithoutExpedited {
    fn finish(&self, gone: Vec<UmountedMount>, why: UmountReason) {
        let complete =
            |gone: UmountedMount| gone.complete_with(why == UmountReason::Sync, Domain::cond_synchronize);
        FinalPut::clean_up_all(gone.into_iter().filter_map(complete).collect());
    }
}

/// After the wait: the puts, and the clean-ups of those that were the last.
fn put_all(gone: Vec<UmountedMount>, is_sync: bool) {
    let last: Vec<FinalPut> = gone.into_iter().filter_map(|gone| gone.complete(is_sync, || ())).collect();
    last.into_iter().for_each(FinalPut::clean_up);
}

type Job = Box<dyn FnOnce() + Send>;

/// The one worker: a caller that waits for its turn waits for all before.
static WORKER: LazyLock<Sender<(Job, Sender<()>)>> = LazyLock::new(|| {
    let (jobs, queue) = channel::<(Job, Sender<()>)>();
    std::thread::spawn(move || {
        for (job, done) in queue {
            job();
            let _ = done.send(());
        }
    });
    jobs
});

impl Teardown for Strategy {
    fn may_be_alone(&self) -> bool {
        matches!(self.kind, Kind::OnDemand | Kind::TwoList)
    }

    fn domain(&self, _: &DomainOptions) -> Domain {
        self.domain.clone()
    }

    fn finish(&self, gone: Vec<UmountedMount>, why: UmountReason) {
        let is_sync = why == UmountReason::Sync;
        match self.kind {
            Kind::Deferred if why == UmountReason::Lazy => self.defer(gone),
            Kind::DeferredAll if !is_sync => self.defer(gone),
            Kind::Expedited | Kind::Deferred | Kind::DeferredAll | Kind::PolledGlobal => {
                self.wait(self.domain.get_state());
                put_all(gone, is_sync);
            }
            Kind::PolledGlobalAtUnlink => {
                // All are stamped after the last of them has left, and all have this domain: one is
                // as good as another.
                if let Some(one) = gone.first() {
                    self.wait(one.stamp());
                }
                put_all(gone, is_sync);
            }
            Kind::GlobalWorker => {
                let (done, is_done) = channel();
                let (domain, engine) = (self.domain.clone(), self.engine);
                let job = move || {
                    match engine {
                        Engine::Expedited => domain.synchronize_expedited(),
                        Engine::Normal | Engine::NormalOnly => domain.synchronize(),
                    }
                    put_all(gone, is_sync);
                };
                if WORKER.send((Box::new(job), done)).is_ok() {
                    let _ = is_done.recv();
                }
            }
            Kind::PolledMount { is_inverted: false } => {
                gone.iter().for_each(|gone| self.wait(gone.stamp()));
                put_all(gone, is_sync);
            }
            Kind::PolledMount { is_inverted: true } => {
                if gone.iter().all(|gone| self.domain.poll_state(gone.stamp())) {
                    self.wait(self.domain.get_state());
                }
                // Not `complete`: the other user may never give its reference back.
                gone.into_iter().filter_map(UmountedMount::put).for_each(FinalPut::clean_up);
            }
            Kind::OnDemand => {
                if !gone.iter().all(UmountedMount::is_alone) {
                    self.wait(self.domain.get_state());
                }
                put_all(gone, is_sync);
            }
            Kind::TwoList => {
                let (alone, shared): (Vec<_>, Vec<_>) = gone.into_iter().partition(UmountedMount::is_alone);
                put_all(alone, is_sync);
                if !shared.is_empty() {
                    self.wait(self.domain.get_state());
                    put_all(shared, is_sync);
                }
            }
            Kind::PerMountCount => {
                // Once the unmount's own reference is the only one, no thread is in a fast put:
                // such a thread has not been counted down yet, and a thread that comes now finds
                // the flags, and puts slowly.
                if !gone.iter().all(|one| (0..LOOKS).any(|_| is_alone_now(one))) {
                    self.wait(self.domain.get_state());
                }
                put_all(gone, is_sync);
            }
            Kind::WalkerCount => {
                self.wait_for_walkers();
                put_all(gone, is_sync);
            }
            Kind::PercpuLegitimize => {
                self.wait_for_legitimizing();
                // Not `complete`, as above: a thread may have taken a reference before, and may put
                // it at any time.
                gone.into_iter().filter_map(UmountedMount::put).for_each(FinalPut::clean_up);
            }
        }
    }
}
