//! Decides whether a request may take a thread, now, later, or not at all.
//!
//! Purpose: the threads and the entries that bring requests are shared by all volumes of a
//! mountpoint. [`admit`] takes a request that was read through these steps; the first that applies
//! decides:
//!
//! 1. Its volume is an attached one whose store is known not to answer: an exempt request starts,
//!    another one starts within the quota of stalled volumes, or is refused (module [`stall_quota`]).
//! 2. It has waited already, or is DESTROY: it starts.
//! 3. Nothing is attached to the mountpoint, io_uring brought it, few threads are at work, or its
//!    volume may have another one: it starts (module [`queue`]).
//! 4. Its answer carries no information: it starts, and the volume closes the file by itself.
//! 5. It waits in the queue; if that is full, it starts.
//!
//! How many there may be in all is in module [`capacity`]. When a store is found to be stalled,
//! [`apply_stall_quota`] fails what is under way beyond the quota; [`abort_volume`] fails all of a
//! volume that is given up.
//!
//! # Lock order
//! As in [`in_flight`](crate::in_flight): `AdmissionQueue::state`, then `InFlight::slots`, then
//! `RequestSlot::cancel`.

pub(crate) mod capacity;
pub(crate) mod queue;
#[cfg(all(test, shuttle))]
mod schedules;
pub(crate) mod stall_quota;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use sync::atomic::{AtomicBool, Ordering};
use sync::mutant::is_on;

use self::capacity::AT_LEAST;
use self::queue::{ActiveThreads, QUEUED_PER_THREAD, QueuedRequest};
use crate::connection::Connection;
use crate::in_flight::slot::{EMPTY_REPLY, EVICTED, IN_PLACE, QUOTA_EXEMPT, STALLED};
use crate::in_flight::{AbortPolicy, ActiveRequest, InFlight, RequestClass, RequestKey, RequestSlot};
use crate::protocol::init::MAX_WRITE;
use crate::transport::reply_channel::ReplyChannel;
use crate::tree::AttachedVolume;
use crate::tree::wire::NodeTag;

/// The decision about a request that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Admission {
    /// It begins.
    Start,
    /// It begins, but the store is not asked for it.
    StartWithoutStore,
    /// It waits, without a thread.
    Queued,
    /// It is not served: its volume cannot be found, or it is one too many for a store that does
    /// not answer.
    Refused(Errno),
}

/// A request that was read.
pub(crate) struct Request<'a> {
    pub(crate) key: RequestKey,
    pub(crate) class: RequestClass,
    pub(crate) volume: &'a AttachedVolume,
    pub(crate) is_destroy: bool,
    /// It was in the queue.
    pub(crate) has_waited: bool,
}

/// Takes the thread's place for a request, or finds another one for it.
pub(crate) fn admit(
    connection: &Connection,
    slot: &Arc<RequestSlot>,
    request: &Request<'_>,
    message: &[u8],
) -> Admission {
    let Request { class, volume, .. } = *request;
    let is_stalled = volume.tag != NodeTag::ROOT && volume.volume.is_known_to_stall();
    if is_stalled && !class.quota_exempt {
        return admit_stalled(connection, slot, class);
    }
    if request.has_waited || is_stalled || request.is_destroy {
        slot.assign_volume(class);
        return Admission::Start;
    }
    if may_take_thread(connection, slot, class) {
        return Admission::Start;
    }
    let capacity = connection.pool.capacity();
    let in_flight = &connection.in_flight;
    if !class.empty_reply
        && in_flight.enqueue(slot, request.key, class, &volume.is_aborted, message, capacity)
    {
        return Admission::Queued;
    }
    slot.assign_volume(class);
    if class.empty_reply { Admission::StartWithoutStore } else { Admission::Start }
}

/// A request for a volume whose store does not answer: within the quota it waits for the store.
fn admit_stalled(connection: &Connection, slot: &Arc<RequestSlot>, class: RequestClass) -> Admission {
    if connection.in_flight.admit_stalled(slot, class) {
        return Admission::Start;
    }
    // To be answered at once.
    slot.assign_volume(RequestClass { quota_exempt: true, ..class });
    Admission::Refused(Errno::IO)
}

