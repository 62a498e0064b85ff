//! In the manner of the kernel's rcutorture: readers of all kinds, updaters of all kinds, threads
//! that come and go, and an oracle that knows for every element whether a reader may still see it.
//!
//! `TORTURE_SECONDS=600 cargo test -p watertight-rcu --release --test torture` is the long
//! campaign.
#![cfg(not(any(loom, shuttle)))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use watertight_rcu::{Cookie, Domain, DomainOptions, RcuCell, Retired, WorkQueue};

const ELEMENTS: usize = 64;
const READERS: usize = 4;
/// Ways to free a replaced value.
const KINDS: u64 = 9;

/// The memory that readers read. An element is live from its publication until a grace period
/// after its replacement, and has a version meanwhile: publications are counted.
struct Arena {
    domain: Domain,
    current: RcuCell<Element>,
    /// For works after a grace period.
    queue: Arc<dyn WorkQueue>,
    /// Of each element; 0: it is free.
    versions: [AtomicU64; ELEMENTS],
    /// The version published last.
    published: AtomicU64,
    free: Mutex<Vec<usize>>,
    is_over: AtomicBool,
    reads: AtomicU64,
    /// Callbacks that ran before their time. Panics of callbacks are caught.
    early: AtomicU64,
}

/// A published element, by number. The element is free when this is dropped.
struct Element {
    number: usize,
    arena: Weak<Arena>,
}

impl Drop for Element {
    fn drop(&mut self) {
        // The last one goes with the arena.
        if let Some(arena) = self.arena.upgrade() {
            arena.free(self.number);
        }
    }
}

/// A small generator of numbers, seeded, so that threads differ.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

impl Arena {
    // ORDERING: here and below SeqCst: the oracle's own fields.
    fn look(&self, random: &mut Random) {
        let oldest = self.published.load(Ordering::SeqCst);
        let guard = self.domain.read();
        let seen = self.current.load(&guard).number;
        let version = self.versions[seen].load(Ordering::SeqCst);
        assert!(version != 0, "a reader found a freed element");
        assert!(
            version >= oldest,
            "a reader found version {version}, which {oldest} had replaced before it entered"
        );
        match random.below(100) {
            0 => thread::sleep(Duration::from_micros(random.below(300))),
            1..10 => thread::yield_now(),
            10..20 => self.look(random),
            20..30 => drop(self.domain.read()),
            _ => (0..random.below(50)).for_each(|_| std::hint::spin_loop()),
        }
        let version_now = self.versions[seen].load(Ordering::SeqCst);
        assert_eq!(version_now, version, "an element was freed (0) or used again under a reader");
        self.reads.fetch_add(1, Ordering::Relaxed);
        drop(guard);
    }

