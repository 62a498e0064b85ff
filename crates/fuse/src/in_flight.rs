//! Requests under way, and what a signal to their caller does to them.
//!
//! Purpose: the kernel reports once, by INTERRUPT, that the caller of a request got a signal.
//! Requests behave as in a disk's file system: they go on unless the caller is being killed. Since
//! the kernel does not report a second signal, a [`watcher`](InFlight::watch) looks at interrupted
//! callers again every [`RECHECK`] for as long as there are any. For some requests the kernel does
//! not report signals at all; for those see the module [`stuck`]. The module [`stall_quota`] has
//! the other reasons that end a request early, and in [`queue`] wait the requests that have not
//! begun.
//!
//! # State
//! Each reading thread has a [`RequestSlot`], and so has each request that waits for one. Its
//! `word` is 0 or
//!
//! | bits | meaning |
//! |---|---|
//! | 3.. | the request's `unique` (which is even), shifted left by 2 |
//! | 1, 2 | when it may be answered while its thread is still at work: see [`AbortPolicy`] |
//! | 0 | [`CANCEL_USED`]: another thread uses `cancel` |
//!
//! The thread that takes the word from non-zero to 0 sends the answer; no other thread does.
//!
//! # Access
//! `RequestSlot::word`: set by the thread whose slot it is; the watcher, too, sets bit 0 and clears
//! the word, under `RequestSlot::cancel`. `RequestSlot::pid`, `RequestSlot::volume`: written before
//! `word`, read after it. `InFlight::slots`, `early`, `watched`: by their mutexes.
//!
//! # Lock order
//! `watched`, then `AdmissionQueue::state`, then `slots` or `early`, then `RequestSlot::cancel`,
//! then those of [`ReplyChannel`]. None is held while a volume is called.
//!
//! # Orderings
//! P1: a thread publishes a request in `word`, then looks at `early_len`; INTERRUPT for a request
//! that is in no slot raises `early_len`, then looks at the slots again. Both sides are SeqCst: one
//! of them sees the other.

mod pending;
mod queue;
mod stall_quota;
mod stuck;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Condvar, Mutex};
use volume::Cancel;

use self::pending::Pending;
pub(crate) use self::queue::QueuedRequest;
pub(crate) use self::stall_quota::RequestClass;
use crate::reply_channel::ReplyChannel;

/// How often callers of interrupted requests are looked at.
const RECHECK: Duration = Duration::from_millis(100);
/// How long an INTERRUPT that came before its request is kept: far longer than it takes from the
/// return of read(2) to the slot. Most of those kept belong to requests that were answered
/// meanwhile.
const EARLY_KEPT: Duration = Duration::from_secs(2);

const CANCEL_USED: u64 = 1;
const ABANDONABLE: u64 = 2;
const KILLABLE: u64 = 4;
const FLAGS: u64 = CANCEL_USED | ABANDONABLE | KILLABLE;
/// The position of the request's `unique` in a slot's word.
const UNIQUE_SHIFT: u32 = 2;

/// When a request may be answered before its thread is through with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbortPolicy {
    /// Never.
    Never,
    /// When its caller is being killed, which sees nothing of what the request does late.
    OnKill,
    /// Also with an error that its caller sees: nothing that matters happens late.
    Always,
}

impl AbortPolicy {
    /// A slot's word while such a request is in hand.
    const fn word(self, unique: u64) -> u64 {
        let flag = match self {
            Self::Never => 0,
            Self::OnKill => KILLABLE,
            Self::Always => ABANDONABLE,
        };
        (unique << UNIQUE_SHIFT) | flag
    }
}

/// The request that a reading thread has in hand.
#[repr(align(128))]
pub(crate) struct RequestSlot {
    word: AtomicU64,
    pid: AtomicU32,
    /// The volume that the request is for, as long as the thread is at it; see the module
    /// [`stall_quota`].
    volume: AtomicU64,
    cancel: Mutex<Arc<Cancel>>,
    channel: ReplyChannel,
}

impl fmt::Debug for RequestSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // ORDERING: Relaxed, for a person to read.
        f.debug_struct("RequestSlot")
            .field("word", &self.word.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

/// Which thread sends a request's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Claim {
    /// The caller of [`RequestSlot::claim`]; with `cancel_used`, [`RequestSlot::reset_cancel`] is
    /// due before the next request.
    Mine { cancel_used: bool },
    /// Another thread: the request was answered meanwhile, and [`RequestSlot::reset_cancel`] is
    /// due.
    Gone,
}

impl RequestSlot {
    pub(crate) fn new(channel: ReplyChannel) -> Self {
        Self {
            word: AtomicU64::new(0),
            pid: AtomicU32::new(0),
            volume: AtomicU64::new(0),
            cancel: Mutex::new(Arc::new(Cancel::default())),
            channel,
        }
    }

