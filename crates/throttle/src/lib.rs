//! `io.max`: how fast the cgroups of a host may read from a store and write to it, and which data
//! goes ahead because a caller waits for it. The names are those of Linux' `block/blk-throttle.c`.
//!
//! ```text
//!            throttled_write         one inode's data, a chunk at a time
//!              |          |
//!           boost    reservation     waives limits for a waiter; a request that has been charged
//!              |          |
//!            throttle ----+          the limits of one store, by path of cgroup; begin here
//!              |
//!            group                   one cgroup's limits
//!            |    |
//!          gcra   |                  one limit: arithmetic only
//!            |    |
//!            limit                   the syntax of io.max, and paths of cgroups
//! ```
//!
//! The crate knows nothing of inodes, files or FUSE. Its page is `docs/design/sync.md`.

#![forbid(unsafe_code)]

mod boost;
mod debts;
mod gcra;
mod group;
mod limit;
mod reservation;
mod throttle;
mod throttled_write;

pub use boost::{Boost, Scope};
pub use debts::{Amounts, Debts};
pub use group::{Request, ThrotlGroup};
pub use limit::{CgroupPath, Direction, LimitError, Limits, number};
pub use reservation::{Grant, Reservation};
pub use throttle::{Chain, Listening, Throttle};
pub use throttled_write::{ChunkSource, Completion, OnLimit, ThrottledWrite};
