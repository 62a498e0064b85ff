//! The hard bound on cached pages.
//!
//! A page exists only under a permit, so that the number of pages never passes the limit. Who must wait
//! when it is near is decided by a dynamic threshold: an owner may hold up to `SHARE` times what is still
//! free. A single heavy owner so stops at four fifths of the limit, several of them share those four
//! fifths, and one that holds little finds room at once: the one who fills the cache waits, not its
//! neighbour. Up to a quarter of the limit nobody is asked.
//!
//! Orderings, P1 (store-load on both sides, by a SeqCst fence each): a waiter adds itself to `waiting`, then
//! reads `used` in its second try; a giver lowers `used`, then reads `waiting`. Either the waiter sees the
//! pages or the giver sees the waiter. Without one of the fences both may miss, and the waiter sleeps on.
//! `wake_owner` is a giver of another kind: what it gave free is a lock that the waiter tries after it has queued. So is who gives up room under a
//! cgroup's limits (`dirty::Reserved`): their sums stand in the place of `used`. A waiter's `may_go` reads these for the giver, after the giver's own
//! change: of several who change a sum, the last one sees what all did.
//!
//! Lock order: `Budget::queue` is a leaf; waiters are woken outside it.
//!
//! Who touches what: `used` only in `try_take` and `give_back`; `waiting` only under `queue`, read without.

use std::collections::VecDeque;
use std::sync::Arc;

use sync::Mutex;
use sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// An owner may hold this many times what is free.
const SHARE: u64 = 4;

/// Somebody who waits for room.
pub struct Waiter {
    /// How many pages are wanted.
    pub pages: u64,
    /// How many the waiter's owner holds.
    pub held: Arc<AtomicU64>,
    /// Asked when there is more room: whether nothing else is in its way that can be told at once. Then it is woken.
    pub may_go: Box<dyn Fn() -> bool + Send + Sync>,
    /// Called when there may be room; calls may come more than once, and for nothing.
    pub wake: Box<dyn Fn() + Send + Sync>,
}

/// Counts pages against a limit.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    next: u64,
    waiters: VecDeque<(u64, Arc<Waiter>)>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("waiters", &self.waiters.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("pages", &self.pages).field("held", &self.held).finish_non_exhaustive()
    }
}

/// The right to hold so many pages; gives back what is left of it when dropped.
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
}

impl Budget {
    /// A budget of `limit` pages.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::new(Queue::default()),
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
            // ORDERING: Relaxed, the exchange alone keeps the bound; pages are published by their owners' locks.
            match self.used.compare_exchange_weak(used, used + pages, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Permit { budget: Arc::clone(self), pages }),
                Err(now) => used = now,
            }
        }
    }

    /// Queues `waiter` to be called whenever pages were given back, until the result is dropped.
    /// Try once more after this: pages given back before are not announced.
    #[must_use]
    pub fn queue(&self, waiter: Waiter) -> Queued<'_> {
        let mut queue = self.queue.lock();
        let number = queue.next;
        queue.next += 1;
        queue.waiters.push_back((number, Arc::new(waiter)));
        // ORDERING: Relaxed and a SeqCst fence, P1: this add, then the caller's load of `used`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if !sync::mutant::is_on("budget-no-waiter-fence") {
            fence(Ordering::SeqCst);
        }
        Queued { budget: self, number }
    }

    /// Calls the waiters of the owner who holds `held`: what they found taken before they decided to wait was given
    /// free.
    pub fn wake_owner(&self, held: &Arc<AtomicU64>) {
        // ORDERING: a SeqCst fence and Relaxed, P1 with what was given free in place of `used`: the caller's store,
        // then the load of `waiting`; a waiter adds itself there, and then looks.
        if !sync::mutant::is_on("budget-no-owner-fence") {
            fence(Ordering::SeqCst);
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.wake(|w| Arc::ptr_eq(&w.held, held), |_| true);
        }
    }

    /// Calls every waiter: something else that they wait for has changed.
    pub fn wake_all(&self) {
        self.wake(|_| true, |_| true);
    }

    /// Wakes those of `whom` of whom `asked` says so; asks without a lock.
    fn wake(&self, whom: impl Fn(&Waiter) -> bool, asked: impl Fn(&Waiter) -> bool) {
        let chosen: Vec<Arc<Waiter>> = {
            let queue = self.queue.lock();
            queue.waiters.iter().filter(|(_, w)| whom(w)).map(|(_, w)| Arc::clone(w)).collect()
        };
        for waiter in chosen.iter().filter(|waiter| asked(waiter)) {
            (waiter.wake)();
        }
    }

    /// Whether an owner that holds `held` may take `pages` when `used` are taken.
    fn fits(&self, used: u64, pages: u64, held: u64) -> bool {
        let free = self.limit.saturating_sub(used);
        if pages > free {
            return false;
        }
        // An owner that holds nothing is let in whenever there is room at all: its request may be larger than
        // its share, and nothing it could wait for would change that.
        used + pages <= self.limit / 4 || held == 0 || held + pages <= SHARE * (free - pages)
    }

    fn give_back(&self, pages: u64) {
        if pages == 0 {
            return;
        }
        // ORDERING: Relaxed and a SeqCst fence, P1: this subtraction, then the load of `waiting`.
        self.used.fetch_sub(pages, Ordering::Relaxed);
        self.tell();
    }

    /// There is more room, here or where `may_go` looks: wakes those who find enough of it.
    pub(crate) fn tell(&self) {
        // ORDERING: a SeqCst fence and Relaxed, P1; what `may_go` looks at stands in the place of `used` there.
        if !sync::mutant::is_on("budget-no-giver-fence") {
            fence(Ordering::SeqCst);
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            // ORDERING: Relaxed on `held`, a figure for the threshold that its owner checks again; see
            // `used()` for the other.
            let fits = |w: &Waiter| self.fits(self.used(), w.pages, w.held.load(Ordering::Relaxed));
            self.wake(fits, |w| (w.may_go)());
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
        self.budget.give_back(self.pages);
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut queue = self.budget.queue.lock();
        queue.waiters.retain(|(number, _)| *number != self.number);
        // ORDERING: Relaxed, one too many read by a giver costs it a look at the queue.
        self.budget.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
