//! The values that a front end and a volume exchange.

use std::fmt;

use crate::Cancel;

/// Names a node of the volume while the front end holds look-ups on it.
pub type NodeId = store::ObjectId;

/// Names an open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);

/// The thread that makes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// The thread's id; 0 where the request has none (memory-mapped writes).
    pub pid: u32,
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Bits that creation takes from a mode.
    pub umask: u32,
}

/// One request on its way through the volume.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    /// The thread that makes it.
    pub caller: Caller,
    /// Ends the request's waits.
    pub cancel: &'a Cancel,
    /// Called before a wait that may be long, so that the front end can let another thread read
    /// requests.
    pub before_wait: &'a (dyn Fn() + Sync),
}

impl fmt::Debug for Ctx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx").field("caller", &self.caller).finish_non_exhaustive()
    }
}

bitflags::bitflags! {
    /// How a file is opened.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Reading is allowed.
        const READ = 1;
        /// Writing is allowed.
        const WRITE = 2;
        /// Truncate first.
        const TRUNCATE = 4;
        /// Creation must make the name (`O_EXCL`).
        const EXCLUSIVE = 8;
        /// Every write is durable when it returns, the data and what is needed to find it
        /// (`O_DSYNC`).
        const DSYNC = 16;
        /// Every write is durable when it returns, all attributes too (`O_SYNC`).
        const SYNC = 32;
        /// Drop the set-id bits and the capabilities (with `TRUNCATE`).
        const KILL_PRIV = 64;
        /// Opened for reading and writing, so that the file can be mapped to be written.
        const MAPPABLE = 128;
    }

    /// How data is written.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct WriteFlags: u32 {
        /// Drop the set-id bits and the capabilities.
        const KILL_PRIV = 1;
        /// The kernel writes its own dirty pages (mapped memory, kernel write-back): no caller is
        /// known.
        const KERNEL = 2;
        /// Durable on return (`O_DSYNC`).
        const DSYNC = 4;
        /// Durable on return, attributes too (`O_SYNC`).
        const SYNC = 8;
    }
}
