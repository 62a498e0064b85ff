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
//! While one client is alone on the mount (module `alone`) and its requests come fast, the threads
//! that serve it are in that class. Two clients would end up on one CPU; so each thread leaves the
//! class with the first answer that it gives while several clients call.
//!
//! A thread of that class has next to no claim to a CPU that others want: its request would wait,
//! and so would each thread that wants a lock which its handler holds. The **guard**, a real-time
//! thread, bounds that. It looks at all such threads each [`TICK`] as long as there are any: a
//! thread that has not moved for a tick gets its class back. If it then turns out to have waited
//! for the CPU, and not for a request or for the store, the CPU is contended, and no thread takes
//! the class for a while, each time for longer. So a request waits for two ticks, and for its turn
//! among equals, and that once in a second at first and once in a minute in the end. (Module
//! `watch`.)
//!
//! Threads inherit the class: a thread that makes others leaves it first
//! (`sync::thread::will_make_threads`). The I/O of a thread in the class keeps the I/O class that
//! it had before, which the kernel would otherwise take from the scheduling class. A process that
//! is killed with SIGKILL has no guard: a thread in the class may then be the last to go, when
//! others want its CPU.
//!
//! None of this happens where a thread's own resources or capabilities do not allow it: see
//! [`class::is_possible`].
//!
//! # State
//! [`Stay::waits`], written by its thread, and by the guard under `Guard::list`:
//!
//! | value | the thread |
//! |---|---|
//! | 0 | has its own class |
//! | [`TAKING`] and a number | is about to take the class |
//! | a number | may be in the class; another one after each request |
//!
//! # Orderings
//! * P1 thread: store `waits` (TAKING), load `is_asleep`, take the class. Guard: store `is_asleep`,
//!   load every `waits`, sleep. At least one sees the other, so that no thread is in the class
//!   while the guard sleeps or has ended. (SeqCst.)
//! * P2 a thread that leaves sets its class before `waits`; the guard sets a thread's class before
//!   `waits`, and leaves TAKING alone. So the guard sees each thread that is in the class.
//!
//! # Lock order
//! `Guard::bell`, then `Guard::list`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::mutant::is_on;
use sync::thread::{Builder, JoinHandle};
use sync::{Condvar, Mutex, MutexGuard};

use super::cpus::Cpus;
use class::{Class, Tid};
use watch::Watch;

#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "sched_setscheduler(2) and ioprio_set(2), which rustix has not")]
mod class;
#[cfg(any(loom, shuttle))]
#[path = "stay/class_model.rs"]
mod class;
mod watch;

/// How often the guard looks.
const TICK: Duration = Duration::from_millis(2);
/// Ticks without any thread in the class after which the guard sleeps.
const QUIET: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 50 };
/// After how many requests a thread takes the class again although it has it already.
const AGAIN: u64 = 64;
/// Requests that a thread must have served within [`PACE_MS`] to be worth it.
const PACE: u32 = 16;
const PACE_MS: u64 = 8;
/// In [`Stay::waits`]: the class is about to be taken.
const TAKING: u64 = 1 << 63;

/// A serving thread, as the guard sees it.
#[derive(Debug)]
struct Stay {
    tid: Tid,
    waits: AtomicU64,
}

/// A serving thread's means to use the class.
#[derive(Debug)]
pub(super) struct Stayer {
    guard: Arc<Guard>,
    stay: Arc<Stay>,
    is_possible: bool,
    number: u64,
    pace: Pace,
}

