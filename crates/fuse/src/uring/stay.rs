//! Keeping a client on its CPU.
//!
//! # Why
//! A serving thread runs where its client has just gone to sleep. When it wakes the client with the answer, the scheduler
//! finds that CPU busy, with the serving thread itself, and puts the client on another, idle one; there the next request
//! finds the other queue's thread, and so on. Each request then wakes a sleeping CPU, which costs several times what
//! most requests do. A thread of the class SCHED_IDLE does not make its CPU busy: the client stays, and takes over at once.
//!
//! # How
//! While one client is alone on the mount (module `alone`) and its requests come fast, the threads that serve it are in that class. Two clients
//! would end up on one CPU; so each thread leaves the class with the first answer to one of several.
//!
//! A thread of that class has next to no claim to a CPU that others want: a request, and whoever wants a lock that its handler
//! holds, would wait. The **guard**, a thread of the normal class, bounds that. It looks at all such threads each [`TICK`] as long as there are
//! any: one that has not moved for a tick gets its class back. If it then turns out to have waited for the CPU, and not for a
//! request, the CPU is contended, and nobody takes the class for a while, each time for longer. So a request waits for two ticks at
//! most: once, and then once in a minute.
//!
//! Threads inherit the class. Requests whose handlers make threads ([`Stayer::leave`] before them) are served outside of it.
//!
//! # State
//! [`Stay::waits`]: 0 while the thread has its own class; otherwise a number that changes with each request.
//!
//! # Orderings
//! * P1 thread: store `waits`, load `Guard::is_asleep`. Guard: store `is_asleep`, load every `waits`. At least one sees the other,
//!   so that no thread is in the class while the guard sleeps. (SeqCst on these four.)
//!
//! # Lock order
//! `Guard::list` and `Guard::bell` are leaves.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::thread::{Pid, gettid};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Condvar, Mutex};

use super::cpus::Cpus;

/// How often the guard looks.
const TICK: Duration = Duration::from_millis(2);
/// Ticks without any thread in the class after which the guard sleeps.
const QUIET: u32 = 50;
/// How long nobody takes the class after a thread starved: at first, and at most.
const BAN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// For how many ticks a thread that got its class back may not run before that is forgotten.
const PATIENCE: u32 = 8;
/// After how many requests a thread takes the class although it has it already.
const AGAIN: u64 = 64;
/// Requests that a thread must have served within [`PACE_MS`] to be worth it.
const PACE: u32 = 16;
const PACE_MS: u64 = 8;

/// A serving thread, as the guard sees it.
#[derive(Debug)]
pub(super) struct Stay {
    tid: Pid,
    waits: AtomicU64,
}

/// What a thread needs to know to use the class.
#[derive(Debug)]
pub(super) struct Stayer {
    stay: Arc<Stay>,
    number: u64,
    pace: Pace,
}

/// The guard, and whom it looks at.
#[derive(Debug)]
pub(super) struct Guard {
    /// Whether this process may change classes back and forth, and can see who starves.
    is_possible: bool,
    cpus: Cpus,
    list: Mutex<Vec<Weak<Stay>>>,
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
}

impl Guard {
    /// One that runs on any of `cpus`.
    pub(super) fn new(cpus: Cpus) -> Self {
        Self {
            is_possible: can_come_back() && RunQueue::of(gettid()).is_some(),
            cpus,
            list: Mutex::default(),
            is_asleep: AtomicBool::new(true),
            is_banned: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            bell: Mutex::default(),
            rung: Condvar::new(),
        }
    }

    /// Makes the calling thread known.
    pub(super) fn join(&self) -> Stayer {
        let stay = Arc::new(Stay { tid: gettid(), waits: AtomicU64::new(0) });
        let mut list = self.list.lock();
        list.retain(|known| known.strong_count() > 0);
        list.push(Arc::downgrade(&stay));
        Stayer { stay, number: 0, pace: Pace::default() }
    }

    /// Ends the guard's thread.
    pub(super) fn end(&self) {
        self.bell.lock().ended = true;
        self.rung.notify_all();
    }

    /// Sees to it that there is a guard. By a thread that has its own class: a new thread inherits it.
    fn has_guard(self: &Arc<Self>) -> bool {
        // ORDERING: Relaxed, a hint; the lock decides.
        self.has_thread.load(Ordering::Relaxed) || self.start_guard()
    }

