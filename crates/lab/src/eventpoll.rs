//! `eventpoll`: how many events get through, and which threads hold up which?
//!
//! A round takes each scenario in turn and gives each subject one run of it, starting with another
//! one each round. The scenarios are in [`scenario`], the subjects in [`subject`] and beside it:
//! ours with four ready lists ([`lists`], [`stack`]), the running kernel's epoll, and common
//! alternatives inside a process ([`peers`]).

mod kernel;
mod lists;
mod ours;
mod peers;
mod scenario;
mod stack;
mod subject;

use std::time::Duration;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::Recorder;
use scenario::{Scenario, Sizes};

const VARIANTS: [&str; 10] = [
    "default",
    "rwlock",
    "spinlock",
    "half-lockless",
    "default-syscall",
    "kernel",
    "mutex-condvar",
    "futures-unordered",
    "crossbeam-channel",
    "tokio-mpsc",
];

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eventpoll",
    question: "how many events get through, and who holds up whom?",
    variants: &VARIANTS,
    scenarios: &scenario::ALL.names(),
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let sizes = if settings.quick { Sizes::QUICK } else { Sizes::FULL };
    let rounds = settings.runs.unwrap_or(sizes.rounds);
    let scenarios = scenario::ALL.chosen(&settings.scenarios);
    let steps = u32::try_from(rounds * settings.variants.len() * scenarios.len()).unwrap_or(u32::MAX);
    let expected = Duration::from_millis(if settings.quick { 160 } else { 700 });
    progress.expect(EXPERIMENT.name, expected * steps);
    for round in 0..rounds {
        for scenario in &scenarios {
            for turn in 0..settings.variants.len() {
                if settings.stop.is_set() {
                    return Ok(notes(sizes, round));
                }
                // Another subject begins each round: none always follows one and the same
                // neighbour.
                let name = settings.variants[(turn + round) % settings.variants.len()];
                progress.now(&format!("round {} of {rounds}: {} {name}", round + 1, scenario.name()));
                slice(*scenario, name, sizes, recorder);
                progress.done(expected);
            }
        }
    }
    Ok(notes(sizes, rounds))
}

/// A short form of it in a kernel that was booted for it: bandwidth and inversion, of the kernel
/// and beside it.
pub(crate) fn run_beside_kernel(
    settings: &Settings,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<Vec<String>> {
    const VARIANTS: [&str; 5] =
        ["kernel", "default", "default-syscall", "mutex-condvar", "futures-unordered"];
    const SCENARIOS: [&str; 10] = [
        "stress-1",
        "stress-2",
        "stress-4",
        "stress-8",
        "stress-16",
        "stress-32",
        "wait",
        "inversion-0",
        "inversion-1",
        "inversion-16",
    ];
    let sizes = Sizes {
        rounds: settings.runs.map_or(Sizes::BOOTED.rounds, |runs| runs.div_ceil(4)),
        ..Sizes::BOOTED
    };
    for scenario in scenario::ALL.chosen(&SCENARIOS) {
        progress.step(&format!("epoll: {}", scenario.name()));
        for round in 0..sizes.rounds {
            for turn in 0..VARIANTS.len() {
                slice(scenario, VARIANTS[(turn + round) % VARIANTS.len()], sizes, recorder);
            }
        }
    }
    Ok(notes(sizes, sizes.rounds))
}

fn slice(scenario: Scenario, variant: &str, sizes: Sizes, recorder: &mut Recorder) {
    match variant {
        "default" => scenario.run::<ours::Default>(variant, sizes, recorder),
        "rwlock" => scenario.run::<ours::Ours<lists::RwLocked>>(variant, sizes, recorder),
        "spinlock" => scenario.run::<ours::Ours<lists::SpinLocked>>(variant, sizes, recorder),
        "half-lockless" => scenario.run::<ours::Ours<stack::HalfLockless>>(variant, sizes, recorder),
        "default-syscall" => scenario.run::<ours::Entering>(variant, sizes, recorder),
        "kernel" => scenario.run::<kernel::Kernel>(variant, sizes, recorder),
        "mutex-condvar" => scenario.run::<peers::MutexCondvar>(variant, sizes, recorder),
        "futures-unordered" => scenario.run::<peers::Unordered>(variant, sizes, recorder),
        "crossbeam-channel" => scenario.run::<peers::Crossbeam>(variant, sizes, recorder),
        _ => scenario.run::<peers::Tokio>(variant, sizes, recorder),
    }
}

fn notes(sizes: Sizes, rounds: usize) -> Vec<String> {
    [
        format!("{rounds} rounds, interleaved."),
        format!(
            "`stress-N`: N threads signal a source of their own, {} times each; one consumer waits (room for N), reads \
             and adds up until all are seen.",
            sizes.signals
        ),
        "`wait`: two workers share one eventpoll of 128 sources, room for 1; one writer signals all, then pauses 500 ns; \
         operations of one worker."
            .to_owned(),
        "`wake`: from the signal until the consumer, which slept, has the event.".to_owned(),
        "`inversion-N`: a SCHED_FIFO consumer asks again and again, without waiting, on one CPU with N SCHED_OTHER producers, which \
         it preempts wherever they are (with none: the control): the longest that one question took."
            .to_owned(),
        "`ready-N`: the control for `inversion-N`: N sources are ready, but who signalled them has finished when the consumer asks. \
         What `inversion-N` takes longer is what stopped producers cost."
            .to_owned(),
        "`ctl-N`: one thread signals N sources and scans them, again and again; another modifies, deletes and adds one source \
         after the other: the time of each of these changes, and the events of the scans. Both take the lock of scans."
            .to_owned(),
        "`half-lockless`: an earlier version of the change of 6.18: producers mark the item, then push it on a stack without a lock. \
         `default-syscall`: the default with a system call that does nothing for each signal, wait, change and taken source, as many as `kernel` \
         needs. Beside `kernel` it says what is the list's and what is the entry's."
            .to_owned(),
        "`rwlock`: as Linux 2018 to 6.17, producers add under the read lock (parking_lot's). `spinlock`: as Linux 6.18, under one \
         lock, which spins and yields; a real-time thread sleeps, with priority inheritance (FUTEX_LOCK_PI). Both are our eventpoll with another list. \
         `kernel`: epoll with eventfds."
            .to_owned(),
        "What each promises: (a) a source is queued once; (b) producers do not wait for each other or for the consumer; (c) a \
         producer that stops half-way holds up neither the consumer nor other sources; (d) a signal that has returned is seen by who asks \
         next; (e) a source that is still ready is reported again. default: a b c d e. half-lockless: a b e. rwlock, spinlock, kernel: a d e. \
         mutex-condvar: a d. futures-unordered and tokio-mpsc (queues that link in two steps): a b. crossbeam-channel (Select, a \
         channel of one for each source): a d. The flag that makes (a) true of mutex-condvar and tokio-mpsc is ours. No peer \
         has c."
            .to_owned(),
    ]
    .into()
}
