//! The rate of the limited cgroup while others sync, and of its neighbours: counted on the store
//! itself, by the clock on the wall.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::client::Call;
use super::mounted::LIMIT_MIB;
use super::rig::{LONG, MountDir, Rig};
use super::{FSYNC, MIB, OF_LIMIT, RATE, THROTTLED_AGAIN};
use crate::report::Recorder;

/// How long others sync without end: so long that the part of its room that the cgroup happens to
/// use at either end is little beside it.
const fn busy(is_quick: bool) -> Duration {
    Duration::from_secs(if is_quick { 12 } else { 30 })
}
/// The pause between their syncs.
const PAUSE: Duration = Duration::from_millis(300);
/// The most that the cgroup may have dirty and owe together.
const ROOM_MIB: u64 = 64;
/// The room where the whole run is counted, its beginning included.
const SMALL_ROOM_MIB: u64 = 2;
/// The fsyncs of a victim, and the limit of its neighbour.
const FSYNCS: usize = 50;
const NEIGHBOUR: &str = "1M";
/// The same rate straight to the store: the size of a piece, as in write-back, and the time of
/// each.
const DIRECT_PIECE: usize = 8 << 10;
const DIRECT_EACH: Duration = Duration::from_nanos(1_000_000_000 / 128);
/// The interval at which the store is read, and the time over which a rate is computed.
const LOOK: Duration = Duration::from_millis(2);
const WINDOW: Duration = Duration::from_millis(20);
/// How long it is checked before and after a sync.
const BESIDE: Duration = Duration::from_secs(1);

pub(super) fn notes() -> Vec<String> {
    vec![
        format!(
            "`neighbour_of_limit`: bytes on the store, as its own file system counts them, over the time on the wall, of what the limit of {LIMIT_MIB} MiB/s \
             allows, while the limited cgroup's writers write new data without end and another cgroup calls syncfs each {} ms. `steady`: {} s, from one sync to another, once the \
             room for what is dirty and owed ({ROOM_MIB} MiB) is used up; nothing is taken off for debts. `whole-run`: the same from the first byte on, with a room of \
             {SMALL_ROOM_MIB} MiB, which is what a run may have more than its limit.",
            PAUSE.as_millis(),
            busy(false).as_secs()
        ),
        format!(
            "`neighbour_mb_per_s` (MiB): what the limited cgroup's data does on the store in the second before a syncfs of another cgroup (`before-sync`), while that \
             runs (`during-sync`), in the second after it (`after-sync`: it pays its debt) and in the five seconds from its beginning (`around-sync`). `throttled_again`: from the sync's return until the last time at which more \
             than twice the limit came within {} ms.",
            WINDOW.as_millis()
        ),
        format!(
            "`neighbour`: {FSYNCS} times a write of 4 KiB and fdatasync(2) by another cgroup, beside sixteen writers whose cgroup may write {NEIGHBOUR} a second and whose queue is \
             full; `neighbour-alone`: without them; `neighbour-store`: beside a program that writes as much straight to the store's directory, past the mount: what of it \
             is the store's own share. All three in turn."
        ),
    ]
}

/// The limited cgroup's average while others sync all the time.
pub(super) fn of_limit(
    dir: &MountDir,
    scenario: &str,
    is_quick: bool,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let is_whole = scenario == "whole-run";
    let room = if is_whole { SMALL_ROOM_MIB } else { ROOM_MIB };
    let rig = Rig::new(dir, "boost", &format!("{LIMIT_MIB}M"), room)?;
    let (mut before, mut begun) = (rig.on_store()?, Instant::now());
    let writers = if is_whole { rig.begin_writing("busy.")? } else { rig.write_without_end("busy.")? };
    if is_whole {
        // Programs take their time to start: from the first byte on.
        let started = Instant::now();
        while rig.on_store()? == before {
            ensure!(started.elapsed() < LONG, "the writers write nothing");
            begun = Instant::now();
            std::thread::sleep(LOOK);
        }
    } else {
        // The dirty data that they may have is written, and owed from now on.
        for _ in 0..3 {
            begun = rig.once(Call::Syncfs, "")?.until;
            before = rig.on_store()?;
        }
    }
    let mut ended = begun;
    while ended.duration_since(begun) < busy(is_quick) {
        std::thread::sleep(PAUSE);
        ended = rig.once(Call::Syncfs, "")?.until;
    }
    let bytes = rig.on_store()? - before;
    drop(writers);
    let allowed = ended.duration_since(begun).as_secs_f64() * (LIMIT_MIB * MIB) as f64;
    recorder.value(scenario, "boost", OF_LIMIT, bytes as f64 / allowed * 100.0);
    rig.rest()?;
    rig.remove("busy.")?;
    rig.end()
}

/// The bytes on the store, with their times.
struct Seen(Vec<(Instant, u64)>);

impl Seen {
    /// Bytes that had come by then.
    fn by(&self, time: Instant) -> u64 {
        let last = self.0.iter().take_while(|(at, _)| *at <= time).last();
        last.or(self.0.first()).map_or(0, |(_, bytes)| *bytes)
    }

    /// MiB a second in a time.
    fn rate(&self, from: Instant, time: Duration) -> f64 {
        let bytes = self.by(from + time).saturating_sub(self.by(from));
        bytes as f64 / MIB as f64 / time.as_secs_f64()
    }

