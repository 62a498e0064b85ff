//! `warm`: brings files of a volume on object storage to the disk cache of its mount.
//!
//! The tree is walked three times: to know how much there is, to send the mount process pieces of
//! files, some calls at a time, and to ask whether they are all there. The process fetches them;
//! nothing is read through the mount. Links are not followed, and what is on another file system or
//! attached is left out.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;
use serde::Serialize;
use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};

use super::sync::find;
use crate::cli::WarmArgs;
use crate::control::api::{WarmPiece, WarmRequest};
use crate::control::client::{CallError, Client};
use crate::control::progress::{REDRAW, Rate};
use crate::host::signals;
use crate::registry::target::RegisteredVolume;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::term::units;

/// Calls under way at a time.
const CALLS: usize = 4;
/// Bytes of a call, unless a file's piece has more; and its pieces.
const CALL_BYTES: u64 = 64 << 20;
const CALL_PIECES: usize = 256;
/// Pieces of one file.
const PIECES_MAX: u64 = 4096;
/// Errors that are shown.
const SHOWN_MAX: usize = 10;
/// The number of a volume's root in its store.
const ROOT: u64 = 1;

/// How far it has come.
#[derive(Debug, Clone, Default, Serialize)]
struct Totals {
    files: u64,
    bytes: u64,
    failed: u64,
    stopped: bool,
    /// Of these bytes, those of files, or of parts of large ones, that were not whole in it at the end.
    gone: u64,
    #[serde(skip)]
    errors: Vec<String>,
}

/// What is warmed.
struct Tree {
    root: OwnedFd,
    path: PathBuf,
    stat: Stat,
    /// Volumes that are attached in it.
    attached: HashSet<PathBuf>,
    /// What the numbers that are seen differ by from those in the store.
    mask: u64,
    stop: Arc<AtomicBool>,
}

/// Runs the verb.
///
/// # Errors
/// Exit 1: there is no disk cache, something could not be fetched or did not fit, or a signal stopped
/// it. Exit 2: the path lies in no volume.
pub fn run(args: &WarmArgs) -> Result<()> {
    let shown = args.path.shown();
    let (volume, _) = find(&args.path)?;
    let client = volume.client()?;
    let bytes_max = check_cache(&volume, client)?;
    let tree = Tree::open(&args.path, &volume, client)?;
    let stop = Arc::clone(&tree.stop);
    // ORDERING: Relaxed, a flag of its own; what was done is counted under a lock.
    let watched = signals::watch(move |_| {
        stop.store(true, Ordering::Relaxed);
        true
    });
    watched.map_err(|error| Problem::failure(format!("cannot handle signals: {error}")))?;
    let mut all = Totals::default();
    tree.walk(&mut |_, size| {
        console().status(&format!("{shown}: {}", units::count(all.files, "file", "files")));
        all.files += 1;
        all.bytes = all.bytes.saturating_add(size);
        true
    })?;
    let begun = Instant::now();
    let mut done = warm(&tree, client, &all, false)?;
    if !done.stopped {
        let there = warm(&tree, client, &all, true)?;
        done.gone = done.bytes.saturating_sub(there.bytes);
        done.stopped = there.stopped;
        done.failed += there.failed;
        done.errors.extend(there.errors);
    }
    console().clear_status();
    if args.json {
        console().print_value(&done)?;
    }
    done.errors.iter().for_each(|error| console().say(error));
    let (files, bytes) = (units::count(done.files, "file", "files"), units::bytes(done.bytes));
    if done.stopped {
        return Err(Problem::failure(format!(
            "{shown}: stopped: {files} with {bytes} were brought to the disk cache"
        )));
    }
    if done.failed > 0 {
        let failed = units::count(done.failed, "file", "files");
        return Err(Problem::failure(format!("{shown}: {failed} could not be fetched; {files} could")));
    }
    if done.gone > 0 {
        let (gone, most) = (units::bytes(done.gone), units::bytes(bytes_max));
        return Err(Problem::failure(format!(
            "{shown}: of {files} with {bytes}, files or parts of files with {gone} are not whole in the disk cache any \
             more, which may take {most}: where that is less, mount with a larger -o disk_cache_size, or warm a part \
             of the tree"
        )));
    }
    if !args.json {
        let took = units::duration(begun.elapsed());
        console().print(&format!("{shown}: {files} with {bytes} are in the disk cache, in {took}"));
    }
    Ok(())
}