/// Takes the thread's place for a request, unless its volume has its part of the threads and other
/// volumes want them.
pub(crate) fn may_take_thread(connection: &Connection, slot: &RequestSlot, class: RequestClass) -> bool {
    let is_crowded = connection.pool.is_crowded() && !connection.tree.is_plain() && slot.is_reader();
    if is_crowded {
        return connection.in_flight.try_admit(slot, class, connection.pool.capacity());
    }
    slot.assign_volume(class);
    true
}

/// Puts a request into its thread's slot, where it is already if it has waited. Says whether it is
/// to be served: it may have been answered while it waited.
pub(crate) fn begin(connection: &Connection, slot: &Arc<RequestSlot>, request: &Request<'_>) -> bool {
    let (in_flight, is_aborted) = (&connection.in_flight, &request.volume.is_aborted);
    if request.has_waited {
        return in_flight.begin_queued(slot, request.key, is_aborted);
    }
    if request.volume.tag == NodeTag::ROOT {
        in_flight.begin(slot, request.key);
    } else {
        in_flight.begin_abortable(slot, request.key, is_aborted);
    }
    true
}

/// Fails what is under way beyond the quota of each stalled volume; other threads are to read in
/// place of those that hang.
pub(crate) fn apply_stall_quota(connection: &Arc<Connection>) {
    let Connection { tree, in_flight, pool, .. } = &**connection;
    let volumes = tree.volumes();
    let stalled: Vec<_> = volumes.iter().filter(|served| served.volume.is_known_to_stall()).collect();
    in_flight.stall_quota.set(stalled.len(), pool.capacity());
    for served in stalled {
        served.volume.span().in_scope(|| in_flight.evict_excess(served.tag));
    }
    pool.set_extra_threads(connection, in_flight.uncounted_threads());
    if in_flight.queue.len() > 0 {
        // It may be the turn of a request whose volume's threads all hang, and do not count any
        // more.
        pool.bring_another(connection);
    }
    connection.sync_all.skip_stalled();
}

/// Fails the callers that wait for a volume that was given up; other threads are to read in place
/// of those that hang.
pub(crate) fn abort_volume(connection: &Arc<Connection>, volume: NodeTag) {
    let Connection { in_flight, pool, sync_all, .. } = &**connection;
    in_flight.abort(volume);
    sync_all.abort(volume.number());
    pool.set_extra_threads(connection, in_flight.uncounted_threads());
}

impl InFlight {
    /// [`begin`](InFlight::begin) for a request to an attached volume, which may be given up.
    pub(crate) fn begin_abortable(&self, slot: &Arc<RequestSlot>, key: RequestKey, is_aborted: &AtomicBool) {
        let looked_first = is_on("share-looks-first").then(|| is_aborted.load(Ordering::SeqCst));
        self.begin(slot, key);
        // ORDERING: SeqCst, P3: after the store to the word.
        if looked_first.unwrap_or_else(|| is_aborted.load(Ordering::SeqCst)) {
            // ORDERING: Relaxed, this thread's own.
            slot.abort(key.unique, slot.volume.load(Ordering::Relaxed));
        }
    }

    /// Gives a request for a volume whose store does not answer its place, before it begins; or
    /// refuses it, where as many wait already as may.
    pub(crate) fn admit_stalled(&self, slot: &Arc<RequestSlot>, class: RequestClass) -> bool {
        // The lock makes counting and taking one step.
        let slots = self.slots.lock();
        // One that has waited has its place already.
        let others = slots.iter().filter(|other| !Arc::ptr_eq(other, slot));
        let active: Vec<ActiveRequest> = others.filter_map(RequestSlot::active).collect();
        let own = active.iter().filter(|one| one.is_for(class.volume) && one.is_counted()).count();
        let fits = own < self.stall_quota.quota_of(class.volume, &active);
        if fits {
            // ORDERING: Relaxed, under the lock; see `assign_volume`.
            slot.volume.store(class.word() | STALLED, Ordering::Relaxed);
        }
        fits
    }

