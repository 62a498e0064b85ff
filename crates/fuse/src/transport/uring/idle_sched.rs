//! Keeping a client on its CPU.
//!
//! # Why
//! A serving thread runs where its client has just gone to sleep. When it wakes the client with the
//! answer, the scheduler finds that CPU busy, with the serving thread itself, and puts the client
//! on another, idle one; there the next request finds the other queue's thread, and so on. Each
//! request then wakes a sleeping CPU, which costs several times what most requests do. A thread of
//! the class SCHED_IDLE does not make its CPU busy: the client stays, and takes over at once.
//!
//! # How
//! While one client is alone on the mount (module `single_client`) and its requests come fast, the
//! threads that serve it are in that class. Two clients would end up on one CPU; so each thread
//! leaves the class with the first answer that it gives while several clients call.
//!
//! A thread of that class has next to no claim to a CPU that others want: its request would wait,
//! and so would each thread that wants a lock which its handler holds. The **watchdog**, a
//! real-time thread, bounds that. It checks all such threads each [`TICK`] as long as there are
//! any: a thread that has not moved for a tick gets its class back. If it then turns out to have
//! waited for the CPU, and not for a request or for the store, the CPU is contended, and no thread
//! takes the class for a while, each time for longer. So a request waits for two ticks, and for its
//! turn among equals, and that once in a second at first and once in a minute in the end. (Module
//! `starvation`.)
//!
//! Threads inherit the class: a thread that makes others leaves it first
//! (`sync::thread::will_make_threads`). The I/O of a thread in the class keeps the I/O class that
//! it had before, which the kernel would otherwise take from the scheduling class. A process that
//! is killed with SIGKILL has no watchdog: a thread in the class may then be the last to go, when
//! others want its CPU.
//!
//! None of this happens where a thread's own resources or capabilities do not allow it: see
//! [`policy::is_possible`].
//!
//! # State
//! [`IdleSched::seq`], written by its thread, and by the watchdog under `Watchdog::list`:
//!
//! | value | the thread |
//! |---|---|
//! | 0 | has its own class |
//! | [`ENTERING`] and a number | is about to take the class |
//! | a number | may be in the class; another one after each request |
//!
//! # Orderings
//! * P1 thread: store `seq` (ENTERING), load `is_asleep`, take the class. Watchdog: store
//!   `is_asleep`, load every `seq`, sleep. At least one sees the other, so that no thread is in the
//!   class while the watchdog sleeps or has ended. (SeqCst.)
//! * P2 a thread that leaves sets its class before `seq`; the watchdog sets a thread's class before
//!   `seq`, and leaves ENTERING alone. So the watchdog sees each thread that is in the class.
//!
//! # Lock order
//! `Watchdog::wake_state`, then `Watchdog::list`.

use std::sync::Arc;
use std::time::Instant;

use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::mutant::is_on;
use sync::thread::{Builder, JoinHandle};
use sync::{Condvar, Mutex, MutexGuard};

use super::cpus::Cpus;
use policy::Policy;
use starvation::StarvationDetector;
use thread::{ENTERING, IdleSched, TICK};

#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "sched_setscheduler(2) and ioprio_set(2), which rustix has not")]
mod policy;
#[cfg(any(loom, shuttle))]
#[path = "idle_sched/policy_model.rs"]
mod policy;
mod starvation;
mod thread;

/// Ticks without any thread in the class after which the watchdog sleeps.
const QUIET_TICKS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 50 };
/// After how many requests a thread takes the class again although it has it already.
const RENEW_EVERY: u64 = 64;
/// Requests that a thread must have served within [`PACE_MS`] to be worth it.
const PACE: u32 = 16;
const PACE_MS: u64 = 8;
/// A serving thread's means to use the class.
#[derive(Debug)]
pub(super) struct IdleSchedHandle {
    watchdog: Arc<Watchdog>,
    sched: Arc<IdleSched>,
    is_possible: bool,
    number: u64,
    pace: Pace,
}

/// The watchdog, and the threads that it checks.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Whether this process may change classes back and forth, and can see which threads starve.
    is_possible: bool,
    cpus: Cpus,
    /// A thread's id stays its own as long as it is here.
    list: Mutex<Vec<Arc<IdleSched>>>,
    is_asleep: AtomicBool,
    is_banned: AtomicBool,
    has_thread: AtomicBool,
    wake_state: Mutex<WakeState>,
    signalled: Condvar,
}

