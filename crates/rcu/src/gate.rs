//! The protocol between readers and grace periods.
//!
//! # State
//! | field | holds | who writes it |
//! |---|---|---|
//! | `Gate::started` | the number of the last grace period that began | who holds `Gate::turn` |
//! | `Gate::completed` | the number of the last one that ended | who holds `Gate::turn` |
//! | `Slot::active` | `OUTSIDE` or `OUTSIDE_FENCED`; inside the number that the reader found on entering | its reader |
//! | `Slot::is_awaited` | whether somebody sleeps until this reader leaves | who holds `Gate::turn` |
//! | `Slot::nest` | sections that are open inside the first one, and two marks | its reader, and nobody else looks |
//!
//! Numbers are odd, so that none of them says that a reader is outside.
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
//!   that carries the new number sees what was unpublished, so that it need not be waited for. Where a third thread unpublished, whose cookie
//!   (P5) this grace period serves: it found an older number after its full fence, so that its store is before the reader's loads, by
//!   the reader's full fence or, with light ones, because a store that one processor sees is seen by all (`barrier`).
//! * P3 reader: its loads, store `OUTSIDE` to `active` with release; the next section's store is a release as well.
//!   Grace period: load `active` with acquire. What a reader did is over before the grace period is.
//! * P4 reader: store `OUTSIDE`, light fence, load `is_awaited`. Grace period: store `is_awaited`, heavy fence, load
//!   `active`. Either the reader sees that it is awaited, or the grace period sees that it has left.
//! * P5 taker of a cookie: unpublish, full fence, load `started`. Grace period: store `started`, heavy fence,
//!   load `active`. A number that the taker did not see belongs to a grace period that sees the unpublishing.
//! * P6 grace period: store `completed` with release; who polls loads it with acquire.
//!
//! # Lock order
//! `turn`, then `slots`, then `left`. Readers take only `left`, and only when they are awaited.

use std::sync::Arc;
use std::thread::ThreadId;
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

/// In `Slot::active`: the reader is outside.
const OUTSIDE: u64 = 0;
/// The same, and its fences are full ones: it never takes the shortest way.
const OUTSIDE_FENCED: u64 = 2;

/// In `Slot::nest`: the reader's fences are full ones.
const IS_FENCED: u64 = 1;
/// In `Slot::nest`: the slot goes with its last section.
const IS_TEMPORARY: u64 = 2;
/// In `Slot::nest`: one section inside another one.
const ONE: u64 = 4;

/// A reader's place.
#[derive(Debug)]
#[repr(align(128))]
pub struct Slot {
    active: AtomicU64,
    is_awaited: AtomicBool,
    /// The host's and not a model's: one thread uses it.
    nest: std::sync::atomic::AtomicU64,
    /// Who reads here, for people.
    name: String,
    /// The thread that made it, which is who reads.
    owner: ThreadId,
}

impl Slot {
    /// A place for a reader who is called `name`, in a gate as [`Gate::new`] makes it.
    #[must_use]
    pub fn new(name: String) -> Arc<Self> {
        Self::with_fences(name, !is_asymmetric())
    }

    fn with_fences(name: String, is_fenced: bool) -> Arc<Self> {
        let (active, nest) = if is_fenced { (OUTSIDE_FENCED, IS_FENCED) } else { (OUTSIDE, 0) };
        Arc::new(Self {
            active: AtomicU64::new(active),
            is_awaited: AtomicBool::new(false),
            nest: std::sync::atomic::AtomicU64::new(nest),
            name,
            owner: std::thread::current().id(),
        })
    }

    /// Whether a section is open. For its reader.
    pub(crate) fn is_inside(&self) -> bool {
        is_number(self.active())
    }

    /// The slot goes when its last section ends. For its reader.
    pub(crate) fn make_temporary(&self) {
        self.set_nest(self.nest() | IS_TEMPORARY);
    }

    #[inline]
    fn active(&self) -> u64 {
        // ORDERING: Relaxed here and below, the calling thread's own stores.
        self.active.load(Ordering::Relaxed)
    }

    #[inline]
    fn nest(&self) -> u64 {
        self.nest.load(Ordering::Relaxed)
    }

    #[inline]
    fn set_nest(&self, nest: u64) {
        self.nest.store(nest, Ordering::Relaxed);
    }
}

/// Whether `active` says that its reader is inside.
const fn is_number(active: u64) -> bool {
    active % 2 == 1
}

/// What readers look at, on a line of its own: only a new grace period takes it away from them.
#[derive(Debug)]
#[repr(align(128))]
struct Alone(AtomicU64);

/// Readers' places, and the grace periods that wait for them.
#[derive(Debug)]
pub struct Gate {
    started: Alone,
    is_asymmetric: bool,
    first: u64,
    completed: AtomicU64,
    slots: Mutex<Vec<Arc<Slot>>>,
    turn: Mutex<()>,
    left: Mutex<()>,
    leaving: Condvar,
    clock: Arc<dyn Clock>,
}

