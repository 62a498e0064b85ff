//! `many`: what does one more volume cost, among thousands?
//!
//! A mount process for each size, all of them there for the whole run. In each round one volume is attached and detached at each size in turn, so that
//! what the machine does at that moment happens to all. The other volumes are idle.

mod process;

use std::time::{Duration, Instant};

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Metric, Recorder, Shown};
use crate::stats::Histogram;
use process::Crowd;

/// The experiment.
#[derive(Debug)]
pub(crate) struct Many;

const VARIANTS: [&str; 4] = ["10", "100", "1000", "5000"];
const SCENARIOS: [&str; 4] = ["attach", "detach", "status", "idle"];

const TOOK: Metric = Metric { name: "took", unit: "ms", shown: Shown::Both, larger_is_better: false };
const ONE: Metric = Metric { name: "status_one", unit: "ms", shown: Shown::P50, larger_is_better: false };
const ALL: Metric = Metric { name: "status_all", unit: "ms", shown: Shown::P50, larger_is_better: false };
const NEW: Metric = Metric { name: "memory", unit: "KiB", shown: Shown::P50, larger_is_better: false };
const USED: Metric = Metric { name: "memory_used", unit: "KiB", shown: Shown::P50, larger_is_better: false };
const THREADS: Metric = Metric { name: "threads", unit: "", shown: Shown::P50, larger_is_better: false };
const FILES: Metric = Metric { name: "descriptors", unit: "", shown: Shown::P50, larger_is_better: false };

/// How many times all volumes are asked for.
const STATUSES: usize = 20;

impl Experiment for Many {
    fn name(&self) -> &'static str {
        "many"
    }

    fn question(&self) -> &'static str {
        "what does one more volume cost, among thousands?"
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
        let rounds = settings.runs.unwrap_or(if settings.quick { 50 } else { 1000 });
        let wants = |scenario: &str| settings.scenarios.contains(&scenario);
        progress.expect(self.name(), Duration::from_secs(30));
        let mut crowds = Vec::new();
        for &variant in &settings.variants {
            progress.now(&format!("{variant} volumes are attached"));
            let crowd = Crowd::new(settings, variant.parse()?)?;
            if wants("idle") {
                idle(&crowd, variant, recorder)?;
            }
            crowds.push((variant, crowd, [Histogram::default(), Histogram::default()]));
        }
        for round in 0..rounds {
            progress.now(&format!("round {} of {rounds}", round + 1));
            // None is always the first.
            let at = round % crowds.len();
            crowds.rotate_left(at);
            for (_, crowd, [attaching, detaching]) in &mut crowds {
                if settings.stop.is_set() {
                    return Ok(Vec::new());
                }
                let begun = Instant::now();
                crowd.attach_one_more()?;
                attaching.add(begun.elapsed());
                let begun = Instant::now();
                crowd.detach_it()?;
                detaching.add(begun.elapsed());
            }
        }
        crowds.sort_by_key(|(_, crowd, _)| crowd.size());
        for (variant, _, [attaching, detaching]) in &crowds {
            for (scenario, took) in [("attach", attaching), ("detach", detaching)] {
                if wants(scenario) {
                    recorder.operations_ms(scenario, variant, TOOK, took);
                }
            }
        }
        for _ in 0..if wants("status") { STATUSES } else { 0 } {
            for (variant, crowd, _) in &crowds {
                recorder.value("status", variant, ONE, ms(|| crowd.status_of_one())?);
                recorder.value("status", variant, ALL, ms(|| crowd.status_of_all())?);
            }
        }
        let mut notes = vec![
            "Each volume is a directory store of its own, attached inside one mountpoint by the control socket of its one mount process. \
             `status` is the program, its start included. `memory`, `memory_used`: resident memory for each volume, new, and after 4 KiB \
             were written to each (to 1000 at most) and synced. Nothing is durable: the files are in memory."
                .to_owned(),
        ];
        notes.extend(ratios(&crowds));
        for (_, crowd, _) in crowds {
            crowd.stop()?;
        }
        Ok(notes)
    }
}

/// What the idle volumes cost.
fn idle(crowd: &Crowd, variant: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
    let now = crowd.figures()?;
    recorder.value("idle", variant, NEW, crowd.kib_of_each(&now));
    crowd.use_all()?;
    let used = crowd.rested()?;
    recorder.value("idle", variant, USED, crowd.kib_of_each_used(&now, &used));
    recorder.value("idle", variant, THREADS, used.threads);
    recorder.value("idle", variant, FILES, used.descriptors);
    Ok(())
}

fn ms(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// How much longer it takes among most than among fewest.
fn ratios(crowds: &[(&str, Crowd, [Histogram; 2])]) -> Vec<String> {
    let (Some((few, _, least)), Some((many, _, most))) = (crowds.first(), crowds.last()) else {
        return Vec::new();
    };
    let ratio = |at: usize| {
        let of = |histogram: &Histogram| histogram.summary(1e6).map(|summary| (summary.p50, summary.p99));
        let ((few, few_p99), (many, many_p99)) = of(&least[at]).zip(of(&most[at]))?;
        Some(format!("median {:.2}, p99 {:.2}", many / few, many_p99 / few_p99))
    };
    let told =
        |(at, what): (usize, &str)| Some(format!("{what} at {many} to {what} at {few}: {}.", ratio(at)?));
    [(0, "attach"), (1, "detach")].into_iter().filter_map(told).collect()
}
