//! Syncs of all that is attached to a mountpoint.
//!
//! Purpose: the kernel's SYNCFS, and a sync of the mountpoint by the control socket, mean each
//! attached volume. These are synced beside each other by threads of this module's, so that whoever
//! asks waits for the slowest, and not for one that does not answer: that one is left out. A volume
//! is left out from the moment at which it is known to be stalled or given up, before the sync or
//! during it. Nothing of what a stalled one has is lost by that: it stays dirty, is written when
//! the store answers, and each of its files tells its errors as always. Who waits for one while it
//! is given up gets an error; who comes after that does not, however long its end waits for its
//! store. Whether something of who asks is in one that was left out is asked at the end of the
//! sync, of what is in memory ([`Subject::has_undurable_of`]): to such a one no success may be
//! told.
//!
//! # Runs
//! A sync of one volume on behalf of one cgroup is a *run*, by one thread. Of a volume and a cgroup
//! there is one at most: who comes while it is under way waits for the next one, which begins after
//! it and serves all who came meanwhile. So a store that does not answer holds one thread for each
//! cgroup that had asked before this was known, however often it was asked; and no cgroup waits for
//! another's limit. A run for which nobody waits any more is cancelled: it ends with the call that
//! it is in.
//!
//! # Who may touch what
//! `Syncs::state`: by its mutex. `Call::outcome`: by its own. `Call::event`: set outside both.
//!
//! # Lock order
//! `Syncs::state`, then `Call::outcome`. No volume is called with either, but for
//! [`Subject::is_out`], which takes no lock.
//!
//! # Late errors
//! What went wrong in a run for which nobody waited any more is told to the next sync by the same
//! cgroup: it had asked for it. Of more than [`UNHEARD_MAX`] of them, those that come last are told
//! to whoever syncs next: no error goes untold, and cgroups that never come back take no more
//! memory.
//!
//! # Orderings
//! P1: a volume is known to be out, then [`Syncs::relieve`] (or [`Syncs::give_up`]) takes `state`
//! and looks at the runs; who asks looks at whether the volume is out and puts itself down for a
//! run, both under `state`. Either it sees that, or it is found among those who wait.
//!
//! # Shutdown
//! Threads end when nothing is queued. [`Syncs::end`] waits for that as long as the session does
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
use volume::{Cancel, CgroupPath, Error, Event, Result};

use crate::places;

/// Threads that one call begins with.
const AT_ONCE: usize = 4;
/// When no run has begun for so long although one is due, there are to be twice as many threads.
const TICK: Duration = Duration::from_millis(5);
const STACK_BYTES: usize = 256 << 10;
/// Late errors that are kept for the cgroups that they are for.
const UNHEARD_MAX: usize = 4096;

/// Why a sync does not wait for a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Out {
    /// Its store does not answer.
    Stalled,
    /// What it has not written is lost: an error for whoever waits for it then, and no concern of
    /// those who come later.
    GivenUp,
}

/// What can be synced.
pub(crate) trait Subject: fmt::Debug + Send + Sync {
    /// Its number among those of the mountpoint.
    fn number(&self) -> u64;
    /// Makes durable what is dirty when the call begins, on behalf of a cgroup.
    fn sync(&self, by: &CgroupPath, cancel: &Cancel) -> Result<()>;
    /// Whether it is known that nobody is to wait for it. Takes no lock and asks no store.
    fn is_out(&self) -> Option<Out>;
    /// What the log calls it.
    fn name(&self) -> String {
        self.number().to_string()
    }
    /// Whether something that a sync by this cgroup is about is not known to be durable: if in
    /// doubt, yes. Asks no store, and takes no lock that is held while one is asked.
    fn has_undurable_of(&self, by: &CgroupPath) -> bool;
    /// Whether files are open in it.
    fn has_open_files(&self) -> bool {
        false
    }
    /// It was left out: tells the log, once for each stall.
    fn tell_left_out(&self) {}
}

