//! The work on the healthy volumes, on each in turn: system calls of the lab's own.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::{AtFlags, StatxFlags, statx};
use serde_json::Value;

use crate::control::Control;
use crate::experiment::Stop;
use crate::mapped::Mapped;
use crate::stats::Histogram;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
/// The file of large writes, and of small ones: both stay in the cache.
const LARGE_MIB: u64 = 16;
const SMALL_PAGES: u64 = 256;
/// Of the file that is written through mapped memory.
const MAPPED_PAGES: usize = 64;
/// Longer than any measurement: a caller that needs so long waits for a neighbour for ever.
const WHOLE_MAX: Duration = Duration::from_secs(600);

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    /// How often each volume's large file is written.
    pub(super) passes: usize,
    /// How long small operations of one kind go on, on all volumes together.
    pub(super) slice: Duration,
    /// How often each volume is synced.
    pub(super) syncs: usize,
    /// Whether files are written through mapped memory as well.
    pub(super) maps: bool,
}

/// A healthy volume.
#[derive(Clone, Debug)]
pub(super) struct Healthy {
    /// Where it is.
    pub(super) at: PathBuf,
    /// Its control socket, if that should sync it: syncfs(2) is for the whole mountpoint that it
    /// shares.
    pub(super) control: Option<Control>,
}

/// The results.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// MB/s of large writes, one for each pass over a file.
    pub(super) large: Vec<f64>,
    /// 4 KiB.
    pub(super) write: Histogram,
    /// 4 KiB, with fsync(2).
    pub(super) fsync: Histogram,
    /// 4 KiB, and a sync of the volume: of that alone.
    pub(super) sync: Histogram,
    /// statx(2) that asks the volume.
    pub(super) stat: Histogram,
    /// A file that is made and removed.
    pub(super) create: Histogram,
    /// A store to a page of mapped memory that is clean.
    pub(super) mapped: Histogram,
}

/// The files of one volume.
struct Victim {
    large: File,
    small: File,
    mapped: Mapped,
    mapped_file: File,
    new: PathBuf,
    at: u64,
    control: Option<Control>,
}

impl Victim {
    fn new(volume: &Healthy) -> anyhow::Result<Self> {
        let make = |name: &str| {
            let path = volume.at.join(name);
            let file = OpenOptions::new().create(true).truncate(false).write(true).read(true).open(&path);
            file.with_context(|| format!("cannot make {}", path.display()))
        };
        let mapped_file = make("mapped")?;
        let mut victim = Self {
            large: make("large")?,
            small: make("small")?,
            mapped: Mapped::new(&mapped_file, MAPPED_PAGES)?,
            mapped_file,
            new: volume.at.join("new"),
            at: 0,
            control: volume.control.clone(),
        };
        // Memory is slow when it is touched for the first time, of caches and of stores.
        let block = vec![1; MIB];
        victim.write_large(&block)?;
        victim.write_large(&block)?;
        for _ in 0..SMALL_PAGES {
            victim.write_small()?;
        }
        victim.small.sync_all()?;
        Ok(victim)
    }

    /// Writes the large file, and syncs it; MB/s of the former.
    #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
    fn write_large(&self, block: &[u8]) -> std::io::Result<f64> {
        let begun = Instant::now();
        for at in 0..LARGE_MIB {
            self.large.write_all_at(block, at * MIB as u64)?;
        }
        let rate = (LARGE_MIB * MIB as u64) as f64 / 1e6 / begun.elapsed().as_secs_f64();
        self.large.sync_all()?;
        Ok(rate)
    }

    fn write_small(&mut self) -> std::io::Result<()> {
        // Not one after the other, and each as often as all others.
        self.at = (self.at + 97) % SMALL_PAGES;
        self.small.write_all_at(&[2; PAGE], self.at * PAGE as u64)
    }

    /// The volume's sync, not the file's.
    fn sync(&self) -> anyhow::Result<()> {
        match &self.control {
            Some(control) => control.call("POST", "/v1/sync", &Value::Null).map(drop),
            None => rustix::fs::syncfs(&self.small).context("syncfs"),
        }
    }

    fn create(&self) -> std::io::Result<()> {
        File::create_new(&self.new)?;
        std::fs::remove_file(&self.new)
    }

    /// Stores to each page in turn. The pages are made clean outside of the measured time.
    fn write_mapped(&self, took: &mut Histogram) -> std::io::Result<()> {
        self.mapped_file.sync_all()?;
        for page in 0..MAPPED_PAGES {
            let begun = Instant::now();
            self.mapped.touch(page);
            took.add(begun.elapsed());
        }
        Ok(())
    }

    fn stat(&self) -> std::io::Result<()> {
        statx(&self.small, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
        Ok(())
    }
}

/// Measures on all `volumes`. The lab does not wait for the measuring thread beyond reason: only
/// the end of the mount can end a call that waits for a store which does not answer.
///
/// # Errors
/// If a call fails, or if it all takes far too long.
pub(super) fn measure(volumes: &[Healthy], amount: Amount, stop: &Stop) -> anyhow::Result<Found> {
    let (volumes, stop) = (volumes.to_vec(), stop.clone());
    let (tell, told) = channel();
    thread::spawn(move || {
        let _nobody_waits_any_more = tell.send(on_all(&volumes, amount, &stop)).is_ok();
    });
    let waits = || format!("a healthy volume did not answer: after {} s", WHOLE_MAX.as_secs());
    told.recv_timeout(WHOLE_MAX).with_context(waits)?
}

fn on_all(volumes: &[Healthy], amount: Amount, stop: &Stop) -> anyhow::Result<Found> {
    let mut victims: Vec<Victim> = volumes.iter().map(Victim::new).collect::<anyhow::Result<_>>()?;
    let block = vec![1; MIB];
    let mut found = Found::default();
    for _ in 0..amount.syncs {
        for victim in &mut victims {
            victim.write_small()?;
            let begun = Instant::now();
            victim.sync()?;
            found.sync.add(begun.elapsed());
        }
    }
    for _ in 0..amount.passes {
        for victim in &victims {
            found.large.push(victim.write_large(&block)?);
        }
        if stop.is_set() {
            return Ok(found);
        }
    }
    let Found { write, fsync, stat, .. } = &mut found;
    each(&mut victims, amount.slice, write, Victim::write_small)?;
    let durable = |victim: &mut Victim| victim.write_small().and_then(|()| victim.small.sync_all());
    each(&mut victims, amount.slice, fsync, durable)?;
    each(&mut victims, amount.slice, stat, |victim| victim.stat())?;
    each(&mut victims, amount.slice, &mut found.create, |victim| victim.create())?;
    if !amount.maps {
        return Ok(found);
    }
    let part = amount.slice / u32::try_from(victims.len()).unwrap_or(1).max(1);
    for victim in &victims {
        let until = Instant::now() + part;
        while Instant::now() < until {
            victim.write_mapped(&mut found.mapped)?;
        }
    }
    Ok(found)
}

/// Has `operation` done on each volume in turn, with an equal part of the time.
fn each(
    victims: &mut [Victim],
    slice: Duration,
    took: &mut Histogram,
    operation: impl Fn(&mut Victim) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let part = slice / u32::try_from(victims.len()).unwrap_or(1).max(1);
    for victim in victims {
        let until = Instant::now() + part;
        let mut begun = Instant::now();
        while begun < until {
            operation(victim)?;
            let now = Instant::now();
            took.add(now - begun);
            begun = now;
        }
        // The rest is written now, and not beside the next one's calls.
        victim.small.sync_all()?;
    }
    Ok(())
}