impl Gate {
    /// A gate whose numbers begin after `first`, which must be even.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self::with_clock(first, true, Arc::new(RealClock::default()))
    }

    /// One whose readers have full fences, as where there is no membarrier(2), for models.
    #[cfg(any(loom, shuttle))]
    #[must_use]
    pub fn fenced(first: u64) -> Self {
        Self::with_clock(first, false, Arc::new(RealClock::default()))
    }

    /// The same, with a clock that says how long readers stay; with `membarrier(2)` only if the caller likes it, too.
    pub(crate) fn with_clock(first: u64, membarrier: bool, clock: Arc<dyn Clock>) -> Self {
        assert_eq!(first % 2, 0, "the first number must be even");
        Self {
            started: Alone(AtomicU64::new(first | 1)),
            is_asymmetric: membarrier && is_asymmetric(),
            first: first | 1,
            completed: AtomicU64::new(first | 1),
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

    /// A place that is known, for a reader who is called `name`.
    pub fn new_slot(&self, name: String) -> Arc<Slot> {
        let slot = Slot::with_fences(name, !self.is_asymmetric);
        self.join(Arc::clone(&slot));
        slot
    }

    /// Makes a place known. From here on grace periods look at it.
    pub fn join(&self, slot: Arc<Slot>) {
        self.slots.lock().push(slot);
    }

    /// Takes a place out; its reader has left.
    pub fn part(&self, slot: &Slot) {
        debug_assert!(!slot.is_inside(), "a reader parts inside a section");
        self.slots.lock().retain(|known| !std::ptr::eq(&**known, slot));
    }

    /// Whether the calling thread is in a section here. For who has no place of its own any more: looks at all.
    pub(crate) fn has_inside(&self, thread: ThreadId) -> bool {
        self.slots.lock().iter().any(|slot| slot.owner == thread && slot.is_inside())
    }

    /// Places that are known.
    pub(crate) fn readers(&self) -> usize {
        self.slots.lock().len()
    }

    /// Whether light fences are the compiler's alone.
    #[inline]
    pub(crate) fn is_asymmetric(&self) -> bool {
        self.is_asymmetric
    }

    /// Begins a read section. The caller is the only one that uses `slot`.
    #[inline]
    pub fn enter(&self, slot: &Slot) {
        let active = slot.active();
        if active == OUTSIDE {
            self.store_number(slot);
            if !is_on("rcu-no-light-fence") {
                light();
            }
        } else {
            rarely();
            if active == OUTSIDE_FENCED {
                self.enter_fenced(slot);
            } else {
                slot.set_nest(slot.nest() + ONE);
            }
        }
    }

    #[inline]
    fn store_number(&self, slot: &Slot) {
        // ORDERING: Acquire, P2.
        let number = self.started.0.load(Ordering::Acquire);
        // ORDERING: Release, P3; before the loads that follow by P1.
        slot.active.store(number, Ordering::Release);
    }

    #[cold]
    fn enter_fenced(&self, slot: &Slot) {
        self.store_number(slot);
        if !is_on("rcu-no-fence") {
            // ORDERING: SeqCst, P1.
            fence(Ordering::SeqCst);
        }
    }

    /// Ends it; says whether it was the last one of a temporary slot.
    #[inline]
    #[must_use]
    pub fn leave(&self, slot: &Slot) -> bool {
        let nest = slot.nest();
        if nest == 0 {
            self.end(slot);
            return false;
        }
        rarely();
        if nest < ONE {
            return self.leave_marked(slot, nest);
        }
        slot.set_nest(nest - ONE);
        if is_on("rcu-nested-end") {
            self.end(slot);
        }
        false
    }

    #[inline]
    fn end(&self, slot: &Slot) {
        // ORDERING: Release, P3; before the load of `is_awaited` by P4.
        slot.active.store(OUTSIDE, Ordering::Release);
        if !is_on("rcu-no-light-fence-on-leaving") {
            light();
        }
        // ORDERING: Relaxed, P4; the lock orders the rest.
        if slot.is_awaited.load(Ordering::Relaxed) {
            self.tell_left();
        }
    }

    #[cold]
    fn leave_marked(&self, slot: &Slot, nest: u64) -> bool {
        if nest & IS_FENCED == 0 {
            self.end(slot);
        } else {
            // ORDERING: as in `end`, and a full fence: P3, P4.
            slot.active.store(OUTSIDE_FENCED, Ordering::Release);
            if !is_on("rcu-no-fence-on-leaving") {
                fence(Ordering::SeqCst);
            }
            if slot.is_awaited.load(Ordering::Relaxed) {
                self.tell_left();
            }
        }
        nest & IS_TEMPORARY != 0
    }

    /// A reader has left that is awaited.
    #[cold]
    fn tell_left(&self) {
        if !is_on("rcu-late-reader-untold") {
            // Whoever looked before we left is asleep by now, or looks again.
            drop(self.left.lock());
            self.leaving.notify_all();
        }
    }

    /// The grace period that the caller must wait for: the next one to begin.
    pub fn get_state(&self) -> Cookie {
        // ORDERING: SeqCst, P5: the caller's unpublishing store before the load.
        if !is_on("rcu-no-fence-before-cookie") {
            fence(Ordering::SeqCst);
        }
        // ORDERING: Acquire, so that a cookie that was passed on counts from there.
        Cookie(next(self.started.0.load(Ordering::Acquire)))
    }

    /// Whether that grace period has ended.
    pub fn poll_state(&self, cookie: Cookie) -> bool {
        // ORDERING: Acquire, P6.
        let completed = self.completed.load(Ordering::Acquire);
        is_at_least(completed, cookie.0) != is_on("rcu-poll-inverted")
    }

    /// Whether that grace period has begun: it ends without anybody asking.
    pub(crate) fn has_begun(&self, cookie: Cookie) -> bool {
        // ORDERING: Relaxed, T1 with the caller's fence; who goes on waits for its end.
        is_at_least(self.started.0.load(Ordering::Relaxed), cookie.0)
    }

    /// Returns when that grace period has ended, and runs it if nobody else does; says whether it ran one. Waits for readers.
    pub fn wait_for(&self, cookie: Cookie, counters: &Counters) -> bool {
        let mut has_run = false;
        // Twice at most: one may have begun too early for us.
        while !self.poll_state(cookie) {
            let turn = self.turn.lock();
            if !self.poll_state(cookie) {
                self.grace_period(counters);
                has_run = true;
            }
            drop(turn);
        }
        has_run
    }

    /// Runs a grace period, if nobody else does; says whether it did.
    pub(crate) fn try_now(&self, counters: &Counters) -> bool {
        let turn = self.turn.try_lock();
        if turn.is_some() {
            self.grace_period(counters);
        }
        turn.is_some()
    }

    /// Grace periods that have ended.
    pub(crate) fn grace_periods(&self) -> u64 {
        // ORDERING: Relaxed, a figure for people.
        self.completed.load(Ordering::Relaxed).wrapping_sub(self.first) / 2
    }

    /// One grace period. The caller holds `turn`.
    fn grace_period(&self, counters: &Counters) {
        // ORDERING: Relaxed, only written under `turn`.
        let number = next(self.started.0.load(Ordering::Relaxed));
        // ORDERING: Release, P2.
        self.started.0.store(number, Ordering::Release);
        // Readers that join after this see what was unpublished by the lock (and P5).
        let slots = self.slots.lock();
        if !is_on("rcu-no-heavy-fence") {
            // P1 and P5; without readers P5 alone.
            heavy(self.is_asymmetric && !slots.is_empty());
        }
        let mut late: Vec<Arc<Slot>> = slots.iter().filter(|slot| is_late(slot, number)).cloned().collect();
        drop(slots);
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
        // ORDERING: Release, P6.
        self.completed.store(number, Ordering::Release);
    }

    fn sleep_until_left(&self, mut late: Vec<Arc<Slot>>, number: u64, counters: &Counters) {
        let begun = self.now();
        let mut next_warning = STALL;
        // ORDERING: Relaxed, P4 with the fence below.
        late.iter().for_each(|slot| slot.is_awaited.store(true, Ordering::Relaxed));
        if !is_on("rcu-no-heavy-fence-before-sleep") {
            heavy(self.is_asymmetric);
        }
        let mut left = self.left.lock();
        loop {
            keep_late(&mut late, number);
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
                next_warning *= 2;
                keep_late(&mut late, number);
                if late.is_empty() {
                    break;
                }
                // Without the lock: readers that leave meanwhile do not wait for the log, and may be who writes it.
                drop(left);
                warn_of_stall(&late, waited);
                counters.stalls.add(1);
                left = self.left.lock();
            }
        }
        drop(left);
        counters.note_reader(self.now().saturating_sub(begun));
    }
}

/// Says that the block that calls it is not the usual one.
#[cold]
#[inline(always)]
fn rarely() {}

/// Whether the reader entered before `number` began and is still inside.
fn is_late(slot: &Slot, number: u64) -> bool {
    // ORDERING: Acquire, P3.
    let active = slot.active.load(Ordering::Acquire);
    is_number(active) && !is_at_least(active, number)
}

/// Forgets those that have left.
fn keep_late(late: &mut Vec<Arc<Slot>>, number: u64) {
    late.retain(|slot| {
        let is_late = is_late(slot, number);
        if !is_late {
            // ORDERING: Relaxed. A reader that still sees it takes the lock for nothing.
            slot.is_awaited.store(false, Ordering::Relaxed);
        }
        is_late
    });
}

fn warn_of_stall(late: &[Arc<Slot>], since: Duration) {
    let names: Vec<&str> = late.iter().map(|slot| slot.name.as_str()).collect();
    tracing::warn!(seconds = since.as_secs(), readers = ?names, "a grace period waits for readers");
}
