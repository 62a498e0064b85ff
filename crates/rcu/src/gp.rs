//! Grace periods: the protocol between readers and the threads that wait for them.
//!
//! Analogous to Linux's `rcu_state` and liburcu's `rcu_gp`: a [`Reader`] is one thread's `ctr`, and
//! a grace period waits for each reader that was inside a section when it began (a *holdout*) until
//! that reader has passed a quiescent state, which here is the end of the section.
//!
//! # State
//! | field | holds | written by |
//! |---|---|---|
//! | `GracePeriods::started` | the number of the last grace period that began | the holder of `gp_lock` |
//! | `GracePeriods::completed` | the number of the last one that ended | the holder of `gp_lock` |
//! | `Reader::ctr` | whether the reader is inside, whether its fences are full ones, and the number of its section, which no later section has | its thread |
//! | `Reader::waiting` | whether a grace period sleeps until this reader leaves | the holder of `gp_lock` |
//! | `Reader::nest` | how many sections are open inside the first one, and two marks | its thread; no other thread reads it |
//!
//! A reader reads nothing but its own `Reader`. Grace periods follow one after the other, under
//! `gp_lock`. A thread that asks while one is under way waits for that one and for one more, which
//! all threads that asked meanwhile share. The numbers are odd, so that 0 is none.
//!
//! # A grace period
//! It takes the next number, makes a heavy fence and scans the readers. Those that are inside are
//! its holdouts: it waits until the `ctr` of each is another one.
//!
//! # Orderings
//! * P1 (`barrier`) reader: store `ctr`, light fence, load pointers. Grace period: unpublish (or,
//!   where a third thread did so: P4), heavy fence, load `ctr`. Either the grace period sees the
//!   section, or the section sees what was unpublished. The same holds for each later section of
//!   that reader.
//! * P2 reader: its loads, then store `ctr` with release, when it leaves and when it enters again.
//!   Grace period: load `ctr` with acquire. A reader's actions happen before the grace period ends.
//! * P3 reader: store `ctr`, light fence, load `waiting`. Grace period: store `waiting`, heavy
//!   fence, load `ctr`. Either the reader sees that it is waited for, or the grace period sees that
//!   it has left. A reader that sees it changes the number in `gp_futex` and wakes the sleeper. The
//!   grace period reads that number before it scans its holdouts, and sleeps only while the
//!   number is the same.
//! * P4 the taker of a cookie: unpublish, full fence, load `started`. Grace period: store
//!   `started`, heavy fence, load `ctr`. A number that the taker did not see belongs to a grace
//!   period that sees the unpublishing.
//! * P5 grace period: store `completed` with release. A poller loads it with acquire.
//! * P6 a thread that registers beside a grace period (`scan_readers`): registered before the scan
//!   takes `readers` for the last time, it is scanned like the others (P1). Registered after that,
//!   it is not waited for: the fence came before the scan gave `readers` back, so that the thread,
//!   which takes `readers` later, reads what was published instead. Where there is no reader the
//!   fence is made under the lock.
//!
//! # Lock order
//! `gp_lock`, then `readers`. A section takes neither. A thread takes `readers`, and nothing under
//! it, to register (its first section here) and to unregister (its end, or the last section of a
//! temporary reader).

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

/// How often a grace period scans its holdouts before it sleeps.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

/// How long a reader may hold up a grace period before the log names it.
const STALL: Duration = Duration::from_secs(1);

/// In `Reader::ctr`: the reader is inside.
const INSIDE: u64 = 1;
/// In `Reader::ctr`: its fences are full ones, and it never takes the fast path.
const FENCED: u64 = 2;
/// In `Reader::ctr`: the unit in which sections are numbered. A number returns after 2^62 sections.
const SECTION: u64 = 4;

/// In `Reader::nest`: the reader's fences are full ones.
const IS_FENCED: u64 = 1;
/// In `Reader::nest`: the reader is unregistered with its last section.
const IS_TEMPORARY: u64 = 2;
/// In `Reader::nest`: one section inside another one.
const ONE: u64 = 4;

/// A thread that reads, as grace periods see it.
#[derive(Debug)]
#[repr(align(128))]
pub struct Reader {
    ctr: AtomicU64,
    waiting: AtomicBool,
    /// An atomic of the host and not of a model: one thread uses it.
    nest: std::sync::atomic::AtomicU64,
    /// The reader's name in the log.
    name: String,
    /// The thread that made it, which is the one that reads.
    owner: ThreadId,
}

impl Reader {
    /// A reader that is called `name`, for grace periods as [`GracePeriods::new`] makes them.
    #[must_use]
    pub fn new(name: String) -> Arc<Self> {
        Self::with_fences(name, !is_asymmetric())
    }

