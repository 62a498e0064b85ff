//! A host that does not answer any more, and another one that takes its volume over.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::bucket::Server;
use super::growth::{REQUESTS, ROUND_TRIPS};
use super::subject::{Mounted, Subject};
use crate::progress::Progress;
use crate::report::{Metric, Recorder};

pub(super) const DEAD_HOST: &str = "dead-host-50ms";
const DISTANCE: Duration = Duration::from_millis(50);
/// How long a taker waits for an answer.
const PATIENCE: Duration = objects::lease::PATIENCE;

const TAKEOVER_MS: Metric = Metric::new("takeover", "ms");
const BEHIND_MS: Metric = Metric::new("behind_patience", "ms");
const LOST: Metric = Metric::new("acknowledged_lost", "");

/// Files that are synced, one by one, before the host stops.
const SYNCED: usize = 50;

/// Takes a volume over whose holder is stopped.
///
/// # Errors
/// If it is not taken over.
pub(super) fn measure(
    (program, server, scratch): (&Path, &Server, &Path),
    round: usize,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    if server.endpoint.is_none() {
        recorder.absent(DEAD_HOST, "default", TAKEOVER_MS, "not run: a directory has no distance");
        return Ok(());
    }
    progress.now(DEAD_HOST);
    let name = |at: &str| format!("{DEAD_HOST}-{at}-{round}");
    let near = take_over(&Subject::ours(program, server, scratch, &name("near"))?)?;
    let subject = Subject::ours(program, server, scratch, &name("far"))?;
    server.delay(DISTANCE);
    let far = take_over(&subject);
    server.delay(Duration::ZERO);
    let far = far?;
    let mut value = |metric, value| recorder.value(DEAD_HOST, "default", metric, value);
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    value(TAKEOVER_MS, millis(far.took));
    value(BEHIND_MS, millis(far.took.saturating_sub(PATIENCE)));
    value(ROUND_TRIPS, far.took.saturating_sub(near.took).as_secs_f64() / DISTANCE.as_secs_f64());
    value(REQUESTS, far.requests as f64);
    value(LOST, (near.lost + far.lost) as f64);
    let note = "takeover: until the mount is there and a file is read, of a process that is stopped, which has synced \
                50 files and written one more; goal: 15 s and 10 round trips; round_trips: what the distance adds, in \
                units of it; acknowledged_lost: synced files that are not there";
    recorder.note(DEAD_HOST, "default", note);
    Ok(())
}

struct Taken {
    took: Duration,
    requests: u64,
    /// Synced files that were not found.
    lost: usize,
}

fn take_over(subject: &Subject) -> anyhow::Result<Taken> {
    let mounted = subject.mount()?;
    for number in 0..SYNCED {
        let mut file = File::create(mounted.path().join(number.to_string()))?;
        file.write_all(&content(number))?;
        file.sync_all()?;
    }
    fs::write(mounted.path().join("not-synced"), content(0))?;
    mounted.suspend()?;
    let begun = Instant::now();
    let taken = subject.take_over().and_then(|taken| {
        fs::read(taken.path().join("0"))?;
        Ok((begun.elapsed(), taken))
    });
    // Before anything fails: what looks at the mount of a stopped process waits for it.
    mounted.kill()?;
    let (took, taken) = taken?;
    let requests = taken.requests_so_far()?.all();
    let lost = (0..SYNCED).filter(|&number| !has(&taken, number)).count();
    taken.unmount()?;
    Ok(Taken { took, requests, lost })
}

fn has(mounted: &Mounted, number: usize) -> bool {
    fs::read(mounted.path().join(number.to_string())).is_ok_and(|data| data == content(number))
}

fn content(number: usize) -> Vec<u8> {
    let [low, ..] = number.to_le_bytes();
    vec![low; 4096 + number]
}
