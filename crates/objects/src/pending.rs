//! Data that waits for its extents: bounded for the volume, found by a sync.
//!
//! Room is taken by tenants, which are cgroups. A tenant that has much leaves a reserve free for
//! tenants that have little, and waits behind each that waits and has less. So a tenant's bulk data is
//! what its own writes wait for. Where so many tenants write that the reserve is taken as well, the
//! one that has least gets what becomes free when the next round ends.

use std::collections::HashMap;

use parking_lot::Mutex;
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::sync::Notify;

use crate::node::Pin;

/// Bytes of written data without extents, from which on writers wait.
const BYTES_MAX: u64 = 80 << 20;
/// Of these, what is kept for tenants that have little.
const RESERVE: u64 = 16 << 20;
/// The reserve is for so many tenants with the most of it that one takes; where there are more, each
/// takes its part.
const SHARES: u64 = 4;

/// The files with such data.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    /// Room was made, or the volume was given up.
    changed: Notify,
    /// There is such a file.
    came: Notify,
    /// A write waits for room.
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// Of these, those that a round has taken.
    in_rounds: u64,
    /// Of these, those of each tenant that has some.
    by_tenant: HashMap<u64, u64>,
    /// How many writes of each tenant wait for room.
    waiting: HashMap<u64, usize>,
    files: HashMap<u64, Pin>,
    failed: Option<Error>,
}

/// A write that waits for room.
struct Waiting<'a> {
    pending: &'a Pending,
    tenant: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.pending.state.lock();
        if let Some(count) = state.waiting.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                state.waiting.remove(&self.tenant);
            }
        }
        drop(state);
        // Those who have more waited behind it.
        self.pending.changed.notify_waiters();
    }
}

impl State {
    fn of(&self, tenant: u64) -> u64 {
        self.by_tenant.get(&tenant).copied().unwrap_or(0)
    }

    fn has_room(&self, tenant: u64, bytes: u64) -> bool {
        let own = self.of(tenant);
        let little = RESERVE / SHARES.max(self.by_tenant.len() as u64);
        let is_little = own + bytes <= little || is_on("bulk-data-takes-the-reserve");
        let max = if is_little { BYTES_MAX } else { BYTES_MAX - RESERVE };
        let is_behind = self.waiting.keys().any(|other| self.of(*other) < own);
        // A larger write than all of it goes alone.
        self.bytes == 0 || self.bytes + bytes <= max && (!is_behind || is_on("bulk-data-goes-before-others"))
    }

    fn give(&mut self, tenant: u64, bytes: u64) {
        self.bytes -= bytes;
        if let Some(own) = self.by_tenant.get_mut(&tenant) {
            *own -= bytes;
            if *own == 0 {
                self.by_tenant.remove(&tenant);
            }
        }
    }
}

