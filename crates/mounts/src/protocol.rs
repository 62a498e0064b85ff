//! The protocol between walks, references and unmounts.
//!
//! It knows nothing of trees or names, so that a model checker can try all of it. [`MountLock`] is
//! analogous to Linux's `mount_lock`, [`Refs`] to `mnt_count` of a `struct mount`.
//!
//! # State
//! | field | holds | written by |
//! |---|---|---|
//! | `MountLock::seq` | odd while mounts are changed; a walk that finds it changed starts again | the holder of the lock |
//! | `Shard::gets`, `Shard::puts` | references taken and given back by the threads of this shard | those threads |
//! | `Shard::pins` | the references that have a name, and whether new ones are refused | under its own lock |
//! | `Refs::flags` | [`UMOUNT`], [`SYNC_UMOUNT`], [`DOOMED`] | the holder of the lock |
//! | `Refs::is_expiring` | the mount was not used since an expiring unmount asked | any thread |
//!
//! The namespace itself has one reference, which its unmount gives back. A reference is a *pin*,
//! which has a name, or *passing*: of a walk that is under way. A synchronous unmount refuses
//! because of pins, and waits for the passing ones, which are few and not new: no path leads to the
//! mount any more.
//!
//! # The thread that runs the clean-up
//! The thread that sets `DOOMED`, once. An unmount that finds the count to be exactly 1 sets it at
//! once, without a grace period: there is no other user. Otherwise it waits for a grace period, so
//! that no thread is left in a fast put. Then a synchronous unmount waits until it is alone; a lazy
//! one gives its reference back, as every user does.
//!
//! # Orderings
//! * P1 legitimize: count up, full fence, load `seq`. Unmount and slow put: store `seq`, full
//!   fence, sum. Either the walk sees that something changed, or its reference is counted.
//! * P2 the tables that a walk reads: writer stores `seq` odd, release fence, its changes; the walk
//!   reads them with acquire, acquire fence, loads `seq`. A walk that sees a change sees the number
//!   changed.
//! * P3 the sum: all puts with acquire, then all gets. A put that is counted has its get counted,
//!   so that the sum is never less than the number of references between the passes.
//! * P4 fast put: in a read section, flags are 0, count down. Unmount: set flags, grace period.
//!   After it every put is a slow one, and checks whether it was the last.
//! * P5 the last user: its work, count down with release. A thread that finds the sum to be 0 or 1
//!   loaded with acquire.
//!
//! # Lock order
//! The lock, then a shard's pins. Nothing that can wait is done under either.

use std::fmt;

use sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use sync::mutant::is_on;
use sync::{Condvar, Mutex, MutexGuard};

/// The mount left its namespace.
pub const UMOUNT: u32 = 1;
/// A synchronous unmount owns the last put.
pub const SYNC_UMOUNT: u32 = 2;
/// The clean-up has begun; the thread that set it runs it.
pub const DOOMED: u32 = 4;

/// Loads of an odd number before a walk waits for the writer.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

/// Read sections, as walks use them.
pub trait Readers {
    /// An open section.
    type Section<'a>
    where
        Self: 'a;
    /// Begins a section.
    fn read(&self) -> Self::Section<'_>;
}

impl Readers for rcu::Domain {
    type Section<'a> = rcu::Guard<'a>;

    #[inline]
    fn read(&self) -> rcu::Guard<'_> {
        rcu::Domain::read(self)
    }
}

/// Protects the mounts of a namespace, and lets walks detect that they changed.
#[derive(Debug, Default)]
pub struct MountLock {
    seq: AtomicU64,
    lock: Mutex<()>,
    /// A synchronous unmount waits until no other thread holds its mount.
    refs_dropped: Condvar,
}

/// The lock is held, and walks see it.
#[derive(Debug)]
pub struct Locked<'a> {
    lock: &'a MountLock,
    _held: MutexGuard<'a, ()>,
}

