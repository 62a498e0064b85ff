//! What the threads of one ring share.
//!
//! # Lock order
//! `Ring::returned` is a leaf.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::cpus::Cpus;
use super::entry::Entry;
use super::idle_sched::Watchdog;
use super::pool::ThreadPool;
use super::single_client::SingleClient;
use crate::device::Dev;

/// How many entries all queues have together at least; otherwise as many as there may be threads.
const ENTRIES_MIN: usize = 256;

/// How many entries a queue has at least.
const DEPTH_MIN: usize = 32;

/// How many times the entries of the beginning there may be.
const GROWTH: usize = 2;

/// Entries that a queue is given at once when it runs short.
pub(super) const ENTRIES_STEP: usize = 64;

/// How many entries of all queues together may keep the memory of their data.
const RESIDENT: usize = 32;

/// How many of a queue's threads wait for requests before one whose request was slow rests.
const IDLE_MAX: u64 = 4;

/// The state that the threads of one ring share.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(super) dev: Arc<Dev>,
    pub(super) queues: Box<[QueueLoad]>,
    /// Entries of each queue in the beginning.
    pub(super) depth: usize,
    /// Entries of each queue that may keep their memory.
    pub(super) resident: u64,
    pub(super) cpus: Cpus,
    pub(super) single_client: SingleClient,
    pub(super) watchdog: Arc<Watchdog>,
    pub(super) pool: ThreadPool,
    returned: Mutex<Returned>,
    /// Tells the dispatcher that there are returned entries.
    wakeup: OwnedFd,
}

#[derive(Debug)]
struct Returned {
    /// Answered entries for the dispatcher.
    entries: Vec<Entry>,
    ended: bool,
}

impl Ring {
    pub(super) fn new(
        dev: Arc<Dev>,
        queues: u16,
        threads_max: usize,
        idle_sched: bool,
    ) -> Result<Self, Errno> {
        let count = usize::from(queues).max(1);
        let depth = (threads_max.max(ENTRIES_MIN) / count).max(DEPTH_MIN);
        let entries_max = GROWTH * count * depth;
        let resident = (RESIDENT / count).max(2) as u64;
        let wakeup = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let cpus = Cpus::new();
        Ok(Self {
            dev,
            queues: std::iter::repeat_with(QueueLoad::default).take(count).collect(),
            depth,
            resident,
            watchdog: Arc::new(Watchdog::new(cpus.clone(), idle_sched)),
            cpus,
            single_client: SingleClient::default(),
            pool: ThreadPool::new(threads_max + entries_max),
            returned: Mutex::new(Returned { entries: Vec::with_capacity(entries_max), ended: false }),
            wakeup,
        })
    }

    /// How many entries there are in the beginning.
    pub(super) fn entries(&self) -> usize {
        self.depth * self.queues.len()
    }

    /// How many there may be.
    pub(super) fn entries_max(&self) -> usize {
        GROWTH * self.entries()
    }

    pub(super) fn queue(&self, entry: &Entry) -> &QueueLoad {
        &self.queues[usize::from(entry.queue())]
    }

    /// Hands an answered entry to the kernel by way of the dispatcher.
    pub(super) fn return_entry(&self, entry: Entry) {
        self.queue(&entry).stop_serving();
        let mut returned = self.returned.lock();
        if returned.ended {
            return;
        }
        returned.entries.push(entry);
        let is_first = returned.entries.len() == 1;
        drop(returned);
        if is_first {
            self.signal_wakeup();
        }
    }

    /// Takes the returned entries. For the dispatcher only.
    pub(super) fn take_returned(&self, into: &mut Vec<Entry>) {
        std::mem::swap(&mut self.returned.lock().entries, into);
    }

    pub(super) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    pub(super) fn signal_wakeup(&self) {
        // Failure: it rings already.
        let _rings = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }

    pub(super) fn clear_wakeup(&self) {
        let mut count = [0; 8];
        // Failure: it does not ring.
        let _silent = rustix::io::read(&self.wakeup, &mut count);
    }

