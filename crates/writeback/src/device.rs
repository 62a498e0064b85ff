//! One backing device: its wbs, their inodes and its flushers.

pub(crate) mod bdi;
pub(crate) mod flushers;
pub(crate) mod inode;
pub(crate) mod wb;
pub(crate) mod wbs;
