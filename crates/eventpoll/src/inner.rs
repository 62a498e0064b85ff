//! Items and scans: the part of an eventpoll that it shares with the sources that it watches.
//!
//! Analogous to Linux's `struct eventpoll` and `struct epitem`.
//!
//! # State
//! | field | used by |
//! |---|---|
//! | `Inner::shared` | producers and consumers, as modules `ready` and `waiters` say |
//! | `Inner::scan` | one thread at a time that waits, adds, modifies or deletes, under its lock; and on behalf of sources that were dropped meanwhile |
//! | `Item::mask` | written under the scan's lock, read by producers |
//! | `Inner::is_closed`, `Inner::interrupts` | written before all sleepers are woken, read before a consumer sleeps |
//!
//! # A scan
//! It takes the queued items, and polls the sources one by one, until as many are reported as there
//! is room for. An item whose source is not ready leaves the list. An item that is reported once
//! (edge, one-shot) leaves it *before* its source is polled, so that a producer that signals
//! afterwards queues it again. An item of level kind is polled where it is; if it is ready it
//! stays, so that busy sources are signalled and scanned while neither side writes a word that the
//! other reads. If it is not ready it leaves the list, and is polled once more.
//!
//! The order afterwards: items that were not reached, items that were queued meanwhile, items that
//! were reported and stay.
//!
//! # Orderings
//! * P6 modify: store `mask`, full barrier (`deferred`), poll the source. Producer: change the
//!   source, full barrier, load `mask`. Either the modifier sees the change, or the producer sees
//!   the mask.
//! * P7 add: join the wait queue, full barrier, poll the source. Producer: change the source, full
//!   barrier, load the wait queue.
//!
//! # Lock order
//! `nest`'s lock; the scan's lock of an eventpoll; that of one that it watches (there are no
//! circles); locks of sources that are taken in [`Poll::poll`](crate::Poll::poll). A wait entry's
//! callback runs under whatever lock the producer holds, and takes none. A thread that drops or
//! closes a source may hold any of them as well: it only tries the scan's lock and `nest`'s
//! (`deferred`).

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use sync::CachePadded;
use sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sync::mutant::is_on;

use crate::barrier::full;
use crate::deferred::DeferredMutex;
use crate::queue::{FastPath, Shared, WaitEntries, WaitEntry, WaitQueue};
use crate::ready::{Pending, ReadyList};
use crate::reclaim::{self, Called, Retired};
use crate::source::{Queue, Watched};
use crate::waiters::Waiters;
use crate::watches::Watches;
use crate::{Error, Event, Events, Interest, Result, nest};

/// An eventpoll, as its items and its handle share it.
///
/// Words that producers write, words that consumers write, and words that are mostly read lie in
/// cache lines of their own.
pub(crate) struct Inner<R: ReadyList> {
    pub(crate) shared: Arc<Shared<R>>,
    scan: CachePadded<DeferredMutex<Scan<R>, DeferredTask>>,
    pub(crate) is_closed: AtomicBool,
    /// How often all waits were interrupted.
    pub(crate) interrupts: AtomicU32,
    pub(crate) watches: Arc<Watches>,
}

/// A source in an interest set.
#[repr(align(128))]
struct Item<R: ReadyList> {
    /// The events that queue it; none while it is disarmed.
    mask: AtomicU32,
    place: R::Link,
    shared: Arc<Shared<R>>,
    inner: Arc<Inner<R>>,
    source: Arc<dyn Watched>,
    called: Called,
}

/// An item, and the fields that only scans need.
struct Watch<R: ReadyList> {
    item: Arc<Item<R>>,
    interest: Interest,
    token: u64,
}

enum Slot<R: ReadyList> {
    Free,
    Taken(Watch<R>),
    /// Deleted, and still in the list.
    Unlinked(Arc<Item<R>>),
}

struct Scan<R: ReadyList> {
    is_closed: bool,
    /// Whether another eventpoll watches this one, or was about to.
    is_nested: bool,
    taken: R::ScanState,
    pending: Pending,
    /// Reported in this scan, and still ready.
    again: Vec<usize>,
    slots: Vec<Slot<R>>,
    free: Vec<usize>,
    by_source: HashMap<u64, usize>,
    /// To be dropped without the lock.
    trash: Vec<Arc<Item<R>>>,
}

