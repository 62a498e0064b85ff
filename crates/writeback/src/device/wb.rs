//! The inodes of one cgroup on one backing device.
//!
//! An inode is on one list of its wb from its first dirtying until it goes, and remembers on which.
//! It is on `dirty`, `io` or `retry` exactly while it says it is dirty: a thread that makes it
//! dirty lists it with [`Bdi::mark_dirty`] before releasing the lock under which it became so. So a
//! thread that finds the inode dirty finds it listed.
//!
//! | list | holds |
//! |---|---|
//! | `dirty` (`b_dirty`) | inodes by the time they were first dirtied |
//! | `io` (`b_io`) | inodes that a flusher writes now |
//! | `retry` (`b_more_io`) | inodes whose write-back failed, to be tried again at a later time |
//! | `attached` (`b_attached`) | clean inodes, without keeping them |
//!
//! A wb whose cgroup was removed is *dying*: no inode is attached to it any more, its clean ones
//! move on, and it is given back when it has none.
//!
//! Lock order: the inode's own locks, then `Wb::lists` (two: lower address first), then the locks
//! in the inode's link. The last reference on an inode is never dropped under `lists`: its drop
//! takes that lock.
//!
//! [`Bdi::mark_dirty`]: crate::Bdi::mark_dirty

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use eventpoll::Flag;
use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Mutex, MutexGuard, StatCounter};

use cgroups::CgroupId;
use throttle::{CgroupPath, Chain, Throttle};

use crate::device::inode::{Inode, InodeWb, InodeWbState, Key, OnList};
use crate::dirty::limits::{Charged, DirtyLimits, Domains};
use crate::switch::cgroup::Cgroup;

/// 100 MiB/s, until something is known: pages a second.
const BANDWIDTH_AT_FIRST: u64 = 25_600;

/// The inodes of one cgroup on one backing device.
#[derive(Debug)]
pub struct Wb<I: Inode> {
    cgroup: Arc<Cgroup>,
    /// Its place among the device's wbs.
    pub(crate) index: u32,
    lists: Mutex<Lists<I>>,
    /// Set when a flusher should check it; none where there are no flushers.
    pub(crate) work: Option<Flag>,
    /// Its flushers, under `Bdi::flushers`.
    pub(crate) slot: Mutex<WbSlot>,
    /// The length of `dirty`, to be read without the lock.
    dirty_inodes: AtomicUsize,
    /// The sum of `dirty_inodes` over the device.
    dirty_inodes_of_all: Arc<AtomicUsize>,
    /// Inodes of all lists, to be read without the lock.
    owned: AtomicUsize,
    /// `b_stat`: bytes.
    pub(crate) dirty: AtomicU64,
    pub(crate) writeback: AtomicU64,
    /// Switches to this wb that have not ended: it must stay.
    pub(crate) incoming: AtomicUsize,
    pub(crate) is_cleaning: AtomicBool,
    /// Pages a second.
    bandwidth: AtomicU64,
    pub(crate) switched: StatCounter,
    /// The limits that it is under, as of the last check.
    chain: Mutex<Option<Arc<Chain>>>,
    /// The dirty limits that it is under, and what is counted at them, as of the last check.
    charged: Mutex<Charged>,
}

/// The time at which a flusher checks a wb; the second number keeps equal times apart.
pub(crate) type Timer = (Duration, u64);

/// A wb's part of its device's flushers.
#[derive(Debug, Default)]
pub(crate) struct WbSlot {
    pub(crate) flushers: usize,
    pub(crate) timer: Option<Timer>,
}

/// An inode on a list, with how often its write-back failed.
#[derive(Debug)]
pub(crate) struct Listed<I> {
    pub(crate) inode: Arc<I>,
    pub(crate) failures: u32,
}

#[derive(Debug)]
pub(crate) struct Lists<I> {
    pub(crate) dirty: BTreeMap<Key, Listed<I>>,
    io: BTreeMap<u64, Arc<I>>,
    retry: BTreeMap<Key, Listed<I>>,
    pub(crate) attached: BTreeMap<u64, Weak<I>>,
    /// The first keys of `dirty` and `retry` at the last check of a flusher, or at its last
    /// signal.
    seen: [Option<Key>; 2],
    /// The cgroup was removed: no inode is attached any more.
    pub(crate) dying: bool,
    /// Given back: its index is, or will be, another wb's.
    pub(crate) gone: bool,
}