    /// How long after `end` more than twice the limit still came.
    fn throttled_after(&self, end: Instant) -> Duration {
        let most = 2.0 * LIMIT_MIB as f64;
        let later = self.0.iter().filter(|(at, _)| *at >= end + WINDOW);
        let over = later.filter(|(at, _)| self.rate(*at - WINDOW, WINDOW) > most);
        over.map(|(at, _)| at.duration_since(end)).max().unwrap_or_default()
    }
}

/// The store before, during and after one sync of another cgroup.
pub(super) fn around(dir: &MountDir, recorder: &mut Recorder) -> anyhow::Result<()> {
    let rig = Rig::new(dir, "boost", &format!("{LIMIT_MIB}M"), ROOM_MIB)?;
    let writers = rig.write_without_end("around.")?;
    let (stop, stopped) = channel::<()>();
    let of = &rig;
    let (seen, took) = std::thread::scope(|scope| {
        let looks = scope.spawn(move || {
            let mut seen = Vec::new();
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                seen.push((Instant::now(), of.on_store()?));
            }
            anyhow::Ok(Seen(seen))
        });
        std::thread::sleep(BESIDE);
        let took = rig.once(Call::Syncfs, "");
        std::thread::sleep(5 * BESIDE);
        drop(stop);
        (looks.join(), took)
    });
    let seen = seen.map_err(|_| anyhow::anyhow!("the observer panicked"))??;
    let took = took?;
    let begun = took.until - took.time;
    let mut rate = |scenario, from, time| recorder.value(scenario, "boost", RATE, seen.rate(from, time));
    rate("before-sync", begun - BESIDE * 9 / 10, BESIDE * 9 / 10);
    rate("during-sync", begun, took.time);
    rate("after-sync", took.until, BESIDE);
    rate("around-sync", begun, 5 * BESIDE);
    let again = seen.throttled_after(took.until).as_secs_f64() * 1e3;
    recorder.value("after-sync", "boost", THROTTLED_AGAIN, again);
    drop(writers);
    rig.rest()?;
    rig.remove("around.")?;
    rig.end()
}

/// A writer to the store's directory itself, past the mount, with the rate of the limited cgroup;
/// until this is dropped.
struct Direct {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<std::io::Result<u64>>>,
}

impl Direct {
    fn begin(path: PathBuf) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let file = File::create(path)?;
        let write = move || {
            let (begun, mut number) = (Instant::now(), 0);
            loop {
                file.write_all_at(&[7; DIRECT_PIECE], u64::from(number) * DIRECT_PIECE as u64)?;
                number += 1;
                let next = begun + DIRECT_EACH * number;
                let left = next.saturating_duration_since(Instant::now());
                if stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                    return Ok(u64::from(number));
                }
            }
        };
        Ok(Self { stop: Some(stop), thread: Some(std::thread::spawn(write)) })
    }

    /// Ends it; returns how many pieces it wrote.
    fn end(mut self) -> anyhow::Result<u64> {
        drop(self.stop.take());
        let thread = self.thread.take().context("it runs")?;
        Ok(thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??)
    }
}

/// A victim's fsyncs, alone, beside a writer with the same rate to the store itself, and beside the
/// limited cgroup's queue, in turn.
pub(super) fn neighbour(dir: &MountDir, rounds: usize, recorder: &mut Recorder) -> anyhow::Result<()> {
    let rig = Rig::new(dir, "boost", NEIGHBOUR, ROOM_MIB)?;
    let victim = || -> anyhow::Result<f64> {
        let file = dir.mountpoint().join("victim");
        let took = dir.time(&rig.other, Call::WriteFdatasync, &file, FSYNCS)?;
        Ok(took.iter().map(|took| took.ms()).sum())
    };
    victim()?;
    for round in 0..rounds {
        recorder.value("neighbour-alone", "boost", FSYNC, victim()?);
        let beside = dir.path("beside");
        let direct = Direct::begin(beside.clone())?;
        std::thread::sleep(BESIDE / 10);
        let took = victim();
        ensure!(direct.end()? > 1, "the writer beside it did not come to write");
        std::fs::remove_file(beside)?;
        recorder.value("neighbour-store", "boost", FSYNC, took?);
        let name = format!("queue{round}.");
        let writers = rig.write_without_end(&name)?;
        let took = victim()?;
        drop(writers);
        recorder.value("neighbour", "boost", FSYNC, took);
        rig.rest()?;
        rig.remove(&name)?;
    }
    rig.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks each 2 ms at a store to which so many bytes come in each, for so long: one after the
    /// other.
    fn seen(from: Instant, parts: &[(u64, Duration)]) -> Seen {
        let (mut at, mut bytes) = (from, 0);
        let mut seen = Vec::new();
        for (each, time) in parts {
            let until = at + *time;
            while at < until {
                seen.push((at, bytes));
                (at, bytes) = (at + LOOK, bytes + each);
            }
        }
        Seen(seen)
    }

    #[test]
    fn a_cgroup_is_throttled_again_when_its_rate_is_and_not_before() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let limit = LIMIT_MIB * MIB / 500;
        let at_once = seen(begun, &[(limit, second), (0, second), (limit, second)]);
        assert_eq!(at_once.throttled_after(begun + second), Duration::ZERO);
        assert!((at_once.rate(begun, second) / LIMIT_MIB as f64 - 1.0).abs() < 0.01);
        let late = seen(begun, &[(limit, second), (10 * limit, second / 10), (limit, second)]);
        let took = late.throttled_after(begun + second);
        assert!(took >= second / 10 && took <= second / 10 + WINDOW, "{took:?}");
    }
}