    /// Where answers go.
    pub(crate) fn channel(&self) -> &ReplyChannel {
        &self.channel
    }

    /// The handle that ends the waits of the request in hand.
    pub(crate) fn cancel(&self) -> Arc<Cancel> {
        Arc::clone(&self.cancel.lock())
    }

    fn begin(&self, unique: u64, pid: u32, early: AbortPolicy) {
        // ORDERING: Relaxed, published by the store to `word` below, which readers load first.
        self.pid.store(pid, Ordering::Relaxed);
        // ORDERING: SeqCst, P1: before the load of `early_len` in `InFlight::begin`.
        self.word.store(early.word(unique), Ordering::SeqCst);
    }

    /// Ends the request in hand, and gives its place back.
    pub(crate) fn claim(&self) -> Claim {
        if !is_on("slot-freed-late") {
            self.clear_volume();
        }
        let looked_first = is_on("slot-claim-looks-first").then(|| self.in_hand());
        // ORDERING: Acquire, pairs with the watcher's changes of `word`: this thread sees its
        // earlier work. Release, so that the watcher, seeing 0, sees this request's work as done.
        let word = self.word.swap(0, Ordering::AcqRel);
        match looked_first.unwrap_or(word) {
            0 => Claim::Gone,
            word => Claim::Mine { cancel_used: word & CANCEL_USED != 0 },
        }
    }

    /// Replaces a [`Cancel`] that was used.
    pub(crate) fn reset_cancel(&self) -> Arc<Cancel> {
        // The watcher holds the lock for as long as it uses the old one.
        let mut cancel = self.cancel.lock();
        *cancel = Arc::new(Cancel::default());
        Arc::clone(&cancel)
    }

    /// The word, to be compared with a later one.
    pub(crate) fn in_hand(&self) -> u64 {
        // ORDERING: Relaxed, only compared.
        self.word.load(Ordering::Relaxed)
    }

    /// The request that a word stands for.
    fn unique_of(&self, word: u64) -> Option<u64> {
        (word != 0).then_some((word & !FLAGS) >> UNIQUE_SHIFT)
    }

    fn holds(&self, unique: u64) -> bool {
        // ORDERING: SeqCst, P1: after the store to `early_len` in `InFlight::interrupt`.
        self.word.load(Ordering::SeqCst) & !FLAGS == unique << UNIQUE_SHIFT
    }

    fn pid(&self) -> u32 {
        // ORDERING: Relaxed, `holds` was true before; a wrong number of a later request's is
        // harmless, as the caller is asked for by `unique` again in `end`.
        self.pid.load(Ordering::Relaxed)
    }

    /// Ends the waits of request `unique`, whose caller is being killed, and answers it if that can
    /// be done now.
    fn end(&self, unique: u64) {
        let cancel = self.cancel.lock();
        if is_on("slot-cancel-early") {
            cancel.cancel();
        }
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & !FLAGS != unique << UNIQUE_SHIFT {
                return;
            }
            let abandon = word & (ABANDONABLE | KILLABLE) != 0;
            let next = if abandon { 0 } else { word | CANCEL_USED };
            // ORDERING: Acquire, what the request's thread did before `begin` is seen. Release,
            // with the Acquire in `claim`.
            let exchanged = self.word.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire);
            match if is_on("slot-end-looks-only") { Ok(word) } else { exchanged } {
                Err(now) => word = now,
                Ok(_) => {
                    cancel.cancel();
                    if abandon {
                        self.channel.answer_for_another(unique, Errno::INTR);
                    }
                    return;
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Watched {
    requests: Vec<(u64, Arc<RequestSlot>)>,
    has_wish: bool,
    ended: bool,
}

/// All requests under way of one session.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    slots: Mutex<Vec<Arc<RequestSlot>>>,
    early: Mutex<VecDeque<(u64, Instant)>>,
    early_len: AtomicUsize,
    watched: Mutex<Watched>,
    changed: Condvar,
    stuck: stuck::StuckScan,
    stall_quota: stall_quota::StallQuota,
    queue: queue::AdmissionQueue,
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
    pub(crate) fn begin(&self, slot: &Arc<RequestSlot>, unique: u64, pid: u32, early: AbortPolicy) {
        let looked_first = is_on("begin-looks-first").then(|| self.take_early(unique));
        slot.begin(unique, pid, early);
        if looked_first.unwrap_or_else(|| self.take_early(unique)) {
            self.watch_for(unique, Arc::clone(slot));
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
            // ORDERING: SeqCst, P1: before the second look at the slots.
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
    fn take_early(&self, unique: u64) -> bool {
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

    fn watch_for(&self, unique: u64, slot: Arc<RequestSlot>) {
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
mod tests;