    /// The connection has ended.
    pub(crate) fn end(&self) {
        let mut returned = self.returned.lock();
        if std::mem::replace(&mut returned.ended, true) {
            return;
        }
        drop(returned);
        self.signal_wakeup();
        self.watchdog.end();
        self.pool.end();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.returned.lock().ended
    }

    /// Waits for the threads to end, until `until` at the latest. Says how many are left.
    pub(crate) fn wait(&self, until: Instant) -> usize {
        let left = self.pool.wait(until);
        self.watchdog.wait();
        left
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.pool.threads()
    }
}

/// How many threads serve requests of one queue, and how many wait for some.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct QueueLoad {
    /// The number of threads that serve in the low half, of those that wait in the high half.
    threads: AtomicU64,
    /// Whether an entry that waits for its next request keeps its memory although the queue is
    /// crowded.
    is_resident: AtomicBool,
}

const BUSY: u64 = 1;
const IDLE: u64 = 1 << 32;

impl QueueLoad {
    fn add(&self, change: u64) {
        // ORDERING: Relaxed. These numbers choose between two right ways only: where an entry's
        // memory and its thread go. Changes are atomic, so that none is lost.
        self.threads.fetch_add(change, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        // ORDERING: Relaxed, as in `add`.
        self.threads.load(Ordering::Relaxed)
    }

    /// A thread begins to serve an entry's request that was another's.
    pub(super) fn start_serving(&self) {
        self.add(BUSY);
    }

    /// A thread has served and waits for its entry's next request.
    pub(super) fn start_waiting(&self) {
        self.add(IDLE.wrapping_sub(BUSY));
    }

    /// A thread that has waited serves.
    pub(super) fn resume_serving(&self) {
        self.add(BUSY.wrapping_sub(IDLE));
    }

    /// The entry that a thread has waited with will not come back.
    pub(super) fn drop_waiting(&self) {
        self.add(IDLE.wrapping_neg());
    }

    /// A request was answered, and its entry has no thread any more.
    pub(super) fn stop_serving(&self) {
        self.add(BUSY.wrapping_neg());
    }

    /// Whether enough threads wait.
    pub(super) fn has_idle(&self) -> bool {
        self.now() >> 32 >= IDLE_MAX
    }

    /// Whether an entry that is handed over keeps its memory although the queue is crowded. One
    /// entry does, and the kernel uses that one next. Requests of stalled stores crowd a queue for
    /// as long as they like, and large writes beside them would have their pages made anew each
    /// time.
    pub(super) fn claim_resident(&self, entry: &mut Entry) -> bool {
        // ORDERING: Relaxed, as in `add`. The thread that swaps false for true has the one place.
        entry.is_resident = !self.is_resident.swap(true, Ordering::Relaxed);
        entry.is_resident
    }

    /// An entry is used again. If it was the one that kept its memory, another may, should this one
    /// not come back.
    pub(super) fn release_resident(&self, entry: &mut Entry) {
        if std::mem::take(&mut entry.is_resident) {
            // ORDERING: Relaxed, as in `add`.
            self.is_resident.store(false, Ordering::Relaxed);
        }
    }

    /// Whether more than `resident` requests are under way.
    pub(super) fn is_crowded(&self, resident: u64) -> bool {
        self.now() & (IDLE - 1) > resident
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_waiting_entry_of_a_crowded_queue_keeps_its_memory() {
        let queue = QueueLoad::default();
        let [mut first, mut second] = [Entry::new(0).unwrap(), Entry::new(0).unwrap()];
        assert!(queue.claim_resident(&mut first));
        assert!(!queue.claim_resident(&mut second), "there is one already");
        // The other's next request changes nothing.
        queue.release_resident(&mut second);
        assert!(!queue.claim_resident(&mut second));
        // The first is used again, for whatever long; meanwhile it is another's turn, and then it
        // is too late for the first.
        queue.release_resident(&mut first);
        assert!(queue.claim_resident(&mut second));
        assert!(!queue.claim_resident(&mut first));
        queue.release_resident(&mut second);
        assert!(queue.claim_resident(&mut first));
    }
}
