//! The protocol between readers and grace periods.
//!
//! # State
//! | field | holds | who writes it |
//! |---|---|---|
//! | `Seen::started` | the number of the last grace period that began | who holds `Gate::turn` |
//! | `Gate::completed` | the number of the last one that ended | who holds `Gate::turn` |
//! | `Seen::awaited` | whether somebody sleeps until readers leave | who holds `Gate::turn`, under `Gate::left` |
//! | `Slot::active` | 0: outside; else the number that the reader found on entering, with the lowest bit set | its reader |
//!
//! Grace periods of a gate follow one after the other (`turn`), so that who asks while one is under way waits
//! for that one and for one more, which all who asked share.
//!
//! # A grace period
//! Take the next number; heavy fence; every slot that is active with an older number is waited for.
//!
//! # Orderings
//! * P1 (`barrier`) reader: store `active`, light fence, load pointers. Grace period: unpublish, store
//!   `started`, heavy fence, load `active`. Either the grace period sees the reader, or the reader sees what
//!   was unpublished.
//! * P2 reader: load `started` with acquire. Grace period: unpublish, store `started` with release. A reader
//!   that carries the new number sees what was unpublished, so that it need not be waited for.
//! * P3 reader: its loads, store 0 to `active` with release; the next section's store is a release as well.
//!   Grace period: load `active` with acquire. What a reader did is over before the grace period is.
//! * P4 reader: store 0, light fence, load `awaited` and `started`. Grace period: store `started` and `awaited`, heavy
//!   fence, load `active`. Either the reader sees that it is awaited, or the grace period sees that it has left.
//! * P5 taker of a cookie: unpublish, full fence, load `started`. Grace period: store `started`, heavy fence,
//!   load `active`. A number that the taker did not see belongs to a grace period that sees the unpublishing.
//! * P6 grace period: store `completed` with release; who polls loads it with acquire.
//!
//! # Lock order
//! `turn`, then `slots`, then `left`. Readers take only `left`, and only when they are awaited.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use sync::mutant::is_on;
use sync::{Clock, Condvar, Mutex, RealClock};

use crate::barrier::{heavy, is_asymmetric, light};
use crate::seq::{Cookie, is_at_least, next};
#[doc(hidden)]
pub use crate::stats::Counters;

/// Looks at a reader before its leaving is waited for asleep.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

/// How long a reader may hold up a grace period before it is named.
const STALL: Duration = Duration::from_secs(1);

/// A reader's place.
#[derive(Debug)]
#[repr(align(128))]
pub struct Slot {
    active: AtomicU64,
    /// Who reads here, for people.
    name: String,
}

impl Slot {
    /// A place for a reader who is called `name`.
    #[must_use]
    pub fn new(name: String) -> Arc<Self> {
        Arc::new(Self { active: AtomicU64::new(0), name })
    }
}

/// What readers look at, on a line of its own: only a new grace period takes it away from them.
#[derive(Debug)]
#[repr(align(128))]
struct Seen {
    started: AtomicU64,
    awaited: AtomicBool,
    is_asymmetric: bool,
}

/// Readers' places, and the grace periods that wait for them.
#[derive(Debug)]
pub struct Gate {
    seen: Seen,
    completed: AtomicU64,
    slots: Mutex<Vec<Arc<Slot>>>,
    turn: Mutex<()>,
    left: Mutex<()>,
    leaving: Condvar,
    clock: Arc<dyn Clock>,
}

