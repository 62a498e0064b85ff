//! One request under way, as other threads see it: its number, its caller, and its answer.

use std::fmt;
use std::sync::Arc;

use recovery::journal::RESENT;
use rustix::io::Errno;
use sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sync::mutant::is_on;
use sync::{Activity, Mutex};
use volume::Cancel;

use crate::transport::reply_channel::ReplyChannel;
use crate::tree::wire::NodeTag;

pub(crate) const CANCEL_USED: u64 = 1;
const ABANDONABLE: u64 = 2;
const KILLABLE: u64 = 4;
const FLAGS: u64 = CANCEL_USED | ABANDONABLE | KILLABLE;
/// The position of the request's `unique` in a slot's word.
const UNIQUE_SHIFT: u32 = 2;

/// The part of a slot's word that says which request it is. The numbers are even and count up from
/// the connection's beginning; the kernel marks one that it sends again by the highest bit, which stays
/// where it is.
const fn word_of(unique: u64) -> u64 {
    ((unique & !RESENT) << UNIQUE_SHIFT) | (unique & RESENT)
}

/// In [`RequestSlot::volume`], below the tag: the request is not counted, and not answered early
/// for its volume's stall.
pub(crate) const QUOTA_EXEMPT: u64 = 1;
/// In [`RequestSlot::volume`]: the request cannot be answered by another thread.
pub(crate) const IN_PLACE: u64 = 2;
/// In [`RequestSlot::volume`]: the request waits for a store that does not answer, and is counted
/// among those that do.
pub(crate) const STALLED: u64 = 4;
/// In [`RequestSlot::volume`]: the answer carries no information, and may be given before the
/// request is served.
pub(crate) const EMPTY_REPLY: u64 = 8;
/// In [`RequestSlot::volume`]: there is a request, also where it is for the mountpoint's own
/// volume.
pub(crate) const ACTIVE: u64 = 16;
/// In [`RequestSlot::volume`]: the request was failed, and another thread reads in place of this
/// one.
pub(crate) const EVICTED: u64 = 32;
pub(crate) const TAG_SHIFT: u32 = 6;

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
        word_of(unique) | flag
    }
}

/// A request as the kernel numbers it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestKey {
    pub(crate) unique: u64,
    /// The caller's thread.
    pub(crate) pid: u32,
    pub(crate) opcode: u32,
    pub(crate) policy: AbortPolicy,
}

#[cfg(test)]
impl RequestKey {
    pub(crate) const fn of(unique: u64, policy: AbortPolicy) -> Self {
        Self { unique, pid: 0, opcode: 0, policy }
    }
}

/// The request that a reading thread has in hand.
#[repr(align(128))]
pub(crate) struct RequestSlot {
    word: AtomicU64,
    pid: AtomicU32,
    opcode: AtomicU32,
    activity: Arc<Activity>,
    /// The volume that the request is for, as long as the thread is at it; see the module
    /// [`stall_quota`](crate::admission::stall_quota).
    pub(crate) volume: AtomicU64,
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
            opcode: AtomicU32::new(0),
            activity: Arc::default(),
            volume: AtomicU64::new(0),
            cancel: Mutex::new(Arc::new(Cancel::default())),
            channel,
        }
    }

    /// Where answers go.
    pub(crate) fn channel(&self) -> &ReplyChannel {
        &self.channel
    }

    /// What the request in hand is at.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    pub(crate) fn opcode(&self) -> u32 {
        // ORDERING: Relaxed, as `pid`; for a person to read.
        self.opcode.load(Ordering::Relaxed)
    }

    /// The handle that ends the waits of the request in hand.
    pub(crate) fn cancel(&self) -> Arc<Cancel> {
        Arc::clone(&self.cancel.lock())
    }

    pub(crate) fn begin(&self, key: RequestKey) {
        // ORDERING: Relaxed, published by the store to `word` below, which readers load first.
        self.pid.store(key.pid, Ordering::Relaxed);
        // ORDERING: Relaxed, as `pid`.
        self.opcode.store(key.opcode, Ordering::Relaxed);
        // ORDERING: SeqCst, P1: before the load of `early_len` in `InFlight::begin`.
        self.word.store(key.policy.word(key.unique), Ordering::SeqCst);
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
    pub(crate) fn unique_of(&self, word: u64) -> Option<u64> {
        (word != 0).then_some(((word & !FLAGS & !RESENT) >> UNIQUE_SHIFT) | (word & RESENT))
    }

    pub(crate) fn holds(&self, unique: u64) -> bool {
        // ORDERING: SeqCst, P1: after the store to `early_len` in `InFlight::interrupt`.
        self.word.load(Ordering::SeqCst) & !FLAGS == word_of(unique)
    }

    pub(crate) fn pid(&self) -> u32 {
        // ORDERING: Relaxed, `holds` was true before; a wrong number of a later request's is
        // harmless, as the caller is asked for by `unique` again in `end`.
        self.pid.load(Ordering::Relaxed)
    }

    /// Ends the waits of request `unique`, whose caller is being killed, and answers it if that can
    /// be done now.
    pub(crate) fn end(&self, unique: u64) {
        let cancel = self.cancel.lock();
        if is_on("slot-cancel-early") {
            cancel.cancel();
        }
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & !FLAGS != word_of(unique) {
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

/// Which volume the next request is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestClass {
    pub(crate) volume: NodeTag,
    /// See [`InFlight::evict_excess`].
    pub(crate) quota_exempt: bool,
    /// Its answer carries no information.
    pub(crate) empty_reply: bool,
    pub(crate) in_place: bool,
}

impl RequestClass {
    pub(crate) fn word(self) -> u64 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.quota_exempt, QUOTA_EXEMPT)
            | flag(self.empty_reply, EMPTY_REPLY)
            | flag(self.in_place, IN_PLACE);
        (self.volume.number() << TAG_SHIFT) | flags | ACTIVE
    }
}

