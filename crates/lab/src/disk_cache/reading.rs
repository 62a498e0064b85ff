//! Reads of single blocks, each timed, from a page cache that has them all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::content::block;
use super::subject::Subject;
use crate::random::Random;
use crate::stats::Histogram;

/// Blocks that are read in no order.
const BLOCKS: u64 = 512;

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// Blocks that are there, by so many readers.
    Kept { readers: u64 },
    /// Blocks that are not there, by one.
    Missing,
}

/// Fills a cache and reads for about `slice`; returns how long each read took, and how many
/// returned wrong bytes.
pub(super) async fn measure(
    subject: &Arc<Subject>,
    reads: Reads,
    slice: Duration,
) -> anyhow::Result<(Histogram, u64)> {
    subject.fill(0..BLOCKS).await?;
    let readers = if let Reads::Kept { readers } = reads { readers } else { 1 };
    let until = Instant::now() + slice;
    let readers = (0..readers).map(|seed| tokio::spawn(reader(Arc::clone(subject), reads, seed, until)));
    let (mut times, mut wrong) = (Histogram::default(), 0);
    for reader in readers.collect::<Vec<_>>() {
        let (of_it, wrong_of_it) = reader.await??;
        times.merge(&of_it);
        wrong += wrong_of_it;
    }
    Ok((times, wrong))
}

async fn reader(
    subject: Arc<Subject>,
    reads: Reads,
    seed: u64,
    until: Instant,
) -> anyhow::Result<(Histogram, u64)> {
    let (mut random, mut times, mut wrong) = (Random::new(seed), Histogram::default(), 0);
    let first = if reads == Reads::Missing { BLOCKS } else { 0 };
    while Instant::now() < until {
        let number = first + random.next() % BLOCKS;
        let begun = Instant::now();
        let read = subject.read(number).await?;
        times.add(begun.elapsed());
        anyhow::ensure!(read.is_none() == (reads == Reads::Missing), "block {number} is there, or is not");
        wrong += u64::from(read.is_some_and(|bytes| bytes != block(number)));
    }
    Ok((times, wrong))
}
