//! How requests come from the kernel, and where their answers go.
//!
//! | module | is |
//! |---|---|
//! | `dev_fuse` | threads that read `/dev/fuse` |
//! | `uring` | io_uring: a thread and an entry of a queue for each request |
//! | `reply_channel` | where an answer goes, over either |

pub(crate) mod dev_fuse;
pub(crate) mod reply_channel;
pub(crate) mod uring;