/// The guard, and the threads that it looks at.
#[derive(Debug)]
pub(super) struct Guard {
    /// Whether this process may change classes back and forth, and can see which threads starve.
    is_possible: bool,
    cpus: Cpus,
    /// A thread's id stays its own as long as it is here.
    list: Mutex<Vec<Arc<Stay>>>,
    is_asleep: AtomicBool,
    is_banned: AtomicBool,
    has_thread: AtomicBool,
    bell: Mutex<Bell>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct Bell {
    rung: bool,
    ended: bool,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// A guard that runs on any of `cpus`.
    pub(super) fn new(cpus: Cpus) -> Self {
        Self {
            is_possible: class::is_possible(),
            cpus,
            list: Mutex::default(),
            is_asleep: AtomicBool::new(true),
            is_banned: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            bell: Mutex::default(),
            rung: Condvar::new(),
        }
    }

    /// Registers the calling thread.
    pub(super) fn join(self: &Arc<Self>) -> Stayer {
        let stay = Arc::new(Stay { tid: class::me(), waits: AtomicU64::new(0) });
        self.list.lock().push(Arc::clone(&stay));
        let is_possible = self.is_possible && class::keep_io_class();
        let leaver = Arc::clone(&stay);
        sync::thread::before_making_threads(move || leaver.leave());
        Stayer { guard: Arc::clone(self), stay, is_possible, number: 0, pace: Pace::default() }
    }

    /// No thread takes the class any more.
    pub(super) fn end(&self) {
        self.bell.lock().ended = true;
        self.rung.notify_all();
    }

    /// Ends the guard's thread, and waits for it.
    pub(super) fn wait(&self) {
        self.end();
        let thread = self.bell.lock().thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the guard of the serving threads panicked");
        }
    }

    /// Makes a guard if there is none; says whether there is one. To be called by a thread that has
    /// its own class: a new thread inherits it.
    fn has_guard(self: &Arc<Self>) -> bool {
        // ORDERING: Relaxed, a hint; the lock decides.
        self.has_thread.load(Ordering::Relaxed) || self.start_guard()
    }

    #[cold]
    fn start_guard(self: &Arc<Self>) -> bool {
        let mut bell = self.bell.lock();
        // ORDERING: Relaxed, under the lock.
        if bell.ended || self.has_thread.load(Ordering::Relaxed) {
            return !bell.ended;
        }
        let this = Arc::clone(self);
        let builder = Builder::new().name("wt-ring-guard".into()).stack_size(256 << 10);
        // The span of the serving thread, which may be in the middle of nothing else.
        let span = tracing::Span::current();
        match builder.spawn(move || span.in_scope(|| this.run())) {
            Ok(thread) => bell.thread = Some(thread),
            Err(error) => {
                tracing::debug!(%error, "no guard, so that clients may change their CPU at each request");
                // ORDERING: Relaxed, a hint, and for good: no thread tries again.
                self.is_banned.store(true, Ordering::Relaxed);
                return false;
            }
        }
        // ORDERING: Relaxed, under the lock.
        self.has_thread.store(true, Ordering::Relaxed);
        true
    }

    /// Wakes the guard; says whether there is one.
    #[cold]
    fn wake(&self) -> bool {
        let mut bell = self.bell.lock();
        bell.rung = true;
        let has_ended = bell.ended;
        drop(bell);
        self.rung.notify_all();
        !has_ended
    }

    fn run(&self) {
        // The thread that started this one is kept on its client's CPU.
        self.cpus.keep_to(None);
        let mut watch = Watch::default();
        if !class::become_guard() {
            tracing::debug!(
                "the guard gets no real-time class, so that clients may change their CPU at each request"
            );
            // No thread gets past this ban.
            watch.ban.for_good();
        }
        self.watch_over(watch);
    }

    /// Looks and sleeps until the end.
    fn watch_over(&self, mut watch: Watch) {
        // ORDERING: SeqCst, P1, as at the end of `sleep`.
        self.is_asleep.store(false, Ordering::SeqCst);
        let mut quiet = 0;
        loop {
            let is_quiet = watch.look(&self.list.lock());
            // ORDERING: Relaxed, a hint: a thread that sees it late rings (P1).
            self.is_banned.store(watch.is_banned(), Ordering::Relaxed);
            quiet = if is_quiet { quiet + 1 } else { 0 };
            let mut bell = self.bell.lock();
            if bell.ended {
                break;
            }
            if is_quiet && (quiet > QUIET || watch.ban.holds()) && !bell.rung {
                self.sleep(bell, &watch);
                quiet = 0;
            } else {
                bell.rung = false;
                class::tick(&self.rung, bell, Instant::now() + TICK);
            }
        }
        // ORDERING: SeqCst, P1: a thread that takes the class from now on rings, and learns that
        // there is no guard.
        self.is_asleep.store(true, Ordering::SeqCst);
        while !(watch.release_all(&self.list.lock()) || is_on("stay-ends-at-once")) {
            class::tick(&self.rung, self.bell.lock(), Instant::now() + TICK);
        }
    }

