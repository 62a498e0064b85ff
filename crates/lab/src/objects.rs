//! `objects`: a volume in a bucket, in units of the server's own requests.
//!
//! `tests/servers run SERVER -- lab objects` names the server, by `WATERTIGHT_TEST_URL` and the
//! variables that every AWS tool reads. Without a server the bucket is a directory. Each round
//! makes a new volume. The variant `server` is the bucket itself: the same client sends it a
//! conditional PUT after each fsync that it is compared with.

mod archive;
mod bucket;
mod cloning;
pub(crate) mod cost;
mod dead_host;
mod delay;
mod fsyncs;
mod gcs;
mod growth;
mod http;
mod idle;
mod ill;
mod missing;
mod peer_subjects;
mod peers;
mod reach;
mod requests;
mod side_server;
pub(crate) mod stress;
mod subject;
mod untar;
mod variants;
mod warm;
mod wire;
mod work;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::Recorder;
use bucket::Server;
use fsyncs::{TOOK_US, fsyncs, synced_blocks};
use subject::Subject;
use variants::VARIANTS;

const FSYNC: &str = "fsync-4k";

const OWN: [&str; 13] = [
    FSYNC,
    untar::AFAR,
    warm::WARM,
    dead_host::DEAD_HOST,
    cloning::CLONE,
    growth::SIZES[0].0,
    growth::SIZES[1].0,
    growth::SIZES[2].0,
    growth::CAMPAIGN.0,
    growth::OVERWRITE,
    idle::SIZES[0].0,
    idle::SIZES[1].0,
    idle::SIZES[2].0,
];
const SCENARIOS: [&str; OWN.len() + reach::SCENARIOS.len() + ill::SCENARIOS.len()] = {
    let mut all = [""; OWN.len() + reach::SCENARIOS.len() + ill::SCENARIOS.len()];
    let (own, others) = all.split_at_mut(OWN.len());
    let (reach, ill) = others.split_at_mut(reach::SCENARIOS.len());
    own.copy_from_slice(&OWN);
    reach.copy_from_slice(&reach::SCENARIOS);
    ill.copy_from_slice(&ill::SCENARIOS);
    all
};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "objects",
    question: "what does a volume in a bucket cost, in the server's own requests?",
    variants: &VARIANTS,
    scenarios: &SCENARIOS,
    campaigns: &[growth::CAMPAIGN.0],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let program = crate::volumes::ours::program(settings).map_err(anyhow::Error::msg)?;
    let scratch = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
    let server = Server::new(scratch.path())?;
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
        ill::measure(settings, chosen, round, progress, recorder);
        progress.done(Duration::from_secs(10));
    }
    let mut notes = variants::notes(&settings.variants);
    notes.extend([
        format!("bucket: {}", server.shown()),
        "server: a conditional PUT of 4 KiB by the same client".to_owned(),
        "journal: an fsync with fsync_to=host; disk: fdatasync(2) of 4 KiB beside its journal".to_owned(),
        "work: until the last call of the work has returned; until_unmounted: until umount(8) has".to_owned(),
        "bytes_missing: what another client does not find right after umount(8) has returned; bytes_left: \
         what it still finds of removed files"
            .to_owned(),
        "requests, puts, uploaded: on the wire, of the work, its unmount, and, if that left bytes missing, of \
         the next mount until it has uploaded them"
            .to_owned(),
    ]);
    Ok(notes)
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
    let chosen = (program, server, scratch);
    let is_chosen = |scenario| settings.scenarios.contains(&scenario) && !settings.stop.is_set();
    if is_chosen(untar::AFAR) {
        untar::afar(chosen, round, progress, recorder)?;
    }
    if is_chosen(warm::WARM) {
        warm::measure(chosen, round, progress, recorder)?;
    }
    if is_chosen(dead_host::DEAD_HOST) {
        dead_host::measure(chosen, round, progress, recorder)?;
    }
    if is_chosen(cloning::CLONE) {
        cloning::measure(chosen, round, progress, recorder)?;
    }
    for (scenario, files) in growth::SIZES.into_iter().chain([growth::CAMPAIGN]) {
        if settings.scenarios.contains(&scenario) {
            progress.now(scenario);
            let name = format!("{scenario}-{round}");
            let subject = Subject::ours(program, server, scratch, &name)?;
            growth::grow(scenario, files, &subject, (server, &name), progress, recorder)?;
        }
    }
    if settings.scenarios.contains(&growth::OVERWRITE) {
        let name = format!("{}-{round}", growth::OVERWRITE);
        let subject = Subject::ours(program, server, scratch, &name)?;
        growth::overwrite(&subject, (server, &name), progress, recorder)?;
    }
    Ok(())
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
