//! A volume of ours as it grows, and what is left in its bucket when it is overwritten.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::bucket::Server;
use super::subject::Subject;
use crate::progress::Progress;
use crate::random::Random;
use crate::report::{Metric, Recorder};

/// Volumes of so many files, a thousand in each directory.
pub(super) const SIZES: [(&str, u32); 3] =
    [("files-1k", 1_000), ("files-10k", 10_000), ("files-100k", 100_000)];
/// As these, only where it is named: it takes an hour, and 10 GB of disk.
pub(super) const CAMPAIGN: (&str, u32) = ("files-10m", 10_000_000);
/// A file whose blocks are overwritten in no order.
pub(super) const OVERWRITE: &str = "overwrite";

pub(super) const TOOK_MS: Metric = Metric::new("until_unmounted", "ms");
pub(super) const ROUND_TRIPS: Metric = Metric::new("round_trips", "");
pub(super) const UMOUNT_MS: Metric = Metric::new("umount", "ms");
pub(super) const REQUESTS: Metric = Metric::new("requests", "");
pub(super) const PUTS: Metric = Metric::new("puts", "");
const CREATE_US: Metric = Metric::new("create_each", "us");
const MOUNT_MS: Metric = Metric::new("mount", "ms");
const LIST_MS: Metric = Metric::new("first_list", "ms");
const STAT_US: Metric = Metric::new("stat_each", "us");
const TAKEOVER_MS: Metric = Metric::new("takeover", "ms");
const CREATE_REQUESTS: Metric = Metric::new("create_requests", "");
pub(super) const UMOUNT_REQUESTS: Metric = Metric::new("umount_requests", "");
const MOUNT_REQUESTS: Metric = Metric::new("mount_requests", "");
const LIST_REQUESTS: Metric = Metric::new("list_requests", "");
const STAT_REQUESTS: Metric = Metric::new("stat_requests", "");
const TAKEOVER_REQUESTS: Metric = Metric::new("takeover_requests", "");
const STORED: Metric = Metric::new("bytes_in_bucket", "B");
const RATIO_BEFORE: Metric = Metric::new("stored_per_live_before", "");
const RATIO: Metric = Metric::new("stored_per_live", "");
const COLLECT_MS: Metric = Metric::new("gc", "ms");

/// What the program says in the end.
pub(super) const UNSAID: &str = "the process did not log its requests";

/// Files of a directory.
const TOGETHER: u32 = 1000;
/// Threads that make directories of files at a time.
const MAKERS: u32 = 4;
const BLOCK: usize = 64 << 10;
/// Of the file that is overwritten, and how often that is as a whole.
const BLOCKS: u64 = 1024;
const TIMES: u64 = 6;
/// Blocks between two syncs.
const SYNCED: u64 = 64;

