//! A thread's callbacks in a domain, from its calls to their end: one thread puts in, one at a time runs.
//!
//! # State
//! Works lie in segments, each of which knows the next.
//!
//! | field | holds | who touches it |
//! |---|---|---|
//! | `Sender` | the segment that is being filled | the queue's thread |
//! | `Queue::put` | how many works were put in | written by the sender |
//! | `Queue::ran` | how many of them have run to their end | written under `rest` |
//! | `Queue::rest` | the segment from which works are run next | who runs |
//! | `Queue::spent` | segments whose works have all run; their memory is still to be freed | who holds the lock |
//! | `Place` | one work | the sender until `put` counts it; then who runs; then who frees |
//!
//! The counts begin at 0 and do not come around: at a billion a second that takes 500 years. The memory of boxes is freed by the sender when it needs the next segment, and by who runs
//! ([`Queue::free`]) what a slow sender leaves. A sender frees two segments for each that it fills, so that it
//! keeps up and no single call takes long. Nobody frees beside a fast sender: they would hold up each other in the allocator.
//!
//! # Orderings
//! * Q1 sender: write a work, link a segment, store `put` with release. Who runs loads `put` with acquire: it finds the work.
//! * Q2 who runs: the callback, store `ran` with release. Who loads `ran` with acquire sees what the callback did.
//!
//! # Lock order
//! `rest`, then `spent`. `rest` is held while callbacks run, and only who runs them takes it.

use std::collections::VecDeque;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::cell::UnsafeCell;
use sync::mutant::is_on;

use crate::work::Work;

/// Works in a thread's first segment; each one is twice as large as the one before.
const FIRST: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };
/// Works in a large one.
const LARGEST: usize = if cfg!(any(loom, shuttle)) { 2 } else { 512 };

/// One number on a line of its own: the others' stores do not take it away.
#[derive(Debug)]
#[repr(align(128))]
struct Alone(AtomicU64);

/// Callbacks of one thread in one domain.
#[derive(Debug)]
pub struct Queue {
    put: Alone,
    ran: Alone,
    is_closed: AtomicBool,
    rest: Mutex<Rest>,
    spent: Mutex<VecDeque<Spent>>,
}

/// The end at which works are put in.
#[derive(Debug)]
pub struct Sender {
    queue: Arc<Queue>,
    segment: Arc<Segment>,
    /// Works in the segment.
    filled: usize,
    put: u64,
    /// Works that the domain does not know of yet, and when it is to be told.
    pub(crate) untold: Untold,
}

/// Works that were put in and not counted in the domain's backlog.
#[derive(Debug)]
pub(crate) struct Untold {
    pub(crate) works: u64,
    /// So many are told of together.
    pub(crate) at: u64,
}

/// The end from which they run.
#[derive(Debug)]
struct Rest {
    segment: Arc<Segment>,
    /// Works of the segment that have run, and whose memory was freed.
    done: usize,
    freed: usize,
    ran: u64,
    /// How many had been put in at the last run.
    put: u64,
}

type Place = UnsafeCell<MaybeUninit<Work>>;

#[derive(Debug)]
struct Segment {
    places: Box<[Place]>,
    next: OnceLock<Arc<Segment>>,
}

/// A segment whose works have run, and how many of them were freed.
#[derive(Debug)]
struct Spent {
    segment: Arc<Segment>,
    freed: usize,
}

// SAFETY: a place is touched by one thread at a time, see the table above; works are `Send`.
unsafe impl Sync for Segment {}
// SAFETY: as above.
unsafe impl Send for Segment {}

impl Segment {
    fn new(works: usize) -> Arc<Self> {
        let places = (0..works).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        Arc::new(Self { places, next: OnceLock::new() })
    }

    /// Frees the memory of some works.
    ///
    /// # Safety
    /// They have run, nobody else touches them, and they were not freed before.
    unsafe fn free(&self, works: std::ops::Range<usize>) {
        for place in &self.places[works] {
            // SAFETY: as the caller promises; a work that has run was written.
            place.with_mut(|work| unsafe { (*work).assume_init_mut().free() });
        }
    }
}

