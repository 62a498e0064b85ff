//! A thread's callbacks in a domain: one thread produces them, one thread at a time consumes them.
//!
//! Analogous to the kernel's `rcu_segcblist`, without its stages: a grace period serves the
//! callbacks that were queued before it began, so that two counts say which callbacks are done,
//! wait or are ready.
//!
//! # State
//! Callbacks lie in segments, each of which knows the next one.
//!
//! | field | holds | used by |
//! |---|---|---|
//! | `Producer` | the segment that is being filled | the list's thread |
//! | `CallbackList::queued` | how many callbacks were queued | written by the producer |
//! | `CallbackList::invoked` | how many have run to their end | written under `consumer` |
//! | `CallbackList::consumer` | the segment whose callbacks are invoked next | the thread that invokes them |
//! | `CallbackList::done_segments` | segments whose callbacks have all run; their memory is still to be freed | the holder of its lock |
//! | `Cell` | one callback | the producer until `queued` counts it; then the thread that invokes it; then the one that frees it |
//!
//! The counts begin at 0 and do not wrap around: at a billion a second that would take 500 years.
//!
//! The producer frees the memory of boxes when it needs the next segment: two segments for each
//! that it fills, so that it keeps up and no single call takes long. The thread that invokes
//! callbacks frees ([`CallbackList::free`]) what a slow producer leaves. No thread frees beside a
//! fast producer: the two would hold each other up in the allocator.
//!
//! # Orderings
//! * Q1 producer: write a callback, link a segment, store `queued` with release. The consumer loads
//!   `queued` with acquire: it finds the callback.
//! * Q2 consumer: the callback, then store `invoked` with release. A thread that loads `invoked`
//!   with acquire sees what the callback did.
//!
//! # Lock order
//! `consumer`, then `done_segments`. `consumer` is held while callbacks run; only the thread that
//! invokes them takes it.

use std::collections::VecDeque;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::cell::UnsafeCell;
use sync::mutant::is_on;
use sync::{CachePadded, Mutex};

use crate::work::Work;

/// Callbacks in a thread's first segment. Each segment is twice as large as the one before.
const FIRST: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };
/// Callbacks in the largest segment.
const LARGEST: usize = if cfg!(any(loom, shuttle)) { 2 } else { 512 };

/// Callbacks of one thread in one domain.
#[derive(Debug)]
pub struct CallbackList {
    queued: CachePadded<AtomicU64>,
    invoked: CachePadded<AtomicU64>,
    is_closed: AtomicBool,
    consumer: Mutex<Consumer>,
    done_segments: Mutex<VecDeque<DoneSegment>>,
}

/// The end at which callbacks are queued.
#[derive(Debug)]
pub struct Producer {
    list: Arc<CallbackList>,
    segment: Arc<Segment>,
    /// Callbacks in the segment.
    filled: usize,
    queued: u64,
    /// Callbacks that the domain's `qlen` does not count yet.
    pub(crate) uncounted: Uncounted,
}

/// Callbacks that were queued and are not counted in the domain's `qlen`.
#[derive(Debug)]
pub(crate) struct Uncounted {
    pub(crate) works: u64,
    /// They are added when there are so many.
    pub(crate) at: u64,
}

/// The end from which callbacks are invoked.
#[derive(Debug)]
struct Consumer {
    segment: Arc<Segment>,
    /// Callbacks of the segment that have run, and those of them whose memory was freed.
    done: usize,
    freed: usize,
    invoked: u64,
    /// How many had been queued at the last run.
    queued: u64,
}

type Cell = UnsafeCell<MaybeUninit<Work>>;

#[derive(Debug)]
struct Segment {
    cells: Box<[Cell]>,
    next: OnceLock<Arc<Segment>>,
}

/// A segment whose callbacks have run, and how many of them were freed.
#[derive(Debug)]
struct DoneSegment {
    segment: Arc<Segment>,
    freed: usize,
}

// SAFETY: one thread at a time uses a cell, see the table above; callbacks are `Send`.
unsafe impl Sync for Segment {}
// SAFETY: as above.
unsafe impl Send for Segment {}

impl Segment {
    fn new(works: usize) -> Arc<Self> {
        let cells = (0..works).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        Arc::new(Self { cells, next: OnceLock::new() })
    }

