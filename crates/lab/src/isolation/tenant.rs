//! The user of a neighbour's volume: this executable in a process of its own, in one of the
//! neighbour's cgroups, `lab isolation-tenant WORK …`.
//!
//! | work | action |
//! |---|---|
//! | `rest` | nothing |
//! | `write FILE` | writes new data as fast as it may |
//! | `sync FILE` | writes 4 KiB and calls fsync(2), again and again |
//! | `crowd DIRECTORY COUNT` | so many threads, each of which writes a file of its own as fast as it may |
//! | `map DIRECTORY COUNT` | a crowd through mapped memory |
//! | `churn DIRECTORY SIDE EACH_NS AFTER_NS` | its part of the work of two such processes in turn, see [`next`] |
//!
//! It prints `ready` when it has its files, begins at once, and is ended from outside; `rest` ends
//! when its input is closed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};

use crate::child;
use crate::mapped::Mapped;

/// The first argument of such a process.
pub(crate) const COMMAND: &str = "isolation-tenant";

/// Operations of one side before it is the other's turn: more than the nine foreign writes that
/// change a file's owner.
pub(super) const TURN: u32 = 16;
/// Of these, each so many'th is followed by a file that is made and removed.
pub(super) const NEW_FILE_EACH: u64 = 4;
/// Of each mapped file.
pub(super) const CROWD_PAGES: u64 = 64;
/// Of a thread that makes system calls and no more.
const CROWD_STACK: usize = 64 << 10;
const PAGE: [u8; 4096] = [5; 4096];
/// Of the file that changes its owner.
const CHURNED_PAGES: u64 = 256;
/// The size of a write, and of the file: far more than may be dirty, so that no waiting page is
/// written again.
const BLOCK: usize = 128 << 10;
const WRITTEN: u64 = 16 << 20;

/// The process: `isolation-tenant WORK …`.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    child::exit(COMMAND, work(&arguments.collect::<Vec<_>>()))
}

fn work(arguments: &[OsString]) -> anyhow::Result<()> {
    match arguments {
        [work] if work == "rest" => {
            ready()?;
            let _nobody_holds_it = std::io::stdin().read(&mut [0])?;
            Ok(())
        }
        [work, file] if work == "write" => write_without_end(&open(Path::new(file), 0)?),
        [work, file] if work == "sync" => {
            let file = open(Path::new(file), 0)?;
            ready()?;
            loop {
                file.write_all_at(&PAGE, 0)?;
                file.sync_all()?;
            }
        }
        [work, directory, count] if work == "crowd" => {
            crowd(Path::new(directory), number(count)?, write_pages)
        }
        [work, directory, count] if work == "map" => crowd(Path::new(directory), number(count)?, map_pages),
        [work, directory, side, each, after] if work == "churn" => {
            let (directory, side) = (PathBuf::from(directory), u32::try_from(number(side)?)?);
            let (each, after) = (Duration::from_nanos(number(each)?), Duration::from_nanos(number(after)?));
            ensure!(!each.is_zero(), "an operation takes no time at all");
            churn(&directory, side, each, after)
        }
        _ => bail!(
            "WORK is rest, write FILE, sync FILE, crowd DIRECTORY COUNT, map DIRECTORY COUNT, or churn DIRECTORY SIDE EACH_NS AFTER_NS"
        ),
    }
}

fn number(text: &OsString) -> anyhow::Result<u64> {
    text.to_str().and_then(|text| text.parse().ok()).context("no number")
}

fn open(path: &Path, flags: i32) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).custom_flags(flags);
    options.open(path).with_context(|| format!("cannot open {}", path.display()))
}

fn ready() -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush()).context("nobody asked")
}

fn write_without_end(file: &File) -> anyhow::Result<()> {
    let block = vec![5; BLOCK];
    ready()?;
    for at in (0..WRITTEN).step_by(BLOCK).cycle() {
        file.write_all_at(&block, at)?;
    }
    Ok(())
}

/// So many threads that have each a file of their own; returns when the first of them fails.
fn crowd(directory: &Path, count: u64, write: fn(&File) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let files = (0..count).map(|number| open(&directory.join(format!("crowd.{number}")), 0));
    let files = files.collect::<anyhow::Result<Vec<File>>>()?;
    let (tell, told) = mpsc::channel();
    for file in files {
        let tell = tell.clone();
        let work = move || tell.send(write(&file));
        thread::Builder::new().stack_size(CROWD_STACK).spawn(work)?;
    }
    ready()?;
    told.recv()?
}