    #[cold]
    fn start_guard(self: &Arc<Self>) -> bool {
        let bell = self.bell.lock();
        // ORDERING: Relaxed, under the lock.
        if bell.ended || self.has_thread.load(Ordering::Relaxed) {
            return !bell.ended;
        }
        let this = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("wt-ring-guard".into()).spawn(move || this.run());
        if let Err(error) = &spawned {
            tracing::debug!(%error, "no guard, so that clients may change their CPU at each request");
        }
        // ORDERING: Relaxed, under the lock.
        self.has_thread.store(spawned.is_ok(), Ordering::Relaxed);
        spawned.is_ok()
    }

    #[cold]
    fn wake(&self) {
        self.bell.lock().rung = true;
        self.rung.notify_all();
    }

    fn run(&self) {
        // The thread that started this one is kept on its client's CPU.
        self.cpus.keep_to(None);
        let mut watch = Watch::default();
        let mut quiet = 0;
        loop {
            let is_quiet = watch.look(self.threads());
            // ORDERING: Relaxed, a hint: a thread that sees it late is looked at all the same.
            self.is_banned.store(watch.ban.holds(), Ordering::Relaxed);
            quiet = if is_quiet { quiet + 1 } else { 0 };
            let mut bell = self.bell.lock();
            if quiet > QUIET && !bell.rung && !watch.ban.holds() {
                // ORDERING: SeqCst, P1.
                self.is_asleep.store(true, Ordering::SeqCst);
                if self.nobody_waits() {
                    while !bell.rung && !bell.ended {
                        self.rung.wait(&mut bell);
                    }
                }
                quiet = 0;
            } else if !bell.ended {
                // Not in place of a wake-up: nothing tells when a thread starves.
                let next = Instant::now() + TICK;
                // Nobody takes the class until the ban's end.
                let next = watch.ban.until.filter(|until| is_quiet && *until > next).unwrap_or(next);
                self.rung.wait_until(&mut bell, next);
            }
            bell.rung = false;
            if bell.ended {
                drop(bell);
                self.release_all();
                return;
            }
            // ORDERING: SeqCst, P1; a thread that still sees it asleep rings for nothing.
            self.is_asleep.store(false, Ordering::SeqCst);
        }
    }

    fn threads(&self) -> Vec<Arc<Stay>> {
        self.list.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn nobody_waits(&self) -> bool {
        // ORDERING: SeqCst, P1.
        self.threads().iter().all(|stay| stay.waits.load(Ordering::SeqCst) == 0)
    }

    fn release_all(&self) {
        for stay in self.threads() {
            set_class(Some(stay.tid), Class::Normal);
        }
    }
}

impl Stayer {
    /// A request was served that began at `now_ms` of any clock, for a caller who `is_alone` or not; the thread is about to hand
    /// the answer over and to wait.
    pub(super) fn before_wait(&mut self, guard: &Arc<Guard>, now_ms: u64, is_alone: bool) {
        let is_fast = self.pace.is_fast(now_ms);
        // ORDERING: Relaxed, a hint.
        let is_banned = guard.is_banned.load(Ordering::Relaxed);
        if !guard.is_possible || !is_fast || !is_alone || is_banned {
            self.leave();
            return;
        }
        self.number += 1;
        // The guard may take the class at the moment in which this thread goes on; then the thread takes it again soon.
        if !self.is_in_class() || self.number.is_multiple_of(AGAIN) {
            // The guard first: a new thread inherits the class.
            if !guard.has_guard() || !set_class(None, Class::Idle) {
                return;
            }
        }
        // ORDERING: SeqCst, P1.
        self.stay.waits.store(self.number, Ordering::SeqCst);
        // ORDERING: SeqCst, P1.
        if guard.is_asleep.load(Ordering::SeqCst) {
            guard.wake();
        }
    }

    /// Gives the class up, if the thread has it.
    pub(super) fn leave(&mut self) {
        // ORDERING: SeqCst, P1. If the guard was faster it has set the class.
        if self.is_in_class() && self.stay.waits.swap(0, Ordering::SeqCst) != 0 {
            set_class(None, Class::Normal);
        }
    }

