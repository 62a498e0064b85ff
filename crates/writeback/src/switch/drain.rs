//! Unmount waits for the ownership switches of one superblock, and for nothing else.
//!
//! A switcher takes a [`SbPin`] of the superblock's [`Drain`] before it takes a reference on one of
//! its inodes, and gives it back after that reference. Unmount calls [`Drain::drain`]. When that
//! returns, no pin is left, none can be had any more, and no thread that had one touches the
//! superblock again.
//!
//! # State
//! | field | holds | written by |
//! |---|---|---|
//! | `Drain::active` | `SB_ACTIVE`: set at mount, cleared once | `close` |
//! | `Drain::used` | bit *n*: shard *n* was pinned at some time; only ever set | a thread that pins |
//! | `Shard::word` | twice the number of pins, plus [`WAITER`] | threads that pin, unpin and drain |
//!
//! Pins are counted in shards, each on a cache line of its own. A thread always uses one and the
//! same shard: threads that switch at once do not move a line between processors. A pin goes back
//! to the shard it came from, so that each shard's number is zero exactly if it has no pin, and the
//! drain can scan the shards one after the other. `used` keeps the drain from scanning shards
//! that were never pinned: a superblock that never switched costs a store, a fence and a load.
//!
//! The shards are not a part of the superblock. A pin holds its shard, and the shard holds the
//! waiter at which the drain sleeps, so that the last unpin wakes it without touching the
//! superblock, which may be gone by then.
//!
//! A drain does not leave the superblock's switches to the workers, which make those of all
//! superblocks: while pins are left, the drain itself makes the switches that wait
//! ([`OwnSwitches`]), and sleeps only when none waits. A thread that queues a switch meanwhile
//! wakes it by its [`DrainWaker`]. See `pending`.
//!
//! # Orderings
//! * P1 switcher: set `used`, add to `word`, full fence, load `active`. Unmount: clear `active`,
//!   full fence, load `used` and `word`. Either the switcher sees that the superblock goes, or
//!   unmount sees the pin.
//! * P2 switcher: everything it did to the superblock, subtract from `word` with release. Unmount:
//!   load `word` with acquire. The switcher is done with the superblock before the drain returns.
//! * P3 unmount: set [`WAITER`] in `word`, check again. Unpin: subtract, check the bit in the
//!   previous value. Both are changes of one word: either the unpin finds the bit or unmount finds
//!   zero. Unmount takes the waiter's lock before it checks, and the unpin takes it after it
//!   subtracted: no wake-up is lost.
//!
//! # Lock order
//! `DrainWaiter::lock`, then the lock of the switches that wait (`Pending::batches`).
//!
//! # Why not
//! * *One atomic with the flag in its lowest bit* needs no fence at all, and moves its line to
//!   every processor that switches.
//! * *`membarrier(2)` in the drain, nothing in the pin*: saves the pin a few nanoseconds, and costs
//!   the drain a system call and an interrupt of every processor that runs a thread of this
//!   process.

use std::sync::Arc;

use sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use sync::mutant::is_on;
use sync::{Condvar, Mutex, shards};

/// A drain sleeps until the shard has no pin.
const WAITER: u64 = 1;
/// One pin.
const ONE: u64 = 2;
/// As many as `Drain::used` has bits.
const SHARDS_MAX: usize = 64;

/// Counts the ownership switches in flight for one superblock. See the module.
#[derive(Debug)]
pub struct Drain {
    active: AtomicBool,
    used: AtomicU64,
    shards: Box<[Arc<Shard>]>,
    waiter: Arc<DrainWaiter>,
    #[cfg(loom)]
    memory: Arc<Memory>,
}

/// Two lines: processors fetch neighbours together.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    word: AtomicU64,
    waiter: Arc<DrainWaiter>,
}

/// Where the drain sleeps.
#[derive(Debug, Default)]
struct DrainWaiter {
    lock: Mutex<()>,
    /// A shard has no pin any more, or a switch has been queued.
    changed: Condvar,
}

/// The superblock's switches that wait to be made: the drain makes them itself.
pub trait OwnSwitches {
    /// Whether there are any. Called under the drain's lock: must not wait.
    fn are_waiting(&self) -> bool;

    /// Makes those that wait, after the grace period that they need.
    fn make(&self);
}

/// The drain makes no switch: it waits for others to make them.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeftToWorkers;