/// A task for the next thread that has the scan's lock.
#[derive(Debug)]
enum DeferredTask {
    /// The source is gone.
    Forget(u64),
    /// The eventpoll is closed: all items are removed.
    Close,
}

/// The rest of a task, to be done without the lock.
enum TaskResult<R: ReadyList> {
    Forgotten(Option<Arc<Item<R>>>, u64),
    Closed(Vec<Slot<R>>),
}

/// The rest of an addition, to be done without any lock: the old list of the wait queue is dropped,
/// and the source of a new item is polled.
#[must_use = "to be finished without a lock"]
pub(crate) struct Changed<R: ReadyList> {
    retired: Retired<WaitEntries>,
    added: Option<Arc<Item<R>>>,
}

impl<R: ReadyList> Changed<R> {
    pub(crate) fn finish(self) {
        drop(self.retired);
        if let Some(item) = self.added {
            item.poll_and_queue();
        }
    }
}

/// The result of polling a source.
enum PollResult {
    NotReady,
    /// Reported, and out of the list.
    Once(Event),
    /// Reported, and still in the list.
    Again(Event),
}

impl<R: ReadyList> Inner<R> {
    pub(crate) fn new(watches: Arc<Watches>) -> Self {
        Self {
            shared: Arc::new(Shared {
                ready: R::default(),
                waiters: Waiters::default(),
                poll_wait: WaitQueue::new(),
            }),
            is_closed: AtomicBool::new(false),
            interrupts: AtomicU32::new(0),
            watches,
            scan: CachePadded::new(DeferredMutex::new(Scan {
                is_closed: false,
                is_nested: false,
                taken: R::ScanState::default(),
                pending: Pending::new(),
                again: Vec::new(),
                slots: Vec::new(),
                free: Vec::new(),
                by_source: HashMap::new(),
                trash: Vec::new(),
            })),
        }
    }

    /// Works under the scan's lock. A full barrier follows.
    fn scan<W>(&self, work: impl FnOnce(&mut Scan<R>) -> W) -> W {
        let ready = &self.shared.ready;
        let (result, done) = self.scan.with(|scan, task| scan.run(ready, task), work);
        self.finish(done);
        result
    }

    /// Leaves a task to be done under the lock: at once if it is free, otherwise by the thread
    /// that has it. Waits for no scan.
    fn defer(&self, task: DeferredTask) {
        let ready = &self.shared.ready;
        let done = self.scan.defer(task, |scan, task| scan.run(ready, task));
        self.finish(done);
    }

    /// Does the rest of tasks, without the lock. The caller may hold the lock of another
    /// eventpoll that polls this one, and so nothing is dropped here that may be the last reference
    /// to a source.
    fn finish(&self, done: Vec<TaskResult<R>>) {
        for done in done {
            match done {
                TaskResult::Forgotten(Some(item), source) => {
                    self.watches.give(1);
                    if item.source.is_eventpoll() {
                        nest::unlink(self.shared.poll_wait.id(), source);
                    }
                    reclaim::domain().defer_drop(item);
                }
                TaskResult::Forgotten(None, _) => {}
                TaskResult::Closed(slots) => self.detach_all(slots),
            }
        }
    }

    /// Adds a source that is no eventpoll.
    pub(crate) fn add(
        self: &Arc<Self>,
        source: &Arc<dyn Watched>,
        interest: Interest,
        token: u64,
    ) -> Result<Changed<R>> {
        match self.add_unless_nested(source, interest, token)? {
            Some(changed) => Ok(changed),
            None => nest::watch(self.shared.poll_wait.id(), &**source, || {
                self.add_counted(source, interest, token)
            }),
        }
    }

    /// `None` if this eventpoll is watched itself: then the caller has to count chains, under their
    /// lock.
    fn add_unless_nested(
        self: &Arc<Self>,
        source: &Arc<dyn Watched>,
        interest: Interest,
        token: u64,
    ) -> Result<Option<Changed<R>>> {
        self.scan(|scan| {
            let is_counted = scan.is_nested && !is_on("eventpoll-chains-uncounted");
            (!is_counted).then(|| self.add_in(scan, source, interest, token)).transpose()
        })
    }

