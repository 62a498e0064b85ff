//! Where a thread's requests come from and its answers go: a device, or a queue shared with the
//! kernel.

use std::sync::Arc;

use rustix::io::Errno;

use crate::dev::Dev;
use crate::uring::Seat;

/// An answer: bytes, one part after the other, or an error.
pub(crate) type Answer<'a> = Result<[&'a [u8]; 2], Errno>;

/// A thread's line to the kernel.
#[derive(Debug)]
pub(crate) enum Line {
    /// An opening of `/dev/fuse`; answers are written at once.
    Dev(Arc<Dev>),
    /// An entry of a queue; the answer is left there, and the thread passes it on after the
    /// handler's return.
    Seat(Arc<Seat>),
}

impl Line {
    /// Answers the request that the calling thread has in hand. Errors are the kernel's; a queue's
    /// come later and mean that the connection has ended.
    pub(crate) fn answer(&self, unique: u64, answer: Answer<'_>) -> Result<(), Errno> {
        match self {
            Self::Dev(dev) => dev.answer(unique, answer),
            Self::Seat(seat) => seat.answer(unique, answer),
        }
    }

    /// Answers the request that another thread has in hand, which will not answer it.
    pub(crate) fn answer_for_another(&self, unique: u64, errno: Errno) {
        match self {
            Self::Dev(dev) => {
                // Failure: the connection ended, and with it the caller's wait.
                let _ended = dev.answer(unique, Err(errno));
            }
            Self::Seat(seat) => seat.answer_for_owner(unique, errno),
        }
    }
}
