//! `objects-stress`: volumes in a bucket under load for hours, on a server with faults: whether a
//! promise is broken, and whether anything is left or grows.
//!
//! Two volumes at a time, behind a [proxy] whose [faults] a seed repeats: of `steady` one process
//! lives as long as the load, so that its memory, descriptors, threads and tasks have a trend; of
//! `restarted` it is unmounted, killed and upgraded again and again. Programs ([worker]) use them,
//! and keep a [model] of what has to be there; [events] says what is done to a volume meanwhile, and
//! compares. At the end `steady` rests, so that its holder collects what is garbage; then both are
//! unmounted, checked and collected, and nothing of them may be left.
//!
//! `tests/servers run SERVER -- lab objects-stress` names the server; without one the bucket is a
//! directory, and there are no faults. A broken promise ends it, and leaves its directory with what
//! the processes have logged.

mod campaign;
mod check;
mod events;
mod faults;
mod figures;
mod model;
mod proxy;
mod results;
mod rig;
mod units;
mod volume;
mod worker;

use std::time::{Duration, Instant};

use super::bucket::Server;
use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::Recorder;
use campaign::Campaign;
use events::Counts;
use faults::Faults;
use proxy::Proxy;
use rig::{Rest, Rig, Sampled};
use volume::Volume;

/// The volumes.
const STEADY: &str = "steady";
const RESTARTED: &str = "restarted";

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "objects-stress",
    question: "does a volume in a bucket keep its promises for hours on a server with faults, and does anything grow?",
    variants: &[STEADY, RESTARTED],
    scenarios: &[results::STRESS],
    campaigns: &[],
    baseline: None,
    run,
};

/// How long it runs, in minutes, and with `--quick`.
const MINUTES: u16 = 120;
const MINUTES_QUICK: u16 = 1;
/// Workers of each volume, and the bytes that each keeps.
const STEADY_WORKERS: (u64, u64) = (4, 60 << 20);
const RESTARTED_WORKERS: (u64, u64) = (3, 30 << 20);
/// How long there is between two samples.
const SAMPLE_EACH: Duration = Duration::from_secs(10);
/// How long the volumes may take to come to their end after the load: the last checks read all.
const END_MAX: Duration = Duration::from_secs(60);

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let scratch = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
    let own = if settings.quick { MINUTES_QUICK } else { MINUTES };
    let (minutes, seed) = (settings.minutes.unwrap_or(own), settings.seed.unwrap_or(1));
    let server = Server::new(scratch.path())?;
    let endpoint = std::env::var("AWS_ENDPOINT_URL").ok().filter(|_| server.endpoint.is_some());
    let proxy = endpoint.map(|endpoint| Proxy::before(&endpoint, Faults::new(seed))).transpose()?;
    let rigs = rigs(settings, (minutes, seed), (&server, proxy.as_ref(), scratch.path()))?;
    let campaign = Campaign::new(settings.stop.clone());
    progress.expect(EXPERIMENT.name, Duration::from_secs(60 * u64::from(minutes)) + END_MAX);
    progress.step(&format!("seed {seed}, {minutes} minutes, in {}", scratch.path().display()));
    let all = watch(&rigs, &campaign, &server, (progress, scratch.path()))?;
    for (rig, (rest, sampled)) in rigs.iter().zip(&all) {
        results::record(rig, rest, sampled, recorder);
    }
    if let Some(proxy) = &proxy {
        results::record_faults(proxy, recorder);
    }
    let failures = campaign.failures();
    if !failures.is_empty() {
        let kept = scratch.keep();
        recorder.breaks(format!("seed {seed}: what was found is in {}", kept.display()));
    }
    failures.into_iter().for_each(|what| recorder.breaks(format!("seed {seed}: {what}")));
    Ok(notes(&server, seed, minutes))
}

/// The volumes that are chosen.
fn rigs(
    settings: &Settings,
    (minutes, seed): (u16, u64),
    (server, proxy, scratch): (&Server, Option<&Proxy>, &std::path::Path),
) -> anyhow::Result<Vec<Rig>> {
    let program = crate::volumes::ours::program(settings).map_err(anyhow::Error::msg)?;
    let whole = Duration::from_secs(60 * u64::from(minutes));
    let pause = (whole / 48).clamp(Duration::from_secs(4), Duration::from_secs(150));
    let mut rigs = Vec::new();
    for (name, (workers, budget), events) in [
        (STEADY, STEADY_WORKERS, &events::OF_ONE_PROCESS),
        (RESTARTED, RESTARTED_WORKERS, &events::OF_MANY_PROCESSES),
    ] {
        if !settings.variants.contains(&name) {
            continue;
        }
        let place = (server.url(name), proxy.map(Proxy::endpoint));
        let volume = Volume::new(name, place, (&program, scratch), (workers, budget, seed))?;
        let load = if name == STEADY { load_of(whole) } else { whole };
        rigs.push(Rig { volume, counts: Counts::default(), events, load, whole, pause, seed });
    }
    Ok(rigs)
}

/// How long there is load where the volume rests at the end: for longer than garbage waits for its
/// removal, if there is as much time.
fn load_of(whole: Duration) -> Duration {
    if whole > results::RESTED * 2 { whole - results::RESTED } else { whole - whole / 4 }
}

/// Runs all, and samples them meanwhile.
fn watch(
    rigs: &[Rig],
    campaign: &Campaign,
    server: &Server,
    (progress, scratch): (&Progress, &std::path::Path),
) -> anyhow::Result<Vec<(Rest, Sampled)>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = rigs
            .iter()
            .map(|rig| {
                Ok(scope.spawn({
                    let server = Server::new(scratch)?;
                    move || rig.run(campaign, server)
                }))
            })
            .collect::<anyhow::Result<_>>()?;
        let mut sampled: Vec<Sampled> = rigs.iter().map(|_| Sampled::default()).collect();
        let mut next = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            // A thread's end is seen in time for the next sample.
            std::thread::sleep(Duration::from_millis(200));
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + SAMPLE_EACH;
            for (rig, sampled) in rigs.iter().zip(&mut sampled) {
                rig.look(campaign, server, sampled);
            }
            progress.now(&format!("{} s", campaign.elapsed().as_secs()));
        }
        let rests = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("the thread of a volume panicked")));
        rests.zip(sampled).map(|(rest, sampled)| Ok((rest?, sampled))).collect()
    })
}

fn notes(server: &Server, seed: u64, minutes: u16) -> Vec<String> {
    let whole = Duration::from_secs(60 * u64::from(minutes));
    vec![
        format!("bucket: {}", server.shown()),
        format!(
            "seed {seed}, {minutes} minutes, of which `steady` rests for the last {}",
            (whole - load_of(whole)).as_secs() / 60
        ),
        "minute-N: medians of the minutes until N; memory, descriptors, threads and tasks of the mount \
         process; stored: bytes in the bucket, needed: of files and snapshots, what several share once"
            .to_owned(),
        "growth_…: of a line through means of 5 minutes, over the second half of the load, with twice its \
         standard error"
            .to_owned(),
    ]
}
