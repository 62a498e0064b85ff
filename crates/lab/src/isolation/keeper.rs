//! The process that waits for the stalled stores, and that cleans up: this executable,
//! `lab isolation-keeper DIR`.
//!
//! Its threads wait in fsync(2), each for one stalled volume. Such a thread cannot be killed, and
//! would keep the lab. Should the lab be gone without a message (SIGKILL, a second Ctrl-C), the
//! keeper ends the stopped server, takes away all mounts below the directory, by force, and removes
//! it: a stopped FUSE server that is left behind makes sync(2), statfs(2) and half of the host's
//! programs wait.
//!
//! It gets commands as lines, and answers each with `ok`, or with the error. `dirty FILE`: make it,
//! with 4 KiB to be written. `fsync`: sync all of them, each by a thread. `waiting`: how many of
//! these calls have not returned. `server PID`: the process to end. `cgroup DIR`: a cgroup to be
//! removed, with its children. `leave`: go, there is nothing left to clean up.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::tenants;

/// The first argument of such a process.
pub(crate) const COMMAND: &str = "isolation-keeper";

/// The stack of a thread that does nothing but wait.
const STACK: usize = 64 << 10;
/// How often it is tried to leave nothing, and the time between: five minutes, since mount
/// processes have their data to write before they end.
const ATTEMPTS: usize = 6000;
const AGAIN: Duration = Duration::from_millis(50);

/// The process: `isolation-keeper DIR`.
pub(crate) fn main(directory: Option<OsString>) -> ExitCode {
    let Some(directory) = directory else {
        eprintln!("lab {COMMAND}: no directory given");
        return ExitCode::from(2);
    };
    let mut own = Own::default();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == "leave" {
            return ExitCode::SUCCESS;
        }
        let answer = own.obey(&line).unwrap_or_else(|error| format!("{error:#}"));
        let mut out = std::io::stdout();
        if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    own.clean_up(Path::new(&directory));
    ExitCode::SUCCESS
}

/// The process's state.
#[derive(Default)]
struct Own {
    server: Option<OwnedFd>,
    cgroup: Option<PathBuf>,
    dirty: Vec<File>,
    waiting: Arc<AtomicUsize>,
}

impl Own {
    fn obey(&mut self, line: &str) -> anyhow::Result<String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "server" => {
                let pid = Pid::from_raw(rest.parse()?).context("no process")?;
                self.server = Some(pidfd_open(pid, PidfdFlags::empty())?);
            }
            "cgroup" => self.cgroup = Some(PathBuf::from(rest)),
            "dirty" => {
                let mut file = File::create_new(rest).with_context(|| format!("cannot make {rest}"))?;
                file.write_all(&[7; 4096]).with_context(|| format!("cannot write {rest}"))?;
                self.dirty.push(file);
            }
            "fsync" => {
                for file in self.dirty.drain(..) {
                    let waiting = Arc::clone(&self.waiting);
                    // ORDERING: Relaxed, as below: a count, which publishes nothing.
                    self.waiting.fetch_add(1, Ordering::Relaxed);
                    thread::Builder::new().stack_size(STACK).spawn(move || {
                        // Only that it returned matters: nothing is promised beside a stalled
                        // store.
                        let _in_any_way = file.sync_all();
                        // ORDERING: Relaxed, as above.
                        waiting.fetch_sub(1, Ordering::Relaxed);
                    })?;
                }
            }
            // ORDERING: Relaxed, as above.
            "waiting" => return Ok(format!("ok {}", self.waiting.load(Ordering::Relaxed))),
            _ => bail!("`{verb}` is not a command"),
        }
        Ok("ok".to_owned())
    }

    /// Leaves nothing that the lab made. The kernel ends mount processes when the lab is gone, and
    /// they need a moment for it.
    fn clean_up(&self, directory: &Path) {
        if let Some(server) = &self.server {
            let _gone_already = pidfd_send_signal(server, Signal::KILL);
        }
        for _ in 0..ATTEMPTS {
            // The innermost come last in the table.
            for place in mounts_below(directory).iter().rev() {
                let _another_time = rustix::mount::unmount(place, UnmountFlags::FORCE | UnmountFlags::DETACH);
            }
            // Never into a directory that is still mounted.
            if mounts_below(directory).is_empty() {
                let _somebody_writes_still = fs::remove_dir_all(directory);
            }
            // The cgroup's processes end as the mount processes do.
            let is_there = |cgroup: &PathBuf| tenants::remove(cgroup).is_err() && cgroup.exists();
            if !self.cgroup.as_ref().is_some_and(is_there) && !directory.exists() {
                return;
            }
            thread::sleep(AGAIN);
        }
    }
}

