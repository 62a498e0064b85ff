//! Syncs of all that is attached to a mountpoint.
//!
//! Purpose: the kernel's SYNCFS, and a sync of the mountpoint by the control socket, mean each
//! attached volume. Threads of this module sync the volumes beside each other. The caller waits for
//! the slowest volume, and not for one that does not answer: that one is left out. A volume is left
//! out from the moment at which it is known to be stalled or given up, before the sync or during
//! it. A stalled volume loses nothing by that: its data stays dirty, is written when the store
//! answers, and each of its files reports its errors as always. A caller that waits for a volume
//! while it is given up gets an error. A caller that comes after that gets none, however long the
//! volume's end waits for its store. At the end of the sync, the caller asks what is in memory
//! whether one of the volumes that were left out has data of its cgroup
//! ([`SyncTarget::has_unsynced_of`]). If so, the sync must not report success.
//!
//! # Runs
//! A sync of one volume on behalf of one cgroup is a *run*, by one thread. For each volume and
//! cgroup there is at most one run. A caller that comes while it is under way waits for the next
//! run, which begins after it and serves all the callers that came meanwhile. So a store that does
//! not answer holds one thread for each cgroup that had asked before this was known, however often
//! it asked; and no cgroup waits for another's limit. A run for which no caller waits any more is
//! cancelled: it ends with the call that it is in.
//!
//! # Access
//! `SyncAll::state`: by its mutex. `Call::outcome`: by its own. `Call::event`: set outside both.
//!
//! # Lock order
//! `SyncAll::state`, then `Call::outcome`. No volume is called while either is held, but for
//! [`SyncTarget::skip_reason`], which takes no lock.
//!
//! # Late errors
//! The error of a run for which no caller waited any more is reported to the next sync by the same
//! cgroup, which had asked for that run. [`UNREPORTED_MAX`] such errors are kept apart by cgroup.
//! One beyond these is reported to the next sync of its volume by any cgroup: no error is lost, and
//! cgroups that never come back take no more memory.
//!
//! # Orderings
//! P1: a volume is known to be out, then [`SyncAll::skip_stalled`] (or [`SyncAll::abort`]) takes
//! `state` and scans the runs. A caller checks whether the volume is out and enters itself for a
//! run, both under `state`. Either the caller sees that the volume is out, or the other thread
//! finds it among those that wait.
//!
//! # Shutdown
//! Threads end when nothing is queued. [`SyncAll::end`] waits for that as long as the session does
//! for its other threads, and counts those that hang.

#[cfg(all(test, shuttle))]
mod schedules;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::ErrorKind;
use sync::mutant::is_on;
use sync::{Condvar, Mutex, thread};
use volume::{Cancel, CgroupPath, Error, Result, WakeEvent};

use crate::admission::capacity;

/// Threads that one call begins with.
const AT_ONCE: usize = 4;
/// If no run has begun for this long although one is due, there are to be twice as many threads.
const TICK: Duration = Duration::from_millis(5);
const STACK_BYTES: usize = 256 << 10;
/// Late errors that are kept for the cgroup that had asked.
const UNREPORTED_MAX: usize = 4096;

/// Why a sync does not wait for a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// Its store does not answer.
    Stalled,
    /// Its unwritten data is lost. A caller that waits at that moment gets an error; a later caller
    /// does not.
    Aborted,
}

/// A volume that can be synced.
pub(crate) trait SyncTarget: fmt::Debug + Send + Sync {
    /// The volume's number among those of the mountpoint.
    fn number(&self) -> u64;
    /// Makes durable what is dirty when the call begins, on behalf of a cgroup.
    fn sync(&self, by: &CgroupPath, cancel: &Cancel) -> Result<()>;
    /// Whether it is known that no caller is to wait for it. Takes no lock and asks no store.
    fn skip_reason(&self) -> Option<Skipped>;
    /// Its name in the log.
    fn name(&self) -> String {
        self.number().to_string()
    }
    /// Whether something that a sync by this cgroup covers may not be durable: if in doubt, yes.
    /// Asks no store, and takes no lock that is held while a thread asks one.
    fn has_unsynced_of(&self, by: &CgroupPath) -> bool;
    /// Whether files are open in it.
    fn has_open_files(&self) -> bool {
        false
    }
    /// The volume was left out: logs that, once for each stall.
    fn log_skipped(&self) {}
}

/// A volume, and on whose behalf it is synced.
type Key = (u64, CgroupPath);

