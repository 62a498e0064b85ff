//! Writing one inode's data piece by piece, as its owner's limits allow.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::boost::Boost;
use crate::group::Request;
use crate::limit::Direction;
use crate::throttle::{Chain, Throttle};
use crate::ticket::{Ticket, Turn};

/// The most that is written at a time, where no limit asks for less.
const WHOLE: u64 = 1 << 20;

/// A writer's behaviour at a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Leaves the inode, and does other work: a flusher.
    Leave,
    /// Waits, unless a boost covers the data: `fsync` and `sync`.
    Wait,
    /// Goes on at once, and leaves a debt: an unmount, and writes that must not stop half-way.
    Owe,
}

/// The way past the limits that are over one inode's data. These are looked up for each piece: they
/// may be changed, and the inode may change its owner, while the writer waits.
pub struct Pass<'a> {
    throttle: &'a Throttle,
    chain: Box<dyn Fn() -> Arc<Chain> + Send + Sync + 'a>,
    /// The boost of the caller that waits for the data.
    boost: Option<&'a Boost>,
    /// Data that is dirty since this epoch or an earlier one is to be written.
    epoch: u64,
    inode: u64,
    how: How,
}

impl fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Pass");
        debug.field("epoch", &self.epoch).field("inode", &self.inode).field("how", &self.how);
        debug.finish_non_exhaustive()
    }
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

/// Data that is written piece by piece. [`Pass::run`] sleeps: its caller holds no lock that another
/// thread needs.
pub trait Pieces {
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

impl<'a> Pass<'a> {
    /// A pass for data under the limits that `chain` gives at the time.
    #[must_use]
    pub fn new(
        throttle: &'a Throttle,
        chain: impl Fn() -> Arc<Chain> + Send + Sync + 'a,
        epoch: u64,
        inode: u64,
        how: How,
    ) -> Self {
        Self { throttle, chain: Box::new(chain), boost: None, epoch, inode, how }
    }

    /// With the boost of a waiter, which waives these limits, if there is one.
    #[must_use]
    pub(crate) fn boosted(mut self, boost: Option<&'a Boost>) -> Self {
        self.boost = boost;
        self
    }

    /// Writes the data that was dirty when the epoch ended, as fast as the limits allow.
    ///
    /// # Errors
    /// The error of the first write that fails.
    pub fn run<P: Pieces>(&self, pieces: &mut P) -> Result<Passed, P::Error> {
        loop {
            let left = pieces.left(self.epoch);
            if left == 0 {
                return Ok(Passed::All);
            }
            let chain = (self.chain)();
            if let Some(boost) = self.boost {
                boost.cover(&chain, self.inode);
            }
            let Some(ticket) = self.ask(&chain, left) else { return Ok(Passed::Held) };
            match self.wait(&ticket, pieces) {
                Waited::Come => {}
                // Under other limits, or not at all: the place is given back.
                Waited::AskAgain => continue,
                Waited::GivenUp => return Ok(Passed::GivenUp),
            }
            match pieces.write(self.epoch, ticket.request().bytes) {
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
    }

    /// Data that is dirty since this epoch or an earlier one is to be written.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The time at which the limits let the next piece go.
    #[must_use]
    pub fn ready_at(&self) -> Duration {
        let request = Request { bytes: 1, epoch: u64::MAX, ..self.request() };
        self.throttle.ready_at(&(self.chain)(), &request)
    }

    fn request(&self) -> Request {
        // A flusher may come upon data of any epoch.
        let epoch = if self.how == How::Leave { u64::MAX } else { self.epoch };
        Request { direction: Direction::Write, bytes: 0, operations: 1, epoch, inode: self.inode }
    }

    /// Asks for a piece: one that keeps averages to the limit, or all that is left where no limit
    /// is in the way.
    fn ask(&self, chain: &Arc<Chain>, left: u64) -> Option<Ticket<'_>> {
        let request = self.request();
        let piece = if self.how == How::Owe { WHOLE } else { chain.piece(&request) };
        let request = Request { bytes: piece.min(left).min(WHOLE), ..request };
        match self.how {
            How::Leave => self.throttle.try_reserve(chain, request).ok(),
            How::Wait => Some(self.throttle.reserve(chain, request)),
            How::Owe => Some(self.throttle.charge_ahead(chain, request)),
        }
    }

    /// Waits for its turn.
    fn wait<P: Pieces>(&self, ticket: &Ticket<'_>, pieces: &mut P) -> Waited {
        if ticket.turn() == Turn::Come {
            return Waited::Come;
        }
        let _listening = self.throttle.listen(pieces.waker());
        loop {
            // Limits that were set meanwhile, or those of another owner.
            if !Arc::ptr_eq(&(self.chain)(), ticket.chain()) {
                return Waited::AskAgain;
            }
            match ticket.turn() {
                Turn::Come => return Waited::Come,
                Turn::Lost => return Waited::AskAgain,
                Turn::At(_) if pieces.left(self.epoch) == 0 => return Waited::AskAgain,
                Turn::At(until) if pieces.sleep(until) => {}
                Turn::At(_) => return Waited::GivenUp,
            }
        }
    }
}

enum Waited {
    Come,
    AskAgain,
    GivenUp,
}
