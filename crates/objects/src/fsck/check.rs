//! A check of a volume that is not held by it.

use std::collections::HashSet;
use std::sync::Arc;

use store::{Error, ErrorKind, Result};
use tokio_util::sync::CancellationToken;

use super::damage::{Damage, Findings, damage_of};
use super::data::Data;
use super::inodes::{self, Counted};
use super::listing::Listing;
use super::log::{self, State, Stop};
use super::paths::Places;
use super::report::{Checked, Finding, SHOWN_MAX, Unneeded};
use super::steps::{OP, Steps};
use super::usage;
use crate::bucket::Bucket;
use crate::codec::Codec;
use crate::engine::{Engine, Inventory, ReadEngine, missing_tables};
use crate::format::Format;
use crate::lease::{Lease, LeaseInfo};
use crate::log::{CommitLog, Read, Replay};
use crate::newest_manifest::newest_manifest;
use crate::object_names::log_name;
use crate::readers::Mark;
use crate::segments::Segments;

/// What is right where the engine's objects are damaged.
const NO_WAY: &str = "no repair can make up for it: put the object back as it was, from a copy or an older version of it \
                      in the bucket, or, if it is a table, go on with a clone of a snapshot (`watertight clone-volume`) that can be read";

/// A volume that is checked.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub(super) bucket: Bucket,
    pub(super) format: Format,
    pub(super) codec: Codec,
    /// Whether all data is read.
    pub(super) reads_data: bool,
    pub(super) steps: Steps,
}

/// What a check saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) found: Findings,
    pub(super) report: Checked,
    pub(super) inventory: Option<Inventory>,
    pub(super) lease: Option<LeaseInfo>,
}

impl Seen {
    pub(super) fn into_report(self) -> Checked {
        let Self { found, mut report, .. } = self;
        report.more += found.more;
        report.whole = found.is_empty();
        report
    }

    /// Whether something is damaged on which everything else rests.
    pub(super) fn metadata_damage(&self) -> Option<String> {
        self.found.kept.iter().find(|damage| matches!(damage, Damage::Metadata { .. })).map(Damage::words)
    }
}

/// Checks a volume as its last commits left it. Nothing is written but the mark of a reader.
pub(super) async fn check(volume: &Volume) -> Result<Seen> {
    let mark = Mark::set_if_possible(&volume.bucket, None).await;
    let end = CancellationToken::new();
    let marking = mark.map(|mark| tokio::spawn(mark.keep_until(end.clone())));
    let checked = check_marked(volume).await;
    end.cancel();
    if let Some(marking) = marking {
        let _it_ended = marking.await;
    }
    checked
}

async fn check_marked(volume: &Volume) -> Result<Seen> {
    let bucket = &volume.bucket;
    let mut seen = Seen { found: Findings::new(SHOWN_MAX), ..Seen::default() };
    match Lease::read(bucket).await {
        Ok(Some(lease)) => {
            seen.report.holder = lease.holder.as_ref().map(ToString::to_string);
            seen.lease = Some(lease);
        }
        Ok(None) => seen.found.add(Damage::Lease { why: "the lease is missing".to_owned() }),
        Err(error) => seen.found.add(Damage::Lease { why: damage_of(bucket, error).await? }),
    }
    let inventory = match manifest(bucket, seen.lease.as_ref()).await? {
        Ok(Some(inventory)) => inventory,
        Ok(None) => {
            // It was never mounted.
            return Ok(with_findings(seen, Vec::new()));
        }
        Err(why) => {
            seen.found.add(Damage::Metadata { why });
            return Ok(with_findings(seen, Vec::new()));
        }
    };
    let tables = tables(volume, &inventory, &mut seen.found).await?;
    if tables {
        rows(volume, &inventory, &mut seen).await?;
    }
    seen.inventory = Some(inventory);
    if seen.report.findings.is_empty() && !seen.found.is_empty() {
        seen = with_findings(seen, Vec::new());
    }
    Ok(seen)
}

/// Puts what was found into the report.
fn with_findings(mut seen: Seen, paths: Vec<Option<std::path::PathBuf>>) -> Seen {
    let mut paths = paths.into_iter();
    let finding = |damage| Finding::new(damage, paths.next().flatten().as_deref(), false);
    seen.report.findings = seen.found.kept.iter().map(finding).collect();
    seen
}

