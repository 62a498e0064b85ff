//! Where a thread's requests come from and its answers go: a device, or a queue shared with the
//! kernel.

use std::sync::Arc;

use rustix::io::Errno;

use crate::device::{Dev, ReplyBytes};
use crate::transport::uring::reply_slot::ReplySlot;

/// A thread's channel to the kernel.
#[derive(Debug)]
pub(crate) enum ReplyChannel {
    /// An opening of `/dev/fuse`; answers are written at once.
    Dev(Arc<Dev>),
    /// An entry of a queue; the answer is left there, and the thread passes it on after the
    /// handler's return.
    ReplySlot(Arc<ReplySlot>),
}

impl ReplyChannel {
    /// Answers the request that the calling thread has in hand. Errors are the kernel's; a queue's
    /// come later and mean that the connection has ended.
    pub(crate) fn answer(&self, unique: u64, answer: ReplyBytes<'_>) -> Result<(), Errno> {
        match self {
            Self::Dev(dev) => dev.answer(unique, answer),
            Self::ReplySlot(reply_slot) => reply_slot.answer(unique, answer),
        }
    }

    /// Answers the request that another thread has in hand, which will not answer it.
    pub(crate) fn answer_for_another(&self, unique: u64, errno: Errno) {
        match self {
            Self::Dev(dev) => {
                // Failure: the connection ended, and with it the caller's wait.
                let _ended = dev.answer(unique, Err(errno));
            }
            Self::ReplySlot(reply_slot) => reply_slot.answer_for_owner(unique, errno),
        }
    }
}
