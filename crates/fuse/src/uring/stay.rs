//! Keeping a client on its CPU.
//!
//! # Why
//! A serving thread runs where its client has just gone to sleep. When it wakes the client with the answer, the scheduler
//! finds that CPU busy, with the serving thread itself, and puts the client on another, idle one; there the next request
//! finds the other queue's thread, and so on. Each request then wakes a sleeping CPU, which costs several times what
//! most requests do. A thread of the class SCHED_IDLE does not make its CPU busy: the client stays, and takes over at once.
//!
//! # How
//! While requests come fast, a thread takes that class before it hands an answer over, and gives it up as soon as it has the
//! next request: it serves, and holds locks, as any other thread. So what can happen to it is this: a request has
//! arrived, and the CPU goes to somebody else, for a thread of that class has next to no claim. The **guard**, a thread of
//! the normal class, looks at all such threads each [`TICK`] as long as there are any: one that has not moved for
//! a tick gets its class back; if it was ready to run all the same, the CPU is contended, and nobody takes the class for a
//! while, each time for longer. So a request waits for two ticks at most, and not often.
//!
//! # State
//! [`Stay::waits`]: 0 while the thread has its own class; otherwise the number of its wait, another one each time.
//!
//! # Orderings
//! * P1 thread: store `waits`, load `Guard::is_asleep`. Guard: store `is_asleep`, load every `waits`. At least one sees the other,
//!   so that no thread waits in the class while the guard sleeps. (SeqCst on these four.)
//!
//! # Lock order
//! `Guard::list` and `Guard::bell` are leaves.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::thread::{Pid, gettid};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Condvar, Mutex};

/// How often the guard looks.
const TICK: Duration = Duration::from_millis(2);
/// Ticks without any thread in the class after which the guard sleeps.
const QUIET: u32 = 50;
/// How long nobody takes the class after a thread starved: at first, and at most.
const BAN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Requests that a thread must have served within [`PACE_MS`] to be worth it.
const PACE: u32 = 16;
const PACE_MS: i64 = 8;

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
    served: u32,
    since_ms: i64,
}

