//! A cache in a process of its own, `lab disk-cache-process VARIANT DIR WORK BLOCKS`: what it takes
//! of memory is the cache's, and its opening is that of a process that has just begun.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::content::block;
use super::subject::Subject;
use super::tally::Tally;
use crate::child;

/// The first argument of such a process.
pub(crate) const COMMAND: &str = "disk-cache-process";
/// Fills an empty cache.
pub(super) const FILL: &str = "fill";
/// Opens one that is there.
pub(super) const OPEN: &str = "open";

/// What such a process prints.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// Until all blocks were written, or until the first was read.
    pub(super) seconds: f64,
    /// Memory that came to be resident from before the cache was opened until all was read.
    pub(super) resident_mib: f64,
    /// Of all blocks, each read once.
    pub(super) tally: Tally,
}

/// Runs the process.
pub(super) fn run(variant: &str, dir: &Path, work: &str, blocks: u64) -> anyhow::Result<Report> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(variant).arg(dir).arg(work).arg(blocks.to_string());
    let output = command.output().context("cannot start the lab itself")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The process.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    child::exit(COMMAND, work(&arguments.collect::<Vec<_>>()))
}

fn work(arguments: &[OsString]) -> anyhow::Result<()> {
    let text = |at: usize| arguments.get(at).and_then(|text| text.to_str()).context("too few arguments");
    let (variant, dir, work, blocks) = (text(0)?, text(1)?, text(2)?, text(3)?.parse()?);
    let report = runtime()?.block_on(measure(variant, Path::new(dir), work == FILL, blocks))?;
    serde_json::to_writer(std::io::stdout(), &report)?;
    Ok(())
}

/// A runtime as large as that of a process with volumes on object storage.
pub(super) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()
}

async fn measure(variant: &str, dir: &Path, fills: bool, blocks: u64) -> anyhow::Result<Report> {
    // The bytes of all blocks are resident from here on.
    let first = block(0);
    let before = resident_mib()?;
    let begun = Instant::now();
    let subject = Arc::new(Subject::open(variant, dir).await?);
    if fills {
        subject.fill(0..blocks).await?;
    } else {
        ensure!(subject.read(0).await?.is_none_or(|read| read == first), "wrong bytes at once");
    }
    let seconds = begun.elapsed().as_secs_f64();
    let tally = Tally::of(&subject, 0..blocks).await;
    let report = Report { seconds, resident_mib: resident_mib()? - before, tally };
    subject.close().await?;
    Ok(report)
}

fn resident_mib() -> anyhow::Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().nth(1).context("no second field in /proc/self/statm")?;
    Ok(pages.parse::<f64>()? * rustix::param::page_size() as f64 / f64::from(1 << 20))
}
