//! Fsyncs of small blocks, one after the other.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use super::bucket::Server;
use super::subject::Subject;
use crate::report::{Metric, Recorder};
use crate::stats::Histogram;

pub(super) const TOOK_US: Metric = Metric::new("took", "us");

/// Fsyncs of a round, and requests beside them.
const SYNCS: u32 = 100;

/// Writes blocks to a file of a new mount, each with a sync, and beside each sends a PUT.
///
/// # Errors
/// If the volume or the server does not do it.
pub(super) fn fsyncs(
    scenario: &str,
    subject: &Subject,
    server: &Server,
    variants: &[&'static str],
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let mounted = subject.mount()?;
    let file = File::create(mounted.path().join("file"))?;
    file.sync_all()?;
    let (mut ours, mut own) = (Histogram::default(), Histogram::default());
    for n in 0..SYNCS {
        let block = [(n % 251) as u8; 4096];
        let begun = Instant::now();
        file.write_all_at(&block, u64::from(n) * 4096)?;
        file.sync_all()?;
        ours.add(begun.elapsed());
        own.add(server.put(&block)?);
    }
    drop(file);
    mounted.unmount()?;
    for (variant, took) in [("default", &ours), ("server", &own)] {
        if variants.contains(&variant) {
            recorder.operations_us(scenario, variant, TOOK_US, took);
        }
    }
    Ok(())
}

/// Writes blocks, each with a sync, and says how long each took.
///
/// # Errors
/// The file's.
pub(super) fn synced_blocks(file: &File) -> anyhow::Result<Histogram> {
    let mut took = Histogram::default();
    for number in 0..SYNCS {
        synced_block(file, number.into(), &mut took)?;
    }
    Ok(took)
}

/// Writes the block with this number and syncs it; adds how long that took.
///
/// # Errors
/// The file's.
pub(super) fn synced_block(file: &File, number: u64, took: &mut Histogram) -> std::io::Result<()> {
    let begun = Instant::now();
    file.write_all_at(&[(number % 251) as u8; 4096], number * 4096)?;
    file.sync_data()?;
    took.add(begun.elapsed());
    Ok(())
}
