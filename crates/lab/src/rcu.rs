//! `rcu`: the cost of readers, grace periods and callbacks.
//!
//! Every subject is made once; a round takes each scenario in turn and gives each subject a slice
//! of it, starting with another one each round. [`scenario`] has the measurements, [`mod@subject`]
//! the subjects.

mod crossbeam;
#[cfg(has_liburcu)]
mod liburcu;
mod ours;
mod placement;
mod scenario;
mod seize;
mod subject;

use std::time::Duration;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::Recorder;
use subject::Subject;

const VARIANTS: [&str; 5] = ["default", "normal", "crossbeam", "seize", "liburcu"];

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "rcu",
    question: "what do readers, grace periods and callbacks cost?",
    variants: &VARIANTS,
    scenarios: &scenario::ALL.names(),
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let slice = Duration::from_millis(if settings.quick { 200 } else { 500 });
    let rounds = settings.runs.unwrap_or(if settings.quick { 3 } else { 10 });
    let subjects: Vec<(&'static str, Made)> =
        settings.variants.iter().map(|&name| (name, subject(name))).collect();
    let scenarios = scenario::ALL.chosen(&settings.scenarios);
    let slices = scenarios.iter().map(|scenario| scenario.slices()).sum::<u32>();
    let turns = u32::try_from(rounds * subjects.len()).unwrap_or(u32::MAX);
    progress.expect(EXPERIMENT.name, slice * slices * turns);
    for round in 0..rounds {
        for scenario in &scenarios {
            for turn in 0..subjects.len() {
                if settings.stop.is_set() {
                    return Ok(notes(slice, round));
                }
                // Another subject begins each round: none always follows one and the same
                // neighbour.
                let (name, subject) = &subjects[(turn + round) % subjects.len()];
                progress.now(&format!("round {} of {rounds}: {} {name}", round + 1, scenario.name()));
                let slice = slice * scenario.slices();
                match subject {
                    Ok(subject) => scenario.slice(name, &**subject, slice, recorder),
                    Err(why) => scenario.absent(name, why, recorder),
                }
                progress.done(slice);
            }
        }
    }
    Ok(notes(slice, rounds))
}

/// A subject, or why there is none.
type Made = Result<Box<dyn Subject>, String>;

fn subject(name: &str) -> Made {
    match name {
        "default" => Ok(Box::new(ours::Ours::expedited())),
        "normal" => Ok(Box::new(ours::Ours::normal())),
        "crossbeam" => Ok(Box::new(crossbeam::Crossbeam::default())),
        "seize" => Ok(Box::new(seize::Seize::default())),
        _ => liburcu(),
    }
}

#[cfg(has_liburcu)]
fn liburcu() -> Made {
    Ok(Box::new(liburcu::Liburcu))
}

#[cfg(not(has_liburcu))]
fn liburcu() -> Made {
    Err(env!("LAB_NO_LIBURCU").to_owned())
}

fn notes(slice: Duration, rounds: usize) -> Vec<String> {
    vec![
        format!("{rounds} rounds, interleaved, slices of {} ms.", slice.as_millis()),
        "`read`: enter a section, load a pointer, add up what it points to, leave; one thread; ours by `rcu::read`, in `normal` by `RcuCell::with`. `read-nested`: the same inside another section. \
         The mean of four copies of each loop, 16 bytes apart from the beginning of a line of 64: where the linker puts such a loop changes it by up to a half."
            .to_owned(),
        "`grace-idle`: one grace period after the other, no reader. `grace-at-rest`: the same beside a thread that has read and sleeps outside, so that each passes it a fence. `grace-readers-N`: the same beside N threads that enter and \
         leave sections of a few microseconds without rest, and a millisecond apart, so that none finds the readers where the last one put them; with more threads than processors a grace period waits for readers \
         that are not running."
            .to_owned(),
        "`poll-idle`: a grace period asked for, and looked at with a yield in between until it has passed; no reader.".to_owned(),
        "`callbacks`: one thread gives up 100 000 boxed values one after the other, until the last one is dropped, each library by its \
         shortest way: ours `defer_free`, crossbeam-epoch `pin` and `defer`, seize `retire`, liburcu `call_rcu`. crossbeam-epoch and \
         seize drop them in the calling thread, ours and liburcu in another one."
            .to_owned(),
        "`default`: ours, the default domain, expedited. `normal`: ours, a domain of its own, a tick of 4 ms, shared by who waits. crossbeam-epoch and seize have no call \
         that waits for readers. liburcu: the flavour with membarrier(2), its inline functions, linked."
            .to_owned(),
    ]
}
