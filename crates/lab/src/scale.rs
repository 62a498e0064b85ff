//! `many`: what does one more volume cost, among thousands?
//!
//! A mount process for each size, all of them there for the whole run. In each round one volume is
//! attached and detached at each size in turn, so that changes of the machine's load affect all;
//! the turns are in another order each time, so that none comes always after one and the same. The
//! other volumes are idle. Before that `watertight serve` is run with as many volumes, one size at
//! a time.

mod process;
mod served;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Metric, Recorder, Shown};
use crate::stats::Histogram;
use crate::volumes::ours::program;
pub(crate) use process::{How, Rig};
use served::Served;

/// The program, and the directories of a mountpoint and of so many volumes, and one more.
struct Prepared {
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl Prepared {
    fn new(settings: &Settings, size: usize) -> anyhow::Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "needs root");
        let program = program(settings).map_err(anyhow::Error::msg)?;
        let place = settings.source.clone().unwrap_or_else(|| PathBuf::from("/dev/shm"));
        let directory = tempfile::Builder::new().prefix("watertight-lab.").tempdir_in(place)?;
        let at = |name: &str| directory.path().join(name);
        for name in ["root", "mnt", "stores"] {
            fs::create_dir(at(name))?;
        }
        for number in 0..=size {
            fs::create_dir(at(&format!("root/{number}")))?;
            fs::create_dir(at(&format!("stores/{number}")))?;
        }
        Ok(Self { program, directory })
    }
}

const VARIANTS: [&str; 4] = ["10", "100", "1000", "5000"];
const SCENARIOS: [&str; 8] =
    ["attach", "detach", "status", "idle", "serve", "reload", "reload-detach", "stop"];
/// Those of `watertight serve`.
const OF_SERVE: &[&str] = &["serve", "reload", "reload-detach", "stop"];

const TOOK: Metric = Metric::new("took", "ms").shown(Shown::Both);
const ONE: Metric = Metric::new("status_one", "ms");
const ALL: Metric = Metric::new("status_all", "ms");
const NEW: Metric = Metric::new("memory", "KiB");
const USED: Metric = Metric::new("memory_used", "KiB");
const THREADS: Metric = Metric::new("threads", "");
const FILES: Metric = Metric::new("descriptors", "");

/// Fewer volumes than these take less memory than the process itself gives back and takes
/// meanwhile.
const SEEN_IN_MEMORY: usize = 1000;
/// How many times the status of all volumes is fetched.
const STATUSES: usize = 20;
/// How many times `serve` is run, and how many reloads there are in each.
const SERVED: usize = 5;
const RELOADS: usize = 4;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "many",
    question: "what does one more volume cost, among thousands?",
    variants: &VARIANTS,
    scenarios: &SCENARIOS,
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let rounds = settings.runs.unwrap_or(if settings.quick { 50 } else { 1000 });
    let wants = |scenario: &str| settings.scenarios.contains(&scenario);
    progress.expect(EXPERIMENT.name, Duration::from_secs(60));
    if OF_SERVE.iter().any(|scenario| wants(scenario)) {
        serve(settings, progress, recorder)?;
    }
    if settings.stop.is_set() || !SCENARIOS.iter().any(|one| wants(one) && !OF_SERVE.contains(one)) {
        return Ok(vec![SERVE_NOTE.to_owned()]);
    }
    let mut rigs = Vec::new();
    for &variant in &settings.variants {
        progress.now(&format!("{variant} volumes are attached"));
        let rig = Rig::new(settings, variant.parse()?)?;
        if wants("idle") {
            idle(&rig, variant, recorder)?;
        }
        rigs.push((variant, rig, [Histogram::default(), Histogram::default()]));
    }
    for round in 0..rounds {
        progress.now(&format!("round {} of {rounds}", round + 1));
        in_another_order(&mut rigs, round);
        for (_, rig, [attaching, detaching]) in &mut rigs {
            if settings.stop.is_set() {
                return Ok(Vec::new());
            }
            let begun = Instant::now();
            rig.attach_one_more()?;
            attaching.add(begun.elapsed());
            let begun = Instant::now();
            rig.detach_it(How::Plain)?;
            detaching.add(begun.elapsed());
        }
    }
    rigs.sort_by_key(|(_, rig, _)| rig.size());
    for (variant, _, [attaching, detaching]) in &rigs {
        for (scenario, took) in [("attach", attaching), ("detach", detaching)] {
            if wants(scenario) {
                recorder.operations_ms(scenario, variant, TOOK, took);
            }
        }
    }
    for _ in 0..if wants("status") { STATUSES } else { 0 } {
        for (variant, rig, _) in &rigs {
            recorder.value("status", variant, ONE, ms(|| rig.status_of_one())?);
            recorder.value("status", variant, ALL, ms(|| rig.status_of_all())?);
        }
    }
    let mut notes = vec![
        "Each volume is a directory store of its own, attached inside one mountpoint by the control socket of its one mount process. \
         `status` is the program, its start included. `memory`, `memory_used`: resident memory for each volume, new, and after 4 KiB \
         were written to each (to 1000 at most) and synced. Nothing is durable: the files are in memory."
            .to_owned(),
    ];
    notes.push(SERVE_NOTE.to_owned());
    notes.extend(ratios(&rigs));
    for (_, rig, _) in rigs {
        rig.stop()?;
    }
    Ok(notes)
}

