//! `objects`: a volume in a bucket, in units of the server's own requests.
//!
//! `tests/servers run SERVER -- lab objects` names the server, by `WATERTIGHT_TEST_BUCKET` and the
//! variables that every AWS tool reads. Without a server the bucket is a directory. Each round makes
//! a new volume. The variant `server` is the bucket itself: the same client sends it a conditional
//! PUT after each fsync that it is compared with.

mod bucket;
mod subject;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::{Metric, Recorder};
use crate::stats::Histogram;
use bucket::Server;
use subject::Subject;

const VARIANTS: [&str; 3] = ["default", "server", "rclone"];
const FSYNC: &str = "fsync-4k";
const UNTAR: &str = "untar-1000";

const TOOK_US: Metric = Metric::new("took", "us");
const TOOK_MS: Metric = Metric::new("until_unmounted", "ms");
const UMOUNT_MS: Metric = Metric::new("umount", "ms");
const MISSING: Metric = Metric::new("files_missing", "");
const REQUESTS: Metric = Metric::new("requests", "");
const PUTS: Metric = Metric::new("puts", "");

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "objects",
    question: "what does a volume in a bucket cost, in the server's own requests?",
    variants: &VARIANTS,
    scenarios: &[FSYNC, UNTAR],
    baseline: None,
    run,
};

/// Files of the archive.
const FILES: u32 = 1000;
/// Fsyncs of a round, and requests beside them.
const SYNCS: u32 = 100;

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let program = crate::volumes::ours::program(settings).map_err(anyhow::Error::msg)?;
    let scratch = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
    let server = Server::new(scratch.path())?;
    let archive = archive(&scratch).context("cannot make the archive")?;
    let rounds = settings.runs.unwrap_or(if settings.quick { 1 } else { 5 });
    progress.expect(EXPERIMENT.name, Duration::from_secs(10 * rounds as u64));
    for round in 0..rounds {
        if settings.stop.is_set() {
            break;
        }
        if settings.scenarios.contains(&FSYNC) {
            progress.now("fsync beside the server's own requests");
            let subject = Subject::ours(&program, &server, scratch.path(), &format!("fsync-{round}"))?;
            fsyncs(&subject, &server, &settings.variants, recorder)?;
        }
        for variant in ["default", "rclone"] {
            if !settings.scenarios.contains(&UNTAR) || !settings.variants.contains(&variant) {
                continue;
            }
            progress.now(&format!("{UNTAR} on {variant}"));
            let name = format!("{variant}-{round}");
            let subject = match variant {
                "rclone" => Subject::rclone(&server, scratch.path(), &name),
                _ => Subject::ours(&program, &server, scratch.path(), &name),
            };
            if let Err(error) = subject.and_then(|subject| untar(variant, &subject, &archive, recorder)) {
                recorder.absent(UNTAR, variant, TOOK_MS, &format!("{error:#}"));
            }
        }
        progress.done(Duration::from_secs(10));
    }
    Ok(vec![
        format!("bucket: {}", server.shown()),
        "server: a conditional PUT of 4 KiB by the same client".to_owned(),
        format!("files_missing: of {FILES}, by another client, right after umount(8) has returned"),
    ])
}

/// An archive of small files, as sources have them, in a hundred directories.
fn archive(scratch: &TempDir) -> anyhow::Result<PathBuf> {
    const LENGTHS: [usize; 8] = [120, 900, 2_100, 3_300, 4_096, 7_000, 14_000, 61_440];
    let tree = scratch.path().join("tree");
    for number in 0..FILES {
        let directory = tree.join(format!("d{:02}", number % 100));
        fs::create_dir_all(&directory)?;
        let data = vec![b'a' + (number % 26) as u8; LENGTHS[number as usize % LENGTHS.len()]];
        fs::write(directory.join(format!("file-{number:04}")), data)?;
    }
    let archive = scratch.path().join("tree.tar");
    let made = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).arg(".").status()?;
    ensure!(made.success(), "tar: {made}");
    Ok(archive)
}

fn fsyncs(
    subject: &Subject,
    server: &Server,
    variants: &[&'static str],
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let mounted = subject.mount()?;
    let file = File::create(mounted.path().join("file"))?;
    file.sync_all()?;
    let (mut ours, mut own) = (Histogram::default(), Histogram::default());
    for n in 0..SYNCS {
        let block = [(n % 251) as u8; 4096];
        let begun = Instant::now();
        file.write_all_at(&block, u64::from(n) * 4096)?;
        file.sync_all()?;
        ours.add(begun.elapsed());
        own.add(server.put(&block)?);
    }
    drop(file);
    mounted.unmount()?;
    for (variant, took) in [("default", &ours), ("server", &own)] {
        if variants.contains(&variant) {
            recorder.operations_us(FSYNC, variant, TOOK_US, took);
        }
    }
    Ok(())
}

fn untar(variant: &str, subject: &Subject, archive: &Path, recorder: &mut Recorder) -> anyhow::Result<()> {
    let mounted = subject.mount()?;
    let begun = Instant::now();
    unpack(archive, mounted.path())?;
    let unpacked = begun.elapsed();
    mounted.unmount()?;
    let took = begun.elapsed();
    let missing = u64::from(FILES).saturating_sub(subject.files_found()?);
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    recorder.value(UNTAR, variant, TOOK_MS, millis(took));
    recorder.value(UNTAR, variant, UMOUNT_MS, millis(took - unpacked));
    recorder.value(UNTAR, variant, MISSING, missing as f64);
    // Once more beside the first, for what is written is sent by the unmount, after which nobody
    // can be asked.
    let mounted = subject.mount()?;
    if let Some(before) = mounted.requests()? {
        let again = mounted.path().join("again");
        fs::create_dir(&again)?;
        unpack(archive, &again)?;
        rustix::fs::syncfs(File::open(&again)?).context("syncfs")?;
        if let Some(after) = mounted.requests()? {
            recorder.value(UNTAR, variant, REQUESTS, after.all.saturating_sub(before.all) as f64);
            recorder.value(UNTAR, variant, PUTS, after.puts.saturating_sub(before.puts) as f64);
            recorder.note(UNTAR, variant, "requests: of the archive, unpacked again, and a sync of it");
        }
    }
    mounted.unmount()
}

fn unpack(archive: &Path, into: &Path) -> anyhow::Result<()> {
    let unpacked = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(into).status()?;
    ensure!(unpacked.success(), "tar: {unpacked}");
    Ok(())
}
