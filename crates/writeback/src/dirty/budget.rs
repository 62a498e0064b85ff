//! The hard bound on cached pages.
//!
//! A page exists only under a permit, so that the number of pages never passes the limit. A dynamic
//! threshold decides which owner must wait when it is near: an owner may hold up to `SHARE` times
//! what is still free. So a single heavy owner stops at four fifths of the limit, several of them
//! share those four fifths, and one that holds little finds room at once: the owner that fills the
//! cache waits, not its neighbour. Up to a quarter of the limit, every request passes.
//!
//! A waiter stands in a *line* with all waiters for whose pages the same limits count, and is
//! called in the order of arrival. A call promises the room that was found: no other waiter of the
//! line is called for it until the called waiter has checked. So a page that is given back wakes
//! one of a thousand waiters and not all. No call is lost: when a called waiter checks in vain, is
//! busy, or leaves, others are called in its place. These include waiters that stand before it,
//! which may have been passed over because of its promise. A waiter that only its own owner's share
//! stops is passed over, and does not stop the waiters behind it.
//!
//! No thread announces what time alone brings (a debt that is paid). The first of a line waits for
//! that with a timer of its own. It is also called for room that comes with a debt, since it may
//! have gone to sleep without a timer. When it leaves, the next waiter is called, for it is the
//! first now.
//!
//! Orderings, P1 (store-load on both sides, by a SeqCst fence each): a waiter adds itself to
//! `waiting`, then reads `used` in its second try; a giver lowers `used`, then reads `waiting`.
//! Either the waiter sees the pages or the giver sees the waiter. Without one of the fences both
//! may miss, and the waiter sleeps on. `wake_owner` is a giver of another kind: it has freed a
//! lock, which the waiter tries after it has queued. So is a thread that gives up room under a
//! cgroup's limits (`dirty::DirtyReservation`): the sums of these limits stand in the place of
//! `used`. The giver calls a waiter's `may_go`, which reads these sums, after the giver's own
//! change: of several threads that change a sum, the last one sees the changes of all.
//!
//! Lock order: `Budget::queue` is a leaf; waiters are woken outside it.
//!
//! Access: `used` is changed only in `try_take` and `release`; `waiting` is raised under `queue`, lowered
//! and read without.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use sync::Mutex;
use sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// An owner may hold this many times what is free.
const SHARE: u64 = 4;

/// A writer that waits for room.
pub struct Waiter {
    /// How many pages are wanted.
    pub pages: u64,
    /// How many the waiter's owner holds.
    pub held: Arc<AtomicU64>,
    /// Asked when there is more room: whether nothing else is in the waiter's way, also when others
    /// of its line take so many pages first. If so, the waiter is woken. The argument says where it
    /// stands: only the first of a line waits for what time brings.
    pub may_go: Box<dyn Fn(u64, InLine) -> bool + Send + Sync>,
    /// Called when there may be room; calls may come more than once, and for nothing.
    pub wake: Box<dyn Fn() + Send + Sync>,
}

/// Where a waiter stands in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InLine {
    /// Before all others.
    First,
    /// Behind the first.
    Behind,
}

/// Counts pages against a limit.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
    waiting: AtomicUsize,
    queue: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    next: u64,
    lines: BTreeMap<u64, Line>,
}

#[derive(Default)]
struct Line {
    /// By number, in the order of arrival.
    waiters: BTreeMap<u64, Entry>,
    /// Pages of waiters that were called and have not checked yet.
    promised: u64,
}

struct Entry {
    waiter: Arc<Waiter>,
    state: WaiterState,
}

/// The state of a waiter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaiterState {
    /// It sleeps, or is about to, and has to be called.
    Waits,
    /// It was called, and has not checked yet.
    Called,
    /// It checks again by itself.
    Busy,
}

/// How many waiters of one line are asked in one go.
const ASKED_AT_ONCE: usize = 4;

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("lines", &self.lines.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("pages", &self.pages).field("held", &self.held).finish_non_exhaustive()
    }
}

/// The right to hold so many pages; the rest of it is given back on drop.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    pages: u64,
}

/// Stays in the budget's queue until dropped.
#[derive(Debug)]
pub struct Queued<'a> {
    budget: &'a Budget,
    number: u64,
    line: Cell<u64>,
}

