//! `isolation`: the cost of a neighbour for a healthy volume.
//!
//! Processes of the product with real mounts: ten healthy volumes, and others beside them.
//! *Stalled* ones have their stores on a FUSE server that was stopped by a signal; each has
//! something to write and a caller that waits for it in fsync(2). They are compared with as many
//! that are not used and whose stores answer. *Throttled* and *churning* ones are used by real
//! cgroups; they are compared with as many whose cgroups have as many processes that do nothing.
//! Neighbours do their work before and after every measurement, or nothing is measured. The
//! volumes are mounted anew in each round, so that in `alone` there is no neighbour. [`rig`] mounts
//! them, [`beside`] lists the neighbours, [`load`] has the work of the healthy ones, [`tenants`] are
//! the users of neighbours, [`keeper`] is the process that waits, and that cleans up should this
//! process be gone.

mod beside;
pub(crate) mod keeper;
mod load;
mod notes;
mod rig;
pub(crate) mod tenant;
mod tenants;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Baseline, Metric, Recorder, Shown};
use crate::volumes::ours::program;
use beside::{Beside, Kind};
use load::{Amount, Found};
use notes::notes;
use rig::{HEALTHY, Rig, Way, Work};

const VARIANTS: [&str; 2] = ["default", "attached"];
const ALONE: &str = "alone";
const SCENARIOS: [&str; 21] = [
    ALONE,
    "idle-1",
    "stalled-1",
    "idle-10",
    "stalled-10",
    "idle-100",
    "stalled-100",
    "resting-1",
    "throttled-1",
    "churning-1",
    "resting-4",
    "throttled-4",
    "churning-4",
    "resting-16",
    "throttled-16",
    "churning-16",
    "resting-64",
    "throttled-64",
    "churning-64",
    "crowd-1000",
    "mapping-1000",
];
/// Those of all that are run with `--quick`.
const QUICK: [&str; 8] =
    [ALONE, "idle-1", "stalled-1", "idle-10", "stalled-10", "resting-4", "throttled-4", "churning-4"];

const LARGE: Metric = Metric::rate("write-1m", "MB/s");
const WRITE: Metric = Metric::new("write-4k", "ms").shown(Shown::Both);
const FSYNC: Metric = Metric::new("fsync", "ms");
const SYNC: Metric = Metric::new("sync", "ms");
const STAT: Metric = Metric::new("stat", "ms").shown(Shown::Both);
const CREATE: Metric = Metric::new("create", "ms").shown(Shown::Both);
const MAPPED: Metric = Metric::new("mapped-4k", "ms").shown(Shown::Both);
const UMOUNT: Metric = Metric::new("umount", "ms");
const LAZY: Metric = Metric::new("umount-lazy", "ms");
const STATUS: Metric = Metric::new("status", "ms");
const FORCE: Metric = Metric::new("force", "ms");
const NOTICED: Metric = Metric::new("stall-noticed", "ms");
const THREADS: Metric = Metric::new("threads", "");
const MEMORY: Metric = Metric::new("memory", "MiB");
const PROCESSOR: Metric = Metric::new("neighbours_cpu", "%");
const OF_LIMIT: Metric = Metric::new("neighbour_of_limit", "%");
const SWITCHES: Metric = Metric::new("switches_per_s", "1/s");
/// Those that every scenario has.
const METRICS: [Metric; 11] =
    [LARGE, WRITE, FSYNC, SYNC, STAT, CREATE, UMOUNT, LAZY, STATUS, THREADS, MEMORY];

/// Those that only some have.
fn has(kind: Kind, metric: Metric) -> bool {
    if metric == MAPPED {
        return kind != Kind::Mapping;
    }
    match kind {
        Kind::Stalled => [FORCE, NOTICED].contains(&metric),
        Kind::Resting => metric == PROCESSOR,
        Kind::Throttled | Kind::Crowd | Kind::Mapping => [PROCESSOR, OF_LIMIT].contains(&metric),
        Kind::Churning => [PROCESSOR, SWITCHES].contains(&metric),
        Kind::Idle => false,
    }
}

/// How often the ten are gone through, each unmounted once: both ways in turn, so that a drift of
/// the machine affects the figures of both alike.
const TURNS: usize = 8;
/// Stalled volumes that are given up in each round.
const FORCED: usize = 5;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "isolation",
    question: "what does a neighbour cost a healthy volume?",
    variants: &VARIANTS,
    scenarios: &SCENARIOS,
    campaigns: &[],
    baseline: Some(baseline),
    run,
};

