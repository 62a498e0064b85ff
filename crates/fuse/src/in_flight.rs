//! Requests under way, and what a signal to their caller does to them.
//!
//! Purpose: the kernel reports once, by INTERRUPT, that the caller of a request got a signal.
//! Requests behave as in a disk's file system: they go on unless the caller is being killed. Since
//! the kernel does not report a second signal, a [`watcher`](InFlight::watch) checks interrupted
//! callers again every [`RECHECK`] for as long as there are any. For some requests the kernel does
//! not report signals at all; for those see the module [`stuck`]. The module
//! [`admission`](crate::admission) has the other reasons that end a request early, and in its
//! queue wait the requests that have not begun.
//!
//! # State
//! Each reading thread has a [`RequestSlot`], and so has each request that waits for one. Its
//! `word` is 0 or
//!
//! | bits | meaning |
//! |---|---|
//! | 3.. | the request's `unique` (which is even), shifted left by 2 |
//! | 1, 2 | when it may be answered while its thread is still at work: see [`AbortPolicy`] |
//! | 0 | [`CANCEL_USED`](slot::CANCEL_USED): another thread uses `cancel` |
//!
//! The thread that takes the word from non-zero to 0 sends the answer; no other thread does.
//!
//! # Access
//! `RequestSlot::word`: set by the thread whose slot it is; the watcher, too, sets bit 0 and clears
//! the word, under `RequestSlot::cancel`. `RequestSlot::pid`, `opcode` and `volume`: written before
//! `word`, read after it. `InFlight::slots`, `early`, `watched`: by their mutexes.
//!
//! # Lock order
//! `watched`, then `AdmissionQueue::state`, then `slots` or `early`, then `RequestSlot::cancel`,
//! then those of `ReplyChannel`. None is held while a volume is called.
//!
//! # Orderings
//! P1: a thread publishes a request in `word`, then reads `early_len`; INTERRUPT for a request
//! that is in no slot raises `early_len`, then scans the slots again. Both sides are SeqCst: one
//! of them sees the other.

mod signals;
pub(crate) mod slot;
mod stuck;
mod view;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Condvar, Mutex};

use self::signals::Pending;
pub(crate) use self::slot::{AbortPolicy, ActiveRequest, Claim, RequestClass, RequestKey, RequestSlot};
pub use self::view::RequestView;
use crate::admission::queue::AdmissionQueue;
use crate::admission::stall_quota::StallQuota;

/// How often callers of interrupted requests are checked.
const RECHECK: Duration = Duration::from_millis(100);
/// How long an INTERRUPT that came before its request is kept: far longer than it takes from the
/// return of read(2) to the slot. Most of those kept belong to requests that were answered
/// meanwhile.
const EARLY_KEPT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) requests: Vec<(u64, Arc<RequestSlot>)>,
    has_wish: bool,
    ended: bool,
}

/// All requests under way of one session.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    pub(crate) slots: Mutex<Vec<Arc<RequestSlot>>>,
    early: Mutex<VecDeque<(u64, Instant)>>,
    early_len: AtomicUsize,
    pub(crate) watched: Mutex<Watched>,
    changed: Condvar,
    stuck: stuck::StuckScan,
    pub(crate) stall_quota: StallQuota,
    pub(crate) queue: AdmissionQueue,
}

impl InFlight {
    /// Registers a thread's slot.
    pub(crate) fn add(&self, slot: &Arc<RequestSlot>) {
        self.slots.lock().push(Arc::clone(slot));
    }

    /// Forgets a slot.
    pub(crate) fn remove(&self, slot: &Arc<RequestSlot>) {
        self.slots.lock().retain(|other| !Arc::ptr_eq(other, slot));
    }

    /// How many requests threads have in hand, or will have.
    pub(crate) fn in_hand(&self) -> usize {
        self.queue.len() + self.in_slots()
    }

    /// How many of them threads have in hand by now.
    pub(crate) fn in_slots(&self) -> usize {
        self.slots.lock().iter().filter(|slot| slot.in_hand() != 0).count()
    }