impl Gate {
    /// A gate whose numbers begin at `first`, which must be even.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self::with_clock(first, Arc::new(RealClock::default()))
    }

    /// The same, with a clock that says how long readers stay.
    pub(crate) fn with_clock(first: u64, clock: Arc<dyn Clock>) -> Self {
        assert_eq!(first % 2, 0, "the lowest bit is the readers'");
        Self {
            seen: Seen {
                started: AtomicU64::new(first),
                awaited: AtomicBool::new(false),
                is_asymmetric: is_asymmetric(),
            },
            completed: AtomicU64::new(first),
            slots: Mutex::new(Vec::new()),
            turn: Mutex::new(()),
            left: Mutex::new(()),
            leaving: Condvar::new(),
            clock,
        }
    }

    /// The clock's time.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// When a wait until `at` on the clock has to look again at the latest.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        Instant::now() + at.saturating_sub(self.now())
    }

    /// Somebody has moved the clock.
    pub(crate) fn clock_moved(&self) {
        drop(self.left.lock());
        self.leaving.notify_all();
    }

    /// Makes a place known. From here on grace periods look at it.
    pub fn join(&self, slot: Arc<Slot>) {
        self.slots.lock().push(slot);
    }

    /// Takes a place out; its reader has left.
    pub fn part(&self, slot: &Slot) {
        // ORDERING: Relaxed, the calling thread's own store.
        debug_assert_eq!(slot.active.load(Ordering::Relaxed), 0, "a reader parts inside a section");
        self.slots.lock().retain(|known| !std::ptr::eq(&**known, slot));
    }

    /// Places that are known.
    pub(crate) fn readers(&self) -> usize {
        self.slots.lock().len()
    }

    /// Whether light fences are the compiler's alone.
    #[inline]
    pub(crate) fn is_asymmetric(&self) -> bool {
        self.seen.is_asymmetric
    }

    /// Begins a read section. The caller is the only one that uses `slot`, and outside.
    #[inline]
    pub fn enter(&self, slot: &Slot) {
        // ORDERING: Acquire, P2.
        let number = self.seen.started.load(Ordering::Acquire);
        // ORDERING: Release, P3; before the loads that follow by P1.
        slot.active.store(number | 1, Ordering::Release);
        if !is_on("rcu-no-light-fence") {
            light(self.seen.is_asymmetric);
        }
    }

    /// Ends it.
    #[inline]
    pub fn leave(&self, slot: &Slot) {
        // ORDERING: Relaxed, the reader's own store.
        let active = slot.active.load(Ordering::Relaxed);
        // ORDERING: Release, P3; before the load of `awaited` by P4.
        slot.active.store(0, Ordering::Release);
        if !is_on("rcu-no-light-fence-on-leaving") {
            light(self.seen.is_asymmetric);
        }
        // ORDERING: Relaxed, P4; the lock orders the rest.
        if self.seen.awaited.load(Ordering::Relaxed) {
            self.tell_left(active & !1);
        }
    }

    /// A reader has left who carried `number`. Only one who is late is waited for.
    #[cold]
    fn tell_left(&self, number: u64) {
        // ORDERING: Relaxed, P4: who is waited for sees the number that it is late for, as it saw `awaited`.
        let is_late = !is_at_least(number, self.seen.started.load(Ordering::Relaxed));
        if !is_late || is_on("rcu-late-reader-untold") {
            return;
        }
        // Whoever looked before we left is asleep by now, or looks again.
        drop(self.left.lock());
        self.leaving.notify_all();
    }

    /// The grace period that the caller must wait for: the next one to begin.
    pub fn get_state(&self) -> Cookie {
        // ORDERING: SeqCst, P5: the caller's unpublishing store before the load.
        if !is_on("rcu-no-fence-before-cookie") {
            fence(Ordering::SeqCst);
        }
        // ORDERING: Acquire, so that a cookie that was passed on counts from there.
        Cookie(next(self.seen.started.load(Ordering::Acquire)))
    }

    /// Whether that grace period has ended.
    pub fn poll_state(&self, cookie: Cookie) -> bool {
        // ORDERING: Acquire, P6.
        let completed = self.completed.load(Ordering::Acquire);
        is_at_least(completed, cookie.0) != is_on("rcu-poll-inverted")
    }

    /// Returns when that grace period has ended, and runs it if nobody else does. Waits for readers.
    pub fn wait_for(&self, cookie: Cookie, counters: &Counters) {
        // Twice at most: one may have begun too early for us.
        while !self.poll_state(cookie) {
            let turn = self.turn.lock();
            if !self.poll_state(cookie) {
                self.grace_period(counters);
            }
            drop(turn);
        }
    }

    /// One grace period. The caller holds `turn`.
    fn grace_period(&self, counters: &Counters) {
        // ORDERING: Relaxed, only written under `turn`.
        let number = next(self.seen.started.load(Ordering::Relaxed));
        // ORDERING: Release, P2.
        self.seen.started.store(number, Ordering::Release);
        // Readers that join from here on see what was unpublished by the lock (and P5).
        let has_readers = !self.slots.lock().is_empty();
        if !is_on("rcu-no-heavy-fence") {
            // P1 and P5; without readers P5 alone.
            heavy(self.seen.is_asymmetric && has_readers);
        }
        let mut late: Vec<Arc<Slot>> =
            self.slots.lock().iter().filter(|slot| is_late(slot, number)).cloned().collect();
        for _ in 0..LOOKS {
            if late.is_empty() {
                break;
            }
            std::hint::spin_loop();
            late.retain(|slot| is_late(slot, number));
        }
        if !late.is_empty() {
            self.sleep_until_left(late, number, counters);
        }
        counters.grace_periods.add(1);
        // ORDERING: Release, P6.
        self.completed.store(number, Ordering::Release);
    }

    fn sleep_until_left(&self, mut late: Vec<Arc<Slot>>, number: u64, counters: &Counters) {
        let begun = self.now();
        let mut next_warning = STALL;
        // ORDERING: Relaxed, P4 with the fence below.
        self.seen.awaited.store(true, Ordering::Relaxed);
        if !is_on("rcu-no-heavy-fence-before-sleep") {
            heavy(self.seen.is_asymmetric);
        }
        let mut left = self.left.lock();
        loop {
            late.retain(|slot| is_late(slot, number));
            if late.is_empty() {
                break;
            }
            if cfg!(any(loom, shuttle)) {
                self.leaving.wait(&mut left);
                continue;
            }
            self.leaving.wait_until(&mut left, self.instant(begun + next_warning));
            let waited = self.now().saturating_sub(begun);
            if waited >= next_warning {
                late.retain(|slot| is_late(slot, number));
                warn_of_stall(&late, waited);
                counters.stalls.add(1);
                next_warning *= 2;
            }
        }
        // ORDERING: Relaxed. A reader that still sees it takes the lock for nothing.
        self.seen.awaited.store(false, Ordering::Relaxed);
        drop(left);
        counters.note_reader(self.now().saturating_sub(begun));
    }
}

/// Whether the reader entered before `number` began and is still inside.
fn is_late(slot: &Slot, number: u64) -> bool {
    // ORDERING: Acquire, P3.
    let active = slot.active.load(Ordering::Acquire);
    active != 0 && !is_at_least(active & !1, number)
}

fn warn_of_stall(late: &[Arc<Slot>], since: Duration) {
    let names: Vec<&str> = late.iter().map(|slot| slot.name.as_str()).collect();
    tracing::warn!(seconds = since.as_secs(), readers = ?names, "a grace period waits for readers");
}
