//! `drain`: what does an unmount wait for?
//!
//! Superblocks without files under them: an inode whose pages are counted, on a store that takes
//! its time. The engine is the product's: wbs, workers, grace periods, callbacks. Each variant has
//! an engine of its own; only the engine that is measured runs. The loads are in [`load`], the
//! differences in [`variants`].

mod churn;
pub(crate) mod churner;
pub(crate) mod kernel;
mod load;
mod mounted;
mod scenario;
mod subject;
mod tracer;
pub(crate) mod variants;

use std::time::Duration;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Metric, Recorder, Shown};
use mounted::Mounted;
use scenario::Scenario;
use subject::Subject;

const VARIANTS: [&str; 5] = ["persb", "base", "race", "rmbarrier", "persb-fifo"];

/// The variant of volumes, which can be measured on a mount.
const PRODUCT: &str = VARIANTS[0];

/// Grace periods begin at the next tick. Those of the published figures took some 20 ms.
const TICK_MS: u64 = 20;

/// Those of the product.
const SHORT_TICK_MS: u64 = 4;

const UMOUNT: Metric = Metric::new("umount", "ms");
const DRAIN: Metric = Metric::new("drain", "ms");
/// Switches of all superblocks when a drain begins.
const IN_FLIGHT: Metric = Metric::new("in_flight", "switches");
/// Drains that began when there was none: variants that ask for that did not wait.
const NONE_IN_FLIGHT: Metric = Metric::new("none_in_flight", "%");

const WRITE: Metric = Metric::new("write", "us").shown(Shown::Both);

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "drain",
    question: "what does an unmount wait for?",
    variants: &VARIANTS,
    scenarios: &scenario::ALL.names(),
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let slice = Duration::from_millis(if settings.quick { 120 } else { 400 });
    let rounds = settings.runs.unwrap_or(if settings.quick { 3 } else { 12 });
    let make = |tick| -> Vec<Subject> {
        settings.variants.iter().map(|name| Subject::new(name, Duration::from_millis(tick))).collect()
    };
    let (mut subjects, mut short) = (make(TICK_MS), make(SHORT_TICK_MS));
    let scenarios = scenario::ALL.chosen(&settings.scenarios);
    let is_mounted = |scenario: &Scenario| matches!(scenario, Scenario::RemovalMounted(_));
    let wants_mount = settings.variants.contains(&PRODUCT) && scenarios.iter().any(is_mounted);
    let mounted = wants_mount.then(|| Mounted::new(settings));
    let expected = slice + load::SETTLE * 2;
    let steps = u32::try_from(rounds * subjects.len() * scenarios.len()).unwrap_or(u32::MAX);
    progress.expect(EXPERIMENT.name, expected * steps);
    'rounds: for round in 0..rounds {
        for scenario in &scenarios {
            if let (Scenario::RemovalMounted(_), Some(mounted)) = (scenario, &mounted) {
                progress.now(&format!("round {} of {rounds}: {}", round + 1, scenario.name()));
                on_a_mount(*scenario, mounted, recorder);
            }
            if is_mounted(scenario) {
                continue;
            }
            for turn in 0..subjects.len() {
                if settings.stop.is_set() {
                    break 'rounds;
                }
                let at = (turn + round) % subjects.len();
                let of = if scenario.is_short() { &mut short } else { &mut subjects };
                let subject = &mut of[at];
                progress.now(&format!(
                    "round {} of {rounds}: {} {}",
                    round + 1,
                    scenario.name(),
                    subject.name
                ));
                if let Scenario::Removal(removes) = scenario {
                    for write in load::beside_removals(subject, *removes, slice) {
                        let us = write.as_secs_f64() * 1e6;
                        recorder.value(scenario.name(), subject.name, WRITE, us);
                    }
                    progress.done(expected);
                    continue;
                }
                for unmounted in scenario.slice(subject, slice) {
                    let ms = |time: Duration| time.as_secs_f64() * 1e3;
                    let none = if unmounted.in_flight == 0 { 100.0 } else { 0.0 };
                    let figures = [
                        (UMOUNT, ms(unmounted.umount)),
                        (DRAIN, ms(unmounted.drain)),
                        (IN_FLIGHT, unmounted.in_flight as f64),
                        (NONE_IN_FLIGHT, none),
                    ];
                    for (metric, value) in figures {
                        recorder.value(scenario.name(), subject.name, metric, value);
                    }
                }
                progress.done(expected);
            }
        }
    }
    if let Some(Ok(mounted)) = mounted {
        mounted.end()?;
    }
    Ok(notes(&subjects, &short, slice, rounds))
}