/// A list's entry for one inode.
#[derive(Debug)]
pub(crate) enum Entry<I> {
    Attached(Weak<I>),
    Dirty(Key, Listed<I>),
    Io(Arc<I>),
    Retry(Key, Listed<I>),
}

/// A wb's figures, as of a moment ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WbStatus {
    /// The cgroup that it belongs to.
    pub owner: CgroupId,
    /// That cgroup's path.
    pub path: PathBuf,
    /// The cgroup was removed.
    pub is_dying: bool,
    /// Inodes that it owns, clean ones included.
    pub owned: usize,
    /// Bytes to be written.
    pub dirty: u64,
    /// Bytes on their way to the store.
    pub writeback: u64,
    /// Switches to it under way.
    pub switches_in_flight: usize,
    /// Inodes that were switched to it.
    pub switched: u64,
}

impl<I: Inode> Lists<I> {
    fn new() -> Self {
        Self {
            dirty: BTreeMap::new(),
            io: BTreeMap::new(),
            retry: BTreeMap::new(),
            attached: BTreeMap::new(),
            seen: [None; 2],
            dying: false,
            gone: false,
        }
    }

    fn len(&self) -> usize {
        self.dirty.len() + self.io.len() + self.retry.len() + self.attached.len()
    }

    /// The cgroup was removed, and no inode is there any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.dying && self.len() == 0
    }

    /// Takes an inode off the list that it is on.
    pub(crate) fn remove(&mut self, inode_wb: &InodeWb<I>, state: &mut InodeWbState) -> Option<Entry<I>> {
        match std::mem::take(&mut state.on_list) {
            OnList::Off => None,
            OnList::Attached => self.attached.remove(&inode_wb.number).map(Entry::Attached),
            OnList::Dirty(key) => self.dirty.remove(&key).map(|listed| Entry::Dirty(key, listed)),
            OnList::Io => self.io.remove(&inode_wb.number).map(Entry::Io),
            OnList::Retry(key) => self.retry.remove(&key).map(|listed| Entry::Retry(key, listed)),
        }
    }

    /// Puts an inode that is on no list on one.
    pub(crate) fn insert(&mut self, inode_wb: &InodeWb<I>, state: &mut InodeWbState, entry: Entry<I>) {
        debug_assert_eq!(state.on_list, OnList::Off, "an inode on two lists");
        state.on_list = match entry {
            Entry::Attached(inode) => {
                self.attached.insert(inode_wb.number, inode);
                OnList::Attached
            }
            Entry::Dirty(key, listed) => {
                self.dirty.insert(key, listed);
                OnList::Dirty(key)
            }
            Entry::Io(inode) => {
                self.io.insert(inode_wb.number, inode);
                OnList::Io
            }
            Entry::Retry(key, listed) => {
                self.retry.insert(key, listed);
                OnList::Retry(key)
            }
        };
    }

    /// The first keys of `dirty` and `retry`.
    fn first(&self) -> [Option<Key>; 2] {
        [&self.dirty, &self.retry].map(|list| list.first_key_value().map(|(key, _)| *key))
    }
}

impl<I: Inode> Wb<I> {
    pub(crate) fn new(
        cgroup: Arc<Cgroup>,
        index: u32,
        dirty_inodes_of_all: &Arc<AtomicUsize>,
        work: Option<Flag>,
    ) -> Self {
        Self {
            work,
            slot: Mutex::default(),
            dirty_inodes_of_all: Arc::clone(dirty_inodes_of_all),
            cgroup,
            index,
            lists: Mutex::new(Lists::new()),
            dirty_inodes: AtomicUsize::new(0),
            owned: AtomicUsize::new(0),
            dirty: AtomicU64::new(0),
            writeback: AtomicU64::new(0),
            incoming: AtomicUsize::new(0),
            is_cleaning: AtomicBool::new(false),
            bandwidth: AtomicU64::new(BANDWIDTH_AT_FIRST),
            switched: StatCounter::default(),
            chain: Mutex::default(),
            charged: Mutex::default(),
        }
    }

    /// The cgroup that owns this data.
    pub fn cgroup(&self) -> &Arc<Cgroup> {
        &self.cgroup
    }

    /// The path of its cgroup.
    pub(crate) fn cgroup_path(&self) -> CgroupPath {
        CgroupPath::from(&*self.cgroup.path())
    }

    /// The limits that it is under.
    pub(crate) fn chain(&self, throttle: &Throttle) -> Arc<Chain> {
        let mut chain = self.chain.lock();
        match chain.as_ref() {
            Some(chain) if throttle.is_current(chain) => Arc::clone(chain),
            _ => Arc::clone(chain.insert(throttle.chain(&self.cgroup_path()))),
        }
    }

