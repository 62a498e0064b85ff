//! The cgroups of the host: which one a thread is in, and which of them are removed or renamed.
//!
//! [`Hierarchy::find`] chooses one tree of cgroups: version 2, or that of a version 1 controller.
//! [`ThreadCache`] finds which of its cgroups a thread is in, and remembers that for a moment.
//! [`Watch`] reports the end of cgroups that were added to it.
//!
//! ```text
//!  threads   watch ---- unwaited     a thread's cgroup; cgroups that end; inotify
//!     |        |
//!     hierarchy                      the tree of cgroups: read this first
//! ```
//!
//! A cgroup is named by its directory's inode number, which is the kernel's own cgroup id and is
//! not used again while the host runs; a directory of the same name, made later, is another cgroup.
//! The root of the tree has the number 0 here.

#![forbid(unsafe_code)]

mod background_close;
mod hierarchy;
mod threads;
mod watch;

pub use hierarchy::{CgroupId, Choice, Error, Found, Hierarchy, unescaped};
pub use threads::ThreadCache;
pub use watch::{CgroupEvent, Watch};