/// The guard, and whom it looks at.
#[derive(Debug)]
pub(super) struct Guard {
    /// Whether this process may change classes back and forth.
    is_possible: bool,
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
    pub(super) fn new() -> Self {
        Self {
            is_possible: can_come_back(),
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
        Stayer { stay, number: 0, served: 0, since_ms: 0 }
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
        let mut ban = Ban::default();
        let mut seen: Vec<(Arc<Stay>, u64)> = Vec::new();
        let mut quiet = 0;
        loop {
            let is_quiet = self.look(&mut seen, &mut ban);
            // ORDERING: Relaxed, a hint: a thread that sees it late is looked at all the same.
            self.is_banned.store(ban.holds(), Ordering::Relaxed);
            quiet = if is_quiet { quiet + 1 } else { 0 };
            let mut bell = self.bell.lock();
            if quiet > QUIET && !bell.rung && !ban.holds() {
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
                let next = ban.until.filter(|until| is_quiet && *until > next).unwrap_or(next);
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

    /// Gives the class back to whoever has not moved since the last look. Says whether there was nobody.
    fn look(&self, seen: &mut Vec<(Arc<Stay>, u64)>, ban: &mut Ban) -> bool {
        let now: Vec<(Arc<Stay>, u64)> = self
            .threads()
            .into_iter()
            // ORDERING: SeqCst, P1.
            .map(|stay| (stay.waits.load(Ordering::SeqCst), stay))
            .filter(|(waits, _)| *waits != 0)
            .map(|(waits, stay)| (stay, waits))
            .collect();
        for (stay, waits) in &now {
            if seen.iter().any(|(known, before)| Arc::ptr_eq(known, stay) && before == waits) {
                // Twice: the first look may be between its wake-up and its turn.
                let is_ready = is_ready(stay.tid);
                std::thread::sleep(Duration::from_micros(500));
                let is_ready =
                    is_ready && is_ready_now(stay.tid) && stay.waits.load(Ordering::SeqCst) == *waits;
                set_class(Some(stay.tid), Class::Normal);
                // ORDERING: SeqCst, P1. Not if the thread has moved meanwhile.
                let _moved = stay.waits.compare_exchange(*waits, 0, Ordering::SeqCst, Ordering::SeqCst);
                if is_ready {
                    tracing::debug!(tid = stay.tid.as_raw_nonzero(), "its CPU is wanted by others");
                    ban.begin();
                }
            }
        }
        let is_quiet = now.is_empty();
        *seen = now;
        is_quiet
    }

    fn release_all(&self) {
        for stay in self.threads() {
            set_class(Some(stay.tid), Class::Normal);
        }
    }
}

impl Stayer {
    /// A request was served that began at `now_ms` of any clock; the thread is about to hand the answer over and to wait.
    pub(super) fn before_wait(&mut self, guard: &Arc<Guard>, now_ms: i64) {
        if !guard.is_possible || !self.is_fast(now_ms) {
            return;
        }
        // ORDERING: Relaxed, a hint.
        let is_banned = guard.is_banned.load(Ordering::Relaxed);
        if is_banned || !guard.has_guard() || !set_class(None, Class::Idle) {
            return;
        }
        self.number += 1;
        // ORDERING: SeqCst, P1.
        self.stay.waits.store(self.number, Ordering::SeqCst);
        // ORDERING: SeqCst, P1.
        if guard.is_asleep.load(Ordering::SeqCst) {
            guard.wake();
        }
    }

    /// The thread has something to do again.
    pub(super) fn after_wait(&mut self) {
        // ORDERING: SeqCst, P1.
        if self.stay.waits.swap(0, Ordering::SeqCst) != 0 {
            set_class(None, Class::Normal);
        }
    }

    fn is_fast(&mut self, now_ms: i64) -> bool {
        self.served = self.served.saturating_add(1);
        if now_ms - self.since_ms <= PACE_MS {
            return self.served > PACE;
        }
        let was_fast = self.served > PACE && now_ms - self.since_ms <= 2 * PACE_MS;
        self.since_ms = now_ms;
        // Who was fast until now goes on so.
        self.served = if was_fast { PACE } else { 0 };
        was_fast
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

/// Whether a thread of this process that takes the class may give it up again, which an ordinary user's may not.
/// Tried out on a thread that ends: a capability does not tell, in a user namespace.
fn can_come_back() -> bool {
    let attempt = || set_class(None, Class::Idle) && set_class(None, Class::Normal);
    std::thread::Builder::new().spawn(attempt).is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Whether the thread would run if it could.
fn is_ready(tid: Pid) -> bool {
    let path = PathBuf::from(format!("/proc/self/task/{}/stat", tid.as_raw_nonzero()));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
}

use is_ready as is_ready_now;

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
mod tests {
    use super::*;

    fn stayer() -> Stayer {
        Guard::new().join()
    }

    #[test]
    fn only_fast_requests_are_worth_it() {
        let mut slow = stayer();
        assert!((0..100).all(|n| !slow.is_fast(1000 + n * 10)));
        let mut fast = stayer();
        assert!((0..=PACE).all(|_| !fast.is_fast(1000)) || PACE == 0);
        assert!((0..1000).all(|n| fast.is_fast(1001 + n / 20)), "and as long as it goes on");
        assert!(!fast.is_fast(5000));
    }

    #[test]
    fn bans_grow_while_they_are_needed() {
        let mut ban = Ban::default();
        assert!(!ban.holds());
        ban.begin();
        assert!(ban.holds());
        assert_eq!(ban.last, BAN[0]);
        ban.begin();
        assert_eq!(ban.last, BAN[0] * 2);
        for _ in 0..10 {
            ban.begin();
        }
        assert_eq!(ban.last, BAN[1]);
    }

    /// The guard, and a thread of this test that has taken the class.
    fn in_the_class() -> Option<(Arc<Guard>, Stayer)> {
        let guard = Arc::new(Guard::new());
        if !guard.is_possible {
            testing::skipped("threads may not change their scheduling class back here");
            return None;
        }
        let mut stayer = guard.join();
        for _ in 0..=PACE + 1 {
            stayer.after_wait();
            stayer.before_wait(&guard, 1000);
        }
        // ORDERING: Relaxed here and below, values that are polled.
        assert_eq!(stayer.stay.waits.load(Ordering::Relaxed), stayer.number);
        Some((guard, stayer))
    }

    fn class_of(tid: Pid) -> i32 {
        // SAFETY: only asks.
        unsafe { libc::sched_getscheduler(tid.as_raw_nonzero().get()) }
    }

    fn until(done: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(Instant::now() < end, "the guard does nothing");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_waits_for_the_cpu_gets_its_class_back_and_nobody_takes_it_for_a_while() {
        let Some((guard, mut stayer)) = in_the_class() else { return };
        // It yields, so that it is always ready to run.
        until(|| class_of(stayer.stay.tid) == libc::SCHED_OTHER);
        until(|| guard.is_banned.load(Ordering::Relaxed));
        let number = stayer.number;
        stayer.after_wait();
        stayer.before_wait(&guard, 1000);
        assert_eq!((class_of(stayer.stay.tid), stayer.number), (libc::SCHED_OTHER, number));
        // The ban ends without anybody asking for it.
        until(|| !guard.is_banned.load(Ordering::Relaxed));
        guard.end();
    }

    #[test]
    fn a_thread_without_requests_gets_its_class_back_and_may_take_it_again() {
        let (tell, told) = std::sync::mpsc::channel();
        let (leave, left) = std::sync::mpsc::channel::<()>();
        let waiter = std::thread::spawn(move || {
            let Some((guard, mut stayer)) = in_the_class() else { return };
            tell.send((Arc::clone(&guard), stayer.stay.tid)).unwrap();
            left.recv().unwrap();
            stayer.after_wait();
            stayer.before_wait(&guard, 1000);
            assert_eq!(class_of(stayer.stay.tid), libc::SCHED_IDLE);
            stayer.after_wait();
            assert_eq!(class_of(stayer.stay.tid), libc::SCHED_OTHER);
            guard.end();
        });
        if let Ok((guard, tid)) = told.recv() {
            until(|| class_of(tid) == libc::SCHED_OTHER);
            assert!(!guard.is_banned.load(Ordering::Relaxed));
            leave.send(()).unwrap();
        }
        waiter.join().unwrap();
    }

    #[test]
    fn the_guard_has_a_class_of_its_own() {
        let Some((guard, mut stayer)) = in_the_class() else { return };
        let own = || {
            let mut tasks = std::fs::read_dir("/proc/self/task").unwrap();
            tasks.find_map(|task| {
                let task = task.unwrap();
                let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
                (name.trim() == "wt-ring-guard").then(|| task.file_name().into_string().unwrap())
            })
        };
        // It takes its name itself.
        until(|| own().is_some());
        let tid: i32 = own().unwrap().parse().unwrap();
        assert_eq!(class_of(Pid::from_raw(tid).unwrap()), libc::SCHED_OTHER);
        guard.end();
        stayer.after_wait();
    }
}
