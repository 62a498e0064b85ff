//! Decides which threads read requests, and when another thread is needed for that.
//!
//! Purpose: the policy of the reading threads, and nothing of what they do with a request. Any
//! request may take long (its store may hang), so that one thread at least is always about to read:
//! the thread that takes a request away from the last one reading wakes or makes another before it
//! goes on. Threads beyond [`IDLE_MAX`] rest; those that rest for [`IDLE_TIMEOUT`] end.
//!
//! Where io_uring brings the requests, the kernel sends by `/dev/fuse` only messages that no
//! process waits for: FORGET, and INTERRUPT. Each of them would wake a reader at the expense of the
//! client, and that is most of the cost of a small operation. So one thread waits then, and after a
//! FORGET it pauses for [`PAUSE`] before it reads again: messages that come meanwhile wake no
//! thread, and FORGETs come many at a time. ([`ThreadPool::is_relaxed`])
//!
//! # State
//! `ThreadPool::idle` counts threads that read or are on their way there. `PoolState` is under its
//! mutex.
//!
//! # Lock order
//! `ThreadPool::state` is a leaf but for `Parker::wake`, which is taken under it.
//!
//! # Orderings
//! P1: a thread that finds enough others reading decides again under `ThreadPool::state` before it
//! rests; a thread that takes the last reader away looks for a resting one under
//! `ThreadPool::state` after it has lowered `idle`. So one of the two sees the other.
//!
//! P2: a thread that raises the bound of threads looks at `idle` afterwards; the thread that takes
//! the last reader away lowers `idle`, then looks at the bound. All of it is SeqCst: one of them
//! brings another reader.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Condvar, Mutex};
use zerocopy::FromBytes as _;

use crate::abi::{InHeader, Opcode};
use crate::buffer::Buffer;
use crate::dev::Dev;
use crate::dispatch::RequestHandler;
use crate::in_flight::RequestSlot;
use crate::reply_channel::ReplyChannel;
use crate::session::Shared;

/// Threads that read at the same time at most, when there is nothing to do.
const IDLE_MAX: usize = 4;
/// Threads that read at the same time at most while io_uring brings the requests.
const IDLE_MAX_RELAXED: usize = 1;
/// How long FORGETs are collected then, and an INTERRUPT among them may be late.
const PAUSE: Duration = Duration::from_millis(2);
/// Threads at the beginning.
const THREADS_AT_FIRST: usize = 2;
/// If more than one of this many places is at work, that is a crowd.
const CROWDED_ONE_OF: usize = 4;
/// How long a thread that is not needed is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a thread waits for memory before it tries again.
const MEMORY_RETRY: Duration = Duration::from_millis(100);

/// Why reading ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// The file system was unmounted.
    Unmounted,
    /// The connection was cut.
    Aborted,
    /// The device failed.
    Failed(Errno),
}

/// The reading threads of one session.
#[derive(Debug)]
pub(crate) struct ThreadPool {
    idle: AtomicUsize,
    /// Set once, by [`ThreadPool::relax`].
    is_relaxed: AtomicBool,
    /// So many threads are at work that no volume is to take more than its part of them.
    is_crowded: AtomicBool,
    threads_max: usize,
    /// Threads beyond them: as many as hang now and are not counted, up to as many again.
    threads_more: AtomicUsize,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Threads that live, with their handles.
    threads: HashMap<usize, JoinHandle<()>>,
    /// Threads that have nothing left to do, or next to nothing.
    leaving: Vec<JoinHandle<()>>,
    next_number: usize,
    parked: Vec<Arc<Parker>>,
    ended: Option<ReadEnd>,
}

/// A thread that rests.
#[derive(Debug, Default)]
struct Parker {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Parker {
    fn wake(&self) {
        *self.woken.lock() = true;
        self.wake.notify_one();
    }

    /// Says whether it was woken.
    fn wait(&self, until: Instant) -> bool {
        let mut woken = self.woken.lock();
        while !*woken {
            if self.wake.wait_until(&mut woken, until) {
                break;
            }
        }
        std::mem::take(&mut *woken)
    }

    fn wait_long(&self) {
        let mut woken = self.woken.lock();
        while !*woken {
            self.wake.wait(&mut woken);
        }
        *woken = false;
    }
}

impl ThreadPool {
    pub(crate) fn new(threads_max: usize) -> Self {
        Self {
            idle: AtomicUsize::new(0),
            is_relaxed: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
            threads_max: threads_max.max(THREADS_AT_FIRST),
            threads_more: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    /// Starts the first threads.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> io::Result<()> {
        for _ in 0..THREADS_AT_FIRST {
            self.spawn(shared, &mut self.state.lock())?;
        }
        Ok(())
    }

    /// From now on no process waits for what is read.
    pub(crate) fn relax(&self) {
        // ORDERING: Relaxed, how many threads read is not exact anyway.
        self.is_relaxed.store(true, Ordering::Relaxed);
    }

    /// Whether no process waits for what is read.
    fn is_relaxed(&self) -> bool {
        // ORDERING: Relaxed, as in `relax`.
        self.is_relaxed.load(Ordering::Relaxed)
    }

    fn idle_max(&self) -> usize {
        if self.is_relaxed() { IDLE_MAX_RELAXED } else { IDLE_MAX }
    }

    /// A request was taken: brings another reader if this was the last.
    fn on_request_taken(&self, shared: &Arc<Shared>) {
        // ORDERING: SeqCst, P1: before the look at `parker`.
        if self.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.bring_another(shared);
        }
    }