/// What the newest manifest names; `None`: the volume was never mounted. What is wrong, in words.
async fn manifest(bucket: &Bucket, lease: Option<&LeaseInfo>) -> Result<Result<Option<Inventory>, String>> {
    let inventory = match Inventory::read(bucket).await {
        Ok(inventory) => inventory,
        Err(error) => return Ok(Err(format!("{}; {NO_WAY}", damage_of(bucket, error).await?))),
    };
    let Some(inventory) = inventory else {
        return match newest_manifest(bucket).await {
            Ok(_) => Ok(Ok(None)),
            Err(error) => Ok(Err(format!("{}; {NO_WAY}", damage_of(bucket, error).await?))),
        };
    };
    let (epoch, seen) = (inventory.epoch, lease.map_or(0, |lease| lease.engine_epoch));
    if seen > epoch {
        let why = format!(
            "the newest manifest is of writer {epoch}, and the lease is of a later one than {seen}: the newest objects \
             below meta/manifest/ are missing; {NO_WAY}"
        );
        return Ok(Err(why));
    }
    Ok(Ok(Some(inventory)))
}

/// Checks that tables are there; returns whether the volume's own are.
async fn tables(volume: &Volume, inventory: &Inventory, found: &mut Findings) -> Result<bool> {
    let bucket = &volume.bucket;
    let mut listed: HashSet<_> = bucket.list("meta/compacted", None).await?.into_iter().collect();
    let missing = missing_tables(bucket, &mut listed, &inventory.tables).await?;
    for table in &missing {
        found.add(Damage::Metadata {
            why: format!("meta/compacted/{table}: this table is missing; {NO_WAY}"),
        });
    }
    for snapshot in &inventory.snapshots {
        let why = match Inventory::tables_of(bucket, snapshot).await {
            Ok(tables) => {
                let missing = missing_tables(bucket, &mut listed, &tables).await?;
                missing.first().map(|table| format!("its table meta/compacted/{table} is missing"))
            }
            Err(error) => Some(damage_of(bucket, error).await?),
        };
        if let Some(why) = why {
            found.add(Damage::Snapshot { name: snapshot.name.clone(), why });
        }
    }
    Ok(missing.is_empty())
}

/// Opens the engine as the log's readable part leaves it, and checks rows and data.
async fn rows(volume: &Volume, inventory: &Inventory, seen: &mut Seen) -> Result<()> {
    let Volume { bucket, codec, format, .. } = volume;
    let window = format.log_window.into();
    let mut replay = Replay::new(bucket.clone(), codec.clone(), window, inventory.replay_after);
    let stop = stops_at(volume, inventory, &mut replay).await?;
    let is_whole_log = stop.is_none();
    if let Some((stop, why)) = stop {
        seen.found.add(Damage::Log { number: stop.number, why });
    }
    let (store, root) = bucket.raw();
    let engine: Arc<dyn Engine> = match ReadEngine::open((store, &root), codec.clone(), replay).await {
        Ok(engine) => Arc::new(engine),
        Err(error) => {
            let why = format!("{}; {NO_WAY}", damage_of(bucket, error).await?);
            seen.found.add(Damage::Metadata { why });
            return Ok(());
        }
    };
    let log = CommitLog::new(bucket.clone(), codec.clone(), window);
    let segments = Segments::new(bucket.bulk(), codec.clone(), log, 0, None);
    let all = Rows { volume, inventory, engine: &*engine, segments: &segments };
    if let Err(error) = all.check(&mut seen.found, &mut seen.report).await {
        let why = format!("{}; {NO_WAY}", damage_of(bucket, error).await?);
        seen.found.add(Damage::Metadata { why });
    }
    if !is_whole_log {
        seen.report.unneeded = None;
    }
    let paths = paths_of(&*engine, &seen.found.kept).await;
    *seen = with_findings(std::mem::take(seen), paths);
    engine.close().await
}

