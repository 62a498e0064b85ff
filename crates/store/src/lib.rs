//! Stores: the media that hold a volume's bytes.
//!
//! A [`Store`] holds a tree of objects (files, directories, symbolic links, special files) that
//! are named by [`ObjectId`]s. A volume opens a store for itself alone, passes metadata
//! operations through to it and writes file data back to it.
//!
//! | store | for |
//! |---|---|
//! | `DirStore` | a directory of the host; files are plain files |
//! | `MemStore` | memory; gone when the volume is released |
//! | `FaultStore` | tests: wraps another store and fails, delays, hangs or tears chosen calls |
//! | [`AroundStore`] | code that has to see each call of another store: [`Watch`] shows whether it answers |
//!
//! ```text
//!  spec                         opens a store by its name
//!   |
//!  dir   mem   fault                 the stores
//!   |     |      |   watch   hook     calls under way; calls that a test sees
//!   |     |      |     |       |
//!   |     |      +--- around --+      a store around another
//!   |     |             |
//!   traits, types, name, error,      what a store is: read `traits` first
//!   requests, snapshots, dir_state,
//!   store_state
//! ```
//!
//! # References
//! Every call that returns an [`Entry`] gives its caller one reference on the entry's object.
//! [`Store::forget`] gives references back. While an object has references its id names the same
//! object, also after its last name was removed. Afterwards another may have its number, with
//! another generation; an object that is still there is found by its number again
//! ([`Store::recall`]).
//!
//! # Threads
//! Every method may be called from any thread at any time. A call may block for as long as the
//! medium takes; it never holds a lock of the store meanwhile that a call on another object needs.
//!
//! # Durability
//! A completed call survives the death of the process. Changes that [`File::sync`],
//! [`Store::sync_dir`] and [`Store::sync`] covered survive the loss of power as well, as far as the
//! medium can.

#![deny(unsafe_code)]

mod around;
mod dir;
mod dir_state;
mod error;
mod fault;
mod hook;
mod mem;
mod name;
mod requests;
mod snapshots;
mod spec;
mod store_state;
mod traits;
mod types;
mod watch;

pub use around::{Around, AroundStore};
pub use dir::resume::TakenOver;
pub use dir::{DirCounters, DirOptions, DirStore};
pub use dir_state::DirState;
pub use error::{Error, ErrorKind, Result};
pub use fault::{FaultOp, FaultStore, Faults};
pub use handover::{Incoming, Kept};
pub use hook::{At, HookStore, Hooks};
pub use mem::MemStore;
pub use name::Name;
pub use requests::{DiskCacheStats, Following, JournalStats, RequestKind, RequestStats, Unanswered};
pub use snapshots::{Snapshot, Snapshots};
pub use spec::{open, open_with};
pub use store_state::{NumberedState, OpenDirState, StoreState};
pub use traits::{Created, Dir, File, OnChange, Store};
pub use types::{
    Access, AllocateMode, Attr, Creator, DirEntry, Entry, FileType, NewNode, ObjectId, RenameFlags, Seek,
    SetAttr, SetXattr, StatFs, TimeSet, Timestamp,
};
pub use watch::{UnderWay, Watch};
