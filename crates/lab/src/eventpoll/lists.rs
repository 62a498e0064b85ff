//! The kernel's two ready lists, with their locks: the callback checks, adds and wakes under the
//! lock (shared in one, exclusive in the other). The scan takes it exclusively to take the list,
//! and again to put back undelivered items. While a scan runs, newly queued items go to a second
//! list.

use std::cell::UnsafeCell;
use std::sync::Arc;

use eventpoll::ready::{Pending, ReadyList};
use parking_lot::{RwLock, RwLockReadGuard};
use rustix::thread::futex;
use sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// An item's place. A thread that queues holds the lock; the scan changes `is_linked` without it,
/// while no other thread reads it.
#[derive(Debug)]
pub(crate) struct Node {
    slot: usize,
    is_linked: AtomicBool,
    is_in_overflow: AtomicBool,
}

impl Node {
    fn new(slot: usize) -> Arc<Self> {
        Arc::new(Self { slot, is_linked: AtomicBool::new(false), is_in_overflow: AtomicBool::new(false) })
    }
}

/// Slots that many threads add at the same time, and one takes when none of them does.
#[derive(Debug, Default)]
struct Array {
    slots: Vec<AtomicUsize>,
    len: AtomicUsize,
}

impl Array {
    fn grow(&mut self, slot: usize) {
        // Items that are gone may add theirs once more: room for twice as many.
        while self.slots.len() < 2 * slot + 2 {
            self.slots.push(AtomicUsize::new(0));
        }
    }

    /// The two steps that the write lock makes one.
    fn add(&self, slot: usize) {
        // ORDERING: Relaxed here and below, the lock orders all.
        let at = self.len.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = self.slots.get(at) {
            place.store(slot, Ordering::Relaxed);
        }
    }

    fn take(&mut self) -> impl Iterator<Item = usize> {
        let len = std::mem::take(self.len.get_mut()).min(self.slots.len());
        self.slots[..len].iter_mut().map(|slot| *slot.get_mut())
    }
}

/// The part of both lists that their locks protect.
#[derive(Debug, Default)]
pub(crate) struct State {
    ready: Array,
    overflow: Array,
    is_scanning: bool,
    nodes: Vec<Option<Arc<Node>>>,
}

impl State {
    fn place(&mut self, slot: usize) -> Arc<Node> {
        self.ready.grow(slot);
        self.overflow.grow(slot);
        if self.nodes.len() <= slot {
            self.nodes.resize(slot + 1, None);
        }
        let node = Node::new(slot);
        self.nodes[slot] = Some(Arc::clone(&node));
        node
    }