    /// Frees the memory of some callbacks.
    ///
    /// # Safety
    /// They have run, no other thread uses them, and they were not freed before.
    unsafe fn free(&self, works: std::ops::Range<usize>) {
        for cell in &self.cells[works] {
            // SAFETY: as the caller promises; a callback that has run was written.
            cell.with_mut(|work| unsafe { (*work).assume_init_mut().free() });
        }
    }
}

impl Producer {
    /// The list, for the consumer.
    #[must_use]
    pub fn list(&self) -> &Arc<CallbackList> {
        &self.list
    }

    /// Queues a callback. Returns how many earlier ones had their memory freed by that.
    #[inline]
    pub fn push(&mut self, work: Work) -> u64 {
        let mut freed = 0;
        if self.filled == self.segment.cells.len() {
            freed = self.begin_segment();
        }
        if is_on("rcu-put-before-work") {
            // ORDERING: a mutant.
            self.list.queued.store(self.queued + 1, Ordering::Release);
        }
        // SAFETY: not counted in `queued` yet, so that no other thread uses it.
        self.segment.cells[self.filled].with_mut(|cell| unsafe { (*cell).write(work) });
        self.filled += 1;
        self.queued += 1;
        // ORDERING: Release, Q1.
        self.list.queued.store(self.queued, Ordering::Release);
        freed
    }

    /// Begins the next segment.
    #[cold]
    fn begin_segment(&mut self) -> u64 {
        let larger = (self.segment.cells.len() * 2).min(LARGEST);
        let (segment, freed) = self.list.reuse(larger);
        let segment = segment.unwrap_or_else(|| Segment::new(larger));
        // Once for each segment. The consumer reads it when `queued` says that there is more.
        let linked = self.segment.next.set(Arc::clone(&segment));
        debug_assert!(linked.is_ok(), "a segment has one next");
        self.segment = segment;
        self.filled = 0;
        freed
    }
}

/// A new list, whose producer is the calling thread.
impl Default for Producer {
    fn default() -> Self {
        let segment = Segment::new(FIRST);
        let consumer = Consumer { segment: Arc::clone(&segment), done: 0, freed: 0, invoked: 0, queued: 0 };
        let list = Arc::new(CallbackList {
            queued: CachePadded::new(AtomicU64::new(0)),
            invoked: CachePadded::new(AtomicU64::new(0)),
            is_closed: AtomicBool::new(false),
            consumer: Mutex::new(consumer),
            done_segments: Mutex::new(VecDeque::new()),
        });
        Self { list, segment, filled: 0, queued: 0, uncounted: Uncounted { works: 0, at: 1 } }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // ORDERING: Release, with the load in `is_over`: nothing comes after.
        self.list.is_closed.store(true, Ordering::Release);
    }
}

impl CallbackList {
    /// How many were queued.
    pub fn queued(&self) -> u64 {
        // ORDERING: Acquire, Q1.
        self.queued.load(Ordering::Acquire)
    }

    /// How many have run.
    pub(crate) fn invoked(&self) -> u64 {
        // ORDERING: Acquire, Q2.
        self.invoked.load(Ordering::Acquire)
    }

    /// How many have not run yet.
    pub(crate) fn len(&self) -> u64 {
        // In this order, so that no more have run than were queued.
        let invoked = self.invoked();
        self.queued() - invoked
    }

    /// Whether the first `queued` callbacks have run.
    pub fn has_run(&self, queued: u64) -> bool {
        self.invoked() >= queued
    }

    /// Whether none is left and none will come.
    pub(crate) fn is_over(&self) -> bool {
        // ORDERING: Acquire, with the store of the producer's end: `queued` is the last count.
        self.is_closed.load(Ordering::Acquire) && self.has_run(self.queued())
    }

