//! Write-back: which cgroup owns dirty data, which thread writes it, which callers wait for it, and
//! what an unmount waits for. The names are those of Linux' `fs/fs-writeback.c` and
//! `mm/page-writeback.c`.
//!
//! ```text
//! ops      what threads do with a device, all of it as `impl Bdi`
//!            lists     make an inode dirty, count its bytes, requeue it
//!            flusher   write inodes by age and above thresholds
//!            balance   a writer at its cgroup's dirty limits
//!            sync      what a sync covers, and whose limits it passes
//!            moves     inodes go from one wb to another
//!            offline   inodes of a removed cgroup go to an ancestor
//!             |
//! device   the data structures
//!            bdi       one backing device with its superblock; begin here
//!            wbs, wb   the inodes of one cgroup on a device, on lists
//!            flushers  which flusher is where, and timers
//!            inode     the part of each inode that is write-back's
//!             |     \
//! dirty       |      switch   what switches need, without a word about devices
//!   limits    |        switcher   shared by all devices of a process
//!   budget    |        cgroup, foreign     the owners of data; whether an inode's should change
//!             |        drain, strategy     what an unmount waits for
//!             |        pending, domain, work_queue
//! errseq   write-back errors, reported once through each open file
//! ```
//!
//! Below are `throttle` (the limits that a flusher keeps), `eventpoll`, `rcu` and `cgroups`. The
//! crate knows nothing of files, stores or FUSE.

#![cfg_attr(not(loom), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod device;
mod dirty;
mod errseq;
mod ops;
mod switch;

pub use device::bdi::{Bdi, BdiOptions, BdiStatus};
pub use device::inode::{Inode, InodeWb, Outcome};
pub use device::wb::{Wb, WbStatus};
pub use dirty::budget::{Budget, InLine, Permit, Queued, Waiter};
pub use dirty::limits::{Balance, DirtyReservation};
pub use errseq::{Cursor, ErrSeq};
pub use ops::flusher::RoomWait;
pub use ops::offline::BATCH;
pub use ops::sync::{SyncCaller, SyncPolicy, Syncing};
pub use switch::cgroup::{Cgroup, Cgroups};
pub use switch::domain::{Cookie, Domain, Guard};
#[cfg(loom)]
#[doc(hidden)]
pub use switch::drain::Memory;
pub use switch::drain::{Drain, DrainWaker, Drained, LeftToWorkers, OwnSwitches, SbPin};
pub use switch::foreign::{Foreign, Round};
#[doc(hidden)]
pub use switch::pending::{Pending, Pushed};
pub use switch::strategy::{DrainStrategy, PerSuperblock, SharedState, Unmounting};
pub use switch::switcher::{IN_FLIGHT_MAX, SwitchStats, Switcher};