/// Makes a volume of `files` files, uses it once more, and takes it over.
pub(super) fn grow(
    scenario: &'static str,
    files: u32,
    subject: &Subject,
    (server, name): (&Server, &str),
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let variant = "default";
    let mut value = |metric, value| recorder.value(scenario, variant, metric, value);
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    let each = |begun: Instant, times: u32| begun.elapsed().as_secs_f64() * 1e6 / f64::from(times);
    let mounted = subject.mount()?;
    let opened = mounted.requests_so_far()?;
    let begun = Instant::now();
    make_all(mounted.path(), files / TOGETHER, progress)?;
    value(CREATE_US, each(begun, files));
    let made = mounted.requests_so_far()?;
    value(CREATE_REQUESTS, (made - opened).all() as f64);
    let (took, sent) = mounted.unmount_and_count()?;
    value(UMOUNT_MS, millis(took));
    value(UMOUNT_REQUESTS, (sent.context(UNSAID)? - made).all() as f64);
    value(STORED, server.bytes(name)? as f64);
    let begun = Instant::now();
    let mounted = subject.mount()?;
    value(MOUNT_MS, millis(begun.elapsed()));
    let opened = mounted.requests_so_far()?;
    value(MOUNT_REQUESTS, opened.all() as f64);
    let last = mounted.path().join(format!("d{}", (files - 1) / TOGETHER));
    let begun = Instant::now();
    let names: Vec<_> = fs::read_dir(&last)?.collect::<Result<_, _>>()?;
    value(LIST_MS, millis(begun.elapsed()));
    let listed = mounted.requests_so_far()?;
    value(LIST_REQUESTS, (listed - opened).all() as f64);
    anyhow::ensure!(names.len() == TOGETHER as usize, "{} names of {TOGETHER}", names.len());
    let begun = Instant::now();
    for name in &names {
        name.metadata()?;
    }
    value(STAT_US, each(begun, TOGETHER));
    let seen = mounted.requests_so_far()?;
    value(STAT_REQUESTS, (seen - listed).all() as f64);
    value(REQUESTS, seen.all() as f64);
    // What is taken over has something that is only in the log.
    let more = mounted.path().join("more");
    make_files(&more)?;
    rustix::fs::syncfs(File::open(&more)?).context("syncfs")?;
    mounted.suspend()?;
    let begun = Instant::now();
    let taken = subject.take_over();
    let took = begun.elapsed();
    // Before anything fails: what looks at the mount of a stopped process waits for it.
    mounted.kill()?;
    let taken = taken?;
    value(TAKEOVER_MS, millis(took));
    value(TAKEOVER_REQUESTS, taken.requests_so_far()?.all() as f64);
    let kept = fs::read_dir(taken.path().join("more"))?.count();
    anyhow::ensure!(
        kept == TOGETHER as usize,
        "after the takeover {kept} files of {TOGETHER} that were synced"
    );
    taken.unmount()?;
    recorder.note(
        scenario,
        variant,
        "requests: of the second mount, the listing and the stats; takeover: with `-o takeover`, of a \
         process that does not answer, which has synced 1000 more files",
    );
    Ok(())
}

/// So many directories of empty files, by several threads.
fn make_all(at: &Path, directories: u32, progress: &Progress) -> anyhow::Result<()> {
    let next = AtomicU32::new(0);
    let one = || {
        loop {
            // ORDERING: Relaxed; the counter hands out names, and publishes nothing.
            let directory = next.fetch_add(1, Ordering::Relaxed);
            if directory >= directories {
                return anyhow::Ok(());
            }
            make_files(&at.join(format!("d{directory}")))?;
            if directory % 100 == 99 {
                progress.now(&format!("{} files are made", (directory + 1) * TOGETHER));
            }
        }
    };
    thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS.min(directories)).map(|_| scope.spawn(one)).collect();
        makers
            .into_iter()
            .try_for_each(|maker| maker.join().unwrap_or_else(|_| anyhow::bail!("a maker panicked")))
    })
}

/// A directory of empty files.
fn make_files(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir(directory)?;
    for number in 0..TOGETHER {
        File::create(directory.join(format!("file-{number}")))?;
    }
    Ok(())
}

/// Overwrites blocks of a file in no order, and collects the garbage.
pub(super) fn overwrite(
    subject: &Subject,
    (server, name): (&Server, &str),
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let mounted = subject.mount()?;
    let file = File::create(mounted.path().join("file"))?;
    let (mut random, mut block) = (Random::new(1), vec![0; BLOCK]);
    for number in 0..BLOCKS * TIMES {
        // Nothing that a program could make smaller.
        random.fill(&mut block);
        let at = if number < BLOCKS { number } else { random.next() % BLOCKS };
        file.write_all_at(&block, at * BLOCK as u64)?;
        if number % SYNCED == 0 {
            file.sync_all()?;
            progress.now(&format!("{OVERWRITE}: {} MiB", (number * BLOCK as u64) >> 20));
        }
    }
    drop(file);
    mounted.unmount()?;
    let live = (BLOCKS * BLOCK as u64) as f64;
    let mut value = |metric, value| recorder.value(OVERWRITE, "default", metric, value);
    value(RATIO_BEFORE, server.bytes(name)? as f64 / live);
    let begun = Instant::now();
    subject.collect_garbage().context("gc")?;
    value(COLLECT_MS, begun.elapsed().as_secs_f64() * 1000.0);
    value(RATIO, server.bytes(name)? as f64 / live);
    recorder.note(
        OVERWRITE,
        "default",
        "stored_per_live: bytes in the bucket by bytes of the file, after gc",
    );
    Ok(())
}
