//! A file system in memory, and random operations on it and on a mount.
//!
//! [`Op`]s come from proptest. Each is applied to the [`Model`] and, by [`Real`], to a directory;
//! both give an [`Outcome`], which must be equal: the bytes read, the count copied, or the error
//! number. The whole tree is compared with [`differences`]: names, kinds, sizes, contents, link
//! counts, owners, modes, modification times that were set, extended attributes; and every open
//! file, with a name or without.
//!
//! The model says nothing about an operation that makes no sense at that moment (a closed slot,
//! opening a fifo): it returns `None`, and the operation is left out.

mod compare;
mod files;
mod op;
mod real;
mod run;
mod tree;

pub use compare::differences;
pub use op::{Allocate, How, Op, P, Rename, SetX, op, path};
pub use real::Real;
pub use run::{Ground, Tally, When, run};
pub use tree::{Id, Kind, Model, Node};

/// Open files at a time.
pub const SLOTS: usize = 4;

/// What an operation gave.
pub type Outcome = Result<Value, Errno>;

/// A value that an operation gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing but success.
    Done,
    /// Bytes read.
    Bytes(Vec<u8>),
    /// Bytes copied or written.
    Count(u64),
}

/// An error number, shown by name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", rustix::io::Errno::from_raw_os_error(self.0))
    }
}
