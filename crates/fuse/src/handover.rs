//! A session, written down for the next program of its process (module [`pause`](crate::pause)).

use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};

use crate::protocol::abi::InitFlags;
use crate::protocol::decode::Agreed;
use crate::protocol::init::{Mode, Negotiated};
use crate::tree::TreeHandover;

/// A session, written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionHandover {
    /// The connection.
    pub device: RawFd,
    minor: u32,
    flags: u64,
    setxattr_ext: bool,
    is_kernel_writeback: bool,
    /// Why requests do not come over io_uring.
    pub(crate) reason: String,
    /// What was attached; none if nothing ever was.
    #[serde(default)]
    pub(crate) tree: Option<TreeHandover>,
}

impl SessionHandover {
    /// What was agreed on this connection, and why requests do not come over io_uring.
    pub(crate) fn new(
        device: RawFd,
        negotiated: &Negotiated,
        mode: Mode,
        reason: String,
        tree: Option<TreeHandover>,
    ) -> Self {
        Self {
            device,
            minor: negotiated.minor,
            flags: negotiated.flags.bits(),
            setxattr_ext: negotiated.agreed.setxattr_ext,
            is_kernel_writeback: mode == Mode::KernelWriteback,
            reason,
            tree,
        }
    }

    pub(crate) fn negotiated(&self) -> Negotiated {
        let agreed = Agreed { setxattr_ext: self.setxattr_ext };
        Negotiated { minor: self.minor, flags: InitFlags::from_bits_retain(self.flags), agreed }
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.is_kernel_writeback { Mode::KernelWriteback } else { Mode::WriteThrough }
    }
}
