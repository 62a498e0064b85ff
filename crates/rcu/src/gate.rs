//! The protocol between readers and grace periods.
//!
//! # State
//! | field | holds | who writes it |
//! |---|---|---|
//! | `Gate::started` | the number of the last grace period that began | who holds `Gate::turn` |
//! | `Gate::completed` | the number of the last one that ended | who holds `Gate::turn` |
//! | `Slot::state` | whether the reader is inside, whether its fences are full ones, and the number of its section, which no later one has | its reader |
//! | `Slot::is_awaited` | whether somebody sleeps until this reader leaves | who holds `Gate::turn` |
//! | `Slot::nest` | sections that are open inside the first one, and two marks | its reader, and nobody else looks |
//!
//! Readers look at nothing but their own slot. Grace periods of a gate follow one after the other (`turn`), so that who asks while one is
//! under way waits for that one and for one more, which all who asked share. Their numbers are odd, so that 0 is none.
//!
//! # A grace period
//! Take the next number; heavy fence; look at every slot; those that are inside are waited for, until their `state` is another one.
//!
//! # Orderings
//! * P1 (`barrier`) reader: store `state`, light fence, load pointers. Grace period: unpublish (or, where a third thread did: P4), heavy fence,
//!   load `state`. Either the grace period sees the section, or the section sees what was unpublished. So it is with each section that
//!   is newer than the one that was seen.
//! * P2 reader: its loads, store `state` with release, on leaving and on the next entering. Grace period: load `state` with acquire. What a reader
//!   did is over before the grace period is.
//! * P3 reader: store `state`, light fence, load `is_awaited`. Grace period: store `is_awaited`, heavy fence, load
//!   `state`. Either the reader sees that it is awaited, or the grace period sees that it has left. Who sees it changes the number `leaving`, and wakes; the grace
//!   period takes that number before it looks, and sleeps only while it is the same.
//! * P4 taker of a cookie: unpublish, full fence, load `started`. Grace period: store `started`, heavy fence,
//!   load `state`. A number that the taker did not see belongs to a grace period that sees the unpublishing.
//! * P5 grace period: store `completed` with release; who polls loads it with acquire.
//!
//! # Lock order
//! `turn`, then `slots`. Readers take neither; joining and parting (a thread's first section here, its end, a temporary slot's last
//! section) take `slots`, and nothing under it.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use sync::mutant::is_on;
use sync::{Clock, Futex, Mutex, RealClock};

use crate::barrier::{heavy, is_asymmetric, light};
use crate::seq::{Cookie, is_at_least, next};
#[doc(hidden)]
pub use crate::stats::Counters;

/// Looks at a reader before its leaving is waited for asleep.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

/// How long a reader may hold up a grace period before it is named.
const STALL: Duration = Duration::from_secs(1);

/// In `Slot::state`: the reader is inside.
const INSIDE: u64 = 1;
/// In `Slot::state`: its fences are full ones, and it never takes the shortest way.
const FENCED: u64 = 2;
/// In `Slot::state`: one section. It is never the same again, before 2^62 sections.
const SECTION: u64 = 4;

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
    state: AtomicU64,
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
        let (state, nest) = if is_fenced { (FENCED, IS_FENCED) } else { (0, 0) };
        Arc::new(Self {
            state: AtomicU64::new(state),
            is_awaited: AtomicBool::new(false),
            nest: std::sync::atomic::AtomicU64::new(nest),
            name,
            owner: std::thread::current().id(),
        })
    }

    /// Whether a section is open. For its reader.
    pub(crate) fn is_inside(&self) -> bool {
        is_inside(self.state())
    }

    /// The slot goes when its last section ends. For its reader.
    pub(crate) fn make_temporary(&self) {
        self.set_nest(self.nest() | IS_TEMPORARY);
    }

    #[inline]
    fn state(&self) -> u64 {
        // ORDERING: Relaxed here and below, the calling thread's own stores.
        self.state.load(Ordering::Relaxed)
    }

    #[inline]
    fn store_entered(&self, state: u64) {
        // ORDERING: Release, P2; before the loads that follow by P1.
        self.state.store(state | INSIDE, Ordering::Release);
    }

    #[inline]
    fn store_left(&self) {
        // ORDERING: Release, P2; before the load of `is_awaited` by P3.
        self.state.store(self.state().wrapping_add(SECTION - INSIDE), Ordering::Release);
    }

    /// After it was stored.
    #[inline]
    fn left(&self) -> Left {
        // ORDERING: Relaxed, P3; `leaving` orders the rest.
        if self.is_awaited.load(Ordering::Relaxed) { Left::Awaited } else { Left::Quietly }
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

/// Whether `state` says that its reader is inside.
const fn is_inside(state: u64) -> bool {
    state & INSIDE != 0
}

/// How a section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Left {
    /// Nothing is to be done.
    Quietly,
    /// Somebody waits for it: [`Gate::tell_left`].
    Awaited,
    /// The same, perhaps, and it was the last one of a temporary slot.
    ForGood,
}