    /// Fails the requests beyond its quota for a volume that does not answer, where they can be
    /// failed, and does not count them any more. Requests whose answers carry no information are
    /// answered.
    pub(crate) fn evict_excess(&self, volume: NodeTag) {
        let active = self.active();
        let quota = self.stall_quota.quota_of(volume, &active);
        let own = || active.iter().filter(|one| one.is_for(volume) && one.is_counted());
        for one in own().take(quota) {
            let _unless_it_is_over = one.mark(STALLED);
        }
        let mut evicted = self.fail_queued(Some(volume), quota.saturating_sub(own().count()), true);
        for one in own().skip(quota).filter(|one| one.mark(QUOTA_EXEMPT | EVICTED)) {
            evicted += 1;
            if let Some(unique) = one.unique.filter(|_| one.word & IN_PLACE == 0) {
                let _if_it_can = one.slot.fail(unique, false);
            }
        }
        for one in active.iter().filter(|one| one.is_for(volume) && one.word & EMPTY_REPLY != 0) {
            let _unless_it_is_over = one.mark(EVICTED);
            if let Some(unique) = one.unique.filter(|_| one.word & IN_PLACE == 0) {
                let _unless_it_is_over = one.slot.fail(unique, true);
            }
        }
        if evicted > 0 {
            tracing::warn!(shed = evicted, "requests for an attached volume fail: its store does not answer");
        }
    }

    /// How many threads are at requests for attached volumes that are not counted: requests that
    /// may take long, and those that were failed.
    pub(crate) fn uncounted_threads(&self) -> usize {
        self.active().iter().filter(|one| !one.is_counted()).count()
    }

    /// A volume is given up, and marked so: its callers get an error. Its threads are not counted
    /// any more.
    pub(crate) fn abort(&self, volume: NodeTag) {
        // The waiting requests first: a request that begins meanwhile is in a slot.
        self.fail_queued(Some(volume), 0, false);
        for one in self.active().iter().filter(|one| one.is_for(volume)) {
            let _unless_it_is_over = one.mark(QUOTA_EXEMPT | EVICTED);
            if let Some(unique) = one.unique {
                one.slot.abort(unique, one.word);
            }
        }
    }

    fn active(&self) -> Vec<ActiveRequest> {
        self.slots.lock().iter().filter_map(RequestSlot::active).collect()
    }

    /// Takes a place for a request of a volume that may have another thread; says whether it may.
    pub(crate) fn try_admit(&self, slot: &RequestSlot, class: RequestClass, capacity: usize) -> bool {
        // The lock makes check and take one step.
        let slots = self.slots.lock();
        let may_take_thread = !slots.iter().any(|other| other.reader_volume() == Some(class.volume))
            || ActiveThreads::of(&slots).may_take_thread(class.volume, capacity);
        if may_take_thread {
            slot.assign_volume(class);
        }
        may_take_thread
    }