#[derive(Debug, Default)]
struct WakeState {
    signalled: bool,
    ended: bool,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// A watchdog that runs on any of `cpus`.
    pub(super) fn new(cpus: Cpus, is_wanted: bool) -> Self {
        Self {
            is_possible: is_wanted && policy::is_possible(),
            cpus,
            list: Mutex::default(),
            is_asleep: AtomicBool::new(true),
            is_banned: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            wake_state: Mutex::default(),
            signalled: Condvar::new(),
        }
    }

    /// Registers the calling thread.
    pub(super) fn register(self: &Arc<Self>) -> IdleSchedHandle {
        let sched = Arc::new(IdleSched { tid: policy::me(), seq: AtomicU64::new(0) });
        self.list.lock().push(Arc::clone(&sched));
        let is_possible = self.is_possible && policy::keep_io_class();
        let leaver = Arc::clone(&sched);
        sync::thread::before_making_threads(move || leaver.leave());
        IdleSchedHandle { watchdog: Arc::clone(self), sched, is_possible, number: 0, pace: Pace::default() }
    }

    /// No thread takes the class any more.
    pub(super) fn end(&self) {
        self.wake_state.lock().ended = true;
        self.signalled.notify_all();
    }

    /// Ends the watchdog's thread, and waits for it.
    pub(super) fn wait(&self) {
        self.end();
        let thread = self.wake_state.lock().thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the watchdog of the serving threads panicked");
        }
    }

    /// Makes a watchdog if there is none; says whether there is one. To be called by a thread that
    /// has its own class: a new thread inherits it.
    fn ensure_thread(self: &Arc<Self>) -> bool {
        // ORDERING: Relaxed, a hint; the lock decides.
        self.has_thread.load(Ordering::Relaxed) || self.start_thread()
    }

    #[cold]
    fn start_thread(self: &Arc<Self>) -> bool {
        let mut wake_state = self.wake_state.lock();
        // ORDERING: Relaxed, under the lock.
        if wake_state.ended || self.has_thread.load(Ordering::Relaxed) {
            return !wake_state.ended;
        }
        let this = Arc::clone(self);
        let builder = Builder::new().name("wt-ring-guard".into()).stack_size(256 << 10);
        // The span of the serving thread, which may be in the middle of nothing else.
        let span = tracing::Span::current();
        match builder.spawn(move || span.in_scope(|| this.run())) {
            Ok(thread) => wake_state.thread = Some(thread),
            Err(error) => {
                tracing::debug!(%error, "cannot start the watchdog: clients may change their CPU at each request");
                // ORDERING: Relaxed, a hint, and for good: no thread tries again.
                self.is_banned.store(true, Ordering::Relaxed);
                return false;
            }
        }
        // ORDERING: Relaxed, under the lock.
        self.has_thread.store(true, Ordering::Relaxed);
        true
    }

    /// Wakes the watchdog; says whether there is one.
    #[cold]
    fn wake(&self) -> bool {
        let mut wake_state = self.wake_state.lock();
        wake_state.signalled = true;
        let has_ended = wake_state.ended;
        drop(wake_state);
        self.signalled.notify_all();
        !has_ended
    }

    fn run(&self) {
        // The thread that started this one is kept on its client's CPU.
        self.cpus.keep_to(None);
        let mut detector = StarvationDetector::default();
        if !policy::become_realtime() {
            tracing::debug!(
                "the watchdog gets no real-time class: clients may change their CPU at each request"
            );
            // No thread gets past this ban.
            detector.ban.for_good();
        }
        self.run_loop(detector);
    }

    /// Looks and sleeps until the end.
    fn run_loop(&self, mut detector: StarvationDetector) {
        // ORDERING: SeqCst, P1, as at the end of `sleep`.
        self.is_asleep.store(false, Ordering::SeqCst);
        let mut quiet = 0;
        loop {
            let is_quiet = detector.look(&self.list.lock());
            // ORDERING: Relaxed, a hint: a thread that sees it late rings (P1).
            self.is_banned.store(detector.is_banned(), Ordering::Relaxed);
            quiet = if is_quiet { quiet + 1 } else { 0 };
            let mut wake_state = self.wake_state.lock();
            if wake_state.ended {
                break;
            }
            if is_quiet && (quiet > QUIET_TICKS || detector.ban.holds()) && !wake_state.signalled {
                self.sleep(wake_state, &detector);
                quiet = 0;
            } else {
                wake_state.signalled = false;
                policy::tick(&self.signalled, wake_state, Instant::now() + TICK);
            }
        }
        // ORDERING: SeqCst, P1: a thread that takes the class from now on rings, and learns that
        // there is no watchdog.
        self.is_asleep.store(true, Ordering::SeqCst);
        while !(detector.release_all(&self.list.lock()) || is_on("stay-ends-at-once")) {
            policy::tick(&self.signalled, self.wake_state.lock(), Instant::now() + TICK);
        }
    }

    /// Sleeps until a thread takes the class, or the ban ends.
    fn sleep(&self, mut wake_state: MutexGuard<'_, WakeState>, detector: &StarvationDetector) {
        let until = detector.ban.until();
        if until.is_none() || !is_on("stay-ban-unseen") {
            // ORDERING: SeqCst, P1.
            self.is_asleep.store(true, Ordering::SeqCst);
        }
        // ORDERING: SeqCst, P1.
        let is_unused = self.list.lock().iter().all(|sched| sched.seq.load(Ordering::SeqCst) == 0);
        if is_unused {
            while !wake_state.signalled && !wake_state.ended {
                match until {
                    Some(until) if self.signalled.wait_until(&mut wake_state, until) => break,
                    Some(_) => {}
                    None => self.signalled.wait(&mut wake_state),
                }
            }
        }
        wake_state.signalled = false;
        // ORDERING: SeqCst, P1; a thread that still sees it asleep rings for nothing.
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}

