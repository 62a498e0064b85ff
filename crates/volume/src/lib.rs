//! A volume: a store in use, with a write-back cache.
//!
//! Metadata operations pass through to the store. Written data goes to the cache, whose memory is
//! bounded hard, and from there to the store: when it has rested for a while, when the cache fills,
//! and on `fsync`, `sync` and unmount. Reads see written data at once.
//!
//! ```
//! use std::sync::Arc;
//! use watertight_volume::{Options, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = Volume::new(store::open("mem:")?, Options::default())?;
//! // ... serve requests ...
//! assert!(volume.shutdown().is_complete());
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//! ```text
//! volume      the parts of a volume and its beginning; read this first
//! names, files, privileges      what front ends call: directories, open files, set-id bits
//! io          read, write, reserve: into the cache and out of it
//!             writeback, throttled: from the cache to the store, as limits allow
//!             cache, page
//! lifecycle   status, sync, shutdown, abort; state is what they share
//! core, inode, table, handles   the state: of a volume, of an object, all of them, what is open
//! recovery    a volume goes on after its process has died
//! noted       what is kept in mind for that
//! handover    a volume goes on in the next program of its process
//! deferred_close, stall         a store that does not answer
//! tenants, limits, unsynced     whose data it is, its limits, what is not durable yet
//! latency, limit_waits        how long operations take, and cgroups wait for their limits
//! events, cancel, types, error
//! ```
//!
//! # Lock order
//! ```text
//! Inode::privileges    held while set-id bits and capabilities are given or taken away
//!   Inode::io          held while data goes to the store
//!     table shard
//!       Inode::state
//!         Bdi and Wb lists, Budget::queue, Pool::free, DeferredClose::list, Cancel::state     leaves
//! ```
//! The store is called with `Inode::privileges` and `Inode::io` at most.

#![forbid(unsafe_code)]

mod cancel;
mod core;
mod deferred_close;
mod error;
pub mod events;
mod failed_reads;
mod files;
mod handles;
mod handover;
mod inode;
mod io;
mod latency;
mod lifecycle;
mod limit_waits;
mod limits;
mod names;
mod noted;
mod privileges;
mod recovery;
mod stall;
mod table;
mod tenants;
mod types;
mod unsynced;
mod volume;

pub use crate::core::Options;
pub use crate::volume::{Volume, span_of};
pub use cancel::{Cancel, CancelGuard, WakeEvent};
pub use cgroups::CgroupId;
pub use error::{Error, Result};
pub use handover::{Hurry, Reopening, VolumeHandover};
pub use latency::{Latencies, OpClass, OpLatency, OpTime};
pub use lifecycle::abort;
pub use lifecycle::state::{DrainReport, Unwritten, VolumeState};
pub use lifecycle::status::Status;
pub use limit_waits::LimitWait;
pub use limits::{CgroupLimits, LimitChange};
pub use privileges::may_set_id;
pub use tenants::Tenants;
pub use throttle::{CgroupPath, LimitError, Limits};
pub use types::{Caller, Ctx, HandleId, NodeId, OpenFlags, WriteFlags};
pub use writeback::{BdiStatus, SyncPolicy, WbStatus};
