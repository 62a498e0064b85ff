//! `objects-cost`: the requests of each operation, beside what [`model`] predicts.
//!
//! Each operation is done on a mount of its own bucket, and the requests are those that the process
//! of the volume counts. No time is measured, so that also a build without optimization gives the
//! figures. `docs/design/objects-cost.md` has them ([`page`]), and what they cost.

mod model;
pub(crate) mod page;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::bucket::Server;
use super::requests::Requests;
use super::subject::{Mounted, Subject};
use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::random::Random;
use crate::report::{Metric, Recorder};
use model::Operation;

/// Requests of each kind: by the volume's process, and by the model.
const GETS: [Metric; 2] = [Metric::new("gets", ""), Metric::new("gets_predicted", "")];
const PUTS: [Metric; 2] = [Metric::new("puts", ""), Metric::new("puts_predicted", "")];
const LISTS: [Metric; 2] = [Metric::new("lists", ""), Metric::new("lists_predicted", "")];
const DELETES: [Metric; 2] = [Metric::new("deletes", ""), Metric::new("deletes_predicted", "")];

const VARIANT: &str = "default";
/// How long an idle volume is watched: so many questions for its lease that one more or less is
/// seen.
const IDLE: Duration = Duration::from_secs(60);
/// What was written and not asked for is on its way after 5 s: a volume that has rested so long
/// sends nothing on its own.
const REST: Duration = Duration::from_secs(7);

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "objects-cost",
    question: "how many requests does each operation on a volume in a bucket send?",
    variants: &[VARIANT],
    scenarios: &Operation::NAMES,
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let program = crate::volumes::ours::program(settings).map_err(anyhow::Error::msg)?;
    let scratch = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
    let server = Server::new(scratch.path())?;
    let rounds = settings.runs.unwrap_or(1);
    progress.expect(EXPERIMENT.name, Duration::from_secs(150 * rounds as u64));
    for round in 0..rounds {
        if settings.stop.is_set() {
            break;
        }
        let subject =
            |name: &str| Subject::unmade(&program, &server, scratch.path(), &format!("{name}-{round}"));
        let mut counted = |operation: Operation, sent: Requests, took: Duration| {
            progress.now(operation.name());
            if settings.scenarios.contains(&operation.name()) {
                record(recorder, operation, sent, took);
            }
        };
        used(&subject("cost")?, &server.url(&format!("clone-{round}")), &mut counted)?;
        collected(&subject("garbage")?, &mut counted)?;
    }
    Ok(vec![
        format!("bucket: {}", server.shown()),
        "requests: those that the process of the volume counts, attempts that failed included".to_owned(),
        "predicted: by the formulas of docs/design/objects-cost.md".to_owned(),
    ])
}

fn record(recorder: &mut Recorder, operation: Operation, sent: Requests, took: Duration) {
    let predicted = operation.predicted(took);
    for (metrics, of) in [
        (PUTS, (|sent| sent.puts) as fn(Requests) -> u64),
        (GETS, |sent| sent.gets),
        (LISTS, |sent| sent.lists),
        (DELETES, |sent| sent.deletes),
    ] {
        for (metric, requests) in metrics.into_iter().zip([sent, predicted]) {
            recorder.value(operation.name(), VARIANT, metric, of(requests) as f64);
        }
    }
}

/// Takes the requests of an operation, and its time, which some formulas need.
type Counted<'a> = &'a mut dyn FnMut(Operation, Requests, Duration);