    fn with_fences(name: String, is_fenced: bool) -> Arc<Self> {
        let (ctr, nest) = if is_fenced { (FENCED, IS_FENCED) } else { (0, 0) };
        Arc::new(Self {
            ctr: AtomicU64::new(ctr),
            waiting: AtomicBool::new(false),
            nest: std::sync::atomic::AtomicU64::new(nest),
            name,
            owner: std::thread::current().id(),
        })
    }

    /// Whether a section is open. For the reader's thread.
    pub(crate) fn is_inside(&self) -> bool {
        is_inside(self.ctr())
    }

    /// Unregisters the reader when its last section ends. For the reader's thread.
    pub(crate) fn make_temporary(&self) {
        self.set_nest(self.nest() | IS_TEMPORARY);
    }

    #[inline]
    fn ctr(&self) -> u64 {
        // ORDERING: Relaxed here and below, the calling thread's own stores.
        self.ctr.load(Ordering::Relaxed)
    }

    #[inline]
    fn store_entered(&self, ctr: u64) {
        // ORDERING: Release, P2; before the loads that follow by P1.
        self.ctr.store(ctr | INSIDE, Ordering::Release);
    }

    #[inline]
    fn store_left(&self) {
        // ORDERING: Release, P2; before the load of `waiting` by P3.
        self.ctr.store(self.ctr().wrapping_add(SECTION - INSIDE), Ordering::Release);
    }

    /// The caller's duty, once `ctr` was stored.
    #[inline]
    fn unlocked(&self) -> Unlocked {
        // ORDERING: Relaxed, P3; `gp_futex` orders the rest.
        if self.waiting.load(Ordering::Relaxed) { Unlocked::WakeGp } else { Unlocked::Done }
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

/// Whether `ctr` says that its reader is inside a section.
const fn is_inside(ctr: u64) -> bool {
    ctr & INSIDE != 0
}

/// The caller's duty at the end of a read section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Unlocked {
    /// Nothing is to be done.
    Done,
    /// A grace period may wait for this section: call [`GracePeriods::wake_gp`].
    WakeGp,
    /// As `WakeGp`; it was also the last section of a temporary reader, which is to be
    /// unregistered.
    Unregister,
}

/// The readers, and the grace periods that wait for them.
#[derive(Debug)]
pub struct GracePeriods {
    started: AtomicU64,
    is_asymmetric: bool,
    first: u64,
    completed: AtomicU64,
    readers: Mutex<Vec<Arc<Reader>>>,
    gp_lock: Mutex<()>,
    gp_futex: Futex,
    clock: Arc<dyn Clock>,
}

impl GracePeriods {
    /// Grace periods whose numbers begin after `first`, which must be even.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self::with_clock(first, true, Arc::new(RealClock::default()))
    }

    /// Grace periods whose readers have full fences, as without membarrier(2). For models.
    #[cfg(any(loom, shuttle))]
    #[must_use]
    pub fn fenced(first: u64) -> Self {
        Self::with_clock(first, false, Arc::new(RealClock::default()))
    }

    /// As [`new`](Self::new), with a clock that measures how long readers stay. `membarrier(2)` is
    /// used only if the caller permits it.
    pub(crate) fn with_clock(first: u64, membarrier: bool, clock: Arc<dyn Clock>) -> Self {
        assert_eq!(first % 2, 0, "the first number must be even");
        Self {
            started: AtomicU64::new(first | 1),
            is_asymmetric: membarrier && is_asymmetric(),
            first: first | 1,
            completed: AtomicU64::new(first | 1),
            readers: Mutex::new(Vec::new()),
            gp_lock: Mutex::new(()),
            gp_futex: Futex::default(),
            clock,
        }
    }