impl Budget {
    /// A budget of `limit` pages.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::new(Lines::default()),
        })
    }

    /// A permit for nothing, to [join](Permit::join) others to.
    #[must_use]
    pub fn nothing(self: &Arc<Self>) -> Permit {
        Permit { budget: Arc::clone(self), pages: 0 }
    }

    /// The limit, in pages.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Pages held now.
    #[must_use]
    pub fn used(&self) -> u64 {
        // ORDERING: Relaxed, a figure for thresholds and people; the bound itself is kept by the
        // compare-exchange in `try_take`.
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `pages` for an owner that holds `held`, if the thresholds allow.
    #[must_use]
    pub fn try_take(self: &Arc<Self>, pages: u64, held: u64) -> Option<Permit> {
        // ORDERING: Relaxed, a first guess that the exchange below checks.
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            if !self.fits(used, pages, held) {
                return None;
            }
            // ORDERING: Relaxed, the exchange alone keeps the bound; pages are published by their
            // owners' locks.
            match self.used.compare_exchange_weak(used, used + pages, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Permit { budget: Arc::clone(self), pages }),
                Err(now) => used = now,
            }
        }
    }

    /// Queues `waiter` in the line with this number, until the result is dropped. All waiters of a
    /// line wait for the same limits. The waiter is called for pages that are given back after it
    /// began to [look](Queued::look).
    #[must_use]
    pub fn queue(&self, line: u64, waiter: Waiter) -> Queued<'_> {
        let mut queue = self.queue.lock();
        let number = queue.next;
        queue.next += 1;
        let entry = Entry { waiter: Arc::new(waiter), state: WaiterState::Waits };
        queue.lines.entry(line).or_default().waiters.insert(number, entry);
        // ORDERING: Relaxed and a SeqCst fence, P1: this add, then the caller's load of `used`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if !sync::mutant::is_on("budget-no-waiter-fence") {
            fence(Ordering::SeqCst);
        }
        Queued { budget: self, number, line: Cell::new(line) }
    }

    /// The number of waiters.
    #[must_use]
    pub fn waiting(&self) -> usize {
        // ORDERING: Relaxed, a figure.
        self.waiting.load(Ordering::Relaxed)
    }

    /// Calls the waiters of the owner with this `held`: a lock that they found taken before they
    /// decided to wait is free.
    pub fn wake_owner(&self, held: &Arc<AtomicU64>) {
        // ORDERING: a SeqCst fence and Relaxed, P1 with the freed lock in place of `used`: the
        // caller's store, then the load of `waiting`; a waiter adds itself there, and then checks.
        if !sync::mutant::is_on("budget-no-owner-fence") {
            fence(Ordering::SeqCst);
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake(|w| Arc::ptr_eq(&w.held, held));
        }
    }

    /// Calls every waiter: something else that they wait for has changed.
    pub fn wake_all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, whom: impl Fn(&Waiter) -> bool) {
        let chosen: Vec<Arc<Waiter>> = {
            let queue = self.queue.lock();
            let waiters =
                queue.lines.values().flat_map(|line| line.waiters.values()).map(|entry| &entry.waiter);
            waiters.filter(|waiter| whom(waiter)).map(Arc::clone).collect()
        };
        chosen.iter().for_each(|waiter| (waiter.wake)());
    }

    /// Calls the first waiters of each line for which there is room.
    fn call(&self) {
        let mut after = None;
        // A line may be made and removed meanwhile; a waiter that comes to one has not checked yet.
        while let Some(number) = self.next_line(after) {
            self.call_line(number, None);
            after = Some(number);
        }
    }

    fn next_line(&self, after: Option<u64>) -> Option<u64> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let queue = self.queue.lock();
        queue.lines.range((after, Bound::Unbounded)).next().map(|(number, _)| *number)
    }

    /// Calls the first waiters of a line for which there is room, except the one with number `but`.
    /// Waiters are asked without a lock. Those behind one that wants too much may want less, so a
    /// few of them are asked too.
    fn call_line(&self, number: u64, but: Option<u64>) {
        let mut asked = but.filter(|_| sync::mutant::is_on("budget-calls-those-behind-only"));
        loop {
            let some = self.next_of(number, asked, but);
            let Some((last, _)) = some.last() else { return };
            asked = Some(*last);
            let mut is_over = false;
            for (at, waiter) in some {
                is_over |= !self.call_one(number, at, &waiter);
            }
            if is_over {
                return;
            }
        }
    }

    /// Calls one waiter of a line if there is room for it. Returns whether waiters behind it may
    /// find room too.
    fn call_one(&self, line: u64, at: u64, waiter: &Waiter) -> bool {
        loop {
            let (promised, stands) = self.queue.lock().asks(line, at);
            let is_like_others = sync::mutant::is_on("budget-first-like-others");
            let stands = if is_like_others { InLine::Behind } else { stands };
            let used = self.used().saturating_add(promised);
            // ORDERING: Relaxed on `held`, a figure for the threshold that its owner checks again;
            // see `used()` for the other.
            let held = waiter.held.load(Ordering::Relaxed);
            if self.fits(used, waiter.pages, held) {
                if (waiter.may_go)(promised, stands) {
                    if self.queue.lock().promise(line, at) {
                        (waiter.wake)();
                    }
                    return true;
                }
            } else if self.fits(used, waiter.pages, 0)
                && !sync::mutant::is_on("budget-one-share-ends-the-line")
            {
                return true;
            }
            // A called waiter may have taken its pages meanwhile: they were counted as used and as
            // promised.
            if self.queue.lock().asks(line, at).0 >= promised {
                return false;
            }
        }
    }

    fn stands(&self, line: u64, number: u64) -> InLine {
        self.queue.lock().asks(line, number).1
    }

    /// A few of the waiters of a line behind the one with number `asked`, without the one with
    /// number `but`.
    fn next_of(&self, line: u64, asked: Option<u64>, but: Option<u64>) -> Vec<(u64, Arc<Waiter>)> {
        let after = asked.map_or(Bound::Unbounded, Bound::Excluded);
        let queue = self.queue.lock();
        let Some(line) = queue.lines.get(&line) else { return Vec::new() };
        let behind = line.waiters.range((after, Bound::Unbounded));
        let waiting =
            behind.filter(|(number, entry)| entry.state == WaiterState::Waits && Some(**number) != but);
        waiting.take(ASKED_AT_ONCE).map(|(number, entry)| (*number, Arc::clone(&entry.waiter))).collect()
    }

    /// Whether an owner that holds `held` may take `pages` when `used` are taken.
    fn fits(&self, used: u64, pages: u64, held: u64) -> bool {
        let free = self.limit.saturating_sub(used);
        if pages > free {
            return false;
        }
        // An owner that holds nothing is let in whenever there is room at all: its request may be
        // larger than its share, and nothing it could wait for would change that.
        used + pages <= self.limit / 4 || held == 0 || held + pages <= SHARE * (free - pages)
    }

    fn release(&self, pages: u64) {
        if pages == 0 {
            return;
        }
        // ORDERING: Relaxed and a SeqCst fence, P1: this subtraction, then the load of `waiting`.
        self.used.fetch_sub(pages, Ordering::Relaxed);
        self.wake_fitting();
    }

    /// There is more room, here or under the limits that `may_go` reads: wakes waiters that find
    /// enough.
    pub(crate) fn wake_fitting(&self) {
        // ORDERING: a SeqCst fence and Relaxed, P1; the sums that `may_go` reads stand in the place
        // of `used` there.
        if !sync::mutant::is_on("budget-no-giver-fence") {
            fence(Ordering::SeqCst);
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.call();
        }
    }
}

