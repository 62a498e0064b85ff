//! What a volume reaches of its server's own speed, at several distances.
//!
//! Each scenario ends with the time that is added to each answer. The variant `server` is the same
//! bytes in the same objects, sent and fetched by the same client without a volume.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use testing::cgroup::Cgroup;

use super::bucket::{OBJECT, Server, TOGETHER};
use super::fsyncs::{TOOK_US, fsyncs, synced_block, synced_blocks};
use super::growth::{REQUESTS, ROUND_TRIPS, TOOK_MS, UMOUNT_REQUESTS, UNSAID};
use super::requests::Requests;
use super::subject::Subject;
use super::variants::{is_mounted, mount_of};
use super::work;
use crate::experiment::Settings;
use crate::progress::Progress;
use crate::random::Random;
use crate::report::{Metric, Recorder};
use crate::stats::Histogram;

/// Times that are added, in ms.
const DISTANCES: [u64; 3] = [0, 10, 50];
pub(super) const SCENARIOS: [&str; 25] = [
    "untar-1000",
    "untar-1000-10ms",
    "untar-1000-50ms",
    "untar-128M",
    "untar-128M-10ms",
    "untar-128M-50ms",
    "fsync-4k-10ms",
    "fsync-4k-50ms",
    "fsync-beside-1G",
    "fsync-64-50ms",
    "sequential-0ms",
    "sequential-10ms",
    "sequential-50ms",
    "handover-0ms",
    "handover-10ms",
    "handover-50ms",
    "git-0ms",
    "git-10ms",
    "git-50ms",
    "sqlite-0ms",
    "sqlite-10ms",
    "sqlite-50ms",
    "rm-0ms",
    "rm-10ms",
    "rm-50ms",
];

const WRITE: Metric = Metric::rate("write", "MB/s");
const READ: Metric = Metric::rate("cold_read", "MB/s");
const SYNCS_RATE: Metric = Metric::rate("fsyncs", "1/s");
const PER_PUT: Metric = Metric::new("fsyncs_per_put", "");
const ALONE_US: Metric = Metric::new("alone", "us");
const BESIDE_US: Metric = Metric::new("beside", "us");
const BESIDE_ONE_US: Metric = Metric::new("beside_one", "us");
const UNTIL_READ_MS: Metric = Metric::new("umount_to_first_read", "ms");

/// A file that is written and read in sequence, and what one call moves.
const LARGE: usize = 256 << 20;
const CALL: usize = 1 << 20;
/// Objects of 8 MiB that are sent beside small ones: 1 GiB.
const LARGE_OBJECTS: usize = 128;
const THREADS: usize = 64;
const SYNCING: Duration = Duration::from_secs(5);

/// Runs the chosen scenarios once.
///
/// # Errors
/// If one of ours or of the server's own cannot be measured; a peer that fails is a row that says why.
pub(super) fn measure(
    settings: &Settings,
    (program, server, scratch): (&Path, &Server, &Path),
    round: usize,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    for scenario in SCENARIOS.into_iter().filter(|scenario| settings.scenarios.contains(scenario)) {
        if settings.stop.is_set() {
            break;
        }
        let (kind, distance) = parts(scenario);
        if distance > 0 && server.endpoint.is_none() {
            recorder.absent(scenario, "default", TOOK_MS, "not run: a directory has no distance");
            continue;
        }
        progress.now(scenario);
        server.delay(Duration::from_millis(distance));
        let name = |variant: &str| format!("{scenario}-{variant}-{round}").to_lowercase();
        let ours = || Subject::ours(program, server, scratch, &name("default"));
        match kind {
            "fsync-4k" => fsyncs(scenario, &ours()?, server, &settings.variants, recorder)?,
            "fsync-beside-1G" => beside(scenario, &ours()?, (server, scratch), &settings.variants, recorder)?,
            "fsync-64" => many(scenario, &ours()?, recorder)?,
            "sequential" => sequential(scenario, &ours()?, server, &settings.variants, recorder)?,
            "handover" => {
                let took = handover(scenario, &ours()?, recorder)?;
                if distance > 0 {
                    server.delay(Duration::ZERO);
                    let near = Subject::ours(program, server, scratch, &name("near"))?;
                    let near = hand_over(&near)?.took;
                    let trips = took.saturating_sub(near).as_secs_f64() * 1000.0 / distance as f64;
                    recorder.value(scenario, "default", ROUND_TRIPS, trips);
                }
            }
            _ => {
                for &variant in settings.variants.iter().filter(|variant| is_mounted(variant)) {
                    let subject = mount_of(variant, (program, server, scratch), &name(variant));
                    let (of, at) = ((scenario, variant), (server, name(variant)));
                    let done = subject.and_then(|subject| {
                        work::by_kind(of, kind, &subject, (at.0, &at.1, scratch), recorder)
                    });
                    if let Err(error) = done {
                        recorder.absent(scenario, variant, TOOK_MS, &format!("{error:#}"));
                    }
                }
            }
        }
        server.delay(Duration::ZERO);
    }
    Ok(())
}