    /// The clock's time.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The instant at which a wait until `at` on the clock has to check again at the latest.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        Instant::now() + at.saturating_sub(self.now())
    }

    /// The clock was moved: sleepers read it again.
    pub(crate) fn clock_moved(&self) {
        self.wake();
    }

    /// Has a sleeping grace period scan its holdouts again.
    fn wake(&self) {
        if !is_on("rcu-leaving-unchanged") {
            self.gp_futex.bump();
        }
        self.gp_futex.wake(1);
    }

    /// Registers a new reader that is called `name`.
    pub fn new_reader(&self, name: String) -> Arc<Reader> {
        let reader = Reader::with_fences(name, !self.is_asymmetric);
        self.register(Arc::clone(&reader));
        reader
    }

    /// Registers a reader. Every grace period whose scan takes `readers` later reads it (P6).
    pub fn register(&self, reader: Arc<Reader>) {
        self.readers.lock().push(reader);
    }

    /// Unregisters a reader, which is in no section.
    pub fn unregister(&self, reader: &Reader) {
        debug_assert!(
            !reader.is_inside() || is_on("rcu-part-inside"),
            "a reader is unregistered inside a section"
        );
        self.readers.lock().retain(|known| !std::ptr::eq(&**known, reader));
    }

    /// Whether that thread is in a section here. Looks at all readers: a thread that is ending has
    /// no pointer to its own any more.
    pub(crate) fn has_inside(&self, thread: ThreadId) -> bool {
        self.readers.lock().iter().any(|reader| reader.owner == thread && reader.is_inside())
    }

    /// How many readers are registered.
    pub(crate) fn reader_count(&self) -> usize {
        self.readers.lock().len()
    }

    /// Whether light fences are the compiler's alone.
    #[inline]
    pub(crate) fn is_asymmetric(&self) -> bool {
        self.is_asymmetric
    }

    /// Begins a read section. No other thread uses `reader`.
    #[inline]
    pub fn read_lock(reader: &Reader) {
        let ctr = reader.ctr();
        if ctr & INSIDE != 0 {
            reader.set_nest(reader.nest() + ONE);
        } else if ctr & FENCED == 0 {
            reader.store_entered(ctr);
            if !is_on("rcu-no-light-fence") {
                light();
            }
        } else {
            Self::read_lock_fenced(reader);
        }
    }

    #[cold]
    fn read_lock_fenced(reader: &Reader) {
        reader.store_entered(reader.ctr());
        if !is_on("rcu-no-fence") {
            // ORDERING: SeqCst, P1.
            fence(Ordering::SeqCst);
        }
    }

    /// Ends a read section. The caller acts on the result.
    #[inline]
    pub fn read_unlock(reader: &Reader) -> Unlocked {
        let nest = reader.nest();
        if nest == 0 {
            return Self::end(reader);
        }
        if nest < ONE {
            return Self::read_unlock_marked(reader, nest);
        }
        reader.set_nest(nest - ONE);
        if is_on("rcu-nested-end") { Self::end(reader) } else { Unlocked::Done }
    }

    #[inline]
    fn end(reader: &Reader) -> Unlocked {
        if is_on("rcu-nested-end") && !reader.is_inside() {
            return Unlocked::Done;
        }
        reader.store_left();
        if !is_on("rcu-no-light-fence-on-leaving") {
            light();
        }
        reader.unlocked()
    }

    #[cold]
    fn read_unlock_marked(reader: &Reader, nest: u64) -> Unlocked {
        if nest & IS_FENCED == 0 {
            let _ = Self::end(reader);
        } else {
            reader.store_left();
            if !is_on("rcu-no-fence-on-leaving") {
                // ORDERING: SeqCst, P3.
                fence(Ordering::SeqCst);
            }
        }
        if nest & IS_TEMPORARY == 0 { reader.unlocked() } else { Unlocked::Unregister }
    }

    /// Wakes the grace period that may wait for a reader which has left.
    pub fn wake_gp(&self) {
        if !is_on("rcu-late-reader-untold") {
            self.wake();
        }
    }

    /// The grace period that the caller must wait for: the next one that begins.
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

    /// Whether that grace period has begun: it ends without a further request.
    pub(crate) fn has_begun(&self, cookie: Cookie) -> bool {
        // ORDERING: Relaxed, T1 with the caller's fence; the caller waits for its end afterwards.
        is_at_least(self.started.load(Ordering::Relaxed), cookie.0)
    }

    /// Returns when that grace period has ended, and runs it if no other thread does. Says whether
    /// it ran one. Waits for readers.
    pub fn wait_for(&self, cookie: Cookie, counters: &Counters) -> bool {
        let mut has_run = false;
        // Twice at most: the first may have begun too early for the caller.
        while !self.poll_state(cookie) {
            let gp_lock = self.gp_lock.lock();
            if !self.poll_state(cookie) {
                self.grace_period(counters);
                has_run = true;
            }
            drop(gp_lock);
        }
        has_run
    }

    /// Runs a grace period if no other thread runs one. Says whether it did.
    pub(crate) fn try_now(&self, counters: &Counters) -> bool {
        let gp_lock = self.gp_lock.try_lock();
        if gp_lock.is_some() {
            self.grace_period(counters);
        }
        gp_lock.is_some()
    }

    /// How many grace periods have ended.
    pub(crate) fn grace_periods(&self) -> u64 {
        // ORDERING: Relaxed, a figure for people.
        self.completed.load(Ordering::Relaxed).wrapping_sub(self.first) / 2
    }

    /// One grace period. The caller holds `gp_lock`.
    fn grace_period(&self, counters: &Counters) {
        // ORDERING: Relaxed, only written under `gp_lock`.
        let number = next(self.started.load(Ordering::Relaxed));
        // ORDERING: Release, so that a cookie taken after it counts from there.
        self.started.store(number, Ordering::Release);
        let mut holdouts = self.scan_readers();
        let mut looks = LOOKS;
        while looks > 0 && !holdouts.is_empty() {
            looks -= 1;
            std::hint::spin_loop();
            holdouts.retain(Holdout::is_still_inside);
        }
        if !holdouts.is_empty() {
            self.wait_for_holdouts(holdouts, counters);
        }
        // ORDERING: Release, P5.
        self.completed.store(number, Ordering::Release);
    }

    /// The heavy fence, and the sections that are open after it.
    fn scan_readers(&self) -> Vec<Holdout> {
        let readers = self.readers.lock();
        if readers.is_empty() {
            if !is_on("rcu-no-heavy-fence") {
                // P4 alone. A reader that registers later observes, through this lock, everything
                // that the fence made visible.
                heavy(false);
            }
            return Vec::new();
        }
        // A thread that registers must not wait until all processors have passed the fence.
        drop(readers);
        if !is_on("rcu-no-heavy-fence") {
            // P1 and P4.
            heavy(self.is_asymmetric);
        }
        // A reader that registers after this scan observes, through the lock, everything that the
        // fence made visible; one that has registered before is scanned.
        self.readers.lock().iter().filter_map(Holdout::if_inside).collect()
    }

    fn wait_for_holdouts(&self, mut holdouts: Vec<Holdout>, counters: &Counters) {
        let begun = self.now();
        let mut next_warning = STALL;
        // ORDERING: Relaxed, P3 with the fence below.
        holdouts.iter().for_each(|holdout| holdout.reader.waiting.store(true, Ordering::Relaxed));
        if !is_on("rcu-no-heavy-fence-before-sleep") {
            heavy(self.is_asymmetric);
        }
        loop {
            // Before the holdouts are scanned: a reader that leaves afterwards changes the
            // number.
            let mut number = self.gp_futex.get();
            retain_holdouts(&mut holdouts);
            if holdouts.is_empty() {
                break;
            }
            if is_on("rcu-number-after-look") {
                number = self.gp_futex.get();
            }
            let until_warning = (begun + next_warning).saturating_sub(self.now());
            self.gp_futex.wait(number, Some(until_warning));
            let waited = self.now().saturating_sub(begun);
            // Models have no time.
            if waited >= next_warning && !cfg!(any(loom, shuttle)) {
                next_warning *= 2;
                counters.note_reader(waited);
                retain_holdouts(&mut holdouts);
                if holdouts.is_empty() {
                    break;
                }
                warn_of_stall(&holdouts, waited);
                counters.stalls.add(1);
            }
        }
        counters.note_reader(self.now().saturating_sub(begun));
    }
}