/// The most bytes that the volume's disk cache takes.
fn check_cache(volume: &RegisteredVolume, client: &Client) -> Result<u64> {
    let at = &volume.record().mountpoint;
    let status = client.status().map_err(|error| Problem::failure(format!("{at}: {error}")))?;
    match status.store_requests.and_then(|requests| requests.disk_cache) {
        Some(cache) if cache.on => Ok(cache.bytes_max),
        Some(_) => Err(Problem::failure(format!(
            "{at}: its disk cache was switched off by an error of the disk; the log says which"
        ))),
        None => Err(Problem::failure(format!(
            "{at}: it has no disk cache; a volume on object storage that is mounted with -o disk_cache=DIR has one"
        ))),
    }
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Problem {
    Problem::failure(format!("{}: {error}", path.shown()))
}

impl Tree {
    fn open(name: &OsStr, volume: &RegisteredVolume, client: &Client) -> Result<Self> {
        let path = std::fs::canonicalize(name).map_err(|error| failed(Path::new(name), error))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let root = root.map_err(|error| failed(&path, std::io::Error::from(error)))?;
        let stat = rustix::fs::fstat(&root).map_err(|error| failed(&path, std::io::Error::from(error)))?;
        let of_volume = statat(CWD, volume.record().mountpoint.as_str(), AtFlags::SYMLINK_NOFOLLOW);
        let of_volume = of_volume.map_err(|error| failed(&path, std::io::Error::from(error)))?;
        if of_volume.st_dev != stat.st_dev {
            return Err(Problem::usage(format!("{}: it is on another file system", path.shown())));
        }
        // Without the list, files of an attached volume would be taken for this one's.
        let attached = client.attached().map_err(|error| failed(&path, error))?;
        let attached = attached.iter().map(|status| PathBuf::from(status.mountpoint.as_str()));
        let attached = attached.filter(|at| *at != path).collect();
        let (mask, stop) = (of_volume.st_ino ^ ROOT, Arc::default());
        Ok(Self { root, path, stat, attached, mask, stop })
    }

    fn is_stopped(&self) -> bool {
        // ORDERING: Relaxed, as where it is set.
        self.stop.load(Ordering::Relaxed)
    }

    /// Calls `each` for each regular file (its number in the store, its bytes) until it says no.
    fn walk(&self, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let size = |stat: &Stat| u64::try_from(stat.st_size).unwrap_or(0);
        let mut give = |stat: &Stat| each(stat.st_ino ^ self.mask, size(stat)) && !self.is_stopped();
        match FileType::from_raw_mode(self.stat.st_mode) {
            FileType::RegularFile => {
                give(&self.stat);
                return Ok(());
            }
            FileType::Directory => {}
            _ => return Err(Problem::usage(format!("{}: no file and no directory", self.path.shown()))),
        }
        let mut dirs = vec![PathBuf::from(".")];
        while let Some(below) = dirs.pop() {
            let Some(dir) = self.open_dir(&below)? else { continue };
            let entries = Dir::read_from(&dir).map_err(|error| self.failed(&below, error))?;
            for entry in entries {
                let entry = entry.map_err(|error| self.failed(&below, error))?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                // Removed since it was listed: nothing to be warmed.
                let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                if stat.st_dev != self.stat.st_dev {
                    continue;
                }
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile if !give(&stat) => return Ok(()),
                    FileType::Directory => dirs.push(below.join(name)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A directory of the tree; none: it is gone, is another volume's, or is none any more.
    fn open_dir(&self, below: &Path) -> Result<Option<OwnedFd>> {
        let path: PathBuf = self.path.join(below).components().collect();
        if self.attached.contains(&path) {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        match openat2(&self.root, below, flags, Mode::empty(), resolve) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(error) => Err(self.failed(below, error)),
        }
    }

    fn failed(&self, below: &Path, error: Errno) -> Problem {
        failed(&self.path.join(below), std::io::Error::from(error))
    }
}

/// Pieces of files in calls of a size.
struct Calls<'a> {
    to: &'a SyncSender<WarmRequest>,
    next: WarmRequest,
    bytes: u64,
}

impl Calls<'_> {
    /// Adds a file; returns false when all workers have ended.
    fn add(&mut self, file: u64, size: u64) -> bool {
        // A size is what the file's owner says: holes of it take no time, and few calls.
        let piece = CALL_BYTES.max(size / PIECES_MAX);
        let mut offset = 0;
        loop {
            let len = (size - offset).min(piece);
            self.next.pieces.push(WarmPiece { file, offset, len });
            (self.bytes, offset) = (self.bytes.saturating_add(len), offset + len);
            let is_full = self.bytes >= CALL_BYTES || self.next.pieces.len() >= CALL_PIECES;
            if is_full && !self.send() {
                return false;
            }
            if offset >= size {
                return true;
            }
        }
    }

    fn send(&mut self) -> bool {
        self.bytes = 0;
        let next = std::mem::take(&mut self.next);
        next.pieces.is_empty() || self.to.send(next).is_ok()
    }
}

/// Warms the tree; or, to `check`, finds out how much of it is there.
fn warm(tree: &Tree, client: &Client, all: &Totals, check: bool) -> Result<Totals> {
    let done = Mutex::new(Totals::default());
    let (to, calls) = sync_channel::<WarmRequest>(CALLS);
    let calls = Mutex::new(Some(calls));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..CALLS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let next = calls.lock().as_ref().and_then(|calls| calls.recv().ok());
                        let Some(request) = next.filter(|_| !tree.is_stopped()) else {
                            calls.lock().take();
                            return Ok(());
                        };
                        if let Err(error) = call(client, &WarmRequest { check, ..request }, &done) {
                            // The walk ends: no worker takes its calls.
                            calls.lock().take();
                            return Err(failed(&tree.path, error));
                        }
                    }
                })
            })
            .collect();
        let (ended, is_ended) = std::sync::mpsc::channel::<()>();
        let (done, shown) = (&done, tree.path.shown());
        scope.spawn(move || {
            let mut rate = Rate::default();
            while is_ended.recv_timeout(REDRAW) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let done = done.lock().clone();
                console().status(&line(
                    &shown.to_string(),
                    &done,
                    all,
                    rate.update(Instant::now(), done.bytes),
                ));
            }
        });
        let mut sender = Calls { to: &to, next: WarmRequest::default(), bytes: 0 };
        let walked = tree.walk(&mut |file, size| sender.add(file, size));
        if !tree.is_stopped() {
            sender.send();
        }
        drop(to);
        let results: Vec<Result<()>> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        drop(ended);
        results.into_iter().collect::<Result<()>>().and(walked)
    })?;
    let mut done = done.into_inner();
    done.stopped = tree.is_stopped();
    Ok(done)
}