/// A writer on a mount beside a removal; or why there is none.
fn on_a_mount(scenario: Scenario, mounted: &anyhow::Result<Mounted>, recorder: &mut Recorder) {
    let removes = scenario == Scenario::RemovalMounted(true);
    let writes = mounted.as_ref().map(|mounted| mounted.beside_removal(removes));
    match writes {
        Ok(Ok(writes)) => {
            for write in writes {
                recorder.value(scenario.name(), PRODUCT, WRITE, write.as_secs_f64() * 1e6);
            }
        }
        Ok(Err(why)) => recorder.absent(scenario.name(), PRODUCT, WRITE, &format!("{why:#}")),
        Err(why) => recorder.absent(scenario.name(), PRODUCT, WRITE, &format!("{why:#}")),
    }
}

fn notes(subjects: &[Subject], short: &[Subject], slice: Duration, rounds: usize) -> Vec<String> {
    let mut notes = vec![
        format!("{rounds} rounds, interleaved, slices of {} ms.", slice.as_millis()),
        format!(
            "Stores: {} us for a write of 4 KiB, {} ms for the last sync of an unmount, slept. `neighbours-N` share one disk: so many \
             writes a second as four have otherwise.",
            load::WRITE.as_micros(),
            load::SYNC.as_millis()
        ),
        format!(
            "Grace periods begin every {TICK_MS} ms, about as long as those of the published figures took; in `idle-tick-4` and \
             `churning-beside-N` every {SHORT_TICK_MS} ms, as in the product."
        ),
        "`umount`: write what is dirty, drain, take the inodes off, sync the store. `drain`: the drain alone; its row has the number of calls \
         and their sum."
            .to_owned(),
        "`in_flight`: switches in flight anywhere when a drain begins, and `none_in_flight` how many per cent of the drains found none: those of \
         `base`, `race` and `rmbarrier` do not wait then. Beside neighbours that switch another superblock keeps the count above zero."
            .to_owned(),
        "`churning-beside-N`: eight inodes of the target are on their way when it is unmounted; beside it N superblocks have a switch every 50 ms. \
         `persb-fifo`: `persb` as it was, with one queue for the switches of all superblocks and a grace period for each four of them."
            .to_owned(),
        "`removal`: a cgroup with 1000 inodes ends again and again; `write` is what another one's overwrite takes beside it, the store left \
         out. `removal-control`: as many inodes come and go without a removal."
            .to_owned(),
        "`removal-mounted`: the same on a real mount, once a round: a cgroup ends whose 1000 files are in the volume, and go to its parent; \
         `write` is an overwrite of 4 KiB by another one, the system call whole. `removal-mounted-control`: the cgroup stays."
            .to_owned(),
        "Each neighbour: make a cgroup, 256 synchronous overwrites of 4 KiB in it, remove it. A removal leaves callbacks of other \
         subsystems in the queue, as a cgroup's teardown does. `control`: nobody else is there. `control-busy`: the same writes and callbacks, \
         nobody's inode changes its owner."
            .to_owned(),
    ];
    for subject in subjects.iter().chain(short) {
        notes.push(format!(
            "`{}` in all, grace periods every {} ms: {} unmounts, {} busy inodes, {} inodes switched, {} grace periods.",
            subject.name,
            subject.tick.as_millis(),
            subject.unmounts,
            subject.busy,
            subject.switcher.stats().switched,
            subject.switcher.domain().stats().grace_periods
        ));
    }
    notes
}
