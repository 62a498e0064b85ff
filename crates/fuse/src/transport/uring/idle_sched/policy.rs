//! A thread's scheduling class, and the kernel's record of its waits.

use std::time::{Duration, Instant};

use rustix::thread::{Pid, gettid};
use sync::{Condvar, MutexGuard};

/// A thread of this process.
pub(super) type Tid = Pid;

/// The two classes of a serving thread.
#[derive(Debug, Clone, Copy)]
pub(super) enum Policy {
    Normal,
    Idle,
}

/// The calling thread.
pub(super) fn me() -> Tid {
    gettid()
}

/// Whether a thread of this process that takes the class may give it up again, which an ordinary
/// user's may not; whether the watchdog may be a real-time thread; and whether the kernel says
/// which threads wait for a CPU. The class to go back to must be the normal one.
pub(super) fn is_possible() -> bool {
    // Tried out on a thread that ends: in a user namespace a capability does not say it.
    let attempt = || {
        is_normal()
            && RunQueue::of(&me()).is_some_and(|queue| queue.turns > 0)
            && set(&me(), Policy::Idle)
            && set(&me(), Policy::Normal)
            && become_realtime()
    };
    let builder = std::thread::Builder::new().name("wt-ring-try".into());
    builder.spawn(attempt).is_ok_and(|thread| thread.join().unwrap_or(false))
}

fn is_normal() -> bool {
    // SAFETY: only asks.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER }
}

/// Sets the class of a thread of this process. Says whether it could.
pub(super) fn set(tid: &Tid, policy: Policy) -> bool {
    let policy = match policy {
        Policy::Normal => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    set_policy(tid, policy, 0)
}

/// Makes the calling thread one of real time, of the lowest priority; says whether it could.
pub(super) fn become_realtime() -> bool {
    set_policy(&me(), libc::SCHED_FIFO, 1)
}

fn set_policy(tid: &Tid, policy: i32, priority: i32) -> bool {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: the structure is there for the call, and not kept.
    unsafe { libc::sched_setscheduler(tid.as_raw_nonzero().get(), policy, &raw const param) == 0 }
}

/// Has the calling thread's I/O keep its class: without one of its own the kernel takes it from the
/// scheduling class, and the I/O of an idle thread waits for all other I/O. Says whether it could.
pub(super) fn keep_io_class() -> bool {
    const WHO_PROCESS: i32 = 1;
    const CLASS_SHIFT: i64 = 13;
    const BEST_EFFORT: i64 = 2;
    // SAFETY: only asks.
    let (present, nice) = unsafe {
        (libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0), libc::getpriority(libc::PRIO_PROCESS, 0))
    };
    if present < 0 {
        return false;
    }
    if present >> CLASS_SHIFT != 0 {
        return true;
    }
    // As the kernel does for a thread of the normal class.
    let level = i64::from((nice + 20) / 5);
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, BEST_EFFORT << CLASS_SHIFT | level) == 0 }
}

/// Whether the thread would run if it could.
pub(super) fn wants_to_run(tid: &Tid) -> bool {
    let text = std::fs::read_to_string(file_of(tid, "stat")).unwrap_or_default();
    text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
}

fn file_of(tid: &Tid, name: &str) -> String {
    format!("/proc/self/task/{}/{name}", tid.as_raw_nonzero())
}

/// The kernel's counts of a thread's waits for a CPU; each is counted when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunQueue {
    pub(super) waited: Duration,
    pub(super) turns: u64,
}

impl RunQueue {
    /// Missing where the kernel does not count.
    pub(super) fn of(tid: &Tid) -> Option<Self> {
        let text = std::fs::read_to_string(file_of(tid, "schedstat")).ok()?;
        let mut numbers = text.split_whitespace().skip(1).map_while(|number| number.parse().ok());
        let (waited, turns) = (numbers.next()?, numbers.next()?);
        Some(Self { waited: Duration::from_nanos(waited), turns })
    }
}

/// Waits for the watchdog's next check, or for its end.
pub(super) fn tick<T>(signalled: &Condvar, mut wake_state: MutexGuard<'_, T>, next: Instant) {
    // Not in place of a wake-up: nothing reports when a thread starves.
    signalled.wait_until(&mut wake_state, next);
}

/// Where a model may starve the calling thread.
#[inline]
pub(super) fn point(_: &Tid) {}
