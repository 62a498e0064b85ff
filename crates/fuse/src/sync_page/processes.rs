//! Looks into each process of the host, by files of `/proc` that may hang.
//!
//! The kernel gives much of what it knows of a process (`stat` and `syscall` among it, Linux 6.18)
//! under a lock that the process itself has while it is in execve(2), until it has closed the files
//! that are not to outlive the call. The server of one of these may hang, and with it each thread
//! that reads there, uninterruptibly: any user of the host can bring that about. So another thread
//! looks, and is left behind where it hangs.
//!
//! A process where it does is in execve(2), all of its threads but one have ended, and it is in no
//! other call. That the thread hangs, and is not only slow, shows in its own `status`: it sleeps in
//! state `D`, and has not woken since it was looked at before.
//!
//! # Lock order
//! `HANGING` is a leaf.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use sync::Mutex;

use crate::threads::spawn;

/// How long a look at one process may take until another thread goes on with the next.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a thread has to sleep until it is one that hangs.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// So many threads may look at the same time in this process, those that are left behind among them:
/// one whose search ended before its time may hang as well.
const LOOKERS_MAX: usize = 32;
static LOOKERS: AtomicUsize = AtomicUsize::new(0);

/// The looks that have not returned, by process.
static HANGING: LazyLock<Mutex<BTreeMap<PathBuf, Sleeper>>> = LazyLock::new(Mutex::default);

/// What a look at a process has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// This.
    Seen(T),
    /// Nothing yet.
    Unknown,
    /// The process is in execve(2), and in no other call.
    InExecve,
}

/// A thread that may hang.
#[derive(Debug)]
struct Sleeper {
    task: PathBuf,
    /// How often it has slept, as text that is only compared.
    sleeps: Option<String>,
    since: Instant,
}

impl Sleeper {
    fn new(task: PathBuf) -> Self {
        let sleeps = sleeps(&task);
        Self { task, sleeps, since: Instant::now() }
    }

    /// Notes where it is now; says whether it has slept since it was first looked at.
    fn check_hangs(&mut self) -> bool {
        let now = sleeps(&self.task);
        if now.is_none() || now != self.sleeps {
            (self.sleeps, self.since) = (now, Instant::now());
            return false;
        }
        self.since.elapsed() >= HANGS_AFTER
    }
}

/// How often a thread of this process has gone to sleep; `None` if it is not in uninterruptible
/// sleep.
fn sleeps(task: &Path) -> Option<String> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_asleep = field("State:")?.starts_with('D');
    field("voluntary_ctxt_switches:").filter(|_| is_asleep).map(str::to_owned)
}

/// A place among the threads that look.
#[derive(Debug)]
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let more = |now: usize| (now < LOOKERS_MAX).then_some(now + 1);
        // ORDERING: Relaxed, a count that publishes nothing.
        LOOKERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // ORDERING: Relaxed, as in `take`.
        LOOKERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that looks into processes, one after the other.
#[derive(Debug)]
struct Looker<T> {
    answers: Receiver<T>,
    task: PathBuf,
}

impl<T: Send + 'static> Looker<T> {
    fn start(place: Place, processes: VecDeque<PathBuf>, look: fn(&Path) -> T) -> io::Result<Self> {
        let (answer, answers) = channel();
        let (report, reported) = channel();
        let body = move || {
            let _until_it_ends = place;
            let tid = rustix::thread::gettid().as_raw_nonzero();
            // Failure, here and below: no thread waits for it any more.
            let _unheard = report.send(PathBuf::from(format!("/proc/self/task/{tid}")));
            for process in processes {
                let is_heard = answer.send(look(&process)).is_ok();
                // After the answer: see `next`.
                HANGING.lock().remove(&process);
                if !is_heard {
                    return;
                }
            }
        };
        spawn("wt-fuse-looks", body)?;
        let task = reported.recv().map_err(io::Error::other)?;
        Ok(Self { answers, task })
    }

    /// What was found in `process`; `None` where it may hang: then this looker is to be dropped.
    fn next(&self, process: &Path) -> Option<T> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(found) => return Some(found),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut hanging = HANGING.lock();
        // Where there is no answer now, the thread takes the process out again afterwards: it needs
        // the lock for that.
        let found = self.answers.try_recv().ok();
        if found.is_none() {
            hanging.insert(process.to_owned(), Sleeper::new(self.task.clone()));
        }
        found
    }
}

