//! Write-back: which cgroup owns dirty data, which thread writes it, which callers wait for it, and
//! what an unmount waits for.
//!
//! The names are those of Linux' `fs/fs-writeback.c` and `mm/page-writeback.c`:
//!
//! | type | is |
//! |---|---|
//! | [`Switcher`] | shared by all devices of a process: cgroups, read sections, the threads that switch inodes |
//! | [`Bdi`] | one backing device (here: one store) with its wbs, its flusher threads and its superblock |
//! | [`Wb`] | the inodes of one cgroup on one backing device |
//! | [`Inode`] | what a wb lists: something with dirty data that can be written; [`Link`] is the part of it that is here |
//! | [`Cgroups`] | the tree of the cgroups that own dirty data |
//! | [`Foreign`] | whether an inode's owner should change, from which cgroups write it |
//! | [`Drain`] | what unmount waits for: the ownership switches of one superblock |
//! | [`Budget`] | the hard bound on cached pages, and which writers must wait when it is near |
//! | [`Throttle`] | `io.max`: the limits of cgroups on one store, and which requests need not wait for them |
//! | [`Balance`] | the verdict of a cgroup's dirty limits on a writer |
//! | [`ErrSeq`] | write-back errors, reported once through each open file |
//!
//! The crate knows nothing of files, stores or FUSE.

#![cfg_attr(not(loom), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod balance;
mod bdi;
mod boost;
mod budget;
mod cgroup;
mod crew;
mod dirty;
mod discipline;
mod drain;
mod errseq;
mod flusher;
mod foreign;
mod grace;
mod group;
mod limit;
mod link;
mod listing;
mod meter;
mod offline;
mod pass;
mod pending;
mod queue;
mod switch;
mod switcher;
mod syncing;
mod throttle;
mod ticket;
mod wb;
mod wbs;

pub use bdi::{Bdi, BdiOptions, BdiStatus};
pub use boost::{Boost, Scope};
pub use budget::{Budget, InLine, Permit, Queued, Waiter};
pub use cgroup::{Cgroup, Cgroups, Owner};
pub use dirty::{Balance, Reserved};
pub use discipline::{Discipline, Others, PerSuperblock, Unmounting};
#[cfg(loom)]
#[doc(hidden)]
pub use drain::Memory;
pub use drain::{Bell, Drain, Drained, LeftToWorkers, OwnSwitches, Pin};
pub use errseq::{Cursor, ErrSeq};
pub use flusher::WaitsForRoom;
pub use foreign::{Foreign, Round};
#[doc(hidden)]
pub use grace::Cookie;
pub use grace::{Grace, Section};
pub use group::{Group, Request};
pub use limit::{CgroupPath, Direction, LimitError, Limits, number};
pub use link::{Inode, Link, Outcome};
pub use offline::BATCH;
pub use pass::{How, Pass, Passed, Pieces};
#[doc(hidden)]
pub use pending::{Pending, Pushed};
pub use switcher::{IN_FLIGHT_MAX, SwitchStats, Switcher};
pub use syncing::{Caller, Policy, Syncing};
pub use throttle::{Admission, Chain, Listening, Throttle};
pub use ticket::{Ticket, Turn};
pub use wb::{Wb, WbStatus};