impl Permit {
    /// Pages left in the permit.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds another permit of the same budget to this one.
    pub fn join(&mut self, mut other: Self) {
        self.pages += std::mem::take(&mut other.pages);
    }

    /// Splits `pages` off; `None` if there are not so many.
    #[must_use]
    pub fn split(&mut self, pages: u64) -> Option<Self> {
        self.pages = self.pages.checked_sub(pages)?;
        Some(Self { budget: Arc::clone(&self.budget), pages })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.release(self.pages);
    }
}

impl Lines {
    /// Takes a waiter out of its line.
    fn take(&mut self, line: u64, number: u64) -> Option<Entry> {
        let at = self.lines.get_mut(&line)?;
        let entry = at.waiters.remove(&number)?;
        if entry.state == WaiterState::Called {
            at.promised -= entry.waiter.pages;
        }
        if at.waiters.is_empty() {
            self.lines.remove(&line);
        }
        Some(entry)
    }

    /// The first waiter of a line, which waits for what time brings.
    fn first(&self, line: u64) -> Option<(u64, &Entry)> {
        let mut all = self.lines.get(&line)?.waiters.iter();
        all.find(|(_, entry)| entry.state != WaiterState::Busy).map(|(number, entry)| (*number, entry))
    }

    /// The pages promised in a line, and where the waiter with this number stands in it.
    fn asks(&self, line: u64, number: u64) -> (u64, InLine) {
        let promised = self.lines.get(&line).map_or(0, |line| line.promised);
        let is_first = self.first(line).is_some_and(|(first, _)| first == number);
        (promised, if is_first { InLine::First } else { InLine::Behind })
    }

