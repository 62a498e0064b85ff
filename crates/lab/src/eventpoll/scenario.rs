//! The scenarios.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::subject::Subject;
use crate::report::{Metric, Recorder, Shown};
use crate::stats::Histogram;
use crate::table::Table;

const EVENTS: Metric = Metric::rate("events_per_ms", "1/ms");
const OPS: Metric = Metric::rate("ops_per_s", "1/s");
const WAKE: Metric = Metric::new("wake", "us");
const WAKE_TAIL: Metric = Metric::new("wake_p99", "us").shown(Shown::P99);
const LONGEST: Metric = Metric::new("longest_wait", "us");

const CONTROL: Metric = Metric::new("ctl", "us");
const CONTROL_TAIL: Metric = Metric::new("ctl_p99", "us").shown(Shown::P99);

/// Sources that each worker of `wait` has.
const SOURCES_OF_WORKER: usize = 64;
const WORKERS: usize = 2;
/// Between two questions of `inversion`: long enough for producers to be anywhere, never in step
/// with a tick.
const QUESTION_EVERY: Duration = Duration::from_micros(730);

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Of each producer in `stress`.
    pub(crate) signals: u64,
    /// Of `wait` and `inversion`.
    pub(crate) slice: Duration,
    /// Of `wake`.
    pub(crate) wakes: u32,
    pub(crate) rounds: usize,
}

impl Sizes {
    pub(crate) const QUICK: Self =
        Self { signals: 2_000, slice: Duration::from_millis(100), wakes: 200, rounds: 2 };
    /// In a kernel that was booted for it, as a rule without hardware support.
    pub(crate) const BOOTED: Self =
        Self { signals: 10_000, slice: Duration::from_millis(300), wakes: 200, rounds: 10 };
    pub(crate) const FULL: Self =
        Self { signals: 1_000_000, slice: Duration::from_millis(300), wakes: 1_000, rounds: 3 };
}

/// One scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    Stress {
        threads: usize,
    },
    Wait,
    Wake,
    Inversion {
        producers: usize,
    },
    /// As many sources are ready, and no producer is stopped on the way.
    Ready {
        sources: usize,
    },
    /// Scans of all sources beside changes of them.
    Control {
        sources: usize,
    },
}

/// All of them.
pub(super) const ALL: Table<Scenario, 19> = Table([
    ("stress-1", Scenario::Stress { threads: 1 }),
    ("stress-2", Scenario::Stress { threads: 2 }),
    ("stress-4", Scenario::Stress { threads: 4 }),
    ("stress-8", Scenario::Stress { threads: 8 }),
    ("stress-16", Scenario::Stress { threads: 16 }),
    ("stress-32", Scenario::Stress { threads: 32 }),
    ("stress-64", Scenario::Stress { threads: 64 }),
    ("stress-128", Scenario::Stress { threads: 128 }),
    ("wait", Scenario::Wait),
    ("wake", Scenario::Wake),
    ("inversion-0", Scenario::Inversion { producers: 0 }),
    ("inversion-1", Scenario::Inversion { producers: 1 }),
    ("inversion-4", Scenario::Inversion { producers: 4 }),
    ("inversion-16", Scenario::Inversion { producers: 16 }),
    ("ready-1", Scenario::Ready { sources: 1 }),
    ("ready-4", Scenario::Ready { sources: 4 }),
    ("ready-16", Scenario::Ready { sources: 16 }),
    ("ctl-16", Scenario::Control { sources: 16 }),
    ("ctl-128", Scenario::Control { sources: 128 }),
]);

impl Scenario {
    pub(crate) fn name(self) -> &'static str {
        ALL.name(self)
    }

    /// One run.
    pub(crate) fn run<S: Subject>(self, variant: &str, sizes: Sizes, recorder: &mut Recorder) {
        let name = self.name();
        match self {
            Self::Stress { threads } => {
                recorder.rate(name, variant, EVENTS, stress::<S>(threads, sizes.signals));
            }
            Self::Wait => recorder.rate(name, variant, OPS, wait::<S>(sizes.slice)),
            Self::Wake => {
                let took = wake::<S>(sizes.wakes);
                recorder.operations_us(name, variant, WAKE, &took);
                recorder.operations_us(name, variant, WAKE_TAIL, &took);
            }
            Self::Inversion { producers } => {
                record(name, variant, recorder, LONGEST, inversion::<S>(producers, sizes.slice));
            }
            Self::Ready { sources } => {
                record(name, variant, recorder, LONGEST, ready::<S>(sources, sizes.slice));
            }
            Self::Control { sources } => match control::<S>(sources, sizes.slice) {
                Some((took, events)) => {
                    recorder.operations_us(name, variant, CONTROL, &took);
                    recorder.operations_us(name, variant, CONTROL_TAIL, &took);
                    recorder.rate(name, variant, EVENTS, events);
                }
                None => {
                    recorder.absent(name, variant, CONTROL, "it has no interest set that could be changed")
                }
            },
        }
    }
}