const SERVE_NOTE: &str = "`serve`: from the start of `watertight serve` with a file of so many volumes inside one mountpoint until it says that all are \
    attached; `reload`, `reload-detach`: from SIGHUP, with one volume more in the file or that one less, until it is seen or gone; `stop`: from SIGTERM \
    until it has ended, with all of them unmounted.";

/// Runs `watertight serve`, the sizes in turn.
fn serve(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for &variant in &settings.variants {
        all.push((variant, Served::new(settings, variant.parse()?)?));
    }
    for round in 0..if settings.quick { 1 } else { SERVED } {
        in_another_order(&mut all, round);
        for (variant, served) in &mut all {
            if settings.stop.is_set() {
                return Ok(());
            }
            progress.now(&format!("{variant} volumes are served"));
            let mut took = |scenario: &'static str, took: Duration| {
                if settings.scenarios.contains(&scenario) {
                    recorder.value(scenario, variant, TOOK, took.as_secs_f64() * 1e3);
                }
            };
            took("serve", served.start()?);
            for _ in 0..RELOADS {
                took("reload", served.reload_with_one_more()?);
                took("reload-detach", served.reload_without_it()?);
            }
            took("stop", served.stop()?);
        }
    }
    Ok(())
}

/// Turns them, so that none is always the first; and reverses the direction, so that none comes
/// always after one and the same.
fn in_another_order<T>(all: &mut [T], round: usize) {
    all.rotate_left(1);
    if round.is_multiple_of(all.len()) {
        all.reverse();
    }
}

/// The cost of the idle volumes.
fn idle(rig: &Rig, variant: &str, recorder: &mut Recorder) -> anyhow::Result<()> {
    let now = rig.figures()?;
    rig.use_all()?;
    let used = rig.rested()?;
    for (metric, each) in [(NEW, rig.kib_of_each(&now)), (USED, rig.kib_of_each_used(&now, &used))] {
        if rig.size() < SEEN_IN_MEMORY {
            recorder.absent("idle", variant, metric, "so few are not seen in what the process has");
        } else {
            recorder.value("idle", variant, metric, each);
        }
    }
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
fn ratios(rigs: &[(&str, Rig, [Histogram; 2])]) -> Vec<String> {
    let (Some((few, _, least)), Some((many, _, most))) = (rigs.first(), rigs.last()) else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_after_each_other_one() {
        let mut all = [0, 1, 2, 3];
        let (mut firsts, mut pairs) = ([0; 4], [[0; 4]; 4]);
        for round in 0..400 {
            in_another_order(&mut all, round);
            firsts[all[0]] += 1;
            for pair in all.windows(2) {
                pairs[pair[0]][pair[1]] += 1;
            }
        }
        assert!(firsts.iter().all(|&n| n >= 50), "{firsts:?}");
        // The largest and the smallest are beside each other both ways round.
        assert!(pairs[0][3] >= 50 && pairs[3][0] >= 50, "{pairs:?}");
    }
}
