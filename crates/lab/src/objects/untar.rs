//! Ten thousand files that are unpacked into a volume far away: from the first call to the end of its
//! unmount.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::archive::Archive;
use super::bucket::{OBJECT, Server, TOGETHER};
use super::growth::{PUTS, REQUESTS, ROUND_TRIPS, TOOK_MS, UNSAID};
use super::missing::{Expected, MISSING};
use super::requests::Requests;
use super::subject::Subject;
use crate::progress::Progress;
use crate::report::Recorder;

/// Into a bucket that is 50 ms away, beside an upload of their bytes.
pub(super) const AFAR: &str = "untar-10000-50ms";
const KIND: &str = "untar-10000";
const DISTANCE: Duration = Duration::from_millis(50);

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
    let archive = Archive::of(KIND, scratch)?.context("no archive has this name")?;
    let name = |at: &str| format!("{AFAR}-{at}-{round}");
    let new = |at: &str| Subject::ours(program, server, scratch, &name(at));
    let (near, _) = unpacked(&new("near")?, &archive)?;
    server.delay(DISTANCE);
    let far = new("far")?;
    let unpacked = unpacked(&far, &archive);
    let bytes = fs::read(&archive.file)?;
    let parts: Vec<&[u8]> = bytes.chunks(OBJECT).collect();
    let sent = server.put_all(&parts, TOGETHER);
    server.delay(Duration::ZERO);
    let ((took, requests), (raw, _)) = (unpacked?, sent?);
    let missing = far.find(&Expected::tree(&archive.tree)?, (server, &name("far")))?.missing;
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
