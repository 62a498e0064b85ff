//! FUSE over io_uring: the kernel and the daemon share entries, and a request costs one system call
//! and no wake-up of another CPU.
//!
//! Purpose: a second transport. The readers of `/dev/fuse` (module `reader`) go on beside it: the
//! kernel still sends FORGET and INTERRUPT there, and everything until the entries are known.
//! Requests of both are served in the same way (module `dispatch`).
//!
//! # How it works
//! The kernel has a queue for each CPU the host can have, and puts a request into an entry of the
//! queue of the CPU that the caller runs on. On that CPU it wakes the thread that handed the entry
//! over. That thread gets the request copied into the entry (in its own context), and hands the
//! entry over again with the answer. Two facts of the kernel decide the design:
//! - The copying is done by **the thread that handed the entry over**, when it enters the kernel. A
//!   thread that sleeps in the store therefore holds up every other entry that it has handed over,
//!   and no other thread can help.
//! - The entry that was handed over last is used first.
//!
//! So a thread that serves ([`worker`]) has **one** entry. While it serves, that entry is the
//! request's, and it has none in the kernel. All other entries are handed over by one thread
//! ([`dispatcher`]) which serves nothing. An entry of the dispatcher's is used when every serving
//! thread of the queue is busy; it is given to a thread that rests or a new one, which has it from
//! then on. In the steady state the dispatcher sleeps, and the entries used are those of threads
//! that were busy a moment ago. A thread whose request was slow, where enough others wait, gives
//! its entry back to the dispatcher and rests.
//!
//! # What is guaranteed
//! - **No request holds up another**, whether its handler announces that it waits (`before_wait`)
//!   or hangs in a system call of the store: there is nothing to detect, and no watchdog. The
//!   number of entries limits this. All queues together begin with as many entries as there may be
//!   threads (`SessionOptions::threads_max`, at least 256; a queue has at least 32). They may grow
//!   to twice as many; the first queues that run short get the further entries. Once these are used
//!   up, the kernel holds the next request from a CPU until a request from that CPU is answered, or
//!   until the client runs on another CPU. Threads are bounded by the number of entries plus
//!   `SessionOptions::threads_max`; the latter serve calls that are still under way although their
//!   callers were killed.
//! - Nothing runs while there is no traffic: all threads sleep in the kernel, those that rest end
//!   after a while.
//! - Nothing is allocated in the steady state.
//!
//! # Answers from elsewhere (SAFETY of the payload)
//! An answer hands the entry over at once, and the kernel may fill it with the next request. In one
//! case it is given before the handler returns, and then no thread of the daemon looks at the
//! entry's memory any more: a killed caller is answered EINTR while the handler is still in the
//! store. The handler has a copy of the whole message in its thread's own buffer
//! ([`entry::Payload::Copied`]) and finds out that its answer is not wanted before it writes it.
//! Requests whose data stays in the entry ([`entry::Payload::InPlace`]: more than 16 KiB written or
//! read) are *not* answered early: such a caller is gone when the store answers or the volume ends
//! the wait. With `/dev/fuse` it is gone at once.
//!
//! The dispatcher hands such an entry over, since the thread that answers may sleep in the store
//! afterwards.
//!
//! # Memory
//! An entry is a mapping of one page and 1 MiB, of which only the used part takes memory. As the
//! kernel uses the entries like a stack, few are ever touched. The memory that a burst leaves
//! behind is given back: an entry that held much data and is handed over while more than `resident`
//! of its queue are in use gives its pages back, so that about `resident` MiB per CPU stay. One
//! waiting entry of each queue keeps its pages even then: beside requests of stalled stores, which
//! are under way for long, a large write finds its pages there.
//!
//! A burst of requests that are quick leaves its threads asleep, one for each that was under way at
//! the same time, since an entry cannot be called back from the kernel. They are the last ones that
//! the kernel uses again.
//!
//! # Order
//! Requests from different CPUs are served in any order, and RELEASE, for which close(2) does not
//! wait, is overtaken by later requests from other CPUs. DESTROY may overtake it, too: a volume can
//! be shut down with files open.
//!
//! # Whose CPU
//! A serving thread is kept on its queue's CPU, where its caller has just gone to sleep: this makes
//! it quick. A thread that reads ahead for a caller that goes on meanwhile is not kept there.
//!
//! # The end
//! The kernel brings every entry back with an error when the connection ends. A serving thread ends
//! when its entry comes back, the dispatcher when it has all of its own. Memory of an entry that
//! the kernel has is never unmapped.
//!
//! # Lock order
//! `RequestSlot::cancel` (module `interrupt`), then `ReplySlot::state`. `Ring::returned` is taken
//! without `ReplySlot::state`, and nothing is taken under it. `ThreadPool::state`, then
//! `Parker::place`; a thread is made under the former. No lock is held inside `io_uring_enter(2)`.
//!
//! # Limits
//! A signal that arrives between a request's queueing and its copying is not passed on by the
//! kernel (Linux 6.18); with `/dev/fuse` it is.

