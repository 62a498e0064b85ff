//! `sync`: which callers wait for which limits?
//!
//! The published experiment twice, with real cgroups and fio's writers on a real mount: with its
//! own sizes, and scaled. In both a cgroup that may write little has much to be written, and a
//! process in another cgroup syncs.

mod admit;
pub(crate) mod client;
mod full_size;
pub(crate) mod kernel;
mod mounted;
mod rig;
mod throttled;

use std::time::Duration;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Metric, Recorder};
use rig::MountDir;

const MIB: u64 = 1 << 20;

const VARIANTS: [&str; 4] = ["boost", "vanilla", "isolated", "unloaded"];
const SCENARIOS: [&str; 23] = [
    "full-size",
    "writers-go-on",
    "isolated-own-alone",
    "isolated-own",
    "own-before-sync",
    "own-after-sync",
    "mounted",
    "mounted-own",
    "idle",
    "steady",
    "whole-run",
    "before-sync",
    "during-sync",
    "after-sync",
    "around-sync",
    "neighbour-alone",
    "neighbour-store",
    "neighbour",
    "admit-1",
    "admit-10",
    "admit-100",
    "admit-300",
    "admit-1000",
];
/// Cgroups with limits.
const ADMIT: [(&str, usize); 5] =
    [("admit-1", 1), ("admit-10", 10), ("admit-100", 100), ("admit-300", 300), ("admit-1000", 1000)];

const fn ms(name: &'static str) -> Metric {
    Metric::new(name, "ms")
}

const SYNC: Metric = ms("sync");
const SYNCFS: Metric = ms("syncfs");
const VERB: Metric = ms("sync_verb");
const FSYNC: Metric = ms("fsync");
const THROTTLED_AGAIN: Metric = ms("throttled_again");
const OF_LIMIT: Metric = Metric::rate("neighbour_of_limit", "%");
const RATE: Metric = Metric::rate("neighbour_mb_per_s", "MiB/s");

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "sync",
    question: "who waits for whom?",
    variants: &VARIANTS,
    scenarios: &SCENARIOS,
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let rounds = settings.runs.unwrap_or(if settings.quick { 1 } else { 3 });
    let wants = |scenario: &str| settings.scenarios.contains(&scenario);
    let each = Duration::from_secs(if settings.quick { 40 } else { 110 });
    progress.expect(EXPERIMENT.name, each * u32::try_from(rounds).unwrap_or(1));
    let mut notes = Vec::new();
    for (scenario, cgroups) in ADMIT.into_iter().filter(|(scenario, _)| wants(scenario)) {
        admit::throttle(scenario, cgroups, recorder)?;
    }
    let dir = match MountDir::new(settings) {
        Ok(dir) => dir,
        Err(why) => {
            notes.push(format!("Nothing was mounted: {why}"));
            return Ok(notes);
        }
    };
    notes.extend(full_size::notes());
    notes.extend(mounted::notes());
    notes.extend(throttled::notes());
    notes.push(admit::NOTE.to_owned());
    notes.push(format!("The store is a directory on {}.", dir.path("store").display()));
    let mut steps = steps(settings, &wants, &dir);
    for round in 0..rounds {
        for (scenario, variant, metric, step) in &mut steps {
            if settings.stop.is_set() {
                return Ok(notes);
            }
            progress.now(&format!("round {} of {rounds}: {scenario} {variant}", round + 1));
            if let Err(error) = step(recorder) {
                recorder.absent(scenario, variant, *metric, &format!("{error:#}"));
            }
        }
        progress.done(each);
    }
    Ok(notes)
}

type Step<'a> =
    (&'static str, &'static str, Metric, Box<dyn FnMut(&mut Recorder) -> anyhow::Result<()> + 'a>);

/// The steps of a round on mounts, in this order.
fn steps<'a>(settings: &Settings, wants: &dyn Fn(&str) -> bool, dir: &'a MountDir) -> Vec<Step<'a>> {
    let is_quick = settings.quick;
    let mut steps: Vec<Step<'a>> = Vec::new();
    let all = || settings.variants.iter().copied();
    for variant in all().filter(|_| wants("full-size")) {
        let mut is_done = variant == "vanilla" && is_quick;
        let run = move |recorder: &mut Recorder| {
            if is_done {
                return Ok(());
            }
            is_done = variant == "vanilla";
            full_size::published(dir, variant, recorder)
        };
        steps.push(("full-size", variant, SYNC, Box::new(run)));
    }
    for variant in all().filter(|_| wants("writers-go-on")) {
        let run = move |recorder: &mut Recorder| full_size::writers_go_on(dir, variant, recorder);
        steps.push(("writers-go-on", variant, SYNCFS, Box::new(run)));
    }
    if wants("isolated-own") && settings.variants.contains(&"isolated") {
        let turns = if is_quick { 2 } else { 6 };
        let run = move |recorder: &mut Recorder| full_size::isolated_own(dir, turns, recorder);
        steps.push(("isolated-own", "isolated", SYNCFS, Box::new(run)));
    }
    if wants("mounted") || wants("idle") {
        for variant in all().filter(|_| wants("mounted")) {
            let run = move |recorder: &mut Recorder| mounted::run(dir, variant, is_quick, recorder);
            steps.push(("mounted", variant, SYNCFS, Box::new(run)));
        }
    }
    if !settings.variants.contains(&"boost") {
        return steps;
    }
    if wants("own-after-sync") {
        let run = move |recorder: &mut Recorder| full_size::own_fsync(dir, recorder);
        steps.push(("own-after-sync", "boost", FSYNC, Box::new(run)));
    }
    for scenario in ["steady", "whole-run"].into_iter().filter(|scenario| wants(scenario)) {
        let run = move |recorder: &mut Recorder| throttled::of_limit(dir, scenario, is_quick, recorder);
        steps.push((scenario, "boost", OF_LIMIT, Box::new(run)));
    }
    if wants("after-sync") {
        let run = move |recorder: &mut Recorder| throttled::around(dir, recorder);
        steps.push(("after-sync", "boost", RATE, Box::new(run)));
    }
    if wants("neighbour") {
        let turns = if is_quick { 2 } else { 4 };
        let run = move |recorder: &mut Recorder| throttled::neighbour(dir, turns, recorder);
        steps.push(("neighbour", "boost", FSYNC, Box::new(run)));
    }
    // Once is enough: each figure is of two thousand writes.
    let mut is_done = false;
    let sizes: Vec<_> = ADMIT.into_iter().filter(|(scenario, _)| wants(scenario)).collect();
    let run = move |recorder: &mut Recorder| {
        for (scenario, count) in sizes.iter().filter(|_| !is_done) {
            admit::write(dir, scenario, *count, true, recorder)?;
            admit::write(dir, scenario, *count, false, recorder)?;
        }
        is_done = true;
        Ok(())
    };
    steps.push(("admit-1000", "boost", admit::WRITE, Box::new(run)));
    steps
}