/// A reader that a grace period waits for, and the section that it was in. Linux's tasks RCU has
/// the same word.
struct Holdout {
    reader: Arc<Reader>,
    /// `Reader::ctr` at the scan.
    section: u64,
}

impl Holdout {
    fn if_inside(reader: &Arc<Reader>) -> Option<Self> {
        // ORDERING: Acquire, P2.
        let section = reader.ctr.load(Ordering::Acquire);
        is_inside(section).then(|| Self { reader: Arc::clone(reader), section })
    }

    fn is_still_inside(&self) -> bool {
        // ORDERING: Acquire, P2.
        self.reader.ctr.load(Ordering::Acquire) == self.section
    }
}

/// Keeps those that are still in the same section.
fn retain_holdouts(holdouts: &mut Vec<Holdout>) {
    holdouts.retain(|holdout| {
        let is_inside = holdout.is_still_inside();
        if !is_inside {
            // ORDERING: Relaxed. A reader that still sees it makes a wake-up too many.
            holdout.reader.waiting.store(false, Ordering::Relaxed);
        }
        is_inside
    });
}

/// Names the holdouts in the log. On a thread of its own: the caller holds `gp_lock`, and a
/// subscriber of the log may wait for grace periods and callbacks of this domain.
fn warn_of_stall(holdouts: &[Holdout], since: Duration) {
    let names: Vec<String> = holdouts.iter().map(|holdout| holdout.reader.name.clone()).collect();
    let log = tracing::dispatcher::get_default(Clone::clone);
    let warn = move || {
        tracing::dispatcher::with_default(&log, || {
            tracing::warn!(seconds = since.as_secs(), readers = ?names, "a grace period waits for readers");
        });
    };
    // The new thread would inherit what the caller's thread has for itself.
    sync::thread::will_make_threads();
    // Without a thread the count of stalls has to suffice.
    let _named = std::thread::Builder::new().name("rcu-stall".into()).spawn(warn);
}