    /// Has another thread read, if there can be one.
    pub(crate) fn bring_another(&self, shared: &Arc<Shared>) {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return;
        }
        if let Some(parker) = state.parked.pop() {
            self.look_at_crowd(&state);
            // ORDERING: SeqCst, as in `on_request_taken`. Counted here, so that it is not brought
            // twice.
            if !is_on("reader-not-counted") {
                self.idle.fetch_add(1, Ordering::SeqCst);
            }
            drop(state);
            parker.wake();
        } else if state.threads.len() >= self.threads_at_most() {
            drop(state);
            // No thread is left to read INTERRUPTs; the watcher looks for killed callers.
            shared.in_flight.request_scan();
        } else if let Err(error) = self.spawn(shared, &mut state) {
            tracing::error!(%error, "no further thread to read requests");
        }
    }

    /// Whether so many threads are at work, or were a moment ago, that no volume is to take more
    /// than its part of them.
    pub(crate) fn is_crowded(&self) -> bool {
        // ORDERING: Relaxed, the code that depends on it looks again.
        self.is_crowded.load(Ordering::Relaxed)
    }

    fn look_at_crowd(&self, state: &PoolState) {
        let busy = state.threads.len().saturating_sub(state.parked.len());
        let is_crowded = busy > self.threads_max / CROWDED_ONE_OF + self.threads_at_most() - self.threads_max;
        // ORDERING: Relaxed, as in `is_crowded`; written under the lock.
        self.is_crowded.store(is_crowded, Ordering::Relaxed);
    }

    /// Threads at most, but for those whose requests were answered by others.
    pub(crate) fn capacity(&self) -> usize {
        self.threads_max
    }

    fn threads_at_most(&self) -> usize {
        // ORDERING: SeqCst, P2.
        self.threads_max + self.threads_more.load(Ordering::SeqCst)
    }

    /// `hanging` threads hang now, and count for no volume: others are to read in their place.
    pub(crate) fn set_extra_threads(&self, shared: &Arc<Shared>, hanging: usize) {
        // ORDERING: SeqCst, P2.
        let before = self.threads_more.swap(hanging.min(self.threads_max), Ordering::SeqCst);
        self.look_at_crowd(&self.state.lock());
        // ORDERING: SeqCst, P2.
        if before < hanging && self.idle.load(Ordering::SeqCst) == 0 {
            self.bring_another(shared);
        }
    }

