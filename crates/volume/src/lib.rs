//! A volume: a store in use.
#![forbid(unsafe_code)]

mod cancel;
mod error;
mod types;

pub use cancel::{Cancel, Event, Watch};
pub use error::{Error, Result};
pub use types::{
    Caller, Ctx, HandleId, Lock, LockDone, LockFamily, LockKind, LockWait, NodeId, OpenFlags, WriteFlags,
};
