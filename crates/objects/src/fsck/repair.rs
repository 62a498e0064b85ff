//! A repair: the volume is taken, and mended from the bottom up.

use std::sync::Arc;

use store::{Error, ErrorKind, Result};

use super::check::{Rows, Seen, Volume, check, note, paths_of, stops_at};
use super::damage::{Damage, Findings};
use super::log::{keep, mend as mend_log};
use super::mend::Mender;
use super::report::{Checked, Finding, Repair, SHOWN_MAX};
use super::steps::OP;
use crate::bucket::Patience;
use crate::engine::Inventory;
use crate::lease::{Created, Held, Host as _, Lease, LeaseInfo, Request, ThisHost};
use crate::log::Replay;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;

/// Damages that are mended in one round.
const ROUND_MAX: usize = 100_000;
/// Rounds of one repair.
const ROUNDS_MAX: u32 = 10_000;
/// Objects of the log that one repair replaces.
const REPLACED_MAX: u32 = 10_000;
/// Damages that are mended between two commits.
const COMMIT_EACH: usize = 1000;
/// What the lease says of a repair instead of a mountpoint.
const MOUNTPOINT: &str = "a repair (fsck)";

/// Checks a volume and, if something is damaged that can be, mends it.
pub(super) async fn repair(volume: &Volume) -> Result<Checked> {
    refuse_held(volume).await?;
    // Data is read once, in the end.
    let seen = check(&Volume { reads_data: false, ..volume.clone() }).await?;
    if let Some(why) = seen.metadata_damage() {
        let why = format!("nothing was touched: {why}");
        return Ok(Checked {
            repair: Some(Repair { refused: Some(why), ..Repair::default() }),
            ..seen.into_report()
        });
    }
    let needs = |damage: &Damage| {
        damage.round().is_some() || matches!(damage, Damage::Lease { .. } | Damage::Log { .. })
    };
    if !seen.found.kept.iter().any(needs) {
        let seen = if volume.reads_data { check(volume).await? } else { seen };
        return Ok(Checked { repair: Some(Repair::default()), ..seen.into_report() });
    }
    let mut done = Done::default();
    if seen.lease.is_none() {
        mend_lease(volume, &seen, &mut done).await?;
    }
    let Some(inventory) = &seen.inventory else {
        // It was never mounted: there is nothing else.
        return Ok(done.into_report(Checked::default(), Findings::default(), Vec::new()));
    };
    let held = Arc::new(take(volume, inventory).await?);
    match mend_held(volume, inventory, &held, &mut done).await {
        Ok(report) => Ok(report),
        Err(error) => {
            // This error is the one that counts.
            let _released = held.release().await;
            Err(error)
        }
    }
}

/// What a repair did so far.
#[derive(Debug, Default)]
struct Done {
    repair: Repair,
    findings: Vec<Finding>,
    more: u64,
}

impl Done {
    fn add(&mut self, finding: impl FnOnce() -> Finding) {
        self.repair.mended += 1;
        if self.findings.len() < SHOWN_MAX {
            self.findings.push(finding());
        } else {
            self.more += 1;
        }
    }

    fn into_report(self, report: Checked, left: Findings, paths: Vec<Option<std::path::PathBuf>>) -> Checked {
        let Self { repair, mut findings, more } = self;
        let whole = left.is_empty();
        let mut paths = paths.into_iter();
        let not_mended = |damage| Finding::new(damage, paths.next().flatten().as_deref(), false);
        findings.extend(left.kept.iter().map(not_mended));
        let more = more + left.more + (findings.len().saturating_sub(2 * SHOWN_MAX) as u64);
        findings.truncate(2 * SHOWN_MAX);
        Checked { whole, findings, more, holder: None, repair: Some(repair), ..report }
    }
}

/// Refuses early where another process holds the volume, so that nothing is looked at in vain.
async fn refuse_held(volume: &Volume) -> Result<()> {
    let Ok(Some(lease)) = Lease::read(&volume.bucket).await else { return Ok(()) };
    let host = ThisHost::new()?;
    match &lease.holder {
        Some(holder) if !host.has_ended(&holder.process) && holder.process != host.process() => {
            let why = format!(
                "the volume is {}: unmount it there, or, if that host is gone, mount it once with `-o takeover`; without \
                 --repair it can be checked meanwhile",
                lease.describe(host.unix_time())
            );
            Err(Error::with(ErrorKind::Busy, OP, why))
        }
        _ => Ok(()),
    }
}