    fn spawn(&self, shared: &Arc<Shared>, state: &mut PoolState) -> io::Result<()> {
        let number = state.next_number;
        let thread = Arc::clone(shared);
        let builder = std::thread::Builder::new().name(format!("wt-fuse-{number}"));
        // ORDERING: SeqCst, as in `on_request_taken`.
        self.idle.fetch_add(1, Ordering::SeqCst);
        match builder.spawn(move || run(&thread, number)) {
            Ok(handle) => {
                state.next_number += 1;
                state.threads.insert(number, handle);
                self.look_at_crowd(state);
                state.leaving.retain(|handle| !handle.is_finished());
                Ok(())
            }
            Err(error) => {
                // ORDERING: SeqCst, as in `on_request_taken`.
                self.idle.fetch_sub(1, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// A request was served: says whether to read on, `false` to end.
    fn after_request(&self, parker: &Arc<Parker>) -> bool {
        // ORDERING: SeqCst, P1. A value that is too large or too small by a few is harmless: it is
        // looked at again under the lock before anything depends on it.
        if self.idle.load(Ordering::SeqCst) < self.idle_max() {
            // ORDERING: SeqCst, as in `on_request_taken`.
            self.idle.fetch_add(1, Ordering::SeqCst);
            return true;
        }
        self.park(parker)
    }

    fn park(&self, parker: &Arc<Parker>) -> bool {
        {
            let mut state = self.state.lock();
            if state.ended.is_some() {
                return false;
            }
            // ORDERING: SeqCst, P1: after the lock.
            if self.idle.load(Ordering::SeqCst) == 0 && !is_on("reader-rests-unchecked") {
                self.idle.fetch_add(1, Ordering::SeqCst);
                return true;
            }
            state.parked.push(Arc::clone(parker));
            self.look_at_crowd(&state);
        }
        if parker.wait(Instant::now() + IDLE_TIMEOUT) {
            return self.state.lock().ended.is_none();
        }
        let mut state = self.state.lock();
        let before = state.parked.len();
        state.parked.retain(|other| !Arc::ptr_eq(other, parker));
        if state.parked.len() < before {
            return false;
        }
        // Another thread took it from the list, has counted it as reading, and is about to wake it.
        drop(state);
        parker.wait_long();
        self.state.lock().ended.is_none()
    }

    /// Reading has ended, for this reason.
    pub(crate) fn end(&self, end: ReadEnd) {
        let mut state = self.state.lock();
        state.ended.get_or_insert(end);
        for parker in state.parked.drain(..) {
            parker.wake();
        }
        drop(state);
        self.changed.notify_all();
    }

    fn remove_thread(&self, number: usize) {
        let mut state = self.state.lock();
        let handle = state.threads.remove(&number);
        state.leaving.extend(handle);
        self.look_at_crowd(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until reading has ended, and then for the threads, `grace` at most. Says why reading
    /// ended and how many threads are left in calls that do not return.
    pub(crate) fn wait(&self, grace: Duration) -> (ReadEnd, usize) {
        let mut state = self.state.lock();
        while state.ended.is_none() && !state.threads.is_empty() {
            self.changed.wait(&mut state);
        }
        let until = Instant::now() + grace;
        while !state.threads.is_empty() {
            if self.changed.wait_until(&mut state, until) {
                break;
            }
        }
        let end = state.ended.clone().unwrap_or(ReadEnd::Failed(Errno::NOMEM));
        let stuck = state.threads.len();
        let leaving = std::mem::take(&mut state.leaving);
        drop(state);
        for handle in leaving {
            if handle.join().is_err() {
                tracing::error!("a reading thread panicked outside a request");
            }
        }
        (end, stuck)
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads.len()
    }
}

/// Takes the thread out of the lists however it ends.
struct Member<'a> {
    shared: &'a Shared,
    slot: Option<Arc<RequestSlot>>,
    number: usize,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            self.shared.in_flight.remove(slot);
        }
        self.shared.pool.remove_thread(self.number);
    }
}

/// A reading thread.
fn run(shared: &Arc<Shared>, number: usize) {
    let _of_the_mount = shared.span().enter();
    let mut member = Member { shared, slot: None, number };
    let Some(mut buffer) = buffer(&shared.pool) else { return };
    // A descriptor of its own spares the threads each other's locks; without it they share the
    // first.
    let dev = shared.master.try_clone(false).map_or_else(|_| Arc::clone(&shared.master), Arc::new);
    let slot = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(&dev))));
    shared.in_flight.add(&slot);
    member.slot = Some(Arc::clone(&slot));
    let mut handler = RequestHandler::new(Arc::clone(shared), slot, number);
    let parker = Arc::new(Parker::default());
    let end = read_loop(&mut handler, &dev, &mut buffer, &parker);
    if let Some(end) = end {
        shared.in_flight.close_queue();
        shared.pool.end(end);
    }
}

/// Memory to read into. The thread counts as one that reads, and may be the only one: it does not
/// give up while the connection lasts.
fn buffer(pool: &ThreadPool) -> Option<Buffer> {
    loop {
        match Buffer::new() {
            Ok(buffer) => return Some(buffer),
            Err(error) => tracing::error!(%error, "no memory to read requests into"),
        }
        let mut state = pool.state.lock();
        // Nothing reports when there is memory.
        let next = Instant::now() + MEMORY_RETRY;
        while state.ended.is_none() && !pool.changed.wait_until(&mut state, next) {}
        if state.ended.is_some() {
            return None;
        }
    }
}

/// Whether the kernel only says what it has forgotten.
fn is_forget(message: &[u8]) -> bool {
    let header = InHeader::read_from_prefix(message);
    let opcode = header.ok().and_then(|(header, _)| Opcode::from_number(header.opcode));
    matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget))
}

fn read_loop(
    handler: &mut RequestHandler,
    dev: &Dev,
    buffer: &mut Buffer,
    parker: &Arc<Parker>,
) -> Option<ReadEnd> {
    let shared = Arc::clone(&handler.shared);
    let pop_queued = || shared.in_flight.pop_queued(shared.pool.capacity());
    loop {
        let mut is_forget = false;
        // A request that has waited comes first: this thread may have been brought for it.
        if let Some(queued) = pop_queued() {
            shared.pool.on_request_taken(&shared);
            handler.serve_queued(queued, buffer);
        } else {
            match dev.read(buffer.space()) {
                Ok(len) => {
                    shared.pool.on_request_taken(&shared);
                    is_forget = self::is_forget(buffer.message(len));
                    handler.serve(buffer, len, false);
                }
                // NOENT: the request was taken back while it was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                Err(Errno::NODEV) => return Some(ReadEnd::Unmounted),
                Err(Errno::CONNABORTED) => return Some(ReadEnd::Aborted),
                Err(error) => return Some(ReadEnd::Failed(error)),
            }
        }
        while let Some(queued) = pop_queued() {
            handler.serve_queued(queued, buffer);
        }
        if !shared.pool.after_request(parker) {
            return None;
        }
        if is_forget && shared.pool.is_relaxed() {
            // Not in place of a wake-up, but to be woken less often.
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(all(test, shuttle))]
mod schedules;
