//! The runs and the table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use eventpoll::ready::{ReadyBitmap, ReadyList};
use eventpoll::{EventCounter, EventPoll, Events, Interest, Options};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sync::lines::{Machine, Pace};

use super::lists::{RwLocked, SpinLocked};

const PRODUCERS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// On two processors, dealt out over both, one alone beside the consumer's.
const ON_TWO: [usize; 5] = [1, 2, 4, 8, 16];
const SEED: u64 = 1;
/// Signals before the count begins, and those that are counted, of all producers together.
const WARM: u64 = 1_000;
const COUNTED: u64 = 3_000;
/// How many times as many where no turns are dealt out.
const FREE: u64 = 200;

/// The result of a run, for one signal.
struct PerSignal {
    /// Lines that producers got, and the consumer.
    producers: f64,
    consumer: f64,
    /// Events that the consumer was given.
    events: f64,
}

pub(super) fn main() {
    let all = [
        ("default", run::<ReadyBitmap> as fn(usize, How) -> PerSignal),
        ("rwlock", run::<RwLocked>),
        ("spinlock", run::<SpinLocked>),
    ];
    println!("Cache lines moved for one signal: by producers + by the consumer (events for one signal)\n");
    println!("| producers | {} |", all.map(|(name, _)| name).join(" | "));
    println!("|---|---|---|---|");
    for producers in PRODUCERS {
        println!("| {producers} | {} |", all.map(|(_, run)| shown(&run(producers, How::Each))).join(" | "));
    }
    println!("\nThe same threads on two processors: the model, and what is counted as they run\n");
    println!("| producers | | {} |", all.map(|(name, _)| name).join(" | "));
    println!("|---|---|---|---|---|");
    for producers in ON_TWO {
        let row = |how| all.map(|(_, run)| shown(&run(producers, how))).join(" | ");
        println!("| {producers} | model | {} |", row(How::OnTwo));
        if processors().len() < 2 {
            println!("\nSKIPPED: the count on two processors: this process may use only one");
        } else {
            println!("| | counted | {} |", row(How::Runs));
        }
    }
}

fn shown(per: &PerSignal) -> String {
    format!("{:.2} + {:.2} ({:.2})", per.producers, per.consumer, per.events)
}

/// The processors that this process may use.
fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("the processors of this process");
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

fn pin(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).expect("one of this process' own");
}

/// How the threads run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// In turns, each on a processor of its own.
    Each,
    /// In turns, on two processors.
    OnTwo,
    /// On two processors, as they do.
    Runs,
}

impl How {
    /// The processor of a producer. The consumer is on the first.
    const fn processor(self, producer: usize) -> usize {
        match self {
            Self::Each => producer + 1,
            // The first of them is not beside the consumer.
            Self::OnTwo | Self::Runs => (producer + 1) % 2,
        }
    }
}

/// Counts.
fn run<R: ReadyList>(producers: usize, how: How) -> PerSignal {
    let is_free = how == How::Runs;
    let poll = EventPoll::<R>::with_ready_list(Options::default());
    let sources: Vec<EventCounter> = (0..producers).map(|_| EventCounter::new()).collect();
    for (token, source) in (0..).zip(&sources) {
        poll.add(source, Interest::level(Events::IN), token).expect("a new source");
    }
    let (pace, times) = if is_free { (Pace::Free, FREE) } else { (Pace::Turns { seed: SEED }, 1) };
    let on: Vec<usize> = (0..producers).map(|at| how.processor(at)).chain([0]).collect();
    let machine = Machine::with_threads(on, pace);
    let cpus = processors();
    let (is_over, signals) = (AtomicBool::new(false), AtomicU64::new(0));
    // ORDERING: SeqCst throughout: not part of the count.
    let events = std::thread::scope(|scope| {
        for (at, source) in sources.iter().enumerate() {
            let (machine, is_over, signals, cpus) = (&machine, &is_over, &signals, &cpus);
            scope.spawn(move || {
                pin(cpus[if is_free { how.processor(at) } else { 0 }]);
                machine.enter(at, || {
                    while !is_over.load(Ordering::SeqCst) {
                        source.add(1);
                        if signals.fetch_add(1, Ordering::SeqCst) + 1 == WARM * times {
                            machine.begin_count();
                        }
                    }
                });
            });
        }
        let consumer = scope.spawn(|| {
            // Turns are handed over quickest on one processor.
            pin(cpus[0]);
            machine.enter(producers, || consume(&poll, &sources, &is_over, &signals, times))
        });
        consumer.join().expect("it ends")
    });
    per_signal(&machine, producers, COUNTED * times, events)
}

/// Takes until all are signalled; returns how many events there were since the count began.
fn consume<R: ReadyList>(
    poll: &EventPoll<R>,
    sources: &[EventCounter],
    is_over: &AtomicBool,
    signals: &AtomicU64,
    times: u64,
) -> u64 {
    let (mut ready, mut events) = (Vec::new(), 0);
    loop {
        let signalled = signals.load(Ordering::SeqCst);
        if signalled >= (WARM + COUNTED) * times {
            is_over.store(true, Ordering::SeqCst);
            return events;
        }
        poll.wait(&mut ready, sources.len(), Some(Duration::ZERO)).expect("it is open");
        for event in &ready {
            sources[usize::try_from(event.token).expect("one of ours")].take();
        }
        if signalled >= WARM * times {
            events += ready.len() as u64;
        }
    }
}

fn per_signal(machine: &Arc<Machine>, producers: usize, signals: u64, events: u64) -> PerSignal {
    let counts = machine.counts();
    let of = |moves: u64| moves as f64 / signals as f64;
    PerSignal {
        producers: of(counts[..producers].iter().map(|count| count.moves).sum()),
        consumer: of(counts[producers].moves),
        events: of(events),
    }
}