    /// Invokes all callbacks up to the `queued`th, in order, as far as they have been queued. After
    /// at most `chunk` of them they are counted, and `counted` is called with how many have run by
    /// then.
    ///
    /// Returns whether the producer is slow: it queues less than a segment between two runs, so
    /// that it cannot be relied on to free memory.
    pub fn run(&self, queued: u64, chunk: u64, counted: impl Fn(u64)) -> bool {
        // Whatever the caller says: there are no more yet.
        let (queued, chunk) = (queued.min(self.queued()), chunk.max(1));
        let mut consumer = self.consumer.lock();
        let is_slow = queued - consumer.queued.min(queued) < LARGEST as u64;
        consumer.queued = queued;
        // Another thread may have run more by now.
        while consumer.invoked < queued {
            let to = queued.min(consumer.invoked + chunk);
            if is_on("rcu-counted-before-run") {
                // ORDERING: a mutant.
                self.invoked.store(to, Ordering::Release);
            }
            while consumer.invoked != to {
                consumer.run_one(&self.done_segments);
            }
            // ORDERING: Release, Q2. After the callbacks: a barrier waits for those that are
            // running, too.
            self.invoked.store(to, Ordering::Release);
            counted(to);
        }
        is_slow
    }

    /// Frees the memory of all that have run. Returns how many those are.
    pub fn free(&self) -> u64 {
        let mut consumer = self.consumer.lock();
        let done_segments = std::mem::take(&mut *self.done_segments.lock());
        let of_spent: usize = done_segments.into_iter().map(|done_segments| done_segments.free().1).sum();
        let Consumer { segment, done, freed, .. } = &mut *consumer;
        // SAFETY: these have run, are not in `done_segments`, and are counted as freed under the
        // lock.
        unsafe { segment.free(*freed..*done) };
        let of_rest = *done - *freed;
        *freed = *done;
        (of_spent + of_rest) as u64
    }

    /// Frees two segments, if there are so many, and gives one of them to be filled again. Returns
    /// how many callbacks were freed.
    fn reuse(&self, works: usize) -> (Option<Arc<Segment>>, u64) {
        let mut done_segments = self.done_segments.lock();
        let (first, second) = (done_segments.pop_front(), done_segments.pop_front());
        drop(done_segments);
        let of_second = second.map_or(0, |second| second.free().1);
        let Some((mut segment, of_first)) = first.map(DoneSegment::free) else { return (None, 0) };
        // No other thread has it: the consumer has gone on to the next one.
        let only = Arc::get_mut(&mut segment).filter(|only| only.cells.len() == works);
        let is_reused = only.is_some_and(|only| {
            only.next.take();
            true
        });
        (is_reused.then_some(segment), (of_first + of_second) as u64)
    }
}

impl Consumer {
    /// Invokes the next callback, which has been queued.
    fn run_one(&mut self, done_segments: &Mutex<VecDeque<DoneSegment>>) {
        if self.done == self.segment.cells.len() {
            let next = Arc::clone(self.segment.next.get().expect("linked before more was counted"));
            let segment = std::mem::replace(&mut self.segment, next);
            done_segments.lock().push_back(DoneSegment { segment, freed: self.freed });
            (self.done, self.freed) = (0, 0);
        }
        let cell = self.done;
        // Before it runs: whatever happens, it is not invoked again. The count is published under
        // the lock that is held here.
        self.done += 1;
        self.invoked += 1;
        self.segment.cells[cell].with_mut(|cell| {
            // SAFETY: counted in `queued`, so that it was written and the producer is done with it;
            // invoked once.
            let run = AssertUnwindSafe(|| unsafe { (*cell).assume_init_mut().run() });
            if let Err(payload) = catch_unwind(run) {
                // Dropping it may panic as well, and so may a subscriber of the log.
                let _kept = ManuallyDrop::new(payload);
                let _kept =
                    catch_unwind(|| tracing::error!("a callback panicked")).map_err(ManuallyDrop::new);
            }
        });
    }
}

impl DoneSegment {
    /// Frees the rest. Returns the segment, and how many callbacks were freed.
    fn free(self) -> (Arc<Segment>, usize) {
        let works = self.freed..self.segment.cells.len();
        let freed = works.len();
        // SAFETY: all have run; the owner of the `DoneSegment` is the only one that uses it.
        unsafe { self.segment.free(works) };
        (self.segment, freed)
    }
}

impl Drop for CallbackList {
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
        let invoked = Arc::new(AtomicUsize::new(0));
        let mut producer = Producer::default();
        let list = Arc::clone(producer.list());
        list.run(100, 0, |_| ());
        let counted = Arc::clone(&invoked);
        // ORDERING: Relaxed, one thread.
        producer.push(Work::call(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        list.run(100, 0, |_| ());
        list.run(u64::MAX, 7, |_| ());
        assert_eq!((invoked.load(Ordering::Relaxed), list.invoked()), (1, 1));
    }
}
