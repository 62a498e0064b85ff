//! Mount namespaces over a superblock trait, and an unmount that does not wait without need.
//!
//! A [`Namespace`] is a tree of mounts. Walks cross it without locks and without writing memory
//! that other threads read; an unmount that finds no other user of its mount waits for no thread.
//! **The thread that runs the clean-up matters**: a call that unmounts has the superblock shut down
//! when it returns; after a lazy unmount with users, the thread that drops the last [`PathRef`]
//! shuts it down before that drop returns. No queue is involved and no foreign thread: where a call
//! ends several superblocks that may have to wait, it makes threads of its own for them, and
//! outlasts these. So a superblock that hangs holds up only its own unmount.
//!
//! | type | is |
//! |---|---|
//! | [`Namespace`] | a tree of mounts with its own readers: walks, mounts, unmounts, moves |
//! | [`Superblock`] | the mounted thing: names and inodes of its own |
//! | [`SuperblockRef`] | a superblock and the number of its mounts |
//! | [`ActiveRef`] | a use of a superblock, through any of its mounts |
//! | [`VfsPath`] | a mount and an inode, found without keeping anything |
//! | [`PathRef`] | a pinned path, with a name that is reported to a refused unmount |
//!
//! ```text
//!  namespace     the public handle
//!  attach  moving  umount                        changes
//!     |       |       |
//!  propagate  |    teardown   peers and slaves;   how an unmounted mount ends
//!     |       |       |
//!  change     walk    |       hash, unhash;       rcu_walk, ref_walk, path, step
//!     |       |       |
//!  tree <-----+-------+       what only changes need, under one lock
//!     |
//!  table  mount               what walks read;    a mount and references to it
//!     |     |
//!  superblock  protocol       what is mounted;    sequence, references, unmount
//! ```
//!
//! Read `protocol` first, which is also what the model checker tries; then `walk`, then `umount`.
//!
//! Lock order: the tree of a propagation domain; the locks of namespaces, by number; pins of a
//! mount; the mounts of a superblock. Superblocks are called with none of them held, except
//! [`Superblock::is_below`].

#![forbid(unsafe_code)]

mod attach;
mod change;
mod error;
mod mount;
mod moving;
mod namespace;
mod propagate;
#[doc(hidden)]
pub mod protocol;
mod superblock;
mod table;
#[doc(hidden)]
pub mod teardown;
mod tree;
mod umount;
mod walk;

pub use attach::NewMount;
pub use error::{Busy, Error, Holder, Result};
pub use mount::{MountId, PathRef, VfsPath};
pub use namespace::{MountInfo, Namespace, Rights, Stats};
pub use propagate::{Propagation, Ties};
pub use superblock::{ActiveRef, FoundInode, Inode, Kind, Superblock, SuperblockRef};
pub use tree::Options;
pub use umount::Umount;
#[doc(hidden)]
pub use walk::step;
pub use walk::{Base, FinalSymlink};