/// Makes a lease where it is missing or damaged.
async fn mend_lease(volume: &Volume, seen: &Seen, done: &mut Done) -> Result<()> {
    let bucket = &volume.bucket;
    let epoch = seen.inventory.as_ref().map_or(0, |inventory| inventory.epoch);
    let made = match bucket.get(Lease::OBJECT).await? {
        None => Lease::make_anew(bucket, epoch, None).await?,
        Some((bytes, tag)) => {
            if LeaseInfo::may_name_a_journal(&bytes) {
                let why = format!(
                    "{}/lease is damaged, and names a journal, which may have data that is not in the bucket: mount is \
                     refused, and so is this; put the object back as it was, or, if that journal is gone, delete it \
                     and repeat the command",
                    bucket.url()
                );
                return Err(Error::with(ErrorKind::Io, OP, why));
            }
            let copy = keep(bucket, Lease::OBJECT, &bytes).await?;
            done.repair.notes.push(format!("lease: a copy of the damaged one is kept as {copy}"));
            Lease::make_anew(bucket, epoch, Some(&tag)).await?
        }
    };
    if made != Created::New {
        return Err(Error::with(ErrorKind::Busy, OP, "another process changes the lease at the same time"));
    }
    let note = "lease: it is new; a host that has the volume mounted still, which nobody can know without the lease, \
                loses it, and what it has not synced";
    done.repair.notes.push(note.to_owned());
    let damage = seen.found.kept.iter().find(|damage| matches!(damage, Damage::Lease { .. }));
    if let Some(damage) = damage {
        done.add(|| Finding::new(damage, None, true));
    }
    Ok(())
}

async fn take(volume: &Volume, inventory: &Inventory) -> Result<Held> {
    let request =
        Request { mountpoint: MOUNTPOINT.into(), engine_epoch: inventory.epoch, ..Request::default() };
    Lease::take(&volume.bucket, &request, Arc::new(ThisHost::new()?)).await
}

/// Mends a volume that was taken, and releases it.
async fn mend_held(
    volume: &Volume,
    inventory: &Inventory,
    held: &Arc<Held>,
    done: &mut Done,
) -> Result<Checked> {
    mend_whole_log(volume, inventory, done).await?;
    let lasting = volume.bucket.with_patience(Patience::UntilStopped);
    let options = MountOptions {
        nonce: held.nonce().to_bytes(),
        held: Some(Arc::clone(held)),
        is_repair: true,
        ..MountOptions::new(&volume.format, volume.codec.clone())
    };
    let last = newest_manifest(&volume.bucket).await?;
    let mounted = match Mounted::open(lasting.clone(), last, options).await {
        Ok(mounted) => mounted,
        Err(error) => {
            // Nothing that was begun goes on.
            lasting.stop();
            return Err(error);
        }
    };
    let mended = mend_rows(volume, inventory, &mounted, done).await;
    // It releases the lease, too.
    mounted.close().await;
    mended
}

/// Replaces objects of the log until all of it can be replayed.
async fn mend_whole_log(volume: &Volume, inventory: &Inventory, done: &mut Done) -> Result<()> {
    let Volume { bucket, codec, format, .. } = volume;
    let after = inventory.replay_after;
    let mut replay = Replay::new(bucket.clone(), codec.clone(), format.log_window.into(), after);
    for _ in 0..REPLACED_MAX {
        let Some((stop, why)) = stops_at(volume, inventory, &mut replay).await? else { return Ok(()) };
        let note = mend_log(bucket, codec, stop).await?;
        done.repair.notes.push(note);
        done.add(|| Finding::new(&Damage::Log { number: stop.number, why }, None, true));
    }
    let why = format!(
        "{}: more than {REPLACED_MAX} objects of the log are damaged: repeat the command to go on",
        bucket.url()
    );
    Err(Error::with(ErrorKind::Io, OP, why))
}

/// Mends rows, round by round, until nothing is left that can be mended.
async fn mend_rows(
    volume: &Volume,
    inventory: &Inventory,
    mounted: &Mounted,
    done: &mut Done,
) -> Result<Checked> {
    let tree = mounted.tree();
    let (engine, segments) = (&*tree.engine, &tree.segments);
    let rows = Rows { volume, inventory, engine, segments };
    let mut mender = Mender::new(Arc::clone(tree));
    let mut report = Checked::default();
    for _ in 0..ROUNDS_MAX {
        let mut found = Findings::new(ROUND_MAX);
        note(&mut report, rows.check_rows(&mut found).await?);
        let round = found.kept.iter().filter_map(Damage::round).min();
        let Some(round) = round else {
            rows.check_data(&mut found, &mut report).await?;
            found.more += found.kept.len().saturating_sub(SHOWN_MAX) as u64;
            found.kept.truncate(SHOWN_MAX);
            let paths = paths_of(engine, &found.kept).await;
            return Ok(std::mem::take(done).into_report(report, found, paths));
        };
        let now: Vec<_> = found.kept.into_iter().filter(|damage| damage.round() == Some(round)).collect();
        let shown = SHOWN_MAX.saturating_sub(done.findings.len()).min(now.len());
        let mut paths = paths_of(engine, &now[..shown]).await.into_iter();
        for (index, damage) in now.iter().enumerate() {
            mender.mend(damage).await?;
            let path = paths.next().flatten();
            done.add(|| Finding::new(damage, path.as_deref(), true));
            if (index + 1).is_multiple_of(COMMIT_EACH) {
                engine.commit().await?;
            }
        }
        engine.commit().await?;
    }
    let why = "damages are found again after they were mended: this is an error of the program";
    Err(Error::with(ErrorKind::Io, OP, why))
}