fn baseline() -> Baseline {
    let pair = |&scenario: &&str| Some((scenario.to_owned(), Beside::of(scenario).control()?));
    Baseline::Scenarios {
        names: vec!["idle-N".to_owned(), "resting-N".to_owned()],
        of: SCENARIOS.iter().filter_map(pair).collect(),
    }
}

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    ensure!(rustix::process::geteuid().is_root(), "needs root");
    let program = program(settings).map_err(anyhow::Error::msg)?;
    let place = settings.source.clone().unwrap_or_else(|| PathBuf::from("/dev/shm"));
    let place = place.canonicalize()?;
    let rounds = settings.runs.unwrap_or(if settings.quick { 1 } else { 6 });
    let mut cells: Vec<(&str, &str)> = Vec::new();
    for &scenario in chosen(settings) {
        cells.extend(settings.variants.iter().map(|&variant| (scenario, variant)));
    }
    let whole: Duration = cells.iter().map(|cell| expected(cell, settings.quick)).sum();
    progress.expect(EXPERIMENT.name, whole * u32::try_from(rounds).unwrap_or(1));
    // In their order in the tables, in whatever order they run.
    for metric in METRICS.iter().chain(&[MAPPED, FORCE, NOTICED, PROCESSOR, OF_LIMIT, SWITCHES]) {
        for (scenario, variant) in &cells {
            if METRICS.contains(metric) || has(Beside::of(scenario).kind, *metric) {
                recorder.expect(scenario, variant, *metric);
            }
        }
    }
    for round in 0..rounds {
        // None is always the first, nor always after one and the same.
        let step = if round == 0 { 0 } else { (cells.len() / 2).saturating_sub(1) };
        cells.rotate_left(step);
        for (scenario, variant) in &cells {
            if settings.stop.is_set() {
                return Ok(notes(&place));
            }
            let now = format!("round {} of {rounds}: {scenario} {variant}", round + 1);
            progress.now(&now);
            let mut cell = Cell { scenario, variant, settings, recorder };
            if let Err(error) = cell.run(&program, &place) {
                progress.say(&format!("{now}: {error:#}"));
                METRICS.iter().for_each(|m| recorder.absent(scenario, variant, *m, &format!("{error:#}")));
            }
            progress.done(expected(&(scenario, variant), settings.quick));
        }
    }
    Ok(notes(&place))
}

/// The scenarios to run: without a choice of the user's, only some where it has to be quick.
fn chosen(settings: &Settings) -> &[&'static str] {
    if settings.quick && settings.scenarios == SCENARIOS { &QUICK } else { &settings.scenarios }
}

/// How long a cell takes, about.
fn expected((scenario, variant): &(&str, &str), is_quick: bool) -> Duration {
    let load = if is_quick { 2 } else { 11 };
    let processes = if *variant == VARIANTS[0] { Beside::of(scenario).count } else { 0 };
    Duration::from_secs(load) + Duration::from_millis(150) * u32::try_from(processes).unwrap_or(0)
}

/// Which healthy volumes are unmounted, one after the other, and how.
fn unmounts(is_quick: bool) -> impl Iterator<Item = (usize, Way)> {
    let count = if is_quick { 4 } else { TURNS * HEALTHY };
    // The next time it is the other way for each.
    let way = |n: usize| if (n + n / HEALTHY).is_multiple_of(2) { Way::Plain } else { Way::Lazy };
    (0..count).map(move |n| (n % HEALTHY, way(n)))
}

/// One scenario with one variant, in one round.
struct Cell<'a> {
    scenario: &'a str,
    variant: &'a str,
    settings: &'a Settings,
    recorder: &'a mut Recorder,
}