/// Paths of what was found, as far as there are some.
pub(super) async fn paths_of(engine: &dyn Engine, all: &[Damage]) -> Vec<Option<std::path::PathBuf>> {
    let mut places = Places::find(engine, all).await.unwrap_or_default();
    let mut paths = Vec::new();
    for damage in all {
        paths.push(places.path(engine, damage).await);
    }
    paths
}

/// Replays the log; returns where and why that stops before its end.
pub(super) async fn stops_at(
    volume: &Volume,
    inventory: &Inventory,
    replay: &mut Replay,
) -> Result<Option<(Stop, String)>> {
    let error = match replay.read_to_end(u64::MAX).await {
        Ok(Read::Whole) => return Ok(None),
        Ok(Read::Newer { number }) => {
            let why = format!("{}: its writer cannot be", log_name(number));
            Error::with(ErrorKind::Io, OP, why)
        }
        Err(error) => error,
    };
    let why = damage_of(&volume.bucket, error).await?;
    let number = replay.next();
    let why = match log::examine(&volume.bucket, &volume.codec, number).await? {
        State::Missing => "this object of the log is missing, and later ones are there".to_owned(),
        State::Damaged { why, .. } => why,
        State::Whole => why,
    };
    let window = volume.format.log_window.into();
    Ok(Some((Stop { number, before: replay.epoch(), newest: inventory.epoch, window }, why)))
}

/// The rows of a volume whose engine is open, and what they refer to.
pub(super) struct Rows<'a> {
    pub(super) volume: &'a Volume,
    pub(super) inventory: &'a Inventory,
    pub(super) engine: &'a dyn Engine,
    pub(super) segments: &'a Segments,
}

impl Rows<'_> {
    async fn check(&self, found: &mut Findings, report: &mut Checked) -> Result<()> {
        let counted = self.check_rows(found).await?;
        note(report, counted);
        self.check_data(found, report).await
    }

    /// Checks the rows against each other.
    pub(super) async fn check_rows(&self, found: &mut Findings) -> Result<Counted> {
        let counted = inodes::check(self.engine, inodes::WINDOW, &self.volume.steps, found).await?;
        if !counted.is_incomplete {
            usage::check(self.engine, usage::WINDOW, found).await?;
        }
        Ok(counted)
    }

    /// Checks what the rows of the volume, and of its snapshots, refer to.
    pub(super) async fn check_data(&self, found: &mut Findings, report: &mut Checked) -> Result<()> {
        let Volume { bucket, codec, reads_data, steps, .. } = self.volume;
        let mut listing = Listing::read(bucket).await?;
        let segments = Some(self.segments).filter(|_| *reads_data);
        let mut data = Data { bucket, codec, segments, listing: &mut listing, steps };
        let mut read = data.check(self.engine, None, found).await?;
        report.snapshots = 0;
        for snapshot in &self.inventory.snapshots {
            let (store, root) = bucket.raw();
            let name = &snapshot.name;
            let checked = match ReadEngine::open_snapshot((store, &root), codec.clone(), snapshot).await {
                Ok(engine) => {
                    let checked = data.check(&engine, Some((name, self.engine)), found).await;
                    engine.close().await?;
                    checked
                }
                Err(error) => Err(error),
            };
            match checked {
                Ok(more) => (read, report.snapshots) = (read + more, report.snapshots + 1),
                Err(error) => {
                    let why = damage_of(bucket, error).await?;
                    let is_known =
                        |damage: &Damage| matches!(damage, Damage::Snapshot { name: of, .. } if of == name);
                    if !found.kept.iter().any(is_known) {
                        found.add(Damage::Snapshot { name: name.clone(), why });
                    }
                }
            }
        }
        report.bytes_read = reads_data.then_some(read);
        report.objects = listing.count();
        let (objects, bytes) = listing.unneeded(self.inventory.replay_after);
        let is_known = !found.kept.iter().any(|damage| matches!(damage, Damage::Snapshot { .. }));
        report.unneeded = is_known.then_some(Unneeded { objects, bytes });
        Ok(())
    }
}

/// Puts what was counted into a report.
pub(super) fn note(report: &mut Checked, counted: Counted) {
    (report.inodes, report.names) = (counted.inodes, counted.names);
    (report.extents, report.bytes) = (counted.extents, counted.bytes);
}
