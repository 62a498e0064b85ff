//! A bucket that is ill, beside one that is well: two volumes of one process.
//!
//! The neighbour writes and syncs in slices, in turn while the other volume rests on a bucket that
//! is well, and while that is written and its bucket is ill. Between two slices the bucket is
//! healed, and everything has to go on by itself. In the end another client looks what there is.

mod own;
mod toxiproxy;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::bucket::Server;
use super::delay::Line;
use super::fsyncs::synced_block;
use super::missing::{Expected, MISSING};
use super::subject::Subject;
use crate::experiment::Settings;
use crate::progress::Progress;
use crate::random::Random;
use crate::report::{Metric, Recorder};
use crate::stats::Histogram;
use own::{Fault, Own};
use toxiproxy::{Toxic, Toxiproxy};

#[derive(Debug, Clone, Copy)]
enum Illness {
    Own(Fault),
    Toxic(Toxic),
}

const ILLNESSES: [(&str, Illness); 13] = [
    ("ill-429", Illness::Own(Fault::Status("429 Too Many Requests"))),
    ("ill-500", Illness::Own(Fault::Status("500 Internal Server Error"))),
    ("ill-503", Illness::Own(Fault::Status("503 Slow Down"))),
    ("ill-half", Illness::Own(Fault::Half)),
    ("ill-hangs", Illness::Own(Fault::Hangs)),
    ("ill-closes", Illness::Own(Fault::Closes)),
    ("ill-latency", Illness::Toxic(Toxic::Latency)),
    ("ill-bandwidth", Illness::Toxic(Toxic::Bandwidth)),
    ("ill-slow-close", Illness::Toxic(Toxic::SlowClose)),
    ("ill-timeout", Illness::Toxic(Toxic::Timeout)),
    ("ill-reset-peer", Illness::Toxic(Toxic::ResetPeer)),
    ("ill-slicer", Illness::Toxic(Toxic::Slicer)),
    ("ill-limit-data", Illness::Toxic(Toxic::LimitData)),
];
pub(super) const SCENARIOS: [&str; ILLNESSES.len()] = {
    let mut names = [""; ILLNESSES.len()];
    let mut number = 0;
    while number < names.len() {
        names[number] = ILLNESSES[number].0;
        number += 1;
    }
    names
};

const ALONE_US: Metric = Metric::new("alone", "us");
const BESIDE_US: Metric = Metric::new("beside", "us");
const P50: Metric = Metric::new("beside_per_alone_p50", "");
const P95: Metric = Metric::new("beside_per_alone_p95", "");
const GOES_ON_MS: Metric = Metric::new("healed_to_synced", "ms");

const VARIANT: &str = "default";
const SLICES: usize = 5;
const SLICE: Duration = Duration::from_secs(1);
/// What is written to the volume whose bucket is ill, in each slice; and by how many threads.
const WRITTEN: usize = 4 << 20;
const WRITERS: usize = 2;

/// Runs the chosen scenarios once.
///
/// # Errors
/// Never: one that cannot be measured is a row that says why.
pub(super) fn measure(
    settings: &Settings,
    chosen: (&Path, &Server, &Path),
    round: usize,
    progress: &Progress,
    recorder: &mut Recorder,
) {
    let is_chosen =
        |name: &&'static str| settings.variants.contains(&VARIANT) && settings.scenarios.contains(name);
    for (scenario, illness) in ILLNESSES.into_iter().filter(|(name, _)| is_chosen(name)) {
        if settings.stop.is_set() {
            return;
        }
        progress.now(scenario);
        let name = format!("{scenario}-{round}");
        if let Err(error) = one(scenario, illness, chosen, &name, recorder) {
            recorder.absent(scenario, VARIANT, BESIDE_US, &format!("{error:#}"));
        }
    }
}

/// What stands before the server, and can make it ill.
enum Front {
    Own(Own, Fault),
    Toxiproxy(Toxiproxy, Toxic),
}

impl Front {
    fn new(illness: Illness, line: &Line, log: &Path) -> anyhow::Result<Self> {
        Ok(match illness {
            Illness::Own(fault) => Self::Own(Own::before(line.address)?, fault),
            Illness::Toxic(toxic) => Self::Toxiproxy(Toxiproxy::before(line.address, log)?, toxic),
        })
    }

    fn line(&self) -> Line {
        match self {
            Self::Own(own, _) => Line::at(own.address),
            Self::Toxiproxy(proxy, _) => Line::at(proxy.address),
        }
    }