    /// Marks the first waiter of a line as called, if it became the first because the waiter with
    /// this number went. The caller wakes it.
    fn follow(&mut self, line: u64, gone: u64) -> Option<Arc<Waiter>> {
        let (number, entry) = self.first(line).filter(|(number, _)| *number > gone)?;
        let waiter = Arc::clone(&entry.waiter);
        (self.promise(line, number) && !sync::mutant::is_on("budget-nobody-follows")).then_some(waiter)
    }

    /// Marks a waiter as called, if it still waits.
    fn promise(&mut self, line: u64, number: u64) -> bool {
        let Some(line) = self.lines.get_mut(&line) else { return false };
        let Some(entry) = line.waiters.get_mut(&number).filter(|entry| entry.state == WaiterState::Waits)
        else {
            return false;
        };
        entry.state = WaiterState::Called;
        line.promised += entry.waiter.pages;
        true
    }
}

impl Queued<'_> {
    /// Looks for room with `find`. The waiter is called for room that comes after this check began.
    /// It moves to the line with this number, with all waiters for whose pages the same limits
    /// count.
    pub fn look<T>(&self, line: u64, find: impl FnOnce() -> Option<T>) -> Option<T> {
        let was_called = self.now(line, WaiterState::Waits);
        let found = find();
        if found.is_none() && was_called && !sync::mutant::is_on("budget-keeps-a-call") {
            // Not this waiter again: something is in its way.
            self.budget.call_line(line, Some(self.number));
        }
        found
    }

    /// The number of waiters in its line, itself included.
    pub fn in_line(&self) -> usize {
        self.budget.queue.lock().lines.get(&self.line.get()).map_or(0, |line| line.waiters.len())
    }

    /// Whether it is the first of its line: it has to check again when time has brought something,
    /// and the waiters behind it need not.
    pub fn is_first(&self) -> bool {
        self.budget.stands(self.line.get(), self.number) == InLine::First
    }

    /// The waiter does something else, for as long as that takes, and checks again after it.
    pub fn set_busy(&self) {
        if self.now(self.line.get(), WaiterState::Busy) {
            self.call_others();
        }
    }

    /// Sets the waiter's line and state; returns whether it had been called.
    fn now(&self, line: u64, state: WaiterState) -> bool {
        let mut queue = self.budget.queue.lock();
        let before = self.line.replace(line);
        let Some(entry) = queue.take(before, self.number) else { return false };
        let was_called = entry.state == WaiterState::Called;
        queue.lines.entry(line).or_default().waiters.insert(self.number, Entry { state, ..entry });
        let is_gone = line != before || state == WaiterState::Busy;
        let first = is_gone.then(|| queue.follow(before, self.number)).flatten();
        drop(queue);
        first.iter().for_each(|first| (first.wake)());
        // The room that was promised to it goes to the line that it has left.
        if was_called && line != before && !sync::mutant::is_on("budget-takes-a-call-along") {
            self.budget.call_line(before, None);
        }
        was_called
    }

    /// Lets others be called for the room that this waiter was called for and does not take.
    fn call_others(&self) {
        if !sync::mutant::is_on("budget-keeps-a-call") {
            self.budget.wake_fitting();
        }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let (line, number) = (self.line.get(), self.number);
        let (entry, first) = {
            let mut queue = self.budget.queue.lock();
            let entry = queue.take(line, number);
            (entry, queue.follow(line, number))
        };
        first.iter().for_each(|first| (first.wake)());
        // ORDERING: Relaxed; a giver that reads one too many searches the queue for nothing.
        self.budget.waiting.fetch_sub(1, Ordering::Relaxed);
        // It may have taken less than it was called for, or nothing.
        if entry.is_some_and(|entry| entry.state == WaiterState::Called) {
            self.call_others();
        }
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
