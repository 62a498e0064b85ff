//! Mount namespaces over a superblock trait, and an unmount that does not wait without need.
//!
//! A [`Namespace`] is a tree of mounts. Walks cross it without locks and without writing memory
//! that other threads read; an unmount that finds no other user of its mount waits for no thread.
//! **The thread that runs the clean-up matters**: a call that unmounts has the superblock shut down
//! when it returns; after a lazy unmount with users, the thread that drops the last [`Pin`] shuts
//! it down before that drop returns. No queue is involved and no foreign thread: where a call ends
//! several superblocks that may have to wait, it makes threads of its own for them, and outlasts
//! these. So a superblock that hangs holds up only its own unmount.
//!
//! | type | is |
//! |---|---|
//! | [`Namespace`] | a tree of mounts with its own readers: walks, mounts, unmounts, moves |
//! | [`Superblock`] | the mounted thing: names and inodes of its own |
//! | [`Super`] | a superblock and the number of its mounts |
//! | [`Hold`] | a use of a superblock, through any of its mounts |
//! | [`Place`] | a mount and an inode, found without keeping anything |
//! | [`Pin`] | a place that is kept, with a name that is reported to a refused unmount |
//!
//! | module | holds |
//! |---|---|
//! | `protocol` | sequence, references, departure: the part that the model checker tries |
//! | `walk` | paths, in sections and with references |
//! | `map` | tables that are read in sections |
//! | `tree` | state that only changes need, under one lock |
//! | `attach`, `moving`, `umount` | changes |
//! | `strategy` | how a mount that left is ended |
//!
//! Lock order: the tree of a family of namespaces; the locks of namespaces, by number; pins of a
//! mount; the mounts of a superblock. Superblocks are called with none of them held, except
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