    /// Sleeps until a thread takes the class, or the ban ends.
    fn sleep(&self, mut bell: MutexGuard<'_, Bell>, watch: &Watch) {
        let until = watch.ban.until();
        if until.is_none() || !is_on("stay-ban-unseen") {
            // ORDERING: SeqCst, P1.
            self.is_asleep.store(true, Ordering::SeqCst);
        }
        // ORDERING: SeqCst, P1.
        let nobody_waits = self.list.lock().iter().all(|stay| stay.waits.load(Ordering::SeqCst) == 0);
        if nobody_waits {
            while !bell.rung && !bell.ended {
                match until {
                    Some(until) if self.rung.wait_until(&mut bell, until) => break,
                    Some(_) => {}
                    None => self.rung.wait(&mut bell),
                }
            }
        }
        bell.rung = false;
        // ORDERING: SeqCst, P1; a thread that still sees it asleep rings for nothing.
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}

impl Stay {
    /// Gives the class up, if the thread has it. Called by the thread itself.
    fn leave(&self) {
        if !self.is_in_class() {
            return;
        }
        // ORDERING: SeqCst, P2. If the guard was faster it has set the class before.
        if is_on("stay-leaves-unseen") {
            self.waits.store(0, Ordering::SeqCst);
            class::point(&self.tid);
        }
        class::set(&self.tid, Class::Normal);
        self.waits.store(0, Ordering::SeqCst);
    }

    fn is_in_class(&self) -> bool {
        // ORDERING: Relaxed, the thread's own value, which the guard only ever sets to 0, after it
        // has set the class.
        self.waits.load(Ordering::Relaxed) != 0
    }
}

impl Stayer {
    /// A request that began at `now_ms` of any clock was served, for a caller that `is_alone` or
    /// not. The thread is about to hand the answer over and to wait.
    pub(super) fn before_wait(&mut self, now_ms: u64, is_alone: bool) {
        let is_fast = self.pace.is_fast(now_ms);
        // ORDERING: Relaxed, a hint.
        let is_banned = self.guard.is_banned.load(Ordering::Relaxed);
        if !self.is_possible || !is_fast || !is_alone || is_banned {
            self.leave();
            return;
        }
        self.number += 1;
        // The guard may take the class at the moment in which this thread goes on; then the thread
        // takes it again soon.
        if self.stay.is_in_class() && !self.number.is_multiple_of(AGAIN) {
            class::point(&self.stay.tid);
            // ORDERING: SeqCst, P2. A thread in the class keeps the guard awake.
            self.stay.waits.store(self.number, Ordering::SeqCst);
        } else if !self.take() {
            self.leave();
        }
    }

    fn take(&self) -> bool {
        let Self { guard, stay, number, .. } = self;
        // First: a new thread inherits the class.
        if !guard.has_guard() {
            return false;
        }
        if is_on("stay-takes-unseen") && !class::set(&stay.tid, Class::Idle) {
            return false;
        }
        // ORDERING: SeqCst, P1.
        stay.waits.store(TAKING | number, Ordering::SeqCst);
        if is_on("stay-rings-late") {
            class::set(&stay.tid, Class::Idle);
        }
        // ORDERING: SeqCst, P1.
        if guard.is_asleep.load(Ordering::SeqCst) && !guard.wake() {
            return false;
        }
        if !class::set(&stay.tid, Class::Idle) {
            return false;
        }
        class::point(&stay.tid);
        // ORDERING: SeqCst, P2.
        stay.waits.store(*number, Ordering::SeqCst);
        true
    }

    /// Gives the class up, if the thread has it.
    pub(super) fn leave(&self) {
        self.stay.leave();
    }
}

impl Drop for Stayer {
    fn drop(&mut self) {
        self.leave();
        self.guard.list.lock().retain(|other| !Arc::ptr_eq(other, &self.stay));
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