fn record(name: &str, variant: &str, recorder: &mut Recorder, metric: Metric, value: Result<f64, String>) {
    match value {
        Ok(value) => recorder.value(name, variant, metric, value),
        Err(why) => recorder.absent(name, variant, metric, &why),
    }
}

/// Signals in a millisecond: each thread signals its own source, one consumer adds up until all are
/// seen.
fn stress<S: Subject>(threads: usize, signals: u64) -> f64 {
    let subject = S::new(threads);
    let (begin, ready) = (AtomicBool::new(false), AtomicUsize::new(0));
    let total = signals * threads as u64;
    let took = std::thread::scope(|scope| {
        for source in 0..threads {
            let (subject, begin, ready) = (&subject, &begin, &ready);
            scope.spawn(move || {
                ready.fetch_add(1, Ordering::SeqCst);
                // ORDERING: SeqCst here and below: outside of the measured part.
                while !begin.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                (0..signals).for_each(|_| subject.signal(source));
            });
        }
        while ready.load(Ordering::SeqCst) < threads {
            std::thread::yield_now();
        }
        let mut consumer = subject.consumer();
        let begun = Instant::now();
        begin.store(true, Ordering::SeqCst);
        let mut seen = 0;
        while seen < total {
            seen += subject.wait(&mut consumer, threads);
        }
        begun.elapsed()
    });
    total as f64 / (took.as_secs_f64() * 1e3)
}

/// Operations of one worker in a second: the workers share one writer's signals.
fn wait<S: Subject>(slice: Duration) -> f64 {
    let sources = SOURCES_OF_WORKER * WORKERS;
    let subject = S::new(sources);
    let (is_over, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    let operations = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let (mut consumer, mut done) = (subject.consumer(), 0);
                while !is_over.load(Ordering::Relaxed) {
                    subject.wait(&mut consumer, 1);
                    done += 1;
                }
                operations.fetch_add(done, Ordering::Relaxed);
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        let begun = Instant::now();
        while begun.elapsed() < slice {
            (0..sources).for_each(|source| subject.signal(source));
            let paused = Instant::now();
            while paused.elapsed() < Duration::from_nanos(500) {
                std::hint::spin_loop();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        // Sleeping workers have to be woken.
        while ended.load(Ordering::SeqCst) < WORKERS {
            (0..sources).for_each(|source| subject.signal(source));
            std::thread::yield_now();
        }
    });
    operations.into_inner() as f64 / WORKERS as f64 / slice.as_secs_f64()
}

/// From a signal until the consumer, which slept, has it.
fn wake<S: Subject>(wakes: u32) -> Histogram {
    let subject = S::new(1);
    let epoch = Instant::now();
    let (signalled, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    let nanos = || u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let (mut consumer, mut took) = (subject.consumer(), Histogram::default());
            for _ in 0..wakes {
                while subject.wait(&mut consumer, 1) == 0 {}
                let now = nanos();
                // ORDERING: SeqCst here and below, one at a time.
                took.add(Duration::from_nanos(now.saturating_sub(signalled.load(Ordering::SeqCst))));
                answered.fetch_add(1, Ordering::SeqCst);
            }
            took
        });
        for turn in 1..=u64::from(wakes) {
            // The consumer falls asleep meanwhile; the pause is part of the question.
            std::thread::sleep(Duration::from_micros(150));
            signalled.store(nanos(), Ordering::SeqCst);
            subject.signal(0);
            while answered.load(Ordering::SeqCst) < turn {
                std::thread::yield_now();
            }
        }
        consumer.join().expect("the consumer does not panic")
    })
}

/// The longest question of a real-time consumer on one CPU with producers that it preempts, in
/// microseconds.
fn inversion<S: Subject>(producers: usize, slice: Duration) -> Result<f64, String> {
    let sources = producers.max(1);
    beside_producers::<S, _>(sources, (0..producers).collect(), |subject| {
        let mut longest = Duration::ZERO;
        preempting(subject, slice, |consumer| longest = longest.max(question(subject, consumer, sources)));
        longest.as_secs_f64() * 1e6
    })
}

