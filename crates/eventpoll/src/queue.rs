//! Who listens to a source: its wait queue.
//!
//! # State
//! `listeners` is read by whoever signals, in a read section, and replaced under `change`. Those
//! who are exclusive come last.
//!
//! # The fast path
//! Mostly a source has one listener, and is signalled far more often than it is asked. The list has
//! then a [`FastPath`] to what that listener would look at. It is taken where all steps of a signal
//! would find nothing to do: the loads are those of the listener, in the same order, behind the
//! same barriers. Where one finds something to do, the listener is called and takes all steps from
//! the first.
//!
//! # Lock order
//! The scan's lock of an eventpoll, then `change`. Listeners are called with neither; what was
//! replaced is dropped without a lock.

use std::sync::Arc;

use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};
use sync::mutant::is_on;

use crate::barrier::full;
use crate::core::Shared;
use crate::protect::{Cell, Retired};
use crate::ready::{Bit, Bits};
use crate::{Error, Events, Result};

/// Listeners of one source: a signal calls each of them, in the thread that signals. Linux has the
/// same number in `path_limits`, and does not apply it.
pub(crate) const LISTENERS_MAX: usize = 1000;

/// One who is told when a source becomes ready.
pub(crate) trait Listener: Send + Sync {
    /// The source may have become ready for `events`. Must not block. Returns whether this call
    /// woke a thread that slept, and that no other call woke.
    fn fire(&self, events: Events) -> bool;

    /// The source has gone.
    fn source_closed(&self, source: u64);

    /// The eventpoll whose item it is, by the number of that one's own queue.
    fn eventpoll(&self) -> Option<u64> {
        None
    }

    /// What [`fire`](Self::fire) looks at first, where that is known.
    fn fast_path(&self) -> Option<FastPath> {
        None
    }
}

/// What tells of an item that a signal has nothing to do.
#[derive(Clone)]
pub(crate) struct FastPath {
    pub(crate) bit: Bit,
    pub(crate) shared: Arc<Shared<Bits>>,
}

impl FastPath {
    /// Whether the item is queued, nobody sleeps who was not woken, and nobody watches the
    /// eventpoll. A full barrier lies before.
    #[inline]
    fn has_nothing_to_do(&self) -> bool {
        let Shared { ready, waiters, poll_wait } = &*self.shared;
        ready.check_queued(&self.bit).is_ok()
            && (!waiters.is_any_left() || is_on("eventpoll-fast-path-lets-sleep"))
            && (!poll_wait.is_listened() || is_on("eventpoll-fast-path-untold"))
    }
}

/// What a source has for those who watch it.
pub(crate) struct WaitQueue {
    id: u64,
    /// Whether there are any; written under `change`.
    is_listened: AtomicBool,
    listeners: Cell<Listeners>,
    change: Mutex<Change>,
}

#[derive(Clone)]
struct Entry {
    listener: Arc<dyn Listener>,
    is_exclusive: bool,
}

/// The first apart: most sources have one listener, which is then one step nearer.
#[derive(Clone, Default)]
pub(crate) struct Listeners {
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
            is_listened: AtomicBool::new(false),
            listeners: Cell::new(Listeners::default()),
            change: Mutex::new(Change::default()),
        }
    }

    /// A number that no other queue of the process has or had.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Tells the listeners. The caller has changed the source, with a full barrier behind it.
    #[inline]
    pub(crate) fn fire(&self, events: Events) {
        self.listeners.with(|listeners| {
            if !listeners.fast.as_ref().is_some_and(FastPath::has_nothing_to_do) {
                listeners.tell(events);
            }
        });
    }

    /// The same, where mostly nobody listens.
    #[inline]
    pub(crate) fn fire_if_any(&self, events: Events) {
        if self.is_listened() {
            self.fire(events);
        }
    }

    #[inline]
    fn is_listened(&self) -> bool {
        // ORDERING: Relaxed: the barriers of both sides are full ones, as for the list.
        self.is_listened.load(Ordering::Relaxed)
    }

    /// Adds a listener, which is told from here on; a full barrier follows. What it returns is to
    /// be dropped without a lock.
    pub(crate) fn attach(
        &self,
        listener: Arc<dyn Listener>,
        is_exclusive: bool,
    ) -> Result<Retired<Listeners>> {
        let change = self.change.lock();
        if change.is_closed {
            return Err(Error::Closed);
        }
        if self.listeners.with(|listeners| listeners.others.len()) + 1 >= LISTENERS_MAX {
            return Err(Error::TooManyPaths { length: 1, max: LISTENERS_MAX });
        }
        let retired = self.edit(|entries| {
            let at = if is_exclusive { entries.len() } else { 0 };
            entries.insert(at, Entry { listener, is_exclusive });
        });
        full();
        Ok(retired)
    }

    /// The eventpolls among the listeners.
    pub(crate) fn eventpolls(&self) -> Vec<u64> {
        self.listeners.with(|listeners| {
            let entries = listeners.first.iter().chain(&listeners.others);
            entries.filter_map(|entry| entry.listener.eventpoll()).collect()
        })
    }

    /// Takes a listener out; calls that are under way may still reach it. To be dropped as above.
    pub(crate) fn detach(&self, listener: &Arc<dyn Listener>) -> Retired<Listeners> {
        let _change = self.change.lock();
        self.edit(|entries| entries.retain(|entry| !is_same(&entry.listener, listener)))
    }

    /// Nobody is added any more, and those who listen are told that the source has gone.
    pub(crate) fn close(&self) {
        let mut gone = Vec::new();
        let retired = {
            let mut change = self.change.lock();
            change.is_closed = true;
            self.edit(|entries| std::mem::swap(entries, &mut gone))
        };
        drop(retired);
        for entry in gone {
            entry.listener.source_closed(self.id);
        }
    }

    /// Puts another list in place of the present one. The caller holds `change`.
    fn edit(&self, edit: impl FnOnce(&mut Vec<Entry>)) -> Retired<Listeners> {
        let mut entries = self
            .listeners
            .with(|listeners| listeners.first.iter().chain(&listeners.others).cloned().collect::<Vec<_>>());
        edit(&mut entries);
        // ORDERING: Relaxed, as in `fire_if_any`; who adds has a full barrier behind it.
        self.is_listened.store(!entries.is_empty(), Ordering::Relaxed);
        let mut entries = entries.into_iter();
        let (first, others) = (entries.next(), entries.collect::<Vec<_>>());
        let fast = first.as_ref().filter(|_| others.is_empty()).and_then(|only| only.listener.fast_path());
        self.listeners.replace(Listeners { fast, first, others })
    }
}

/// Whether both are one object, whatever it is seen as.
fn is_same(one: &Arc<dyn Listener>, other: &Arc<dyn Listener>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

impl Listeners {
    /// Tells all of them, until one that is exclusive has woken a thread. Not inlined, so that who
    /// signals saves no registers for it where there is nothing to do.
    #[inline(never)]
    fn tell(&self, events: Events) {
        for entry in self.first.iter().chain(&self.others) {
            let is_awake = entry.listener.fire(events);
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