/// Writes page after page, always new ones: a dirty page would be overwritten without waiting.
fn write_pages(file: &File) -> anyhow::Result<()> {
    for page in 0.. {
        file.write_all_at(&PAGE, page * PAGE.len() as u64)?;
    }
    Ok(())
}

/// Writes page after page of the mapped file.
fn map_pages(file: &File) -> anyhow::Result<()> {
    let pages = usize::try_from(CROWD_PAGES)?;
    let mapped = Mapped::new(file, pages)?;
    loop {
        (0..pages).for_each(|page| mapped.touch(page));
        // So that the next store is to clean pages again.
        file.sync_all()?;
    }
}

/// Synchronous overwrites of a file that is the other side's too, and new files.
fn churn(directory: &Path, side: u32, each: Duration, after: Duration) -> anyhow::Result<()> {
    let file = open(&directory.join("churned"), libc::O_DSYNC)?;
    let new = directory.join(format!("new.{side}"));
    ready()?;
    for number in 0.. {
        // A clock that both sides have.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.saturating_sub(after);
        std::thread::sleep(next(now, each, side).saturating_sub(now));
        file.write_all_at(&PAGE, number % CHURNED_PAGES * PAGE.len() as u64)?;
        if number % NEW_FILE_EACH == 0 {
            fs::write(&new, PAGE)?;
            fs::remove_file(&new)?;
        }
    }
    Ok(())
}

/// When a side's next operation is due. One is due each `each`; [`TURN`] of them are one side's,
/// and as many then the other's. A side that is late leaves out the ones that it has missed.
fn next(now: Duration, each: Duration, side: u32) -> Duration {
    let (each, turn) = (each.as_nanos(), u128::from(TURN));
    let tick = now.as_nanos() / each + 1;
    let tick = if tick / turn % 2 == u128::from(side) { tick } else { (tick / turn + 1) * turn };
    let nanos = tick * each;
    let second = 1_000_000_000;
    // Times of this century.
    let (whole, rest) = (u64::try_from(nanos / second), u32::try_from(nanos % second));
    Duration::new(whole.unwrap_or(u64::MAX), rest.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_take_turns_and_miss_none() {
        let (each, begun) = (Duration::from_micros(700), Duration::from_secs(1_700_000_000));
        let of = |side: u32| {
            let mut at = begun;
            (0..10 * TURN)
                .map(|_| {
                    at = next(at, each, side);
                    (at, side)
                })
                .collect::<Vec<_>>()
        };
        let mut all = [of(0), of(1)].concat();
        all.sort_unstable();
        let until = of(0).last().unwrap().0.min(of(1).last().unwrap().0);
        all.retain(|(at, _)| *at <= until);
        assert!(all.windows(2).all(|pair| pair[1].0 - pair[0].0 == each), "{all:?}");
        // After the first of them, which may have begun before.
        let mut turns = all.chunk_by(|a, b| a.1 == b.1).map(<[_]>::len).skip(1).collect::<Vec<_>>();
        turns.pop();
        assert!(turns.len() >= 16 && turns.iter().all(|&turn| turn == TURN as usize), "{turns:?}");
    }

    #[test]
    fn who_is_late_is_not_late_for_ever() {
        let each = Duration::from_secs(1);
        assert_eq!(next(Duration::from_millis(1500), each, 0), Duration::from_secs(2));
        assert_eq!(next(Duration::from_millis(9500), each, 0), Duration::from_secs(10));
        assert_eq!(next(Duration::from_millis(15_000), each, 0), Duration::from_secs(32));
    }

    #[test]
    fn an_unknown_work_is_refused() {
        let of = |words: &[&str]| work(&words.iter().map(OsString::from).collect::<Vec<_>>()).unwrap_err();
        assert!(format!("{}", of(&["dance"])).contains("WORK is rest"));
        assert!(format!("{}", of(&["churn", "/", "0", "x", "0"])).contains("no number"));
        assert!(format!("{:#}", of(&["write", "/no/such/place"])).contains("/no/such/place"));
    }
}