    fn is_in_class(&self) -> bool {
        // ORDERING: Relaxed, the thread's own value, which the guard only ever sets to 0, after it has set the class.
        self.stay.waits.load(Ordering::Relaxed) != 0
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
        // Who was fast until now goes on so.
        self.served = if was_fast { PACE } else { 0 };
        was_fast
    }
}

/// What the guard knows from its last look.
#[derive(Debug, Default)]
struct Watch {
    /// Who was in the class, with the number of its wait.
    seen: Vec<(Arc<Stay>, u64)>,
    /// Who got its class back and has not run since.
    released: Vec<Released>,
    ban: Ban,
}

#[derive(Debug)]
struct Released {
    stay: Arc<Stay>,
    before: RunQueue,
    ticks: u32,
}

impl Watch {
    /// Gives the class back to whoever has not moved since the last look, and bans it where somebody starved. Says whether there
    /// was nobody to look at.
    fn look(&mut self, threads: Vec<Arc<Stay>>) -> bool {
        let ban = &mut self.ban;
        self.released.retain_mut(|released| released.is_open(ban));
        let mut now = Vec::new();
        for stay in threads {
            // ORDERING: SeqCst, P1.
            let waits = stay.waits.load(Ordering::SeqCst);
            if waits == 0 {
                continue;
            }
            if self.seen.iter().any(|(known, before)| Arc::ptr_eq(known, &stay) && *before == waits) {
                self.released.extend(release(&stay, waits));
            }
            now.push((stay, waits));
        }
        self.seen = now;
        self.seen.is_empty() && self.released.is_empty()
    }
}

/// Gives a thread its class back.
fn release(stay: &Arc<Stay>, waits: u64) -> Option<Released> {
    let before = RunQueue::of(stay.tid);
    set_class(Some(stay.tid), Class::Normal);
    // ORDERING: SeqCst, P1. Not if the thread has moved meanwhile.
    let moved = stay.waits.compare_exchange(waits, 0, Ordering::SeqCst, Ordering::SeqCst).is_err();
    let before = before.filter(|_| !moved)?;
    Some(Released { stay: Arc::clone(stay), before, ticks: 0 })
}

impl Released {
    /// Whether it has not run yet since. If it has, and had waited for the CPU for a tick before, that is a reason for a ban.
    fn is_open(&mut self, ban: &mut Ban) -> bool {
        let Some(now) = RunQueue::of(self.stay.tid) else { return false };
        if now.turns == self.before.turns {
            self.ticks += 1;
            return self.ticks < PATIENCE;
        }
        let waited = now.waited.saturating_sub(self.before.waited);
        if waited >= TICK {
            tracing::debug!(
                tid = self.stay.tid.as_raw_nonzero(),
                ?waited,
                "others want the CPU of a serving thread"
            );
            ban.begin();
        }
        false
    }
}

/// For how long nobody takes the class.
#[derive(Debug, Default)]
struct Ban {
    until: Option<Instant>,
    last: Duration,
}

impl Ban {
    fn begin(&mut self) {
        let now = Instant::now();
        let is_soon = self.until.is_some_and(|until| now < until + self.last);
        self.last = if is_soon { (self.last * 2).min(BAN[1]) } else { BAN[0] };
        self.until = Some(now + self.last);
    }

    fn holds(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// What the kernel counts of a thread's waits for a CPU, each when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunQueue {
    waited: Duration,
    turns: u64,
}

impl RunQueue {
    /// Missing where the kernel does not count.
    fn of(tid: Pid) -> Option<Self> {
        let path = PathBuf::from(format!("/proc/self/task/{}/schedstat", tid.as_raw_nonzero()));
        let text = std::fs::read_to_string(path).ok()?;
        let mut numbers = text.split_whitespace().skip(1).map_while(|number| number.parse().ok());
        let (waited, turns) = (numbers.next()?, numbers.next()?);
        Some(Self { waited: Duration::from_nanos(waited), turns })
    }
}

/// Whether a thread of this process that takes the class may give it up again, which an ordinary user's may not.
/// Tried out on a thread that ends: a capability does not tell, in a user namespace.
fn can_come_back() -> bool {
    let attempt = || set_class(None, Class::Idle) && set_class(None, Class::Normal);
    std::thread::Builder::new().spawn(attempt).is_ok_and(|thread| thread.join().unwrap_or(false))
}

#[derive(Debug, Clone, Copy)]
enum Class {
    Normal,
    Idle,
}

/// Sets the class of a thread of this process; `None` is the calling one. Says whether it could.
fn set_class(tid: Option<Pid>, class: Class) -> bool {
    let policy = match class {
        Class::Normal => libc::SCHED_OTHER,
        Class::Idle => libc::SCHED_IDLE,
    };
    let tid = tid.map_or(0, |tid| tid.as_raw_nonzero().get());
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is there for the call, and not kept.
    unsafe { libc::sched_setscheduler(tid, policy, &raw const param) == 0 }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
