//! `disk-cache`: the disk cache of volumes on object storage beside foyer's.
//!
//! A round takes each scenario in turn and gives each cache its turn in it, in a directory of its
//! own. [`scenario`] has the measurements, [`subject`] the caches. foyer is there with the cargo
//! feature of its name.

mod content;
mod damage;
#[cfg(feature = "foyer")]
mod peer;
pub(crate) mod process;
mod reading;
mod scenario;
mod subject;
mod tally;

use std::time::Duration;

use anyhow::Context as _;

use crate::experiment::{Experiment, Settings};
use crate::progress::Progress;
use crate::report::Recorder;
use scenario::{Out, Sizes};

/// What a step takes, as far as it is foreseen.
const STEP: Duration = Duration::from_millis(600);

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "disk-cache",
    question: "what does the disk cache of a volume in a bucket do, beside foyer's?",
    variants: &subject::VARIANTS,
    scenarios: &scenario::ALL.names(),
    campaigns: &[],
    baseline: None,
    run,
};

fn run(settings: &Settings, progress: &Progress, recorder: &mut Recorder) -> anyhow::Result<Vec<String>> {
    let many = if settings.quick { 512 } else { 4096 };
    let slice = Duration::from_millis(if settings.quick { 100 } else { 500 });
    let rounds = settings.runs.unwrap_or(if settings.quick { 2 } else { 10 });
    let below = settings.source.clone().unwrap_or_else(std::env::temp_dir);
    let runtime = process::runtime().context("no threads")?;
    let (scenarios, variants) = (scenario::ALL.chosen(&settings.scenarios), &settings.variants);
    let steps = rounds * scenarios.len() * variants.len();
    progress.expect(EXPERIMENT.name, STEP * u32::try_from(steps).unwrap_or(u32::MAX));
    for round in 0..rounds {
        for scenario in &scenarios {
            for turn in 0..variants.len() {
                if settings.stop.is_set() {
                    return Ok(notes(many, round));
                }
                // Another cache begins each round.
                let variant = variants[(turn + round) % variants.len()];
                progress.now(&format!("round {} of {rounds}: {} {variant}", round + 1, scenario.name()));
                let dir = tempfile::tempdir_in(&below)
                    .with_context(|| format!("no directory can be made in {}", below.display()))?;
                let sizes = Sizes { many, slice, round: round as u64 };
                let out = Out { scenario: scenario.name(), variant, recorder };
                let measured = match subject::missing(variant) {
                    Some(why) => Err(anyhow::anyhow!(why)),
                    None => runtime.block_on(scenario.measure(out, dir.path(), sizes)),
                };
                if let Err(error) = measured {
                    recorder.absent(scenario.name(), variant, scenario.metric(), &format!("{error:#}"));
                }
                progress.done(STEP);
            }
        }
    }
    Ok(notes(many, rounds))
}

fn notes(many: u64, rounds: usize) -> Vec<String> {
    vec![
        format!(
            "{rounds} rounds, interleaved. Blocks of 128 KiB of random bytes; each cache may take 1 GiB, and is in a new directory each time. Nothing is synced by any of them, and all of it is in the page cache."
        ),
        format!(
            "`fill`: {many} blocks in a process of its own, from the opening until all are written. `reopen`: the same in another process: from the opening until the first block is read. `returned`: of these \
             blocks, each read once. `resident_grown`: what the process had more of resident memory when all were read than before it opened the cache."
        ),
        "`read-1`, `read-16`: so many readers of one block at a time, of 512 in no order. `miss`: one reader of blocks that are not there.".to_owned(),
        "`damage`: one bit of a byte that was written, of 256 blocks' files, is changed while the cache is closed; `lost`: of these blocks, those that are not returned as they were kept, `wrong` among them. \
         `damage-first-page`: the byte is one of the first 4096 of a file."
            .to_owned(),
        "`gone`: the directory is removed while the cache is open; `lost` of 256 blocks that were in it.".to_owned(),
        "`size-0`, `size-64`: the files after so many MiB and a close: what they take of the disk, and their lengths.".to_owned(),
        "`default`: ours, a file for each block. `foyer`: foyer 0.22.3, HybridCache with a memory part of one block and its block engine (regions of 16 MiB, one flusher, buffers of 16 MiB, its default) \
         on files in a directory; two batches of 32 blocks at most wait to be written, as it drops what finds its buffers full. `files`: a file for each block by std::fs and nothing else: \
         no checksum, no bound, no index; that it returns wrong bytes shows that the scenario would find them."
            .to_owned(),
    ]
}
