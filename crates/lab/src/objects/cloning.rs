//! A clone of a volume with a file of 1 TiB, most of which are holes, and the garbage of its parent
//! after that.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::bucket::Server;
use super::growth::{REQUESTS, UNSAID};
use super::subject::Subject;
use crate::progress::Progress;
use crate::random::Random;
use crate::report::{Metric, Recorder};

pub(super) const CLONE: &str = "clone-1T";

const CLONE_MS: Metric = Metric::new("clone", "ms");
const MOUNT_MS: Metric = Metric::new("first_mount", "ms");
const COLLECTED: Metric = Metric::new("bytes_collected", "B");

/// The file, and its parts that are no holes.
const SIZE: u64 = 1 << 40;
const PARTS: u64 = 16;
const PART: usize = 1 << 20;
/// A file that is replaced after the clone was made.
const REPLACED: usize = 64 << 20;

/// Clones a volume, replaces data in its parent twice, and collects the garbage of that.
///
/// # Errors
/// If that fails, or the clone shows something else.
pub(super) fn measure(
    (program, server, scratch): (&Path, &Server, &Path),
    round: usize,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    progress.now(CLONE);
    let (name, clone_name) = (format!("{CLONE}-{round}").to_lowercase(), format!("{CLONE}-{round}-clone"));
    let subject = Subject::ours(program, server, scratch, &name)?;
    let clone = Subject::unmade(program, server, scratch, &clone_name.to_lowercase())?;
    let mounted = subject.mount()?;
    let parts = File::create(mounted.path().join("sparse"))?;
    parts.set_len(SIZE)?;
    for number in 0..PARTS {
        parts.write_all_at(&noise(PART, number), offset(number))?;
    }
    drop(parts);
    write(mounted.path(), 0)?;
    let at = mounted.path().display().to_string();
    subject.run(&["snapshot", "create", &at, "one"])?;
    let begun = Instant::now();
    let sent = subject.run(&["clone-volume", subject.url(), "one", clone.url()])?;
    let took = begun.elapsed();
    // What is replaced twice is garbage once: the snapshot needs what it was before.
    write(mounted.path(), 1)?;
    write(mounted.path(), 2)?;
    mounted.unmount()?;
    let before = server.bytes(&name)?;
    subject.collect_garbage()?;
    let collected = before.saturating_sub(server.bytes(&name)?);
    let begun = Instant::now();
    let cloned = clone.mount()?;
    let mounted_in = begun.elapsed();
    let file = File::open(cloned.path().join("sparse"))?;
    ensure!(file.metadata()?.len() == SIZE, "the clone's file has another size");
    let mut part = vec![0; PART];
    for number in 0..PARTS {
        file.read_exact_at(&mut part, offset(number))?;
        ensure!(part == noise(PART, number), "the clone shows other bytes");
    }
    ensure!(std::fs::read(cloned.path().join("replaced"))? == noise(REPLACED, 0), "the clone has changed");
    drop(file);
    cloned.unmount()?;
    let mut value = |metric, value| recorder.value(CLONE, "default", metric, value);
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    value(REQUESTS, sent.context(UNSAID)?.all() as f64);
    value(CLONE_MS, millis(took));
    value(MOUNT_MS, millis(mounted_in));
    value(COLLECTED, collected as f64);
    let note = "requests: of `watertight clone-volume`, of a volume with a file of 1 TiB; goal: 5; bytes_collected: by \
                gc from the parent, which has replaced 64 MiB twice since; first_mount: of the clone, after that";
    recorder.note(CLONE, "default", note);
    Ok(())
}

/// Where a part is.
fn offset(number: u64) -> u64 {
    SIZE / PARTS * number
}

fn write(at: &Path, seed: u64) -> anyhow::Result<()> {
    let mut file = File::create(at.join("replaced"))?;
    file.write_all(&noise(REPLACED, seed))?;
    file.sync_all()?;
    Ok(())
}

/// Bytes that no program makes smaller.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}