impl Cell<'_> {
    fn run(&mut self, program: &Path, place: &Path) -> anyhow::Result<()> {
        let beside = Beside::of(self.scenario);
        let mut rig = Rig::new(program, place, self.variant == VARIANTS[1], beside)?;
        for ms in rig.begin()? {
            self.value(NOTICED, ms);
        }
        rig.are_as_they_were()?;
        let is_quick = self.settings.quick;
        if has(beside.kind, PROCESSOR) {
            let time = Duration::from_millis(if is_quick { 200 } else { 1000 });
            self.value(PROCESSOR, rig.processor(time));
        }
        let maps = has(beside.kind, MAPPED);
        let amount = if is_quick {
            Amount { passes: 1, slice: Duration::from_millis(200), syncs: 2, maps }
        } else {
            Amount { passes: 6, slice: Duration::from_millis(1500), syncs: 20, maps }
        };
        let before = rig.look()?;
        let found = load::measure(&rig.healthy(), amount, &self.settings.stop)?;
        let after = rig.look()?;
        rig.are_as_they_were()?;
        match rig.worked(&before, &after) {
            Work::OfLimit(percent) => self.value(OF_LIMIT, percent),
            Work::Switches(a_second) => self.value(SWITCHES, a_second),
            Work::Nothing => {}
        }
        self.found(&found);
        let uses = rig.uses()?;
        self.value(THREADS, uses.threads);
        self.value(MEMORY, uses.mib);
        for _ in 0..if is_quick { 1 } else { 3 } {
            self.took(STATUS, rig.status()?);
        }
        for (at, way) in unmounts(is_quick) {
            if self.settings.stop.is_set() {
                break;
            }
            let took = rig.umount(at, way)?;
            self.took(if way == Way::Plain { UMOUNT } else { LAZY }, took);
        }
        rig.are_as_they_were()?;
        for at in 0..if has(beside.kind, FORCE) { beside.count.min(FORCED) } else { 0 } {
            self.took(FORCE, rig.force(at)?);
        }
        rig.end()
    }

    fn found(&mut self, found: &Found) {
        for rate in &found.large {
            self.recorder.rate(self.scenario, self.variant, LARGE, *rate);
        }
        let histograms = [
            (WRITE, &found.write),
            (FSYNC, &found.fsync),
            (SYNC, &found.sync),
            (STAT, &found.stat),
            (CREATE, &found.create),
            (MAPPED, &found.mapped),
        ];
        for (metric, took) in histograms.into_iter().filter(|(_, took)| took.count() > 0) {
            self.recorder.operations_ms(self.scenario, self.variant, metric, took);
        }
    }

    fn value(&mut self, metric: Metric, value: f64) {
        self.recorder.value(self.scenario, self.variant, metric, value);
    }

    fn took(&mut self, metric: Metric, took: Duration) {
        self.value(metric, took.as_secs_f64() * 1e3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_compared_with_one_that_is_there() {
        for scenario in SCENARIOS {
            let beside = Beside::of(scenario);
            let control = beside.control();
            assert!(control.as_deref().is_none_or(|control| SCENARIOS.contains(&control)), "{control:?}");
            assert_eq!(beside.count == 0, scenario == ALONE, "{scenario}");
        }
    }

    #[test]
    fn what_is_quick_leaves_out_large_scenarios_unless_they_are_named() {
        let settings = |quick: bool, scenarios: &[&'static str]| Settings {
            quick,
            variants: VARIANTS.to_vec(),
            scenarios: scenarios.to_vec(),
            ..Settings::default()
        };
        assert_eq!(chosen(&settings(false, &SCENARIOS)), SCENARIOS);
        assert_eq!(chosen(&settings(true, &SCENARIOS)), QUICK);
        assert_eq!(chosen(&settings(true, &["stalled-100"])), ["stalled-100"]);
        for name in QUICK {
            let control = Beside::of(name).control();
            assert!(SCENARIOS.contains(&name), "{name}");
            assert!(control.is_none_or(|control| QUICK.contains(&control.as_str())), "{name}");
        }
    }

    #[test]
    fn volumes_are_unmounted_in_both_ways_in_turn_and_none_twice_before_the_others() {
        for (is_quick, of_each) in [(true, 2), (false, 40)] {
            let all: Vec<(usize, Way)> = unmounts(is_quick).collect();
            for way in [Way::Plain, Way::Lazy] {
                assert_eq!(all.iter().filter(|(_, by)| *by == way).count(), of_each);
            }
            assert!(all.iter().enumerate().all(|(n, (at, _))| *at == n % HEALTHY));
        }
        for at in 0..HEALTHY {
            let ways = unmounts(false).filter(|(of, _)| *of == at).map(|(_, way)| way);
            assert_eq!(ways.filter(|way| *way == Way::Lazy).count(), TURNS / 2, "of volume {at}");
        }
    }
}