impl MountLock {
    /// Takes the lock for a change.
    pub fn lock(&self) -> Locked<'_> {
        let held = self.lock.lock();
        // ORDERING: Relaxed, only written under the lock.
        let seq = self.seq.load(Ordering::Relaxed);
        // ORDERING: Relaxed, P2 with the fence.
        self.seq.store(seq.wrapping_add(1), Ordering::Relaxed);
        // ORDERING: P2, the number before the changes. P1 has a fence of its own.
        fence(Ordering::Release);
        Locked { lock: self, _held: held }
    }

    /// The number that a walk begins with. Waits for a change that is under way; not for use in a
    /// read section.
    pub fn read_seqbegin(&self) -> u64 {
        for _ in 0..SPINS {
            // ORDERING: Acquire, P2: later reads are no older.
            let seq = self.seq.load(Ordering::Acquire);
            if seq.is_multiple_of(2) {
                return seq;
            }
            std::hint::spin_loop();
        }
        let _held = self.lock.lock();
        // ORDERING: Relaxed, the lock orders it.
        self.seq.load(Ordering::Relaxed)
    }

    /// Keeps changes away; walks do not notice. Not for use in a read section.
    pub fn read_seqlock_excl(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }

    /// Whether nothing changed since the number was sampled.
    #[inline]
    pub fn is_unchanged(&self, seq: u64) -> bool {
        // ORDERING: P2, the tables are read before the number.
        fence(Ordering::Acquire);
        // ORDERING: Relaxed, P2 by the fence.
        self.seq.load(Ordering::Relaxed) == seq
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed, only written under the lock.
        let seq = self.lock.seq.load(Ordering::Relaxed);
        // ORDERING: Release, P2: a walk that samples this number sees the change as a whole.
        self.lock.seq.store(seq.wrapping_add(1), Ordering::Release);
    }
}

/// References to one mount. `N` names pins.
#[derive(Debug)]
pub struct Refs<N> {
    shards: Box<[Shard<N>]>,
    flags: AtomicU32,
    is_expiring: AtomicBool,
}

/// The part of some threads, two cache lines, so that neighbours are not fetched with it.
#[repr(align(128))]
struct Shard<N> {
    gets: AtomicU64,
    puts: AtomicU64,
    pins: Mutex<Pins<N>>,
}

impl<N> fmt::Debug for Shard<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("gets", &self.gets).field("puts", &self.puts).finish_non_exhaustive()
    }
}

struct Pins<N> {
    /// By key; a key is used again.
    names: Vec<Option<N>>,
    /// Keys without a name.
    free: Vec<usize>,
    is_closed: bool,
}

/// The index at which a pin is recorded.
#[derive(Debug, Clone, Copy)]
pub struct PinKey {
    shard: usize,
    index: usize,
}

/// The result of an attempt to take a reference in a read section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Legitimized {
    /// The caller has a reference.
    Held,
    /// Mounts changed: no reference, start again.
    Changed,
    /// Mounts changed, and the caller has a reference that it must put outside of the read section.
    MustPut,
}

/// The result of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Put {
    /// Others have references.
    Done,
    /// The last one: the caller runs the clean-up now.
    Last,
}

/// The users that an unmount found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum UmountUsers {
    /// No other thread had a reference: the caller runs the clean-up, and need not wait.
    None,
    /// Other threads may have one.
    Possible,
}

impl<N: Clone> Refs<N> {
    /// With the namespace's own reference.
    pub fn new(shards: usize) -> Self {
        let shard = |n| Shard {
            gets: AtomicU64::new(u64::from(n == 0)),
            puts: AtomicU64::new(0),
            pins: Mutex::new(Pins { names: Vec::new(), free: Vec::new(), is_closed: false }),
        };
        Self {
            shards: (0..shards.max(1)).map(shard).collect(),
            flags: AtomicU32::new(0),
            is_expiring: AtomicBool::new(false),
        }
    }

    /// The flags of the mount.
    #[inline]
    pub fn flags(&self) -> u32 {
        // ORDERING: Acquire, so that a thread that sees a flag sees what came before it.
        self.flags.load(Ordering::Acquire)
    }

    fn shard(&self, shard: usize) -> &Shard<N> {
        &self.shards[shard % self.shards.len()]
    }