    /// Adds a source whose chains were counted.
    pub(crate) fn add_counted(
        self: &Arc<Self>,
        source: &Arc<dyn Watched>,
        interest: Interest,
        token: u64,
    ) -> Result<Changed<R>> {
        self.scan(|scan| self.add_in(scan, source, interest, token))
    }

    fn add_in(
        self: &Arc<Self>,
        scan: &mut Scan<R>,
        source: &Arc<dyn Watched>,
        interest: Interest,
        token: u64,
    ) -> Result<Changed<R>> {
        let id = source.queue().0.id();
        if scan.is_closed {
            return Err(Error::Closed);
        }
        if scan.by_source.contains_key(&id) {
            return Err(Error::Exists);
        }
        self.watches.take()?;
        let slot = scan.free.pop().unwrap_or_else(|| {
            scan.slots.push(Slot::Free);
            scan.slots.len() - 1
        });
        let item = Arc::new(Item {
            mask: AtomicU32::new(mask_of(interest)),
            place: self.shared.ready.new_link(&mut scan.taken, slot),
            shared: Arc::clone(&self.shared),
            inner: Arc::clone(self),
            source: Arc::clone(source),
            called: Called::default(),
        });
        scan.slots[slot] = Slot::Taken(Watch { item: Arc::clone(&item), interest, token });
        scan.by_source.insert(id, slot);
        // P7
        let attached = source.queue().0.attach(Arc::clone(&item) as _, interest.is_exclusive);
        if attached.is_err() {
            scan.take_out(&self.shared.ready, id);
            self.watches.give(1);
        }
        Ok(Changed { retired: attached?, added: Some(item) })
    }

    pub(crate) fn modify(&self, source: u64, interest: Interest, token: u64) -> Result<()> {
        let item = self.scan(|scan| {
            if scan.is_closed {
                return Err(Error::Closed);
            }
            let slot = *scan.by_source.get(&source).ok_or(Error::NotFound)?;
            let Slot::Taken(watch) = &mut scan.slots[slot] else { return Err(Error::NotFound) };
            if interest.is_exclusive || watch.interest.is_exclusive {
                return Err(Error::Exclusive);
            }
            (watch.interest, watch.token) = (interest, token);
            // ORDERING: Relaxed, P6 with the barrier behind the lock.
            watch.item.mask.store(mask_of(interest), Ordering::Relaxed);
            Ok(Arc::clone(&watch.item))
        })?;
        item.poll_and_queue();
        Ok(())
    }

    pub(crate) fn delete(&self, source: &dyn Watched) -> Result<Changed<R>> {
        let queue = source.queue();
        let item = self.scan(|scan| {
            if scan.is_closed {
                return Err(Error::Closed);
            }
            scan.take_out(&self.shared.ready, queue.0.id()).ok_or(Error::NotFound)
        })?;
        self.watches.give(1);
        Ok(Changed { retired: queue.0.detach(&(item as Arc<dyn WaitEntry>)), added: None })
    }

    /// Reports up to `max` events, and wakes one more consumer if there are more.
    pub(crate) fn harvest(&self, events: &mut Vec<Event>, max: usize) -> Result<usize> {
        let (is_more, trash) = self.scan(|scan| {
            if scan.is_closed {
                return Err(Error::Closed);
            }
            scan.report(&self.shared.ready, events, max);
            Ok((!scan.pending.is_empty(), std::mem::take(&mut scan.trash)))
        })?;
        drop(trash);
        if is_more {
            // `waiters` P1: the items in the list were there before the lock was given back.
            full();
            self.shared.waiters.wake_one();
        }
        Ok(events.len())
    }

    /// Ends all waits, and removes all items.
    pub(crate) fn close(&self) {
        let is_late = is_on("eventpoll-close-late");
        // ORDERING: AcqRel; before the number that sleepers read changes.
        if !is_late && self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shared.waiters.wake_all();
        if is_late && self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.defer(DeferredTask::Close);
    }

