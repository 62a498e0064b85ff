//! `objects`: a volume in a bucket, in units of the server's own requests.
//!
//! `tests/servers run SERVER -- lab objects` names the server, by `WATERTIGHT_TEST_URL` and the
//! variables that every AWS tool reads. Without a server the bucket is a directory. Each round
//! makes a new volume. The variant `server` is the bucket itself: the same client sends it a
//! conditional PUT after each fsync that it is compared with.

mod bucket;
pub(crate) mod cost;
mod delay;
mod fsyncs;
mod growth;
mod idle;
mod reach;
mod requests;
pub(crate) mod stress;
mod subject;
mod variants;

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Metric, Recorder};
use bucket::Server;
use fsyncs::{TOOK_US, fsyncs, synced_blocks};
use growth::{PUTS, REQUESTS, UMOUNT_MS};
use subject::Subject;
use variants::{VARIANTS, is_mounted, mount_of};

const FSYNC: &str = "fsync-4k";
const UNTAR: &str = "untar-1000";
const LARGE: &str = "untar-128M";

const TOOK_MS: Metric = Metric::new("until_unmounted", "ms");
const MISSING: Metric = Metric::new("bytes_missing", "B");

const OWN: [&str; 10] = [
    FSYNC,
    UNTAR,
    LARGE,
    growth::SIZES[0].0,
    growth::SIZES[1].0,
    growth::SIZES[2].0,
    growth::OVERWRITE,
    idle::SIZES[0].0,
    idle::SIZES[1].0,
    idle::SIZES[2].0,
];
const SCENARIOS: [&str; OWN.len() + reach::SCENARIOS.len()] = {
    let mut all = [""; OWN.len() + reach::SCENARIOS.len()];
    let (own, reach) = all.split_at_mut(OWN.len());
    own.copy_from_slice(&OWN);
    reach.copy_from_slice(&reach::SCENARIOS);
    all
};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "objects",
    question: "what does a volume in a bucket cost, in the server's own requests?",
    variants: &VARIANTS,
    scenarios: &SCENARIOS,
    baseline: None,
    run,
};

/// Files of an archive, in a hundred directories, and their sizes in turn.
struct Files {
    number: u32,
    sizes: &'static [u64],
}

/// As sources have them.
const SMALL_FILES: Files =
    Files { number: 1000, sizes: &[120, 900, 2_100, 3_300, 4_096, 7_000, 14_000, 61_440] };
const LARGE_FILES: Files = Files { number: 32, sizes: &[4 << 20] };

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let program = crate::volumes::ours::program(settings).map_err(anyhow::Error::msg)?;
    let scratch = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
    let server = Server::new(scratch.path())?;
    let mut archives = Vec::new();
    for (scenario, files) in [(UNTAR, SMALL_FILES), (LARGE, LARGE_FILES)] {
        if settings.scenarios.contains(&scenario) {
            archives.push(Archive::new(scenario, &files, scratch.path()).context("cannot make an archive")?);
        }
    }
    idle::measure(settings, (&program, &server, scratch.path()), progress, recorder)?;
    if settings.scenarios.iter().all(|scenario| idle::is_one(scenario)) {
        return Ok(vec![format!("bucket: {}", server.shown())]);
    }
    let rounds = settings.runs.unwrap_or(if settings.quick { 1 } else { 5 });
    progress.expect(EXPERIMENT.name, Duration::from_secs(10 * rounds as u64));
    for round in 0..rounds {
        if settings.stop.is_set() {
            break;
        }
        if settings.scenarios.contains(&FSYNC) {
            progress.now("fsync beside the server's own requests");
            let subject = Subject::ours(&program, &server, scratch.path(), &format!("fsync-{round}"))?;
            fsyncs(FSYNC, &subject, &server, &settings.variants, recorder)?;
            if settings.variants.contains(&"journal") {
                progress.now("fsync to a journal");
                let name = format!("journal-{round}");
                let subject = Subject::ours(&program, &server, scratch.path(), &name)?;
                fsyncs_to_journal(&subject, recorder)?;
            }
            if settings.variants.contains(&"disk") {
                fsyncs_of_a_disk(scratch.path(), recorder)?;
            }
        }
        volumes_of_ours(settings, (&program, &server, scratch.path()), round, progress, recorder)?;
        let chosen = (program.as_path(), &server, scratch.path());
        reach::measure(settings, chosen, round, progress, recorder)?;
        let variants = settings.variants.iter().filter(|variant| is_mounted(variant));
        for (archive, &variant) in
            archives.iter().flat_map(|archive| variants.clone().map(move |v| (archive, v)))
        {
            let scenario = archive.scenario;
            progress.now(&format!("{scenario} on {variant}"));
            let name = format!("{scenario}-{variant}-{round}").to_lowercase();
            let subject = mount_of(variant, chosen, &name);
            if let Err(error) = subject.and_then(|subject| untar(variant, &subject, archive, recorder)) {
                recorder.absent(scenario, variant, TOOK_MS, &format!("{error:#}"));
            }
        }
        progress.done(Duration::from_secs(10));
    }
    Ok(vec![
        format!("bucket: {}", server.shown()),
        "server: a conditional PUT of 4 KiB by the same client".to_owned(),
        "journal: an fsync with fsync_to=host; disk: fdatasync(2) of 4 KiB beside its journal".to_owned(),
        "bytes_missing: what another client does not find right after umount(8) has returned".to_owned(),
    ])
}