impl OwnSwitches for LeftToWorkers {
    fn are_waiting(&self) -> bool {
        false
    }

    fn make(&self) {}
}

/// Wakes a drain that sleeps, without touching its superblock.
#[derive(Debug)]
#[must_use = "a drain sleeps"]
pub struct DrainWaker {
    waiter: Arc<DrainWaiter>,
    #[cfg(loom)]
    memory: Arc<Memory>,
}

impl DrainWaker {
    /// A switch has been queued.
    pub fn wake(self) {
        #[cfg(loom)]
        if is_on("drain-ring-touches") {
            self.memory.touch();
        }
        if !is_on("drain-ring-lost") {
            self.waiter.wake();
        }
    }
}

impl DrainWaiter {
    fn wake(&self) {
        // A drain that checked before the caller changed the state is asleep by now, or checks
        // again (P3).
        if !is_on("drain-wake-unordered") {
            drop(self.lock.lock());
        }
        self.changed.notify_all();
    }
}

/// The right to use a superblock until it is dropped. Drop it last: after every reference on the
/// superblock's inodes.
#[derive(Debug)]
#[must_use = "dropped, the superblock may go"]
pub struct SbPin {
    shard: Arc<Shard>,
    #[cfg(loom)]
    memory: Arc<Memory>,
}

/// How a drain went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Shards that were checked.
    pub scanned: u32,
    /// Whether there were pins to wait for.
    pub waited: bool,
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drain {
    /// Of a superblock that has just been mounted.
    #[must_use]
    pub fn new() -> Self {
        Self::with_shards(shards::count(SHARDS_MAX))
    }

    /// With so many shards, 1 to 64.
    #[doc(hidden)]
    #[must_use]
    pub fn with_shards(count: usize) -> Self {
        let waiter = Arc::new(DrainWaiter::default());
        let shard = |_| Arc::new(Shard { word: AtomicU64::new(0), waiter: Arc::clone(&waiter) });
        Self {
            active: AtomicBool::new(true),
            used: AtomicU64::new(0),
            shards: (0..count.clamp(1, SHARDS_MAX)).map(shard).collect(),
            waiter,
            #[cfg(loom)]
            memory: Arc::default(),
        }
    }

    /// Whether the superblock is mounted, as of a moment ago: a first check, which spares a pin
    /// that would fail.
    #[must_use]
    pub fn is_active(&self) -> bool {
        // ORDERING: Relaxed, a hint; the check that counts is in `pin`.
        self.active.load(Ordering::Relaxed)
    }

    /// Keeps unmount waiting until the pin is dropped; `None` if it has begun.
    ///
    /// Meanwhile the caller holds something that keeps the superblock alive: a lock under which one
    /// of its inodes cannot go, or a reference on one.
    #[inline]
    pub fn pin(&self) -> Option<SbPin> {
        self.pin_at(shards::of_this_thread())
    }

    /// Pins in a given shard, see [`Drain::pin`].
    #[doc(hidden)]
    pub fn pin_at(&self, shard: usize) -> Option<SbPin> {
        if is_on("drain-pin-after-test") && !self.is_active() {
            return None;
        }
        let at = shard % self.shards.len();
        let shard = &self.shards[at];
        let bit = 1 << at;
        // ORDERING: Relaxed, P1 by the fence below: where this load finds a bit that another thread
        // set, the fence puts that bit, too, before this thread's load of `active`.
        if self.used.load(Ordering::Relaxed) & bit == 0 && !is_on("drain-used-unset") {
            self.used.fetch_or(bit, Ordering::Relaxed);
        }
        // ORDERING: Relaxed, P1 by the fence.
        shard.word.fetch_add(ONE, Ordering::Relaxed);
        if !is_on("drain-no-pin-fence") {
            fence(Ordering::SeqCst);
        }
        let pin = SbPin {
            shard: Arc::clone(shard),
            #[cfg(loom)]
            memory: Arc::clone(&self.memory),
        };
        // ORDERING: Relaxed, P1 by the fence.
        if self.active.load(Ordering::Relaxed) || is_on("drain-pin-after-test") {
            return Some(pin);
        }
        if is_on("drain-failed-pin-kept") {
            // One pin more than will ever be given back.
            shard.word.fetch_add(ONE, Ordering::Relaxed);
        }
        drop(pin);
        None
    }

    /// Clears `SB_ACTIVE`. From here on the number of pins only falls, except for pins of switchers
    /// that have not seen it yet; they give these back at once.
    pub fn close(&self) {
        // ORDERING: Relaxed, P1 by the fence.
        self.active.store(false, Ordering::Relaxed);
        if !is_on("drain-no-drain-fence") {
            fence(Ordering::SeqCst);
        }
    }

    /// The waker that wakes the drain, if the superblock is closed. The caller has a pin, or has
    /// just handed one on under a lock that it still holds.
    pub fn waker_if_closed(&self) -> Option<DrainWaker> {
        #[cfg(loom)]
        self.memory.touch();
        // ORDERING: Relaxed, P1 of `pending`: the caller holds the lock under which the drain reads
        // the switches after it closed the superblock.
        (!self.active.load(Ordering::Relaxed)).then(|| DrainWaker {
            waiter: Arc::clone(&self.waiter),
            #[cfg(loom)]
            memory: Arc::clone(&self.memory),
        })
    }

    /// Closes, and returns when no pin is left, whichever threads give them back. May be called
    /// again.
    pub fn drain(&self) -> Drained {
        self.drain_with(&LeftToWorkers)
    }

    /// Closes, and returns when no pin is left; makes the superblock's own switches that wait. So
    /// it waits for switches of this superblock alone, and not for others that are ahead of them.
    /// May be called again.
    pub fn drain_with(&self, own: &dyn OwnSwitches) -> Drained {
        self.close();
        // ORDERING: Relaxed, P1.
        let mut used = self.used.load(Ordering::Relaxed);
        let mut drained = Drained { scanned: used.count_ones(), waited: false };
        while used != 0 {
            let at = used.trailing_zeros() as usize;
            used &= used - 1;
            drained.waited |= self.shards[at].wait(own);
        }
        #[cfg(loom)]
        self.memory.free();
        drained
    }

    /// The number of pins, as of a moment ago.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // ORDERING: Relaxed, a figure for people.
        self.shards.iter().map(|shard| shard.word.load(Ordering::Relaxed) / ONE).sum()
    }
}