    /// One more reference, for a caller that has one already.
    #[inline]
    pub fn get(&self, shard: usize) {
        // ORDERING: Relaxed: before the caller's own put by P3, before the number by the fence of
        // P1.
        self.shard(shard).gets.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn count_down(&self, shard: usize) {
        let shard = self.shard(shard);
        if is_on("mounts-one-counter") {
            // ORDERING: as below.
            shard.gets.fetch_sub(1, Ordering::Release);
            return;
        }
        // ORDERING: Release, P3 and P5.
        shard.puts.fetch_add(1, Ordering::Release);
    }

    /// The number of references now or meanwhile: never fewer than at one moment of the call.
    pub fn sum(&self) -> u64 {
        if is_on("mounts-gets-first") {
            // ORDERING: as below, in the wrong order.
            let gets = self.shards.iter().map(|s| s.gets.load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
            fence(Ordering::Acquire);
            let puts = self.shards.iter().map(|s| s.puts.load(Ordering::Acquire)).fold(0, u64::wrapping_add);
            return gets.wrapping_sub(puts);
        }
        // ORDERING: Relaxed with the fence, P3.
        let puts = self.shards.iter().map(|s| s.puts.load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
        if !is_on("mounts-no-barrier-between-passes") {
            // ORDERING: P3 and P5, the puts before the gets and before the clean-up.
            fence(Ordering::Acquire);
        }
        // ORDERING: Relaxed, P3 by the fence.
        let gets = self.shards.iter().map(|s| s.gets.load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
        gets.wrapping_sub(puts)
    }

    /// Takes a reference on a mount that a walk found in the caller's read section, begun with
    /// `seq` (Linux's `legitimize_mnt`).
    pub fn legitimize(&self, lock: &MountLock, seq: u64, shard: usize) -> Legitimized {
        if !lock.is_unchanged(seq) {
            return Legitimized::Changed;
        }
        self.get(shard);
        if !is_on("mounts-legitimize-no-barrier") {
            // ORDERING: P1.
            fence(Ordering::SeqCst);
        }
        // ORDERING: Relaxed, P1 by the fence.
        if lock.seq.load(Ordering::Relaxed) == seq {
            return Legitimized::Held;
        }
        let held = lock.lock.lock();
        let mut owned_by_unmount = SYNC_UMOUNT | DOOMED;
        if is_on("mounts-no-sync-umount-test") {
            owned_by_unmount &= !SYNC_UMOUNT;
        }
        if is_on("mounts-no-doomed-test") {
            owned_by_unmount &= !DOOMED;
        }
        let flags = self.flags();
        if flags & owned_by_unmount == 0 {
            return Legitimized::MustPut;
        }
        self.count_down(shard);
        drop(held);
        lock.refs_dropped.notify_all();
        Legitimized::Changed
    }

    /// Gives a reference back; not in a read section.
    pub fn put<R: Readers>(&self, readers: &R, lock: &MountLock, shard: usize) -> Put {
        // ORDERING: Relaxed here and below, a hint: an expiring unmount reads pins and counts as
        // well.
        if self.is_expiring.load(Ordering::Relaxed) {
            self.is_expiring.store(false, Ordering::Relaxed);
        }
        {
            let section = (!is_on("mounts-fast-put-no-section")).then(|| readers.read());
            if self.flags() == 0 {
                // P4: the namespace's own reference stays until this thread has left the section.
                self.count_down(shard);
                return Put::Done;
            }
            drop(section);
        }
        self.put_slow(lock, shard)
    }

    /// Gives back a reference to a mount that has left its namespace.
    pub fn put_slow(&self, lock: &MountLock, shard: usize) -> Put {
        // Walks see it: one may have found the mount where this reference was kept, and take a
        // reference now.
        let locked = lock.lock();
        if !is_on("mounts-slow-put-no-barrier") {
            // ORDERING: P1.
            fence(Ordering::SeqCst);
        }
        self.count_down(shard);
        if self.sum() != 0 {
            let is_awaited = self.flags() & SYNC_UMOUNT != 0;
            drop(locked);
            if is_awaited && !is_on("mounts-no-wake-up") {
                lock.refs_dropped.notify_all();
            }
            return Put::Done;
        }
        self.set(DOOMED);
        Put::Last
    }

    fn set(&self, flags: u32) {
        // ORDERING: Release, with the loads in `flags`; written under the lock alone.
        self.flags.fetch_or(flags, Ordering::Release);
    }

    /// The mount has left its namespace; `locked` shows that walks see the change. Under the same
    /// lock as the check of pins and as the unhashing.
    pub fn mark_umounted(&self, _locked: &Locked<'_>, is_sync: bool, may_be_alone: bool) -> UmountUsers {
        self.set(if is_sync { UMOUNT | SYNC_UMOUNT } else { UMOUNT });
        if !is_on("mounts-busy-no-barrier") {
            // ORDERING: P1.
            fence(Ordering::SeqCst);
        }
        let count = self.sum();
        if may_be_alone && (count == 1 || is_on("mounts-finish-at-two") && count == 2) {
            self.set(DOOMED);
            // No other thread counts any more.
            return UmountUsers::None;
        }
        UmountUsers::Possible
    }

    /// Ends an unmount: waits with `grace_period` if other threads may hold the mount.
    pub fn complete(
        &self,
        lock: &MountLock,
        found: UmountUsers,
        is_sync: bool,
        grace_period: impl FnOnce(),
    ) -> Put {
        if found == UmountUsers::None {
            return Put::Last;
        }
        if !is_on("mounts-skip-wait") {
            grace_period();
        }
        if is_sync { self.wait_until_alone(lock) } else { self.put_slow(lock, 0) }
    }

    /// Waits until the caller's reference is the last one, and takes the clean-up. A grace period
    /// has passed since the mount left, so that all puts are slow ones.
    pub fn wait_until_alone(&self, lock: &MountLock) -> Put {
        let mut held = lock.lock.lock();
        while self.sum() != 1 {
            lock.refs_dropped.wait(&mut held);
        }
        self.set(DOOMED);
        Put::Last
    }

    /// Gives the caller's reference a name. Refused once a synchronous unmount has found no pins:
    /// the reference is passing, and must be put.
    pub fn pin(&self, shard: usize, name: N) -> Option<PinKey> {
        let shard = shard % self.shards.len();
        let mut pins = self.shards[shard].pins.lock();
        if pins.is_closed && !is_on("mounts-pin-after-close") {
            return None;
        }
        let index = pins.free.pop().unwrap_or(pins.names.len());
        if index == pins.names.len() {
            pins.names.push(Some(name));
        } else {
            pins.names[index] = Some(name);
        }
        Some(PinKey { shard, index })
    }

    /// Takes the name back; the caller puts the reference after that.
    pub fn unpin(&self, key: PinKey) {
        let mut pins = self.shards[key.shard].pins.lock();
        pins.names[key.index] = None;
        pins.free.push(key.index);
    }

    /// The names of all pins.
    pub fn pinned_by(&self) -> Vec<N> {
        let names = |shard: &Shard<N>| shard.pins.lock().names.iter().flatten().cloned().collect::<Vec<_>>();
        self.shards.iter().flat_map(names).collect()
    }

    /// Whether there is any pin.
    pub fn is_pinned(&self) -> bool {
        self.shards.iter().any(|shard| {
            let pins = shard.pins.lock();
            pins.names.len() > pins.free.len()
        })
    }

    /// Refuses new pins from here on, unless there are some. Returns whether there are none.
    pub fn close_pins(&self, _locked: &Locked<'_>) -> bool {
        for (n, shard) in self.shards.iter().enumerate() {
            let mut pins = shard.pins.lock();
            if pins.names.len() > pins.free.len() {
                drop(pins);
                self.shards[..n].iter().for_each(|shard| shard.pins.lock().is_closed = false);
                return false;
            }
            pins.is_closed = true;
        }
        true
    }

    /// Takes new pins again.
    pub fn open_pins(&self, _locked: &Locked<'_>) {
        self.shards.iter().for_each(|shard| shard.pins.lock().is_closed = false);
    }

    /// Marks the mount for expiry; returns whether it was marked already, and not used since.
    pub fn expire(&self) -> bool {
        // ORDERING: Relaxed, a hint.
        self.is_expiring.swap(true, Ordering::Relaxed)
    }
}
