//! Write-back: who holds dirty data, who writes it and who waits for it.
//!
//! The names are those of Linux' `fs/fs-writeback.c` and `mm/page-writeback.c`:
//!
//! | type | is |
//! |---|---|
//! | [`Bdi`] | one backing device (here: one store) with its wbs and its flusher threads |
//! | [`Wb`] | the dirty inodes of one owner on one backing device |
//! | [`Inode`] | what a wb lists: something with dirty data that can be written |
//! | [`Budget`] | the hard bound on cached pages, and who must wait when it is near |
//! | [`Drain`] | what unmount waits for: the ownership switches of one superblock |
//! | [`ErrSeq`] | write-back errors, reported once to everyone who had the file open |
//!
//! The crate knows nothing of files, stores or FUSE.

#![forbid(unsafe_code)]

mod bdi;
mod budget;
mod drain;
mod errseq;
mod wb;

pub use bdi::{Bdi, BdiOptions};
pub use budget::{Budget, Permit, Queued, Waiter};
#[cfg(loom)]
#[doc(hidden)]
pub use drain::Memory;
pub use drain::{Drain, Drained, Pin};
pub use errseq::{Cursor, ErrSeq};
pub use wb::{Inode, Outcome, Owner, Wb};