/// The syncs of one session.
#[derive(Debug, Default)]
pub(crate) struct SyncAll {
    state: Mutex<State>,
    /// A thread has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    runs: HashMap<Key, Run>,
    /// Runs that no thread has begun yet.
    queue: VecDeque<Key>,
    /// Runs that were begun so far.
    begun: u64,
    /// Errors of runs for which no caller waited any more. The next sync by that cgroup reports the
    /// error; by any cgroup where the key names none.
    unreported: HashMap<(u64, Option<CgroupPath>), Error>,
    threads: usize,
    /// How many of the threads are in runs for which no caller waits.
    stuck: usize,
}

#[derive(Debug)]
struct Run {
    target: Arc<dyn SyncTarget>,
    cancel: Arc<Cancel>,
    is_begun: bool,
    /// No caller waits for it.
    is_stuck: bool,
    queued: Vec<Arc<Call>>,
    /// The calls that came after it had begun.
    next: Vec<Arc<Call>>,
}

impl Run {
    fn of(target: &Arc<dyn SyncTarget>) -> Self {
        Self {
            target: Arc::clone(target),
            cancel: Arc::default(),
            is_begun: false,
            is_stuck: false,
            queued: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Removes a call that waits; says whether it was there.
    fn take(&mut self, call: &Arc<Call>) -> bool {
        let before = self.queued.len() + self.next.len();
        self.queued.retain(|other| !Arc::ptr_eq(other, call));
        self.next.retain(|other| !Arc::ptr_eq(other, call));
        before > self.queued.len() + self.next.len()
    }
}

impl State {
    /// Enters a call for the first run of this key that begins from now on.
    fn enqueue(&mut self, call: &Arc<Call>, key: Key, target: &Arc<dyn SyncTarget>) {
        let run = match self.runs.entry(key) {
            Entry::Occupied(run) => run.into_mut(),
            Entry::Vacant(none) => {
                self.queue.push_back(none.key().clone());
                none.insert(Run::of(target))
            }
        };
        let is_late = run.is_begun && !is_on("syncs-joins-late");
        if is_late { &mut run.next } else { &mut run.queued }.push(Arc::clone(call));
    }

    /// The handle that cancels this run, if no caller waits for it any more.
    fn abandon(&mut self, key: &Key) -> Option<Arc<Cancel>> {
        let run = self.runs.get_mut(key)?;
        if !run.is_begun || run.is_stuck || !run.queued.is_empty() {
            return None;
        }
        run.is_stuck = true;
        self.stuck += 1;
        Some(Arc::clone(&run.cancel))
    }
}

/// One caller's sync.
#[derive(Debug, Default)]
struct Call {
    /// Set when nothing is left to wait for.
    event: Arc<WakeEvent>,
    outcome: Mutex<Outcome>,
}

#[derive(Debug, Default)]
struct Outcome {
    /// Runs that the caller waits for.
    left: usize,
    error: Option<Error>,
    skipped: Vec<Arc<dyn SyncTarget>>,
}

impl Call {
    /// One of its runs is over; says whether that was the last.
    fn finish_one(&self, change: impl FnOnce(&mut Outcome)) -> bool {
        let mut outcome = self.outcome.lock();
        change(&mut outcome);
        outcome.left -= 1;
        outcome.left == 0
    }

    fn complete(&self, result: Result<()>) -> bool {
        self.finish_one(|outcome| outcome.error = outcome.error.take().or(result.err()))
    }

    fn skip_target(&self, target: &Arc<dyn SyncTarget>, why: Skipped) -> bool {
        match why {
            Skipped::Stalled => self.finish_one(|outcome| outcome.skipped.push(Arc::clone(target))),
            Skipped::Aborted => self.complete(Err(Error::Released)),
        }
    }
}

/// How a sync went.
#[derive(Debug)]
#[must_use]
pub(crate) struct Synced {
    /// The first failure.
    pub(crate) result: Result<()>,
    /// The volumes that did not answer.
    pub(crate) skipped: Vec<Arc<dyn SyncTarget>>,
    /// One of these has data of the caller's cgroup.
    pub(crate) is_own_skipped: bool,
}

impl Synced {
    /// The outcome where only the caller's own volume was to be synced.
    pub(crate) const fn of_one(result: Result<()>) -> Self {
        Self { result, skipped: Vec::new(), is_own_skipped: false }
    }

    /// The result for a caller that does not ask which volumes were left out: whether all of its
    /// data is durable.
    pub(crate) fn into_result(self) -> Result<()> {
        let skipped = if self.is_own_skipped { Err(Error::Writeback(ErrorKind::Io)) } else { Ok(()) };
        self.result.and(skipped)
    }
}

impl SyncAll {
    /// Syncs `sync_targets`, and meanwhile calls `own`. Returns when all that answer are synced.
    pub(crate) fn sync(
        self: &Arc<Self>,
        by: &CgroupPath,
        sync_targets: &[Arc<dyn SyncTarget>],
        cancel: &Cancel,
        own: impl FnOnce() -> Result<()>,
    ) -> Synced {
        if sync_targets.is_empty() {
            return Synced::of_one(own());
        }
        let call = Arc::<Call>::default();
        let _heard = cancel.watch(&call.event);
        self.begin(&call, by, sync_targets);
        let own = own();
        let waited = self.wait(&call, cancel);
        let mut outcome = call.outcome.lock();
        let error = outcome.error.take();
        let skipped = std::mem::take(&mut outcome.skipped);
        drop(outcome);
        let is_own = |target: &Arc<dyn SyncTarget>| target.has_unsynced_of(by);
        let is_own_skipped = !is_on("syncs-left-out-untold") && skipped.iter().any(is_own);
        Synced { result: own.and(waited).and(error.map_or(Ok(()), Err)), skipped, is_own_skipped }
    }

    /// Lets no caller wait any longer for a volume that is known to be out. To be called after each
    /// time that a volume came to be out.
    pub(crate) fn skip_stalled(&self) {
        self.skip(|_, target| target.skip_reason());
    }

    /// This volume is given up, and known to be.
    pub(crate) fn abort(&self, number: u64) {
        self.skip(|(of, _), _| (*of == number).then_some(Skipped::Aborted));
    }

    /// Threads that there are.
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Waits until no thread is left, or `until`; says how many are left.
    pub(crate) fn end(&self, until: Instant) -> usize {
        let mut state = self.state.lock();
        while state.threads > 0 && !self.ended.wait_until(&mut state, until) {}
        state.threads
    }

    /// Enters a call for runs that begin from now on.
    fn begin(self: &Arc<Self>, call: &Arc<Call>, by: &CgroupPath, sync_targets: &[Arc<dyn SyncTarget>]) {
        let looked_first: Option<Vec<_>> =
            is_on("syncs-looks-first").then(|| sync_targets.iter().map(|one| one.skip_reason()).collect());
        let mut state = self.state.lock();
        if !state.unreported.is_empty() {
            state.unreported.retain(|(number, _), _| sync_targets.iter().any(|one| one.number() == *number));
        }
        let mut outcome = call.outcome.lock();
        for (n, target) in sync_targets.iter().enumerate() {
            // P1: with the lock.
            match looked_first.as_ref().map_or_else(|| target.skip_reason(), |looked| looked[n]) {
                Some(Skipped::Stalled) => outcome.skipped.push(Arc::clone(target)),
                // The thread that gave it up reported the loss; a later caller is not concerned.
                Some(Skipped::Aborted) if !is_on("syncs-told-for-ever") => {}
                Some(Skipped::Aborted) => outcome.error = outcome.error.take().or(Some(Error::Released)),
                None => {
                    state.enqueue(call, (target.number(), by.clone()), target);
                    outcome.left += 1;
                }
            }
        }
        if outcome.left == 0 {
            call.event.set();
        }
        drop(outcome);
        let busy = state.threads - state.stuck;
        let due = state.queue.len().min(AT_ONCE).saturating_sub(busy);
        self.add_threads(state, due);
    }

    fn wait(self: &Arc<Self>, call: &Arc<Call>, cancel: &Cancel) -> Result<()> {
        let mut begun = None;
        loop {
            if call.outcome.lock().left == 0 {
                return Ok(());
            }
            if cancel.is_cancelled() {
                self.withdraw(call);
                return Err(Error::Interrupted);
            }
            let is_queued = !self.state.lock().queue.is_empty();
            if call.event.wait(is_queued.then(|| Instant::now() + TICK)) {
                continue;
            }
            let state = self.state.lock();
            if begun.replace(state.begun) == Some(state.begun) {
                let (due, busy) = (state.queue.len(), state.threads - state.stuck);
                let room = capacity::of_host().saturating_sub(state.threads);
                self.add_threads(state, due.min(busy.max(1)).min(room));
            }
        }
    }

    /// The caller was killed.
    fn withdraw(&self, call: &Arc<Call>) {
        let mut state = self.state.lock();
        let keys: Vec<Key> =
            state.runs.iter_mut().filter_map(|(key, run)| run.take(call).then(|| key.clone())).collect();
        let cancels: Vec<_> = keys.iter().filter_map(|key| state.abandon(key)).collect();
        drop(state);
        cancels.iter().for_each(|cancel| cancel.cancel());
    }

    fn skip(&self, skip_reason: impl Fn(&Key, &dyn SyncTarget) -> Option<Skipped>) {
        let mut state = self.state.lock();
        let mut free = Vec::new();
        let out: Vec<(Key, Skipped)> = state
            .runs
            .iter()
            .filter_map(|(key, run)| Some((key.clone(), skip_reason(key, &*run.target)?)))
            .collect();
        let mut cancels = Vec::new();
        for (key, why) in out {
            let Some(run) = state.runs.get_mut(&key) else { continue };
            let target = Arc::clone(&run.target);
            let queued = run.queued.drain(..).chain(run.next.drain(..));
            free.extend(queued.filter(|call| call.skip_target(&target, why)));
            cancels.extend(state.abandon(&key));
        }
        drop(state);
        cancels.iter().for_each(|cancel| cancel.cancel());
        if !is_on("syncs-known-untold") {
            free.iter().for_each(|call| call.event.set());
        }
    }

    /// Adds threads, and releases `state`. If the host gives no thread and none is free, the
    /// calling thread does the work.
    fn add_threads(self: &Arc<Self>, mut state: sync::MutexGuard<'_, State>, count: usize) {
        if count == 0 {
            return;
        }
        state.threads += count;
        drop(state);
        thread::will_make_threads();
        for made in 0..count {
            let syncs = Arc::clone(self);
            let named = thread::Builder::new().name("wt-fuse-sync".to_owned()).stack_size(STACK_BYTES);
            if let Err(error) = named.spawn(move || syncs.work()) {
                tracing::warn!(%error, "cannot start a thread that syncs attached volumes");
                let mut state = self.state.lock();
                state.threads -= count - made;
                if state.threads > state.stuck {
                    return;
                }
                state.threads += 1;
                drop(state);
                return self.work();
            }
        }
    }

    /// Syncs what is queued.
    fn work(&self) {
        let mut state = self.state.lock();
        while let Some(key) = state.queue.pop_front() {
            let Some(run) = state.runs.get_mut(&key) else { continue };
            if run.queued.is_empty() {
                state.runs.remove(&key);
                continue;
            }
            run.is_begun = true;
            let (target, cancel) = (Arc::clone(&run.target), Arc::clone(&run.cancel));
            state.begun += 1;
            drop(state);
            let synced = catch_unwind(AssertUnwindSafe(|| target.sync(&key.1, &cancel)));
            let result = synced.unwrap_or_else(|_| {
                tracing::error!("a sync of an attached volume panicked");
                Err(Error::Released)
            });
            let free = self.state.lock().finish(key, result);
            free.iter().for_each(|call| call.event.set());
            state = self.state.lock();
        }
        state.threads -= 1;
        drop(state);
        self.ended.notify_all();
    }
}

impl State {
    /// A run is over: reports it to the calls that waited for it, and returns those of them that
    /// wait for nothing else.
    fn finish(&mut self, key: Key, mut result: Result<()>) -> Vec<Arc<Call>> {
        let Some(run) = self.runs.get_mut(&key) else { return Vec::new() };
        if run.is_stuck {
            self.stuck -= 1;
        }
        let queued = std::mem::take(&mut run.queued);
        if queued.is_empty() {
            // A run that was cancelled has found out nothing.
            if let Err(error) = &result
                && !matches!(error, Error::Interrupted | Error::Released)
            {
                let is_for = self.unreported.len() < UNREPORTED_MAX;
                let by = (is_for && !is_on("syncs-late-error-anybodys")).then(|| key.1.clone());
                self.unreported.insert((key.0, by), error.clone());
            }
        } else if result.is_ok() && !self.unreported.is_empty() {
            let mut late = |by| self.unreported.remove(&(key.0, by));
            result = late(Some(key.1.clone())).or_else(|| late(None)).map_or(Ok(()), Err);
        }
        if run.next.is_empty() {
            self.runs.remove(&key);
        } else {
            let next = std::mem::take(&mut run.next);
            *run = Run { queued: next, ..Run::of(&run.target) };
            self.queue.push_back(key);
        }
        queued.into_iter().filter(|call| call.complete(result.clone())).collect()
    }
}