/// Scenarios that need no peer.
fn volumes_of_ours(
    settings: &Settings,
    (program, server, scratch): (&Path, &Server, &Path),
    round: usize,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    if !settings.variants.contains(&"default") {
        return Ok(());
    }
    for (scenario, files) in growth::SIZES {
        if settings.scenarios.contains(&scenario) {
            progress.now(scenario);
            let name = format!("{scenario}-{round}");
            let subject = Subject::ours(program, server, scratch, &name)?;
            growth::grow(scenario, files, &subject, (server, &name), recorder)?;
        }
    }
    if settings.scenarios.contains(&growth::OVERWRITE) {
        let name = format!("{}-{round}", growth::OVERWRITE);
        let subject = Subject::ours(program, server, scratch, &name)?;
        growth::overwrite(&subject, (server, &name), progress, recorder)?;
    }
    Ok(())
}

/// A tree, and an archive of it.
struct Archive {
    scenario: &'static str,
    tree: PathBuf,
    file: PathBuf,
}

impl Archive {
    fn new(scenario: &'static str, files: &Files, scratch: &Path) -> anyhow::Result<Self> {
        let tree = scratch.join(format!("{scenario}.d"));
        for number in 0..files.number {
            let directory = tree.join(format!("d{:02}", number % 100));
            fs::create_dir_all(&directory)?;
            // Nothing that a program could make smaller.
            let mut data = Vec::new();
            let len = files.sizes[number as usize % files.sizes.len()];
            File::open("/dev/urandom")?.take(len).read_to_end(&mut data)?;
            fs::write(directory.join(format!("file-{number:04}")), data)?;
        }
        let file = scratch.join(format!("{scenario}.tar"));
        let made = Command::new("tar").arg("-cf").arg(&file).arg("-C").arg(&tree).arg(".").status()?;
        ensure!(made.success(), "tar: {made}");
        Ok(Self { scenario, tree, file })
    }

    fn unpack(&self, into: &Path) -> anyhow::Result<()> {
        let unpacked = Command::new("tar").arg("-xf").arg(&self.file).arg("-C").arg(into).status()?;
        ensure!(unpacked.success(), "tar: {unpacked}");
        Ok(())
    }
}

/// The same with `fsync_to=host`: an fsync waits for a journal beside the scratch files.
fn fsyncs_to_journal(subject: &Subject, recorder: &mut Recorder) -> anyhow::Result<()> {
    let mounted = subject.mount_with_journal()?;
    let file = File::create(mounted.path().join("file"))?;
    file.sync_all()?;
    recorder.operations_us(FSYNC, "journal", TOOK_US, &synced_blocks(&file)?);
    drop(file);
    mounted.unmount()
}

fn fsyncs_of_a_disk(scratch: &Path, recorder: &mut Recorder) -> anyhow::Result<()> {
    let file = File::create(scratch.join("disk"))?;
    recorder.operations_us(FSYNC, "disk", TOOK_US, &synced_blocks(&file)?);
    Ok(())
}

fn untar(variant: &str, subject: &Subject, archive: &Archive, recorder: &mut Recorder) -> anyhow::Result<()> {
    let scenario = archive.scenario;
    let mounted = subject.mount()?;
    let begun = Instant::now();
    archive.unpack(mounted.path())?;
    let unpacked = begun.elapsed();
    mounted.unmount()?;
    let took = begun.elapsed();
    let missing = subject.bytes_missing(&archive.tree)?;
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    recorder.value(scenario, variant, TOOK_MS, millis(took));
    recorder.value(scenario, variant, UMOUNT_MS, millis(took - unpacked));
    recorder.value(scenario, variant, MISSING, missing as f64);
    if variant == "default" {
        count_requests(variant, subject, archive, recorder)?;
    }
    Ok(())
}

/// Once more beside the first: the unmount sends what was written, and after it the program does
/// not answer.
fn count_requests(
    variant: &str,
    subject: &Subject,
    archive: &Archive,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let mounted = subject.mount()?;
    if let Some(before) = mounted.requests()? {
        let again = mounted.path().join("again");
        fs::create_dir(&again)?;
        archive.unpack(&again)?;
        rustix::fs::syncfs(File::open(&again)?).context("syncfs")?;
        if let Some(after) = mounted.requests()? {
            recorder.value(archive.scenario, variant, REQUESTS, (after - before).all() as f64);
            recorder.value(archive.scenario, variant, PUTS, (after - before).puts as f64);
            recorder.note(
                archive.scenario,
                variant,
                "requests: of the archive, unpacked again, and a sync of it",
            );
        }
    }
    mounted.unmount()
}