impl Sender {
    /// A queue of the calling thread's.
    #[must_use]
    pub fn new() -> Self {
        let segment = Segment::new(FIRST);
        let rest = Rest { segment: Arc::clone(&segment), done: 0, freed: 0, ran: 0, put: 0 };
        let queue = Arc::new(Queue {
            put: Alone(AtomicU64::new(0)),
            ran: Alone(AtomicU64::new(0)),
            is_closed: AtomicBool::new(false),
            rest: Mutex::new(rest),
            spent: Mutex::new(VecDeque::new()),
        });
        Self { queue, segment, filled: 0, put: 0, untold: Untold { works: 0, at: 1 } }
    }

    /// The queue, for who runs.
    #[must_use]
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Puts a work in; says of how many earlier ones that gave the memory back.
    #[inline]
    pub fn push(&mut self, work: Work) -> u64 {
        let mut freed = 0;
        if self.filled == self.segment.places.len() {
            freed = self.go_on();
        }
        if is_on("rcu-put-before-work") {
            // ORDERING: a mutant.
            self.queue.put.0.store(self.put + 1, Ordering::Release);
        }
        // SAFETY: not counted in `put` yet, so that nobody else touches it.
        self.segment.places[self.filled].with_mut(|place| unsafe { (*place).write(work) });
        self.filled += 1;
        self.put += 1;
        // ORDERING: Release, Q1.
        self.queue.put.0.store(self.put, Ordering::Release);
        freed
    }

    /// Begins the next segment.
    #[cold]
    fn go_on(&mut self) -> u64 {
        let larger = (self.segment.places.len() * 2).min(LARGEST);
        let (segment, freed) = self.queue.reuse(larger);
        let segment = segment.unwrap_or_else(|| Segment::new(larger));
        // Once for each segment; who runs looks when `put` says that there is more.
        let linked = self.segment.next.set(Arc::clone(&segment));
        debug_assert!(linked.is_ok(), "a segment has one next");
        self.segment = segment;
        self.filled = 0;
        freed
    }
}

impl Default for Sender {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // ORDERING: Release, with the load in `is_over`: nothing comes after.
        self.queue.is_closed.store(true, Ordering::Release);
    }
}

impl Queue {
    /// How many were put in.
    pub fn put(&self) -> u64 {
        // ORDERING: Acquire, Q1.
        self.put.0.load(Ordering::Acquire)
    }

    /// How many have run.
    pub(crate) fn ran(&self) -> u64 {
        // ORDERING: Acquire, Q2.
        self.ran.0.load(Ordering::Acquire)
    }

    /// How many have not run yet.
    pub(crate) fn waiting(&self) -> u64 {
        // In this order, so that no more have run than were put in.
        let ran = self.ran();
        self.put() - ran
    }

    /// Whether the first `put` works have run.
    pub fn has_run(&self, put: u64) -> bool {
        self.ran() >= put
    }

    /// Whether nothing is left and nothing comes.
    pub(crate) fn is_over(&self) -> bool {
        // ORDERING: Acquire, with the store of the sender's end: `put` is the last one.
        self.is_closed.load(Ordering::Acquire) && self.has_run(self.put())
    }

    /// Runs all up to the `put`th, in order, as far as they were put in. After at most `chunk` of them they are counted, and `counted` hears how many
    /// have run by then. Says whether the sender is slow: it puts in less than a segment between two runs, so that it cannot be
    /// relied on to free.
    pub fn run(&self, put: u64, chunk: u64, counted: impl Fn(u64)) -> bool {
        // Whatever the caller says: more is not there yet.
        let (put, chunk) = (put.min(self.put()), chunk.max(1));
        let mut rest = self.rest.lock();
        let is_slow = put - rest.put.min(put) < LARGEST as u64;
        rest.put = put;
        // Somebody else may have run more by now.
        while rest.ran < put {
            let to = put.min(rest.ran + chunk);
            if is_on("rcu-counted-before-run") {
                // ORDERING: a mutant.
                self.ran.0.store(to, Ordering::Release);
            }
            while rest.ran != to {
                rest.run_one(&self.spent);
            }
            // ORDERING: Release, Q2. After the callbacks: a barrier waits for those that are running, too.
            self.ran.0.store(to, Ordering::Release);
            counted(to);
        }
        is_slow
    }

