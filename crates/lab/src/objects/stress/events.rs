//! What is done to a volume while programs use it, by a seed; and the checks after it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::super::bucket::Server;
use super::campaign::Campaign;
use super::check;
use super::model::Image;
use super::volume::Volume;
use super::worker::Worker;
use crate::random::Random;

/// Snapshots that there may be at a time.
const SNAPSHOTS_MAX: usize = 2;
/// The volume's quota: more than it ever has, so that everything is charged and nothing refused.
const QUOTA: &str = "4G";
/// The quota of a directory that is filled, and what it is filled by.
const SMALL_QUOTA: &str = "1M";
const PIECE: usize = 64 << 10;

/// How long a removed file may be charged after its last close.
const CLOSED_AFTER_MAX: Duration = Duration::from_secs(30);

/// What may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Everything is compared, while it is mounted.
    Compare,
    /// A snapshot is made.
    Snapshot,
    /// A snapshot is compared, and perhaps deleted.
    ReadSnapshot,
    /// A clone is made of a snapshot, used, checked and removed.
    Clone,
    /// A directory's quota is set, met and taken away.
    Quota,
    /// It is unmounted, perhaps checked and collected, and mounted again; everything is compared.
    Remount,
    /// Its process is killed, it is mounted again, and what was synced is there.
    Kill,
    /// The program takes over from itself, and everything is compared.
    Upgrade,
}

/// Of a volume whose process lives as long as the load.
pub(super) const OF_ONE_PROCESS: [Event; 10] = [
    Event::Compare,
    Event::Snapshot,
    Event::ReadSnapshot,
    Event::Compare,
    Event::Quota,
    Event::Snapshot,
    Event::ReadSnapshot,
    Event::Compare,
    Event::Clone,
    Event::ReadSnapshot,
];
/// Of a volume whose process does not.
pub(super) const OF_MANY_PROCESSES: [Event; 10] = [
    Event::Remount,
    Event::Kill,
    Event::Upgrade,
    Event::Snapshot,
    Event::Kill,
    Event::ReadSnapshot,
    Event::Remount,
    Event::Upgrade,
    Event::Kill,
    Event::Quota,
];

/// How often something was done, and what was found.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) compared: AtomicU64,
    pub(super) kills: AtomicU64,
    pub(super) torn: AtomicU64,
    pub(super) remounts: AtomicU64,
    pub(super) upgrades: AtomicU64,
    pub(super) upgrades_refused: AtomicU64,
    pub(super) snapshots: AtomicU64,
    pub(super) clones: AtomicU64,
    pub(super) quotas: AtomicU64,
    pub(super) checks: AtomicU64,
    pub(super) collections: AtomicU64,
}

/// What is left at the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// By the unmount.
    pub(super) took: Duration,
    /// Bytes that the volume's files need, and those in the bucket after the unmount and after `gc`.
    pub(super) needed: u64,
    pub(super) unmounted: u64,
    pub(super) collected: u64,
}

/// A figure for the results.
fn count(counter: &AtomicU64, more: u64) {
    // ORDERING: Relaxed; a figure, which is read when all threads have ended.
    counter.fetch_add(more, Ordering::Relaxed);
}

/// A snapshot, and what it shows of each worker.
struct Snapshot {
    name: String,
    shows: Vec<(String, Image)>,
}

/// The events of one volume, in the thread that starts its processes.
pub(super) struct Events<'a> {
    volume: &'a Volume,
    campaign: &'a Campaign,
    counts: &'a Counts,
    server: Server,
    random: Random,
    snapshots: Vec<Snapshot>,
    next: u64,
}

impl<'a> Events<'a> {
    pub(super) fn new(
        (volume, campaign, counts): (&'a Volume, &'a Campaign, &'a Counts),
        server: Server,
        seed: u64,
    ) -> Self {
        Self { volume, campaign, counts, server, random: Random::new(seed), snapshots: Vec::new(), next: 0 }
    }

    /// Makes the volume, mounts it, and has each worker make its directories and files.
    ///
    /// # Errors
    /// If that fails.
    pub(super) fn begin(&self) -> anyhow::Result<()> {
        let volume = self.volume;
        volume.verb(&["format", &volume.url], "there is a volume already")?;
        volume.mount()?;
        let at = volume.at().display().to_string();
        volume.verb(&["quota", "set", &at, "--bytes", QUOTA], "")?;
        for worker in &mut volume.at_rest() {
            worker.begin().with_context(|| worker.name())?;
        }
        Ok(())
    }

    /// Has each worker make as many files as it keeps.
    ///
    /// # Errors
    /// If that fails.
    pub(super) fn fill(&self) -> anyhow::Result<()> {
        let mut workers = self.volume.workers.iter().map(parking_lot::Mutex::lock);
        workers.try_for_each(|mut worker| worker.fill().with_context(|| worker.name()))
    }

    /// Bytes in the bucket.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(super) fn stored(&self) -> anyhow::Result<u64> {
        self.server.bytes(self.volume.name)
    }

