//! The scenarios: each with a cache of its own, in a directory that is there for it alone.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::content::BLOCK;
use super::damage::{self, Place, change_a_byte};
use super::process::{self, FILL, OPEN, Report};
use super::reading::{self, Reads};
use super::subject::Subject;
use super::tally::Tally;
use crate::random::Random;
use crate::report::{Metric, Recorder, Shown};
use crate::table::Table;

const RATE: Metric = Metric::rate("mb_per_s", "MB/s");
const READ: Metric = Metric::new("read", "us").shown(Shown::Both);
const OPENED: Metric = Metric::new("first_read", "ms");
const RESIDENT: Metric = Metric::new("resident_grown", "MiB");
const RETURNED: Metric = Metric::rate("returned", "%");
const LOST: Metric = Metric::new("lost", "blocks").shown(Shown::Both);
const WRONG: Metric = Metric::new("wrong", "blocks");
const FAILED: Metric = Metric::new("failed", "reads");
const ALLOCATED: Metric = Metric::new("allocated", "MiB");
const LENGTH: Metric = Metric::new("length", "MiB");

/// Blocks of a cache that is damaged, or whose directory is removed.
const FEW: u64 = 256;
/// Caches that are damaged in a round.
const DAMAGED: u64 = 4;
const MIB: f64 = 1_048_576.0;

/// One scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    Fill,
    Reopen,
    Read(Reads),
    Damage(Place),
    Gone,
    Size { mib: u64 },
}

/// All of them.
pub(super) const ALL: Table<Scenario, 10> = Table([
    ("fill", Scenario::Fill),
    ("reopen", Scenario::Reopen),
    ("read-1", Scenario::Read(Reads::Kept { readers: 1 })),
    ("read-16", Scenario::Read(Reads::Kept { readers: 16 })),
    ("miss", Scenario::Read(Reads::Missing)),
    ("damage", Scenario::Damage(Place::Anywhere)),
    ("damage-first-page", Scenario::Damage(Place::FirstPage)),
    ("gone", Scenario::Gone),
    ("size-0", Scenario::Size { mib: 0 }),
    ("size-64", Scenario::Size { mib: 64 }),
]);

/// How much of a run is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Blocks of the cache that is filled, and opened again, in a process of its own.
    pub(super) many: u64,
    /// How long readers read.
    pub(super) slice: Duration,
    /// The round's number.
    pub(super) round: u64,
}

impl Scenario {
    pub(super) fn name(self) -> &'static str {
        ALL.name(self)
    }

    /// What it measures first of all.
    pub(super) fn metric(self) -> Metric {
        match self {
            Self::Fill => RATE,
            Self::Reopen => OPENED,
            Self::Read(_) => READ,
            Self::Damage(_) | Self::Gone => LOST,
            Self::Size { .. } => ALLOCATED,
        }
    }

    /// Measures once, with caches below `dir`.
    pub(super) async fn measure(self, mut out: Out<'_>, dir: &Path, sizes: Sizes) -> anyhow::Result<()> {
        let (variant, at) = (out.variant, dir.join("cache"));
        match self {
            Self::Fill => {
                let report = process::run(variant, &at, FILL, sizes.many)?;
                out.rate(RATE, (sizes.many * BLOCK as u64) as f64 / 1e6 / report.seconds);
                out.process(&report, sizes.many);
            }
            Self::Reopen => {
                process::run(variant, &at, FILL, sizes.many)?;
                let report = process::run(variant, &at, OPEN, sizes.many)?;
                out.value(OPENED, report.seconds * 1000.0);
                out.process(&report, sizes.many);
            }
            Self::Read(reads) => {
                let subject = Arc::new(Subject::open(variant, &at).await?);
                let (times, wrong) = reading::measure(&subject, reads, sizes.slice).await?;
                subject.close().await?;
                out.recorder.operations_us(out.scenario, variant, READ, &times);
                if reads != Reads::Missing {
                    let bytes = times.count() * BLOCK as u64;
                    out.rate(RATE, bytes as f64 / 1e6 / sizes.slice.as_secs_f64());
                }
                out.check(wrong);
            }
            Self::Damage(place) => {
                for number in 0..DAMAGED {
                    // The same places in each variant.
                    let mut random = Random::new(1 + sizes.round * DAMAGED + number);
                    out.losses(damaged(variant, &dir.join(number.to_string()), place, &mut random).await?);
                }
            }
            Self::Gone => {
                let subject = Arc::new(Subject::open(variant, &at).await?);
                subject.fill(0..FEW).await?;
                std::fs::remove_dir_all(&at)?;
                out.losses(Tally::of(&subject, 0..FEW).await);
                subject.fill(FEW..2 * FEW).await?;
                let new = Tally::of(&subject, FEW..2 * FEW).await;
                out.note(&format!("of {FEW} blocks that are kept after it: {new:?}"));
                out.check(new.wrong);
                // What a cache says in the end of a directory that is not there is no matter here.
                let _gone = subject.close().await;
            }
            Self::Size { mib } => {
                let subject = Subject::open(variant, &at).await?;
                subject.fill(0..mib * (1 << 20) / BLOCK as u64).await?;
                subject.close().await?;
                let files = damage::files(&at)?;
                let sum = |of: fn(&Metadata) -> u64| files.iter().map(|(_, file)| of(file)).sum::<u64>();
                out.value(ALLOCATED, (sum(MetadataExt::blocks) * 512) as f64 / MIB);
                out.value(LENGTH, sum(MetadataExt::size) as f64 / MIB);
                out.note(&format!("{} files", files.len()));
            }
        }
        Ok(())
    }
}

/// Fills a cache and closes it, changes a byte of it, opens it and reads everything.
async fn damaged(variant: &str, at: &Path, place: Place, random: &mut Random) -> anyhow::Result<Tally> {
    let subject = Subject::open(variant, at).await?;
    subject.fill(0..FEW).await?;
    subject.close().await?;
    drop(subject);
    change_a_byte(at, place, random)?;
    let subject = Arc::new(Subject::open(variant, at).await?);
    let tally = Tally::of(&subject, 0..FEW).await;
    subject.close().await?;
    Ok(tally)
}

/// Where the figures of a scenario and a variant go.
pub(super) struct Out<'a> {
    pub(super) scenario: &'static str,
    pub(super) variant: &'a str,
    pub(super) recorder: &'a mut Recorder,
}

impl Out<'_> {
    fn value(&mut self, metric: Metric, value: f64) {
        self.recorder.value(self.scenario, self.variant, metric, value);
    }

    fn rate(&mut self, metric: Metric, rate: f64) {
        self.recorder.rate(self.scenario, self.variant, metric, rate);
    }

    fn note(&mut self, note: &str) {
        self.recorder.note(self.scenario, self.variant, note);
    }

    fn process(&mut self, report: &Report, blocks: u64) {
        self.value(RESIDENT, report.resident_mib);
        self.rate(RETURNED, 100.0 * report.tally.right as f64 / blocks as f64);
        self.check(report.tally.wrong);
    }

    fn losses(&mut self, tally: Tally) {
        self.value(LOST, (tally.wrong + tally.none + tally.failed) as f64);
        self.value(WRONG, tally.wrong as f64);
        self.value(FAILED, tally.failed as f64);
        self.check(tally.wrong);
    }

    /// Wrong bytes break the promise of a cache; plain files promise nothing.
    fn check(&mut self, wrong: u64) {
        if wrong > 0 && self.variant != "files" {
            let (scenario, variant) = (self.scenario, self.variant);
            self.recorder.breaks(format!("{scenario}: {variant} returned {wrong} blocks with wrong bytes"));
        }
    }
}
