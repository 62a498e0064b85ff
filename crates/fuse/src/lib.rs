//! The FUSE front end: a thin protocol layer, and the service of a [`Volume`](volume::Volume) over
//! it, with others attached to its directories.
//!
//! Read `dispatch` first: `serve_one` is a request from its bytes to its answer, in five steps.
//!
//! ```text
//!   session                            a connection, from the agreement to its end
//!      |     pause, handover            and in the next program of the process
//!      |            \
//!   transport        view              threads that bring requests;  a program's use of the tree
//!   {dev_fuse, uring}  |
//!      |               |
//!   dispatch           |               a request: decode, find its volume, admit, handle, record
//!      |               |
//!   admission ---------+               may it take a thread: now, later, not at all
//!      |
//!   connection                         what the threads of a connection share
//!      |       |        |         \
//!   in_flight  tree   sync_all    sync_page, stats
//!      |       |        requests under way and signals; which volume is where; syncs
//!      |       invalidations, notify   the kernel forgets names and data
//!      |
//!   transport::reply_channel, threads, mount, handshake
//!      |
//!   device, buffer                     /dev/fuse; memory for requests
//!      |
//!   protocol                           bytes and their meaning; acts on nothing
//! ```
//!
//! A module uses those below it only; there is no circle among them.
//!
//! # What it promises
//! - Every request is answered once, whatever its handler does; a handler's panic is that request's
//!   EIO.
//! - A request that takes long holds up no other: there is always another thread that reads, up to
//!   [`SessionOptions::threads_max`].
//! - DESTROY, for which umount(2) waits, is answered after the program's own handler has returned.
//! - Killing a process frees it even when the store does not answer, for every request whose late
//!   end does no harm.

#![deny(unsafe_code)]

mod admission;
#[allow(unsafe_code, reason = "a mapping that is also the kernel's to fill, and given back in part")]
mod buffer;
mod connection;
#[allow(unsafe_code, reason = "one ioctl(2) that rustix has not")]
mod device;
mod dispatch;
mod handover;
mod handshake;
mod in_flight;
mod invalidations;
pub mod mount;
mod notify;
mod pause;
mod protocol;
mod reply;
mod resent;
mod session;
mod stats;
mod sync_all;
mod sync_page;
mod synced_volumes;
mod threads;
mod transport;
mod tree;
mod view;

pub use connection::Transport;
pub use handover::SessionHandover;
pub use handshake::SessionError;
pub use in_flight::RequestView;
pub use invalidations::Notifier;
pub use mount::{
    Mount, MountError, MountHandover, MountKind, MountOptions, MountpointError, Uring, check_mountpoint,
};
pub use notify::NotifyError;
pub use pause::{PauseError, Paused};
pub use protocol::init::Mode;
pub use protocol::{abi, decode, encode, errno, init};
pub use session::{EndReason, Ended, Session, SessionOptions, SessionView};
pub use stats::StatsView;
pub use tree::{Attached, AttachmentInfo, Detach, OnEnd, ResumedVolume, TreeError};
pub use view::TreeHandle;

pub use mounts::Propagation;
/// To be called by a process that will serve, while it has one thread.
pub use rcu::register_process;