/// Readers' places, and the grace periods that wait for them.
#[derive(Debug)]
pub struct Gate {
    started: AtomicU64,
    is_asymmetric: bool,
    first: u64,
    completed: AtomicU64,
    slots: Mutex<Vec<Arc<Slot>>>,
    turn: Mutex<()>,
    leaving: Futex,
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
            started: AtomicU64::new(first | 1),
            is_asymmetric: membarrier && is_asymmetric(),
            first: first | 1,
            completed: AtomicU64::new(first | 1),
            slots: Mutex::new(Vec::new()),
            turn: Mutex::new(()),
            leaving: Futex::default(),
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
        self.wake();
    }

    /// Who sleeps in a grace period looks again.
    fn wake(&self) {
        if !is_on("rcu-leaving-unchanged") {
            self.leaving.bump();
        }
        self.leaving.wake(1);
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
        debug_assert!(!slot.is_inside() || is_on("rcu-part-inside"), "a reader parts inside a section");
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
    pub fn enter(slot: &Slot) {
        let state = slot.state();
        if state & INSIDE != 0 {
            slot.set_nest(slot.nest() + ONE);
        } else if state & FENCED == 0 {
            slot.store_entered(state);
            if !is_on("rcu-no-light-fence") {
                light();
            }
        } else {
            Self::enter_fenced(slot);
        }
    }

    #[cold]
    fn enter_fenced(slot: &Slot) {
        slot.store_entered(slot.state());
        if !is_on("rcu-no-fence") {
            // ORDERING: SeqCst, P1.
            fence(Ordering::SeqCst);
        }
    }

    /// Ends it. The caller does what the answer says.
    #[inline]
    pub fn leave(slot: &Slot) -> Left {
        let nest = slot.nest();
        if nest == 0 {
            return Self::end(slot);
        }
        if nest < ONE {
            return Self::leave_marked(slot, nest);
        }
        slot.set_nest(nest - ONE);
        if is_on("rcu-nested-end") { Self::end(slot) } else { Left::Quietly }
    }

    #[inline]
    fn end(slot: &Slot) -> Left {
        if is_on("rcu-nested-end") && !slot.is_inside() {
            return Left::Quietly;
        }
        slot.store_left();
        if !is_on("rcu-no-light-fence-on-leaving") {
            light();
        }
        slot.left()
    }

    #[cold]
    fn leave_marked(slot: &Slot, nest: u64) -> Left {
        if nest & IS_FENCED == 0 {
            let _ = Self::end(slot);
        } else {
            slot.store_left();
            if !is_on("rcu-no-fence-on-leaving") {
                // ORDERING: SeqCst, P3.
                fence(Ordering::SeqCst);
            }
        }
        if nest & IS_TEMPORARY == 0 { slot.left() } else { Left::ForGood }
    }

    /// A reader has left that may be awaited.
    pub fn tell_left(&self) {
        if !is_on("rcu-late-reader-untold") {
            self.wake();
        }
    }

    /// The grace period that the caller must wait for: the next one to begin.
    pub fn get_state(&self) -> Cookie {
        // ORDERING: SeqCst, P4: the caller's unpublishing store before the load.
        if !is_on("rcu-no-fence-before-cookie") {
            fence(Ordering::SeqCst);
        }
        // ORDERING: Acquire, so that a cookie that was passed on counts from there.
        Cookie(next(self.started.load(Ordering::Acquire)))
    }

    /// Whether that grace period has ended.
    pub fn poll_state(&self, cookie: Cookie) -> bool {
        // ORDERING: Acquire, P5.
        let completed = self.completed.load(Ordering::Acquire);
        is_at_least(completed, cookie.0) != is_on("rcu-poll-inverted")
    }

    /// Whether that grace period has begun: it ends without anybody asking.
    pub(crate) fn has_begun(&self, cookie: Cookie) -> bool {
        // ORDERING: Relaxed, T1 with the caller's fence; who goes on waits for its end.
        is_at_least(self.started.load(Ordering::Relaxed), cookie.0)
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
        let number = next(self.started.load(Ordering::Relaxed));
        // ORDERING: Release, so that a cookie taken after it counts from there.
        self.started.store(number, Ordering::Release);
        let mut late = self.look();
        let mut looks = LOOKS;
        while looks > 0 && !late.is_empty() {
            looks -= 1;
            std::hint::spin_loop();
            late.retain(Late::has_not_left);
        }
        if !late.is_empty() {
            self.sleep_until_left(late, counters);
        }
        // ORDERING: Release, P5.
        self.completed.store(number, Ordering::Release);
    }

    /// The heavy fence, and the sections that are open after it.
    fn look(&self) -> Vec<Late> {
        let slots = self.slots.lock();
        if slots.is_empty() {
            if !is_on("rcu-no-heavy-fence") {
                // P4 alone. Who joins from here on sees by this lock what the fence made seen.
                heavy(false);
            }
            return Vec::new();
        }
        // Who joins must not wait until the processors have passed the fence.
        drop(slots);
        if !is_on("rcu-no-heavy-fence") {
            // P1 and P4.
            heavy(self.is_asymmetric);
        }
        // Who joins after this look sees by its lock what the fence made seen; who has joined before it is looked at.
        self.slots.lock().iter().filter_map(Late::if_inside).collect()
    }

    fn sleep_until_left(&self, mut late: Vec<Late>, counters: &Counters) {
        let begun = self.now();
        let mut next_warning = STALL;
        // ORDERING: Relaxed, P3 with the fence below.
        late.iter().for_each(|late| late.slot.is_awaited.store(true, Ordering::Relaxed));
        if !is_on("rcu-no-heavy-fence-before-sleep") {
            heavy(self.is_asymmetric);
        }
        loop {
            // Before the look: who leaves after it changes the number.
            let mut number = self.leaving.get();
            keep_late(&mut late);
            if late.is_empty() {
                break;
            }
            if is_on("rcu-number-after-look") {
                number = self.leaving.get();
            }
            let until_warning = (begun + next_warning).saturating_sub(self.now());
            self.leaving.wait(number, Some(until_warning));
            let waited = self.now().saturating_sub(begun);
            // Models have no time.
            if waited >= next_warning && !cfg!(any(loom, shuttle)) {
                next_warning *= 2;
                counters.note_reader(waited);
                keep_late(&mut late);
                if late.is_empty() {
                    break;
                }
                warn_of_stall(&late, waited);
                counters.stalls.add(1);
            }
        }
        counters.note_reader(self.now().saturating_sub(begun));
    }
}