    /// Detaches the items of a closed eventpoll.
    fn detach_all(&self, slots: Vec<Slot<R>>) {
        for slot in slots {
            if let Slot::Taken(Watch { item, .. }) = slot {
                // ORDERING: Relaxed: only so that no producer queues it for nothing.
                item.mask.store(0, Ordering::Relaxed);
                let source = Arc::clone(&item.source);
                drop(source.queue().0.detach(&(Arc::clone(&item) as Arc<dyn WaitEntry>)));
                self.watches.give(1);
                reclaim::domain().defer_drop((item, source));
            }
        }
        self.shared.poll_wait.close();
        nest::forget(self.shared.poll_wait.id());
    }

    /// Sources that are watched.
    pub(crate) fn len(&self) -> usize {
        self.scan(|scan| scan.by_source.len())
    }
}

impl<R: ReadyList> Watched for Inner<R> {
    fn queue(&self) -> Queue<'_> {
        Queue(&self.shared.poll_wait)
    }

    fn poll_source(&self) -> Events {
        let is_ready = self.scan(|scan| !scan.is_closed && scan.is_any_ready(&self.shared.ready));
        if is_ready { Events::IN } else { Events::empty() }
    }

    fn is_watchable(&self) -> bool {
        true
    }

    fn is_eventpoll(&self) -> bool {
        true
    }

    fn begin_nesting(&self) -> Vec<Arc<dyn Watched>> {
        self.scan(|scan| {
            scan.is_nested = true;
            let taken = |slot: &Slot<R>| match slot {
                Slot::Taken(watch) => Some(Arc::clone(&watch.item.source)),
                Slot::Free | Slot::Unlinked(_) => None,
            };
            scan.slots.iter().filter_map(taken).collect()
        })
    }
}

impl<R: ReadyList> Item<R> {
    /// The events that the source is ready for, of those of interest; none while the item is
    /// disarmed. Called under the scan's lock.
    fn poll_source(&self) -> Events {
        // ORDERING: Relaxed, written under the lock that the caller holds.
        match self.mask.load(Ordering::Relaxed) {
            0 => Events::empty(),
            mask => self.source.poll_source() & Events::from_bits_truncate(mask),
        }
    }

    /// Polls the source, and queues the item if it is ready.
    fn poll_and_queue(&self) {
        let now = self.source.poll_source();
        if !now.is_empty() {
            // `ready` P3: the readiness seen here is not older than what a scan sees later.
            full();
            self.callback(now);
        }
    }

    /// The source may have become ready for `events`.
    #[inline]
    fn queue_and_wake(&self, events: Events) -> bool {
        let Shared { ready, waiters, poll_wait } = &*self.shared;
        let mut hold = ready.hold();
        // ORDERING: Relaxed, P6 with the caller's barrier.
        if self.mask.load(Ordering::Relaxed) & events.bits() == 0 {
            return false;
        }
        ready.queue(&mut hold, &self.place);
        let is_awake = waiters.wake_one();
        drop(hold);
        poll_wait.wake_up_if_any(Events::IN);
        is_awake
    }
}

impl<R: ReadyList> WaitEntry for Item<R> {
    #[inline]
    fn callback(&self, events: Events) -> bool {
        self.called.during(|| self.queue_and_wake(events))
    }

    fn source_closed(&self, source: u64) {
        self.inner.defer(DeferredTask::Forget(source));
    }

    fn eventpoll(&self) -> Option<u64> {
        Some(self.shared.poll_wait.id())
    }

    fn fast_path(&self) -> Option<FastPath> {
        let bit = R::bit(&self.place)?.clone();
        let shared: Arc<dyn Any + Send + Sync> = Arc::clone(&self.shared) as _;
        Some(FastPath { bit, shared: shared.downcast().ok()? })
    }
}

impl<R: ReadyList> Scan<R> {
    fn run(&mut self, ready: &R, task: DeferredTask) -> TaskResult<R> {
        match task {
            DeferredTask::Forget(source) => TaskResult::Forgotten(self.take_out(ready, source), source),
            DeferredTask::Close => {
                self.is_closed = true;
                self.pending.clear();
                self.by_source.clear();
                TaskResult::Closed(std::mem::take(&mut self.slots))
            }
        }
    }