    /// Puts a request into its thread's slot.
    pub(crate) fn begin(&self, slot: &Arc<RequestSlot>, key: RequestKey) {
        let looked_first = is_on("begin-looks-first").then(|| self.take_early(key.unique));
        slot.begin(key);
        if looked_first.unwrap_or_else(|| self.take_early(key.unique)) {
            self.watch_for(key.unique, Arc::clone(slot));
        }
    }

    /// The kernel says that the caller of request `unique` got a signal.
    pub(crate) fn interrupt(&self, unique: u64) {
        if self.interrupt_known(unique) {
            return;
        }
        // Answered meanwhile, or read by a thread that did not get as far as its slot.
        {
            let mut early = self.early.lock();
            early.push_back((unique, Instant::now()));
            // ORDERING: SeqCst, P1: before the second scan of the slots.
            self.early_len.store(early.len(), Ordering::SeqCst);
        }
        if !is_on("interrupt-looks-once") && self.interrupt_known(unique) {
            self.take_early(unique);
        }
    }

    fn interrupt_known(&self, unique: u64) -> bool {
        let slot = self.slots.lock().iter().find(|slot| slot.holds(unique)).map(Arc::clone);
        let slot = slot.or_else(|| self.queue.find(unique));
        let found = slot.is_some();
        if let Some(slot) = slot {
            self.watch_for(unique, slot);
        }
        found
    }

    /// Whether `unique` was interrupted before it was in a slot; it is forgotten then.
    pub(crate) fn take_early(&self, unique: u64) -> bool {
        // ORDERING: SeqCst, P1: after the store to a slot's word.
        if self.early_len.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut early = self.early.lock();
        let before = early.len();
        let now = Instant::now();
        early.retain(|(other, _)| *other != unique);
        let found = early.len() < before;
        early.retain(|(_, since)| now.duration_since(*since) < EARLY_KEPT);
        // ORDERING: SeqCst, P1, as in `interrupt`.
        self.early_len.store(early.len(), Ordering::SeqCst);
        found
    }

    pub(crate) fn watch_for(&self, unique: u64, slot: Arc<RequestSlot>) {
        self.watched.lock().requests.push((unique, slot));
        self.changed.notify_all();
    }

    /// The calling thread's request may wait for long.
    pub(crate) fn request_scan(&self) {
        if self.stuck.want() {
            self.watched.lock().has_wish = true;
            self.changed.notify_all();
        }
    }

    /// Body of the watcher's thread, until [`end`](Self::end).
    pub(crate) fn watch(&self) {
        let mut round = stuck::ScanState::default();
        let mut watched = self.watched.lock();
        while !watched.ended {
            watched.has_wish = false;
            let requests = std::mem::take(&mut watched.requests);
            drop(watched);
            let count = requests.len();
            let left = requests.into_iter().filter(Self::is_still_watched).collect::<Vec<_>>();
            let now = Instant::now();
            let is_due = self.stuck.due(&mut round, now).is_some_and(|due| due <= now);
            if is_due {
                let mut slots = self.queue.slots();
                slots.extend(self.slots.lock().iter().map(Arc::clone));
                self.stuck.look(&mut round, &slots, now);
            }
            if is_due || left.len() < count {
                self.queue.sweep();
            }
            let recheck = (!left.is_empty()).then(|| now + RECHECK);
            let until = [recheck, self.stuck.due(&mut round, now)].into_iter().flatten().min();
            watched = self.watched.lock();
            let has_news = !watched.requests.is_empty() || watched.has_wish || watched.ended;
            watched.requests.extend(left);
            match until {
                _ if has_news => {}
                None => self.changed.wait(&mut watched),
                Some(until) => {
                    self.changed.wait_until(&mut watched, until);
                }
            }
        }
    }

    fn is_still_watched((unique, slot): &(u64, Arc<RequestSlot>)) -> bool {
        if !slot.holds(*unique) {
            return false;
        }
        if !Pending::of(slot.pid()).has_kill() {
            return true;
        }
        slot.end(*unique);
        false
    }

    /// Ends the watcher.
    pub(crate) fn end(&self) {
        self.watched.lock().ended = true;
        self.changed.notify_all();
    }
}

#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(test)]
pub(crate) mod tests;