/// The mounts there and below, in the order of the table.
pub(super) fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Paths of the lab's own making have no characters that the table escapes.
    let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    places.filter(|place| place.starts_with(directory)).collect()
}

/// The process, as the lab sees it.
#[derive(Debug)]
pub(super) struct Keeper {
    child: Child,
    /// Taken away at the end.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Keeper {
    pub(super) fn start(directory: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A Ctrl-C on the terminal is the lab's.
        let mut child = command.process_group(0).spawn().context("the keeper does not start")?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("it has an output")?);
        Ok(Self { child, orders, answers })
    }

    fn tell(&mut self, line: &[&OsStr]) -> anyhow::Result<String> {
        let line = line.join(OsStr::new(" ")).into_string().ok().context("a path that is not UTF-8")?;
        let orders = self.orders.as_mut().context("the keeper has left")?;
        writeln!(orders, "{line}").context("the keeper is gone")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        match answer.trim_end().strip_prefix("ok") {
            Some(said) => Ok(said.trim_start().to_owned()),
            None => bail!("the keeper: {}", answer.trim_end()),
        }
    }

    /// Sets the server that it ends if the lab does not.
    pub(super) fn watch(&mut self, server: u32) -> anyhow::Result<()> {
        self.tell(&["server".as_ref(), server.to_string().as_ref()]).map(drop)
    }

    /// Sets the cgroup that it removes if the lab does not.
    pub(super) fn watch_cgroup(&mut self, directory: &Path) -> anyhow::Result<()> {
        self.tell(&["cgroup".as_ref(), directory.as_ref()]).map(drop)
    }

    /// Makes a file with something to be written.
    pub(super) fn dirty(&mut self, file: &Path) -> anyhow::Result<()> {
        self.tell(&["dirty".as_ref(), file.as_ref()]).map(drop)
    }

    /// Syncs all these files, each by a thread; does not wait for them.
    pub(super) fn fsync(&mut self) -> anyhow::Result<()> {
        self.tell(&["fsync".as_ref()]).map(drop)
    }

    /// How many of these calls have not returned.
    pub(super) fn waiting(&mut self) -> anyhow::Result<usize> {
        Ok(self.tell(&["waiting".as_ref()])?.parse()?)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(mut orders) = self.orders.take() {
            let _gone_already = writeln!(orders, "leave");
        }
        let _ended_already = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_what_it_is_told_and_says_what_it_cannot() {
        let directory = tempfile::tempdir().unwrap();
        let mut own = Own::default();
        let file = directory.path().join("file");
        assert_eq!(own.obey(&format!("dirty {}", file.display())).unwrap(), "ok");
        assert_eq!(fs::read(&file).unwrap(), [7; 4096]);
        assert!(own.obey(&format!("dirty {}", file.display())).is_err(), "it is there");
        assert_eq!(own.obey("waiting").unwrap(), "ok 0");
        assert_eq!(own.obey("fsync").unwrap(), "ok");
        // Of a store that answers, all return.
        while own.obey("waiting").unwrap() != "ok 0" {
            thread::yield_now();
        }
        assert!(format!("{}", own.obey("dance").unwrap_err()).contains("`dance`"));
        assert!(own.obey("server nobody").is_err());
    }

    #[test]
    fn what_is_left_is_removed_with_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        fs::create_dir_all(place.join("below")).unwrap();
        fs::write(place.join("below/file"), "x").unwrap();
        // A cgroup is a directory of directories here.
        let cgroup = directory.path().join("cgroup");
        fs::create_dir_all(cgroup.join("inner/innermost")).unwrap();
        let mut own = Own::default();
        assert_eq!(own.obey(&format!("cgroup {}", cgroup.display())).unwrap(), "ok");
        own.clean_up(&place);
        assert!(!place.exists() && !cgroup.exists() && directory.path().exists());
    }
}