impl Shard {
    /// Waits until there is no pin; returns whether there were any.
    fn wait(&self, own: &dyn OwnSwitches) -> bool {
        let order = if is_on("drain-look-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        // ORDERING: Acquire, P2.
        if self.word.load(order) / ONE == 0 {
            return false;
        }
        if !is_on("drain-await-unset") {
            // ORDERING: Relaxed, P3; the load below acquires what was done under the pins.
            self.word.fetch_or(WAITER, Ordering::Relaxed);
        }
        loop {
            own.make();
            if is_on("drain-made-unchecked") {
                return true;
            }
            let mut lock = self.waiter.lock.lock();
            if is_on("drain-sleep-unchecked") {
                self.waiter.changed.wait(&mut lock);
            }
            loop {
                // ORDERING: Acquire, P2.
                if self.word.load(order) / ONE == 0 {
                    return true;
                }
                if own.are_waiting() && !is_on("drain-makes-once") {
                    break;
                }
                self.waiter.changed.wait(&mut lock);
            }
        }
    }
}

impl Drop for SbPin {
    fn drop(&mut self) {
        let order = if is_on("drain-unpin-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        // ORDERING: Release, P2.
        let before = self.shard.word.fetch_sub(ONE, order);
        if before == ONE + WAITER && !is_on("drain-no-wake") {
            #[cfg(loom)]
            if is_on("drain-waker-touches") {
                self.memory.touch();
            }
            self.shard.waiter.wake();
        }
    }
}

/// Stands for the superblock's memory: loom reports a thread that touches it after the drain.
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct Memory(loom::cell::UnsafeCell<()>);

#[cfg(loom)]
#[allow(unsafe_code, reason = "a cell that loom watches, in models only")]
// SAFETY: nothing is read or written through it; loom checks the accesses.
unsafe impl Sync for Memory {}

#[cfg(loom)]
impl Memory {
    /// As a switcher does.
    pub fn touch(&self) {
        self.0.with(|_| ());
    }

    /// As unmount does in the end.
    fn free(&self) {
        self.0.with_mut(|_| ());
    }
}

#[cfg(loom)]
impl SbPin {
    /// The superblock's memory, which may be touched while the pin is held.
    #[must_use]
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "drain_tests.rs"]
mod tests;
