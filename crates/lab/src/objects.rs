//! `objects`: a volume in a bucket, in units of the server's own requests.
//!
//! `tests/servers run SERVER -- lab objects` names the server, by `WATERTIGHT_TEST_URL` and the
//! variables that every AWS tool reads. Without a server the bucket is a directory. Each round
//! makes a new volume. The variant `server` is the bucket itself: the same client sends it a
//! conditional PUT after each fsync that it is compared with.

mod bucket;
mod cloning;
pub(crate) mod cost;
mod dead_host;
mod delay;
mod fsyncs;
mod growth;
mod idle;
mod reach;
mod requests;
pub(crate) mod stress;
mod subject;
mod untar;
mod variants;
mod warm;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::Recorder;
use bucket::Server;
use fsyncs::{TOOK_US, fsyncs, synced_blocks};
use subject::Subject;
use untar::Archive;
use variants::{VARIANTS, is_mounted, mount_of};

const FSYNC: &str = "fsync-4k";

const OWN: [&str; 15] = [
    FSYNC,
    untar::COMPARED[0],
    untar::COMPARED[1],
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
    campaigns: &[growth::CAMPAIGN.0],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let program = crate::volumes::ours::program(settings).map_err(anyhow::Error::msg)?;
    let scratch = tempfile::Builder::new().prefix("watertight-lab.").tempdir()?;
    let server = Server::new(scratch.path())?;
    let mut archives = Vec::new();
    for scenario in untar::COMPARED.into_iter().filter(|scenario| settings.scenarios.contains(scenario)) {
        archives.push(Archive::of(scenario, scratch.path())?);
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
            if let Err(error) = subject.and_then(|subject| untar::untar(variant, &subject, archive, recorder))
            {
                recorder.absent(scenario, variant, growth::TOOK_MS, &format!("{error:#}"));
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
