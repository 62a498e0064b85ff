//! A source's wait queue: the entries that a signal calls.
//!
//! Analogous to Linux's `wait_queue_head_t`, with read sections of `rcu` in place of its lock.
//!
//! # State
//! A producer reads `entries` in a read section; it is replaced under `change`. Exclusive entries
//! come last.
//!
//! # The fast path
//! Mostly a source has one entry, and is signalled far more often than it is polled. The list then
//! has a [`FastPath`] to the words that the entry's callback would load. A signal takes it where
//! each of these loads finds nothing to do: they are the same loads, in the same order, behind the
//! same barriers. Where one finds something to do, the signal calls the callback, which makes all
//! steps from the first.
//!
//! # Lock order
//! The scan's lock of an eventpoll, then `change`. Callbacks are called with neither; the old list
//! is dropped without a lock.

use std::sync::Arc;

use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};
use sync::mutant::is_on;

use crate::barrier::full;
use crate::ready::{Bit, ReadyBitmap, ReadyList};
use crate::reclaim::{RcuCell, Retired, domain};
use crate::waiters::Waiters;
use crate::{Error, Events, Result};

/// Entries of one wait queue: a signal calls each of them, in the producer's thread. Linux has the
/// same number in `path_limits`, and does not apply it.
pub(crate) const ENTRIES_MAX: usize = 1000;

/// An entry of a wait queue. Analogous to Linux's `wait_queue_entry_t`.
pub(crate) trait WaitEntry: Send + Sync {
    /// The source may have become ready for `events`. Must not block. Returns whether this call
    /// woke a thread that slept, and that no other call woke.
    fn callback(&self, events: Events) -> bool;

    /// The source was dropped.
    fn source_closed(&self, source: u64);

    /// The eventpoll whose item it is, by the number of that one's own queue.
    fn eventpoll(&self) -> Option<u64> {
        None
    }

    /// The words that [`callback`](Self::callback) reads first, where they are known.
    fn fast_path(&self) -> Option<FastPath> {
        None
    }
}

/// The part of an eventpoll that producers and consumers share.
#[repr(align(128))]
pub(crate) struct Shared<R: ReadyList> {
    pub(crate) ready: R,
    pub(crate) waiters: Waiters,
    /// The wait queue of threads and eventpolls that watch the eventpoll itself.
    pub(crate) poll_wait: WaitQueue,
}

/// The words that say whether a signal of an item has anything to do.
#[derive(Clone)]
pub(crate) struct FastPath {
    pub(crate) bit: Bit,
    pub(crate) shared: Arc<Shared<ReadyBitmap>>,
}

impl FastPath {
    /// Whether the item is queued, each sleeper was woken, and nothing watches the eventpoll. A
    /// full barrier lies before.
    #[inline]
    fn has_nothing_to_do(&self) -> bool {
        let Shared { ready, waiters, poll_wait } = &*self.shared;
        ready.check_queued(&self.bit).is_ok()
            && (!waiters.is_any_left() || is_on("eventpoll-fast-path-lets-sleep"))
            && (!poll_wait.has_entries() || is_on("eventpoll-fast-path-untold"))
    }
}

/// The entries of one source.
pub(crate) struct WaitQueue {
    id: u64,
    /// Whether there are any; written under `change`.
    has_entries: AtomicBool,
    entries: RcuCell<WaitEntries>,
    change: Mutex<Change>,
}

#[derive(Clone)]
struct Entry {
    wait_entry: Arc<dyn WaitEntry>,
    is_exclusive: bool,
}

/// The first apart: most sources have one entry, which is then one pointer nearer.
#[derive(Clone, Default)]
pub(crate) struct WaitEntries {
    /// Where there are no others.
    fast: Option<FastPath>,
    first: Option<Entry>,
    others: Vec<Entry>,
}

#[derive(Debug, Default)]
struct Change {
    is_closed: bool,
}