/// A section that a grace period waits for.
struct Late {
    slot: Arc<Slot>,
    /// What `Slot::state` was.
    section: u64,
}

impl Late {
    fn if_inside(slot: &Arc<Slot>) -> Option<Self> {
        // ORDERING: Acquire, P2.
        let section = slot.state.load(Ordering::Acquire);
        is_inside(section).then(|| Self { slot: Arc::clone(slot), section })
    }

    fn has_not_left(&self) -> bool {
        // ORDERING: Acquire, P2.
        self.slot.state.load(Ordering::Acquire) == self.section
    }
}

/// Forgets those that have left.
fn keep_late(late: &mut Vec<Late>) {
    late.retain(|late| {
        let is_late = late.has_not_left();
        if !is_late {
            // ORDERING: Relaxed. A reader that still sees it wakes somebody for nothing.
            late.slot.is_awaited.store(false, Ordering::Relaxed);
        }
        is_late
    });
}

/// Names who is late. On a thread of its own: who runs a grace period holds `turn`, and where the log goes somebody may wait for grace periods
/// and callbacks of this domain.
fn warn_of_stall(late: &[Late], since: Duration) {
    let names: Vec<String> = late.iter().map(|late| late.slot.name.clone()).collect();
    let log = tracing::dispatcher::get_default(Clone::clone);
    let warn = move || {
        tracing::dispatcher::with_default(&log, || {
            tracing::warn!(seconds = since.as_secs(), readers = ?names, "a grace period waits for readers");
        });
    };
    // It would inherit what the caller's thread has for itself.
    sync::thread::will_make_threads();
    // Without a thread the count of stalls has to do.
    let _named = std::thread::Builder::new().name("rcu-stall".into()).spawn(warn);
}
