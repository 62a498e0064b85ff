//! Writing one inode's data in chunks, as its owner's limits allow.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::boost::Boost;
use crate::group::Request;
use crate::limit::Direction;
use crate::reservation::{Grant, Reservation};
use crate::throttle::{Chain, Throttle};

/// The most bytes that are written at a time, where no limit asks for less.
const CHUNK_MAX: u64 = 1 << 20;

/// A writer's behaviour at a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLimit {
    /// Leaves the inode, and does other work: a flusher.
    Skip,
    /// Waits, unless a boost covers the data: `fsync` and `sync`.
    Wait,
    /// Goes on at once, and leaves a debt: an unmount, and writes that must not stop half-way.
    Charge,
}

/// A write of one inode's data under the limits that are over it. These are looked up for each
/// chunk: they may be changed, and the inode may change its owner, while the writer waits.
pub struct ThrottledWrite<'a> {
    throttle: &'a Throttle,
    chain: Box<dyn Fn() -> Arc<Chain> + Send + Sync + 'a>,
    /// The boost of the caller that waits for the data.
    boost: Option<&'a Boost>,
    /// Data that is dirty since this epoch or an earlier one is to be written.
    epoch: u64,
    inode: u64,
    on_limit: OnLimit,
}

impl fmt::Debug for ThrottledWrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ThrottledWrite");
        debug.field("epoch", &self.epoch).field("inode", &self.inode).field("how", &self.on_limit);
        debug.finish_non_exhaustive()
    }
}

/// How a throttled write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Completion {
    /// Nothing is left of what was to be written.
    Done,
    /// A limit is in the way.
    Throttled,
    /// The writer's wait was aborted.
    Aborted,
}

/// Data that is written in chunks. [`ThrottledWrite::run`] sleeps: its caller holds no lock that
/// another thread needs.
pub trait ChunkSource {
    /// The error of a write.
    type Error;

    /// The bytes left that are dirty since `epoch` or before, and not being written.
    fn left(&self, epoch: u64) -> u64;

    /// Writes at most `bytes` of it (but at least a page), and returns how many; 0 if there is
    /// nothing more that it can write.
    ///
    /// # Errors
    /// The store's.
    fn write(&mut self, epoch: u64, bytes: u64) -> Result<u64, Self::Error>;

    /// The callback that wakes the sleeper.
    fn waker(&self) -> Arc<dyn Fn() + Send + Sync>;

    /// Sleeps until the throttle's clock shows `until`, or until it is woken; a wake-up between the
    /// last call and this one counts. `false` to give up.
    fn sleep(&mut self, until: Duration) -> bool;
}

impl<'a> ThrottledWrite<'a> {
    /// A write of data under the limits that `chain` gives at the time.
    #[must_use]
    pub fn new(
        throttle: &'a Throttle,
        chain: impl Fn() -> Arc<Chain> + Send + Sync + 'a,
        epoch: u64,
        inode: u64,
        on_limit: OnLimit,
    ) -> Self {
        Self { throttle, chain: Box::new(chain), boost: None, epoch, inode, on_limit }
    }

    /// With the boost of a waiter, which waives these limits, if there is one.
    #[must_use]
    pub fn boosted(mut self, boost: Option<&'a Boost>) -> Self {
        self.boost = boost;
        self
    }

    /// Writes the data that was dirty when the epoch ended, as fast as the limits allow.
    ///
    /// # Errors
    /// The error of the first write that fails.
    pub fn run<P: ChunkSource>(&self, source: &mut P) -> Result<Completion, P::Error> {
        loop {
            let left = source.left(self.epoch);
            if left == 0 {
                return Ok(Completion::Done);
            }
            let chain = (self.chain)();
            if let Some(boost) = self.boost {
                boost.cover(&chain, self.inode);
            }
            let Some(reservation) = self.reserve_chunk(&chain, left) else {
                return Ok(Completion::Throttled);
            };
            match self.wait(&reservation, source) {
                Waited::Granted => {}
                // Under other limits, or not at all: the charge is refunded.
                Waited::Retry => continue,
                Waited::Aborted => return Ok(Completion::Aborted),
            }
            match source.write(self.epoch, reservation.request().bytes) {
                Ok(0) => {
                    reservation.commit(0, 0);
                    return Ok(Completion::Done);
                }
                Ok(written) => reservation.commit(written, 1),
                Err(error) => {
                    reservation.commit(0, 1);
                    return Err(error);
                }
            }
        }
    }

    /// Data that is dirty since this epoch or an earlier one is to be written.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The time at which the limits let the next chunk go.
    #[must_use]
    pub fn ready_at(&self) -> Duration {
        let request = Request { bytes: 1, epoch: u64::MAX, ..self.request() };
        self.throttle.ready_at(&(self.chain)(), &request)
    }

    fn request(&self) -> Request {
        // A flusher may come upon data of any epoch.
        let epoch = if self.on_limit == OnLimit::Skip { u64::MAX } else { self.epoch };
        Request { direction: Direction::Write, bytes: 0, operations: 1, epoch, inode: self.inode }
    }

    /// Reserves a chunk: one that keeps averages to the limit, or all that is left where no limit
    /// is in the way.
    fn reserve_chunk(&self, chain: &Arc<Chain>, left: u64) -> Option<Reservation<'_>> {
        let request = self.request();
        let chunk = if self.on_limit == OnLimit::Charge { CHUNK_MAX } else { chain.chunk_size(&request) };
        let request = Request { bytes: chunk.min(left).min(CHUNK_MAX), ..request };
        match self.on_limit {
            OnLimit::Skip => self.throttle.try_reserve(chain, request).ok(),
            OnLimit::Wait => Some(self.throttle.reserve(chain, request)),
            OnLimit::Charge => Some(self.throttle.charge_ahead(chain, request)),
        }
    }

    /// Waits for the limits' grant.
    fn wait<P: ChunkSource>(&self, reservation: &Reservation<'_>, source: &mut P) -> Waited {
        if reservation.grant() == Grant::Now {
            return Waited::Granted;
        }
        let _listening = self.throttle.listen(source.waker());
        loop {
            // Limits that were set meanwhile, or those of another owner.
            if !Arc::ptr_eq(&(self.chain)(), reservation.chain()) {
                return Waited::Retry;
            }
            match reservation.grant() {
                Grant::Now => return Waited::Granted,
                Grant::Stale => return Waited::Retry,
                Grant::NotBefore(_) if source.left(self.epoch) == 0 => return Waited::Retry,
                Grant::NotBefore(until) if source.sleep(until) => {}
                Grant::NotBefore(_) => return Waited::Aborted,
            }
        }
    }
}

enum Waited {
    Granted,
    Retry,
    Aborted,
}