    /// Does one event after the other, with pauses of about `pause`, until the load ends.
    ///
    /// # Errors
    /// A promise that was broken.
    pub(super) fn run(&mut self, events: &[Event], pause: Duration, load: Duration) -> anyhow::Result<()> {
        for event in events.iter().cycle() {
            let millis = u64::try_from(pause.as_millis())?;
            let at =
                self.campaign.elapsed() + Duration::from_millis(millis / 2 + self.random.next() % millis);
            self.campaign.wait_until(at.min(load));
            if self.campaign.elapsed() >= load || self.campaign.is_given_up() {
                return Ok(());
            }
            let begun = Instant::now();
            self.make(*event).with_context(|| format!("{}: {event:?}", self.volume.name))?;
            self.campaign.say(&format!("{}: {event:?} took {:.1?}", self.volume.name, begun.elapsed()));
        }
        Ok(())
    }

    fn make(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Compare => self.compare(),
            Event::Snapshot => self.snapshot(),
            Event::ReadSnapshot => self.read_snapshot(),
            Event::Clone => self.clone_volume(),
            Event::Quota => self.quota(),
            Event::Remount => self.remount(),
            Event::Kill => self.kill(),
            Event::Upgrade => self.upgrade(),
        }
    }

    /// Compares all workers' directories, and what the volume's quota counts.
    fn compare(&self) -> anyhow::Result<()> {
        let mut workers = self.volume.at_rest();
        self.compare_at_rest(&mut workers)
    }

    fn compare_at_rest(
        &self,
        workers: &mut [impl std::ops::DerefMut<Target = Worker>],
    ) -> anyhow::Result<()> {
        workers.iter().try_for_each(|worker| worker.compare())?;
        let bytes: u64 = workers.iter().map(|worker| worker.bytes()).sum();
        let at = self.volume.at().display().to_string();
        // The kernel reports the last close of a file that was removed a moment later.
        let until = Instant::now() + CLOSED_AFTER_MAX;
        loop {
            let used: Value = serde_json::from_str(&self.volume.verb(&["quota", "get", "--json", &at], "")?)?;
            let used = used[0]["used_bytes"].as_u64();
            if used == Some(bytes) {
                break;
            }
            ensure!(Instant::now() < until, "the quota counts {used:?} bytes in place of {bytes}");
        }
        count(&self.counts.compared, 1);
        Ok(())
    }

    fn snapshot(&mut self) -> anyhow::Result<()> {
        if self.snapshots.len() >= SNAPSHOTS_MAX {
            return Ok(());
        }
        self.next += 1;
        let name = format!("s{}", self.next);
        let at = self.volume.at().display().to_string();
        let workers = self.volume.at_rest();
        self.volume.verb(&["snapshot", "create", &at, &name], "there is a snapshot")?;
        let shows: Vec<_> = workers.iter().map(|worker| (worker.name(), worker.image())).collect();
        drop(workers);
        self.snapshots.push(Snapshot { name, shows });
        self.hold();
        count(&self.counts.snapshots, 1);
        Ok(())
    }

    fn read_snapshot(&mut self) -> anyhow::Result<()> {
        let Some(snapshot) = self.snapshots.first() else { return Ok(()) };
        let mounted = self.volume.mount_beside(&self.volume.url, &format!("snapshot={}", snapshot.name))?;
        shows(&self.volume.directory.join("snapshot"), snapshot)?;
        mounted.stop()?;
        if self.random.next().is_multiple_of(2) || self.snapshots.len() == SNAPSHOTS_MAX {
            self.delete_snapshot()?;
        }
        Ok(())
    }

    /// The oldest.
    fn delete_snapshot(&mut self) -> anyhow::Result<()> {
        let name = self.snapshots.remove(0).name;
        let at =
            self.volume.control().map_or(self.volume.url.clone(), |_| self.volume.at().display().to_string());
        self.volume.verb(&["snapshot", "delete", &at, &name], "there is no snapshot")?;
        self.hold();
        Ok(())
    }

    /// What the snapshots show is needed.
    fn hold(&self) {
        let shown = self.snapshots.iter().flat_map(|snapshot| snapshot.shows.iter());
        self.volume.hold(shown.map(|(_, image)| image.clone()).collect());
    }

    fn clone_volume(&mut self) -> anyhow::Result<()> {
        if self.snapshots.is_empty() {
            self.snapshot()?;
        }
        let Some(snapshot) = self.snapshots.first() else { return Ok(()) };
        self.next += 1;
        let name = format!("{}-clone-{}", self.volume.name, self.next);
        let (from, url) = (&self.volume.url, self.server.url(&name));
        self.volume.verb(&["clone-volume", from, &snapshot.name, &url], "there is a volume already")?;
        let mounted = self.volume.mount_beside(&url, "cache=64M")?;
        let at = self.volume.directory.join("snapshot");
        shows(&at, snapshot).context("a clone")?;
        fs::write(at.join("more"), vec![7; PIECE])?;
        File::open(at.join("more"))?.sync_all()?;
        fs::remove_dir_all(at.join(&snapshot.shows[0].0))?;
        mounted.stop()?;
        self.volume.verb(&["fsck", "--data", &url], "").context("a clone")?;
        self.server.remove(&name)?;
        count(&self.counts.clones, 1);
        Ok(())
    }

    /// What a quota forbids is refused, and nothing else is.
    fn quota(&self) -> anyhow::Result<()> {
        let directory = self.volume.at().join("quota");
        let at = directory.display().to_string();
        // A quota of its own takes what is below it from the volume's, so nothing may change meanwhile.
        let workers = self.volume.at_rest();
        fs::create_dir(&directory)?;
        self.volume.verb(&["quota", "set", &at, "--bytes", SMALL_QUOTA], "")?;
        let mut file = File::create(directory.join("file"))?;
        let mut written = 0;
        let refused = loop {
            match file.write_all(&[7; PIECE]) {
                Ok(()) => written += PIECE,
                Err(error) => break error,
            }
            ensure!(written <= 1 << 20, "{written} bytes are beyond the quota");
        };
        ensure!(
            written == 1 << 20 && refused.kind() == ErrorKind::QuotaExceeded,
            "after {written} bytes of the quota: {refused}"
        );
        drop(file);
        self.volume.verb(&["quota", "delete", &at], "has no quota")?;
        fs::remove_dir_all(&directory)?;
        drop(workers);
        count(&self.counts.quotas, 1);
        Ok(())
    }

    fn remount(&mut self) -> anyhow::Result<()> {
        let mut workers = self.volume.at_rest();
        let by_verb = self.random.next().is_multiple_of(2);
        self.volume.unmount(by_verb)?;
        match self.random.next() % 3 {
            0 => self.check()?,
            1 => self.collect()?,
            _ => {}
        }
        self.volume.mount()?;
        count(&self.counts.remounts, 1);
        self.compare_at_rest(&mut workers)
    }

    /// `fsck --data` of the volume.
    ///
    /// # Errors
    /// What it finds.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let said = self.volume.verb(&["fsck", "--data", "--json", &self.volume.url], "")?;
        let found: Value = serde_json::from_str(&said).context("fsck --json")?;
        let findings = found["findings"].as_array().map_or(usize::MAX, Vec::len);
        ensure!(findings == 0, "fsck --data: {said}");
        count(&self.counts.checks, 1);
        Ok(())
    }

    /// `gc` of the volume.
    ///
    /// # Errors
    /// If it fails.
    pub(super) fn collect(&self) -> anyhow::Result<()> {
        self.volume.verb(&["gc", &self.volume.url], "")?;
        count(&self.counts.collections, 1);
        Ok(())
    }

    fn kill(&self) -> anyhow::Result<()> {
        self.volume.kill()?;
        // Those whose calls have failed come to rest.
        let mut workers = self.volume.at_rest();
        self.volume.mount()?;
        for worker in &mut workers {
            count(&self.counts.torn, worker.survive()? as u64);
        }
        count(&self.counts.kills, 1);
        self.compare_at_rest(&mut workers)
    }

    /// Beside the load. In an outage it is refused, and the mount goes on.
    fn upgrade(&self) -> anyhow::Result<()> {
        let at = self.volume.at().display().to_string();
        match self.volume.verb_once(&["upgrade", "--max-pause", "60s", &at]) {
            Ok(_) => count(&self.counts.upgrades, 1),
            Err(error) => {
                self.campaign.say(&format!("{}: {error:#}", self.volume.name));
                count(&self.counts.upgrades_refused, 1);
            }
        }
        self.compare()
    }

    /// Deletes all snapshots.
    ///
    /// # Errors
    /// If that fails.
    pub(super) fn delete_snapshots(&mut self) -> anyhow::Result<()> {
        while !self.snapshots.is_empty() {
            self.delete_snapshot()?;
        }
        Ok(())
    }

    /// The end: everything is compared, unmounted, checked, collected, checked and compared again.
    ///
    /// # Errors
    /// A promise that was broken.
    pub(super) fn end(&mut self) -> anyhow::Result<End> {
        self.delete_snapshots()?;
        let needed = self.volume.needed(Duration::MAX).context("a worker that does not rest")?;
        let mut workers = self.volume.at_rest();
        self.compare_at_rest(&mut workers)?;
        let took = self.volume.unmount(true)?;
        self.check()?;
        let unmounted = self.server.bytes(self.volume.name)?;
        self.collect()?;
        let collected = self.server.bytes(self.volume.name)?;
        self.check()?;
        self.volume.mount()?;
        self.compare_at_rest(&mut workers)?;
        self.volume.unmount(false)?;
        Ok(End { took, needed, unmounted, collected })
    }
}

fn shows(at: &Path, snapshot: &Snapshot) -> anyhow::Result<()> {
    for (name, image) in &snapshot.shows {
        check::exactly(&at.join(name), image)
            .with_context(|| format!("snapshot {}: {name}", snapshot.name))?;
    }
    Ok(())
}
