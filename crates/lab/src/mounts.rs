//! `mounts`: the cost and the promises of an unmount.
//!
//! A round takes each scenario in turn and gives each variant a slice of it, starting with another
//! one each round. [`mod@strategy`] has the strategies, [`scenario`] the measurements, [`oracle`]
//! the errors of a strategy.

mod kernel;
mod names;
mod oracle;
mod scenario;
mod strategy;
mod subject;
mod trees;

use std::time::Duration;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Metric, Recorder};

const VARIANTS: [&str; 16] = [
    "default",
    "expedited",
    "deferred",
    "deferred-all",
    "global-worker",
    "polled-global",
    "polled-global-at-unlink",
    "polled-mount",
    "polled-mount-corrected",
    "gp-on-demand",
    "two-list",
    "per-mount-count",
    "walker-count",
    "percpu-legitimize",
    "kernel",
    "kernel-rcu-normal",
];

const PER_MOUNT: Metric = Metric::new("per_mount", "us");

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "mounts",
    question: "what does an unmount cost, and what does it promise?",
    variants: &VARIANTS,
    scenarios: &scenario::ALL.names(),
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let slice = Duration::from_millis(if settings.quick { 40 } else { 250 });
    let rounds = settings.runs.unwrap_or(if settings.quick { 3 } else { 5 });
    let scenarios = scenario::ALL.chosen(&settings.scenarios);
    let variants = &settings.variants;
    let round: Duration = scenarios.iter().map(|scenario| scenario.takes(slice)).sum();
    progress.expect(EXPERIMENT.name, round * u32::try_from(rounds * variants.len()).unwrap_or(u32::MAX));
    for round in 0..rounds {
        for scenario in &scenarios {
            for turn in 0..variants.len() {
                if settings.stop.is_set() {
                    return Ok(notes(slice, round));
                }
                let variant = variants[order(turn, round, variants.len())];
                progress.now(&format!("round {} of {rounds}: {} {variant}", round + 1, scenario.name()));
                scenario.slice(variant, slice, recorder);
                progress.done(scenario.takes(slice));
            }
        }
    }
    Ok(notes(slice, rounds))
}

/// The variant with this turn of a round: another one begins each round, and none always follows
/// one and the same neighbour.
fn order(turn: usize, round: usize, variants: usize) -> usize {
    let fits =
        |stride: &usize| (2..=*stride).all(|n| !(stride.is_multiple_of(n) && variants.is_multiple_of(n)));
    let strides: Vec<usize> = (1..variants.max(2)).filter(fits).collect();
    (turn * strides[round % strides.len()] + round) % variants
}

#[cfg(test)]
#[test]
fn each_variant_has_a_turn_in_each_round() {
    for variants in 1..=VARIANTS.len() {
        for round in 0..9 {
            let mut turns: Vec<usize> = (0..variants).map(|turn| order(turn, round, variants)).collect();
            turns.sort_unstable();
            assert_eq!(turns, (0..variants).collect::<Vec<_>>(), "{variants} {round}");
        }
    }
}

fn notes(slice: Duration, rounds: usize) -> Vec<String> {
    vec![
        format!("{rounds} rounds, interleaved, slices of {} ms.", slice.as_millis()),
        "`umount`, `umount-lazy`: from the call to its return, with all clean-up that the strategy does in it; `_p99` is the same, \
         its tail. Something is mounted before each call."
            .to_owned(),
        "`expedited`: grace periods as short as they get. `rt`: normal ones with a tick of 20 ms, as on a real-time kernel; the \
         default waits, where it has to, for its own expedited ones in both. `rt-only`: as `rt`, and there are no expedited ones, for the default neither. `-loaded`: a thread on each processor walks \
         through the mount without rest. Each walk takes a reference at its end, and gives it back."
            .to_owned(),
        "`container`, on a host that has had one before: clone a namespace, attach 50 volumes and a root, change the root, detach the old one (`umount-lazy`), end \
         (`namespace-end`). `tree-N`: a tree of N mounts is detached. `peers-1000`: an unmount that takes 1 000 copies along. \
         `walks-N`: N threads walk, `-storm`: beside one that mounts and unmounts without rest (`unmounts_per_s`)."
            .to_owned(),
        "`oracle`: how often a strategy shut down under a walk (`finalised_inside`), returned before it had shut down (`late`), had \
         another thread do it (`foreign`), returned from a synchronous unmount with the shutdown left to a walk (`not_the_last`), or waited for another superblock that hung (`held_up`): 0 never, 1 always."
            .to_owned(),
        "`deferred`, `deferred-all`, `polled-mount`, `percpu-legitimize` are faulty; `global-worker` and `walker-count` were rejected. `percpu-legitimize` \
         counts who makes a mount their own, here for the whole of the walk. `deferred` leaves the puts to the domain's one thread for callbacks. `polled-global-at-unlink` takes its cookie when the mounts leave, `polled-global` after that. \
         `two-list` ends what nobody else has before it waits for the others' grace period; `per-mount-count` looks at each mount's count 16 times before it waits for one. `kernel`: tmpfs, \
         umount2(2); its walks are access(2). `kernel-rcu-normal`: with /sys/kernel/rcu_normal set for each call."
            .to_owned(),
    ]
}