    fn report(&mut self, ready: &R, events: &mut Vec<Event>, max: usize) {
        ready.start(&mut self.taken, &mut self.pending);
        while events.len() < max
            && let Some(slot) = self.pending.pop_front()
        {
            match self.poll_item(ready, slot) {
                PollResult::NotReady => {}
                PollResult::Once(event) => events.push(event),
                PollResult::Again(event) => {
                    events.push(event);
                    self.again.push(slot);
                }
            }
        }
        ready.end(&mut self.taken, &mut self.pending, !self.again.is_empty());
        self.pending.extend(self.again.drain(..));
    }

    /// Whether any source is ready. Items at the front that are not ready leave the list.
    fn is_any_ready(&mut self, ready: &R) -> bool {
        ready.start(&mut self.taken, &mut self.pending);
        let mut is_ready = false;
        while !is_ready && let Some(&slot) = self.pending.front() {
            let Slot::Taken(Watch { item, .. }) = &self.slots[slot] else {
                self.pending.pop_front();
                self.tidy(ready, slot);
                continue;
            };
            is_ready = !item.poll_source().is_empty();
            if !is_ready {
                ready.unqueue(&mut self.taken, &item.place);
                is_ready = !item.poll_source().is_empty();
                if !is_ready || !ready.requeue(&mut self.taken, &item.place) {
                    self.pending.pop_front();
                }
            }
        }
        ready.end(&mut self.taken, &mut self.pending, false);
        is_ready
    }

    /// Polls the source of an item that was just taken from the front of the list.
    fn poll_item(&mut self, ready: &R, slot: usize) -> PollResult {
        let Slot::Taken(Watch { item, interest, token }) = &self.slots[slot] else {
            self.tidy(ready, slot);
            return PollResult::NotReady;
        };
        let is_level = !interest.is_edge && !interest.is_one_shot;
        let event = |events| Event { token: *token, events };
        if is_level {
            let events = item.poll_source();
            if !events.is_empty() {
                return PollResult::Again(event(events));
            }
        }
        let early = is_on("eventpoll-unqueue-after-asking").then(|| item.poll_source());
        ready.unqueue(&mut self.taken, &item.place);
        let events = early.unwrap_or_else(|| item.poll_source());
        if events.is_empty() {
            return PollResult::NotReady;
        }
        if interest.is_one_shot {
            // ORDERING: Relaxed: a producer that sees it late queues it for nothing.
            item.mask.store(0, Ordering::Relaxed);
        }
        if is_level && ready.requeue(&mut self.taken, &item.place) {
            return PollResult::Again(event(events));
        }
        PollResult::Once(event(events))
    }

    /// Handles a slot of the list whose item is gone: the slot is free, if it was not before.
    fn tidy(&mut self, ready: &R, slot: usize) {
        match std::mem::replace(&mut self.slots[slot], Slot::Free) {
            Slot::Unlinked(item) => {
                ready.unqueue(&mut self.taken, &item.place);
                self.free.push(slot);
                self.trash.push(item);
            }
            Slot::Free => ready.pass(&mut self.taken, slot),
            taken @ Slot::Taken(_) => self.slots[slot] = taken,
        }
    }

    /// Takes a source out of the set.
    fn take_out(&mut self, ready: &R, source: u64) -> Option<Arc<Item<R>>> {
        let slot = self.by_source.remove(&source)?;
        let Slot::Taken(watch) = std::mem::replace(&mut self.slots[slot], Slot::Free) else { return None };
        // ORDERING: Relaxed: only so that no producer queues it for nothing.
        watch.item.mask.store(0, Ordering::Relaxed);
        if ready.remove(&mut self.taken, &watch.item.place) {
            self.slots[slot] = Slot::Unlinked(Arc::clone(&watch.item));
        } else {
            self.free.push(slot);
        }
        Some(watch.item)
    }
}

/// The events that queue an item.
fn mask_of(interest: Interest) -> u32 {
    (interest.events | Events::ERR | Events::HUP).bits()
}