/// Counts what a mounted volume sends meanwhile.
fn count(
    (mounted, counted): (&Mounted, Counted<'_>),
    operation: Operation,
    work: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (before, begun) = (mounted.requests_so_far()?, Instant::now());
    work(mounted.path())?;
    let took = begun.elapsed();
    counted(operation, mounted.requests_so_far()? - before, took);
    Ok(())
}

/// As [`count`], and waits until nothing of it could be counted with what follows.
fn count_write(
    (mounted, counted): (&Mounted, Counted<'_>),
    operation: Operation,
    work: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    count((mounted, counted), operation, work)?;
    std::thread::sleep(REST);
    Ok(())
}

/// What the program says in the end.
const UNSAID: &str = "the program did not log its requests";

/// Makes a volume, and does everything with it but what leaves garbage.
fn used(subject: &Subject, clone: &str, counted: Counted<'_>) -> anyhow::Result<()> {
    counted(Operation::Format, subject.run(&["format", subject.url()])?.context(UNSAID)?, Duration::ZERO);
    let mounted = subject.mount()?;
    counted(Operation::FirstMount, mounted.requests_so_far()?, Duration::ZERO);
    let m = &mounted;
    count_write((m, counted), Operation::Fsyncs, |at| fsyncs(&at.join("synced")))?;
    count_write((m, counted), Operation::WriteSmaller, |at| write(&at.join("smaller"), model::SMALLER))?;
    count_write((m, counted), Operation::WriteLarger, |at| write(&at.join("larger"), model::LARGER))?;
    count_write((m, counted), Operation::CreateFewer, |at| create(&at.join("fewer"), model::FEWER))?;
    count_write((m, counted), Operation::CreateMore, |at| create(&at.join("more"), model::MORE))?;
    let before = mounted.requests_so_far()?;
    let (_, sent) = mounted.unmount_and_count()?;
    counted(Operation::Umount, sent.context(UNSAID)? - before, Duration::ZERO);

    let mounted = subject.mount()?;
    counted(Operation::Mount, mounted.requests_so_far()?, Duration::ZERO);
    let m = &mounted;
    count((m, counted), Operation::List, |at| names(&at.join("fewer")).map(drop))?;
    count((m, counted), Operation::Stat, |at| {
        names(&at.join("fewer"))?.iter().try_for_each(|file| Ok(fs::metadata(file).map(drop)?))
    })?;
    count((m, counted), Operation::ReadSmall, |at| {
        names(&at.join("fewer"))?.iter().try_for_each(|file| Ok(fs::read(file).map(drop)?))
    })?;
    count((m, counted), Operation::ReadLarge, |at| read(&at.join("smaller")))?;
    count((m, counted), Operation::Idle, |_| {
        std::thread::sleep(IDLE);
        Ok(())
    })?;
    count((m, counted), Operation::Snapshot, |at| {
        subject.run(&["snapshot", "create", &at.display().to_string(), "one"]).map(drop)
    })?;
    let cloned = subject.run(&["clone-volume", subject.url(), "one", clone])?;
    counted(Operation::Clone, cloned.context(UNSAID)?, Duration::ZERO);

    fs::write(mounted.path().join("last"), "synced")?;
    rustix::fs::syncfs(File::open(mounted.path())?).context("syncfs")?;
    mounted.suspend()?;
    let taken = subject.take_over();
    // Before anything fails: what looks at the mount of a stopped process waits for it.
    mounted.kill()?;
    let taken = taken?;
    counted(Operation::Takeover, taken.requests_so_far()?, Duration::ZERO);
    taken.unmount()
}

/// Makes a volume half of whose data is garbage, and collects that.
fn collected(subject: &Subject, counted: Counted<'_>) -> anyhow::Result<()> {
    subject.run(&["format", subject.url()])?;
    let mounted = subject.mount()?;
    for _ in 0..2 {
        write(&mounted.path().join("file"), model::SMALLER)?;
    }
    mounted.unmount_and_count()?;
    let sent = subject.run(&["gc", subject.url()])?;
    counted(Operation::Gc, sent.context(UNSAID)?, Duration::ZERO);
    Ok(())
}

fn fsyncs(path: &Path) -> anyhow::Result<()> {
    let file = File::create(path)?;
    for number in 0..model::SYNCS {
        file.write_all_at(&noise(4096, number), number * 4096)?;
        file.sync_all()?;
    }
    Ok(())
}

/// Writes a file in sequence, and syncs it once.
fn write(path: &Path, len: u64) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    for number in 0..len >> 20 {
        file.write_all(&noise(1 << 20, number))?;
    }
    file.sync_all()?;
    Ok(())
}

/// Makes small files, and syncs once.
fn create(directory: &Path, files: u64) -> anyhow::Result<()> {
    fs::create_dir(directory)?;
    for number in 0..files {
        fs::write(directory.join(format!("file-{number}")), noise(model::SMALL, number))?;
    }
    rustix::fs::syncfs(File::open(directory)?).context("syncfs")
}

fn names(directory: &Path) -> anyhow::Result<Vec<std::path::PathBuf>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
}

fn read(path: &Path) -> anyhow::Result<()> {
    let (mut file, mut block) = (File::open(path)?, vec![0; 1 << 20]);
    while file.read(&mut block)? > 0 {}
    Ok(())
}

/// Bytes that no program makes smaller.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}
