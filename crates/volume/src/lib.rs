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
//! # Lock order
//! ```text
//! Inode::privileges    held while set-id bits and capabilities are given or taken away
//!   Inode::io          held while data goes to the store
//!     table shard
//!       Inode::state
//!         Bdi and Wb lists, Budget::queue, Pool::free, Later::list, Cancel::state     leaves
//! ```
//! The store is called with `Inode::privileges` and `Inode::io` at most.

#![forbid(unsafe_code)]

mod cache;
mod cancel;
mod core;
mod data;
mod error;
pub mod events;
mod files;
mod flush;
pub mod give_up;
mod handles;
mod inode;
mod later;
mod life;
mod limits;
mod names;
mod page;
mod pieces;
mod privileges;
mod stall;
mod table;
mod tenants;
mod types;
mod undurable;
mod volume;

pub use crate::core::Options;
pub use crate::volume::{Volume, span_of};
pub use cancel::{Cancel, Event, Watch};
pub use cgroups::CgroupId;
pub use error::{Error, Result};
pub use files::Opened;
pub use life::{DrainReport, LifeState, Status, Unwritten};
pub use limits::{CgroupLimits, LimitChange};
pub use privileges::may_set_id;
pub use tenants::Tenants;
pub use throttle::{CgroupPath, LimitError, Limits};
pub use types::{Caller, Ctx, HandleId, NodeId, OpenFlags, WriteFlags};
pub use writeback::{BdiStatus, SyncPolicy, WbStatus};
