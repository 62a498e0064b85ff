//! `sync`: who waits for whom?
//!
//! The published experiment twice: in the engine alone, by a clock that is set, with its own sizes; and scaled, with real cgroups and fio's
//! writers on a real mount. In both a cgroup that may write little has much to be written, and somebody in another cgroup syncs.

#[allow(dead_code, reason = "the tests of writeback use the rest")]
mod model;
mod mounted;

use std::time::{Duration, Instant};

use sync::{Clock, RealClock};
use writeback::{Admission, Direction, Owner, Policy, Request, Throttle};

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Metric, Recorder, Shown};
use model::Model;
use mounted::Mounted;

/// The experiment.
#[derive(Debug)]
pub(crate) struct Sync;

const MIB: u64 = 1 << 20;
/// What the published device took in a second, as its boosted syncs show.
const STORE: u64 = 256 * MIB;
const WRITERS: u64 = 16;
const WRITER: u64 = 32 * MIB;

const VARIANTS: [&str; 4] = ["boost", "vanilla", "isolated", "unloaded"];
const SCENARIOS: [&str; 8] =
    ["simulated", "own-cgroup", "idle", "mounted", "neighbour-alone", "neighbour", "admit-1", "admit-1000"];

pub(crate) const SYNC: Metric =
    Metric { name: "sync", unit: "ms", shown: Shown::P50, larger_is_better: false };
pub(crate) const FSYNC: Metric =
    Metric { name: "fsync", unit: "ms", shown: Shown::P50, larger_is_better: false };
pub(crate) const OF_LIMIT: Metric =
    Metric { name: "neighbour_of_limit", unit: "%", shown: Shown::P50, larger_is_better: true };
const ADMIT: Metric = Metric { name: "admit", unit: "ns", shown: Shown::P50, larger_is_better: false };

/// Admissions in one sample.
const ADMISSIONS: u32 = 100_000;

impl Experiment for Sync {
    fn name(&self) -> &'static str {
        "sync"
    }

    fn question(&self) -> &'static str {
        "who waits for whom?"
    }

    fn variants(&self) -> &'static [&'static str] {
        &VARIANTS
    }

    fn scenarios(&self) -> &'static [&'static str] {
        &SCENARIOS
    }

    fn run(
        &self,
        settings: &Settings,
        progress: &Progress,
        recorder: &mut Recorder,
    ) -> anyhow::Result<Vec<String>> {
        let rounds = settings.runs.unwrap_or(if settings.quick { 1 } else { 3 });
        let wants = |scenario: &str| settings.scenarios.contains(&scenario);
        let each = Duration::from_secs(12);
        progress.expect(self.name(), each * u32::try_from(rounds * settings.variants.len()).unwrap_or(1));
        let mut notes = vec![format!(
            "`simulated`: {WRITERS} files of {} MiB, 1 MiB/s, a store of {} MiB/s, by a clock that is set; `own-cgroup`: the sync is the \
             limited cgroup's own.",
            WRITER / MIB,
            STORE / MIB
        )];
        let mounted = Mounted::new(settings);
        match &mounted {
            Ok(mounted) => notes.extend(mounted.notes()),
            Err(why) => notes.push(format!("Nothing was mounted: {why}")),
        }
        for round in 0..rounds {
            for variant in &settings.variants {
                if settings.stop.is_set() {
                    return Ok(notes);
                }
                progress.now(&format!("round {} of {rounds}: {variant}", round + 1));
                if round == 0 {
                    simulate(variant, &wants, recorder);
                }
                if let Ok(mounted) = &mounted
                    && wants("mounted")
                    && let Err(error) = mounted.run(variant, recorder)
                {
                    recorder.absent("mounted", variant, SYNC, &format!("{error:#}"));
                }
                progress.done(each);
            }
            if let Ok(mounted) = &mounted
                && wants("neighbour")
                && let Err(error) = mounted.neighbour(recorder)
            {
                recorder.absent("neighbour", "boost", FSYNC, &format!("{error:#}"));
            }
        }
        for (scenario, cgroups) in [("admit-1", 1), ("admit-1000", 1000)] {
            if wants(scenario) {
                (0..20).for_each(|_| recorder.value(scenario, "boost", ADMIT, admit(cgroups)));
            }
        }
        Ok(notes)
    }
}

/// The published sizes, by a clock that is set.
fn simulate(variant: &str, wants: &dyn Fn(&str) -> bool, recorder: &mut Recorder) {
    let policy = match variant {
        "vanilla" => Policy::Vanilla,
        "isolated" => Policy::Isolated,
        _ => Policy::Boost,
    };
    for (scenario, caller) in [("simulated", "/other"), ("own-cgroup", "/slow")] {
        if !wants(scenario) {
            continue;
        }
        let model = Model::new(STORE);
        let slow = model.cgroup(1, Owner::ROOT, "slow");
        model.cgroup(2, Owner::ROOT, "other");
        // `unloaded`: what the store needs for that data by itself.
        if variant != "unloaded" {
            model.limit("/slow", "wbps=1M");
        }
        let files: Vec<_> = (0..WRITERS).map(|_| model.file(slow, WRITER)).collect();
        let took = model.sync(caller, policy);
        recorder.value(scenario, variant, SYNC, took.as_secs_f64() * 1e3);
        drop(files);
    }
}

/// Nanoseconds to admit one write with so many limited cgroups, in turn.
fn admit(cgroups: u64) -> f64 {
    let clock: std::sync::Arc<dyn Clock> = std::sync::Arc::new(RealClock::default());
    let throttle = Throttle::new(clock);
    let paths: Vec<_> = (0..cgroups).map(|number| model::at(&format!("/tenants/{number}"))).collect();
    // So much that it never stops anybody: each admission is the whole arithmetic.
    let limits = "wbps=1000000G wiops=1000000G".parse().unwrap_or_default();
    paths.iter().for_each(|path| throttle.set(path, limits));
    let chains: Vec<_> = paths.iter().map(|path| throttle.chain(path)).collect();
    let request =
        Request { direction: Direction::Write, bytes: 4096, operations: 1, epoch: u64::MAX, inode: 0 };
    let begun = Instant::now();
    let mut chains = chains.iter().cycle();
    for _ in 0..ADMISSIONS {
        if let Some(chain) = chains.next() {
            assert_eq!(throttle.try_admit(chain, &request), Admission::Now, "the limit is far away");
        }
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(ADMISSIONS)
}