    fn fail(&self) -> anyhow::Result<()> {
        match self {
            Self::Own(own, fault) => own.fail(Some(*fault)),
            Self::Toxiproxy(proxy, toxic) => proxy.add(*toxic)?,
        }
        Ok(())
    }

    fn heal(&self) -> anyhow::Result<()> {
        match self {
            Self::Own(own, _) => own.fail(None),
            Self::Toxiproxy(proxy, _) => proxy.remove()?,
        }
        Ok(())
    }
}

fn one(
    scenario: &str,
    illness: Illness,
    (program, server, scratch): (&Path, &Server, &Path),
    name: &str,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let mut subject = Subject::ours(program, server, scratch, name)?;
    let line = subject.line.take().context("not run: it needs a server")?;
    let front = Front::new(illness, &line, &subject.directory.join("front.log"))?;
    subject.line = Some(front.line());
    let mounted = subject.mount()?;
    fs::create_dir(mounted.path().join("beside"))?;
    let bucket = subject.directory.join("bucket");
    fs::create_dir(&bucket)?;
    let well = format!("file://{}/volume", bucket.display());
    subject.run(&["format", &well])?;
    mounted.attach("beside", &well)?;
    let file = File::create(mounted.path().join("beside/file"))?;
    let tree = subject.directory.join("tree");
    fs::create_dir(&tree)?;
    let (mut alone, mut beside, mut number) = (Histogram::default(), Histogram::default(), 0);
    for slice in 0..SLICES {
        sync_for(SLICE, &file, &mut number, &mut alone)?;
        let written = make_files(&tree, slice)?;
        front.fail()?;
        let took = thread::scope(|scope| {
            let writers = written.iter().map(|(name, data)| {
                let at = mounted.path().join(name);
                scope.spawn(move || write_synced(&at, data))
            });
            let writers: Vec<_> = writers.collect();
            let synced = sync_for(SLICE, &file, &mut number, &mut beside);
            // Healed before anything is returned: the writers would wait for ever.
            front.heal()?;
            let healed = Instant::now();
            let all = writers.into_iter().try_for_each(|writer| writer.join().expect("it does not panic"));
            all.and(synced).map(|()| healed.elapsed())
        })?;
        recorder.value(scenario, VARIANT, GOES_ON_MS, took.as_secs_f64() * 1000.0);
    }
    drop(file);
    mounted.umount()?.end()?;
    subject.line = Some(line);
    let missing = subject.find(&Expected::tree(&tree)?, (server, name))?.missing;
    recorder.value(scenario, VARIANT, MISSING, missing as f64);
    record(scenario, (&alone, &beside), recorder)
}

fn record(
    scenario: &str,
    (alone, beside): (&Histogram, &Histogram),
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    recorder.operations_us(scenario, VARIANT, ALONE_US, alone);
    recorder.operations_us(scenario, VARIANT, BESIDE_US, beside);
    let summaries = alone.summary(1.0).zip(beside.summary(1.0));
    let (alone, beside) = summaries.context("the neighbour has not synced anything")?;
    recorder.value(scenario, VARIANT, P50, beside.p50 / alone.p50);
    recorder.value(scenario, VARIANT, P95, beside.p95 / alone.p95);
    let note = "fsyncs of a neighbour in the same process, whose bucket is well: beside a volume that is \
                written while its bucket is ill, and alone, in turn";
    recorder.note(scenario, VARIANT, note);
    Ok(())
}

fn sync_for(time: Duration, file: &File, number: &mut u64, took: &mut Histogram) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        // In a ring, so that the file does not grow with the speed of this machine.
        synced_block(file, *number % 1024, took)?;
        *number += 1;
    }
    Ok(())
}

/// Files of a slice, by their names, as another client has to find them in the end.
fn make_files(tree: &Path, slice: usize) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let file = |writer: usize| {
        let name = format!("file-{slice}-{writer}");
        let mut data = vec![0; WRITTEN];
        Random::new((slice * WRITERS + writer) as u64).fill(&mut data);
        fs::write(tree.join(&name), &data)?;
        Ok((name, data))
    };
    (0..WRITERS).map(file).collect()
}

fn write_synced(at: &Path, data: &[u8]) -> anyhow::Result<()> {
    let mut file = File::create(at)?;
    file.write_all(data)?;
    file.sync_all()?;
    Ok(())
}