/// Calls `look` for each of these directories in `/proc`, and `take` with what it found, in any
/// order, until that returns `false`.
///
/// # Errors
/// Those of making a thread.
pub(super) fn look_into<T: Send + 'static>(
    processes: Vec<PathBuf>,
    look: fn(&Path) -> T,
    mut take: impl FnMut(&Path, Found<T>) -> bool,
) -> io::Result<()> {
    let mut left = VecDeque::with_capacity(processes.len());
    for process in processes {
        let known = HANGING.lock().get_mut(&process).map(Sleeper::check_hangs);
        let found = match known {
            None => {
                left.push_back(process);
                continue;
            }
            Some(true) => Found::InExecve,
            Some(false) => Found::Unknown,
        };
        if !take(&process, found) {
            return Ok(());
        }
    }
    while !left.is_empty() {
        let Some(place) = Place::take() else {
            left.iter().all(|process| take(process, Found::Unknown));
            return Ok(());
        };
        let looker = Looker::start(place, left.clone(), look)?;
        while let Some(process) = left.pop_front() {
            let found = looker.next(&process);
            let is_left_behind = found.is_none();
            if !take(&process, found.map_or(Found::Unknown, Found::Seen)) {
                return Ok(());
            }
            if is_left_behind {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    static IS_SHUT: AtomicBool = AtomicBool::new(true);
    /// One test at a time: they share the places.
    static ALONE: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);

    /// Waits for as long as it is to where it is asked for.
    fn look(process: &Path) -> String {
        // ORDERING: SeqCst, a test's own.
        while process.ends_with("slow") && IS_SHUT.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        process.display().to_string()
    }

    fn found() -> Vec<(String, Found<String>)> {
        let mut all = Vec::new();
        let processes = ["a", "slow", "b"].map(PathBuf::from).to_vec();
        let taken = look_into(processes, look, |process, found| {
            all.push((process.display().to_string(), found));
            true
        });
        taken.unwrap();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    #[test]
    fn one_that_takes_long_keeps_no_other_and_is_looked_at_again() {
        let _alone = ALONE.lock();
        let seen = |name: &str| (name.to_owned(), Found::Seen(name.to_owned()));
        let begun = Instant::now();
        for _ in 0..3 {
            assert_eq!(found(), [seen("a"), seen("b"), ("slow".to_owned(), Found::Unknown)]);
        }
        // A thread that wakes in between does not hang, however long it takes.
        HANGING.lock().get_mut(Path::new("slow")).unwrap().since = begun - 2 * HANGS_AFTER;
        assert_eq!(found()[2].1, Found::Unknown);
        // ORDERING: SeqCst, a test's own.
        IS_SHUT.store(false, Ordering::SeqCst);
        while !HANGING.lock().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(found(), [seen("a"), seen("b"), seen("slow")]);
    }

    #[test]
    fn where_too_many_look_nothing_is_known() {
        let _alone = ALONE.lock();
        let places: Vec<Place> = std::iter::from_fn(Place::take).collect();
        let mut all = Vec::new();
        let taken = look_into(vec![PathBuf::from("e")], look, |_, found| {
            all.push(found);
            true
        });
        taken.unwrap();
        drop(places);
        assert_eq!(all, [Found::Unknown]);
    }

    #[test]
    fn it_ends_where_enough_was_found() {
        let _alone = ALONE.lock();
        let mut calls = 0;
        let processes = vec![PathBuf::from("c"), PathBuf::from("d")];
        look_into(processes, look, |_, _| {
            calls += 1;
            false
        })
        .unwrap();
        assert_eq!(calls, 1);
    }
}