/// A volume, and on whose behalf it is synced.
type Key = (u64, CgroupPath);

/// Those of one session.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
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
    /// What went wrong in runs for which nobody waited any more: the next sync by that cgroup is
    /// told, or by any where none is named.
    unheard: HashMap<(u64, Option<CgroupPath>), Error>,
    threads: usize,
    /// How many of them are in runs for which nobody waits.
    stuck: usize,
}

#[derive(Debug)]
struct Run {
    subject: Arc<dyn Subject>,
    cancel: Arc<Cancel>,
    is_begun: bool,
    /// Nobody waits for it.
    is_stuck: bool,
    waiting: Vec<Arc<Call>>,
    /// Those who came after it had begun.
    next: Vec<Arc<Call>>,
}

impl Run {
    fn of(subject: &Arc<dyn Subject>) -> Self {
        Self {
            subject: Arc::clone(subject),
            cancel: Arc::default(),
            is_begun: false,
            is_stuck: false,
            waiting: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Takes one who waits away; says whether it was there.
    fn take(&mut self, call: &Arc<Call>) -> bool {
        let before = self.waiting.len() + self.next.len();
        self.waiting.retain(|other| !Arc::ptr_eq(other, call));
        self.next.retain(|other| !Arc::ptr_eq(other, call));
        before > self.waiting.len() + self.next.len()
    }
}

impl State {
    /// Puts a call down for the first run of this key that begins from now on.
    fn put_down(&mut self, call: &Arc<Call>, key: Key, subject: &Arc<dyn Subject>) {
        let run = match self.runs.entry(key) {
            Entry::Occupied(run) => run.into_mut(),
            Entry::Vacant(none) => {
                self.queue.push_back(none.key().clone());
                none.insert(Run::of(subject))
            }
        };
        let is_late = run.is_begun && !is_on("syncs-joins-late");
        if is_late { &mut run.next } else { &mut run.waiting }.push(Arc::clone(call));
    }

    /// If nobody waits for this run any more: what ends it.
    fn deserted(&mut self, key: &Key) -> Option<Arc<Cancel>> {
        let run = self.runs.get_mut(key)?;
        if !run.is_begun || run.is_stuck || !run.waiting.is_empty() {
            return None;
        }
        run.is_stuck = true;
        self.stuck += 1;
        Some(Arc::clone(&run.cancel))
    }
}

/// One who asks.
#[derive(Debug, Default)]
struct Call {
    /// Set when nothing is left to wait for.
    event: Arc<Event>,
    outcome: Mutex<Outcome>,
}

#[derive(Debug, Default)]
struct Outcome {
    /// Runs that are waited for.
    left: usize,
    error: Option<Error>,
    left_out: Vec<Arc<dyn Subject>>,
}

impl Call {
    /// One of its runs is over; says whether that was the last.
    fn one_less(&self, change: impl FnOnce(&mut Outcome)) -> bool {
        let mut outcome = self.outcome.lock();
        change(&mut outcome);
        outcome.left -= 1;
        outcome.left == 0
    }

    fn has(&self, result: Result<()>) -> bool {
        self.one_less(|outcome| outcome.error = outcome.error.take().or(result.err()))
    }

    fn leaves(&self, subject: &Arc<dyn Subject>, why: Out) -> bool {
        match why {
            Out::Stalled => self.one_less(|outcome| outcome.left_out.push(Arc::clone(subject))),
            Out::GivenUp => self.has(Err(Error::Released)),
        }
    }
}

/// How a sync went.
#[derive(Debug)]
#[must_use]
pub(crate) struct Synced {
    /// The first failure.
    pub(crate) result: Result<()>,
    /// Those that did not answer.
    pub(crate) left_out: Vec<Arc<dyn Subject>>,
    /// In one of these is something of who asked.
    pub(crate) is_own_left_out: bool,
}

impl Synced {
    /// Only the caller's own volume was there to be synced.
    pub(crate) const fn of_one(result: Result<()>) -> Self {
        Self { result, left_out: Vec::new(), is_own_left_out: false }
    }

    /// What a caller is told who hears of no volumes: that all of its data is durable, or why not.
    pub(crate) fn told(self) -> Result<()> {
        let left_out = if self.is_own_left_out { Err(Error::Writeback(ErrorKind::Io)) } else { Ok(()) };
        self.result.and(left_out)
    }
}

impl Syncs {
    /// Syncs these, and meanwhile does `own` by itself. Returns when all are synced that answer.
    pub(crate) fn sync(
        self: &Arc<Self>,
        by: &CgroupPath,
        subjects: &[Arc<dyn Subject>],
        cancel: &Cancel,
        own: impl FnOnce() -> Result<()>,
    ) -> Synced {
        if subjects.is_empty() {
            return Synced::of_one(own());
        }
        let call = Arc::<Call>::default();
        let _heard = cancel.watch(&call.event);
        self.begin(&call, by, subjects);
        let own = own();
        let waited = self.wait(&call, cancel);
        let mut outcome = call.outcome.lock();
        let error = outcome.error.take();
        let left_out = std::mem::take(&mut outcome.left_out);
        drop(outcome);
        let is_own = |subject: &Arc<dyn Subject>| subject.has_undurable_of(by);
        let is_own_left_out = !is_on("syncs-left-out-untold") && left_out.iter().any(is_own);
        Synced { result: own.and(waited).and(error.map_or(Ok(()), Err)), left_out, is_own_left_out }
    }

    /// Those that are known to be out by now are not waited for any more. To be called after each
    /// time that one came to be.
    pub(crate) fn relieve(&self) {
        self.leave_out(|_, subject| subject.is_out());
    }

    /// This volume is given up, and known to be.
    pub(crate) fn give_up(&self, number: u64) {
        self.leave_out(|(of, _), _| (*of == number).then_some(Out::GivenUp));
    }

    /// Threads that there are.
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Waits until no thread is left, or `until`; says how many are.
    pub(crate) fn end(&self, until: Instant) -> usize {
        let mut state = self.state.lock();
        while state.threads > 0 && !self.ended.wait_until(&mut state, until) {}
        state.threads
    }

    /// Puts a call down for runs that begin from now on.
    fn begin(self: &Arc<Self>, call: &Arc<Call>, by: &CgroupPath, subjects: &[Arc<dyn Subject>]) {
        let looked_first: Option<Vec<_>> =
            is_on("syncs-looks-first").then(|| subjects.iter().map(|one| one.is_out()).collect());
        let mut state = self.state.lock();
        if !state.unheard.is_empty() {
            state.unheard.retain(|(number, _), _| subjects.iter().any(|one| one.number() == *number));
        }
        let mut outcome = call.outcome.lock();
        for (n, subject) in subjects.iter().enumerate() {
            // P1: with the lock.
            match looked_first.as_ref().map_or_else(|| subject.is_out(), |looked| looked[n]) {
                Some(Out::Stalled) => outcome.left_out.push(Arc::clone(subject)),
                // Who gave it up was told what is lost; who comes later has nothing to do with it.
                Some(Out::GivenUp) if !is_on("syncs-told-for-ever") => {}
                Some(Out::GivenUp) => outcome.error = outcome.error.take().or(Some(Error::Released)),
                None => {
                    state.put_down(call, (subject.number(), by.clone()), subject);
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
                self.leave(call);
                return Err(Error::Interrupted);
            }
            let is_queued = !self.state.lock().queue.is_empty();
            if call.event.wait(is_queued.then(|| Instant::now() + TICK)) {
                continue;
            }
            let state = self.state.lock();
            if begun.replace(state.begun) == Some(state.begun) {
                let (due, busy) = (state.queue.len(), state.threads - state.stuck);
                let room = places::of_host().saturating_sub(state.threads);
                self.add_threads(state, due.min(busy.max(1)).min(room));
            }
        }
    }

    /// Who asked was killed.
    fn leave(&self, call: &Arc<Call>) {
        let mut state = self.state.lock();
        let keys: Vec<Key> =
            state.runs.iter_mut().filter_map(|(key, run)| run.take(call).then(|| key.clone())).collect();
        let cancels: Vec<_> = keys.iter().filter_map(|key| state.deserted(key)).collect();
        drop(state);
        cancels.iter().for_each(|cancel| cancel.cancel());
    }

    fn leave_out(&self, is_out: impl Fn(&Key, &dyn Subject) -> Option<Out>) {
        let mut state = self.state.lock();
        let mut free = Vec::new();
        let out: Vec<(Key, Out)> = state
            .runs
            .iter()
            .filter_map(|(key, run)| Some((key.clone(), is_out(key, &*run.subject)?)))
            .collect();
        let mut cancels = Vec::new();
        for (key, why) in out {
            let Some(run) = state.runs.get_mut(&key) else { continue };
            let subject = Arc::clone(&run.subject);
            let waiting = run.waiting.drain(..).chain(run.next.drain(..));
            free.extend(waiting.filter(|call| call.leaves(&subject, why)));
            cancels.extend(state.deserted(&key));
        }
        drop(state);
        cancels.iter().for_each(|cancel| cancel.cancel());
        if !is_on("syncs-known-untold") {
            free.iter().for_each(|call| call.event.set());
        }
    }

    /// Adds threads, and gives `state` free. Where the host gives none and there is none, the
    /// calling thread does it.
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
                tracing::warn!(%error, "no thread to sync attached volumes with");
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

    /// Does what is queued.
    fn work(&self) {
        let mut state = self.state.lock();
        while let Some(key) = state.queue.pop_front() {
            let Some(run) = state.runs.get_mut(&key) else { continue };
            if run.waiting.is_empty() {
                state.runs.remove(&key);
                continue;
            }
            run.is_begun = true;
            let (subject, cancel) = (Arc::clone(&run.subject), Arc::clone(&run.cancel));
            state.begun += 1;
            drop(state);
            let synced = catch_unwind(AssertUnwindSafe(|| subject.sync(&key.1, &cancel)));
            let result = synced.unwrap_or_else(|_| {
                tracing::error!("a sync of an attached volume panicked");
                Err(Error::Released)
            });
            let free = self.state.lock().over(key, result);
            free.iter().for_each(|call| call.event.set());
            state = self.state.lock();
        }
        state.threads -= 1;
        drop(state);
        self.ended.notify_all();
    }
}

impl State {
    /// A run is over: tells those who waited for it, and returns those of them who wait for nothing
    /// else.
    fn over(&mut self, key: Key, mut result: Result<()>) -> Vec<Arc<Call>> {
        let Some(run) = self.runs.get_mut(&key) else { return Vec::new() };
        if run.is_stuck {
            self.stuck -= 1;
        }
        let waiting = std::mem::take(&mut run.waiting);
        if waiting.is_empty() {
            // One that was cancelled has found out nothing.
            if let Err(error) = &result
                && !matches!(error, Error::Interrupted | Error::Released)
            {
                let is_for = self.unheard.len() < UNHEARD_MAX;
                let by = (is_for && !is_on("syncs-late-error-anybodys")).then(|| key.1.clone());
                self.unheard.insert((key.0, by), error.clone());
            }
        } else if result.is_ok() && !self.unheard.is_empty() {
            let mut late = |by| self.unheard.remove(&(key.0, by));
            result = late(Some(key.1.clone())).or_else(|| late(None)).map_or(Ok(()), Err);
        }
        if run.next.is_empty() {
            self.runs.remove(&key);
        } else {
            let next = std::mem::take(&mut run.next);
            *run = Run { waiting: next, ..Run::of(&run.subject) };
            self.queue.push_back(key);
        }
        waiting.into_iter().filter(|call| call.has(result.clone())).collect()
    }
}