impl Pending {
    /// Takes room for `bytes` of a tenant, once there is some; says whether more than half of all is
    /// taken by data that is in no round: what a round has taken gives its room back by itself, so
    /// that data that waits with it need not go in many small rounds.
    pub(crate) async fn take(&self, tenant: u64, bytes: u64) -> Result<bool> {
        let mut waiting = None;
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if state.has_room(tenant, bytes) {
                    state.bytes += bytes;
                    *state.by_tenant.entry(tenant).or_default() += bytes;
                    return Ok(state.bytes - state.in_rounds > BYTES_MAX / 2);
                }
                if waiting.is_none() {
                    *state.waiting.entry(tenant).or_default() += 1;
                    waiting = Some(Waiting { pending: self, tenant });
                    self.wanted.notify_waiters();
                }
            }
            changed.await;
        }
    }

    /// Waits until a write waits for room.
    pub(crate) async fn room_wanted(&self) {
        loop {
            let wanted = self.wanted.notified();
            if !self.state.lock().waiting.is_empty() {
                return;
            }
            wanted.await;
        }
    }

    /// Gives room back that no round has taken.
    pub(crate) fn give(&self, tenant: u64, bytes: u64) {
        self.state.lock().give(tenant, bytes);
        self.changed.notify_waiters();
    }

    /// A round has taken data with so much room.
    pub(crate) fn begin_round(&self, bytes: u64) {
        self.state.lock().in_rounds += bytes;
    }

    /// Gives the room of a round back.
    pub(crate) fn end_round(&self, tenant: u64, bytes: u64) {
        let mut state = self.state.lock();
        state.give(tenant, bytes);
        state.in_rounds -= bytes;
        drop(state);
        self.changed.notify_waiters();
    }

    /// A file has data without extents.
    pub(crate) fn add(&self, pin: &Pin) {
        let is_new = !self.state.lock().files.contains_key(&pin.ino);
        if is_new {
            let pin = pin.clone();
            let _was_added_meanwhile = self.state.lock().files.insert(pin.ino, pin);
            self.came.notify_waiters();
        }
    }

    /// Waits until a file has data without extents.
    pub(crate) async fn some(&self) {
        loop {
            let came = self.came.notified();
            if !self.is_empty() {
                return;
            }
            came.await;
        }
    }

    /// It has none any more.
    pub(crate) fn remove(&self, ino: u64) {
        let gone = self.state.lock().files.remove(&ino);
        drop(gone);
    }

    /// All files that have some.
    pub(crate) fn files(&self) -> Vec<Pin> {
        self.state.lock().files.values().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().files.is_empty()
    }

    /// Bytes without extents.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Gives all of it up: writers get this error.
    pub(crate) fn fail(&self, error: Error) {
        self.state.lock().failed.get_or_insert(error);
        self.changed.notify_waiters();
    }

    /// Waits until the volume is given up.
    pub(crate) async fn failed(&self) -> Error {
        loop {
            let changed = self.changed.notified();
            if let Err(error) = self.failure() {
                return error;
            }
            changed.await;
        }
    }

    /// Gives the references on all files back: a tree that is not used any more goes with them.
    pub(crate) fn clear(&self) {
        let files = std::mem::take(&mut self.state.lock().files);
        drop(files);
    }

    /// Why nothing is taken any more.
    pub(crate) fn failure(&self) -> Result<()> {
        match &self.state.lock().failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

/// A volume that was given up.
pub(crate) fn given_up() -> Error {
    Error::with(ErrorKind::Io, "write data", "the volume was given up")
}

#[cfg(test)]
mod schedules {
    use futures_util::poll;
    use tokio::pin;

    use super::*;

    const LITTLE: u64 = RESERVE / SHARES;

    #[tokio::test(start_paused = true)]
    async fn what_rounds_have_taken_does_not_make_it_tight() {
        let (pending, half) = (Pending::default(), BYTES_MAX / 2);
        assert!(!pending.take(1, half).await.unwrap());
        pending.begin_round(half);
        assert!(!pending.take(2, LITTLE).await.unwrap(), "as much is left for others");
        let wanted = pending.room_wanted();
        pin!(wanted);
        assert!(poll!(&mut wanted).is_pending());
        let more = pending.take(1, half);
        pin!(more);
        assert!(poll!(&mut more).is_pending());
        assert!(poll!(&mut wanted).is_ready());
        pending.end_round(1, half);
        assert!(more.await.unwrap(), "more than half waits for a round");
        pending.give(1, half);
        pending.give(2, LITTLE);
        assert_eq!(pending.bytes(), 0);
        assert!(pending.state.lock().by_tenant.is_empty() && pending.state.lock().waiting.is_empty());
    }

    /// One tenant has taken all that it gets, and waits for more: its neighbour does not wait.
    #[tokio::test(start_paused = true)]
    async fn bulk_data_is_not_what_a_neighbour_waits_for() {
        let (pending, all) = (Pending::default(), BYTES_MAX - RESERVE);
        pending.take(1, all).await.unwrap();
        let more = pending.take(1, 1 << 20);
        pin!(more);
        let has_to_wait = poll!(&mut more).is_pending();
        let neighbour = pending.take(2, LITTLE);
        pin!(neighbour);
        let has_room = poll!(&mut neighbour).is_ready();
        assert!(has_to_wait && has_room, "the neighbour's room is taken");
        // All is taken: a tenant that has less gets what becomes free before one that came first.
        for tenant in 3..=4 {
            pending.take(tenant, LITTLE).await.unwrap();
        }
        pending.take(5, RESERVE / 5).await.unwrap();
        let late = pending.take(6, 1 << 20);
        pin!(late);
        assert!(poll!(&mut late).is_pending(), "all is bounded");
        pending.give(1, RESERVE + (2 << 20));
        let goes_before = poll!(&mut more).is_ready();
        assert!(!goes_before, "bulk data goes before a neighbour's that waits");
        late.await.unwrap();
        more.await.unwrap();
    }

    #[cfg(shuttle)]
    #[test]
    fn bulk_data_before_a_neighbour_s_is_caught() {
        use sync::mutant::assert_caught;
        let test = "pending::schedules::bulk_data_is_not_what_a_neighbour_waits_for";
        assert_caught(test, &["bulk-data-takes-the-reserve"], "the neighbour's room is taken");
        assert_caught(test, &["bulk-data-goes-before-others"], "bulk data goes before a neighbour's");
    }
}