/// What a scenario does, and how many ms are added.
fn parts(scenario: &'static str) -> (&'static str, u64) {
    let found = DISTANCES
        .into_iter()
        .find_map(|distance| Some((scenario.strip_suffix(&format!("-{distance}ms"))?, distance)));
    found.unwrap_or((scenario, 0))
}

/// Fsyncs of one cgroup, alone and while a process of another writes 1 GiB.
fn beside(
    scenario: &str,
    subject: &Subject,
    (server, scratch): (&Server, &Path),
    variants: &[&'static str],
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let Some(neighbour) = Cgroup::make() else {
        recorder.absent(scenario, "default", BESIDE_US, "not run: no cgroup can be made");
        return Ok(());
    };
    let mounted = subject.mount()?;
    let file = File::create(mounted.path().join("file"))?;
    file.sync_all()?;
    recorder.operations_us(scenario, "default", ALONE_US, &synced_blocks(&file)?);
    let source = scratch.join("1M");
    let mut data = vec![0; CALL];
    Random::new(7).fill(&mut data);
    fs::write(&source, &data)?;
    let mut command = neighbour.command("sh");
    command.args(["-c", "for _ in $(seq 1024); do cat \"$1\"; done >\"$2\"", "sh"]);
    command.arg(&source).arg(mounted.path().join("large"));
    let mut writer = command.spawn().context("sh")?;
    let mut took = Histogram::default();
    let mut number = 0_u64;
    while writer.try_wait()?.is_none() {
        synced_block(&file, number, &mut took)?;
        number += 1;
    }
    ensure!(number > 0, "the neighbour had ended before an fsync");
    recorder.operations_us(scenario, "default", BESIDE_US, &took);
    drop(file);
    mounted.unmount()?;
    if variants.contains(&"server") {
        let mut alone = Histogram::default();
        for _ in 0..took.count().min(200) {
            alone.add(server.put(&[7; 4096])?);
        }
        let mut large = vec![0; OBJECT];
        Random::new(7).fill(&mut large);
        recorder.operations_us(scenario, "server", ALONE_US, &alone);
        for (metric, together) in [(BESIDE_US, 4), (BESIDE_ONE_US, 1)] {
            let beside = server.puts_beside((&large, LARGE_OBJECTS, together))?;
            recorder.operations_us(scenario, "server", metric, &beside);
        }
        let note =
            "beside: a client of its own sends objects of 8 MiB, four at a time; beside_one: one at a time";
        recorder.note(scenario, "server", note);
    }
    Ok(())
}

/// Fsyncs of many threads, each of a file of its own.
fn many(scenario: &str, subject: &Subject, recorder: &mut Recorder) -> anyhow::Result<()> {
    let mounted = subject.mount()?;
    let files: Vec<File> = (0..THREADS)
        .map(|number| {
            let file = File::create(mounted.path().join(format!("file-{number}")))?;
            file.sync_all()?;
            Ok(file)
        })
        .collect::<std::io::Result<_>>()?;
    let before = mounted.requests_so_far()?;
    let (ready, begun) = (Barrier::new(THREADS), Instant::now());
    let all: Vec<std::io::Result<Histogram>> = thread::scope(|scope| {
        let syncing = files.iter().map(|file| {
            let ready = &ready;
            scope.spawn(move || {
                ready.wait();
                let (mut took, since, mut number) = (Histogram::default(), Instant::now(), 0);
                while since.elapsed() < SYNCING {
                    synced_block(file, number, &mut took)?;
                    number += 1;
                }
                Ok(took)
            })
        });
        let syncing: Vec<_> = syncing.collect();
        syncing.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let took = begun.elapsed().as_secs_f64();
    let after = mounted.requests_so_far()?;
    let mut together = Histogram::default();
    for one in all {
        together.merge(&one?);
    }
    let fsyncs = together.count() as f64;
    recorder.operations_us(scenario, "default", TOOK_US, &together);
    recorder.rate(scenario, "default", SYNCS_RATE, fsyncs / took);
    recorder.value(scenario, "default", PER_PUT, fsyncs / (after - before).puts.max(1) as f64);
    drop(files);
    mounted.unmount()
}

/// A file written in sequence until it is unmounted, and read in sequence after another mount.
fn sequential(
    scenario: &str,
    subject: &Subject,
    server: &Server,
    variants: &[&'static str],
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let mut data = vec![0; LARGE];
    Random::new(1).fill(&mut data);
    let rate = |took: Duration| LARGE as f64 / 1e6 / took.as_secs_f64();
    let mounted = subject.mount()?;
    let begun = Instant::now();
    let file = File::create(mounted.path().join("file"))?;
    for (number, part) in data.chunks(CALL).enumerate() {
        file.write_all_at(part, (number * CALL) as u64)?;
    }
    drop(file);
    mounted.unmount()?;
    recorder.rate(scenario, "default", WRITE, rate(begun.elapsed()));
    let parts: Vec<&[u8]> = data.chunks(OBJECT).collect();
    let (puts, names) = server.put_all(&parts, TOGETHER)?;
    let mounted = subject.mount()?;
    let begun = Instant::now();
    let mut file = File::open(mounted.path().join("file"))?;
    let mut part = vec![0; CALL];
    for expected in data.chunks(CALL) {
        file.read_exact(&mut part[..expected.len()])?;
        ensure!(part[..expected.len()] == *expected, "other bytes were read than were written");
    }
    let took = begun.elapsed();
    drop(file);
    let requests = mounted.requests_so_far()?;
    mounted.unmount()?;
    recorder.rate(scenario, "default", READ, rate(took));
    recorder.value(scenario, "default", REQUESTS, requests.all() as f64);
    recorder.note(scenario, "default", "requests: of the mount that reads");
    let gets = server.get_all(&names, TOGETHER)?;
    if variants.contains(&"server") {
        recorder.rate(scenario, "server", WRITE, rate(puts));
        recorder.rate(scenario, "server", READ, rate(gets));
    }
    Ok(())
}

/// From an unmount with something to write to the first read of it elsewhere.
fn handover(scenario: &str, subject: &Subject, recorder: &mut Recorder) -> anyhow::Result<Duration> {
    let HandedOver { took, umount, mount } = hand_over(subject)?;
    recorder.value(scenario, "default", UNTIL_READ_MS, took.as_secs_f64() * 1000.0);
    recorder.value(scenario, "default", REQUESTS, mount.all() as f64);
    recorder.value(scenario, "default", UMOUNT_REQUESTS, umount.all() as f64);
    let note = "requests: of the mount and the read elsewhere; round_trips: the time that the distance adds, from \
                the unmount to the first read, in units of it; goal: 10";
    recorder.note(scenario, "default", note);
    Ok(took)
}

struct HandedOver {
    took: Duration,
    /// The requests of the unmount, and of the mount and the read elsewhere.
    umount: Requests,
    mount: Requests,
}

fn hand_over(subject: &Subject) -> anyhow::Result<HandedOver> {
    let mounted = subject.mount()?;
    // The mount is there before its program has sent what it begins with, and umount(8) would wait for
    // that.
    rustix::fs::syncfs(File::open(mounted.path())?).context("syncfs")?;
    for number in 0..100 {
        fs::write(mounted.path().join(format!("file-{number}")), [3; 4096])?;
    }
    let before = mounted.requests_so_far()?;
    let begun = Instant::now();
    let unmounted = mounted.umount()?;
    let elsewhere = subject.mount_elsewhere()?;
    ensure!(fs::read(elsewhere.path().join("file-99"))? == [3; 4096], "other bytes than were written");
    let took = begun.elapsed();
    let mount = elsewhere.requests_so_far()?;
    let umount = unmounted.end()?.context(UNSAID)? - before;
    elsewhere.unmount()?;
    Ok(HandedOver { took, umount, mount })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_says_its_distance() {
        assert_eq!(parts("fsync-64-50ms"), ("fsync-64", 50));
        assert_eq!(parts("sequential-0ms"), ("sequential", 0));
        assert_eq!(parts("fsync-beside-1G"), ("fsync-beside-1G", 0));
        let kinds = [
            "untar-1000",
            "untar-128M",
            "fsync-4k",
            "fsync-beside-1G",
            "fsync-64",
            "sequential",
            "handover",
            "git",
            "sqlite",
            "rm",
        ];
        assert!(SCENARIOS.iter().all(|scenario| kinds.contains(&parts(scenario).0)));
    }
}
