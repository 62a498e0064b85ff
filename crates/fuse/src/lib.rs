//! The FUSE front end: a thin protocol layer, and the service of a [`Volume`](volume::Volume) over
//! it, with others attached to its directories.
//!
//! # Parts
//! - [`abi`], [`decode`], [`encode`], [`init`]: bytes and their meaning. These modules act on
//!   nothing and hold nothing.
//! - [`mount`]: makes a connection.
//! - [`TreeHandle`]: which volume is attached where; module `tree` says how requests find theirs.
//! - [`Session`]: one connection in service. Its reading threads (module `reader`) take each
//!   request from the device to its answer (module `dispatch`); `interrupt` ends those whose caller
//!   is killed; [`Notifier`] has the kernel forget names and data.
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

pub mod abi;
#[allow(unsafe_code, reason = "a mapping that is also the kernel's to fill, and given back in part")]
mod buffer;
mod capacity;
pub mod decode;
#[allow(unsafe_code, reason = "one ioctl(2) that rustix has not")]
mod dev;
mod dispatch;
pub mod encode;
pub mod errno;
mod in_flight;
pub mod init;
mod invalidations;
pub mod mount;
mod notify;
mod page;
mod reader;
mod reply;
mod reply_channel;
mod session;
mod stats;
mod sync_all;
mod tree;
mod uring;
mod view;

pub use init::Mode;
pub use mount::{Mount, MountError, MountKind, MountOptions, MountpointError, check_mountpoint};
pub use notify::{Notifier, NotifyError};
pub use session::{EndReason, Ended, Session, SessionError, SessionOptions, SessionView};
pub use stats::StatsView;
pub use tree::OnEnd;
pub use tree::change::{Attached, AttachmentInfo, Detach, TreeError};
pub use uring::{Transport, Uring};
pub use view::TreeHandle;

pub use mounts::Propagation;