    fn read(&self, seed: u64, sections: u64) {
        let mut random = Random(seed);
        for _ in 0..sections {
            self.look(&mut random);
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Publishes a free element; returns the replaced one. Under the lock, so that versions come in
    /// their order.
    fn replace(self: &Arc<Self>) -> Option<Retired<Element>> {
        let mut free = self.free.lock().expect("no panic under it");
        let number = free.pop()?;
        let version = self.published.load(Ordering::SeqCst) + 1;
        self.versions[number].store(version, Ordering::SeqCst);
        let old = self.current.replace(Element { number, arena: Arc::downgrade(self) });
        self.published.store(version, Ordering::SeqCst);
        drop(free);
        Some(old)
    }

    fn free(&self, old: usize) {
        assert_ne!(self.versions[old].swap(0, Ordering::SeqCst), 0, "freed twice");
        self.free.lock().expect("no panic under it").push(old);
    }

    /// One update, freed in the `kind`th way.
    fn update(self: &Arc<Self>, kind: u64) {
        let Some(old) = self.replace() else {
            // All are on their way.
            self.domain.barrier();
            return;
        };
        match kind {
            0 => drop(old.wait()),
            1 => {
                self.domain.synchronize();
                drop(freed_at_once(old));
            }
            2 => self.free_when_polled(old, self.domain.start_poll()),
            3 => {
                let cookie = self.domain.get_state();
                thread::yield_now();
                self.domain.cond_synchronize_expedited(cookie);
                drop(freed_at_once(old));
            }
            4 => self.domain.call(self.freeing(old)),
            5 => {
                let has_run = Arc::new(AtomicBool::new(false));
                let runs = Arc::clone(&has_run);
                drop(old);
                self.domain.call(move || runs.store(true, Ordering::SeqCst));
                self.domain.barrier();
                assert!(has_run.load(Ordering::SeqCst), "a barrier did not wait for its caller's callback");
            }
            6 => {
                self.domain.synchronize_expedited();
                drop(freed_at_once(old));
            }
            7 => self.free_when_polled(old, self.domain.start_poll_expedited()),
            _ => self.domain.queue_work(&self.queue, self.freeing(old)),
        }
    }

    fn free_when_polled(&self, old: Retired<Element>, cookie: Cookie) {
        while !self.domain.poll_state(cookie) {
            thread::yield_now();
        }
        drop(freed_at_once(old));
    }

    /// Frees it, and notes if it was too early.
    fn freeing(self: &Arc<Self>, old: Retired<Element>) -> impl FnOnce() + Send + 'static {
        let this = Arc::clone(self);
        move || {
            this.early.fetch_add(u64::from(!old.is_free()), Ordering::SeqCst);
            drop(old);
        }
    }
}

/// Works for a thread of their own.
struct Works(Sender<Work>);

type Work = Box<dyn FnOnce() + Send>;

impl WorkQueue for Works {
    fn push(&self, work: Work) {
        self.0.send(work).expect("the worker outlives the domain");
    }
}

/// A value that was replaced before a grace period that has passed.
fn freed_at_once(old: Retired<Element>) -> Element {
    assert!(old.is_free(), "a grace period passed, and a value that was replaced before is not free");
    old.wait()
}

fn torture(first_number: u64, membarrier: bool) {
    let duration = duration();
    let tick = Duration::from_micros(200);
    let options =
        DomainOptions { tick, callbacks_max: 16, first_number, membarrier, ..DomainOptions::default() };
    let domain = Domain::with_options(options);
    let (works, later) = mpsc::channel::<Work>();
    let worker = thread::spawn(move || later.into_iter().map(|work| work()).count());
    let arena = Arc::new_cyclic(|arena| Arena {
        current: RcuCell::new(&domain, Element { number: 0, arena: Weak::clone(arena) }),
        domain,
        queue: Arc::new(Works(works)),
        versions: std::array::from_fn(|n| AtomicU64::new(u64::from(n == 0))),
        published: AtomicU64::new(1),
        free: Mutex::new((1..ELEMENTS).collect()),
        is_over: AtomicBool::new(false),
        reads: AtomicU64::new(0),
        early: AtomicU64::new(0),
    });
    let end = Instant::now() + duration;
    let mut threads: Vec<_> = (0..READERS as u64)
        .map(|n| {
            let arena = Arc::clone(&arena);
            thread::spawn(move || arena.read(n + 1, u64::MAX))
        })
        .collect();
    // Readers that come and go.
    threads.push({
        let arena = Arc::clone(&arena);
        thread::spawn(move || {
            for seed in 1.. {
                if arena.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let arena = Arc::clone(&arena);
                thread::spawn(move || arena.read(seed, 20)).join().expect("a reader found what was freed");
            }
        })
    });
    for kind in 0..KINDS {
        let arena = Arc::clone(&arena);
        threads.push(thread::spawn(move || {
            for _ in 0..20 {
                arena.update(kind);
            }
            while Instant::now() < end {
                arena.update(kind);
            }
        }));
    }
    let updaters = threads.split_off(READERS + 1);
    let ended: Vec<_> = updaters.into_iter().map(thread::JoinHandle::join).collect();
    arena.is_over.store(true, Ordering::SeqCst);
    ended
        .into_iter()
        .chain(threads.into_iter().map(thread::JoinHandle::join))
        .for_each(|end| end.expect("the oracle agrees"));
    arena.domain.barrier();
    let stats = arena.domain.stats();
    eprintln!("{} reads, {stats:?}", arena.reads.load(Ordering::SeqCst));
    assert!(arena.reads.load(Ordering::SeqCst) > 0 && stats.grace_periods > 0 && stats.callbacks_run > 0);
    assert_eq!(stats.callbacks_run, stats.callbacks_queued);
    assert_eq!(arena.early.load(Ordering::SeqCst), 0, "callbacks ran early");
    drop(arena);
    assert!(worker.join().expect("no work panics") > 0);
}

fn duration() -> Duration {
    let seconds = std::env::var("TORTURE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

#[test]
fn readers_never_see_what_was_freed() {
    torture(0, true);
}

#[test]
fn nor_when_the_numbers_go_around() {
    torture(u64::MAX - 999, true);
}

#[test]
fn nor_where_readers_have_fences() {
    torture(0, false);
}
