//! Mount namespaces over a superblock trait, and an unmount that waits for nobody.
//!
//! A [`Namespace`] is a tree of mounts. Walks cross it without locks and without writing memory
//! that other threads read; an unmount that finds nobody else using its mount waits for nobody.
//! **Who runs the clean-up matters**: whoever asked for the unmount has the superblock shut down
//! when the call returns; after a lazy one with users it is who drops the last [`Pin`], when that
//! drop returns. No queue is involved and nobody else's thread: where a call ends several
//! superblocks that may have to wait, it makes threads of its own for them, and outlasts these. So
//! a superblock that hangs holds up nobody but its own unmount.
//!
//! | type | is |
//! |---|---|
//! | [`Namespace`] | a tree of mounts with its own readers: walks, mounts, unmounts, moves |
//! | [`Superblock`] | what is mounted: names and inodes of its own |
//! | [`Super`] | a superblock and the number of its mounts |
//! | [`Hold`] | a use of a superblock, through whichever of its mounts |
//! | [`Place`] | a mount and an inode, found without keeping anything |
//! | [`Pin`] | a place that is kept, with a name for those who want to unmount it |
//!
//! | module | holds |
//! |---|---|
//! | `protocol` | sequence, references, departure: what the model checker tries |
//! | `walk` | paths, in sections and with references |
//! | `map` | tables that are read in sections |
//! | `tree` | what only changes need to know, under one lock |
//! | `attach`, `moving`, `umount` | changes |
//! | `strategy` | how a mount that left is ended |
//!
//! Lock order: the tree of a family of namespaces; the locks of namespaces, by number; pins of a
//! mount; the mounts of a superblock. Superblocks are called with none of them held but for
//! [`Superblock::is_below`].

#![forbid(unsafe_code)]

mod attach;
mod change;
mod error;
mod map;
mod mount;
mod moving;
mod namespace;
#[doc(hidden)]
pub mod protocol;
#[doc(hidden)]
pub mod strategy;
mod superblock;
mod tree;
mod umount;
mod walk;

pub use attach::Made;
pub use error::{Busy, Error, Holder, Result};
pub use mount::{MountId, Pin};
pub use moving::Propagation;
pub use namespace::{MountInfo, Namespace, Options, Rights, Stats};
pub use superblock::{Entry, Hold, Inode, Kind, Super, Superblock};
pub use umount::Umount;
#[doc(hidden)]
pub use walk::step;
pub use walk::{Last, Place, Start};
