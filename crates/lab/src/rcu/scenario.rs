//! The scenarios.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::placement::PLACEMENTS;
use super::subject::Subject;
use crate::report::{Metric, Recorder, Shown};
use crate::stats::Histogram;
use crate::table::Table;

const READ: Metric = Metric::new("read_pair", "ns");
const GRACE: Metric = Metric::new("grace", "us").shown(Shown::Both);
const POLL: Metric = Metric::new("poll", "us").shown(Shown::Both);
const CALLBACKS: Metric = Metric::rate("callbacks_per_s", "1/s");

/// Sections by one copy of the loop.
const PAIRS: u64 = 1_000_000;
/// Values given up between two reads of the clock.
const VALUES: u64 = 100_000;

/// The pause between two grace periods beside readers. One right after the other would find readers
/// where the first one put them: after the wake-up of the waiter they are all outside, and
/// thousands of short ones would hide those that wait.
const REST: Duration = Duration::from_millis(1);

/// One scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    Read {
        nested: bool,
    },
    Grace {
        readers: usize,
    },
    /// Beside one reader that is outside, and asleep.
    GraceAtRest,
    Poll,
    Callbacks,
}

/// All of them.
pub(super) const ALL: Table<Scenario, 9> = Table([
    ("read", Scenario::Read { nested: false }),
    ("read-nested", Scenario::Read { nested: true }),
    ("grace-idle", Scenario::Grace { readers: 0 }),
    ("grace-at-rest", Scenario::GraceAtRest),
    ("grace-readers-2", Scenario::Grace { readers: 2 }),
    ("grace-readers-8", Scenario::Grace { readers: 8 }),
    ("grace-readers-32", Scenario::Grace { readers: 32 }),
    ("poll-idle", Scenario::Poll),
    ("callbacks", Scenario::Callbacks),
]);

impl Scenario {
    pub(crate) fn name(self) -> &'static str {
        ALL.name(self)
    }

    /// How many times the usual time it takes: the longer an operation, the fewer there are of it.
    pub(crate) fn slices(self) -> u32 {
        match self {
            Self::Grace { readers: 32 } => 12,
            Self::Grace { readers: 8 } => 4,
            _ => 1,
        }
    }

    fn metric(self) -> Metric {
        match self {
            Self::Read { .. } => READ,
            Self::Grace { .. } | Self::GraceAtRest => GRACE,
            Self::Poll => POLL,
            Self::Callbacks => CALLBACKS,
        }
    }

    /// A row without figures.
    pub(crate) fn absent(self, variant: &str, why: &str, recorder: &mut Recorder) {
        recorder.absent(self.name(), variant, self.metric(), why);
    }

    /// Measures for about `slice`.
    pub(crate) fn slice(
        self,
        variant: &str,
        subject: &dyn Subject,
        slice: Duration,
        recorder: &mut Recorder,
    ) {
        match self {
            Self::Read { nested } => {
                // A thread of its own: the one that waits for grace periods later is no reader.
                let measured =
                    std::thread::scope(|scope| scope.spawn(|| reads(subject, nested, slice)).join());
                for ns in measured.expect("reading does not panic") {
                    recorder.value(self.name(), variant, READ, ns);
                }
            }
            Self::Grace { readers } => match graces(subject, readers, slice) {
                Ok(took) => recorder.operations_us(self.name(), variant, GRACE, &took),
                Err(why) => self.absent(variant, why, recorder),
            },
            Self::GraceAtRest => match graces_at_rest(subject, slice) {
                Ok(took) => recorder.operations_us(self.name(), variant, GRACE, &took),
                Err(why) => self.absent(variant, why, recorder),
            },
            Self::Poll => match repeat(slice, || subject.poll()) {
                Ok(took) => recorder.operations_us(self.name(), variant, POLL, &took),
                Err(why) => self.absent(variant, why, recorder),
            },
            Self::Callbacks => {
                let end = Instant::now() + slice;
                while Instant::now() < end {
                    let begun = Instant::now();
                    subject.callbacks(VALUES);
                    let rate = VALUES as f64 / begun.elapsed().as_secs_f64();
                    recorder.rate(self.name(), variant, CALLBACKS, rate);
                }
            }
        }
    }
}

/// Nanoseconds a pair, the mean of all placements, several times.
fn reads(subject: &dyn Subject, nested: bool, slice: Duration) -> Vec<f64> {
    (0..PLACEMENTS).for_each(|at| _ = subject.read(PAIRS / 10, nested, at));
    let end = Instant::now() + slice;
    let mut measured = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let seen: u64 = (0..PLACEMENTS).map(|at| subject.read(PAIRS, nested, at)).sum();
        let (took, pairs) = (begun.elapsed(), PAIRS * PLACEMENTS as u64);
        assert_eq!(seen, pairs, "a reader saw something else than what is there");
        measured.push(took.as_secs_f64() * 1e9 / pairs as f64);
    }
    measured
}

/// One after the other, beside a thread that has read and is known as a reader.
fn graces_at_rest(subject: &dyn Subject, slice: Duration) -> Result<Histogram, &'static str> {
    let (has_read, is_over) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            subject.read_while(&|| {
                has_read.wait();
                is_over.wait();
                false
            });
        });
        has_read.wait();
        let took = repeat(slice, || subject.grace());
        is_over.wait();
        took
    })
}

fn graces(subject: &dyn Subject, readers: usize, slice: Duration) -> Result<Histogram, &'static str> {
    let (is_over, inside) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut took = Histogram::default();
    std::thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                let counts = std::cell::Cell::new(true);
                // ORDERING: Relaxed here and below: flags that are polled.
                subject.read_while(&|| {
                    if counts.take() {
                        inside.fetch_add(1, Ordering::Relaxed);
                    }
                    !is_over.load(Ordering::Relaxed)
                });
            });
        }
        while inside.load(Ordering::Relaxed) < readers {
            std::thread::yield_now();
        }
        let end = Instant::now() + slice;
        let mut result = Ok(());
        while Instant::now() < end && result.is_ok() {
            let begun = Instant::now();
            result = subject.grace();
            took.add(begun.elapsed());
            if readers > 0 {
                std::thread::sleep(REST);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        result
    })
    .map(|()| took)
}

/// How long each call takes, one after the other.
fn repeat(slice: Duration, call: impl Fn() -> Result<(), &'static str>) -> Result<Histogram, &'static str> {
    let mut took = Histogram::default();
    let end = Instant::now() + slice;
    while Instant::now() < end {
        let begun = Instant::now();
        call()?;
        took.add(begun.elapsed());
    }
    Ok(took)
}