mod cpus;
mod dispatcher;
mod enable;
mod entry;
#[allow(unsafe_code, reason = "commands whose memory the kernel uses until they complete")]
mod entry_ring;
mod idle_sched;
mod pool;
mod reply_slot;
mod single_client;
mod worker;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::dev::Dev;
use crate::reader::ReadEnd;
use crate::session::Shared;
use entry::Entry;
use pool::ThreadPool;

pub(crate) use reply_slot::ReplySlot;

/// Whether to talk to the kernel over io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Uring {
    /// Over io_uring where that is possible, else over `/dev/fuse`.
    #[default]
    Auto,
    /// Over io_uring, or fail.
    On,
    /// Not over io_uring.
    Off,
}

/// How requests come from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Threads read them from `/dev/fuse`.
    Readers {
        /// Why not over io_uring.
        reason: String,
    },
    /// Over io_uring.
    Uring,
}

/// The preparations before mount(2). Dropped when INIT was answered.
#[derive(Debug)]
pub(crate) struct BeforeMount {
    wish: Uring,
    switch: Result<enable::Enabled, String>,
}

impl BeforeMount {
    /// Makes the kernel offer io_uring to mounts made from now on.
    pub(crate) fn new(wish: Uring) -> Self {
        let switch = match wish {
            Uring::Off => Err("not wanted".to_owned()),
            Uring::Auto | Uring::On => enable::enable(),
        };
        Self { wish, switch }
    }

    /// Whether the session must not fall back to `/dev/fuse`.
    pub(crate) fn is_must(&self) -> bool {
        self.wish == Uring::On
    }

    /// Gets everything that can fail, before INIT is answered: from then on the kernel waits for
    /// the entries.
    pub(crate) fn prepare(&self, dev: &Arc<Dev>, threads_max: usize) -> Result<Prepared, String> {
        match &self.switch {
            Err(reason) => Err(reason.clone()),
            Ok(_) => Prepared::new(dev, threads_max),
        }
    }
}

/// A ring that the kernel does not know yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    ring: Arc<Ring>,
    dispatcher: dispatcher::PreparedDispatcher,
}

impl Prepared {
    fn new(dev: &Arc<Dev>, threads_max: usize) -> Result<Self, String> {
        let queues = cpus::possible().map_err(|error| format!("cannot count the CPUs: {error}"))?;
        let ring = Arc::new(Ring::new(Arc::clone(dev), queues, threads_max).map_err(|e| e.to_string())?);
        let dispatcher =
            dispatcher::PreparedDispatcher::new(&ring).map_err(|error| format!("no io_uring: {error}"))?;
        Ok(Self { ring, dispatcher })
    }

    /// The ring that the threads share.
    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Makes the entries known to the kernel, which has agreed to it. The error says why requests
    /// will come over `/dev/fuse` after all.
    pub(crate) fn start(self, shared: &Arc<Shared>) -> Result<(), String> {
        self.dispatcher.start(&self.ring, shared)
    }
}

/// How many entries all queues have together at least; otherwise as many as there may be threads.
const ENTRIES_MIN: usize = 256;
/// How many entries a queue has at least.
const DEPTH_MIN: usize = 32;
/// How many times the entries of the beginning there may be.
const GROWTH: usize = 2;
/// Entries that a queue is given at once when it runs short.
const ENTRIES_STEP: usize = 64;
/// How many entries of all queues together may keep the memory of their data.
const RESIDENT: usize = 32;
/// How many of a queue's threads wait for requests before one whose request was slow rests.
const IDLE_MAX: u64 = 4;