    /// Frees the memory of all that have run; says of how many.
    pub fn free(&self) -> u64 {
        let mut rest = self.rest.lock();
        let spent = std::mem::take(&mut *self.spent.lock());
        let of_spent: usize = spent.into_iter().map(|spent| spent.free().1).sum();
        let Rest { segment, done, freed, .. } = &mut *rest;
        // SAFETY: these have run, are not in `spent`, and are counted as freed under the lock.
        unsafe { segment.free(*freed..*done) };
        let of_rest = *done - *freed;
        *freed = *done;
        (of_spent + of_rest) as u64
    }

    /// Frees two segments of which one can be filled again, if there are so many; says of how many works.
    fn reuse(&self, works: usize) -> (Option<Arc<Segment>>, u64) {
        let mut spent = self.spent.lock();
        let (first, second) = (spent.pop_front(), spent.pop_front());
        drop(spent);
        let of_second = second.map_or(0, |second| second.free().1);
        let Some((mut segment, of_first)) = first.map(Spent::free) else { return (None, 0) };
        // Nobody else has it: who ran it has gone on, and so has what was linked to it.
        let only = Arc::get_mut(&mut segment).filter(|only| only.places.len() == works);
        let is_reused = only.is_some_and(|only| {
            only.next.take();
            true
        });
        (is_reused.then_some(segment), (of_first + of_second) as u64)
    }
}

impl Rest {
    /// Runs the next work, which is there.
    fn run_one(&mut self, spent: &Mutex<VecDeque<Spent>>) {
        if self.done == self.segment.places.len() {
            let next = Arc::clone(self.segment.next.get().expect("linked before more was counted"));
            let segment = std::mem::replace(&mut self.segment, next);
            spent.lock().push_back(Spent { segment, freed: self.freed });
            (self.done, self.freed) = (0, 0);
        }
        let place = self.done;
        // Before it runs: whatever happens, it is not run again. Who counts waits for the lock that is held here.
        self.done += 1;
        self.ran += 1;
        self.segment.places[place].with_mut(|place| {
            // SAFETY: counted in `put`, so that it was written and the sender is done with it; run once.
            let run = AssertUnwindSafe(|| unsafe { (*place).assume_init_mut().run() });
            if let Err(payload) = catch_unwind(run) {
                // Its drop may panic as well, and so may whoever writes the log.
                let _kept = ManuallyDrop::new(payload);
                let _kept =
                    catch_unwind(|| tracing::error!("a callback panicked")).map_err(ManuallyDrop::new);
            }
        });
    }
}

impl Spent {
    /// Gives the segment, and how many works were freed.
    fn free(self) -> (Arc<Segment>, usize) {
        let works = self.freed..self.segment.places.len();
        let freed = works.len();
        // SAFETY: all have run; whoever has the `Spent` is the only one.
        unsafe { self.segment.free(works) };
        (self.segment, freed)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.free();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_more_runs_than_was_put_in() {
        let ran = Arc::new(AtomicUsize::new(0));
        let mut sender = Sender::new();
        let queue = Arc::clone(sender.queue());
        queue.run(100, 0, |_| ());
        let counted = Arc::clone(&ran);
        // ORDERING: Relaxed, one thread.
        sender.push(Work::call(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        queue.run(100, 0, |_| ());
        queue.run(u64::MAX, 7, |_| ());
        assert_eq!((ran.load(Ordering::Relaxed), queue.ran()), (1, 1));
    }
}