impl IdleSchedHandle {
    /// A request that began at `now_ms` of any clock was served, for a caller that `is_alone` or
    /// not. The thread is about to hand the answer over and to wait.
    pub(super) fn before_wait(&mut self, now_ms: u64, is_alone: bool) {
        let is_fast = self.pace.is_fast(now_ms);
        // ORDERING: Relaxed, a hint.
        let is_banned = self.watchdog.is_banned.load(Ordering::Relaxed);
        if !self.is_possible || !is_fast || !is_alone || is_banned {
            self.leave();
            return;
        }
        self.number += 1;
        // The watchdog may take the class at the moment in which this thread goes on; then the
        // thread takes it again soon.
        if self.sched.is_idle() && !self.number.is_multiple_of(RENEW_EVERY) {
            policy::point(&self.sched.tid);
            // ORDERING: SeqCst, P2. A thread in the class keeps the watchdog awake.
            self.sched.seq.store(self.number, Ordering::SeqCst);
        } else if !self.enter() {
            self.leave();
        }
    }

    fn enter(&self) -> bool {
        let Self { watchdog, sched, number, .. } = self;
        // First: a new thread inherits the class.
        if !watchdog.ensure_thread() {
            return false;
        }
        if is_on("stay-takes-unseen") && !policy::set(&sched.tid, Policy::Idle) {
            return false;
        }
        // ORDERING: SeqCst, P1.
        sched.seq.store(ENTERING | number, Ordering::SeqCst);
        if is_on("stay-rings-late") {
            policy::set(&sched.tid, Policy::Idle);
        }
        // ORDERING: SeqCst, P1.
        if watchdog.is_asleep.load(Ordering::SeqCst) && !watchdog.wake() {
            return false;
        }
        if !policy::set(&sched.tid, Policy::Idle) {
            return false;
        }
        policy::point(&sched.tid);
        // ORDERING: SeqCst, P2.
        sched.seq.store(*number, Ordering::SeqCst);
        true
    }

    /// Gives the class up, if the thread has it.
    pub(super) fn leave(&self) {
        self.sched.leave();
    }
}

impl Drop for IdleSchedHandle {
    fn drop(&mut self) {
        self.leave();
        self.watchdog.list.lock().retain(|other| !Arc::ptr_eq(other, &self.sched));
    }
}

/// How fast a thread's requests come.
#[derive(Debug, Default)]
struct Pace {
    served: u32,
    since_ms: u64,
}

impl Pace {
    fn is_fast(&mut self, now_ms: u64) -> bool {
        self.served = self.served.saturating_add(1);
        let time = now_ms - self.since_ms;
        if time <= PACE_MS {
            return self.served > PACE;
        }
        let was_fast = self.served > PACE && time <= 2 * PACE_MS;
        self.since_ms = now_ms;
        // A thread that was fast until now goes on so.
        self.served = if was_fast { PACE } else { 0 };
        was_fast
    }
}

#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(unsafe_code, reason = "asks the kernel for a thread's class")]
mod tests;