/// The state that the threads of one ring share.
#[derive(Debug)]
pub(crate) struct Ring {
    dev: Arc<Dev>,
    queues: Box<[QueueLoad]>,
    /// Entries of each queue in the beginning.
    depth: usize,
    /// Entries of each queue that may keep their memory.
    resident: u64,
    cpus: cpus::Cpus,
    single_client: single_client::SingleClient,
    watchdog: Arc<idle_sched::Watchdog>,
    pool: ThreadPool,
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
    fn new(dev: Arc<Dev>, queues: u16, threads_max: usize) -> Result<Self, Errno> {
        let count = usize::from(queues).max(1);
        let depth = (threads_max.max(ENTRIES_MIN) / count).max(DEPTH_MIN);
        let entries_max = GROWTH * count * depth;
        let resident = (RESIDENT / count).max(2) as u64;
        let wakeup = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let cpus = cpus::Cpus::new();
        Ok(Self {
            dev,
            queues: std::iter::repeat_with(QueueLoad::default).take(count).collect(),
            depth,
            resident,
            watchdog: Arc::new(idle_sched::Watchdog::new(cpus.clone())),
            cpus,
            single_client: single_client::SingleClient::default(),
            pool: ThreadPool::new(threads_max + entries_max),
            returned: Mutex::new(Returned { entries: Vec::with_capacity(entries_max), ended: false }),
            wakeup,
        })
    }

    /// How many entries there are in the beginning.
    fn entries(&self) -> usize {
        self.depth * self.queues.len()
    }

    /// How many there may be.
    fn entries_max(&self) -> usize {
        GROWTH * self.entries()
    }

    fn queue(&self, entry: &Entry) -> &QueueLoad {
        &self.queues[usize::from(entry.queue())]
    }

    /// Hands an answered entry to the kernel by way of the dispatcher.
    fn return_entry(&self, entry: Entry) {
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
    fn take_returned(&self, into: &mut Vec<Entry>) {
        std::mem::swap(&mut self.returned.lock().entries, into);
    }

    fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    fn signal_wakeup(&self) {
        // Failure: it rings already.
        let _rings = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }

    fn clear_wakeup(&self) {
        let mut count = [0; 8];
        // Failure: it does not ring.
        let _silent = rustix::io::read(&self.wakeup, &mut count);
    }

    /// The connection has ended.
    fn end(&self) {
        let mut returned = self.returned.lock();
        if std::mem::replace(&mut returned.ended, true) {
            return;
        }
        drop(returned);
        self.signal_wakeup();
        self.watchdog.end();
        self.pool.end();
    }

    fn has_ended(&self) -> bool {
        self.returned.lock().ended
    }

    /// io_uring does not work any more: the session cannot go on.
    fn fail(&self, shared: &Shared, errno: Errno) {
        self.end();
        shared.pool.end(ReadEnd::Failed(errno));
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

/// Whether an entry came back because the connection has ended.
fn ends_connection(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV)
}

/// How many threads serve requests of one queue, and how many wait for some.
#[derive(Debug, Default)]
#[repr(align(128))]
struct QueueLoad {
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
    fn start_serving(&self) {
        self.add(BUSY);
    }

    /// A thread has served and waits for its entry's next request.
    fn start_waiting(&self) {
        self.add(IDLE.wrapping_sub(BUSY));
    }

    /// A thread that has waited serves.
    fn resume_serving(&self) {
        self.add(BUSY.wrapping_sub(IDLE));
    }

    /// The entry that a thread has waited with will not come back.
    fn drop_waiting(&self) {
        self.add(IDLE.wrapping_neg());
    }

    /// A request was answered, and its entry has no thread any more.
    fn stop_serving(&self) {
        self.add(BUSY.wrapping_neg());
    }

    /// Whether enough threads wait.
    fn has_idle(&self) -> bool {
        self.now() >> 32 >= IDLE_MAX
    }

    /// Whether an entry that is handed over keeps its memory although the queue is crowded. One
    /// entry does, and the kernel uses that one next. Requests of stalled stores crowd a queue for
    /// as long as they like, and large writes beside them would have their pages made anew each
    /// time.
    fn claim_resident(&self, entry: &mut Entry) -> bool {
        // ORDERING: Relaxed, as in `add`. The thread that swaps false for true has the one place.
        entry.is_resident = !self.is_resident.swap(true, Ordering::Relaxed);
        entry.is_resident
    }

    /// An entry is used again. If it was the one that kept its memory, another may, should this one
    /// not come back.
    fn release_resident(&self, entry: &mut Entry) {
        if std::mem::take(&mut entry.is_resident) {
            // ORDERING: Relaxed, as in `add`.
            self.is_resident.store(false, Ordering::Relaxed);
        }
    }

    /// Whether more than `resident` requests are under way.
    fn is_crowded(&self, resident: u64) -> bool {
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