    /// Has a request (its number, its caller) that a thread has read wait; says whether it does. If
    /// not, it is its turn, or the queue is full.
    pub(crate) fn enqueue(
        &self,
        slot: &RequestSlot,
        key: RequestKey,
        class: RequestClass,
        is_aborted: &AtomicBool,
        message: &[u8],
        capacity: usize,
    ) -> bool {
        let ReplyChannel::Dev(dev) = slot.channel() else { return false };
        let own = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(dev))));
        let since = Instant::now();
        own.activity().begin(since);
        own.begin(RequestKey { policy: AbortPolicy::Always, ..key });
        let queued = QueuedRequest {
            slot: Arc::clone(&own),
            message: message.into(),
            unique: key.unique,
            class,
            since,
        };
        if !self.push_queued(queued, is_aborted, capacity) {
            return false;
        }
        if self.take_early(key.unique) {
            self.watch_for(key.unique, own);
        }
        self.request_scan();
        true
    }

    fn push_queued(&self, queued: QueuedRequest, is_aborted: &AtomicBool, capacity: usize) -> bool {
        let (capacity, volume) = (capacity.max(AT_LEAST), queued.class.volume);
        let looked_early = is_on("room-end-unseen").then(|| is_aborted.load(Ordering::SeqCst));
        let mut state = self.queue.state.lock();
        let bytes = state.bytes + queued.message.len();
        // Of `len` only changes under this lock matter here.
        let is_full =
            bytes > capacity * MAX_WRITE as usize || self.queue.len() >= capacity * QUEUED_PER_THREAD;
        // ORDERING: SeqCst, P6.
        let is_over = looked_early.unwrap_or_else(|| is_aborted.load(Ordering::SeqCst));
        if is_full || is_over || state.has_ended {
            return false;
        }
        let looked_first =
            is_on("room-looks-first").then(|| ActiveThreads::of(&self.slots.lock()).own(volume) == 0);
        // ORDERING: SeqCst, P5: before the scan of the slots.
        self.queue.len.fetch_add(1, Ordering::SeqCst);
        if looked_first.unwrap_or_else(|| ActiveThreads::of(&self.slots.lock()).own(volume) == 0) {
            // ORDERING: SeqCst, as above.
            self.queue.len.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        state.bytes = bytes;
        state.queues.entry(volume).or_default().push_back(queued);
        true
    }

    /// A request that has waited and is to be served now, with its place. Each thread that reads
    /// from the device calls this when it is through with a request, until there is none.
    pub(crate) fn pop_queued(&self, capacity: usize) -> Option<QueuedRequest> {
        if self.queue.len() == 0 || is_on("room-left-alone") {
            return None;
        }
        let mut state = self.queue.state.lock();
        loop {
            let mut slots = self.slots.lock();
            let at_work = ActiveThreads::of(&slots);
            let volume = *state.queues.keys().min_by_key(|volume| at_work.own(**volume))?;
            if !at_work.may_take_thread(volume, capacity) {
                return None;
            }
            let queued = state.pop(volume)?;
            // ORDERING: SeqCst, P5.
            self.queue.len.fetch_sub(1, Ordering::SeqCst);
            if queued.is_answered() {
                continue;
            }
            queued.slot.assign_volume(queued.class);
            // Before the queue's lock is released: a thread that looks for a request there, and
            // then here, finds it.
            slots.push(Arc::clone(&queued.slot));
            return Some(queued);
        }
    }

    /// [`begin_abortable`](InFlight::begin_abortable) for a request that has waited: says whether
    /// it is to be served, or was answered meanwhile.
    pub(crate) fn begin_queued(
        &self,
        slot: &Arc<RequestSlot>,
        key: RequestKey,
        is_aborted: &AtomicBool,
    ) -> bool {
        let begins = slot.begin_queued(key);
        if begins {
            // ORDERING: SeqCst, P3 of the module `stall_quota`, as in `begin_abortable`.
            if is_aborted.load(Ordering::SeqCst) {
                slot.fail(key.unique, true);
            }
            if self.take_early(key.unique) {
                self.watch_for(key.unique, Arc::clone(slot));
            }
        }
        begins
    }

    /// Fails the requests that wait for a volume, but for the `keep` oldest, and with `spares` for
    /// those whose failure would lose something. Says how many failed.
    fn fail_queued(&self, volume: Option<NodeTag>, keep: usize, spares: bool) -> usize {
        let mut kept = 0;
        let gone = self.queue.take(|one| {
            let is_meant = volume.is_none_or(|volume| one.class.volume == volume);
            if !is_meant || (spares && one.class.quota_exempt) {
                return false;
            }
            kept += 1;
            kept > keep
        });
        gone.iter().filter(|one| one.slot.fail(one.unique, true)).count()
    }

    /// The connection has ended, and with it the callers' wait. Data that the kernel writes of its
    /// own accord is still served.
    pub(crate) fn close_queue(&self) {
        self.queue.state.lock().has_ended = true;
        self.fail_queued(None, 0, true);
    }
}