    fn queue(&self, node: &Node, listed: &AtomicUsize) {
        // ORDERING: Relaxed: under the lock; SeqCst for the count, which is the full barrier that
        // is asked for.
        let (mark, list) = if self.is_scanning {
            (&node.is_in_overflow, &self.overflow)
        } else {
            (&node.is_linked, &self.ready)
        };
        if !mark.load(Ordering::Relaxed) && !mark.swap(true, Ordering::Relaxed) {
            list.add(node.slot);
            listed.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn start(&mut self, pending: &mut Pending) {
        pending.extend(self.ready.take());
        self.is_scanning = true;
    }

    fn end(&mut self, pending: &mut Pending, listed: &AtomicUsize) {
        self.is_scanning = false;
        for slot in self.overflow.take() {
            let Some(node) = &self.nodes[slot] else { continue };
            // ORDERING: Relaxed: under the lock.
            node.is_in_overflow.store(false, Ordering::Relaxed);
            if node.is_linked.swap(true, Ordering::Relaxed) {
                listed.fetch_sub(1, Ordering::SeqCst);
            } else {
                pending.push_back(slot);
            }
        }
    }
}

/// By the scan: the item leaves the list.
fn unlink(node: &Node, listed: &AtomicUsize) {
    // ORDERING: Relaxed: no other thread reads it while a scan runs; SeqCst, the required full
    // barrier.
    if node.is_linked.swap(false, Ordering::Relaxed) {
        listed.fetch_sub(1, Ordering::SeqCst);
    }
}

/// By the scan: it stays after all.
fn link(node: &Node, listed: &AtomicUsize) -> bool {
    // ORDERING: as in `unlink`.
    node.is_linked.store(true, Ordering::Relaxed);
    listed.fetch_add(1, Ordering::SeqCst);
    true
}

/// Producers under the read lock, which they add under without another lock (2018 to 6.17).
#[derive(Debug, Default)]
pub(crate) struct RwLocked {
    state: RwLock<State>,
    listed: AtomicUsize,
}

impl ReadyList for RwLocked {
    type Link = Arc<Node>;
    type ScanState = ();
    type Guard<'a> = RwLockReadGuard<'a, State>;
    // An item that is asked is in neither list for a moment.
    const IS_EXACT: bool = false;

    fn new_link(&self, (): &mut (), slot: usize) -> Arc<Node> {
        self.state.write().place(slot)
    }

    fn hold(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    fn queue(&self, state: &mut RwLockReadGuard<'_, State>, node: &Arc<Node>) {
        state.queue(node, &self.listed);
    }

    fn is_empty(&self) -> bool {
        // ORDERING: SeqCst, with the count's changes.
        self.listed.load(Ordering::SeqCst) == 0
    }

    fn start(&self, (): &mut (), pending: &mut Pending) {
        self.state.write().start(pending);
    }

    fn unqueue(&self, (): &mut (), node: &Arc<Node>) {
        unlink(node, &self.listed);
    }

    fn requeue(&self, (): &mut (), node: &Arc<Node>) -> bool {
        link(node, &self.listed)
    }

    fn remove(&self, (): &mut (), node: &Arc<Node>) -> bool {
        let _state = self.state.write();
        node.is_linked.load(Ordering::Relaxed)
    }

    fn pass(&self, (): &mut (), _slot: usize) {}

    fn end(&self, (): &mut (), pending: &mut Pending, _stays: bool) {
        self.state.write().end(pending, &self.listed);
    }
}

/// A lock that spins and yields. The kernel's cannot be preempted, so that no thread waits for
/// long; here a thread that could not take it lets the others run. Real-time threads would wait for
/// ever like this: they sleep, with priority inheritance, and the holder runs with their priority,
/// as in a kernel with PREEMPT_RT. It would not be fair to the lists if all threads slept: a lock
/// that is handed on to a sleeper costs a switch of threads each time.
#[derive(Debug, Default)]
struct PiLock(AtomicU32);

/// Looks before one yields or sleeps.
const SPINS: usize = 100;

fn thread_id() -> u32 {
    thread_local!(static ID: u32 = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    ID.with(|id| *id)
}

fn is_real_time() -> bool {
    thread_local!(static IS: bool = {
        // SAFETY: no pointer is given; 0 is the calling thread.
        let class = unsafe { libc::sched_getscheduler(0) };
        class == libc::SCHED_FIFO || class == libc::SCHED_RR
    });
    IS.with(|is| *is)
}

impl PiLock {
    fn lock(&self) {
        let me = thread_id();
        for turn in 0.. {
            // ORDERING: Acquire, pairs with the release in `unlock`.
            if self.0.load(Ordering::Relaxed) == 0
                && self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            if turn < SPINS {
                std::hint::spin_loop();
            } else if is_real_time() {
                break;
            } else {
                std::thread::yield_now();
            }
        }
        while futex::lock_pi(&self.0, futex::Flags::PRIVATE, None).is_err() {}
    }

    fn unlock(&self) {
        // ORDERING: Release, pairs with the acquire in `lock`. A thread sleeps if the word is more
        // than this thread's number.
        if self.0.compare_exchange(thread_id(), 0, Ordering::Release, Ordering::Relaxed).is_err() {
            futex::unlock_pi(&self.0, futex::Flags::PRIVATE).expect("we have the lock");
        }
    }
}

/// All threads under one lock (6.18).
#[derive(Debug, Default)]
pub(crate) struct SpinLocked {
    lock: PiLock,
    state: UnsafeCell<State>,
    listed: AtomicUsize,
}

// SAFETY: `state` is only reached through `SpinLocked::hold`, which has the lock.
unsafe impl Sync for SpinLocked {}

/// The holder of the lock.
pub(crate) struct Held<'a>(&'a SpinLocked);

impl Held<'_> {
    fn state(&mut self) -> &mut State {
        // SAFETY: the lock is ours until this is dropped, and `&mut self` makes the reference the
        // only one.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}

impl ReadyList for SpinLocked {
    type Link = Arc<Node>;
    type ScanState = ();
    type Guard<'a> = Held<'a>;
    // An item that is asked is in neither list for a moment.
    const IS_EXACT: bool = false;

    fn new_link(&self, (): &mut (), slot: usize) -> Arc<Node> {
        self.hold().state().place(slot)
    }

    fn hold(&self) -> Held<'_> {
        self.lock.lock();
        Held(self)
    }

    fn queue(&self, held: &mut Held<'_>, node: &Arc<Node>) {
        held.state().queue(node, &self.listed);
    }

    fn is_empty(&self) -> bool {
        // ORDERING: SeqCst, with the count's changes.
        self.listed.load(Ordering::SeqCst) == 0
    }

    fn start(&self, (): &mut (), pending: &mut Pending) {
        self.hold().state().start(pending);
    }

    fn unqueue(&self, (): &mut (), node: &Arc<Node>) {
        unlink(node, &self.listed);
    }

    fn requeue(&self, (): &mut (), node: &Arc<Node>) -> bool {
        link(node, &self.listed)
    }

    fn remove(&self, (): &mut (), node: &Arc<Node>) -> bool {
        let _held = self.hold();
        node.is_linked.load(Ordering::Relaxed)
    }

    fn pass(&self, (): &mut (), _slot: usize) {}

    fn end(&self, (): &mut (), pending: &mut Pending, _stays: bool) {
        self.hold().state().end(pending, &self.listed);
    }
}