/// A thread's request for an attached volume.
pub(crate) struct ActiveRequest {
    pub(crate) slot: Arc<RequestSlot>,
    /// None: it was answered, and its thread is still at work.
    pub(crate) unique: Option<u64>,
    /// The value of `RequestSlot::volume`.
    pub(crate) word: u64,
}

impl ActiveRequest {
    pub(crate) fn is_for(&self, volume: NodeTag) -> bool {
        self.word >> TAG_SHIFT == volume.number()
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.word & QUOTA_EXEMPT == 0
    }

    /// Sets the flag for the request, unless its thread is through with it.
    pub(crate) fn mark(&self, flag: u64) -> bool {
        let marked = self.word | flag;
        // ORDERING: Relaxed, as in `assign_volume`. Another request for the same volume that began
        // meanwhile is marked in its place.
        self.slot.volume.compare_exchange(self.word, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The volume whose request it is.
impl RequestSlot {
    /// The number of the volume that the request is for.
    pub(crate) fn volume_number(&self) -> u64 {
        // ORDERING: Relaxed, for a person to read.
        self.volume.load(Ordering::Relaxed) >> TAG_SHIFT
    }

    /// To be called before the request begins.
    pub(crate) fn assign_volume(&self, class: RequestClass) {
        // ORDERING: Relaxed, published by the store to `word` in `begin`, which readers load first.
        self.volume.store(class.word(), Ordering::Relaxed);
    }

    /// Its thread is through with the request.
    pub(crate) fn clear_volume(&self) {
        // ORDERING: P4: before the answer is written. SeqCst, P5 of the module `queue`: before the
        // check whether a request waits.
        self.volume.store(0, Ordering::SeqCst);
    }

    /// The volume for whose request the thread is at work, and holds a place.
    pub(crate) fn active_volume(&self) -> Option<NodeTag> {
        // ORDERING: SeqCst, P5 of the module `queue`: after `len` says that a request waits.
        let word = self.volume.load(Ordering::SeqCst);
        (word & (ACTIVE | EVICTED) == ACTIVE).then(|| NodeTag::from_number(word >> TAG_SHIFT))
    }

    /// Which request the slot's thread is at, if it is one for an attached volume.
    pub(crate) fn active(self: &Arc<Self>) -> Option<ActiveRequest> {
        // ORDERING: SeqCst, P3: after the mark. The tag is that of this request, or of a later one,
        // whose number differs.
        let unique = self.unique_of(self.word.load(Ordering::SeqCst));
        // ORDERING: Relaxed, as in `assign_volume`.
        let word = self.volume.load(Ordering::Relaxed);
        (word >> TAG_SHIFT != NodeTag::ROOT.number()).then(|| ActiveRequest {
            slot: Arc::clone(self),
            unique,
            word,
        })
    }

    /// Answers request `unique` EIO; says whether that could be done. `at_all_costs`: also where
    /// its late success matters.
    pub(crate) fn fail(&self, unique: u64, at_all_costs: bool) -> bool {
        let cancel = self.cancel.lock();
        // ORDERING: Acquire, as in `end`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let may = at_all_costs || word & ABANDONABLE != 0;
            if word & !FLAGS != word_of(unique) || !may {
                return false;
            }
            // ORDERING: as in `end`.
            match self.word.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire) {
                Err(now) => word = now,
                Ok(_) => {
                    cancel.cancel();
                    self.channel.answer_for_another(unique, Errno::IO);
                    return true;
                }
            }
        }
    }

    /// The volume that the request is for is given up.
    pub(crate) fn abort(&self, unique: u64, word: u64) {
        if word & IN_PLACE == 0 {
            self.fail(unique, true);
        } else {
            self.end(unique);
        }
    }

    /// Whether its thread reads from the device.
    pub(crate) fn is_reader(&self) -> bool {
        matches!(self.channel, ReplyChannel::Dev(_))
    }

    /// The volume for which a thread that reads from the device is at work.
    pub(crate) fn reader_volume(&self) -> Option<NodeTag> {
        if self.is_reader() { self.active_volume() } else { None }
    }

    /// A request that has waited begins; says whether it does, or was answered meanwhile.
    pub(crate) fn begin_queued(&self, key: RequestKey) -> bool {
        let [waits, now] = [AbortPolicy::Always, key.policy].map(|policy| policy.word(key.unique));
        if is_on("room-begins-anyway") {
            self.word.store(now, Ordering::SeqCst);
            return true;
        }
        // ORDERING: SeqCst, as the store in `RequestSlot::begin`: it is published in the same way.
        let begun = self.word.compare_exchange(waits, now, Ordering::SeqCst, Ordering::SeqCst);
        begun.is_ok()
    }
}
