//! Scheduling classes in a model: a thread in the idle class may stop at each point until it has
//! the normal one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::model::maybe;
use sync::{Condvar, Mutex, MutexGuard, thread};

/// A thread of the model; its own call of [`me`] makes it.
pub(super) type Tid = Arc<Thread>;

/// Whether a thread is in the idle class.
#[derive(Debug, Default)]
pub(super) struct Thread {
    is_idle: Mutex<bool>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Policy {
    Normal,
    Idle,
}

impl Thread {
    pub(super) fn is_idle(&self) -> bool {
        *self.is_idle.lock()
    }

    fn starve(&self) {
        let mut is_idle = self.is_idle.lock();
        while *is_idle {
            self.changed.wait(&mut is_idle);
        }
    }
}

pub(super) fn me() -> Tid {
    Tid::default()
}

pub(super) fn is_possible() -> bool {
    true
}

pub(super) fn set(tid: &Tid, policy: Policy) -> bool {
    *tid.is_idle.lock() = matches!(policy, Policy::Idle);
    tid.changed.notify_all();
    // Only its own thread takes the class.
    if matches!(policy, Policy::Idle) {
        point(tid);
    }
    true
}

pub(super) fn become_realtime() -> bool {
    true
}

pub(super) fn keep_io_class() -> bool {
    true
}

pub(super) fn wants_to_run(_: &Tid) -> bool {
    maybe()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunQueue {
    pub(super) waited: Duration,
    pub(super) turns: u64,
}

impl RunQueue {
    /// Sometimes a reason for a ban.
    #[expect(clippy::unnecessary_wraps, reason = "as the real one")]
    pub(super) fn of(_: &Tid) -> Option<Self> {
        let number = u64::from(maybe());
        Some(Self { waited: Duration::from_secs(number), turns: number })
    }
}

pub(super) fn tick<T>(_: &Condvar, wake_state: MutexGuard<'_, T>, _: Instant) {
    drop(wake_state);
    thread::yield_now();
}

pub(super) fn point(me: &Tid) {
    if maybe() {
        me.starve();
    }
}