    /// The dirty limits that it is under. Counts its bytes at these: called by a thread that has
    /// changed them.
    pub(crate) fn domains(&self, limits: &DirtyLimits) -> Arc<Domains> {
        let mut charged = self.charged.lock();
        charged.update(limits, || self.cgroup_path(), self.unwritten_bytes())
    }

    /// Its bytes that are not on the store.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        // ORDERING: Relaxed, figures for thresholds. A waiting writer is notified when they fall as
        // it is of room in the cache: see P1 of `budget`.
        self.dirty.load(Ordering::Relaxed).saturating_add(self.writeback.load(Ordering::Relaxed))
    }

    /// Inodes that wait for their first write-back, as of a moment ago.
    pub(crate) fn dirty_inodes(&self) -> usize {
        // ORDERING: Relaxed, a figure for thresholds.
        self.dirty_inodes.load(Ordering::Relaxed)
    }

    /// Nothing is to be written, and nothing is on its way here.
    pub(crate) fn is_settled(&self) -> bool {
        let lists = self.lists();
        // ORDERING: Relaxed; a switch ends after its inode came onto the lists, under their lock: a
        // thread that holds the lock and finds no inode finds the switch.
        let is_empty = lists.dirty.is_empty() && lists.io.is_empty() && lists.retry.is_empty();
        is_empty && self.incoming.load(Ordering::Relaxed) == 0
    }

    /// The cgroup's number.
    pub fn owner(&self) -> CgroupId {
        self.cgroup.id()
    }

    pub(crate) fn lists(&self) -> MutexGuard<'_, Lists<I>> {
        self.lists.lock()
    }

    /// Locks the lists, if the inode is still here. `index` is the one by which this wb was found:
    /// since then the inode may have left, and the wb may have been given back and the inode have
    /// come to another one with that index.
    pub(crate) fn lists_of(&self, inode_wb: &InodeWb<I>, index: u32) -> Option<MutexGuard<'_, Lists<I>>> {
        let lists = self.lists();
        let is_gone = lists.gone && !is_on("wb-index-reused");
        (inode_wb.index() == index && !is_gone).then_some(lists)
    }

    /// The locks of two wbs, in the order of their addresses.
    pub(crate) fn both<'a>(
        a: &'a Arc<Self>,
        b: &'a Arc<Self>,
    ) -> (MutexGuard<'a, Lists<I>>, MutexGuard<'a, Lists<I>>) {
        debug_assert!(!Arc::ptr_eq(a, b));
        if Arc::as_ptr(a) < Arc::as_ptr(b) {
            let first = a.lists();
            (first, b.lists())
        } else {
            let first = b.lists();
            (a.lists(), first)
        }
    }

    /// Takes the next inode that is due: one that failed and whose pause is over, or one that has
    /// rested for `rest`; none before `held_until`, when its limits let it. Returns as well when
    /// the one behind it is due.
    pub(crate) fn take(
        &self,
        now: Duration,
        rest: Duration,
        held_until: Duration,
    ) -> (Option<Listed<I>>, Option<Duration>) {
        let mut lists = self.lists();
        let due = |lists: &Lists<I>| {
            let [dirty, retry] = lists.first();
            let dirty = dirty.map(|key| key.0 + rest);
            dirty.into_iter().chain(retry.map(|key| key.0)).min().map(|due| due.max(held_until))
        };
        let is_due = due(&lists).is_some_and(|due| due <= now);
        let is_retry = lists.first()[1].is_some_and(|key| key.0 <= now);
        let list = if is_retry { &mut lists.retry } else { &mut lists.dirty };
        let listed = is_due.then(|| list.pop_first()).flatten().map(|(_, listed)| listed);
        if let Some(listed) = &listed {
            let inode_wb = listed.inode.inode_wb();
            let mut state = inode_wb.state();
            state.on_list = OnList::Off;
            lists.insert(inode_wb, &mut state, Entry::Io(Arc::clone(&listed.inode)));
        }
        lists.seen = lists.first();
        self.note_lists(&mut lists);
        (listed, due(&lists))
    }

    /// Publishes the lengths, and signals if the lists begin with something new. Called by a thread
    /// that changed a list. Returns whether it signalled: then a flusher may be missing.
    pub(crate) fn note_lists(&self, lists: &mut MutexGuard<'_, Lists<I>>) -> bool {
        // ORDERING: Relaxed, figures for thresholds and people.
        let before = self.dirty_inodes.swap(lists.dirty.len(), Ordering::Relaxed);
        self.dirty_inodes_of_all.fetch_add(lists.dirty.len().wrapping_sub(before), Ordering::Relaxed);
        self.owned.store(lists.len(), Ordering::Relaxed);
        let first = lists.first();
        let is_earlier = |(now, seen): (&Option<Key>, &Option<Key>)| {
            now.is_some_and(|now| seen.is_none_or(|seen| now < seen))
        };
        let is_new = first.iter().zip(&lists.seen).any(is_earlier);
        if is_new && !is_on("bdi-list-silent") {
            lists.seen = first;
            self.signal();
        }
        is_new
    }

    /// Asks for a flusher to check it. Waits for no thread, whatever lock the caller has.
    pub(crate) fn signal(&self) {
        self.work.iter().for_each(Flag::set);
    }

    /// The flusher that has taken it begins its check.
    pub(crate) fn unset_work(&self) {
        self.work.as_ref().map(Flag::take);
    }

    /// Takes every inode off for good: none becomes dirty again, or moves. Each stays attached until
    /// it goes, so that the wb is not given back before. Returns the references, which are to be
    /// dropped without a lock, and how many inodes are on their way to another wb, each of which is
    /// a defect.
    pub(crate) fn evict(&self) -> (Vec<Arc<I>>, usize) {
        let mut lists = self.lists();
        let Lists { dirty, io, retry, attached, .. } = &mut *lists;
        let listed =
            [std::mem::take(dirty), std::mem::take(retry)].into_iter().flat_map(BTreeMap::into_values);
        let unwritten: Vec<Arc<I>> =
            listed.map(|listed| listed.inode).chain(std::mem::take(io).into_values()).collect();
        let clean: Vec<Arc<I>> = attached.values().filter_map(Weak::upgrade).collect();
        for inode in &unwritten {
            let inode_wb = inode.inode_wb();
            let mut state = inode_wb.state();
            state.on_list = OnList::Off;
            lists.insert(inode_wb, &mut state, Entry::Attached(Arc::downgrade(inode)));
        }
        if is_on("wb-evicted-unattached") {
            lists.attached.clear();
        }
        let evicted: Vec<Arc<I>> = unwritten.into_iter().chain(clean).collect();
        let mut busy = 0;
        for inode in &evicted {
            let inode_wb = inode.inode_wb();
            inode_wb.state().freeing = true;
            busy += usize::from(inode_wb.is_switching());
        }
        self.note_lists(&mut lists);
        (evicted, busy)
    }

    /// Every inode that is dirty or being written at this moment.
    pub fn snapshot(&self) -> Vec<Arc<I>> {
        let lists = self.lists();
        let dirty = lists.dirty.values().map(|listed| &listed.inode);
        let retry = lists.retry.values().map(|listed| &listed.inode);
        lists.io.values().chain(dirty).chain(retry).map(Arc::clone).collect()
    }

    /// Pages a second that the device writes for this wb.
    pub(crate) fn bandwidth(&self) -> u64 {
        // ORDERING: Relaxed, an estimate.
        self.bandwidth.load(Ordering::Relaxed)
    }

    /// Updates the estimate after a write-back of so many bytes.
    pub(crate) fn note_written(&self, bytes: u64, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let now = bytes.div_ceil(4096).saturating_mul(1_000_000) / micros;
        // ORDERING: Relaxed, an estimate: one of two that come at once may be lost.
        let before = self.bandwidth();
        self.bandwidth.store((before - before / 8 + now / 8).max(1), Ordering::Relaxed);
    }

    /// Its figures.
    #[must_use]
    pub fn status(&self) -> WbStatus {
        // ORDERING: Relaxed, figures for people.
        WbStatus {
            owner: self.owner(),
            path: self.cgroup.path(),
            is_dying: !self.cgroup.is_living(),
            owned: self.owned.load(Ordering::Relaxed),
            dirty: self.dirty.load(Ordering::Relaxed),
            writeback: self.writeback.load(Ordering::Relaxed),
            switches_in_flight: self.incoming.load(Ordering::Relaxed),
            switched: self.switched.get(),
        }
    }

    /// Whether it can be given back, under its lists' lock.
    pub(crate) fn is_unused(&self, lists: &MutexGuard<'_, Lists<I>>) -> bool {
        // ORDERING: Relaxed; a switch to a wb is counted under the lock of the device's wbs, which
        // the caller holds.
        lists.is_abandoned() && self.incoming.load(Ordering::Relaxed) == 0
    }
}