fn call(client: &Client, request: &WarmRequest, done: &Mutex<Totals>) -> std::result::Result<(), CallError> {
    let reply = client.warm(request)?;
    let mut done = done.lock();
    let failed: HashSet<u64> = reply.failed.iter().map(|failed| failed.file).collect();
    let whole = request.pieces.iter().filter(|piece| piece.offset == 0 && !failed.contains(&piece.file));
    done.files += whole.count() as u64;
    done.bytes = done.bytes.saturating_add(reply.bytes);
    done.failed += failed.len() as u64;
    let room = SHOWN_MAX.saturating_sub(done.errors.len());
    done.errors.extend(reply.failed.iter().take(room).map(|failed| failed.error.to_string()));
    Ok(())
}

/// `/mnt: 12 of 100 files, 1.0 MiB of 9.0 MiB, 512.0 KiB/s, 16.0 s left`.
fn line(shown: &str, done: &Totals, all: &Totals, rate: u64) -> String {
    let (bytes, of) = (units::bytes(done.bytes), units::bytes(all.bytes));
    let mut text =
        format!("{shown}: {} of {} files, {bytes} of {of}, {}/s", done.files, all.files, units::bytes(rate));
    if let Some(seconds) = all.bytes.saturating_sub(done.bytes).checked_div(rate) {
        text.push_str(&format!(", {} left", units::duration(Duration::from_secs(seconds))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_go_in_pieces_and_small_ones_together() {
        let (to, calls) = sync_channel(100);
        let mut sender = Calls { to: &to, next: WarmRequest::default(), bytes: 0 };
        assert!((0..300).all(|file| sender.add(file, 1000)));
        assert!(sender.add(300, CALL_BYTES + 10));
        assert!(sender.send() && sender.send());
        drop(to);
        let calls: Vec<WarmRequest> = calls.iter().collect();
        let pieces: Vec<usize> = calls.iter().map(|call| call.pieces.len()).collect();
        assert_eq!(pieces, [256, 45, 1]);
        assert_eq!(calls[2].pieces[0], WarmPiece { file: 300, offset: CALL_BYTES, len: 10 });
    }

    #[test]
    fn the_line_has_files_bytes_rate_and_what_is_left() {
        let all = Totals { files: 100, bytes: 9 << 20, ..Totals::default() };
        let done = Totals { files: 12, bytes: 1 << 20, ..Totals::default() };
        let text = line("/mnt", &done, &all, 512 << 10);
        assert_eq!(text, "/mnt: 12 of 100 files, 1.0 MiB of 9.0 MiB, 512.0 KiB/s, 16.0 s left");
        assert!(line("/mnt", &done, &all, 0).ends_with("/s"), "nobody knows how long");
    }
}