/// Runs a real-time consumer on one CPU with threads that signal the sources `of_producers` all the
/// time.
fn beside_producers<S: Subject, T: Send>(
    sources: usize,
    of_producers: Vec<usize>,
    consume: impl FnOnce(&S) -> T + Send,
) -> Result<T, String> {
    let subject = S::new(sources);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let result = stay_on_first_cpu().and_then(|()| be_real_time());
            let consumed = result.map(|()| consume(&subject));
            is_over.store(true, Ordering::SeqCst);
            consumed
        });
        for source in of_producers {
            let (subject, is_over) = (&subject, &is_over);
            scope.spawn(move || {
                let _ = stay_on_first_cpu();
                // ORDERING: Relaxed, a flag that is polled.
                while !is_over.load(Ordering::Relaxed) {
                    subject.signal(source);
                }
            });
        }
        consumer.join().expect("the consumer does not panic")
    })
    .map_err(|why| format!("not permitted: {why}"))
}

/// Scans of all sources, all signalled anew before each, by one thread; another modifies, deletes
/// and adds one source after the other. Returns how long each change took, and the events in a
/// millisecond.
fn control<S: Subject>(sources: usize, slice: Duration) -> Option<(Histogram, f64)> {
    let subject = S::new(sources);
    let (is_over, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut consumer, mut sum) = (subject.consumer(), 0);
            // ORDERING: Relaxed here and below, a flag that is polled and a count read at the end.
            while !is_over.load(Ordering::Relaxed) {
                (0..sources).for_each(|source| subject.signal(source));
                sum += subject.poll(&mut consumer, sources);
            }
            seen.store(sum, Ordering::Relaxed);
        });
        let (mut took, mut can) = (Histogram::default(), true);
        for source in (0..sources).cycle() {
            if !can || begun.elapsed() >= slice {
                break;
            }
            let mut before = Instant::now();
            can = subject.control(source, || {
                took.add(before.elapsed());
                before = Instant::now();
            });
        }
        is_over.store(true, Ordering::Relaxed);
        can.then_some(took)
    })?;
    Some((took, seen.into_inner() as f64 / (begun.elapsed().as_secs_f64() * 1e3)))
}

/// The control for it: as many sources are ready, but their producer has finished when the consumer
/// asks, and then keeps the CPU busy until the answer is there.
fn ready<S: Subject>(sources: usize, slice: Duration) -> Result<f64, String> {
    let subject = S::new(sources);
    // ORDERING: SeqCst here and below, turns of two threads.
    let (is_over, is_ready) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let result = stay_on_first_cpu().and_then(|()| be_real_time());
            let longest = result.map(|()| {
                let (mut consumer, mut longest) = (subject.consumer(), Duration::ZERO);
                let end = Instant::now() + slice;
                while Instant::now() < end {
                    std::thread::sleep(QUESTION_EVERY);
                    if is_ready.load(Ordering::SeqCst) {
                        longest = longest.max(question(&subject, &mut consumer, sources));
                        is_ready.store(false, Ordering::SeqCst);
                    }
                }
                longest.as_secs_f64() * 1e6
            });
            is_over.store(true, Ordering::SeqCst);
            longest
        });
        scope.spawn(|| {
            let _ = stay_on_first_cpu();
            while !is_over.load(Ordering::SeqCst) {
                if !is_ready.load(Ordering::SeqCst) {
                    (0..sources).for_each(|source| subject.signal(source));
                    is_ready.store(true, Ordering::SeqCst);
                }
                std::hint::spin_loop();
            }
        });
        consumer.join().expect("the consumer does not panic")
    })
    .map_err(|why| format!("not permitted: {why}"))
}

/// Calls `ask` again and again; meanwhile the producers run, and this thread preempts the running
/// one when it wakes.
fn preempting<S: Subject>(subject: &S, slice: Duration, mut ask: impl FnMut(&mut S::Consumer)) {
    let mut consumer = subject.consumer();
    let end = Instant::now() + slice;
    while Instant::now() < end {
        std::thread::sleep(QUESTION_EVERY);
        ask(&mut consumer);
    }
}

/// How long one takes.
fn question<S: Subject>(subject: &S, consumer: &mut S::Consumer, sources: usize) -> Duration {
    let begun = Instant::now();
    subject.poll(consumer, sources);
    begun.elapsed()
}

fn stay_on_first_cpu() -> std::io::Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap_or(0);
    let mut one = rustix::thread::CpuSet::new();
    one.set(first);
    Ok(rustix::thread::sched_setaffinity(None, &one)?)
}

fn be_real_time() -> std::io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 10 };
    // SAFETY: the structure is complete and outlives the call; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error())
}
