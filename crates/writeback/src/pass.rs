//! Writing one inode's data piece by piece, as its owner's limits let it go.

use std::sync::Arc;
use std::time::Duration;

use crate::group::Request;
use crate::limit::Direction;
use crate::throttle::{Chain, Throttle, Ticket};

/// What somebody does who comes to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Leaves it, and does something else: a flusher.
    Leave,
    /// Waits, unless somebody boosts the data: `fsync` and `sync`.
    Wait,
    /// Goes on at once, and leaves a debt: an unmount, and what must not stop half-way.
    Owe,
}

/// The way past the limits that are over one inode's data.
#[derive(Debug)]
pub struct Pass<'a> {
    throttle: &'a Throttle,
    chain: Arc<Chain>,
    /// What is dirty since this epoch or an earlier one is to be written.
    epoch: u64,
    inode: u64,
    how: How,
}

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Passed {
    /// Nothing is left of what was to be written.
    All,
    /// A limit is in the way.
    Held,
    /// The wait was given up.
    GivenUp,
}

/// Data that is written piece by piece. No lock that anybody else needs may be held while [`Pass::run`] runs: it sleeps.
pub trait Pieces {
    /// What a write can fail with.
    type Error;

    /// Whether data is left that is dirty since `epoch` or before.
    fn is_left(&self, epoch: u64) -> bool;

    /// Writes at most `bytes` of it (but at least a page), and says how many; 0 if there is nothing more that it can write.
    ///
    /// # Errors
    /// The store's.
    fn write(&mut self, epoch: u64, bytes: u64) -> Result<u64, Self::Error>;

    /// What wakes the sleeper.
    fn waker(&self) -> Arc<dyn Fn() + Send + Sync>;

    /// Sleeps until the throttle's clock shows `until`, or until it is woken; also if that was before the call, and since the last one. `false`
    /// to give up.
    fn sleep(&mut self, until: Duration) -> bool;
}

impl<'a> Pass<'a> {
    /// A pass for data under the limits of `chain`.
    #[must_use]
    pub fn new(throttle: &'a Throttle, chain: Arc<Chain>, epoch: u64, inode: u64, how: How) -> Self {
        Self { throttle, chain, epoch, inode, how }
    }

    /// Writes what was dirty when the epoch ended, as fast as the limits let it go.
    ///
    /// # Errors
    /// The first of a write.
    pub fn run<P: Pieces>(&self, pieces: &mut P) -> Result<Passed, P::Error> {
        while pieces.is_left(self.epoch) {
            let bytes = self.chain.piece(Direction::Write);
            let Some(ticket) = self.ask(bytes) else { return Ok(Passed::Held) };
            match self.wait(&ticket, pieces) {
                Some(Passed::All) => {}
                Some(end) => return Ok(end),
                None => return Ok(Passed::All),
            }
            match pieces.write(self.epoch, bytes) {
                Ok(0) => {
                    ticket.used(0, 0);
                    return Ok(Passed::All);
                }
                Ok(written) => ticket.used(written, 1),
                Err(error) => {
                    ticket.used(0, 1);
                    return Err(error);
                }
            }
        }
        Ok(Passed::All)
    }

    /// What is dirty since this epoch or an earlier one is to be written.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// When the limits let the next piece go.
    #[must_use]
    pub fn ready_at(&self) -> Duration {
        let request = Request {
            direction: Direction::Write,
            bytes: 1,
            operations: 1,
            epoch: u64::MAX,
            inode: self.inode,
        };
        self.throttle.ready_at(&self.chain, &request)
    }

    fn ask(&self, bytes: u64) -> Option<Ticket<'_>> {
        let bytes = if self.chain.is_empty() { 0 } else { bytes.min(1 << 20) };
        // A flusher may come upon data of any epoch.
        let epoch = if self.how == How::Leave { u64::MAX } else { self.epoch };
        let request = Request { direction: Direction::Write, bytes, operations: 1, epoch, inode: self.inode };
        match self.how {
            How::Leave => self.throttle.try_reserve(&self.chain, request).ok(),
            How::Wait => Some(self.throttle.reserve(&self.chain, request)),
            How::Owe => Some(self.throttle.charge_ahead(&self.chain, request)),
        }
    }

    /// Waits for its turn; `None` if there is nothing left to wait for.
    fn wait<P: Pieces>(&self, ticket: &Ticket<'_>, pieces: &mut P) -> Option<Passed> {
        if ticket.waits_until().is_none() {
            return Some(Passed::All);
        }
        let _listening = self.throttle.listen(pieces.waker());
        while let Some(until) = ticket.waits_until() {
            if !pieces.is_left(self.epoch) {
                return None;
            }
            if !pieces.sleep(until) {
                return Some(Passed::GivenUp);
            }
        }
        Some(Passed::All)
    }
}
