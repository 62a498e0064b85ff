//! Archives that are unpacked into a volume: from the first call to the end of its unmount.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::bucket::{OBJECT, Server, TOGETHER};
use super::growth::{PUTS, REQUESTS, ROUND_TRIPS, TOOK_MS, UMOUNT_MS, UNSAID};
use super::requests::Requests;
use super::subject::Subject;
use super::variants::mount_of;
use crate::progress::Progress;
use crate::report::{Metric, Recorder};

/// Archives that peers unpack as well.
pub(super) const COMPARED: [&str; 2] = ["untar-1000", "untar-128M"];
/// Ten thousand files into a bucket that is 50 ms away, beside an upload of their bytes.
pub(super) const AFAR: &str = "untar-10000-50ms";
const DISTANCE: Duration = Duration::from_millis(50);

const MISSING: Metric = Metric::new("bytes_missing", "B");

/// Files of an archive, in a hundred directories, and their sizes in turn.
struct Files {
    number: u32,
    sizes: &'static [u64],
}

/// As sources have them.
const SMALL_FILES: Files =
    Files { number: 1000, sizes: &[120, 900, 2_100, 3_300, 4_096, 7_000, 14_000, 61_440] };
const LARGE_FILES: Files = Files { number: 32, sizes: &[4 << 20] };
/// 20 MB of them.
const MANY_FILES: Files =
    Files { number: 10_000, sizes: &[120, 400, 900, 1_300, 2_100, 3_300, 4_096, 4_096] };

/// A tree, and an archive of it.
pub(super) struct Archive {
    pub(super) scenario: &'static str,
    tree: PathBuf,
    file: PathBuf,
}

impl Archive {
    /// The archive of a scenario.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn of(scenario: &'static str, scratch: &Path) -> anyhow::Result<Self> {
        let files = match scenario {
            "untar-1000" => &SMALL_FILES,
            "untar-128M" => &LARGE_FILES,
            _ => &MANY_FILES,
        };
        Self::new(scenario, files, scratch).context("cannot make an archive")
    }

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

/// Unpacks an archive into a new volume of ours or of a peer's.
///
/// # Errors
/// If the volume does not take it.
pub(super) fn untar(
    variant: &str,
    subject: &Subject,
    archive: &Archive,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let scenario = archive.scenario;
    let mounted = subject.mount()?;
    let begun = Instant::now();
    archive.unpack(mounted.path())?;
    let unpacked = begun.elapsed();
    mounted.unmount()?;
    let took = begun.elapsed();
    let missing = subject.bytes_missing(&archive.tree)?;
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

/// Unpacks ten thousand files into a bucket that is far away, and beside it uploads their bytes in
/// few objects.
///
/// # Errors
/// If the volume does not take them, or the server its own objects.
pub(super) fn afar(
    (program, server, scratch): (&Path, &Server, &Path),
    round: usize,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    if server.endpoint.is_none() {
        recorder.absent(AFAR, "default", TOOK_MS, "not run: a directory has no distance");
        return Ok(());
    }
    progress.now(AFAR);
    let archive = Archive::of(AFAR, scratch)?;
    let new = |at: &str| mount_of("default", (program, server, scratch), &format!("{AFAR}-{at}-{round}"));
    let (near, _) = unpacked(&new("near")?, &archive)?;
    server.delay(DISTANCE);
    let far = new("far")?;
    let unpacked = unpacked(&far, &archive);
    let bytes = fs::read(&archive.file)?;
    let parts: Vec<&[u8]> = bytes.chunks(OBJECT).collect();
    let sent = server.put_all(&parts, TOGETHER);
    server.delay(Duration::ZERO);
    let ((took, requests), (raw, _)) = (unpacked?, sent?);
    let missing = far.bytes_missing(&archive.tree)?;
    let trips = took.saturating_sub(near).as_secs_f64() / DISTANCE.as_secs_f64();
    recorder.value(AFAR, "default", TOOK_MS, millis(took));
    recorder.value(AFAR, "server", TOOK_MS, millis(raw));
    recorder.value(AFAR, "default", ROUND_TRIPS, trips);
    recorder.value(AFAR, "default", PUTS, requests.puts as f64);
    recorder.value(AFAR, "default", REQUESTS, requests.all() as f64);
    recorder.value(AFAR, "default", MISSING, missing as f64);
    let note = "goal: the server's time and 3 round trips, 100 PUTs; round_trips: what the distance adds to the same \
                beside the server, in units of it";
    recorder.note(AFAR, "default", note);
    recorder.note(AFAR, "server", "the archive in objects of 8 MiB, all at a time");
    Ok(())
}

/// How long an archive takes until it is in the bucket, and with how many requests.
fn unpacked(subject: &Subject, archive: &Archive) -> anyhow::Result<(Duration, Requests)> {
    let mounted = subject.mount()?;
    let before = mounted.requests_so_far()?;
    let begun = Instant::now();
    archive.unpack(mounted.path())?;
    let unpacked = begun.elapsed();
    let (unmounted, sent) = mounted.unmount_and_count()?;
    Ok((unpacked + unmounted, sent.context(UNSAID)? - before))
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}