impl WaitQueue {
    pub(crate) fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        Self {
            // ORDERING: Relaxed, only a number of its own for each.
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            has_entries: AtomicBool::new(false),
            entries: RcuCell::new(domain(), WaitEntries::default()),
            change: Mutex::new(Change::default()),
        }
    }

    /// A number that no other queue of the process has or had.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Calls the entries. The caller has changed the source, with a full barrier behind it.
    #[inline]
    pub(crate) fn wake_up(&self, events: Events) {
        // In a section of its own, which calls nothing: a signal that has nothing to do saves no
        // registers.
        let has_nothing_to_do =
            self.entries.with(|entries| entries.fast.as_ref().is_some_and(FastPath::has_nothing_to_do));
        if !has_nothing_to_do {
            self.call_entries(events);
        }
    }

    #[inline(never)]
    fn call_entries(&self, events: Events) {
        self.entries.with(|entries| entries.call_all(events));
    }

    /// As [`wake_up`](Self::wake_up), where mostly there is no entry.
    #[inline]
    pub(crate) fn wake_up_if_any(&self, events: Events) {
        if self.has_entries() {
            self.wake_up(events);
        }
    }

    #[inline]
    fn has_entries(&self) -> bool {
        // ORDERING: Relaxed: the barriers of both sides are full ones, as for the list.
        self.has_entries.load(Ordering::Relaxed)
    }

    /// Adds an entry, which is called from here on; a full barrier follows. The caller drops the
    /// result without a lock.
    pub(crate) fn attach(
        &self,
        wait_entry: Arc<dyn WaitEntry>,
        is_exclusive: bool,
    ) -> Result<Retired<WaitEntries>> {
        let change = self.change.lock();
        if change.is_closed {
            return Err(Error::Closed);
        }
        if self.entries.with(|entries| entries.others.len()) + 1 >= ENTRIES_MAX {
            return Err(Error::TooManyPaths { length: 1, max: ENTRIES_MAX });
        }
        let retired = self.edit(|entries| {
            let at = if is_exclusive { entries.len() } else { 0 };
            entries.insert(at, Entry { wait_entry, is_exclusive });
        });
        full();
        Ok(retired)
    }

    /// The eventpolls among the entries.
    pub(crate) fn eventpolls(&self) -> Vec<u64> {
        self.entries.with(|entries| {
            let entries = entries.first.iter().chain(&entries.others);
            entries.filter_map(|entry| entry.wait_entry.eventpoll()).collect()
        })
    }

    /// Takes an entry out; calls that are under way may still reach it. The caller drops the result
    /// without a lock.
    pub(crate) fn detach(&self, wait_entry: &Arc<dyn WaitEntry>) -> Retired<WaitEntries> {
        let _change = self.change.lock();
        self.edit(|entries| entries.retain(|entry| !is_same(&entry.wait_entry, wait_entry)))
    }

    /// Takes no more entries, and notifies the existing ones that the source was dropped.
    pub(crate) fn close(&self) {
        let mut gone = Vec::new();
        let retired = {
            let mut change = self.change.lock();
            change.is_closed = true;
            self.edit(|entries| std::mem::swap(entries, &mut gone))
        };
        drop(retired);
        for entry in gone {
            entry.wait_entry.source_closed(self.id);
        }
    }

    /// Puts another list in place of the present one. The caller holds `change`.
    fn edit(&self, edit: impl FnOnce(&mut Vec<Entry>)) -> Retired<WaitEntries> {
        let mut entries = self
            .entries
            .with(|entries| entries.first.iter().chain(&entries.others).cloned().collect::<Vec<_>>());
        edit(&mut entries);
        // ORDERING: Relaxed, as in `wake_up_if_any`; `attach` has a full barrier behind it.
        self.has_entries.store(!entries.is_empty(), Ordering::Relaxed);
        let mut entries = entries.into_iter();
        let (first, others) = (entries.next(), entries.collect::<Vec<_>>());
        let fast = first.as_ref().filter(|_| others.is_empty()).and_then(|only| only.wait_entry.fast_path());
        self.entries.replace(WaitEntries { fast, first, others })
    }
}

/// Whether both are one object, whatever its type.
fn is_same(one: &Arc<dyn WaitEntry>, other: &Arc<dyn WaitEntry>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

impl WaitEntries {
    /// Calls all of them, until one that is exclusive has woken a thread.
    fn call_all(&self, events: Events) {
        for entry in self.first.iter().chain(&self.others) {
            let is_awake = entry.wait_entry.callback(events);
            if entry.is_exclusive && (is_awake || is_on("eventpoll-exclusive-trusts")) {
                return;
            }
        }
    }
}

impl std::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitQueue").field("id", &self.id).finish_non_exhaustive()
    }
}
